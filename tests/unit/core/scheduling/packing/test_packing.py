"""Packing by price, on problems small enough to know the answer."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from journeyman.core.scheduling.packing import PackingProblem, lower_bound, pack
from journeyman.core.scheduling.packing.shadow_prices import OfferGroups


def a_problem(
    counts, requests, sizes, prices, *, allowed=None, signatures=None, loose=None, bound=None, stock=(), stocks=()
):
    """A problem whose offers may hold everything unless `allowed` says otherwise."""
    items = len(counts)
    none = np.zeros((items, 0), dtype=bool)
    return PackingProblem(
        counts=np.array(counts),
        requests=np.array(requests),
        sizes=np.array(sizes),
        prices=np.array(prices, dtype=float),
        allowed=np.ones((1, items), dtype=bool) if allowed is None else np.array(allowed, dtype=bool),
        signatures=np.zeros(len(prices), dtype=np.int64) if signatures is None else np.array(signatures),
        loose=none if loose is None else np.array(loose, dtype=bool),
        bound=none if bound is None else np.array(bound, dtype=bool),
        stock=np.array(stock, dtype=np.int64),
        stocks=np.array(stocks, dtype=np.int64),
    )


def check(problem, packing):
    """Every item placed once, no node overfull, no conflict on one, no stock overdrawn, the price right."""
    placed = np.zeros(len(problem.counts), dtype=np.int64)
    drawn = np.zeros(len(problem.stocks), dtype=np.int64)
    for b in packing.bins:
        filling = b.filling
        used = np.flatnonzero(filling)
        assert (filling @ problem.requests <= problem.sizes[b.offer]).all()
        assert problem.allowed[problem.signatures[b.offer]][used].all()
        assert not any((problem.loose[i] & problem.bound[j]).any() for i in used for j in used if i != j)
        if len(problem.stock) and problem.stock[b.offer] >= 0:
            drawn[problem.stock[b.offer]] += b.copies
        placed += filling * b.copies
    assert (placed + packing.left == problem.counts).all()
    assert (drawn <= problem.stocks).all()
    assert packing.price == pytest.approx(sum(problem.prices[b.offer] * b.copies for b in packing.bins))


def nodes_of(packing):
    """How many nodes it opens."""
    return sum(b.copies for b in packing.bins)


def a_trace(seed, pods, *, zones=1, apart=0):
    """Differing pods with heavy tails on nodes of three shapes from 2 to 96 cores, discounts drawn.

    With `zones` every second pod is bound to one, and each zone has its own discounts; the first `apart` pods share no
    node with one another.
    """
    rng = np.random.default_rng(seed)
    cpu = np.minimum(100 * np.exp(rng.exponential(1.1, pods)), 16_000).astype(np.int64)
    memory = (cpu * 1.024 * np.exp(rng.uniform(np.log(0.5), np.log(8), pods))).astype(np.int64)
    alone = (np.arange(pods) < apart).astype(np.int64)
    sizes, prices, signatures = [], [], []
    for zone in range(zones):
        for cores in (2, 4, 8, 16, 32, 48, 64, 96):
            for gib_per_core in (2, 4, 8):
                sizes.append((cores * 1000 - 100, cores * gib_per_core * 1000 - 500, 8 * cores + 20, 1))
                prices.append(cores * (0.02 + 0.003 * gib_per_core) * rng.uniform(0.3, 0.6))
                signatures.append(zone)
    bound_to = np.where(np.arange(pods) % 2, rng.integers(0, zones, pods), -1)
    allowed = [(bound_to < 0) | (bound_to == zone) for zone in range(zones)]
    requests = np.stack((cpu, memory, np.ones_like(cpu), alone), axis=1)
    return a_problem(np.ones(pods, dtype=np.int64), requests, sizes, prices, allowed=allowed, signatures=signatures)


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
    assert nodes_of(packing) == 2


def test_conflicting_items_exclude_each_other_but_not_themselves():
    """Two of each of two items, and capacity for four: how many of one item share a node is for axes to say."""
    both = [[True], [True]]
    problem = a_problem([2, 2], [[1], [1]], [[4]], [1.0], loose=both, bound=both)

    packing = pack(problem)

    check(problem, packing)
    assert sorted(tuple(b.filling) for b in packing.bins) == [(0, 2), (2, 0)]


def test_conflicts_hold_among_hundreds_of_items():
    """Every third item is loose, every third bound; the others may go anywhere."""
    kind = np.arange(240) % 3
    rng = np.random.default_rng(5)
    problem = a_problem(
        np.ones(240, dtype=np.int64),
        rng.integers(1, 30, (240, 2)),
        [[100, 100], [60, 40]],
        [1.0, 0.5],
        loose=(kind == 0)[:, None],
        bound=(kind == 1)[:, None],
    )

    packing = pack(problem)

    check(problem, packing)
    assert packing.left == (0,) * 240
    assert packing.price <= 1.2 * lower_bound(problem)


def test_what_there_is_a_stock_of_is_used_first_and_never_overdrawn():
    """Two reserved nodes take the two that are dearest to place; the third has to be bought."""
    problem = a_problem([3, 3], [[8], [1]], [[10], [10]], [0.001, 5.0], stock=[0, -1], stocks=[2])

    packing = pack(problem)

    check(problem, packing)
    assert sorted(b.offer for b in packing.bins for _ in range(b.copies)) == [0, 0, 1]
    assert lower_bound(problem) == pytest.approx(0.002 + 0.7 * 5.0)


def test_what_costs_nothing_at_all_is_packed_like_anything_else():
    """Two stocks that are free beside offers that are not."""
    problem = a_problem(
        [3, 2, 4],
        [[2, 1], [1, 3], [1, 1]],
        [[4, 4], [8, 8], [8, 8]],
        [0.0, 0.0, 1e9],
        stock=[0, 1, -1],
        stocks=[2, 2],
    )

    packing = pack(problem)

    check(problem, packing)
    assert (sum(packing.left), packing.price) == (0, 0.0)


def test_an_item_that_only_a_stock_can_hold_is_left_when_it_is_used_up():
    """And the others do not suffer."""
    problem = a_problem([2, 4], [[20], [5]], [[20], [10]], [0.001, 1.0], stock=[0, -1], stocks=[1])

    packing = pack(problem)

    check(problem, packing)
    assert packing.left == (1, 0)


def test_fewest_nodes_takes_one_large_node_where_two_small_are_cheaper():
    """Karpenter's way, on request."""
    problem = a_problem([4], [[5]], [[10], [20]], [1.0, 2.5])

    assert nodes_of(pack(problem, fewest_nodes=True)) == 1
    assert pack(problem).price == 2.0


