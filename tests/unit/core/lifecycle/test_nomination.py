"""Pod nomination: which pods are nominated when, when a node keeps its taint for it, and what is cleared."""

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


def remembering(*entries):
    return {"annotations": {labels.PLANNED_PODS: ",".join(entries)}}


def a_joined_node(claim="default-1", **changes):
    return a_node(claim, **{"registered": False, **changes})


def advanced(*pods, claims=None, nodes=None, most=100, **snapshot):
    """A run over a claim for pods a and b, whose node has joined."""
    claims = claims or (a_launched_claim(metadata=remembering("default/a:uid-a", "default/b:uid-b")),)
    nodes = (a_joined_node(),) if nodes is None else nodes
    return reconcile_nodeclaims(
        a_snapshot(claims=claims, nodes=nodes, pods=pods, **snapshot), LifecycleOptions(max_nominations=most)
    )


def nominated(plan):
    """(pod, node), in order."""
    return [(ref.name, a.node) for a in plan.actions if isinstance(a, NominatePods) for ref in a.pods]


def opened(plan):
    """The nodes whose unregistered taint goes."""
    patches = [a for a in plan.actions if isinstance(a, PatchObject) and a.ref.resource.kind == "Node"]
    return [p.ref.name for p in patches if p.patch.get("spec", {}).get("taints") == []]


def test_planned_pods_are_nominated_before_their_node_is_opened():
    """In one chain, hints first; by UID, so that a namesake gets none."""
    plan = advanced(a_pod("a"), a_pod("b"), a_pod("c"))

    chain = plan.chains[0]
    assert isinstance(chain.actions[0], NominatePods)
    assert nominated(plan) == [("a", "node-default-1"), ("b", "node-default-1")]
    assert [ref.uid for ref in chain.actions[0].pods] == ["uid-a", "uid-b"]
    assert opened(plan) == ["node-default-1"]


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
def test_pods_that_are_not_ours_to_place_are_left_alone(changes):
    """Bound, another one, going, virtual, another scheduler's, gated, preempting: the node opens for the others."""
    plan = advanced(a_pod("a", **changes), a_pod("b"))

    assert nominated(plan) == [("b", "node-default-1")]
    assert opened(plan) == ["node-default-1"]


def test_a_stateful_sets_next_pod_is_the_one_that_was_planned():
    """It comes back under its name, with another UID."""
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "u"}
    plan = advanced(a_pod("a", metadata={"uid": "next", "ownerReferences": [owner]}))

    assert nominated(plan) == [("a", "node-default-1")]


@pytest.mark.parametrize("off", ["cluster", "pool"])
def test_without_nomination_the_taint_goes_once_a_node_joins(off):
    """Switched off for the cluster, or by the NodePool's annotation: as Karpenter does it."""
    pool = a_pool(metadata={"annotations": {labels.POD_NOMINATION: "disabled"}} if off == "pool" else {})
    starting = a_joined_node(
        ready=False, spec={"taints": [CLOSED, STARTING]}, metadata={"creationTimestamp": stamp(NOW)}
    )

    plan = advanced(a_pod("a"), nodes=(starting,), most=0 if off == "cluster" else 100, node_pools=(pool,))

    assert nominated(plan) == []
    (patch,) = [a for a in plan.actions if isinstance(a, PatchObject) and a.ref.resource.kind == "Node"]
    assert [t["key"] for t in patch.patch["spec"]["taints"]] == [STARTING["key"]]


def test_next_run_recovers_a_crash_between_nomination_and_taint_removal():
    """Nominated pods need no second nomination; the taint goes, ready node or not, so that they do not wait."""
    nominated_pod = a_pod("a", status={"nominatedNodeName": "node-default-1"})

    assert nominated(advanced(nominated_pod, a_pod("b"))) == [("b", "node-default-1")]
    assert opened(advanced(nominated_pod)) == ["node-default-1"]


