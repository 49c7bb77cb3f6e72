"""Counts the pods that each topology rule sees, by domain or by node, while pods are placed.

A counter belongs to a group of pods, a kind of rule, and the nodes whose pods it counts. Equal rules share a counter,
whatever their maxSkew. `TopologyCounts` is the only place that changes counts: each pod that is placed, on an existing
node, on a new node, or in domains whose nodes are not chosen yet, is recorded there; a negative number of pods undoes
that.

Restates: karpenter pkg/controllers/provisioning/scheduling/topologygroup.go `TopologyGroup`, topology.go
`countDomains`, `Record`, topologynodefilter.go `Matches`.
Differs: for required anti-affinity, a pod counts in every domain of its node's offerings; Karpenter uses only the
NodeClaim's requirements, and counts a node without such a requirement in no domain. For preferred anti-affinity, pods
count as in Karpenter, because the preference would otherwise cost more. A spread counts its own pods on nodes that may
suit it; Karpenter counts them only if the NodeClaim's requirements say so. For affinity, pods on a node with an
undecided domain count once it is decided; in Karpenter they count once the node exists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
from msgspec import Struct, field

from journeyman.core.api import labels
from journeyman.core.api.objects import Toleration
from journeyman.core.scheduling.arrays import Bools
from journeyman.core.scheduling.nodepool_options import decided_requirements
from journeyman.core.scheduling.offering_masks import CONFLICT, OfferingMasks
from journeyman.core.scheduling.offerings import reservation_of
from journeyman.core.scheduling.requirements import Requirement, Requirements
from journeyman.core.scheduling.topology import DecidedLabels, NodeMatch, TopologyGroup, domain_of
from journeyman.core.state.taints import untolerated

if TYPE_CHECKING:
    from journeyman.core.scheduling.problem import PartialSolution, PlannedNode, SchedulingProblem

Counts = dict[str, int]
"""Pods by domain."""

_COUNTS: Final = NodeMatch(is_certain=True, is_possible=True)
_DOES_NOT_COUNT: Final = NodeMatch(is_certain=False, is_possible=False)
_SET_AFTER_PASS: Final = frozenset((labels.CAPACITY_TYPE, labels.RESERVATION_ID))
"""Labels that Karpenter adds to the requirements of a NodeClaim with a reservation only after the pass."""


class NodeFilter(Struct, frozen=True, cache_hash=True):
    """The nodes that a spread counts: those that meet one of `terms` (IDs; None: all) without untolerated taints."""

    terms: tuple[int, ...] | None = None
    tolerations: tuple[Toleration, ...] | None = None


EVERY_NODE: Final = NodeFilter()


class RuleKind(Enum):
    """The kinds of rules, which count pods on new nodes differently."""

    SPREAD = "topology spread"
    AFFINITY = "pod affinity"
    ANTI_AFFINITY = "pod anti-affinity"
    PREFERRED_ANTI_AFFINITY = "preferred pod anti-affinity"


class NodeOfferings(Protocol):
    """A new node, as far as its labels are decided."""

    @property
    def masks(self) -> OfferingMasks:
        """The NodePool."""

    @property
    def requirements_id(self) -> int:
        """The ID of its NodeClaim's requirements."""

    @property
    def offerings(self) -> int:
        """The offerings with which it may be launched, as a mask."""


class DomainCounter(Struct, eq=False):
    """Counts pods by domain of a node label other than the hostname.

    Attributes:
        key: The label.
        kind: The kind of rule.
        nodes: The nodes whose pods count.
        counts: The pods on nodes that certainly match `nodes`.
        possible: The pods on nodes that may match, and on nodes that are being removed.
        undecided: For affinity, the pods on new nodes with several possible domains, by candidate; they count once the
            domain is decided.
    """

    key: str
    kind: RuleKind
    nodes: NodeFilter = EVERY_NODE
    counts: Counts = field(default_factory=dict)
    possible: Counts = field(default_factory=dict)
    undecided: dict[int, int] = field(default_factory=dict)

    def add(self, domains: Sequence[str], pods: int, *, is_certain: bool, own_skew: int | None) -> None:
        """Count pods in each of these domains; only as possible unless `is_certain`."""
        for domain in domains:
            if self.possible is not self.counts:
                self.possible[domain] = self.possible.get(domain, 0) + pods
            if is_certain:
                self.counts[domain] = self.counts.get(domain, 0) + pods

    def wait_for(self, candidate: int, pods: int) -> None:
        """Count pods once the domain of this candidate is decided."""
        self.undecided[candidate] = self.undecided.get(candidate, 0) + pods

    def domain_decided(self, candidate: int, domain: str) -> None:
        """Count the waiting pods of this candidate in its domain."""
        pods = self.undecided.pop(candidate, 0)
        if pods:
            self.add((domain,), pods, is_certain=True, own_skew=None)


