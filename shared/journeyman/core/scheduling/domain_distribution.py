"""Distributes the pods of one class over combinations of domains, as topology spread and anti-affinity allow.

Each pod goes to the emptiest domain that every rule admits. A rule counts pods by domain and limits how far a domain
may exceed the emptiest one. When a sequence of choices repeats, it is applied many times at once, so ten thousand pods
need few steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from journeyman.core.scheduling.node_filling import NodePods
from journeyman.core.scheduling.nodeclaim_templates import PoolOrder
from journeyman.core.scheduling.placement.anti_affinity import AntiAffinityRule
from journeyman.core.scheduling.placement.spread import SpreadRule, most_pods
from journeyman.core.scheduling.placement.topology_rules import Topology
from journeyman.core.scheduling.topology import DecidedLabels, SpreadChoice

UNLIMITED: Final = 1 << 40
WORTH_A_LEAP: Final = 24  # for fewer pods, detecting repetition costs more than it saves
_ANY_ORDER: Final = PoolOrder(0, fewest_nodes=False)
_NEAR: Final = 1.01  # times the best price; up to this, a combination counts as equally cheap


class DomainCombination(Struct, frozen=True):
    """One combination of domains that pods of a row can use.

    Attributes:
        decided: The combination.
        values: The same, by label.
        free_pods: The number of pods that fit on existing nodes.
        more: The number of pods that may use new nodes.
        order: The order of the best NodePool that offers new nodes.
        price: A lower bound on the price of one pod on a new node.
        nodes: The number of pods that fit on each existing node.
    """

    decided: DecidedLabels
    values: Mapping[str, str]
    free_pods: int = 0
    more: int = 0
    order: PoolOrder = _ANY_ORDER
    price: float = 0.0
    nodes: Sequence[NodePods] = ()


class DomainRule(Struct, frozen=True, kw_only=True):
    """One rule over the domains of a label, for many pods at once.

    Attributes:
        key: The label.
        counts: The counted pods, for each domain that the minimum is taken over.
        possible: The pods that may count, by domain.
        bound_before: The pods, by domain, that count in whatever order pods are bound.
        max_skew: How far a domain may exceed the minimum; None if the rule only prefers level counts.
        own: 1 if the rule counts the pods that are being distributed, otherwise 0.
        minimum_is_zero: Whether the minimum counts as 0.
        is_exclusion: Whether the rule only admits or excludes domains, and ranks none above another.
    """

    key: str
    counts: Mapping[str, int]
    possible: Mapping[str, int]
    bound_before: Mapping[str, int]
    max_skew: int | None
    own: int
    minimum_is_zero: bool = False
    is_exclusion: bool = False

    @classmethod
    def of_spread(cls, rule: SpreadRule) -> DomainRule:
        """Return the rule of a topology spread constraint."""
        return cls(
            key=rule.group.key,
            counts=rule.by_eligible_domain,
            possible=rule.counter.possible,
            bound_before=rule.counter.bound_before(rule.max_skew),
            max_skew=rule.max_skew,
            own=rule.own,
            minimum_is_zero=rule.has_too_few_domains,
        )

    @classmethod
    def of_anti_affinity(cls, rule: AntiAffinityRule) -> DomainRule:
        """Return the rule of an anti-affinity term: no pod beside another."""
        counts = rule.counter.counts
        return cls(
            key=rule.group.key,
            counts=counts,
            possible=counts,
            bound_before=counts,
            max_skew=rule.own,
            own=rule.own,
            minimum_is_zero=True,
            is_exclusion=True,
        )


def rules_of(topology: Topology, row: int) -> list[DomainRule]:
    """Return the row's own rules, the rules of other pods about it, and the counts that it should keep level."""
    found: list[DomainRule] = []
    for rules in topology.of(row).labels:
        found += map(DomainRule.of_spread, rules.spreads)
        found += map(DomainRule.of_anti_affinity, rules.anti_affinities)
    for rule in topology.spreads_of_others(row):
        counts = rule.by_eligible_domain
        found.append(
            DomainRule(key=rule.group.key, counts=counts, possible=counts, bound_before=counts, max_skew=None, own=1)
        )
    return found


def distribute(
    pods: int,
    combinations: Sequence[DomainCombination],
    rules: Sequence[DomainRule],
    *,
    has_no_spread: bool,
    spread_choice: SpreadChoice = SpreadChoice.EMPTIEST,
) -> list[int]:
    """Return the number of pods for each combination; the sum is lower than `pods` if the combinations cannot take all.

    Args:
        pods: The number of pods.
        combinations: The combinations that the pods may use.
        rules: The pods' rules, and the counts to keep level.
        has_no_spread: The pods have no topology spread: counts are kept level only at no extra price.
        spread_choice: Which of the admitted combinations pods with topology spread use.
    """
    if not combinations:
        return []
    if len(combinations) == 1 and all(rule.max_skew is None for rule in rules):
        return [min(pods, combinations[0].free_pods + combinations[0].more)]
    distribution = Distribution(combinations, rules, has_no_spread=has_no_spread, spread_choice=spread_choice)
    return distribution.distribute(pods)


