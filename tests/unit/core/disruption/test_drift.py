"""Drift of dynamic NodePools: which node goes first, what replaces it, and what keeps it."""

import pytest

from journeyman.core.api import labels
from journeyman.core.api.model import parse
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.disruption.commands import to_node_disruption
from tests.helpers.builders import NOW, ago, condition, merge, stamp
from tests.helpers.disrupting import GRACE, PROTECTED, a_pdb, controller_of
from tests.helpers.fleets import a_fleet, a_member, a_pod, a_pool
from tests.helpers.small_clusters import HOST, apart, table

AN_HOUR_AGO = ago(hours=1)
STAGES = ("Launched", "Registered", "Initialized")


def a_drifted_member(name="n", *, since=AN_HOUR_AGO, drifted="True", claim=None, **more):
    """A node whose NodeClaim has the condition since then."""
    held = [condition(stage, since=ago(hours=2)) for stage in STAGES]
    held.append(condition("Drifted", drifted, since=since, reason="AMIDrift"))
    return a_member(name, claim=merge({"status": {"conditions": held}}, claim or {}), **more)


def a_quiet_pool(name="default", *, static=None, **disruption):
    """A NodePool that never consolidates."""
    pool = a_pool(name, **{"consolidateAfter": "Never", **disruption})
    return pool.model_copy(update={"spec": pool.spec.model_copy(update={"replicas": static})})


def evaluations(*members, pools=None, method="drift", pending=(), pdbs=(), consolidatable=(), **kwargs):
    """The evaluations of drift."""
    snapshot = a_fleet(*members, pools=pools or [a_quiet_pool()], pending=pending, pdbs=pdbs)
    return [e for e in controller_of(snapshot, *consolidatable, **kwargs).evaluate_methods() if e.method == method]


def chosen(*members, **kwargs):
    """The first command of drift: NodeClaims and number of replacements; None if there is none."""
    found = next((e.commands[0] for e in evaluations(*members, **kwargs) if e.commands), None)
    return None if found is None else ([c.nodeclaim for c in found.candidates], len(found.replacements))


def annotated(value):
    """Changes of a pod or node: its do-not-disrupt annotation."""
    return {"metadata": {"annotations": {labels.DO_NOT_DISRUPT: value}}}


def blocked(found):
    """The DisruptionBlocked Events: object and message."""
    return {(e.ref.name, e.message) for one in found for e in one.plan.events if e.reason == "DisruptionBlocked"}


# -- which node, and what replaces it ---------------------------------------------------------------------------------


def test_drifted_node_is_replaced_whatever_that_costs():
    """Its pod fits on no other node; a type of the same size is as good as any."""
    ((command,),) = (e.commands for e in evaluations(a_drifted_member(cpus=["3"])))
    assert [c.nodeclaim for c in command.candidates] == ["n"]
    assert command.reason.value == "Drifted"
    assert [r.offering.instance_type for r in command.replacements] == ["m"]
    assert command.saving == 0


ROOMY = a_member("other", size="l")
APART = [a_pod(f"p{i}", node="node-n", cpu="1", spec=apart(key=HOST)) for i in range(3)]
NO_PLACE = [a_pod("new", cpu="64")]


@table(
    "members, pending, expected",
    when_its_pods_fit_on_a_node_within_its_consolidateAfter=([a_drifted_member(cpus=["1"]), ROOMY], [], (["n"], 0)),
    when_it_is_empty=([a_drifted_member()], [], (["n"], 0)),
    annotated_with_do_not_disrupt_false=([a_drifted_member(node=annotated("false"))], [], (["n"], 0)),
    by_several_replacements_unlike_consolidation=([a_drifted_member(pods=APART)], [], (["n"], 3)),
    not_while_the_provision_step_launches_for_its_pods=(
        [a_drifted_member(cpus=["3"])], [a_pod("new", cpu="15")], None
    ),
    beside_pods_that_fit_nowhere=([a_drifted_member(cpus=["1"]), ROOMY], NO_PLACE, (["n"], 0)),
)  # fmt: skip
def test_drifted_node_is_deleted_or_replaced(members, pending, expected):
    """Drift itself launches no nodes for pending pods."""
    assert chosen(*members, pending=pending) == expected


def test_empty_nodes_go_first_then_those_that_drifted_earliest():
    """Otherwise the pods would move to the empty ones, and then again. Ties are sorted by name."""
    members = [
        a_drifted_member("a", cpus=["3"], since=ago(hours=1)),
        a_drifted_member("b", cpus=["3"], since=ago(hours=3)),
        a_drifted_member("c", cpus=["3"], since=ago(hours=3)),
        a_drifted_member("empty", since=ago(minutes=1)),
    ]

    found = [e.commands[0].candidates[0].nodeclaim for e in evaluations(*members)]

    assert found == ["empty", "b", "c", "a"]


