"""Whole nodes instead of the fractions that the linear program would buy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from journeyman.core.scheduling.arrays import Floats, Ints, every
from journeyman.core.scheduling.packing.appraisal import Appraisal
from journeyman.core.scheduling.packing.problem import Problem

_EPSILON: Final = 1e-9
_OFFERS: Final = 40  # whose combinations are tried to cover what whole nodes of the mix leave
_MARGINS: Final = (0.0, 0.01, 0.02, 0.03, 0.05, 0.08)  # room to spare, since items are not sand


def whole_mixes(problem: Problem, appraisal: Appraisal) -> Iterator[Ints]:
    """How many nodes of each offer to open: the mix rounded down, then with a cheap cover of the rest, ever roomier."""
    base = np.floor(appraisal.mix + _EPSILON).astype(np.int64)
    yield base
    if len(problem.allowed) > 1:
        for least in (0.5, 0.0):
            yield base + (appraisal.mix - base > least + _EPSILON)
        return
    combinations = _Combinations(problem, appraisal)
    seen = {base.tobytes()}
    for margin in _MARGINS:
        need = (problem.counts @ problem.requests).astype(float) * (1 + margin) - base @ problem.sizes
        mix = base + combinations.cheapest_cover(need)
        if mix.tobytes() not in seen:
            seen.add(mix.tobytes())
            yield mix


class _Combinations:
    """Up to three nodes of promising offers, all ways to combine them, by price."""

    def __init__(self, problem: Problem, appraisal: Appraisal) -> None:
        need = (problem.counts @ problem.requests).astype(float)
        usable = np.minimum(problem.sizes, need)
        value = (usable * appraisal.unit).sum(axis=1)
        ratio = problem.prices / np.maximum(value, 1e-300)
        self._width = len(problem.prices)
        offers: Ints = np.sort(np.argsort(ratio, kind="stable")[:_OFFERS])
        none = len(offers)  # stands for no node
        first, second, third = (axis.ravel() for axis in np.indices((none + 1,) * 3))
        ordered = (first <= second) & (second <= third) & (first < none)
        self._picks: Ints = np.stack((first[ordered], second[ordered], third[ordered]), axis=1)
        self._offers = offers
        self._sizes: Floats = np.vstack((problem.sizes[offers], np.zeros_like(problem.sizes[:1]))).astype(float)
        self._prices: Floats = np.append(problem.prices[offers], 0.0)[self._picks].sum(axis=1)

    def cheapest_cover(self, need: Floats) -> Ints:
        """Nodes by offer that together have this much room; none if three are too few."""
        covers = every(self._sizes[self._picks].sum(axis=1) >= need)
        mix = np.zeros(self._width, dtype=np.int64)
        if (need > 0).any() and covers.any():
            best = int(np.argmin(np.where(covers, self._prices, np.inf)))
            for pick in self._picks[best]:
                if pick < len(self._offers):
                    mix[self._offers[pick]] += 1
        return mix
