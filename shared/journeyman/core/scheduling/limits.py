"""Tracks NodePool limits: what is left of them, and what a node of each instance type takes.

Restates: karpenter pkg/controllers/provisioning/scheduling/scheduler.go `filterByRemainingResources`, `subtractMax`.
Differs: Karpenter reserves the largest instance type a claim lists, and so wastes headroom until the next pass; here a
claim of a limited pool lists no type larger than the one it is priced by, so exactly that one is reserved. `nodes` is
counted within a pass as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

import numpy as np

from journeyman.core.api import labels
from journeyman.core.api.resources import NODES, maximum
from journeyman.core.catalogue import InstanceType
from journeyman.core.scheduling.arrays import Bools, Ints, every
from journeyman.core.scheduling.existing_nodes import capacity_of
from journeyman.core.scheduling.nodeclaim_templates import NodeClaimTemplate
from journeyman.core.state.state_node import StateNode


class Headroom:
    """What is left of one pool's limits, used up as nodes are opened."""

    def __init__(self, template: NodeClaimTemplate, nodes: Iterable[StateNode]) -> None:
        limits = template.node_pool.spec.limit_amounts
        self.resources = tuple(sorted(limits))
        own = [n for n in nodes if n.node_pool == template.name and not n.is_being_disrupted] if limits else []
        sizes = ((node.name, size_of(node, template.table.types)) for node in own)
        self._used = {name: np.array([size.get(r, 0) for r in self.resources], dtype=np.int64) for name, size in sizes}
        whole: Ints = np.array([limits[r] for r in self.resources], dtype=np.int64)
        self.left: Ints = whole - sum(self._used.values())
        self.costs = type_costs(template)

    def without(self, nodes: Iterable[str]) -> Headroom:
        """The same once some nodes, given by name, are gone."""
        twin = self.copy()
        for name in nodes if self._used else ():
            if name in self._used:
                twin.left += self._used[name]
        return twin

    def copy(self) -> Headroom:
        """The same, to be used up apart."""
        twin = copy(self)
        twin.left = self.left.copy()
        return twin

    def left_of(self, resource: str) -> int | None:
        """What is left of one resource, None if it has no limit."""
        if resource not in self.resources:
            return None
        return max(int(self.left[self.resources.index(resource)]), 0)

    def allows(self) -> Bools:
        """By instance type, whether one more node of it stays within the limits."""
        return every(self.costs <= self.left)

    def allowing(self, cost: Ints, copies: int) -> int:
        """How many of `copies` nodes that take so much the limits allow."""
        asked = np.flatnonzero(cost)
        return int((np.maximum(self.left[asked], 0) // cost[asked]).min(initial=copies))

    def spend(self, cost: Ints, copies: int) -> None:
        """Spend the limits for so many nodes."""
        self.left = self.left - cost * copies

    def take(self, type_index: int, copies: int) -> int:
        """Spend the limits for as many of `copies` nodes of a type as there is; how many that were."""
        taken = self.allowing(self.costs[type_index], copies)
        self.spend(self.costs[type_index], taken)
        return taken


def type_costs(template: NodeClaimTemplate) -> Ints:
    """What one node of each instance type takes of its pool's limits: by type and limited resource, in name's order."""
    limited = sorted(template.node_pool.spec.limit_amounts)
    columns = [_per_type(template, resource) for resource in limited]
    costs: Ints = np.array(columns, dtype=np.int64).reshape(len(columns), len(template.table.types)).T
    return costs


def size_of(node: StateNode, types: Iterable[InstanceType]) -> dict[str, int]:
    """What a node takes of its pool's limits: its capacity; before launch that of the largest type its claim may become.

    Args:
        node: The node, or the claim that is to become one.
        types: Instance types of its pool.
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
