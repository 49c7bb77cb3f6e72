"""Stores the candidate nodes for a pod as columns, existing nodes first, so that all are checked at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field

from journeyman.core.scheduling.arrays import Bools, Ints
from journeyman.core.scheduling.node_filling import ANY_NUMBER, NodeFilling
from journeyman.core.scheduling.offering_masks import OfferingMasks
from journeyman.core.scheduling.problem import AxisAmount, SchedulingProblem
from journeyman.core.scheduling.topology import domain_of

_UNDECIDED = -1  # may still be in one of several domains
_WITHOUT_LABEL = -2  # has no such label
_STEP = 1 << 40  # more than there are ever nodes or placements


class NewNode(Struct, kw_only=True, eq=False):
    """A new node: its remaining offerings, the ID of its NodeClaim's requirements, and its pods.

    `share` is its part of the NodePool's limits, None without limits. `variety` is
    the number of different values that its instance types must keep, by label with minValues.
    """

    masks: OfferingMasks
    requirements_id: int
    offerings: int
    total: list[int]
    pods: dict[int, int] = field(default_factory=dict)
    share: Ints | None = None
    variety: tuple[int, ...] = ()


class CandidateNodes(NodeFilling):
    """All candidates in Karpenter's order: nodes in the order of `ExistingNodes`, then new ones, fewest pods first.

    A new node may still become one of several instance types, so that its free resources are those of the largest.
    """

    def __init__(self, problem: SchedulingProblem) -> None:
        """Start with the existing nodes."""
        super().__init__(problem.existing, problem.rows, problem.requests, problem.host_constraints)
        self.existing_nodes = problem.existing.nodes
        self.nodes: list[NewNode] = []
        self._size = len(self.existing_nodes)
        self._space = self._size
        self._order: Ints = np.arange(self._size, dtype=np.int64)
        self._placements = 0
        self._codes: dict[str, dict[str, int]] = {}
        self._domains: dict[str, Ints] = {}
        running = problem.existing.expected_counts
        self._leaders = [sum(running.by_node(group).values()) for group in problem.host_constraints.followed]

    @property
    def size(self) -> int:
        """The number of candidates."""
        return self._size

    @property
    def first_new(self) -> int:
        """The index of the first new node."""
        return len(self.existing_nodes)

    def node(self, candidate: int) -> NewNode:
        """Return the new node with this index."""
        return self.nodes[candidate - self.first_new]

    def open(self, node: NewNode) -> int:
        """Add a new node; return its index."""
        if self._size == self._space:
            self._grow()
        candidate = self._size
        self._size += 1
        self.nodes.append(node)
        for domains in self._domains.values():
            domains[candidate] = _UNDECIDED
        self.moved(candidate, 1)
        return candidate

    def _grow(self) -> None:
        more = max(64, self._space)
        empty = np.concatenate(
            (
                np.zeros(self._resources, dtype=np.int64),
                self._host_constraints.capacities,
                np.full(len(self._drivers), ANY_NUMBER),
            )
        )
        self._free = np.concatenate((self._free, np.tile(empty[:, None], (1, more))), axis=1)
        self._attached, self._counted, self._owning, self._followed_counts = (
            np.pad(table, ((0, 0), (0, more)))
            for table in (self._attached, self._counted, self._owning, self._followed_counts)
        )
        self._order = np.pad(self._order, (0, more))
        self._domains = {key: np.pad(domains, (0, more)) for key, domains in self._domains.items()}
        self._space += more

    def moved(self, candidate: int, pods: int) -> None:
        """Update a new node's position after its pod count changed; it goes before those with equally many."""
        self._placements += 1
        self._order[candidate] = _STEP * pods + (self._placements if pods == 1 else _STEP - 1 - self._placements)

    def resize(self, candidate: int, capacity: Sequence[int]) -> None:
        """Set the candidate's maximal free resources by axis."""
        self._free[: self._resources, candidate] = capacity

    def add(self, row: int, candidate: int, count: int) -> None:
        """Place pods of the row on a candidate, without a check that they fit."""
        self._move(row, candidate, count)
        for group in self._row_demand(row).leads:
            self._leaders[group] += count

    def has_leader(self, row: int, group: int) -> Bools:
        """Return the same as `NodeFilling`; every candidate, if a pod of the row may be the first of the group."""
        return np.ones(self._size, dtype=bool) if self._may_start(row, group) else super().has_leader(row, group)

    def admits_new(self, row: int) -> bool:
        """Return whether the rules about one node allow a pod of the row on a new, empty node."""
        return all(self._may_start(row, group) for group in self._row_demand(row).follows)

    def _may_start(self, row: int, group: int) -> bool:
        return not self._leaders[group] and group in self._row_demand(row).leads

    def rules(self, row: int) -> int:
        """Return how many rules about one node concern a row."""
        demand = self._row_demand(row)
        return len(demand.amounts) + len(demand.counted) + len(demand.owning) + len(demand.follows)

    def with_capacity_for(self, amounts: Sequence[AxisAmount]) -> Bools:
        """Return which candidates may have these free resources."""
        found: Bools = np.ones(self._size, dtype=bool)
        for axis, amount in amounts:
            found &= self._free[axis, : self._size] >= amount
        return found

    def in_order(self, candidates: Bools) -> list[int]:
        """Return these candidates in the order in which they are tried."""
        chosen = np.flatnonzero(candidates)
        if len(chosen) > 1:
            chosen = chosen[np.argsort(self._order[chosen])]
        found: list[int] = chosen.tolist()
        return found

    # -- domains ------------------------------------------------------------------------------------------------------

    def watch(self, key: str) -> None:
        """Start tracking the domains of a label."""
        if key in self._codes:
            return
        codes: dict[str, int] = {}
        column = np.full(self._space, _UNDECIDED, dtype=np.int64)
        for candidate, node in enumerate(self.existing_nodes):
            value = domain_of(node, key)
            column[candidate] = _WITHOUT_LABEL if value is None else codes.setdefault(value, len(codes))
        self._codes[key] = codes
        self._domains[key] = column

    @property
    def watched(self) -> tuple[str, ...]:
        """The labels with tracked domains."""
        return tuple(self._codes)

    def bind_domain(self, candidate: int, key: str, domain: str) -> None:
        """Record that a new node is bound to one domain."""
        codes = self._codes[key]
        self._domains[key][candidate] = codes.setdefault(domain, len(codes))

    def known_domains(self, key: str) -> Sequence[str]:
        """Return the domains that any candidate is bound to."""
        return list(self._codes[key])

    def in_domains(self, key: str, admitted: Sequence[bool], *, without_label: bool) -> Bools:
        """Return which candidates are or may be in an admitted domain (in the order of `known_domains`)."""
        by_code = np.array([*admitted, without_label, True], dtype=bool)  # -2 and -1 count from the end
        found: Bools = by_code[self._domains[key][: self._size]]
        return found
