"""The progress of a fleet plan: from the planned fleet to its FleetPlan object, and how far that is by its commands.

::

    FleetPlan      moves   node-1  Done         ◄── NodeDisruption, method fleet-plan, of node-1   Succeeded
                           node-4  Running      ◄── NodeDisruption of node-4                       Replacing
                           node-9  (pending)        starts when the budgets allow, and the moves that it comes after are done

A move whose command was undone, or that is no longer valid, ends the plan; so does one for which the others wait too long. The
nodes that it launched stay: the next plan leaves them alone while it is made for the rest. Once no move waits any more, the
plan stops nothing: other methods, and another plan without the nodes that it launched, go on while its last moves drain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from itertools import accumulate, takewhile
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import format_time
from journeyman.core.api.fleet_plan import (
    MAX_MOVES,
    MAX_NODES,
    FleetPlan,
    FleetPlanMove,
    FleetPlanSpec,
    StartedMove,
)
from journeyman.core.api.node_disruption import UNDONE, NodeDisruption, price_text
from journeyman.core.api.objects import FLEET_PLAN, ObjectMeta
from journeyman.core.api.wording import counted, verb_of
from journeyman.core.disruption.budgets import BudgetStatus
from journeyman.core.disruption.candidates import Candidate, DisruptionReason, NodePoolName
from journeyman.core.disruption.cleanup import claims_with_stale_taints
from journeyman.core.disruption.commands import Command, claims_in_commands, difference
from journeyman.core.disruption.fleet_moves import Move, MoveCost
from journeyman.core.disruption.fleet_planning import LEAST_GAIN, NextMoves, PlannedFleet, next_moves, plan_fleet
from journeyman.core.disruption.simulation import Simulation
from journeyman.core.plan import CreateObject, DeleteObject, ObjectRef, PatchObject, Plan, chain_of, merge_plans
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.disrupted_taint import mark_leaving
from journeyman.core.state.skipped_objects import plan_for_each

KEPT_PLANS: Final = 5
"""Plans that ended and are kept, for people."""
LONGEST_WAIT: Final = timedelta(minutes=15)
"""How long moves wait within the budgets, as for a drain that a PodDisruptionBudget stops, before the rest is planned again."""
SOLVED_AGAIN_AFTER: Final = timedelta(hours=1)
"""How long a fleet for which no move was worthwhile is neither solved again nor written to while its nodes stay the same."""
GAIN_AFTER_A_PLAN: Final = 0.1
"""Share of the price that a plan must save within the payback time of the one before, whose pods would move again."""
MOST_RECENTLY_CHANGED: Final = 0.1
"""Share of the nodes that may be within their consolidateAfter when a plan is made. They take no pods yet, so a plan would move many
pods to gain capacity that these nodes have in a moment."""
MOST_AT_ONCE: Final = 10
"""Moves that one run proposes: each is verified, which takes a tenth of a second and more."""


class PlanProgress(Struct, frozen=True, kw_only=True):
    """How far a plan is.

    Attributes:
        plan: The plan.
        started: Its moves that were started, in its order.
        waiting: Its other moves, in its order.
        failed: The first move whose command was undone, with the reason; empty if there is none.
        last_start: When the last move was started; when the plan was made if none was.
    """

    plan: FleetPlan
    started: tuple[StartedMove, ...]
    waiting: tuple[FleetPlanMove, ...]
    failed: str
    last_start: datetime

    @property
    def ready(self) -> tuple[FleetPlanMove, ...]:
        """The waiting moves that may start now, in the plan's order."""
        done = {move.name for move in self.started if move.state == "Done"}
        return tuple(move for move in self.waiting if done.issuperset(move.after))

    @property
    def running(self) -> tuple[StartedMove, ...]:
        """The moves that were started and have not ended."""
        return tuple(move for move in self.started if move.state == "Running")

    @property
    def is_done(self) -> bool:
        """Whether every move is done."""
        return self._done == len(self.plan.spec.moves)

    @property
    def _done(self) -> int:
        return sum(move.state == "Done" for move in self.started)

    def record(self, now: datetime, *, superseded_because: str = "") -> Plan:
        """Return the plan that writes the progress into the object; empty if nothing changed."""
        status = self.plan.status
        phase = "Superseded" if superseded_because else "Completed" if self.is_done else "Running"
        if (phase, self.started) == (status.phase, status.moves):
            return Plan()
        changes = {"phase": phase, "done": self._done, "moves": [move.to_wire() for move in self.started]}
        if phase != "Running":
            nothing = "" if self.plan.spec.moves else "no move is worthwhile"
            why = superseded_because or nothing or "every move is done"
            changes |= {"message": why[:4096], "finishedAt": format_time(now)}
        name = self.plan.metadata.name
        patch = PatchObject(
            ref=ObjectRef(resource=FLEET_PLAN, name=name, uid=self.plan.metadata.uid),
            patch={"status": changes},
            why=f"{self._done} of {counted(len(self.plan.spec.moves), 'move')} done",
            resource_version=self.plan.metadata.resource_version,
            subresource="status",
        )
        notes = (f"FleetPlan {name} {phase}: {changes['message']}",) if phase != "Running" else ()
        return Plan(chains=(chain_of(f"FleetPlan {name}", patch),), notes=notes)


