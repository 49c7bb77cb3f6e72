"""Schedules pods: computes several plans, returns the best one, and explains unschedulable pods.

`Scheduler.solve` runs in this order:

1. `problem.prepare_task` groups pods into classes, each with its relaxation levels, and measures the existing nodes.
2. `reserved_placements` keeps pods on the pending NodeClaims that were created for them.
3. `bulk_scheduling` plans whole classes: domains first, then existing nodes, then new nodes packed by price.
4. With few pods, topology spread may also use cheaper domains (`spread_choices`), classes whose preference to share
   nodes is not met anyway are also planned in bulk (`without_lost_preferences`), and `sequential` plans pod by pod as
   Karpenter does, once for each tie-break policy. The plan with the fewest unschedulable pods wins, then the cheapest,
   then the one with the fewest nodes.
5. `instance_type_choice` lists for every new node the suitable instance types with nearly the same price.
6. `price_lower_bound` computes a lower bound of the price. `explained` explains unschedulable pods, later and with an
   effort of its own.

A pass has an effort budget: a count of its work, which the caller derives from the time it has. If the effort does not
suffice to improve a plan, the best plan so far is returned. If it does not suffice for any plan, the pods whose
constraints are most expensive to evaluate get the error `unreached`, and the others are scheduled with a part of the
effort.

The same snapshot, catalogue and effort always give the same results, byte for byte.

Restates: karpenter pkg/controllers/provisioning/provisioner.go `Schedule`, scheduling/scheduler.go `Solve`.
Differs: NodePools of equal weight compete on price, and several plans compete with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api.objects import Pod
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.bulk_scheduling import schedule_in_bulk
from journeyman.core.scheduling.daemon_overhead import Daemon
from journeyman.core.scheduling.instance_type_choice import planned_nodeclaims
from journeyman.core.scheduling.left_out_daemons import describe_left_out, leaving_out, left_out_daemons
from journeyman.core.scheduling.new_nodes import PackingItems
from journeyman.core.scheduling.nodepool_options import compatible_offerings, worth_considering
from journeyman.core.scheduling.offerings import Reservations
from journeyman.core.scheduling.packing import lower_bound
from journeyman.core.scheduling.placement.topology_rules import Topology
from journeyman.core.scheduling.pod_classes import BYTES_PER_UNIT, constraint_bytes
from journeyman.core.scheduling.preferences import preference_warnings
from journeyman.core.scheduling.problem import (
    ClusterInputs,
    PartialSolution,
    PlannedNode,
    PodBatch,
    ReservedPlacement,
    SchedulingProblem,
    SchedulingTask,
    estimated_work,
    last_level,
    prepare_task,
)
from journeyman.core.scheduling.reserved_placements import may_block_others, with_reserved_placements
from journeyman.core.scheduling.results import (
    NOT_EXPLAINED,
    UNLIMITED,
    ChosenPlan,
    Effort,
    EffortSpentError,
    LeftOutDaemons,
    MinValuesPolicy,
    Options,
    PlannedClaim,
    PlannedDevice,
    PlanSummary,
    PodError,
    PreferencePolicy,
    Results,
)
from journeyman.core.scheduling.sequential import TieBreakPolicy, schedule_sequentially
from journeyman.core.scheduling.topology import SpreadChoice, spans_nodes
from journeyman.core.scheduling.volumes import describe_volumes
from journeyman.core.state.pod_predicates import is_currently_reschedulable, is_provisionable
from journeyman.core.state.skipped_objects import SkippedObject, select_each
from journeyman.core.state.snapshot import Snapshot

if TYPE_CHECKING:
    from journeyman.core.scheduling.explanation import Explainer

__all__ = [
    "Options",
    "Scheduler",
    "explained",
    "pods_to_schedule",
    "select_pods",
    "solve",
    "solve_without_launches_for",
]


def solve(
    snapshot: Snapshot,
    catalogue: Catalogue,
    *,
    pods: Sequence[Pod] | None = None,
    without_nodes: frozenset[str] = frozenset(),
    options: Options = Options(),  # noqa: B008 - a frozen value
    effort: int = UNLIMITED,
    explain: bool = True,
) -> Results:
    """Schedule pods on existing and new nodes.

    Args:
        snapshot: The cluster.
        catalogue: The instance types by NodePool.
        pods: The pods to schedule, bound or not; by default `pods_to_schedule`.
        without_nodes: Names of StateNodes to treat as deleted, with the pods on them (consolidation simulates their
            removal).
        options: Policies, and how many instance types a NodeClaim lists.
        effort: The most work of the pass, in units of `results.Effort`.
        explain: Whether unschedulable pods are explained at once, with an effort of its own; else `explained` does it
            later.

    Returns:
        New NodeClaims sorted by NodePool and pods, pods for existing nodes, and an error for every unschedulable pod.
    """
    results = Scheduler(snapshot, catalogue, options).solve(pods, without_nodes, effort)
    return explained(results) if explain else results


def solve_without_launches_for(
    scheduler: Scheduler,
    pods_without_launches: frozenset[str],
    pods: Sequence[Pod],
    without_nodes: frozenset[str] = frozenset(),
    effort: int = UNLIMITED,
) -> tuple[Results, tuple[Pod, ...]]:
    """Schedule pods, some of them on existing nodes only; return the results and the pods that they are for.

    A pod without a launch that has no place on existing nodes is left out, and the others are scheduled without it:
    another order of packing could need one node more.
    """
    chosen = tuple(pods)
    while True:
        results = scheduler.solve(chosen, without_nodes, effort)
        left_out = pods_without_launches & {key for claim in results.new_claims for key in claim.pods}
        if not left_out:
            return results, chosen
        chosen = tuple(pod for pod in chosen if pod.key not in left_out)


def pods_to_schedule(snapshot: Snapshot) -> tuple[Pod, ...]:
    """Return provisionable pods, and reschedulable pods on nodes marked for deletion.

    Restates: karpenter pkg/controllers/provisioning/provisioner.go `Schedule`.
    """
    return select_pods(snapshot)[0]


def select_pods(snapshot: Snapshot) -> tuple[tuple[Pod, ...], tuple[SkippedObject, ...]]:
    """Return `pods_to_schedule`, and the pods that cannot be evaluated."""
    unbound = tuple(pod for pod in snapshot.pods if not pod.spec.node_name)
    moving = tuple(pod for node in snapshot.state_nodes if node.is_being_disrupted for pod in node.pods)
    provisionable, skipped = select_each(unbound, is_provisionable)
    reschedulable, others = select_each(
        moving, lambda pod: is_currently_reschedulable(pod, snapshot.pdbs, snapshot.now)
    )
    return (*provisionable, *reschedulable), (*skipped, *others)


class Scheduler:
    """Solves problems about one snapshot and catalogue; prepares them once (consolidation solves many problems)."""

    def __init__(self, snapshot: Snapshot, catalogue: Catalogue, options: Options = Options()) -> None:  # noqa: B008
        self.snapshot = snapshot
        self._inputs = ClusterInputs.of(snapshot, catalogue, options)

    @property
    def inputs(self) -> ClusterInputs:
        """The inputs that all problems about the cluster share."""
        return self._inputs

    def solve(
        self,
        pods: Sequence[Pod] | None = None,
        without_nodes: frozenset[str] = frozenset(),
        effort: int = UNLIMITED,
    ) -> Results:
        """See `solve`; unschedulable pods are not explained (`explained`).

        An attempt may take most of what is left; work that it announces and does not begin is free.
        """
        considered = pods_to_schedule(self.snapshot) if pods is None else tuple(pods)
        unreached: dict[str, PodError] = {}
        left = effort
        while True:
            attempt = Effort(left * 3 // 4)
            try:
                results = self._solve(considered, without_nodes, attempt)
            except EffortSpentError:
                left -= attempt.done
                considered, others = self._cheapest(considered, left // 4)
                unreached.update((pod.key, _UNREACHED) for pod in others)
                continue
            if not unreached:
                return results
            errors = dict(sorted({**results.pod_errors, **unreached}.items()))
            return replace(results, pod_errors=errors, is_truncated=True)

    def _cheapest(self, pods: Sequence[Pod], most: int) -> tuple[tuple[Pod, ...], tuple[Pod, ...]]:
        """Return the pods that take least effort, oldest first if equal; and the others.

        They take at most `most`, and at most half of what all take, since that was too much whatever was estimated.
        """
        estimates: dict[bytes, int] = {}
        entries: list[tuple[int, bytes, float, str, int]] = []
        for position, pod in enumerate(pods):
            constraints = constraint_bytes(pod)
            if constraints not in estimates:
                estimates[constraints] = len(constraints) // BYTES_PER_UNIT + estimated_work(pod.spec, self._inputs)
            created = pod.metadata.creation_timestamp
            age = created.timestamp() if created is not None else 0.0
            entries.append((estimates[constraints], constraints, age, pod.key, position))
        total = sum(estimates.values()) + _PER_POD * (len(entries) - len(estimates))
        most = min(most, total // 2)
        kept: set[int] = set()
        previous = None
        for work, constraints, _, _, position in sorted(entries):
            most -= _PER_POD if constraints == previous else work
            previous = constraints
            if most < 0:
                break
            kept.add(position)
        return (
            tuple(pod for position, pod in enumerate(pods) if position in kept),
            tuple(pod for position, pod in enumerate(pods) if position not in kept),
        )

    def _solve(self, considered: Sequence[Pod], without_nodes: frozenset[str], effort: Effort) -> Results:
        """Return the results for these pods. Raises EffortSpentError if there is no plan for all of them."""
        if not considered:  # the usual case: nothing is pending, or pods wait for their nodes
            return Results(
                unusable_node_pools=self._inputs.invalid_objects,
                warnings=self._inputs.warnings,
                skipped=self._inputs.skipped,
            )
        inputs, left_out = self._inputs, dict[str, LeftOutDaemons]()
        task = with_reserved_placements(prepare_task(inputs, considered, without_nodes, effort))
        plan = best_plan(task)
        with suppress(EffortSpentError):
            if plan.unschedulable and (chosen := self._left_out(task, plan)):
                less = inputs.with_daemons(leaving_out(inputs.daemons, chosen))
                other_task = with_reserved_placements(prepare_task(less, considered, without_nodes, effort))
                other = best_plan(other_task)
                if other.unschedulable_count < plan.unschedulable_count:
                    task, plan, inputs, left_out = other_task, other, less, describe_left_out(chosen)
        unschedulable = dict.fromkeys(plan.unschedulable_keys, NOT_EXPLAINED)
        return Results(
            new_claims=tuple(sorted(plan.claims, key=lambda c: (c.node_pool, c.pods))),
            existing=plan.existing,
            pod_errors=dict(sorted({**task.errors, **unschedulable}.items())),
            price=plan.price,
            lower_bound=price_lower_bound(task.problem, plan.solution.new_nodes) if inputs.options.bound else 0.0,
            unusable_node_pools=inputs.invalid_objects,
            warnings=inputs.warnings,
            pod_warnings=preference_warnings(
                (task.problem.rows[rows[-1]] for rows in task.problem.levels), task.problem.options.preferences
            ),
            skipped=inputs.skipped,
            devices=plan.devices,
            chosen_plan=ChosenPlan(plan=plan.summary, rivals=plan.rivals),
            is_truncated=not effort.left,
            left_out=left_out,
            unexplained=self._explainer(inputs, task, plan, left_out) if unschedulable else None,
        )

    def _left_out(self, task: SchedulingTask, plan: CandidatePlan) -> Mapping[str, tuple[Daemon, ...]]:
        """Return by NodePool the DaemonSets without which more pods get a node."""
        return left_out_daemons(task.problem, self._inputs.daemons, plan.unschedulable) if self._inputs.daemons else {}

    @property
    def _unusable(self) -> Mapping[str, str]:
        """Return by name why NodePools are unusable in this pass, including those that could not be parsed."""
        unparsed = {item.name: item.why for item in self.snapshot.invalid_objects if item.kind == "NodePool"}
        return {**unparsed, **self._inputs.invalid_objects}

    def _explainer(
        self,
        inputs: ClusterInputs,
        task: SchedulingTask,
        plan: CandidatePlan,
        left_out: Mapping[str, LeftOutDaemons],
    ) -> Explainer:
        """Return the explainer of the unschedulable pods; pods of a class share an explanation."""
        # Imported lazily: only unschedulable pods need it.
        from journeyman.core.scheduling.explanation import Explainer, UnexplainedPods  # noqa: PLC0415

        problem = task.problem
        return Explainer(
            axes=problem.axes,
            pools=problem.pools,
            headroom=plan.solution.headroom,
            invalid_objects=self._unusable,
            others=(
                *(entry.group for entry in problem.inverse_anti_affinities),
                *(
                    group
                    for row in problem.rows
                    for group in row.anti_affinities
                    if group.id not in row.preferred_groups
                ),
            ),
            strict_min_values=problem.options.min_values is MinValuesPolicy.STRICT,
            left_out={name: found.names for name, found in left_out.items()},
            unexplained=tuple(
                UnexplainedPods(
                    cls=problem.rows[row],
                    request=problem.requests[row],
                    stuck=inputs.daemon_pods.blocking(problem.rows[row]) or plan.solution.reasons.get(pod_class, ""),
                    keys=keys,
                )
                for pod_class, keys in plan.unschedulable.items()
                for row in problem.last_level(pod_class)[:1]
            ),
            volumes_of=partial(describe_volumes, storage=self._inputs.storage),
        )


def explained(results: Results, *, effort: int = UNLIMITED, only: Collection[str] | None = None) -> Results:
    """Return the results with the explanations of unschedulable pods: see `explanation.explained`."""
    if results.unexplained is None:
        return results
    from journeyman.core.scheduling import explanation  # noqa: PLC0415 - only unschedulable pods need it

    return explanation.explained(results, effort, only)


_PER_POD: Final = 30  # effort of one more pod with the same constraints
_UNREACHED: Final = PodError(
    kind="unreached",
    message="the scheduler's time did not suffice for this pod: its constraints take longer to evaluate than those of the "
    "other pods, which are scheduled first. It is tried again within a minute. Use fewer node affinity terms, topology "
    "spread constraints and pod (anti-)affinity terms",
)

_FEW_PODS: Final = 150  # with more, a node of another NodePool matters little
CLASSES_TRIED: Final = 24  # relaxation levels of single classes that are tried, one plan each
_MANY_RULES: Final = 100  # about a single node; with more, the lower bound takes longer than the plan
_DECIMALS: Final = 9  # of a price; smaller differences are rounding errors
_NO_NODE_NEEDED: Final = (0, 0.0, 0)  # every pod is scheduled, and no node is launched


class Proposer(Enum):
    """Who proposed a plan, as logs and `solve` name it."""

    BY_CLASS = "whole classes by price"
    BY_CLASS_CHEAPEST_DOMAIN = "whole classes by price, cheapest domains first"
    BY_CLASS_CHEAPEST_DOMAIN_IF_FIRST = "whole classes by price, cheapest domains first for the pods bound first"
    BY_CLASS_WITHOUT_LOST_PREFERENCES = "whole classes by price, without preferences that no pod gets"
    POD_BY_POD = "pod by pod"
    POD_BY_POD_LAST_POOL = "pod by pod, last NodePool of equal weight first"
    POD_BY_POD_LARGEST_RESERVATION = "pod by pod, largest reservation first"


class CandidatePlan(Struct, frozen=True, kw_only=True, eq=False):
    """A finished solution: its NodeClaims, and the keys of the pods planned onto existing nodes, by node name.

    `unschedulable` are the keys of unschedulable pods, by class. `fees` is the sum of the NodePools' surcharges per
    node. `devices` are the devices on existing nodes that the planned pods' ResourceClaims get, by node name. `rivals`
    are the plans that it was compared with, in order.
    """

    proposer: Proposer
    solution: PartialSolution
    claims: tuple[PlannedClaim, ...]
    existing: Mapping[str, tuple[str, ...]]
    unschedulable: Mapping[int, tuple[str, ...]]
    fees: float
    devices: Mapping[str, tuple[PlannedDevice, ...]] = field(default_factory=dict)
    rivals: tuple[PlanSummary, ...] = ()

    def with_rival(self, rival: CandidatePlan) -> CandidatePlan:
        """Return the plan with another one that it was compared with, and those that this one was compared with."""
        return replace(self, rivals=(*self.rivals, *rival.rivals, rival.summary))

    @property
    def summary(self) -> PlanSummary:
        """Who proposed the plan, and what it comes to."""
        return PlanSummary(
            proposer=self.proposer.value,
            unschedulable=self.unschedulable_count,
            price=self.price,
            nodes=len(self.claims),
        )

    @property
    def price(self) -> float:
        """The hourly price of the NodeClaims."""
        return float(sum(claim.price for claim in self.claims))

    @property
    def unschedulable_keys(self) -> frozenset[str]:
        """The keys of the unschedulable pods."""
        return frozenset(key for keys in self.unschedulable.values() for key in keys)

    @property
    def unschedulable_count(self) -> int:
        """The number of unschedulable pods."""
        return sum(len(keys) for keys in self.unschedulable.values())

    @property
    def rank(self) -> tuple[int, float, int]:
        """Sort key, best plan first: unschedulable pods, then price, then nodes.

        `_improvements` says when plans that leave other pods may be compared at all.
        """
        return self.unschedulable_count, round(self.price + self.fees, _DECIMALS), len(self.claims)


def best_plan(task: SchedulingTask) -> CandidatePlan:
    """Return the best plan; the options say how it treats preferences.

    It keeps pods on the pending NodeClaims created for them, unless that leaves more pods unschedulable.
    """
    when_free = task.problem.options.preferences is PreferencePolicy.WHEN_FREE
    plan_for = _plan_with_free_preferences if when_free else _best
    plan = plan_for(task)
    if task.reserved and may_block_others(task.problem, task.reserved, plan.unschedulable):
        unreserved = plan_for(replace(task, reserved=()))
        return unreserved if unreserved.unschedulable_count < plan.unschedulable_count else plan
    return plan


def _best(task: SchedulingTask) -> CandidatePlan:
    """Return the bulk plan, or with few pods the best of several plans (step 4 in the module docstring)."""
    best = _finish(task, schedule_in_bulk(task), Proposer.BY_CLASS)
    if best.rank == _NO_NODE_NEEDED or not _is_small(task.problem) or _is_cheapest(task, best):
        return best
    with suppress(EffortSpentError):
        for better in _improvements(task, best):
            best = better
    return best


def _improvements(task: SchedulingTask, plan: CandidatePlan) -> Iterator[CandidatePlan]:
    """Compare the bulk plan with others; yield the best plan after each comparison. Raises EffortSpentError."""
    problem, best = task.problem, plan
    for choice, proposer in spread_choices(problem):
        uneven = _finish(task, schedule_in_bulk(task, choice), proposer)
        is_better = uneven.unschedulable_keys == plan.unschedulable_keys and uneven.rank < best.rank
        if is_better and choice is SpreadChoice.CHEAPEST_IF_FIRST:  # no more pods may depend on the order of binding
            is_better = pods_to_bind_first(problem, uneven) <= pods_to_bind_first(problem, plan)
        best = uneven.with_rival(best) if is_better else best.with_rival(uneven)
        yield best
    reduced_task = without_lost_preferences(task, plan)
    if reduced_task.problem.co_located_classes() != problem.co_located_classes():
        rival = _finish(task, schedule_in_bulk(reduced_task), Proposer.BY_CLASS_WITHOUT_LOST_PREFERENCES)
        is_comparable = rival.unschedulable_keys == best.unschedulable_keys
        best = _better(best, rival) if is_comparable else best.with_rival(rival)
        yield best
    for proposer, policy in tie_break_policies(task):
        rival = _finish(task, schedule_sequentially(problem, task.initial_solution(), policy=policy), proposer)
        if (
            proposer is Proposer.POD_BY_POD
            and best.unschedulable_count == rival.unschedulable_count
            and best.unschedulable_keys != rival.unschedulable_keys
        ):
            best = rival.with_rival(best)  # the pods that Karpenter would schedule get scarce capacity
        elif (
            rival.unschedulable_count < best.unschedulable_count or rival.unschedulable_keys == best.unschedulable_keys
        ):
            best = _better(best, rival)
        else:
            best = best.with_rival(rival)
        yield best


def _better(best: CandidatePlan, rival: CandidatePlan) -> CandidatePlan:
    """Return the plan of lower rank, the first of equal ones; it remembers the other."""
    return best.with_rival(rival) if best.rank <= rival.rank else rival.with_rival(best)


def spread_choices(problem: SchedulingProblem) -> Iterator[tuple[SpreadChoice, Proposer]]:
    """Yield the ways in which topology spread may use a cheaper domain although another is emptier."""
    wide = [(row, spread) for row in problem.rows for spread in row.spreads if spans_nodes(spread.group)]
    if any(spread.max_skew > 1 for _, spread in wide):
        yield SpreadChoice.CHEAPEST, Proposer.BY_CLASS_CHEAPEST_DOMAIN
    own = [{spread.group.id for spread in row.spreads} for row in problem.rows]
    if any(spread.group.id not in own[row] for _, spread in wide for row in problem.row_index.counted_by(spread.group)):
        yield SpreadChoice.CHEAPEST_IF_FIRST, Proposer.BY_CLASS_CHEAPEST_DOMAIN_IF_FIRST


def without_lost_preferences(task: SchedulingTask, plan: CandidatePlan) -> SchedulingTask:
    """Return the task without the first relaxation levels of each class that none of its pods has in the plan."""
    on_nodes = (*plan.solution.on_existing.values(), *(node.pods for node in plan.solution.new_nodes))
    used = {entry.row for pods in on_nodes for entry in pods}
    all_rows = task.problem.rows
    first_used = [next((n for n, row in enumerate(rows) if row in used), 0) for rows in task.problem.levels]
    first_used = [
        first - all_rows[rows[first]].launch_only for rows, first in zip(task.problem.levels, first_used, strict=True)
    ]
    return task.with_levels([rows[first:] for rows, first in zip(task.problem.levels, first_used, strict=True)])


def pods_to_bind_first(problem: SchedulingProblem, plan: CandidatePlan) -> int:
    """Return how many pods of a plan kube-scheduler binds only before others that their topology spread counts."""
    topology = Topology(problem)
    topology.counts.record_solution(plan.solution)
    return topology.pods_to_bind_first(plan.solution)


def tie_break_policies(task: SchedulingTask) -> Iterator[tuple[Proposer, TieBreakPolicy]]:
    """Yield the policies to compare: Karpenter's, and others where Karpenter chooses at random or in the next pass."""
    yield Proposer.POD_BY_POD, TieBreakPolicy()
    problem = task.problem
    if sum(problem.counts) <= _FEW_PODS and len({pool.template.order for pool in problem.pools}) < len(problem.pools):
        yield Proposer.POD_BY_POD_LAST_POOL, TieBreakPolicy(prefer_last_pool_name=True)
    if any(task.reservations.left.values()):
        yield Proposer.POD_BY_POD_LARGEST_RESERVATION, TieBreakPolicy(prefer_largest_reservation=True)


