"""Patches: merging, the status subresource, generations, preconditions, and immutable fields."""

import pytest

from journeyman.core.api.objects import NODE, NODECLAIM, NODEPOOL, POD
from journeyman.errors import AlreadyExistsError, ConflictError, InvalidError, KubeAPIError, NotFoundError
from journeyman.ports import Patch
from tests.contract.kube.clusters import CLASS_REF, names


def test_merge_patch_merges_maps_and_replaces_lists(cluster):
    """null removes a key."""
    name = cluster.claim("merged", labels={"a": "1", "b": "2"}, finalizers=["x.io/a", "x.io/b"])["metadata"]["name"]
    patch = {"metadata": {"labels": {"a": None, "c": "3"}, "finalizers": ["x.io/c"]}}
    after = cluster.store.patch(NODECLAIM, name, patch)
    assert after["metadata"]["labels"] == {"b": "2", "c": "3"}
    assert after["metadata"]["finalizers"] == ["x.io/c"]
    assert cluster.store.get(NODECLAIM, name).metadata.labels == {"b": "2", "c": "3"}


def test_patch_without_a_change_writes_nothing(cluster):
    """The version stays, so no watch reports a change."""
    before = cluster.claim("same", labels={"a": "1"})["metadata"]
    after = cluster.store.patch(NODECLAIM, before["name"], {"metadata": {"labels": {"a": "1"}}})
    assert after["metadata"]["resourceVersion"] == before["resourceVersion"]


def test_parallel_patches_succeed_or_fail_separately(cluster):
    """Results are in the order of the patches; a rejected patch does not affect the others."""
    claims = [cluster.claim(name)["metadata"]["name"] for name in ("one", "two", "three")]
    body = {"metadata": {"labels": {"a": "1"}}}
    stale = {"metadata": {"resourceVersion": "1", "labels": {"a": "1"}}}
    patches = [
        Patch(name=claims[0], body=body),
        Patch(name=cluster.own("missing"), body=body),
        Patch(name=claims[1], body=stale),
        Patch(name=claims[2], body=body),
    ]
    answers = cluster.store.patch_each(NODECLAIM, patches)
    assert [type(answer) for answer in answers] == [dict, NotFoundError, ConflictError, dict]
    assert [cluster.store.get(NODECLAIM, name).metadata.labels.get("a") for name in claims] == ["1", None, "1"]


def test_parallel_creations_succeed_or_fail_separately(cluster):
    """Results are in the order of the bodies; a rejected body does not affect the others."""
    first = cluster.claim("exists")["metadata"]["name"]
    spec = {"requirements": [], "nodeClassRef": CLASS_REF}
    bodies = [{"metadata": {"name": name}, "spec": spec} for name in (first, cluster.own("new"), "Invalid_Name")]
    answers = cluster.store.create_each(NODECLAIM, bodies)
    assert [type(answer) for answer in answers] == [AlreadyExistsError, dict, InvalidError]


def test_writes_of_status_and_of_the_object_are_separate(cluster):
    """A write of the object keeps its status; a write of the status keeps everything else."""
    name = cluster.own("apart")
    body = {"requirements": [], "nodeClassRef": CLASS_REF, "expireAfter": "720h"}
    cluster.store.create(NODECLAIM, {"metadata": {"name": name}, "spec": body, "status": {"nodeName": "dropped"}})
    assert cluster.store.get(NODECLAIM, name).status.node_name == ""

    cluster.store.patch(NODECLAIM, name, {"metadata": {"labels": {"a": "1"}}, "status": {"nodeName": "ignored"}})
    both = {
        "metadata": {"labels": {"a": "ignored"}},
        "spec": {"expireAfter": "1h"},
        "status": {"nodeName": "node-1", "providerID": "aws:///z/i-1"},
    }
    cluster.store.patch(NODECLAIM, name, both, subresource="status")

    read = cluster.store.get(NODECLAIM, name)
    assert read.metadata.labels == {"a": "1"}
    assert read.status.node_name == "node-1"
    assert read.status.provider_id == "aws:///z/i-1"
    assert read.spec.expire_after == "720h"


def test_node_is_created_with_its_status(cluster):
    """Unlike other kinds, because kubelets register nodes with a status."""
    name = cluster.node("registered", capacity={"cpu": "4"})
    assert cluster.store.get(NODE, name).status.capacity == {"cpu": "4"}