class SpreadCounter(DomainCounter):
    """Counts pods for topology spread.

    Attributes:
        running: The running pods, including those on nodes that are being removed.
        planned: The placed pods that have such a constraint themselves, by maxSkew.
    """

    running: Counts = field(default_factory=dict)
    planned: dict[int, Counts] = field(default_factory=dict)

    def add(self, domains: Sequence[str], pods: int, *, is_certain: bool, own_skew: int | None) -> None:
        """Count pods in each of these domains; `own_skew` is the maxSkew of their own constraint, None without one."""
        DomainCounter.add(self, domains, pods, is_certain=is_certain, own_skew=own_skew)
        if own_skew is not None:
            planned = self.planned.setdefault(own_skew, {})
            for domain in domains:
                planned[domain] = planned.get(domain, 0) + pods

    def bound_before(self, max_skew: int) -> Counts:
        """Return, by domain, the pods that count against a constraint of that maxSkew in whatever order pods are bound.

        Placed pods without such a constraint, or with a larger maxSkew, are omitted: they may all be bound later.
        """
        total = dict(self.running)
        for skew, counts in self.planned.items():
            if skew <= max_skew:
                for domain, pods in counts.items():
                    total[domain] = total.get(domain, 0) + pods
        return total


class CountPart(NamedTuple):
    """The part of a count that the running pods of one node make up."""

    counts: Counts
    domain: str
    pods: int

    def add(self, times: int) -> None:
        """Count these pods once more (1), or no longer (-1)."""
        self.counts[self.domain] += times * self.pods


class _OwnCounter(NamedTuple):
    """A counter that counts a row's pods, with the maxSkew of the row's own constraint about the same group."""

    counter: DomainCounter
    own_skew: int | None


class PlannedOfferings(NamedTuple):
    """A planned node, as far as its labels are decided: see `NodeOfferings`."""

    masks: OfferingMasks
    requirements_id: int
    offerings: int


def offerings_of(problem: SchedulingProblem, node: PlannedNode) -> PlannedOfferings:
    """Return the offerings with which a planned node may be launched."""
    masks = problem.pool_masks[node.pool]
    requirements_id = problem.interner.id_of(node.requirements)
    offerings = masks.meeting(requirements_id) & (-1 if reservation_of(node.requirements) else masks.ordinary)
    for axis, amount in enumerate(node.total.tolist()):
        offerings &= masks.holding(axis, amount)
    return PlannedOfferings(masks, requirements_id, offerings)