def plans_in_progress(snapshot: Snapshot) -> tuple[PlanProgress, ...]:
    """Return the progress of the plans that have not ended, oldest first."""
    running = (plan for plan in snapshot.fleet_plans if plan.is_running)
    ordered = sorted(running, key=lambda p: (p.since or snapshot.now, p.metadata.name))
    return tuple(_progress(plan, snapshot) for plan in ordered)


def waiting_plan(plans: Iterable[PlanProgress]) -> PlanProgress | None:
    """Return the newest of these plans that has waiting moves; there is another one only after a crash."""
    return max(
        (p for p in plans if p.waiting),
        key=lambda p: (p.plan.since or p.last_start, p.plan.metadata.name),
        default=None,
    )


def _progress(plan: FleetPlan, snapshot: Snapshot) -> PlanProgress:
    recorded = {move.name: move for move in plan.status.moves if move.state != "Running"}
    commands = _commands(plan, snapshot)
    found = (recorded.get(m.name) or _started(m, commands.get(m.name)) for m in plan.spec.moves)
    started = tuple(move for move in found if move is not None)
    names = {move.name for move in started}
    failed = next((move for move in started if move.state == "Failed"), None)
    why = ""
    if failed is not None:
        command = commands.get(failed.name)
        message = command.status.messages[-1] if command is not None and command.status.messages else "it failed"
        why = f"move {failed.name} (NodeDisruption {failed.node_disruption}): {message}"
    since = plan.since or snapshot.now
    return PlanProgress(
        plan=plan,
        started=started,
        waiting=tuple(m for m in plan.spec.moves if m.name not in names),
        failed=why,
        last_start=max((command.since or since for command in commands.values()), default=since),
    )


def nodes_of(moves: Iterable[FleetPlanMove], snapshot: Snapshot) -> frozenset[str]:
    """Return the names of the nodes that these moves delete and that exist."""
    nodes = (snapshot.state_nodes_by_claim.get(name) for move in moves for name in move.node_claims)
    return frozenset(node.name for node in nodes if node is not None)


def mark_leaving_nodes(snapshot: Snapshot, soon_gone: Collection[str] = ()) -> Plan:
    """Taint the nodes of the moves that wait and those that are soon gone, and remove the taint from all others.

    kube-scheduler then binds the pods of earlier moves to nodes that stay, so that they move once. Nodes in a command are left
    as they are: they have the disrupted taint, or get it at once.

    Args:
        snapshot: The cluster.
        soon_gone: Names of NodeClaims (`ChurnLimits.nodes_soon_gone`).
    """
    reasons = dict.fromkeys(soon_gone, "nodes of its NodePool come and go")
    progress = waiting_plan(plans_in_progress(snapshot))
    if progress is not None and not progress.failed:
        why = f"FleetPlan {progress.plan.metadata.name} deletes it later"
        reasons.update({name: why for move in progress.waiting for name in move.node_claims})
    elsewhere = claims_in_commands(snapshot) | claims_with_stale_taints(snapshot)

    def decide(node: StateNode) -> Plan:
        if node.node is None or node.claim is None or node.is_terminating or node.claim.metadata.name in elsewhere:
            return Plan()
        why = reasons.get(node.claim.metadata.name, "")
        patch = mark_leaving(node.node, why or "it stays", leaving=bool(why))
        return Plan(chains=(chain_of(f"Node {node.name}", patch),)) if patch is not None else Plan()

    return plan_for_each(snapshot.state_nodes, decide)


