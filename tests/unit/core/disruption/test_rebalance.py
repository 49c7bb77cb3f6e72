"""Rebalance: nodes at risk are replaced first and within budgets, by what is not at risk itself."""

from __future__ import annotations

from datetime import timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.catalogue import Catalogue, without_unavailable
from journeyman.core.disruption.commands import to_node_disruption
from journeyman.core.disruption.consolidatable import Consolidatability
from journeyman.core.disruption.controller import DisruptionController, Evaluation
from journeyman.core.disruption.rebalance import offerings_at_risk
from journeyman.core.plan import Plan
from journeyman.core.state import Snapshot
from tests.helpers.builders import NOW, ago, stamp
from tests.helpers.fleets import TYPES, Member, a_fleet, a_member, a_pod, a_pool

BOTH = (labels.SPOT, labels.ON_DEMAND)


def a_risky_member(name: str, *, since=NOW, **more) -> Member:
    """A Spot node that the cloud recommends to leave, with a pod."""
    noted = {"metadata": {"annotations": {labels.REBALANCE_RECOMMENDED_AT: stamp(since)}}}
    return a_member(name, capacity_type=labels.SPOT, claim=noted, **{"cpus": ["3"], **more})


def a_rebalancing_pool(name: str = "default", *, value: str = "replace", **disruption):
    """A pool that never consolidates, and acts on recommendations."""
    pool = a_pool(name, capacity_types=BOTH, **{"consolidateAfter": "Never", **disruption})
    pool.metadata.annotations[labels.REBALANCE] = value
    return pool


def a_pass(snapshot: Snapshot, *, within_window: frozenset[str] = frozenset()) -> DisruptionController:
    """As the step makes one: what is at risk is avoided."""
    types = without_unavailable(TYPES, offerings_at_risk(snapshot), snapshot.now)
    catalogue = Catalogue({pool.metadata.name: types for pool in snapshot.node_pools})
    consolidatability = Consolidatability(claims=frozenset(), within_window=within_window, plan=Plan(), next_at=None)
    return DisruptionController(snapshot, catalogue, consolidatability)


def found(snapshot: Snapshot, **more) -> Evaluation | None:
    """The first command of a pass, if it is a rebalance."""
    considered = next((c for c in a_pass(snapshot, **more).evaluate_methods() if c.command.candidates), None)
    return considered if considered is not None and considered.method == "rebalance" else None


def taken(considered: Evaluation | None) -> list[str]:
    """The claims given back."""
    return [] if considered is None else [c.nodeclaim for c in considered.command.candidates]


def test_a_node_at_risk_is_replaced_by_one_that_is_not():
    """Whatever that costs: Spot of the same price elsewhere, never the same offering."""
    fleet = a_fleet(a_risky_member("n", size="m", zone="a"), pools=[a_rebalancing_pool()])
    considered = found(fleet)

    assert taken(considered) == ["n"]
    assert considered.command.reason.value == "Interrupted"
    (replacement,) = considered.command.replacements
    assert replacement.offering == ("m", "b", labels.SPOT)
    assert a_pass(fleet).simulation.verify(considered.command) == ()


def test_a_node_whose_pods_fit_elsewhere_is_given_up_without_a_replacement():
    """On nodes that have just changed, too: consolidateAfter is about price, not about safety."""
    fleet = a_fleet(a_risky_member("n", cpus=["1"]), a_member("other", size="l"), pools=[a_rebalancing_pool()])

    considered = found(fleet, within_window=frozenset({"other"}))

    assert (taken(considered), considered.command.replacements) == (["n"], ())


@pytest.mark.parametrize(
    ("member", "pool"),
    [
        (a_member("n", capacity_type=labels.SPOT, cpus=["3"]), a_rebalancing_pool()),
        (a_risky_member("n"), a_rebalancing_pool(value="ignore")),
        (a_risky_member("n", cpus=[]), a_rebalancing_pool()),
        (a_risky_member("n", deleting=True), a_rebalancing_pool()),
        (a_risky_member("n", initialized=False), a_rebalancing_pool()),
        (a_risky_member("n", since=ago(days=1)), a_rebalancing_pool()),
        (a_risky_member("n"), a_rebalancing_pool(budgets=[{"nodes": "0"}])),
        (
            a_risky_member("n", cpus=[], pods=[a_pod("p", node="node-n", metadata={"annotations": {labels.DO_NOT_DISRUPT: "true"}})]),
            a_rebalancing_pool(),
        ),
    ],
    ids=[
        "nobody recommended it", "the pool does not ask for it", "empty", "on its way out", "not there yet",
        "a day ago", "no budget", "a pod that must not be disrupted",
    ],
)  # fmt: skip
def test_nothing_is_done_where_nothing_is_to_be_done(member, pool):
    """Advice is acted upon as other disruption is: in turn, and with everybody's leave."""
    assert found(a_fleet(member, pools=[pool])) is None


