"""Fleet plans in the consolidate step: a FleetPlan whose moves are NodeDisruptions, and a new plan if one fails."""

from __future__ import annotations

from msgspec.structs import replace

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
    simulation.cluster.settings = replace(simulation.cluster.settings, fleet_plans=True)
    for n in range(4):
        simulation.deploy(f"big-{n}", 1, cpu="7")
        simulation.deploy(f"small-{n}", 1, cpu="300m")
        simulation.until(lambda n=n: simulation.running() == 2 * (n + 1), "a full node")
    assert simulation.nodes() == ["l"] * 4
    for n in range(4):
        simulation.scale(f"big-{n}", 0)
    return simulation


def plans(simulation):
    """Return the FleetPlans, oldest first."""
    return sorted(simulation.server.list(FLEET_PLAN).items, key=lambda p: p["spec"]["createdAt"])


def phase_of(raw):
    """Return the phase; empty if it has none yet."""
    return (raw.get("status") or {}).get("phase", "")


def methods(simulation):
    """Return the method and phase of each NodeDisruption."""
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
    simulation.until(lambda: phase_of(plans(simulation)[0]) == "Superseded", "the end of the plan")

    simulation.cloud.out_of_stock = set()
    simulation.until(lambda: simulation.nodes() == ["s"], "the second plan", minutes=90)

    assert all(not node.spec.taints for node in simulation.server.list(NODE).items)
    assert "RolledBack" in plans(simulation)[0]["status"]["message"]


def test_moves_wait_for_budgets():
    """With a budget of one node, each move deletes one node, one after the other."""
    simulation = an_under_used_cluster(budgets=[{"nodes": "1"}])

    simulation.until(lambda: simulation.nodes() in (["s"], ["l"]), "one node", minutes=60)

    assert simulation.running() == 4
    assert {method for method, _ in methods(simulation)} <= {"emptiness", "fleet-plan"}
    assert all(len(d["spec"]["candidates"]) == 1 for d in simulation.server.list(NODE_DISRUPTION).items)