def test_the_bound_is_the_linear_programs_and_adds_up_over_problems():
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


@pytest.mark.parametrize(
    ("pods", "most"),
    [(150, 1.03), pytest.param(600, 1.06, marks=pytest.mark.slow), pytest.param(1500, 1.09, marks=pytest.mark.slow)],
)
def test_differing_pods_cost_little_more_than_the_bound(pods, most):
    """As a production trace has them; prices without any order, so that no size of node is best for all."""
    problem = a_trace(pods, pods)

    packing = pack(problem)

    check(problem, packing)
    assert packing.price <= most * lower_bound(problem)


@pytest.mark.slow
def test_pods_bound_to_zones_are_packed_along_with_those_that_are_not():
    """Three zones with prices of their own."""
    problem = a_trace(3, 600, zones=3)

    packing = pack(problem)

    check(problem, packing)
    assert packing.price <= 1.12 * lower_bound(problem)


def test_pods_that_keep_apart_share_their_nodes_with_the_others():
    """Of 600 pods 60 go to 60 nodes; the bound knows that there are so many."""
    problem = a_trace(4, 600, apart=60)

    packing = pack(problem)

    check(problem, packing)
    assert nodes_of(packing) >= 60
    assert packing.price <= 1.2 * lower_bound(problem)


@pytest.mark.slow
def test_fewest_nodes_are_few_for_many_differing_pods_too():
    """No node less is possible by cores alone than two below."""
    problem = a_trace(6, 1000)

    packing = pack(problem, fewest_nodes=True)

    check(problem, packing)
    need = (problem.counts @ problem.requests)[:3] / problem.sizes[:, :3].max(axis=0)
    assert nodes_of(packing) <= np.ceil(need.max()) + 2


