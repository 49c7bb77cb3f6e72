"""The cheapest packing there is, for a handful of items: dynamic programming over all that may be left to place."""

from __future__ import annotations

from typing import Final

import numpy as np

from journeyman.core.scheduling.arrays import Bools, Floats, Ints, every
from journeyman.core.scheduling.packing.problem import Bin, Problem, content_of, merged
from journeyman.core.scheduling.packing.sizing import cheapest_offers

_STATES: Final = 800
_TRIFLE: Final = 1e-9  # that a node costs more, so that of equal plans that of fewer nodes wins


def is_small(problem: Problem) -> bool:
    """Whether there are so few items that trying everything is quick."""
    return bool(np.log(problem.counts + 1.0).sum() <= np.log(_STATES))


def solve_exactly(problem: Problem) -> list[Bin]:
    """The cheapest bins for all items, each of which fits some offer.

    A state is how many of each item are left. The next node always holds the first item that is left, with any others. As
    numbers, states are ordered like the cells of a grid with an axis per item: what a node may hold of a state is a box at
    the origin of that grid, and what it leaves is the same box turned round.
    """
    shape = tuple(int(n) + 1 for n in problem.counts)
    states: Ints = np.indices(shape).reshape(len(shape), -1).T  # also all contents that a node may have
    offers = cheapest_offers(problem, states @ problem.requests, _possible(problem, states))
    prices: Floats = np.where(offers >= 0, problem.prices[offers] + _TRIFLE, np.inf).reshape(shape)
    cost, choice = np.zeros(len(states)), np.zeros(len(states), dtype=np.int64)
    costs, place = cost.reshape(shape), np.arange(len(states)).reshape(shape)
    upto = [[slice(n + 1) for n in range(size)] for size in shape]
    down = [[slice(n, None, -1) for n in range(size)] for size in shape]
    for number, state in enumerate(states[1:].tolist(), 1):
        first = next(item for item, n in enumerate(state) if n)
        held = [cuts[n] for cuts, n in zip(upto, state, strict=True)]
        rest = [cuts[n] for cuts, n in zip(down, state, strict=True)]
        held[first], rest[first] = slice(1, state[first] + 1), down[first][state[first] - 1]
        box = tuple(held)
        totals = prices[box] + costs[tuple(rest)]
        best = int(totals.argmin())
        cost[number], choice[number] = totals.item(best), place[box].item(best)
    bins: list[Bin] = []
    state = len(states) - 1
    while state:
        picked = int(choice[state])
        bins.append(Bin(int(offers[picked]), content_of(states[picked]), 1, len(shape)))
        state -= picked
    return merged(bins)


def _possible(problem: Problem, contents: Ints) -> Bools:
    """By content and signature, whether such an offer may hold it; none may if two of its items are in conflict."""
    used = (contents > 0).astype(np.int64)
    loose, bound = problem.loose.astype(np.int64), problem.bound.astype(np.int64)
    pairs = (used @ loose) * (used @ bound) - used @ (loose * bound)
    peaceful: Bools = every(pairs == 0)
    found: Bools = (used @ (~problem.allowed).T.astype(np.int64) == 0) & peaceful[:, None]
    return found
