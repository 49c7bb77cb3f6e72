"""The disruption controller: runs the disruption methods in order, and validates a proposed command.

Restates: karpenter pkg/controllers/disruption/controller.go `Reconcile`, `disrupt`.
Differs: one run proposes at most one command; a later run validates it (`revalidate`), instead of waiting in this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Final

from msgspec import Struct, field

from journeyman.core.api.node_disruption import Method, NodeDisruption
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.balanced import BalancedScores, moves_plan
from journeyman.core.disruption.binding_orders import unbound_pod
from journeyman.core.disruption.budgets import BudgetStatus, budget_status
from journeyman.core.disruption.candidates import (
    BLOCKED,
    Candidate,
    CandidateList,
    DisruptionReason,
    NodePoolName,
    find_candidates,
)
from journeyman.core.disruption.commands import Command, claims_in_commands, marked_for_deletion
from journeyman.core.disruption.consolidatable import Consolidatability
from journeyman.core.disruption.consolidation_backoff import ConsolidationBackoff, find_reversed
from journeyman.core.disruption.disruption_events import UNCONSOLIDATABLE, candidate_events, nodepool_blocked
from journeyman.core.disruption.disruption_metrics import budget_gauges, eligible_nodes
from journeyman.core.disruption.emptiness import delete_empty
from journeyman.core.disruption.multi_node_consolidation import multi_node_commands
from journeyman.core.disruption.rebalance import (
    METHOD as REBALANCE,
)
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
from journeyman.core.disruption.validation import validate
from journeyman.core.plan import Event, Plan
from journeyman.core.scheduling.results import UNLIMITED, CachedResults, Options
from journeyman.core.state import Snapshot

MULTI_NODE_EXAMINED: Final = "multi-node/0"
"""The cursor behind multi-node consolidation: a later run continues with the first node of single-node consolidation."""


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


class DisruptionController:
    """All disruption methods in one snapshot of the cluster."""

    def __init__(
        self,
        snapshot: Snapshot,
        catalogue: Catalogue,
        consolidatability: Consolidatability,
        *,
        spot_to_spot: bool = False,
        options: Options | None = None,
        effort: int = UNLIMITED,
        results: CachedResults | None = None,
        examined_until: str = "",
    ) -> None:
        """Prepare the methods.

        Args:
            snapshot: The cluster.
            catalogue: Instance types and prices per NodePool.
            consolidatability: Which NodeClaims are consolidatable.
            spot_to_spot: The feature gate SpotToSpotConsolidation.
            options: Options of the scheduler.
            effort: The most effort of one simulation.
            results: Cached scheduler results for this cluster; `simulation.results` has these and new ones.
            examined_until: The cursor with which an earlier run's evaluation stopped; empty if it did not.
        """
        self.snapshot = snapshot
        self._examined_until = examined_until
        self._catalogue = catalogue
        self._consolidatability = consolidatability
        self._spot_to_spot = spot_to_spot
        self.simulation = Simulation(
            snapshot,
            catalogue,
            marked_for_deletion=marked_for_deletion(snapshot),
            within_consolidate_after=consolidatability.within_window,
            options=options,
            effort=effort,
            results=results,
        )

    def evaluate_methods(self) -> Iterator[Evaluation]:
        """Evaluate rebalance, emptiness, multi-node consolidation, then single-node consolidation node by node.

        The caller takes the first evaluation that has commands, and may stop between any two evaluations at its deadline. If
        an earlier run stopped, multi-node consolidation is not repeated, so that each pass comes to its last node.
        Not implemented yet: drift, after emptiness.
        """
        yield from self._rebalance()
        yield self._emptiness()
        if not self._examined_until:
            yield from self._multi_node_consolidation()
        yield from self._single_node_consolidation()

    def approval(self, command: Command) -> Plan:
        """Return the Events and metrics of a consolidation that is proposed; nothing for other commands."""
        if command.reason is not DisruptionReason.UNDERUTILIZED:
            return Plan()
        return moves_plan(command, self._balanced.of_command(command), self.snapshot)

    def revalidate(self, disruption: NodeDisruption) -> Command:
        """Return the command to execute for a proposal now; a no-op if validation fails.

        Restates: karpenter pkg/controllers/disruption/validation.go `Validate`.
        """
        reason = DisruptionReason(disruption.spec.reason)
        in_other_commands = claims_in_commands(self.snapshot) - frozenset(disruption.claims)
        candidates = self._find_candidates(in_other_commands).candidates
        budgets = self.budgets(reason, without=disruption)
        remaining = {pool: status.remaining for pool, status in budgets.items()}
        if disruption.spec.method == REBALANCE:
            return validate_rebalance(disruption, self.simulation, candidates, remaining)
        command = validate(disruption, self.simulation, candidates, remaining, spot_to_spot=self._spot_to_spot)
        return self._backoff.checked(command) if reason is DisruptionReason.UNDERUTILIZED else command

    def budgets(
        self, reason: DisruptionReason, *, without: NodeDisruption | None = None
    ) -> Mapping[NodePoolName, BudgetStatus]:
        """Return the NodePools' budgets for this reason; the command `without` uses none of them."""
        own = frozenset(without.claims) if without is not None else frozenset()
        return budget_status(self.snapshot, reason, claims_in_commands(self.snapshot) - own)

    def _rebalance(self) -> Iterator[Evaluation]:
        eligible = rebalance_candidates(self._candidates.candidates, self.snapshot)
        if not eligible:
            return
        reason = DisruptionReason.INTERRUPTED
        plan = Plan(observations=(eligible_nodes(eligible, reason.value),)) + self._budget_plan(reason)
        yield Evaluation(method=REBALANCE, reason=reason, plan=plan)
        for candidates, command in rebalance_commands(self.simulation, eligible, self._remaining(reason)):
            yield _evaluation(REBALANCE, command, candidates)

    def _emptiness(self) -> Evaluation:
        reason = DisruptionReason.EMPTY
        commands, _ = delete_empty(self._candidates.candidates, self._remaining(reason))
        hosting = (c for c in self._candidates.candidates if c.hosts_buffer_pods)
        events = (e for c in hosting for e in candidate_events(c, UNCONSOLIDATABLE, f'Node "{c.node}" has buffer pods'))
        empty = (c for c in self._candidates.candidates if c.is_empty and c.consolidatable)
        plan = Plan(events=(*self._candidates.events, *events), observations=(eligible_nodes(empty, reason.value),))
        return Evaluation(method="emptiness", reason=reason, commands=commands, plan=plan + self._budget_plan(reason))

    def _multi_node_consolidation(self) -> Iterator[Evaluation]:
        method: Method = "multi-node"
        reason = DisruptionReason.UNDERUTILIZED
        ready, plan = self._consolidation_candidates()
        yield Evaluation(method=method, reason=reason, plan=plan)
        attempts = multi_node_commands(
            self.simulation,
            ready,
            self._remaining(reason),
            spot_to_spot=self._spot_to_spot,
            check=self._why_not_together,
        )
        for attempt in attempts:
            best = (attempt.best,) if attempt.best is not None else ()
            yield Evaluation(
                method=method,
                reason=reason,
                commands=best if attempt.is_last else (),
                plan=self._refusal(attempt.refused) if attempt.is_last and not best else Plan(),
                examined=MULTI_NODE_EXAMINED,
                if_time_is_up=attempt.best,
            )

    def _why_not_together(self, command: Command) -> str:
        """Return why several nodes are not consolidated by this command, so that fewer of them are tried; empty if they may be."""
        if why := self._backoff.checked(command).why_not or self._balanced.why_not(command):
            return why
        pod = unbound_pod(command, self.snapshot, self._catalogue)
        return f"pod {pod} may find no capacity" if pod else ""

    def _single_node_consolidation(self) -> Iterator[Evaluation]:
        method: Method = "single-node"
        reason = DisruptionReason.UNDERUTILIZED
        ready, plan = self._consolidation_candidates()
        if not self._examined_until:  # multi-node consolidation has recorded the Events
            plan = Plan(observations=plan.observations)
        yield Evaluation(method=method, reason=reason, plan=plan)
        commands = single_node_commands(
            self.simulation,
            ready,
            self._remaining(reason),
            spot_to_spot=self._spot_to_spot,
            after=self._examined_until,
            why_never=self._balanced.why_never,
        )
        for candidate, found, cursor in commands:
            refused = found if found.candidates else Command(reason=reason, candidates=(candidate,))
            if self._balanced.why_not(found) or self._balanced.why_never(candidate):
                yield Evaluation(method=method, reason=reason, plan=self._refusal(refused), examined=cursor)
                continue
            event_reason = BLOCKED if found.candidates else UNCONSOLIDATABLE
            yield _evaluation(method, self._backoff.checked(found), (candidate,), event_reason, examined=cursor)

    def _consolidation_candidates(self) -> tuple[list[Candidate], Plan]:
        """Return the nodes that consolidation may disrupt now, and a plan that says why it leaves the others."""
        reason = DisruptionReason.UNDERUTILIZED
        eligible = eligible_candidates(self._candidates.candidates, self.snapshot)
        in_backoff = {c.nodeclaim: why for c in eligible if (why := self._backoff.why_not(c))}
        events: list[Event] = []
        for candidate in self._candidates.candidates:
            if why := unconsolidatable_reason(candidate, self.snapshot):
                events += candidate_events(candidate, UNCONSOLIDATABLE, why)
            elif why := in_backoff.get(candidate.nodeclaim, ""):
                events += candidate_events(candidate, BLOCKED, why)
        plan = Plan(events=tuple(events), observations=(eligible_nodes(eligible, reason.value),))
        return [c for c in eligible if c.nodeclaim not in in_backoff], plan + self._budget_plan(reason)

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
    def _backoff(self) -> ConsolidationBackoff:
        return ConsolidationBackoff.from_history(self.snapshot, find_reversed(self.snapshot))

    @cached_property
    def _candidates(self) -> CandidateList:
        return self._find_candidates(claims_in_commands(self.snapshot))

    def _find_candidates(self, in_commands: frozenset[str]) -> CandidateList:
        return find_candidates(
            self.snapshot,
            self._catalogue,
            consolidatable=self._consolidatability.claims,
            in_commands=in_commands,
            nodes_hosting_buffers=self.simulation.nodes_hosting_buffers,
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
