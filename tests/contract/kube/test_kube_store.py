"""What every KubeStore must do, whatever stands behind it: the in-memory server, it over HTTP, a kube-apiserver."""

import pytest

from journeyman.core.api.objects import (
    NAMESPACE,
    NODE,
    NODECLAIM,
    NODEPOOL,
    PDB,
    POD,
    LabelSelector,
    Pod,
    Resource,
)
from journeyman.errors import (
    AlreadyExistsError,
    ConflictError,
    GoneError,
    InvalidError,
    KubeAPIError,
    NotFoundError,
    TooManyRequestsError,
)

CLASS_REF = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}


def a_claim(name, **metadata):
    spec = {
        "requirements": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}],
        "nodeClassRef": CLASS_REF,
        "expireAfter": "720h",
    }
    return {"metadata": {"name": name, **metadata}, "spec": spec}


def names(listing):
    return [item.metadata.name for item in listing.items]


# -- create, get, list --------------------------------------------------------------------------------------------


def test_a_created_object_gets_its_identity_from_the_server(cluster):
    """UID, creation time, version and first generation are the server's; what the client says of them is ignored."""
    sent = a_claim("made", uid="mine", resourceVersion="7", generation=9, creationTimestamp="2001-01-01T00:00:00Z")
    sent["metadata"].pop("resourceVersion")  # a real server refuses it on a creation
    made = cluster.store.create(NODECLAIM, sent)["metadata"]

    read = cluster.store.get(NODECLAIM, "made").metadata
    assert made["uid"] == read.uid != "mine"
    assert made["resourceVersion"] == read.resource_version
    assert read.generation == 1
    assert read.creation_timestamp is not None
    assert read.creation_timestamp.year > 2001


def test_reads_decode_into_the_type_of_the_resource(cluster):
    """Structs for what is read in bulk, plain JSON for what is validated one by one."""
    cluster.pod("typed", nodeSelector={"disk": "ssd"})
    pod = cluster.store.get(POD, "typed", namespace=cluster.namespace)
    assert isinstance(pod, Pod)
    assert pod.spec.node_selector == {"disk": "ssd"}
    assert pod.status.phase == "Pending"
    raw = cluster.store.get(NAMESPACE, "default")
    assert raw.metadata.name == "default"


def test_a_second_object_of_the_same_name_is_refused(cluster):
    """409 AlreadyExists is told apart from a conflict."""
    cluster.store.create(NODECLAIM, a_claim("twice"))
    with pytest.raises(AlreadyExistsError) as caught:
        cluster.store.create(NODECLAIM, a_claim("twice"))
    assert caught.value.message == 'nodeclaims.karpenter.sh "twice" already exists'
    assert (caught.value.status, caught.value.reason) == (409, "AlreadyExists")


def test_generated_names_start_as_asked_and_differ(cluster):
    """`generateName` gives each creation a name of its own."""
    body = {"metadata": {"generateName": "default-"}, "spec": a_claim("x")["spec"]}
    made = [cluster.store.create(NODECLAIM, body)["metadata"]["name"] for _ in range(20)]
    assert all(name.startswith("default-") and len(name) == 13 for name in made)
    assert len(set(made)) == 20


def test_what_does_not_exist_is_not_found(cluster):
    """get, patch, delete and evict say 404 in the server's words."""
    for attempt in (
        lambda: cluster.store.get(POD, "nobody", namespace=cluster.namespace),
        lambda: cluster.store.patch(POD, "nobody", {"metadata": {}}, namespace=cluster.namespace),
        lambda: cluster.store.delete(POD, "nobody", namespace=cluster.namespace),
        lambda: cluster.store.evict(cluster.namespace, "nobody"),
    ):
        with pytest.raises(NotFoundError) as caught:
            attempt()
        assert caught.value.message == 'pods "nobody" not found'


def test_a_kind_that_is_not_served_is_not_found(cluster):
    """A cluster without our CRDs answers 404 too, in other words."""
    unknown = Resource(group="example.com", version="v1", kind="Ghost", plural="ghosts", namespaced=False, type=dict)
    with pytest.raises(NotFoundError, match="could not find the requested resource"):
        cluster.store.list(unknown)


