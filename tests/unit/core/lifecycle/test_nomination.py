"""Pod nomination: which pods are nominated when, how long nodes keep their taint, and which nominations are cleared."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

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

STARTING = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
CLOSED = {"key": labels.UNREGISTERED_TAINT, "effect": "NoExecute"}


def with_planned_pods(*entries):
    """Return the metadata of a NodeClaim with these planned pods."""
    return {"annotations": {labels.PLANNED_PODS: ",".join(entries)}}


def a_joined_node(claim="default-1", **changes):
    return a_node(claim, **{"registered": False, **changes})


def advanced(*pods, claims=None, nodes=None, most=100, **snapshot):
    """Return the plan for a NodeClaim of pods a and b whose node has joined."""
    claims = claims or (a_launched_claim(metadata=with_planned_pods("default/a:uid-a", "default/b:uid-b")),)
    nodes = (a_joined_node(),) if nodes is None else nodes
    return reconcile_nodeclaims(
        a_snapshot(claims=claims, nodes=nodes, pods=pods, **snapshot), LifecycleOptions(max_nominations=most)
    )


def nominated(plan):
    """Return (pod, node) of the nominations, in order."""
    return [(ref.name, a.node) for a in plan.actions if isinstance(a, NominatePods) for ref in a.pods]


def untainted(plan):
    """Return the nodes whose unregistered taint is removed."""
    patches = [a for a in plan.actions if isinstance(a, PatchObject) and a.ref.resource.kind == "Node"]
    return [p.ref.name for p in patches if p.patch.get("spec", {}).get("taints") == []]


def test_planned_pods_are_nominated_before_the_taint_is_removed():
    """One chain has the nominations first, with the pods' UIDs as preconditions."""
    plan = advanced(a_pod("a"), a_pod("b"), a_pod("c"))

    chain = plan.chains[0]
    assert isinstance(chain.actions[0], NominatePods)
    assert nominated(plan) == [("a", "node-default-1"), ("b", "node-default-1")]
    assert [ref.uid for ref in chain.actions[0].pods] == ["uid-a", "uid-b"]
    assert untainted(plan) == ["node-default-1"]


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
        {"status": {"phase": "Failed"}},
    ],
    ids=lambda changes: str(next(iter(changes.values()))),
)
def test_ineligible_pods_are_not_nominated(changes):
    """Pods may be bound, replaced, terminating, virtual, gated, preempting, or of another scheduler."""
    plan = advanced(a_pod("a", **changes), a_pod("b"))

    assert nominated(plan) == [("b", "node-default-1")]
    assert untainted(plan) == ["node-default-1"]


def test_a_stateful_sets_next_pod_is_the_one_that_was_planned():
    """The new pod has the same name and another UID."""
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "u"}
    plan = advanced(a_pod("a", metadata={"uid": "next", "ownerReferences": [owner]}))

    assert nominated(plan) == [("a", "node-default-1")]


@pytest.mark.parametrize("off", ["cluster", "pool"])
def test_without_nomination_the_taint_goes_once_a_node_joins(off):
    """Nomination is off for the cluster or by the NodePool's annotation; Karpenter removes the taint so."""
    pool = a_pool(metadata={"annotations": {labels.POD_NOMINATION: "disabled"}} if off == "pool" else {})
    starting = a_joined_node(
        ready=False, spec={"taints": [CLOSED, STARTING]}, metadata={"creationTimestamp": stamp(NOW)}
    )

    plan = advanced(a_pod("a"), nodes=(starting,), most=0 if off == "cluster" else 100, node_pools=(pool,))

    assert nominated(plan) == []
    (patch,) = [a for a in plan.actions if isinstance(a, PatchObject) and a.ref.resource.kind == "Node"]
    assert [t["key"] for t in patch.patch["spec"]["taints"]] == [STARTING["key"]]


def test_next_run_recovers_a_crash_between_nomination_and_taint_removal():
    """Nominated pods are not nominated again; the taint is removed, even if the node is NotReady."""
    nominated_pod = a_pod("a", status={"nominatedNodeName": "node-default-1"})

    assert nominated(advanced(nominated_pod, a_pod("b"))) == [("b", "node-default-1")]
    assert untainted(advanced(nominated_pod)) == ["node-default-1"]


