"""Packs items onto offers at the lowest price. This package does not use pods, zones or NodePools.

An *item* is a kind of pod with a count. An *offer* is a node that can be bought: it has a size on every axis, a price,
and a signature that says which items it may hold. The method:

1. Offers with a stock (reserved capacity, already paid for) are filled first.
2. Items that share no offer are packed separately.
3. `shadow_prices` solves a linear program in which nodes can be bought in fractions. Its dual prices say what a unit of
   cpu or memory is worth at today's offers; its primal solution is an ideal mix of nodes; its value is a lower bound of
   any price.
4. A few items are packed exactly, by dynamic programming (`strategies.solve_exactly`).
5. `bulk_packing` opens the mix in whole nodes and places each item on the node whose free capacity has the most similar
   proportions.
6. With few kinds of items, `greedy_packing` also computes a packing: it repeatedly opens the offer and content with the
   lowest price per shadow price, refines the shadow prices over whole nodes, and repacks the worst nodes.
7. With many kinds of items on few nodes, the items of the worst nodes are placed again while that lowers the price.
8. A plain greedy packing is compared, unless the shadow prices prove that it cannot be cheaper.
9. If the cheapest packing so far is not close to the lower bound, `column_generation` searches for better contents of
   nodes and rounds the linear program over them. Its effort is proportionate to what it may save.

`strategies` selects the methods by the numbers of items and nodes and by prices only, so equal problems have equal results.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from journeyman.core.scheduling.arrays import Ints
from journeyman.core.scheduling.packing.packing_problem import (
    Bin,
    Content,
    Packing,
    PackingProblem,
    held_by,
    price_of,
    translated,
)
from journeyman.core.scheduling.packing.shadow_prices import independent, lower_bound
from journeyman.core.scheduling.packing.strategies import fill_stocks, solve

__all__ = ["Bin", "Content", "Packing", "PackingProblem", "lower_bound", "pack"]


def pack(problem: PackingProblem, *, fewest_nodes: bool = False) -> Packing:
    """Return the cheapest packing found; with `fewest_nodes`, the one with the fewest nodes, as Karpenter packs.

    Offers with a stock are used first.
    """
    suitable = _placeable(problem)
    whole = problem.of_items(suitable)
    bins = fill_stocks(whole)
    rest = replace(whole, counts=whole.counts - held_by(bins, len(whole.counts)))
    offers = np.flatnonzero(~whole.limited)
    bought = replace(rest.only(offers), stock=rest.stock[:0], stocks=rest.stocks[:0])
    items = _placeable(bought)
    found = _buy(bought.of_items(items), fewest_nodes=fewest_nodes)
    bins += translated(found, items, offers, len(whole.counts))
    packed = tuple(translated(bins, suitable, np.arange(len(problem.prices)), len(problem.counts)))
    left = problem.counts - held_by(packed, len(problem.counts))
    return Packing(packed, price_of(packed, problem.prices), tuple(left.tolist()))


def _placeable(problem: PackingProblem) -> Ints:
    """Return the items with a positive count that fit some offer."""
    return np.flatnonzero((problem.counts > 0) & np.logical_or.reduce(problem.fits(), axis=1))


def _buy(problem: PackingProblem, *, fewest_nodes: bool) -> list[Bin]:
    """Return bins for all items; packs items that share no offer separately."""
    bins: list[Bin] = []
    for items in independent(problem.allowed):
        part = problem.of_items(items)
        offers = part.useful()
        found = solve(part.only(offers), fewest_nodes=fewest_nodes)
        bins += translated(found, items, offers, len(problem.counts))
    return bins