def test_a_storm_is_one_command_for_as_many_nodes_as_budgets_allow():
    """The longest recommended go first. Budgets that name other reasons do not count."""
    members = [a_risky_member(f"n{i}", since=ago(minutes=i)) for i in range(5)]
    budgets = [{"nodes": "40%"}, {"nodes": "0", "reasons": ["Underutilized"]}]

    considered = found(a_fleet(*members, pools=[a_rebalancing_pool(budgets=budgets)]))

    assert taken(considered) == ["n4", "n3"]
    assert len(considered.command.replacements) >= 1


def test_a_node_that_cannot_be_left_does_not_hold_the_others():
    """One pod fits on nothing that may be opened; its node stays, the other goes."""
    stuck = a_pod("stuck", node="node-a", spec={"nodeSelector": {"only": "here"}})
    here = {"metadata": {"labels": {"only": "here"}}}
    fleet = a_fleet(
        a_risky_member("a", cpus=[], pods=[stuck], node=here), a_risky_member("b"), pools=[a_rebalancing_pool()]
    )

    assert taken(found(fleet)) == ["b"]


def test_pods_that_wait_for_nodes_come_first():
    """Their nodes are opened by provision; a replacement counted on beside them would be opened twice."""
    waiting = a_pod("big", cpu="14")
    fleet = a_fleet(a_risky_member("n"), pending=[waiting], pools=[a_rebalancing_pool()])

    looked = [c for c in a_pass(fleet).evaluate_methods() if c.method == "rebalance"]

    assert not any(c.command.candidates for c in looked)
    assert "pending pods need new nodes" in looked[-1].plan.events[0].message


def a_rolled_back(member: Member, minutes_ago: float) -> NodeDisruption:
    """A rebalance of it whose replacement could not be had."""
    considered = found(a_fleet(member, pools=[a_rebalancing_pool()]))
    made = to_node_disruption(considered.command, "rebalance", ago(minutes=minutes_ago))
    ended = made.status.model_copy(update={"phase": "RolledBack", "finished_at": ago(minutes=minutes_ago)})
    return made.model_copy(update={"status": ended})


@pytest.mark.parametrize(
    ("ended", "again"), [([0.5], False), ([1], True), ([1.5, 10], False), ([2, 10], True), ([3.5, 10, 20], False)]
)
def test_what_could_not_be_had_is_asked_for_ever_more_rarely(ended, again):
    """A minute after the first time, twice as long after each other."""
    member = a_risky_member("n")
    history = tuple(a_rolled_back(member, minutes) for minutes in ended)

    fleet = a_fleet(member, pools=[a_rebalancing_pool()], node_disruptions=history)

    assert (taken(found(fleet)) == ["n"]) is again


def a_proposal(snapshot: Snapshot) -> NodeDisruption:
    """The rebalance that is proposed for it."""
    return to_node_disruption(found(snapshot).command, "rebalance", snapshot.now)


def test_a_proposal_that_holds_is_carried_out_as_it_is():
    """The same nodes, replaced by the same."""
    fleet = a_fleet(a_risky_member("a"), a_risky_member("b"), pools=[a_rebalancing_pool()])

    command = a_pass(fleet).revalidate(a_proposal(fleet))

    assert [c.nodeclaim for c in command.candidates] == ["a", "b"]
    assert len(command.replacements) == len(a_proposal(fleet).spec.replacements)


@pytest.mark.parametrize(
    ("later", "why"),
    [
        ({"members": ("a",)}, "churn"),
        ({"budgets": [{"nodes": "1"}]}, "budget"),
        ({"room": True}, "scheduling: the decision is now delete, not replace"),
    ],
)
def test_a_proposal_that_no_longer_holds_is_dropped_with_the_reason(later, why):
    """A warning came meanwhile, a budget closed, room came free."""
    before = a_fleet(a_risky_member("a"), a_risky_member("b"), pools=[a_rebalancing_pool()])
    members = [a_risky_member(name) for name in later.get("members", ("a", "b"))]
    room = [a_member("free", size="xl")] if later.get("room") else []
    pool = a_rebalancing_pool(**({"budgets": later["budgets"]} if "budgets" in later else {}))

    command = a_pass(a_fleet(*members, *room, pools=[pool])).revalidate(a_proposal(before))

    assert command.candidates == ()
    assert why in command.why_not


def test_what_is_at_risk_is_avoided_for_a_day():
    """Each Spot offering once; on-demand nodes are not taken back."""
    other = a_member("other", claim={"metadata": {"annotations": {labels.REBALANCE_RECOMMENDED_AT: stamp(NOW)}}})
    fleet = a_fleet(
        a_risky_member("a"), a_risky_member("b"), a_risky_member("c", zone="b"), other, pools=[a_rebalancing_pool()]
    )

    avoided = offerings_at_risk(fleet)

    assert [(u.instance_type, u.zone, u.until) for u in avoided] == [
        ("m", "a", NOW + timedelta(days=1)),
        ("m", "b", NOW + timedelta(days=1)),
    ]