def test_a_node_that_takes_no_pods_yet_stays_closed_and_is_looked_at_soon():
    """kube-scheduler would take the hints back: it fails pods on a node that is not ready."""
    joined = {"metadata": {"creationTimestamp": stamp(ago(seconds=5))}}
    starting = a_joined_node(ready=False, spec={"taints": [CLOSED, STARTING]}, **joined)

    plan = advanced(a_pod("a"), nodes=(starting,))

    assert (nominated(plan), opened(plan)) == ([], [])
    (status,) = [a.patch["status"] for a in plan.actions if isinstance(a, PatchObject)]
    assert [(c["status"], c["reason"]) for c in status["conditions"] if c["type"] == "Registered"] == [
        ("Unknown", "AwaitingReadiness")
    ]
    (wake,) = [a for a in plan.actions if isinstance(a, Requeue)]
    assert wake.at - NOW <= timedelta(seconds=3)


def test_ready_node_with_an_ephemeral_taint_takes_no_pods_yet():
    """kube-scheduler would clear the nominations, whatever the condition Ready says."""
    node = a_joined_node(spec={"taints": [CLOSED, STARTING]}, metadata={"creationTimestamp": stamp(ago(seconds=5))})

    assert nominated(advanced(a_pod("a"), nodes=(node,))) == []


def test_pods_are_not_nominated_to_a_node_that_registered_before():
    """The scheduler decides anew on pods that lost their nomination after that."""
    claim = a_launched_claim(true=("Launched", "Registered"), metadata=remembering("default/a:uid-a"))

    assert nominated(advanced(a_pod("a"), claims=(claim,), nodes=(a_node(ready=False),))) == []


def test_pods_are_not_nominated_for_a_claim_that_timed_out_or_shares_its_instance():
    """The node of the first is terminated in this run; that of the second belongs to the older NodeClaim."""
    late = a_launched_claim(metadata=remembering("default/a:uid-a"), age=timedelta(hours=1))
    node = a_joined_node()
    timed_out = advanced(a_pod("a"), claims=(late,), nodes=(node,))
    assert not [a for a in timed_out.actions if isinstance(a, NominatePods | RenominatePods)]

    owner = a_launched_claim(age=timedelta(minutes=2))
    duplicate = a_launched_claim(
        "duplicate", provider_id=owner.status.provider_id, metadata=remembering("default/a:uid-a")
    )
    assert nominated(advanced(a_pod("a"), claims=(owner, duplicate), nodes=(node,))) == []


@pytest.mark.parametrize("why", ["too long", "no pod waits"])
def test_a_node_is_kept_closed_for_its_pods_only_and_not_for_long(why):
    """Daemons that do not tolerate the taint may be what it waits for."""
    age = TAINT_TIMEOUT if why == "too long" else timedelta(0)
    joined = {"metadata": {"creationTimestamp": stamp(NOW - age)}}
    starting = a_joined_node(ready=False, spec={"taints": [CLOSED]}, **joined)
    pods = (a_pod("a"),) if why == "too long" else ()

    assert opened(advanced(*pods, nodes=(starting,))) == ["node-default-1"]


def test_run_nominates_a_bounded_number_of_pods():
    """None is opened without its hints, and one node's pods go together whatever their number."""
    claims = tuple(
        a_launched_claim(f"c{i}", metadata=remembering(*(f"default/p{i}{j}" for j in range(size))))
        for i, size in enumerate((3, 1, 0))
    )
    nodes = tuple(a_joined_node(c.metadata.name) for c in claims)
    pods = [a_pod(f"p{i}{j}") for i in range(2) for j in range(3)]

    plan = advanced(*pods, claims=claims, nodes=nodes, most=2)

    assert {node for _, node in nominated(plan)} == {"node-c0"}
    assert opened(plan) == ["node-c0", "node-c2"]
    assert "NodeClaim c1 is not initialized yet" in {a.reason for a in plan.actions if isinstance(a, Requeue)}


