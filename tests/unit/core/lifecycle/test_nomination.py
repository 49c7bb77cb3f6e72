"""Pod nomination: which pods are nominated when, how long nodes keep their taint, and which nominations are cleared."""

from datetime import timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.lifecycle.nodeclaim import LifecycleOptions, reconcile_nodeclaims
from journeyman.core.lifecycle.nomination import (
    BINDING_POLL,
    MAX_PODS_PER_RUN,
    NOMINATION_TIMEOUT,
    RENOMINATION_DELAY,
    TAINT_TIMEOUT,
    NominatablePods,
    nominate_to_existing_nodes,
    pod_with_stale_nomination,
)
from journeyman.core.plan import NominatePods, PatchObject, RenominatePods, Requeue, Step
from journeyman.core.scheduling.nodeclaim_templates import planned_pods
from tests.helpers.actions import nominated, of_type, patches, untainted
from tests.helpers.builders import (
    NOW,
    a_launched_claim,
    a_node,
    a_pod,
    a_pool,
    a_running_claim,
    a_snapshot,
    ago,
    condition,
    stamp,
)
from tests.helpers.small_clusters import table

STARTING = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
CLOSED = {"key": labels.UNREGISTERED_TAINT, "effect": "NoExecute"}
HERE = [("a", "node-default-1")]
BOTH_HERE = [("a", "node-default-1"), ("b", "node-default-1")]
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)


def with_planned_pods(*entries, **notes):
    """Return the metadata of a NodeClaim with these planned pods, and other annotations."""
    return {"annotations": {labels.PLANNED_PODS: ",".join(entries), **notes}}


FOR_A = with_planned_pods("default/a:uid-a")


def a_joined_node(claim="default-1", *taints, joined=timedelta(minutes=1), **changes):
    """Return a node that joined so long ago, with the unregistered taint and these."""
    metadata = {"creationTimestamp": stamp(NOW - joined)}
    return a_node(
        claim, **{"registered": False, "metadata": metadata, "spec": {"taints": [CLOSED, *taints]}, **changes}
    )


def advanced(*pods, claims=None, nodes=None, most=100, **snapshot):
    """Return the plan for a NodeClaim of pods a and b whose node has joined."""
    claims = claims or (a_launched_claim(metadata=with_planned_pods("default/a:uid-a", "default/b:uid-b")),)
    nodes = (a_joined_node(),) if nodes is None else nodes
    snapshot = a_snapshot(claims=claims, nodes=nodes, pods=pods, **snapshot)
    return reconcile_nodeclaims(snapshot, LifecycleOptions(max_nominations=most))


def a_nominated_pod(node="", **changes):
    return a_pod("a", **{"node": node, "status": {"nominatedNodeName": "node-default-1"}, **changes})


def test_planned_pods_are_nominated_before_the_taint_is_removed():
    """One chain has the nominations first, with the pods' UIDs as preconditions."""
    plan = advanced(a_pod("a"), a_pod("b"), a_pod("c"))
    (nominations,) = of_type(plan, NominatePods)
    assert plan.chains[0].actions[0] is nominations
    assert [ref.uid for ref in nominations.pods] == ["uid-a", "uid-b"]
    assert (nominated(plan), untainted(plan)) == (BOTH_HERE, ["node-default-1"])


@pytest.mark.parametrize(
    "changes",
    [
        {"node": "elsewhere"},
        {"metadata": {"uid": "another incarnation"}},
        {"metadata": {"deletionTimestamp": stamp(NOW)}},
        {"metadata": {"annotations": {labels.BUFFER_POD: "true"}}},
        {"spec": {"schedulerName": "volcano"}},
        {"spec": {"schedulingGates": [{"name": "quota"}]}},
        {"status": {"nominatedNodeName": "where-it-preempts"}},
        {"status": {"nominatedNodeName": "node-default-1"}},  # by a run that crashed before it removed the taint
        {"status": {"phase": "Failed"}},
    ],
    ids=lambda changes: str(next(iter(changes.values()))),
)
def test_ineligible_pods_are_not_nominated(changes):
    """Pods may be bound, replaced, terminating, virtual, gated, nominated, preempting, or of another scheduler."""
    plan = advanced(a_pod("a", **changes), a_pod("b"))
    assert (nominated(plan), untainted(plan)) == ([("b", "node-default-1")], ["node-default-1"])


def test_next_run_recovers_a_crash_between_nomination_and_taint_removal():
    """The taint is removed, even if the node is NotReady."""
    assert untainted(advanced(a_nominated_pod())) == ["node-default-1"]


