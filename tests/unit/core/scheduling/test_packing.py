"""Packing by price, on problems small enough to know the answer."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from journeyman.core.scheduling.packing import Problem, lower_bound, pack


def a_problem(counts, requests, sizes, prices, *, allowed=None, signatures=None, loose=None, bound=None):
    """A problem whose offers may hold everything unless told otherwise."""
    items = len(counts)
    none = np.zeros((items, 0), dtype=bool)
    return Problem(
        counts=np.array(counts),
        requests=np.array(requests),
        sizes=np.array(sizes),
        prices=np.array(prices, dtype=float),
        allowed=np.ones((1, items), dtype=bool) if allowed is None else np.array(allowed, dtype=bool),
        signatures=np.zeros(len(prices), dtype=np.int64) if signatures is None else np.array(signatures),
        loose=none if loose is None else np.array(loose, dtype=bool),
        bound=none if bound is None else np.array(bound, dtype=bool),
    )


def check(problem, packing):
    """Every item placed once, no node overfull, the price right."""
    placed = np.zeros(len(problem.counts), dtype=np.int64)
    for b in packing.bins:
        filling = np.array(b.filling)
        assert (filling @ problem.requests <= problem.sizes[b.offer]).all()
        assert problem.allowed[problem.signatures[b.offer]][filling > 0].all()
        placed += filling * b.copies
    assert (placed + packing.left == problem.counts).all()
    assert packing.price == pytest.approx(sum(problem.prices[b.offer] * b.copies for b in packing.bins))


def cheapest_by_trying(problem, most_nodes):
    """The optimum for one kind of item: every multiset of offers."""
    holds = (problem.sizes // problem.requests[0]).min(axis=1)
    costs = [
        problem.prices[list(combination)].sum()
        for size in range(most_nodes + 1)
        for combination in itertools.combinations_with_replacement(range(len(holds)), size)
        if holds[list(combination)].sum() >= problem.counts[0]
    ]
    return min(costs)


@pytest.mark.parametrize("count", [1, 2, 5, 9, 14, 23])
def test_one_kind_of_item_is_packed_at_the_least_price_there_is(count):
    """Compared with every combination of offers."""
    problem = a_problem([count], [[3, 2]], [[10, 9], [20, 7], [31, 40], [7, 7]], [1.0, 1.2, 3.1, 0.8])

    packing = pack(problem)

    check(problem, packing)
    assert packing.price == pytest.approx(cheapest_by_trying(problem, 9))


def test_small_items_fill_what_large_ones_leave():
    """Two large and four small ones share two nodes; apart they would need three."""
    problem = a_problem([2, 4], [[6, 6], [2, 2]], [[10, 10]], [1.0])

    packing = pack(problem)

    check(problem, packing)
    assert packing.price == 2.0


def test_items_that_complement_each_other_are_packed_together():
    """Half ask for cpu, half for memory; one balanced kind of node is cheaper than two lopsided ones."""
    problem = a_problem([8, 8], [[4, 1], [1, 4]], [[20, 20], [20, 5], [5, 20]], [1.0, 0.7, 0.7])

    packing = pack(problem)

    check(problem, packing)
    assert packing.price == 2.0


def test_an_item_no_offer_can_hold_is_left():
    """And the others are placed."""
    problem = a_problem([1, 2], [[50, 1], [1, 1]], [[10, 10]], [1.0])

    packing = pack(problem)

    check(problem, packing)
    assert packing.left == (1, 0)


def test_signatures_keep_items_off_offers_that_do_not_suit():
    """The second item may only use the dear offer, the first prefers the cheap one."""
    problem = a_problem(
        [4, 1], [[5], [5]], [[10], [10]], [1.0, 3.0], allowed=[[True, False], [True, True]], signatures=[0, 1]
    )

    packing = pack(problem)

    check(problem, packing)
    assert packing.price == 5.0  # the dear node takes one of the first items along


def test_items_on_two_sides_of_a_conflict_never_share_a_node():
    """Although one node would hold both."""
    problem = a_problem([1, 1], [[1], [1]], [[10]], [1.0], loose=[[True], [False]], bound=[[False], [True]])

    packing = pack(problem)

    check(problem, packing)
    assert sum(b.copies for b in packing.bins) == 2


def test_fewest_nodes_takes_one_large_node_where_two_small_are_cheaper():
    """Karpenter's way, on request."""
    problem = a_problem([4], [[5]], [[10], [20]], [1.0, 2.5])

    assert sum(b.copies for b in pack(problem, fewest_nodes=True).bins) == 1
    assert pack(problem).price == 2.0


def test_the_bound_is_the_linear_programs_and_adds_up_over_separate_markets():
    """Ten units at 0.1 a unit, and four at 0.5."""
    problem = a_problem(
        [10, 4], [[1], [1]], [[10], [2]], [1.0, 1.0], allowed=[[True, False], [False, True]], signatures=[0, 1]
    )

    assert lower_bound(problem) == pytest.approx(3.0)


@pytest.mark.parametrize("seed", range(6))
def test_no_packing_undercuts_the_bound_and_none_is_far_above(seed):
    """Random items; offers of much the same proportions, priced roughly by size."""
    rng = np.random.default_rng(seed)
    requests = rng.integers(1, 40, (12, 3))
    sizes = (rng.integers(100, 1500, (25, 1)) * rng.uniform(0.85, 1.15, (25, 3))).astype(np.int64)
    prices = sizes.sum(axis=1) * rng.uniform(0.8, 1.2, 25) / 100
    problem = a_problem(rng.integers(1, 200, 12), requests, sizes, prices)

    packing = pack(problem)

    check(problem, packing)
    assert lower_bound(problem) <= packing.price <= 1.1 * lower_bound(problem)
