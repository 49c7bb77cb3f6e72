"""Rebalancing lives: recommendations for running nodes, replacements first, and the warning that may overtake them."""

from __future__ import annotations

from journeyman.core.api import labels
from journeyman.core.api.conditions import DISRUPTION_REASON
from journeyman.core.api.objects import is_true
from journeyman.core.lifecycle.interruption import InterruptionKind
from journeyman.ports import Interruption
from journeyman.steps.interrupt import interrupt
from tests.helpers.builders import pool_body
from tests.helpers.fleets import types
from tests.helpers.living import Living


def a_spot_fleet(nodes: int, *, budget: str) -> Living:
    """So many Spot nodes with a pod each, in a pool that acts on recommendations and never consolidates."""
    spot = [
        {"key": labels.CAPACITY_TYPE, "operator": "In", "values": [labels.SPOT]},
        {"key": labels.INSTANCE_TYPE, "operator": "In", "values": ["s"]},
    ]
    disruption = {"consolidateAfter": "Never", "budgets": [{"nodes": budget}]}
    living = Living(
        types(),
        pool_body(
            metadata={"annotations": {labels.REBALANCE: "replace"}},
            spec={"template": {"spec": {"requirements": spot}}, "disruption": disruption},
        ),
    )
    living.deploy("web", nodes, cpu="1500m")
    living.until(lambda: living.running() == nodes and len(living.claims()) == nodes, "a pod on each node")
    living.live(minutes=2)
    return living


def notify(living: Living, kind: str, provider_id: str) -> None:
    """A notice about an instance of ours comes in."""
    now = living.clock.now()
    trigger = Interruption(
        id="e",
        cluster="demo",
        reason="test",
        time=now,
        kind=InterruptionKind(kind),
        instance_ids=(provider_id.rsplit("/", 1)[-1],),
    )
    interrupt(living.cluster.run(), trigger)


def offerings(living: Living) -> set[tuple[str, str]]:
    """Where what runs runs."""
    return {(i.instance_type, i.zone) for i in living.cloud.list() if i.state == "running"}


def test_many_rebalance_recommendations_move_pods_within_budgets():
    """All four nodes are at risk; two may go at a time. No pod stops before the node it moves to is ready."""
    living = a_spot_fleet(4, budget="50%")
    at_risk = {i.provider_id for i in living.cloud.list()}
    risky = offerings(living)
    for provider_id in sorted(at_risk):
        notify(living, "rebalance_recommendation", provider_id)
        notify(living, "rebalance_recommendation", provider_id)
    most_taken, least_ready = 0, 4

    def all_moved() -> bool:
        nonlocal most_taken, least_ready
        conditions = [c.status.conditions for c in living.claims()]
        taken = sum(is_true(c, DISRUPTION_REASON) and not is_true(c, "InstanceTerminating") for c in conditions)
        joined = sum(
            is_true(c.status.conditions, "Initialized") and not c.metadata.deletion_timestamp for c in living.claims()
        )
        most_taken = max(most_taken, taken)
        least_ready = min(least_ready, joined)
        return living.running() == 4 and not at_risk & {i.provider_id for i in living.cloud.list()}

    living.until(all_moved, "every pod on a node that is not at risk", minutes=15)

    assert most_taken == 2
    assert least_ready == 4
    assert not offerings(living) & risky
    assert {(reason, phase) for reason, _, phase in living.disruptions()} <= {
        ("Interrupted", "Succeeded"),
        ("Interrupted", "Executing"),
    }
    living.live(minutes=10)
    assert len(living.claims()) == 4
    assert {phase for _, _, phase in living.disruptions()} == {"Succeeded"}


def test_a_warning_that_overtakes_the_replacement_changes_only_who_waits():
    """The node is drained at once; the replacement that is on its way is the only one that is opened."""
    living = a_spot_fleet(1, budget="100%")
    (instance,) = living.cloud.list()
    notify(living, "rebalance_recommendation", instance.provider_id)
    living.until(lambda: len(living.cloud.list()) == 2, "the replacement on its way", minutes=1)

    notify(living, "spot_interrupted", instance.provider_id)
    living.until(
        lambda: living.running() == 1 and instance.provider_id not in {i.provider_id for i in living.cloud.list()},
        "the pod on the replacement",
        minutes=2,
    )

    living.live(minutes=5)
    assert len(living.cloud.launches) == 2
    assert [phase for _, _, phase in living.disruptions()] == ["Succeeded"]


def test_replacements_that_cannot_be_had_leave_the_node_as_it_is():
    """Every other offering is out of stock: the pod runs on, and the cloud is not asked all the time."""
    living = a_spot_fleet(1, budget="100%")
    (instance,) = living.cloud.list()
    own = (instance.instance_type, instance.zone, instance.capacity_type)
    living.cloud.out_of_stock = {(t.name, o.zone, o.capacity_type) for t in living.cloud.types for o in t.offerings}
    living.cloud.out_of_stock -= {own}
    before = len(living.cloud.launches)
    notify(living, "rebalance_recommendation", instance.provider_id)

    living.live(minutes=30)

    assert [i.provider_id for i in living.cloud.list()] == [instance.provider_id]
    assert living.running() == 1
    assert 1 <= len(living.cloud.launches) - before <= 6
    (claim,) = living.claims()
    assert not is_true(claim.status.conditions, DISRUPTION_REASON)
