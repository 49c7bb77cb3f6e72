"""Which ways of packing are tried for one problem, and which plan is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from journeyman.core.scheduling.offers import Ints
from journeyman.core.scheduling.packing.appraisal import Appraisal, appraise
from journeyman.core.scheduling.packing.careful import CarefulSolver
from journeyman.core.scheduling.packing.problem import Bin, Problem, price_of, translated
from journeyman.core.scheduling.packing.wide import OpenNodes

_CAREFUL_KINDS: Final = 64  # up to this many kinds of items the careful way is affordable
_CAREFUL_LEFTOVERS: Final = 400
_BLENDS: Final = (0.0, 0.5, 1.0)
_DECIMALS: Final = 9


def solve(problem: Problem, *, fewest_nodes: bool) -> list[Bin]:
    """The cheapest plan found for items that each fit some offer."""
    if fewest_nodes:
        return CarefulSolver(problem).fewest(problem.counts)
    plans: list[list[Bin]] = []
    if len(problem.counts) <= _CAREFUL_KINDS:
        solver = CarefulSolver(problem)
        plans.append(solver.improve(solver.cheapest(problem.counts)))
    if len(problem.counts) > 1:
        appraisal = appraise(problem)
        plans += [_wide(problem, appraisal, blend) for blend in _BLENDS]
    return min(plans, key=lambda bins: (round(price_of(bins, problem.prices), _DECIMALS), sum(b.copies for b in bins)))


def _wide(problem: Problem, appraisal: Appraisal, blend: float) -> list[Bin]:
    nodes = OpenNodes(problem, appraisal, blend)
    for offer in np.flatnonzero(appraisal.mix >= 1 - 1e-9):
        nodes.open(int(offer), int(appraisal.mix[offer] + 1e-9))
    left = nodes.place_all(problem.counts, open_more=False)
    more: list[Bin] = []
    if left.any() and np.count_nonzero(left) <= _CAREFUL_LEFTOVERS:
        more = _carefully(problem, left)
    else:
        nodes.place_all(left, open_more=True)
    return [*nodes.settle(), *more]


def _carefully(problem: Problem, counts: Ints) -> list[Bin]:
    """The careful way for some of the items."""
    items = np.flatnonzero(counts)
    part = replace(problem, counts=counts).of_items(items)
    offers = part.useful()
    solver = CarefulSolver(part.only(offers), effort=0)
    return translated(solver.cheapest(part.counts), items, offers, len(problem.counts))
