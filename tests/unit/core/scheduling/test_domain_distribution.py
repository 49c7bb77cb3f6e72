"""Pods distributed over cells: bulk distribution gives the same result as one pod at a time."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from journeyman.core.scheduling.domain_distribution import UNLIMITED, DomainCell, DomainRule, distribute
from journeyman.core.scheduling.topology import SpreadChoice


def cells(**more):
    """Cells of one label by value, with so much to be had on new nodes each."""
    return [DomainCell((("zone", value),), {"zone": value}, more=n) for value, n in more.items()]


def a_level(counts, *, skew=1, step=1, **changes):
    """A rule over zones."""
    return DomainRule(key="zone", counts=counts, rivals=counts, skew=skew, step=step, **changes)


def one_by_one(pods, some, counts, skew, *, loose):
    """Distribute the same pods one at a time, from counts alone."""
    counts, given = dict(counts), [0] * len(some)
    for _ in range(pods):
        floor = min(counts.values())
        left = [n for n, cell in enumerate(some) if given[n] < cell.free_pods + cell.more]
        if not loose:
            left = [n for n in left if counts[some[n].values["zone"]] + 1 - floor <= skew]
        if not left:
            break
        chosen = min(left, key=lambda n: (given[n] >= some[n].free_pods, counts[some[n].values["zone"]], n))
        given[chosen] += 1
        counts[some[chosen].values["zone"]] += 1
    return given


@pytest.mark.parametrize("loose", [False, True])
def test_bulk_distribution_equals_one_pod_at_a_time(loose):
    """For any counts at the start, and in cells that become full."""
    for number in range(150):
        draw = random.Random(number)
        counts = {zone: draw.choice((0, 0, 1, 5, 40)) for zone in "abcd"[: draw.randint(1, 4)]}
        reach = [zone for zone in counts if draw.random() < 0.8]
        limits = [draw.choice((UNLIMITED, UNLIMITED, 3, 60)) for _ in reach]
        some = cells(**dict(zip(reach, limits, strict=True)))
        some = [replace(cell, free_pods=draw.choice((0, 0, 2, 30))) for cell in some]
        pods, skew = draw.choice((3, 50, 400)), draw.choice((1, 2, 7))
        rule = a_level(counts, skew=None if loose else skew)

        assert distribute(pods, some, [rule], has_no_spread=loose) == one_by_one(pods, some, counts, skew, loose=loose)


def test_a_ban_takes_a_domain_once():
    """Cells of one domain are open or closed together."""
    pair = [DomainCell((("ct", ct), ("zone", "a")), {"zone": "a", "ct": ct}, more=UNLIMITED) for ct in ("spot", "od")]
    ban = DomainRule(key="zone", counts={}, rivals={}, skew=1, step=1, from_zero=True, is_ban=True)

    assert sum(distribute(5, [*pair, *cells(b=UNLIMITED)], [ban], has_no_spread=True)) == 2


def test_counted_pods_without_capacity_block_no_pod_of_the_rule():
    """Ten pods that are merely counted are in zone a, and b has no capacity: the rule's own pods come first then."""
    rule = DomainRule(key="zone", counts={"a": 10, "b": 0}, rivals={}, skew=1, step=1)

    assert distribute(3, cells(a=UNLIMITED, b=UNLIMITED), [rule], has_no_spread=False) == [0, 3]
    assert distribute(3, cells(a=UNLIMITED), [rule], has_no_spread=False) == [1]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [(SpreadChoice.EMPTIEST, [1, 2]), (SpreadChoice.CHEAPEST, [1, 2]), (SpreadChoice.CHEAPEST_IF_FIRST, [2, 1])],
)
def test_pods_may_join_those_that_are_merely_counted_where_it_is_cheaper(choice, expected):
    """Zone a is cheaper and holds one such pod: a pod that is bound before it may go there while b is empty."""
    rule = DomainRule(key="zone", counts={"a": 1, "b": 0}, rivals={}, skew=1, step=1)
    a, b = cells(a=UNLIMITED, b=UNLIMITED)
    priced = [replace(a, price=1.0), replace(b, price=2.0)]

    assert distribute(3, priced, [rule], has_no_spread=False, spread_choice=choice) == expected


def test_two_labels_at_once_end_in_no_corner():
    """Zone c has spot only: if the spot share goes elsewhere first, zone c stays closed."""
    some = [("od", "a"), ("od", "b"), ("spot", "a"), ("spot", "b"), ("spot", "c")]
    pair = [DomainCell((("ct", ct), ("zone", z)), {"ct": ct, "zone": z}, more=UNLIMITED) for ct, z in some]
    rules = [
        a_level({"a": 0, "b": 0, "c": 0}),
        DomainRule(key="ct", counts={"od": 0, "spot": 0}, rivals={}, skew=1, step=1),
    ]

    given = distribute(9_999, pair, rules, has_no_spread=False)

    assert sum(given) == 9_999
    assert given[4] == 3_333
