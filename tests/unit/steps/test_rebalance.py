"""Rebalance recommendations on a simulated cluster: replacement within budgets, and a later interruption warning."""

from __future__ import annotations

from journeyman.core.api import labels
from journeyman.core.api.conditions import DISRUPTION_REASON
from journeyman.core.api.objects import is_true
from journeyman.core.lifecycle.interruption import InterruptionKind
from journeyman.ports import Interruption
from journeyman.steps.interrupt import interrupt
from tests.helpers.builders import pool_body
from tests.helpers.fleets import types
from tests.helpers.simulated_cluster import SimulatedCluster


def a_spot_fleet(nodes: int, *, budget: str) -> SimulatedCluster:
    """Return a cluster of Spot nodes with a pod each, whose NodePool replaces on recommendations and never consolidates."""
    spot = [
        {"key": labels.CAPACITY_TYPE, "operator": "In", "values": [labels.SPOT]},
        {"key": labels.INSTANCE_TYPE, "operator": "In", "values": ["s"]},
    ]
    disruption = {"consolidateAfter": "Never", "budgets": [{"nodes": budget}]}
    simulation = SimulatedCluster(
        types(),
        pool_body(
            metadata={"annotations": {labels.REBALANCE: "replace"}},
            spec={"template": {"spec": {"requirements": spot}}, "disruption": disruption},
        ),
    )
    simulation.deploy("web", nodes, cpu="1500m")
    simulation.until(lambda: simulation.running() == nodes and len(simulation.claims()) == nodes, "a pod on each node")
    simulation.run_for(minutes=2)
    return simulation


def notify(simulation: SimulatedCluster, kind: str, provider_id: str) -> None:
    now = simulation.clock.now()
    trigger = Interruption(
        id="e",
        cluster="demo",
        reason="test",
        time=now,
        kind=InterruptionKind(kind),
        instance_ids=(provider_id.rsplit("/", 1)[-1],),
    )
    interrupt(simulation.cluster.run(), trigger)


def offerings(simulation: SimulatedCluster) -> set[tuple[str, str]]:
    return {(i.instance_type, i.zone) for i in simulation.cloud.list() if i.state == "running"}


def test_many_rebalance_recommendations_move_pods_within_budgets():
    """All four nodes have recommendations, and two may be disrupted at a time, each after its replacement is Ready."""
    simulation = a_spot_fleet(4, budget="50%")
    at_risk = {i.provider_id for i in simulation.cloud.list()}
    risky = offerings(simulation)
    for provider_id in sorted(at_risk):
        notify(simulation, "rebalance_recommendation", provider_id)
        notify(simulation, "rebalance_recommendation", provider_id)
    most_taken, least_ready = 0, 4

    def all_moved() -> bool:
        nonlocal most_taken, least_ready
        conditions = [c.status.conditions for c in simulation.claims()]
        taken = sum(is_true(c, DISRUPTION_REASON) and not is_true(c, "InstanceTerminating") for c in conditions)
        joined = sum(
            is_true(c.status.conditions, "Initialized") and not c.metadata.deletion_timestamp
            for c in simulation.claims()
        )
        most_taken = max(most_taken, taken)
        least_ready = min(least_ready, joined)
        return simulation.running() == 4 and not at_risk & {i.provider_id for i in simulation.cloud.list()}

    simulation.until(all_moved, "every pod on a node that is not at risk", minutes=15)

    assert most_taken == 2
    assert least_ready == 4
    assert not offerings(simulation) & risky
    assert {(reason, phase) for reason, _, phase in simulation.disruptions()} <= {
        ("Interrupted", "Succeeded"),
        ("Interrupted", "Draining"),
    }
    simulation.run_for(minutes=10)
    assert len(simulation.claims()) == 4
    assert {phase for _, _, phase in simulation.disruptions()} == {"Succeeded"}


def test_interruption_before_its_replacement_drains_at_once():
    """The step drains the node at once and launches no replacement besides the one in flight."""
    simulation = a_spot_fleet(1, budget="100%")
    (instance,) = simulation.cloud.list()
    notify(simulation, "rebalance_recommendation", instance.provider_id)
    simulation.until(lambda: len(simulation.cloud.list()) == 2, "the replacement on its way", minutes=1)

    notify(simulation, "spot_interrupted", instance.provider_id)
    simulation.until(
        lambda: (
            simulation.running() == 1 and instance.provider_id not in {i.provider_id for i in simulation.cloud.list()}
        ),
        "the pod on the replacement",
        minutes=2,
    )

    simulation.run_for(minutes=5)
    assert len(simulation.cloud.launches) == 2
    assert [phase for _, _, phase in simulation.disruptions()] == ["Succeeded"]