def test_unready_node_keeps_its_taint_and_the_step_is_requeued():
    """kube-scheduler would clear nominations to a node that is NotReady."""
    joined = {"metadata": {"creationTimestamp": stamp(ago(seconds=5))}}
    starting = a_joined_node(ready=False, spec={"taints": [CLOSED, STARTING]}, **joined)

    plan = advanced(a_pod("a"), nodes=(starting,))

    assert (nominated(plan), untainted(plan)) == ([], [])
    (status,) = [a.patch["status"] for a in plan.actions if isinstance(a, PatchObject)]
    assert [(c["status"], c["reason"]) for c in status["conditions"] if c["type"] == "Registered"] == [
        ("Unknown", "AwaitingReadiness")
    ]
    (wake,) = [a for a in plan.actions if isinstance(a, Requeue)]
    assert wake.at - NOW <= timedelta(seconds=3)


def test_ready_node_with_an_ephemeral_taint_takes_no_pods_yet():
    """kube-scheduler would clear the nominations, even if Ready is True."""
    node = a_joined_node(spec={"taints": [CLOSED, STARTING]}, metadata={"creationTimestamp": stamp(ago(seconds=5))})

    assert nominated(advanced(a_pod("a"), nodes=(node,))) == []


def test_pods_are_not_nominated_to_a_node_that_registered_before():
    """The scheduler plans pods that lost their nomination later again."""
    claim = a_launched_claim(true=("Launched", "Registered"), metadata=with_planned_pods("default/a:uid-a"))

    assert nominated(advanced(a_pod("a"), claims=(claim,), nodes=(a_node(ready=False),))) == []


def test_pods_are_not_nominated_for_timed_out_or_duplicate_claims():
    """This run terminates the first one's node; the second one's node belongs to the older NodeClaim."""
    late = a_launched_claim(metadata=with_planned_pods("default/a:uid-a"), age=timedelta(hours=1))
    node = a_joined_node()
    timed_out = advanced(a_pod("a"), claims=(late,), nodes=(node,))
    assert not [a for a in timed_out.actions if isinstance(a, NominatePods | RenominatePods)]

    owner = a_launched_claim(age=timedelta(minutes=2))
    duplicate = a_launched_claim(
        "duplicate", provider_id=owner.status.provider_id, metadata=with_planned_pods("default/a:uid-a")
    )
    assert nominated(advanced(a_pod("a"), claims=(owner, duplicate), nodes=(node,))) == []


@pytest.mark.parametrize("why", ["too long", "no pod waits"])
def test_node_keeps_its_taint_for_its_pods_for_a_limited_time(why):
    """It may wait for daemons that do not tolerate the taint."""
    age = TAINT_TIMEOUT if why == "too long" else timedelta(0)
    joined = {"metadata": {"creationTimestamp": stamp(NOW - age)}}
    starting = a_joined_node(ready=False, spec={"taints": [CLOSED]}, **joined)
    pods = (a_pod("a"),) if why == "too long" else ()

    assert untainted(advanced(*pods, nodes=(starting,))) == ["node-default-1"]


def test_run_nominates_a_bounded_number_of_pods():
    """No taint is removed before its nominations, and all pods of one node are nominated together."""
    claims = tuple(
        a_launched_claim(f"c{i}", metadata=with_planned_pods(*(f"default/p{i}{j}" for j in range(size))))
        for i, size in enumerate((3, 1, 0))
    )
    nodes = tuple(a_joined_node(c.metadata.name) for c in claims)
    pods = [a_pod(f"p{i}{j}") for i in range(2) for j in range(3)]

    plan = advanced(*pods, claims=claims, nodes=nodes, most=2)

    assert {node for _, node in nominated(plan)} == {"node-c0"}
    assert untainted(plan) == ["node-c0", "node-c2"]
    assert "NodeClaim c1 is not initialized yet" in {a.reason for a in plan.actions if isinstance(a, Requeue)}


