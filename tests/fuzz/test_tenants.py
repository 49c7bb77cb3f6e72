"""No tenant keeps another one's pod waiting: its node is launched within 5 s of CPU time, whatever else is pending.

Covers: 200 sets of hostile objects (`tenants`), each beside a pod that needs a node. One pod with 6,400 labels once took 27 s.
"""

from __future__ import annotations

import time

import pytest

from journeyman.core.api.objects import NODECLAIM
from journeyman.core.plan import Step
from tests.fuzz.healthy_cluster import HealthyCluster
from tests.fuzz.tenants import CASES, hostile
from tests.helpers.examples import marked

LAUNCHED_WITHIN = 5.0
"""CPU seconds from the start of the run to the launch of the last node that the healthy pod waits for."""
RUN_WITHIN = 10.0
EVERY_NTH = 4


def launch_seconds(cluster: HealthyCluster) -> list[float]:
    """Return a list that gets the CPU time at each launch from now on."""
    started, seconds = time.process_time(), []
    cluster.cluster.server.on_write(
        lambda write: (
            seconds.append(time.process_time() - started)
            if write.resource is NODECLAIM and write.result.get("status", {}).get("providerID")
            else None
        )
    )
    return seconds


@pytest.mark.slow
@pytest.mark.parametrize("case", marked(CASES, nightly=[case for n, case in enumerate(CASES) if n % EVERY_NTH]))
def test_other_pods_get_their_node_within_seconds(case):
    """The healthy pod's node is launched in the first run; hostile pods get a node or an error; no step stops."""
    assert len(CASES) >= 200
    cluster = HealthyCluster(hostile(case))
    launched = launch_seconds(cluster)

    findings = cluster.run(Step.PROVISION, rounds=1)

    assert findings.stopped == {}
    assert findings.rejected == []
    assert findings.served["the pending pod has a NodeClaim with an instance"]
    assert launched[-1] < LAUNCHED_WITHIN
    assert findings.slowest < RUN_WITHIN
