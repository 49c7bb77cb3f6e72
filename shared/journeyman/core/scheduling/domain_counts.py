"""Counts running and planned pods in each topology domain, for zones and all other labels except the hostname.

`SpreadCounter` counts pods for topology spread constraints. Constraints that count the same pods on the same nodes
share one record, whatever their maxSkew. `DomainCounts` also counts for affinity and anti-affinity, and records every
pod that the scheduler places.

Restates: karpenter pkg/controllers/provisioning/scheduling/topologynodefilter.go, topology.go `countDomains`, `Record`,
topologygroup.go `domainMinCount`.
Differs: a domain without a node or an available offering that the pods accept does not count. Pods on nodes that are
being removed count in their domain, but not for the minimum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec import Struct, field

from journeyman.core.api import labels
from journeyman.core.api.objects import Toleration
from journeyman.core.scheduling.arrays import Bools
from journeyman.core.scheduling.domain_distribution import UNLIMITED, DomainCell, DomainRule
from journeyman.core.scheduling.nodepool_options import NodeConstraints, NodeDemand, pinned_requirements
from journeyman.core.scheduling.pod_classes import PodClass
from journeyman.core.scheduling.problem import PartialSolution, PlannedNode, SchedulingProblem
from journeyman.core.scheduling.requirements import EMPTY, Requirement, Requirements, from_labels
from journeyman.core.scheduling.topology import NodeMatch, Pin, Pins, TopologyGroup, TopologySpread

Counts = dict[str, int]

ANY_TAINT: Final = (Toleration(operator="Exists"),)
_EVERY_NODE: Final = NodeMatch(surely=True, possibly=True)


class _SpreadIdentity(Struct, frozen=True, cache_hash=True):
    """The group whose pods a constraint counts, and the requirements and tolerations that decide which nodes count."""

    group: bytes
    terms: tuple[Requirements, ...]
    tolerations: tuple[Toleration, ...]
    honors_node_affinity: bool
    honors_node_taints: bool


class SpreadCounts(Struct, eq=False):
    """The pods that equal constraints count, by domain.

    Attributes:
        identity: What the constraints count.
        key: The label of the domains.
        counts: Running and planned pods, for each domain that the minimum is taken over.
        running: Running pods, including those on nodes that are being removed.
        progress: The domains that have nodes.
        planned: Planned pods that have such a constraint themselves, by maxSkew.
    """

    identity: _SpreadIdentity
    key: str
    counts: Counts
    running: Counts
    progress: frozenset[str]
    planned: dict[int, Counts] = field(default_factory=dict)

    def is_short_of(self, min_domains: int) -> bool:
        """Return whether there are fewer domains than minDomains, in which case the minimum counts as 0."""
        return len(self.counts) < min_domains

    def floor(self, min_domains: int) -> int:
        """Return the number of pods in the emptiest domain."""
        return 0 if self.is_short_of(min_domains) else min(self.counts.values(), default=0)

    def existing_floor(self, min_domains: int, launched: Collection[str] = ()) -> int:
        """Return the number of pods in the emptiest domain that has nodes; `launched` domains get new nodes."""
        with_nodes = [pods for domain, pods in self.counts.items() if domain in self.progress or domain in launched]
        return min(with_nodes) if with_nodes and len(with_nodes) >= min_domains else 0

    def counted_against(self, max_skew: int) -> Counts:
        """Return, by domain, the pods counted against a constraint of that maxSkew.

        Planned pods with a larger maxSkew are omitted, because they may all be bound later.
        """
        pods_by_domain = dict(self.running)
        for skew, counts in self.planned.items():
            if skew <= max_skew:
                for value, pods in counts.items():
                    pods_by_domain[value] = pods_by_domain.get(value, 0) + pods
        return pods_by_domain

    def enter(self, value: str, pods: int, *, skew: int | None, surely: bool, possibly: bool) -> None:
        """Count planned pods; `skew` is the maxSkew of their own constraint of this identity, None without one."""
        if surely and value in self.counts:
            self.counts[value] += pods
        if possibly and skew is not None:
            planned = self.planned.setdefault(skew, {})
            planned[value] = planned.get(value, 0) + pods


class SpreadCounter:
    """Counts running pods for topology spread constraints, once for each identity."""

    def __init__(self, problem: SchedulingProblem) -> None:
        """Count the pods on the existing nodes of the problem."""
        nodes = problem.existing.all_nodes
        self._rows = problem.rows
        self._pools = problem.pools
        self._pod_counts = problem.existing.pod_counts
        self._all_nodes = nodes
        self._nodes = problem.existing.all_columns
        self._remaining = problem.existing.remaining
        self._counts_by_identity: dict[_SpreadIdentity, SpreadCounts] = {}
        self._matches: dict[object, NodeMatch] = {}
        self._nodes_by_case: dict[object, Bools] = {}

    @cached_property
    def _positions(self) -> Mapping[str, int]:
        return {node.name: n for n, node in enumerate(self._all_nodes)}

    @cached_property
    def _has_taints(self) -> bool:
        return any(s.template.node_pool.spec.template.spec.taints for s in self._pools) or any(
            node.taints for node in self._all_nodes
        )

    def spread_counts(self, spread: TopologySpread, row: PodClass) -> SpreadCounts:
        """Return the counts of a row's constraint."""
        identity = _SpreadIdentity(
            spread.group.id, row.strict_terms, row.tolerations, spread.honors_node_affinity, spread.honors_node_taints
        )
        counts = self._counts_by_identity.get(identity)
        if counts is None:
            counts = self._counts_by_identity[identity] = self._count(spread.group, identity)
        return counts

    def _count(self, group: TopologyGroup, identity: _SpreadIdentity) -> SpreadCounts:
        counting = self._counted_nodes(
            identity.terms if identity.honors_node_affinity else (EMPTY,),
            identity.tolerations if identity.honors_node_taints else None,
        )
        remaining = self.running(group, counting & self._remaining)
        with_nodes = self._existing_domains(group.key, counting & self._remaining)
        domains = self._domains(group.key, identity, with_nodes)
        return SpreadCounts(
            identity=identity,
            key=group.key,
            counts={domain: remaining.get(domain, 0) for domain in domains},
            running=self.running(group, counting),
            progress=with_nodes,
        )

    def _counted_nodes(self, terms: tuple[Requirements, ...], tolerations: tuple[Toleration, ...] | None) -> Bools:
        """Return for each node whether it meets one of the terms, and the tolerations cover its taints if they are given."""
        case = (terms, tolerations)
        counting = self._nodes_by_case.get(case)
        if counting is None:
            counting = self._nodes.meeting(terms)
            if tolerations is not None:
                counting &= self._nodes.accepted(tolerations, avoids_prefer_no_schedule=False)
            self._nodes_by_case[case] = counting
        return counting

    def running(self, group: TopologyGroup, nodes: Bools | None = None) -> Counts:
        """Return the running pods that a group counts, by domain, on these nodes (by default on all)."""
        return self.by_domain(group.key, self._pod_counts.by_node(group), nodes)

    def by_domain(self, key: str, by_node: Mapping[str, int], nodes: Bools | None = None) -> Counts:
        """Return pods, given by node name, by domain of these nodes (by default of all)."""
        pods_by_domain: Counts = {}
        if by_node:
            codes, values = self._nodes.label(key)
            for name, pods in by_node.items():
                position = self._positions[name]
                value = values[codes[position]]
                if value is not None and (nodes is None or nodes[position]):
                    pods_by_domain[value] = pods_by_domain.get(value, 0) + pods
        return dict(sorted(pods_by_domain.items()))

    def _existing_domains(self, key: str, nodes: Bools) -> frozenset[str]:
        """Return the domains of these nodes."""
        if not nodes.any():
            return frozenset()
        codes, values = self._nodes.label(key)
        domains = {values[code] for code in set(codes[nodes].tolist())}
        return frozenset(value for value in domains if value is not None)

    def _domains(self, key: str, identity: _SpreadIdentity, with_nodes: frozenset[str]) -> list[str]:
        """Return the domains that the minimum is taken over, sorted.

        These are the domains of available offerings and of counted nodes (`with_nodes`), as far as `identity` admits them.
        """
        demand = NodeDemand(NodeConstraints(identity.terms, identity.tolerations))
        domains = {value for pool in self._pools for (value,) in pool.domains_for(demand, (key,))} | with_nodes
        requirements = [term.get(key) for term in identity.terms]
        return sorted(
            value
            for value in domains
            if any(requirement is None or requirement.has(value) for requirement in requirements)
        )

    def counted_nodes(self, spread_counts: SpreadCounts) -> Bools:
        """Return for each node whether a constraint counts the pods on it."""
        identity = spread_counts.identity
        return self._counted_nodes(
            identity.terms if identity.honors_node_affinity else (EMPTY,),
            identity.tolerations if identity.honors_node_taints else None,
        )

    def lets_in(self, spread_counts: SpreadCounts, row: int, pins: Pins) -> NodeMatch:
        """Return whether the constraint counts nodes that meet the row's requirements and have the pins."""
        identity, pods = spread_counts.identity, self._rows[row]
        match = _EVERY_NODE
        if identity.honors_node_affinity and identity.terms is not pods.strict_terms and identity.terms != (EMPTY,):
            case = (identity, row, pins)
            if case not in self._matches:
                self._matches[case] = _match_nodes(identity.terms, pods.terms, pins)
            match = self._matches[case]
        if identity.honors_node_taints and self._has_taints and identity.tolerations != pods.tolerations:
            match = match._replace(surely=False)
        return match


