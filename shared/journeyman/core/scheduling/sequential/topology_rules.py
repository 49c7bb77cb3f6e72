"""Computes the topology spread, affinity and anti-affinity rules of each row, and the domains that they allow now.

Restates: karpenter pkg/controllers/provisioning/scheduling/topology.go `NewTopology`, `AddRequirements`;
topologygroup.go `nextDomainTopologySpread`, `nextDomainAffinity`, `nextDomainAntiAffinity`.
Differs: several rules over one label must agree on a domain before one is chosen, where Karpenter lets each choose
alone and fails if they differ. Unavailable domains (without an offering or a node that the pod accepts) do not count as
empty domains. With `bind_anti_affinity_domains`, pods that required anti-affinity concerns are bound to one domain
each; in Karpenter one such pod occupies all domains its node might be launched in, and the next waits for another pass.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct, field

from journeyman.core.api import labels
from journeyman.core.api.objects import Toleration
from journeyman.core.scheduling.arrays import Bools
from journeyman.core.scheduling.offering_masks import CONFLICT
from journeyman.core.scheduling.problem import SchedulingProblem
from journeyman.core.scheduling.requirements import EMPTY, Requirements
from journeyman.core.scheduling.sequential.candidate_nodes import CandidateNodes
from journeyman.core.scheduling.sequential.topology_counts import (
    EVERY_NODE,
    DomainCounter,
    HostCounter,
    NodeFilter,
    PodCounter,
    TopologyCounts,
)
from journeyman.core.scheduling.topology import TopologyGroup, TopologySpread, domain_of
from journeyman.core.state.taints import untolerated

_PER_REPULSION: Final = 10  # effort of a rule of other pods that counts a row


class SpreadCeiling(NamedTuple):
    """The most pods that a domain may hold before one more is added: `there` in the emptiest domain, else `elsewhere`."""

    emptiest: str
    there: int
    elsewhere: int

    def in_domain(self, domain: str) -> int:
        """Return the most pods that this domain may hold."""
        return self.there if domain == self.emptiest else self.elsewhere


class SpreadRule(Struct, frozen=True):
    """A spread over a label's domains; `own` is 1 if it counts its own pods.

    `eligible` are the domains whose emptiest the others are compared with.
    """

    counter: DomainCounter
    max_skew: int
    min_domains: int
    own: int
    eligible: frozenset[str]

    @property
    def ceiling(self) -> SpreadCeiling:
        """Return the pod counts at which domains still admit another pod of the row.

        Each domain is compared with the emptiest of the others: of its own pods some may not count in the end.
        """
        more = self.max_skew - self.own
        if len(self.eligible) < max(self.min_domains, 1):
            return SpreadCeiling("", more, more)
        counts = self.counter.counts
        emptiest, *others = heapq.nsmallest(2, ((counts.get(domain, 0), domain) for domain in self.eligible))
        there = others[0][0] + more if others else sys.maxsize
        return SpreadCeiling(emptiest[1], there, emptiest[0] + more)


class JoinRule(Struct, frozen=True):
    """Affinity over a label's domains; `starts`: a pod may be the first if there is no pod that it could join.

    `reaches` returns whether the pod's node selector and affinity allow a domain, `within` the domains with a node or an
    offering that it accepts.
    """

    counter: DomainCounter
    starts: bool
    reaches: Callable[[str], bool]
    within: Callable[[], frozenset[str]]

    @property
    def options(self) -> frozenset[str]:
        """Return the domains with a pod to join."""
        return frozenset(d for d, n in self.counter.counts.items() if n > 0 and self.reaches(d))


class LabelRules(Struct):
    """All rules over one label other than the host name.

    `excluding`: the domain may have none of these pods. `repelled`: domains that the anti-affinity of running pods excludes.
    `preferring`: domains with these pods are preferred. `binding`: the node must be bound to one domain. `needs_label`: the
    node must have the label. `is_apart`: the pod's own anti-affinity is among the rules.
    """

    key: str
    spreads: list[SpreadRule] = field(default_factory=list)
    joins: list[JoinRule] = field(default_factory=list)
    excluding: list[DomainCounter] = field(default_factory=list)
    preferring: list[DomainCounter] = field(default_factory=list)
    repelled: frozenset[str] = frozenset()
    binding: bool = False
    needs_label: bool = False
    is_apart: bool = False

    @property
    def is_only_preferred(self) -> bool:
        """Whether these are only preferred anti-affinity rules."""
        strict = self.spreads or self.joins or self.repelled
        return not strict and all(counter.as_claimed for counter in self.excluding)

    @property
    def excluded(self) -> frozenset[str]:
        """Return the domains that the pod's own anti-affinity, or that of others, excludes now."""
        return self.repelled.union(domain for counter in self.excluding for domain, n in counter.counts.items() if n)

    @property
    def undecided_join(self) -> JoinRule | None:
        """Return an affinity whose pods are all on nodes with an undecided domain; one of these must be bound first."""
        return next((rule for rule in self.joins if rule.counter.undecided and not rule.options), None)

    def now(self) -> DomainChoice | None:
        """Return the domains allowed now; None if there are none, or if a node must be bound first (`undecided_join`)."""
        joined: frozenset[str] | None = None
        starting = False
        for rule in self.joins:
            options = rule.options
            if not options:
                if not rule.starts or rule.counter.undecided:
                    return None
                starting = True
                continue
            joined = options if joined is None else joined & options
        ceilings = tuple(spread.ceiling for spread in self.spreads)
        return DomainChoice(self, ceilings, joined, self.binding or starting)


