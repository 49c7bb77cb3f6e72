"""Managed nodes without a NodeClaim: their pods are drained, and their instances are terminated."""

import pytest

from journeyman.core.api import labels
from journeyman.core.lifecycle.drain import MAX_POLL_INTERVAL, TerminationIntervals
from journeyman.core.lifecycle.termination import finalize_terminating
from journeyman.core.plan import DeletePod, EvictPod, PatchObject, Requeue, Step, TerminateInstance
from journeyman.core.state.instances import CloudInstances
from tests.helpers.builders import (
    CLASS_LABEL,
    NOW,
    a_node,
    a_pod,
    a_snapshot,
    ago,
    an_attachment,
    an_instance,
    provider_id_of,
)

NODE = "node-default-1"
RUNNING = CloudInstances(listed=(an_instance(),))
GONE = CloudInstances(missing=frozenset({provider_id_of("default-1")}))
FREED = {"metadata": {"finalizers": []}}


def a_draining_node(**changes):
    """Return a deleted node whose drain has begun: the brake on lost nodes has allowed it."""
    taint = {"key": labels.DISRUPTED_TAINT, "effect": "NoSchedule"}
    return a_node(**{"deleting": NOW, "spec": {"taints": [taint]}, **changes})


def run(node, pods=(), cloud=RUNNING, attachments=()):
    snapshot = a_snapshot(nodes=(node,), pods=tuple(pods), volume_attachments=tuple(attachments))
    return finalize_terminating(snapshot, cloud, TerminationIntervals())


def of_type(plan, kind):
    return [a for a in plan.actions if isinstance(a, kind)]


def test_deleted_node_without_a_nodeclaim_is_held_until_its_drain_begins():
    """Kubernetes deletes the Nodes of NodeClaims that were wiped; their pods run on."""
    snapshot = a_snapshot(nodes=(a_node(deleting=NOW),), pods=(a_pod("p", node=NODE),))
    assert not run(a_node(deleting=NOW), [a_pod("p", node=NODE)]).actions
    assert [(n.is_held, n.is_terminating) for n in snapshot.state_nodes] == [(True, False)]


def test_node_is_drained_before_its_instance_ends():
    """There is no terminationGracePeriod without a NodeClaim; an Event reports the drain."""
    plan = run(a_draining_node(), [a_pod("p", node=NODE)])
    (closed,) = of_type(plan, PatchObject)
    assert closed.patch["metadata"]["labels"] == {labels.EXCLUDE_BALANCERS: "karpenter"}
    assert [e.ref.name for e in of_type(plan, EvictPod)] == ["p"]
    assert [w.step.value for w in of_type(plan, Requeue)] == ["terminate", "provision"]
    assert [e.reason for e in plan.events] == ["NodeClaimNotFound"]
    assert not of_type(plan, TerminateInstance) + of_type(plan, DeletePod)


def test_drained_node_waits_for_its_volumes():
    """The same holds for any other node."""
    plan = run(a_draining_node(), attachments=[an_attachment("pv", NODE)])
    assert [type(a) for a in plan.actions] == [Requeue]
    assert [e.reason for e in plan.events] == ["AwaitingVolumeDetachment"]


def test_instance_is_terminated_unless_a_nodeclaim_has_it():
    """The node keeps the finalizer until the cloud reports that the instance no longer exists."""
    end, look = run(a_draining_node()).actions
    assert (end.provider_id, end.claim, end.claim_uid) == (provider_id_of("default-1"), "default-1", "uid-default-1")
    assert end.unless_claimed
    assert isinstance(look, Requeue)


def test_node_is_finalized_and_measured_after_its_instance():
    """The metrics are the duration of the termination and the node's lifetime."""
    plan = run(a_draining_node(deleting=ago(seconds=30)), cloud=GONE)
    assert [a.patch for a in of_type(plan, PatchObject)] == [FREED]
    assert {o.name: o.value for o in plan.chains[0].observations} == {
        "karpenter_nodes_terminated_total": 1,
        "karpenter_nodes_termination_duration_seconds": 30,
        "karpenter_nodes_lifetime_duration_seconds": 60,
        "operator_node_termination_duration_seconds": 30,
    }