def _match_nodes(counted_terms: Sequence[Requirements], terms: Sequence[Requirements], pins: Pins) -> NodeMatch:
    """Return whether a node that meets one of `terms` and has the pins meets one of `counted_terms`."""
    pinned = pinned_requirements(pins)
    node_terms = [term & pinned for term in terms]
    surely = all(any(_implies(node_term, term) for term in counted_terms) for node_term in node_terms)
    possibly = any(node_term.conflict(term) is None for node_term in node_terms for term in counted_terms)
    return NodeMatch(surely, possibly)


def _implies(requirements: Mapping[str, Requirement], term: Requirements) -> bool:
    """Return whether every node that meets the requirements also meets the term."""
    return all(
        key in requirements
        and requirements[key].present
        and requirements[key].intersection(wanted) == requirements[key]
        for key, wanted in term.items()
    )


class CountPart(NamedTuple):
    """The part of a count that the running pods of one node make up."""

    counts: Counts
    value: str
    pods: int


class _OwnSpread(NamedTuple):
    """A topology spread constraint of a row, with its counts."""

    spread: TopologySpread
    counts: SpreadCounts


class _GroupCounts(NamedTuple):
    """The pods that a group counts, by domain of the label `key`."""

    key: str
    counts: Counts


class _CountingSpread(NamedTuple):
    """A spread that counts a row's pods; `skew` is the maxSkew of the row's own constraint, None without one."""

    counts: SpreadCounts
    skew: int | None


