"""Packs problems with a known optimum, and larger problems whose price is compared with the lower bound."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from journeyman.core.scheduling.packing import PackingProblem, lower_bound, pack
from journeyman.core.scheduling.packing.bulk_packing import BulkPacker, FillOrder
from journeyman.core.scheduling.packing.greedy_packing import GreedyPacker
from journeyman.core.scheduling.packing.packing_problem import held_by
from journeyman.core.scheduling.packing.shadow_prices import compute_shadow_prices


def a_problem(
    counts,
    requests,
    sizes,
    prices,
    *,
    allowed=None,
    constraints=None,
    selected=None,
    owning=None,
    reservation=(),
    reserved=(),
):
    """Return a problem in which every offer may hold every item unless `allowed` excludes it."""
    items = len(counts)
    none = np.zeros((items, 0), dtype=bool)
    return PackingProblem(
        counts=np.array(counts),
        requests=np.array(requests),
        sizes=np.array(sizes),
        prices=np.array(prices, dtype=float),
        allowed=np.ones((1, items), dtype=bool) if allowed is None else np.array(allowed, dtype=bool),
        constraints=np.zeros(len(prices), dtype=np.int64) if constraints is None else np.array(constraints),
        selected=none if selected is None else np.array(selected, dtype=bool),
        owning=none if owning is None else np.array(owning, dtype=bool),
        reservation=np.array(reservation, dtype=np.int64),
        reserved=np.array(reserved, dtype=np.int64),
    )


def check(problem, packing):
    """Check that the packing respects counts, sizes, node constraints, conflicts and reservations, and that its price is right."""
    placed = np.zeros(len(problem.counts), dtype=np.int64)
    drawn = np.zeros(len(problem.reserved), dtype=np.int64)
    for b in packing.bins:
        filling = b.filling
        used = np.flatnonzero(filling)
        assert (filling @ problem.requests <= problem.sizes[b.offer]).all()
        assert problem.allowed[problem.constraints[b.offer]][used].all()
        assert not any((problem.selected[i] & problem.owning[j]).any() for i in used for j in used if i != j)
        if len(problem.reservation) and problem.reservation[b.offer] >= 0:
            drawn[problem.reservation[b.offer]] += b.copies
        placed += filling * b.copies
    assert (placed + packing.left == problem.counts).all()
    assert (drawn <= problem.reserved).all()
    assert packing.price == pytest.approx(sum(problem.prices[b.offer] * b.copies for b in packing.bins))


def nodes_of(packing):
    """Return the number of nodes in the packing."""
    return sum(b.copies for b in packing.bins)


def a_trace(seed, pods, *, zones=1, apart=0):
    """Return pods with heavy-tailed requests, and nodes of three shapes with 2 to 96 cores at random discounts.

    Every second pod requires one of the `zones`, and each zone has its own discounts; no two of the first `apart` pods
    may share a node.
    """
    rng = np.random.default_rng(seed)
    cpu = np.minimum(100 * np.exp(rng.exponential(1.1, pods)), 16_000).astype(np.int64)
    memory = (cpu * 1.024 * np.exp(rng.uniform(np.log(0.5), np.log(8), pods))).astype(np.int64)
    alone = (np.arange(pods) < apart).astype(np.int64)
    sizes, prices, constraints = [], [], []
    for zone in range(zones):
        for cores in (2, 4, 8, 16, 32, 48, 64, 96):
            for gib_per_core in (2, 4, 8):
                sizes.append((cores * 1000 - 100, cores * gib_per_core * 1000 - 500, 8 * cores + 20, 1))
                prices.append(cores * (0.02 + 0.003 * gib_per_core) * rng.uniform(0.3, 0.6))
                constraints.append(zone)
    bound_to = np.where(np.arange(pods) % 2, rng.integers(0, zones, pods), -1)
    allowed = [(bound_to < 0) | (bound_to == zone) for zone in range(zones)]
    requests = np.stack((cpu, memory, np.ones_like(cpu), alone), axis=1)
    return a_problem(np.ones(pods, dtype=np.int64), requests, sizes, prices, allowed=allowed, constraints=constraints)


def cheapest_by_trying(problem, most_nodes):
    """Return the lowest price for a single item, by trying every combination of up to `most_nodes` nodes."""
    holds = (problem.sizes // problem.requests[0]).min(axis=1)
    costs = [
        problem.prices[list(combination)].sum()
        for size in range(most_nodes + 1)
        for combination in itertools.combinations_with_replacement(range(len(holds)), size)
        if holds[list(combination)].sum() >= problem.counts[0]
    ]
    return min(costs)


BOTH = [[True], [True]]
NOTHING = np.zeros((0, 1), dtype=np.int64)


PROBLEMS = {
    "small items beside large ones": (a_problem([2, 4], [[6, 6], [2, 2]], [[10, 10]], [1.0]), {"price": 2.0}),
    "items that complement each other": (
        a_problem([8, 8], [[4, 1], [1, 4]], [[20, 20], [20, 5], [5, 20]], [1.0, 0.7, 0.7]),
        {"price": 2.0},
    ),
    "an item that fits nowhere": (a_problem([1, 2], [[50, 1], [1, 1]], [[10, 10]], [1.0]), {"left": (1, 0)}),
    "few of many offers": (
        a_problem(
            [20] * 8,
            [[n, 0] for n in range(1, 8)] + [[2, 1]],
            [[10, 0]] * 200 + [[10, 2]],
            [*(1 + 0.01 * n for n in range(200)), 1.355],
        ),
        {"left": (0,) * 8},
    ),
    "constraints of offers": (
        a_problem(
            [4, 1], [[5], [5]], [[10], [10]], [1.0, 3.0], allowed=[[True, False], [True, True]], constraints=[0, 1]
        ),
        {"price": 5.0},
    ),
    "items in conflict": (
        a_problem([1, 1], [[1], [1]], [[10]], [1.0], selected=[[True], [False]], owning=[[False], [True]]),
        {"offers": [0, 0]},
    ),
    "a conflict does not separate copies": (
        a_problem([2, 2], [[1], [1]], [[4]], [1.0], selected=BOTH, owning=BOTH),
        {"offers": [0, 0], "price": 2.0},
    ),
    "a reservation": (
        a_problem([3, 3], [[8], [1]], [[10], [10]], [0.001, 5.0], reservation=[0, -1], reserved=[2]),
        {"offers": [0, 0, 1], "bound": 0.002 + 0.7 * 5.0},
    ),
    "prices of zero": (
        a_problem(
            [3, 2, 4],
            [[2, 1], [1, 3], [1, 1]],
            [[4, 4], [8, 8], [8, 8]],
            [0.0, 0.0, 1e9],
            reservation=[0, 1, -1],
            reserved=[2, 2],
        ),
        {"left": (0, 0, 0), "price": 0.0},
    ),
    "a reservation that is used up": (
        a_problem([2, 4], [[20], [5]], [[20], [10]], [0.001, 1.0], reservation=[0, -1], reserved=[1]),
        {"left": (1, 0)},
    ),
    "price or fewest nodes": (a_problem([4], [[5]], [[10], [20]], [1.0, 2.5]), {"price": 2.0, "fewest": 1}),
    "independent items": (
        a_problem(
            [10, 4], [[1], [1]], [[10], [2]], [1.0, 1.0], allowed=[[True, False], [False, True]], constraints=[0, 1]
        ),
        {"bound": 3.0},
    ),
    "no items": (a_problem([0, 0], [[1], [2]], [[4]], [1.0]), {"bound": 0.0}),
    "no offers": (a_problem([3], [[1]], NOTHING, []), {"bound": 0.0, "left": (3,)}),
    "a reserved node at its own price": (
        a_problem([10], [[4]], [[8], [8]], [1e-6, 1.0], reservation=[0, -1], reserved=[2]),
        {"bound": 3.0 + 2e-6, "price": 3.0 + 2e-6},
    ),
    "the cheapest of equal reservations": (
        a_problem([4], [[4]], [[8], [8], [8]], [2e-7, 1e-7, 1.0], reservation=[0, 1, -1], reserved=[2, 2]),
        {"offers": [1, 1]},
    ),
    "as much memory as a fleet has": (
        a_problem([3, 2], [[1, 2**51], [1, 1]], [[4, 2**52], [1, 8]], [5.0, 1.0]),
        {"price": 10.0},
    ),
}


@pytest.mark.parametrize(("problem", "expected"), PROBLEMS.values(), ids=PROBLEMS)
def test_small_problem_is_packed_as_expected(problem, expected):
    """By its price, the items that are left, the offers of its nodes, the lower bound, or its fewest nodes."""
    packing = pack(problem)
    found = {
        "price": packing.price,
        "left": packing.left,
        "offers": sorted(b.offer for b in packing.bins for _ in range(b.copies)),
        "bound": lower_bound(problem),
        "fewest": nodes_of(pack(problem, fewest_nodes=True)),
    }

    check(problem, packing)
    assert any(packing.left) or found["bound"] <= packing.price + 1e-9
    for key, value in expected.items():
        assert found[key] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value)


@pytest.mark.parametrize("count", [1, 2, 5, 9, 14, 23])
def test_single_item_is_packed_at_the_lowest_price(count):
    """The price equals the lowest price over all combinations of offers."""
    problem = a_problem([count], [[3, 2]], [[10, 9], [20, 7], [31, 40], [7, 7]], [1.0, 1.2, 3.1, 0.8])

    packing = pack(problem)

    check(problem, packing)
    assert packing.price == pytest.approx(cheapest_by_trying(problem, 9))


def test_conflicts_are_respected_with_hundreds_of_items():
    """A third of the items conflicts with another third; the others may share a node with any item."""
    kind = np.arange(240) % 3
    rng = np.random.default_rng(5)
    problem = a_problem(
        np.ones(240, dtype=np.int64),
        rng.integers(1, 30, (240, 2)),
        [[100, 100], [60, 40]],
        [1.0, 0.5],
        selected=(kind == 0)[:, None],
        owning=(kind == 1)[:, None],
    )

    packing = pack(problem)

    check(problem, packing)
    assert packing.left == (0,) * 240
    assert packing.price <= 1.2 * lower_bound(problem)


@pytest.mark.parametrize("seed", range(6))
def test_price_is_at_least_the_lower_bound_and_at_most_ten_percent_above(seed):
    """Items are random; offers have similar proportions, and their prices roughly follow their sizes."""
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
    [(150, 1.03), pytest.param(600, 1.06, marks=pytest.mark.slow), pytest.param(1500, 1.09, marks=pytest.mark.nightly)],
)
def test_price_is_close_to_the_lower_bound_when_pods_have_different_requests(pods, most):
    """Requests resemble a production trace; discounts are random, so no node size is the best for all pods."""
    problem = a_trace(pods, pods)

    packing = pack(problem)

    check(problem, packing)
    assert packing.price <= most * lower_bound(problem)


@pytest.mark.slow
def test_price_is_close_to_the_lower_bound_when_half_of_the_pods_require_a_zone():
    """Each of the three zones has its own prices."""
    problem = a_trace(3, 600, zones=3)

    packing = pack(problem)

    check(problem, packing)
    assert packing.price <= 1.12 * lower_bound(problem)


@pytest.mark.slow
def test_pods_that_exclude_each_other_share_nodes_with_other_pods():
    """60 of the 600 pods need 60 different nodes, and the lower bound includes these nodes."""
    problem = a_trace(4, 600, apart=60)

    packing = pack(problem)

    check(problem, packing)
    assert nodes_of(packing) >= 60
    assert packing.price <= 1.2 * lower_bound(problem)


@pytest.mark.slow
def test_fewest_nodes_is_close_to_the_minimum_when_many_pods_have_different_requests():
    """The packing has at most two nodes more than the total requests need on nodes of the largest capacity."""
    problem = a_trace(6, 1000)

    packing = pack(problem, fewest_nodes=True)

    check(problem, packing)
    need = (problem.counts @ problem.requests)[:3] / problem.sizes[:, :3].max(axis=0)
    assert nodes_of(packing) <= np.ceil(need.max()) + 2


def test_many_equal_items_cost_little_more_than_one_item_with_the_same_count():
    """Sixty items with one copy cost at most 3 % more than five items with twelve copies, which are packed exactly."""
    five = a_problem([12] * 5, [[3, 1], [1, 4], [2, 2], [5, 1], [1, 1]], [[16, 16], [8, 16]], [1.0, 0.6])
    sixty = a_problem([1] * 60, np.tile(five.requests, (12, 1)), five.sizes, five.prices)

    packing = pack(sixty)

    check(sixty, packing)
    assert packing.price <= 1.03 * pack(five).price


@pytest.mark.slow
def test_nodes_stay_balanced_when_an_axis_without_a_shadow_price_is_nearly_used_up():
    """Only cpu has a shadow price on the nodes used, but the pods request 97 % of the memory of these nodes."""
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


@pytest.mark.parametrize(("pods", "zones"), [(60, 2), (120, 60), (400, 5)])
def test_lower_bound_holds_however_coarsely_the_program_groups_offers_and_items(pods, zones):
    """A program for sixty zones with three axes each, or for hundreds of kinds of pods, is larger than those that are solved."""
    problem = a_trace(3, pods, zones=zones)

    packing = pack(problem)

    check(problem, packing)
    assert 0.5 * packing.price <= lower_bound(problem) <= packing.price


@pytest.mark.parametrize("seed", range(20))
def test_lower_bound_holds_when_items_request_only_cpu_or_only_memory(seed):
    """Three kinds of offers, each of which may hold half of the items; the prices of nodes are equal."""
    rng = np.random.default_rng(seed)
    requests = rng.integers(1, 9, (12, 2)) * rng.choice([[1, 1], [1, 0], [0, 1]], 12)
    problem = a_problem(
        [1] * 12, requests, [[9, 9]] * 3, [1.0] * 3, allowed=rng.random((3, 12)) < 0.5, constraints=[0, 1, 2]
    )
    placed = problem.of_items(np.flatnonzero(problem.allowed.any(axis=0)))

    assert 0 < lower_bound(placed) <= pack(placed).price + 1e-9


def test_open_node_becomes_any_offer_of_the_same_size_and_price():
    """A node of zone a was opened; an item that requires zone b turns it into one of zone b, but not into a dearer one."""

    def packed(price):
        problem = a_problem(
            [1, 1], [[2], [3]], [[9], [9]], [1.0, price], allowed=[[True, False], [True, True]], constraints=[0, 1]
        )
        nodes = BulkPacker(problem, compute_shadow_prices(problem), FillOrder())
        nodes.open(0, 1)
        left = nodes.place_all(problem.counts, open_more=False)
        return left.tolist(), [b.offer for b in nodes.settle(problem)]

    assert packed(price=1.0) == ([0, 0], [1])
    assert packed(price=1.5) == ([0, 1], [0])


@pytest.mark.parametrize("part", range(4))
def test_column_generation_packs_each_item_exactly_as_often_as_it_is_counted(part):
    """Two items are large; the small ones share nodes with either, so that whole columns together hold too many of them."""
    for seed in range(part * 40, part * 40 + 40):
        rng = np.random.default_rng(seed)
        items = int(rng.integers(3, 8))
        requests = rng.integers(1, 12, (items, 2))
        requests[:2] = rng.integers(9, 16, (2, 2))
        problem = a_problem(
            rng.integers(2, 30, items), requests, rng.integers(16, 40, (3, 2)), np.round(rng.uniform(1, 3, 3), 2)
        )

        bins = GreedyPacker(problem, compute_shadow_prices(problem)).cheapest(problem.counts)

        assert held_by(bins, items).tolist() == problem.counts.tolist()


@pytest.mark.slow
def test_packing_repeats_when_column_generation_improves_it():
    """Two or three of these items fill a node; the plan is cheaper than without column generation, and always the same."""
    rng = np.random.default_rng(11)
    requests = np.column_stack((rng.integers(20, 60, 70), rng.integers(10, 90, 70)))
    sizes = [[cores, cores * ratio] for cores in (64, 96, 128, 192) for ratio in (1, 2)]
    prices = [
        cores * (1 + 0.3 * ratio) * rng.uniform(0.8, 1.2) / 100 for cores in (64, 96, 128, 192) for ratio in (1, 2)
    ]
    problem = a_problem(rng.integers(1, 20, 70), requests, sizes, prices)

    packing = pack(problem)

    check(problem, packing)
    assert packing == pack(problem)
    assert packing.price <= 1.06 * lower_bound(problem)


def kept_apart(kinds):
    """Return a problem of two pods each of so many kinds, of which each has an axis that allows one pod on a node."""
    requests = np.concatenate((np.full((kinds, 1), 500), np.eye(kinds, dtype=np.int64)), axis=1)
    sizes = [[2000, *[1] * kinds], [8000, *[1] * kinds]]
    return a_problem([2] * kinds, requests, sizes, [1.0, 3.9])


@pytest.mark.slow
def test_many_kinds_that_keep_to_themselves_are_packed_in_parts():
    """A part has the axes of its own items; the price is that of full nodes, but for one node of each part."""
    problem, few, many = kept_apart(800), [], []

    pack(kept_apart(200), spend=few.append)
    packing = pack(problem, spend=many.append)

    check(problem, packing)
    assert not any(packing.left)
    assert sum(many) < 10 * sum(few)  # and not sixteen times
    assert packing.price <= 2 * 800 / 4 * (3.9 / 4) * 1.05


def test_work_is_announced_before_it_is_done():
    """What `spend` raises ends the packing; a problem with few axes costs little for each kind."""
    work = []
    pack(kept_apart(50), spend=work.append)

    assert sum(work) < 10_000
    with pytest.raises(TimeoutError):
        pack(kept_apart(800), spend=_refuse)


def _refuse(units):
    raise TimeoutError(f"{units} units are too many")