# -- cleared nominations ---------------------------------------------------------------------------------------------


def a_nominated_pod(**changes):
    return a_pod("a", **{"status": {"nominatedNodeName": "node-default-1"}, **changes})


def a_ready_claim(since=NOMINATION_TIMEOUT, **changes):
    conditions = [condition("Launched"), condition("Registered"), condition("Initialized", since=NOW - since)]
    status = {"conditions": conditions, "nodeName": "node-default-1"}
    return a_running_claim(metadata={**with_planned_pods("default/a:uid-a"), **changes}, status=status)


@pytest.mark.parametrize(
    ("claim", "nodes", "pod", "pointless"),
    [
        (a_ready_claim(), (a_node(),), a_nominated_pod(), True),
        (a_ready_claim(NOMINATION_TIMEOUT / 2), (a_node(),), a_nominated_pod(), False),
        (a_ready_claim(NOMINATION_TIMEOUT / 2), (), a_nominated_pod(), True),
        (a_ready_claim(deletionTimestamp=stamp(NOW)), (a_node(),), a_nominated_pod(), True),
        (a_ready_claim(), (a_node(),), a_nominated_pod(node="node-default-1"), False),
        (a_ready_claim(NOMINATION_TIMEOUT / 2), (a_node(),), a_nominated_pod(node="elsewhere"), True),
        (a_ready_claim(), (a_node(),), a_nominated_pod(status={"nominatedNodeName": "elsewhere"}), False),
        (a_ready_claim(), (a_node(),), a_nominated_pod(metadata={"uid": "not the one we planned"}), False),
    ],
    ids=[
        "not-bound",
        "a-moment-ago",
        "node-gone",
        "claim-goes",
        "bound",
        "bound-elsewhere",
        "other-node",
        "preempting",
    ],
)
def test_only_our_obsolete_nominations_are_removed(claim, nodes, pod, pointless):
    """It is the nomination of a planned pod to its NodeClaim's node; the step then schedules the pod again."""
    plan = reconcile_nodeclaims(a_snapshot(claims=(claim,), nodes=nodes, pods=(pod,)), LifecycleOptions())

    assert nominated(plan) == ([("a", "")] if pointless else [])
    wakes = [a for a in plan.actions if isinstance(a, Requeue) and a.step is Step.PROVISION]
    assert any(wake.at == NOW for wake in wakes) is pointless


@pytest.mark.parametrize("own_name", ["node-default-1", "another", ""])
def test_node_is_its_claims_whatever_node_name_the_claims_have(own_name):
    """A `status.nodeName` that a user edited, or that another NodeClaim has, does not make a nomination stay for ever."""
    claim = a_ready_claim(deletionTimestamp=stamp(NOW))
    claim = replace(claim, status=replace(claim.status, node_name=own_name))
    other = a_running_claim("other", status={"nodeName": "node-default-1"})
    snapshot = a_snapshot(claims=(claim, other), nodes=(a_node(),), pods=(a_nominated_pod(),))

    assert nominated(reconcile_nodeclaims(snapshot, LifecycleOptions())) == [("a", "")]