def test_node_without_an_instance_is_not_drained():
    """The node is NotReady, and the cloud has no such instance."""
    plan = run(a_node(ready=False, deleting=NOW), [a_pod("p", node=NODE)], GONE)
    assert [a.patch for a in plan.actions] == [FREED]


@pytest.mark.parametrize("has_pods", [True, False])
def test_node_of_another_autoscaler_is_left_alone(has_pods):
    """Its NodeClaim has a NodeClass of another kind, so it is not read; its finalizer has the same name as ours."""
    other = a_node(
        deleting=NOW,
        metadata={"labels": {"karpenter.example.com/othernodeclass": "default"}},
        spec={"providerID": "example:///i-1"},
    )
    other.metadata.labels.pop(CLASS_LABEL)
    plan = run(other, [a_pod("p", node=NODE)] if has_pods else [])
    assert (plan.chains, plan.events) == ((), ())


def test_node_that_lost_its_labels_is_drained_while_its_instance_is_ours():
    """A user removed the labels. The drain restores the NodeClass label, by which the node is ours once its instance ended."""
    bare = a_draining_node()
    bare.metadata.labels.clear()
    drain = run(bare, [a_pod("p", node=NODE)])
    (tainted,) = of_type(drain, PatchObject)
    assert CLASS_LABEL in tainted.patch["metadata"]["labels"]
    assert [e.ref.name for e in of_type(drain, EvictPod)] == ["p"]

    drained = run(bare)
    assert CLASS_LABEL in of_type(drained, PatchObject)[0].patch["metadata"]["labels"]
    assert of_type(drained, TerminateInstance)


def test_instance_of_another_cluster_is_not_terminated():
    """A node with the finalizer but another cluster's instance is only drained."""
    plan = run(a_draining_node(), cloud=CloudInstances())
    assert [a.patch for a in plan.actions] == [FREED]


def renamed(**changes):
    """Return a second Node of the same instance, whose kubelet was renamed."""
    return a_node(metadata={"name": "renamed", "uid": "uid-renamed"}, **changes)


def test_an_instance_with_two_nodes_ends_once_both_are_drained():
    """The node without pods must not terminate the instance of the other one."""
    nodes = (a_draining_node(), a_draining_node(metadata={"name": "renamed", "uid": "uid-renamed"}))
    snapshot = a_snapshot(nodes=nodes, pods=(a_pod("p", node="renamed"),))
    assert not of_type(finalize_terminating(snapshot, RUNNING, TerminationIntervals()), TerminateInstance)

    drained = finalize_terminating(a_snapshot(nodes=nodes), RUNNING, TerminationIntervals())
    assert {a.provider_id for a in of_type(drained, TerminateInstance)} == {provider_id_of("default-1")}


def test_instance_is_kept_while_its_other_node_is_running():
    """It must be deleted and drained first, too."""
    assert not run_with(a_draining_node(), renamed()).actions
    assert run_with(a_draining_node(), renamed(ready=False)).actions


def run_with(*nodes):
    return finalize_terminating(a_snapshot(nodes=nodes), RUNNING, TerminationIntervals())


def test_stopped_instance_is_not_waited_for():
    """The node is tainted and its pods evicted; then the instance is terminated, whatever protects the pods."""
    stopped = CloudInstances(listed=(an_instance(state="stopped"),))
    kept = a_pod("p", node=NODE, metadata={"annotations": {labels.DO_NOT_DISRUPT: "true"}})
    begun = run(a_node(ready=False, deleting=NOW), [kept], stopped)
    assert not of_type(begun, TerminateInstance)

    closed = {"taints": [{"key": labels.DISRUPTED_TAINT, "effect": "NoSchedule"}]}
    later = run(a_node(ready=False, deleting=NOW, spec=closed), [kept], stopped)
    assert of_type(later, TerminateInstance)


def test_drain_that_takes_long_is_checked_more_rarely():
    """Its duration counts from the deletion of the node."""
    blocked = a_pod("p", node=NODE, metadata={"annotations": {labels.DO_NOT_DISRUPT: "true"}})
    plan = run(a_draining_node(deleting=ago(hours=1)), [blocked])
    assert [w.at for w in of_type(plan, Requeue) if w.step is Step.TERMINATE] == [NOW + MAX_POLL_INTERVAL]
