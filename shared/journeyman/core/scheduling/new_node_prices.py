"""Prices single new nodes for some pods, without a plan: one `&` of bit masks per pod class and NodePool."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from journeyman.core.api import labels
from journeyman.core.scheduling.arrays import Ints
from journeyman.core.scheduling.nodepool_options import NodeDemand
from journeyman.core.scheduling.offering_masks import OfferingMasks, as_mask
from journeyman.core.scheduling.offerings import Reservations
from journeyman.core.scheduling.pod_classes import RowPods
from journeyman.core.scheduling.problem import SchedulingProblem
from journeyman.core.scheduling.topology import ABSENT


class NewNodePrices:
    """The prices of single new nodes for pods of a problem's rows, by bit masks of offerings."""

    def __init__(self, problem: SchedulingProblem, reservations: Reservations) -> None:
        """Prepare the masks of the problem's NodePools, without offerings of reservations that are full."""
        self._problem = problem
        self._available = [masks.ordinary for masks in problem.pool_masks]
        for index, masks in enumerate(problem.pool_masks):
            for name, offerings in masks.reserved:
                self._available[index] |= offerings if reservations.left.get(name, 0) > 0 else 0
        self._meeting: dict[tuple[int, int], int] = {}
        self._by_domain: dict[tuple[int, str], Mapping[str, int]] = {}

    def of(
        self,
        pods: Sequence[RowPods],
        domains: Sequence[Mapping[str, Collection[str]]] = (),
        *,
        without: Collection[str] = (),
    ) -> float | None:
        """Return the lowest price per hour of one new node that takes all these pods; None if none does.

        Limits, minValues and open labels are ignored, so the scheduler's node may be dearer, but is not cheaper.

        Args:
            pods: The pods, by row.
            domains: For each entry of `pods` the values of topology labels that its rules allow.
            without: Capacity types that are excluded.
        """
        found = self._offerings(pods, domains, without)
        return min((masks.lowest_price(offerings) for masks, offerings in found), default=None)

    def cheaper_types(
        self,
        pods: Sequence[RowPods],
        domains: Sequence[Mapping[str, Collection[str]]],
        price: float,
        *,
        only: str,
    ) -> int:
        """Return how many instance types take all these pods below a price, with offerings of a capacity type."""
        names: set[str] = set()
        for masks, offerings in self._offerings(pods, domains):
            kept = offerings & masks.cheaper_than(price) & masks.by_value(labels.CAPACITY_TYPE)[0].get(only, 0)
            names.update(masks.type_names(kept) if kept else ())
        return len(names)

    def _offerings(
        self,
        pods: Sequence[RowPods],
        domains: Sequence[Mapping[str, Collection[str]]],
        without: Collection[str] = (),
    ) -> Iterator[tuple[OfferingMasks, int]]:
        """Yield the offerings of which one node takes all these pods, by NodePool that has some."""
        rows, counts = [row for row, _ in pods], np.array([count for _, count in pods], dtype=np.int64)
        if not self._may_share_a_node(rows, counts):
            return
        total = (counts @ self._problem.requests[rows]).tolist()
        for masks in self._problem.pool_masks:
            offerings = self._available[masks.index]
            for row in rows:
                offerings &= self._meeting_row(masks, row)
            for axis, amount in enumerate(total):
                if amount and offerings:
                    offerings &= masks.holding(axis, amount)
            for allowed in domains:
                for key, values in allowed.items() if offerings else ():
                    offerings &= self._allowed(masks, key, values)
            for capacity_type in without:
                offerings &= ~masks.by_value(labels.CAPACITY_TYPE)[0].get(capacity_type, 0)
            if offerings:
                yield masks, offerings

    def values(self, key: str) -> frozenset[str]:
        """Return the values of a label that new nodes can have."""
        return frozenset(value for masks in self._problem.pool_masks for value in self._domains(masks, key))

    def _domains(self, masks: OfferingMasks, key: str) -> Mapping[str, int]:
        case = masks.index, key
        if case not in self._by_domain:
            self._by_domain[case] = masks.domains(key, -1, masks.offer)
        return self._by_domain[case]

    def _may_share_a_node(self, rows: Sequence[int], counts: Ints) -> bool:
        """Whether no required rule about a single node keeps some of these pods apart."""
        rules = self._problem.host_constraints
        if len(rules.axes) and bool((counts @ rules.limited_uses[rows] > rules.capacities).any()):
            return False
        apart = np.array([conflict.group is not None for conflict in rules.conflicts], dtype=bool)
        return not bool((rules.counted[rows].any(axis=0) & rules.lasting[rows].any(axis=0) & apart).any())

    def _meeting_row(self, masks: OfferingMasks, row: int) -> int:
        case = masks.index, row
        found = self._meeting.get(case)
        if found is None:
            constraints = self._problem.node_constraints[self._problem.node_constraints_of_row[row]]
            meeting = as_mask(masks.pool.rows(NodeDemand(constraints))[masks.rows])
            found = self._meeting[case] = meeting & masks.with_free_ports(self._problem.rows[row].ports)
        return found

    def _allowed(self, masks: OfferingMasks, key: str, values: Collection[str]) -> int:
        """Return the offerings that allow one of these values of a label."""
        found = masks.by_value(key)[1] if ABSENT in values else 0
        for value, offerings in self._domains(masks, key).items():
            found |= offerings if value in values else 0
        return found
