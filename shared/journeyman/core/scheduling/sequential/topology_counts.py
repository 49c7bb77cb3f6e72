"""Counts the pods that each topology rule sees, by domain or by node, while pods are scheduled.

Restates: karpenter pkg/controllers/provisioning/scheduling/topologygroup.go `TopologyGroup`, topology.go
`countDomains`, `Record`, topologynodefilter.go `Matches`.
Differs: for required anti-affinity, a pod counts in every domain of its node's offerings; Karpenter uses only the
NodeClaim's requirements, and counts a node without such a requirement in no domain. For preferred anti-affinity, pods
count as in Karpenter, because the preference would otherwise cost more. A spread counts its own pods on nodes that may
suit it; Karpenter counts them only if the NodeClaim's requirements say so. For affinity, pods on a node with an
undecided domain count once it is decided; in Karpenter they count once the node exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct, field

from journeyman.core.api import labels
from journeyman.core.api.objects import Toleration
from journeyman.core.scheduling.arrays import Ints
from journeyman.core.scheduling.existing_nodes import ExistingNodes
from journeyman.core.scheduling.instance_type_choice import reservation_of
from journeyman.core.scheduling.offering_masks import CONFLICT, OfferingMasks, RequirementsInterner
from journeyman.core.scheduling.sequential.candidate_nodes import CandidateNodes, NewNode
from journeyman.core.scheduling.topology import LabelIndex, NodeMatch, TopologyGroup, domain_of
from journeyman.core.state.state_node import StateNode
from journeyman.core.state.taints import untolerated


class NodeFilter(Struct, frozen=True, cache_hash=True):
    """The nodes that a spread counts: those that meet one of `terms` (IDs; None: all) without untolerated taints."""

    terms: tuple[int, ...] | None = None
    tolerations: tuple[Toleration, ...] | None = None


EVERY_NODE = NodeFilter()
_COUNTS: Final = NodeMatch(surely=True, possibly=True)


class DomainCounter(Struct, eq=False):
    """Counts pods by domain of a node label other than the hostname.

    `anywhere`: a pod counts in every domain that its node may get (for anti-affinity), otherwise only if there is just
    one. `as_claimed`: a pod counts in no domain if its NodeClaim's requirements list none. `counts` are the pods on nodes
    that surely match the filter `nodes`, `possible` also those on nodes that may match it. `undecided`, if `awaited`: pods
    on new nodes with several possible domains, by candidate; they count once the domain is decided.
    """

    key: str
    anywhere: bool = False
    as_claimed: bool = False
    awaited: bool = False
    nodes: NodeFilter = EVERY_NODE
    counts: dict[str, int] = field(default_factory=dict)
    possible: dict[str, int] = field(default_factory=dict)
    undecided: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.possible = self.counts if self.nodes.terms is None else dict(self.counts)

    def add(self, domains: Sequence[str], pods: int, *, surely: bool = True) -> None:
        """Count pods in each of these domains; only as possible unless `surely`."""
        for domain in domains:
            if self.possible is not self.counts:
                self.possible[domain] = self.possible.get(domain, 0) + pods
            if surely:
                self.counts[domain] = self.counts.get(domain, 0) + pods

    def wait_for(self, candidate: int, pods: int) -> None:
        """Count pods once the domain of this candidate is decided."""
        self.undecided[candidate] = self.undecided.get(candidate, 0) + pods

    def domain_decided(self, candidate: int, domain: str) -> None:
        """Count the waiting pods of this candidate in its domain."""
        pods = self.undecided.pop(candidate, 0)
        if pods:
            self.add((domain,), pods)


class HostCounter(Struct, eq=False):
    """Counts pods by node. `counts` has an entry per candidate, and spare entries; `total` is the sum over all nodes."""

    nodes: NodeFilter = EVERY_NODE
    counts: Ints = field(default_factory=lambda: np.zeros(64, dtype=np.int64))
    total: int = 0

    def add(self, candidate: int, pods: int) -> None:
        """Count pods on a candidate."""
        self.up_to(candidate + 1)
        self.counts[candidate] += pods
        self.total += pods

    def up_to(self, candidates: int) -> Ints:
        """Return the counts of the first `candidates` candidates."""
        if candidates > len(self.counts):
            grown = np.zeros(2 * candidates, dtype=np.int64)
            grown[: len(self.counts)] = self.counts
            self.counts = grown
        return self.counts[:candidates]


PodCounter = DomainCounter | HostCounter


_SET_AFTER_PASS: Final = frozenset((labels.CAPACITY_TYPE, labels.RESERVATION_ID))
"""Labels that Karpenter adds to the requirements of a NodeClaim with a reservation only after the pass."""


class TopologyCounts:
    """All counters of a pass, by the pods and nodes that they count."""

    def __init__(
        self,
        existing: ExistingNodes,
        rows: LabelIndex,
        count: int,
        interner: RequirementsInterner,
        candidates: CandidateNodes,
    ) -> None:
        """Start without counters; `rows` finds the rows of the pass (`count` in total) that a group counts."""
        self._counted: list[list[PodCounter]] = [[] for _ in range(count)]
        self._existing = existing
        self._running_pods = (
            existing.pod_counts
        )  # of topology spread; affinity and anti-affinity await DaemonSets' pods
        self._expected_pods = existing.expected_counts
        self._rows = rows
        self._interner = interner
        self._candidates = candidates
        self._candidate_of = {node.name: candidate for candidate, node in enumerate(candidates.existing_nodes)}
        self._counters: dict[tuple[str, bytes, NodeFilter], PodCounter] = {}
        self._awaited: dict[str, list[DomainCounter]] = {}
        self._included: dict[NodeFilter, frozenset[str]] = {}
        self._matching: dict[tuple[NodeFilter, int, int, int], NodeMatch] = {}

    def counter(self, kind: str, group: TopologyGroup, nodes: NodeFilter) -> PodCounter:
        """Return the counter of the pods that a group counts on some nodes; each kind of rule counts differently."""
        case = (kind, group.id, nodes)
        found = self._counters.get(case)
        if found is None:
            found = self._counters[case] = self._new_counter(kind, group, nodes)
            for row in self._rows.counted_by(group):
                self._counted[row].append(found)
        return found

    def _new_counter(self, kind: str, group: TopologyGroup, nodes: NodeFilter) -> PodCounter:
        present = self._running_pods if kind == "spread" else self._expected_pods
        if group.key == labels.HOSTNAME:
            counter = HostCounter(nodes)
            existing_nodes = {node.name: node for node in present.nodes}
            for name, pods in present.by_node(group).items():
                if self.counts_node(nodes, existing_nodes[name]):
                    self._count_on(counter, name, pods)
            return counter
        self._candidates.watch(group.key)
        counts = present.by_domain(group, lambda node: self.counts_node(nodes, node))
        by_domain = DomainCounter(
            group.key,
            anywhere=kind in {"anti-affinity", "preferred anti-affinity"},
            as_claimed=kind == "preferred anti-affinity",
            awaited=kind == "affinity",
            nodes=nodes,
            counts=counts,
        )
        if by_domain.awaited:
            self._awaited.setdefault(group.key, []).append(by_domain)
        return by_domain

    def _count_on(self, counter: HostCounter, name: str, pods: int) -> None:
        candidate = self._candidate_of.get(name)
        if candidate is None:
            counter.total += pods
        else:
            counter.add(candidate, pods)

    def counts_node(self, nodes: NodeFilter, node: StateNode) -> bool:
        """Whether the filter includes an existing node."""
        if nodes.terms is None and nodes.tolerations is None:
            return True
        found = self._included.get(nodes)
        if found is None:
            found = self._included[nodes] = frozenset(self._names_of_included(nodes))
        return node.name in found

    def _names_of_included(self, nodes: NodeFilter) -> Iterator[str]:
        meeting = [True] * len(self._existing.all_nodes)
        if nodes.terms is not None:
            meeting = self._existing.all_columns.meeting([self._interner[term] for term in nodes.terms]).tolist()
        for node, meets in zip(self._existing.all_nodes, meeting, strict=True):
            if meets and (nodes.tolerations is None or untolerated(node.taints, nodes.tolerations) is None):
                yield node.name

    def _match_new(self, nodes: NodeFilter, node: NewNode) -> NodeMatch:
        """Return whether the filter includes a new node: surely if its requirements or all its offerings meet it."""
        if nodes.terms is None and nodes.tolerations is None:
            return _COUNTS
        taints = node.masks.pool.template.node_pool.spec.template.spec.taints
        case = (nodes, node.requirements_id, node.offerings, node.masks.index)
        found = self._matching.get(case)
        if found is None:
            tolerated = nodes.tolerations is None or untolerated(taints, nodes.tolerations) is None
            match = _COUNTS if nodes.terms is None else self._match_terms(nodes.terms, node)
            found = self._matching[case] = match if tolerated else NodeMatch(surely=False, possibly=False)
        return found

    def _match_terms(self, terms: Sequence[int], node: NewNode) -> NodeMatch:
        offered = self._interner[node.requirements_id]
        meeting = 0
        for requirements_id in (self._interner.narrowed(node.requirements_id, term) for term in terms):
            meeting |= node.masks.meeting(requirements_id) if requirements_id != CONFLICT else 0
        stated = any(offered.is_compatible(self._interner[term]) for term in terms)
        surely = stated or not node.offerings & ~meeting
        return NodeMatch(surely, surely or bool(node.offerings & meeting))

    def add_counter(self, row: int, counter: PodCounter) -> None:
        """Also count a row's pods in this counter."""
        self._counted[row].append(counter)

    # -- recording ----------------------------------------------------------------------------------------------------

    def record_existing(self, candidate: int, row: int, count: int) -> None:
        """Count pods of a row on an existing node."""
        node = self._candidates.existing_nodes[candidate]
        for counter in self._counted[row]:
            counts = self.counts_node(counter.nodes, node)
            if not counts and node.provider_id:
                continue  # the labels of a NodeClaim are final only after launch
            if isinstance(counter, HostCounter):
                counter.add(candidate, count)
            else:
                domain = domain_of(node, counter.key)
                counter.add(() if domain is None else (domain,), count, surely=counts)

    def record_new(self, candidate: int, row: int, count: int = 1) -> None:
        """Count pods of a row on a new node whose requirements already include theirs."""
        node = self._candidates.node(candidate)
        for counter in self._counted[row]:
            match = self._match_new(counter.nodes, node)
            if isinstance(counter, HostCounter):
                counter.add(candidate, count if match.surely else 0)
            elif match.possibly:
                domains = self._domains(node.masks, node.requirements_id, node.offerings, counter)
                counter.add(domains, count, surely=match.surely)
                if counter.awaited and not domains:
                    counter.wait_for(candidate, count)

    def domain_decided(self, candidate: int, key: str, domain: str) -> None:
        """Record that a new node is bound to one domain of a label."""
        for counter in self._awaited.get(key, ()):
            counter.domain_decided(candidate, domain)

    def _domains(
        self, masks: OfferingMasks, requirements_id: int, offerings: int, counter: DomainCounter
    ) -> Sequence[str]:
        rule = self._interner[requirements_id].get(counter.key)
        if counter.as_claimed and counter.key in _SET_AFTER_PASS and reservation_of(self._interner[requirements_id]):
            return ()
        if rule is not None and rule.single is not None:
            return (rule.single,)
        if not counter.anywhere or (counter.as_claimed and (rule is None or rule.complement)):
            return ()
        return tuple(masks.domains(counter.key, offerings, requirements_id))
