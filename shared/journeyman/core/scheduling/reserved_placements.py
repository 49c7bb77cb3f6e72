"""Keeps pods on the pending NodeClaims created for them, so that the scheduler does not launch nodes for them twice.

These pods are part of the problem, but the scheduler places them first if they still fit their node. Constraints about
other pods may change while a node registers, so:

* pods with pod affinity, or with anti-affinity over a domain, are scheduled again, possibly onto the same node;
* pods with topology spread are placed one after the other, as kube-scheduler admits them beside those placed before: it
  compares the domains of nodes only, even if nodes could be launched in others. The rest is scheduled again.

Differs: Karpenter schedules every pending pod again on each pass, trying in-flight NodeClaims first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.scheduling.node_filling import NodeFilling
from journeyman.core.scheduling.nodeclaim_templates import planned_pods, promised_labels
from journeyman.core.scheduling.placement.topology_rules import Topology
from journeyman.core.scheduling.problem import ReservedPlacement, SchedulingProblem, SchedulingTask
from journeyman.core.scheduling.requirements import always_meets
from journeyman.core.scheduling.topology import spans_nodes
from journeyman.core.state.state_node import StateNode


def with_reserved_placements(task: SchedulingTask) -> SchedulingTask:
    """Return the same problem with the pods that stay on the NodeClaims created for them."""
    return replace(task, reserved=reserved_placements_of(task.problem))


def reserved_placements_of(problem: SchedulingProblem) -> tuple[ReservedPlacement, ...]:
    """Return the pods that stay on their NodeClaim, by node; each pod at most once.

    They use the row without preferences, because preferences were considered when their NodeClaim was planned.
    """
    waiting = [(n, node) for n, node in enumerate(problem.existing.nodes) if _planned_on(node)]
    if not waiting:
        return ()
    reserver = _PlacementReserver(problem)
    found = tuple(reserved for n, node in waiting for reserved in reserver.on(n, node))
    if not any(spans_nodes(spread.group) for entry in found for spread in problem.rows[entry.row].spreads):
        return found
    return tuple(_admitted(problem, found))


def _admitted(problem: SchedulingProblem, placements: Sequence[ReservedPlacement]) -> Iterator[ReservedPlacement]:
    """Yield the placements with as many pods as topology spread admits, in whatever order admits most."""
    topology = Topology(problem, {entry.row for entry in placements})
    admitted = [0] * len(placements)
    is_final = False
    while not is_final:
        before = sum(admitted)
        for index, entry in enumerate(placements):
            node_labels = problem.existing.nodes[entry.node].labels
            while admitted[index] < len(entry.keys) and topology.is_bindable(entry.row, node_labels):
                topology.counts.record_existing(entry.node, entry.row, 1)
                admitted[index] += 1
        is_final = sum(admitted) == before
    for entry, pods in zip(placements, admitted, strict=True):
        if pods:
            yield replace(entry, keys=entry.keys[:pods])


def may_block_others(problem: SchedulingProblem, reserved: Iterable[ReservedPlacement], classes: Iterable[int]) -> bool:
    """Whether pods of these classes might be schedulable without the reserved placements.

    They might be if a node with reserved placements has the capacity for them, if they must share a node with other
    pods, or if they have a topology constraint over domains, which depends on all pods.
    """
    nodes = sorted({entry.node for entry in reserved})
    filling = NodeFilling(problem.existing, problem.rows, problem.requests, problem.host_constraints)
    for row in (problem.last_level(c)[0] for c in classes):
        pods = problem.rows[row]
        keys = {rule.key for rules in (pods.spreads, pods.anti_affinities) for rule in rules}
        if pods.affinities or keys - {labels.HOSTNAME} or filling.open_to(row)[nodes].any():
            return True
    return False


def _planned_on(node: StateNode) -> tuple[str, ...]:
    if node.claim is None or node.registered:
        return ()
    return planned_pods(node.claim.metadata.annotations)


class _PlacementReserver:
    """Reserves placements; tracks the pods without one and the remaining capacity of each node."""

    def __init__(self, problem: SchedulingProblem) -> None:
        self._problem = problem
        self._rows = problem.rows
        self._filling = NodeFilling(problem.existing, problem.rows, problem.requests, problem.host_constraints)
        first = ((c, problem.rows[level_rows[0]]) for c, level_rows in enumerate(problem.levels))
        self._class_of = {pod.key: c for c, row in first for pod in row.pods}

    def on(self, n: int, node: StateNode) -> Iterator[ReservedPlacement]:
        """Yield the reserved placements of one node, by class."""
        by_class: dict[int, list[str]] = {}
        for key in dict.fromkeys(_planned_on(node)):
            if key in self._class_of:
                by_class.setdefault(self._class_of[key], []).append(key)
        for c, keys in by_class.items():
            row = self._problem.last_level(c)[0]
            if self._filling.has_capacity(row)[n] and self._suits(row, n, node) and self._may_stay(row, node):
                yield self._keep(row, n, keys[: self._filling.free_pods(row, [n])[0]])

    def _keep(self, row: int, n: int, keys: Sequence[str]) -> ReservedPlacement:
        self._filling.put(row, n, len(keys))
        for key in keys:
            del self._class_of[key]
        return ReservedPlacement(node=n, row=row, keys=tuple(keys))

    def _suits(self, row: int, n: int, node: StateNode) -> bool:
        """Whether the pods tolerate the node and its labels suit them; before launch, for every node it may become."""
        if self._filling.suits(row)[n]:
            return True
        if node.provider_id or not self._filling.accepts(row)[n]:
            return False
        promised = promised_labels(node)
        return any(always_meets(promised, term) for term in self._rows[row].node_terms)

    def _may_stay(self, row: int, node: StateNode) -> bool:
        """Whether no constraint between pods and no device requires scheduling them again."""
        pods = self._rows[row]
        if pods.claims or pods.affinities or any(group.key != labels.HOSTNAME for group in pods.anti_affinities):
            return False
        undecided = any(spread.key != labels.HOSTNAME and spread.key not in node.labels for spread in pods.spreads)
        if undecided and node.provider_id:
            return False  # a launched node lacks the label; before launch its domain is undecided
        return not any(  # the host_constraints cover constraints over the hostname
            node.labels.get(entry.group.key) in entry.domains and entry.group.counts(pods.namespace, pods.labels)
            for entry in self._problem.inverse_anti_affinities
        )
