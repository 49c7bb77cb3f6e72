"""Stores the candidate nodes for a pod as columns, existing nodes first, so that all are checked at once.

`VolumeAttachments` tracks volumes on existing nodes: each node has a limit per CSI driver; a shared volume counts once.

Restates: karpenter pkg/scheduling/volumeusage.go `ExceedsLimits`.
Differs: only drivers that the pod itself uses can reject it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field

from journeyman.core.scheduling.arrays import Bools, Ints
from journeyman.core.scheduling.existing_nodes import ExistingNodes
from journeyman.core.scheduling.offering_masks import OfferingMasks
from journeyman.core.scheduling.pod_classes import HostPort, PodClass
from journeyman.core.scheduling.problem import AxisAmount
from journeyman.core.scheduling.topology import domain_of
from journeyman.core.scheduling.volumes import VolumeUsage

_UNDECIDED = -1  # may still be in one of several domains
_WITHOUT_LABEL = -2  # has no such label
_STEP = 1 << 40  # more than there are ever nodes or placements


class NewNode(Struct, kw_only=True, eq=False):
    """A new node: its remaining offerings, the ID of its NodeClaim's requirements, and its pods.

    `ports` are the host ports in use; `share` is its part of the NodePool's limits, None without limits. `variety` is
    the number of different values that its instance types must keep, by label with minValues.
    """

    masks: OfferingMasks
    requirements_id: int
    offerings: int
    total: list[int]
    pods: dict[int, int] = field(default_factory=dict)
    ports: tuple[HostPort, ...] = ()
    share: Ints | None = None
    variety: tuple[int, ...] = ()


class CandidateNodes:
    """All candidates in Karpenter's order: nodes in the order of `ExistingNodes`, then new ones, fewest pods first."""

    def __init__(self, existing: ExistingNodes, axes: int) -> None:
        """Start with the existing nodes; the first `axes` columns of `existing.free` are resources."""
        self.existing_nodes = existing.nodes
        self.nodes: list[NewNode] = []
        self.size = len(existing.nodes)
        self._space = max(64, 2 * self.size)
        self._capacity: Ints = np.zeros((axes, self._space), dtype=np.int64)
        self._capacity[:, : self.size] = existing.free[:, :axes].T
        self._order: Ints = np.zeros(self._space, dtype=np.int64)
        self._order[: self.size] = np.arange(self.size)
        self._placements = 0
        self._codes: dict[str, dict[str, int]] = {}
        self._domains: dict[str, Ints] = {}

    @property
    def first_new(self) -> int:
        """The index of the first new node."""
        return len(self.existing_nodes)

    def node(self, candidate: int) -> NewNode:
        """Return the new node with this index."""
        return self.nodes[candidate - self.first_new]

    def open(self, node: NewNode) -> int:
        """Add a new node; return its index."""
        if self.size == self._space:
            self._grow()
        candidate = self.size
        self.size += 1
        self.nodes.append(node)
        for domains in self._domains.values():
            domains[candidate] = _UNDECIDED
        self.moved(candidate, 1)
        return candidate

    def _grow(self) -> None:
        self._capacity = np.pad(self._capacity, ((0, 0), (0, self._space)))
        self._order = np.pad(self._order, (0, self._space))
        self._domains = {key: np.pad(domains, (0, self._space)) for key, domains in self._domains.items()}
        self._space *= 2

    def moved(self, candidate: int, pods: int) -> None:
        """Update the position of a new node after its pod count changed; it goes before nodes with equally many pods."""
        self._placements += 1
        self._order[candidate] = _STEP * pods + (self._placements if pods == 1 else _STEP - 1 - self._placements)

    def resize(self, candidate: int, capacity: Sequence[int]) -> None:
        """Set the candidate's maximal free capacity by axis."""
        self._capacity[:, candidate] = capacity

    def take(self, candidate: int, amounts: Ints) -> None:
        """Subtract amounts by axis from the free capacity of an existing node."""
        self._capacity[:, candidate] -= amounts

    def with_capacity_for(self, amounts: Sequence[AxisAmount]) -> Bools:
        """Return which candidates may have the capacity for these amounts."""
        found: Bools = np.ones(self.size, dtype=bool)
        for axis, amount in amounts:
            found &= self._capacity[axis, : self.size] >= amount
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
        found: Bools = by_code[self._domains[key][: self.size]]
        return found


class VolumeAttachments:
    """Tracks the volumes that nodes can still attach while pods are scheduled."""

    def __init__(self, usages: Sequence[VolumeUsage]) -> None:
        """Start from the usage of each node; if empty, there are no limits."""
        self._usages = usages
        self._own: dict[tuple[int, str], int] = {}
        self._shared: dict[tuple[int, str], set[str]] = {}

    def admit(self, candidate: int, cls: PodClass) -> bool:
        """Whether the candidate can attach the volumes of one more pod of the class."""
        if not self._usages:
            return True
        usage = self._usages[candidate]
        for driver in {*cls.volume_counts, *(volume.driver for volume in cls.shared_volumes)}:
            free = usage.free(driver)
            new = self._unattached(candidate, driver, cls)
            if free is not None and self._taken(candidate, driver) + cls.volume_counts.get(driver, 0) + len(new) > free:
                return False
        return True

    def attach(self, candidate: int, cls: PodClass, pods: int) -> None:
        """Attach the volumes of `pods` pods of the class."""
        if not self._usages:
            return
        for driver, count in cls.volume_counts.items():
            self._own[candidate, driver] = self._own.get((candidate, driver), 0) + count * pods
        for driver, key in cls.shared_volumes:
            if key in self._unattached(candidate, driver, cls):
                self._shared.setdefault((candidate, driver), set()).add(key)

    def _taken(self, candidate: int, driver: str) -> int:
        return self._own.get((candidate, driver), 0) + len(self._shared.get((candidate, driver), ()))

    def _unattached(self, candidate: int, driver: str, cls: PodClass) -> set[str]:
        """Return the shared volumes of the driver that are not attached yet."""
        attached = self._usages[candidate].attached.get(driver, frozenset())
        attached |= self._shared.get((candidate, driver), set())
        return {volume.claim for volume in cls.shared_volumes if volume.driver == driver} - attached
