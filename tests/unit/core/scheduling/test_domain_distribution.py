"""Distribution of many pods over cells gives the same as one pod at a time: a unit that plans of clusters reach hardly."""

from __future__ import annotations

import random

import pytest

from journeyman.core.scheduling.domain_distribution import UNLIMITED, DomainCombination, DomainRule, distribute
from journeyman.core.scheduling.nodeclaim_templates import PoolOrder
from journeyman.core.scheduling.topology import SpreadChoice


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
            return has_no_node, is_dear, max(other, 0), cell.price, cell.decided
        first = 0.0 if self.choice is SpreadChoice.EMPTIEST else cell.price
        return (
            has_no_node,
            cell.order,
            first,
            max(bound, 0),
            max(other, 0),
            self.alternatives(n),
            cell.price,
            cell.decided,
        )

    def alternatives(self, n):
        """Return the number of cells in that domain of a binding rule which has fewest."""
        binding = ((rule.key, value) for _, rule, value in self.rules_of(n) if rule.max_skew is not None)
        return min((sum(cell.values.get(key) == value for cell in self.cells) for key, value in binding), default=0)

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
            DomainCombination(
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