def _is_small(problem: SchedulingProblem) -> bool:
    """Whether there are few pods and every NodePool packs by price."""
    by_price = not any(pool.template.order.fewest_nodes for pool in problem.pools)
    return by_price and 0 < sum(problem.counts) <= problem.options.compare_up_to


def _is_cheapest(task: SchedulingTask, plan: CandidatePlan) -> bool:
    """Whether no rival can be better: all pods are alike, and no rule, limit or reservation concerns them.

    Packing is exact then (`packing.greedy_packing.cover_exactly`).
    """
    problem = task.problem
    is_plain = len(problem.rows) == 1 and not problem.rows[0].claims and not problem.has_topology_rules
    is_limited = any(headroom.resources for headroom in task.headroom) or any(task.reservations.left.values())
    return is_plain and not is_limited and not plan.unschedulable


def _finish(task: SchedulingTask, solution: PartialSolution, proposer: Proposer) -> CandidatePlan:
    """Return the plan for a solution: assigns pods to its nodes by key, and chooses instance types."""
    problem = task.problem
    draw = _PodQueues(problem, task.reserved)
    existing: dict[str, tuple[str, ...]] = {}
    for node, taken in sorted(solution.on_existing.items()):
        keys = [key for row, count in taken for key in draw.onto(node, row, count)]
        existing[problem.existing.nodes[node].name] = tuple(sorted(keys))
    claims = tuple(planned_nodeclaims(solution.new_nodes, problem, draw))
    plan = CandidatePlan(
        proposer=proposer,
        solution=solution,
        claims=claims,
        existing=existing,
        unschedulable={c: draw.rest(c) for c, left in enumerate(solution.left) if left},
        fees=sum(problem.pools[node.pool].template.node_surcharge for node in solution.new_nodes),
    )
    if solution.allocator is None:
        return plan
    draw = _PodQueues(problem, task.reserved)  # the same pods again, in the same order
    pods = [
        {row: draw.onto(node, row, count) for row, count in solution.on_existing.get(node, ())}
        for node in range(len(problem.existing.nodes))
    ]
    pods += [{row: draw(row, count) for row, count in node.pods} for node in solution.new_nodes]
    claims, devices = solution.allocator.planned(pods, claims)
    return replace(plan, claims=claims, devices=devices)


