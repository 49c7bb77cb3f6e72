"""Examines every node of a fleet: can it be deleted, can one cheaper node replace it, or why does it stay.

A simulation of the scheduler answers that for one node in tens of milliseconds, which is too long for each of thousands of
nodes. The examination reads the cluster once, as the scheduler's own columns and masks, takes one node away at a time,
moves its pods to the other nodes under all their rules, and undoes that cell by cell. What it finds is a filter: a command
is only proposed after `consolidation.compute_consolidation` has confirmed it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from math import inf
from typing import Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.resources import format_amount
from journeyman.core.disruption.candidates import Candidate
from journeyman.core.disruption.consolidation import MIN_SPOT_TO_SPOT_TYPES
from journeyman.core.disruption.simulation import Simulation
from journeyman.core.scheduling.node_removal import NODE_CONSTRAINTS, NodeRemovals, Removal, Shortage
from journeyman.core.scheduling.pod_classes import RowPods

SMALLEST_PRICE: Final = 0.00005  # per hour; messages have four decimals

__all__ = [
    "SMALLEST_PRICE",
    "FleetExamination",
    "FleetExaminer",
    "NodeExamination",
    "NodeVerdict",
    "Shortage",
    "examine",
]


class NodeVerdict(str, Enum):
    """What the examination finds about one node."""

    DELETABLE = "deletable"
    """The other nodes have capacity for its pods."""
    REPLACEABLE = "replaceable"
    """One cheaper new node takes the pods for which the other nodes have no capacity."""
    UNDECIDED = "undecided"
    """Only a simulation decides: pods have rules that the examination does not evaluate, or might fit without a preference."""
    STAYS = "stays"
    """Some pods have no capacity on the other nodes, and no single cheaper node takes them."""


class NodeExamination(Struct, frozen=True, kw_only=True):
    """What the examination finds about one node.

    Attributes:
        candidate: The node.
        verdict: Whether it can be deleted or replaced.
        shadow_value: The price per hour of what only this node provides: that of the cheapest single new node for the pods
            that have no capacity elsewhere. 0.0 if all have capacity, infinite if no single new node takes them.
        shortage: The first class without enough capacity, in the order in which pods are scheduled; None if there is none.
        is_proven: Whether counting each class alone already gives the verdict that the node stays; otherwise the scheduler's
            own order of placing the pods does, and another order might not.
        error: Why no node can run one of the pods; empty if each has a node that can.
    """

    candidate: Candidate
    verdict: NodeVerdict
    shadow_value: float = 0.0
    shortage: Shortage | None = None
    is_proven: bool = False
    error: str = ""

    @property
    def why_not(self) -> str:
        """Why no command can remove the node, as text; empty if a simulation may find one."""
        if self.passes:
            return ""
        short = self.shortage
        assert short is not None  # noqa: S101 - a node stays because of some pods
        if self.error:
            return f"not all pods would schedule, pod {short.pod}: {self.error}"
        others = _what_is_short(short)
        if self.shadow_value == inf:
            return f"Can't remove it: {others}, and no single new node takes all such pods"
        if not self.price:
            return f"Can't replace with a cheaper node: {others}, and the price of this node is unknown"
        excess = self.shadow_value - self.price
        more = f", {excess:.4f} more" if excess >= SMALLEST_PRICE else ""
        return (
            f"Can't replace with a cheaper node: {others}, and the cheapest node for all such pods costs "
            f"{self.shadow_value:.4f} per hour{more}, this one {self.price:.4f}"
        )

    @property
    def price(self) -> float:
        """The price of the node per hour."""
        return self.candidate.price

    @property
    def passes(self) -> bool:
        """Whether a simulation may find a command for it."""
        return self.verdict is not NodeVerdict.STAYS

    @property
    def saving(self) -> float:
        """The price per hour that goes with the node, if a command is found; never negative."""
        return max(self.price - self.shadow_value, 0.0)


def _what_is_short(short: Shortage) -> str:
    if short.resource == NODE_CONSTRAINTS:
        return f"no other node may run pod {short.pod}"
    if not short.amount:
        return f"the other nodes do not meet the {short.resource} of pod {short.pod}"
    amount = format_amount(short.resource, short.amount)
    return f"the other nodes lack {amount} {short.resource} for pod {short.pod}, at least (Node {short.node})"


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
    """Examines nodes of one cluster, one after the other; reads the cluster once, when it examines the first."""

    def __init__(self, simulation: Simulation, candidates: Iterable[Candidate], *, spot_to_spot: bool = False) -> None:
        """Prepare an examination.

        Args:
            simulation: The cluster.
            candidates: All nodes that will be examined.
            spot_to_spot: Whether Spot nodes may be replaced by Spot nodes (gate SpotToSpotConsolidation).
        """
        self._simulation = simulation
        self._candidates = tuple(candidates)
        self._spot_to_spot = spot_to_spot

    @cached_property
    def _removals(self) -> NodeRemovals:
        return self._simulation.removals(self._candidates)

    def examine(self, candidate: Candidate) -> NodeExamination:
        """Return what is found about one of the candidates, if only this node is removed."""
        removals = self._removals
        failed = removals.first_error(candidate.node)
        if failed is not None:
            pod, error = failed
            shortage = Shortage(pod=pod, pods=1, without_capacity=1, resource=error.kind)
            return NodeExamination(
                candidate=candidate,
                verdict=NodeVerdict.STAYS,
                shadow_value=inf,
                shortage=shortage,
                is_proven=True,
                error=error.message,
            )
        if not removals.is_evaluated(candidate.node):
            return NodeExamination(candidate=candidate, verdict=NodeVerdict.UNDECIDED)
        removal = removals.remove(candidate.node)
        if not removal.left:
            return NodeExamination(candidate=candidate, verdict=NodeVerdict.DELETABLE)
        value = self._lowest_price(candidate, removal.left, removal.domains)
        is_replaceable = value < candidate.price and self._has_enough_types(candidate, removal)
        is_proven = bool(removal.least) and self._lowest_price(candidate, removal.least) >= candidate.price
        if value == inf and not is_proven and removals.have_preferences(removal.left):
            return NodeExamination(candidate=candidate, verdict=NodeVerdict.UNDECIDED)
        return NodeExamination(
            candidate=candidate,
            verdict=NodeVerdict.REPLACEABLE if is_replaceable else NodeVerdict.STAYS,
            shadow_value=value,
            shortage=removal.shortage,
            is_proven=is_proven,
        )

    def examine_all(self) -> Iterator[NodeExamination]:
        """Yield what is found about each candidate, in their order; the caller may stop between any two."""
        for candidate in self._candidates:
            yield self.examine(candidate)

    def _lowest_price(
        self,
        candidate: Candidate,
        pods: Sequence[RowPods],
        domains: Sequence[Mapping[str, Collection[str]]] = (),
    ) -> float:
        """Return the lowest price of one new node for these pods; infinite if none takes them."""
        without = (labels.SPOT,) if candidate.capacity_type == labels.SPOT and not self._spot_to_spot else ()
        price = self._removals.prices.of(pods, domains, without=without)
        return inf if price is None else price

    def _has_enough_types(self, candidate: Candidate, removal: Removal) -> bool:
        """Whether enough Spot types are cheaper than a Spot node, or a node that is not Spot is."""
        if candidate.capacity_type != labels.SPOT or not self._spot_to_spot:
            return True
        prices, pods, domains = self._removals.prices, removal.left, removal.domains
        if prices.cheaper_types(pods, domains, candidate.price, only=labels.SPOT) >= MIN_SPOT_TO_SPOT_TYPES:
            return True
        price = prices.of(pods, domains, without=(labels.SPOT,))
        return price is not None and price < candidate.price


def examine(simulation: Simulation, candidates: Iterable[Candidate], *, spot_to_spot: bool = False) -> FleetExamination:
    """Return what is found about every candidate, each as if only that node is removed.

    Args:
        simulation: The cluster; nodes that it excludes (deleting, in commands, not initialized, within consolidateAfter)
            take no pods.
        candidates: The nodes to examine.
        spot_to_spot: Whether Spot nodes may be replaced by Spot nodes (gate SpotToSpotConsolidation).
    """
    return FleetExamination(nodes=tuple(FleetExaminer(simulation, candidates, spot_to_spot=spot_to_spot).examine_all()))