def test_a_namespace_must_exist_first(cluster):
    """Objects cannot be created in a namespace that is not there."""
    body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "image": "pause"}]}}
    with pytest.raises(NotFoundError, match='namespaces "nowhere" not found'):
        cluster.store.create(POD, body, namespace="nowhere")


def test_a_list_is_sorted_and_at_one_version(cluster):
    """By name, with the version that a watch continues from."""
    for name in ("b", "c", "a"):
        cluster.pod(name)
    listing = cluster.store.list(POD, namespace=cluster.namespace)
    assert names(listing) == ["a", "b", "c"]
    assert int(listing.resource_version) >= max(int(pod.metadata.resource_version) for pod in listing.items)


def test_a_list_in_pages_is_the_whole_list(cluster):
    """However small the pages, all objects come once, at one version."""
    for number in range(23):
        cluster.pod(f"pod-{number:02}", labels={"app": "web" if number % 2 else "db"})
    whole = cluster.store.list(POD, namespace=cluster.namespace)
    paged = cluster.reopen(5).list(POD, namespace=cluster.namespace)
    assert paged.items == whole.items
    web = cluster.reopen(3).list(POD, namespace=cluster.namespace, label_selector="app=web")
    assert names(web) == [f"pod-{number:02}" for number in range(1, 23, 2)]


def test_cached_lists_show_what_was_just_written_in_time(cluster):
    """A cached read may be stale on a busy server; its shape is that of any other list."""
    cluster.pod("seen")
    listing = cluster.store.list(POD, namespace=cluster.namespace, cached=True)
    assert names(listing) == ["seen"]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("app=web", ["a", "b"]),
        ("app==web,tier!=front", ["b"]),
        ("app in (web, db)", ["a", "b", "c"]),
        ("app notin (web)", ["c", "d"]),
        ("tier", ["a"]),
        ("!tier,app", ["b", "c"]),
    ],
)
def test_label_selectors_choose(cluster, selector, expected):
    """Equality, sets and existence, all of which must hold."""
    cluster.pod("a", labels={"app": "web", "tier": "front"})
    cluster.pod("b", labels={"app": "web"})
    cluster.pod("c", labels={"app": "db"})
    cluster.pod("d", labels={})
    assert names(cluster.store.list(POD, namespace=cluster.namespace, label_selector=selector)) == expected


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("spec.nodeName=", ["free"]),
        ("spec.nodeName!=", ["bound", "done"]),
        ("spec.nodeName=node-1,status.phase!=Succeeded", ["bound"]),
        ("metadata.name=free", ["free"]),
        ("status.phase=Succeeded", ["done"]),
    ],
)
def test_field_selectors_choose(cluster, selector, expected):
    """The fields that the forwarder and the steps select pods by."""
    cluster.pod("free")
    cluster.pod("bound")
    cluster.pod("done")
    cluster.bind("bound", "node-1")
    cluster.bind("done", "node-1")
    cluster.store.patch(
        POD, "done", {"status": {"phase": "Succeeded"}}, namespace=cluster.namespace, subresource="status"
    )
    assert names(cluster.store.list(POD, namespace=cluster.namespace, field_selector=selector)) == expected


def test_a_selector_that_makes_no_sense_is_a_bad_request(cluster):
    """400, naming what was not understood."""
    with pytest.raises(KubeAPIError) as caught:
        cluster.store.list(POD, namespace=cluster.namespace, field_selector="spec.colour=red")
    assert caught.value.status == 400
    assert "spec.colour" in caught.value.message
    with pytest.raises(KubeAPIError) as caught:
        cluster.store.list(POD, namespace=cluster.namespace, label_selector="app in web")
    assert caught.value.status == 400


# -- patch, status, generation, preconditions -------------------------------------------------------------------


