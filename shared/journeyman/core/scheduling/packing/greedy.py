"""Packs items node after node: each time the offer and content with the lowest price per worth, as often as it fits."""

from __future__ import annotations

from typing import Final

import numpy as np

from journeyman.core.scheduling.arrays import Bools, Floats, Ints, every
from journeyman.core.scheduling.packing.offer_filling import FilledNodes, OfferFilling, Search
from journeyman.core.scheduling.packing.packing_problem import Bin, Content, PackingProblem, content_of, merged

_EXACT_COUNT: Final = 1500  # items; the size of the exact method's table
_TRIFLE: Final = 1e-9  # added to each node's price, so that fewer nodes win at equal price
_EPSILON: Final = 1e-9
_ORDERS: Final = Search(orders=2, depth=0)


class GreedyPacker:
    """Packs one problem."""

    def __init__(self, problem: PackingProblem, filling: OfferFilling) -> None:
        self._problem = problem
        self._filling = filling
        self._suits = problem.allowed[problem.signatures]

    def plan(self, counts: Ints | Floats, worth: Floats, *, plain: bool = False) -> list[Bin]:
        """Return bins for these counts; `plain`: every node is filled with the most valuable items first.

        Ends with one node for all that is left where that is cheapest.
        """
        left = np.asarray(counts, dtype=float).copy()
        prices = self._problem.prices
        bins: list[Bin] = []
        spent = 0.0
        end: Bin | None = None  # of the cheapest plan that ends with one node for all the rest
        end_price, before_end = np.inf, 0
        while left.any():
            last = self.cheapest_node_for_all(left)
            if last is not None and spent + prices[last.offer] < end_price - _EPSILON:
                end, end_price, before_end = last, spent + float(prices[last.offer]), len(bins)
            b = self._next(left, worth, plain=plain)
            bins.append(b)
            left -= b.filling * b.copies
            spent += float(prices[b.offer]) * b.copies
            if spent >= end_price:
                break
        return [*bins[:before_end], end] if end is not None and (left.any() or end_price <= spent) else bins

    def _next(self, left: Floats, worth: Floats, *, plain: bool) -> Bin:
        """Return as many nodes of the lowest price per worth as these items fill."""
        nodes = self._filling.in_order_of_worth(worth, left)
        chosen = self._bin(nodes, left)
        if not plain:
            others = self._filling.search(worth, left, _ORDERS, least=0.0)
            if len(others.ratios) and others.ratios.max() > nodes.ratios.max(initial=0.0):
                chosen = self._bin(others, left)
        if chosen is None:  # amounts beyond what is exact as floats
            item = int(np.flatnonzero(left)[0])
            return self.exact_cover(item, int(left[item]))[0]
        return chosen

    def _bin(self, nodes: FilledNodes, left: Floats) -> Bin | None:
        if not len(nodes.ratios):
            return None
        best = nodes.best()
        filling = nodes.fillings[best]
        used = filling > 0
        if not used.any():
            return None
        copies = int((left[used] // filling[used]).min())
        return Bin(int(nodes.offers[best]), content_of(filling.astype(np.int64)), copies, len(left))

    def fewest(self, worth: Floats) -> list[Bin]:
        """Return a plan with few nodes: repeatedly opens the offer that takes the most worth, the cheapest if equal."""
        left = self._problem.counts.astype(float)
        bins: list[Bin] = []
        while left.any():
            nodes = self._filling.in_order_of_worth(worth, left)
            taken = np.round(nodes.fillings @ worth, 12)
            best = int(np.lexsort((self._problem.prices[nodes.offers], -taken))[0])
            b = self._bin(nodes.only(best), left)
            if b is None:
                item = int(np.flatnonzero(left)[0])
                b = self.exact_cover(item, int(left[item]))[0]
            bins.append(b)
            left -= b.filling * b.copies
        return bins

    def cheapest_node_for_all(self, left: Floats) -> Bin | None:
        """Return one node of the cheapest offer that holds all remaining items; None if no offer does."""
        counts = left.astype(np.int64)
        total = counts @ self._problem.requests
        kinds = np.flatnonzero(counts)
        if (self._problem.loose[kinds].any(axis=0) & self._problem.bound[kinds].any(axis=0)).any():
            return None
        holds: Bools = every(self._problem.sizes >= total)
        holds[holds] = self._suits[np.flatnonzero(holds)][:, kinds].all(axis=1)
        if not holds.any():
            return None
        offer = int(np.argmin(np.where(holds, self._problem.prices, np.inf)))
        return Bin(offer, content_of(counts), 1, len(left))

    def exact_cover(self, item: int, count: int) -> list[Bin]:
        """Return the cheapest bins for one kind of item, by dynamic programming; the fewest nodes if equal."""
        holds = self._filling.most[:, item].astype(np.int64)
        offers = np.flatnonzero(holds)
        holds, prices = holds[offers], self._problem.prices[offers] + _TRIFLE
        best = int(np.argmin(prices / holds))
        peeled = max(count - _EXACT_COUNT, 0) // int(holds[best])
        rest = count - peeled * int(holds[best])
        cost, choice = np.zeros(rest + 1), np.zeros(rest + 1, dtype=np.int64)
        for n in range(1, rest + 1):
            totals = cost[np.maximum(n - holds, 0)] + prices
            choice[n] = np.argmin(totals)
            cost[n] = totals[choice[n]]
        bins = [self._single(item, int(offers[best]), int(holds[best]), peeled)] if peeled else []
        while rest > 0:
            picked = int(choice[rest])
            bins.append(self._single(item, int(offers[picked]), min(int(holds[picked]), rest), 1))
            rest -= int(holds[picked])
        return merged(bins)

    def _single(self, item: int, offer: int, count: int, copies: int) -> Bin:
        return Bin(offer, Content((item,), (count,)), copies, self._filling.width)
