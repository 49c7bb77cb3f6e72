"""Pod anti-affinity over the domains of a label, a pod's own and that of other pods: the domains that it excludes.

Restates: karpenter pkg/controllers/provisioning/scheduling/topologygroup.go `nextDomainAntiAffinity`, topology.go
`updateInverseAffinities`.
"""

from __future__ import annotations

from msgspec import Struct

from journeyman.core.scheduling.placement.counters import DomainCounter
from journeyman.core.scheduling.topology import TopologyGroup


class AntiAffinityRule(Struct, frozen=True, kw_only=True, eq=False):
    """A pod anti-affinity term of a row, or the inverse: one of other pods that is about the row's pods.

    Attributes:
        group: The pods that the term keeps off.
        counter: The pods of which a domain may have none: those of the group, or inversely those that have the term.
        own: 1 if the counter counts the row's own pods, else 0.
        is_preferred: Whether the term is a preference.
        is_inverse: Whether other pods have the term.
    """

    group: TopologyGroup
    counter: DomainCounter
    own: int
    is_preferred: bool = False
    is_inverse: bool = False

    def admits(self, domain: str) -> bool:
        """Whether the domain has none of the pods that the term selects, or inversely of those that have the term."""
        return not self.counter.counts.get(domain)

    @property
    def excluded(self) -> frozenset[str]:
        """The domains with such pods."""
        return frozenset(domain for domain, pods in self.counter.counts.items() if pods)