# -- what is taken back ---------------------------------------------------------------------------------------------


def a_hinted_pod(**changes):
    return a_pod("a", **{"status": {"nominatedNodeName": "node-default-1"}, **changes})


def a_ready_claim(since=NOMINATION_TIMEOUT, **changes):
    conditions = [condition("Launched"), condition("Registered"), condition("Initialized", since=NOW - since)]
    status = {"conditions": conditions, "nodeName": "node-default-1"}
    return a_running_claim(metadata={**remembering("default/a:uid-a"), **changes}, status=status)


@pytest.mark.parametrize(
    ("claim", "nodes", "pod", "pointless"),
    [
        (a_ready_claim(), (a_node(),), a_hinted_pod(), True),
        (a_ready_claim(NOMINATION_TIMEOUT / 2), (a_node(),), a_hinted_pod(), False),
        (a_ready_claim(NOMINATION_TIMEOUT / 2), (), a_hinted_pod(), True),
        (a_ready_claim(deletionTimestamp=stamp(NOW)), (a_node(),), a_hinted_pod(), True),
        (a_ready_claim(), (a_node(),), a_hinted_pod(node="node-default-1"), False),
        (a_ready_claim(NOMINATION_TIMEOUT / 2), (a_node(),), a_hinted_pod(node="elsewhere"), True),
        (a_ready_claim(), (a_node(),), a_hinted_pod(status={"nominatedNodeName": "elsewhere"}), False),
        (a_ready_claim(), (a_node(),), a_hinted_pod(metadata={"uid": "not the one we planned"}), False),
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
    """A pod that a claim remembers, nominated to that claim's node; the step then plans for it again."""
    plan = reconcile_nodeclaims(a_snapshot(claims=(claim,), nodes=nodes, pods=(pod,)), LifecycleOptions())

    assert nominated(plan) == ([("a", "")] if pointless else [])
    wakes = [a for a in plan.actions if isinstance(a, Requeue) and a.step is Step.PROVISION]
    assert any(wake.at == NOW for wake in wakes) is pointless


def test_pod_whose_capacity_others_took_is_planned_at_once():
    """Not so while those who take it are leaving, or only nominated: kube-scheduler sees to them. It is looked at again soon."""

    def after(*others):
        node = a_node(status={"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}})
        pods = (a_hinted_pod(cpu="3"), *others)
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
    """The claim says when they were given last; text that is no time does not matter."""

    def taken_back(hinted_at):
        annotations = {**remembering("default/a")["annotations"], labels.NOMINATED_AT: hinted_at}
        claim = a_ready_claim(timedelta(hours=1), annotations=annotations)
        return nominated(
            reconcile_nodeclaims(
                a_snapshot(claims=(claim,), nodes=(a_node(),), pods=(a_hinted_pod(),)), LifecycleOptions()
            )
        )

    assert taken_back(stamp(ago(seconds=10))) == []
    assert taken_back(stamp(NOW - NOMINATION_TIMEOUT)) == [("a", "")]
    assert taken_back("yesterday") == [("a", "")]


def test_sweep_finds_nominations_that_may_be_obsolete():
    """From claims and unassigned pods alone."""
    assert pod_with_stale_nomination(a_snapshot(claims=(a_ready_claim(),), pods=(a_hinted_pod(),))) == "default/a"
    assert not pod_with_stale_nomination(a_snapshot(claims=(a_ready_claim(),), pods=(a_pod("a"),)))


# -- nodes that stand already ---------------------------------------------------------------------------------------


def on_standing(claim, node, *pods, enabled=True):
    snapshot = a_snapshot(claims=(claim,), nodes=(node,), pods=pods)
    (name,) = [n.name for n in snapshot.state_nodes]
    existing = {name: tuple(pod.key for pod in pods)}
    return nominate_to_existing_nodes(snapshot, existing, NominatablePods.of(snapshot, enabled=enabled))


def remembered(plan):
    """What the claim's annotation becomes."""
    patches = [a.patch["metadata"]["annotations"] for a in plan.actions if isinstance(a, PatchObject)]
    return [planned_pods(annotations) for annotations in patches]


def test_pod_planned_onto_a_ready_node_is_recorded_and_nominated():
    """A nomination that was lost is given again, once it is known that the pod still fits."""
    plan = on_standing(a_ready_claim(), a_node(), a_pod("a"), a_pod("late"))

    assert remembered(plan) == [("default/a", "default/late")]
    assert nominated(plan) == [("a", "node-default-1"), ("late", "node-default-1")]
    (chain,) = plan.chains
    assert isinstance(chain.actions[0], PatchObject)


def test_pod_is_nominated_again_only_after_the_nomination_timeout():
    """It cleared the second nomination, too: it knows something that we do not, and no step is requeued."""

    def nominated_before(seconds_ago):
        annotations = {
            **remembering("default/a:uid-a")["annotations"],
            labels.NOMINATED_AT: stamp(ago(seconds=seconds_ago)),
        }
        return on_standing(a_ready_claim(annotations=annotations), a_node(), a_pod("a"))

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
    """kube-scheduler still binds the first pods to it; later, what cleared a nomination has a reason."""
    annotations = {
        **remembering("default/a:uid-a")["annotations"],
        labels.NOMINATED_AT: stamp(NOW - nominated_ago),
    }
    plan = on_standing(a_ready_claim(initialized, annotations=annotations), a_node(), a_pod("a"))
    assert nominated(plan) == ([("a", "node-default-1")] if again else [])


def test_renomination_is_quick_while_the_node_is_not_initialized():
    """However long ago its condition became Unknown."""
    annotations = {
        **remembering("default/a:uid-a")["annotations"],
        labels.NOMINATED_AT: stamp(NOW - RENOMINATION_DELAY),
    }
    conditions = [
        condition("Launched"),
        condition("Registered"),
        condition("Initialized", "Unknown", since=ago(hours=1)),
    ]
    claim = a_launched_claim(metadata={"annotations": annotations}, status={"conditions": conditions})
    assert nominated(on_standing(claim, a_node(), a_pod("a"))) == [("a", "node-default-1")]


def test_nominations_are_dated_only_if_they_are_written():
    """A pod planned onto a node on its way is not nominated yet."""

    def dated(plan):
        (patch,) = [a.patch["metadata"]["annotations"] for a in plan.actions if isinstance(a, PatchObject)]
        return patch.get(labels.NOMINATED_AT)

    assert dated(on_standing(a_ready_claim(), a_node(), a_pod("a"), a_pod("late"))) == stamp(NOW)
    assert dated(on_standing(a_launched_claim(), a_joined_node(), a_pod("a"))) is None


def test_pods_are_nominated_only_to_claimed_nodes_that_stay():
    """Nodes that are gone by now, have no claim, or terminate are left out."""
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
    """Nomination is off, or all planned pods are nominated: nothing is written, no step is requeued."""
    claim = a_ready_claim(annotations=remembering("default/a:uid-a")["annotations"])

    assert on_standing(claim, a_node(), a_pod("a"), enabled=False).chains == ()
    assert on_standing(claim, a_node(), a_hinted_pod()).chains == ()


def test_a_pod_planned_onto_a_node_on_its_way_is_remembered_once():
    """It gets its hint with the others when the node opens; pods that are gone are forgotten."""
    claim = a_launched_claim(metadata=remembering("default/a:uid-a", "default/gone:uid-gone"))
    closed = a_joined_node()

    plan = on_standing(claim, closed, a_pod("a"), a_pod("late"))
    assert (remembered(plan), nominated(plan)) == ([("default/a", "default/late")], [])

    knows = a_launched_claim(metadata=remembering("default/a:uid-a", "default/late:uid-late"))
    assert on_standing(knows, closed, a_pod("a"), a_pod("late")).chains == ()