class _CountedBy(Struct):
    """The counts that increase when pods of a row are placed."""

    groups: list[_GroupCounts] = field(default_factory=list)
    spreads: list[_CountingSpread] = field(default_factory=list)


class DomainCounts:
    """Counts pods by domain for every topology group of the problem, except those over hostnames."""

    def __init__(self, problem: SchedulingProblem) -> None:
        """Count the running pods; `enter` adds planned ones."""
        self._problem = problem
        self._rows = problem.rows
        self._spread_counter = SpreadCounter(problem)
        self._groups: dict[bytes, TopologyGroup] = {}
        self._affinity_counts: dict[bytes, Counts] = {}
        self._possible: dict[bytes, Counts] = {}
        self._repelling: dict[bytes, Counts] = {}
        self._own: list[list[_OwnSpread]] = [[] for _ in problem.rows]
        self._spreads_of_group: dict[bytes, list[SpreadCounts]] = {}
        self._counting: list[list[TopologyGroup]] = [[] for _ in problem.rows]
        self._counts_by_row: dict[int, _CountedBy] = {}
        self._is_everywhere: dict[str, bool] = {}
        for r, row in enumerate(problem.rows):
            self._register(r, row)
        for repelled in problem.repelled:
            if is_wide(repelled.group):
                self._register_group(repelled.group)
                self._repelling.setdefault(repelled.group.id, {}).update(dict.fromkeys(sorted(repelled.domains), 1))
        self._index_rows()

    # --- set-up

    def _register(self, r: int, row: PodClass) -> None:
        for spread in row.spreads:
            if is_wide(spread.group):
                spread_counts = self._spread_counter.spread_counts(spread, row)
                if self._is_idle(spread, spread_counts):
                    continue
                self._own[r].append(_OwnSpread(spread, spread_counts))
                counts_of_group = self._spreads_of_group.setdefault(spread.group.id, [])
                if spread_counts not in counts_of_group:
                    counts_of_group.append(spread_counts)
                self._groups.setdefault(spread.group.id, spread.group)
        for group in (*row.affinities, *row.anti_affinities):
            if is_wide(group):
                self._register_group(group)

    def _is_idle(self, spread: TopologySpread, spread_counts: SpreadCounts) -> bool:
        """Return whether a constraint can be ignored: it counts no pods, and every possible node has its label."""
        if self._problem.row_index.counted_by(spread.group) or any(spread_counts.running.values()):
            return False
        is_everywhere = self._is_everywhere.get(spread.key)
        if is_everywhere is None:
            offered = all(pool.template.table.settles(spread.key) for pool in self._problem.pools)
            is_everywhere = offered and all(spread.key in node.labels for node in self._problem.existing.nodes)
            self._is_everywhere[spread.key] = is_everywhere
        return is_everywhere

    def _register_group(self, group: TopologyGroup) -> None:
        self._groups.setdefault(group.id, group)
        if group.id not in self._affinity_counts:
            expected = self._problem.existing.expected_counts.by_node(group)
            self._affinity_counts[group.id] = self._spread_counter.by_domain(group.key, expected)

    def _index_rows(self) -> None:
        for group in self._groups.values():
            for r in self._problem.row_index.counted_by(group):
                self._counting[r].append(group)

    # --- queries

    @property
    def keys(self) -> frozenset[str]:
        """Return the labels of all groups."""
        return frozenset(group.key for group in self._groups.values())

    def counting(self, row: int) -> Sequence[TopologyGroup]:
        """Return the groups that count the row's pods."""
        return self._counting[row]

    def spreads(self, row: int) -> list[TopologySpread]:
        """Return the row's own spread constraints, without those that can be ignored."""
        return [spread for spread, _ in self._own[row]]

    def pods_by_domain(self, group: TopologyGroup) -> Mapping[str, int]:
        """Return the pods that the group of an affinity counts, by domain: a view that later entries change."""
        return MappingProxyType(self._affinity_counts[group.id])

    def rules(self, row: int) -> list[DomainRule]:
        """Return the row's own rules, the rules of other pods about it, and the counts that it should keep level.

        Their counts are views that later entries change.
        """
        counted = {group.id for group in self._counting[row]}
        rules = [
            DomainRule(
                key=spread.key,
                counts=MappingProxyType(spread_counts.counts),
                rivals=spread_counts.counted_against(spread.max_skew),
                skew=spread.max_skew,
                step=int(spread.group.id in counted),
                from_zero=spread_counts.is_short_of(spread.min_domains),
            )
            for spread, spread_counts in self._own[row]
        ]
        for group in self._rows[row].anti_affinities:
            if is_wide(group):
                total = _sum(self._affinity_counts[group.id], self._possible.get(group.id))
                rules.append(_exclusion_rule(group.key, total, step=int(group.id in counted)))
        own = {spread.group.id for spread, _ in self._own[row]}
        for group in self._counting[row]:
            repelling = self._repelling.get(group.id)
            if repelling:
                rules.append(_exclusion_rule(group.key, repelling, step=0))
            if group.id not in own and group.id in self._spreads_of_group:
                counts = MappingProxyType(self._spreads_of_group[group.id][0].counts)
                rules.append(DomainRule(key=group.key, counts=counts, rivals=counts, skew=None, step=1))
        return rules

    def is_repelled(self, row: int, key: str) -> bool:
        """Return whether the anti-affinity of running or planned pods excludes a domain of this label for the row."""
        groups = (group for group in self._counting[row] if group.key == key)
        return any(pods > 0 for group in groups for pods in self._repelling.get(group.id, {}).values())

    def is_over(self, row: int, values: Mapping[str, str]) -> bool:
        """Return whether the pods in these domains exceed the maxSkew of one of the row's spreads."""
        counted = {group.id for group in self._counting[row]}
        for spread, spread_counts in self._own[row]:
            if spread.group.id in counted:
                pods = spread_counts.counted_against(spread.max_skew).get(values[spread.key], 0)
                if pods - spread_counts.floor(spread.min_domains) > spread.max_skew:
                    return True
        return False

    def is_out_of_place(self, row: int, values: Mapping[str, str]) -> bool:
        """Return whether pods of the row that were placed early now exceed the maxSkew of one of their spreads.

        If higher, the minimum over the domains with nodes applies, because kube-scheduler knows no other domains.
        All pods placed later count, because they may be bound first. A domain that launch decides is not checked.
        """
        for spread, spread_counts in self._own[row]:
            pods = spread_counts.counted_against(UNLIMITED).get(values.get(spread.key, ""), 0)
            floor = max(spread_counts.floor(spread.min_domains), spread_counts.existing_floor(spread.min_domains))
            if pods - floor > spread.max_skew:
                return True
        return False

    def pods_to_bind_first(self, solution: PartialSolution) -> int:
        """Return how many pods kube-scheduler binds only before other pods that their topology spread counts.

        Once all pods are placed, these pods exceed their maxSkew over the domains with nodes, the only domains that
        kube-scheduler knows. `solution` must have been entered. A domain that launch decides is not checked.
        """
        nodes = self._problem.existing.nodes
        on_existing = [(nodes[node].labels, pods) for node, pods in solution.on_existing.items()]
        on_new = [(_known_labels(node), node.pods) for node in solution.new_nodes]
        launched = {key: {values[key] for values, _ in on_new if key in values} for key in self.keys}
        return sum(
            count
            for values, pods in (*on_existing, *on_new)
            for row, count in pods
            if self._exceeds_when_bound(row, values, launched)
        )

    def _exceeds_when_bound(self, row: int, values: Mapping[str, str], launched: Mapping[str, Collection[str]]) -> bool:
        for spread, spread_counts in self._own[row]:
            pods = spread_counts.counts.get(values.get(spread.key, ""), 0)
            floor = spread_counts.existing_floor(spread.min_domains, launched[spread.key])
            if pods - floor > spread.max_skew and spread.group.id not in self._rows[row].preferred_groups:
                return True
        return False

    def why_blocked(self, row: int, cells: Sequence[DomainCell]) -> str:
        """Return, as text, the first rule that excludes all of these cells; if no single rule does, a general reason."""
        rules = self.rules(row)
        for rule in rules:
            values = sorted({cell.values[rule.key] for cell in cells if rule.key in cell.values})
            if values and not any(rule.admits(value) for value in values):
                shown = ", ".join(values)
                if rule.is_ban:
                    return f"unsatisfiable pod anti-affinity: every domain of {rule.key} that it can reach is taken ({shown})"
                few = ", as there are fewer domains than its minDomains" if rule.from_zero else ""
                return (
                    f"unsatisfiable topology spread over {rule.key}: one more pod in any of {shown} exceeds its "
                    f"maxSkew of {rule.skew}{few}"
                )
        return "unsatisfiable rules between pods: no domain that it can reach keeps all of them"

    def domains_of(self, node: PlannedNode, key: str) -> list[str]:
        """Return the domains in which a planned node may be launched, sorted."""
        demand = NodeDemand(NodeConstraints((node.requirements,), ANY_TAINT))
        return sorted(value for (value,) in self._problem.pools[node.pool].domains_for(demand, (key,)))

    # --- removals

    def parts_by_node(self) -> Mapping[str, list[CountPart]]:
        """Return, by node name, what the node's running pods add to the counts; nodes without any are omitted."""
        nodes, parts = self._problem.existing, dict[str, list[CountPart]]()
        positions = {node.name: position for position, node in enumerate(nodes.all_nodes)}

        def add_part(name: str, counts: Counts, value: str | None, pods: int) -> None:
            if value is not None and value in counts:
                parts.setdefault(name, []).append(CountPart(counts, value, pods))

        for group_id, group in self._groups.items():
            by_node, expected = nodes.pod_counts.by_node(group), nodes.expected_counts.by_node(group)
            if not expected:
                continue
            codes, values = nodes.all_columns.label(group.key)
            counted = [(c, self._spread_counter.counted_nodes(c)) for c in self._spreads_of_group.get(group_id, ())]
            for name, pods in expected.items():
                add_part(name, self._affinity_counts.get(group_id, {}), values[codes[positions[name]]], pods)
            for name, pods in by_node.items():
                position = positions[name]
                value = values[codes[position]]
                for spread_counts, counts_node in counted:
                    if counts_node[position]:
                        add_part(name, spread_counts.running, value, pods)
                        if nodes.remaining[position]:
                            add_part(name, spread_counts.counts, value, pods)
        return parts

    def repelling(self, group: TopologyGroup) -> Counts:
        """Return by domain whether the anti-affinity of running or placed pods excludes it: a view that may be changed."""
        return self._repelling.setdefault(group.id, {})

    # --- entries

    def enter(self, row: int, values: Mapping[str, str], pods: int, pins: Pins, *, certain: bool = True) -> None:
        """Count pods of the row on nodes of these domains.

        Args:
            row: The row of the pods.
            values: The domains, by label.
            pods: The number of pods; a negative number removes them.
            pins: The known labels of their nodes.
            certain: Whether the known labels show that the nodes meet the row's requirements.
        """
        counted_by = self._counts_for(row)
        for key, counts in counted_by.groups:
            _add(counts, values.get(key), pods)
        for spread_counts, skew in counted_by.spreads:
            value = values.get(spread_counts.key)
            if value is not None:
                match = self._spread_counter.lets_in(spread_counts, row, pins)
                spread_counts.enter(value, pods, skew=skew, surely=match.surely and certain, possibly=match.possibly)

    def enter_solution(self, solution: PartialSolution) -> None:
        """Record all pods that a solution has placed."""
        nodes = self._problem.existing.nodes
        for node, entries in sorted(solution.on_existing.items()):
            for row, count in entries:
                values = nodes[node].labels
                certain = bool(nodes[node].provider_id) or self._suits(row, values)
                self.enter(row, values, count, _pins(values), certain=certain)
        for new_node in solution.new_nodes:
            known_labels = _known_labels(new_node)
            undecided = self.keys - known_labels.keys()
            for row, count in new_node.pods:
                self.enter(row, known_labels, count, _pins(known_labels))
                for key in sorted(undecided):
                    self.enter_possible(row, key, self.domains_of(new_node, key), count)

    def _suits(self, row: int, values: Mapping[str, str]) -> bool:
        """Return whether nodes with these labels meet the row's strict terms; an unlaunched claim's labels may change."""
        offered = from_labels(values)
        return any(offered.is_compatible(term) for term in self._rows[row].strict_terms)

    def enter_possible(self, row: int, key: str, domains: Iterable[str], pods: int) -> None:
        """Count pods of the row in each domain that they may end up in, so that anti-affinity avoids all of them."""
        counting = [g for g in self._counting[row] if g.key == key]
        repelling = [
            g for g in self._rows[row].anti_affinities if g.key == key and g.id not in self._rows[row].preferred_groups
        ]
        for domain in domains:
            for group in counting:
                _add(self._possible.setdefault(group.id, {}), domain, pods)
            for group in repelling:
                _add(self._repelling.setdefault(group.id, {}), domain, pods)

    def _counts_for(self, row: int) -> _CountedBy:
        counted_by = self._counts_by_row.get(row)
        if counted_by is None:
            counted_by = self._counts_by_row[row] = self._find_counts(row)
        return counted_by

    def _find_counts(self, row: int) -> _CountedBy:
        counted_by, pods = _CountedBy(), self._rows[row]
        own: dict[bytes, int] = {}
        for spread, _ in self._own[row]:
            own[spread.group.id] = min(spread.max_skew, own.get(spread.group.id, spread.max_skew))
        for group in self._counting[row]:
            if group.id in self._affinity_counts:
                counted_by.groups.append(_GroupCounts(group.key, self._affinity_counts[group.id]))
            skew = own.get(group.id)
            counted_by.spreads += [_CountingSpread(counts, skew) for counts in self._spreads_of_group.get(group.id, ())]
        for group in pods.anti_affinities:
            if is_wide(group) and group.id not in pods.preferred_groups:
                counted_by.groups.append(_GroupCounts(group.key, self._repelling.setdefault(group.id, {})))
        return counted_by


def _known_labels(node: PlannedNode) -> dict[str, str]:
    """Return the labels for which the requirements of a new node allow a single value, with that value."""
    singles = {key: r.single for key, r in node.requirements.items()}
    return {key: value for key, value in singles.items() if value is not None}


def _pins(values: Mapping[str, str]) -> Pins:
    return tuple(map(Pin._make, sorted(values.items())))


def is_wide(group: TopologyGroup) -> bool:
    """Return whether the domains of a group can have more than one node, that is, its key is not the hostname."""
    return group.key != labels.HOSTNAME


def _exclusion_rule(key: str, counts: Counts, *, step: int) -> DomainRule:
    view = MappingProxyType(counts)
    return DomainRule(key=key, counts=view, rivals=view, skew=step, step=step, from_zero=True, is_ban=True)


def _add(counts: Counts, value: str | None, pods: int) -> None:
    if value is not None:
        counts[value] = counts.get(value, 0) + pods


def _sum(first: Counts, second: Counts | None) -> Counts:
    if not second:
        return first
    return {value: first.get(value, 0) + second.get(value, 0) for value in {**first, **second}}
