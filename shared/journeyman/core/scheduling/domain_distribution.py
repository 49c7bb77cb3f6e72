"""Distributes the pods of one class over cells, as topology spread and anti-affinity allow.

The next pod always goes to the emptiest domain that every rule admits. A rule has counts by domain, and says how far a
domain may be above the emptiest one. A round that repeats itself is applied many times at once, so that ten thousand
pods take a few rounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from journeyman.core.scheduling.topology import Pins

UNLIMITED: Final = 1 << 40
WORTH_A_LEAP: Final = 24  # pods; for fewer, watching for repetition costs more than it saves
_NEAR: Final = 1.01  # of the best price; what costs no more is free


class DomainCell(Struct):
    """One combination of domains that pods of a row may go to.

    `free_pods` of them fit on nodes that exist, `nodes` as (node, how many); `more` may go to new nodes, there the best
    NodePools of those that differ in weight are of this `order`, and a pod costs at least `price` there. `apart` is how
    many pods that must follow these could not come there.
    """

    pins: Pins
    values: Mapping[str, str]
    free_pods: int = 0
    more: int = 0
    order: tuple[int, bool] = (0, False)
    price: float = 0.0
    apart: int = 0
    nodes: Sequence[tuple[int, int]] = ()


class DomainRule(Struct, kw_only=True):
    """One rule over the domains of `key`.

    `counts` are the pods counted by domain, over all domains that the emptiest is looked for in. `rivals` are those
    that are held against a pod whatever the order in which all come. A domain may be `skew` above the emptiest (None:
    it is merely kept level). `step` is 1 if the Pods being distributed count. `from_zero`: the emptiest counts as empty.
    `is_ban`: a domain is open or closed, and none is better than another.
    """

    key: str
    counts: Mapping[str, int]
    rivals: Mapping[str, int]
    skew: int | None
    step: int
    from_zero: bool = False
    is_ban: bool = False

    def floor(self) -> int:
        """What domains are compared with."""
        return 0 if self.from_zero or not self.counts else min(self.counts.values())

    def admits(self, value: str) -> bool:
        """Whether one more pod may go to a domain, if all that may come later do."""
        return self.skew is None or self.rivals.get(value, 0) + self.step - self.floor() <= self.skew


def distribute(
    pods: int,
    cells: Sequence[DomainCell],
    rules: Sequence[DomainRule],
    *,
    has_no_spread: bool,
    use_spread_slack: bool = False,
) -> list[int]:
    """How many of the pods each cell gets; those that no cell takes are left.

    Args:
        pods: How many there are.
        cells: Where they may go.
        rules: Their rules, and the counts to be kept level.
        has_no_spread: No spread binds the pods: they are kept level only where that is free.
        use_spread_slack: Of the cells that the rules leave the cheapest is taken, though another be emptier.
    """
    if not cells:
        return []
    if len(cells) == 1 and all(rule.skew is None for rule in rules):
        return [min(pods, cells[0].free_pods + cells[0].more)]
    options = {"has_no_spread": has_no_spread, "use_spread_slack": use_spread_slack}
    given = Distribution(cells, rules, **options).distribute(pods)
    if sum(given) < pods and are_crossed(rules):
        turned = (Distribution(cells, rules, **options, turn=n).distribute(pods) for n in range(1, len(cells)))
        return max([given, *turned], key=sum)
    return given


def are_crossed(rules: Sequence[DomainRule]) -> bool:
    """Whether rules over different labels must meet: then an unlucky choice among equals may end in a corner."""
    return len({rule.key for rule in rules if rule.skew is not None}) > 1


class _RuleCounts:
    """A level in numbers: `counts` and `rivals` by domain, `at` the domain of each cell (None: it has none)."""

    __slots__ = ("at", "counts", "from_zero", "is_ban", "rivals", "skew", "step")

    def __init__(self, rule: DomainRule, cells: Sequence[DomainCell]) -> None:
        self.skew, self.step = rule.skew, rule.step
        self.from_zero, self.is_ban = rule.from_zero, rule.is_ban
        number = {value: n for n, value in enumerate(rule.counts)}
        self.counts = list(rule.counts.values())
        self.at: list[int | None] = []
        for cell in cells:
            value = cell.values.get(rule.key)
            if value is not None and value not in number:
                number[value] = len(number)
                self.counts.append(rule.rivals.get(value, 0))
            self.at.append(number[value] if value is not None else None)
        self.rivals = self.counts if rule.rivals is rule.counts else [rule.rivals.get(value, 0) for value in number]

    def floor(self) -> int:
        """What domains are compared with."""
        return 0 if self.from_zero else min(self.counts, default=0)

    def add(self, cell: int, pods: int) -> None:
        """Count pods that were distributed."""
        place = self.at[cell]
        if place is not None and self.step:
            self.counts[place] += pods
            if self.rivals is not self.counts:
                self.rivals[place] += pods

    def state(self, new_nodes: Sequence[int]) -> tuple[int, ...]:
        """How the domains differ as far as it matters: to pods that a rule binds, whether each is admitted, and its rank."""
        if self.skew is None:
            places = [place for i in new_nodes if (place := self.at[i]) is not None]
            least = min([self.counts[place] for place in places], default=0)
            return tuple(self.counts[place] - least for place in places)
        floor, beyond = self.floor(), self.skew + 1
        differences = [min(n - floor, beyond) for n in self.counts]
        if self.rivals is not self.counts:
            differences += [min(n - floor, beyond) for n in self.rivals]
        return tuple(differences)

    def steady(self, then: Sequence[int]) -> int:
        """How often what was distributed since may be repeated before a domain that is closed opens."""
        if self.skew is None:
            return UNLIMITED
        floor, beyond, times = self.floor(), self.skew + 1, UNLIMITED
        rise = floor - (0 if self.from_zero else min(then, default=0))
        for count, before in zip(self.counts, then, strict=True):
            nearer = rise - (count - before)
            if count - floor >= beyond and nearer > 0:
                times = min(times, (count - floor - beyond) // nearer)
        return times


class Distribution:
    """Pods being distributed; among cells that are as good as each other that of number `turn` comes first."""

    def __init__(
        self,
        cells: Sequence[DomainCell],
        rules: Sequence[DomainRule],
        *,
        has_no_spread: bool,
        use_spread_slack: bool,
        turn: int = 0,
    ) -> None:
        self._cells = cells
        self._rule_counts = [_RuleCounts(rule, cells) for rule in rules]
        self._binding_rules = [rule_count for rule_count in self._rule_counts if rule_count.skew is not None]
        self._has_no_spread = has_no_spread
        self._use_spread_slack = use_spread_slack
        self._free_pods = [cell.free_pods for cell in cells]
        self._more = [cell.more for cell in cells]
        self._given = [0] * len(cells)
        self._dear = _dear(cells) if has_no_spread else []
        self._choices = self._count_choices() if are_crossed(rules) else [0] * len(cells)
        ranked = sorted(range(len(cells)), key=lambda i: (cells[i].price, cells[i].pins))
        self._ranked = [*ranked[turn:], *ranked[:turn]]

    def _count_choices(self) -> list[int]:
        """By cell, how many share the rarest of its domains: if several rules must meet, rare ones are used first."""
        totals = [Counter(rule_count.at) for rule_count in self._binding_rules]
        return [
            min(total[rule_count.at[i]] for rule_count, total in zip(self._binding_rules, totals, strict=True))
            for i in range(len(self._cells))
        ]

    def distribute(self, pods: int) -> list[int]:
        """Return how many of so many pods each cell gets."""
        seen: dict[object, tuple[list[int], list[list[int]]]] = {}
        choose = self._choose_by_one_rule if self.has_one_rule(pods) else self._choose
        while pods > 0:
            chosen = choose(strict=True)
            if chosen is None:
                chosen = choose(strict=False)
            if chosen is None:
                break
            self._give(chosen, 1)
            pods -= 1
            if pods >= WORTH_A_LEAP:
                state = self._state()
                if state in seen:
                    pods -= self._leap(pods, *seen[state])
                    seen.clear()
                else:
                    seen[state] = (list(self._given), [list(rule_count.counts) for rule_count in self._rule_counts])
        return self._given

    def _give(self, i: int, pods: int) -> None:
        """Pods for a cell; nodes that exist come first."""
        self._given[i] += pods
        here = min(pods, self._free_pods[i])
        self._free_pods[i] -= here
        self._more[i] -= pods - here
        for rule_count in self._rule_counts:
            rule_count.add(i, pods)

    def has_one_rule(self, pods: int) -> bool:
        """Whether one rule alone decides: all on new nodes, as good as each other, and without end."""
        if (
            self._use_spread_slack
            or len(self._rule_counts) != 1
            or self._rule_counts[0].is_ban
            or None in self._rule_counts[0].at
            or any(self._free_pods)
        ):
            return False
        first = self._cells[0]
        alike = all(cell.order == first.order and cell.apart == first.apart for cell in self._cells)
        return alike and min(self._more) >= pods and not any(self._dear)

    def _choose_by_one_rule(self, *, strict: bool) -> int | None:
        """The same as `_choose` where that is all there is to it; most pods are distributed this way."""
        rule_count = self._rule_counts[0]
        counts, rivals = rule_count.counts, rule_count.rivals
        most = UNLIMITED if rule_count.skew is None else rule_count.skew - rule_count.step + rule_count.floor()
        best: int | None = None
        least = UNLIMITED
        for i in self._ranked:
            place = rule_count.at[i]
            if (
                place is not None
                and counts[place] < least
                and (counts if strict else rivals)[place] <= most >= rivals[place]
            ):
                best, least = i, counts[place]
        return best

    def _choose(self, *, strict: bool) -> int | None:
        """The best cell for the next pod; if not `strict`, pods that may come later are not held against it."""
        floors = [rule_count.floor() for rule_count in self._rule_counts]
        best: int | None = None
        best_rank: tuple[object, ...] = ()
        for i in self._ranked:
            if (self._free_pods[i] > 0 or self._more[i] > 0) and self._admits(i, strict=strict):
                rank = self._rank(i, floors)
                if best is None or rank < best_rank:
                    best, best_rank = i, rank
        return best

    def _admits(self, i: int, *, strict: bool) -> bool:
        for rule_count in self._binding_rules:
            place = rule_count.at[i]
            if place is None or rule_count.skew is None:
                continue
            held = rule_count.rivals[place]
            if strict and rule_count.counts[place] > held:
                held = rule_count.counts[place]
            if held + rule_count.step - rule_count.floor() > rule_count.skew:
                return False
        return True

    def _rank(self, i: int, floors: Sequence[int]) -> tuple[object, ...]:
        cell = self._cells[i]
        bound = other = 0
        for rule_count, floor in zip(self._rule_counts, floors, strict=True):
            place = rule_count.at[i]
            if place is not None and not rule_count.is_ban:
                above = rule_count.counts[place] - floor
                if rule_count.skew is None:
                    other = max(other, above)
                else:
                    bound = max(bound, above)
        if self._has_no_spread:
            return cell.apart, self._free_pods[i] <= 0, self._dear[i], other
        price = cell.price if self._use_spread_slack else 0.0
        return self._free_pods[i] <= 0, cell.order, price, bound, self._choices[i], cell.apart, other

    # --- repetition

    def _state(self) -> object:
        """All that the next choices depend on: how the domains differ, and which cells are open."""
        open_now = self._open()
        supply = tuple(n > 0 for n in self._free_pods), tuple(n > 0 for n in self._more)
        return tuple(rule_count.state(open_now) for rule_count in self._rule_counts), supply

    def _open(self) -> list[int]:
        return [i for i in self._ranked if self._free_pods[i] > 0 or self._more[i] > 0]

    def _leap(self, pods: int, given: Sequence[int], counts: Sequence[Sequence[int]]) -> int:
        """Repeat what was distributed since, as often as nothing changes; how many pods that were."""
        cycle = [now - then for now, then in zip(self._given, given, strict=True)]
        times = pods // sum(cycle)
        for i, n in enumerate(cycle):
            if n:
                left = self._free_pods[i] if self._free_pods[i] > 0 else self._more[i]
                times = min(times, (left - 1) // n)
        for rule_count, then in zip(self._rule_counts, counts, strict=True):
            times = min(times, rule_count.steady(then))
        times = max(times, 0)
        for i, n in enumerate(cycle):
            if n and times:
                self._give(i, n * times)
        return sum(cycle) * times


def _dear(cells: Sequence[DomainCell]) -> list[bool]:
    """Which cells are not as good as free to prefer: dearer than the best of them, or of a lesser NodePool."""
    order, price = min(((cell.order, cell.price) for cell in cells), default=((0, False), 0.0))
    return [(cell.order, cell.price) > (order, price * _NEAR) for cell in cells]
