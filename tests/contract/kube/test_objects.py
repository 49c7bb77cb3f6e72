"""Create, get and list: identity, names, selectors and pages."""

import pytest

from journeyman.core.api.objects import NAMESPACE, NODECLAIM, POD, Pod, Resource
from journeyman.errors import AlreadyExistsError, KubeAPIError, NotFoundError
from tests.contract.kube.clusters import a_claim_spec, a_pod_spec, names


def test_a_created_object_gets_its_identity_from_the_server(cluster):
    """UID, creation time and first generation are the server's; what the client says of them is ignored."""
    made = cluster.claim("made", uid="mine", generation=9, creationTimestamp="2001-01-01T00:00:00Z")["metadata"]

    read = cluster.store.get(NODECLAIM, made["name"]).metadata
    assert made["uid"] == read.uid != "mine"
    assert made["resourceVersion"] == read.resource_version
    assert read.generation == 1
    assert read.creation_timestamp is not None
    assert read.creation_timestamp.year > 2001


def test_a_creation_cannot_have_a_version(cluster):
    """A resourceVersion names what is stored; there is nothing yet."""
    with pytest.raises(KubeAPIError) as caught:
        cluster.claim("made", resourceVersion="7")
    assert caught.value.message == "resourceVersion should not be set on objects to be created"


def test_reads_decode_into_the_type_of_the_resource(cluster):
    """Structs for what is read in bulk, plain JSON for what is validated one by one."""
    cluster.pod("typed", nodeSelector={"disk": "ssd"})
    pod = cluster.store.get(POD, "typed", namespace=cluster.namespace)
    assert isinstance(pod, Pod)
    assert pod.spec.node_selector == {"disk": "ssd"}
    assert pod.status.phase == "Pending"
    raw = cluster.store.get(NAMESPACE, "default")
    assert raw.metadata.name == "default"


def test_an_object_of_a_megabyte_is_read_listed_watched_and_written(cluster):
    """etcd takes a little more; it comes in many pieces, most of which the client skips."""
    main = {"name": "main", "image": "pause", "args": ["x" * 2**20], "resources": {"requests": {"cpu": "3"}}}
    cluster.pod("large", containers=[main])
    cluster.pod("small")

    listing = cluster.store.list(POD, namespace=cluster.namespace)
    cluster.store.patch(POD, "large", {"metadata": {"labels": {"seen": "yes"}}}, namespace=cluster.namespace)
    events = cluster.store.watch(
        POD, resource_version=listing.resource_version, namespace=cluster.namespace, timeout_seconds=1
    )
    changed = next(event for event in events if event.object is not None)

    assert names(listing) == ["large", "small"]
    assert (changed.type, changed.object.metadata.labels["seen"]) == ("MODIFIED", "yes")
    for pod in (listing.items[0], changed.object, cluster.store.get(POD, "large", namespace=cluster.namespace)):
        assert [container.resources.requests for container in pod.spec.containers] == [{"cpu": "3"}]


def test_a_second_object_of_the_same_name_is_refused(cluster):
    """409 AlreadyExists and a conflict are different errors."""
    name = cluster.claim("twice")["metadata"]["name"]
    with pytest.raises(AlreadyExistsError) as caught:
        cluster.claim("twice")
    assert caught.value.message == f'nodeclaims.karpenter.sh "{name}" already exists'
    assert (caught.value.status, caught.value.reason) == (409, "AlreadyExists")


def test_generated_names_start_as_asked_and_differ(cluster):
    """`generateName` gives each creation a name of its own."""
    body = {"metadata": {"generateName": "default-"}, "spec": a_claim_spec()}
    made = [cluster.store.create(NODECLAIM, body)["metadata"]["name"] for _ in range(20)]
    assert all(name.startswith("default-") and len(name) == 13 for name in made)
    assert len(set(made)) == 20


def test_what_does_not_exist_is_not_found(cluster):
    """get, patch, delete and evict say 404 in the server's words."""
    for attempt in (
        lambda: cluster.store.get(POD, "missing", namespace=cluster.namespace),
        lambda: cluster.store.patch(POD, "missing", {"metadata": {}}, namespace=cluster.namespace),
        lambda: cluster.store.delete(POD, "missing", namespace=cluster.namespace),
        lambda: cluster.store.evict(cluster.namespace, "missing"),
    ):
        with pytest.raises(NotFoundError) as caught:
            attempt()
        assert caught.value.message == 'pods "missing" not found'


