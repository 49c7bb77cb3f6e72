"""Price-driven packing: which nodes to open, and what goes into each, for the least money.

`problem` is the question, `appraisal` says what everything is worth. Few kinds of items are packed node after node with
great care (`careful`), many by dealing them out to an ideal mix of nodes (`wide`); where both are affordable they compete.
Nothing here knows of pods, zones or pools.
"""

from __future__ import annotations

import numpy as np

from journeyman.core.scheduling.packing.alike import Kinds
from journeyman.core.scheduling.packing.appraisal import independent, lower_bound
from journeyman.core.scheduling.packing.problem import Bin, Packing, Problem, price_of
from journeyman.core.scheduling.packing.strategies import solve

__all__ = ["Bin", "Packing", "Problem", "lower_bound", "pack"]


def pack(problem: Problem, *, fewest_nodes: bool = False) -> Packing:
    """The cheapest packing found; with `fewest_nodes`, as Karpenter would: as few nodes as will do.

    Items whose offers have nothing in common with other items' are packed apart.
    """
    asked = np.flatnonzero((problem.counts > 0) & np.logical_or.reduce(problem.fits(), axis=1))
    kinds = Kinds.of(problem, asked)
    bins: list[Bin] = []
    for members in independent(kinds.problem.allowed):
        part = kinds.problem.of_items(members)
        offers = part.useful()
        width = len(kinds.problem.counts)
        for b in solve(part.only(offers), fewest_nodes=fewest_nodes):
            content = tuple((int(members[item]), count) for item, count in b.content)
            bins.append(Bin(int(offers[b.offer]), content, b.copies, width))
    left = problem.counts.copy()
    left[asked] = 0
    packed = tuple(kinds.apart(bins))
    return Packing(packed, price_of(packed, problem.prices), tuple(left.tolist()))
