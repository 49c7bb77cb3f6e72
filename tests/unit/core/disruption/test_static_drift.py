"""Drift of static NodePools: how many nodes are replaced at once, by what, and when none is."""

from datetime import timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.api.conditions import DISRUPTION_REASON
from journeyman.core.api.node_disruption import NodeDisruptionStatus
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.commands import to_node_disruption
from journeyman.core.disruption.drifted_condition import assess_drift
from journeyman.core.disruption.orchestration import start_command
from journeyman.core.disruption.static_nodepool_state import static_nodepools
from journeyman.core.plan import CreateObject
from tests.helpers import builders
from tests.helpers.actions import of_type
from tests.helpers.builders import NOW, a_node_class, ago, condition, merge
from tests.helpers.disrupting import GRACE, PROTECTED, SOLD_OUT, controller_of
from tests.helpers.fleets import a_catalogue, a_fleet, a_member, a_pod
from tests.helpers.small_clusters import table

AN_HOUR_AGO = ago(hours=1)
STAGES = ("Launched", "Registered", "Initialized")


def a_static_pool(replicas, name="default", *, budget="100%", **spec):
    """A static NodePool."""
    return builders.a_pool(name, spec={"replicas": replicas, "disruption": {"budgets": [{"nodes": budget}]}, **spec})


def a_replica(name, *more, index=0, since=AN_HOUR_AGO, drifted="True", claim=None, **given):
    """A node of a static NodePool that has drifted, with its replica index and further conditions that are True."""
    held = [condition(type_, since=ago(hours=2)) for type_ in (*STAGES, *more)]
    held.append(condition("Drifted", drifted, since=since, reason="NodePoolDrifted"))
    own = {"metadata": {"annotations": {labels.REPLICA_INDEX: str(index)}}, "status": {"conditions": held}}
    return a_member(name, claim=merge(own, claim or {}), **given)


def replicas(number, **given):
    """So many drifted nodes."""
    return [a_replica(f"n{i}", index=i, **given) for i in range(number)]


def a_cluster(*members, pools, **parts):
    """A cluster with a NodeClass that is ready."""
    return a_fleet(*members, pools=pools, node_classes=(a_node_class(),), **parts)


def commands(*members, pools, catalogue=None):
    """The commands of static drift, and the DisruptionBlocked Events on NodeClaims by name."""
    found = controller_of(a_cluster(*members, pools=pools), catalogue=catalogue).evaluate_methods()
    static = [e for e in found if e.method == "static-drift"]
    events = (event for e in static for event in e.plan.events)
    blocked = {e.ref.name: e.message for e in events if e.ref.resource.kind == "NodeClaim" and "Disruption" in e.reason}
    return [command for e in static for command in e.commands], blocked


def names(found):
    """The candidates' names of each command."""
    return [[c.nodeclaim for c in command.candidates] for command in found]


# -- how many ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "within_budget", "limits", "expected"),
    [
        ("100%", 5, {}, 5),
        ("3", 3, {}, 3),
        ("40%", 2, {}, 2),
        ("0", 0, {}, 0),
        ("100%", 5, {"nodes": "5"}, 0),
        ("100%", 5, {"nodes": "6"}, 1),
        ("100%", 5, {"nodes": "7"}, 2),
        ("1", 1, {"nodes": "7"}, 1),
        ("100%", 5, {"nodes": "12"}, 5),
    ],
)
def test_as_many_nodes_are_replaced_as_budgets_and_limits_allow(budget, within_budget, limits, expected):
    """Each has a command of its own; nodes for which limits.nodes allows none have an Event."""
    found, blocked = commands(*replicas(5), pools=[a_static_pool(5, budget=budget, limits=limits)])
    assert names(found) == [[f"n{i}"] for i in range(expected)]
    assert set(blocked) == {f"n{i}" for i in range(expected, within_budget)}
    said = "it is replaced after others" if expected else "Raise limits.nodes of NodePool default to 6 at least"
    assert all("limits.nodes" in why and said in why for why in blocked.values())


