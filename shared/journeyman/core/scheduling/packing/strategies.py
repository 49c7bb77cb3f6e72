"""Selects the packing methods for a problem, and returns the best plan.

The selection depends only on the numbers of items and nodes and on the prices of plans, so that the running time stays
proportionate and equal problems have equal results. Every plan is compared with the others, so no method makes one
dearer.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

import numpy as np
from msgspec.structs import replace

from journeyman.core.scheduling.arrays import Bools, Floats, Ints, every
from journeyman.core.scheduling.packing.bulk_packing import BulkPacker, FillOrder, whole_mixes
from journeyman.core.scheduling.packing.column_generation import ColumnGeneration
from journeyman.core.scheduling.packing.greedy_packing import GreedyPacker, cover_exactly
from journeyman.core.scheduling.packing.packing_problem import (
    Bin,
    PackingProblem,
    cheapest_offers,
    content_of,
    held_by,
    merged,
    price_of,
    translated,
)
from journeyman.core.scheduling.packing.shadow_prices import ShadowPrices, compute_shadow_prices

_FEW_ITEMS: Final = 64  # up to this many kinds of items the greedy packer, which refines its prices, is affordable
_PROVEN: Final = 1e-6  # of the price; a plan this close to the lower bound is not improved further,
_CLOSE_TO_BOUND: Final = 0.025  # and one this close not by column generation
PLAIN_EFFORT: Final = 200_000  # items tried in a plain greedy plan, times the gap between price and lower bound
_LEAST_PLAIN_EFFORT: Final = 4_000  # whatever the gap
_NODES_ALIKE: Final = 10  # kinds of items times different nodes, per item tried; a greedy plan with more does not end
_GENERATED_NODES: Final = 40  # fewer are repacked instead
GENERATION_EFFORT: Final = 120_000_000  # items tried on nodes, times the gap between price and lower bound
_LARGEST_GAP: Final = 0.095  # at which that effort no longer grows
_LEAST_EFFORT: Final = 80  # times items times offers; with less, column generation hardly begins
_FEW_LEFTOVERS: Final = 150  # likewise, for items that do not fit the mix
MIX_ROUNDS: Final = 4  # mixes for items that did not fit the previous mixes
_KINDS_PER_ROUND: Final = 500  # problems with fewer kinds of items try more mixes instead
_EFFORT: Final = 4000  # kinds of items distributed, over all attempts
_NODES_PER_KIND: Final = 350  # nodes that make one more kind's worth of effort
REPACKING_EFFORT: Final = 1500  # kinds of items distributed again, over all attempts
REPACKED_NODES: Final = (2, 3, 4, 6, 9, 14)
REPACKED_PLAN: Final = 200  # nodes; among more, the worst few do not matter
_DECIMALS: Final = 9


def solve(problem: PackingProblem, *, fewest_nodes: bool) -> list[Bin]:
    """Return the cheapest plan found, or the one with the fewest nodes; every item must fit some offer."""
    if fewest_nodes:
        return min(_with_fewest(problem), key=lambda bins: _rank(problem, bins)[::-1])
    return _cheapest(problem)


def _rank(problem: PackingProblem, bins: list[Bin]) -> tuple[float, int]:
    return round(price_of(bins, problem.prices), _DECIMALS), sum(b.copies for b in bins)


def _cheapest(problem: PackingProblem) -> list[Bin]:
    """Return the cheapest plan; runs fast methods first, and column generation only where it may improve the plan."""
    kinds = len(problem.counts)
    if kinds == 1:
        return cover_exactly(problem, 0, int(problem.counts[0]))
    if is_small(problem):
        return solve_exactly(problem)
    shadow = compute_shadow_prices(problem)
    best = _best_of_mixes(problem, shadow, _EFFORT)
    if kinds <= _FEW_ITEMS:
        found = GreedyPacker(problem, shadow).cheapest(problem.counts)
        best = min(best, found, key=lambda bins: _rank(problem, bins))
    if sum(b.copies for b in best) <= REPACKED_PLAN:
        best = repacked(problem, shadow, best)
    return min([best, *_further(problem, shadow, best)], key=lambda bins: _rank(problem, bins))


def _further(problem: PackingProblem, shadow: ShadowPrices, best: list[Bin]) -> Iterator[list[Bin]]:
    """Yield the plain greedy plan if it is cheaper, and that of column generation, where they are affordable.

    Both may take effort in proportion to the gap between the best plan and the lower bound: it is the most they can
    save.
    """
    kinds, nodes, price = len(problem.counts), sum(b.copies for b in best), price_of(best, problem.prices)
    gap = price / max(shadow.bound, 1e-300) - 1
    most_saved = min(gap, _LARGEST_GAP)
    if nodes == problem.counts.sum() or gap <= _PROVEN:  # items exclude each other, which the bound ignores
        return
    plain_effort = max(int(PLAIN_EFFORT * most_saved), _LEAST_PLAIN_EFFORT)
    ends = kinds * len(best) <= _NODES_ALIKE * plain_effort
    effort = int(GENERATION_EFFORT * most_saved)
    is_affordable = kinds * len(problem.prices) * _LEAST_EFFORT <= effort
    is_generated = gap > _CLOSE_TO_BOUND and is_affordable and nodes >= _GENERATED_NODES
    if not ends and not is_generated:
        return
    greedy = GreedyPacker(problem, shadow)
    start = best
    plain = greedy.plain(problem.counts, price, plain_effort) if ends else None
    if plain is not None:
        yield plain
        start = [*plain, *best]
    if is_generated:
        yield _settled(problem, ColumnGeneration(problem, greedy).plan(start, effort))


def _settled(problem: PackingProblem, bins: list[Bin]) -> list[Bin]:
    """Return the bins, each on the cheapest offer that holds its content."""
    contents = np.array([b.filling for b in bins])
    offers = cheapest_offers(problem, contents @ problem.requests, _possible(problem, contents))
    return merged(replace(b, offer=int(offer)) for b, offer in zip(bins, offers, strict=True))


def _best_of_mixes(problem: PackingProblem, shadow: ShadowPrices, effort: float) -> list[Bin]:
    """Return the cheapest plan of as many mixes and fill orders as the effort allows, at least two fill orders."""
    work = len(problem.counts) * (1 + shadow.mix.sum() / _NODES_PER_KIND)
    orders = fill_orders(problem, shadow)
    attempts = ((mix, fill_order) for mix in whole_mixes(problem, shadow) for fill_order in orders)
    best: list[Bin] = []
    for mix, fill_order in islice(attempts, max(int(effort / work), min(len(orders), 2))):
        if not best or mix @ problem.prices < price_of(best, problem.prices):
            found = _pack_mix(problem, shadow, mix, fill_order)
            best = min(best or found, found, key=lambda bins: _rank(problem, bins))
    return best


def repacked(problem: PackingProblem, shadow: ShadowPrices, bins: list[Bin]) -> list[Bin]:
    """Repack the worst nodes while that lowers the price and the effort allows it; return the bins."""
    effort = REPACKING_EFFORT
    better: list[Bin] | None = bins
    while better is not None:
        bins, better = better, None
        for size in REPACKED_NODES:
            worst, rest = _split_worst(problem, shadow, bins, size)
            counts = held_by(worst, len(problem.counts))
            kinds = int(np.count_nonzero(counts))
            effort -= kinds
            if effort < 0:
                break
            part, items, offers = _subproblem(problem, counts)
            found = translated(_best_of_mixes(part, compute_shadow_prices(part), 0), items, offers, len(problem.counts))
            if price_of(found, problem.prices) < price_of(worst, problem.prices) - 1e-9:
                better = merged([*rest, *found])
                break
    return bins


def _split_worst(
    problem: PackingProblem, shadow: ShadowPrices, bins: list[Bin], size: int
) -> tuple[list[Bin], list[Bin]]:
    """Return the `size` nodes with the highest price for the worth of their content, and the others."""
    waste = [
        problem.prices[b.offer] / max(sum(float(shadow.items[item]) * n for item, n in b.content.pairs()), 1e-300)
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


def fill_orders(problem: PackingProblem, shadow: ShadowPrices) -> tuple[FillOrder, ...]:
    """Return the fill orders to try: blends if an unpriced axis is nearly used up, thrift if worths differ by offer."""
    bought = shadow.mix @ problem.sizes
    used = (problem.counts @ problem.requests) / np.maximum(bought, 1)
    unpriced = shadow.mix @ (problem.sizes * shadow.unit) < 0.01 * float(shadow.mix @ problem.prices)
    if (unpriced & (used > 0.8)).any():
        return FillOrder(blend=1.0), FillOrder(blend=0.5), FillOrder()
    return (FillOrder(), FillOrder(thrift=0.3)) if np.ptp(shadow.unit, axis=0).any() else (FillOrder(),)


def _with_fewest(problem: PackingProblem) -> Iterator[list[Bin]]:
    """Yield plans computed as if all nodes had nearly equal prices; expensive nodes get a slightly lower one."""
    if len(problem.counts) <= _FEW_ITEMS:
        yield GreedyPacker(problem, compute_shadow_prices(problem)).fewest(problem.counts)
    flat = replace(problem, prices=1.0 - 1e-3 * problem.prices / max(float(problem.prices.max()), 1e-300))
    shadow = compute_shadow_prices(flat, coarse=True)
    for fill_order in (FillOrder(), FillOrder(blend=1.0)):
        nodes = BulkPacker(flat, shadow, fill_order)
        nodes.open_mix(np.floor(shadow.mix + 1e-9).astype(np.int64))
        nodes.place_all(problem.counts, open_more=True)
        yield nodes.settle(problem)


def _pack_mix(problem: PackingProblem, shadow: ShadowPrices, mix: Ints, fill_order: FillOrder) -> list[Bin]:
    """Open the mix and place all items; the rest gets further mixes, and the greedy packer packs the last few."""
    nodes = BulkPacker(problem, shadow, fill_order)
    nodes.open_mix(mix)
    left = nodes.place_all(problem.counts, open_more=False)
    rounds = min(1 + len(problem.counts) // _KINDS_PER_ROUND, MIX_ROUNDS)
    for round_ in range(rounds):
        if np.count_nonzero(left) <= _FEW_LEFTOVERS:
            break
        nodes.open_mix(_mix_for(problem, left))
        left = nodes.place_all(left, open_more=round_ == rounds - 1)
    more = _pack_leftovers(problem, left) if left.any() else []
    return [*nodes.settle(problem), *more]


def _mix_for(problem: PackingProblem, counts: Ints) -> Ints:
    """Return the whole nodes of the mix for these counts, or else one node of the offer with most spending."""
    part, _, offers = _subproblem(problem, counts)
    fractions = compute_shadow_prices(part).mix
    whole = np.floor(fractions + 1e-9).astype(np.int64)
    if not whole.any():
        whole[np.argmax(fractions * part.prices)] = 1
    mix = np.zeros(len(problem.prices), dtype=np.int64)
    mix[offers] = whole
    return mix


def _pack_leftovers(problem: PackingProblem, counts: Ints) -> list[Bin]:
    """Return bins for these counts by the greedy packer, without refined prices."""
    part, items, offers = _subproblem(problem, counts)
    packer = GreedyPacker(part, compute_shadow_prices(part))
    return translated(packer.straight(part.counts), items, offers, len(problem.counts))


def _subproblem(problem: PackingProblem, counts: Ints) -> tuple[PackingProblem, Ints, Ints]:
    """Return the subproblem with these counts, and the indices of its items and offers."""
    items = np.flatnonzero(counts)
    part = replace(problem, counts=counts).of_items(items)
    offers = part.useful()
    return part.only(offers), items, offers


EXACT_STATES: Final = 800
_TRIFLE: Final = 1e-9  # added to each node's price, so that fewer nodes win at equal price


def is_small(problem: PackingProblem) -> bool:
    """Whether the items are few enough to solve the problem exactly."""
    return bool(np.log(problem.counts + 1.0).sum() <= np.log(EXACT_STATES))


def solve_exactly(problem: PackingProblem) -> list[Bin]:
    """Return the cheapest bins for all items; every item must fit some offer.

    A state is the number left of each item. The next node always holds the first item left, with any others. States are
    numbered like the points of a grid with an axis per item: the possible contents of a node in a state form a box at
    the origin of the grid, and the states after them form the same box reversed.
    """
    shape = tuple(int(n) + 1 for n in problem.counts)
    states: Ints = np.indices(shape).reshape(len(shape), -1).T  # these are also all possible contents
    offers = cheapest_offers(problem, states @ problem.requests, _possible(problem, states))
    prices: Floats = np.where(offers >= 0, problem.prices[offers] + _TRIFLE, np.inf).reshape(shape)
    cost, choice = np.zeros(len(states)), np.zeros(len(states), dtype=np.int64)
    costs, states_grid = cost.reshape(shape), np.arange(len(states)).reshape(shape)
    upto = [[slice(n + 1) for n in range(size)] for size in shape]
    down = [[slice(n, None, -1) for n in range(size)] for size in shape]
    for number, state in enumerate(states[1:].tolist(), 1):
        first = next(item for item, n in enumerate(state) if n)
        content = [cuts[n] for cuts, n in zip(upto, state, strict=True)]
        rest = [cuts[n] for cuts, n in zip(down, state, strict=True)]
        content[first], rest[first] = slice(1, state[first] + 1), down[first][state[first] - 1]
        box = tuple(content)
        totals = prices[box] + costs[tuple(rest)]
        best = int(totals.argmin())
        cost[number], choice[number] = totals.item(best), states_grid[box].item(best)
    bins: list[Bin] = []
    state = len(states) - 1
    while state:
        picked = int(choice[state])
        bins.append(Bin(int(offers[picked]), content_of(states[picked]), 1, len(shape)))
        state -= picked
    return merged(bins)


def _possible(problem: PackingProblem, contents: Ints) -> Bools:
    """Return by content and node constraints whether such an offer may hold it; never if two of its items conflict."""
    used = (contents > 0).astype(np.int64)
    selected, owning = problem.selected.astype(np.int64), problem.owning.astype(np.int64)
    pairs = (used @ selected) * (used @ owning) - used @ (selected * owning)
    without_conflict: Bools = every(pairs == 0)
    found: Bools = (used @ (~problem.allowed).T.astype(np.int64) == 0) & without_conflict[:, None]
    return found


_EPSILON = 1e-6  # of a node


def fill_reservations(problem: PackingProblem) -> list[Bin]:
    """Return bins on reserved offers, as many as the linear program buys, filled with the most valuable items.

    It solves the program again for the items left and opens what it buys, until it buys no more reserved nodes.
    """
    counts, reserved = problem.counts, problem.reserved.copy()
    bins: list[Bin] = []
    while counts.any() and reserved.any():
        items = np.flatnonzero(counts)
        found = _fill_once(replace(problem, counts=counts, reserved=reserved).of_items(items))
        if not found:
            break
        bins += translated(found, items, np.arange(len(problem.prices)), len(counts))
        counts = problem.counts - held_by(bins, len(counts))
        for b in found:
            reserved[problem.reservation[b.offer]] -= b.copies
    return bins


def _fill_once(problem: PackingProblem) -> list[Bin]:
    shadow = compute_shadow_prices(problem)
    nodes = BulkPacker(problem, shadow, FillOrder(blend=0.5))
    left = problem.reserved.copy()
    for offer in np.flatnonzero(problem.is_reserved & (shadow.mix > _EPSILON)):
        reservation = problem.reservation[offer]
        copies = min(int(np.ceil(shadow.mix[offer] - _EPSILON)), int(left[reservation]))
        nodes.open(int(offer), copies)
        left[reservation] -= copies
    nodes.place_all(problem.counts, open_more=False)
    return nodes.settle(None)