class _PodQueues:
    """Draws the pods of each class in queue order, whatever their row; pods with reserved placements get their node."""

    def __init__(self, problem: SchedulingProblem, reserved: Iterable[ReservedPlacement]) -> None:
        self._problem = problem
        self._drawn = [0] * len(problem.counts)
        self._reserved = {(entry.node, problem.class_of_row[entry.row]): list(entry.keys) for entry in reserved}
        self._queues = self._queues_without_reserved()

    def _queues_without_reserved(self) -> dict[int, list[str]]:
        """Return, for each class with reserved placements, its other pods."""
        reserved: dict[int, set[str]] = {}
        for (_, pod_class), keys in self._reserved.items():
            reserved.setdefault(pod_class, set()).update(keys)
        first = {pod_class: self._problem.rows[self._problem.levels[pod_class][0]] for pod_class in reserved}
        return {
            pod_class: [key for key in first[pod_class].keys if key not in reserved[pod_class]]
            for pod_class in reserved
        }

    def onto(self, node: int, row: int, count: int) -> list[str]:
        """Return the keys of `count` pods for an existing node, those with reserved placements first."""
        own = self._reserved.get((node, self._problem.class_of_row[row]), [])
        staying, own[:count] = own[:count], []
        return staying + self(row, count - len(staying))

    def __call__(self, row: int, count: int) -> list[str]:
        """Return the keys of the next `count` pods of the row's class."""
        pod_class = self._problem.class_of_row[row]
        start = self._drawn[pod_class]
        self._drawn[pod_class] = start + count
        if pod_class in self._queues:
            return self._queues[pod_class][start : start + count]
        return [pod.key for pod in self._problem.rows[row].pods[start : start + count]]

    def rest(self, pod_class: int) -> tuple[str, ...]:
        """Return the keys of the pods that were not drawn."""
        row = self._problem.levels[pod_class][0]
        return tuple(self(row, self._problem.counts[pod_class] - self._drawn[pod_class]))


