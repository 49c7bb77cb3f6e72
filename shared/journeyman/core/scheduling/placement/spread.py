"""Topology spread over the domains of a label: which domains take one more pod.

Restates: karpenter pkg/controllers/provisioning/scheduling/topologygroup.go `nextDomainTopologySpread`,
`domainMinCount`.
Differs: a domain without a node or an available offering that the pods accept is not eligible, so it is not an empty
domain; pods on nodes that are being removed count in their domain, but not for the minimum.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Collection
from typing import NamedTuple

from msgspec import Struct

from journeyman.core.scheduling.placement.counters import Counts, SpreadCounter
from journeyman.core.scheduling.topology import TopologyGroup


def most_pods(minimum: int, max_skew: int, own: int) -> int:
    """Return the most pods that a domain may hold before one more pod is added to it.

    This is the only place that computes with maxSkew over the domains of a label; the hostname's is the capacity of an
    axis (`host_constraints`).

    Args:
        minimum: The number of pods in the emptiest domain.
        max_skew: How many more pods a domain may hold than the emptiest one.
        own: 1 if the constraint counts the pod itself, else 0.
    """
    return minimum + max_skew - own


class SpreadCeiling(NamedTuple):
    """The most pods that a domain may hold before one more is added: `there` in the emptiest, else `elsewhere`."""

    emptiest: str
    there: int
    elsewhere: int

    def in_domain(self, domain: str) -> int:
        """Return the most pods that this domain may hold."""
        return self.there if domain == self.emptiest else self.elsewhere


class SpreadRule(Struct, frozen=True, kw_only=True, eq=False):
    """A topology spread constraint of a row.

    Attributes:
        group: The pods that it counts.
        counter: Their number by domain.
        max_skew: How many more pods a domain may hold than the emptiest eligible one.
        min_domains: With fewer eligible domains, the minimum is 0.
        own: 1 if the constraint counts the row's own pods, else 0.
        eligible: The domains whose emptiest the others are compared with.
        with_nodes: Those of them that have nodes; kube-scheduler knows no other domains.
    """

    group: TopologyGroup
    counter: SpreadCounter
    max_skew: int
    min_domains: int
    own: int
    eligible: frozenset[str]
    with_nodes: frozenset[str]

    @property
    def has_too_few_domains(self) -> bool:
        """Whether there are fewer domains than minDomains, in which case the minimum counts as 0."""
        return len(self.eligible) < max(self.min_domains, 1)

    @property
    def by_eligible_domain(self) -> Counts:
        """The counted pods of each eligible domain, sorted by domain."""
        counts = self.counter.counts
        return {domain: counts.get(domain, 0) for domain in sorted(self.eligible)}

    @property
    def minimum(self) -> int:
        """The number of pods in the emptiest domain."""
        return 0 if self.has_too_few_domains else min(self.by_eligible_domain.values())

    def minimum_with_nodes(self, launched: Collection[str] = ()) -> int:
        """Return the number of pods in the emptiest domain that has nodes; `launched` domains get new nodes."""
        domains = [domain for domain in self.eligible if domain in self.with_nodes or domain in launched]
        if not domains or len(domains) < self.min_domains:
            return 0
        return min(self.counter.counts.get(domain, 0) for domain in domains)

    @property
    def ceiling(self) -> SpreadCeiling:
        """The pod counts at which domains still admit another pod of the row.

        Each domain is compared with the emptiest of the others: of its own pods some may not count in the end.
        """
        if self.has_too_few_domains:
            alone = most_pods(0, self.max_skew, self.own)
            return SpreadCeiling("", alone, alone)
        counts = self.counter.counts
        emptiest, *others = heapq.nsmallest(2, ((counts.get(domain, 0), domain) for domain in self.eligible))
        there = most_pods(others[0][0], self.max_skew, self.own) if others else sys.maxsize
        return SpreadCeiling(emptiest[1], there, most_pods(emptiest[0], self.max_skew, self.own))
