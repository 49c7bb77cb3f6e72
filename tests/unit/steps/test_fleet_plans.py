"""Fleet plans in the consolidate step: a FleetPlan whose moves are NodeDisruptions, and a new plan if one fails."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from journeyman.core.api.labels import LEAVING_TAINT
from journeyman.core.api.objects import FLEET_PLAN, NODE, NODE_DISRUPTION
from tests.helpers.builders import an_instance_type, pool_body
from tests.helpers.simulated_cluster import SimulatedCluster

TYPES = tuple(
    an_instance_type(name, cpu=cpus, memory_gib=4 * cpus, price=0.1 * cpus, zones=("a",))
    for name, cpus in (("s", 2), ("m", 4), ("l", 8))
)


def an_under_used_cluster(**disruption) -> SimulatedCluster:
    """Return a cluster with four nodes of which a small pod each is left."""
    settings = {"consolidateAfter": "30s", "budgets": [{"nodes": "100%"}], **disruption}
    simulation = SimulatedCluster(TYPES, pool_body(spec={"disruption": settings}))
    at_once = timedelta(0)  # otherwise the launched nodes are left alone for minutes, and become eligible one by one
    simulation.cluster.settings = replace(simulation.cluster.settings, fleet_plans=True, reversal_window=at_once)
    for n in range(4):
        simulation.deploy(f"big-{n}", 1, cpu="7")
        simulation.deploy(f"small-{n}", 1, cpu="300m")
        simulation.until(lambda n=n: simulation.running() == 2 * (n + 1), "a full node")
    assert simulation.nodes() == ["l"] * 4
    for n in range(4):
        simulation.scale(f"big-{n}", 0)
    return simulation


def plans(simulation):
    made = (p for p in simulation.server.list(FLEET_PLAN).items if p["spec"].get("moves"))
    return sorted(made, key=lambda p: p["spec"]["createdAt"])


def phase_of(raw):
    return (raw.get("status") or {}).get("phase", "")


def methods(simulation):
    return [(d["spec"]["method"], phase_of(d)) for d in simulation.server.list(NODE_DISRUPTION).items]


def test_moves_of_a_fleet_plan_are_commands():
    """Four nodes become a small one; the FleetPlans say what they save, and then nothing moves any more."""
    simulation = an_under_used_cluster()

    simulation.until(lambda: simulation.nodes() == ["s"], "the small node", minutes=60)
    simulation.until(lambda: {phase_of(p) for p in plans(simulation)} == {"Completed"}, "the plans")

    assert simulation.running() == 4
    assert plans(simulation)[-1]["spec"]["priceAfter"] == "0.2"
    assert all(p["status"]["done"] == len(p["spec"]["moves"]) for p in plans(simulation))
    before = methods(simulation)
    simulation.run_for(minutes=20)
    assert methods(simulation) == before
    assert {method for method, _ in before} <= {"emptiness", "fleet-plan"}


def test_plan_whose_move_fails_is_superseded_by_another():
    """The replacement is out of stock: the command is rolled back, and the next plan is made of what is left."""
    simulation = an_under_used_cluster()
    simulation.cloud.out_of_stock = {(t.name, "a", "on-demand") for t in TYPES}
    simulation.until(lambda: ("fleet-plan", "RolledBack") in methods(simulation), "the rollback")
    simulation.until(lambda: "Superseded" in map(phase_of, plans(simulation)), "the end of the plan")

    simulation.cloud.out_of_stock = set()
    simulation.until(lambda: simulation.nodes() == ["s"], "the second plan", minutes=90)

    assert all(not node.spec.taints for node in simulation.server.list(NODE).items)
    superseded = [p["status"]["message"] for p in plans(simulation) if phase_of(p) == "Superseded"]
    assert any("RolledBack" in message for message in superseded)


def test_moves_wait_for_budgets():
    """With a budget of one node, each move deletes one node, one after the other."""
    simulation = an_under_used_cluster(budgets=[{"nodes": "1"}])

    simulation.until(lambda: simulation.nodes() in (["s"], ["l"]), "one node", minutes=90)

    assert simulation.running() == 4
    assert {method for method, _ in methods(simulation)} <= {"emptiness", "fleet-plan"}
    assert all(len(d["spec"]["candidates"]) == 1 for d in simulation.server.list(NODE_DISRUPTION).items)


def test_nodes_that_a_plan_deletes_later_are_avoided_by_new_pods():
    """While the plan runs, the nodes of its waiting moves have a PreferNoSchedule taint; when it ends, none has it."""
    simulation = an_under_used_cluster(budgets=[{"nodes": "1"}])

    simulation.until(lambda: avoided(simulation), "the taint", minutes=60)
    waiting = {name for plan in plans(simulation) for move in plan["spec"]["moves"] for name in move["nodeClaims"]}
    assert avoided(simulation) <= waiting
    simulation.cluster.settings = replace(simulation.cluster.settings, fleet_plans=False)

    simulation.until(lambda: not avoided(simulation), "the end of the taint")


def avoided(simulation):
    """Return the names of the NodeClaims whose nodes have the taint of nodes that leave."""
    return {
        claim.metadata.name
        for node in simulation.server.list(NODE).items
        if any((t.key, t.effect) == (LEAVING_TAINT, "PreferNoSchedule") for t in node.spec.taints)
        for claim in simulation.claims()
        if claim.status.node_name == node.metadata.name
    }


def test_fleet_without_a_worthwhile_move_is_not_solved_at_each_run():
    """A FleetPlan without moves says so; there is no other one while nothing changes within its time."""
    simulation = SimulatedCluster(TYPES, pool_body(spec={"disruption": {"consolidateAfter": "30s"}}))
    simulation.cluster.settings = replace(simulation.cluster.settings, fleet_plans=True)
    simulation.deploy("web", 1, cpu="900m")
    simulation.until(lambda: simulation.running() == 1, "the pod")
    simulation.run_for(minutes=12)

    before = simulation.server.list(FLEET_PLAN).items
    simulation.run_for(minutes=5)

    assert [p["spec"]["moves"] for p in before] == [[]]
    assert simulation.server.list(FLEET_PLAN).items == before
