"""Counts the pods in each topology domain (zones and all labels but the hostname), running and planned.

`SpreadCounter` counts what topology spread constraints see; constraints that count the same pods on the same nodes
share one record, whatever their maxSkew. `DomainCounts` adds affinity and anti-affinity, and records every pod that is
placed.

Restates: karpenter pkg/controllers/provisioning/scheduling/topologynodefilter.go, topology.go `countDomains`, `Record`,
topologygroup.go `domainMinCount`.
Differs: a domain that cannot be had (no offering there that the pods accept, no node) does not count. Pods on nodes
that are being removed count where they are, and not for the minimum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct, field

from journeyman.core.api import labels
from journeyman.core.api.objects import Toleration
from journeyman.core.scheduling.arrays import Bools
from journeyman.core.scheduling.domain_distribution import UNLIMITED, DomainCell, DomainRule
from journeyman.core.scheduling.nodepool_options import NodeConstraints, NodeDemand
from journeyman.core.scheduling.pod_classes import PodClass
from journeyman.core.scheduling.problem import PartialSolution, PlannedNode, SchedulingProblem
from journeyman.core.scheduling.requirements import EMPTY, Requirement, Requirements, from_labels
from journeyman.core.scheduling.topology import LabelIndex, Pins, TopologyGroup, TopologySpread

Counts = dict[str, int]

ANY_TAINT: Final = (Toleration(operator="Exists"),)


class _SpreadIdentity(Struct, frozen=True, cache_hash=True):
    """Whom a constraint counts, and for whom: pods of these requirements and tolerations."""

    group: bytes
    terms: tuple[Requirements, ...]
    tolerations: tuple[Toleration, ...]
    honors_node_affinity: bool
    honors_node_taints: bool


class SpreadCounts(Struct, eq=False):
    """The pods that some constraints count, by domain.

    `counts` are all of them, over the domains that the emptiest is looked for in. `running` are those that run, leaving
    nodes included; `planned` those that came with such a constraint themselves, by its maxSkew. `progress` are the
    domains in which nodes stand.
    """

    identity: _SpreadIdentity
    key: str
    counts: Counts
    running: Counts
    progress: frozenset[str]
    planned: dict[int, Counts] = field(default_factory=dict)

    def is_short_of(self, min_domains: int) -> bool:
        """Whether there are fewer domains than a constraint wants, so that the emptiest counts as empty."""
        return len(self.counts) < min_domains

    def floor(self, min_domains: int) -> int:
        """How many pods the emptiest domain has."""
        return 0 if self.is_short_of(min_domains) else min(self.counts.values(), default=0)

    def standing_floor(self, min_domains: int) -> int:
        """The same of the domains in which nodes stand."""
        found = [pods for domain, pods in self.counts.items() if domain in self.progress]
        return min(found) if found and len(found) >= min_domains else 0

    def held_against(self, max_skew: int) -> Counts:
        """The pods that are counted against one of that maxSkew, by domain; those that bear more may all come after it."""
        found = dict(self.running)
        for skew, counts in self.planned.items():
            if skew <= max_skew:
                for value, pods in counts.items():
                    found[value] = found.get(value, 0) + pods
        return found

    def enter(self, value: str, pods: int, *, skew: int | None, surely: bool, maybe: bool) -> None:
        """Count planned pods; `skew` is that of their own such constraint, None if they have none."""
        if surely and value in self.counts:
            self.counts[value] += pods
        if maybe and skew is not None:
            planned = self.planned.setdefault(skew, {})
            planned[value] = planned.get(value, 0) + pods


class SpreadCounter:
    """Finds what constraints count, each distinct one once."""

    def __init__(self, problem: SchedulingProblem) -> None:
        """Nodes as they stand."""
        nodes = problem.existing.standing
        self._rows = problem.rows
        self._pools = problem.pools
        self._census = problem.existing.pod_counts
        self._standing = nodes
        self._nodes = problem.existing.standing_columns
        self._staying = problem.existing.staying
        self._found: dict[_SpreadIdentity, SpreadCounts] = {}
        self._judged: dict[object, tuple[bool, bool]] = {}

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {node.name: n for n, node in enumerate(self._standing)}

    @cached_property
    def _has_taints(self) -> bool:
        return any(s.template.node_pool.spec.template.spec.taints for s in self._pools) or any(
            node.taints for node in self._standing
        )

    def spread_counts(self, spread: TopologySpread, row: PodClass) -> SpreadCounts:
        """Return what a row's constraint counts."""
        identity = _SpreadIdentity(
            spread.group.id, row.strict_terms, row.tolerations, spread.honors_node_affinity, spread.honors_node_taints
        )
        found = self._found.get(identity)
        if found is None:
            found = self._found[identity] = self._count(spread.group, identity)
        return found

    def _count(self, group: TopologyGroup, identity: _SpreadIdentity) -> SpreadCounts:
        counting: Bools = np.ones(len(self._standing), dtype=bool)
        if identity.honors_node_affinity:
            counting &= self._nodes.meeting(identity.terms)
        if identity.honors_node_taints:
            counting &= self._nodes.accepted(identity.tolerations, avoids_prefer_no_schedule=False)
        staying = self.running(group, counting & self._staying)
        here = self._standing_in(group.key, counting & self._staying)
        domains = self._domains(group.key, identity, here)
        return SpreadCounts(
            identity=identity,
            key=group.key,
            counts={domain: staying.get(domain, 0) for domain in domains},
            running=self.running(group, counting),
            progress=here,
        )

    def running(self, group: TopologyGroup, nodes: Bools | None = None) -> Counts:
        """The running pods that a group counts, by domain, on some of the nodes (all of them by default)."""
        found: Counts = {}
        by_node = self._census.by_node(group)
        if by_node:
            codes, values = self._nodes.label(group.key)
            for name, pods in by_node.items():
                place = self._places[name]
                value = values[codes[place]]
                if value is not None and (nodes is None or nodes[place]):
                    found[value] = found.get(value, 0) + pods
        return dict(sorted(found.items()))

    def _standing_in(self, key: str, nodes: Bools) -> frozenset[str]:
        """The domains of these nodes."""
        if not nodes.any():
            return frozenset()
        codes, values = self._nodes.label(key)
        here = {values[code] for code in set(codes[nodes].tolist())}
        return frozenset(value for value in here if value is not None)

    def _domains(self, key: str, identity: _SpreadIdentity, here: frozenset[str]) -> list[str]:
        """Where the emptiest domain is looked for: domains that can be had, and those of nodes that count, `here`."""
        demand = NodeDemand(NodeConstraints(identity.terms, identity.tolerations))
        found = {value for pool in self._pools for (value,) in pool.domains_for(demand, (key,))} | here
        admitted = [term.get(key) for term in identity.terms]
        return sorted(value for value in found if any(wanted is None or wanted.has(value) for wanted in admitted))

    def lets_in(self, spread_counts: SpreadCounts, row: int, pins: Pins) -> tuple[bool, bool]:
        """Whether the nodes that a row's pods go to count: surely, possibly."""
        identity, pods = spread_counts.identity, self._rows[row]
        surely = maybe = True
        if identity.honors_node_affinity and identity.terms is not pods.strict_terms and identity.terms != (EMPTY,):
            case = (identity, row, pins)
            if case not in self._judged:
                self._judged[case] = _judge(identity.terms, pods.terms, pins)
            surely, maybe = self._judged[case]
        if identity.honors_node_taints and self._has_taints and identity.tolerations != pods.tolerations:
            surely = False
        return surely, maybe


