"""Packs few kinds of items: node after node, the offer and content with the least price per shadow price.

Every item gets a shadow price, first from the linear program over resources, then refined over whole nodes (column
generation). The best buy at those prices is taken as often as it suits, until nothing is left. Several orders of
filling compete, a plan may end early with one node that holds all that is left, a single kind of item is solved
exactly, and at last the worst nodes of the plan are taken apart and packed again as long as that saves money.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from journeyman.core.scheduling.arrays import Bools, Floats, Ints
from journeyman.core.scheduling.packing.linear_program import CoveringProgram
from journeyman.core.scheduling.packing.packing_problem import (
    Bin,
    PackingProblem,
    content_of,
    held_by,
    merged,
    price_of,
)
from journeyman.core.scheduling.packing.shadow_prices import compute_shadow_prices

REFINED_ITEMS: Final = 64  # column generation needs a row per item
_REFINING_ROUNDS: Final = 24
PROMISING_OFFERS: Final = 64  # looked at closely for each node
_EXACT_COUNT: Final = 1500  # the exact method's table, in items
REPACK_ROUNDS: Final = 24
_REPACK_EFFORT: Final = 3000  # kinds of items times nodes, over all attempts
_REPACK_SIZES: Final = (2, 3, 4, 6, 9, 14)
_LEAST_WORTH: Final = 1e-3  # of what an item costs alone
_EPSILON: Final = 1e-9
_DECIMALS: Final = 9  # of a price; what differs beyond is rounding


class ColumnGenerationSolver:
    """One problem's shadow values and the methods that use them."""

    def __init__(self, problem: PackingProblem) -> None:
        self._problem = problem
        self._width = len(problem.counts)
        self._axes = [np.flatnonzero(request) for request in problem.requests]
        self._amounts = [request[axes] for request, axes in zip(problem.requests, self._axes, strict=True)]
        self._suits = problem.allowed[problem.signatures]  # by offer and item
        self._in_conflict = np.logical_or.reduce(problem.loose | problem.bound, axis=1)
        shadow = compute_shadow_prices(problem, with_mix=False)
        # an item that only uses what is free for now must still be worth placing
        self._worth: Floats = np.maximum(shadow.items, _LEAST_WORTH * self._prices_alone())
        self._offer_worth = (problem.sizes * shadow.unit).sum(axis=1)
        self._refined: Floats | None = None
        self._effort = _REPACK_EFFORT
        self._by_size = self._order(self._relative_size())

    def price(self, bins: Iterable[Bin]) -> float:
        """What the bins cost together."""
        return price_of(bins, self._problem.prices)

    # --- whole plans

    def cheapest(self, counts: Ints) -> list[Bin]:
        """The best of all strategies for these counts; refined values are found once, for the first counts asked."""
        kinds = np.flatnonzero(counts)
        if len(kinds) == 1:
            return self.exact_cover(int(kinds[0]), int(counts[kinds[0]]))
        plans = [self.straight(counts)]
        if self._refined is None and self._width <= REFINED_ITEMS:
            self._refined, whole = self._refine(counts, plans[0])
            plans.append([*whole, *self._rest_of(counts, whole)])
        if self._refined is not None:
            density = self._order(self._refined / np.maximum(self._worth, _EPSILON))
            plans.append(self._greedy(counts, self._refined, [self._by_size, density]))
        return min(plans, key=self._preference)

    def straight(self, counts: Ints) -> list[Bin]:
        """The plan by the linear program's values alone."""
        return self._greedy(counts, self._worth, [self._by_size])

    def _preference(self, bins: Iterable[Bin]) -> tuple[float, int]:
        """The cheaper plan first; of equal ones, that of fewer nodes."""
        bins = list(bins)
        return round(self.price(bins), _DECIMALS), sum(b.copies for b in bins)

    def _rest_of(self, counts: Ints, bins: list[Bin]) -> list[Bin]:
        """Bins for what these bins leave."""
        left = np.maximum(counts - held_by(bins, self._width), 0)
        return self.cheapest(left) if left.any() else []

    def fewest(self, counts: Ints) -> list[Bin]:
        """Node after node, the offer that takes most (cheapest if equal)."""
        left = counts.copy()
        bins: list[Bin] = []
        while left.any():
            fillings = self._fill(left, self._by_size, np.arange(len(self._problem.prices)))
            taken = fillings @ self._worth
            best = int(np.lexsort((self._problem.prices, -np.round(taken, 12)))[0])
            bins.append(self._take(left, best, fillings[best]))
        return bins

    def improve(self, bins: list[Bin]) -> list[Bin]:
        """Take the worst nodes apart and pack their content again, as long as that saves money."""
        most = max(_REPACK_SIZES)
        nodes = [Bin(b.offer, b.content, 1, b.width) for b in bins for _ in range(min(b.copies, most))]
        kept = [Bin(b.offer, b.content, b.copies - most, b.width) for b in bins if b.copies > most]
        for _ in range(REPACK_ROUNDS):
            if self._effort <= 0:
                break
            better = self._repack(nodes)
            if better is None:
                break
            nodes = better
        return merged([*kept, *nodes])

    def _repack(self, nodes: list[Bin]) -> list[Bin] | None:
        """The nodes with some of the worst replaced by something cheaper; None if nothing cheaper is found."""
        waste = [self._problem.prices[b.offer] / max(self._worth_of(b), _EPSILON) for b in nodes]
        ranked = sorted(range(len(nodes)), key=lambda n: (-waste[n], n))
        for size in _REPACK_SIZES:
            worst, rest = ranked[:size], ranked[size:]
            if size > len(nodes) and size != _REPACK_SIZES[0]:
                break
            old = [nodes[n] for n in worst]
            counts = held_by(old, self._width)
            self._effort -= int(np.count_nonzero(counts)) * size
            new = self.cheapest(counts)
            if self.price(new) < self.price(old) - _EPSILON:
                single = [Bin(b.offer, b.content, 1, b.width) for b in new for _ in range(b.copies)]
                return [nodes[n] for n in sorted(rest)] + single
        return None

    def _worth_of(self, b: Bin) -> float:
        return sum(float(self._worth[item]) * count for item, count in b.content)

    # --- one strategy each

    def _greedy(self, counts: Ints, worth: Floats, orders: Sequence[Ints]) -> list[Bin]:
        """Always the filling of least price per worth, and the best moment to end with one node for all the rest."""
        left = counts.copy()
        bins: list[Bin] = []
        spent = 0.0
        best_end: tuple[float, int, Bin | None] = (np.inf, 0, None)
        while left.any():
            last = self.cheapest_node_for_all(left)
            if last is not None and spent + self._problem.prices[last.offer] < best_end[0] - _EPSILON:
                best_end = (spent + float(self._problem.prices[last.offer]), len(bins), last)
            offer, filling = self._best_filling(left, worth, orders)
            bins.append(self._take(left, offer, filling))
            spent = self.price(bins)
            if spent >= best_end[0]:
                break
        price, cut, end = best_end
        return [*bins[:cut], end] if end is not None and (left.any() or price <= spent) else bins

    def _best_filling(self, left: Ints, worth: Floats, orders: Sequence[Ints]) -> tuple[int, Ints]:
        offers = self._promising(left, worth)
        best: tuple[float, int, Ints] | None = None
        for order, mixed in [*((order, False) for order in orders), (orders[0], True)]:
            fillings = self._fill(left, order, offers, mixed=mixed)
            values = fillings @ worth
            ratios = np.where(values > 0, self._problem.prices[offers] / np.maximum(values, 1e-300), np.inf)
            row = int(np.argmin(ratios))
            if best is None or ratios[row] < best[0] - _EPSILON:
                best = (float(ratios[row]), int(offers[row]), fillings[row])
        assert best is not None  # noqa: S101 - there is always an order
        return best[1], best[2]

    def _promising(self, left: Ints, worth: Floats) -> Ints:
        """The offers that may be the best buy now: half by what they and what is left are worth at most, half at large."""
        useful = np.flatnonzero(self._suits @ (left * worth) > 0)
        if len(useful) <= PROMISING_OFFERS:
            return useful
        at_most = np.minimum(self._suits[useful] @ (left * worth), self._offer_worth[useful])
        ranked = np.argsort(self._problem.prices[useful] / np.maximum(at_most, 1e-300), kind="stable")
        half = PROMISING_OFFERS // 2
        spread = np.linspace(half, len(ranked) - 1, half).astype(np.int64)
        return np.sort(useful[np.concatenate((ranked[:half], ranked[spread]))])

    def cheapest_node_for_all(self, left: Ints) -> Bin | None:
        """The cheapest offer that holds all that is left, if there is one."""
        total = left @ self._problem.requests
        kinds = np.flatnonzero(left)
        if (self._problem.loose[kinds].any(axis=0) & self._problem.bound[kinds].any(axis=0)).any():
            return None
        holds = (self._problem.sizes >= total).all(axis=1) & self._suits[:, kinds].all(axis=1)
        if not holds.any():
            return None
        offer = int(np.argmin(np.where(holds, self._problem.prices, np.inf)))
        return Bin(offer, content_of(left), 1, self._width)

    def exact_cover(self, item: int, count: int) -> list[Bin]:
        """One kind of item: the cheapest cover by dynamic programming over how many are left; fewer nodes if equal."""
        axes, amounts = self._axes[item], self._amounts[item]
        holds = (self._problem.sizes[:, axes] // amounts).min(axis=1) * self._suits[:, item]
        offers = np.flatnonzero(holds)
        holds, prices = holds[offers], self._problem.prices[offers] + _EPSILON  # each node costs a trifle more
        peeled = 0
        best = int(np.argmin(prices / holds))
        if count > _EXACT_COUNT:
            peeled = (count - _EXACT_COUNT) // int(holds[best])
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
        return Bin(offer, ((item, count),), copies, self._width)

    # --- shadow values

    def _prices_alone(self) -> Floats:
        """By item, what one costs on the offer that is cheapest for nothing but it."""
        found = np.zeros(self._width)
        for item, (axes, amounts) in enumerate(zip(self._axes, self._amounts, strict=True)):
            holds = (self._problem.sizes[:, axes] // amounts).min(axis=1) * self._suits[:, item]
            able = holds > 0
            found[item] = (self._problem.prices[able] / holds[able]).min() if able.any() else 0.0
        return found

    def _refine(self, counts: Ints, plan: list[Bin]) -> tuple[Floats, list[Bin]]:
        """Each item's worth from whole fillings, and the whole nodes of the fractional optimum.

        Column generation, starting with a plan's fillings: the program over the fillings known so far prices each
        item, and the best buy at those prices joins it, until nothing undercuts them.
        """
        kinds = np.flatnonzero(counts)
        need = counts[kinds].astype(float)
        columns = list(plan)
        cover = np.array([b.filling[kinds] for b in plan], dtype=float).T / need[:, None]
        program = CoveringProgram.of(self._problem.prices[[b.offer for b in plan]], cover)
        worth = np.zeros(len(counts))
        for _ in range(_REFINING_ROUNDS):
            worth[kinds] = program.solve() / need
            density = self._order(worth / np.maximum(self._worth, _EPSILON))
            offer, filling = self._best_filling(counts, worth, [density, self._by_size])
            if self._problem.prices[offer] >= filling @ worth * (1 - 1e-7):
                break
            program.add(float(self._problem.prices[offer]), filling[kinds] / need)
            columns.append(Bin(offer, content_of(filling), 1, self._width))
        whole = [
            Bin(columns[j].offer, columns[j].content, int(level + _EPSILON), self._width)
            for j, level in program.levels()
            if level + _EPSILON >= 1
        ]
        return np.maximum(worth, self._worth * 1e-3), self._within(counts, whole)

    @staticmethod
    def _within(counts: Ints, bins: list[Bin]) -> list[Bin]:
        """The bins, each only as often as the counts fill it."""
        left = counts.copy()
        kept: list[Bin] = []
        for b in bins:
            copies = min(b.copies, *(int(left[item]) // count for item, count in b.content))
            if copies:
                left -= b.filling * copies
                kept.append(Bin(b.offer, b.content, copies, b.width))
        return kept

    # --- filling

    def _fill(self, left: Ints, order: Ints, offers: Ints, *, mixed: bool = False) -> Ints:
        """Each of these offers filled greedily in this order: counts by offer and item.

        `mixed` first gives every offer the same share of all items it may hold, as large as it can take, so that no
        resource runs out long before the others.
        """
        problem = self._problem
        capacity = problem.sizes[offers]
        suits = self._suits[offers]
        fillings = self.even_shares(left, suits, capacity) if mixed else np.zeros(suits.shape, dtype=np.int64)
        free = np.ascontiguousarray((capacity - fillings @ problem.requests).T)
        remaining = np.where(suits, left - fillings, 0)
        has_loose, has_bound = (np.zeros((len(offers), problem.loose.shape[1]), dtype=bool) for _ in range(2))
        for i in order[left[order] > 0].tolist():
            axes, amounts = self._axes[i], self._amounts[i][:, None]
            taken = np.minimum(np.minimum.reduce(free[axes] // amounts), remaining[:, i])
            if self._in_conflict[i]:
                taken *= ~(has_loose & problem.bound[i] | has_bound & problem.loose[i]).any(axis=1)
                some = (taken > 0)[:, None]
                has_loose |= some & problem.loose[i]
                has_bound |= some & problem.bound[i]
            fillings[:, i] += taken
            free[axes] -= taken * amounts
        return fillings

    def even_shares(self, left: Ints, suits: Bools, capacity: Ints) -> Ints:
        """Return, by offer and item, the same share of all items that are left, as large as the offer can take."""
        wanted = suits * np.where(self._in_conflict, 0, left)
        needs = (wanted @ self._problem.requests).astype(float)
        shares = np.where(needs > 0, capacity / np.maximum(needs, 1.0), 1.0).min(axis=1)
        just_below = np.minimum(shares, 1.0) * (1 - 1e-12)  # so that rounding never overfills
        fillings: Ints = np.floor(wanted * just_below[:, None]).astype(np.int64)
        return fillings

    def _take(self, left: Ints, offer: int, filling: Ints) -> Bin:
        """Open the offer with this filling as often as what is left allows."""
        used = filling > 0
        copies = int((left[used] // filling[used]).min())
        left -= filling * copies
        return Bin(offer, content_of(filling), copies, self._width)

    def _relative_size(self) -> Floats:
        """Each item's largest share of an axis of the largest offer."""
        largest = np.maximum(self._problem.sizes.max(axis=0), 1)
        shares: Floats = (self._problem.requests / largest).max(axis=1)
        return shares

    @staticmethod
    def _order(weight: Floats) -> Ints:
        """Items by weight descending, equal ones by index."""
        return np.argsort(-weight, kind="stable")
