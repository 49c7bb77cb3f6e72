"""Keeps pods on the pending NodeClaims that were created for them, so that one burst is not provisioned for twice.

These pods are part of the problem like all others, but they are placed first, as far as their node still takes them.
Rules about other pods may change while a node joins, so:

* pods with affinity to others, or with anti-affinity over a domain, are scheduled anew, and may get the same node;
* topology spread is judged once all others are placed (`scheduler.no_longer_balanced`): kube-scheduler admits the pods
  if they are level with the domains in which nodes stand, even if further domains could be launched by then.

Differs: Karpenter schedules every pending pod anew on each pass, in-flight NodeClaims first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.scheduling.node_filling import NodeFilling
from journeyman.core.scheduling.nodeclaim_templates import planned_pods
from journeyman.core.scheduling.problem import ReservedPlacement, SchedulingProblem, SchedulingTask
from journeyman.core.scheduling.requirements import (
    EMPTY,
    InvalidRequirementError,
    Requirements,
    from_labels,
    from_selectors,
)
from journeyman.core.state.state_node import StateNode


def with_reserved_placements(task: SchedulingTask) -> SchedulingTask:
    """Return the same problem with the pods that stay on the NodeClaims created for them."""
    return replace(task, reserved=reserved_placements_of(task.problem))


def reserved_placements_of(problem: SchedulingProblem) -> tuple[ReservedPlacement, ...]:
    """The pods that keep their places, by node; each of them once.

    They are kept as what they insist on: what else they wished for was settled when their claim was opened.
    """
    waiting = [(n, node) for n, node in enumerate(problem.existing.nodes) if _planned_on(node)]
    if not waiting:
        return ()
    keeping = _PlacementReserver(problem)
    return tuple(reserved for n, node in waiting for reserved in keeping.on(n, node))


def may_block_others(problem: SchedulingProblem, reserved: Iterable[ReservedPlacement], classes: Iterable[int]) -> bool:
    """Whether pods of these classes might have a place if no pod were kept.

    Such a node has the capacity for them; or a rule of theirs is about domains, where all has a say.
    """
    nodes = sorted({entry.node for entry in reserved})
    filling = NodeFilling(problem.existing, problem.rows, problem.requests, problem.host_constraints)
    for row in (problem.levels[c][-1] for c in classes):
        pods = problem.rows[row]
        keys = {rule.key for rules in (pods.spreads, pods.affinities, pods.anti_affinities) for rule in rules}
        if keys - {labels.HOSTNAME} or filling.open_to(row)[nodes].any():
            return True
    return False


def _planned_on(node: StateNode) -> tuple[str, ...]:
    if node.claim is None or node.registered:
        return ()
    return planned_pods(node.claim.metadata.annotations)


class _PlacementReserver:
    """The pods that are not kept yet, and the capacity that the kept ones leave."""

    def __init__(self, problem: SchedulingProblem) -> None:
        self._problem = problem
        self._rows = problem.rows
        self._filling = NodeFilling(problem.existing, problem.rows, problem.requests, problem.host_constraints)
        first = ((c, problem.rows[level_rows[0]]) for c, level_rows in enumerate(problem.levels))
        self._class_of = {pod.key: c for c, row in first for pod in row.pods}

    def on(self, n: int, node: StateNode) -> Iterator[ReservedPlacement]:
        """What one node keeps, class by class."""
        by_class: dict[int, list[str]] = {}
        for key in dict.fromkeys(_planned_on(node)):
            if key in self._class_of:
                by_class.setdefault(self._class_of[key], []).append(key)
        for c, keys in by_class.items():
            row = self._problem.levels[c][-1]
            if self._filling.has_room(row)[n] and self._suits(row, n, node) and self._may_stay(row, node):
                yield self._keep(row, n, keys[: self._filling.free_pods(row, [n])[0]])

    def _keep(self, row: int, n: int, keys: Sequence[str]) -> ReservedPlacement:
        self._filling.put(row, n, len(keys))
        for key in keys:
            del self._class_of[key]
        return ReservedPlacement(node=n, row=row, keys=tuple(keys))

    def _suits(self, row: int, n: int, node: StateNode) -> bool:
        """Whether the pods tolerate the node and its labels suit them; before launch, whatever its claim may become."""
        if self._filling.suits(row)[n]:
            return True
        if node.provider_id or not self._filling.accepts(row)[n]:
            return False
        promised = _promised(node)
        return any(_always_meets(promised, term) for term in self._rows[row].node_terms)

    def _may_stay(self, row: int, node: StateNode) -> bool:
        """Whether no rule between pods, and no device, makes them look for a node anew."""
        pods = self._rows[row]
        if pods.claims or pods.affinities or any(group.key != labels.HOSTNAME for group in pods.anti_affinities):
            return False
        undecided = any(spread.key != labels.HOSTNAME and spread.key not in node.labels for spread in pods.spreads)
        if undecided and node.provider_id:
            return False  # before launch it is no pod's turn to judge
        return not any(  # about host names the caps know
            node.labels.get(entry.group.key) in entry.domains and entry.group.counts(pods.namespace, pods.labels)
            for entry in self._problem.repelled
        )


def _promised(node: StateNode) -> Requirements:
    """What a claim that is yet to be launched says of its node's labels."""
    try:
        task = from_selectors(node.claim.spec.requirements) if node.claim is not None else EMPTY
        return task & from_labels(node.labels)
    except InvalidRequirementError:  # edited by hand
        return EMPTY


def _always_meets(promised: Requirements, term: Requirements) -> bool:
    """Whether a node meets a term whatever its labels turn out to be."""
    for key, wanted in term.items():
        known = promised.get(key)
        if known is None:
            if not wanted.allows_absence:
                return False
        elif known.complement or not known.values or not all(wanted.has(value) for value in known.values):
            return False
    return True