def _plan_with_free_preferences(task: SchedulingTask) -> CandidatePlan:
    """Return the best plan that keeps the preferences which do not make it worse.

    Relaxes all classes together, level by level; if that ends with every class fully relaxed, tries each class alone.
    """
    levels = task.problem.levels
    rows = task.problem.rows
    starts = [[n for n, row in enumerate(level_rows) if not rows[row].launch_only] for level_rows in levels]
    last = [last_level(level_rows, rows) for level_rows in levels]
    best = _best(task.with_levels(last))
    for level in range(max(map(len, starts), default=1) - 1):
        tried = [level_rows[own[min(level, len(own) - 1)] :] for level_rows, own in zip(levels, starts, strict=True)]
        try:
            plan = _best(task.with_levels(tried))
        except EffortSpentError:
            return best
        if plan.rank <= best.rank:
            return plan
    return _keep_preferences_by_class(task, last, best, lambda tried: _best(task.with_levels(tried)))


def _keep_preferences_by_class(
    task: SchedulingTask,
    starts: list[tuple[int, ...]],
    best: CandidatePlan,
    plan_with: Callable[[list[tuple[int, ...]]], CandidatePlan],
) -> CandidatePlan:
    """Return the plan in which each of the larger classes keeps all preferences that do not raise the price."""
    levels, counts = task.problem.levels, task.problem.counts
    classes = sorted((c for c, level_rows in enumerate(levels) if len(level_rows) > 1), key=lambda c: (-counts[c], c))
    tries = 0
    for c in classes:
        for level in range(len(levels[c]) - len(last_level(levels[c], task.problem.rows))):
            if task.problem.rows[levels[c][level]].launch_only:
                continue
            if tries == CLASSES_TRIED:
                return best
            tries += 1
            tried = [*starts]
            tried[c] = levels[c][level:]
            try:
                plan = plan_with(tried)
            except EffortSpentError:
                return best
            if plan.rank <= best.rank:
                starts, best = tried, plan
                break
    return best


