"""Which ways of packing are tried for one problem, and which plan is kept.

What is tried depends on the numbers of items and nodes alone, so that the effort stays in proportion and the same
problem always gets the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

import numpy as np
from msgspec.structs import replace

from journeyman.core.scheduling.arrays import Ints
from journeyman.core.scheduling.packing.appraisal import Appraisal, appraise
from journeyman.core.scheduling.packing.careful import CarefulSolver
from journeyman.core.scheduling.packing.exact import is_small, solve_exactly
from journeyman.core.scheduling.packing.mixes import whole_mixes
from journeyman.core.scheduling.packing.problem import Bin, Problem, held_by, merged, price_of, translated
from journeyman.core.scheduling.packing.wide import Manner, OpenNodes

_CAREFUL_KINDS: Final = 64  # up to this many kinds of items the careful way is affordable
_CAREFUL_LEFTOVERS: Final = 150  # likewise for what finds no room in the mix
_DIVES: Final = 4  # mixes for what found no room in the mixes before
_KINDS_PER_DIVE: Final = 500  # fewer items are tried with more mixes instead
_EFFORT: Final = 4000  # kinds of items dealt out, over all attempts
_NODES_PER_KIND: Final = 350  # nodes that make one more kind's worth of effort
_POLISHING: Final = 1500  # kinds of items dealt out again, over all attempts
_POLISHED_NODES: Final = (2, 3, 4, 6)
_POLISHED_PLAN: Final = 200  # nodes; among more, the worst few do not matter
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
    kinds = len(problem.counts)
    if kinds == 1:
        return CarefulSolver(problem).cheapest(problem.counts)
    if is_small(problem):
        return solve_exactly(problem)
    appraisal = appraise(problem)
    best = _dealt_out(problem, appraisal, _EFFORT)
    if price_of(best, problem.prices) <= appraisal.bound * _GOOD_ENOUGH:
        return best
    if kinds > _CAREFUL_KINDS:
        few = sum(b.copies for b in best) <= _POLISHED_PLAN
        return _polished(problem, appraisal, best) if few else best
    solver = CarefulSolver(problem)
    found = solver.improve(solver.cheapest(problem.counts))
    return min(best, found, key=lambda bins: _rank(problem, bins))


def _dealt_out(problem: Problem, appraisal: Appraisal, effort: float) -> list[Bin]:
    """The cheapest of as many mixes and manners as the effort allows, two manners at least if there are."""
    work = len(problem.counts) * (1 + appraisal.mix.sum() / _NODES_PER_KIND)
    manners = _manners(problem, appraisal)
    attempts = ((mix, manner) for mix in whole_mixes(problem, appraisal) for manner in manners)
    best: list[Bin] = []
    for mix, manner in islice(attempts, max(int(effort / work), min(len(manners), 2))):
        if not best or mix @ problem.prices < price_of(best, problem.prices):
            found = _deal_out(problem, appraisal, mix, manner)
            best = min(best or found, found, key=lambda bins: _rank(problem, bins))
    return best


def _polished(problem: Problem, appraisal: Appraisal, bins: list[Bin]) -> list[Bin]:
    """The worst nodes taken apart and dealt out again, as long as that saves money and the effort allows it."""
    effort = _POLISHING
    better: list[Bin] | None = bins
    while better is not None:
        bins, better = better, None
        for size in _POLISHED_NODES:
            worst, rest = _worst(problem, appraisal, bins, size)
            counts = held_by(worst, len(problem.counts))
            kinds = int(np.count_nonzero(counts))
            effort -= kinds
            if effort < 0:
                break
            part, items, offers = _part(problem, counts)
            found = translated(_dealt_out(part, appraise(part), 0), items, offers, len(problem.counts))
            if price_of(found, problem.prices) < price_of(worst, problem.prices) - 1e-9:
                better = merged([*rest, *found])
                break
    return bins


def _worst(problem: Problem, appraisal: Appraisal, bins: list[Bin], size: int) -> tuple[list[Bin], list[Bin]]:
    """The nodes that cost most for the worth of what they hold, and the others."""
    waste = [
        problem.prices[b.offer] / max(sum(float(appraisal.items[item]) * n for item, n in b.content), 1e-300)
        for b in bins
    ]
    worst: list[Bin] = []
    rest = dict(enumerate(bins))
    for index in sorted(rest, key=lambda index: (-waste[index], index)):
        b, taken = bins[index], min(bins[index].copies, size)
        size -= taken
        worst.append(replace(b, copies=taken))
        rest[index] = replace(b, copies=b.copies - taken)
        if not size:
            break
    return worst, [b for b in rest.values() if b.copies]


def _manners(problem: Problem, appraisal: Appraisal) -> tuple[Manner, ...]:
    """Blends where something without a price is hardly in excess; thrift where places differ in worth."""
    bought = appraisal.mix @ problem.sizes
    used = (problem.counts @ problem.requests) / np.maximum(bought, 1)
    unpriced = appraisal.mix @ (problem.sizes * appraisal.unit) < 0.01 * float(appraisal.mix @ problem.prices)
    if (unpriced & (used > 0.8)).any():
        return Manner(blend=1.0), Manner(blend=0.5), Manner()
    return (Manner(), Manner(thrift=0.3)) if np.ptp(appraisal.unit, axis=0).any() else (Manner(),)


def _with_fewest(problem: Problem) -> Iterator[list[Bin]]:
    """Plans made as if every node cost the same, but for a trifle less the dearer it is really, since it holds more."""
    if len(problem.counts) <= _CAREFUL_KINDS:
        yield CarefulSolver(problem).fewest(problem.counts)
    flat = replace(problem, prices=1.0 - 1e-3 * problem.prices / max(float(problem.prices.max()), 1e-300))
    appraisal = appraise(flat, coarse=True)
    for manner in (Manner(), Manner(blend=1.0)):
        nodes = OpenNodes(flat, appraisal, manner)
        nodes.open_mix(np.floor(appraisal.mix + 1e-9).astype(np.int64))
        nodes.place_all(problem.counts, open_more=True)
        yield nodes.settle(problem)


def _deal_out(problem: Problem, appraisal: Appraisal, mix: Ints, manner: Manner) -> list[Bin]:
    """Open the mix and place all; what finds no room gets mixes of its own, and the last few are packed carefully."""
    nodes = OpenNodes(problem, appraisal, manner)
    nodes.open_mix(mix)
    left = nodes.place_all(problem.counts, open_more=False)
    dives = min(1 + len(problem.counts) // _KINDS_PER_DIVE, _DIVES)
    for dive in range(dives):
        if np.count_nonzero(left) <= _CAREFUL_LEFTOVERS:
            break
        nodes.open_mix(_mix_for(problem, left))
        left = nodes.place_all(left, open_more=dive == dives - 1)
    more = _carefully(problem, left) if left.any() else []
    return [*nodes.settle(problem), *more]


def _mix_for(problem: Problem, counts: Ints) -> Ints:
    """The whole nodes of the mix for so many of each item; if all are fractions, one of where most money goes."""
    part, _, offers = _part(problem, counts)
    fractions = appraise(part).mix
    whole = np.floor(fractions + 1e-9).astype(np.int64)
    if not whole.any():
        whole[np.argmax(fractions * part.prices)] = 1
    mix = np.zeros(len(problem.prices), dtype=np.int64)
    mix[offers] = whole
    return mix


def _carefully(problem: Problem, counts: Ints) -> list[Bin]:
    """The careful way for some of the items, without refinement."""
    part, items, offers = _part(problem, counts)
    return translated(CarefulSolver(part).straight(part.counts), items, offers, len(problem.counts))


def _part(problem: Problem, counts: Ints) -> tuple[Problem, Ints, Ints]:
    """The problem of so many of each item, with the items and the offers that are left in it."""
    items = np.flatnonzero(counts)
    part = replace(problem, counts=counts).of_items(items)
    offers = part.useful()
    return part.only(offers), items, offers
