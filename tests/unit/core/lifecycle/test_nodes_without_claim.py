"""Managed nodes without a NodeClaim: their pods are drained, and their instances are terminated."""

import pytest

from journeyman.core.api import labels
from journeyman.core.lifecycle.drain import MAX_POLL_INTERVAL, TerminationIntervals
from journeyman.core.lifecycle.termination import finalize_terminating
from journeyman.core.plan import PatchObject, Requeue, Step, TerminateInstance
from journeyman.core.state.instances import CloudInstances
from tests.helpers.actions import done, of_type, patches, requeues
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
from tests.helpers.small_clusters import table

NODE = "node-default-1"
RUNNING = CloudInstances(listed=(an_instance(),))
GONE = CloudInstances(missing=frozenset({provider_id_of("default-1")}))
FREED = {"metadata": {"finalizers": []}}


def a_draining_node(**changes):
    """Return a deleted node whose drain has begun: the brake on lost nodes has allowed it."""
    taint = {"key": labels.DISRUPTED_TAINT, "effect": "NoSchedule"}
    return a_node(**{"deleting": NOW, "spec": {"taints": [taint]}, **changes})


def run(*nodes, pods=(), cloud=RUNNING, attachments=()):
    snapshot = a_snapshot(nodes=nodes, pods=tuple(pods), volume_attachments=tuple(attachments))
    return finalize_terminating(snapshot, cloud, TerminationIntervals())


POD = a_pod("p", node=NODE)
KEPT = a_pod("p", node=NODE, metadata={"annotations": {labels.DO_NOT_DISRUPT: "true"}})
RENAMED = {"metadata": {"name": "renamed", "uid": "uid-renamed"}}


def test_deleted_node_without_a_nodeclaim_is_held_until_its_drain_begins():
    """Kubernetes deletes the Nodes of NodeClaims that were wiped; their pods run on."""
    (held,) = a_snapshot(nodes=(a_node(deleting=NOW),), pods=(POD,)).state_nodes
    assert (held.is_held, held.is_terminating) == (True, False)
    assert not run(a_node(deleting=NOW), pods=[POD]).actions


def test_node_is_drained_before_its_instance_ends():
    """There is no terminationGracePeriod without a NodeClaim; an Event reports the drain."""
    plan = run(a_draining_node(), pods=[POD])
    assert [p["metadata"]["labels"] for p in patches(plan)] == [{labels.EXCLUDE_BALANCERS: "karpenter"}]
    assert done(plan) == "evict p"
    assert [w.step.value for w in of_type(plan, Requeue)] == ["terminate", "provision"]
    assert [e.reason for e in plan.events] == ["NodeClaimNotFound"]


def test_drained_node_waits_for_its_volumes():
    """The same holds for any other node. A long drain is checked more rarely, counted from the deletion of the node."""
    plan = run(a_draining_node(), attachments=[an_attachment("pv", NODE)])
    assert [type(a) for a in plan.actions] == [Requeue]
    assert [e.reason for e in plan.events] == ["AwaitingVolumeDetachment"]
    blocked = run(a_draining_node(deleting=ago(hours=1)), pods=[KEPT])
    assert requeues(blocked)[Step.TERMINATE] == NOW + MAX_POLL_INTERVAL


def test_instance_is_terminated_unless_a_nodeclaim_has_it():
    """The node keeps the finalizer until the cloud reports that the instance no longer exists."""
    end, look = run(a_draining_node()).actions
    assert (end.provider_id, end.claim, end.claim_uid) == (provider_id_of("default-1"), "default-1", "uid-default-1")
    assert end.unless_claimed
    assert isinstance(look, Requeue)


@table(
    "node, cloud",
    not_ready_and_its_instance_is_gone=(a_node(ready=False, deleting=NOW), GONE),
    its_instance_is_of_another_cluster=(a_draining_node(), CloudInstances()),
)
def test_node_without_an_instance_of_ours_is_finalized_and_not_drained(node, cloud):
    """A node with the finalizer but another cluster's instance must not end that."""
    pods = [POD] if cloud is GONE else []
    assert [a.patch for a in run(node, pods=pods, cloud=cloud).actions] == [FREED]


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


@pytest.mark.parametrize("has_pods", [True, False])
def test_node_of_another_autoscaler_is_left_alone(has_pods):
    """Its NodeClaim has a NodeClass of another kind, so it is not read; its finalizer has the same name as ours."""
    other = {"labels": {"karpenter.example.com/othernodeclass": "default"}}
    node = a_node(deleting=NOW, metadata=other, spec={"providerID": "example:///i-1"})
    node.metadata.labels.pop(CLASS_LABEL)
    plan = run(node, pods=[POD] if has_pods else [])
    assert (plan.chains, plan.events) == ((), ())


def test_node_that_lost_its_labels_is_drained_while_its_instance_is_ours():
    """A user removed the labels. The drain restores the NodeClass label, by which the node is ours once its instance ended."""
    bare = a_draining_node()
    bare.metadata.labels.clear()
    for pods, expected in (([POD], "evict p"), ([], "terminate i-default-1")):
        plan = run(bare, pods=pods)
        assert CLASS_LABEL in patches(plan)[0]["metadata"]["labels"]
        assert done(plan) == expected


def test_an_instance_with_two_nodes_ends_once_both_are_drained():
    """The node without pods must not terminate the instance of the other one; a running one must be deleted and drained first."""
    nodes = (a_draining_node(), a_draining_node(**RENAMED))
    assert "terminate" not in done(run(*nodes, pods=(a_pod("p", node="renamed"),)))
    assert {a.provider_id for a in of_type(run(*nodes), TerminateInstance)} == {provider_id_of("default-1")}
    assert not run(a_draining_node(), a_node(**RENAMED)).actions
    assert run(a_draining_node(), a_node(**RENAMED, ready=False)).actions


def test_stopped_instance_is_not_waited_for():
    """The node is tainted and its pods evicted; then the instance is terminated, whatever protects the pods."""
    stopped = CloudInstances(listed=(an_instance(state="stopped"),))
    begun = run(a_node(ready=False, deleting=NOW), pods=[KEPT], cloud=stopped)
    later = run(a_draining_node(ready=False), pods=[KEPT], cloud=stopped)
    assert "terminate" not in done(begun)
    assert of_type(later, TerminateInstance)
