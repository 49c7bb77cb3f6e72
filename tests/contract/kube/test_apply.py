"""Server-side apply: creation, field ownership, and conflicts."""

import pytest

from journeyman.core.api.objects import NODEPOOL, POD
from journeyman.errors import ConflictError, InvalidError, KubeAPIError
from tests.contract.kube.clusters import CLASS_REF, a_pod_spec

APPLY_PATCH = "application/apply-patch+yaml"


def a_pool(metadata=None, **spec):
    """Return the first manager's configuration: a NodePool's required fields."""
    template = {"spec": {"requirements": [], "nodeClassRef": CLASS_REF}}
    return {"metadata": metadata or {}, "spec": {"template": template, **spec}}


def applied(cluster, body, manager="first", name="pool", **options):
    return cluster.store.apply(NODEPOOL, cluster.own(name), body, manager=manager, **options)


def labels(pool):
    return pool["metadata"].get("labels", {})


def version(pool):
    return pool["metadata"]["resourceVersion"]


def a_condition(kind, status="True"):
    moment = "2026-03-01T12:00:00Z"
    return {"type": kind, "status": status, "reason": "Because", "message": "", "lastTransitionTime": moment}


def test_apply_creates_a_missing_object(cluster):
    """It has the request's name and all defaults; the same apply again changes nothing."""
    made = applied(cluster, a_pool(weight=5))
    assert made["metadata"]["name"] == cluster.own("pool")
    assert made["metadata"]["generation"] == 1
    assert made["spec"]["template"]["spec"]["expireAfter"] == "720h"
    assert version(applied(cluster, a_pool(weight=5))) == version(made)


def test_field_that_its_only_manager_omits_is_removed(cluster):
    """A field with another manager stays; a field with a default gets the default."""
    applied(cluster, a_pool({"labels": {"a": "1", "b": "2"}}, weight=5, limits={"cpu": "1"}))
    after = applied(cluster, a_pool({"labels": {"a": "1"}}))
    assert labels(after) == {"a": "1"}
    assert "weight" not in after["spec"]
    assert not after["spec"].get("limits")
    assert after["metadata"]["generation"] == 2


def test_two_managers_share_a_field_with_the_same_value(cluster):
    """The field stays until both have removed it."""
    first = applied(cluster, a_pool(weight=5))
    both = applied(cluster, {"spec": {"weight": 5}}, "second")
    assert version(both) != version(first)  # field ownership is part of the object
    assert version(applied(cluster, {"spec": {"weight": 5}}, "second")) == version(both)
    assert applied(cluster, a_pool())["spec"]["weight"] == 5
    assert "weight" not in applied(cluster, {"spec": {}}, "second")["spec"]


def test_different_values_of_two_managers_are_a_conflict(cluster):
    """409 names the other manager and the field; nothing is written."""
    made = applied(cluster, a_pool({"labels": {"a": "1"}}, weight=5))
    with pytest.raises(ConflictError) as caught:
        applied(cluster, {"spec": {"weight": 6}}, "second")
    assert caught.value.message == 'Apply failed with 1 conflict: conflict with "first": .spec.weight'
    with pytest.raises(ConflictError) as caught:
        applied(cluster, {"metadata": {"labels": {"a": "2"}}, "spec": {"weight": 6}}, "second")
    assert caught.value.message == (
        'Apply failed with 2 conflicts: conflicts with "first":\n- .metadata.labels.a\n- .spec.weight'
    )
    assert version(cluster.store.get(NODEPOOL, cluster.own("pool"))) == version(made)


def test_forced_apply_takes_a_field_over(cluster):
    """Afterwards the other manager gets a conflict until it omits the field."""
    applied(cluster, a_pool(weight=5))
    assert applied(cluster, {"spec": {"weight": 6}}, "second", force=True)["spec"]["weight"] == 6
    with pytest.raises(ConflictError, match=r'conflict with "second": \.spec\.weight'):
        applied(cluster, a_pool(weight=5))
    assert applied(cluster, a_pool())["spec"]["weight"] == 6


def test_patch_takes_its_fields_over(cluster):
    """An apply that conflicts with the patch names its field manager, as for any other manager."""
    made = applied(cluster, a_pool(weight=5))
    cluster.store.patch(NODEPOOL, made["metadata"]["name"], {"spec": {"weight": 9}})
    with pytest.raises(ConflictError, match=r"using karpenter\.sh/v1: \.spec\.weight"):
        applied(cluster, a_pool(weight=5))
    assert applied(cluster, a_pool(weight=9))["spec"]["weight"] == 9


def test_fields_of_a_creation_belong_to_the_creating_manager(cluster):
    """That includes defaulted fields, which the object had when it was created."""
    cluster.pool("pool", weight=5)
    with pytest.raises(ConflictError, match=r'conflict with ".*" using karpenter\.sh/v1: \.spec\.weight'):
        applied(cluster, {"spec": {"weight": 6}})
    assert applied(cluster, {"spec": {"weight": 5}})["spec"]["weight"] == 5


