"""The topology rules of each row, over domains and over nodes, and the domains that they allow now.

`Topology` has the rules of all rows of a problem, and the counts that they share (`counts`). Every algorithm asks it
which domains take one more pod (`LabelRules.now`) and records each pod that it places; `domain_distribution` does both
for many pods at once.

Restates: karpenter pkg/controllers/provisioning/scheduling/topology.go `NewTopology`, `AddRequirements`, `Record`;
topologygroup.go `nextDomainAntiAffinity`.
Differs: several rules over one label must agree on a domain before one is chosen, where Karpenter lets each choose
alone and fails if they differ. With `binding`, pods that required anti-affinity concerns are bound to one domain each;
in Karpenter one such pod occupies all domains its node might be launched in, and the next waits for another pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from journeyman.core.api.objects import Toleration
from journeyman.core.scheduling.nodepool_options import NodeConstraints, NodeDemand
from journeyman.core.scheduling.placement.affinity import AffinityRule
from journeyman.core.scheduling.placement.anti_affinity import AntiAffinityRule
from journeyman.core.scheduling.placement.counters import (
    EVERY_NODE,
    CountPart,
    DomainCounter,
    NodeFilter,
    RuleKind,
    TopologyCounts,
    known_labels,
)
from journeyman.core.scheduling.placement.spread import SpreadCeiling, SpreadRule, most_pods
from journeyman.core.scheduling.problem import PartialSolution, SchedulingProblem
from journeyman.core.scheduling.requirements import EMPTY, Requirement, Requirements
from journeyman.core.scheduling.topology import TopologyGroup, TopologySpread, spans_nodes

_PER_INVERSE_RULE: Final = 10  # effort of a rule of other pods that counts a row


class LabelRules(Struct):
    """All rules over one label other than the host name.

    Attributes:
        key: The label.
        spreads: The row's topology spread constraints.
        affinities: Its pod affinity terms.
        anti_affinities: Its pod anti-affinity terms, and the required ones of other pods that are about its pods.
        preferring: Domains with these pods are preferred.
        binding: Whether the node must be bound to one domain.
        needs_label: Whether the node must have the label.
    """

    key: str
    spreads: list[SpreadRule] = field(default_factory=list)
    affinities: list[AffinityRule] = field(default_factory=list)
    anti_affinities: list[AntiAffinityRule] = field(default_factory=list)
    preferring: list[DomainCounter] = field(default_factory=list)
    binding: bool = False
    needs_label: bool = False

    @property
    def is_only_preferred(self) -> bool:
        """Whether these are only preferred anti-affinity rules."""
        strict = self.spreads or self.affinities
        return not strict and all(rule.is_preferred for rule in self.anti_affinities)

    @property
    def has_own_anti_affinity(self) -> bool:
        """Whether the row's own anti-affinity is among the rules."""
        return any(not rule.is_inverse for rule in self.anti_affinities)

    @property
    def excluded(self) -> frozenset[str]:
        """The domains that the pod's own anti-affinity, or that of others, excludes now."""
        return frozenset().union(*(rule.excluded for rule in self.anti_affinities))

    @property
    def undecided_affinity(self) -> AffinityRule | None:
        """An affinity whose pods are all on nodes with an undecided domain; one of these must be bound first."""
        return next((rule for rule in self.affinities if rule.is_undecided), None)

    def now(self) -> DomainChoice | None:
        """Return the domains allowed now; None if there are none, or if a node must be bound first.

        The first pod of an affinity may use any, but its node must be bound to one.
        """
        joined: frozenset[str] | None = None
        starting = False
        for rule in self.affinities:
            options = rule.options
            if options:
                joined = options if joined is None else joined & options
            elif rule.may_start:
                starting = True
            else:
                return None
        return DomainChoice(self, self._ceilings, joined, self.binding or starting)

    def ignoring_affinity(self) -> DomainChoice:
        """Return the domains allowed now if the affinity terms are met in each."""
        return DomainChoice(self, self._ceilings, None, self.binding)

    @property
    def _ceilings(self) -> tuple[SpreadCeiling, ...]:
        return tuple(spread.ceiling for spread in self.spreads)