def test_equal_items_are_packed_nearly_as_cheaply_as_one_item_of_their_number():
    """Sixty items of five kinds cost at most 3 % more than five items of twelve, which can be packed exactly."""
    five = a_problem([12] * 5, [[3, 1], [1, 4], [2, 2], [5, 1], [1, 1]], [[16, 16], [8, 16]], [1.0, 0.6])
    sixty = a_problem([1] * 60, np.tile(five.requests, (12, 1)), five.sizes, five.prices)

    packing = pack(sixty)

    check(sixty, packing)
    assert packing.price <= 1.03 * pack(five).price


def test_nodes_are_kept_balanced_where_an_unpriced_axis_nearly_runs_out():
    """Cpu alone has a price on what is bought, and memory is used to 97 % there: nodes are kept balanced all the same."""
    rng = random.Random(3)
    requests = [(rng.randint(50, 4000), rng.randint(64, 8000), 1) for _ in range(5000)]
    prices = {1: (8.7, 11.4, 15.6), 2: (16.8, 22.2, 33.1), 4: (35.6, 43.2, 64.3), 8: (69.2, 91.6, 124.8)}
    prices |= {16: (134.4, 178.0, 264.6), 32: (284.9, 345.6, 514.2), 48: (415.3, 549.5, 748.8)}
    prices |= {64: (537.6, 711.9, 1058.3), 96: (854.8, 1036.8, 1542.5), 128: (1107.5, 1465.3, 1996.8)}
    offers = [
        (price, (cores * 1000 - 100, cores * gib * 1024 - 300, min(20 + 8 * cores, 250)))
        for cores, row in prices.items()
        for gib, price in zip((2, 4, 8), row, strict=True)
    ]
    offers.sort()
    problem = a_problem([1] * len(requests), requests, [size for _, size in offers], [price for price, _ in offers])
    packing = pack(problem)
    check(problem, packing)
    assert packing.price <= 1.01 * lower_bound(problem)


def test_program_is_as_fine_as_its_rows_allow():
    """A row for each place and axis and for each group of items; one row less, and items or places are merged."""
    problem = a_trace(3, 60, zones=2)
    axes = 3  # no item requests the fourth

    def rows(found):
        return len(found.allowed) * axes + len(np.unique(found.group))

    finest = OfferGroups.of(problem, most_rows=10_000, coarse=False)
    exact = OfferGroups.of(problem, most_rows=rows(finest), coarse=False)
    coarser = OfferGroups.of(problem, most_rows=rows(finest) - 1, coarse=False)
    coarsest = OfferGroups.of(problem, most_rows=10_000, coarse=True)

    assert rows(exact) == rows(finest) > rows(coarser)
    assert len(coarser.allowed) == len(finest.allowed)
    assert rows(OfferGroups.of(problem, most_rows=rows(coarser), coarse=False)) == rows(coarser)
    assert rows(OfferGroups.of(problem, most_rows=rows(coarser) - 1, coarse=False)) == rows(coarsest)
    assert len(coarsest.allowed) == 2  # the zones


def test_offers_are_one_place_if_even_zones_are_too_many_rows():
    """Sixty zones with three axes each are more rows than the program may have."""
    problem = a_trace(3, 120, zones=60)

    found = OfferGroups.of(problem, most_rows=160, coarse=False)

    assert len(found.allowed) == 1
    assert not found.offer_group.any()
    assert not found.group.any()
    assert found.allowed.all()
