"""Create, get and list: identity, names, selectors and pages."""

import pytest

from journeyman.core.api.objects import NAMESPACE, NODECLAIM, POD, Pod, Resource
from journeyman.errors import AlreadyExistsError, KubeAPIError, NotFoundError
from tests.contract.kube.clusters import a_claim_spec, a_pod_spec, names


def test_creation_sets_uid_time_and_generation(cluster):
    """The server ignores the client's values."""
    made = cluster.claim("made", uid="mine", generation=9, creationTimestamp="2001-01-01T00:00:00Z")["metadata"]

    read = cluster.store.get(NODECLAIM, made["name"]).metadata
    assert made["uid"] == read.uid != "mine"
    assert made["resourceVersion"] == read.resource_version
    assert read.generation == 1
    assert read.creation_timestamp is not None
    assert read.creation_timestamp.year > 2001


def test_creation_with_a_resource_version_is_refused(cluster):
    """A resourceVersion refers to a stored object."""
    with pytest.raises(KubeAPIError) as caught:
        cluster.claim("made", resourceVersion="7")
    assert caught.value.message == "resourceVersion should not be set on objects to be created"


def test_reads_decode_into_the_type_of_the_resource(cluster):
    """Kinds that are read in bulk decode into Structs, kinds that a model validates into JSON."""
    cluster.pod("typed", nodeSelector={"disk": "ssd"})
    pod = cluster.store.get(POD, "typed", namespace=cluster.namespace)
    assert isinstance(pod, Pod)
    assert pod.spec.node_selector == {"disk": "ssd"}
    assert pod.status.phase == "Pending"
    raw = cluster.store.get(NAMESPACE, "default")
    assert raw.metadata.name == "default"


def test_object_of_a_megabyte_is_read_listed_watched_and_written(cluster):
    """etcd accepts slightly more. The response arrives in many pieces."""
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


def test_second_object_of_the_same_name_is_refused(cluster):
    """AlreadyExists is another error than a conflict, although both are 409."""
    name = cluster.claim("twice")["metadata"]["name"]
    with pytest.raises(AlreadyExistsError) as caught:
        cluster.claim("twice")
    assert caught.value.message == f'nodeclaims.karpenter.sh "{name}" already exists'
    assert (caught.value.status, caught.value.reason) == (409, "AlreadyExists")


def test_generate_name_gives_unique_names_with_its_prefix(cluster):
    """Each creation gets another name."""
    body = {"metadata": {"generateName": "default-"}, "spec": a_claim_spec()}
    made = [cluster.store.create(NODECLAIM, body)["metadata"]["name"] for _ in range(20)]
    assert all(name.startswith("default-") and len(name) == 13 for name in made)
    assert len(set(made)) == 20


def test_missing_object_is_not_found(cluster):
    """get, patch, delete and evict return 404 with the server's message."""
    for attempt in (
        lambda: cluster.store.get(POD, "missing", namespace=cluster.namespace),
        lambda: cluster.store.patch(POD, "missing", {"metadata": {}}, namespace=cluster.namespace),
        lambda: cluster.store.delete(POD, "missing", namespace=cluster.namespace),
        lambda: cluster.store.evict(cluster.namespace, "missing"),
    ):
        with pytest.raises(NotFoundError) as caught:
            attempt()
        assert caught.value.message == 'pods "missing" not found'


def test_unserved_kind_is_not_found(cluster):
    """A cluster without our CRDs returns 404 with another message."""
    unknown = Resource(group="example.com", version="v1", kind="Ghost", plural="ghosts", namespaced=False, type=dict)
    for attempt in (
        lambda: cluster.store.list(unknown),
        lambda: cluster.store.get(unknown, "boo"),
        lambda: cluster.store.create(unknown, {"metadata": {"name": "boo"}}),
    ):
        with pytest.raises(NotFoundError):
            attempt()


def test_object_in_a_missing_namespace_is_refused(cluster):
    """The namespace must be created first."""
    body = {"metadata": {"name": "p"}, "spec": a_pod_spec()}
    with pytest.raises(NotFoundError, match='namespaces "nowhere" not found'):
        cluster.store.create(POD, body, namespace="nowhere")


def test_body_with_another_namespace_is_refused(cluster):
    """The server answers 400 if the body's namespace is not the request's."""
    body = {"metadata": {"name": "p", "namespace": "default"}, "spec": a_pod_spec()}
    with pytest.raises(KubeAPIError, match="does not match the namespace") as caught:
        cluster.store.create(POD, body, namespace=cluster.namespace)
    assert caught.value.status == 400


def test_list_is_sorted_and_at_one_version(cluster):
    """It is sorted by name, and its version is one from which a watch continues."""
    for name in ("b", "c", "a"):
        cluster.pod(name)
    listing = cluster.store.list(POD, namespace=cluster.namespace)
    assert names(listing) == ["a", "b", "c"]
    assert int(listing.resource_version) >= max(int(pod.metadata.resource_version) for pod in listing.items)


def test_paged_list_has_every_object_once(cluster):
    """That holds for pages of any size, which all have one version."""
    for number in range(23):
        cluster.pod(f"pod-{number:02}", labels={"app": "web" if number % 2 else "db"})
    whole = cluster.store.list(POD, namespace=cluster.namespace)
    paged = cluster.reopen(5).list(POD, namespace=cluster.namespace)
    assert paged.items == whole.items
    web = cluster.reopen(3).list(POD, namespace=cluster.namespace, label_selector="app=web")
    assert names(web) == [f"pod-{number:02}" for number in range(1, 23, 2)]


def test_page_has_a_continue_token_and_the_remaining_count(served):
    """All pages have the version of the first, whatever is written meanwhile."""
    for name in ("a", "b", "c"):
        served.pod(name)
    path = POD.path(served.namespace)
    first = served.http.request("GET", path, limit=2).body
    served.pod("between", labels={})
    assert [item["metadata"]["name"] for item in first["items"]] == ["a", "b"]
    assert (first["kind"], first["apiVersion"]) == ("PodList", "v1")
    assert first["metadata"]["remainingItemCount"] == 1

    token = first["metadata"]["continue"]
    second = served.http.request("GET", path, **{"limit": 2, "continue": token}).body
    assert [item["metadata"]["name"] for item in second["items"]] == ["c"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert "continue" not in second["metadata"]

    selected = served.http.request("GET", path, limit=1, labelSelector="app=web").body["metadata"]
    assert selected["continue"]
    assert "remainingItemCount" not in selected  # the server does not count the objects of a selector


def test_cached_list_shows_a_write_eventually(cluster):
    """A cached list may be stale; otherwise it is like any other list."""
    cluster.pod("seen")
    cluster.eventually(lambda: names(cluster.store.list(POD, namespace=cluster.namespace, cached=True)) == ["seen"])


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
def test_label_selectors(cluster, selector, expected):
    """Selectors by equality, set and existence work; an object must match all of them."""
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
def test_field_selectors_for_pods(cluster, selector, expected):
    """The selectors that the forwarder and the steps use work."""
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
def test_invalid_selector_is_a_bad_request(cluster, selectors, message):
    """The server answers 400 and names the invalid part."""
    with pytest.raises(KubeAPIError) as caught:
        cluster.store.list(POD, namespace=cluster.namespace, **selectors)
    assert caught.value.status == 400
    assert message in caught.value.message