class _RuleCounts:
    """The counts of one rule by domain number; `domain_of_combination` is None for those without the label."""

    __slots__ = (
        "bound_before",
        "counts",
        "domain_of_combination",
        "is_exclusion",
        "max_skew",
        "minimum_is_zero",
        "own",
        "possible",
    )

    def __init__(self, rule: DomainRule, combinations: Sequence[DomainCombination]) -> None:
        self.max_skew, self.own = rule.max_skew, rule.own
        self.minimum_is_zero, self.is_exclusion = rule.minimum_is_zero, rule.is_exclusion
        domain_numbers = {value: n for n, value in enumerate(rule.counts)}
        self.counts = list(rule.counts.values())
        self.domain_of_combination: list[int | None] = []
        for combination in combinations:
            value = combination.values.get(rule.key)
            if value is not None and value not in domain_numbers:
                domain_numbers[value] = len(domain_numbers)
                self.counts.append(rule.possible.get(value, 0))
            self.domain_of_combination.append(domain_numbers[value] if value is not None else None)
        self.possible = self.counts if rule.possible is rule.counts else _listed(rule.possible, domain_numbers)
        self.bound_before = (
            self.counts if rule.bound_before is rule.counts else _listed(rule.bound_before, domain_numbers)
        )

    def minimum(self) -> int:
        """Return the minimum that domains are compared with."""
        return 0 if self.minimum_is_zero else min(self.counts, default=0)

    def add(self, combination: int, pods: int) -> None:
        """Count pods given to a combination."""
        domain = self.domain_of_combination[combination]
        if domain is not None and self.own:
            for counts in self._distinct:
                counts[domain] += pods

    @property
    def _distinct(self) -> list[list[int]]:
        """The counts, without those that are the same list."""
        others = [counts for counts in (self.possible, self.bound_before) if counts is not self.counts]
        return [self.counts, *others]

    def admits(self, combination: int, minimum: int, *, strict: bool) -> bool:
        """Whether the rule admits one more pod; pods that may be bound later count only if `strict`."""
        domain = self.domain_of_combination[combination]
        if domain is None or self.max_skew is None:
            return True
        counted = self.possible if strict else self.bound_before
        return counted[domain] <= most_pods(minimum, self.max_skew, self.own)

    def state(self, combinations: Sequence[int]) -> tuple[int, ...]:
        """Return the differences between domains that determine the next choices; equal states lead to equal choices.

        `combinations` are those with capacity. A binding rule's differences are capped at the first that excludes the
        domain.
        """
        if self.max_skew is None:
            domains = [domain for i in combinations if (domain := self.domain_of_combination[i]) is not None]
            minimum = min([self.counts[domain] for domain in domains], default=0)
            return tuple(self.counts[domain] - minimum for domain in domains)
        minimum, first_excluded = self.minimum(), self.max_skew + 1
        return tuple(min(n - minimum, first_excluded) for counts in self._distinct for n in counts)

    def max_repetitions(self, earlier: Sequence[int]) -> int:
        """Return how often the cycle since the `earlier` counts may repeat before an excluded domain is admitted."""
        if self.max_skew is None:
            return UNLIMITED
        minimum, first_excluded, times = self.minimum(), self.max_skew + 1, UNLIMITED
        rise = minimum - (0 if self.minimum_is_zero else min(earlier, default=0))
        for count, earlier_count in zip(self.counts, earlier, strict=True):
            approach = rise - (count - earlier_count)
            if count - minimum >= first_excluded and approach > 0:
                times = min(times, (count - minimum - first_excluded) // approach)
        return times


def _listed(counts: Mapping[str, int], domains: Iterable[str]) -> list[int]:
    return [counts.get(domain, 0) for domain in domains]


class Distribution:
    """Distributes pods one at a time."""

    def __init__(
        self,
        combinations: Sequence[DomainCombination],
        rules: Sequence[DomainRule],
        *,
        has_no_spread: bool,
        spread_choice: SpreadChoice,
    ) -> None:
        self._combinations = combinations
        self._rule_counts = [_RuleCounts(rule, combinations) for rule in rules]
        self._binding_rules = [rule_count for rule_count in self._rule_counts if rule_count.max_skew is not None]
        self._has_no_spread = has_no_spread
        self._by_price = spread_choice is not SpreadChoice.EMPTIEST
        self._strictness = (False,) if spread_choice is SpreadChoice.CHEAPEST_IF_FIRST else (True, False)
        self._free_pods = [combination.free_pods for combination in combinations]
        self._more = [combination.more for combination in combinations]
        self._given = [0] * len(combinations)
        self._expensive = _expensive(combinations) if has_no_spread else []
        self._ranked = sorted(range(len(combinations)), key=lambda i: (combinations[i].price, combinations[i].decided))
        self._alternatives = [self._alternatives_of(i) for i in range(len(combinations))]

    def distribute(self, pods: int) -> list[int]:
        """Return the number of pods for each combination."""
        seen: dict[object, tuple[list[int], list[list[int]]]] = {}
        while pods > 0:
            chosen = next((i for strict in self._strictness if (i := self._choose(strict=strict)) is not None), None)
            if chosen is None:
                break
            self._give(chosen, 1)
            pods -= 1
            if pods >= WORTH_A_LEAP:
                state = self._state()
                if state in seen:
                    pods -= self._repeat_cycle(pods, *seen[state])
                    seen.clear()
                else:
                    seen[state] = (list(self._given), [list(rule_count.counts) for rule_count in self._rule_counts])
        return self._given

    def _give(self, i: int, pods: int) -> None:
        """Give pods to a combination, first on its existing nodes."""
        self._given[i] += pods
        on_existing = min(pods, self._free_pods[i])
        self._free_pods[i] -= on_existing
        self._more[i] -= pods - on_existing
        for rule_count in self._rule_counts:
            rule_count.add(i, pods)

    def _choose(self, *, strict: bool) -> int | None:
        """Return the best combination for the next pod, None if there is none.

        If not `strict`, pods that may be bound later do not count against a combination.
        """
        minimums = [rule_count.minimum() for rule_count in self._rule_counts]
        binding = [n for rule, n in zip(self._rule_counts, minimums, strict=True) if rule.max_skew is not None]
        best: int | None = None
        best_rank: tuple[object, ...] = ()
        for i in self._ranked:
            if (self._free_pods[i] > 0 or self._more[i] > 0) and self._admits(i, binding, strict=strict):
                rank = self._rank(i, minimums)
                if best is None or rank < best_rank:
                    best, best_rank = i, rank
        return best

    def _admits(self, i: int, minimums: Sequence[int], *, strict: bool) -> bool:
        """Whether the binding rules, with these minimums, admit one more pod in a combination."""
        return all(
            rule_count.admits(i, minimum, strict=strict)
            for rule_count, minimum in zip(self._binding_rules, minimums, strict=True)
        )

    def _rank(self, i: int, minimums: Sequence[int]) -> tuple[object, ...]:
        combination = self._combinations[i]
        binding_excess = preferred_excess = 0
        for rule_count, minimum in zip(self._rule_counts, minimums, strict=True):
            domain = rule_count.domain_of_combination[i]
            if domain is not None and not rule_count.is_exclusion:
                excess = rule_count.counts[domain] - minimum
                if rule_count.max_skew is None:
                    preferred_excess = max(preferred_excess, excess)
                else:
                    binding_excess = max(binding_excess, excess)
        if self._has_no_spread:
            return self._free_pods[i] <= 0, self._expensive[i], preferred_excess
        price = combination.price if self._by_price else 0.0
        return (
            self._free_pods[i] <= 0,
            combination.order,
            price,
            binding_excess,
            preferred_excess,
            self._alternatives[i],
        )

    def _alternatives_of(self, i: int) -> int:
        """Return how many combinations the scarcest domain of this one has: it may be the last to level it."""
        domains = ((rule.domain_of_combination, rule.domain_of_combination[i]) for rule in self._binding_rules)
        return min((of_cell.count(domain) for of_cell, domain in domains if domain is not None), default=0)

    # --- repetition

    def _state(self) -> object:
        """Return what the next choices depend on: differences between domains, and who has capacity."""
        usable = self._cells_with_capacity()
        supply = tuple(n > 0 for n in self._free_pods), tuple(n > 0 for n in self._more)
        return tuple(rule_count.state(usable) for rule_count in self._rule_counts), supply

    def _cells_with_capacity(self) -> list[int]:
        return [i for i in self._ranked if self._free_pods[i] > 0 or self._more[i] > 0]

    def _repeat_cycle(self, pods: int, given: Sequence[int], counts: Sequence[Sequence[int]]) -> int:
        """Repeat the cycle of choices since `given` while they stay the same; return the number of pods given."""
        cycle = [now - earlier for now, earlier in zip(self._given, given, strict=True)]
        times = pods // sum(cycle)
        for i, n in enumerate(cycle):
            if n:
                left = self._free_pods[i] if self._free_pods[i] > 0 else self._more[i]
                times = min(times, (left - 1) // n)
        for rule_count, earlier in zip(self._rule_counts, counts, strict=True):
            times = min(times, rule_count.max_repetitions(earlier))
        times = max(times, 0)
        for i, n in enumerate(cycle):
            if n and times:
                self._give(i, n * times)
        return sum(cycle) * times


def _expensive(combinations: Sequence[DomainCombination]) -> list[bool]:
    """Return for each combination whether it costs clearly more than the best, or its NodePool comes later."""
    order, price = min(
        ((combination.order, combination.price) for combination in combinations), default=(_ANY_ORDER, 0.0)
    )
    return [(combination.order, combination.price) > (order, price * _NEAR) for combination in combinations]
