"""The cheapest offer for a node whose content is known."""

from __future__ import annotations

from typing import Final

import numpy as np

from journeyman.core.scheduling.arrays import Bools, Ints
from journeyman.core.scheduling.packing.problem import Problem

_CHUNK: Final = 1 << 20  # contents times offers looked at together


def cheapest_offers(problem: Problem, totals: Ints, possible: Bools) -> Ints:
    """By content, the cheapest offer without a stock that holds it; -1 if there is none.

    Args:
        problem: Whose offers to choose from.
        totals: What each content asks for, by content and axis.
        possible: By content and signature, whether such an offer may hold it.
    """
    order = np.argsort(problem.prices, kind="stable")
    order = order[~problem.limited[order]]
    found = np.full(len(totals), -1, dtype=np.int64)
    if not len(order):
        return found
    sizes, signatures = problem.sizes[order], problem.signatures[order]
    step = max(_CHUNK // len(order), 1)
    for start in range(0, len(totals), step):
        some = slice(start, start + step)
        holds = possible[some][:, signatures]
        for axis in np.flatnonzero(totals[some].max(axis=0) > sizes.min(axis=0)):
            holds &= sizes[:, axis] >= totals[some, axis, None]
        first = holds.argmax(axis=1)
        found[some] = np.where(holds[np.arange(len(first)), first], order[first], -1)
    return found