def claims_launched(plan: FleetPlan, snapshot: Snapshot) -> frozenset[str]:
    """Return the names of the NodeClaims that a plan's moves launched."""
    commands = {command.metadata.name for command in _commands(plan, snapshot).values()}
    commands |= {move.node_disruption for move in plan.status.moves}
    made_by = ((c.metadata.name, c.metadata.annotations.get(labels.DISRUPTION, "")) for c in snapshot.claims)
    return frozenset(name for name, command in made_by if command in commands)


def recently_launched(snapshot: Snapshot, payback: timedelta) -> frozenset[str]:
    """Return the names of the NodeClaims that plans launched which are in progress, or ended within the payback time."""
    recent = (p for p in snapshot.fleet_plans if snapshot.now - (p.status.finished_at or snapshot.now) < payback)
    return frozenset(name for plan in recent for name in claims_launched(plan, snapshot))


def digest_of_nodes(candidates: Iterable[Candidate], allowed: Mapping[NodePoolName, int], snapshot: Snapshot) -> str:
    """Return a digest of what a plan for these candidates depends on: prices, budgets, NodePools, and about how many pods there are."""
    listed = sorted(candidates, key=lambda c: c.nodeclaim)
    pods = round(math.log1p(sum(len(c.reschedulable_pods) for c in listed)) / math.log(1.1))
    pools = [(p.metadata.name, p.metadata.generation) for p in snapshot.node_pools]
    text = repr(([(c.nodeclaim_uid, c.price) for c in listed], pods, sorted(allowed.items()), sorted(pools)))
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _is_known(snapshot: Snapshot, digest: str) -> bool:
    """Whether no move was worthwhile for these nodes a short time ago."""
    return any(
        p.spec.examined == digest and p.since is not None and snapshot.now - p.since < SOLVED_AGAIN_AFTER
        for p in snapshot.fleet_plans
    )


def _without_moves(planned: PlannedFleet, digest: str, snapshot: Snapshot) -> FleetEvaluation:
    """Return the evaluation that records that no move is worthwhile; nothing if it took no effort to see that."""
    if planned.is_cheap or not (planned.staying or planned.moves):
        return FleetEvaluation()
    made = to_fleet_plan(replace(planned, moves=()), snapshot.now)
    nodes = len(planned.staying) + sum(len(move.candidates) for move in planned.moves)
    changes = {"examined": digest, "explanation": _no_cheaper_fleet(planned, nodes)}
    return FleetEvaluation(plan=creation_plan(made.model_copy(update={"spec": made.spec.model_copy(update=changes)})))


def to_fleet_plan(planned: PlannedFleet, now: datetime) -> FleetPlan:
    """Return the FleetPlan of as many moves as one object holds, the best ones; the next plan has the others."""
    sizes = accumulate(len(move.candidates) for move in planned.moves)
    fitting = takewhile(lambda sized: sized[1] <= MAX_NODES, zip(planned.moves[:MAX_MOVES], sizes, strict=False))
    moves = [move for move, _ in fitting]
    saving, evictions = sum(m.saving for m in moves), sum(m.evictions for m in moves)
    digest = blake2b(" ".join((*(m.name for m in moves), now.isoformat())).encode(), digest_size=5).hexdigest()
    spec = FleetPlanSpec(
        moves=tuple(map(_to_plan_move, moves)),
        price_before=price_text(planned.price_before),
        price_after=price_text(planned.price_before - saving),
        lower_bound=price_text(planned.lower_bound),
        evictions=evictions,
        created_at=now,
        explanation=_explanation(planned, moves),
    )
    return FleetPlan(metadata=ObjectMeta(name=f"fleet-{digest}"), spec=spec)


def _explanation(planned: PlannedFleet, moves: Sequence[Move]) -> str:
    if not moves:
        return _no_cheaper_fleet(planned, len(planned.staying))
    nodes, evictions = sum(len(m.candidates) for m in moves), sum(m.evictions for m in moves)
    deletes = f"{counted(len(moves), 'move')} {verb_of(len(moves), 'deletes', 'delete')} {counted(nodes, 'node')}"
    evicts = f"{verb_of(len(moves), 'evicts', 'evict')} {counted(evictions, 'pod')}"
    saving = f"saving {sum(m.saving for m in moves):.4f}/h of {planned.price_before:.4f}/h"
    return f"{deletes} and {evicts}, {saving}; {_bound(planned)}"


def _no_cheaper_fleet(planned: PlannedFleet, nodes: int) -> str:
    stay = f"{counted(nodes, 'node')} {verb_of(nodes, 'stays', 'stay')}"
    return f"no cheaper fleet: {stay}, for {planned.price_before:.4f}/h; {_bound(planned)}"


