"""Initialization: decides when a registered node is ready for pods. Initialized stays True from then on.

Restates: karpenter pkg/controllers/nodeclaim/lifecycle/initialization.go `Reconcile`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.dra import ResourceSlice, ResourceSliceSpec
from journeyman.core.api.objects import Node, NodeClaim, is_true
from journeyman.core.api.resources import to_resources
from journeyman.core.lifecycle.progress import NodeClaimProgress, with_node
from journeyman.core.state.taints import format_taint


def initialize(progress: NodeClaimProgress, slices: Sequence[ResourceSlice] | None = None) -> NodeClaimProgress:
    """Set Initialized True if nothing blocks it, otherwise Unknown with the first reason.

    Args:
        progress: The NodeClaim and its node.
        slices: ResourceSlices that DRA drivers have published; None to ignore them, as with `IGNORE_DRA_REQUESTS`.
    """
    claim = progress.claim
    if not is_true(claim.status.conditions, "Registered") or is_true(claim.status.conditions, "Initialized"):
        return progress
    node = progress.node
    if node is None:
        return progress.with_condition("Initialized", "Unknown", "NodeNotFound", "Node not registered with cluster")
    if blocker := find_blocker(node, claim) or _find_unpublished_pool(node, claim, slices):
        return progress.with_condition("Initialized", "Unknown", *blocker)
    labelled = with_node(node, metadata={"labels": {**node.metadata.labels, labels.INITIALIZED: "true"}})
    note = f"initialized NodeClaim {claim.metadata.name} on node {node.metadata.name}"
    return replace(progress, node=labelled).with_condition("Initialized", "True").with_events(notes=(note,))


def find_blocker(node: Node, claim: NodeClaim) -> tuple[str, str] | None:
    """Return the first reason that blocks initialization, with its message; None if nothing blocks it.

    Restates: karpenter pkg/controllers/nodeclaim/lifecycle/initialization.go `StartupTaintsRemoved`,
    `KnownEphemeralTaintsRemoved`, `RequestedResourcesRegistered`.
    """
    if not is_true(node.status.conditions, "Ready"):
        return "NodeNotReady", "Node status is NotReady"
    present = {(t.key, t.effect) for t in node.spec.taints}
    for taint in claim.spec.startup_taints:
        if (taint.key, taint.effect) in present:
            return "StartupTaintsExist", f'StartupTaint "{format_taint(taint)}" still exists'
    for taint in node.spec.taints:
        if labels.is_ephemeral_taint(taint.key, taint.effect):
            return "KnownEphemeralTaintsExist", f'KnownEphemeralTaint "{format_taint(taint)}" still exists'
    if missing := _unregistered_resource(node, claim):
        return "ResourceNotRegistered", f'Resource "{missing}" was requested but not registered'
    return None


def _find_unpublished_pool(
    node: Node, claim: NodeClaim, slices: Sequence[ResourceSlice] | None
) -> tuple[str, str] | None:
    if slices is None:
        return None
    driver = unpublished_driver(claim.metadata.annotations, node.metadata.name, slices)
    if not driver:
        return None
    return "DRADriverPoolsNotPublished", f'DRA driver "{driver}" has not published a complete resource pool'


def _unregistered_resource(node: Node, claim: NodeClaim) -> str:
    """Return a resource that the NodeClaim requests and the node lacks, since its device plugin still starts; empty if none."""
    requested = to_resources(claim.spec.resources.requests, round_up=True)
    allocatable = to_resources(node.status.allocatable, round_up=False)
    return next((r for r in sorted(requested) if requested[r] > 0 and allocatable.get(r, 0) == 0), "")


def unpublished_driver(annotations: Mapping[str, str], node: str, slices: Iterable[ResourceSlice]) -> str:
    """Return the first DRA driver in the NodeClaim's annotation without a complete pool on the node; empty if none.

    Args:
        annotations: The NodeClaim's annotations.
        node: The name of its node.
        slices: All published ResourceSlices, of any node.

    Restates: karpenter pkg/controllers/nodeclaim/lifecycle/initialization.go `DRADriversPublished`.
    """
    drivers = [name for part in annotations.get(labels.DRA_DRIVERS, "").split(",") if (name := part.strip())]
    if not drivers:
        return ""
    pools: dict[tuple[str, str], list[ResourceSliceSpec]] = {}
    for published in slices:
        spec = published.spec
        if _is_local_to(published, node):
            pools.setdefault((spec.driver, spec.pool.name), []).append(spec)
    complete = {driver for (driver, _), specs in pools.items() if _is_complete(specs)}
    return next((driver for driver in drivers if driver not in complete), "")


def _is_local_to(published: ResourceSlice, node: str) -> bool:
    """Restates: karpenter pkg/controllers/nodeclaim/lifecycle/initialization.go `sliceBelongsToNode`."""
    owners = published.metadata.owner_references
    return published.spec.node_name == node or any(owner.kind == "Node" and owner.name == node for owner in owners)


def _is_complete(specs: Iterable[ResourceSliceSpec]) -> bool:
    """Whether the pool has as many slices of its newest generation as they declare."""
    pools = [spec.pool for spec in specs]
    newest = max(pools, key=lambda pool: pool.generation)
    return sum(pool.generation == newest.generation for pool in pools) == newest.resource_slice_count
