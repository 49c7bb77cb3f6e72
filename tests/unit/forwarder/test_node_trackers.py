"""The changes of nodes and NodeClaims that send a notification."""

import msgspec
import pytest

from infra.forwarder.notifications import NotificationCause
from infra.forwarder.trackers import NodeClaimTracker, NodeTracker, UninitializedNodeTracker
from infra.forwarder.watched_objects import NodeClaimResource, NodeResource, NodeState, UninitializedNodeResource


def a_claim(uid, *, deleting=False, pool="default"):
    metadata = {"uid": uid, "resourceVersion": "7", "labels": {"karpenter.sh/nodepool": pool} if pool else None}
    if deleting:
        metadata["deletionTimestamp"] = "2026-11-21T09:00:00Z"
    claim, _ = NodeClaimResource().decode_object(msgspec.json.encode({"metadata": metadata}))
    return claim


def after_list(tracker, *objects):
    """Return the tracker after a list, and its notifications as (cause, name)."""
    fresh = tracker.fresh()
    found = [*fresh.add_page(objects, tracker), *fresh.finish_list(tracker, "8")]
    return fresh, sorted((item.cause, item.name) for item in found)


def causes(tracker, *changes):
    return [found.cause if (found := tracker.apply(*change)) else None for change in changes]


def test_node_notifies_when_joined_ready_not_ready_and_gone():
    """Heartbeats and other changes send no notification."""
    nodes, notified = after_list(NodeTracker())
    assert notified == []
    ready, not_ready = NodeState("a", True, "3"), NodeState("a", False, "2")

    assert causes(nodes, ("ADDED", not_ready), ("MODIFIED", not_ready), ("MODIFIED", ready), ("MODIFIED", ready)) == [
        NotificationCause.NODE_JOINED, None, NotificationCause.NODE_READY, None,
    ]  # fmt: skip
    assert causes(nodes, ("MODIFIED", not_ready), ("DELETED", not_ready)) == [
        NotificationCause.NODE_NOT_READY,
        NotificationCause.NODE_GONE,
    ]


def test_deleted_node_notifies_once():
    """So does one that was deleted before the forwarder started; a new node of the same name notifies again."""
    ready, deleting = NodeState("a", True, "3"), NodeState("a", False, "4", deleting=True)
    nodes, notified = after_list(NodeTracker(), ready, NodeState("b", True, "3", deleting=True))
    assert notified == [(NotificationCause.NODE_DELETING, "b")]

    assert causes(nodes, ("MODIFIED", deleting), ("MODIFIED", deleting), ("DELETED", deleting), ("ADDED", deleting)) == [
        NotificationCause.NODE_DELETING, None, NotificationCause.NODE_GONE, NotificationCause.NODE_DELETING,
    ]  # fmt: skip
    again, notified = after_list(nodes, deleting, NodeState("b", True, "9"), NodeState("c", False, "9", deleting=True))
    assert notified == [(NotificationCause.NODE_DELETING, "c")]
    assert causes(again, ("MODIFIED", NodeState("b", True, "10", deleting=True))) == [NotificationCause.NODE_DELETING]


def test_later_list_of_nodes_notifies_of_changes_and_the_first_does_not():
    """The tracker compares lists, so it notices changes during an outage."""
    nodes, notified = after_list(
        NodeTracker(), NodeState("a", True, "1"), NodeState("b", False, "1"), NodeState("c", True, "1")
    )
    assert notified == []

    _, notified = after_list(nodes, NodeState("b", True, "5"), NodeState("c", False, "5"), NodeState("d", False, "5"))
    assert notified == sorted([
        (NotificationCause.NODE_GONE, "a"), (NotificationCause.NODE_READY, "b"), (NotificationCause.NODE_NOT_READY, "c"), (NotificationCause.NODE_JOINED, "d"),
    ])  # fmt: skip


def a_joining_node(*taints, **allocatable):
    body = {
        "metadata": {"name": "a", "resourceVersion": "7"},
        "spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]},
        "status": {"allocatable": {"cpu": "4", **allocatable}, "images": [{"names": ["i"], "sizeBytes": 1}]},
    }
    node, version = UninitializedNodeResource().decode_object(msgspec.json.encode(body))
    assert version == "7"
    return node


def test_a_joining_node_notifies_when_a_taint_goes_or_a_resource_comes():
    """The node's own start sends a notification of its own; Journeyman's taints are its own changes."""
    starting = ("karpenter.sh/unregistered", "node.kubernetes.io/not-ready", "cni")
    nodes, notified = after_list(UninitializedNodeTracker(), a_joining_node(*starting, gpu="0"))
    assert notified == []

    set_up = NotificationCause.NODE_SET_UP
    assert causes(
        nodes,
        ("MODIFIED", a_joining_node("cni", "added", gpu="0")),
        ("MODIFIED", a_joining_node("cni", gpu="0")),
        ("MODIFIED", a_joining_node(gpu="0")),
        ("MODIFIED", a_joining_node(gpu="0")),
        ("MODIFIED", a_joining_node(gpu="1")),
        ("DELETED", a_joining_node(gpu="1")),
        ("ADDED", a_joining_node(gpu="1")),
    ) == [None, set_up, set_up, None, set_up, None, None]


