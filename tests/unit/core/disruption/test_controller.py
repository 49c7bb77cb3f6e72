"""The disruption controller: the first command of all methods."""

import pytest

from journeyman.core.api import labels
from journeyman.core.disruption.consolidatable import assess_consolidatable
from journeyman.core.disruption.controller import DisruptionController
from tests.helpers.disrupting import controller_of
from tests.helpers.fleets import a_catalogue, a_fleet, a_member, a_pod, a_pool


def proposed(snapshot):
    """Method and NodeClaims of the first command, if all nodes are consolidatable."""
    controller = controller_of(snapshot, *(claim.metadata.name for claim in snapshot.claims))
    first = next((e for e in controller.evaluate_methods() if e.commands), None)
    return first and (first.method, [c.nodeclaim for command in first.commands for c in command.candidates])


def a_buffer_pod(cpu: str):
    """A virtual pod of a CapacityBuffer."""
    return a_pod("spare", cpu=cpu, metadata={"annotations": {labels.BUFFER_POD: "true"}})


def test_node_with_buffer_pods_is_not_empty_but_may_be_replaced_by_a_cheaper_one():
    """If emptiness deleted the node, the next run would launch another one for them. They are rescheduled like pending ones.

    An Event explains why the node is not deleted although none of its pods is real.
    """
    empty = (a_member("n"), a_member("surplus"))

    assert proposed(a_fleet(*empty)) == ("emptiness", ["n", "surplus"])
    assert proposed(a_fleet(*empty, pending=[a_buffer_pod("1")])) == ("emptiness", ["surplus"])
    assert proposed(a_fleet(a_member("n", size="xl"), pending=[a_buffer_pod("1")])) == ("single-node", ["n"])
    assert proposed(a_fleet(a_member("n", size="s"), pending=[a_buffer_pod("1")])) is None
    found = evaluations(a_fleet(a_member("n"), pending=[a_buffer_pod("1")]))["emptiness"]
    assert events_of(found, "Unconsolidatable") == {(name, 'Node "node-n" has buffer pods') for name in ("n", "node-n")}


def evaluations(snapshot):
    """The first evaluation of each method, by method name."""
    controller = DisruptionController(snapshot, a_catalogue(), assess_consolidatable(snapshot))
    found = {}
    for evaluation in controller.evaluate_methods():
        found.setdefault(evaluation.method, evaluation)
    return found


def events_of(evaluation, reason):
    """The Events of an evaluation with this reason: object and message."""
    return {(e.ref.name, e.message) for e in evaluation.plan.events if e.reason == reason}


def test_empty_nodes_are_not_candidates_of_single_node_consolidation():
    """Emptiness deletes them; the gauge of eligible nodes counts the others."""
    found = evaluations(a_fleet(a_member("empty"), a_member("busy", size="s", cpus=["1"])))
    assert [c.nodeclaim for c in found["emptiness"].commands[0].candidates] == ["empty"]
    alone = evaluations(a_fleet(a_member("empty")))["single-node"].plan
    assert {o.value for o in alone.observations if "eligible" in o.name} == {0}


@pytest.mark.parametrize(("nodes", "blocked"), [("0", True), ("100%", False)])
def test_nodepool_has_an_event_when_its_budgets_allow_no_disruption(nodes, blocked):
    """A NodePool without nodes has no Event, because it has nothing to disrupt."""
    pools = [a_pool(budgets=[{"nodes": nodes}]), a_pool("unused", budgets=[{"nodes": nodes}])]
    events = evaluations(a_fleet(a_member("n"), pools=pools))["emptiness"].plan.events
    assert {e.ref.name for e in events if e.ref.resource.kind == "NodePool"} == ({"default"} if blocked else set())


DISABLED = 'NodePool "default" has consolidation disabled'
NOT_EMPTY = 'NodePool "default" has consolidation policy WhenEmpty, but node is not empty'


@pytest.mark.parametrize(
    ("disruption", "cpus", "why"),
    [
        ({"consolidateAfter": "Never"}, ["1"], DISABLED),
        ({"consolidateAfter": "Never"}, [], DISABLED),
        ({"consolidationPolicy": "WhenEmpty", "consolidateAfter": "2h"}, ["1"], NOT_EMPTY),
        ({"consolidationPolicy": "WhenEmpty"}, [], None),
        ({"consolidateAfter": "2h"}, ["1"], None),
    ],
)
def test_node_whose_nodepool_excludes_consolidation_has_an_event(disruption, cpus, why):
    """It has the Event whether or not its consolidateAfter has passed; an empty node is left to emptiness."""
    found = evaluations(a_fleet(a_member("n", cpus=cpus), pools=[a_pool(**disruption)]))["multi-node"]
    expected = set() if why is None else {("n", why), ("node-n", why)}
    assert events_of(found, "Unconsolidatable") == expected
    eligible = "karpenter_voluntary_disruption_eligible_nodes"
    assert [o.value for o in found.plan.observations if o.name == eligible] == [0]


def test_allowed_disruptions_do_not_change_while_nodes_are_disrupted():
    """The gauges report what budgets allow and what of it is used (helpers.go `BuildDisruptionBudgetMapping`)."""
    members = [a_member(f"n{i}", ready=i > 0) for i in range(4)]
    found = evaluations(a_fleet(*members, pools=[a_pool(budgets=[{"nodes": "2"}])]))["emptiness"]
    gauges = {o.name: o.value for o in found.plan.observations if o.name.startswith("karpenter_nodepools_")}
    assert gauges == {"karpenter_nodepools_allowed_disruptions": 2, "karpenter_nodepools_nodes_consuming_budgets": 1}