def _bound(planned: PlannedFleet) -> str:
    return f"no fleet for these pods costs less than {planned.lower_bound:.4f}/h"


def creation_plan(plan: FleetPlan) -> Plan:
    """Return the plan that creates the object."""
    explanation = plan.spec.explanation
    create = CreateObject(resource=FLEET_PLAN, body=plan.to_wire(), why=explanation)
    note = f"planned the fleet: {explanation}" if plan.spec.moves else explanation
    return Plan(chains=(chain_of(f"FleetPlan {plan.metadata.name}", create),), notes=(note,))


def delete_old_plans(snapshot: Snapshot) -> Plan:
    """Delete plans that ended, but for the newest ones, and those with waiting moves but for the newest."""
    running = plans_in_progress(snapshot)
    goes_on = waiting_plan(running)
    left_behind = [p.plan for p in running if p.waiting and p is not goes_on]
    ended = [p for p in snapshot.fleet_plans if not p.is_running]
    by_age = sorted(ended, key=lambda p: (p.since or snapshot.now, p.metadata.name), reverse=True)
    made, without_moves = [p for p in by_age if p.spec.moves], [p for p in by_age if not p.spec.moves]
    old = (*left_behind, *made[KEPT_PLANS:], *without_moves[1:])
    refs = (ObjectRef(resource=FLEET_PLAN, name=p.metadata.name, uid=p.metadata.uid) for p in old)
    return Plan(chains=tuple(chain_of(str(ref), DeleteObject(ref=ref, why="history")) for ref in refs))


def _to_plan_move(move: Move) -> FleetPlanMove:
    offerings = (claim.offering for claim in move.replacements)
    return FleetPlanMove(
        name=move.name,
        node_claims=tuple(c.nodeclaim for c in move.candidates),
        replacements=tuple(f"{o.instance_type}/{o.zone}/{o.capacity_type}" for o in offerings),
        after=move.after,
        saving_per_hour=price_text(move.saving),
        evictions=move.evictions,
    )


def _commands(plan: FleetPlan, snapshot: Snapshot) -> dict[str, NodeDisruption]:
    """Return the newest command of each move, by the move's name."""
    since = plan.since or snapshot.now
    own = [d for d in snapshot.node_disruptions if d.spec.method == "fleet-plan" and (d.since or snapshot.now) >= since]
    ordered = sorted(own, key=lambda d: (d.since or snapshot.now, d.metadata.name))
    return {min(d.claims): d for d in ordered}


def _started(move: FleetPlanMove, command: NodeDisruption | None) -> StartedMove | None:
    if command is None:
        return None
    phase = command.status.phase
    state = "Failed" if phase in UNDONE else "Done" if phase == "Succeeded" else "Running"
    return StartedMove(name=move.name, state=state, node_disruption=command.metadata.name)


# -- what the fleet plan does in one run ------------------------------------------------------------------------------


class FleetEvaluation(Struct, frozen=True, kw_only=True):
    """The moves that start now, the writes of FleetPlan objects, and whether moves wait, for which other methods stand back."""

    commands: tuple[Command, ...] = ()
    plan: Plan = field(default_factory=Plan)
    is_waiting: bool = False


def evaluate_fleet_plan(
    simulation: Simulation,
    candidates: Sequence[Candidate],
    budgets: Mapping[NodePoolName, BudgetStatus],
    *,
    cost: MoveCost,
    check: Callable[[Command], str] = lambda _command: "",
    spot_to_spot: bool = False,
) -> FleetEvaluation:
    """Continue the plan whose moves wait; make one if there is none, or if it cannot go on.

    Args:
        simulation: The cluster.
        candidates: Nodes that consolidation may delete or replace now, without those in unfinished commands.
        budgets: Budgets for ``Underutilized``; nodes in unfinished commands use them.
        cost: What evictions cost.
        check: Returns why a move must not start; empty if it may.
        spot_to_spot: Gate SpotToSpotConsolidation.
    """
    snapshot = simulation.snapshot
    rules = _Rules(
        allowed={pool: min(status.allowed, status.total) for pool, status in budgets.items() if status.remaining},
        remaining={pool: status.remaining for pool, status in budgets.items()},
        cost=cost,
        check=check,
        spot_to_spot=spot_to_spot,
    )
    plans = plans_in_progress(snapshot)
    current = waiting_plan(plans)
    others = merge_plans(p.record(snapshot.now, superseded_because=p.failed) for p in plans if not p.waiting)
    running = [p.plan for p in plans if not (p is current or p.is_done or p.failed)]
    if current is None:
        gain = GAIN_AFTER_A_PLAN if recently_launched(snapshot, cost.payback) else LEAST_GAIN
        settled = frozenset(name for p in plans if not p.is_done for name in claims_launched(p.plan, snapshot))
        found = _new_plan(simulation, candidates, rules, running, settled=settled, least_gain=gain)
        return replace(found, plan=others + found.plan)
    why, commands = current.failed or _why_stuck(current, rules, snapshot.now), tuple[Command, ...]()
    if not why:
        why, commands = _continue(simulation, current, candidates, rules)
    if not why:
        return FleetEvaluation(commands=commands, plan=others + current.record(snapshot.now), is_waiting=True)
    superseded = current.record(snapshot.now, superseded_because=why)
    again = _new_plan(simulation, candidates, rules, running, settled=claims_launched(current.plan, snapshot))
    return replace(again, plan=others + superseded + again.plan)


