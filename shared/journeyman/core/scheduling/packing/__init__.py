"""Packs items onto offers at the least price. Knows nothing of pods, zones or NodePools.

An *item* is a kind of pods with a count, an *offer* something that can be bought: its size on every axis, its price,
and a signature that says which items it may hold. The method, step by step:

1. `MergedItems` makes items that differ in nothing one item; items that share no offer are packed apart.
2. Offers with a stock (reserved capacity, paid for already) are filled first.
3. `shadow_prices` solves a linear program in which nodes can be bought in fractions. Its dual prices say what a unit of
   cpu or memory is worth at today's offers; its primal solution is an ideal mix of nodes; its value is a lower bound of
   any price.
4. A handful of items is packed exactly, by dynamic programming (`strategies.solve_exactly`).
5. `bulk_packing` opens the mix in whole nodes and distributes the items over them, each to the node whose free capacity
   has the proportions most like its own. If that is within 0.1 % of the bound, it is the answer.
6. With few kinds of items `column_generation` competes: node after node, the offer and content of least price per
   shadow price, the shadow prices being refined over whole nodes; then the worst nodes are taken apart and packed
   again.
7. With many kinds the worst nodes are distributed again, as long as that saves money.

`strategies` decides what is tried: by the number of items and nodes alone, so equal problems have equal answers.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from journeyman.core.scheduling.arrays import Ints
from journeyman.core.scheduling.packing.packing_problem import (
    Bin,
    MergedItems,
    Packing,
    PackingProblem,
    held_by,
    price_of,
    translated,
)
from journeyman.core.scheduling.packing.shadow_prices import independent, lower_bound
from journeyman.core.scheduling.packing.strategies import fill_stocks, solve

__all__ = ["Bin", "Packing", "PackingProblem", "lower_bound", "pack"]


def pack(problem: PackingProblem, *, fewest_nodes: bool = False) -> Packing:
    """The cheapest packing found; with `fewest_nodes`, as Karpenter would: as few nodes as will do.

    What there is a stock of is used first.
    """
    kinds = MergedItems.of(problem, _placeable(problem))
    whole = kinds.problem
    bins = fill_stocks(whole)
    rest = replace(whole, counts=whole.counts - held_by(bins, len(whole.counts)))
    offers = np.flatnonzero(~whole.limited)
    bought = replace(rest.only(offers), stock=rest.stock[:0], stocks=rest.stocks[:0])
    items = _placeable(bought)
    found = _buy(bought.of_items(items), fewest_nodes=fewest_nodes)
    bins += translated(found, items, offers, len(whole.counts))
    packed = tuple(kinds.apart(bins))
    left = problem.counts - held_by(packed, len(problem.counts))
    return Packing(packed, price_of(packed, problem.prices), tuple(left.tolist()))


def _placeable(problem: PackingProblem) -> Ints:
    """The items of which there are some, and that fit some offer."""
    return np.flatnonzero((problem.counts > 0) & np.logical_or.reduce(problem.fits(), axis=1))


def _buy(problem: PackingProblem, *, fewest_nodes: bool) -> list[Bin]:
    """Bins for all items; those whose offers have nothing in common with other items' are packed apart."""
    bins: list[Bin] = []
    for items in independent(problem.allowed):
        part = problem.of_items(items)
        offers = part.useful()
        found = solve(part.only(offers), fewest_nodes=fewest_nodes)
        bins += translated(found, items, offers, len(problem.counts))
    return bins