class DomainChoice(Struct, frozen=True, eq=False):
    """The domains of a label that a pod may use now.

    Attributes:
        rules: The rules.
        ceilings: By spread, the most pods that a domain may hold.
        joined: The domains with pods that it must join; None: any.
        binding: Whether its node must be bound to one domain.
    """

    rules: LabelRules
    ceilings: tuple[SpreadCeiling, ...]
    joined: frozenset[str] | None
    binding: bool

    def admits(self, domain: str) -> bool:
        """Whether the pod may go to this domain."""
        if self.joined is not None and domain not in self.joined:
            return False
        if not all(rule.admits(domain) for rule in self.rules.anti_affinities):
            return False
        return all(
            spread.counter.possible.get(domain, 0) <= ceiling.in_domain(domain)
            for spread, ceiling in zip(self.rules.spreads, self.ceilings, strict=True)
        )

    def admits_node(self, value: str | None) -> bool:
        """Whether the pod may go to nodes with this value of the label, or to nodes without the label (None)."""
        return self.admits(value) if value is not None else not self.rules.needs_label

    def pods(self, domain: str) -> int:
        """Return the pods in a domain that the row's topology spread counts; the emptiest domain is best."""
        return sum(spread.counter.counts.get(domain, 0) for spread in self.rules.spreads)

    def rank(self, domain: str) -> tuple[int, ...]:
        """Sort key, best domain first: the emptiest by spread, then domains with pods of `preferring`."""
        counts = [spread.counter.counts.get(domain, 0) for spread in self.rules.spreads]
        return (*counts, sum(not counter.counts.get(domain) for counter in self.rules.preferring))


class TopologyRules(Struct):
    """The rules of one row over domains; `NodeFilling` has those about one node."""

    labels: tuple[LabelRules, ...]

    def now(self) -> list[DomainChoice] | None:
        """Return the domains allowed now, by label; None if a label has none, or if a node must be bound first."""
        choices = [rules.now() for rules in self.labels]
        found = [choice for choice in choices if choice is not None]
        return found if len(found) == len(choices) else None

    @property
    def spreads(self) -> list[SpreadRule]:
        """The topology spread constraints over domains."""
        return [rule for rules in self.labels for rule in rules.spreads]

    @property
    def affinities(self) -> list[AffinityRule]:
        """The pod affinity terms over domains."""
        return [rule for rules in self.labels for rule in rules.affinities]