def test_node_that_drifted_earliest_is_replaced_first():
    """Ties are sorted by name."""
    members = [a_replica("a"), a_replica("b", since=ago(hours=3)), a_replica("c")]
    found, _ = commands(*members, pools=[a_static_pool(3, budget="2")])
    assert names(found) == [["b"], ["a"]]


@table(
    "member, number",
    zero_replicas=(a_replica("n"), 0),
    condition_is_False=(a_replica("n", drifted="False"), 1),
    no_condition=(a_member("n"), 1),
    do_not_disrupt=(a_replica("n", node=PROTECTED), 1),
)
def test_node_is_not_replaced_without_drift_or_permission(member, number):
    """A node beyond the replicas is deprovisioned instead."""
    assert commands(member, pools=[a_static_pool(number)])[0] == []


def test_nothing_is_replaced_while_there_are_more_nodes_than_replicas():
    """Nodes under replacement count until they are deleted; terminating ones count against limits.nodes only."""
    busy = [a_replica("n0", DISRUPTION_REASON), a_replica("new", drifted="False"), a_replica("n1")]
    gone = [a_replica("n0", DISRUPTION_REASON, deleting=True), *busy[1:]]

    assert commands(*replicas(3), pools=[a_static_pool(2)])[0] == []
    assert commands(*busy, pools=[a_static_pool(2)])[0] == []
    assert names(commands(*gone, pools=[a_static_pool(2)])[0]) == [["n1"]]
    assert commands(*gone, pools=[a_static_pool(2, limits={"nodes": "3"})])[0] == []


def test_missing_replicas_come_before_replacements():
    """The provision step may launch them at the same time, and limits.nodes holds for both together."""
    for limit, expected in (("5", []), ("6", [["n0"]])):
        assert names(commands(*replicas(2), pools=[a_static_pool(5, limits={"nodes": limit})])[0]) == expected


def test_each_nodepool_has_its_own_budget_and_limit():
    """One has a budget of one node, one is at its limit, and one has no drifted node."""
    pools = [a_static_pool(2, "a", budget="1"), a_static_pool(2, "b", limits={"nodes": "2"}), a_static_pool(1, "c")]
    members = [a_replica(f"{pool}{i}", pool=pool, index=i) for pool in "ab" for i in range(2)]
    found, blocked = commands(*members, a_replica("c0", pool="c", drifted="False"), pools=pools)
    assert names(found) == [["a0"]]
    assert set(blocked) == {"b0", "b1"}


def test_node_is_not_replaced_when_no_offering_is_available():
    """Its Event says why; a NodePool whose template fits no type has another one."""
    never = {"spec": {"requirements": [{"key": labels.ARCH, "operator": "In", "values": ["s390x"]}]}}

    found, blocked = commands(a_replica("n"), pools=[a_static_pool(1)], catalogue=a_catalogue(of=SOLD_OUT))
    assert (found, list(blocked)) == ([], ["n"])
    assert "unavailable" in blocked["n"]
    found, blocked = commands(a_replica("n"), pools=[a_static_pool(1, template=never)])
    assert (found, list(blocked)) == ([], ["n"])
    assert commands(a_replica("n"), pools=[a_static_pool(1)], catalogue=Catalogue({})) == ([], {})


def test_blocking_pod_keeps_a_static_node_unless_its_drain_ends():
    """Eventual disruption ignores it if the NodeClaim has a terminationGracePeriod."""
    pods = [a_pod("p", node="node-n", **PROTECTED)]
    assert commands(a_replica("n", pods=pods), pools=[a_static_pool(1)])[0] == []
    assert names(commands(a_replica("n", pods=pods, claim=GRACE), pools=[a_static_pool(1)])[0]) == [["n"]]


# -- the replacement --------------------------------------------------------------------------------------------------


def a_proposal(command):
    """The NodeDisruption of a command."""
    return to_node_disruption(command, "static-drift", NOW)


