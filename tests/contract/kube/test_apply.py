"""Server-side apply: create or update, who owns a field, and what happens when two disagree."""

import pytest

from journeyman.core.api.objects import NODEPOOL, POD
from journeyman.errors import ConflictError, InvalidError, KubeAPIError
from tests.contract.kube.clusters import CLASS_REF, a_pod_spec

APPLY_PATCH = "application/apply-patch+yaml"


def a_pool(metadata=None, **spec):
    """What a first manager says: all that a pool needs."""
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


def test_an_apply_creates_what_is_not_there(cluster):
    """With the name of the request, defaults and all; the same again changes nothing."""
    made = applied(cluster, a_pool(weight=5))
    assert made["metadata"]["name"] == cluster.own("pool")
    assert made["metadata"]["generation"] == 1
    assert made["spec"]["template"]["spec"]["expireAfter"] == "720h"
    assert version(applied(cluster, a_pool(weight=5))) == version(made)


def test_what_a_manager_says_no_longer_is_removed(cluster):
    """Only if it was theirs alone; a default comes back by itself."""
    applied(cluster, a_pool({"labels": {"a": "1", "b": "2"}}, weight=5, limits={"cpu": "1"}))
    after = applied(cluster, a_pool({"labels": {"a": "1"}}))
    assert labels(after) == {"a": "1"}
    assert "weight" not in after["spec"]
    assert not after["spec"].get("limits")
    assert after["metadata"]["generation"] == 2


def test_two_managers_may_say_the_same(cluster):
    """Then the field is both's, and stays until both have given it up."""
    first = applied(cluster, a_pool(weight=5))
    both = applied(cluster, {"spec": {"weight": 5}}, "second")
    assert version(both) != version(first)  # who owns what is part of the object
    assert version(applied(cluster, {"spec": {"weight": 5}}, "second")) == version(both)
    assert applied(cluster, a_pool())["spec"]["weight"] == 5
    assert "weight" not in applied(cluster, {"spec": {}}, "second")["spec"]


def test_managers_that_disagree_are_in_conflict(cluster):
    """409 with whom and where; nothing is written."""
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


def test_force_takes_a_field_over(cluster):
    """From then on the other is in conflict, until it stops to say anything of it."""
    applied(cluster, a_pool(weight=5))
    assert applied(cluster, {"spec": {"weight": 6}}, "second", force=True)["spec"]["weight"] == 6
    with pytest.raises(ConflictError, match=r'conflict with "second": \.spec\.weight'):
        applied(cluster, a_pool(weight=5))
    assert applied(cluster, a_pool())["spec"]["weight"] == 6


def test_a_patch_takes_its_fields_over_without_asking(cluster):
    """An apply that conflicts with the patch names its field manager, as for any other manager."""
    made = applied(cluster, a_pool(weight=5))
    cluster.store.patch(NODEPOOL, made["metadata"]["name"], {"spec": {"weight": 9}})
    with pytest.raises(ConflictError, match=r"using karpenter\.sh/v1: \.spec\.weight"):
        applied(cluster, a_pool(weight=5))
    assert applied(cluster, a_pool(weight=9))["spec"]["weight"] == 9


def test_what_was_created_otherwise_belongs_to_its_creator(cluster):
    """Defaults too: they were in the object when it was created."""
    cluster.pool("pool", weight=5)
    with pytest.raises(ConflictError, match=r'conflict with ".*" using karpenter\.sh/v1: \.spec\.weight'):
        applied(cluster, {"spec": {"weight": 6}})
    assert applied(cluster, {"spec": {"weight": 5}})["spec"]["weight"] == 5


def test_lists_are_one_field_unless_they_are_maps_or_sets(cluster):
    """Conditions of two managers live side by side, requirements do not; finalizers are a set."""
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


def test_status_and_the_rest_are_applied_apart(cluster):
    """Each leaves the other alone."""
    applied(cluster, {**a_pool(weight=5), "status": {"nodes": 7}})
    status = {"metadata": {"labels": {"a": "1"}}, "spec": {"weight": 9}, "status": {"nodes": 3}}
    after = applied(cluster, status, subresource="status")
    assert (after["status"], after["spec"]["weight"], labels(after)) == ({"nodes": 3}, 5, {})


def test_an_apply_has_preconditions_as_a_patch_has(cluster):
    """A version, and a UID, which moreover says that the object must be there."""
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


def test_what_is_applied_is_checked(cluster):
    """By the schema, and more strictly than a patch: a field that is not declared is an error."""
    with pytest.raises(InvalidError, match=r"spec\.weight in body should be less than or equal to 100"):
        applied(cluster, a_pool(weight=500))
    with pytest.raises(KubeAPIError, match=r"\.spec\.colour: field not declared in schema") as caught:
        applied(cluster, a_pool(colour="red"))
    assert caught.value.status == 500


def test_built_in_kinds_are_applied_too(cluster):
    """A pod is created, then labelled by another manager."""
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
            {
                "apiVersion": "karpenter.sh/v1",
                "kind": "NodePool",
                "metadata": {"managedFields": [{"manager": "a"}]},
            },
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
def test_an_apply_that_makes_no_sense(served, body, query, code, message):
    """Refused before anything is looked at."""
    name = served.pool("pool")["metadata"]["name"]
    answer = served.http.ask("PATCH", NODEPOOL.path("", name), body, APPLY_PATCH, **query)
    assert (answer.status, answer.body["message"]) == (code, message.replace("{name}", name))


def test_an_apply_that_creates_says_so(served):
    """201, and 200 from then on; a merge patch cannot be forced."""
    path = NODEPOOL.path("", served.own("pool"))
    body = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", **a_pool({"name": served.own("pool")})}
    assert [served.http.ask("PATCH", path, body, APPLY_PATCH, fieldManager="a").status for _ in range(2)] == [201, 200]
    forced = served.http.ask("PATCH", path, {}, "application/merge-patch+json", force="true")
    assert (forced.status, forced.body["details"]["causes"][0]["field"]) == (422, "force")
