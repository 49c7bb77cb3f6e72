"""Price-driven packing: which nodes to open, and what goes into each, for the least money.

`problem` is the question, `appraisal` says what everything is worth. Few kinds of items are packed node after node with
great care (`careful`), many by dealing them out to an ideal mix of nodes (`wide`); where both are affordable they
compete. Nothing here knows of pods, zones or pools.
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
