"""Schedules whole pod classes at once: domains, existing nodes, then new nodes packed by price.

The sequential scheduler first places the pods that must share a node with others. Every other class then gets its
topology domains (`domain_assignment`), fills existing nodes (`node_filling`), and is packed onto new nodes
(`new_nodes`). Domains are chosen before NodePool limits are applied. If a limit leaves fewer pods in a domain than were
assigned to it, planning starts again with that number as the domain's ceiling. The sequential scheduler, which applies
the exact rules, finally tries the pods that remain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.scheduling.domain_assignment import assign_domains
from journeyman.core.scheduling.new_nodes import plan_new_nodes
from journeyman.core.scheduling.node_filling import NodeFilling
from journeyman.core.scheduling.problem import PartialSolution, PodBatch, RowDomains, SchedulingProblem, SchedulingTask
from journeyman.core.scheduling.sequential import schedule_sequentially
from journeyman.core.scheduling.topology import SpreadChoice, TopologyGroup

ATTEMPTS: Final = 5  # after them, classes whose quotas could not be met are scheduled sequentially
_MOST_ATTEMPTS: Final = 8  # after them, all classes are scheduled sequentially
MOST_CO_LOCATED: Final = 2000  # pods; if more must share nodes, they are placed last, on the capacity that remains

Ceilings = dict[RowDomains, int]
"""The most pods of a row that may be assigned to a combination of domains."""


def schedule_in_bulk(task: SchedulingTask, spread_choice: SpreadChoice = SpreadChoice.EMPTIEST) -> PartialSolution:
    """Return a plan for as many pods as possible."""
    problem = task.problem
    co_located = co_located_classes(problem)
    first = co_located if sum(problem.counts[c] for c in co_located) <= MOST_CO_LOCATED else ()
    sequential_only = frozenset(co_located)
    ceilings: Ceilings = {}
    attempt = 1
    while True:
        problem.spend_on(range(len(problem.counts)))
        solution = replace(task.initial_solution(), ceilings=ceilings, spread_choice=spread_choice)
        if first:
            solution = schedule_sequentially(problem, solution, first)
        solution, unmet = _place_classes(problem, solution, sequential_only)
        if not unmet:
            return schedule_sequentially(problem, solution)
        if attempt < ATTEMPTS:
            ceilings = _lowered_ceilings(unmet, ceilings, give_up=attempt == ATTEMPTS - 1)
        elif attempt < _MOST_ATTEMPTS:
            sequential_only |= {problem.class_of_row[destination.row] for destination in unmet}
        else:
            sequential_only = frozenset(range(len(problem.counts)))
        attempt += 1


def co_located_classes(problem: SchedulingProblem) -> tuple[int, ...]:
    """Return the classes that only the sequential scheduler can place, ascending.

    These are pods with ResourceClaims, which compete for devices, and pods on either side of an affinity over
    hostnames.
    """
    groups: dict[bytes, TopologyGroup] = {}
    co_located: set[int] = set()
    for row in (row for level_rows in problem.levels for row in level_rows):
        cls = problem.rows[row]
        if cls.claims:
            co_located.add(problem.class_of_row[row])
        for group in cls.affinities:
            if group.key == labels.HOSTNAME:
                groups[group.id] = group
                co_located.add(problem.class_of_row[row])
    if groups:
        counted = problem.row_index.counted_by
        co_located.update(problem.class_of_row[row] for group in groups.values() for row in counted(group))
    return tuple(sorted(co_located))


def _place_classes(
    problem: SchedulingProblem, solution: PartialSolution, excluded: frozenset[int]
) -> tuple[PartialSolution, Ceilings]:
    """Place all other classes; return the solution, and the pods placed for each quota that was not met."""
    filling = NodeFilling(
        problem.existing, problem.rows, problem.requests, problem.host_constraints, solution.on_existing
    )
    assigned = assign_domains(problem, solution, filling, excluded)
    batches = assigned.batches
    new_nodes = plan_new_nodes(
        _fill_existing_nodes(batches, filling), problem, solution.headroom, solution.reservations
    )
    unscheduled = [n - assigned.on_existing.get(c, 0) for c, n in enumerate(solution.left)]
    for batch in batches:
        unscheduled[problem.class_of_row[batch.row]] -= batch.count
    for batch in new_nodes.left:
        unscheduled[problem.class_of_row[batch.row]] += batch.count
    placed = replace(
        solution,
        left=unscheduled,
        headroom=new_nodes.headroom,
        reservations=new_nodes.reservations,
        on_existing=filling.taken,
        new_nodes=(*solution.new_nodes, *new_nodes.nodes),
        reasons={**solution.reasons, **assigned.reasons},
    )
    return placed, _unmet_quotas(batches, new_nodes.left) if new_nodes.left else {}


def _unmet_quotas(batches: Sequence[PodBatch], left: Sequence[PodBatch]) -> Ceilings:
    """Return, for each quota with pods left, the number of pods placed."""
    requested, remaining = _pods_by_destination(batches), _pods_by_destination(left)
    quotas = dict.fromkeys(batch.destination for batch in batches if batch.is_quota)
    return {
        destination: requested[destination] - remaining[destination] for destination in quotas if remaining[destination]
    }


def _pods_by_destination(batches: Sequence[PodBatch]) -> Counter[RowDomains]:
    pods = Counter[RowDomains]()
    for batch in batches:
        pods[batch.destination] += batch.count
    return pods


def _fill_existing_nodes(batches: Sequence[PodBatch], filling: NodeFilling) -> Sequence[PodBatch]:
    """Fill existing nodes, and return the batches with the pods that did not fit there."""
    if not filling.existing.nodes:
        return batches
    return [replace(batch, count=filling.fill(batch.row, batch.count, batch.pins)) for batch in batches]


def _lowered_ceilings(unmet: Ceilings, ceilings: Ceilings, *, give_up: bool) -> Ceilings:
    """Return the ceilings for the next attempt: for unmet quotas the pods that were placed, or 0 with `give_up`."""
    return {**ceilings, **(dict.fromkeys(unmet, 0) if give_up else unmet)}
