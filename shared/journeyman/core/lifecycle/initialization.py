"""Initialization: the node is ready for the pods it was launched for. Never reverts.

Restates: karpenter pkg/controllers/nodeclaim/lifecycle/initialization.go `Reconcile`, `DRADriversPublished`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.dra import ResourceSlice, ResourceSliceSpec
from journeyman.core.api.objects import Node, NodeClaim, is_true
from journeyman.core.api.resources import to_resources
from journeyman.core.lifecycle.progress import NodeClaimProgress, with_node


def initialize(progress: NodeClaimProgress, slices: Sequence[ResourceSlice] | None = None) -> NodeClaimProgress:
    """Initialized True once every gate is passed, otherwise Unknown with the first gate that is not.

    `slices` is what DRA drivers have published; None if ResourceClaims are ignored, so that no driver is waited for.
    """
    claim = progress.claim
    if not is_true(claim.status.conditions, "Registered") or is_true(claim.status.conditions, "Initialized"):
        return progress
    node = progress.node
    if node is None:
        return progress.with_condition("Initialized", "Unknown", "NodeNotFound", "Node not registered with cluster")
    if blocked := _gate(node, claim) or _device_gate(node, claim, slices):
        return progress.with_condition("Initialized", "Unknown", *blocked)
    labelled = with_node(node, metadata={"labels": {**node.metadata.labels, labels.INITIALIZED: "true"}})
    note = f"initialized NodeClaim {claim.metadata.name} on node {node.metadata.name}"
    return replace(progress, node=labelled).with_condition("Initialized", "True").with_events(notes=(note,))


def _gate(node: Node, claim: NodeClaim) -> tuple[str, str] | None:
    """Reason and message of the first gate that holds the node back, in Karpenter's order."""
    name = node.metadata.name
    if not is_true(node.status.conditions, "Ready"):
        return "NodeNotReady", f"Node {name} is not ready"
    present = {(t.key, t.effect) for t in node.spec.taints}
    for taint in claim.spec.startup_taints:
        if (taint.key, taint.effect) in present:
            return "StartupTaintsExist", f"StartupTaint {taint.key}:{taint.effect} still exists"
    for taint in node.spec.taints:
        if labels.is_ephemeral_taint(taint.key, taint.effect):
            return "KnownEphemeralTaintsExist", f"KnownEphemeralTaint {taint.key}:{taint.effect} still exists"
    if missing := _unregistered_resource(node, claim):
        return "ResourceNotRegistered", f"Resource {missing} was requested but not registered"
    return None


def _device_gate(node: Node, claim: NodeClaim, slices: Sequence[ResourceSlice] | None) -> tuple[str, str] | None:
    driver = unpublished_driver(claim.metadata.annotations, node.metadata.name, slices) if slices is not None else ""
    return (
        ("DRADriverPoolsNotPublished", f'DRA driver "{driver}" has not published a complete resource pool')
        if driver
        else None
    )


def _unregistered_resource(node: Node, claim: NodeClaim) -> str:
    """A resource that the claim asks for and the node does not have yet (a device plugin that still starts)."""
    requested = to_resources(claim.spec.resources.requests, round_up=True)
    allocatable = to_resources(node.status.allocatable, round_up=False)
    return next((r for r in sorted(requested) if requested[r] > 0 and allocatable.get(r, 0) == 0), "")


def unpublished_driver(annotations: Mapping[str, str], node: str, slices: Iterable[ResourceSlice]) -> str:
    """The first driver that a claim names and that has no complete pool on the node; empty if there is none.

    Args:
        annotations: The claim's.
        node: The name of its node.
        slices: All that is published. A slice is of the node if it names it or is owned by it.
    """
    named = (name.strip() for name in annotations.get(labels.DRA_DRIVERS, "").split(","))
    wanted = [name for name in named if name]
    if not wanted:
        return ""
    pools: dict[tuple[str, str], list[ResourceSliceSpec]] = {}
    for found in slices:
        if _is_of(found, node):
            pools.setdefault((found.spec.driver, found.spec.pool.name), []).append(found.spec)
    complete = {driver for (driver, _), specs in pools.items() if _is_complete(specs)}
    return next((name for name in wanted if name not in complete), "")


def _is_of(found: ResourceSlice, node: str) -> bool:
    owners = found.metadata.owner_references
    return found.spec.node_name == node or any(owner.kind == "Node" and owner.name == node for owner in owners)


def _is_complete(specs: Iterable[ResourceSliceSpec]) -> bool:
    """Whether all slices of the newest generation are there."""
    pools = [spec.pool for spec in specs]
    newest = max(pools, key=lambda pool: pool.generation)
    return sum(pool.generation == newest.generation for pool in pools) == newest.resource_slice_count