def test_a_stateful_sets_next_pod_is_the_one_that_was_planned():
    """The new pod has the same name and another UID."""
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "u"}
    assert nominated(advanced(a_pod("a", metadata={"uid": "next", "ownerReferences": [owner]}))) == HERE


@pytest.mark.parametrize("off", ["cluster", "pool"])
def test_without_nomination_the_taint_goes_once_a_node_joins(off):
    """Nomination is off for the cluster or by the NodePool's annotation; Karpenter removes the taint so."""
    pool = a_pool(metadata={"annotations": {labels.POD_NOMINATION: "disabled"}} if off == "pool" else {})
    starting = a_joined_node("default-1", STARTING, ready=False, joined=timedelta(0))

    plan = advanced(a_pod("a"), nodes=(starting,), most=0 if off == "cluster" else 100, node_pools=(pool,))

    assert nominated(plan) == []
    (patch,) = patches(plan, "Node")
    assert [t["key"] for t in patch["spec"]["taints"]] == [STARTING["key"]]


def test_unready_node_keeps_its_taint_and_the_step_is_requeued():
    """kube-scheduler would clear nominations to a node that is NotReady or has an ephemeral taint."""
    plan = advanced(a_pod("a"), nodes=(a_joined_node("default-1", STARTING, ready=False, joined=5 * SECOND),))

    assert (nominated(plan), untainted(plan)) == ([], [])
    (status,) = [patch["status"] for patch in patches(plan)]
    registered = [(c["status"], c["reason"]) for c in status["conditions"] if c["type"] == "Registered"]
    assert registered == [("Unknown", "AwaitingReadiness")]
    (wake,) = of_type(plan, Requeue)
    assert wake.at - NOW <= timedelta(seconds=3)

    assert nominated(advanced(a_pod("a"), nodes=(a_joined_node("default-1", STARTING, joined=5 * SECOND),))) == []


OLDER = a_launched_claim(age=timedelta(minutes=2))


@table(
    "claims, node",
    registered_before=((a_launched_claim(true=("Launched", "Registered"), metadata=FOR_A),), a_node(ready=False)),
    timed_out=((a_launched_claim(metadata=FOR_A, age=HOUR),), a_joined_node()),
    duplicate=(
        (OLDER, a_launched_claim("duplicate", provider_id=OLDER.status.provider_id, metadata=FOR_A)), a_joined_node()
    ),
)  # fmt: skip
def test_pods_are_not_nominated_to_a_node_that_registered_before_is_terminated_or_of_another_claim(claims, node):
    """The scheduler plans pods that lost their nomination later again. The duplicate's node belongs to the older NodeClaim."""
    plan = advanced(a_pod("a"), claims=claims, nodes=(node,))
    assert not of_type(plan, NominatePods)
    assert len(claims) > 1 or not of_type(plan, RenominatePods)


@pytest.mark.parametrize("why", ["too long", "no pod waits"])
def test_node_keeps_its_taint_for_its_pods_for_a_limited_time(why):
    """It may wait for daemons that do not tolerate the taint."""
    starting = a_joined_node(ready=False, joined=TAINT_TIMEOUT if why == "too long" else timedelta(0))
    pods = (a_pod("a"),) if why == "too long" else ()
    assert untainted(advanced(*pods, nodes=(starting,))) == ["node-default-1"]


def test_run_nominates_a_bounded_number_of_pods():
    """No taint is removed before its nominations, and all pods of one node are nominated together."""
    planned = {"c0": ("p00", "p01", "p02"), "c1": ("p10",), "c2": ()}
    claims = tuple(
        a_launched_claim(name, metadata=with_planned_pods(*(f"default/{pod}" for pod in pods)))
        for name, pods in planned.items()
    )
    pods = [a_pod(f"p{i}{j}") for i in range(2) for j in range(3)]

    plan = advanced(*pods, claims=claims, nodes=tuple(map(a_joined_node, planned)), most=2)

    assert {node for _, node in nominated(plan)} == {"node-c0"}
    assert untainted(plan) == ["node-c0", "node-c2"]
    assert "NodeClaim c1 is not initialized yet" in {requeue.reason for requeue in of_type(plan, Requeue)}


# -- cleared nominations


def a_ready_claim(since=NOMINATION_TIMEOUT, *, node="node-default-1", **changes):
    stages = [condition("Launched"), condition("Registered"), condition("Initialized", since=NOW - since)]
    return a_running_claim(metadata={**FOR_A, **changes}, status={"conditions": stages, "nodeName": node})


def reconciled(claims, pods, *nodes):
    claims = claims if isinstance(claims, tuple) else (claims,)
    return reconcile_nodeclaims(a_snapshot(claims=claims, nodes=nodes, pods=pods), LifecycleOptions())


RECENT = NOMINATION_TIMEOUT / 2


