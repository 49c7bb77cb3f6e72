"""Consolidation backs off: after consolidations without effect the next one waits longer each time."""

from __future__ import annotations

import pytest

from journeyman.core.api.objects import NODE_DISRUPTION, NODEPOOL, POD
from tests.helpers import builders
from tests.helpers.builders import pool_body
from tests.helpers.simulated_cluster import SimulatedCluster

FOUR = builders.an_instance_type("m", cpu=4, memory_gib=16, price=0.45, zones=("a",))
EIGHT = builders.an_instance_type("l", cpu=8, memory_gib=32, price=0.8, zones=("a",))
AT_ONCE = {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]}


def a_tight_cluster() -> SimulatedCluster:
    """Return a cluster with three nodes: two have a large and a small pod, one has only a large pod. Two nodes fit all pods.

    They fit only if both small pods share a node with one large pod. When a node is deleted, kube-scheduler binds its small pod
    to the node with the most free capacity, so its large pod fits neither node, and a third node is launched again.
    """
    simulation = SimulatedCluster((FOUR,), pool_body(spec={"disruption": {**AT_ONCE, "consolidateAfter": "Never"}}))
    for i, filler in enumerate(("900m", "900m", "1900m")):
        simulation.deploy(f"z-large{i}", 1, cpu="1900m")
        if i < 2:
            simulation.deploy(f"a-small{i}", 1, cpu="900m", memory="64Mi")
        simulation.deploy(f"filler{i}", 1, cpu=filler)
        simulation.until(lambda: all(p.spec.node_name for p in simulation.server.list(POD).items), "pods on nodes")
    for i in range(3):
        simulation.scale(f"filler{i}", 0)
    simulation.run_for(minutes=1)
    assert (simulation.running(), simulation.nodes()) == (5, ["m", "m", "m"])
    simulation.server.patch(NODEPOOL, "default", {"spec": {"disruption": AT_ONCE}})
    return simulation


@pytest.mark.slow
def test_consolidation_backs_off_when_kube_scheduler_packs_otherwise():
    """Without back-off there is a command and a launch each minute. The step records every reversal and emits an Event."""
    simulation = a_tight_cluster()
    before = len(simulation.cloud.launches)
    counts = []
    for _ in range(2):
        simulation.run_for(minutes=30)
        counts.append(len(simulation.disruptions()))

    assert 1 <= counts[0] <= 10
    assert counts[1] - counts[0] <= 3
    assert len(simulation.cloud.launches) - before == counts[-1]
    reprovisioned = [d["status"].get("reprovisionedWorkloads") for d in simulation.server.list(NODE_DISRUPTION).items]
    assert sum(1 for workloads in reprovisioned if workloads) >= len(reprovisioned) - 1
    blocked = [e.message for e in simulation.record.events if e.reason == "DisruptionBlocked"]
    assert any("Consolidation backs off until" in message for message in blocked)
    assert simulation.running() == 5


@pytest.mark.slow
def test_back_off_grows_if_replacements_never_join():
    """Karpenter launches one every ten minutes without end."""
    simulation = SimulatedCluster((FOUR, EIGHT), pool_body(spec={"disruption": {**AT_ONCE, "consolidateAfter": "30s"}}))
    simulation.deploy("web", 5, cpu="1400m")
    simulation.until(lambda: simulation.running() == 5, "five pods")
    assert simulation.nodes() == ["l"]
    machines, joined = simulation.cloud.machines, {i.provider_id for i in simulation.cloud.list()}
    simulation.cloud.machines = lambda: tuple(m for m in machines() if m.provider_id in joined)
    simulation.scale("web", 2)
    simulation.run_for(minutes=60)

    phases = [phase for _, decision, phase in simulation.disruptions() if decision == "replace"]
    assert 3 <= phases.count("RolledBack") <= 4
    assert simulation.nodes() == ["l"]
    assert simulation.running() == 2