class _Rules(Struct, frozen=True, kw_only=True):
    """What a plan keeps to: nodes that budgets allow at once, and now; costs; and what else refuses a move."""

    allowed: Mapping[NodePoolName, int]
    remaining: Mapping[NodePoolName, int]
    cost: MoveCost
    check: Callable[[Command], str]
    spot_to_spot: bool

    def why_refused(self, commands: Iterable[Command]) -> str:
        """Return the first reason for which one of these must not start; empty if all may."""
        return next(filter(None, map(self.check, commands)), "")


def _why_stuck(progress: PlanProgress, rules: _Rules, now: datetime) -> str:
    """Return what moves have waited for too long, although budgets allow some; empty if they have not."""
    if now - progress.last_start < LONGEST_WAIT or not any(rules.remaining.values()):
        return ""
    running = ", ".join(f"{move.name} (NodeDisruption {move.node_disruption})" for move in progress.running[:3])
    awaited = f"move {running}" if running else "nodes that cannot be disrupted now"
    return f"for {LONGEST_WAIT.seconds // 60} minutes the other moves have waited for {awaited}"


def _new_plan(
    simulation: Simulation,
    candidates: Sequence[Candidate],
    rules: _Rules,
    running: Iterable[FleetPlan],
    *,
    settled: frozenset[str] = frozenset(),
    least_gain: float = LEAST_GAIN,
) -> FleetEvaluation:
    snapshot = simulation.snapshot
    if len(simulation.recently_changed) > MOST_RECENTLY_CHANGED * len(snapshot.state_nodes):
        return FleetEvaluation()  # the run at the end of their consolidateAfter makes it
    movable = (c for c in candidates if c.nodeclaim not in settled)
    digest = digest_of_nodes(movable, rules.allowed, snapshot)
    if _is_known(snapshot, digest):
        return FleetEvaluation()
    planned = plan_fleet(
        simulation,
        candidates,
        rules.allowed,
        cost=rules.cost,
        spot_to_spot=rules.spot_to_spot,
        settled=settled,
        least_gain=least_gain,
    )
    planned = _without_refused(planned, rules)
    if not planned.moves:
        return _without_moves(planned, digest, snapshot)
    made = to_fleet_plan(planned, snapshot.now)
    kept = {move.name for move in made.spec.moves}
    first = [move.candidates for move in planned.moves if move.name in kept and not move.after]
    commands = _next_moves(simulation, first, rules, (*running, made)).commands
    if not commands or rules.why_refused(commands):  # the methods behind it may find something
        return _without_moves(planned, digest, snapshot)
    return FleetEvaluation(commands=commands, plan=creation_plan(made), is_waiting=True)


def _without_refused(planned: PlannedFleet, rules: _Rules) -> PlannedFleet:
    """Return the plan without the moves that must not start, and without those that would come after them."""
    kept: dict[str, Move] = {}
    for move in planned.moves:  # a move comes behind those that it waits for
        if kept.keys() >= set(move.after) and not rules.check(move.command):
            kept[move.name] = move
    return replace(planned, moves=tuple(kept.values()))


def _nodes_leaving(plans: Iterable[FleetPlan], snapshot: Snapshot) -> frozenset[str]:
    """Return the names of the nodes that these plans delete."""
    return frozenset(name for plan in plans for name in nodes_of(plan.spec.moves, snapshot))


