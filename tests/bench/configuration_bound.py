"""Proves a lower bound of the price by the linear program over whole nodes and their contents.

The program is solved by column generation. In every round an integer program finds the most valuable content of each offer
at some worths of the items. If no content is worth more than `most` times its node's price, the worths divided by `most`
bound the price of every plan (Farley's bound). The worths are between those of the best bound so far and those of the
master, which alone jump from round to round. That takes half a minute to minutes (`seconds` at most), so the scheduler reports
the bound of the linear program over resources instead.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from journeyman.core.scheduling.packing import Packing, PackingProblem
from journeyman.core.scheduling.packing.shadow_prices import compute_shadow_prices

ROUNDS: Final = 60
_CLOSE: Final = 1e-3  # of the bound to the master's price
_CONTENTS: Final = 30  # of a round, where there are so many
_SLACK: Final = 1e-6  # of a content's worth, for rounding
_STEP: Final = 0.3  # from the worths of the best bound towards those of the master; more while that finds nothing new
_INTEGER_OPTIONS: Final = {"mip_rel_gap": 1e-4, "time_limit": 2.0}  # when it stops early, the bound is looser but holds


class _Priced(NamedTuple):
    """An upper bound of the worth over price of any content, and contents by offer."""

    most: float
    contents: list[tuple[int, np.ndarray]]


def is_suitable(problem: PackingProblem) -> bool:
    """Return whether any offer may hold any item, without conflicts and reservations: only then the bound is of any plan."""
    return bool(problem.allowed.all()) and not problem.selected.any() and not len(problem.reserved)


def configuration_bound(problem: PackingProblem, packing: Packing, *, seconds: float = 120.0) -> float:
    """Return a proven lower bound of the price of any packing, never below that over resources.

    The nodes of a packing are the first columns. No round begins after `seconds`.
    """
    ends = time.monotonic() + seconds
    counts = problem.counts.astype(float)
    shadow = compute_shadow_prices(problem)
    centre, best = shadow.items, shadow.bound
    columns = [(b.offer, b.filling) for b in packing.bins]
    step, last_price = _STEP, np.inf
    for _ in range(ROUNDS):
        price, worth = _master(problem, columns)
        if best >= price * (1 - _CLOSE) or time.monotonic() > ends:
            break
        step = _STEP if price < last_price - _SLACK else min(2 * step, 1.0)
        last_price = price
        between = step * worth + (1 - step) * centre
        priced = _price(problem, between)
        bound = float(between @ counts) / priced.most
        if bound > best:
            centre, best = between / priced.most, bound
        columns += priced.contents
    return best


def _master(problem: PackingProblem, columns: list[tuple[int, np.ndarray]]) -> tuple[float, np.ndarray]:
    """Return the price of the cheapest fractions of the columns that cover all items, and the worth of each item."""
    prices = problem.prices[[offer for offer, _ in columns]]
    cover = np.array([content for _, content in columns]).T / problem.counts[:, None]
    found = linprog(prices, A_ub=-cover, b_ub=-np.ones(len(cover)), method="highs-ds")
    return float(found.fun), np.maximum(-found.ineqlin.marginals, 0.0) / problem.counts


def _price(problem: PackingProblem, worth: np.ndarray) -> _Priced:
    """Return the most valuable contents of the offers, those with the most valuable fractions of items first.

    An offer whose fractions are worth no more than a content that was found cannot raise `most`, nor can all after it; a few
    of them are solved for their contents alone.
    """
    knapsacks = [each for offer in range(len(problem.sizes)) if (each := _knapsack(problem, worth, offer)) is not None]
    most, contents = 1.0, []
    for number, knapsack in enumerate(sorted(knapsacks, key=lambda each: -each.fractions)):
        if knapsack.fractions <= (most if number >= _CONTENTS else 1.0):
            break
        found = milp(
            knapsack.gain,
            constraints=LinearConstraint(knapsack.requests, ub=knapsack.capacity),
            integrality=np.ones(len(knapsack.items)),
            bounds=Bounds(0, problem.counts[knapsack.items]),
            options=_INTEGER_OPTIONS,
        )
        most = max(most, -found.mip_dual_bound + _SLACK)
        if found.x is not None:
            content = np.zeros(len(worth), dtype=np.int64)
            content[knapsack.items] = np.round(found.x)
            if (content @ problem.requests <= problem.sizes[knapsack.offer]).all():
                contents.append((knapsack.offer, content))
    return _Priced(most, contents)


class _Knapsack(NamedTuple):
    """What may be put on a node of an offer: its `gain` is the negative worth over price of one of each item."""

    offer: int
    items: np.ndarray
    requests: np.ndarray
    capacity: np.ndarray
    gain: np.ndarray
    fractions: float  # the worth over price of the best content if items could be split


def _knapsack(problem: PackingProblem, worth: np.ndarray, offer: int) -> _Knapsack | None:
    """Return the knapsack of an offer; None if nothing of worth fits."""
    size = problem.sizes[offer]
    items = np.flatnonzero((problem.requests <= size).all(axis=1) & (worth > 0))
    if not len(items):
        return None
    scale = np.maximum(size, 1).astype(float)
    requests, capacity = (problem.requests[items] / scale).T, size / scale
    gain, limits = -worth[items] / problem.prices[offer], problem.counts[items]
    fractions = linprog(gain, A_ub=requests, b_ub=capacity, bounds=np.column_stack((0 * limits, limits)))
    return _Knapsack(offer, items, requests, capacity, gain, -fractions.fun)