def test_node_whose_pods_do_not_fit_is_blocked_and_the_next_one_is_replaced():
    """Its NodeClaim and Node have an Event with the scheduling error."""
    stuck = a_pod("stuck", node="node-a", spec={"nodeSelector": {"only": "here"}})
    here = {"metadata": {"labels": {"only": "here"}}}
    first = a_drifted_member("a", since=ago(hours=3), pods=[stuck], node=here)

    found = evaluations(first, a_drifted_member("b", cpus=["3"]))

    assert [[c.nodeclaim for command in e.commands for c in command.candidates] for e in found] == [[], ["b"]]
    assert {name for name, _ in blocked(found)} == {"a", "node-a"}
    assert all("default/stuck" in message for _, message in blocked(found))


# -- which nodes are not disrupted ------------------------------------------------------------------------------------

NO_DRIFT = [{"nodes": "0", "reasons": ["Drifted"]}]


@table(
    "member, pool",
    no_condition=(a_member("n", cpus=["3"]), a_quiet_pool()),
    condition_is_False=(a_drifted_member(cpus=["3"], drifted="False"), a_quiet_pool()),
    do_not_disrupt=(a_drifted_member(cpus=["3"], node=PROTECTED), a_quiet_pool()),
    static=(a_drifted_member(cpus=["3"]), a_quiet_pool(static=1)),
    no_budget=(a_drifted_member(cpus=["3"]), a_quiet_pool(budgets=NO_DRIFT)),
    not_initialized=(a_drifted_member(cpus=["3"], initialized=False), a_quiet_pool()),
)
def test_node_is_not_replaced_without_drift_or_permission(member, pool):
    """Drift follows the rules of all methods."""
    assert chosen(member, pools=[pool]) is None


@pytest.mark.parametrize(
    ("changes", "pdbs"), [(PROTECTED, ()), ({}, (a_pdb(maxUnavailable=0),))], ids=["annotation", "pdb"]
)
def test_pod_that_must_stay_keeps_the_node_unless_its_drain_ends(changes, pdbs):
    """With a terminationGracePeriod the node goes, without a replacement for a pod that is not rescheduled until then."""
    pods = [a_pod("p", node="node-n", cpu="3", **changes)]
    assert chosen(a_drifted_member(pods=pods), pdbs=pdbs) is None
    (found,) = evaluations(a_drifted_member(pods=pods, claim=GRACE), pdbs=pdbs)
    assert ([c.nodeclaim for c in found.commands[0].candidates], found.commands[0].replacements) == (["n"], ())


@pytest.mark.parametrize(
    ("values", "is_chosen"), [(["3h"], False), (["1h"], True), (["1h", "3h"], False), (["nonsense"], True)]
)
def test_pod_keeps_the_node_for_the_duration_in_its_annotation(values, is_chosen):
    """The pods started two hours ago; the longest duration counts, and an invalid one does not."""
    since = stamp(ago(hours=2))
    aged = {"metadata": {"creationTimestamp": since}, "status": {"startTime": since}}
    pods = [a_pod(f"p{i}", node="node-n", **merge(aged, annotated(value))) for i, value in enumerate(values)]
    assert (chosen(a_drifted_member(pods=pods)) is not None) == is_chosen


def test_blocking_pods_keep_a_node_from_graceful_methods_in_spite_of_its_grace_period():
    """Only eventual disruption ignores them (types.go `NewCandidate`)."""
    pods = [a_pod("p", node="node-n", cpu="1", **PROTECTED)]
    snapshot = a_fleet(a_drifted_member(size="xl", pods=pods, claim=GRACE, drifted="False"), pools=[a_pool()])
    found = list(controller_of(snapshot, "n").evaluate_methods())
    assert not [e for e in found if e.commands]
    assert {name for name, _ in blocked(found)} == {"n", "node-n"}


# -- order, budgets, metrics ------------------------------------------------------------------------------------------


def test_emptiness_comes_before_drift_and_drift_before_consolidation():
    """One method acts in a run."""
    members = (
        a_drifted_member("empty"),
        a_drifted_member("drifted", cpus=["3"]),
        a_member("large", size="xl", cpus=["1"]),
    )

    for gone, expected in enumerate((("emptiness", ["empty"]), ("drift", ["drifted"]), ("single-node", ["large"]))):
        assert first_of(a_fleet(*members[gone:]), "empty", "drifted", "large")[0] == expected


def first_of(snapshot, *consolidatable):
    """The method that proposes a command, with the names of its candidates, and the command."""
    found = controller_of(snapshot, *consolidatable).evaluate_methods()
    evaluation = next(e for e in found if e.commands)
    (command, *_) = evaluation.commands
    return (evaluation.method, [c.nodeclaim for c in command.candidates]), command


