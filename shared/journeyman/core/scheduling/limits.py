"""Tracks NodePool limits: the amounts that are left, and the amounts that a node of each instance type uses.

Restates: karpenter pkg/controllers/provisioning/scheduling/scheduler.go `filterByRemainingResources`, `subtractMax`.
Differs: Karpenter reserves the largest instance type that a claim lists, which wastes headroom until the next pass. Here
a claim of a limited NodePool lists no type larger than the one that determines its price, and reserves exactly that.
`nodes` is also counted within a pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

import numpy as np

from journeyman.core.api import labels
from journeyman.core.api.resources import NODES, Resources, add, maximum
from journeyman.core.catalogue import InstanceType
from journeyman.core.scheduling.arrays import Bools, Ints, every
from journeyman.core.scheduling.existing_nodes import capacity_of
from journeyman.core.scheduling.nodeclaim_templates import NodeClaimTemplate
from journeyman.core.state.skipped_objects import SkippedObject, evaluate
from journeyman.core.state.state_node import StateNode, one_per_instance


class Headroom:
    """The amounts left of one NodePool's limits; they decrease as nodes are planned."""

    def __init__(self, template: NodeClaimTemplate, nodes: Iterable[StateNode]) -> None:
        limits = template.node_pool.spec.limit_amounts
        self.resources = tuple(sorted(limits))
        own = (n for n in nodes if n.node_pool == template.name and not n.is_being_disrupted) if limits else ()
        sizes = {node.name: _size_of(node, template.table.types) for node in one_per_instance(own)}
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

    def take(self, type_index: int, copies: int) -> int:
        """Subtract as many of `copies` nodes of a type as the limits allow; return their number."""
        taken = self.allowing(self.costs[type_index], copies)
        self.spend(self.costs[type_index], taken)
        return taken


def type_costs(template: NodeClaimTemplate) -> Ints:
    """Return what a node uses of its NodePool's limits: a row per instance type, a column per limited resource by name."""
    limited = sorted(template.node_pool.spec.limit_amounts)
    columns = [_per_type(template, resource) for resource in limited]
    costs: Ints = np.array(columns, dtype=np.int64).reshape(len(columns), len(template.table.types)).T
    return costs


def _size_of(node: StateNode, types: Iterable[InstanceType]) -> Resources:
    """Return the node's size; of a node whose size cannot be evaluated only that it is one."""
    found = evaluate(node, size_of, node, types)
    return {NODES: 1} if isinstance(found, SkippedObject) else found


def size_of(node: StateNode, types: Iterable[InstanceType]) -> dict[str, int]:
    """Return what a node uses of its NodePool's limits: its capacity, before launch the largest that its claim allows.

    Args:
        node: The node, or its NodeClaim before launch.
        types: The instance types of its NodePool.
    """
    return _capacity(node, types) | {NODES: 1}


def _capacity(node: StateNode, types: Iterable[InstanceType]) -> dict[str, int]:
    claim = node.claim
    if node.node is not None or claim is None or claim.status.capacity:
        return capacity_of(node)
    listed = {name for r in claim.spec.requirements if r.key == labels.INSTANCE_TYPE for name in r.values}
    return maximum(capacity_of(node), *(t.capacity for t in types if t.name in listed))


def _per_type(template: NodeClaimTemplate, resource: str) -> Ints:
    if resource == NODES:
        return np.ones(len(template.table.types), dtype=np.int64)
    return template.table.amounts(resource, allocatable=False)
