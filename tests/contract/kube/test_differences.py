"""Each listed difference between the real and the in-memory API server."""

import sys

import pytest

from journeyman.core.api.objects import NODE, NODECLAIM, NODEPOOL, POD
from journeyman.errors import InvalidError
from tests.contract.kube import clusters
from tests.contract.kube.clusters import MERGE_PATCH, Cluster, a_claim_spec
from tests.contract.kube.differences import DIFFERENCES

_SHOWN = {}


def shows(name):
    """Mark a test as the one of this difference."""

    def mark(test):
        _SHOWN[name] = test.__name__
        return test

    return mark


def is_real(cluster: Cluster) -> bool:
    return cluster.name == "kubernetes"


def test_every_listed_difference_has_a_test():
    """The list and the tests have the same names."""
    assert set(_SHOWN) == set(DIFFERENCES)
    assert all(hasattr(sys.modules[__name__], name) for name in _SHOWN.values())


@shows("images")
def test_container_without_an_image(cluster):
    """Only the real server rejects it, with 422."""
    body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}
    if is_real(cluster):
        with pytest.raises(InvalidError, match=r"spec\.containers\[0\]\.image: Required value"):
            cluster.store.create(POD, body, namespace=cluster.namespace)
    else:
        assert cluster.store.create(POD, body, namespace=cluster.namespace)["metadata"]["name"] == "p"


@shows("pod admission")
def test_admission_adds_tolerations_and_qos_class_to_a_pod(cluster):
    """Only the real server does."""
    pod = cluster.pod("p")
    assert ("tolerations" in pod["spec"]) == is_real(cluster)
    assert ("qosClass" in pod["status"]) == is_real(cluster)


@shows("not-ready taints")
def test_new_node_is_tainted_until_it_is_ready(cluster):
    """Only the real server's admission adds the taint."""
    taints = [taint.key for taint in cluster.store.get(NODE, cluster.node()).spec.taints]
    assert taints == (["node.kubernetes.io/not-ready"] if is_real(cluster) else [])


@shows("managed fields")
def test_objects_have_managed_fields(cluster):
    """Only the real server sets them."""
    made = cluster.claim("c")["metadata"]
    assert [entry["operation"] for entry in made.get("managedFields", [])] == (["Update"] if is_real(cluster) else [])


@shows("lists of built-in kinds")
def test_containers_of_two_managers_are_merged_by_name(cluster):
    """Only the real server merges them; a pod's containers cannot change anyway."""
    where = {"namespace": cluster.namespace, "force": True}
    pod = {"spec": {"containers": [{"name": "a", "image": "pause"}, {"name": "b", "image": "pause"}]}}
    cluster.store.apply(POD, "p", pod, manager="first", **where)
    one = {"spec": {"containers": [{"name": "a", "image": "busybox"}]}}
    if is_real(cluster):
        after = cluster.store.apply(POD, "p", one, manager="second", **where)
        assert [container["image"] for container in after["spec"]["containers"]] == ["busybox", "pause"]
    else:
        with pytest.raises(InvalidError, match="pod updates may not"):
            cluster.store.apply(POD, "p", one, manager="second", **where)


@pytest.fixture(params=["http", pytest.param("kubernetes", marks=pytest.mark.xdist_group("control-plane"))])
def uncontrolled(request):
    """Return a server whose controllers have not run."""
    if request.param == "http":
        with clusters.over_http() as cluster:
            yield cluster
    else:
        with clusters.kubernetes(request.getfixturevalue("control_plane")) as cluster:
            yield cluster


@shows("budgets without a status")
def test_eviction_before_its_budget_is_counted(uncontrolled):
    """The real server returns 429 with a retry after ten seconds; the in-memory server counts the pods itself."""
    uncontrolled.budget(minAvailable=1)
    uncontrolled.running_pod("p")
    path = POD.path(uncontrolled.namespace, "p", "eviction")
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "p", "namespace": uncontrolled.namespace},
    }
    answer = uncontrolled.http.request("POST", path, body)
    assert answer.status == 429
    assert answer.headers.get("Retry-After") == ("10" if is_real(uncontrolled) else None)
    message = answer.body["details"]["causes"][0]["message"]
    waits = "The disruption budget budget is still being processed by the server."
    assert message == (
        waits if is_real(uncontrolled) else "The disruption budget budget needs 1 healthy pods and has 1 currently"
    )


