"""Drift of dynamic NodePools: which node goes first, what replaces it, and what keeps it."""

from __future__ import annotations

import msgspec
import pytest

from journeyman.core.api import labels
from journeyman.core.api.model import parse
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.objects import PodDisruptionBudget
from journeyman.core.disruption.commands import to_node_disruption
from journeyman.core.disruption.consolidatable import Consolidatability
from journeyman.core.disruption.controller import DisruptionController
from journeyman.core.plan import Plan
from tests.helpers.builders import NOW, ago, condition, merge, stamp
from tests.helpers.fleets import a_catalogue, a_fleet, a_member, a_pod, a_pool

PROTECTED = {"metadata": {"annotations": {labels.DO_NOT_DISRUPT: "true"}}}
WITH_GRACE_PERIOD = {"spec": {"terminationGracePeriod": "5m"}}
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


def a_controller(snapshot, *, examined_until="", consolidatable=frozenset()):
    """A controller for which no node is consolidatable, and all times are up."""
    found = Consolidatability(claims=consolidatable, within_window=frozenset(), next_at=None, plan=Plan())
    catalogue = a_catalogue(*(pool.metadata.name for pool in snapshot.node_pools))
    return DisruptionController(snapshot, catalogue, found, examined_until=examined_until)


def evaluations(*members, pools=None, method="drift", pending=(), pdbs=(), **kwargs):
    """The evaluations of drift."""
    snapshot = a_fleet(*members, pools=pools or [a_quiet_pool()], pending=pending, pdbs=pdbs)
    return [e for e in a_controller(snapshot, **kwargs).evaluate_methods() if e.method == method]


def chosen(*members, **kwargs):
    """The first command of drift: NodeClaims and number of replacements; None if there is none."""
    found = next((e.commands[0] for e in evaluations(*members, **kwargs) if e.commands), None)
    return None if found is None else ([c.nodeclaim for c in found.candidates], len(found.replacements))


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


def test_drifted_node_is_deleted_when_its_pods_fit_elsewhere():
    """They may move to a node within its consolidateAfter, because that limits only consolidation."""
    assert chosen(a_drifted_member(cpus=["1"]), a_member("other", size="l")) == (["n"], 0)
    assert chosen(a_drifted_member()) == (["n"], 0)


def test_drifted_node_may_need_several_replacements():
    """Consolidation would not replace a node by several."""
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}
    spec = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}}
    pods = [a_pod(f"p{i}", node="node-n", cpu="1", metadata={"labels": {"app": "web"}}, spec=spec) for i in range(3)]

    assert chosen(a_drifted_member(pods=pods)) == (["n"], 3)


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
    events = blocked(found)
    assert {name for name, _ in events} == {"a", "node-a"}
    assert all("default/stuck" in message for _, message in events)


def test_drift_launches_no_nodes_for_pending_pods():
    """The provision step launches them; the next run replaces the drifted node."""
    pending = [a_pod("new", cpu="15")]

    assert chosen(a_drifted_member(cpus=["3"]), pending=pending) is None
    assert chosen(a_drifted_member(cpus=["1"]), a_member("other", size="l"), pending=[a_pod("no", cpu="64")]) == (
        ["n"],
        0,
    )


# -- which nodes are not disrupted ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("member", "pool"),
    [
        (a_member("n", cpus=["3"]), a_quiet_pool()),
        (a_drifted_member(cpus=["3"], drifted="False"), a_quiet_pool()),
        (a_drifted_member(cpus=["3"], node=PROTECTED), a_quiet_pool()),
        (a_drifted_member(cpus=["3"]), a_quiet_pool(static=1)),
        (a_drifted_member(cpus=["3"]), a_quiet_pool(budgets=[{"nodes": "0", "reasons": ["Drifted"]}])),
        (a_drifted_member(cpus=["3"], initialized=False), a_quiet_pool()),
    ],
    ids=["no condition", "condition is False", "do-not-disrupt", "static", "no budget", "not initialized"],
)
def test_node_is_not_replaced_without_drift_or_permission(member, pool):
    """Drift follows the rules of all methods."""
    assert chosen(member, pools=[pool]) is None


