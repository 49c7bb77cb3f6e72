"""Nodes of ours whose claim is gone: no pod loses its place without a drain, and no instance stays."""

import pytest

from journeyman.core.api import labels
from journeyman.core.lifecycle.drain import MAX_POLL_INTERVAL, TerminationIntervals
from journeyman.core.lifecycle.termination import finalize_terminating
from journeyman.core.plan import DeletePod, EvictPod, PatchObject, Requeue, Step, TerminateInstance
from journeyman.core.state.instances import CloudInstances
from tests.helpers.builders import (
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
GONE = CloudInstances(gone=frozenset({provider_id_of("default-1")}))
FREED = {"metadata": {"finalizers": []}}


def run(node, pods=(), cloud=RUNNING, attachments=()):
    snapshot = a_snapshot(nodes=(node,), pods=tuple(pods), volume_attachments=tuple(attachments))
    return finalize_terminating(snapshot, cloud, TerminationIntervals())


def of_type(plan, kind):
    return [a for a in plan.actions if isinstance(a, kind)]


def test_it_is_closed_and_drained_first_and_its_instance_waits():
    """Its pods have all the time they need, as no claim says otherwise; and an Event says what goes on."""
    plan = run(a_node(deleting=NOW), [a_pod("p", node=NODE)])
    (closed,) = of_type(plan, PatchObject)
    assert closed.patch["spec"]["taints"] == [{"key": labels.DISRUPTED_TAINT, "effect": "NoSchedule"}]
    assert [e.ref.name for e in of_type(plan, EvictPod)] == ["p"]
    assert [w.step.value for w in of_type(plan, Requeue)] == ["terminate", "provision"]
    assert [e.reason for e in plan.events] == ["NodeClaimNotFound"]
    assert not of_type(plan, TerminateInstance) + of_type(plan, DeletePod)


def test_then_volumes_are_waited_for():
    """As on any other node."""
    plan = run(a_node(deleting=NOW), attachments=[an_attachment("pv", NODE)])
    assert [type(a) for a in plan.actions] == [Requeue]
    assert [e.reason for e in plan.events] == ["AwaitingVolumeDetachment"]


def test_then_its_instance_ends_unless_it_has_a_claim_after_all():
    """The finalizer stays on the node until the cloud says that the instance is gone."""
    end, look = run(a_node(deleting=NOW)).actions
    assert (end.provider_id, end.claim, end.claim_uid) == (provider_id_of("default-1"), "default-1", "uid-default-1")
    assert end.unless_claimed
    assert isinstance(look, Requeue)


@pytest.mark.karpenter("node/termination", it="should delete nodes without nodeclaims")
def test_it_is_let_go_once_its_instance_is_gone_and_counted():
    """With how long it took, and how old it became."""
    plan = run(a_node(deleting=ago(seconds=30)), cloud=GONE)
    assert [a.patch for a in of_type(plan, PatchObject)] == [FREED]
    assert {o.name: o.value for o in plan.chains[0].observations} == {
        "karpenter_nodes_terminated_total": 1,
        "karpenter_nodes_termination_duration_seconds": 30,
        "karpenter_nodes_lifetime_duration_seconds": 60,
        "operator_node_termination_duration_seconds": 30,
    }


def test_with_its_instance_gone_there_is_nothing_to_drain():
    """The kubelet does not speak, and the cloud knows of no instance."""
    plan = run(a_node(ready=False, deleting=NOW), [a_pod("p", node=NODE)], GONE)
    assert [a.patch for a in plan.actions] == [FREED]


def test_an_instance_that_is_not_of_this_cluster_is_not_ended():
    """A node of another cluster with our finalizer is only drained."""
    plan = run(a_node(deleting=NOW), cloud=CloudInstances())
    assert [a.patch for a in plan.actions] == [FREED]


def renamed(**changes):
    """A second Node of the same instance: its kubelet was renamed."""
    return a_node(metadata={"name": "renamed", "uid": "uid-renamed"}, **changes)


def test_an_instance_with_two_nodes_ends_once_both_are_drained():
    """The node without pods must not end the instance under the other node."""
    nodes = (a_node(deleting=NOW), renamed(deleting=NOW))
    snapshot = a_snapshot(nodes=nodes, pods=(a_pod("p", node="renamed"),))
    assert not of_type(finalize_terminating(snapshot, RUNNING, TerminationIntervals()), TerminateInstance)

    drained = finalize_terminating(a_snapshot(nodes=nodes), RUNNING, TerminationIntervals())
    assert {a.provider_id for a in of_type(drained, TerminateInstance)} == {provider_id_of("default-1")}


def test_instance_is_kept_while_its_other_node_is_running():
    """It is to be deleted and drained, too; its pods are known only then."""
    assert not run_with(a_node(deleting=NOW), renamed()).actions
    assert run_with(a_node(deleting=NOW), renamed(ready=False)).actions


def run_with(*nodes):
    return finalize_terminating(a_snapshot(nodes=nodes), RUNNING, TerminationIntervals())


def test_stopped_instance_is_not_waited_for():
    """It is closed and its pods are asked to go; then it ends, whatever protects pods that no longer run on it."""
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
    plan = run(a_node(deleting=ago(hours=1)), [blocked])
    assert [w.at for w in of_type(plan, Requeue) if w.step is Step.TERMINATE] == [NOW + MAX_POLL_INTERVAL]
