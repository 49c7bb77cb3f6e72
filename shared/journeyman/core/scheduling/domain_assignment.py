"""Assigns topology domains to pod classes; after that only rules about a single node remain to be met.

Each class tries its relaxation levels in order. Rows without topology rules over domains may use any node. Every other
row is distributed over *combinations*, the combinations of domains it can reach. Pods that fit on existing nodes are
placed there at once; the others become batches that state the labels of their future node.

The order keeps violations rare: first the classes that others must follow or avoid, among them those with the fewest
combinations; then anti-affinity; then affinity, repeated until no more pods are placed. Classes whose domains overlap
in part may still violate each other's rules. Pods whose rules are violated in the end are unplaced.

Restates: karpenter pkg/controllers/provisioning/scheduling/topologygroup.go `nextDomainTopologySpread`,
`nextDomainAffinity`, `nextDomainAntiAffinity`, scheduler.go `Solve` (the retries of its queue).
Differs: whole classes at once; an affinity's first domain is chosen by price; all domains of an anti-affinity are used
in one pass; a domain in which nothing can be launched does not count.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from msgspec import Struct, field

from journeyman.core.scheduling.domain_distribution import DomainCombination, distribute, rules_of
from journeyman.core.scheduling.domain_supply import DomainKeys, DomainSupply
from journeyman.core.scheduling.node_filling import NodeFilling, NodePods
from journeyman.core.scheduling.placement.topology_rules import Topology
from journeyman.core.scheduling.problem import PartialSolution, PodBatch, SchedulingProblem
from journeyman.core.scheduling.topology import ABSENT, DecidedLabels, TopologyGroup, spans_nodes

_PODS_BEFORE_A_CYCLE: Final = 50  # `distribute` then repeats its choices
_PER_COMBINATION: Final = 4  # effort of one pod, combination and rule


class AssignedDomains(Struct, frozen=True, kw_only=True, eq=False):
    """The domains chosen for the pods of each class.

    Attributes:
        batches: Pods for new nodes, and pods that may use any node, by class, relaxation level and domains.
        on_existing: The number of pods placed on existing nodes, by class; omitted for classes without any.
        left: The number of pods that no domain admits, by class.
        reasons: Why no domain admits them, by class; omitted for classes that fit no node in any domain.
    """

    batches: tuple[PodBatch, ...]
    on_existing: Mapping[int, int]
    left: Mapping[int, int]
    reasons: Mapping[int, str]


def assign_domains(
    problem: SchedulingProblem, solution: PartialSolution, filling: NodeFilling, excluded: Collection[int] = ()
) -> AssignedDomains:
    """Choose domains for all pods that are not scheduled yet.

    Pods of rows with rules over domains are first placed on existing nodes, which changes `filling`; batches hold the
    rest. A batch without decided may use any node that its row admits, existing nodes included.

    Args:
        problem: The scheduling problem of this pass.
        solution: The pods placed so far.
        filling: The existing nodes, with the pods of `solution.on_existing` placed.
        excluded: Classes to skip.

    Returns:
        The batches, and for each class the pods that no domain admits, with the reason.
    """
    if not problem.has_topology_rules and all(len(rows) == 1 for rows in problem.levels):
        anywhere = ((c, left) for c, left in enumerate(solution.left) if left > 0 and c not in excluded)
        batches = tuple(PodBatch(row=problem.levels[c][0], count=left) for c, left in anywhere)
        return AssignedDomains(batches=batches, on_existing={}, left={}, reasons={})
    return DomainAssignment(problem, solution, filling, excluded).assign()


class _DomainPlacement(Struct, frozen=True):
    """Pods of one row in one combination: `on_nodes` on existing nodes, and the number on new nodes."""

    row: int
    combination: DomainCombination
    on_nodes: Sequence[NodePods]
    new: int

    @property
    def count(self) -> int:
        """Return the number of pods, on existing and new nodes."""
        return self.new + sum(placed.pods for placed in self.on_nodes)


class _CombinationCost(NamedTuple):
    """The cost of restricting pods to some combinations: how many do not fit, and the price of those on new nodes."""

    lost: int
    price: float


class _ClassProgress(Struct):
    """The number of unplaced pods of a class, and its placed pods; `anywhere` counts by row those for any node."""

    left: int
    placed: list[_DomainPlacement] = field(default_factory=list)
    anywhere: dict[int, int] = field(default_factory=dict)

    @property
    def on_existing(self) -> int:
        """Return the number of pods on existing nodes."""
        return sum(on_node.pods for placed in self.placed for on_node in placed.on_nodes)


class DomainAssignment:
    """Chooses domains for all classes; tracks the placements so far and the pods that each rule counts."""

    def __init__(
        self, problem: SchedulingProblem, solution: PartialSolution, filling: NodeFilling, excluded: Collection[int]
    ) -> None:
        self._problem = problem
        self._solution = solution
        self._filling = filling
        self._excluded = frozenset(excluded)
        self._rows = problem.rows
        self._levels = problem.levels
        self._supply = DomainSupply(problem, solution, filling)
        self._topology = Topology(problem)
        self._classes = [_ClassProgress(0 if c in excluded else left) for c, left in enumerate(solution.left)]
        self._keys: dict[int, DomainKeys] = {}
        self._topology.counts.record_solution(solution)

    def assign(self) -> AssignedDomains:
        """Return the domains for the pods of all classes."""
        with_rules: list[int] = []
        for c, progress in enumerate(self._classes):
            if progress.left <= 0:
                continue
            if any(self._keys_of(row).all for row in self._levels[c]):
                with_rules.append(c)
            else:
                self._place(c)
        if with_rules:
            order = sorted(with_rules, key=self._order_of)
            self._place_all(order)
            self._unplace_violations(order)
        left = {c: progress.left for c, progress in enumerate(self._classes) if progress.left > 0}
        reasons = {c: self._blocking_rule(self._problem.last_level(c)[0]) for c in left}
        return AssignedDomains(
            batches=self._batches(),
            on_existing={c: pods for c, progress in enumerate(self._classes) if (pods := progress.on_existing)},
            left=left,
            reasons={c: why for c, why in reasons.items() if why},
        )

    # --- rules by row

    @cached_property
    def _counting_groups(self) -> frozenset[bytes]:
        """Return the ids of the groups with required spread or affinity; preferred rules do not bind other pods."""
        counting: set[bytes] = set()
        for row in self._rows:
            groups = (*(s.group for s in row.spreads), *row.affinities)
            counting.update(group.id for group in groups if group.id not in row.preferred_groups)
        return frozenset(counting)

    @cached_property
    def _required_anti_affinity_groups(self) -> frozenset[bytes]:
        """Return the ids of the groups with required anti-affinity."""
        required = {entry.group.id for entry in self._problem.inverse_anti_affinities}
        for row in self._rows:
            required.update(group.id for group in row.anti_affinities if group.id not in row.preferred_groups)
        return frozenset(required)

    @cached_property
    def _later_groups(self) -> frozenset[bytes]:
        """Return the ids of the groups with required anti-affinity whose pods are scheduled after all others."""
        later = (c for c, left in enumerate(self._solution.left) if left and c in self._excluded)
        return frozenset(
            group.id
            for c in later
            for row in self._levels[c]
            for group in self._rows[row].anti_affinities
            if group.id not in self._rows[row].preferred_groups
        )

    def _keys_of(self, row: int) -> DomainKeys:
        """Return the labels of all rules over domains that concern a row."""
        keys = self._keys.get(row)
        if keys is None:
            pods, counting = self._rows[row], self._topology.counting(row)
            rules = self._topology.of(row)
            groups = (*(rule.group for rule in rules.spreads), *(rule.group for rule in rules.affinities))
            needed = frozenset(group.key for group in groups)
            apart = frozenset(group.key for group in pods.anti_affinities if spans_nodes(group))
            counted = frozenset(
                g.key for g in counting if g.id in self._counting_groups or self._selects_one_domain(row, g.key)
            )
            inverse = frozenset(g.key for g in counting if g.id in self._required_anti_affinity_groups)
            keys = self._keys[row] = DomainKeys(
                all=tuple(sorted(needed | counted | inverse | apart)),
                needed=needed,
                excluding=(inverse | apart) - needed,
                only_inverse=inverse - needed - counted - apart,
            )
        return keys

    def _selects_one_domain(self, row: int, key: str) -> bool:
        """Return whether the row's node selector allows one value of the label: there, others' preferences count it."""
        values = {term[key].single if key in term else None for term in self._rows[row].terms}
        return len(values) == 1 and None not in values

    def _order_of(self, c: int) -> tuple[object, ...]:
        """Return the sort key of a class: leaders first, then anti-affinity, then affinity (module docstring)."""
        r = self._levels[c][0]
        rules = self._topology.of(r)
        spreads, affinities = rules.spreads, rules.affinities
        counting = {group.id for group in self._topology.counting(r)}
        leads = all(rule.group.id in counting for rule in affinities)
        return (
            bool(affinities),
            any(map(spans_nodes, self._rows[r].anti_affinities)),
            not leads,
            bool(spreads),
            self._supply.reach(r, self._keys_of(r)) if spreads else 0,
            -min((s.max_skew for s in spreads), default=0),
            c,
        )

    @cached_property
    def _followers(self) -> dict[bytes, list[int]]:
        """Return, by group, the unplaced classes with an affinity to the pods that it counts."""
        followers: dict[bytes, list[int]] = {}
        for c, level_rows in enumerate(self._levels):
            if self._classes[c].left > 0:
                for rule in self._topology.of(level_rows[0]).affinities:
                    followers.setdefault(rule.group.id, []).append(c)
        return followers

    # --- placing

    def _place_all(self, order: Sequence[int]) -> None:
        """Place the classes in order, and repeat for those with unplaced pods until a round places none."""
        waiting = list(order)
        while waiting:
            before = sum(self._classes[c].left for c in waiting)
            for c in waiting:
                self._place(c)
            waiting = [c for c in waiting if self._classes[c].left]
            if sum(self._classes[c].left for c in waiting) == before:
                break

    def _place(self, c: int) -> None:
        """Place the unplaced pods of a class, trying its relaxation levels in order."""
        progress = self._classes[c]
        for row in self._levels[c]:
            if not progress.left:
                return
            if self._keys_of(row).all:
                self._distribute(progress, row)
            elif self._supply.takes(row):
                progress.anywhere[row] = progress.anywhere.get(row, 0) + progress.left
                progress.left = 0

    def _distribute(self, progress: _ClassProgress, row: int) -> None:
        combinations = self._admitted(row, self._combinations(row))
        if not combinations:
            return
        rules = rules_of(self._topology, row)
        self._problem.effort.spend(
            _PER_COMBINATION * len(combinations) * (1 + len(rules)) * min(progress.left, _PODS_BEFORE_A_CYCLE)
        )
        counts = distribute(
            progress.left,
            combinations,
            rules,
            has_no_spread=not self._topology.of(row).spreads,
            spread_choice=self._solution.spread_choice,
        )
        for combination, count in zip(combinations, counts, strict=True):
            if count:
                on_nodes = self._filling.put_first(row, min(count, combination.free_pods), combination.nodes)
                new = count - sum(placed.pods for placed in on_nodes)
                progress.placed.append(_DomainPlacement(row, combination, on_nodes, new))
                progress.left -= count
                self._topology.counts.record_in_domains(row, combination.values, combination.decided, count)

    def _combinations(self, row: int) -> list[DomainCombination]:
        """Return the combinations into which an unplaced pod of the row's class fits."""
        pods = self._classes[self._problem.class_of_row[row]].left
        return self._supply.combinations(row, self._keys_of(row), pods)

    # --- affinity

    def _admitted(self, row: int, combinations: list[DomainCombination]) -> list[DomainCombination]:
        """Return the combinations where each affinity of the row matches a pod, or where its pod may be the first."""
        for rule in self._topology.of(row).affinities:
            occupied: Collection[str] = rule.options
            if not occupied and rule.may_start:
                occupied = self._first_domain(row, rule.group, combinations)
            combinations = [
                combination for combination in combinations if combination.values.get(rule.group.key) in occupied
            ]
        return combinations

    def _first_domain(self, row: int, group: TopologyGroup, combinations: Sequence[DomainCombination]) -> set[str]:
        """Return the best domain for all classes that must share it: fewest pods without capacity, then least price."""
        values = sorted({combination.values[group.key] for combination in combinations})
        if len(values) < 2:
            return set(values)
        members = [c for c in self._followers.get(group.id, ()) if self._classes[c].left]
        costs = dict.fromkeys(values, _CombinationCost(0, 0.0))
        for c in members:
            of_class = combinations if self._levels[c][0] == row else self._combinations(self._levels[c][0])
            for value, cost in costs.items():
                more = _cost(
                    self._classes[c].left,
                    [combination for combination in of_class if combination.values[group.key] == value],
                )
                costs[value] = _CombinationCost(cost.lost + more.lost, cost.price + more.price)
        orders = {
            value: min(combination.order for combination in combinations if combination.values[group.key] == value)
            for value in values
        }
        return {min(values, key=lambda value: (costs[value].lost, orders[value], costs[value].price, value))}

    # --- violations

    def _unplace_violations(self, order: Sequence[int]) -> None:
        """Unplace pods whose rules later placements violate."""
        for _ in order:
            violations = [(c, [p for p in self._classes[c].placed if self._violates_rules(p)]) for c in order]
            if not any(placed for _, placed in violations):
                return
            for c, placed in violations:
                for entry in placed:
                    self._unplace(self._classes[c], entry)

    def _unplace(self, progress: _ClassProgress, entry: _DomainPlacement) -> None:
        progress.placed.remove(entry)
        progress.left += entry.count
        self._topology.counts.record_in_domains(
            entry.row, entry.combination.values, entry.combination.decided, -entry.count
        )
        for node, pods in entry.on_nodes:
            self._filling.take_back(entry.row, node, pods)

    def _violates_rules(self, placed: _DomainPlacement) -> bool:
        """Return whether the pods placed since then violate a rule of these pods."""
        values = placed.combination.values
        affinities = self._topology.of(placed.row).affinities
        if any(rule.counter.counts.get(values[rule.group.key], 0) < 1 for rule in affinities):
            return True
        return self._topology.is_over_max_skew(placed.row, values)

    # --- the result

    def _batches(self) -> tuple[PodBatch, ...]:
        batches: list[PodBatch] = []
        for c, progress in enumerate(self._classes):
            totals: dict[tuple[int, DecidedLabels], int] = {}
            for placed in progress.placed:
                key = (self._levels[c].index(placed.row), self._pins_of(placed))
                totals[key] = totals.get(key, 0) + placed.new
            batches += [PodBatch(row=row, count=count) for row, count in progress.anywhere.items()]
            batches += [
                PodBatch(row=self._levels[c][level], count=n, decided=decided, is_quota=True)
                for (level, decided), n in sorted(totals.items())
                if n
            ]
        return tuple(batches)

    def _pins_of(self, placed: _DomainPlacement) -> DecidedLabels:
        """Return the decided labels of the placed pods, without those that no rule of a placed pod needs."""
        only_inverse = self._keys_of(placed.row).only_inverse
        apart = {group.key for group in self._rows[placed.row].anti_affinities}
        return tuple(
            label
            for label in placed.combination.decided
            if (label.value != ABSENT and label.key not in only_inverse)
            or (
                (label.value != ABSENT or self._is_defined(label.key))
                and (label.key in apart or self._may_be_excluded(placed.row, label.key))
            )
        )

    def _is_defined(self, key: str) -> bool:
        """Return whether nodes of any NodePool may have the label; if none has it, pods need not be kept off it."""
        templates = (pool.template for pool in self._problem.pools)
        return any(key in t.requirements or any(t.table.row_requirements(key)[1]) for t in templates)

    def _may_be_excluded(self, row: int, key: str) -> bool:
        """Return whether anti-affinity of other pods, also later ones, excludes a domain of this label for the row."""
        if self._topology.excluded_by_others(row, key):
            return True
        return any(g.key == key and g.id in self._later_groups for g in self._topology.counting(row))

    def _blocking_rule(self, row: int) -> str:
        """Return the topology rule that excludes the row from its combinations, as text; empty if it has none."""
        combinations = self._combinations(row)
        if not combinations:
            return ""
        for rule in self._topology.of(row).affinities:
            if not any(
                rule.counter.counts.get(combination.values[rule.group.key], 0) > 0 for combination in combinations
            ):
                return (
                    f"unsatisfiable pod affinity: no domain of {rule.group.key} that it can reach holds any of the "
                    f"{rule.group.in_words} that it asks for"
                )
        return self._topology.why_excluded(row, [combination.values for combination in combinations])


def _cost(pods: int, combinations: Sequence[DomainCombination]) -> _CombinationCost:
    """Return the cost of restricting this number of pods to these combinations."""
    capacity = sum(combination.free_pods for combination in combinations)
    new_node_prices = [combination.price for combination in combinations if combination.more > 0]
    needed = max(pods - capacity, 0)
    return _CombinationCost(0, needed * min(new_node_prices)) if new_node_prices else _CombinationCost(needed, 0.0)