def nominated_at(time):
    """Return an old NodeClaim whose pods were nominated at a time."""
    return a_ready_claim(HOUR, **with_planned_pods("default/a", **{labels.NOMINATED_AT: time}))


@table(
    "claim, nodes, pod, pointless",
    not_bound=(a_ready_claim(), [a_node()], a_nominated_pod(), True),
    a_moment_ago=(a_ready_claim(RECENT), [a_node()], a_nominated_pod(), False),
    node_gone=(a_ready_claim(RECENT), [], a_nominated_pod(), True),
    claim_goes=(a_ready_claim(deletionTimestamp=stamp(NOW)), [a_node()], a_nominated_pod(), True),
    bound=(a_ready_claim(), [a_node()], a_nominated_pod("node-default-1"), False),
    bound_elsewhere=(a_ready_claim(RECENT), [a_node()], a_nominated_pod("elsewhere"), True),
    other_node=(a_ready_claim(), [a_node()], a_nominated_pod(status={"nominatedNodeName": "elsewhere"}), False),
    preempting=(a_ready_claim(), [a_node()], a_nominated_pod(metadata={"uid": "not the one we planned"}), False),
    to_an_old_node_lately=(nominated_at(stamp(ago(seconds=10))), [a_node()], a_nominated_pod(), False),
    to_an_old_node=(nominated_at(stamp(NOW - NOMINATION_TIMEOUT)), [a_node()], a_nominated_pod(), True),
    at_an_invalid_time=(nominated_at("yesterday"), [a_node()], a_nominated_pod(), True),
)
def test_only_our_obsolete_nominations_are_removed(claim, nodes, pod, pointless):
    """It is the nomination of a planned pod to its NodeClaim's node; the step then schedules the pod again.

    Nominations to an existing node have their own window: an annotation has the time of the last one.
    """
    plan = reconciled(claim, (pod,), *nodes)
    assert nominated(plan) == ([("a", "")] if pointless else [])
    assert any((each.step, each.at) == (Step.PROVISION, NOW) for each in of_type(plan, Requeue)) is pointless


@pytest.mark.parametrize("own_name", ["node-default-1", "another", ""])
def test_node_is_its_claims_whatever_node_name_the_claims_have(own_name):
    """A `status.nodeName` that a user edited, or that another NodeClaim has, does not make a nomination stay for ever."""
    claim = a_ready_claim(deletionTimestamp=stamp(NOW), node=own_name)
    other = a_running_claim("other", status={"nodeName": "node-default-1"})
    assert nominated(reconciled((claim, other), (a_nominated_pod(),), a_node())) == [("a", "")]


