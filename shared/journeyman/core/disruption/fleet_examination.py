"""Examines every node of a fleet: can it be deleted, can one cheaper node replace it, or why does it stay.

A simulation of the scheduler answers that for one node in tens of milliseconds, which is too long for each of thousands of
nodes. The examination reads the cluster once, as the scheduler's own columns and masks, takes one node away at a time,
moves its pods to the other nodes under all their rules, and undoes that cell by cell. What it finds is a filter: a command
is only proposed after `consolidation.compute_consolidation` has confirmed it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import cached_property

from msgspec import Struct

from journeyman.core.disruption.candidates import Candidate
from journeyman.core.disruption.simulation import Simulation


class Verdict(str, Enum):
    """What the examination finds about one node."""

    DELETABLE = "deletable"
    """The other nodes have room for its pods."""
    REPLACEABLE = "replaceable"
    """One cheaper new node takes the pods for which the other nodes have no room."""
    UNDECIDED = "undecided"
    """Only a simulation can tell, because pods have rules that the examination does not evaluate."""
    STAYS = "stays"
    """Some pods have no room on the other nodes, and no single cheaper node takes them."""


class Shortage(Struct, frozen=True, kw_only=True):
    """The pods of one class that the other nodes have too little room for.

    Attributes:
        pod: The key (`namespace/name`) of one of these pods.
        pods: How many pods of the class are on the node.
        without_room: How many of them the other nodes have no room for, after the node's other pods took theirs.
        resource: What is short: a resource (`cpu`), a topology label, `host rules`, `volumes`, or `node constraints` if no
            other node meets its node selector, affinity and tolerations at all.
        amount: How much of a resource is missing, in its base unit (milli-CPU, bytes, pods), on the node that lacks least;
            0 if no resource is short.
        node: The name of that node; empty if no resource is short.
    """

    pod: str
    pods: int
    without_room: int
    resource: str
    amount: int = 0
    node: str = ""


class NodeExamination(Struct, frozen=True, kw_only=True):
    """What the examination finds about one node.

    Attributes:
        candidate: The node.
        verdict: Whether it can be deleted or replaced.
        shadow_value: The price per hour of what only this node provides: that of the cheapest single new node for the pods
            that have no room elsewhere. 0.0 if all have room, infinite if no single new node takes them.
        shortage: The first class without enough room, in the order in which pods are scheduled; None if there is none.
        is_proven: Whether no order of placing the pods gives another verdict; else the scheduler's own order does not.
    """

    candidate: Candidate
    verdict: Verdict
    shadow_value: float = 0.0
    shortage: Shortage | None = None
    is_proven: bool = False

    @property
    def price(self) -> float:
        """The price of the node per hour."""
        return self.candidate.price

    @property
    def passes(self) -> bool:
        """Whether a simulation may find a command for it."""
        return self.verdict is not Verdict.STAYS

    @property
    def saving(self) -> float:
        """The price per hour that goes with the node, if a command is found; never negative."""
        return max(self.price - self.shadow_value, 0.0)


class FleetExamination(Struct, frozen=True, kw_only=True, dict=True):
    """What the examination finds about all candidates, in their order."""

    nodes: tuple[NodeExamination, ...]

    @cached_property
    def by_nodeclaim(self) -> Mapping[str, NodeExamination]:
        """The nodes by the name of their NodeClaim."""
        return {node.candidate.nodeclaim: node for node in self.nodes}

    @property
    def passing(self) -> tuple[NodeExamination, ...]:
        """The nodes for which a simulation may find a command."""
        return tuple(node for node in self.nodes if node.passes)


class FleetExaminer:
    """Examines nodes of one cluster, one after the other; reads the cluster once."""

    def __init__(self, simulation: Simulation, candidates: Iterable[Candidate], *, spot_to_spot: bool = False) -> None:
        """Prepare an examination; the cluster is read when the first node is examined.

        Args:
            simulation: The cluster.
            candidates: All nodes that will be examined.
            spot_to_spot: Whether Spot nodes may be replaced by Spot nodes (gate SpotToSpotConsolidation).
        """
        self._simulation = simulation
        self._candidates = tuple(candidates)
        self._spot_to_spot = spot_to_spot

    def examine(self, candidate: Candidate) -> NodeExamination:
        """Return what is found about one of the candidates, if only this node is removed."""
        return NodeExamination(candidate=candidate, verdict=Verdict.UNDECIDED)

    def examine_all(self) -> Iterator[NodeExamination]:
        """Yield what is found about each candidate, in their order; the caller may stop between any two."""
        for candidate in self._candidates:
            yield self.examine(candidate)


def examine(simulation: Simulation, candidates: Iterable[Candidate], *, spot_to_spot: bool = False) -> FleetExamination:
    """Return what is found about every candidate, each as if only that node is removed.

    Args:
        simulation: The cluster; nodes that it excludes (deleting, in commands, not initialized, within consolidateAfter)
            take no pods.
        candidates: The nodes to examine.
        spot_to_spot: Whether Spot nodes may be replaced by Spot nodes (gate SpotToSpotConsolidation).
    """
    return FleetExamination(nodes=tuple(FleetExaminer(simulation, candidates, spot_to_spot=spot_to_spot).examine_all()))
