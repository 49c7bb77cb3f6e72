"""Runs a cluster under a fleet plan in virtual time until it is at rest, and counts evictions, prices and minutes.

::

    FleetPlanner ──► moves ──15 s──► validated, launched ──boot──► candidates deleted ──drain──► gone; their pods run again

Candidates count against the budgets from the start of their move, replacements are launched with their cheapest offerings, and
every pod of a candidate is evicted once. Evicted pods run where the move plans them, or, with `by_scoring`, where
kube-scheduler's least-allocated scoring puts them: on the emptiest node that fits and is not being deleted, one that the plan
does not delete later if there is one. Pods that then fit
nowhere get new nodes (`reopened`).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from msgspec.structs import replace

from journeyman.cli.scenario import Scenario
from journeyman.core.api.resources import pod_requests
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.budgets import budget_status
from journeyman.core.disruption.candidates import Candidate, DisruptionReason, find_candidates
from journeyman.core.disruption.fleet_moves import Move, MoveCost, carried_out, with_pods_on
from journeyman.core.disruption.fleet_planning import PlannedFleet, next_moves, plan_fleet
from journeyman.core.disruption.simulation import Simulation
from journeyman.core.disruption.single_node_consolidation import eligible_candidates
from journeyman.core.scheduling.scheduler import solve
from journeyman.core.state import Snapshot
from journeyman_simulator.judge import verify_strictly

POLL = timedelta(seconds=10)
VALIDATION = timedelta(seconds=15)
BOOT = timedelta(seconds=75)
DRAIN = timedelta(seconds=40)


@dataclass(frozen=True)
class RunningMove:
    """A move that was started, when its candidates will be gone, and the names of the nodes that it launches."""

    move: Move
    done_at: datetime
    names: tuple[str, ...]


@dataclass
class Rollout:
    """A cluster in virtual time.

    Attributes:
        snapshot: The cluster now.
        catalogue: Its instance types.
        by_scoring: Whether evicted pods run where kube-scheduler's scoring puts them.
        on_change: Called after each change of the cluster.
        evictions: How often each pod was evicted, by key.
        running: Moves that have not ended.
        avoided: Names of the nodes that pods are bound to only if no other one fits.
        reopened: How many nodes evicted pods needed that no move foresaw.
        changed_at: When the last move ended.
    """

    snapshot: Snapshot
    catalogue: Catalogue
    by_scoring: bool = False
    on_change: Callable[[Rollout], None] = lambda _rollout: None
    evictions: Counter[str] = field(default_factory=Counter)
    running: list[RunningMove] = field(default_factory=list)
    reopened: int = 0
    avoided: frozenset[str] = frozenset()
    changed_at: datetime = field(init=False)
    _started_at: datetime = field(init=False)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        """Start now."""
        self.changed_at = self._started_at = self.snapshot.now

    @classmethod
    def of(cls, scenario: Scenario, *, by_scoring: bool = False) -> Rollout:
        """Return the cluster of a scenario."""
        return cls(scenario.snapshot, scenario.catalogue, by_scoring=by_scoring)

    @property
    def price(self) -> float:
        """What the nodes cost per hour."""
        return sum(c.price for c in self.candidates(with_running=True))

    @property
    def minutes(self) -> float:
        """How long it took until the last change."""
        return (self.changed_at - self._started_at) / timedelta(minutes=1)

    def candidates(self, *, with_running: bool = False) -> tuple[Candidate, ...]:
        """Return the nodes that may be disrupted; those of running moves only if asked for."""
        claims = frozenset(c.metadata.name for c in self.snapshot.claims)
        busy = frozenset(() if with_running else (c.nodeclaim for r in self.running for c in r.move.candidates))
        found = find_candidates(self.snapshot, self.catalogue, consolidatable=claims, in_commands=busy)
        return found.candidates

    def simulation(self) -> Simulation:
        """Return simulations in the cluster as it will be once the running moves are done."""
        snapshot = self.snapshot
        for running in self.running:
            snapshot = carried_out(snapshot, self.catalogue, running.move, running.names)
        return Simulation(snapshot, self.catalogue, verify=verify_strictly)

    def allowed(self) -> dict[str, int]:
        """Return what the budgets allow if nothing is running."""
        found = budget_status(self.snapshot, DisruptionReason.UNDERUTILIZED, frozenset())
        return {pool: status.remaining for pool, status in found.items()}

    def remaining(self) -> dict[str, int]:
        """Return what the budgets allow besides the running moves."""
        used = Counter(c.nodepool for r in self.running for c in r.move.candidates)
        return {pool: max(n - used[pool], 0) for pool, n in self.allowed().items()}

    def run(self, decide: Callable[[Rollout], Iterable[Move]], *, most: timedelta = timedelta(hours=12)) -> None:
        """Run until nothing is running and nothing is decided."""
        while self.snapshot.now - self._started_at < most:
            for move in decide(self):
                boot = BOOT if move.replacements else timedelta(0)
                names = tuple(f"replacement-{next(self._numbers):05d}" for _ in move.replacements)
                self.running.append(RunningMove(move, self.snapshot.now + VALIDATION + boot + DRAIN, names))
            if not self.running:
                return
            self._advance()

    def _advance(self) -> None:
        """Go to the first poll at which a move has ended."""
        polls = -((self.snapshot.now - min(r.done_at for r in self.running)) // POLL)
        now = self.snapshot.now + polls * POLL
        self.snapshot = replace(self.snapshot, now=now)
        done = [r for r in self.running if r.done_at <= now]
        leaving = {c.node for r in self.running for c in r.move.candidates}
        self.running = [r for r in self.running if r.done_at > now]
        for ended in done:
            gone = {c.node for c in ended.move.candidates}
            moving = [p.key for p in self.snapshot.pods if p.spec.node_name in gone]
            self.evictions.update(moving)
            self.snapshot = carried_out(self.snapshot, self.catalogue, ended.move, ended.names)
            if self.by_scoring:
                self._place_by_scoring(moving, leaving)
            self.changed_at = now
            self.on_change(self)

    def _place_by_scoring(self, moving: list[str], leaving: set[str]) -> None:
        """Bind the evicted pods, in the order of their names, to the emptiest nodes that fit."""
        total = {n.name: n.allocatable() for n in self.snapshot.state_nodes if n.name not in leaving}
        free = {name: Counter(amounts) for name, amounts in total.items()}
        for node in self.snapshot.state_nodes:
            for pod in node.pods if node.name in free else ():
                if pod.key not in moving:
                    free[node.name].subtract(pod_requests(pod))
        placed: dict[str, str] = {}
        for pod in sorted((p for p in self.snapshot.pods if p.key in moving), key=lambda p: p.key):
            requests = pod_requests(pod)
            fitting = [n for n, left in free.items() if all(left[r] >= amount for r, amount in requests.items())]
            placed[pod.key] = max(
                fitting, key=lambda n: (n not in self.avoided, _emptiness(free[n], total[n]), n), default=""
            )
            if placed[pod.key]:
                free[placed[pod.key]].subtract(requests)
        self.snapshot = with_pods_on(self.snapshot, placed)
        unplaced = [p for p in self.snapshot.pods if p.key in placed and not p.spec.node_name]
        if not unplaced:
            return
        planned = solve(self.snapshot, self.catalogue, pods=unplaced, without_nodes=frozenset(leaving))
        names = [f"reopened-{next(self._numbers):05d}" for _ in planned.new_claims]
        self.reopened += len(names)
        launched = Move(candidates=(), replacements=planned.new_claims, existing=planned.existing)
        self.snapshot = carried_out(self.snapshot, self.catalogue, launched, names)


def _emptiness(free: Counter[str], total: dict[str, int]) -> float:
    return sum(free[r] / max(total[r], 1) for r in ("cpu", "memory"))


@dataclass
class FleetPlanner:
    """Decides by fleet plans: makes one, starts its moves as budgets and their order allow, and makes the next if one fails.

    Attributes:
        cost: What evictions cost.
        budget: Nodes that may go at once, of all NodePools; None for what their budgets allow.
        plans: The plans so far.
    """

    cost: MoveCost = field(default_factory=MoveCost)
    plans: list[PlannedFleet] = field(default_factory=list)
    _waiting: list[Move] = field(default_factory=list)
    _leaving: frozenset[str] = frozenset()

    def __call__(self, rollout: Rollout) -> tuple[Move, ...]:
        """Return the moves that start now."""
        if not self._waiting and not rollout.running:
            self._plan(rollout)
        started = self._start(rollout)
        if started or rollout.running or not self._waiting:
            return started
        self._plan(rollout)
        return self._start(rollout)

    def _plan(self, rollout: Rollout) -> None:
        launched = {c.metadata.name for c in rollout.snapshot.claims if c.metadata.name.startswith("replacement-")}
        eligible = eligible_candidates(rollout.candidates(), rollout.snapshot)
        settled = launched if self._waiting else ()
        plan = plan_fleet(rollout.simulation(), eligible, rollout.allowed(), cost=self.cost, settled=settled)
        self.plans.append(plan)
        self._waiting = list(plan.moves)
        self._leaving = rollout.avoided = frozenset(c.node for move in plan.moves for c in move.candidates)

    def _start(self, rollout: Rollout) -> tuple[Move, ...]:
        unfinished = {m.name for m in self._waiting} | {r.move.name for r in rollout.running}
        ready = [m for m in self._waiting if unfinished.isdisjoint(m.after)]
        present = {c.nodeclaim: c for c in rollout.candidates()}
        candidates = [tuple(present[c.nodeclaim] for c in m.candidates) for m in ready]
        moves = next_moves(
            rollout.simulation(), candidates, rollout.remaining(), leaving=self._leaving, cost=self.cost
        ).moves
        started = {m.name for m in moves}
        self._waiting = [m for m in self._waiting if m.name not in started]
        return moves