def test_pod_whose_capacity_others_took_is_planned_at_once():
    """While the other pods terminate or are only nominated, kube-scheduler decides, and the step is requeued."""

    def after(*others):
        node = a_node(status={"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}})
        pods = (a_nominated_pod(cpu="3"), *others)
        return reconcile_nodeclaims(
            a_snapshot(claims=(a_ready_claim(RENOMINATION_DELAY),), nodes=(node,), pods=pods), LifecycleOptions()
        )

    here = {"cpu": "2", "node": "node-default-1"}
    leaving = {"metadata": {"deletionTimestamp": stamp(NOW)}}

    assert nominated(after(a_pod("b", **here))) == [("a", "")]
    for plan in (after(a_pod("b", **here, **leaving)), after(a_pod("b", status={"nominatedNodeName": "node-x"}))):
        assert nominated(plan) == []
        assert [a.at for a in plan.actions if isinstance(a, Requeue)] == [NOW + BINDING_POLL]


def test_nominations_to_an_existing_node_have_their_own_window():
    """An annotation has the time of the last nomination; an invalid time is ignored."""

    def cleared(nominated_at):
        annotations = {**with_planned_pods("default/a")["annotations"], labels.NOMINATED_AT: nominated_at}
        claim = a_ready_claim(timedelta(hours=1), annotations=annotations)
        return nominated(
            reconcile_nodeclaims(
                a_snapshot(claims=(claim,), nodes=(a_node(),), pods=(a_nominated_pod(),)), LifecycleOptions()
            )
        )

    assert cleared(stamp(ago(seconds=10))) == []
    assert cleared(stamp(NOW - NOMINATION_TIMEOUT)) == [("a", "")]
    assert cleared("yesterday") == [("a", "")]


def test_sweep_finds_nominations_that_may_be_obsolete():
    """The sweep needs only NodeClaims and unassigned pods."""
    assert pod_with_stale_nomination(a_snapshot(claims=(a_ready_claim(),), pods=(a_nominated_pod(),))) == "default/a"
    assert not pod_with_stale_nomination(a_snapshot(claims=(a_ready_claim(),), pods=(a_pod("a"),)))


# -- existing nodes ---------------------------------------------------------------------------------------


def nominate_to_existing(claim, node, *pods, enabled=True):
    snapshot = a_snapshot(claims=(claim,), nodes=(node,), pods=pods)
    (name,) = [n.name for n in snapshot.state_nodes]
    existing = {name: tuple(pod.key for pod in pods)}
    return nominate_to_existing_nodes(snapshot, existing, NominatablePods.of(snapshot, enabled=enabled))


def recorded_pods(plan):
    """Return the new value of the NodeClaim's annotation."""
    patches = [a.patch["metadata"]["annotations"] for a in plan.actions if isinstance(a, PatchObject)]
    return [planned_pods(annotations) for annotations in patches]


def test_pod_planned_onto_a_ready_node_is_recorded_and_nominated():
    """A lost nomination is repeated if the pod still fits."""
    plan = nominate_to_existing(a_ready_claim(), a_node(), a_pod("a"), a_pod("late"))

    assert recorded_pods(plan) == [("default/a", "default/late")]
    assert nominated(plan) == [("a", "node-default-1"), ("late", "node-default-1")]
    (chain,) = plan.chains
    assert isinstance(chain.actions[0], PatchObject)


def test_pod_is_nominated_again_only_after_the_nomination_timeout():
    """kube-scheduler cleared the second nomination, too, so the step does not requeue itself."""

    def nominated_before(seconds_ago):
        annotations = {
            **with_planned_pods("default/a:uid-a")["annotations"],
            labels.NOMINATED_AT: stamp(ago(seconds=seconds_ago)),
        }
        return nominate_to_existing(a_ready_claim(annotations=annotations), a_node(), a_pod("a"))

    assert nominated_before(seconds_ago=5).chains == ()
    assert nominated(nominated_before(seconds_ago=45)) == [("a", "node-default-1")]


@pytest.mark.parametrize(
    ("initialized", "nominated_ago", "again"),
    [
        (timedelta(hours=1), NOMINATION_TIMEOUT, True),
        (timedelta(hours=1), NOMINATION_TIMEOUT - timedelta(seconds=1), False),
        (timedelta(seconds=10), RENOMINATION_DELAY, True),
        (timedelta(seconds=10), RENOMINATION_DELAY - timedelta(seconds=1), False),
        (NOMINATION_TIMEOUT, RENOMINATION_DELAY, False),
    ],
)
def test_renomination_is_quick_while_the_node_is_new(initialized, nominated_ago, again):
    """kube-scheduler still binds the first pods to it; later, a cleared nomination has another reason."""
    annotations = {
        **with_planned_pods("default/a:uid-a")["annotations"],
        labels.NOMINATED_AT: stamp(NOW - nominated_ago),
    }
    plan = nominate_to_existing(a_ready_claim(initialized, annotations=annotations), a_node(), a_pod("a"))
    assert nominated(plan) == ([("a", "node-default-1")] if again else [])


def test_renomination_is_quick_while_the_node_is_not_initialized():
    """The time since its condition became Unknown does not matter."""
    annotations = {
        **with_planned_pods("default/a:uid-a")["annotations"],
        labels.NOMINATED_AT: stamp(NOW - RENOMINATION_DELAY),
    }
    conditions = [
        condition("Launched"),
        condition("Registered"),
        condition("Initialized", "Unknown", since=ago(hours=1)),
    ]
    claim = a_launched_claim(metadata={"annotations": annotations}, status={"conditions": conditions})
    assert nominated(nominate_to_existing(claim, a_node(), a_pod("a"))) == [("a", "node-default-1")]


def test_nominations_are_dated_only_if_they_are_written():
    """A pod planned onto a node that has not joined is not nominated yet."""

    def dated(plan):
        (patch,) = [a.patch["metadata"]["annotations"] for a in plan.actions if isinstance(a, PatchObject)]
        return patch.get(labels.NOMINATED_AT)

    assert dated(nominate_to_existing(a_ready_claim(), a_node(), a_pod("a"), a_pod("late"))) == stamp(NOW)
    assert dated(nominate_to_existing(a_launched_claim(), a_joined_node(), a_pod("a"))) is None


def test_pods_are_nominated_only_to_claimed_nodes_that_stay():
    """Nodes that no longer exist, have no NodeClaim, or terminate are skipped."""
    snapshot = a_snapshot(
        claims=(a_ready_claim(), a_running_claim("going", deleting=NOW)),
        nodes=(a_node(), a_node("going"), a_node("unmanaged")),
        pods=tuple(a_pod(name) for name in "abcd"),
    )
    existing = {
        "node-default-1": ("default/a",),
        "node-going": ("default/b",),
        "node-unmanaged": ("default/c",),
        "gone": ("default/d",),
    }
    plan = nominate_to_existing_nodes(snapshot, existing, NominatablePods.of(snapshot, enabled=True))
    assert nominated(plan) == [("a", "node-default-1")]


@pytest.mark.parametrize(("first", "second"), [(MAX_PODS_PER_RUN - 1, 1), (MAX_PODS_PER_RUN, 0)])
def test_run_nominates_a_bounded_number_of_pods_to_existing_nodes(first, second):
    """The next run nominates the others."""
    snapshot = a_snapshot(
        claims=(a_running_claim("a"), a_running_claim("b")),
        nodes=(a_node("a"), a_node("b")),
        pods=tuple(a_pod(f"p{n}") for n in range(first + 1)),
    )
    existing = {"node-a": tuple(f"default/p{n}" for n in range(first)), "node-b": (f"default/p{first}",)}
    plan = nominate_to_existing_nodes(snapshot, existing, NominatablePods.of(snapshot, enabled=True))
    nodes = [node for _, node in nominated(plan)]
    assert (nodes.count("node-a"), nodes.count("node-b")) == (first, second)


def test_pods_without_nomination_cause_no_requeue():
    """If nomination is off, or all planned pods are nominated, the step writes and requeues nothing."""
    claim = a_ready_claim(annotations=with_planned_pods("default/a:uid-a")["annotations"])

    assert nominate_to_existing(claim, a_node(), a_pod("a"), enabled=False).chains == ()
    assert nominate_to_existing(claim, a_node(), a_nominated_pod()).chains == ()


def test_pod_planned_onto_a_joining_node_is_recorded_once():
    """It is nominated with the others when the node joins; deleted pods are removed from the annotation."""
    claim = a_launched_claim(metadata=with_planned_pods("default/a:uid-a", "default/gone:uid-gone"))
    closed = a_joined_node()

    plan = nominate_to_existing(claim, closed, a_pod("a"), a_pod("late"))
    assert (recorded_pods(plan), nominated(plan)) == ([("default/a", "default/late")], [])

    knows = a_launched_claim(metadata=with_planned_pods("default/a:uid-a", "default/late:uid-late"))
    assert nominate_to_existing(knows, closed, a_pod("a"), a_pod("late")).chains == ()
