"""Which ways of packing are tried for one problem, and which plan is kept.

What is tried depends on the numbers of items and nodes alone, so that the effort stays in proportion and the same problem
always gets the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np

from journeyman.core.scheduling.offers import Ints
from journeyman.core.scheduling.packing.appraisal import Appraisal, appraise
from journeyman.core.scheduling.packing.careful import CarefulSolver
from journeyman.core.scheduling.packing.mixes import whole_mixes
from journeyman.core.scheduling.packing.problem import Bin, Problem, price_of, translated
from journeyman.core.scheduling.packing.wide import OpenNodes

_CAREFUL_KINDS: Final = 64  # up to this many kinds of items the careful way is affordable
_CAREFUL_LEFTOVERS: Final = 150  # likewise for what finds no room in the mix
_EFFORT: Final = 3000  # kinds of items dealt out, over all attempts
_NODES_PER_KIND: Final = 500  # nodes that make one more kind's worth of effort
_GOOD_ENOUGH: Final = 1.001  # times the bound
_DECIMALS: Final = 9


def solve(problem: Problem, *, fewest_nodes: bool) -> list[Bin]:
    """The cheapest plan found for items that each fit some offer; or that of fewest nodes, the cheapest if equal."""
    if fewest_nodes:
        return min(_with_fewest(problem), key=lambda bins: _rank(problem, bins)[::-1])
    return _by_price(problem)


def _rank(problem: Problem, bins: list[Bin]) -> tuple[float, int]:
    return round(price_of(bins, problem.prices), _DECIMALS), sum(b.copies for b in bins)


def _by_price(problem: Problem) -> list[Bin]:
    """The best of all ways, the quick ones first; the careful way only where it may still be worth it."""
    appraisal = appraise(problem)
    best: list[Bin] = []
    for mix, blend in _attempts(problem, appraisal):
        if not best or mix @ problem.prices < price_of(best, problem.prices):
            found = _deal_out(problem, appraisal, mix, blend)
            best = min(best or found, found, key=lambda bins: _rank(problem, bins))
    if len(problem.counts) > _CAREFUL_KINDS or price_of(best, problem.prices) <= appraisal.bound * _GOOD_ENOUGH:
        return best
    solver = CarefulSolver(problem)
    found = solver.improve(solver.cheapest(problem.counts))
    return min(best, found, key=lambda bins: _rank(problem, bins))


def _attempts(problem: Problem, appraisal: Appraisal) -> Iterator[tuple[Ints, float]]:
    """Mixes and blends to try, as many as the size of the problem allows."""
    work = len(problem.counts) * (1 + appraisal.mix.sum() / _NODES_PER_KIND)
    blends = _blends(problem, appraisal)
    pairs = ((mix, blend) for mix in whole_mixes(problem, appraisal) for blend in blends)
    return islice(pairs, max(int(_EFFORT / work), 1))


def _blends(problem: Problem, appraisal: Appraisal) -> tuple[float, ...]:
    """How much weight to give to what has no price although there is hardly too much of it."""
    bought = appraisal.mix @ problem.sizes
    used = (problem.counts @ problem.requests) / np.maximum(bought, 1)
    unpriced = appraisal.unit.max(axis=0) * bought < 0.01 * float(appraisal.mix @ problem.prices)
    return (1.0, 0.5, 0.0) if (unpriced & (used > 0.8)).any() else (0.0,)


def _with_fewest(problem: Problem) -> Iterator[list[Bin]]:
    """Plans made as if every node cost the same."""
    if len(problem.counts) <= _CAREFUL_KINDS:
        yield CarefulSolver(problem).fewest(problem.counts)
    flat = replace(problem, prices=np.ones(len(problem.prices)))
    appraisal = appraise(flat)
    for blend in (0.0, 1.0):
        nodes = OpenNodes(flat, appraisal, blend)
        nodes.open_mix(np.floor(appraisal.mix + 1e-9).astype(np.int64))
        nodes.place_all(problem.counts, open_more=True)
        yield nodes.settle(problem)


def _deal_out(problem: Problem, appraisal: Appraisal, mix: Ints, blend: float) -> list[Bin]:
    """Open the mix and place everything; what finds no room is packed carefully if that is little."""
    nodes = OpenNodes(problem, appraisal, blend)
    nodes.open_mix(mix)
    left = nodes.place_all(problem.counts, open_more=False)
    more: list[Bin] = []
    if 0 < np.count_nonzero(left) <= _CAREFUL_LEFTOVERS:
        more = _carefully(problem, left)
    elif left.any():
        nodes.place_all(left, open_more=True)
    return [*nodes.settle(problem), *more]


def _carefully(problem: Problem, counts: Ints) -> list[Bin]:
    """The careful way for some of the items, without refinement."""
    items = np.flatnonzero(counts)
    part = replace(problem, counts=counts).of_items(items)
    offers = part.useful()
    bins = CarefulSolver(part.only(offers)).straight(part.counts)
    return translated(bins, items, offers, len(problem.counts))
