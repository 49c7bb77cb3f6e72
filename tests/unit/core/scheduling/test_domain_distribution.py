"""Distributes pods over cells; bulk distribution gives the same result as distributing one pod at a time."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from journeyman.core.scheduling.domain_distribution import UNLIMITED, DomainCell, DomainRule, distribute
from journeyman.core.scheduling.nodeclaim_templates import PoolOrder
from journeyman.core.scheduling.topology import SpreadChoice


def cells(**more):
    """Return one cell per zone, each with the number of pods that may use new nodes."""
    return [DomainCell((("zone", value),), {"zone": value}, more=n) for value, n in more.items()]


def a_level(counts, *, skew=1, step=1, **changes):
    """Return a rule over zones whose counted pods all count in whatever order pods are bound."""
    return DomainRule(
        key="zone", counts=counts, possible=counts, bound_before=counts, max_skew=skew, own=step, **changes
    )


def distribute_sequentially(pods, targets, counts, skew, *, loose):
    """Distribute the pods one at a time, and return the pods by cell."""
    counts, pods_by_cell = dict(counts), [0] * len(targets)
    for _ in range(pods):
        floor = min(counts.values())
        left = [n for n, cell in enumerate(targets) if pods_by_cell[n] < cell.free_pods + cell.more]
        if not loose:
            left = [n for n in left if counts[targets[n].values["zone"]] + 1 - floor <= skew]
        if not left:
            break
        ranks = {n: (pods_by_cell[n] >= targets[n].free_pods, counts[targets[n].values["zone"]], n) for n in left}
        chosen = min(ranks, key=ranks.__getitem__)
        pods_by_cell[chosen] += 1
        counts[targets[chosen].values["zone"]] += 1
    return pods_by_cell


@pytest.mark.parametrize("loose", [False, True])
def test_bulk_distribution_equals_distribution_of_one_pod_at_a_time(loose):
    """The initial counts are random, and several cells become full."""
    for number in range(150):
        draw = random.Random(number)
        counts = {zone: draw.choice((0, 0, 1, 5, 40)) for zone in "abcd"[: draw.randint(1, 4)]}
        reach = [zone for zone in counts if draw.random() < 0.8]
        limits = [draw.choice((UNLIMITED, UNLIMITED, 3, 60)) for _ in reach]
        targets = cells(**dict(zip(reach, limits, strict=True)))
        targets = [replace(cell, free_pods=draw.choice((0, 0, 2, 30))) for cell in targets]
        pods, skew = draw.choice((3, 50, 400)), draw.choice((1, 2, 7))
        rule = a_level(counts, skew=None if loose else skew)

        assert distribute(pods, targets, [rule], has_no_spread=loose) == distribute_sequentially(
            pods, targets, counts, skew, loose=loose
        )


class SequentialDistribution:
    """Distributes pods one at a time, each to the best cell, in the documented order, that all rules admit."""

    def __init__(self, targets, rules, *, has_no_spread, spread_choice):
        self.cells, self.rules = targets, rules
        self.has_no_spread, self.choice = has_no_spread, spread_choice
        self.pods_by_cell = [0] * len(targets)
        self.counts, self.bound_before = [], []
        for rule in rules:
            values = [cell.values[rule.key] for cell in targets if rule.key in cell.values]
            counts = {**{value: rule.possible.get(value, 0) for value in values}, **rule.counts}
            self.counts.append(counts)
            is_same = rule.bound_before is rule.counts
            self.bound_before.append(counts if is_same else {v: rule.bound_before.get(v, 0) for v in counts})

    def distribute(self, pods):
        """Return the pods by cell."""
        for _ in range(pods):
            left = [n for n, cell in enumerate(self.cells) if self.pods_by_cell[n] < cell.free_pods + cell.more]
            bound_last = self.choice is not SpreadChoice.CHEAPEST_IF_FIRST
            admitted = [n for n in left if self.is_admitted(n, strict=bound_last)]
            admitted = admitted or [n for n in left if self.is_admitted(n, strict=False)]
            if not admitted:
                break
            self.add_pod(min(admitted, key=self.rank))
        return self.pods_by_cell

    def rules_of(self, n):
        """Yield each rule about the cell's labels with its position and the cell's domain."""
        for r, rule in enumerate(self.rules):
            if rule.key in self.cells[n].values:
                yield r, rule, self.cells[n].values[rule.key]

    def floor(self, r):
        """Return the minimum that domains are compared with."""
        return 0 if self.rules[r].minimum_is_zero else min(self.counts[r].values(), default=0)

    def is_admitted(self, n, *, strict):
        """Return whether all rules admit one more pod; unless strict, pods that may be bound later do not count."""
        return all(
            max(self.bound_before[r][value], self.counts[r][value] if strict else 0) + rule.own - self.floor(r)
            <= rule.max_skew
            for r, rule, value in self.rules_of(n)
            if rule.max_skew is not None
        )

    def rank(self, n):
        """Return the sort key of a cell."""
        cell, has_no_node = self.cells[n], self.pods_by_cell[n] >= self.cells[n].free_pods
        above = [
            (rule, self.counts[r][value] - self.floor(r))
            for r, rule, value in self.rules_of(n)
            if not rule.is_exclusion
        ]
        bound = max((more for rule, more in above if rule.max_skew is not None), default=0)
        other = max((more for rule, more in above if rule.max_skew is None), default=0)
        if self.has_no_spread:
            order, price = min((cell.order, cell.price) for cell in self.cells)
            is_dear = (cell.order, cell.price) > (order, price * 1.01)
            return has_no_node, is_dear, max(other, 0), cell.price, cell.pins
        first = 0.0 if self.choice is SpreadChoice.EMPTIEST else cell.price
        return has_no_node, cell.order, first, max(bound, 0), max(other, 0), cell.price, cell.pins

    def add_pod(self, n):
        """Add one pod to a cell."""
        self.pods_by_cell[n] += 1
        for r, rule, value in self.rules_of(n):
            self.counts[r][value] += rule.own
            if self.bound_before[r] is not self.counts[r]:
                self.bound_before[r][value] += rule.own


def any_rule(draw, key, values, *, has_no_spread):
    """Return a random preference, ban or spread over a label; some pods count only in some binding orders."""
    counts = {value: draw.choice((0, 0, 1, 2, 9, 30)) for value in values if draw.random() < 0.9}
    bound_before = counts if draw.random() < 0.5 else {value: draw.randint(0, counts[value]) for value in counts}
    is_ban = draw.random() < 0.2
    skew = 1 if is_ban else None if has_no_spread else draw.choice((None, 1, 1, 2, 5))
    return DomainRule(
        key=key,
        counts=counts,
        possible=counts,
        bound_before=bound_before,
        max_skew=skew,
        own=draw.choice((1, 1, 1, 0)),
        minimum_is_zero=draw.random() < 0.25,
        is_exclusion=is_ban,
    )


@pytest.mark.parametrize("part", range(8))
def test_distribution_gives_each_pod_in_turn_the_best_cell(part):
    """The rules over two labels, prices, NodePool orders, pods that must follow, and capacities are random."""
    choices = [SpreadChoice.EMPTIEST] * 4 + list(SpreadChoice)
    for number in range(60):
        draw = random.Random(number * 8 + part)
        zones, types = "abcd"[: draw.randint(1, 4)], ("od", "spot")[: draw.randint(1, 2)]
        domains = [{"zone": z, "ct": t} for z in zones for t in types if draw.random() < 0.8] or [{"zone": "a"}]
        is_plain = draw.random() < 0.4
        targets = [
            DomainCell(
                tuple(sorted(values.items())),
                values,
                free_pods=0 if is_plain else draw.choice((0, 0, 2, 25)),
                more=UNLIMITED if is_plain else draw.choice((UNLIMITED, UNLIMITED, 3, 40)),
                price=draw.choice((1.0, 1.005, 1.01, 2.0)),
                order=PoolOrder(0 if is_plain else draw.choice((0, 0, 0, 1)), fewest_nodes=False),
            )
            for values in sorted(domains, key=lambda domain: sorted(domain.items()))
        ]
        kinds = [("zone", zones), ("ct", types), ("zone", zones)][: draw.choice((1, 1, 2, 3))]
        options = {"has_no_spread": draw.random() < 0.3, "spread_choice": draw.choice(choices)}
        rules = [any_rule(draw, key, values, has_no_spread=options["has_no_spread"]) for key, values in kinds]
        pods = draw.choice((1, 7, 60, 200))

        assert distribute(pods, targets, rules, **options) == SequentialDistribution(
            targets, rules, **options
        ).distribute(pods)


def test_ban_admits_one_pod_per_domain_when_a_domain_has_several_cells():
    """Zone a has a spot and an on-demand cell; one pod in either of them excludes further pods from both."""
    pair = [DomainCell((("ct", ct), ("zone", "a")), {"zone": "a", "ct": ct}, more=UNLIMITED) for ct in ("spot", "od")]
    ban = DomainRule(
        key="zone", counts={}, possible={}, bound_before={}, max_skew=1, own=1, minimum_is_zero=True, is_exclusion=True
    )

    assert sum(distribute(5, [*pair, *cells(b=UNLIMITED)], [ban], has_no_spread=True)) == 2


def test_pods_that_may_be_bound_later_do_not_block_the_only_zone_with_capacity():
    """The rule counts ten pods in zone a that may be bound later; pods use zone a only if zone b has no capacity."""
    rule = DomainRule(
        key="zone", counts={"a": 10, "b": 0}, possible={"a": 10, "b": 0}, bound_before={}, max_skew=1, own=1
    )

    assert distribute(3, cells(a=UNLIMITED, b=UNLIMITED), [rule], has_no_spread=False) == [0, 3]
    assert distribute(3, cells(a=UNLIMITED), [rule], has_no_spread=False) == [1]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [(SpreadChoice.EMPTIEST, [1, 2]), (SpreadChoice.CHEAPEST, [1, 2]), (SpreadChoice.CHEAPEST_IF_FIRST, [2, 1])],
)
def test_only_cheapest_if_first_ignores_pods_that_may_be_bound_later_in_a_cheaper_zone(choice, expected):
    """Zone a is cheaper and has one such pod; a pod that is bound before it may use zone a while zone b is empty."""
    rule = DomainRule(
        key="zone", counts={"a": 1, "b": 0}, possible={"a": 1, "b": 0}, bound_before={}, max_skew=1, own=1
    )
    a, b = cells(a=UNLIMITED, b=UNLIMITED)
    priced = [replace(a, price=1.0), replace(b, price=2.0)]

    assert distribute(3, priced, [rule], has_no_spread=False, spread_choice=choice) == expected


def test_spread_over_zone_and_capacity_type_schedules_all_pods():
    """Zone c has only spot capacity; if zones a and b used up the spot share, zone c could take no more pods."""
    domains = [("od", "a"), ("od", "b"), ("spot", "a"), ("spot", "b"), ("spot", "c")]
    pair = [DomainCell((("ct", ct), ("zone", z)), {"ct": ct, "zone": z}, more=UNLIMITED) for ct, z in domains]
    rules = [
        a_level({"a": 0, "b": 0, "c": 0}),
        DomainRule(
            key="ct", counts={"od": 0, "spot": 0}, possible={"od": 0, "spot": 0}, bound_before={}, max_skew=1, own=1
        ),
    ]

    pods_by_cell = distribute(9_999, pair, rules, has_no_spread=False)

    assert sum(pods_by_cell) == 9_999
    assert pods_by_cell[4] == 3_333


def test_pods_on_existing_nodes_use_no_capacity_of_new_nodes():
    """Two pods fit on existing nodes and three on new ones; a rule applies, so pods are given one at a time."""
    zone_a = replace(cells(a=3)[0], free_pods=2)

    assert distribute(9, [zone_a], [a_level({"a": 0}, skew=99)], has_no_spread=False) == [5]


def test_full_zone_does_not_slow_down_the_distribution_of_millions_of_pods():
    """Zone a is full after three pods and stays behind; the other zones repeat the same two choices."""
    preference = a_level({"a": 0, "b": 0, "c": 0}, skew=None)

    pods_by_cell = distribute(4_000_003, cells(a=3, b=UNLIMITED, c=UNLIMITED), [preference], has_no_spread=True)

    assert pods_by_cell == [3, 2_000_000, 2_000_000]