def test_a_kind_that_is_not_served_is_not_found(cluster):
    """A cluster without our CRDs answers 404 too, in other words."""
    unknown = Resource(group="example.com", version="v1", kind="Ghost", plural="ghosts", namespaced=False, type=dict)
    for attempt in (
        lambda: cluster.store.list(unknown),
        lambda: cluster.store.get(unknown, "boo"),
        lambda: cluster.store.create(unknown, {"metadata": {"name": "boo"}}),
    ):
        with pytest.raises(NotFoundError):
            attempt()


def test_a_namespace_must_exist_first(cluster):
    """Objects cannot be created in a namespace that is not there."""
    body = {"metadata": {"name": "p"}, "spec": a_pod_spec()}
    with pytest.raises(NotFoundError, match='namespaces "nowhere" not found'):
        cluster.store.create(POD, body, namespace="nowhere")


def test_an_object_belongs_to_the_namespace_it_is_sent_to(cluster):
    """400 if it says otherwise itself."""
    body = {"metadata": {"name": "p", "namespace": "default"}, "spec": a_pod_spec()}
    with pytest.raises(KubeAPIError, match="does not match the namespace") as caught:
        cluster.store.create(POD, body, namespace=cluster.namespace)
    assert caught.value.status == 400


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


def test_a_page_says_where_the_next_begins_and_how_much_is_left(served):
    """All pages show the version of the first, whatever is written in between."""
    for name in ("a", "b", "c"):
        served.pod(name)
    path = POD.path(served.namespace)
    first = served.http.ask("GET", path, limit=2).body
    served.pod("between", labels={})
    assert [item["metadata"]["name"] for item in first["items"]] == ["a", "b"]
    assert (first["kind"], first["apiVersion"]) == ("PodList", "v1")
    assert first["metadata"]["remainingItemCount"] == 1

    token = first["metadata"]["continue"]
    second = served.http.ask("GET", path, **{"limit": 2, "continue": token}).body
    assert [item["metadata"]["name"] for item in second["items"]] == ["c"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert "continue" not in second["metadata"]

    selected = served.http.ask("GET", path, limit=1, labelSelector="app=web").body["metadata"]
    assert selected["continue"]
    assert "remainingItemCount" not in selected  # the server does not count behind a selector


def test_cached_lists_show_what_was_just_written_in_time(cluster):
    """A cached read may be stale on a busy server; its shape is that of any other list."""
    cluster.pod("seen")
    cluster.eventually(
        lambda: names(cluster.store.list(POD, namespace=cluster.namespace, cached=True)) == ["seen"],
    )


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("app=web", ["a", "b"]),
        ("app==web,tier!=front", ["b"]),
        ("app in (web, db)", ["a", "b", "c"]),
        ("app notin (web)", ["c", "d"]),
        ("tier", ["a"]),
        ("!tier,app", ["b", "c"]),
        ("app=", []),
        ("size>3", ["d"]),
        ("app in (web),app in (db)", []),
    ],
)
def test_label_selectors_choose(cluster, selector, expected):
    """Equality, sets and existence, all of which must hold."""
    cluster.pod("a", labels={"app": "web", "tier": "front"})
    cluster.pod("b", labels={"app": "web"})
    cluster.pod("c", labels={"app": "db", "size": "3"})
    cluster.pod("d", labels={"size": "4"})
    assert cluster.pods(label_selector=selector) == expected


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("spec.nodeName=", ["free"]),
        ("spec.nodeName!=", ["bound", "done"]),
        ("spec.nodeName={node},status.phase!=Succeeded", ["bound"]),
        ("metadata.name=free", ["free"]),
        ("status.phase=Succeeded", ["done"]),
        ("spec.schedulerName=default-scheduler,status.nominatedNodeName=", ["bound", "done", "free"]),
    ],
)
def test_field_selectors_choose(cluster, selector, expected):
    """The fields that the forwarder and the steps select pods by."""
    cluster.pod("free")
    for name in ("bound", "done"):
        cluster.pod(name)
        cluster.bind(name, cluster.node())
    cluster.pod_status("done", phase="Succeeded")
    assert cluster.pods(field_selector=selector.format(node=cluster.node())) == expected


@pytest.mark.parametrize(
    ("selectors", "message"),
    [
        ({"field_selector": "spec.colour=red"}, "spec.colour"),
        ({"field_selector": "spec.nodeName"}, "invalid selector"),
        ({"label_selector": "app in web"}, "unable to parse requirement"),
        ({"label_selector": "app=a b"}, "found 'b'"),
        ({"label_selector": "size>many"}, "the value must be an integer"),
    ],
)
def test_a_selector_that_makes_no_sense_is_a_bad_request(cluster, selectors, message):
    """400, naming what was not understood."""
    with pytest.raises(KubeAPIError) as caught:
        cluster.store.list(POD, namespace=cluster.namespace, **selectors)
    assert caught.value.status == 400
    assert message in caught.value.message