def test_lists_are_one_field_unless_they_are_maps_or_sets(cluster):
    """Conditions are merged by type and finalizers as a set; requirements are replaced."""
    applied(cluster, a_pool({"finalizers": ["x.io/a"]}))
    after = applied(cluster, {"metadata": {"finalizers": ["x.io/b"]}}, "second")
    assert after["metadata"]["finalizers"] == ["x.io/a", "x.io/b"]
    assert applied(cluster, a_pool())["metadata"]["finalizers"] == ["x.io/b"]
    other = {"template": {"spec": {"requirements": [{"key": "a", "operator": "Exists"}]}}}
    with pytest.raises(ConflictError, match=r"\.spec\.template\.spec\.requirements"):
        applied(cluster, {"spec": other}, "second")
    applied(cluster, {"metadata": {}}, "second")

    ready, drifted = a_condition("Ready"), a_condition("Drifted")
    applied(cluster, {"status": {"nodes": 1, "conditions": [ready, drifted]}}, subresource="status")
    third = a_condition("Third")
    after = applied(cluster, {"status": {"conditions": [third]}}, "second", subresource="status")
    assert after["status"]["conditions"] == [ready, drifted, third]
    with pytest.raises(ConflictError) as caught:
        applied(cluster, {"status": {"conditions": [a_condition("Ready", "False")]}}, "second", subresource="status")
    assert caught.value.message == (
        'Apply failed with 1 conflict: conflict with "first" with subresource "status": '
        '.status.conditions[type="Ready"].status'
    )
    after = applied(cluster, {"status": {"nodes": 1, "conditions": [ready]}}, subresource="status")
    assert after["status"]["conditions"] == [ready, third]


def test_apply_of_status_and_of_the_object_are_separate(cluster):
    """Neither changes the fields of the other."""
    applied(cluster, {**a_pool(weight=5), "status": {"nodes": 7}})
    status = {"metadata": {"labels": {"a": "1"}}, "spec": {"weight": 9}, "status": {"nodes": 3}}
    after = applied(cluster, status, subresource="status")
    assert (after["status"], after["spec"]["weight"], labels(after)) == ({"nodes": 3}, 5, {})


def test_apply_honours_resource_version_and_uid(cluster):
    """An apply with a UID does not create a missing object."""
    made = applied(cluster, a_pool(weight=5))
    with pytest.raises(ConflictError, match="the object has been modified"):
        applied(cluster, a_pool({"resourceVersion": "1"}, weight=6))
    with pytest.raises(ConflictError, match=r"metadata\.uid: Invalid value: \"another\": field is immutable"):
        applied(cluster, a_pool({"uid": "another"}, weight=6))
    current = {"resourceVersion": version(made), "uid": made["metadata"]["uid"]}
    assert applied(cluster, a_pool(current, weight=6))["spec"]["weight"] == 6
    with pytest.raises(ConflictError) as caught:
        applied(cluster, a_pool({"uid": "x"}), name="nowhere")
    assert caught.value.message == (
        f'Operation cannot be fulfilled on nodepools.karpenter.sh "{cluster.own("nowhere")}": uid mismatch: the provided '
        "object specified uid x, and no existing object was found"
    )


def test_applied_object_is_validated(cluster):
    """The server validates it by the schema; unlike in a patch, an undeclared field is an error."""
    with pytest.raises(InvalidError, match=r"spec\.weight in body should be less than or equal to 100"):
        applied(cluster, a_pool(weight=500))
    with pytest.raises(KubeAPIError, match=r"\.spec\.colour: field not declared in schema") as caught:
        applied(cluster, a_pool(colour="red"))
    assert caught.value.status == 500


def test_built_in_kinds_can_be_applied(cluster):
    """One manager creates a pod, another one labels it."""
    pod = {"metadata": {"labels": {"app": "web"}}, "spec": a_pod_spec()}
    where = {"namespace": cluster.namespace}
    cluster.store.apply(POD, "pod", pod, manager="first", **where)
    after = cluster.store.apply(POD, "pod", {"metadata": {"labels": {"tier": "front"}}}, manager="second", **where)
    assert after["metadata"]["labels"] == {"app": "web", "tier": "front"}
    assert cluster.pods(label_selector="tier=front") == ["pod"]


@pytest.mark.parametrize(
    ("body", "query", "code", "message"),
    [
        (
            {},
            {},
            422,
            'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch',
        ),
        ({"metadata": {}}, {"fieldManager": "a"}, 400, "invalid object type: /, Kind="),
        (
            {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"managedFields": [{"manager": "a"}]}},
            {"fieldManager": "a"},
            400,
            "metadata.managedFields must be nil",
        ),
        (
            {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "other"}, "spec": {}},
            {"fieldManager": "a"},
            400,
            "the name of the object (other) does not match the name on the URL ({name})",
        ),
    ],
)
def test_invalid_apply_request_is_refused(served, body, query, code, message):
    """The server refuses it before it reads the object."""
    name = served.pool("pool")["metadata"]["name"]
    answer = served.http.request("PATCH", NODEPOOL.path("", name), body, APPLY_PATCH, **query)
    assert (answer.status, answer.body["message"]) == (code, message.replace("{name}", name))


def test_apply_returns_201_for_a_creation(served):
    """A later apply returns 200; a merge patch cannot be forced."""
    path = NODEPOOL.path("", served.own("pool"))
    body = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", **a_pool({"name": served.own("pool")})}
    assert [served.http.request("PATCH", path, body, APPLY_PATCH, fieldManager="a").status for _ in range(2)] == [
        201,
        200,
    ]
    forced = served.http.request("PATCH", path, {}, "application/merge-patch+json", force="true")
    assert (forced.status, forced.body["details"]["causes"][0]["field"]) == (422, "force")
