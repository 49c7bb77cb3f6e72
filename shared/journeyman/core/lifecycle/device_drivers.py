"""Whether DRA drivers have published what a new node's pods wait for.

Restates: karpenter pkg/controllers/nodeclaim/lifecycle/initialization.go `DRADriversPublished`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from journeyman.core.api import labels
from journeyman.core.api.dra import ResourceSlice, ResourceSliceSpec


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
