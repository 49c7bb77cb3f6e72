"""How many pods each rule counts where, kept up to date while pods are placed.

Restates: karpenter pkg/controllers/provisioning/scheduling/topologygroup.go `TopologyGroup`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field

from journeyman.core.api.objects import Toleration
from journeyman.core.scheduling.arrays import Ints


class NodeFilter(Struct, frozen=True):
    """Which nodes a spread counts: those that suit one of `terms` (numbers; None: all), free of untolerated taints."""

    terms: tuple[int, ...] | None = None
    tolerations: tuple[Toleration, ...] | None = None


EVERY_NODE = NodeFilter()


class DomainTally(Struct, eq=False):
    """Pods by domain of a node label other than the host name.

    `anywhere`: a pod counts in every domain its node may still come to be in (anti-affinity must be sure); otherwise
    only once there is just one. `as_claimed`: where its claim names none of these domains it is in none. `possible` are
    the pods on nodes that may come to be such `nodes` as well; `counts` those of which the claim says so. `undecided`:
    where `awaited`, the pods on nodes to open that may yet be in several domains, by place; they count once that is
    decided.
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
        """Count pods in each of these domains; `surely`: or only as possible."""
        for domain in domains:
            if self.possible is not self.counts:
                self.possible[domain] = self.possible.get(domain, 0) + pods
            if surely:
                self.counts[domain] = self.counts.get(domain, 0) + pods

    def wait(self, place: int, pods: int) -> None:
        """Count pods once it is decided in which domain this place is."""
        self.undecided[place] = self.undecided.get(place, 0) + pods

    def decided(self, place: int, domain: str) -> None:
        """The place is in this domain."""
        pods = self.undecided.pop(place, 0)
        if pods:
            self.add((domain,), pods)


class HostTally(Struct, eq=False):
    """Pods by node. `counts` has an entry per place, and room for more; `total` are all pods, wherever they are."""

    nodes: NodeFilter = EVERY_NODE
    counts: Ints = field(default_factory=lambda: np.zeros(64, dtype=np.int64))
    total: int = 0

    def add(self, place: int, pods: int) -> None:
        """Count pods at a place."""
        self.up_to(place + 1)
        self.counts[place] += pods
        self.total += pods

    def up_to(self, places: int) -> Ints:
        """The counts of the first so many places."""
        if places > len(self.counts):
            grown = np.zeros(2 * places, dtype=np.int64)
            grown[: len(self.counts)] = self.counts
            self.counts = grown
        return self.counts[:places]


Tally = DomainTally | HostTally
