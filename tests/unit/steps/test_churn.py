"""Churn in a simulated cluster: consolidation backs off, honours caps, removes no new node, and scale-in empties nodes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import CHURN_LEDGER, NODEPOOL, POD
from journeyman.core.plan import Step
from journeyman.steps.context import FeatureGates
from tests.helpers import builders, churn
from tests.helpers.builders import pool_body
from tests.helpers.simulated_cluster import SimulatedCluster

FOUR = builders.an_instance_type("m", cpu=4, memory_gib=16, price=0.45, zones=("a",))
EIGHT = builders.an_instance_type("l", cpu=8, memory_gib=32, price=0.8, zones=("a",))
AT_ONCE = {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]}


def three_nodes(simulation: SimulatedCluster, **web: Any) -> SimulatedCluster:
    """Deploy three nodes with a pod of `web` each, of which one node would do, and let consolidation start after 11 minutes."""
    simulation.deploy("web", 0, cpu="1200m", **web)
    for i in range(3):
        simulation.deploy(f"filler{i}", 1, cpu="2400m")
        simulation.scale("web", i + 1)
        simulation.until(lambda: all(p.spec.node_name for p in simulation.server.list(POD).items), "pods on nodes")
    for i in range(3):
        simulation.scale(f"filler{i}", 0)
    simulation.run_for(minutes=11)
    simulation.server.patch(NODEPOOL, "default", {"spec": {"disruption": AT_ONCE}})
    return simulation


def a_cluster_without_consolidation() -> SimulatedCluster:
    """Return a cluster of nodes with 4 CPUs that are not consolidated yet."""
    return SimulatedCluster((FOUR,), pool_body(spec={"disruption": {**AT_ONCE, "consolidateAfter": "Never"}}))


def the_ledger(simulation: SimulatedCluster) -> dict[str, Any]:
    [ledger] = simulation.server.list(CHURN_LEDGER).items
    return ledger["status"]


def test_consolidation_backs_off_from_workloads_for_which_a_node_is_launched_again():
    """The ledger says so once, with an Event on the NodeClaim; the node of `web` stays for ten minutes after its launch."""
    simulation = SimulatedCluster((FOUR, EIGHT), pool_body(spec={"disruption": AT_ONCE}))
    simulation.deploy("web", 1, cpu="1200m")
    simulation.deploy("filler", 1, cpu="6")
    simulation.until(lambda: simulation.running() == 2, "two pods")
    command = churn.a_command("c", moved={"web": 1}, ended=simulation.clock.now()).to_wire()
    simulation.server.load([{**command, "metadata": {"name": "c"}}])
    simulation.scale("filler", 0)
    simulation.run_for(minutes=9)

    ledger = the_ledger(simulation)
    claims = {claim.metadata.name for claim in simulation.claims()}
    web = next(w for w in ledger["workloads"] if w["name"] == "web")
    assert [c["reversedBy"] in claims for c in ledger["commands"] if c.get("reversedBy")] == [True]
    assert (web["kind"], web["evictions"], web["reversals"], "heldUntil" in web) == ("Deployment", [1], [1], True)
    assert {e.ref.name for e in simulation.record.events if e.reason == "ConsolidationReversed"} <= claims
    blocked = [e.message for e in simulation.record.events if e.reason == "DisruptionBlocked"]
    assert any("from Deployment default/web: its consolidation had no effect once in 6 hours" in m for m in blocked)
    assert simulation.nodes() == ["l"]
    simulation.run_for(minutes=5)
    assert simulation.nodes() == ["m"]


def test_node_that_an_autoscaler_has_just_needed_is_not_removed_at_once():
    """Pods come and go within minutes; the node of the last growth stays for ten minutes, and none is launched again."""
    simulation = SimulatedCluster((FOUR,), pool_body(spec={"disruption": AT_ONCE}))
    simulation.deploy("web", 4, cpu="1200m")
    simulation.until(lambda: simulation.running() == 4, "four pods")
    launched = len(simulation.cloud.launches)
    for replicas in (3, 4, 3, 4, 3):
        simulation.scale("web", replicas)
        simulation.run_for(minutes=1)

    assert (simulation.nodes(), len(simulation.cloud.launches)) == (["m", "m"], launched)
    blocked = [e.message for e in simulation.record.events if e.reason == "DisruptionBlocked"]
    assert any("was launched for pods of Deployment default/web, which run there" in message for message in blocked)
    simulation.run_for(minutes=12)
    assert simulation.nodes() == ["m"]
    launches = {w["name"]: sum(w["launches"]) for w in the_ledger(simulation)["workloads"]}
    assert launches == {"web": launched}


@pytest.mark.parametrize(
    ("gates", "ended"), [({}, "Empty"), ({"pod_deletion_cost_management": False}, "Underutilized")]
)
def test_scale_in_empties_the_node_that_is_deleted_next(gates, ended):
    """Without deletion costs, the ReplicaSet keeps the pod that is alone on its node, and that must then be evicted."""
    simulation = SimulatedCluster((FOUR,), pool_body(spec={"disruption": {**AT_ONCE, "consolidateAfter": "30s"}}))
    simulation.cluster.settings = replace(simulation.cluster.settings, feature_gates=FeatureGates(**gates))
    simulation.deploy("web", 3, cpu="1200m")
    simulation.until(lambda: simulation.running() == 3, "three pods")
    simulation.scale("web", 4)
    simulation.requeue(Step.PROVISION)
    simulation.until(lambda: simulation.running() == 4, "four pods")
    simulation.run_for(minutes=3)
    simulation.scale("web", 3)
    simulation.run_for(minutes=20)

    assert (simulation.nodes(), simulation.running()) == (["m"], 3)
    assert [(reason, phase) for reason, _, phase in simulation.disruptions()] == [(ended, "Succeeded")]


def test_deletion_costs_are_removed_once_the_gate_is_disabled():
    """Otherwise ReplicaSets would delete these pods first for as long as they live."""
    simulation = SimulatedCluster((FOUR,), pool_body(spec={"disruption": {**AT_ONCE, "consolidateAfter": "30s"}}))
    simulation.deploy("web", 3, cpu="1200m")
    simulation.until(lambda: simulation.running() == 3, "three pods")
    simulation.run_for(minutes=3)

    def found() -> set[str | None]:
        annotations = (pod.metadata.annotations for pod in simulation.server.list(POD).items)
        return {one.get(key) for one in annotations for key in (labels.POD_DELETION_COST, labels.OWN_POD_DELETION_COST)}

    [cost] = found()
    assert cost is not None
    assert int(cost) < 0
    gates = FeatureGates(pod_deletion_cost_management=False)
    simulation.cluster.settings = replace(simulation.cluster.settings, feature_gates=gates)
    simulation.run_for(minutes=3)
    assert found() == {None}


@pytest.mark.parametrize(("cap", "nodes", "moved"), [("0", 3, 0), ("1", 2, 1), ("", 1, 2)])
def test_cap_on_evictions_keeps_nodes_of_a_workload(cap, nodes, moved):
    """Three nodes with one pod each, of which one node would do: each deletion moves a pod of the Deployment."""
    annotations = {labels.MAX_EVICTIONS_PER_DAY: cap} if cap else {}
    simulation = three_nodes(a_cluster_without_consolidation(), annotations=annotations)
    simulation.run_for(minutes=15)

    assert (simulation.running(), len(simulation.nodes())) == (3, nodes)
    assert sum(sum(w.get("evictions", ())) for w in the_ledger(simulation)["workloads"]) == moved
    blocked = [e.message for e in simulation.record.events if e.reason == "DisruptionBlocked"]
    assert any(f"Deployment default/web allows {cap} evictions a day" in message for message in blocked) is bool(cap)