class TopologyCounts:
    """All counters of a plan, and the pods recorded in them.

    Candidates are nodes by index: first those of `problem.existing.nodes`, then new ones in the order of their
    planning.
    """

    def __init__(self, problem: SchedulingProblem) -> None:
        """Start without counters."""
        self._problem = problem
        self._existing = problem.existing
        self._interner = problem.interner
        self._counters: dict[tuple[RuleKind, bytes, NodeFilter], DomainCounter] = {}
        self._group_of: dict[int, TopologyGroup] = {}
        self._recording: list[list[_OwnCounter]] = [[] for _ in problem.rows]
        self._awaited: dict[str, list[DomainCounter]] = {}
        self._included: dict[NodeFilter, Bools] = {}
        self._matching: dict[tuple[NodeFilter, int, int, int], NodeMatch] = {}
        self._matching_decided: dict[tuple[NodeFilter, int, DecidedLabels], NodeMatch] = {}

    # -- counters -----------------------------------------------------------------------------------------------------

    def counter(self, kind: RuleKind, group: TopologyGroup, nodes: NodeFilter = EVERY_NODE) -> DomainCounter:
        """Return the counter of the pods that a group counts on some nodes, by domain."""
        case = (kind, group.id, nodes)
        found = self._counters.get(case)
        if found is None:
            found = self._counters[case] = self._new_counter(kind, group, nodes)
            self._group_of[id(found)] = group
            for row in self._problem.row_index.counted_by(group):
                self._recording[row].append(_OwnCounter(found, self._own_skew(row, group)))
        return found

    def spread_counter(self, group: TopologyGroup, nodes: NodeFilter) -> SpreadCounter:
        """Return the counter of topology spread constraints."""
        found = self.counter(RuleKind.SPREAD, group, nodes)
        assert isinstance(found, SpreadCounter)  # noqa: S101 - for the type checker
        return found

    def _new_counter(self, kind: RuleKind, group: TopologyGroup, nodes: NodeFilter) -> DomainCounter:
        if kind is not RuleKind.SPREAD:
            counts = self._by_domain(group.key, self._existing.expected_counts.by_node(group))
            counter = DomainCounter(group.key, kind, nodes, counts, counts)
            if kind is RuleKind.AFFINITY:
                self._awaited.setdefault(group.key, []).append(counter)
            return counter
        by_node = self._existing.pod_counts.by_node(group)
        included = self.included_nodes(nodes)
        running = self._by_domain(group.key, by_node, included)
        staying = self._by_domain(group.key, by_node, included & self._existing.remaining)
        is_exact = nodes == EVERY_NODE and staying == running
        return SpreadCounter(
            group.key, RuleKind.SPREAD, nodes, staying, staying if is_exact else dict(running), running=running
        )

    def _own_skew(self, row: int, group: TopologyGroup) -> int | None:
        own = (spread.max_skew for spread in self._problem.rows[row].spreads if spread.group.id == group.id)
        return min(own, default=None)

    def owners_counter(self, group: TopologyGroup, owners: Sequence[int], running: Collection[str]) -> DomainCounter:
        """Return a new counter of the pods whose own required anti-affinity is about a group.

        Args:
            group: The pods that these pods keep off.
            owners: The rows of such pods.
            running: The domains with such a running pod.
        """
        counts = dict.fromkeys(sorted(running), 1)
        counter = DomainCounter(group.key, RuleKind.ANTI_AFFINITY, EVERY_NODE, counts, counts)
        for row in owners:
            self._recording[row].append(_OwnCounter(counter, None))
        return counter

    @cached_property
    def _positions(self) -> Mapping[str, int]:
        return {node.name: position for position, node in enumerate(self._existing.all_nodes)}

    def _by_domain(self, key: str, by_node: Mapping[str, int], nodes: Bools | None = None) -> Counts:
        """Return pods, given by node name, by domain of these nodes (by default of all), sorted."""
        pods_by_domain: Counts = {}
        if by_node:
            codes, values = self._existing.all_columns.label(key)
            for name, pods in by_node.items():
                position = self._positions[name]
                value = values[codes[position]]
                if value is not None and (nodes is None or nodes[position]):
                    pods_by_domain[value] = pods_by_domain.get(value, 0) + pods
        return dict(sorted(pods_by_domain.items()))

    def included_nodes(self, nodes: NodeFilter) -> Bools:
        """Return for each of `problem.existing.all_nodes` whether a filter includes it."""
        found = self._included.get(nodes)
        if found is None:
            columns = self._existing.all_columns
            found = np.ones(len(self._existing.all_nodes), dtype=bool)
            if nodes.terms is not None:
                found &= columns.meeting([self._interner[term] for term in nodes.terms])
            if nodes.tolerations is not None:
                found &= columns.accepted(nodes.tolerations, avoids_prefer_no_schedule=False)
            self._included[nodes] = found
        return found

    def existing_domains(self, key: str, nodes: NodeFilter) -> frozenset[str]:
        """Return the domains of the included nodes that are not being removed."""
        included = self.included_nodes(nodes) & self._existing.remaining
        if not included.any():
            return frozenset()
        codes, values = self._existing.all_columns.label(key)
        domains = (values[code] for code in set(codes[included].tolist()))
        return frozenset(value for value in domains if value is not None)

    # -- recording ----------------------------------------------------------------------------------------------------

    def record_existing(self, candidate: int, row: int, count: int) -> None:
        """Count pods of a row on an existing node."""
        if not self._recording[row]:
            return
        node = self._existing.nodes[candidate]
        position = self._positions[node.name]
        for counter, own_skew in self._recording[row]:
            counts = counter.nodes == EVERY_NODE or bool(self.included_nodes(counter.nodes)[position])
            if not counts and node.provider_id:
                continue  # the labels of a NodeClaim are final only after launch
            domain = domain_of(node, counter.key)
            counter.add(() if domain is None else (domain,), count, is_certain=counts, own_skew=own_skew)

    def record_new(self, candidate: int, node: NodeOfferings, row: int, count: int = 1) -> None:
        """Count pods of a row on a new node whose requirements already include theirs."""
        for counter, own_skew in self._recording[row]:
            match = self._match_new(counter.nodes, node)
            if match.is_possible:
                domains = self._domains(node, counter)
                counter.add(domains, count, is_certain=match.is_certain, own_skew=own_skew)
                if counter.kind is RuleKind.AFFINITY and not domains:
                    counter.wait_for(candidate, count)

    def record_in_domains(self, row: int, values: Mapping[str, str], decided: DecidedLabels, count: int) -> None:
        """Count pods of a row in domains whose nodes are not chosen yet.

        Args:
            row: The row.
            values: The domains, by label.
            decided: The known labels of their nodes.
            count: The number of pods; a negative number removes them.
        """
        for counter, own_skew in self._recording[row]:
            value = values.get(counter.key)
            if value is None:
                continue
            match = self._match_decided(counter.nodes, row, decided)
            if match.is_possible:
                counter.add((value,), count, is_certain=match.is_certain, own_skew=own_skew)

    def record_solution(self, solution: PartialSolution) -> None:
        """Count all pods that a solution has placed."""
        for candidate, entries in sorted(solution.on_existing.items()):
            for row, count in entries:
                self.record_existing(candidate, row, count)
        for candidate, planned in enumerate(solution.new_nodes, len(self._existing.nodes)):
            node = offerings_of(self._problem, planned)
            for row, count in planned.pods:
                self.record_new(candidate, node, row, count)

    def domain_decided(self, candidate: int, key: str, domain: str) -> None:
        """Record that a new node is bound to one domain of a label."""
        for counter in self._awaited.get(key, ()):
            counter.domain_decided(candidate, domain)

    def _match_new(self, nodes: NodeFilter, node: NodeOfferings) -> NodeMatch:
        """Return whether the filter includes a new node: certainly if its requirements or all its offerings meet it."""
        if nodes == EVERY_NODE:
            return _COUNTS
        case = (nodes, node.requirements_id, node.offerings, node.masks.index)
        found = self._matching.get(case)
        if found is None:
            taints = node.masks.pool.template.node_pool.spec.template.spec.taints
            tolerated = nodes.tolerations is None or untolerated(taints, nodes.tolerations) is None
            match = _COUNTS if nodes.terms is None else self._match_terms(nodes.terms, node)
            found = self._matching[case] = match if tolerated else _DOES_NOT_COUNT
        return found

    def _match_terms(self, terms: Sequence[int], node: NodeOfferings) -> NodeMatch:
        offered = self._interner[node.requirements_id]
        meeting = 0
        for requirements_id in (self._interner.narrowed(node.requirements_id, term) for term in terms):
            meeting |= node.masks.meeting(requirements_id) if requirements_id != CONFLICT else 0
        stated = any(offered.is_compatible(self._interner[term]) for term in terms)
        is_certain = stated or not node.offerings & ~meeting
        return NodeMatch(is_certain, is_certain or bool(node.offerings & meeting))

    def _match_decided(self, nodes: NodeFilter, row: int, decided: DecidedLabels) -> NodeMatch:
        """Return whether the filter includes nodes that meet the row's requirements and have the decided labels."""
        if nodes == EVERY_NODE:
            return _COUNTS
        case = (nodes, row, decided)
        found = self._matching_decided.get(case)
        if found is None:
            cls = self._problem.rows[row]
            counted = [self._interner[term] for term in nodes.terms or ()]
            is_own = nodes.terms is None or counted == list(cls.strict_terms)
            found = _COUNTS if is_own else _match_terms_with_decided(counted, cls.terms, decided)
            if nodes.tolerations is not None and self._has_taints and nodes.tolerations != cls.tolerations:
                found = found._replace(is_certain=False)
            self._matching_decided[case] = found
        return found

    @cached_property
    def _has_taints(self) -> bool:
        of_pools = (pool.template.node_pool.spec.template.spec.taints for pool in self._problem.pools)
        return any(of_pools) or any(node.taints for node in self._existing.all_nodes)

    def _domains(self, node: NodeOfferings, counter: DomainCounter) -> Sequence[str]:
        """Return the domains of a new node in which its pods count."""
        requirements = self._interner[node.requirements_id]
        rule = requirements.get(counter.key)
        as_claimed = counter.kind is RuleKind.PREFERRED_ANTI_AFFINITY
        if as_claimed and counter.key in _SET_AFTER_PASS and reservation_of(requirements):
            return ()
        if rule is not None and rule.single is not None:
            return (rule.single,)
        if counter.kind in {RuleKind.SPREAD, RuleKind.AFFINITY} or (as_claimed and (rule is None or rule.complement)):
            return ()
        return tuple(node.masks.domains(counter.key, node.offerings, node.requirements_id))

    # -- removing nodes -----------------------------------------------------------------------------------------------

    def parts_by_node(self) -> Mapping[str, list[CountPart]]:
        """Return, by node name, what the node's running pods add to the counts; nodes without any are omitted."""
        parts: dict[str, list[CountPart]] = {}
        for (kind, _, nodes), counter in self._counters.items():
            group = self._group_of[id(counter)]
            is_spread = kind is RuleKind.SPREAD
            by_node = (self._existing.pod_counts if is_spread else self._existing.expected_counts).by_node(group)
            if not by_node:
                continue
            codes, values = self._existing.all_columns.label(group.key)
            included = self.included_nodes(nodes)
            for name, pods in by_node.items():
                position = self._positions[name]
                value = values[codes[position]]
                if value is not None and included[position]:
                    stays = bool(self._existing.remaining[position])
                    of_node = parts.setdefault(name, [])
                    of_node += (CountPart(counts, value, pods) for counts in _counts_with(counter, stays=stays))
        return parts