def test_metrics_report_eligible_nodes_and_budgets_of_drift():
    """Nodes with a pod that must not be disrupted are not eligible. Without any, budgets are not reported."""
    members = [a_drifted_member(f"n{i}") for i in range(9)]
    kept = a_drifted_member("kept", pods=[a_pod("p", node="node-kept", **PROTECTED)])

    def gauges(*fleet):
        (prelude,) = evaluations(*fleet, pools=[a_quiet_pool(budgets=[{"nodes": "30%"}])], method="static-drift")
        return {o.name.removeprefix("karpenter_"): o.value for o in prelude.plan.observations}

    budgets = {"nodepools_allowed_disruptions": 3, "nodepools_nodes_consuming_budgets": 0}
    assert gauges(*members, kept) == {"voluntary_disruption_eligible_nodes": 9, **budgets}
    assert gauges(kept) == {"voluntary_disruption_eligible_nodes": 0}


def test_nodepool_has_an_event_when_its_budgets_allow_no_drift():
    """Only if it has nodes that have drifted."""
    closed = [a_quiet_pool(budgets=[{"nodes": "0"}])]
    assert ("default", "No allowed disruptions for disruption reason Drifted due to blocking budget") in blocked(
        evaluations(a_drifted_member(), pools=closed, method="static-drift")
    )
    assert blocked(evaluations(a_member("n"), pools=closed, method="static-drift")) == set()


def test_nodepools_at_their_budget_are_passed_over():
    """Nodes that terminate count; the other NodePool's node drifted later."""
    pools = [a_quiet_pool("a", budgets=[{"nodes": "1"}]), a_quiet_pool("b", budgets=[{"nodes": "1"}])]
    members = [
        a_drifted_member("a1", pool="a", since=ago(hours=3)),
        a_drifted_member("a2", pool="a", deleting=True),
        a_drifted_member("b1", pool="b"),
    ]

    assert chosen(*members, pools=pools) == (["b1"], 0)


def test_drift_that_was_cut_off_continues_behind_the_last_node():
    """Nodes that fit nowhere must not keep the others from being examined; the next run starts over."""
    members = [a_drifted_member(name, cpus=["3"]) for name in "abc"]
    first = evaluations(*members)
    assert [e.examined for e in first] == ["drift/a", "drift/b", "drift/c"]
    assert [e.examined for e in evaluations(*members, examined_until="drift/b")] == ["drift/c"]
    assert len(evaluations(*members, examined_until="b")) == len(evaluations(*members, examined_until="drift/x")) == 3


# -- validation -------------------------------------------------------------------------------------------------------


@table(
    "member, pool, why",
    unchanged=(a_drifted_member(cpus=["3"]), a_quiet_pool(), ""),
    no_longer_drifted=(a_drifted_member(cpus=["3"], drifted="False"), a_quiet_pool(), "churn"),
    do_not_disrupt=(a_drifted_member(cpus=["3"], node=PROTECTED), a_quiet_pool(), "churn"),
    no_budget=(a_drifted_member(cpus=["3"]), a_quiet_pool(budgets=[{"nodes": "0"}]), "budget"),
    its_pod_is_gone=(a_drifted_member(), a_quiet_pool(), "scheduling"),
)
def test_proposal_is_validated_against_the_cluster_as_it_is(member, pool, why):
    """The next run validates it at once; a rejected node is proposed again if it has still drifted."""
    disruption = to_node_disruption(evaluations(a_drifted_member(cpus=["3"]))[0].commands[0], "drift", NOW)
    snapshot = a_fleet(member, pools=[pool], node_disruptions=(disruption,))
    command = controller_of(snapshot).revalidate(disruption)
    assert bool(command.candidates) == (not why)
    assert command.why_not.partition(":")[0] == why


@pytest.mark.parametrize(("consolidatable", "method"), [(True, "emptiness"), (False, "drift")])
def test_empty_drifted_node_is_deleted(consolidatable, method):
    """By emptiness once its consolidateAfter has passed, otherwise by drift, whose gauge counts it."""
    found, command = first_of(a_fleet(a_drifted_member(), pools=[a_pool()]), *(["n"] if consolidatable else []))
    assert (found, command.replacements) == ((method, ["n"]), ())


def test_drifted_nodes_are_replaced_one_after_another_until_the_budget_is_used():
    """Ten nodes have drifted, the budget is three, and no replacement is ready yet."""
    members = [a_drifted_member(f"n{i}", cpus=["3"]) for i in range(10)]
    pools = [a_quiet_pool(budgets=[{"nodes": "3"}])]
    started = []
    for _ in range(4):
        snapshot = a_fleet(*members, pools=pools, node_disruptions=tuple(started))
        commands = [c for e in controller_of(snapshot).evaluate_methods() if e.method == "drift" for c in e.commands]
        if not commands:
            break
        assert len(commands[0].replacements) == 1
        body = to_node_disruption(commands[0], "drift", NOW).to_wire()
        started.append(parse(NodeDisruption, merge(body, {"status": {"phase": "Replacing", "startedAt": stamp(NOW)}})))

    assert len({name for d in started for name in d.claims}) == len(started) == 3
