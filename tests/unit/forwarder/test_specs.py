"""When a NodePool or a NodeClass is worth telling: when somebody asks for something else."""

import msgspec

from infra.forwarder.news import Cause
from infra.forwarder.resources import NodeClasses, NodePools
from infra.forwarder.specs import Specs


def a_pool(uid, *, generation=1, version="7", leaving=False):
    metadata = {"name": uid, "uid": uid, "generation": generation, "resourceVersion": version}
    if leaving:
        metadata["deletionTimestamp"] = "2026-11-21T09:00:00Z"
    pool, read = NodePools().changed(msgspec.json.encode({"metadata": metadata}))
    assert read == version
    return pool


def after_list(tracker, *objects):
    """The tracker after a list, and what it told, by name."""
    fresh = tracker.fresh()
    return fresh, [news.name for news in (*fresh.take_page(objects, tracker), *fresh.ended(tracker, "8"))]


def causes(tracker, *changes):
    return [news.cause if (news := tracker.apply(*change)) else None for change in changes]


def test_a_pool_is_news_when_it_is_made_changed_or_deleted_and_not_when_its_status_is_written():
    """The generation counts changes of the spec; what steps write leaves it alone."""
    pools, told = after_list(Specs(Cause.POOL_CHANGED), a_pool("a"))
    assert told == []

    changed, status = a_pool("a", generation=2), a_pool("a", generation=2, version="9")
    assert causes(pools, ("MODIFIED", a_pool("a", version="8")), ("MODIFIED", changed), ("MODIFIED", status)) == [
        None, Cause.POOL_CHANGED, None,
    ]  # fmt: skip
    leaving = a_pool("a", generation=2, leaving=True)
    assert causes(pools, ("MODIFIED", leaving), ("DELETED", leaving), ("ADDED", a_pool("b"))) == [
        Cause.POOL_CHANGED, None, Cause.POOL_CHANGED,
    ]  # fmt: skip


def test_a_change_during_an_outage_is_found_by_comparing():
    """One that is gone is told by its claims."""
    pools, _ = after_list(Specs(Cause.CLASS_CHANGED), a_pool("a"), a_pool("b"), a_pool("c"))

    assert after_list(pools, a_pool("b", generation=2), a_pool("c"), a_pool("d"))[1] == ["b", "d"]


def test_a_cluster_without_any_is_an_empty_list():
    """kube-apiserver writes `null` where a list of metadata alone has no items."""
    empty = b'{"kind":"PartialObjectMetadataList","metadata":{"resourceVersion":"8"},"items":null}'

    assert [list(resource.page(empty).objects) for resource in (NodePools(), NodeClasses())] == [[], []]