def test_a_list_of_joining_nodes_notifies_of_what_changed_since_the_last_one():
    """A taint may have been removed during an outage."""
    nodes, _ = after_list(UninitializedNodeTracker(), a_joining_node("cni"))
    page = UninitializedNodeResource().decode_page(
        msgspec.json.encode({"metadata": {"resourceVersion": "8"}, "items": []})
    )

    assert after_list(nodes, a_joining_node())[1] == [(NotificationCause.NODE_SET_UP, "a")]
    assert after_list(nodes, *page.objects)[1] == []


def test_nodeclaim_notifies_when_deleting_and_when_gone():
    """The steps launch NodeClaims that they create for a NodePool; one without a NodePool notifies when it is created."""
    claims, _ = after_list(NodeClaimTracker())

    assert causes(claims, ("ADDED", a_claim("a")), ("MODIFIED", a_claim("a"))) == [None, None]
    assert causes(claims, ("MODIFIED", a_claim("a", deleting=True)), ("MODIFIED", a_claim("a", deleting=True))) == [
        NotificationCause.CLAIM_DELETING, None,
    ]  # fmt: skip
    assert causes(claims, ("DELETED", a_claim("a", deleting=True))) == [NotificationCause.CLAIM_GONE]
    assert causes(claims, ("ADDED", a_claim("b", pool=""))) == [NotificationCause.CLAIM_CREATED]


def test_list_without_nodeclaims_is_empty():
    """kube-apiserver writes `null` for an empty list of metadata."""
    page = NodeClaimResource().decode_page(
        b'{"kind":"PartialObjectMetadataList","metadata":{"resourceVersion":"8"},"items":null}'
    )

    assert list(page.objects) == []
    assert page.metadata.resource_version == "8"


def test_start_in_a_cluster_with_nodeclaims_notifies_once():
    """Changes before the start are unknown."""
    claims, notified = after_list(NodeClaimTracker(), a_claim("a"), a_claim("b", deleting=True))
    assert notified == [(NotificationCause.STARTED, "claims")]

    _, notified = after_list(claims, a_claim("b", deleting=True), a_claim("c", deleting=True))
    assert notified == [(NotificationCause.CLAIM_DELETING, "c"), (NotificationCause.CLAIM_GONE, "a")]
    assert after_list(NodeClaimTracker())[1] == []


@pytest.mark.parametrize(
    ("status", "ready"),
    [("Ready", True), ("Ready,SchedulingDisabled", True), ("NotReady", False), ("Unknown", False)],
)
def test_table_row_has_the_readiness_of_a_node(status, ready):
    """The Status column as `kubectl get nodes` prints it."""
    table = {
        "kind": "Table", "metadata": {"resourceVersion": "9"}, "columnDefinitions": None,
        "rows": [{"cells": ["a", status, "<none>", "5d", "v1.36.3"], "object": None}],
    }  # fmt: skip

    assert NodeResource().decode_object(msgspec.json.encode(table)) == (NodeState("a", ready, "9"), "9")
    assert list(NodeResource().decode_page(msgspec.json.encode(table)).objects) == [NodeState("a", ready, "9")]


@pytest.mark.parametrize("deleted", [None, "2026-11-21T09:00:00Z"])
def test_table_row_has_the_metadata_of_a_node(deleted):
    """It has the deletion timestamp and the node's version, which is the same in each replica, unlike a list's version."""
    metadata = {"name": "a", "resourceVersion": "7", "labels": {"a": "b"}, "managedFields": [{"manager": "kubelet"}]}
    row = {
        "cells": ["a", "Ready", "<none>", "5d", "v1.36.3"],
        "object": {"kind": "PartialObjectMetadata", "metadata": metadata | ({"deletionTimestamp": deleted} if deleted else {})},
    }  # fmt: skip
    table = {"kind": "Table", "metadata": {"resourceVersion": "9"}, "rows": [row]}

    assert list(NodeResource().decode_page(msgspec.json.encode(table)).objects) == [
        NodeState("a", True, "7", deleted is not None)
    ]


def test_whole_nodes_of_a_server_without_tables_are_decoded():
    """The Accept header allows both."""
    whole = {
        "metadata": {"name": "a", "resourceVersion": "9"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    bare = {"metadata": {"name": "b", "resourceVersion": "8", "deletionTimestamp": "2026-11-21T09:00:00Z"}}

    assert NodeResource().decode_object(msgspec.json.encode(whole)) == (NodeState("a", True, "9"), "9")
    page = NodeResource().decode_page(
        msgspec.json.encode({"metadata": {"resourceVersion": "10"}, "items": [whole, bare]})
    )
    assert list(page.objects) == [NodeState("a", True, "9"), NodeState("b", False, "8", deleting=True)]