def replacement_of(*members, pool):
    """The only command of static drift as a NodeDisruption, and the manifest that it creates."""
    (command,), _ = commands(*members, pools=[pool])
    disruption = a_proposal(command)
    snapshot = a_cluster(*members, pools=[pool], node_disruptions=(disruption,))
    budgets = controller_of(snapshot).budgets(command.reason, without=disruption)
    plan = start_command(disruption, command, snapshot, timedelta(seconds=10), budgets)
    (created,) = of_type(plan, CreateObject)
    return disruption, created.body


def test_replacement_is_the_same_replica_and_changes_no_other():
    """It has the index of its node, the template's requirements, and a price that is not a saving."""
    pool = a_static_pool(2)
    members = [a_replica("n0", index=0), a_replica("n1", index=1, drifted="False")]
    disruption, body = replacement_of(*members, pool=pool)

    annotations = body["metadata"]["annotations"]
    assert annotations[labels.REPLICA_INDEX] == "0"
    assert annotations[labels.DISRUPTION] == disruption.metadata.name
    assert "resources" in body["spec"]
    assert disruption.spec.saving == 0
    assert "a node of the NodePool's template" in disruption.spec.explanation
    disrupted = [a_replica("n0", DISRUPTION_REASON, index=0), members[1], a_replica("new", index=0)]
    (counted,) = static_nodepools([m.claim for m in disrupted], [pool])
    assert (counted.missing, counted.surplus) == (0, 0)


@pytest.mark.parametrize(("operator", "values"), [("Exists", []), ("NotIn", ["a"]), ("Gt", ["5"])])
def test_replacement_meets_the_requirements_of_its_nodepool(operator, values):
    """A node that had drifted from its NodePool at once would be replaced forever."""
    term = {"key": "example.com/own", "operator": operator, "values": values}
    pool = a_static_pool(1, template={"spec": {"requirements": [term]}})
    _, body = replacement_of(a_replica("n"), pool=pool)

    launched = {"status": {"conditions": [condition("Launched")]}}
    made = builders.a_claim(body["metadata"]["name"], **merge(merge(body, {}), launched))
    found = assess_drift(a_cluster(pools=[pool]).with_claims([made]), a_catalogue(), {made.metadata.name: ""})
    assert found.since == {}


# -- validation -------------------------------------------------------------------------------------------------------


def decisions(before, after, *, number=3, **changes):
    """Why each proposal of one run is rejected by the next, in which nodes and NodePool differ; empty if it starts."""
    found, _ = commands(*before, pools=[a_static_pool(number)])
    proposals = tuple(map(a_proposal, found))
    snapshot = a_cluster(*after, pools=[a_static_pool(number, **changes)], node_disruptions=proposals)
    controller = controller_of(snapshot)
    return [controller.revalidate(disruption).why_not.partition(":")[0] for disruption in proposals]


def test_proposals_of_one_run_are_validated_together():
    """They share limits.nodes and budgets, and are proposed again; one whose node no longer qualifies is rejected alone."""
    before = replicas(3)
    assert decisions(before, before) == ["", "", ""]
    assert decisions(before, before, budget="2") == ["budget"] * 3
    assert decisions(before, before, limits={"nodes": "5"}) == ["", "", "scheduling"]
    assert decisions(before, [a_replica("n0", drifted="False"), *before[1:]]) == ["churn", "", ""]


def test_proposal_that_waits_is_rejected_once_others_are_under_way():
    """A run that died after it had started one of two: the next one proposes the other again when the first is done."""
    found, _ = commands(*replicas(2), pools=[a_static_pool(2)])
    first, second = (a_proposal(command) for command in found)
    started = first.model_copy(update={"status": NodeDisruptionStatus(phase="Replacing")})
    members = [a_replica("n0", DISRUPTION_REASON), a_replica("new", drifted="False"), a_replica("n1", index=1)]
    snapshot = a_cluster(*members, pools=[a_static_pool(2)], node_disruptions=(started, second))

    assert controller_of(snapshot).revalidate(second).why_not.startswith("churn")
