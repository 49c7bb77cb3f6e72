"""Packs few kinds of items by repeatedly opening the offer and content with the lowest price per shadow price.

Every item gets a shadow price, first from the linear program over resources, then refined over whole nodes (column
generation). The solver opens the best filled offer at those prices as often as the counts allow, until no item is left.
It compares several filling orders, may end a plan with one node for all remaining items, and solves a single kind of
item exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from journeyman.core.scheduling.arrays import Bools, Floats, Ints
from journeyman.core.scheduling.packing.linear_program import CoveringProgram
from journeyman.core.scheduling.packing.packing_problem import (
    Bin,
    Content,
    PackingProblem,
    content_of,
    held_by,
    merged,
    price_of,
)
from journeyman.core.scheduling.packing.shadow_prices import ShadowPrices

REFINED_ITEMS: Final = 64  # column generation needs a row per item
_REFINING_ROUNDS: Final = 24
PROMISING_OFFERS: Final = 64  # examined in detail for each node
_TRIED_AT_ONCE: Final = 400  # offers on which an item is tried in twice the time of one offer
_EXACT_COUNT: Final = 1500  # items; the size of the exact method's table
_LEAST_WORTH: Final = 1e-3  # of an item's price alone
_EPSILON: Final = 1e-9
_DECIMALS: Final = 9  # of a price; smaller differences are rounding errors


class _FilledOffer(NamedTuple):
    """An offer, and the count of each item on one of its nodes."""

    offer: int
    filling: Ints


class GreedyPacker:
    """Packs one problem, whose shadow prices are given."""

    def __init__(self, problem: PackingProblem, shadow: ShadowPrices) -> None:
        self._problem = problem
        self._width = len(problem.counts)
        self._axes = [np.flatnonzero(request) for request in problem.requests]
        self._amounts = [request[axes] for request, axes in zip(problem.requests, self._axes, strict=True)]
        self._suits = problem.allowed[problem.constraints]  # by offer and item
        self._fits = problem.fits().T
        self._in_conflict = np.logical_or.reduce(problem.selected | problem.owning, axis=1)
        self._lower_bounds = shadow.items
        # an item that only uses axes without a price must still be worth placing
        self._worth: Floats = np.maximum(shadow.items, _LEAST_WORTH * self._prices_alone())
        self._offer_worth = (problem.sizes * shadow.unit).sum(axis=1)
        self._refined: Floats | None = None
        self.tried = 0  # items on offers, over all fillings
        self._by_size = self._order(self._relative_size())

    def price(self, bins: Iterable[Bin]) -> float:
        """Return the total price of the bins."""
        return price_of(bins, self._problem.prices)

    # --- whole plans

    def cheapest(self, counts: Ints) -> list[Bin]:
        """Return the cheapest plan of all strategies; refines shadow prices once, for the first call's counts."""
        kinds = np.flatnonzero(counts)
        if len(kinds) == 1:
            return cover_exactly(self._problem, int(kinds[0]), int(counts[kinds[0]]))
        plans = [self.straight(counts)]
        if self._refined is None and self._width <= REFINED_ITEMS:
            self._refined, whole = self._refine(counts, plans[0])
            plans.append([*whole, *self._rest_of(counts, whole)])
        if self._refined is not None:
            plans.append(self.by_worth(counts, self._refined))
        return min(plans, key=self._preference)

    def straight(self, counts: Ints) -> list[Bin]:
        """Return the plan by the linear program's shadow prices, without refinement."""
        return self._greedy(counts, self._worth, [self._by_size])

    def plain(self, counts: Ints, most: float, effort: int) -> list[Bin] | None:
        """Return the simple greedy's plan: every node is the offer and content with the lowest price per worth.

        A node is filled with the most valuable items first. An offer is filled again only when fewer copies are left
        than its filling has.

        Args:
            counts: Count by item.
            most: Plans at this price are not wanted. Stops as soon as the shadow prices of the items left prove it.
            effort: Items tried, all offers at once; many offers count more than once.

        Returns:
            The plan; None if it costs at least `most`, or takes more effort.
        """
        prices, worth = self._problem.prices, self._worth
        order = self._order(worth)
        left = counts.copy()
        limit = self.tried + effort
        fillings = self._fill(left, order, np.arange(len(prices)))
        values = fillings @ worth
        bins: list[Bin] = []
        spent = 0.0
        while left.any():
            if spent + float(self._lower_bounds @ left) >= most:
                return None
            offer = int(np.argmin(np.where(values > 0, prices / np.maximum(values, 1e-300), np.inf)))
            bins.append(self._repeated(left, offer, fillings[offer]))
            left -= fillings[offer] * bins[-1].copies
            spent += float(prices[offer]) * bins[-1].copies
            if self.tried > limit:
                return None
            outdated = np.flatnonzero((fillings > left).any(axis=1))
            fillings[outdated] = self._fill(left, order, outdated)
            values[outdated] = fillings[outdated] @ worth
        return bins

    def by_worth(self, counts: Ints, worth: Floats) -> list[Bin]:
        """Return the plan by these prices of the items."""
        density = self._order(worth / np.maximum(self._worth, _EPSILON))
        return self._greedy(counts, worth, [self._by_size, density])

    def _preference(self, bins: Iterable[Bin]) -> tuple[float, int]:
        """Sort key of a plan: price, then number of nodes."""
        bins = list(bins)
        return round(self.price(bins), _DECIMALS), sum(b.copies for b in bins)

    def _rest_of(self, counts: Ints, bins: list[Bin]) -> list[Bin]:
        """Return bins for the items that these bins leave."""
        left = np.maximum(counts - held_by(bins, self._width), 0)
        return self.cheapest(left) if left.any() else []

    def fewest(self, counts: Ints) -> list[Bin]:
        """Return a plan with few nodes: repeatedly opens the offer that takes the most items, the cheapest if equal."""
        left = counts.copy()
        bins: list[Bin] = []
        while left.any():
            fillings = self._fill(left, self._by_size, np.arange(len(self._problem.prices)))
            taken = fillings @ self._worth
            best = int(np.lexsort((self._problem.prices, -np.round(taken, 12)))[0])
            bins.append(self._repeated(left, best, fillings[best]))
            left -= fillings[best] * bins[-1].copies
        return bins

    # --- strategies

    def _greedy(self, counts: Ints, worth: Floats, orders: Sequence[Ints]) -> list[Bin]:
        """Take the filling with the lowest price per worth, again and again; end with one node where cheapest."""
        left = counts.copy()
        bins: list[Bin] = []
        spent = 0.0
        end: Bin | None = None  # of the cheapest plan that ends with one node for all the rest
        end_price, before_end = np.inf, 0
        while left.any():
            last = self.cheapest_node_for_all(left)
            if last is not None and spent + self._problem.prices[last.offer] < end_price - _EPSILON:
                end, end_price, before_end = last, spent + float(self._problem.prices[last.offer]), len(bins)
            offers = self._promising(left, worth)
            offer, filling = self._best_filling(left, worth, orders, offers)
            bins.append(self._repeated(left, offer, filling))
            left -= filling * bins[-1].copies
            spent = self.price(bins)
            if spent >= end_price:
                break
        return [*bins[:before_end], end] if end is not None and (left.any() or end_price <= spent) else bins

    def _best_filling(self, left: Ints, worth: Floats, orders: Sequence[Ints], offers: Ints) -> _FilledOffer:
        """Return the filling with the lowest price per worth, in one of the orders or with even shares."""
        best: _FilledOffer | None = None
        best_ratio = np.inf
        for order, even in [*((order, False) for order in orders), (orders[0], True)]:
            fillings = self._fill(left, order, offers, mixed=even)
            values = fillings @ worth
            ratios = np.where(values > 0, self._problem.prices[offers] / np.maximum(values, 1e-300), np.inf)
            row = int(np.argmin(ratios))
            if best is None or ratios[row] < best_ratio - _EPSILON:
                best, best_ratio = _FilledOffer(int(offers[row]), fillings[row]), float(ratios[row])
        assert best is not None  # noqa: S101 - there is always an order
        return best

    def _promising(self, left: Ints, worth: Floats) -> Ints:
        """Return promising offers: half with the lowest price per worth, half spread evenly over the others."""
        useful = np.flatnonzero(self._fits[:, left > 0].any(axis=1))
        if len(useful) <= PROMISING_OFFERS:
            return useful
        at_most = np.minimum(self._suits[useful] @ (left * worth), self._offer_worth[useful])
        ranked = np.argsort(self._problem.prices[useful] / np.maximum(at_most, 1e-300), kind="stable")
        half = PROMISING_OFFERS // 2
        spread = np.linspace(half, len(ranked) - 1, half).astype(np.int64)
        return np.sort(useful[np.concatenate((ranked[:half], ranked[spread]))])

    def cheapest_node_for_all(self, left: Ints) -> Bin | None:
        """Return one node of the cheapest offer that holds all remaining items; None if no offer does."""
        total = left @ self._problem.requests
        kinds = np.flatnonzero(left)
        if (self._problem.selected[kinds].any(axis=0) & self._problem.owning[kinds].any(axis=0)).any():
            return None
        holds = (self._problem.sizes >= total).all(axis=1) & self._suits[:, kinds].all(axis=1)
        if not holds.any():
            return None
        offer = int(np.argmin(np.where(holds, self._problem.prices, np.inf)))
        return Bin(offer, content_of(left), 1, self._width)

    # --- shadow values

    def _prices_alone(self) -> Floats:
        """Return by item its price on the offer that is cheapest for this item alone."""
        found = np.zeros(self._width)
        for item, (axes, amounts) in enumerate(zip(self._axes, self._amounts, strict=True)):
            holds = (self._problem.sizes[:, axes] // amounts).min(axis=1) * self._suits[:, item]
            able = holds > 0
            found[item] = (self._problem.prices[able] / holds[able]).min() if able.any() else 0.0
        return found

    def _refine(self, counts: Ints, plan: list[Bin]) -> tuple[Floats, list[Bin]]:
        """Return each item's shadow price over whole fillings, and the whole nodes of the fractional optimum.

        Column generation, starting with a plan's fillings: the program over the known fillings prices each item, and
        the best filling at those prices becomes a new column, until no filling has a negative reduced cost.
        """
        kinds = np.flatnonzero(counts)
        columns = list(plan)
        program = CoveringProgram(counts[kinds].astype(float))
        program.add(self._problem.prices[[b.offer for b in plan]], np.array([b.filling[kinds] for b in plan]))
        worth, amounts = np.zeros(len(counts)), np.zeros(0)
        for _ in range(_REFINING_ROUNDS):
            worth[kinds], amounts = program.solve(), program.amounts
            density = self._order(worth / np.maximum(self._worth, _EPSILON))
            offers = self._promising(counts, worth)
            offer, filling = self._best_filling(counts, worth, [density, self._by_size], offers)
            if self._problem.prices[offer] >= filling @ worth * (1 - 1e-7):
                break
            program.add(self._problem.prices[[offer]], filling[None, kinds].astype(float))
            columns.append(Bin(offer, content_of(filling), 1, self._width))
        whole = [
            Bin(columns[j].offer, columns[j].content, int(amounts[j] + _EPSILON), self._width)
            for j in np.argsort(-amounts, kind="stable").tolist()
            if amounts[j] + _EPSILON >= 1
        ]
        return np.maximum(worth, self._worth * 1e-3), self._within(counts, whole)

    @staticmethod
    def _within(counts: Ints, bins: list[Bin]) -> list[Bin]:
        """Return the bins, each with only as many copies as the counts can fill."""
        left = counts.copy()
        kept: list[Bin] = []
        for b in bins:
            copies = min(b.copies, *(int(left[item]) // count for item, count in b.content.pairs()))
            if copies:
                left -= b.filling * copies
                kept.append(Bin(b.offer, b.content, copies, b.width))
        return kept

    # --- filling

    def _fill(self, left: Ints, order: Ints, offers: Ints, *, mixed: bool = False) -> Ints:
        """Return counts by offer and item: each of these offers filled greedily in this order.

        `mixed` first gives every offer the largest possible equal share of all items it may hold, so that no resource
        runs out long before the others.
        """
        problem = self._problem
        capacity = problem.sizes[offers]
        suits = self._suits[offers]
        fillings = self.even_shares(left, suits, capacity) if mixed else np.zeros(suits.shape, dtype=np.int64)
        free = np.ascontiguousarray((capacity - fillings @ problem.requests).T)
        remaining = np.where(suits, left - fillings, 0)
        has_selected, has_owning = (np.zeros((len(offers), problem.selected.shape[1]), dtype=bool) for _ in range(2))
        placeable = self._fits[offers].any(axis=0) & (left > 0)
        items = order[placeable[order]].tolist()
        self.tried += int(len(items) * (1 + len(offers) / _TRIED_AT_ONCE))
        for i in items:
            axes, amounts = self._axes[i], self._amounts[i][:, None]
            taken = np.minimum(np.minimum.reduce(free[axes] // amounts), remaining[:, i])
            if self._in_conflict[i]:
                taken *= ~(has_selected & problem.owning[i] | has_owning & problem.selected[i]).any(axis=1)
                some = (taken > 0)[:, None]
                has_selected |= some & problem.selected[i]
                has_owning |= some & problem.owning[i]
            fillings[:, i] += taken
            free[axes] -= taken * amounts
        return fillings

    def even_shares(self, left: Ints, suits: Bools, capacity: Ints) -> Ints:
        """Return by offer and item the largest equal share of all remaining items that the offer can take."""
        wanted = suits * np.where(self._in_conflict, 0, left)
        needs = (wanted @ self._problem.requests).astype(float)
        shares = np.where(needs > 0, capacity / np.maximum(needs, 1.0), 1.0).min(axis=1)
        just_below = np.minimum(shares, 1.0) * (1 - 1e-12)  # so that rounding never overfills
        fillings: Ints = np.floor(wanted * just_below[:, None]).astype(np.int64)
        return fillings

    def _repeated(self, left: Ints, offer: int, filling: Ints) -> Bin:
        """Return as many nodes of the offer with this filling as the remaining items allow."""
        used = filling > 0
        copies = int((left[used] // filling[used]).min())
        return Bin(offer, content_of(filling), copies, self._width)

    def _relative_size(self) -> Floats:
        """Return each item's largest share of an axis of the largest offer."""
        largest = np.maximum(self._problem.sizes.max(axis=0), 1)
        shares: Floats = (self._problem.requests / largest).max(axis=1)
        return shares

    @staticmethod
    def _order(weight: Floats) -> Ints:
        """Return the items by weight descending, then index."""
        return np.argsort(-weight, kind="stable")


def cover_exactly(problem: PackingProblem, item: int, count: int) -> list[Bin]:
    """Return the cheapest bins for one kind of item, by dynamic programming; the fewest nodes if equal."""
    axes = np.flatnonzero(problem.requests[item])
    holds = (problem.sizes[:, axes] // problem.requests[item, axes]).min(axis=1)
    offers = np.flatnonzero(holds * problem.allowed[problem.constraints, item])
    holds, prices = holds[offers], problem.prices[offers] + _EPSILON  # prefers fewer nodes at equal price
    best = int(np.argmin(prices / holds))
    peeled = max(count - _EXACT_COUNT, 0) // int(holds[best])
    rest = count - peeled * int(holds[best])
    cost, choice = np.zeros(rest + 1), np.zeros(rest + 1, dtype=np.int64)
    for n in range(1, rest + 1):
        totals = cost[np.maximum(n - holds, 0)] + prices
        choice[n] = np.argmin(totals)
        cost[n] = totals[choice[n]]
    width = len(problem.counts)
    bins = [Bin(int(offers[best]), Content((item,), (int(holds[best]),)), peeled, width)] if peeled else []
    while rest > 0:
        picked = int(choice[rest])
        bins.append(Bin(int(offers[picked]), Content((item,), (min(int(holds[picked]), rest),)), 1, width))
        rest -= int(holds[picked])
    return merged(bins)
