"""What happens to nodes and claims that somebody should know of, and what does not matter."""

import msgspec
import pytest

from infra.forwarder.fleet import Claims, Node, Nodes
from infra.forwarder.news import Cause
from infra.forwarder.resources import NodeClaims as ClaimResource
from infra.forwarder.resources import Nodes as NodeResource


def a_claim(uid, *, leaving=False, pool="default"):
    metadata = {"uid": uid, "resourceVersion": "7", "labels": {"karpenter.sh/nodepool": pool} if pool else None}
    if leaving:
        metadata["deletionTimestamp"] = "2026-11-21T09:00:00Z"
    claim, _ = ClaimResource().changed(msgspec.json.encode({"metadata": metadata}))
    return claim


def after_list(tracker, *objects):
    """The tracker after a list, and what it told, as (cause, name)."""
    fresh = tracker.fresh()
    news = [*fresh.take_page(objects, tracker), *fresh.ended(tracker, "8")]
    return fresh, sorted((item.cause, item.name) for item in news)


def causes(tracker, *changes):
    return [news.cause if (news := tracker.apply(*change)) else None for change in changes]


def test_a_node_is_news_when_it_joins_becomes_ready_stops_being_ready_and_goes():
    """Its heartbeats and everything else about it are none."""
    nodes, told = after_list(Nodes())
    assert told == []
    ready, not_ready = Node("a", True, "3"), Node("a", False, "2")

    assert causes(nodes, ("ADDED", not_ready), ("MODIFIED", not_ready), ("MODIFIED", ready), ("MODIFIED", ready)) == [
        Cause.NODE_JOINED, None, Cause.NODE_READY, None,
    ]  # fmt: skip
    assert causes(nodes, ("MODIFIED", not_ready), ("DELETED", not_ready)) == [Cause.NODE_NOT_READY, Cause.NODE_GONE]


def test_a_node_that_is_being_deleted_is_news_once_whatever_else_happens_to_it():
    """Also if nobody watched when it was; another node of its name is another."""
    ready, leaving = Node("a", True, "3"), Node("a", False, "4", leaving=True)
    nodes, told = after_list(Nodes(), ready, Node("b", True, "3", leaving=True))
    assert told == [(Cause.NODE_DELETING, "b")]

    assert causes(nodes, ("MODIFIED", leaving), ("MODIFIED", leaving), ("DELETED", leaving), ("ADDED", leaving)) == [
        Cause.NODE_DELETING, None, Cause.NODE_GONE, Cause.NODE_DELETING,
    ]  # fmt: skip
    again, told = after_list(nodes, leaving, Node("b", True, "9"), Node("c", False, "9", leaving=True))
    assert told == [(Cause.NODE_DELETING, "c")]
    assert causes(again, ("MODIFIED", Node("b", True, "10", leaving=True))) == [Cause.NODE_DELETING]


def test_the_first_list_of_nodes_tells_nothing_and_a_later_one_what_changed_meanwhile():
    """They were there before; but what an outage hid is found out by comparing."""
    nodes, told = after_list(Nodes(), Node("a", True, "1"), Node("b", False, "1"), Node("c", True, "1"))
    assert told == []

    _, told = after_list(nodes, Node("b", True, "5"), Node("c", False, "5"), Node("d", False, "5"))
    assert told == sorted([
        (Cause.NODE_GONE, "a"), (Cause.NODE_READY, "b"), (Cause.NODE_NOT_READY, "c"), (Cause.NODE_JOINED, "d"),
    ])  # fmt: skip


def test_a_claim_is_news_when_it_is_being_deleted_and_when_it_is_gone():
    """That one of a pool was made is known to who made it; one that a person made is not."""
    claims, _ = after_list(Claims())

    assert causes(claims, ("ADDED", a_claim("a")), ("MODIFIED", a_claim("a"))) == [None, None]
    assert causes(claims, ("MODIFIED", a_claim("a", leaving=True)), ("MODIFIED", a_claim("a", leaving=True))) == [
        Cause.CLAIM_DELETING, None,
    ]  # fmt: skip
    assert causes(claims, ("DELETED", a_claim("a", leaving=True))) == [Cause.CLAIM_GONE]
    assert causes(claims, ("ADDED", a_claim("b", pool=""))) == [Cause.CLAIM_CREATED]


def test_a_cluster_without_claims_is_an_empty_list():
    """kube-apiserver writes `null` where a list of metadata alone has no items."""
    page = ClaimResource().page(b'{"kind":"PartialObjectMetadataList","metadata":{"resourceVersion":"8"},"items":null}')

    assert list(page.objects) == []
    assert page.metadata.resource_version == "8"


def test_a_process_that_starts_in_a_cluster_with_claims_has_them_looked_at_once():
    """What happened while nobody watched is unknown."""
    claims, told = after_list(Claims(), a_claim("a"), a_claim("b", leaving=True))
    assert told == [(Cause.STARTED, "claims")]

    _, told = after_list(claims, a_claim("b", leaving=True), a_claim("c", leaving=True))
    assert told == [(Cause.CLAIM_DELETING, "c"), (Cause.CLAIM_GONE, "a")]
    assert after_list(Claims())[1] == []


@pytest.mark.parametrize(
    ("status", "ready"),
    [("Ready", True), ("Ready,SchedulingDisabled", True), ("NotReady", False), ("Unknown", False)],
)
def test_a_table_row_tells_whether_a_node_is_ready(status, ready):
    """The Status column as `kubectl get nodes` prints it."""
    table = {
        "kind": "Table", "metadata": {"resourceVersion": "9"}, "columnDefinitions": None,
        "rows": [{"cells": ["a", status, "<none>", "5d", "v1.36.3"], "object": None}],
    }  # fmt: skip

    assert NodeResource().changed(msgspec.json.encode(table)) == (Node("a", ready, "9"), "9")
    assert list(NodeResource().page(msgspec.json.encode(table)).objects) == [Node("a", ready, "9")]


@pytest.mark.parametrize("deleted", [None, "2026-11-21T09:00:00Z"])
def test_a_table_row_brings_the_nodes_metadata_which_alone_tells_that_it_is_being_deleted(deleted):
    """Its version is the node's own, which every replica sees alike; a list's is not."""
    metadata = {"name": "a", "resourceVersion": "7", "labels": {"a": "b"}, "managedFields": [{"manager": "kubelet"}]}
    row = {
        "cells": ["a", "Ready", "<none>", "5d", "v1.36.3"],
        "object": {"kind": "PartialObjectMetadata", "metadata": metadata | ({"deletionTimestamp": deleted} if deleted else {})},
    }  # fmt: skip
    table = {"kind": "Table", "metadata": {"resourceVersion": "9"}, "rows": [row]}

    assert list(NodeResource().page(msgspec.json.encode(table)).objects) == [Node("a", True, "7", deleted is not None)]


def test_a_server_that_prints_no_tables_sends_whole_nodes_and_they_are_read_all_the_same():
    """Asking for a table allows it to answer with what it has."""
    whole = {
        "metadata": {"name": "a", "resourceVersion": "9"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    bare = {"metadata": {"name": "b", "resourceVersion": "8", "deletionTimestamp": "2026-11-21T09:00:00Z"}}

    assert NodeResource().changed(msgspec.json.encode(whole)) == (Node("a", True, "9"), "9")
    page = NodeResource().page(msgspec.json.encode({"metadata": {"resourceVersion": "10"}, "items": [whole, bare]}))
    assert list(page.objects) == [Node("a", True, "9"), Node("b", False, "8", leaving=True)]