def price_lower_bound(problem: SchedulingProblem, nodes: Sequence[PlannedNode]) -> float:
    """Return a lower bound of the hourly price of any plan for the pods on these nodes; 0 without nodes."""
    counts = np.zeros(len(problem.rows), dtype=np.int64)
    for node in nodes:
        for row, count in node.pods:
            counts[problem.last_level(problem.class_of_row[row])[0]] += count  # the row without preferences
    if not counts.any():
        return 0.0
    rules = problem.host_constraints.for_new_nodes(counts)
    if len(rules.axes) + len(rules.conflicts) > _MANY_RULES:
        rules = problem.host_constraints.for_new_nodes(np.zeros_like(counts))  # without them it is a bound as well
    items = PackingItems.of(
        problem, rules, [PodBatch(row=int(r), count=int(counts[r])) for r in np.flatnonzero(counts)]
    )
    offerings = compatible_offerings(problem.pools, items.demands)
    reserved = Reservations.of((pool.template.table for pool in problem.pools), ())
    whole = replace(
        items.packing_problem(problem, rules, offerings, np.tile(rules.capacities, (len(offerings.prices), 1))),
        prices=offerings.prices - offerings.fees,
        reserved=np.array([reserved.left[name] for name in offerings.reservations], dtype=np.int64),
    )
    requested_axes = np.flatnonzero(problem.requests[items.rows].any(axis=0))
    return lower_bound(whole.only(np.flatnonzero(worth_considering(offerings, requested_axes))))