def _next_moves(
    simulation: Simulation, waiting: Iterable[Sequence[Candidate]], rules: _Rules, plans: Iterable[FleetPlan]
) -> NextMoves:
    """Return `next_moves` of a plan that keeps to these rules; `plans` are those that will be in progress at the validation."""
    return next_moves(
        simulation,
        waiting,
        rules.remaining,
        leaving=_nodes_leaving(plans, simulation.snapshot),
        cost=rules.cost,
        spot_to_spot=rules.spot_to_spot,
        most=MOST_AT_ONCE,
    )


def _continue(
    simulation: Simulation, progress: PlanProgress, candidates: Iterable[Candidate], rules: _Rules
) -> tuple[str, tuple[Command, ...]]:
    """Return why the plan cannot go on, or else the moves that start now."""
    snapshot = simulation.snapshot
    present: dict[str, Candidate] = {c.nodeclaim: c for c in candidates}
    gone = [n for move in progress.ready for n in move.node_claims if n not in snapshot.claims_by_name]
    if gone:
        return f"NodeClaim {gone[0]} no longer exists", ()
    waiting = [
        tuple(present[name] for name in move.node_claims)
        for move in progress.ready
        if all(name in present for name in move.node_claims)
    ]
    found = _next_moves(simulation, waiting, rules, (p for p in snapshot.fleet_plans if p.is_running))
    if found.invalid:
        name = min(found.invalid)
        return f"move {name} is no longer valid: {found.invalid[name]}", ()
    if why := rules.why_refused(found.commands):
        return why, ()
    if found.commands or progress.running or not any(rules.remaining.values()) or not waiting:
        return "", found.commands
    return "no move of the rest is valid alone and fits the budgets", ()


def validate_moves(
    disruptions: Sequence[NodeDisruption],
    simulation: Simulation,
    candidates: Iterable[Candidate],
    remaining: Mapping[NodePoolName, int],
    *,
    cost: MoveCost,
    spot_to_spot: bool = False,
) -> Mapping[str, Command]:
    """Return for each proposed move, by the name of its NodeDisruption, the command to execute now; a no-op if it is not valid.

    They are solved one after the other in the plan's order, as they were for the proposal: each in the cluster once the earlier ones
    are done, so that no capacity is used twice. One that is not valid before these are done is a no-op, too: rules about other pods may
    have got in its way since the proposal.

    Args:
        disruptions: Proposals of this method that have not started, in any order.
        simulation: The cluster.
        candidates: Nodes that may be disrupted now, those of the proposals included.
        remaining: Nodes each NodePool may still lose now besides the proposals; missing means 0.
        cost: What evictions cost.
        spot_to_spot: Gate SpotToSpotConsolidation.
    """
    present = {c.nodeclaim_uid: c for c in candidates if c.consolidatable and not c.is_empty}
    running = [plan for plan in simulation.snapshot.fleet_plans if plan.is_running]
    leaving = _nodes_leaving(running, simulation.snapshot)
    places = {move.name: place for plan in running for place, move in enumerate(plan.spec.moves)}
    found: dict[str, Command] = {}
    waiting: list[tuple[Candidate, ...]] = []
    for disruption in sorted(disruptions, key=lambda d: places.get(d.spec.candidates[0].node_claim, len(places))):
        own = [present.get(c.node_claim_uid) for c in disruption.spec.candidates]
        if None in own:
            found[disruption.metadata.name] = _no_op("churn: a candidate no longer qualifies")
        else:
            waiting.append(tuple(c for c in own if c is not None))
    now = next_moves(simulation, waiting, remaining, leaving=leaving, cost=cost, spot_to_spot=spot_to_spot)
    by_name = {move.name: move for move in now.moves}
    for disruption in disruptions:
        name, first = disruption.metadata.name, disruption.spec.candidates[0].node_claim
        if name in found:
            continue
        if first in now.too_early:
            found[name] = _no_op("scheduling: it is only valid once another move of the plan is done")
        elif first in now.invalid:
            found[name] = _no_op(f"scheduling: {now.invalid[first]}")
        elif first not in by_name:
            found[name] = _no_op("budget: the budgets allow no further disruption")
        else:
            command = by_name[first].command
            why = difference(disruption, command)
            found[name] = _no_op(f"scheduling: {why}") if why else command
    return found


def _no_op(why: str) -> Command:
    return Command(reason=DisruptionReason.UNDERUTILIZED, why_not=why)
