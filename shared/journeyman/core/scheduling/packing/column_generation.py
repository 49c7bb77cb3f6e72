"""Packs items by column generation: whole nodes, bought in fractions, are rounded to a plan.

A *column* is a node of some offer with its content. The *master* is the linear program that buys columns in fractions
so that all items are covered at the lowest price. Its dual prices say what a copy of each item is worth; `OfferFilling`
searches for contents that are worth more than their node's price; they become further columns, until none is found or
the effort is spent. The price of the master is lower than that of any plan that uses only its columns.

Rounding dives: it opens the whole nodes of the master's solution, or the node with the largest fraction if there are
none, and solves the master again for the items that are left, with the same columns cut down to these items and new
ones. Every time it also completes the plan greedily; the cheapest of all these plans is the result.

A greedy filling takes the items in an order and of each as many copies as fit. The order is the worth of an item per
share of what it uses; a *direction* says how much each resource counts in that share. No single order is best for all
offers, so each offer is filled in the order of the directions that bound its worth most tightly. Two things find better
contents than any of these orders: some orders are varied a little, by a fixed sequence of numbers, and the contents
with the lowest price per worth are filled again with one copy less of one of their items.

Contents are counted by *family* (`ItemFamilies`): pods that request the same, of which some may use any zone and others
one, share columns. Which of them a node holds is decided when it is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.scheduling.arrays import Bools, Floats, Ints
from journeyman.core.scheduling.packing.greedy_packing import GreedyPacker
from journeyman.core.scheduling.packing.linear_program import CoveringProgram
from journeyman.core.scheduling.packing.packing_problem import Bin, PackingProblem, content_of, held_by, price_of

_EPSILON: Final = 1e-6
_HARDLY_BETTER: Final = 1.01  # worth over price; if no content is better, the search goes deeper
_LEAST_GAIN: Final = 1e-6  # of a column's worth over its price
_COLUMNS_PER_ROUND: Final = 40
_COLUMNS_PER_OFFER: Final = 3
_LARGE_FRACTION: Final = 0.6  # of a node; such nodes are opened together
_REUSED_COLUMNS: Final = 600
_SMOOTHING: Final = 0.5  # of the worth of the rounds before, in the worth at which contents are searched for
_SOLVE_EFFORT: Final = 100  # of the master by row, and
_PIVOT_EFFORT: Final = 3  # by row and pivot; an item tried on one node is 1
_FIRST_SHARE: Final = 0.75  # of the effort; the rest is for rounding
_COMPLETED_ITEMS: Final = 64  # dives are completed once so few kinds of items are left
_LEAST_WORTH: Final = 1e-6  # of an item, relative to the most valuable
MOST_CAPACITY: Final = 2**51  # amounts up to this are exact as floats, also with a half added
_CONFLICTS_PER_STEP: Final = 8  # take as long as all else about one item on one node
_NO_REQUEST: Final = 1e-9  # divides instead of 0
_UNBOUNDED: Final = 1e30  # a worth per share
_RESOURCES: Final = 3  # axes that determine an order; the scarcest
_LESSER_WEIGHTS: Final = (0.2, 0.5)  # of a second axis beside a first
VARIATION: Final = (0.0, 0.1, 0.3, 0.8)  # of the worth of an item, by order
_GOLDEN_RATIO, _SECOND_RATIO = 0.6180339887, 0.7548776662  # their multiples are spread evenly modulo 1


class Search(Struct, frozen=True):
    """How far to search for contents.

    Attributes:
        orders: Orders in which each offer is filled.
        kept: Contents that are filled again with one copy less.
        depth: How often that is repeated.
        round: Selects the variation of the orders.
    """

    orders: int = 4
    kept: int = 60
    depth: int = 2
    round: int = 0


class FilledNodes(NamedTuple):
    """Nodes with their contents: the offer, the copies by item, and worth over price (rounded) of each node."""

    offers: Ints
    fillings: Floats
    ratios: Floats


class ItemFamilies(Struct, frozen=True, kw_only=True, eq=False):
    """Items in families: items that request the same, so that a copy of one can take the place of a copy of another.

    The offers of two items of a family are nested or disjoint, as "any zone" and "zone a" are. So nodes can hold all
    items exactly if, for each item, the nodes that may hold it have as many copies of its family as there are of the
    item and of those with fewer offers (Hall's theorem). Contents of nodes are therefore counted by family.

    Attributes:
        problem: The packing problem with one item for each family.
        allowed: By node constraints and item, whether such an offer may hold it.
        family: Family by item.
        within: By two items of a family, whether the offers of the second are among those of the first; else 0.
        order: The items by family, those with the fewest offers first.
        starts: Position of each family's first item in `order`.
    """

    problem: PackingProblem
    allowed: Bools
    family: Ints
    within: Floats
    order: Ints
    starts: Ints

    @classmethod
    def of(cls, problem: PackingProblem) -> ItemFamilies:
        """Group the items of a problem."""
        used, constraints = np.unique(problem.constraints, return_inverse=True)
        allowed = problem.allowed[used]
        families: dict[bytes, list[list[int]]] = {}
        for item in range(len(problem.counts)):
            demand = b"".join(part[item].tobytes() for part in (problem.requests, problem.selected, problem.owning))
            alike = families.setdefault(demand, [])
            members = next((found for found in alike if are_nested(allowed[:, found], allowed[:, [item]])), None)
            if members is None:
                alike.append([item])
            else:
                members.append(item)
        family = np.zeros(len(problem.counts), dtype=np.int64)
        within = np.zeros((len(family), len(family)))
        for index, members in enumerate(members for alike in families.values() for members in alike):
            family[members] = index
            offered = allowed[:, members]
            within[np.ix_(members, members)] = (offered[:, :, None] >= offered[:, None, :]).all(axis=0)
        order = np.lexsort((np.count_nonzero(allowed, axis=0), family))
        starts = np.searchsorted(family[order], np.arange(family.max() + 1))
        whole = replace(
            problem.of_items(order[starts]), constraints=constraints, counts=np.bincount(family, problem.counts)
        )
        whole = replace(whole, allowed=np.logical_or.reduceat(allowed[:, order], starts, axis=1))
        return cls(problem=whole, allowed=allowed, family=family, within=within, order=order, starts=starts)

    def available(self, left: Floats) -> Floats:
        """Return by node constraints and family how many of the copies that are left such an offer may hold."""
        found: Floats = np.add.reduceat(np.where(self.allowed, left, 0.0)[:, self.order], self.starts, axis=1)
        return found

    def worth(self, worth: Floats) -> Floats:
        """Return by node constraints and family what a copy is worth on such an offer, from the worth of each item."""
        found: Floats = np.maximum.reduceat(np.where(self.allowed, worth, 0.0)[:, self.order], self.starts, axis=1)
        return found

    def covered(self, constraints: Ints, fillings: Floats) -> Floats:
        """Return by node and item the copies of the item's family, where the node may hold the item."""
        found: Floats = np.where(self.allowed[constraints], fillings[:, self.family], 0.0)
        return found

    def members(self, constraint: int, content: Floats, left: Floats) -> Floats:
        """Return the items that make up a content, those with the fewest offers first; at most those that are left."""
        usable = np.where(self.allowed[constraint], left, 0.0)[self.order]
        before = np.cumsum(usable) - usable
        before -= np.repeat(before[self.starts], np.diff(self.starts, append=len(usable)))
        found = np.zeros(len(left))
        found[self.order] = np.clip(content[self.family[self.order]] - before, 0.0, usable)
        return found


def are_nested(offered: Bools, other: Bools) -> bool:
    """Whether the offers of each of these items, by node constraints, are nested with those of another, or disjoint."""
    common = np.count_nonzero(offered & other, axis=0)
    sizes = np.count_nonzero(offered, axis=0)
    return bool(((common == 0) | (common == sizes) | (common == np.count_nonzero(other))).all())


class OfferFilling:
    """The offers of a problem, and what each holds. Counts and worths are by node constraints and item."""

    def __init__(self, problem: PackingProblem) -> None:
        self._problem = problem
        self.width = len(problem.counts)
        self.prices = np.maximum(problem.prices, 1e-12)
        shared = np.flatnonzero(np.count_nonzero(problem.requests, axis=0) > 1)
        requests, sizes = problem.requests[:, shared].astype(float).T, problem.sizes[:, shared].astype(float).T
        self._free = np.minimum(sizes, MOST_CAPACITY) + 0.5  # a half more, so that rounding never loses a copy
        # a last item that is never taken fills up the orders of offers that hold fewer kinds of items
        self._requests: Floats = np.column_stack((requests, np.zeros(len(shared))))
        self._divisors: Floats = np.where(self._requests > 0, self._requests, _NO_REQUEST)
        self.most = self._most_copies()
        self._selected, self._owning = (
            np.vstack((side, np.zeros_like(side[:1]))) for side in (problem.selected, problem.owning)
        )
        self._in_conflict = bool(problem.selected.any() and problem.owning.any())
        self._weights = self._directions()
        self._sizes_by_direction = np.minimum(problem.sizes, MOST_CAPACITY) @ self._weights.T
        self._shares: Floats = np.maximum(problem.requests @ self._weights.T, 1e-300)
        self.effort = 0

    def _most_copies(self) -> Floats:
        """Return by offer and item how many copies one node holds at most; one more column for no item."""
        problem = self._problem
        most = np.zeros((len(problem.prices), self.width + 1))
        for item, request in enumerate(problem.requests):
            axes = np.flatnonzero(request)
            fitting = (problem.sizes[:, axes] // request[axes]).min(axis=1, initial=MOST_CAPACITY)
            most[:, item] = fitting * problem.allowed[problem.constraints, item]
        return most

    def _directions(self) -> Floats:
        """Return the weight of a unit of each axis, by direction."""
        problem = self._problem
        demand = (problem.counts @ problem.requests.astype(float)) + 0.0
        usable = np.minimum(problem.sizes, np.maximum(demand, 1.0)).astype(float)
        per_price = (usable / self.prices[:, None]).max(axis=0)
        cost = np.where(per_price > 0, demand / np.maximum(per_price, 1e-300), 0.0)  # if bought for this axis alone
        axes = np.sort(
            np.argsort(-np.round(cost / max(float(cost.max(initial=0.0)), 1e-300), 9), kind="stable")[:_RESOURCES]
        )
        axes = axes[demand[axes] > 0]
        weights = [np.eye(len(axes))[k] for k in range(len(axes))]
        weights += [np.ones(len(axes))]
        for first in range(len(axes)):
            for second in range(len(axes)):
                for lesser in (*_LESSER_WEIGHTS, *((1.0,) if second < first and len(axes) > 2 else ())):
                    if first != second:
                        weight = np.zeros(len(axes))
                        weight[first], weight[second] = 1.0, lesser
                        weights.append(weight)
        found = np.zeros((len(weights), len(demand)))
        found[:, axes] = np.array(weights) * (cost[axes] / demand[axes])
        return found

    def fill(self, offers: Ints, orders: Ints, most: Floats) -> Floats:
        """Return the copies by item: a node of each offer, filled in its order with at most `most` of each item."""
        free = self._free[:, offers]
        fillings = np.zeros(most.shape)
        rows = np.arange(len(offers))
        entries, limits = fillings.ravel(), most.ravel()
        start = rows * most.shape[1]
        selected, owning = (np.zeros((len(offers), self._selected.shape[1]), dtype=bool) for _ in range(2))
        for items in np.ascontiguousarray(orders.T):
            at = start + items
            copies = limits[at]
            if len(free):
                copies = np.minimum(copies, np.floor((free / self._divisors[:, items]).min(axis=0)))
            if self._in_conflict:
                its_selected, its_owning = self._selected[items], self._owning[items]
                copies[((selected & its_owning) | (owning & its_selected)).any(axis=1)] = 0.0
                some = (copies > 0)[:, None]
                selected |= its_selected & some
                owning |= its_owning & some
            entries[at] = copies
            free -= copies * self._requests[:, items]
        self.effort += orders.size * (1 + self._selected.shape[1] // _CONFLICTS_PER_STEP * self._in_conflict)
        return fillings[:, :-1]

    def search(self, worth: Floats, counts: Floats, search: Search, *, least: float) -> FilledNodes:
        """Return filled nodes of the offers that may have more than `least` worth per price.

        Args:
            worth: Worth of one copy of each item, by node constraints.
            counts: The most copies of each item, by node constraints.
            search: How far to search.
            least: Offers that cannot have more worth per price are left out.
        """
        density = self._density(worth, counts)
        offers, directions = self._promising(density, search.orders, least)
        orders = self._orders(density, search.round)
        rows = np.repeat(np.arange(len(offers)), directions.shape[1])
        offers = offers[rows]
        order = orders[self._problem.constraints[offers], directions.ravel()]
        most = self.most[offers]
        most[:, :-1] = np.minimum(most[:, :-1], counts[self._problem.constraints[offers]])
        found = [self._filled(offers, order, most, worth)]
        for _ in range(search.depth):
            kept = self._distinct_best(found[-1], search.kept)
            if not len(kept):
                break
            parent, item = np.nonzero(found[-1].fillings[kept])
            offers, order, most = offers[kept][parent], order[kept][parent], most[kept][parent]
            most[np.arange(len(parent)), item] = found[-1].fillings[kept[parent], item] - 1
            found.append(self._filled(offers, order, most, worth))
        return FilledNodes(*(np.concatenate(parts) for parts in zip(*found, strict=True)))

    def _filled(self, offers: Ints, orders: Ints, most: Floats, worth: Floats) -> FilledNodes:
        return self.valued(offers, self.fill(offers, orders, most), worth)

    def valued(self, offers: Ints, fillings: Floats, worth: Floats) -> FilledNodes:
        """Return nodes with these contents."""
        values = np.einsum("ij,ij->i", fillings, worth[self._problem.constraints[offers]])
        return FilledNodes(offers, fillings, np.round(values / self.prices[offers], 9))

    def _density(self, worth: Floats, counts: Floats) -> Floats:
        """Return by node constraints, item and direction the worth per weighted request; 0 if it is not wanted."""
        found = np.minimum(np.where(counts > 0, worth, 0.0)[:, :, None] / self._shares, _UNBOUNDED)
        rounded: Floats = found.astype(np.float32).astype(float)  # so that rounding errors decide nothing
        return rounded

    def _promising(self, density: Floats, orders: int, least: float) -> tuple[Ints, Ints]:
        """Return offers, and for each the directions that bound its worth most tightly."""
        highest = density.max(axis=1)[self._problem.constraints]
        bounds = self._sizes_by_direction * highest / self.prices[:, None]
        bounds[highest >= _UNBOUNDED / 2] = np.inf  # of items that need nothing of these axes
        offers = np.flatnonzero(bounds.min(axis=1) > least)
        directions = np.argsort(np.round(bounds[offers], 9), axis=1, kind="stable")[:, :orders]
        return offers, directions

    def _orders(self, density: Floats, round_: int) -> Ints:
        """Return by node constraints and direction the items by density, then the item that is never taken."""
        ranks = np.arange(density.shape[2])
        strength = np.array(VARIATION)[ranks % len(VARIATION)] * bool(round_)
        spread = (np.arange(1, self.width + 1)[:, None] * _GOLDEN_RATIO * (round_ + 1) + ranks * _SECOND_RATIO) % 1.0
        varied = density * (1.0 + strength * (spread - 0.5))
        wanted: Bools = np.logical_or.reduce(density > 0, axis=2)
        length = int(wanted.sum(axis=1).max(initial=0))
        orders = np.full((len(density), density.shape[2], length), self.width, dtype=np.int64)
        for index, its_wanted in enumerate(wanted):
            items = np.flatnonzero(its_wanted)
            orders[index, :, : len(items)] = items[np.argsort(-varied[index, items], axis=0, kind="stable").T]
        return orders

    @staticmethod
    def _distinct_best(nodes: FilledNodes, count: int) -> Ints:
        """Return up to so many nodes with the lowest price per worth, without equal ones."""
        ranked = np.argsort(-nodes.ratios, kind="stable")[: 3 * count]
        first: dict[tuple[int, bytes], int] = {}
        for row in ranked.tolist():
            first.setdefault((int(nodes.offers[row]), nodes.fillings[row].tobytes()), row)
            if len(first) == count:
                break
        return np.array(list(first.values()), dtype=np.int64)


class Generation(Struct, frozen=True):
    """When to stop generating columns.

    Attributes:
        rounds: The most rounds.
        patience: Stop after so many rounds that together gain less than `gain`.
        gain: A share of the price.
    """

    rounds: int
    patience: int
    gain: float


FIRST: Final = Generation(rounds=150, patience=6, gain=2e-4)
AGAIN: Final = Generation(rounds=8, patience=3, gain=1e-3)


class _Columns(Struct, eq=False):
    """Nodes that can be bought: offers and contents by family."""

    offers: Ints
    fillings: Floats

    @classmethod
    def all_of(cls, parts: Sequence[_Columns]) -> _Columns:
        """Return the columns of all parts."""
        return cls(np.concatenate([part.offers for part in parts]), np.concatenate([part.fillings for part in parts]))

    def only(self, which: Ints) -> _Columns:
        """Return some of the columns."""
        return _Columns(self.offers[which], self.fillings[which])

    def keys(self) -> set[tuple[int, bytes]]:
        """Return what distinguishes the columns."""
        return {(int(o), f.tobytes()) for o, f in zip(self.offers, self.fillings, strict=True)}


class _Solution(Struct, eq=False):
    """The master's columns, how many of each it buys, and the worth of each item."""

    columns: _Columns
    amounts: Floats
    worth: Floats


class ColumnGeneration:
    """Solves one problem."""

    def __init__(self, problem: PackingProblem, greedy: GreedyPacker) -> None:
        self._problem = problem
        self._families = ItemFamilies.of(problem)
        self._constraints = self._families.problem.constraints
        self._filling = OfferFilling(self._families.problem)
        self._greedy = greedy

    def plan(self, start: list[Bin], effort: int) -> list[Bin]:
        """Return the cheapest plan found; `start` are plans whose nodes are the first columns."""
        problem = self._problem
        limit = self._filling.effort + effort
        left = problem.counts.astype(float)
        solution = self._generate(left, self._columns_of(start), FIRST, int(limit * _FIRST_SHARE))
        opened: list[Bin] = []
        best: list[Bin] = []
        best_price = np.inf
        while True:
            opened += self._open(solution, left)
            left = (problem.counts - held_by(opened, len(problem.counts))).astype(float)
            if not left.any():
                return opened if price_of(opened, problem.prices) <= best_price else best
            worth = np.maximum(solution.worth, _LEAST_WORTH * float(solution.worth.max(initial=0.0)))
            is_spent = self._filling.effort > limit
            if is_spent or np.count_nonzero(left) <= _COMPLETED_ITEMS:
                plan = [*opened, *self._greedy.by_worth(left.astype(np.int64), worth)]
                price = price_of(plan, problem.prices)
                if price < best_price:
                    best, best_price = plan, price
            if is_spent or price_of(opened, problem.prices) >= best_price:
                return best
            columns = _Columns.all_of((self._cut(solution.columns, left, worth), self._alone(left)))
            solution = self._generate(left, columns, AGAIN, limit)

    def _columns_of(self, bins: list[Bin]) -> _Columns:
        """Return the nodes of a plan as columns."""
        fillings = np.array([np.bincount(self._families.family, b.filling) for b in bins], dtype=float)
        return _Columns(np.array([b.offer for b in bins], dtype=np.int64), fillings)

    def _alone(self, left: Floats) -> _Columns:
        """Return for each of these items the node with the lowest price per copy of it."""
        items = np.flatnonzero(left)
        families = self._families.family[items]
        copies = np.where(self._families.allowed[self._constraints][:, items], self._filling.most[:, families], 0.0)
        copies = np.minimum(copies, left[items])
        each = np.where(copies > 0, self._filling.prices[:, None] / np.maximum(copies, 1.0), np.inf)
        offers = np.argmin(each, axis=0)
        fillings = np.zeros((len(items), self._filling.width))
        fillings[np.arange(len(items)), families] = copies[offers, np.arange(len(items))]
        return _Columns(offers, fillings)

    def _generate(self, counts: Floats, columns: _Columns, generation: Generation, limit: int) -> _Solution:
        """Return the solution of the master for these counts, with as many further columns as are worth it.

        Contents are searched for at smoothed worths: those of a single solution jump from round to round.
        """
        filling, families = self._filling, self._families
        items = np.flatnonzero(counts)
        available = families.available(counts)
        within = families.within[np.ix_(items, items)]
        master = CoveringProgram(within @ counts[items])
        known: set[tuple[int, bytes]] = set()
        parts: list[_Columns] = []
        new = columns
        worth = smoothed = np.zeros(len(counts))
        prices: list[float] = []
        depth = 1
        for round_ in range(generation.rounds):
            if len(new.offers):
                parts.append(new)
                known |= new.keys()
                master.add(
                    filling.prices[new.offers],
                    families.covered(self._constraints[new.offers], new.fillings)[:, items],
                )
            worth = np.zeros(len(counts))
            worth[items] = master.solve() @ within
            filling.effort += len(items) * (_SOLVE_EFFORT + _PIVOT_EFFORT * master.pivots)
            prices.append(float(worth @ counts))
            before = prices[-1 - generation.patience] if len(prices) > generation.patience else np.inf
            is_last = round_ == generation.rounds - 1
            if is_last or before - prices[-1] < generation.gain * prices[-1] or filling.effort > limit:
                break
            smoothed = _SMOOTHING * smoothed + (1 - _SMOOTHING) * worth if round_ else worth
            search = Search(depth=depth, round=round_)
            found = filling.search(families.worth(smoothed), available, search, least=1.0)
            found = filling.valued(found.offers, found.fillings, families.worth(worth))
            if not len(found.ratios) or found.ratios.max() < _HARDLY_BETTER:
                depth = min(depth + 1, Search().depth)
            new = self._better(found, known)
        return _Solution(_Columns.all_of(parts), master.amounts, worth)

    @staticmethod
    def _better(nodes: FilledNodes, known: set[tuple[int, bytes]]) -> _Columns:
        """Return the new nodes with the most worth over their price, a few of each offer."""
        ranked = np.argsort(-nodes.ratios, kind="stable")
        chosen: list[int] = []
        by_offer: dict[int, int] = {}
        for row in ranked[: np.count_nonzero(nodes.ratios > 1 + _LEAST_GAIN)].tolist():
            offer = int(nodes.offers[row])
            key = (offer, nodes.fillings[row].tobytes())
            if by_offer.get(offer, 0) < _COLUMNS_PER_OFFER and key not in known:
                known.add(key)
                by_offer[offer] = by_offer.get(offer, 0) + 1
                chosen.append(row)
                if len(chosen) == _COLUMNS_PER_ROUND:
                    break
        return _Columns(nodes.offers[chosen], nodes.fillings[chosen])

    def _open(self, solution: _Solution, left: Floats) -> list[Bin]:
        """Return whole nodes of the solution that these items can fill; if it has none, the largest fractions."""
        whole = np.floor(solution.amounts + _EPSILON)
        fraction_only = not whole.any()
        if fraction_only:
            order = np.argsort(-np.round(solution.amounts, 9), kind="stable")
            large = int(np.count_nonzero(solution.amounts >= _LARGE_FRACTION))
            chosen, whole = order[: max(large, 1)], np.ones(len(whole))
        else:
            chosen = np.flatnonzero(whole)
        left = left.copy()
        bins: list[Bin] = []
        for column in chosen.tolist():
            offer, full = int(solution.columns.offers[column]), solution.columns.fillings[column]
            constraint = int(self._constraints[offer])
            available = self._families.available(left)[constraint]
            content = np.minimum(full, available)
            used = content > 0
            if not used.any() or (fraction_only and bins and (content < full).any()):
                continue
            nodes = int(min(whole[column], (available[used] // content[used]).min()))
            while nodes:
                held = self._families.members(constraint, content, left)
                copies = int(min(nodes, (left[held > 0] // held[held > 0]).min()))
                nodes -= copies
                left -= held * copies
                bins.append(Bin(offer, content_of(held.astype(np.int64)), copies, len(left)))
        return bins

    def _cut(self, columns: _Columns, left: Floats, worth: Floats) -> _Columns:
        """Return the most valuable columns, cut down to the items that are left."""
        constraints = self._constraints[columns.offers]
        fillings = np.minimum(columns.fillings, self._families.available(left)[constraints])
        ratios = self._filling.valued(columns.offers, fillings, self._families.worth(worth)).ratios
        ranked = np.argsort(-ratios, kind="stable")[:_REUSED_COLUMNS]
        distinct: dict[tuple[int, bytes], int] = {}
        for row in ranked[ratios[ranked] > 0].tolist():
            distinct.setdefault((int(columns.offers[row]), fillings[row].tobytes()), row)
        kept = np.sort(np.array(list(distinct.values()), dtype=np.int64))
        return _Columns(columns.offers[kept], fillings[kept])