class DomainChoice(Struct, frozen=True):
    """The domains of a label that a pod may use now.

    `ceilings`, by spread: the most pods a domain may hold. `joined`: the domains it may join (None: any). `binding`: its
    node must be bound to one domain.
    """

    rules: LabelRules
    ceilings: tuple[SpreadCeiling, ...]
    joined: frozenset[str] | None
    binding: bool

    def admits(self, domain: str) -> bool:
        """Whether the pod may go to this domain."""
        rules = self.rules
        if self.joined is not None and domain not in self.joined:
            return False
        if domain in rules.repelled or any(counter.counts.get(domain) for counter in rules.excluding):
            return False
        return all(
            spread.counter.possible.get(domain, 0) <= ceiling.in_domain(domain)
            for spread, ceiling in zip(rules.spreads, self.ceilings, strict=True)
        )

    def rank(self, domain: str) -> tuple[int, ...]:
        """Sort key, best domain first: the emptiest by spread, then domains with pods of `preferring`."""
        counts = [spread.counter.counts.get(domain, 0) for spread in self.rules.spreads]
        return (*counts, sum(not counter.counts.get(domain) for counter in self.rules.preferring))


class HostRules(Struct):
    """All rules over the host name.

    `most`: counts that a node may not exceed. `joins`: the node must have one of these pods (True: or no node has one).
    `repelled`: existing nodes, by candidate index, that the anti-affinity of running pods excludes.
    """

    most: list[tuple[HostCounter, int]] = field(default_factory=list)
    joins: list[tuple[HostCounter, bool]] = field(default_factory=list)
    repelled: tuple[int, ...] = ()

    def admit(self, size: int) -> Bools:
        """Return which of the first `size` candidates the rules allow."""
        found: Bools = np.ones(size, dtype=bool)
        for counter, most in self.most:
            found &= counter.up_to(size) <= most
        for counter, starts in self.joins:
            if counter.total or not starts:
                found &= counter.up_to(size) > 0
        if self.repelled:
            found[list(self.repelled)] = False
        return found

    @property
    def admit_new(self) -> bool:
        """Whether the rules allow a new, empty node."""
        return all(most >= 0 for _, most in self.most) and all(starts and not t.total for t, starts in self.joins)


class TopologyRules(Struct):
    """The rules of one row."""

    hosts: HostRules
    keys: tuple[LabelRules, ...]


