"""Packs items by column generation: whole nodes, bought in fractions, are rounded to a plan.

A *column* is a node of some offer with its content. The *master* is the linear program that buys columns in fractions so
that all items are covered at the lowest price. Its dual prices say what a copy of each item is worth; `OfferFilling`
searches for contents that are worth more than their node's price; they become further columns, until none is found or
the effort is spent. The price of the master is lower than that of any plan that uses only its columns.

Rounding dives: it opens the whole nodes of the master's solution, or the node with the largest fraction if there are none,
and solves the master again for the items that are left, with the same columns cut down to these items and new ones. Every
time it also completes the plan greedily; the cheapest of all these plans is the result.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from journeyman.core.scheduling.arrays import Floats, Ints
from journeyman.core.scheduling.packing.greedy import GreedyPacker
from journeyman.core.scheduling.packing.linear_program import CoveringProgram
from journeyman.core.scheduling.packing.offer_filling import FilledNodes, OfferFilling, Search
from journeyman.core.scheduling.packing.packing_problem import Bin, PackingProblem, content_of, held_by, price_of

_EPSILON: Final = 1e-6
_LEAST_GAIN: Final = 1e-6  # of a column's worth over its price
_COLUMNS_PER_ROUND: Final = 40
_COLUMNS_PER_OFFER: Final = 3
_LARGE_FRACTION: Final = 0.6  # of a node; such nodes are opened together
_REUSED_COLUMNS: Final = 600
_CELLS_PER_STEP: Final = 150  # of the master's tables take as long as one item tried on one node
_LEAST_WORTH: Final = 1e-6  # of an item, relative to the most valuable


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


FIRST: Final = Generation(rounds=150, patience=6, gain=1e-4)
AGAIN: Final = Generation(rounds=8, patience=3, gain=1e-3)


class _Columns(Struct, eq=False):
    """Nodes that can be bought: offers and contents."""

    offers: Ints
    fillings: Floats

    def joined(self, other: _Columns) -> _Columns:
        """Return these columns and others."""
        return _Columns(np.concatenate((self.offers, other.offers)), np.concatenate((self.fillings, other.fillings)))

    def only(self, which: Ints) -> _Columns:
        """Return some of the columns."""
        return _Columns(self.offers[which], self.fillings[which])


def _columns_of(bins: list[Bin]) -> _Columns:
    """Return the nodes of a plan as columns."""
    return _Columns(np.array([b.offer for b in bins], dtype=np.int64), np.array([b.filling for b in bins], dtype=float))


class _Solution(Struct, eq=False):
    """The master's columns, how many of each it buys, and the worth of each item."""

    columns: _Columns
    amounts: Floats
    worth: Floats


class ColumnGeneration:
    """Solves one problem."""

    def __init__(self, problem: PackingProblem, filling: OfferFilling, greedy: GreedyPacker) -> None:
        self._problem = problem
        self._filling = filling
        self._greedy = greedy

    def plan(self, start: list[Bin], effort: int) -> list[Bin]:
        """Return the cheapest plan found; `start` are plans whose nodes are the first columns."""
        problem = self._problem
        limit = self._filling.effort + effort
        left = problem.counts.astype(float)
        solution = self._generate(left, _columns_of(start), FIRST, limit)
        opened: list[Bin] = []
        best: list[Bin] = []
        best_price = np.inf
        while True:
            opened += self._open(solution, left)
            left = (problem.counts - held_by(opened, len(problem.counts))).astype(float)
            if not left.any():
                break
            worth = np.maximum(solution.worth, _LEAST_WORTH * float(solution.worth.max(initial=0.0)))
            rest = self._greedy.plan(left, worth)
            price = price_of(opened, problem.prices) + price_of(rest, problem.prices)
            if price < best_price:
                best, best_price = [*opened, *rest], price
            if price_of(opened, problem.prices) >= best_price or self._filling.effort > limit:
                break
            columns = self._cut(solution.columns, left, worth).joined(_columns_of(rest))
            solution = self._generate(left, columns, AGAIN, limit)
        return best if left.any() or price_of(opened, problem.prices) > best_price else opened

    def _generate(self, counts: Floats, columns: _Columns, generation: Generation, limit: int) -> _Solution:
        """Return the solution of the master for these counts, with as many further columns as are worth it."""
        filling = self._filling
        items = np.flatnonzero(counts)
        need = counts[items]
        program = CoveringProgram.of(filling.prices[columns.offers], (columns.fillings[:, items] / need).T)
        known = {(int(o), f.tobytes()) for o, f in zip(columns.offers, columns.fillings, strict=True)}
        worth = np.zeros(len(counts))
        prices: list[float] = []
        depth = 0
        for round_ in range(generation.rounds):
            spent = program.effort
            worth[items] = program.solve() / need
            filling.effort += (program.effort - spent) // _CELLS_PER_STEP
            worth = np.round(worth / max(float(worth.max()), 1e-300), 12) * float(worth.max())
            prices.append(float(worth @ counts))
            before = prices[-1 - generation.patience] if len(prices) > generation.patience else np.inf
            if before - prices[-1] < generation.gain * prices[-1] or filling.effort > limit:
                break
            found = filling.search(worth, counts, Search(depth=depth, round=round_), least=1.0)
            if not len(found.ratios) or found.ratios.max() < 1.01:
                depth = min(depth + 1, Search().depth)
            better = self._better(found, known)
            if len(better):
                new = _Columns(found.offers[better], found.fillings[better])
                program.add_all(filling.prices[new.offers], (new.fillings[:, items] / need).T)
                columns = columns.joined(new)
        amounts = np.zeros(len(columns.offers))
        for column, amount in program.levels():
            amounts[column] = amount
        return _Solution(columns, amounts, worth.copy())

    @staticmethod
    def _better(nodes: FilledNodes, known: set[tuple[int, bytes]]) -> Ints:
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
        return np.array(chosen, dtype=np.int64)

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
            full = solution.columns.fillings[column]
            content = np.minimum(full, left)
            used = content > 0
            if not used.any() or (fraction_only and bins and (content < full).any()):
                continue
            copies = int(min(whole[column], (left[used] // content[used]).min()))
            left -= content * copies
            offer = int(solution.columns.offers[column])
            bins.append(Bin(offer, content_of(content.astype(np.int64)), copies, len(left)))
        return bins

    def _cut(self, columns: _Columns, left: Floats, worth: Floats) -> _Columns:
        """Return the most valuable columns, cut down to the items that are left."""
        fillings = np.minimum(columns.fillings, left)
        ratios = np.round(fillings @ worth / self._filling.prices[columns.offers], 9)
        ranked = np.argsort(-ratios, kind="stable")[:_REUSED_COLUMNS]
        distinct: dict[tuple[int, bytes], int] = {}
        for row in ranked[ratios[ranked] > 0].tolist():
            distinct.setdefault((int(columns.offers[row]), fillings[row].tobytes()), row)
        kept = np.sort(np.array(list(distinct.values()), dtype=np.int64))
        return _Columns(columns.offers[kept], fillings[kept])