@table(
    "other, cleared",
    bound=(a_pod("b", cpu="2", node="node-default-1"), [("a", "")]),
    terminating=(a_pod("b", cpu="2", node="node-default-1", metadata={"deletionTimestamp": stamp(NOW)}), []),
    only_nominated=(a_pod("b", status={"nominatedNodeName": "node-x"}), []),
)
def test_pod_whose_capacity_others_took_is_planned_at_once(other, cleared):
    """While the other pods terminate or are only nominated, kube-scheduler decides, and the step is requeued."""
    node = a_node(status={"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}})
    plan = reconciled(a_ready_claim(RENOMINATION_DELAY), (a_nominated_pod(cpu="3"), other), node)
    assert nominated(plan) == cleared
    assert cleared or [each.at for each in of_type(plan, Requeue)] == [NOW + BINDING_POLL]


def test_sweep_finds_nominations_that_may_be_obsolete():
    """The sweep needs only NodeClaims and unassigned pods."""
    assert pod_with_stale_nomination(a_snapshot(claims=(a_ready_claim(),), pods=(a_nominated_pod(),))) == "default/a"
    assert not pod_with_stale_nomination(a_snapshot(claims=(a_ready_claim(),), pods=(a_pod("a"),)))


# -- existing nodes


def nominate(snapshot, existing, *, enabled=True):
    return nominate_to_existing_nodes(snapshot, existing, NominatablePods.of(snapshot, enabled=enabled))


def nominate_to(claim, node, *pods, **options):
    snapshot = a_snapshot(claims=(claim,), nodes=(node,), pods=pods)
    (name,) = [n.name for n in snapshot.state_nodes]
    return nominate(snapshot, {name: tuple(pod.key for pod in pods)}, **options)


def notes(plan):
    """Return the annotations that the plan writes."""
    return [metadata["annotations"] for metadata in patches(plan, part="metadata")]


def test_pod_planned_onto_a_ready_node_is_recorded_and_nominated():
    """A lost nomination is repeated if the pod still fits. The nominations are dated."""
    plan = nominate_to(a_ready_claim(), a_node(), a_pod("a"), a_pod("late"))

    assert [planned_pods(each) for each in notes(plan)] == [("default/a", "default/late")]
    assert [each.get(labels.NOMINATED_AT) for each in notes(plan)] == [stamp(NOW)]
    assert nominated(plan) == [("a", "node-default-1"), ("late", "node-default-1")]
    (chain,) = plan.chains
    assert isinstance(chain.actions[0], PatchObject)


@pytest.mark.parametrize(
    ("initialized", "nominated_ago", "again"),
    [
        (HOUR, NOMINATION_TIMEOUT, True),
        (HOUR, NOMINATION_TIMEOUT - SECOND, False),
        (10 * SECOND, RENOMINATION_DELAY, True),
        (10 * SECOND, RENOMINATION_DELAY - SECOND, False),
        (NOMINATION_TIMEOUT, RENOMINATION_DELAY, False),
        (NOMINATION_TIMEOUT, 5 * SECOND, False),
        (NOMINATION_TIMEOUT, 45 * SECOND, True),
        (None, RENOMINATION_DELAY, True),
    ],
)
def test_renomination_is_quick_while_the_node_is_new(initialized, nominated_ago, again):
    """kube-scheduler still binds the first pods to it; later, a cleared nomination has another reason.

    The step does not requeue itself. While the node is not initialized, the time since that became Unknown does not matter.
    """
    metadata = with_planned_pods("default/a:uid-a", **{labels.NOMINATED_AT: stamp(NOW - nominated_ago)})
    claim = a_ready_claim(initialized or HOUR, **metadata)
    if initialized is None:
        unknown = condition("Initialized", "Unknown", since=ago(hours=1))
        stages = [condition("Launched"), condition("Registered"), unknown]
        claim = a_launched_claim(metadata=metadata, status={"conditions": stages})

    plan = nominate_to(claim, a_node(), a_pod("a"))

    assert nominated(plan) == (HERE if again else [])
    assert bool(plan.chains) is again


def test_pods_are_nominated_only_to_claimed_nodes_that_stay():
    """Nodes that no longer exist, have no NodeClaim, or terminate are skipped."""
    snapshot = a_snapshot(
        claims=(a_ready_claim(), a_running_claim("going", deleting=NOW)),
        nodes=(a_node(), a_node("going"), a_node("unmanaged")),
        pods=tuple(a_pod(name) for name in "abcd"),
    )
    nodes = ("node-default-1", "node-going", "node-unmanaged", "gone")
    assert (
        nominated(nominate(snapshot, {node: (f"default/{pod}",) for node, pod in zip(nodes, "abcd", strict=True)}))
        == HERE
    )


@pytest.mark.parametrize(("first", "second"), [(MAX_PODS_PER_RUN - 1, 1), (MAX_PODS_PER_RUN, 0)])
def test_run_nominates_a_bounded_number_of_pods_to_existing_nodes(first, second):
    """The next run nominates the others."""
    claims, nodes = (tuple(make(name) for name in "ab") for make in (a_running_claim, a_node))
    snapshot = a_snapshot(claims=claims, nodes=nodes, pods=tuple(a_pod(f"p{n}") for n in range(first + 1)))
    plan = nominate(snapshot, {"node-a": [f"default/p{n}" for n in range(first)], "node-b": [f"default/p{first}"]})
    chosen = [node for _, node in nominated(plan)]
    assert (chosen.count("node-a"), chosen.count("node-b")) == (first, second)


def test_pods_without_nomination_cause_no_requeue():
    """If nomination is off, or all planned pods are nominated, the step writes and requeues nothing."""
    assert nominate_to(a_ready_claim(), a_node(), a_pod("a"), enabled=False).chains == ()
    assert nominate_to(a_ready_claim(), a_node(), a_nominated_pod()).chains == ()


def test_pod_planned_onto_a_joining_node_is_recorded_once():
    """It is nominated, and that dated, with the others when the node joins; deleted pods are removed from the annotation."""
    claim = a_launched_claim(metadata=with_planned_pods("default/a:uid-a", "default/gone:uid-gone"))
    plan = nominate_to(claim, a_joined_node(), a_pod("a"), a_pod("late"))
    assert ([planned_pods(each) for each in notes(plan)], nominated(plan)) == ([("default/a", "default/late")], [])

    knows = a_launched_claim(metadata=with_planned_pods("default/a:uid-a", "default/late:uid-late"))
    assert nominate_to(knows, a_joined_node(), a_pod("a"), a_pod("late")).chains == ()
    (undated,) = notes(nominate_to(a_launched_claim(), a_joined_node(), a_pod("a")))
    assert labels.NOMINATED_AT not in undated
