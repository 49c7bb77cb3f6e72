"""Tracks NodePool limits: the amounts that are left, and the amounts that a node of each instance type uses.

Restates: karpenter pkg/controllers/provisioning/scheduling/scheduler.go `filterByRemainingResources`, `subtractMax`.
Differs: Karpenter reserves the largest instance type that a claim lists, which wastes headroom until the next pass.
Here a claim of a limited NodePool lists no type larger than the one that determines its price, and reserves exactly
that. `nodes` is also counted within a pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

import numpy as np

from journeyman.core.api import labels
from journeyman.core.api.resources import NODES, Resources, add, maximum
from journeyman.core.catalogue import InstanceType
from journeyman.core.scheduling.arrays import Bools, Ints, every
from journeyman.core.scheduling.nodeclaim_templates import NodeClaimTemplate
from journeyman.core.state.skipped_objects import SkippedObject, evaluate
from journeyman.core.state.state_node import StateNode, one_per_instance


class Headroom:
    """The amounts left of one NodePool's limits; they decrease as nodes are planned."""

    def __init__(self, template: NodeClaimTemplate, nodes: Iterable[StateNode]) -> None:
        limits = template.node_pool.spec.limit_amounts
        self.resources = tuple(sorted(limits))
        own = (n for n in nodes if n.node_pool == template.name and not n.is_being_disrupted) if limits else ()
        types = template.table.types
        found = {node.name: evaluate(node, size_of, node, types) for node in one_per_instance(own)}
        # a node whose size cannot be evaluated is one node all the same
        sizes = {name: {NODES: 1} if isinstance(size, SkippedObject) else size for name, size in found.items()}
        self._used = {name: self._amounts(size) for name, size in sizes.items()}
        self._whole = self._amounts(limits)
        self.left: Ints = self._whole - self._amounts(add(*sizes.values()))
        self.costs = type_costs(template)

    def without(self, nodes: Iterable[str]) -> Headroom:
        """Return the headroom once these nodes, given by name, are removed."""
        headroom = self.copy()
        for name in nodes if self._used else ():
            if name in self._used:
                headroom.left = np.minimum(headroom.left + self._used[name], self._whole)
        return headroom

    def _amounts(self, amounts: Resources) -> Ints:
        return np.array([amounts.get(resource, 0) for resource in self.resources], dtype=np.int64)

    def copy(self) -> Headroom:
        """Return a copy that is spent independently."""
        headroom = copy(self)
        headroom.left = self.left.copy()
        return headroom

    def left_of(self, resource: str) -> int | None:
        """Return the amount left of one resource, None if it has no limit."""
        if resource not in self.resources:
            return None
        return max(int(self.left[self.resources.index(resource)]), 0)

    def allows(self) -> Bools:
        """Return for each instance type whether one more node of it stays within the limits."""
        return every(self.costs <= self.left)

    def allowing(self, cost: Ints, copies: int) -> int:
        """Return how many nodes of this cost the limits allow, at most `copies`."""
        used = np.flatnonzero(cost)
        return int((np.maximum(self.left[used], 0) // cost[used]).min(initial=copies))

    def spend(self, cost: Ints, copies: int) -> None:
        """Subtract `copies` nodes of this cost."""
        self.left = self.left - cost * copies


def type_costs(template: NodeClaimTemplate) -> Ints:
    """Return what a node uses of its NodePool's limits: by instance type, and limited resource by name."""
    limited = sorted(template.node_pool.spec.limit_amounts)
    columns = [
        template.table.amounts(resource, allocatable=False) if resource != NODES else [1] * len(template.table.types)
        for resource in limited
    ]
    costs: Ints = np.array(columns, dtype=np.int64).reshape(len(columns), len(template.table.types)).T
    return costs


def size_of(node: StateNode, types: Iterable[InstanceType]) -> dict[str, int]:
    """Return what a node uses of its NodePool's limits: its capacity, before launch the largest that its claim allows.

    Args:
        node: The node, or its NodeClaim before launch.
        types: The instance types of its NodePool.
    """
    capacity, claim = node.capacity(), node.claim
    if node.node is None and claim is not None and not claim.status.capacity:
        listed = {name for r in claim.spec.requirements if r.key == labels.INSTANCE_TYPE for name in r.values}
        capacity = maximum(capacity, *(t.capacity for t in types if t.name in listed))
    return capacity | {NODES: 1}
