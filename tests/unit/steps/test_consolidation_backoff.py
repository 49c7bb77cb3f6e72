"""Consolidation backs off: after consolidations without effect the next one waits longer each time."""

from __future__ import annotations

from journeyman.core.api.objects import NODE_DISRUPTION, NODEPOOL, POD
from tests.helpers import builders
from tests.helpers.builders import pool_body
from tests.helpers.living import Living

FOUR = builders.an_instance_type("m", cpu=4, memory_gib=16, price=0.45, zones=("a",))
EIGHT = builders.an_instance_type("l", cpu=8, memory_gib=32, price=0.8, zones=("a",))
AT_ONCE = {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]}


def a_tight_cluster() -> Living:
    """Three nodes: twice a large pod and a small one, and a large one alone. Two nodes fit all pods.

    But only if the small pods are with one large pod. When one of the nodes goes, kube-scheduler puts the small pod on the
    emptiest node, the large one's: then the other large one fits nowhere, and there are three nodes as before.
    """
    living = Living((FOUR,), pool_body(spec={"disruption": {**AT_ONCE, "consolidateAfter": "Never"}}))
    for i, filler in enumerate(("900m", "900m", "1900m")):
        living.deploy(f"z-large{i}", 1, cpu="1900m")
        if i < 2:
            living.deploy(f"a-small{i}", 1, cpu="900m", memory="64Mi")
        living.deploy(f"filler{i}", 1, cpu=filler)
        living.until(lambda: all(p.spec.node_name for p in living.server.list(POD).items), "pods on nodes")
    for i in range(3):
        living.scale(f"filler{i}", 0)
    living.live(minutes=1)
    assert (living.running(), living.nodes()) == (5, ["m", "m", "m"])
    living.server.patch(NODEPOOL, "default", {"spec": {"disruption": AT_ONCE}})
    return living


def test_consolidation_backs_off_when_kube_scheduler_packs_otherwise():
    """Without back-off there is a command and a launch each minute. Every reversal is stored, and an Event on the nodes."""
    living = a_tight_cluster()
    before = len(living.cloud.launches)
    counts = []
    for _ in range(2):
        living.live(minutes=30)
        counts.append(len(living.disruptions()))

    assert 1 <= counts[0] <= 10
    assert counts[1] - counts[0] <= 3
    assert len(living.cloud.launches) - before == counts[-1]
    reprovisioned = [d["status"].get("reprovisionedWorkloads") for d in living.server.list(NODE_DISRUPTION).items]
    assert sum(1 for workloads in reprovisioned if workloads) >= len(reprovisioned) - 1
    blocked = [e.message for e in living.record.events if e.reason == "DisruptionBlocked"]
    assert any("Consolidation backs off until" in message for message in blocked)
    assert living.running() == 5


def test_replacements_that_never_join_are_paid_for_more_and_more_rarely():
    """Karpenter opens one every ten minutes, for ever."""
    living = Living((FOUR, EIGHT), pool_body(spec={"disruption": {**AT_ONCE, "consolidateAfter": "30s"}}))
    living.deploy("web", 5, cpu="1400m")
    living.until(lambda: living.running() == 5, "five pods")
    assert living.nodes() == ["l"]
    machines, joined = living.cloud.machines, {i.provider_id for i in living.cloud.list()}
    living.cloud.machines = lambda: tuple(m for m in machines() if m.provider_id in joined)
    living.scale("web", 2)
    living.live(minutes=60)

    phases = [phase for _, decision, phase in living.disruptions() if decision == "replace"]
    assert 3 <= phases.count("RolledBack") <= 4
    assert living.nodes() == ["l"]
    assert living.running() == 2
