"""Deletion: finalizers, grace periods, owners and namespaces."""

from datetime import timedelta

import pytest

from journeyman.core.api.objects import LEASE, NAMESPACE, NODE, NODECLAIM, POD
from journeyman.errors import ForbiddenError, InvalidError, NotFoundError
from journeyman_simulator.workload_controllers import REPLICASET
from tests.contract.kube.clusters import a_pod_spec


def is_gone(cluster, resource, name, **where):
    try:
        cluster.store.get(resource, name, **where)
    except NotFoundError:
        return True
    return False


def test_finalizer_keeps_a_deleted_object(cluster):
    """It gets a deletionTimestamp and no new finalizers, and is removed with its last one."""
    name = cluster.claim("held", finalizers=["karpenter.sh/termination"])["metadata"]["name"]
    cluster.store.delete(NODECLAIM, name)
    marked = cluster.store.get(NODECLAIM, name).metadata
    assert marked.deletion_timestamp is not None
    assert marked.generation == 2
    cluster.store.delete(NODECLAIM, name)
    assert cluster.store.get(NODECLAIM, name).metadata == marked

    with pytest.raises(InvalidError, match="no new finalizers can be added if the object is being deleted"):
        cluster.store.patch(NODECLAIM, name, {"metadata": {"finalizers": ["karpenter.sh/termination", "x.io/y"]}})
    cluster.store.patch(NODECLAIM, name, {"metadata": {"finalizers": None}})
    assert is_gone(cluster, NODECLAIM, name)


def test_running_pod_is_deleted_gracefully(cluster):
    """It stays, with the end of its grace period, until its kubelet deletes it with grace period 0."""
    cluster.running_pod("polite", terminationGracePeriodSeconds=20)
    cluster.store.delete(POD, "polite", namespace=cluster.namespace)
    first = cluster.store.get(POD, "polite", namespace=cluster.namespace).metadata.deletion_timestamp
    assert first is not None

    cluster.store.delete(POD, "polite", namespace=cluster.namespace, grace_period_seconds=5)
    second = cluster.store.get(POD, "polite", namespace=cluster.namespace).metadata.deletion_timestamp
    assert first - second in {timedelta(seconds=14), timedelta(seconds=15), timedelta(seconds=16)}  # the clock moves

    cluster.store.delete(POD, "polite", namespace=cluster.namespace, grace_period_seconds=60)
    assert cluster.store.get(POD, "polite", namespace=cluster.namespace).metadata.deletion_timestamp == second

    cluster.store.delete(POD, "polite", namespace=cluster.namespace, grace_period_seconds=0)
    assert is_gone(cluster, POD, "polite", namespace=cluster.namespace)


def test_pod_without_a_node_is_deleted_at_once(cluster):
    """No kubelet would finish a graceful deletion. The same holds for a completed pod."""
    cluster.pod("unborn", terminationGracePeriodSeconds=30)
    cluster.running_pod("done")
    cluster.pod_status("done", phase="Succeeded")
    for name in ("unborn", "done"):
        cluster.store.delete(POD, name, namespace=cluster.namespace)
    assert cluster.pods() == []


def test_terminating_pod_cannot_be_bound(cluster):
    """The same holds while a finalizer keeps it."""
    body = {"metadata": {"name": "doomed", "finalizers": ["x.io/hold"]}, "spec": a_pod_spec()}
    cluster.store.create(POD, body, namespace=cluster.namespace)
    cluster.store.delete(POD, "doomed", namespace=cluster.namespace)
    with pytest.raises(Exception, match="is being deleted, cannot be assigned to a host"):
        cluster.bind("doomed", cluster.node())
    cluster.store.patch(POD, "doomed", {"metadata": {"finalizers": None}}, namespace=cluster.namespace)
    assert cluster.pods() == []


def test_node_without_finalizers_is_deleted_at_once(cluster):
    """With a finalizer it stays, like any other object."""
    name = cluster.node("short-lived")
    cluster.store.delete(NODE, name)
    assert is_gone(cluster, NODE, name)


def test_owned_objects_are_garbage_collected(cluster):
    """The garbage collector deletes them in the background after their owner, for example a node's Lease."""
    node = cluster.store.get(NODE, cluster.node()).metadata
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
    for name, metadata in (("owned", {"ownerReferences": [owner]}), ("free", {})):
        body = {"metadata": {"name": name, **metadata}, "spec": {"holderIdentity": node.name}}
        cluster.store.create(LEASE, body, namespace=cluster.namespace)
    cluster.store.delete(NODE, node.name)
    cluster.eventually(lambda: is_gone(cluster, LEASE, "owned", namespace=cluster.namespace))
    assert not is_gone(cluster, LEASE, "free", namespace=cluster.namespace)


def test_replicaset_creates_its_pods_and_deletes_them_with_it(cluster):
    """It creates `replicas` pods and replaces deleted ones."""
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": a_pod_spec()}
    body = {"metadata": {"name": "web"}, "spec": {**spec, "template": template}}
    cluster.store.create(REPLICASET, body, namespace=cluster.namespace)
    cluster.eventually(lambda: len(cluster.pods()) == 2)
    first = cluster.store.list(POD, namespace=cluster.namespace).items[0]
    assert [(o.kind, o.name, o.controller) for o in first.metadata.owner_references] == [("ReplicaSet", "web", True)]

    cluster.store.delete(POD, first.metadata.name, namespace=cluster.namespace)
    cluster.eventually(lambda: len(cluster.pods()) == 2 and first.metadata.name not in cluster.pods())
    cluster.store.patch(REPLICASET, "web", {"spec": {"replicas": 3}}, namespace=cluster.namespace)
    cluster.eventually(lambda: len(cluster.pods()) == 3)
    cluster.store.delete(REPLICASET, "web", namespace=cluster.namespace)
    cluster.eventually(lambda: cluster.pods() == [])


def test_deleted_namespace_deletes_its_objects(cluster):
    """No object can be created in it meanwhile."""
    cluster.pod("inside")
    cluster.store.delete(NAMESPACE, cluster.namespace)
    marked = cluster.store.get(NAMESPACE, cluster.namespace).metadata
    assert marked.deletion_timestamp is not None
    assert marked.labels["kubernetes.io/metadata.name"] == cluster.namespace
    with pytest.raises(ForbiddenError) as caught:
        cluster.pod("late")
    assert caught.value.message == (
        f'pods "late" is forbidden: unable to create new content in namespace {cluster.namespace} because it is being '
        "terminated"
    )
    cluster.eventually(lambda: is_gone(cluster, NAMESPACE, cluster.namespace))
    assert cluster.pods() == []