def _judge(wanted: Sequence[Requirements], terms: Sequence[Requirements], pins: Pins) -> tuple[bool, bool]:
    """Whether a node for one of `terms` with these labels meets one of those `wanted`: surely, possibly."""
    fixed = from_labels(dict(pins))
    known = [term & fixed for term in terms]
    surely = all(any(_implies(node, term) for term in wanted) for node in known)
    maybe = any(node.conflict(term) is None for node in known for term in wanted)
    return surely, maybe


def _implies(known: Mapping[str, Requirement], wanted: Requirements) -> bool:
    """Whether whatever meets the one meets the other."""
    return all(
        key in known and known[key].present and known[key].intersection(wanted_values) == known[key]
        for key, wanted_values in wanted.items()
    )


class _CountedBy(Struct):
    """Where a row's pods are entered: (key, counts), and the spreads that count them, each with the row's own skew."""

    counts: list[tuple[str, Counts]] = field(default_factory=list)
    spreads: list[tuple[SpreadCounts, int | None]] = field(default_factory=list)


class DomainCounts:
    """Counts by domain for every group of the problem over a label other than the host name."""

    def __init__(self, problem: SchedulingProblem) -> None:
        """All running pods entered, and none of those to be placed."""
        self._problem = problem
        self._rows = problem.rows
        self._spread_counter = SpreadCounter(problem)
        self._groups: dict[bytes, TopologyGroup] = {}
        self._affinity_counts: dict[bytes, Counts] = {}
        self._possible: dict[bytes, Counts] = {}
        self._repelling: dict[bytes, Counts] = {}
        self._own: list[list[tuple[TopologySpread, SpreadCounts]]] = [[] for _ in problem.rows]
        self._spreads_of_group: dict[bytes, list[SpreadCounts]] = {}
        self._counting: list[list[TopologyGroup]] = [[] for _ in problem.rows]
        self._entries: dict[int, _CountedBy] = {}
        self._index = LabelIndex(self._rows)
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
                found = self._spread_counter.spread_counts(spread, row)
                if self._is_idle(spread, found):
                    continue
                self._own[r].append((spread, found))
                known = self._spreads_of_group.setdefault(spread.group.id, [])
                if found not in known:
                    known.append(found)
                self._groups.setdefault(spread.group.id, spread.group)
        for group in (*row.affinities, *row.anti_affinities):
            if is_wide(group):
                self._register_group(group)

    def _is_idle(self, spread: TopologySpread, found: SpreadCounts) -> bool:
        """Whether a constraint that counts no pods can be forgotten: whatever node its pods go to has the label."""
        if self._index.counted_by(spread.group) or any(found.running.values()):
            return False
        known = self._is_everywhere.get(spread.key)
        if known is None:
            offered = all(pool.template.table.settles(spread.key) for pool in self._problem.pools)
            known = offered and all(spread.key in node.labels for node in self._problem.existing.nodes)
            self._is_everywhere[spread.key] = known
        return known

    def _register_group(self, group: TopologyGroup) -> None:
        self._groups.setdefault(group.id, group)
        if group.id not in self._affinity_counts:
            self._affinity_counts[group.id] = self._spread_counter.running(group)

    def _index_rows(self) -> None:
        for group in self._groups.values():
            for r in self._index.counted_by(group):
                self._counting[r].append(group)

    # --- problems

    @property
    def keys(self) -> frozenset[str]:
        """The labels that any rule is about."""
        return frozenset(group.key for group in self._groups.values())

    def counting(self, row: int) -> Sequence[TopologyGroup]:
        """The groups that count the row's pods."""
        return self._counting[row]

    def spreads(self, row: int) -> list[TopologySpread]:
        """The row's own constraints over these labels, as far as they count any pods."""
        return [spread for spread, _ in self._own[row]]

    def pods_by_domain(self, group: TopologyGroup) -> Mapping[str, int]:
        """The pods that a group of an affinity counts, by domain."""
        return self._affinity_counts[group.id]

    def rules(self, row: int) -> list[DomainRule]:
        """The rules of the row's own, those that others have about it, and the counts it should keep level."""
        counted = {group.id for group in self._counting[row]}
        found = [
            DomainRule(
                key=spread.key,
                counts=spread_counts.counts,
                rivals=spread_counts.held_against(spread.max_skew),
                skew=spread.max_skew,
                step=int(spread.group.id in counted),
                from_zero=spread_counts.is_short_of(spread.min_domains),
            )
            for spread, spread_counts in self._own[row]
        ]
        for group in self._rows[row].anti_affinities:
            if is_wide(group):
                counts = _sum(self._affinity_counts[group.id], self._possible.get(group.id))
                found.append(_ban(group.key, counts, step=int(group.id in counted)))
        own = {spread.group.id for spread, _ in self._own[row]}
        for group in self._counting[row]:
            held = self._repelling.get(group.id)
            if held:
                found.append(_ban(group.key, held, step=0))
            if group.id not in own and group.id in self._spreads_of_group:
                counts = self._spreads_of_group[group.id][0].counts
                found.append(DomainRule(key=group.key, counts=counts, rivals=counts, skew=None, step=1))
        return found

    def is_over(self, row: int, values: Mapping[str, str]) -> bool:
        """Whether the row's pods in these domains are too many for one of its spreads, now that all are placed."""
        counted = {group.id for group in self._counting[row]}
        for spread, spread_counts in self._own[row]:
            if spread.group.id in counted:
                held = spread_counts.held_against(spread.max_skew).get(values[spread.key], 0)
                if held - spread_counts.floor(spread.min_domains) > spread.max_skew:
                    return True
        return False

    def is_out_of_place(self, row: int, values: Mapping[str, str]) -> bool:
        """Whether the row's pods, who came to these domains before all others, are not level any more.

        They are held to the domains in which nodes stand if these have more: kube-scheduler knows of no others. And all
        who were placed later may be there first. A domain that is decided at launch is not judged before.
        """
        for spread, spread_counts in self._own[row]:
            held = spread_counts.held_against(UNLIMITED).get(values.get(spread.key, ""), 0)
            floor = max(spread_counts.floor(spread.min_domains), spread_counts.standing_floor(spread.min_domains))
            if held - floor > spread.max_skew:
                return True
        return False

    def why_blocked(self, row: int, cells: Sequence[DomainCell]) -> str:
        """The first rule that closes all of these cells alone, as text; or that all of them together do."""
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

    def domains_of(self, new_nodes: PlannedNode, key: str) -> list[str]:
        """The domains in which a node that is yet to be opened may end."""
        demand = NodeDemand(NodeConstraints((new_nodes.requirements,), ANY_TAINT))
        return sorted(value for (value,) in self._problem.pools[new_nodes.pool].domains_for(demand, (key,)))

    # --- entries

    def enter(self, row: int, values: Mapping[str, str], pods: int, pins: Pins, *, certain: bool = True) -> None:
        """Count pods of the row (take them back if fewer than 0) on nodes of these domains.

        Args:
            row: Whose pods.
            values: The domains, by label.
            pods: How many.
            pins: What is known of their nodes' labels.
            certain: Their nodes suit them by what is known already.
        """
        entries = self._entries_of(row)
        for key, counts in entries.counts:
            _add(counts, values.get(key), pods)
        for spread_counts, skew in entries.spreads:
            value = values.get(spread_counts.key)
            if value is not None:
                surely, maybe = self._spread_counter.lets_in(spread_counts, row, pins)
                spread_counts.enter(value, pods, skew=skew, surely=surely and certain, maybe=maybe)

    def enter_solution(self, solution: PartialSolution) -> None:
        """Record all pods that a solution has placed."""
        nodes = self._problem.existing.nodes
        for node, entries in sorted(solution.on_existing.items()):
            for row, count in entries:
                values = nodes[node].labels
                certain = bool(nodes[node].provider_id) or self._suits(row, values)
                self.enter(row, values, count, tuple(sorted(values.items())), certain=certain)
        for new_nodes in solution.new_nodes:
            singles = {key: r.single for key, r in new_nodes.requirements.items()}
            known = {key: value for key, value in singles.items() if value is not None}
            open_keys = self.keys - known.keys()
            for row, count in new_nodes.pods:
                self.enter(row, known, count, tuple(sorted(known.items())))
                for key in sorted(open_keys):
                    self.enter_possible(row, key, self.domains_of(new_nodes, key), count)

    def _suits(self, row: int, values: Mapping[str, str]) -> bool:
        """Whether these labels suit the row; those of a claim to be launched are not final yet."""
        offered = from_labels(values)
        return any(offered.compatible(term) is None for term in self._rows[row].strict_terms)

    def enter_possible(self, row: int, key: str, domains: Iterable[str], pods: int) -> None:
        """Pods of the row whose domain is one of several: pods that avoid them avoid all of these."""
        counting = [g for g in self._counting[row] if g.key == key and g.id in self._affinity_counts]
        holding = [
            g for g in self._rows[row].anti_affinities if g.key == key and g.id not in self._rows[row].preferred_groups
        ]
        for domain in domains:
            for group in counting:
                _add(self._possible.setdefault(group.id, {}), domain, pods)
            for group in holding:
                _add(self._repelling.setdefault(group.id, {}), domain, pods)

    def _entries_of(self, row: int) -> _CountedBy:
        found = self._entries.get(row)
        if found is None:
            found = self._entries[row] = self._find_entries(row)
        return found

    def _find_entries(self, row: int) -> _CountedBy:
        found, pods = _CountedBy(), self._rows[row]
        own: dict[bytes, int] = {}
        for spread, _ in self._own[row]:
            own[spread.group.id] = min(spread.max_skew, own.get(spread.group.id, spread.max_skew))
        for group in self._counting[row]:
            if group.id in self._affinity_counts:
                found.counts.append((group.key, self._affinity_counts[group.id]))
            found.spreads += [(s, own.get(group.id)) for s in self._spreads_of_group.get(group.id, ())]
        for group in pods.anti_affinities:
            if is_wide(group) and group.id not in pods.preferred_groups:
                found.counts.append((group.key, self._repelling.setdefault(group.id, {})))
        return found


def is_wide(group: TopologyGroup) -> bool:
    """Whether its domains are more than one node each."""
    return group.key != labels.HOSTNAME


def _ban(key: str, counts: Mapping[str, int], *, step: int) -> DomainRule:
    return DomainRule(key=key, counts=counts, rivals=counts, skew=step, step=step, from_zero=True, is_ban=True)


def _add(counts: Counts, value: str | None, pods: int) -> None:
    if value is not None:
        counts[value] = counts.get(value, 0) + pods


def _sum(first: Counts, second: Counts | None) -> Counts:
    if not second:
        return first
    return {value: first.get(value, 0) + second.get(value, 0) for value in {**first, **second}}