def _counts_with(counter: DomainCounter, *, stays: bool) -> Iterator[Counts]:
    """Yield the counts of a counter that include the running pods of a node, which may be being removed."""
    if not isinstance(counter, SpreadCounter):
        yield counter.counts
        return
    yield counter.running
    if stays:
        yield counter.counts
    if counter.possible is not counter.counts:
        yield counter.possible


def _match_terms_with_decided(
    counted: Sequence[Requirements], terms: Sequence[Requirements], decided: DecidedLabels
) -> NodeMatch:
    """Return whether a node that meets one of `terms` and has the decided labels meets one of the `counted` terms."""
    required = decided_requirements(decided)
    node_terms = [term & required for term in terms]
    is_certain = all(any(_implies(node_term, term) for term in counted) for node_term in node_terms)
    is_possible = any(node_term.conflict(term) is None for node_term in node_terms for term in counted)
    return NodeMatch(is_certain, is_possible)


def _implies(requirements: Mapping[str, Requirement], term: Requirements) -> bool:
    """Return whether every node that meets the requirements also meets the term."""
    return all(
        key in requirements
        and requirements[key].present
        and requirements[key].intersection(wanted) == requirements[key]
        for key, wanted in term.items()
    )


def known_labels(node: PlannedNode) -> dict[str, str]:
    """Return the labels for which the requirements of a planned node allow a single value, with that value."""
    singles = {key: r.single for key, r in node.requirements.items()}
    return {key: value for key, value in singles.items() if value is not None}
