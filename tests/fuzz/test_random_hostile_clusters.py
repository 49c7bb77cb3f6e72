"""Clusters with random hostile objects of every kind: none stops a step, takes it 10 s of CPU, or harms a healthy object.

`make test` draws 300 clusters, `make nightly` 10,000 (`JOURNEYMAN_HOSTILE_CLUSTERS`). `JOURNEYMAN_HOSTILE_SEED` is the first seed.
"""

import os

import pytest

from tests.fuzz.healthy_cluster import HealthyCluster
from tests.fuzz.hostile_objects import HostileObjects

CLUSTERS = int(os.environ.get("JOURNEYMAN_HOSTILE_CLUSTERS", "300"))
FIRST_SEED = int(os.environ.get("JOURNEYMAN_HOSTILE_SEED", "0"))
PER_TEST = 25
MAX_SECONDS = 10.0


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + CLUSTERS, PER_TEST))
def test_random_hostile_objects_stop_nothing(first):
    """All five steps run in each cluster, and serve every healthy object; each failure names its seed."""
    failures = {}
    for seed in range(first, min(first + PER_TEST, FIRST_SEED + CLUSTERS)):
        findings = HealthyCluster(HostileObjects(seed).draw()).run()
        lost = [name for name, is_served in findings.served.items() if not is_served]
        if findings.stopped or findings.rejected or lost or findings.slowest >= MAX_SECONDS:
            failures[seed] = (findings.stopped, findings.rejected, lost, findings.slowest)

    assert failures == {}
