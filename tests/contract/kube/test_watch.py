"""Watches: events, their order, and versions to continue from."""

import secrets

import pytest

from journeyman.core.api.objects import POD
from journeyman.errors import GoneError


def watch(cluster, since, resource=POD, seconds=1, **selectors):
    return cluster.store.watch(
        resource, resource_version=since, namespace=cluster.namespace, timeout_seconds=seconds, **selectors
    )


def changes(cluster, since, **selectors):
    """Return all changes since a version without bookmarks; a last pod, which is not returned, ends the watch."""
    last = f"end-{secrets.token_hex(3)}"
    cluster.pod(last)
    for event in watch(cluster, since, seconds=20, **selectors):
        if event.type != "BOOKMARK":
            if event.object.metadata.name == last:
                return
            yield event


def watched(cluster, since, **selectors):
    """Return (type, name) of all changes since a version."""
    found = [(event.type, event.object.metadata.name) for event in changes(cluster, since, **selectors)]
    return [(type_, name) for type_, name in found if not name.startswith("end-")]  # the last pod of an earlier call


def version_of(cluster, **selectors):
    return cluster.store.list(POD, namespace=cluster.namespace, **selectors).resource_version


def test_watch_continues_from_a_lists_version(cluster):
    """It has every later change in order, each with its version."""
    cluster.pod("old")
    since = version_of(cluster)
    cluster.pod("new")
    cluster.store.patch(POD, "old", {"metadata": {"labels": {"x": "y"}}}, namespace=cluster.namespace)
    cluster.store.delete(POD, "new", namespace=cluster.namespace)

    events = list(changes(cluster, since))
    assert [(event.type, event.object.metadata.name) for event in events] == [
        ("ADDED", "new"),
        ("MODIFIED", "old"),
        ("MODIFIED", "new"),  # a MODIFIED event with a deletionTimestamp, although it has no finalizer
        ("DELETED", "new"),
    ]
    versions = [int(event.resource_version) for event in events]
    assert versions == sorted(set(versions))
    assert versions[0] > int(since)
    assert [event.object.metadata.resource_version for event in events] == [event.resource_version for event in events]
    assert watched(cluster, events[0].resource_version) == [
        (event.type, event.object.metadata.name) for event in events[1:]
    ]


def test_bookmark_has_a_version_to_continue_from(cluster):
    """It comes before the watch ends, has no object, and covers changes outside of the selectors."""
    since = version_of(cluster)
    cluster.pod("one")
    events, unseen = [], {}
    for event in watch(cluster, since, label_selector="app=web", seconds=4):
        events.append(event)
        if event.type == "BOOKMARK":
            break
        unseen = cluster.pod("unseen", labels={})["metadata"]
    assert [event.type for event in events] == ["ADDED", "BOOKMARK"]
    assert events[-1].object is None
    assert int(events[-1].resource_version) >= int(unseen["resourceVersion"])
    assert watched(cluster, events[-1].resource_version) == []


def test_object_that_leaves_the_selector_is_a_deletion(cluster):
    """An object that enters the selector is ADDED, so the watch always agrees with its list."""
    cluster.pod("wanderer", labels={"app": "web"})
    cluster.pod("stranger", labels={"app": "db"})
    since = version_of(cluster)
    for name, app in (("wanderer", "db"), ("stranger", "web"), ("stranger", "web2")):
        cluster.store.patch(POD, name, {"metadata": {"labels": {"app": app}}}, namespace=cluster.namespace)
    assert watched(cluster, since, label_selector="app=web") == [
        ("DELETED", "wanderer"),
        ("ADDED", "stranger"),
        ("DELETED", "stranger"),
    ]


def test_object_that_left_the_selector_has_its_last_selected_state(cluster):
    """Its version is the one of the change that removed it."""
    cluster.pod("wanderer", labels={"app": "web", "colour": "red"})
    since = version_of(cluster)
    labels = {"metadata": {"labels": {"app": "db", "colour": "blue"}}}
    after = cluster.store.patch(POD, "wanderer", labels, namespace=cluster.namespace)["metadata"]
    (event,) = changes(cluster, since, label_selector="app=web")
    assert event.object.metadata.labels == {"app": "web", "colour": "red"}
    assert event.resource_version == after["resourceVersion"]


def test_bound_pod_leaves_the_watch_of_unassigned_pods(cluster):
    """The forwarder watches pods without a node."""
    cluster.pod("waiting")
    since = version_of(cluster, field_selector="spec.nodeName=")
    cluster.bind("waiting", cluster.node())
    cluster.pod_status("waiting", phase="Running")
    assert watched(cluster, since, field_selector="spec.nodeName=") == [("DELETED", "waiting")]


def test_watch_from_version_0_starts_with_all_objects(cluster):
    """The watch sends them as ADDED in any order, and then the changes."""
    for name in ("a", "b"):
        cluster.pod(name)
    assert sorted(watched(cluster, "0")) == [("ADDED", "a"), ("ADDED", "b")]


def test_cluster_wide_watch_covers_every_namespace(cluster):
    """An empty namespace selects all."""
    since = version_of(cluster)
    cluster.pod("here")
    for event in cluster.store.watch(POD, resource_version=since, timeout_seconds=20):
        if event.type == "ADDED" and event.object.metadata.namespace == cluster.namespace:
            break
    assert event.object.metadata.name == "here"


def test_expired_resource_version_is_refused_with_410(served):
    """A watch or a paged list from an older version gets 410; a new list succeeds."""
    for number in range(3):
        served.pod(f"pod-{number}")
    path = POD.path(served.namespace)
    page = served.http.request("GET", path, limit=1).body["metadata"]
    served.pod("later")
    served.compact()

    with pytest.raises(GoneError) as caught:
        watched(served, page["resourceVersion"])
    assert (caught.value.status, caught.value.reason) == (410, "Expired")
    assert caught.value.message.startswith(f"too old resource version: {page['resourceVersion']} (")
    answer = served.http.request("GET", path, **{"limit": 1, "continue": page["continue"]})
    assert (answer.status, answer.body["reason"]) == (410, "Expired")

    now = version_of(served)
    served.pod("latest")
    assert watched(served, now) == [("ADDED", "latest")]