def test_do_not_disrupt_annotation_of_false_does_not_keep_the_node():
    """Only true does."""
    assert chosen(a_drifted_member(node={"metadata": {"annotations": {labels.DO_NOT_DISRUPT: "false"}}})) == (["n"], 0)


def a_pdb():
    """A PodDisruptionBudget that allows no disruption of the pods with `app: web`."""
    body = {
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 0},
        "status": {"disruptionsAllowed": 0},
    }
    return msgspec.convert(body, PodDisruptionBudget)


@pytest.mark.parametrize(
    ("changes", "pdbs"),
    [(PROTECTED, ()), ({"metadata": {"labels": {"app": "web"}}}, (a_pdb(),))],
    ids=["do-not-disrupt", "PodDisruptionBudget"],
)
def test_pod_that_must_stay_keeps_the_node_unless_its_drain_ends(changes, pdbs):
    """With a terminationGracePeriod the node goes, without a replacement for a pod that is not rescheduled until then."""
    pods = [a_pod("p", node="node-n", cpu="3", **changes)]

    assert chosen(a_drifted_member(pods=pods), pdbs=pdbs) is None
    found = evaluations(a_drifted_member(pods=pods, claim=WITH_GRACE_PERIOD), pdbs=pdbs)
    assert [([c.nodeclaim for c in e.commands[0].candidates], e.commands[0].replacements) for e in found] == [
        (["n"], ())
    ]


@pytest.mark.parametrize(
    ("values", "is_chosen"), [(["3h"], False), (["1h"], True), (["1h", "3h"], False), (["nonsense"], True)]
)
def test_pod_keeps_the_node_for_the_duration_in_its_annotation(values, is_chosen):
    """The pods started two hours ago; the longest duration counts, and an invalid one does not."""
    pods = [
        a_pod(
            f"p{i}",
            node="node-n",
            metadata={"annotations": {labels.DO_NOT_DISRUPT: value}, "creationTimestamp": stamp(ago(hours=2))},
            status={"startTime": stamp(ago(hours=2))},
        )
        for i, value in enumerate(values)
    ]

    assert (chosen(a_drifted_member(pods=pods)) is not None) == is_chosen


def test_blocking_pods_keep_a_node_from_graceful_methods_in_spite_of_its_grace_period():
    """Only eventual disruption ignores them (types.go `NewCandidate`)."""
    pods = [a_pod("p", node="node-n", cpu="1", **PROTECTED)]
    member = a_drifted_member(size="xl", pods=pods, claim=WITH_GRACE_PERIOD, drifted="False")
    snapshot = a_fleet(member, pools=[a_pool()])

    found = list(a_controller(snapshot, consolidatable=frozenset({"n"})).evaluate_methods())

    assert not [e for e in found if e.commands]
    assert {name for name, _ in blocked(found)} == {"n", "node-n"}


# -- order, budgets, metrics ------------------------------------------------------------------------------------------


def test_emptiness_comes_before_drift_and_drift_before_consolidation():
    """One method acts in a run."""
    members = [
        a_drifted_member("empty"),
        a_drifted_member("drifted", cpus=["3"]),
        a_member("large", size="xl", cpus=["1"]),
    ]
    names = frozenset({"empty", "drifted", "large"})

    def first(*gone):
        snapshot = a_fleet(*(m for m in members if m.claim.metadata.name not in gone))
        found = a_controller(snapshot, consolidatable=names).evaluate_methods()
        return next((e.method, [c.nodeclaim for c in e.commands[0].candidates]) for e in found if e.commands)

    assert first() == ("emptiness", ["empty"])
    assert first("empty") == ("drift", ["drifted"])
    assert first("empty", "drifted") == ("single-node", ["large"])


