"""Changes of the specs of NodePools and NodeClasses send a notification."""

import msgspec

from infra.forwarder.notifications import NotificationCause
from infra.forwarder.trackers import SpecTracker
from infra.forwarder.watched_objects import NODE_CLASSES, NodePoolResource


def a_pool(uid, *, generation=1, version="7", deleting=False):
    metadata = {"name": uid, "uid": uid, "generation": generation, "resourceVersion": version}
    if deleting:
        metadata["deletionTimestamp"] = "2026-11-21T09:00:00Z"
    pool, read = NodePoolResource().decode_object(msgspec.json.encode({"metadata": metadata}))
    assert read == version
    return pool


def after_list(tracker, *objects):
    """Return the tracker after a list, and the names of its notifications."""
    fresh = tracker.fresh()
    return fresh, [found.name for found in (*fresh.add_page(objects, tracker), *fresh.finish_list(tracker, "8"))]


def causes(tracker, *changes):
    return [found.cause if (found := tracker.apply(*change)) else None for change in changes]


def test_nodepool_notifies_of_its_spec_and_not_of_its_status():
    """The generation counts changes of the spec; writes of the steps do not change it."""
    pools, notified = after_list(SpecTracker(NotificationCause.POOL_CHANGED), a_pool("a"))
    assert notified == []

    changed, status = a_pool("a", generation=2), a_pool("a", generation=2, version="9")
    assert causes(pools, ("MODIFIED", a_pool("a", version="8")), ("MODIFIED", changed), ("MODIFIED", status)) == [
        None, NotificationCause.POOL_CHANGED, None,
    ]  # fmt: skip
    deleting = a_pool("a", generation=2, deleting=True)
    assert causes(pools, ("MODIFIED", deleting), ("DELETED", deleting), ("ADDED", a_pool("b"))) == [
        NotificationCause.POOL_CHANGED, None, NotificationCause.POOL_CHANGED,
    ]  # fmt: skip


def test_change_during_an_outage_notifies_after_the_list():
    """A deleted object does not, because its NodeClaims do."""
    pools, _ = after_list(SpecTracker(NotificationCause.CLASS_CHANGED), a_pool("a"), a_pool("b"), a_pool("c"))

    assert after_list(pools, a_pool("b", generation=2), a_pool("c"), a_pool("d"))[1] == ["b", "d"]


def test_list_without_nodepools_or_nodeclasses_is_empty():
    """kube-apiserver writes `null` for an empty list of metadata."""
    empty = b'{"kind":"PartialObjectMetadataList","metadata":{"resourceVersion":"8"},"items":null}'

    assert [list(resource.decode_page(empty).objects) for resource in (NodePoolResource(), *NODE_CLASSES["aws"])] == [
        [],
        [],
    ]