class TopologyRuleSet:
    """All rules of a pass; `topology` has their counters."""

    def __init__(
        self,
        problem: SchedulingProblem,
        candidates: CandidateNodes,
        active: Sequence[int],
        *,
        binding: bool,
    ) -> None:
        """`active` are the rows whose pods may still be scheduled; only their rules get counters."""
        self._problem = problem
        self._interner = problem.interner
        self._candidates = candidates
        self._binding = binding
        self._rules_by_row: dict[int, TopologyRules] = {}
        self._ids_of_terms: dict[int, tuple[int, ...]] = {}
        self._eligible: dict[object, frozenset[str]] = {}
        self._inverse: dict[int, list[tuple[TopologyGroup, PodCounter]]] = {}
        self._repelled: dict[int, list[tuple[str, frozenset[str]]]] = {}
        self.topology = TopologyCounts(
            problem.existing, problem.row_index, len(problem.rows), problem.interner, candidates
        )
        self._prepare_repulsion()
        for row in active:
            self.of(row)

    def _prepare_repulsion(self) -> None:
        """Compute by row the required anti-affinity groups of other rows that count it."""
        owned: dict[bytes, PodCounter] = {}
        for row, cls in enumerate(self._problem.rows):
            for group in cls.anti_affinities:
                if group.id in cls.preferred_groups:
                    continue
                if group.id not in owned:
                    owned[group.id] = self._owners(group)
                self.topology.add_counter(row, owned[group.id])
        for entry in self._problem.repelled:
            for row in self._problem.row_index.counted_by(entry.group):
                self._repelled.setdefault(row, []).append((entry.group.key, entry.domains))
            if entry.group.key != labels.HOSTNAME:
                self._candidates.watch(entry.group.key)

    def _owners(self, group: TopologyGroup) -> PodCounter:
        """Return a counter of the pods that have this group as their anti-affinity."""
        host = group.key == labels.HOSTNAME
        counter: PodCounter = HostCounter() if host else DomainCounter(group.key, anywhere=True)
        if not host:
            self._candidates.watch(group.key)
        for row in self._problem.row_index.counted_by(group):
            self._inverse.setdefault(row, []).append((group, counter))
        return counter

    def of(self, row: int) -> TopologyRules:
        """Return the rules of one row."""
        found = self._rules_by_row.get(row)
        if found is None:
            found = self._rules_by_row[row] = self._rules(row)
        return found

    def _rules(self, row: int) -> TopologyRules:
        cls = self._problem.rows[row]
        hosts = HostRules()
        keys: dict[str, LabelRules] = {}

        def rules_of(key: str) -> LabelRules:
            return keys.setdefault(key, LabelRules(key))

        for spread in cls.spreads:
            self._add_spread(row, spread, hosts, rules_of)
        for group in cls.affinities:
            self._add_affinity(row, group, hosts, rules_of)
        for rules in keys.values():
            rules.needs_label = True
        for group in cls.anti_affinities:
            self._add_anti_affinity(row, group, hosts, rules_of)
        self._add_repulsion(row, hosts, rules_of)
        return TopologyRules(hosts, tuple(keys[key] for key in sorted(keys)))

    def _add_spread(
        self, row: int, spread: TopologySpread, hosts: HostRules, rules_of: Callable[[str], LabelRules]
    ) -> None:
        cls = self._problem.rows[row]
        own = int(spread.counts(cls.namespace, cls.labels))
        # The node that a pod goes to meets its node affinity, so this node always counts.
        nodes = EVERY_NODE if spread.key == labels.HOSTNAME else self._node_filter(row, spread)
        counter = self.topology.counter("spread", spread.group, nodes)
        if isinstance(counter, HostCounter):
            hosts.most.append((counter, spread.max_skew - own))
            return
        rules = rules_of(spread.key)
        eligible = self._eligible_domains(row, spread)
        rules.spreads.append(SpreadRule(counter, spread.max_skew, spread.min_domains, own, eligible))
        rules.binding = True

    def _add_affinity(
        self, row: int, group: TopologyGroup, hosts: HostRules, rules_of: Callable[[str], LabelRules]
    ) -> None:
        cls = self._problem.rows[row]
        starts = group.counts(cls.namespace, cls.labels)
        counter = self.topology.counter("affinity", group, EVERY_NODE)
        if isinstance(counter, HostCounter):
            hosts.joins.append((counter, starts))
        else:
            within = lambda: self._available_domains(row, group.key)  # noqa: E731 - rarely needed, and expensive
            rules_of(group.key).joins.append(JoinRule(counter, starts, self._reach(row, group.key), within))

    def _add_anti_affinity(
        self, row: int, group: TopologyGroup, hosts: HostRules, rules_of: Callable[[str], LabelRules]
    ) -> None:
        soft = group.id in self._problem.rows[row].preferred_groups
        counter = self.topology.counter("preferred anti-affinity" if soft else "anti-affinity", group, EVERY_NODE)
        if isinstance(counter, HostCounter):
            hosts.most.append((counter, 0))
            return
        rules = rules_of(group.key)
        rules.excluding.append(counter)
        rules.is_apart = True
        rules.binding |= self._binding and not soft

    def _add_repulsion(self, row: int, hosts: HostRules, rules_of: Callable[[str], LabelRules]) -> None:
        inverse = self._inverse.get(row, ())
        self._problem.effort.spend(_PER_REPULSION * len(inverse))
        excluding: dict[str, set[int]] = {}
        for group, counter in inverse:
            if isinstance(counter, HostCounter):
                hosts.most.append((counter, 0))
                continue
            rules = rules_of(group.key)
            if group.key not in excluding:
                excluding[group.key] = set(map(id, rules.excluding))
            known = excluding[group.key]
            rules.excluding.append(counter)
            known.add(id(counter))
            rules.binding |= self._binding
            counted = self.topology.counter("anti-affinity", group, EVERY_NODE)
            if isinstance(counted, DomainCounter) and id(counted) not in known:
                rules.preferring.append(counted)
        for key, domains in self._repelled.get(row, ()):
            if key != labels.HOSTNAME:
                rules_of(key).repelled |= domains
                continue
            candidates = (
                p for p, node in enumerate(self._candidates.existing_nodes) if domain_of(node, key) in domains
            )
            hosts.repelled = tuple(sorted({*hosts.repelled, *candidates}))

    # -- domains ------------------------------------------------------------------------------------------------------

    def _strict_terms(self, row: int) -> tuple[Requirements, ...]:
        """Return the node requirements of the row's class without preferences."""
        return self._problem.rows[row].strict_terms

    def _term_ids(self, row: int) -> tuple[int, ...]:
        """Return the IDs of these requirements."""
        if row not in self._ids_of_terms:
            self._ids_of_terms[row] = tuple(self._interner.id_of(term) for term in self._strict_terms(row))
        return self._ids_of_terms[row]

    def _node_filter(self, row: int, spread: TopologySpread) -> NodeFilter:
        honors_terms = spread.honors_node_affinity and EMPTY not in self._strict_terms(row)
        return NodeFilter(
            terms=self._term_ids(row) if honors_terms else None,
            tolerations=self._problem.rows[row].tolerations if spread.honors_node_taints else None,
        )

    def _reach(self, row: int, key: str) -> Callable[[str], bool]:
        rules = [term.get(key) for term in self._strict_terms(row)]
        return lambda domain: any(rule is None or rule.has(domain) for rule in rules)

    def _eligible_domains(self, row: int, spread: TopologySpread) -> frozenset[str]:
        """Return the domains for the minimum: those with an offering or a node that the pod accepts."""
        nodes = self._node_filter(row, spread)
        strict = self._strict_terms(row)
        terms = self._term_ids(row)
        tolerations = self._problem.rows[row].tolerations
        case = (spread.key, nodes, terms, tolerations)
        found = self._eligible.get(case)
        if found is None:
            if nodes.terms is None:  # only the label matters
                own = (Requirements({k: r for k, r in term.items() if k == spread.key}) for term in strict)
                terms = tuple(self._interner.id_of(term) for term in own)
            existing_nodes = self._existing_domains(spread.key, nodes, self._reach(row, spread.key))
            launchable = self._launchable_domains(spread.key, tolerations, terms)
            found = self._eligible[case] = frozenset((*existing_nodes, *launchable))
        return found

    def _available_domains(self, row: int, key: str) -> frozenset[str]:
        """Return the domains of existing and new nodes that the class accepts."""
        terms = self._term_ids(row)
        tolerations = self._problem.rows[row].tolerations
        case = (key, terms, tolerations)
        found = self._eligible.get(case)
        if found is None:
            existing_nodes = self._existing_domains(key, EVERY_NODE, self._reach(row, key))
            launchable = self._launchable_domains(key, tolerations, terms)
            found = self._eligible[case] = frozenset((*existing_nodes, *launchable))
        return found

    def _existing_domains(self, key: str, nodes: NodeFilter, reaches: Callable[[str], bool]) -> Iterator[str]:
        for node in self._candidates.existing_nodes:
            domain = domain_of(node, key)
            if domain is not None and reaches(domain) and self.topology.counts_node(nodes, node):
                yield domain

    def _launchable_domains(self, key: str, tolerations: Sequence[Toleration], terms: Sequence[int]) -> Iterator[str]:
        for masks in self._problem.pool_masks:
            taints = masks.pool.template.node_pool.spec.template.spec.taints
            if untolerated(taints, tolerations) is not None:
                continue
            for term in terms:
                requirements_id = self._interner.narrowed(masks.offer, term)
                if requirements_id != CONFLICT:
                    yield from masks.domains(key, masks.meeting(requirements_id), requirements_id)
