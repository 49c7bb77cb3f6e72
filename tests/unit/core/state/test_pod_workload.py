"""The workload of a pod: its controller by kind, namespace, name and UID, never a guess from the pod's name."""

from __future__ import annotations

import pytest

from journeyman.core.api import labels
from journeyman.core.state.pod_workload import WorkloadKey, movable_workloads, workload_of
from tests.helpers.builders import a_pod


def owner(kind: str, name: str, uid: str = "u", *, controller: bool = True, api_version: str = "apps/v1"):
    """An owner reference."""
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": controller}


def owned(name: str, *owners, labels=None, annotations=None, **status):
    """A pod with these owners."""
    metadata = {"ownerReferences": list(owners), "labels": labels or {}, "annotations": annotations or {}}
    return a_pod(name, metadata=metadata, **status)


def of_deployment(name: str, deployment: str = "web", pod_hash: str = "6d4cf56db6", **more):
    """A pod of a Deployment's ReplicaSet."""
    replica_set = owner("ReplicaSet", f"{deployment}-{pod_hash}", f"uid-{pod_hash}")
    return owned(name, replica_set, labels={"pod-template-hash": pod_hash}, **more)


@pytest.mark.parametrize(
    ("pod", "workload"),
    [
        (of_deployment("web-6d4cf56db6-x7k2p"), ("Deployment", "web", "")),
        (of_deployment("web-5b5b5b5b5b-x7k2p", pod_hash="5b5b5b5b5b"), ("Deployment", "web", "")),
        (
            owned("r-abc", owner("ReplicaSet", "web-abc"), labels={"rollouts-pod-template-hash": "abc"}),
            ("Rollout", "web", ""),
        ),
        (owned("foo-bar", owner("ReplicaSet", "foo-bar")), ("ReplicaSet", "foo-bar", "u")),
        (
            owned("x", owner("ReplicaSet", "adopted"), labels={"pod-template-hash": "6d4cf56db6"}),
            ("ReplicaSet", "adopted", "u"),
        ),
        (owned("db-0", owner("StatefulSet", "db")), ("StatefulSet", "db", "u")),
        (owned("j-1", owner("Job", "nightly-29", api_version="batch/v1")), ("Job", "nightly-29", "u")),
        (owned("x", owner("Node", "n", controller=False), owner("Job", "j")), ("Job", "j", "u")),
        (owned("foo-bar"), ("Pod", "foo-bar", "uid-foo-bar")),
        (owned("foo-bar", owner("ConfigMap", "c", controller=False)), ("Pod", "foo-bar", "uid-foo-bar")),
    ],
    ids=[
        "deployment", "its-next-rollout", "argo-rollout", "replica-set-alone", "adopted-replica-set", "stateful-set",
        "job", "second-owner-controls", "no-owner", "no-controller",
    ],
)  # fmt: skip
def test_workload_is_the_controller_of_the_pod(pod, workload):
    """A Deployment stays one workload over all its ReplicaSets; their name less the pod-template-hash is the Deployment's."""
    kind, name, uid = workload
    assert workload_of(pod) == WorkloadKey(kind=kind, namespace="default", name=name, uid=uid)


def test_workload_with_the_same_name_but_another_uid_is_another_one():
    """A StatefulSet that was deleted and created again has not been moved yet."""
    before, after = (owned("db-0", owner("StatefulSet", "db", uid)) for uid in ("u1", "u2"))
    assert workload_of(before) != workload_of(after)
    assert str(workload_of(before)) == "StatefulSet default/db"


def test_movable_workloads_count_pods_and_take_the_lowest_limit():
    """Pods of an old and a new template may differ in the annotation; a value that is no whole number allows none."""
    key = labels.MAX_EVICTIONS_PER_DAY
    pods = [
        of_deployment("a", annotations={key: "9"}),
        of_deployment("b", pod_hash="5b5b5b5b5b", annotations={key: "4"}),
        of_deployment("c", annotations={key: "9" * 30}),
        owned("db-0", owner("StatefulSet", "db"), annotations={key: "many"}),
    ]

    web, db = movable_workloads(pods)

    assert (web.key.name, web.pods, web.limit) == ("web", 3, 4)
    assert (db.key.name, db.pods, db.limit) == ("db", 1, 0)