def test_metrics_report_eligible_nodes_and_budgets_of_drift():
    """Nodes with a pod that must not be disrupted are not eligible. Without any, budgets are not reported."""
    members = [a_drifted_member(f"n{i}") for i in range(9)]
    kept = a_drifted_member("kept", pods=[a_pod("p", node="node-kept", **PROTECTED)])

    def gauges(*fleet):
        (prelude,) = evaluations(*fleet, pools=[a_quiet_pool(budgets=[{"nodes": "30%"}])], method="static-drift")
        return {o.name.removeprefix("karpenter_"): o.value for o in prelude.plan.observations}

    assert gauges(*members, kept) == {
        "voluntary_disruption_eligible_nodes": 9,
        "nodepools_allowed_disruptions": 3,
        "nodepools_nodes_consuming_budgets": 0,
    }
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


def proposed(*members, pools=None) -> NodeDisruption:
    """The proposal for the first node that drift chooses."""
    command = next(e.commands[0] for e in evaluations(*members, pools=pools) if e.commands)
    return to_node_disruption(command, "drift", NOW)


@pytest.mark.parametrize(
    ("member", "pool", "why"),
    [
        (a_drifted_member(cpus=["3"]), a_quiet_pool(), ""),
        (a_drifted_member(cpus=["3"], drifted="False"), a_quiet_pool(), "churn"),
        (a_drifted_member(cpus=["3"], node=PROTECTED), a_quiet_pool(), "churn"),
        (a_drifted_member(cpus=["3"]), a_quiet_pool(budgets=[{"nodes": "0"}]), "budget"),
        (a_drifted_member(), a_quiet_pool(), "scheduling"),
    ],
    ids=["unchanged", "no longer drifted", "do-not-disrupt", "no budget", "its pod is gone"],
)
def test_proposal_is_validated_against_the_cluster_as_it_is(member, pool, why):
    """The next run validates it at once; a rejected node is proposed again if it has still drifted."""
    disruption = proposed(a_drifted_member(cpus=["3"]))
    snapshot = a_fleet(member, pools=[pool], node_disruptions=(disruption,))

    command = a_controller(snapshot).revalidate(disruption)

    assert bool(command.candidates) == (not why)
    assert command.why_not.partition(":")[0] == why


@pytest.mark.parametrize(("consolidatable", "method"), [(True, "emptiness"), (False, "drift")])
def test_empty_drifted_node_is_deleted(consolidatable, method):
    """By emptiness once its consolidateAfter has passed, otherwise by drift, whose gauge counts it."""
    snapshot = a_fleet(a_drifted_member(), pools=[a_pool()])
    names = frozenset({"n"} if consolidatable else ())

    found = [e for e in a_controller(snapshot, consolidatable=names).evaluate_methods() if e.commands]

    assert (found[0].method, [c.nodeclaim for c in found[0].commands[0].candidates]) == (method, ["n"])
    assert found[0].commands[0].replacements == ()


def test_drifted_nodes_are_replaced_one_after_another_until_the_budget_is_used():
    """Ten nodes have drifted, the budget is three, and no replacement is ready yet."""
    members = [a_drifted_member(f"n{i}", cpus=["3"]) for i in range(10)]
    pools = [a_quiet_pool(budgets=[{"nodes": "3"}])]
    started = []
    for _ in range(4):
        snapshot = a_fleet(*members, pools=pools, node_disruptions=tuple(started))
        commands = [c for e in a_controller(snapshot).evaluate_methods() if e.method == "drift" for c in e.commands]
        if not commands:
            break
        assert len(commands[0].replacements) == 1
        body = to_node_disruption(commands[0], "drift", NOW).to_wire()
        started.append(parse(NodeDisruption, merge(body, {"status": {"phase": "Replacing", "startedAt": stamp(NOW)}})))

    assert len({name for d in started for name in d.claims}) == len(started) == 3
