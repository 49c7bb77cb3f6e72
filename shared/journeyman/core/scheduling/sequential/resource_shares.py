"""Tracks what is left of all NodePool limits while nodes are planned, and each node's share of them.

Restates: karpenter pkg/controllers/provisioning/scheduling/scheduler.go `filterByRemainingResources`, `subtractMax`.
Differs: a node's share of its NodePool's limits is that of the cheapest type that holds its pods, and grows with them
as far as the limits allow; Karpenter takes the largest type that the node may become, as `reserve_largest_type` does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from journeyman.core.scheduling.arrays import Bools, Ints, every
from journeyman.core.scheduling.limits import Headroom
from journeyman.core.scheduling.nodeclaim_templates import achievable, needed_for_variety
from journeyman.core.scheduling.offering_masks import OfferingMasks


class ResourceShares:
    """Tracks what is left of all limits; `headroom` has an entry per NodePool."""

    def __init__(
        self, headroom: Sequence[Headroom], *, ignore_type_variety: bool = False, reserve_largest_type: bool = False
    ) -> None:
        self.reserve_largest_type = reserve_largest_type
        self._headroom = headroom
        self._ignore_type_variety = ignore_type_variety
        self._largest = [pool_headroom.costs.max(axis=0, initial=0) for pool_headroom in headroom]
        self._variety: dict[tuple[int, int], tuple[int, ...]] = {}

    def usable(self, masks: OfferingMasks, offerings: int, share: Ints | None, least: Sequence[int]) -> bool:
        """Whether these offerings of a node are within the limits and have enough different label values.

        `share` is the share that the node has already, `least` the number of values required by label (see `variety`).
        """
        if not masks.pool.template.min_values and not self._headroom[masks.index].resources:
            return True
        left = self.within(masks, offerings, share)
        if self._ignore_type_variety:
            return bool(left)
        return bool(left) and all(n >= minimum for n, minimum in zip(self.variety(masks, left), least, strict=True))

    def take(self, masks: OfferingMasks, offerings: int, share: Ints | None) -> Ints | None:
        """Reserve the share of a node with these offerings instead of `share`; return it, None without limits."""
        pool_headroom = self._headroom[masks.index]
        if not pool_headroom.resources:
            return None
        within = self.within(masks, offerings, share)
        reserved: Ints = pool_headroom.costs[self._needed(masks, within)].max(axis=0)
        if share is not None:
            pool_headroom.left = pool_headroom.left + share
        pool_headroom.left = pool_headroom.left - reserved
        return reserved

    def within(self, masks: OfferingMasks, offerings: int, share: Ints | None) -> int:
        """Return the offerings of a node that are within the limits; `share` is the share that the node has already."""
        pool_headroom = self._headroom[masks.index]
        if not pool_headroom.resources:
            return offerings
        left = pool_headroom.left if share is None else pool_headroom.left + share
        if (self._largest[masks.index] <= left).all():
            return offerings
        return offerings & masks.of_types(every(pool_headroom.costs <= left))

    def variety(self, masks: OfferingMasks, offerings: int) -> tuple[int, ...]:
        """Return by label with minValues how many values these offerings' types have, capped at the minValues."""
        if self._ignore_type_variety or not masks.pool.template.min_values:
            return ()
        case = (masks.index, offerings)
        if case not in self._variety:
            types: Bools = np.zeros(len(masks.pool.sizes), dtype=bool)
            types[masks.types_of(offerings)] = True
            self._variety[case] = tuple(achievable(masks.pool, types).values())
        return self._variety[case]

    def _needed(self, masks: OfferingMasks, offerings: int) -> list[int]:
        """Return the cheapest type and those needed for minValues; all types if the largest is reserved."""
        if self.reserve_largest_type:
            return list(masks.types_of(offerings))
        if self._ignore_type_variety or not masks.pool.template.min_values:
            return [masks.type_of(offerings)]
        types = masks.types_of(offerings)
        return sorted({types[0], *needed_for_variety(masks.pool, np.array(types, dtype=np.int64))})
