"""Schedules whole pod classes at once: domains, existing nodes, then new nodes packed by price.

The sequential scheduler first places the pods that must share a node with others. Every other class then gets its
topology domains (`domain_assignment`), fills existing nodes (`node_filling`), and is packed onto new nodes
(`new_nodes`). Domains are chosen before NodePool limits are applied. If limits leave fewer pods in a domain than were
assigned to it, planning starts again, and the sequential scheduler, which applies the exact rules, places those
classes. It finally tries all pods that remain.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from msgspec.structs import replace

from journeyman.core.scheduling.domain_assignment import assign_domains
from journeyman.core.scheduling.new_nodes import plan_new_nodes
from journeyman.core.scheduling.node_filling import NodeFilling
from journeyman.core.scheduling.problem import PartialSolution, SchedulingProblem, SchedulingTask
from journeyman.core.scheduling.sequential import schedule_sequentially
from journeyman.core.scheduling.topology import SpreadChoice

_ATTEMPTS: Final = 2  # after them, all classes are scheduled sequentially
MOST_CO_LOCATED: Final = 2000  # pods; if more must share nodes, they are placed last, on the capacity that remains


def schedule_in_bulk(task: SchedulingTask, spread_choice: SpreadChoice = SpreadChoice.EMPTIEST) -> PartialSolution:
    """Return a plan for as many pods as possible."""
    problem = task.problem
    co_located = problem.co_located_classes()
    sequential_only = frozenset(co_located)
    for _ in range(_ATTEMPTS):
        solution = _with_co_located(task, co_located, spread_choice)
        solution, short = _place_classes(problem, solution, sequential_only)
        if not short:
            return schedule_sequentially(problem, solution)
        sequential_only |= short
    return schedule_sequentially(problem, _with_co_located(task, co_located, spread_choice))


def _with_co_located(task: SchedulingTask, co_located: Collection[int], spread_choice: SpreadChoice) -> PartialSolution:
    """Return a solution with the pods of these classes, unless they are too many to go first."""
    problem = task.problem
    problem.spend_on(range(len(problem.counts)))
    solution = replace(task.initial_solution(), spread_choice=spread_choice)
    if sum(problem.counts[c] for c in co_located) > MOST_CO_LOCATED:
        return solution
    return schedule_sequentially(problem, solution, co_located)


def _place_classes(
    problem: SchedulingProblem, solution: PartialSolution, excluded: frozenset[int]
) -> tuple[PartialSolution, frozenset[int]]:
    """Place all other classes; return the solution, and the classes of which a domain got fewer pods than assigned."""
    filling = NodeFilling(
        problem.existing, problem.rows, problem.requests, problem.host_constraints, solution.on_existing
    )
    assigned = assign_domains(problem, solution, filling, excluded)
    batches = assigned.batches
    if filling.existing.nodes:
        batches = tuple(replace(b, count=filling.fill(b.row, b.count, b.decided)) for b in batches)
    new_nodes = plan_new_nodes(batches, problem, solution.headroom, solution.reservations)
    unscheduled = [n - assigned.on_existing.get(c, 0) for c, n in enumerate(solution.left)]
    for batch in assigned.batches:
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
    return placed, frozenset(problem.class_of_row[batch.row] for batch in new_nodes.left if batch.is_quota)
