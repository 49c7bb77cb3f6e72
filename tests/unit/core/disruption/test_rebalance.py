"""Rebalance: replaces nodes with a rebalance recommendation, within budgets, by offerings that are not at risk."""

from datetime import timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.catalogue import Catalogue, without_unavailable
from journeyman.core.disruption.commands import to_node_disruption
from journeyman.core.disruption.controller import DisruptionController, Evaluation
from journeyman.core.disruption.rebalance import offerings_at_risk
from journeyman.core.state import Snapshot
from tests.helpers.builders import NOW, ago, stamp
from tests.helpers.disrupting import PROTECTED, controller_of
from tests.helpers.fleets import TYPES, Member, a_fleet, a_member, a_pod, a_pool
from tests.helpers.small_clusters import table

BOTH = (labels.SPOT, labels.ON_DEMAND)


def a_risky_member(name: str, *, since=NOW, **more) -> Member:
    """A Spot node with a rebalance recommendation and a pod."""
    noted = {"metadata": {"annotations": {labels.REBALANCE_RECOMMENDED_AT: stamp(since)}}}
    return a_member(name, capacity_type=labels.SPOT, claim=noted, **{"cpus": ["3"], **more})


def a_rebalancing_pool(name: str = "default", *, value: str = "replace", **disruption):
    """A NodePool that never consolidates, and acts on recommendations."""
    pool = a_pool(name, capacity_types=BOTH, **{"consolidateAfter": "Never", **disruption})
    pool.metadata.annotations[labels.REBALANCE] = value
    return pool


def a_controller(snapshot: Snapshot, *, fresh: frozenset[str] = frozenset()) -> DisruptionController:
    """A controller that, like the step, does not use offerings at risk."""
    types = without_unavailable(TYPES, offerings_at_risk(snapshot))
    catalogue = Catalogue({pool.metadata.name: types for pool in snapshot.node_pools})
    return controller_of(snapshot, catalogue=catalogue, fresh=fresh)


def found(snapshot: Snapshot, **more) -> Evaluation | None:
    """The first command, if it is a rebalance."""
    evaluation = next((c for c in a_controller(snapshot, **more).evaluate_methods() if c.commands), None)
    return evaluation if evaluation is not None and evaluation.method == "rebalance" else None


def candidates_of(evaluation: Evaluation | None) -> list[str]:
    """Names of the candidates' NodeClaims."""
    return [] if evaluation is None else [c.nodeclaim for command in evaluation.commands for c in command.candidates]


def test_node_with_recommendation_is_replaced_by_another_offering():
    """The price does not matter, and the replacement never has the same offering.

    It needs none if its pods fit on existing nodes, also recently changed ones: consolidateAfter limits only consolidation.
    """
    fleet = a_fleet(a_risky_member("n", size="m", zone="a"), pools=[a_rebalancing_pool()])
    evaluation = found(fleet)

    assert candidates_of(evaluation) == ["n"]
    assert evaluation.commands[0].reason.value == "Interrupted"
    (replacement,) = evaluation.commands[0].replacements
    assert replacement.offering[:3] == ("m", "b", labels.SPOT)
    assert a_controller(fleet).simulation.verify(evaluation.commands[0]) == ()

    fleet = a_fleet(a_risky_member("n", cpus=["1"]), a_member("other", size="l"), pools=[a_rebalancing_pool()])
    evaluation = found(fleet, fresh=frozenset({"other"}))
    assert (candidates_of(evaluation), evaluation.commands[0].replacements) == (["n"], ())


@table(
    "member, pool",
    no_recommendation=(a_member("n", capacity_type=labels.SPOT, cpus=["3"]), a_rebalancing_pool()),
    disabled=(a_risky_member("n"), a_rebalancing_pool(value="ignore")),
    empty=(a_risky_member("n", cpus=[]), a_rebalancing_pool()),
    deleting=(a_risky_member("n", deleting=True), a_rebalancing_pool()),
    not_initialized=(a_risky_member("n", initialized=False), a_rebalancing_pool()),
    a_day_ago=(a_risky_member("n", since=ago(days=1)), a_rebalancing_pool()),
    no_budget=(a_risky_member("n"), a_rebalancing_pool(budgets=[{"nodes": "0"}])),
    a_do_not_disrupt_pod=(
        a_risky_member("n", cpus=[], pods=[a_pod("p", node="node-n", **PROTECTED)]), a_rebalancing_pool()
    ),
)  # fmt: skip
def test_node_is_not_rebalanced_without_recommendation_or_permission(member, pool):
    """Rebalance respects the same rules as other disruption methods."""
    assert found(a_fleet(member, pools=[pool])) is None


