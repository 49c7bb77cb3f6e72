"""Nodes of which there is a stock come first: they are paid for already."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from journeyman.core.scheduling.arrays import Ints
from journeyman.core.scheduling.packing.appraisal import appraise
from journeyman.core.scheduling.packing.problem import Bin, Problem, held_by, translated
from journeyman.core.scheduling.packing.wide import Manner, OpenNodes

_EPSILON = 1e-6  # of a node


def fill_stocks(problem: Problem) -> list[Bin]:
    """Bins on offers with a stock, as many as the linear program would buy, filled with the most valuable items.

    What it would still buy for what found no room in those is opened next, until there is nothing more to buy.
    """
    counts, stocks = problem.counts, problem.stocks
    bins: list[Bin] = []
    while counts.any() and stocks.any():
        items = np.flatnonzero(counts)
        found = _fill_once(replace(problem, counts=counts, stocks=stocks).of_items(items))
        if not found:
            break
        bins += translated(found, items, np.arange(len(problem.prices)), len(counts))
        counts = problem.counts - held_by(bins, len(counts))
        stocks = problem.stocks - taken_from_stocks(problem, bins)
    return bins


def taken_from_stocks(problem: Problem, bins: list[Bin]) -> Ints:
    """How many nodes the bins take of each stock."""
    taken = np.zeros_like(problem.stocks)
    for b in bins:
        if problem.limited[b.offer]:
            taken[problem.stock[b.offer]] += b.copies
    return taken


def _fill_once(problem: Problem) -> list[Bin]:
    appraisal = appraise(problem)
    nodes = OpenNodes(problem, appraisal, Manner(blend=0.5))
    left = problem.stocks.copy()
    for offer in np.flatnonzero(problem.limited & (appraisal.mix > _EPSILON)):
        stock = problem.stock[offer]
        copies = min(int(np.ceil(appraisal.mix[offer] - _EPSILON)), int(left[stock]))
        nodes.open(int(offer), copies)
        left[stock] -= copies
    nodes.place_all(problem.counts, open_more=False)
    return nodes.settle(None)