def test_generation_counts_changes_of_the_spec_only(cluster):
    """Changes of labels and status keep it."""
    made = cluster.pool("counted")["metadata"]
    assert made["generation"] == 1
    cluster.store.patch(NODEPOOL, made["name"], {"metadata": {"labels": {"a": "b"}}})
    cluster.store.patch(NODEPOOL, made["name"], {"status": {"nodes": 3}}, subresource="status")
    assert cluster.store.get(NODEPOOL, made["name"])["metadata"]["generation"] == 1
    cluster.store.patch(NODEPOOL, made["name"], {"spec": {"weight": 5}})
    assert cluster.store.get(NODEPOOL, made["name"])["metadata"]["generation"] == 2


def test_stale_version_is_a_conflict(cluster):
    """The write is refused and changes nothing."""
    made = cluster.claim("raced")["metadata"]
    name, version = made["name"], made["resourceVersion"]
    cluster.store.patch(NODECLAIM, name, {"metadata": {"resourceVersion": version, "labels": {"by": "first"}}})
    with pytest.raises(ConflictError) as caught:
        cluster.store.patch(NODECLAIM, name, {"metadata": {"resourceVersion": version, "labels": {"by": "second"}}})
    assert caught.value.message == (
        f'Operation cannot be fulfilled on nodeclaims.karpenter.sh "{name}": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    assert cluster.store.get(NODECLAIM, name).metadata.labels == {"by": "first"}


def test_stale_version_is_a_conflict_for_the_status(cluster):
    """Conditions are lists, so status writes have the version as a precondition, too."""
    made = cluster.claim("raced")["metadata"]
    cluster.store.patch(NODECLAIM, made["name"], {"metadata": {"labels": {"a": "b"}}})
    stale = {"metadata": {"resourceVersion": made["resourceVersion"]}, "status": {"nodeName": "late"}}
    with pytest.raises(ConflictError):
        cluster.store.patch(NODECLAIM, made["name"], stale, subresource="status")


def test_stale_version_is_a_conflict_even_without_a_change(cluster):
    """The precondition does not depend on the patch."""
    made = cluster.claim("raced", labels={"a": "1"})["metadata"]
    cluster.store.patch(NODECLAIM, made["name"], {"metadata": {"labels": {"b": "2"}}})
    same = {"metadata": {"resourceVersion": made["resourceVersion"], "labels": {"a": "1"}}}
    with pytest.raises(ConflictError):
        cluster.store.patch(NODECLAIM, made["name"], same)


def test_other_uid_is_a_conflict(cluster):
    """An object that was deleted and created again has another UID."""
    first = cluster.claim("reborn")["metadata"]
    cluster.store.delete(NODECLAIM, first["name"])
    second = cluster.claim("reborn")["metadata"]
    old, new, name = first["uid"], second["uid"], first["name"]
    assert new != old
    with pytest.raises(ConflictError) as caught:
        cluster.store.patch(NODECLAIM, name, {"metadata": {"uid": old, "labels": {"a": "b"}}})
    assert caught.value.message == (
        f'NodeClaim.karpenter.sh "{name}" is invalid: metadata.uid: Invalid value: "{old}": field is immutable'
    )
    with pytest.raises(ConflictError) as caught:
        cluster.store.delete(NODECLAIM, name, uid=old)
    assert caught.value.message == (
        f'Operation cannot be fulfilled on NodeClaim.karpenter.sh "{name}": the UID in the precondition ({old}) does not '
        f"match the UID in record ({new}). The object might have been deleted and then recreated"
    )
    cluster.store.delete(NODECLAIM, name, uid=new)
    assert name not in names(cluster.store.list(NODECLAIM))


def test_only_built_in_kinds_check_the_uid_of_a_status_patch(cluster):
    """So a status patch of a custom resource needs a version as well."""
    name = cluster.claim("deaf")["metadata"]["name"]
    meant = {"metadata": {"uid": "another"}, "status": {"nodeName": "node-1"}}
    cluster.store.patch(NODECLAIM, name, meant, subresource="status")
    assert cluster.store.get(NODECLAIM, name).status.node_name == "node-1"

    cluster.pod("heedful")
    hint = {"metadata": {"uid": "another"}, "status": {"nominatedNodeName": "node-1"}}
    with pytest.raises(ConflictError, match="field is immutable"):
        cluster.store.patch(POD, "heedful", hint, namespace=cluster.namespace, subresource="status")
    node = cluster.node()
    with pytest.raises(ConflictError, match="field is immutable"):
        cluster.store.patch(
            NODE, node, {"metadata": {"uid": "another"}, "status": {"phase": "x"}}, subresource="status"
        )


def test_status_patch_of_built_in_kinds_writes_metadata(cluster):
    """The server writes labels in a status patch of a pod or node; of custom resources it writes only the status."""
    change = {"metadata": {"labels": {"a": "1"}}, "spec": {"unschedulable": True}, "status": {"capacity": {"cpu": "1"}}}
    node = cluster.store.patch(NODE, cluster.node(), change, subresource="status")
    assert node["metadata"]["labels"] == {"a": "1"}
    assert "unschedulable" not in node.get("spec", {})
    claim = cluster.claim("apart")["metadata"]["name"]
    change = {"metadata": {"labels": {"a": "1"}}, "status": {"nodeName": "x"}}
    assert "labels" not in cluster.store.patch(NODECLAIM, claim, change, subresource="status")["metadata"]


def test_resources_of_pods_change_by_their_subresource_only(cluster):
    """Nothing else changes by it; containers are named in their order."""
    cluster.pod("resized")
    larger = {"name": "main", "image": "other", "resources": {"requests": {"cpu": "2"}}}
    where = {"namespace": cluster.namespace}
    with pytest.raises(InvalidError, match="pod updates may not change fields other than"):
        cluster.store.patch(POD, "resized", {"spec": {"containers": [{**larger, "image": "pause"}]}}, **where)

    resized = cluster.store.patch(POD, "resized", {"spec": {"containers": [larger]}}, subresource="resize", **where)

    (container,) = resized["spec"]["containers"]
    assert (container["image"], container["resources"]["requests"]) == ("pause", {"cpu": "2"})
    for other, message in (
        ([larger, larger], "spec.containers: Forbidden: containers may not be added or removed on resize"),
        ([{**larger, "name": "x"}], "Forbidden: containers may not be renamed or reordered on resize"),
    ):
        with pytest.raises(InvalidError, match=message):
            cluster.store.patch(POD, "resized", {"spec": {"containers": other}}, subresource="resize", **where)


def test_deletion_honours_the_version_precondition(cluster):
    """A deletion that was decided on an older version is refused."""
    made = cluster.claim("watched")["metadata"]
    cluster.store.patch(NODECLAIM, made["name"], {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(ConflictError, match="the ResourceVersion in the precondition"):
        cluster.store.delete(NODECLAIM, made["name"], resource_version=made["resourceVersion"])
    assert cluster.store.get(NODECLAIM, made["name"]).metadata.deletion_timestamp is None


def test_server_set_fields_cannot_be_patched(cluster):
    """The server ignores generation and creation time, and rejects a deletionTimestamp and another name."""
    made = cluster.claim("kept", labels={"a": "1"})["metadata"]
    change = {"generation": 7, "creationTimestamp": "2001-01-01T00:00:00Z", "labels": {"a": "2"}}
    after = cluster.store.patch(NODECLAIM, made["name"], {"metadata": change})["metadata"]
    for field in ("generation", "creationTimestamp", "uid"):
        assert after[field] == made[field]
    assert after["labels"] == {"a": "2"}
    deletion = {"metadata": {"deletionTimestamp": "2001-01-01T00:00:00Z"}}
    with pytest.raises(InvalidError) as caught:
        cluster.store.patch(NODECLAIM, made["name"], deletion)
    assert caught.value.message.endswith(
        'is invalid: metadata.deletionTimestamp: Invalid value: "2001-01-01T00:00:00Z": field is immutable'
    )
    with pytest.raises(KubeAPIError) as caught:
        cluster.store.patch(NODECLAIM, made["name"], {"metadata": {"name": "x"}})
    shown = f"the name of the object (x) does not match the name on the URL ({made['name']})"
    assert (caught.value.status, caught.value.message) == (400, shown)


def test_pods_node_is_set_by_a_binding_only(cluster):
    """Most fields of a pod's spec are immutable."""
    cluster.pod("fixed")
    with pytest.raises(InvalidError, match="pod updates may not change fields"):
        cluster.store.patch(POD, "fixed", {"spec": {"nodeName": "node-1"}}, namespace=cluster.namespace)
    node = cluster.node()
    cluster.bind("fixed", node)
    with pytest.raises(ConflictError, match="already assigned"):
        cluster.bind("fixed", "another")
    pod = cluster.store.get(POD, "fixed", namespace=cluster.namespace)
    assert pod.spec.node_name == node
    assert [(c.type, c.status) for c in pod.status.conditions] == [("PodScheduled", "True")]


def test_nominated_node_name_is_cleared_when_the_pod_is_bound(cluster):
    """`status.nominatedNodeName` exists only until then."""
    cluster.pod("nominated")
    assert cluster.pod_status("nominated", nominatedNodeName="node-9")["status"]["nominatedNodeName"] == "node-9"
    assert cluster.pods(field_selector="status.nominatedNodeName=node-9") == ["nominated"]
    cluster.bind("nominated", cluster.node())
    assert cluster.store.get(POD, "nominated", namespace=cluster.namespace).status.nominated_node_name == ""