def test_rebalance_of_several_nodes_is_one_command_within_budgets():
    """Nodes with the oldest recommendations are first; budgets for other reasons do not count."""
    members = [a_risky_member(f"n{i}", since=ago(minutes=i)) for i in range(5)]
    budgets = [{"nodes": "40%"}, {"nodes": "0", "reasons": ["Underutilized"]}]
    evaluation = found(a_fleet(*members, pools=[a_rebalancing_pool(budgets=budgets)]))
    assert candidates_of(evaluation) == ["n4", "n3"]
    assert len(evaluation.commands[0].replacements) >= 1


def test_node_that_cannot_be_rebalanced_does_not_block_others():
    """The pod of the other node fits on no new node."""
    stuck = a_pod("stuck", node="node-a", spec={"nodeSelector": {"only": "here"}})
    here = {"metadata": {"labels": {"only": "here"}}}
    members = a_risky_member("a", cpus=[], pods=[stuck], node=here), a_risky_member("b")
    assert candidates_of(found(a_fleet(*members, pools=[a_rebalancing_pool()]))) == ["b"]


def test_pending_pods_are_provisioned_before_rebalance():
    """If rebalance also planned new nodes for the pending pods, those nodes would be launched twice."""
    waiting = a_pod("big", cpu="14")
    fleet = a_fleet(a_risky_member("n"), pending=[waiting], pools=[a_rebalancing_pool()])
    evaluations = [c for c in a_controller(fleet).evaluate_methods() if c.method == "rebalance"]
    assert not any(c.commands for c in evaluations)
    assert "pending pods need new nodes" in evaluations[-1].plan.events[0].message


def a_rolled_back(member: Member, minutes_ago: float) -> NodeDisruption:
    """A rebalance of the node that was rolled back."""
    evaluation = found(a_fleet(member, pools=[a_rebalancing_pool()]))
    made = to_node_disruption(evaluation.commands[0], "rebalance", ago(minutes=minutes_ago))
    ended = made.status.model_copy(update={"phase": "RolledBack", "finished_at": ago(minutes=minutes_ago)})
    return made.model_copy(update={"status": ended})


@pytest.mark.parametrize(
    ("ended", "again"), [([1.5], False), ([2], True), ([3.5, 10], False), ([4, 10], True), ([7.5, 10, 20], False)]
)
def test_rebalance_waits_after_rollbacks_as_other_methods_do(ended, again):
    """Two minutes after the first rollback, and twice as long after each further one (the circuit breaker)."""
    member = a_risky_member("n")
    history = tuple(a_rolled_back(member, minutes) for minutes in ended)
    fleet = a_fleet(member, pools=[a_rebalancing_pool()], node_disruptions=history)
    assert (candidates_of(found(fleet)) == ["n"]) is again


@table(
    "members, pool, why",
    valid=((a_risky_member("a"), a_risky_member("b")), {}, ""),
    a_candidate_was_removed=((a_risky_member("a"),), {}, "churn"),
    budget=((a_risky_member("a"), a_risky_member("b")), {"budgets": [{"nodes": "1"}]}, "budget"),
    capacity_became_free=(
        (a_risky_member("a"), a_risky_member("b"), a_member("free", size="xl")),
        {},
        "scheduling: the decision is now delete, not replace",
    ),
)
def test_rebalance_proposal_is_validated_before_it_is_executed(members, pool, why):
    """Validation returns the same candidates and as many replacements, or the reason why not."""
    before = a_fleet(a_risky_member("a"), a_risky_member("b"), pools=[a_rebalancing_pool()])
    proposal = to_node_disruption(found(before).commands[0], "rebalance", before.now)

    command = a_controller(a_fleet(*members, pools=[a_rebalancing_pool(**pool)])).revalidate(proposal)

    assert why in command.why_not
    assert [c.nodeclaim for c in command.candidates] == ([] if why else ["a", "b"])
    assert why or len(command.replacements) == len(proposal.spec.replacements)


def test_offerings_at_risk_are_not_used_for_a_day():
    """Each Spot offering is returned once; offerings of on-demand nodes are not at risk."""
    other = a_member("other", claim={"metadata": {"annotations": {labels.REBALANCE_RECOMMENDED_AT: stamp(NOW)}}})
    members = a_risky_member("a"), a_risky_member("b"), a_risky_member("c", zone="b"), other
    avoided = offerings_at_risk(a_fleet(*members, pools=[a_rebalancing_pool()]))
    tomorrow = NOW + timedelta(days=1)
    assert [(u.instance_type, u.zone, u.until) for u in avoided] == [("m", "a", tomorrow), ("m", "b", tomorrow)]