class Topology:
    """The topology rules of a problem, and their counts."""

    def __init__(
        self,
        problem: SchedulingProblem,
        active: Iterable[int] | None = None,
        *,
        binding: bool = False,
    ) -> None:
        """Count the running pods.

        Args:
            problem: The scheduling problem.
            active: The rows whose pods may still be placed, by default all; only their rules get counters.
            binding: Whether pods that required anti-affinity concerns are bound to one domain each.
        """
        self._problem = problem
        self._interner = problem.interner
        self._binding = binding
        self._rules_by_row: dict[int, TopologyRules] = {}
        self._ids_of_terms: dict[int, tuple[int, ...]] = {}
        self._requirements: dict[tuple[int, str], tuple[Requirement | None, ...]] = {}
        self._eligible: dict[object, frozenset[str]] = {}
        self._owners: dict[bytes, DomainCounter] = {}
        self._inverse: dict[int, list[tuple[TopologyGroup, DomainCounter]]] = {}
        self._inverse_of_running: dict[int, list[tuple[TopologyGroup, DomainCounter]]] = {}
        self._spreads_of_group: dict[bytes, SpreadRule] = {}
        self._groups: dict[bytes, TopologyGroup] = {}
        self._counting: list[list[TopologyGroup]] | None = None
        self._is_everywhere: dict[str, bool] = {}
        self._counted_over: dict[str, frozenset[int]] = {}
        self.counts = TopologyCounts(problem)
        self._prepare_inverse()
        for row in range(len(problem.rows)) if active is None else active:
            self.of(row)

    # -- the rules of a row -------------------------------------------------------------------------------------------

    def of(self, row: int) -> TopologyRules:
        """Return the rules of one row."""
        found = self._rules_by_row.get(row)
        if found is None:
            found = self._rules_by_row[row] = self._rules(row)
        return found

    @property
    def keys(self) -> frozenset[str]:
        """The labels of all rules over domains."""
        return frozenset(group.key for group in self._groups.values())

    def counting(self, row: int) -> Sequence[TopologyGroup]:
        """Return the groups of rules over domains that count the row's pods."""
        if self._counting is None:
            self._counting = [[] for _ in self._problem.rows]
            for group in self._groups.values():
                for counted in self._problem.row_index.counted_by(group):
                    self._counting[counted].append(group)
        return self._counting[row]

    def spreads_of_others(self, row: int) -> list[SpreadRule]:
        """Return, by group, a topology spread of other pods that counts the row's pods; its own groups are left out."""
        own = {rule.group.id for rule in self.of(row).spreads}
        groups = (group.id for group in self.counting(row) if group.id not in own)
        return [self._spreads_of_group[group_id] for group_id in groups if group_id in self._spreads_of_group]

    def excluded_by_others(self, row: int, key: str) -> bool:
        """Whether inverse anti-affinity excludes any domain of this label for the row; `LabelRules` say which."""
        inverse = (*self._inverse.get(row, ()), *self._inverse_of_running.get(row, ()))
        return any(n > 0 for group, counter in inverse if group.key == key for n in counter.counts.values())

    def _prepare_inverse(self) -> None:
        """Find by row the required anti-affinity of other rows, and of running pods, that counts it.

        Restates: karpenter topology.go `updateInverseAffinities`.
        """
        groups: dict[bytes, TopologyGroup] = {}
        owners: dict[bytes, list[int]] = {}
        running = {entry.group.id: entry for entry in self._problem.inverse_anti_affinities}
        for row, cls in enumerate(self._problem.rows):
            for group in cls.anti_affinities:
                if group.id not in cls.preferred_groups:
                    groups[group.id] = group
                    owners.setdefault(group.id, []).append(row)
        for group_id, entry in running.items():
            groups.setdefault(group_id, entry.group)
        for group_id, group in groups.items():
            of_running = running[group_id].domains if group_id in running else frozenset()
            if not spans_nodes(group):
                continue
            counter = self.counts.owners_counter(group, owners.get(group_id, ()), of_running)
            self._owners[group_id] = counter
            self._groups.setdefault(group_id, group)
            inverse = self._inverse if group_id in owners else self._inverse_of_running
            for row in self._problem.row_index.counted_by(group):
                inverse.setdefault(row, []).append((group, counter))

    def _rules(self, row: int) -> TopologyRules:
        cls = self._problem.rows[row]
        by_key: dict[str, LabelRules] = {}

        def rules_of(group: TopologyGroup) -> LabelRules:
            self._groups.setdefault(group.id, group)
            return by_key.setdefault(group.key, LabelRules(group.key))

        for spread in cls.spreads:
            if spans_nodes(spread.group):
                self._add_spread(row, spread, rules_of)
        for group in filter(spans_nodes, cls.affinities):
            self._add_affinity(row, group, rules_of)
        for rules in by_key.values():
            rules.needs_label = True
        for group in filter(spans_nodes, cls.anti_affinities):
            self._add_anti_affinity(row, group, rules_of)
        self._add_inverse(row, rules_of)
        return TopologyRules(tuple(by_key[key] for key in sorted(by_key)))

    def _add_spread(self, row: int, spread: TopologySpread, rules_of: Callable[[TopologyGroup], LabelRules]) -> None:
        cls = self._problem.rows[row]
        own = int(spread.group.counts(cls.namespace, cls.labels))
        nodes = self._node_filter(row, spread)
        spread_counter = self.counts.spread_counter(spread.group, nodes)
        if self._has_no_effect(row, spread, spread_counter.running):
            return
        rule = SpreadRule(
            group=spread.group,
            counter=spread_counter,
            max_skew=spread.max_skew,
            min_domains=spread.min_domains,
            own=own,
            eligible=self._eligible_domains(row, spread, nodes),
            with_nodes=self.counts.existing_domains(spread.key, nodes),
        )
        rules = rules_of(spread.group)
        rules.spreads.append(rule)
        rules.binding = True
        self._spreads_of_group.setdefault(spread.group.id, rule)

    def _has_no_effect(self, row: int, spread: TopologySpread, running: Mapping[str, int]) -> bool:
        """Whether a constraint counts no pods, each possible node has its label, and no rule over it counts the row."""
        if self._problem.row_index.counted_by(spread.group) or any(running.values()):
            return False
        is_everywhere = self._is_everywhere.get(spread.key)
        if is_everywhere is None:
            offered = all(pool.template.table.settles(spread.key) for pool in self._problem.pools)
            is_everywhere = offered and all(spread.key in node.labels for node in self._problem.existing.nodes)
            self._is_everywhere[spread.key] = is_everywhere
        return is_everywhere and row not in self._rows_counted_over(spread.key)

    def _rows_counted_over(self, key: str) -> frozenset[int]:
        """Return the rows that a rule over this label counts."""
        if key not in self._counted_over:
            groups = {group.id: group for row in self._problem.rows for group in row.groups if group.key == key}
            counted = (self._problem.row_index.counted_by(group) for group in groups.values())
            self._counted_over[key] = frozenset().union(*counted)
        return self._counted_over[key]

    def _add_affinity(self, row: int, group: TopologyGroup, rules_of: Callable[[TopologyGroup], LabelRules]) -> None:
        cls = self._problem.rows[row]
        starts = group.counts(cls.namespace, cls.labels)
        rule = AffinityRule(
            group=group,
            counter=self.counts.counter(RuleKind.AFFINITY, group),
            starts=starts,
            reaches=self._domain_filter(row, group.key),
            within=lambda: self._available_domains(row, group.key),  # rarely needed, and expensive
        )
        rules_of(group).affinities.append(rule)

    def _add_anti_affinity(
        self, row: int, group: TopologyGroup, rules_of: Callable[[TopologyGroup], LabelRules]
    ) -> None:
        is_preferred = group.id in self._problem.rows[row].preferred_groups
        kind = RuleKind.PREFERRED_ANTI_AFFINITY if is_preferred else RuleKind.ANTI_AFFINITY
        cls = self._problem.rows[row]
        rule = AntiAffinityRule(
            group=group,
            counter=self.counts.counter(kind, group),
            own=int(group.counts(cls.namespace, cls.labels)),
            is_preferred=is_preferred,
        )
        rules = rules_of(group)
        rules.anti_affinities.append(rule)
        rules.binding |= self._binding and not is_preferred

    def _add_inverse(self, row: int, rules_of: Callable[[TopologyGroup], LabelRules]) -> None:
        """Add inverse anti-affinity: that of other rows and of running pods about the row's pods."""
        inverse = self._inverse.get(row, ())
        self._problem.effort.spend(_PER_INVERSE_RULE * len(inverse))
        cls = self._problem.rows[row]
        required = {group.id for group in cls.anti_affinities} - cls.preferred_groups
        for group, counter in inverse:
            rules = rules_of(group)
            own = int(group.id in required)
            rules.anti_affinities.append(AntiAffinityRule(group=group, counter=counter, own=own, is_inverse=True))
            rules.binding |= self._binding
            if not own:
                rules.preferring.append(self.counts.counter(RuleKind.ANTI_AFFINITY, group))
        for group, counter in self._inverse_of_running.get(row, ()):
            rule = AntiAffinityRule(group=group, counter=counter, own=0, is_inverse=True)
            rules_of(group).anti_affinities.append(rule)

    # -- domains ------------------------------------------------------------------------------------------------------

    def _term_ids(self, row: int) -> tuple[int, ...]:
        """Return the IDs of the node requirements of the row's class without preferences."""
        if row not in self._ids_of_terms:
            terms = self._problem.rows[row].strict_terms
            self._ids_of_terms[row] = tuple(self._interner.id_of(term) for term in terms)
        return self._ids_of_terms[row]

    def _node_filter(self, row: int, spread: TopologySpread) -> NodeFilter:
        """Return which nodes a spread considers, by its nodeAffinityPolicy and nodeTaintsPolicy.

        Restates: karpenter pkg/controllers/provisioning/scheduling/topologynodefilter.go `MakeTopologyNodeFilter`.
        """
        honors_terms = spread.honors_node_affinity and EMPTY not in self._problem.rows[row].strict_terms
        return NodeFilter(
            terms=self._term_ids(row) if honors_terms else None,
            tolerations=self._problem.rows[row].tolerations if spread.honors_node_taints else None,
        )

    def _domain_filter(self, row: int, key: str) -> Callable[[str], bool]:
        """Return a function that says whether the row's node selector and affinity allow a domain."""

        def reaches(domain: str) -> bool:
            requirements = self._requirements.get((row, key))
            if requirements is None:
                terms = self._problem.rows[row].strict_terms
                requirements = self._requirements[row, key] = tuple(dict.fromkeys(term.get(key) for term in terms))
            return any(requirement is None or requirement.has(domain) for requirement in requirements)

        return reaches

    def _eligible_domains(self, row: int, spread: TopologySpread, nodes: NodeFilter) -> frozenset[str]:
        """Return the domains for the minimum: those with an offering or a node that the pod accepts."""
        cls, terms = self._problem.rows[row], self._term_ids(row)
        case = (spread.key, nodes, terms, cls.tolerations)
        found = self._eligible.get(case)
        if found is None:
            if nodes.terms is None:  # only the label matters
                own = (Requirements({k: r for k, r in term.items() if k == spread.key}) for term in cls.strict_terms)
                terms = tuple(self._interner.id_of(term) for term in own)
            existing = filter(self._domain_filter(row, spread.key), self.counts.existing_domains(spread.key, nodes))
            launchable = self._launchable_domains(spread.key, cls.tolerations, terms)
            found = self._eligible[case] = frozenset((*existing, *launchable))
        return found

    def _available_domains(self, row: int, key: str) -> frozenset[str]:
        """Return the domains of existing and new nodes that the class accepts."""
        terms, tolerations = self._term_ids(row), self._problem.rows[row].tolerations
        case = (key, terms, tolerations)
        found = self._eligible.get(case)
        if found is None:
            existing = filter(self._domain_filter(row, key), self.counts.existing_domains(key, EVERY_NODE))
            found = self._eligible[case] = frozenset((*existing, *self._launchable_domains(key, tolerations, terms)))
        return found

    def _launchable_domains(self, key: str, tolerations: tuple[Toleration, ...], terms: Sequence[int]) -> Iterator[str]:
        """Yield the domains in which a node that meets one of these terms (IDs) can be launched; some repeatedly."""
        demand = NodeDemand(NodeConstraints(tuple(self._interner[term] for term in terms), tolerations))
        for pool in self._problem.pools:
            yield from (value for (value,) in pool.domains_for(demand, (key,)))

    # -- what later placements change ---------------------------------------------------------------------------------

    def is_over_max_skew(self, row: int, values: Mapping[str, str]) -> bool:
        """Whether the pods in these domains exceed the maxSkew of a topology spread that counts the row's own pods."""
        return any(
            rule.own
            and rule.counter.bound_before(rule.max_skew).get(values[rule.group.key], 0)
            > most_pods(rule.minimum, rule.max_skew, 0)
            for rule in self.of(row).spreads
        )

    def is_bindable(self, row: int, values: Mapping[str, str]) -> bool:
        """Whether kube-scheduler binds one more pod of the row to a node with these labels, as far as spread decides.

        It knows the domains of nodes only, not those in which nodes could be launched. A domain that launch decides is
        not checked.
        """
        return all(
            rule.counter.possible.get(values[rule.group.key], 0)
            <= most_pods(max(rule.minimum, rule.minimum_with_nodes()), rule.max_skew, rule.own)
            for rule in self.of(row).spreads
            if rule.group.key in values
        )

    def pods_to_bind_first(self, solution: PartialSolution) -> int:
        """Return how many pods kube-scheduler binds only before other pods that their topology spread counts.

        Once all pods are placed, these pods exceed their maxSkew over the domains with nodes, the only domains that
        kube-scheduler knows. `solution` must have been recorded. A domain that launch decides is not checked.
        """
        nodes = self._problem.existing.nodes
        on_existing = [(nodes[node].labels, pods) for node, pods in solution.on_existing.items()]
        on_new = [(known_labels(node), node.pods) for node in solution.new_nodes]
        launched = {key: {values[key] for values, _ in on_new if key in values} for key in self.keys}
        return sum(
            count
            for values, pods in (*on_existing, *on_new)
            for row, count in pods
            if any(
                rule.counter.counts.get(values.get(rule.group.key, ""), 0)
                > most_pods(rule.minimum_with_nodes(launched[rule.group.key]), rule.max_skew, 0)
                and rule.group.id not in self._problem.rows[row].preferred_groups
                for rule in self.of(row).spreads
            )
        )

    def why_excluded(self, row: int, domains: Sequence[Mapping[str, str]]) -> str:
        """Return as text the first rule that excludes all of these domains, or a general reason."""
        for rules in self.of(row).labels:
            values = sorted({by_key[rules.key] for by_key in domains if rules.key in by_key})
            shown = ", ".join(values)
            for spread in rules.spreads if values else ():
                ceiling, possible = spread.ceiling, spread.counter.possible
                if all(possible.get(value, 0) > ceiling.in_domain(value) for value in values):
                    few = ", as there are fewer domains than its minDomains" if spread.has_too_few_domains else ""
                    return (
                        f"unsatisfiable topology spread over {rules.key}: one more pod in any of {shown} exceeds its "
                        f"maxSkew of {spread.max_skew}{few}"
                    )
            for rule in rules.anti_affinities if values else ():
                if not any(map(rule.admits, values)):
                    return (
                        f"unsatisfiable pod anti-affinity: every domain of {rules.key} that it can reach is taken "
                        f"({shown})"
                    )
        return "unsatisfiable rules between pods: no domain that it can reach keeps all of them"

    def inverse_part(self, group: TopologyGroup, domain: str) -> CountPart:
        """Return the part of the counts that says that running pods keep those of a group off a domain."""
        return CountPart(self._owners[group.id].counts, domain, 1)
