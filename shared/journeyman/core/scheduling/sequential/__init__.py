"""Schedules pod by pod, as Karpenter does: each pod goes to the first candidate node that fits it.

The queue is sorted by size, then age. For each pod and relaxation level, candidates are tried in Karpenter's order:
existing nodes, then nodes planned in this pass with the fewest pods first, then a new node of the NodePools of greatest
weight. A pod that fits nowhere goes to the end of the queue, until a whole round places none.

This scheduler supports every constraint but considers one pod at a time. It schedules the pods that cannot be planned
in bulk (those that must share nodes, and those with devices). With few pods, its plan also competes with the bulk plan.

`placement` has the rules and counts, `candidate_nodes` the free capacity of each candidate, `pod_constraints` what one
row requires.

Restates: karpenter pkg/controllers/provisioning/scheduling/scheduler.go `Solve`, `trySchedule`; queue.go.
Differs: see the modules; results for equal pods, nodes or offerings are computed once. A pod that must share a node
with others is tried again right after one of them; Karpenter does not reorder it, and leaves it pending if that node is
full.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import Pod
from journeyman.core.api.resources import CPU, MEMORY
from journeyman.core.scheduling.arrays import every
from journeyman.core.scheduling.nodepool_options import NodeConstraints, NodeDemand
from journeyman.core.scheduling.problem import PartialSolution, SchedulingProblem
from journeyman.core.scheduling.results import EffortSpentError, MinValuesPolicy
from journeyman.core.scheduling.sequential.pod_constraints import PodTerms
from journeyman.core.scheduling.sequential.sequential_scheduler import SequentialScheduler, TieBreakPolicy
from journeyman.core.scheduling.topology import TopologyGroup, spans_nodes

__all__ = ["TieBreakPolicy", "schedule_sequentially"]

_KARPENTER: Final = TieBreakPolicy()


def schedule_sequentially(
    problem: SchedulingProblem,
    solution: PartialSolution,
    classes: Collection[int] | None = None,
    policy: TieBreakPolicy = _KARPENTER,
) -> PartialSolution:
    """Return the solution with its unscheduled pods on existing nodes, on its new nodes, and on additional nodes.

    Args:
        problem: The scheduling problem.
        solution: The plan so far.
        classes: The classes whose pods are scheduled, by default all.
        policy: The tie-break policy; if it leaves pods unscheduled, other policies are tried.
    """
    chosen = [c for c in (range(len(solution.left)) if classes is None else sorted(classes)) if solution.left[c]]
    if not chosen:
        return solution
    queue = _in_queue_order(problem, solution, chosen)
    attempt = _best_attempt(PodTerms(problem), solution, queue, policy)
    placed = attempt.scheduler.added_to(solution)
    left, reasons = list(solution.left), dict(solution.reasons)
    for c in chosen:
        left[c] = attempt.left.count(c)
        claims = problem.rows[problem.levels[c][0]].claims
        if claims and left[c] and placed.allocator is not None:
            reasons[c] = placed.allocator.explain(claims)
    return replace(placed, left=left, reasons=reasons)


class _SequentialAttempt(Struct, frozen=True):
    """The solution after one attempt, and the classes of the pods left, one entry per pod."""

    scheduler: SequentialScheduler
    left: Sequence[int]

    @classmethod
    def at(
        cls, terms: PodTerms, solution: PartialSolution, queue: Sequence[int], policy: TieBreakPolicy
    ) -> _SequentialAttempt:
        """Schedule a queue of pods, given by their classes."""
        problem = terms.problem
        problem.spend_on(set(queue))
        active = [row for c in sorted(set(queue)) for row in problem.levels[c]]
        scheduler = SequentialScheduler(terms, solution, active, policy)
        left = _place_queue(problem, scheduler, queue)
        if policy.reserve_largest_type:
            scheduler.reserve_cheapest_types()
            left = _place_queue(problem, scheduler, left)
        return cls(scheduler, left)


def _best_attempt(
    terms: PodTerms, solution: PartialSolution, queue: Sequence[int], policy: TieBreakPolicy
) -> _SequentialAttempt:
    """Return an attempt with the policy, or if it leaves pods, with that of others which leaves fewest."""
    best = _SequentialAttempt.at(terms, solution, queue, policy)
    with suppress(EffortSpentError):
        for better in _better_attempts(terms, solution, queue, policy, best):
            best = better
    return best


def _better_attempts(
    terms: PodTerms,
    solution: PartialSolution,
    queue: Sequence[int],
    policy: TieBreakPolicy,
    best: _SequentialAttempt,
) -> Iterator[_SequentialAttempt]:
    """Yield attempts that leave fewer pods than `best` and those yielded before. Raises EffortSpentError."""
    problem = terms.problem
    for change, may_help in FALLBACK_POLICIES.items():
        if best.left and not getattr(policy, change) and may_help(problem, best):
            other = replace(policy, **{change: True})
            attempt = _SequentialAttempt.at(terms, solution, queue, other)
            if len(attempt.left) < len(best.left):
                best, policy = attempt, other
                yield best
    for reordered in QUEUE_ORDERS:
        order = reordered(problem, queue, best.left)
        attempt = _SequentialAttempt.at(terms, solution, order, policy) if order else best
        if len(attempt.left) < len(best.left):
            best = attempt
            yield best
    if best.left and used_reservations(problem, best):  # last, as plans without them cost more
        attempt = _SequentialAttempt.at(terms, solution, queue, replace(policy, avoid_reservations=True))
        if len(attempt.left) < len(best.left):
            yield attempt


def _left_first(_: SchedulingProblem, queue: Sequence[int], left: Sequence[int]) -> list[int]:
    """Return the queue with the classes of unscheduled pods first; empty if that changes nothing."""
    unscheduled = set(left)
    order = [*(c for c in queue if c in unscheduled), *(c for c in queue if c not in unscheduled)]
    return order if order != list(queue) else []


def _most_left_first(_: SchedulingProblem, queue: Sequence[int], left: Sequence[int]) -> list[int]:
    """Return the queue with the classes first of which most pods are left: one pod may exclude many behind it.

    Empty if equally many are left of each.
    """
    unscheduled = Counter(left)
    return sorted(queue, key=lambda c: -unscheduled[c]) if len(set(unscheduled.values())) > 1 else []


def _has_domain_anti_affinity(problem: SchedulingProblem, attempt: _SequentialAttempt) -> bool:
    rows = [row for c in sorted(set(attempt.left)) for row in problem.levels[c]]
    return any(attempt.scheduler.has_domain_anti_affinity(row) for row in rows)


def used_reservations(_: SchedulingProblem, attempt: _SequentialAttempt) -> bool:
    """Whether the attempt has nodes on reserved capacity."""
    return attempt.scheduler.reserved > 0


def _has_best_effort_min_values(problem: SchedulingProblem, _: _SequentialAttempt) -> bool:
    has_min_values = any(pool.template.min_values for pool in problem.pools)
    return has_min_values and problem.options.min_values is MinValuesPolicy.BEST_EFFORT


def _has_alternatives(problem: SchedulingProblem, _: _SequentialAttempt) -> bool:
    return any(len(row.terms) > 1 for row in problem.rows)  # of any pod: an unscheduled pod may have to join it


def _must_share_nodes(problem: SchedulingProblem, attempt: _SequentialAttempt) -> bool:
    return any(_hostname_affinities(problem, c) for c in set(attempt.left)) and bool(problem.existing.nodes)


def _is_limited(_: SchedulingProblem, attempt: _SequentialAttempt) -> bool:
    return attempt.scheduler.is_limited


FALLBACK_POLICIES: Mapping[str, Callable[[SchedulingProblem, _SequentialAttempt], bool]] = {
    "bind_anti_affinity_domains": _has_domain_anti_affinity,
    "prefer_largest_reservation": used_reservations,
    "ignore_type_variety": _has_best_effort_min_values,
    "prefer_last_alternative": _has_alternatives,
    "prefer_nodes_for_followers": _must_share_nodes,
    "reserve_largest_type": _is_limited,
}


def _in_queue_order(problem: SchedulingProblem, solution: PartialSolution, classes: Sequence[int]) -> list[int]:
    """Return the class of every pod to schedule: largest pods first, then oldest, then those with the fewest choices.

    Of equal pods, those that accept the fewest existing nodes go first, then (if pods must share nodes) those that
    spread over nodes, then those with the most preferred topology groups, because the others can join them on their
    nodes.
    """
    some_share_nodes = any(_hostname_affinities(problem, c) for c in classes)
    queue = []
    for c in classes:
        cls = problem.rows[problem.levels[c][0]]
        size = (-cls.requests.get(CPU, 0), -cls.requests.get(MEMORY, 0))
        accepted_nodes = int(problem.existing.columns.meeting(cls.node_terms).sum()) if problem.existing.nodes else 0
        keeps_off = some_share_nodes and any(not spans_nodes(spread.group) for spread in cls.spreads)
        choices = (accepted_nodes, not keeps_off, -len(cls.preferred_groups))
        queue += [
            (*size, _age(pod), *choices, pod.metadata.uid, pod.key, c)
            for pod in cls.pods[len(cls.pods) - solution.left[c] :]
        ]
    queue.sort()
    return [entry[-1] for entry in queue]


def _age(pod: Pod) -> float:
    created = pod.metadata.creation_timestamp
    return created.timestamp() if created is not None else 0.0


def _place_queue(problem: SchedulingProblem, scheduler: SequentialScheduler, queue: Iterable[int]) -> Sequence[int]:
    """Schedule the queue, retrying failed pods until a whole round schedules none; return the pods left.

    Pods of one class are equal: if no pod was scheduled since one of them failed, the next fails too.
    """
    waiting = deque(queue)
    placed = failures = 0
    failed_after: dict[int, int] = {}
    while failures < len(waiting):
        c = waiting.popleft()
        if failed_after.get(c) != placed and any(_schedule(problem, scheduler, row) for row in problem.levels[c]):
            placed += 1
            failures = 0
        else:
            failed_after[c] = placed
            failures += 1
            waiting.append(c)
    return waiting


def _schedule(problem: SchedulingProblem, scheduler: SequentialScheduler, row: int) -> bool:
    """Schedule one pod of a row, and spend the effort of comparing its terms with the candidates."""
    cls = problem.rows[row]
    domains = _PER_RULE * (len(cls.spreads) + len(cls.affinities) + len(cls.anti_affinities) + scheduler.rules(row))
    problem.effort.spend(len(cls.terms) * (_PER_POD + scheduler.size // _CANDIDATES_PER_UNIT + domains))
    return scheduler.schedule(row)


# Effort in microseconds, measured and rounded.
_PER_POD: Final = 15
_PER_RULE: Final = 2
_CANDIDATES_PER_UNIT: Final = 100


def behind_leaders(problem: SchedulingProblem, queue: Sequence[int], left: Sequence[int]) -> list[int]:
    """Return the queue (of classes) with the unscheduled ones first, each right after the pods that it must join.

    Empty if no unscheduled pod must join another pod of the queue.
    """
    groups_by_class = {c: groups for c in dict.fromkeys(left) if (groups := _hostname_affinities(problem, c))}
    if not groups_by_class:
        return []
    waiting, moved = Counter(queue), Counter[int]()
    order: list[int] = []
    for c, groups in groups_by_class.items():
        for group in groups:
            counted = {problem.class_of_row[row] for row in problem.row_index.counted_by(group)} - {c}
            leader = next((d for d in queue if d in counted and moved[d] < waiting[d]), None)
            if leader is not None:
                moved[leader] += 1
                order.append(leader)
        order += [c] * (waiting[c] - moved[c])
        moved[c] = waiting[c]
    return [*order, *_without_moved(queue, moved)] if moved.keys() - groups_by_class.keys() else []


def _hostname_affinities(problem: SchedulingProblem, c: int) -> list[TopologyGroup]:
    """Return the groups of which the class requires a pod on the same node, without its preferences."""
    return [group for group in problem.rows[problem.last_level(c)[0]].affinities if group.key == labels.HOSTNAME]


def _without_moved(queue: Sequence[int], moved: Counter[int]) -> Iterator[int]:
    taken = moved.copy()
    for c in queue:
        if taken[c]:
            taken[c] -= 1
        else:
            yield c


def in_turns(problem: SchedulingProblem, queue: Sequence[int], _: Sequence[int]) -> list[int]:
    """Return the queue (of classes) with one pod of each class in turn, the classes with the fewest offerings first.

    So no class uses up the pods that a topology spread allows in the domains that another class needs. Empty if there
    is only one class.
    """
    waiting = Counter(queue)
    if len(waiting) < 2:
        return []
    classes = sorted(waiting, key=lambda c: _offerings_for(problem, c))
    return [c for turn in range(max(waiting.values())) for c in classes if turn < waiting[c]]


def _offerings_for(problem: SchedulingProblem, c: int) -> int:
    """Return the number of offerings that hold a pod of the class, without its preferences."""
    row = problem.last_level(c)[0]
    demand = NodeDemand(NodeConstraints.of(problem.rows[row]))
    holding = (
        pool.rows(demand) & every(pool.sizes >= problem.requests[row])[pool.template.table.row_type]
        for pool in problem.pools
    )
    return sum(int(rows.sum()) for rows in holding)


QUEUE_ORDERS: Final = (behind_leaders, _left_first, _most_left_first, in_turns)
"""Functions that reorder the queue for a retry if pods are left; each returns an empty list if nothing changes."""
