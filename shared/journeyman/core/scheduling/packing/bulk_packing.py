"""Packs many kinds of items: opens an ideal mix of nodes at once and distributes the items over all of them.

The solver opens the linear program's mix in whole nodes. It places the items one by one, the most valuable first, on
the node with the most similar free capacity (by the angle between the two, every axis weighted by its shadow price), so
that all axes of a node fill up evenly. Items that fit nowhere go to another solver or open more nodes. At the end each
node becomes the cheapest offer that holds its content.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from journeyman.core.scheduling.arrays import Bools, Floats, Ints, every
from journeyman.core.scheduling.packing.packing_problem import (
    Bin,
    Content,
    PackingProblem,
    cheapest_offers,
    merged,
)
from journeyman.core.scheduling.packing.shadow_prices import ShadowPrices

_EPSILON: Final = 1e-9
_MOST_CAPACITY: Final = 2**52  # amounts up to this are exact as floats
_DECIMALS: Final = 9  # of a similarity, so that rounding errors decide nothing


class FillOrder(Struct, frozen=True):
    """Parameters for matching items with nodes.

    Attributes:
        blend: Weight, from 0 to 1, of axes without a shadow price that are nearly used up.
        thrift: How strongly an item avoids nodes where it would use capacity worth more than itself; 0 disables it.
    """

    blend: float = 0.0
    thrift: float = 0.0


class _PlacedItem(NamedTuple):
    """Copies of one item on some nodes: `taken` of it on each of `nodes`."""

    item: int
    nodes: Ints
    taken: Ints


class BulkPacker:
    """The nodes being filled, as columns: free capacity, possible node constraints, conflicts of their items."""

    def __init__(self, problem: PackingProblem, shadow: ShadowPrices, fill_order: FillOrder) -> None:
        self.problem = problem
        self._shadow = shadow
        self._sizes = np.minimum(problem.sizes, _MOST_CAPACITY).astype(float)
        self._requests = problem.requests.astype(float)
        self._axes = [np.flatnonzero(request) for request in problem.requests]
        self._fill_order = fill_order
        self._worths_differ = fill_order.thrift > 0 and bool(
            (np.ptp(shadow.unit, axis=0) > 1e-6 * shadow.unit.max(axis=0)).any()
        )
        self._weights = np.maximum(self._mean_worth(), fill_order.blend * self._unpriced_worth())
        worth = self._requests @ self._weights if fill_order.blend else shadow.items
        self._worth: Floats = np.round(worth / max(float(worth.max(initial=0.0)), 1e-300), _DECIMALS + 3)
        self._interchangeable_constraints = _interchangeable_constraints(problem)
        self._in_conflict = np.logical_or.reduce(problem.selected | problem.owning, axis=1)
        self._efficiency = problem.prices / np.maximum((self._sizes * shadow.unit).sum(axis=1), _EPSILON)
        self.count = 0
        self._free = np.zeros((problem.requests.shape[1], 64))
        self._possible = np.zeros((len(problem.allowed), 64), dtype=bool)
        self._selected = np.zeros((problem.selected.shape[1], 64), dtype=bool)
        self._owning = np.zeros((problem.selected.shape[1], 64), dtype=bool)
        self._offers = np.zeros(64, dtype=np.int64)
        self._placed: list[_PlacedItem] = []

    def _mean_worth(self) -> Floats:
        """Return the worth of a unit of each axis, averaged over the offers by what the mix spends on them."""
        spent = self.problem.prices * (self._shadow.mix + _EPSILON)
        mean: Floats = spent @ self._shadow.unit / max(float(spent.sum()), 1e-300)
        return mean

    def _unpriced_worth(self) -> Floats:
        """Return the worth of a unit of each axis if the mix were bought for that axis alone, less for an unused share.

        An axis with a small surplus has no shadow price in the program, but still runs out on single nodes.
        """
        bought = self._shadow.mix @ self._sizes
        used = np.minimum(self.problem.counts @ self._requests / np.maximum(bought, 1.0), 1.0)
        spent = float(self._shadow.mix @ self.problem.prices)
        found: Floats = np.where(bought > 0, spent / np.maximum(bought, 1.0) * used**4, 0.0)
        return found

    def open(self, offer: int, copies: int) -> None:
        """Open nodes of an offer; each may become any offer with the same size and price."""
        end = self.count + copies
        while end > self._free.shape[1]:
            self._free, self._possible, self._selected, self._owning = (
                np.concatenate((table, np.zeros_like(table)), axis=1)
                for table in (self._free, self._possible, self._selected, self._owning)
            )
            self._offers = np.concatenate((self._offers, np.zeros_like(self._offers)))
        self._free[:, self.count : end] = self._sizes[offer][:, None]
        self._possible[:, self.count : end] = self._interchangeable_constraints[offer][:, None]
        self._offers[self.count : end] = offer
        self.count = end

    def place_all(self, counts: Ints, *, open_more: bool) -> Ints:
        """Place these items, the most valuable first; return the counts that did not fit."""
        left: Ints = counts.copy()
        for item in self._order(counts).tolist():
            left[item] = self._place(item, int(counts[item]))
            while open_more and left[item]:
                self._open_for(item, int(left[item]))
                left[item] = self._place(item, int(left[item]))
        return left

    def _order(self, counts: Ints) -> Ints:
        """Return the items in placement order: those of which a node holds only one first, then by worth."""
        kinds: Ints = np.flatnonzero(counts)
        most = np.maximum(self._sizes.max(axis=0), 1.0)
        alone = (self._requests[kinds] / most).max(axis=1) > 0.5
        order: Ints = kinds[np.lexsort((kinds, -self._worth[kinds], ~alone))]
        return order

    def _place(self, item: int, count: int) -> int:
        """Place copies of an item on the open nodes; return how many are left."""
        while count:
            nodes, fitting = self._nodes_with_capacity(item)
            if not len(nodes):
                break
            best = self._by_similarity(item, nodes)
            share = max(-(-count * 2 // len(nodes)), 1)
            taken = np.minimum(fitting[best], share).astype(np.int64)
            before = np.cumsum(taken) - taken
            taken = np.minimum(taken, np.maximum(count - before, 0))
            used = taken > 0
            self._record(item, nodes[best[used]], taken[used])
            count -= int(taken.sum())
        return count

    def _nodes_with_capacity(self, item: int) -> tuple[Ints, Floats]:
        """Return the nodes that can take the item, and how many copies each can take."""
        axes = self._axes[item]
        amounts = self._requests[item, axes]
        fitting = np.floor((self._free[axes, : self.count] / amounts[:, None]).min(axis=0))
        open_to: Bools = fitting > 0
        if len(self._possible) > 1:
            open_to &= self._possible[self.problem.allowed[:, item], : self.count].any(axis=0)
        if self._in_conflict[item]:
            open_to &= ~self._selected[self.problem.owning[item], : self.count].any(axis=0)
            open_to &= ~self._owning[self.problem.selected[item], : self.count].any(axis=0)
        nodes = np.flatnonzero(open_to)
        return nodes, fitting[nodes]

    def _by_similarity(self, item: int, nodes: Ints) -> Ints:
        """Return the positions of the nodes, those with the most similar free capacity first.

        Nodes where the item would use capacity worth more than the item come later: other items use them better.
        """
        capacity = self._free[:, nodes] * self._weights[:, None]
        weighted = self._requests[item] * self._weights
        similarity = weighted @ capacity / np.sqrt((capacity * capacity).sum(axis=0) * (weighted @ weighted) + 1e-300)
        if self._worths_differ:
            taken = self._requests[item] @ self._shadow.unit.T
            own = max(float(self._shadow.items[item]), 1e-6 * float(taken.max()), 1e-300)
            similarity -= self._fill_order.thrift * (taken / own)[self._offers[nodes]]
        order: Ints = np.argsort(-np.round(similarity, _DECIMALS), kind="stable")
        return order

    def _record(self, item: int, nodes: Ints, taken: Ints) -> None:
        axes = self._axes[item]
        self._free[axes[:, None], nodes] -= taken * self._requests[item, axes, None]
        if len(self._possible) > 1:
            self._possible[:, nodes] &= self.problem.allowed[:, item, None]
        if self._in_conflict[item]:
            self._selected[:, nodes] |= self.problem.selected[item][:, None]
            self._owning[:, nodes] |= self.problem.owning[item][:, None]
        self._placed.append(_PlacedItem(item, nodes, taken))

    def _open_for(self, item: int, count: int) -> None:
        """Open the offer with the most worth for its price among those that hold the item."""
        problem = self.problem
        holds = every(problem.sizes >= problem.requests[item]) & problem.allowed[problem.constraints, item]
        holding = np.flatnonzero(holds & ~problem.is_reserved)
        offer = int(holding[np.lexsort((holding, np.round(self._efficiency[holding], 6)))[0]])
        axes = self._axes[item]
        each = int((self._sizes[offer, axes] // self._requests[item, axes]).min())
        self.open(offer, -(-count // each))

    def open_mix(self, mix: Ints) -> None:
        """Open the given number of nodes of each offer."""
        for offer in np.flatnonzero(mix).tolist():
            self.open(offer, int(mix[offer]))

    def settle(self, offers_from: PackingProblem | None) -> list[Bin]:
        """Return each filled node as the cheapest offer of `offers_from` that holds its content, or as its own."""
        if not self._placed:
            return []
        nodes = np.concatenate([placed.nodes for placed in self._placed])
        items = np.concatenate([np.full(len(placed.nodes), placed.item) for placed in self._placed])
        taken = np.concatenate([placed.taken for placed in self._placed])
        order = np.lexsort((items, nodes))
        nodes, items, taken = nodes[order], items[order], taken[order]
        firsts = np.flatnonzero((np.diff(nodes, prepend=-1) != 0) | (np.diff(items, prepend=-1) != 0))
        nodes, items, taken = (
            nodes[firsts],
            items[firsts],
            np.add.reduceat(taken, firsts),
        )  # sums the copies of an item that was placed on a node more than once
        filled, starts = np.unique(nodes, return_index=True)
        totals = np.add.reduceat(self.problem.requests[items] * taken[:, None], starts, axis=0)
        offers = self._offers[filled]
        if offers_from is not None:
            offers = cheapest_offers(offers_from, totals, self._possible[:, filled].T)
        all_items, all_copies = tuple(items.tolist()), tuple(taken.tolist())
        ends = [*starts[1:].tolist(), len(all_items)]
        width = len(self.problem.counts)
        return merged(
            Bin(offer, Content(all_items[start:end], all_copies[start:end]), 1, width)
            for offer, start, end in zip(offers.tolist(), starts.tolist(), ends, strict=True)
        )


def _interchangeable_constraints(problem: PackingProblem) -> Bools:
    """Return by offer and node constraints whether one with these node constraints has the same size at the same price.

    A reserved offer has only its own constraints.
    """
    found = np.zeros((len(problem.prices), len(problem.allowed)), dtype=bool)
    found[np.arange(len(problem.prices)), problem.constraints] = True
    if len(problem.allowed) == 1:
        return found
    families: dict[tuple[float, bytes], list[int]] = {}
    for offer in np.flatnonzero(~problem.is_reserved).tolist():
        families.setdefault((float(problem.prices[offer]), problem.sizes[offer].tobytes()), []).append(offer)
    for members in families.values():
        found[np.array(members)[:, None], problem.constraints[members]] = True
    return found


_OFFERS: Final = 40  # their combinations are tried for the fractional rest of the mix
MARGINS: Final = (0.0, 0.01, 0.02, 0.03, 0.05, 0.08)  # spare capacity, because items are indivisible


def whole_mixes(problem: PackingProblem, shadow: ShadowPrices) -> Iterator[Ints]:
    """Yield node counts by offer: the mix rounded down, then with a cheap cover of the rest and growing margins."""
    base = np.floor(shadow.mix + _EPSILON).astype(np.int64)
    yield base
    if len(problem.allowed) > 1:
        for least in (0.5, 0.0):
            yield base + (shadow.mix - base > least + _EPSILON)
        return
    combinations = _NodeCombinations(problem, shadow)
    seen = {base.tobytes()}
    for margin in MARGINS:
        need = (problem.counts @ problem.requests).astype(float) * (1 + margin) - base @ problem.sizes
        mix = base + combinations.cheapest_cover(need)
        if mix.tobytes() not in seen:
            seen.add(mix.tobytes())
            yield mix


class _NodeCombinations:
    """All combinations of up to three nodes of promising offers, by price."""

    def __init__(self, problem: PackingProblem, shadow: ShadowPrices) -> None:
        need = (problem.counts @ problem.requests).astype(float)
        usable = np.minimum(problem.sizes, need)
        value = (usable * shadow.unit).sum(axis=1)
        ratio = problem.prices / np.maximum(value, 1e-300)
        self._width = len(problem.prices)
        offers: Ints = np.sort(np.argsort(ratio, kind="stable")[:_OFFERS])
        none = len(offers)  # stands for no node
        first, second, third = (axis.ravel() for axis in np.indices((none + 1,) * 3))
        ordered = (first <= second) & (second <= third) & (first < none)
        self._picks: Ints = np.stack((first[ordered], second[ordered], third[ordered]), axis=1)
        self._offers = offers
        self._sizes: Floats = np.vstack((problem.sizes[offers], np.zeros_like(problem.sizes[:1]))).astype(float)
        self._prices: Floats = np.append(problem.prices[offers], 0.0)[self._picks].sum(axis=1)

    def cheapest_cover(self, need: Floats) -> Ints:
        """Return the cheapest node counts by offer with this total capacity; zeros if three nodes do not suffice."""
        covers = every(self._sizes[self._picks].sum(axis=1) >= need)
        mix = np.zeros(self._width, dtype=np.int64)
        if (need > 0).any() and covers.any():
            best = int(np.argmin(np.where(covers, self._prices, np.inf)))
            for pick in self._picks[best]:
                if pick < len(self._offers):
                    mix[self._offers[pick]] += 1
        return mix