def test_a_patch_merges_maps_and_replaces_lists(cluster):
    """JSON merge patch: null removes a key, a list is replaced whole."""
    cluster.store.create(NODECLAIM, a_claim("merged", labels={"a": "1", "b": "2"}, finalizers=["x.io/a", "x.io/b"]))
    patch = {"metadata": {"labels": {"a": None, "c": "3"}, "finalizers": ["x.io/c"]}}
    after = cluster.store.patch(NODECLAIM, "merged", patch)
    assert after["metadata"]["labels"] == {"b": "2", "c": "3"}
    assert after["metadata"]["finalizers"] == ["x.io/c"]
    assert cluster.store.get(NODECLAIM, "merged").metadata.labels == {"b": "2", "c": "3"}


def test_a_patch_that_changes_nothing_writes_nothing(cluster):
    """The version stays, so nobody who watches is woken."""
    before = cluster.store.create(NODECLAIM, a_claim("same", labels={"a": "1"}))
    after = cluster.store.patch(NODECLAIM, "same", {"metadata": {"labels": {"a": "1"}}})
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def test_status_and_the_rest_are_written_apart(cluster):
    """A write of the object leaves its status alone; a write of its status leaves all else alone."""
    cluster.store.create(NODECLAIM, {**a_claim("apart"), "status": {"nodeName": "dropped"}})
    assert cluster.store.get(NODECLAIM, "apart").status.node_name == ""

    cluster.store.patch(NODECLAIM, "apart", {"metadata": {"labels": {"a": "1"}}, "status": {"nodeName": "ignored"}})
    both = {"spec": {"expireAfter": "1h"}, "status": {"nodeName": "node-1", "providerID": "aws:///z/i-1"}}
    cluster.store.patch(NODECLAIM, "apart", both, subresource="status")

    read = cluster.store.get(NODECLAIM, "apart")
    assert read.metadata.labels == {"a": "1"}
    assert read.status.node_name == "node-1"
    assert read.status.provider_id == "aws:///z/i-1"
    assert read.spec.expire_after == "720h"


def test_a_kubelet_registers_its_node_with_a_status(cluster):
    """Nodes, unlike other kinds, keep the status they are created with."""
    body = {"metadata": {"name": f"{cluster.namespace}-n"}, "status": {"capacity": {"cpu": "4"}}}
    cluster.store.create(NODE, body)
    assert cluster.store.get(NODE, body["metadata"]["name"]).status.capacity == {"cpu": "4"}


def test_generation_counts_changes_of_the_spec_only(cluster):
    """Labels and status leave it; the spec moves it on."""
    pool = {
        "metadata": {"name": "counted"},
        "spec": {"template": {"spec": {"requirements": [], "nodeClassRef": CLASS_REF}}},
    }
    assert cluster.store.create(NODEPOOL, pool)["metadata"]["generation"] == 1
    cluster.store.patch(NODEPOOL, "counted", {"metadata": {"labels": {"a": "b"}}})
    cluster.store.patch(NODEPOOL, "counted", {"status": {"nodes": 3}}, subresource="status")
    assert cluster.store.get(NODEPOOL, "counted")["metadata"]["generation"] == 1
    after = cluster.store.patch(NODEPOOL, "counted", {"spec": {"weight": 10}})
    assert after["metadata"]["generation"] == 2
    assert after["status"]["nodes"] == 3


