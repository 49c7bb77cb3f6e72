"""Packs items onto offers at the lowest price. This package does not use pods, zones or NodePools.

An *item* is a kind of pod with a count. An *offer* is a node that can be bought: it has a size on every axis, a price,
and node constraints that say which items it may hold. The method:

1. Reserved offers (capacity that is already paid for) are filled first.
2. Items that share no offer are packed separately, and so are parts of a problem with very many rules about one node.
3. `shadow_prices` solves a linear program in which nodes can be bought in fractions. Its dual prices say what a unit of
   cpu or memory is worth at today's offers; its primal solution is an ideal mix of nodes; its value is a lower bound of
   any price.
4. A few items are packed exactly, by dynamic programming (`strategies.solve_exactly`).
5. `bulk_packing` opens the mix in whole nodes and places each item on the node whose free capacity has the most similar
   proportions.
6. With few kinds of items, `greedy_packing` also computes a packing: it repeatedly opens the offer and content with the
   lowest price per shadow price, and refines the shadow prices over whole nodes.
7. With few nodes, the items of the worst of them are placed again while that lowers the price.
8. A plain greedy packing is compared, unless the shadow prices prove that it cannot be cheaper or it would not end
   within its effort.
9. If the cheapest packing so far is not close to the lower bound, `column_generation` searches for better contents of
   nodes and rounds the linear program over them. Its effort is proportionate to what it may save.

`strategies` selects the methods by the numbers of items and nodes and by prices only, so equal problems have equal
results.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from journeyman.core.scheduling.arrays import Ints
from journeyman.core.scheduling.packing import shadow_prices
from journeyman.core.scheduling.packing.greedy_packing import cover_exactly
from journeyman.core.scheduling.packing.packing_problem import (
    MANY_AXES,
    MOST_ENTRIES,
    Bin,
    Content,
    Packing,
    PackingProblem,
    held_by,
    packing_work,
    price_of,
    translated,
)
from journeyman.core.scheduling.packing.shadow_prices import independent
from journeyman.core.scheduling.packing.strategies import fill_reservations, solve

__all__ = ["Bin", "Content", "Packing", "PackingProblem", "lower_bound", "pack"]


def pack(
    problem: PackingProblem, *, fewest_nodes: bool = False, spend: Callable[[int], None] = lambda _units: None
) -> Packing:
    """Return the cheapest packing found; with `fewest_nodes`, the one with the fewest nodes, as Karpenter packs.

    Args:
        problem: Items and offers; reserved offers are used first.
        fewest_nodes: What to minimize.
        spend: Is called with the work, in microseconds, before it is done. What it raises, this raises.
    """
    if problem.is_exact and not fewest_nodes:
        spend(_work(problem))
        alike = tuple(cover_exactly(problem, 0, int(problem.counts[0])))
        return Packing(alike, price_of(alike, problem.prices), (0,))
    suitable = _placeable(problem)
    whole = problem.of_items(suitable)
    bins = fill_reservations(whole)
    rest = replace(whole, counts=whole.counts - held_by(bins, len(whole.counts)))
    offers = np.flatnonzero(~whole.is_reserved)
    bought = replace(rest.only(offers), reservation=rest.reservation[:0], reserved=rest.reserved[:0])
    items = _placeable(bought)
    found = _buy(bought.of_items(items), fewest_nodes=fewest_nodes, spend=spend)
    bins += translated(found, items, offers, len(whole.counts))
    packed = tuple(translated(bins, suitable, np.arange(len(problem.prices)), len(problem.counts)))
    left = problem.counts - held_by(packed, len(problem.counts))
    return Packing(packed, price_of(packed, problem.prices), tuple(left.tolist()))


def lower_bound(problem: PackingProblem) -> float:
    """Return a lower bound of the price of any packing of the problem's items; of equal items, the price itself."""
    if problem.is_exact:
        return price_of(cover_exactly(problem, 0, int(problem.counts[0])), problem.prices)
    return shadow_prices.lower_bound(problem)


def _placeable(problem: PackingProblem) -> Ints:
    """Return the items with a positive count that fit some offer."""
    return np.flatnonzero((problem.counts > 0) & np.logical_or.reduce(problem.fits(), axis=1))


def _buy(problem: PackingProblem, *, fewest_nodes: bool, spend: Callable[[int], None]) -> list[Bin]:
    """Return bins for all items; packs items that share no offer separately."""
    bins: list[Bin] = []
    together = [items for alike in independent(problem.allowed) for items in _parts(problem, alike)]
    parts = [_with_used_axes(problem.of_items(items)) for items in together]
    spend(sum(map(_work, parts)))
    for items, part in zip(together, parts, strict=True):
        offers = part.useful()
        found = solve(part.only(offers), fewest_nodes=fewest_nodes)
        bins += translated(found, items, offers, len(problem.counts))
    return bins


def _has_many_axes(problem: PackingProblem) -> bool:
    return bool(problem.requests.shape[1] + problem.selected.shape[1] > MANY_AXES)


def _work(problem: PackingProblem) -> int:
    axes = problem.requests.shape[1] + problem.selected.shape[1]
    return packing_work(len(problem.counts), axes, len(problem.prices))


def _parts(problem: PackingProblem, items: Ints) -> list[Ints]:
    """Return the items in as many parts as keep their tables small; each part has items of all sizes.

    Thousands of Deployments that each keep their own pods apart have an axis each. The work of a whole grows with the
    square of their number and more, a part has the axes of its own items only, and costs at most a node that is not
    full.
    """
    whole = problem.of_items(items)
    entries = len(items) * (whole.requests.shape[1] + whole.selected.shape[1])
    if not _has_many_axes(whole) or entries <= MOST_ENTRIES:
        return [items]
    count = min(int(np.ceil(np.sqrt(entries / MOST_ENTRIES))), len(items))
    return [items[first::count] for first in range(count)]


def _with_used_axes(problem: PackingProblem) -> PackingProblem:
    """Return the problem without the axes of which no item uses anything, if there are many axes."""
    if not _has_many_axes(problem):
        return problem
    used = np.flatnonzero(problem.requests.any(axis=0))
    return replace(problem, requests=problem.requests[:, used], sizes=problem.sizes[:, used])
