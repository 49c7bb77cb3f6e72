"""Pod affinity over the domains of a label: the domains with a pod to join, and whether a pod may be the first.

Restates: karpenter pkg/controllers/provisioning/scheduling/topologygroup.go `nextDomainAffinity`.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from journeyman.core.scheduling.placement.counters import DomainCounter
from journeyman.core.scheduling.topology import TopologyGroup


class AffinityRule(Struct, frozen=True, kw_only=True, eq=False):
    """A pod affinity term of a row.

    Attributes:
        group: The pods of which one must be in the same domain.
        counter: Their number by domain.
        starts: Whether the group counts the row's own pods: then a pod may be the first if there is none to join.
        reaches: Returns whether the row's node selector and affinity allow a domain.
        within: Returns the domains with a node or an offering that the row accepts.
    """

    group: TopologyGroup
    counter: DomainCounter
    starts: bool
    reaches: Callable[[str], bool]
    within: Callable[[], frozenset[str]]

    @property
    def options(self) -> frozenset[str]:
        """The domains with a pod to join."""
        return frozenset(domain for domain, n in self.counter.counts.items() if n > 0 and self.reaches(domain))

    @property
    def may_start(self) -> bool:
        """Whether a pod of the row may be the first of its group, in a domain of its choice: there is none to join."""
        return self.starts and not self.options and not self.counter.undecided

    @property
    def is_undecided(self) -> bool:
        """Whether all pods to join are on new nodes with an undecided domain; one of these must be bound first."""
        return bool(self.counter.undecided) and not self.options
