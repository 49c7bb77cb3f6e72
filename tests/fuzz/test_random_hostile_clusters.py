"""Clusters with random hostile objects of every kind: no object stops a step, or takes it 10 s of CPU.

`make test` draws 300 clusters, `make nightly` 10,000 (`JOURNEYMAN_HOSTILE_CLUSTERS`).
"""

import os

import pytest

from tests.fuzz.healthy_cluster import HealthyCluster
from tests.fuzz.hostile_objects import HostileObjects

CLUSTERS = int(os.environ.get("JOURNEYMAN_HOSTILE_CLUSTERS", "300"))
PER_TEST = 25
MAX_SECONDS = 10.0
ALWAYS = (
    "the pod of the leaving node is evicted",
    "the interrupted NodeClaim is deleted",
    "the busy node stays",
)
"""What no hostile object may prevent; it may legitimately take the place of a pending pod or delay a consolidation."""


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, CLUSTERS, PER_TEST))
def test_random_hostile_objects_stop_nothing(first):
    """All five steps run in each cluster; each failure names its seed."""
    failures = {}
    for seed in range(first, min(first + PER_TEST, CLUSTERS)):
        findings = HealthyCluster(HostileObjects(seed).draw()).run()
        lost = [name for name in ALWAYS if not findings.served[name]]
        if findings.stopped or lost or findings.slowest >= MAX_SECONDS:
            failures[seed] = (findings.stopped, lost, findings.slowest)

    assert failures == {}
