"""The pools' limits while nodes grow: each node to open has a share set aside, of a type that holds it now.

Restates: karpenter pkg/controllers/provisioning/scheduling/scheduler.go `filterByRemainingResources`, `subtractMax`.
Differs: the share is that of the cheapest type that holds the pods, and grows with them as far as the limits allow. Set
aside `generously`, it is the largest type that the node may become, as in Karpenter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from journeyman.core.scheduling.arrays import Bools, Ints, every
from journeyman.core.scheduling.limits import Headroom
from journeyman.core.scheduling.offering.min_values import achievable, needed_for_variety
from journeyman.core.scheduling.one_by_one.shelves import Shelf


class Shares:
    """What is left of all limits; `headroom` has an entry per stall, and is used up."""

    def __init__(self, headroom: Sequence[Headroom], *, generously: bool, narrowly: bool = False) -> None:
        self._headroom = headroom
        self._narrowly = narrowly
        self._generously = generously
        self._largest = [room.costs.max(axis=0, initial=0) for room in headroom]
        self._variety: dict[tuple[int, int], tuple[int, ...]] = {}

    def usable(self, shelf: Shelf, offerings: int, held: Ints | None, least: Sequence[int]) -> bool:
        """Whether a node may keep just these offerings: within the limits, and with enough choice left.

        `held` is the share that the node has already, `least` the variety it must keep (`variety`).
        """
        if not shelf.stall.template.min_values and not self._headroom[shelf.index].resources:
            return True
        left = self._within(shelf, offerings, held)
        if self._narrowly:
            return bool(left)
        return bool(left) and all(n >= wanted for n, wanted in zip(self.variety(shelf, left), least, strict=True))

    def take(self, shelf: Shelf, offerings: int, held: Ints | None) -> Ints | None:
        """Set aside what a node of these offerings takes, in place of the share held so far; None without limits."""
        room = self._headroom[shelf.index]
        if not room.resources:
            return None
        within = self._within(shelf, offerings, held)
        share: Ints = room.costs[self._needed(shelf, within)].max(axis=0)
        if held is not None:
            share = np.maximum(share, held) if self._generously else share
            room.left = room.left + held
        room.left = room.left - share
        return share

    def _within(self, shelf: Shelf, offerings: int, held: Ints | None) -> int:
        room = self._headroom[shelf.index]
        if not room.resources:
            return offerings
        left = room.left if held is None else room.left + held
        if (self._largest[shelf.index] <= left).all():
            return offerings
        return offerings & shelf.of_types(every(room.costs <= left))

    def variety(self, shelf: Shelf, offerings: int) -> tuple[int, ...]:
        """By label with minValues, how many values these offerings' types have, at most as many as asked for."""
        if self._narrowly or not shelf.stall.template.min_values:
            return ()
        case = (shelf.index, offerings)
        if case not in self._variety:
            types: Bools = np.zeros(len(shelf.stall.sizes), dtype=bool)
            types[shelf.types_of(offerings)] = True
            self._variety[case] = tuple(achievable(shelf.stall, types).values())
        return self._variety[case]

    def _needed(self, shelf: Shelf, offerings: int) -> list[int]:
        """The cheapest type, and those that make up the choice that minValues asks for; all of them if generous."""
        if self._generously:
            return shelf.types_of(offerings)
        if self._narrowly or not shelf.stall.template.min_values:
            return [shelf.type_of(offerings)]
        types = shelf.types_of(offerings)
        return sorted({types[0], *needed_for_variety(shelf.stall, np.array(types, dtype=np.int64))})