def test_a_stale_version_is_a_conflict(cluster):
    """Of two writers that read the same version the second is refused, and nothing is overwritten."""
    version = cluster.store.create(NODECLAIM, a_claim("raced"))["metadata"]["resourceVersion"]
    cluster.store.patch(NODECLAIM, "raced", {"metadata": {"resourceVersion": version, "labels": {"by": "first"}}})
    with pytest.raises(ConflictError) as caught:
        cluster.store.patch(NODECLAIM, "raced", {"metadata": {"resourceVersion": version, "labels": {"by": "second"}}})
    assert caught.value.message == (
        'Operation cannot be fulfilled on nodeclaims.karpenter.sh "raced": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    assert cluster.store.get(NODECLAIM, "raced").metadata.labels == {"by": "first"}


def test_a_stale_version_is_a_conflict_for_the_status_too(cluster):
    """Conditions are lists, so status writes carry the version as well."""
    version = cluster.store.create(NODECLAIM, a_claim("raced"))["metadata"]["resourceVersion"]
    cluster.store.patch(NODECLAIM, "raced", {"metadata": {"labels": {"a": "b"}}})
    stale = {"metadata": {"resourceVersion": version}, "status": {"nodeName": "late"}}
    with pytest.raises(ConflictError):
        cluster.store.patch(NODECLAIM, "raced", stale, subresource="status")


def test_another_incarnation_is_a_conflict(cluster):
    """A name that was deleted and created anew is another object: the UID tells."""
    old = cluster.store.create(NODECLAIM, a_claim("reborn"))["metadata"]["uid"]
    cluster.store.delete(NODECLAIM, "reborn")
    new = cluster.store.create(NODECLAIM, a_claim("reborn"))["metadata"]["uid"]
    assert new != old
    with pytest.raises(ConflictError, match=f"UID in precondition: {old}, UID in object meta: {new}"):
        cluster.store.patch(NODECLAIM, "reborn", {"metadata": {"uid": old, "labels": {"a": "b"}}})
    with pytest.raises(ConflictError, match="UID in precondition"):
        cluster.store.delete(NODECLAIM, "reborn", uid=old)
    cluster.store.delete(NODECLAIM, "reborn", uid=new)


def test_a_deletion_may_demand_a_version(cluster):
    """A deletion decided on an older version is refused."""
    version = cluster.store.create(NODECLAIM, a_claim("watched"))["metadata"]["resourceVersion"]
    cluster.store.patch(NODECLAIM, "watched", {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(ConflictError, match="ResourceVersion in the precondition"):
        cluster.store.delete(NODECLAIM, "watched", resource_version=version)
    assert cluster.store.get(NODECLAIM, "watched").metadata.deletion_timestamp is None


def test_a_claims_spec_never_changes(cluster):
    """422 with the field and the reason."""
    cluster.store.create(NODECLAIM, a_claim("fixed"))
    with pytest.raises(InvalidError) as caught:
        cluster.store.patch(NODECLAIM, "fixed", {"spec": {"expireAfter": "1h"}})
    assert caught.value.status == 422
    assert "spec is immutable" in caught.value.message
    assert 'NodeClaim.karpenter.sh "fixed" is invalid' in caught.value.message


def test_an_object_that_does_not_validate_is_refused(cluster):
    """422, naming the object and the field, for our kinds and for pods."""
    with pytest.raises(InvalidError, match=r"spec\.nodeClassRef"):
        cluster.store.create(NODECLAIM, {"metadata": {"name": "broken"}, "spec": {"requirements": []}})
    with pytest.raises(InvalidError, match=r"metadata\.name"):
        cluster.store.create(NODECLAIM, a_claim("Not_A_Name"))
    with pytest.raises(InvalidError, match=r"spec\.containers"):
        cluster.store.create(POD, {"metadata": {"name": "empty"}, "spec": {}}, namespace=cluster.namespace)


def test_only_the_scheduler_moves_a_pod(cluster):
    """A pod's spec is fixed but for a few fields; its node comes from a binding."""
    cluster.pod("fixed")
    with pytest.raises(InvalidError, match="pod updates may not change fields"):
        cluster.store.patch(POD, "fixed", {"spec": {"nodeName": "node-1"}}, namespace=cluster.namespace)
    cluster.bind("fixed", "node-1")
    with pytest.raises(ConflictError, match="already assigned"):
        cluster.bind("fixed", "node-2")
    assert cluster.store.get(POD, "fixed", namespace=cluster.namespace).spec.node_name == "node-1"


def test_a_placement_hint_is_written_to_the_status_and_ends_with_the_binding(cluster):
    """`status.nominatedNodeName` is a hint until the pod is bound."""
    cluster.pod("hinted")
    hint = {"status": {"nominatedNodeName": "node-9"}}
    cluster.store.patch(POD, "hinted", hint, namespace=cluster.namespace, subresource="status")
    assert cluster.store.get(POD, "hinted", namespace=cluster.namespace).status.nominated_node_name == "node-9"
    cluster.bind("hinted", "node-1")
    assert cluster.store.get(POD, "hinted", namespace=cluster.namespace).status.nominated_node_name == ""


# -- deletion -----------------------------------------------------------------------------------------------------


def test_a_finalizer_holds_a_deleted_object(cluster):
    """It is marked, cannot get new finalizers, and goes with its last one; deleting it again changes nothing."""
    cluster.store.create(NODECLAIM, a_claim("held", finalizers=["karpenter.sh/termination"]))
    cluster.store.delete(NODECLAIM, "held")
    marked = cluster.store.get(NODECLAIM, "held").metadata
    assert marked.deletion_timestamp is not None
    assert marked.generation == 2
    cluster.store.delete(NODECLAIM, "held")
    assert cluster.store.get(NODECLAIM, "held").metadata == marked

    with pytest.raises(InvalidError, match="no new finalizers can be added if the object is being deleted"):
        cluster.store.patch(NODECLAIM, "held", {"metadata": {"finalizers": ["karpenter.sh/termination", "x.io/y"]}})
    cluster.store.patch(NODECLAIM, "held", {"metadata": {"finalizers": None}})
    with pytest.raises(NotFoundError):
        cluster.store.get(NODECLAIM, "held")


def test_a_running_pod_is_deleted_gracefully(cluster):
    """It stays, marked with the end of its grace period, until its kubelet removes it with grace 0."""
    cluster.running_pod("polite", terminationGracePeriodSeconds=20)
    cluster.store.delete(POD, "polite", namespace=cluster.namespace)
    first = cluster.store.get(POD, "polite", namespace=cluster.namespace).metadata.deletion_timestamp
    assert first is not None

    cluster.store.delete(POD, "polite", namespace=cluster.namespace, grace_period_seconds=5)
    second = cluster.store.get(POD, "polite", namespace=cluster.namespace).metadata.deletion_timestamp
    assert (first - second).total_seconds() == 15

    cluster.store.delete(POD, "polite", namespace=cluster.namespace, grace_period_seconds=0)
    with pytest.raises(NotFoundError):
        cluster.store.get(POD, "polite", namespace=cluster.namespace)


def test_a_pod_without_a_node_is_deleted_at_once(cluster):
    """Nobody would ever finish its graceful deletion."""
    cluster.pod("unborn", terminationGracePeriodSeconds=30)
    cluster.store.delete(POD, "unborn", namespace=cluster.namespace)
    assert names(cluster.store.list(POD, namespace=cluster.namespace)) == []


# -- eviction -----------------------------------------------------------------------------------------------------


def a_budget(cluster, name="budget", **spec):
    body = {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec}}
    cluster.store.create(PDB, body, namespace=cluster.namespace)


def test_an_eviction_without_a_budget_is_a_graceful_deletion(cluster):
    """The pod is marked, with its own grace period."""
    cluster.running_pod("free")
    cluster.store.evict(cluster.namespace, "free")
    assert cluster.store.get(POD, "free", namespace=cluster.namespace).metadata.deletion_timestamp is not None


def test_a_budget_lets_go_only_what_it_can_spare(cluster):
    """With two of three needed one pod may go; the next is refused with the budget's reason, at once."""
    a_budget(cluster, minAvailable=2)
    for name in ("a", "b", "c"):
        cluster.running_pod(name)
    cluster.store.evict(cluster.namespace, "a")
    with pytest.raises(TooManyRequestsError) as caught:
        cluster.store.evict(cluster.namespace, "b")
    assert caught.value.message == "Cannot evict pod as it would violate the pod's disruption budget."
    assert caught.value.context["cause"] == "The disruption budget budget needs 2 healthy pods and has 2 currently"
    assert cluster.store.get(POD, "b", namespace=cluster.namespace).metadata.deletion_timestamp is None
    status = cluster.store.get(PDB, "budget", namespace=cluster.namespace).status
    assert (status.disruptions_allowed, status.current_healthy, status.desired_healthy) == (0, 2, 2)


@pytest.mark.parametrize(
    ("spec", "may_go"),
    [
        ({"maxUnavailable": 1}, 1),
        ({"maxUnavailable": "30%"}, 2),  # of 4, rounded up
        ({"minAvailable": "50%"}, 2),
        ({"minAvailable": 4}, 0),
        ({"maxUnavailable": 0}, 0),
    ],
)
def test_budgets_count_in_numbers_and_percentages(cluster, spec, may_go):
    """Percentages are of the replicas wanted, and round up."""
    a_budget(cluster, **spec)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "uid-web", "controller": True}
    for name in ("a", "b", "c", "d"):
        cluster.running_pod(name, owner=owner)
    for name in ("a", "b", "c", "d")[:may_go]:
        cluster.store.evict(cluster.namespace, name)
    with pytest.raises(TooManyRequestsError):
        cluster.store.evict(cluster.namespace, "d")


def test_an_unhealthy_pod_goes_when_the_healthy_ones_suffice(cluster):
    """IfHealthyBudget lets it go only beside enough healthy ones, AlwaysAllow in any case."""
    a_budget(cluster, minAvailable=1)
    unready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}}
    cluster.running_pod("sick")
    cluster.store.patch(POD, "sick", unready, namespace=cluster.namespace, subresource="status")
    with pytest.raises(TooManyRequestsError):
        cluster.store.evict(cluster.namespace, "sick")
    cluster.running_pod("well")
    cluster.store.evict(cluster.namespace, "sick")
    with pytest.raises(TooManyRequestsError):
        cluster.store.evict(cluster.namespace, "well")

    cluster.store.patch(
        PDB, "budget", {"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}}, namespace=cluster.namespace
    )
    cluster.store.patch(POD, "well", unready, namespace=cluster.namespace, subresource="status")
    cluster.store.evict(cluster.namespace, "well")


def test_two_budgets_on_one_pod_are_an_error_of_the_server(cluster):
    """500, as kube-apiserver has it: neither a refusal nor a success."""
    a_budget(cluster, "one", minAvailable=0)
    a_budget(cluster, "two", minAvailable=0)
    cluster.running_pod("torn")
    with pytest.raises(KubeAPIError, match="more than one PodDisruptionBudget") as caught:
        cluster.store.evict(cluster.namespace, "torn")
    assert caught.value.status == 500
    assert not isinstance(caught.value, TooManyRequestsError)


def test_pending_and_finished_pods_need_no_budget(cluster):
    """What does not run cannot be missed."""
    a_budget(cluster, minAvailable=9)
    cluster.pod("pending")
    cluster.running_pod("done")
    done = {"status": {"phase": "Succeeded"}}
    cluster.store.patch(POD, "done", done, namespace=cluster.namespace, subresource="status")
    cluster.store.evict(cluster.namespace, "pending")
    cluster.store.evict(cluster.namespace, "done")
    assert names(cluster.store.list(POD, namespace=cluster.namespace)) == []


def test_an_eviction_may_demand_an_incarnation(cluster):
    """A pod of the same name that is not the one we meant stays."""
    cluster.running_pod("meant")
    with pytest.raises(ConflictError):
        cluster.store.evict(cluster.namespace, "meant", uid="another")
    assert cluster.store.get(POD, "meant", namespace=cluster.namespace).metadata.deletion_timestamp is None


def test_an_empty_selector_covers_the_namespace_and_a_missing_one_nothing(cluster):
    """policy/v1 semantics of a PodDisruptionBudget's selector."""
    cluster.store.create(PDB, {"metadata": {"name": "none"}, "spec": {"minAvailable": 9}}, namespace=cluster.namespace)
    cluster.running_pod("a")
    cluster.store.evict(cluster.namespace, "a")
    body = {"metadata": {"name": "all"}, "spec": {"minAvailable": 9, "selector": {}}}
    cluster.store.create(PDB, body, namespace=cluster.namespace)
    assert cluster.store.get(PDB, "all", namespace=cluster.namespace).spec.selector == LabelSelector()
    cluster.running_pod("b")
    with pytest.raises(TooManyRequestsError):
        cluster.store.evict(cluster.namespace, "b")


# -- watch --------------------------------------------------------------------------------------------------------


def watched(cluster, since, **selectors):
    """(type, name) of all changes since a version; bookmarks are left out."""
    events = cluster.store.watch(
        POD, resource_version=since, namespace=cluster.namespace, timeout_seconds=1, **selectors
    )
    return [(event.type, event.object.metadata.name) for event in events if event.type != "BOOKMARK"]


def test_a_watch_continues_a_list(cluster):
    """Every change after the list's version, in order, with the version each made."""
    cluster.pod("old")
    since = cluster.store.list(POD, namespace=cluster.namespace).resource_version
    cluster.pod("new")
    cluster.store.patch(POD, "old", {"metadata": {"labels": {"x": "y"}}}, namespace=cluster.namespace)
    cluster.store.delete(POD, "new", namespace=cluster.namespace)

    events = list(cluster.store.watch(POD, resource_version=since, namespace=cluster.namespace, timeout_seconds=1))
    changes = [event for event in events if event.type != "BOOKMARK"]
    assert [(event.type, event.object.metadata.name) for event in changes] == [
        ("ADDED", "new"),
        ("MODIFIED", "old"),
        ("DELETED", "new"),
    ]
    versions = [int(event.resource_version) for event in changes]
    assert versions == sorted(set(versions))
    assert versions[0] > int(since)
    assert [event.object.metadata.resource_version for event in changes] == [
        event.resource_version for event in changes
    ]


def test_a_watch_ends_with_a_bookmark_to_continue_from(cluster):
    """Its version covers everything delivered, and changes of other kinds besides."""
    since = cluster.store.list(POD, namespace=cluster.namespace).resource_version
    cluster.pod("one")
    cluster.store.create(NODECLAIM, a_claim("other-kind"))
    events = list(cluster.store.watch(POD, resource_version=since, namespace=cluster.namespace, timeout_seconds=1))
    assert [event.type for event in events] == ["ADDED", "BOOKMARK"]
    assert events[-1].object is None
    assert int(events[-1].resource_version) > int(events[0].resource_version)
    assert watched(cluster, events[-1].resource_version) == []


def test_leaving_a_selector_looks_like_a_deletion(cluster):
    """And entering it like a creation: a watcher's view is always that of its list."""
    cluster.pod("wanderer", labels={"app": "web"})
    cluster.pod("stranger", labels={"app": "db"})
    since = cluster.store.list(POD, namespace=cluster.namespace).resource_version
    for name, app in (("wanderer", "db"), ("stranger", "web"), ("stranger", "web2")):
        cluster.store.patch(POD, name, {"metadata": {"labels": {"app": app}}}, namespace=cluster.namespace)
    assert watched(cluster, since, label_selector="app=web") == [
        ("DELETED", "wanderer"),
        ("ADDED", "stranger"),
        ("DELETED", "stranger"),
    ]


def test_binding_takes_a_pod_out_of_the_unassigned_ones(cluster):
    """What the forwarder watches: pods without a node."""
    cluster.pod("waiting")
    since = cluster.store.list(POD, namespace=cluster.namespace, field_selector="spec.nodeName=").resource_version
    cluster.bind("waiting", "node-1")
    cluster.store.patch(
        POD, "waiting", {"status": {"phase": "Running"}}, namespace=cluster.namespace, subresource="status"
    )
    assert watched(cluster, since, field_selector="spec.nodeName=") == [("DELETED", "waiting")]


def test_a_version_out_of_history_is_gone(cluster):
    """410: list again."""
    since = cluster.store.list(POD, namespace=cluster.namespace).resource_version
    cluster.pod("later")
    cluster.compact()
    with pytest.raises(GoneError) as caught:
        watched(cluster, since)
    assert caught.value.status == 410
    now = cluster.store.list(POD, namespace=cluster.namespace).resource_version
    assert watched(cluster, now) == []
