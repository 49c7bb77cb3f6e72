"""The disruption controller: runs the disruption methods in order, and validates a proposed command.

Restates: karpenter pkg/controllers/disruption/controller.go `Reconcile`, `disrupt`.
Differs: one run proposes the independent commands of one method; a later run validates them (`revalidate`), instead of
waiting in this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cached_property
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api.node_disruption import Method, NodeDisruption
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.balanced_policy import BalancedScores, moves_plan
from journeyman.core.disruption.binding_orders import unbound_pod
from journeyman.core.disruption.budgets import BudgetStatus, budget_status
from journeyman.core.disruption.candidates import (
    BLOCKED,
    Blocked,
    Candidate,
    CandidateList,
    DisruptionReason,
    NodePoolName,
    find_candidates,
)
from journeyman.core.disruption.churn_limits import ChurnLimits, ChurnSettings, invalid_annotations
from journeyman.core.disruption.circuit_breaker import CircuitBreaker
from journeyman.core.disruption.commands import (
    Command,
    claims_in_commands,
    has_started,
    marked_for_deletion,
    unfinished_commands,
)
from journeyman.core.disruption.consolidatable import Consolidatability, consolidate_after
from journeyman.core.disruption.disruptable_condition import (
    NodeStays,
    RemovalExplainer,
    explain_examination,
    why_nodes_stay,
)
from journeyman.core.disruption.disruption_events import UNCONSOLIDATABLE, candidate_events, nodepool_blocked
from journeyman.core.disruption.disruption_metrics import budget_gauges, eligible_nodes
from journeyman.core.disruption.drift import drift_candidates, drift_commands, validate_drift
from journeyman.core.disruption.drifted_condition import drifted_since
from journeyman.core.disruption.emptiness import delete_empty
from journeyman.core.disruption.fleet_examination import NodeExamination
from journeyman.core.disruption.fleet_moves import MoveCost
from journeyman.core.disruption.fleet_plan_progress import FleetEvaluation, evaluate_fleet_plan, validate_moves
from journeyman.core.disruption.hibernation import (
    hibernating_pools,
    hibernation_commands,
    hibernation_events,
    validate_hibernation,
)
from journeyman.core.disruption.multi_node_consolidation import Attempt, multi_node_commands
from journeyman.core.disruption.pod_deletion_costs import deletion_costs
from journeyman.core.disruption.rebalance import (
    rebalance_candidates,
    rebalance_commands,
    validate_rebalance,
)
from journeyman.core.disruption.simulation import Simulation
from journeyman.core.disruption.single_node_consolidation import (
    eligible_candidates,
    single_node_commands,
    unconsolidatable_reason,
)
from journeyman.core.disruption.static_drift import (
    proposals,
    static_drift_candidates,
    static_drift_commands,
    validate_static_drift,
)
from journeyman.core.disruption.validation import validate
from journeyman.core.plan import Event, Plan, merge_plans
from journeyman.core.scheduling.results import UNLIMITED, CachedResults, Options, Verifier
from journeyman.core.scheduling.verify import verify
from journeyman.core.state import Snapshot

MULTI_NODE_EXAMINED: Final = "multi-node/0"
"""The cursor behind multi-node consolidation: a later run continues with the first node of single-node consolidation."""
DRIFT_CURSOR: Final = "drift/"
"""Precedes the name of a NodeClaim that drift examined last; the methods before it are complete then."""


class Evaluation(Struct, frozen=True, kw_only=True):
    """The result of one method, or of a method for some nodes: commands that are independent of each other, Events and metrics.

    `examined` is the cursor with which a later run continues behind it. `if_time_is_up` is the command to take if the run's
    time ends with this evaluation: the best one that a search has found until then.
    """

    method: Method
    reason: DisruptionReason
    commands: tuple[Command, ...] = ()
    plan: Plan = field(default_factory=Plan)
    examined: str = ""
    if_time_is_up: Command | None = None


class EligibleNodes(Struct, frozen=True, kw_only=True):
    """The nodes that one method may disrupt by their own state, and how many more of each NodePool its budgets allow."""

    reason: DisruptionReason
    candidates: tuple[Candidate, ...]
    remaining: Mapping[NodePoolName, int]


class DisruptionController:
    """All disruption methods in one snapshot of the cluster."""

    def __init__(
        self,
        snapshot: Snapshot,
        catalogue: Catalogue,
        consolidatability: Consolidatability,
        *,
        drifted: Mapping[str, datetime] | None = None,
        spot_to_spot: bool = False,
        churn: ChurnSettings | None = None,
        options: Options | None = None,
        effort: int = UNLIMITED,
        results: CachedResults | None = None,
        examined_until: str = "",
        fleet_plans: MoveCost | None = None,
        verify: Verifier = verify,
    ) -> None:
        """Prepare the methods.

        Args:
            snapshot: The cluster.
            catalogue: Instance types and prices per NodePool.
            consolidatability: Which NodeClaims are consolidatable.
            drifted: Since when NodeClaims have drifted; None if their conditions say so.
            spot_to_spot: The feature gate SpotToSpotConsolidation.
            churn: Settings of the limits on churn; those of ChurnSettings without.
            options: Options of the scheduler.
            effort: The most effort of one simulation.
            results: Cached scheduler results for this cluster; `simulation.results` has these and new ones.
            examined_until: The cursor with which an earlier run's evaluation stopped; empty if it did not.
            fleet_plans: What evictions cost, to plan the whole fleet at once; None not to.
            verify: Verifies the placements of commands.
        """
        self.snapshot = snapshot
        self._examined_until = examined_until
        self._examined: dict[str, Blocked] = {}
        self._budgets: dict[DisruptionReason, Mapping[NodePoolName, BudgetStatus]] = {}
        self._catalogue = catalogue
        self._consolidatability = consolidatability
        self._drifted = drifted_since(snapshot) if drifted is None else drifted
        self._spot_to_spot = spot_to_spot
        self._churn = ChurnLimits(snapshot, churn if churn is not None else ChurnSettings())
        self._fleet_plans = fleet_plans
        self._validated_candidates: dict[bool, tuple[Candidate, ...]] = {}
        self.simulation = Simulation(
            snapshot,
            catalogue,
            marked_for_deletion=marked_for_deletion(snapshot),
            within_consolidate_after=consolidatability.within_window,
            options=options,
            effort=effort,
            results=results,
            verify=verify,
        )

    def evaluate_methods(self) -> Iterator[Evaluation]:
        """Evaluate hibernation, rebalance, emptiness, static drift, drift, the fleet plan, multi-node, then single-node consolidation.

        While moves of a fleet plan wait, the methods behind it leave the cluster alone.

        Drift and single-node consolidation evaluate node by node. The caller takes the first evaluation that has commands, and may
        stop between any two evaluations at its deadline. If an earlier run stopped in single-node consolidation, multi-node
        consolidation is not repeated, so that each pass comes to its last node.
        """
        yield from self._hibernation()
        yield from self._rebalance()
        yield self._emptiness()
        yield self._static_drift()
        yield from self._drift()
        if self._fleet_plans is not None:
            found = self._evaluate_fleet_plan(self._fleet_plans)
            yield Evaluation(
                method="fleet-plan", reason=DisruptionReason.UNDERUTILIZED, commands=found.commands, plan=found.plan
            )
            if found.is_waiting:
                return
        if not self._consolidated_until:
            yield from self._multi_node_consolidation()
        yield from self._single_node_consolidation()

    def approval(self, command: Command) -> Plan:
        """Return the Events and metrics of a consolidation that is proposed; nothing for other commands."""
        if command.reason is not DisruptionReason.UNDERUTILIZED:
            return Plan()
        return moves_plan(command, self._balanced.of_command(command), self.snapshot)

    def eligible(self) -> Mapping[Method, EligibleNodes]:
        """Return the eligible nodes of each method, in the order of the methods.

        Restates: karpenter pkg/controllers/disruption/consolidation.go `ShouldDisrupt`, the same of each other method.
        """
        empty = tuple(c for c in self._candidates.candidates if c.is_empty and c.consolidatable)
        underutilized = tuple(eligible_candidates(self._candidates.candidates, self.snapshot))
        eventual = self._eventual_candidates
        static = tuple(static_drift_candidates(eventual, self._drifted, self.snapshot))
        drifted = tuple(drift_candidates(eventual, self._drifted, self.snapshot))
        found: dict[Method, tuple[DisruptionReason, tuple[Candidate, ...]]] = {
            "emptiness": (DisruptionReason.EMPTY, empty),
            "static-drift": (DisruptionReason.DRIFTED, static),
            "drift": (DisruptionReason.DRIFTED, drifted),
            "multi-node": (DisruptionReason.UNDERUTILIZED, underutilized),
            "single-node": (DisruptionReason.UNDERUTILIZED, underutilized),
        }
        return {
            method: EligibleNodes(reason=reason, candidates=candidates, remaining=self._remaining(reason))
            for method, (reason, candidates) in found.items()
        }

    def deletion_costs(self) -> Mapping[str, int]:
        """Return the deletion cost of the pods on a node, by its name, for the nodes that will become empty first."""
        candidates = self._candidates.candidates
        pools = self.snapshot.node_pools_by_name
        drifted = drift_candidates(candidates, self._drifted, self.snapshot)
        return deletion_costs(
            self.snapshot,
            going_away=self.simulation.marked_for_deletion,
            drifted=drifted,
            others=[c for c in candidates if consolidate_after(pools[c.nodepool]) is not None],
            remaining_for_drift=self._remaining(DisruptionReason.DRIFTED) if drifted else {},
            remaining=self._remaining(DisruptionReason.UNDERUTILIZED),
        )

    def revalidate(self, disruption: NodeDisruption) -> Command:
        """Return the command to execute for a proposal now; a no-op if validation fails.

        Restates: karpenter pkg/controllers/disruption/validation.go `Validate`.
        """
        reason = DisruptionReason(disruption.spec.reason)
        if why := next(
            filter(None, (self.circuit_breaker.why_paused(c.node_pool) for c in disruption.spec.candidates)), ""
        ):
            return Command(reason=reason, why_not=why)
        command = self.circuit_breaker.checked(self._revalidated(disruption, reason), without=disruption.metadata.name)
        if reason is not DisruptionReason.UNDERUTILIZED:
            return command
        return self._churn.validating(disruption).checked(command)

    def _revalidated(self, disruption: NodeDisruption, reason: DisruptionReason) -> Command:
        """Return the command as the proposal's method finds it now, without the circuit breaker and the limits on churn."""
        if disruption.spec.method == "fleet-plan":
            return self._validated_moves[disruption.metadata.name]
        in_other_commands = self._in_commands - frozenset(disruption.claims)
        candidates = self._qualifying(in_other_commands)
        budgets = self.budgets(reason, without=disruption)
        remaining = {pool: status.remaining for pool, status in budgets.items()}
        if disruption.spec.method == "rebalance":
            return validate_rebalance(disruption, self.simulation, candidates, remaining)
        if disruption.spec.method == "hibernation":
            return validate_hibernation(disruption, candidates, hibernating_pools(self.snapshot), remaining)
        if disruption.spec.method in ("static-drift", "drift"):
            return self._validate_drift(disruption, in_other_commands, remaining)
        return validate(disruption, self.simulation, candidates, remaining, spot_to_spot=self._spot_to_spot)

    def budgets(
        self, reason: DisruptionReason, *, without: NodeDisruption | None = None
    ) -> Mapping[NodePoolName, BudgetStatus]:
        """Return the NodePools' budgets for this reason; the command `without` uses none of them."""
        if without is not None:
            return budget_status(self.snapshot, reason, self._in_commands - frozenset(without.claims))
        if reason not in self._budgets:
            self._budgets[reason] = budget_status(self.snapshot, reason, self._in_commands)
        return self._budgets[reason]

    def why_nodes_stay(self) -> tuple[NodeStays, ...]:
        """Return why nodes stay, as far as the methods were evaluated."""
        return why_nodes_stay(
            self._all_candidates,
            self.snapshot,
            circuit_breaker=self.circuit_breaker,
            consolidatability=self._consolidatability,
            budgets=self.budgets,
            why_backoff=self._churn.why_not,
            examined=self._examined,
        )

    def _record_examined(
        self, candidate: Candidate, found: Command, checked: Command, examination: NodeExamination | None
    ) -> None:
        """Record why single-node consolidation leaves a candidate, for `why_nodes_stay`."""
        blocked: Blocked | None
        if found.candidates and not checked.candidates:
            reason = "ReplacementsPaused" if self.circuit_breaker.checked(found).why_not else "BackOff"
            blocked = Blocked(reason=reason, why=checked.why_not)
        elif examination is not None and not examination.passes:
            blocked = explain_examination(examination)
        else:
            blocked = self._removal_explainer.explain(candidate, found)
        if blocked is not None:
            self._examined[candidate.nodeclaim] = blocked

    def _hibernation(self) -> Iterator[Evaluation]:
        pools = hibernating_pools(self.snapshot)
        if not pools:
            return
        reason = DisruptionReason.HIBERNATED
        commands = hibernation_commands(self._candidates.candidates, pools, self._remaining(reason))
        eligible = [c for c in self._candidates.candidates if c.nodepool in pools]
        blocked = (
            self._candidates.events if commands else ()
        )  # otherwise other methods follow, which record these Events
        plan = Plan(
            events=(*hibernation_events(pools, self.snapshot), *blocked),
            observations=(eligible_nodes(eligible, reason.value),),
        )
        yield Evaluation(method="hibernation", reason=reason, commands=commands, plan=plan + self._budget_plan(reason))

    def _evaluate_fleet_plan(self, cost: MoveCost) -> FleetEvaluation:
        eligible = eligible_candidates(self._candidates.candidates, self.snapshot)
        ready = [c for c in eligible if not self._churn.why_not(c)]
        budgets = self.budgets(DisruptionReason.UNDERUTILIZED)
        moved = {c.nodeclaim: self._churn.moved_cost(c) for c in ready}
        return evaluate_fleet_plan(
            self.simulation,
            ready,
            budgets,
            cost=replace(cost, moved=moved),
            check=lambda command: self._checked(command).why_not,
            spot_to_spot=self._spot_to_spot,
        )

    @cached_property
    def _validated_moves(self) -> Mapping[str, Command]:
        """The commands of the fleet plan's moves that have not started, solved together, by NodeDisruption."""
        unfinished = (d for d in unfinished_commands(self.snapshot) if d.spec.method == "fleet-plan")
        undecided = [d for d in unfinished if not has_started(d, self.snapshot)]
        proposed = frozenset(name for d in undecided for name in d.claims)
        in_other_commands = self._in_commands - proposed
        budgets = budget_status(self.snapshot, DisruptionReason.UNDERUTILIZED, in_other_commands)
        candidates = [c for c in self._qualifying(in_other_commands) if c.nodeclaim in proposed]
        moved = {c.nodeclaim: self._churn.moved_cost(c) for c in candidates}
        return validate_moves(
            undecided,
            self.simulation,
            candidates,
            {pool: status.remaining for pool, status in budgets.items()},
            cost=replace(self._fleet_plans or MoveCost(), moved=moved),
            spot_to_spot=self._spot_to_spot,
        )

    def _rebalance(self) -> Iterator[Evaluation]:
        eligible = rebalance_candidates(self._candidates.candidates, self.snapshot)
        if not eligible:
            return
        reason = DisruptionReason.INTERRUPTED
        plan = Plan(observations=(eligible_nodes(eligible, reason.value),)) + self._budget_plan(reason)
        yield Evaluation(method="rebalance", reason=reason, plan=plan)
        for candidates, found in rebalance_commands(self.simulation, eligible, self._remaining(reason)):
            yield _evaluation("rebalance", self.circuit_breaker.checked(found), candidates)

    def _emptiness(self) -> Evaluation:
        reason = DisruptionReason.EMPTY
        commands, _ = delete_empty(self._candidates.candidates, self._remaining(reason))
        hosting = (c for c in self._candidates.candidates if c.hosts_buffer_pods)
        events = (e for c in hosting for e in candidate_events(c, UNCONSOLIDATABLE, f'Node "{c.node}" has buffer pods'))
        empty = (c for c in self._candidates.candidates if c.is_empty and c.consolidatable)
        plan = Plan(events=(*self._candidates.events, *events), observations=(eligible_nodes(empty, reason.value),))
        return Evaluation(method="emptiness", reason=reason, commands=commands, plan=plan + self._budget_plan(reason))

    @property
    def _consolidated_until(self) -> str:
        """The cursor with which an earlier run stopped in consolidation; empty if it did not come to it."""
        return "" if self._is_cut_off_in_drift else self._examined_until

    def _multi_node_consolidation(self) -> Iterator[Evaluation]:
        method: Method = "multi-node"
        reason = DisruptionReason.UNDERUTILIZED
        ready, plan = self._consolidation_candidates
        yield Evaluation(method=method, reason=reason, plan=plan)
        attempts = multi_node_commands(
            self.simulation,
            ready,
            self._remaining(reason),
            spot_to_spot=self._spot_to_spot,
            check=lambda command: self._checked(command).why_not or self._balanced.why_not(command),
            unbound=lambda command: unbound_pod(command, self.snapshot, self._catalogue),
        )
        last: Attempt | None = None
        for last in attempts:
            yield Evaluation(method=method, reason=reason, examined=MULTI_NODE_EXAMINED, if_time_is_up=last.best)
        if last is not None:
            commands = (last.best,) if last.best is not None else ()
            plan = Plan() if commands else self._refusal(last.refused)
            yield Evaluation(method=method, reason=reason, commands=commands, plan=plan, examined=MULTI_NODE_EXAMINED)

    def _static_drift(self) -> Evaluation:
        """Return all commands of static drift, and what counts for both kinds: the gauge of eligible nodes, and budgets if any."""
        reason = DisruptionReason.DRIFTED
        eligible = [c for c in self._eventual_candidates if c.nodeclaim in self._drifted]
        plan = Plan(observations=(eligible_nodes(eligible, reason.value),))
        if eligible:
            plan += self._budget_plan(reason)
        static = static_drift_candidates(eligible, self._drifted, self.snapshot)
        remaining = self._remaining(reason) if static else {}
        found = self.circuit_breaker.checked_each(
            static_drift_commands(self.snapshot, self._catalogue, static, remaining)
        )
        each = [_evaluation("static-drift", command, (candidate,)) for candidate, command in found]
        commands = tuple(command for evaluation in each for command in evaluation.commands)
        plan = merge_plans((plan, *(evaluation.plan for evaluation in each)))
        return Evaluation(method="static-drift", reason=reason, commands=commands, plan=plan)

    def _drift(self) -> Iterator[Evaluation]:
        eligible = drift_candidates(self._eventual_candidates, self._drifted, self.snapshot)
        if not eligible:
            return
        remaining = self._remaining(DisruptionReason.DRIFTED)
        after = self._examined_until.removeprefix(DRIFT_CURSOR) if self._is_cut_off_in_drift else ""
        for candidate, found in drift_commands(self.simulation, eligible, remaining, after=after):
            command = self.circuit_breaker.checked(found)
            yield _evaluation("drift", command, (candidate,), examined=f"{DRIFT_CURSOR}{candidate.nodeclaim}")

    def _validate_drift(
        self, disruption: NodeDisruption, in_other_commands: frozenset[str], remaining: Mapping[NodePoolName, int]
    ) -> Command:
        if disruption.spec.method == "drift":
            candidates = self._qualifying(in_other_commands, eventual=True)
            return validate_drift(disruption, self.simulation, candidates, remaining, self._drifted)
        proposed = frozenset(name for d in proposals(self.snapshot) for name in d.claims)
        candidates = self._qualifying(in_other_commands - proposed, eventual=True)
        static = static_drift_candidates(candidates, self._drifted, self.snapshot)
        return validate_static_drift(disruption, self.snapshot, self._catalogue, static, remaining)

    @property
    def _is_cut_off_in_drift(self) -> bool:
        """Whether the time of an earlier run was up while it examined drifted nodes."""
        return self._examined_until.startswith(DRIFT_CURSOR)

    def _single_node_consolidation(self) -> Iterator[Evaluation]:
        method: Method = "single-node"
        reason = DisruptionReason.UNDERUTILIZED
        ready, plan = self._consolidation_candidates
        if not self._consolidated_until:  # multi-node consolidation has recorded the Events
            plan = Plan(observations=plan.observations)
        yield Evaluation(method=method, reason=reason, plan=plan)
        commands = single_node_commands(
            self.simulation,
            ready,
            self._remaining(reason),
            spot_to_spot=self._spot_to_spot,
            after=self._consolidated_until,
            why_never=self._balanced.why_never,
            unbound=lambda command: unbound_pod(command, self.snapshot, self._catalogue),
        )
        for candidate, found, cursor, examination in commands:
            refused = found if found.candidates else Command(reason=reason, candidates=(candidate,))
            if why := self._balanced.why_not(found) or self._balanced.why_never(candidate):
                self._examined[candidate.nodeclaim] = Blocked(reason="Balanced", why=why)
                yield Evaluation(method=method, reason=reason, plan=self._refusal(refused), examined=cursor)
                continue
            event_reason = BLOCKED if found.candidates else UNCONSOLIDATABLE
            command = self._checked(found)
            self._record_examined(candidate, found, command, examination)
            yield _evaluation(method, command, (candidate,), event_reason, examined=cursor)

    @cached_property
    def _consolidation_candidates(self) -> tuple[list[Candidate], Plan]:
        """The nodes that multi-node and single-node consolidation may disrupt now, and a plan that says why they leave the others."""
        reason = DisruptionReason.UNDERUTILIZED
        eligible = eligible_candidates(self._candidates.candidates, self.snapshot)
        limited = {c.nodeclaim: why for c in eligible if (why := self._churn.why_not(c))}
        events: list[Event] = []
        for candidate in self._candidates.candidates:
            if why := unconsolidatable_reason(candidate, self.snapshot):
                events += candidate_events(candidate, UNCONSOLIDATABLE, why)
            elif why := limited.get(candidate.nodeclaim, ""):
                events += candidate_events(candidate, BLOCKED, why)
        plan = Plan(events=tuple(events), observations=(eligible_nodes(eligible, reason.value),))
        plan += invalid_annotations(self.snapshot)
        return [c for c in eligible if c.nodeclaim not in limited], plan + self._budget_plan(reason)

    def _refusal(self, command: Command | None) -> Plan:
        """Return the metrics of a command that the policy Balanced refuses; nothing if it refuses none."""
        scores = self._balanced.of_command(command) if command is not None else {}
        if command is None or all(score.is_approved for score in scores.values()):
            return Plan()
        return moves_plan(command, scores, self.snapshot)

    @cached_property
    def _balanced(self) -> BalancedScores:
        return BalancedScores.of(self.snapshot, self._catalogue)

    @cached_property
    def circuit_breaker(self) -> CircuitBreaker:
        """Which NodePools are paused; their nodes are no candidates."""
        return CircuitBreaker.of(self.snapshot)

    def _checked(self, command: Command) -> Command:
        """Return a consolidation, or a no-op if the circuit breaker or the limits on churn refuse it."""
        return self._churn.checked(self.circuit_breaker.checked(command))

    @cached_property
    def _removal_explainer(self) -> RemovalExplainer:
        return RemovalExplainer(self.simulation)

    @cached_property
    def _all_candidates(self) -> CandidateList:
        """The candidates, those of paused NodePools included."""
        return self._find_candidates(self._in_commands)

    @cached_property
    def _candidates(self) -> CandidateList:
        found = self._all_candidates
        return replace(found, candidates=self.circuit_breaker.unpaused(found.candidates))

    @cached_property
    def _eventual_candidates(self) -> tuple[Candidate, ...]:
        """The candidates for drift, those of paused NodePools excluded; none if nothing has drifted."""
        if not self._drifted:
            return ()
        found = self._find_candidates(self._in_commands, eventual=True)
        return self.circuit_breaker.unpaused(found.candidates)

    @cached_property
    def _in_commands(self) -> frozenset[str]:
        """Names of the NodeClaims in unfinished commands."""
        return claims_in_commands(self.snapshot)

    def _qualifying(self, in_other_commands: frozenset[str], *, eventual: bool = False) -> tuple[Candidate, ...]:
        """Return the candidates for the validation of a proposal; whether a node qualifies does not depend on the proposal."""
        if eventual not in self._validated_candidates:
            started = (d for d in unfinished_commands(self.snapshot) if has_started(d, self.snapshot))
            in_started = frozenset(name for d in started for name in d.claims)
            self._validated_candidates[eventual] = self._find_candidates(in_started, eventual=eventual).candidates
        return tuple(c for c in self._validated_candidates[eventual] if c.nodeclaim not in in_other_commands)

    def _find_candidates(self, in_commands: frozenset[str], *, eventual: bool = False) -> CandidateList:
        return find_candidates(
            self.snapshot,
            self._catalogue,
            consolidatable=self._consolidatability.claims,
            in_commands=in_commands,
            nodes_hosting_buffers=self.simulation.nodes_hosting_buffers,
            eventual=eventual,
        )

    def _remaining(self, reason: DisruptionReason) -> Mapping[NodePoolName, int]:
        return {pool: status.remaining for pool, status in self.budgets(reason).items()}

    def _budget_plan(self, reason: DisruptionReason) -> Plan:
        """Return budget gauges of every NodePool, and an Event on each NodePool whose budgets allow no disruption."""
        budgets = self.budgets(reason)
        blocked = [pool for pool, status in budgets.items() if status.total and not status.allowed]
        events = nodepool_blocked(blocked, reason, self.snapshot)
        return Plan(events=events, observations=budget_gauges(budgets, reason.value))


def _evaluation(
    method: Method,
    command: Command,
    candidates: tuple[Candidate, ...],
    event_reason: str = BLOCKED,
    *,
    examined: str = "",
) -> Evaluation:
    """Return the evaluation of these candidates; if the command is a no-op, with Events on them that say why."""
    events = (e for c in candidates if command.why_not for e in candidate_events(c, event_reason, command.why_not))
    commands = (command,) if command.candidates else ()
    plan = Plan(events=tuple(events))
    return Evaluation(method=method, reason=command.reason, commands=commands, plan=plan, examined=examined)