@shows("bookmarks")
def test_bookmark_in_a_short_watch(served):
    """Only the in-memory server sends it."""
    since = served.store.list(POD, namespace=served.namespace).resource_version
    served.pod("p")
    watch = served.store.watch(POD, resource_version=since, namespace=served.namespace, timeout_seconds=1)
    assert ("BOOKMARK" in [event.type for event in watch]) != is_real(served)


@shows("answers to deletions")
def test_deletion_returns_the_object_that_stays(served):
    """Only the real server returns it, for an object with finalizers."""
    name = served.claim("c", finalizers=["x.io/hold"])["metadata"]["name"]
    answer = served.http.request("DELETE", NODECLAIM.path("", name))
    assert (answer.status, answer.body["kind"]) == (200, "NodeClaim" if is_real(served) else "Status")


@shows("kinds of patches")
def test_strategic_merge_patch(served):
    """Only the real server supports it."""
    patch = {"metadata": {"labels": {"a": "b"}}}
    answer = served.http.request("PATCH", NODE.path("", served.node()), patch, "application/strategic-merge-patch+json")
    assert answer.status == (200 if is_real(served) else 415)


@shows("replacements")
def test_update_without_a_resource_version(served):
    """The real server rejects it for custom resources."""
    name = served.claim("c")["metadata"]["name"]
    body = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": name}, "spec": a_claim_spec()}
    assert served.http.request("PUT", NODECLAIM.path("", name), body).status == (422 if is_real(served) else 200)


@shows("what changed in a pod")
def test_immutable_pod_fields_are_shown_in_the_error(cluster):
    """The real server shows a diff."""
    cluster.pod("p")
    with pytest.raises(InvalidError, match="pod updates may not change fields") as caught:
        cluster.store.patch(POD, "p", {"spec": {"nodeName": "n"}}, namespace=cluster.namespace)
    assert ('+ "NodeName": "n"' in caught.value.message) == is_real(cluster)


@shows("JSON of another shape")
def test_label_that_is_a_number(served):
    """On the real server it makes the whole patch invalid."""
    answer = served.http.request("PATCH", NODE.path("", served.node()), {"metadata": {"labels": {"a": 7}}}, MERGE_PATCH)
    assert answer.status == 422
    fields = {cause["field"] for cause in answer.body["details"]["causes"]}
    assert fields == ({"patch"} if is_real(served) else {"metadata.labels.a"})


@shows("integers or strings")
def test_quantity_that_is_a_boolean(cluster):
    """On the real server it matches no alternative of the schema."""
    with pytest.raises(InvalidError) as caught:
        cluster.pool("p", limits={"cpu": True})
    message = (
        'spec.limits.cpu: Invalid value: "boolean": spec.limits.cpu in body must be of type integer,string: "boolean"'
    )
    assert message in caught.value.message
    assert ("must validate at least one schema (anyOf)" in caught.value.message) == is_real(cluster)


@shows("types in a status")
def test_status_field_of_the_wrong_type(cluster):
    """The real server's error does not contain the field's path."""
    name = cluster.pool("p")["metadata"]["name"]
    condition = {"status": {"nodeClassObservedGeneration": "x"}}
    with pytest.raises(InvalidError) as caught:
        cluster.store.patch(NODEPOOL, name, condition, subresource="status")
    path = "nodeClassObservedGeneration" if is_real(cluster) else "status.nodeClassObservedGeneration"
    message = f'status.nodeClassObservedGeneration: Invalid value: "string": {path} in body must be of type integer'
    assert message in caught.value.message
