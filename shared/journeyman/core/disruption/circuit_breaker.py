"""The circuit breaker: pauses the disruption of NodePools, by hand, by an alarm, or because replacements do not join.

====================================  =====================================  ==========================================
pauses                                 which commands                         until
====================================  =====================================  ==========================================
NodePool's annotation                  all for nodes of the NodePool          the annotation's time, or its removal
`pause-disruption`
an alarm of the cloud                  all for nodes of the cluster's         the alarm leaves the state ALARM
                                       NodePools that listen to it
a command was rolled back, because     those that launch a replacement of     2 minutes, then 4, 8 … 60; then one command
its replacements did not join          the NodePool                           is tried, and its success ends the pause
====================================  =====================================  ==========================================

A pause stops new proposals and fails validation; a command that has started is finished, because half of a command is worse than
either end. What is not disruption within budgets goes on: interruption, expiration, repair, deletion by users, the replicas of
static NodePools.

An annotation that does not parse pauses as well, with an Event: who wrote it wanted to stop something, and a node that stays can go
later.

An alarm's state is stored with its time as an annotation of every NodePool, since it arrives once and may arrive late: a state that is
older than the stored one changes nothing.

Differs: Karpenter has none of these; it repeats a failed replacement without end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.conditions import format_time, parse_time
from journeyman.core.api.duration import doubled, time_after
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NODEPOOL
from journeyman.core.disruption.candidates import Candidate
from journeyman.core.disruption.commands import Command, replacement_name
from journeyman.core.plan import Event, ObjectRef, Observation, PatchObject, Plan, Requeue, Step, chain_of
from journeyman.core.state import Snapshot
from journeyman.core.state.skipped_objects import plan_for_each

PAUSED: Final = "DisruptionPaused"
"""Event reason on a NodePool."""
HISTORY_WINDOW: Final = timedelta(hours=6)
COMMANDS_COUNTED: Final = 6
"""How many of a NodePool's last replace commands count; with six failures the pause has its longest duration."""
MIN_PAUSE: Final = timedelta(minutes=2)
MAX_PAUSE: Final = timedelta(hours=1)
MAX_ALARMS: Final = 50
"""Alarms whose state is stored, those in ALARM and the latest ones first: annotations are bounded."""
ALARM_KEPT_FOR: Final = timedelta(days=1)
"""How long the state of an alarm that is over is stored, so that a late message does not start it again."""


class Pause(Struct, frozen=True, kw_only=True):
    """All disruption of a NodePool is paused until `until`, None if the end is not known; `is_invalid` if its annotation does not parse."""

    why: str
    until: datetime | None = None
    is_invalid: bool = False


class FailedReplacements(Struct, frozen=True, kw_only=True):
    """A NodePool whose last replacements did not join.

    Attributes:
        failures: How many of its last commands failed; at least one.
        counted: How many commands were counted.
        until: No command launches a replacement before; afterwards one is tried.
        last: The NodeDisruption that failed last.
    """

    failures: int
    counted: int
    until: datetime
    last: str


class CircuitBreaker(Struct, frozen=True, kw_only=True):
    """The paused NodePools, those whose replacements failed, and commands that wait for replacements, by NodePool name.

    `trials` has of each NodePool whose replacements failed the unfinished NodeDisruptions with replacements in it.
    """

    now: datetime
    paused: Mapping[str, Pause]
    failed: Mapping[str, FailedReplacements]
    trials: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, snapshot: Snapshot) -> CircuitBreaker:
        """Return the circuit breaker that follows from annotations, alarms and the NodeDisruptions."""
        alarms = stored_alarms(snapshot)
        paused = {
            pool.metadata.name: _annotated_pause(pool, snapshot.now) or _alarm_pause(pool, alarms)
            for pool in snapshot.node_pools
        }
        failed = _failed_replacements(snapshot)
        unfinished = [d for d in snapshot.node_disruptions if not d.finished]
        trials = {
            pool: tuple(d.metadata.name for d in unfinished if pool in _replacement_pools(d, snapshot))
            for pool in failed
        }
        return cls(
            now=snapshot.now,
            paused={name: pause for name, pause in sorted(paused.items()) if pause is not None},
            failed=failed,
            trials=trials,
        )

    def why_paused(self, node_pool: str) -> str:
        """Return why no node of the NodePool is disrupted; empty if it is not paused."""
        pause = self.paused.get(node_pool)
        return f"Disruption of NodePool {node_pool} is paused: {pause.why}" if pause is not None else ""

    def why_no_replacement(self, node_pool: str, *, without: str = "") -> str:
        """Return why no command may launch a replacement of the NodePool; empty if one may.

        Args:
            node_pool: The NodePool.
            without: The command that is validated, which does not wait for itself.
        """
        failed = self.failed.get(node_pool)
        if failed is None:
            return ""
        text = f"replacements of NodePool {node_pool} did not join in {failed.failures} of its last {failed.counted} commands"
        if failed.until > self.now:
            return f"Replacements are paused until {failed.until:%H:%M:%S} UTC: {text}, last in NodeDisruption {failed.last}"
        trials = [name for name in self.trials.get(node_pool, ()) if name != without]
        return f"Replacements wait for NodeDisruption {trials[0]}, which tries again: {text}" if trials else ""

    def unpaused(self, candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
        """Return the candidates whose NodePool is not paused, in their order."""
        return tuple(c for c in candidates if c.nodepool not in self.paused)

    def checked(self, command: Command, *, without: str = "") -> Command:
        """Return the command, or a no-op if a NodePool of its candidates or replacements does not permit it.

        Args:
            command: The command.
            without: Its NodeDisruption, if it is validated.
        """
        reasons = (
            *(self.why_paused(candidate.nodepool) for candidate in command.candidates),
            *(self.why_no_replacement(claim.node_pool, without=without) for claim in command.replacements),
        )
        why = next(filter(None, reasons), "")
        return Command(reason=command.reason, why_not=why) if why else command

    def checked_each(self, commands: Iterable[tuple[Candidate, Command]]) -> Iterator[tuple[Candidate, Command]]:
        """Yield each candidate with its command as `checked`, and one command at most for a NodePool whose replacements are tried again."""
        tried: set[str] = set()
        for candidate, found in commands:
            command = self.checked(found)
            pools = {claim.node_pool for claim in command.replacements} & self.failed.keys()
            if pools & tried:
                why = f"Replacements wait for another command, which tries NodePool {min(pools & tried)} again"
                command = Command(reason=found.reason, why_not=why)
            tried |= pools
            yield candidate, command


def report_pauses(snapshot: Snapshot) -> Plan:
    """Return the Events and metrics of all NodePools, and a requeue for the time at which the first pause ends."""
    breaker = CircuitBreaker.of(snapshot)

    def decide(pool: NodePool) -> Plan:
        name = pool.metadata.name
        pause, why = breaker.paused.get(name), breaker.why_no_replacement(name)
        ref = ObjectRef(resource=NODEPOOL, name=name, uid=pool.metadata.uid)
        events = []
        if pause is not None:
            message = breaker.why_paused(name)
            events.append(Event(ref=ref, reason=PAUSED, message=message, type="Warning", key="all"))
            if pause.is_invalid:
                events.append(Event(ref=ref, reason="InvalidAnnotation", message=message, type="Warning", key=PAUSED))
        if why:
            events.append(Event(ref=ref, reason=PAUSED, message=why, type="Warning", key="replacements"))
        gauges = (_gauge(name, "all", pause is not None), _gauge(name, "replacements", bool(why)))
        return Plan(events=tuple(events), observations=gauges)

    ends = [*(p.until for p in breaker.paused.values()), *(f.until for f in breaker.failed.values())]
    at = min((end for end in ends if end is not None and end > snapshot.now), default=None)
    requeue = Requeue(step=Step.CONSOLIDATE, at=at, reason="a pause of disruption ends") if at is not None else None
    chains = (chain_of("requeues", requeue),) if requeue is not None else ()
    return plan_for_each(snapshot.node_pools, decide) + Plan(chains=chains)


def _gauge(node_pool: str, scope: str, is_paused: bool) -> Observation:
    labels_ = {"nodepool": node_pool, "scope": scope}
    return Observation(
        name="journeyman_nodepools_disruption_paused", value=float(is_paused), labels=labels_, kind="gauge"
    )


def _annotated_pause(pool: NodePool, now: datetime) -> Pause | None:
    text = pool.metadata.annotations.get(labels.PAUSE_DISRUPTION, "false").strip()
    if text == "false":
        return None
    if text == "true":
        return Pause(why=f"annotation {labels.PAUSE_DISRUPTION}; remove it to go on")
    until = parse_time(text)
    if until is None:
        why = (
            f"annotation {labels.PAUSE_DISRUPTION}: {text[:100]!r} is neither true, false nor an RFC 3339 time such as "
            "2026-12-01T06:00:00Z; correct or remove it to go on"
        )
        return Pause(why=why, is_invalid=True)
    return (
        Pause(why=f"annotation {labels.PAUSE_DISRUPTION} until {format_time(until)}", until=until)
        if until > now
        else None
    )


# -- alarms -----------------------------------------------------------------------------------------------------------


class Alarm(Struct, frozen=True, kw_only=True):
    """The last known state of an alarm, since `at`."""

    name: str
    is_firing: bool
    at: datetime


def stored_alarms(snapshot: Snapshot) -> tuple[Alarm, ...]:
    """Return the alarms that the NodePools' annotations store, by name, each in its latest state; entries that do not parse are ignored."""
    latest: dict[str, Alarm] = {}
    for pool in snapshot.node_pools:
        for alarm in _parse_alarms(pool.metadata.annotations.get(labels.ALARMS, "")):
            if alarm.name not in latest or latest[alarm.name].at < alarm.at:
                latest[alarm.name] = alarm
    return tuple(latest[name] for name in sorted(latest))


def record_alarm(snapshot: Snapshot, alarm: Alarm) -> Plan:
    """Return the plan that stores an alarm's new state in every NodePool, and starts consolidate to obey it.

    A state that is not later than the stored one changes nothing.
    """
    known = {known.name: known for known in stored_alarms(snapshot)}
    if alarm.name in known and known[alarm.name].at >= alarm.at:
        return Plan(notes=(f"alarm {alarm.name}: its stored state is newer",))
    oldest = time_after(snapshot.now, -ALARM_KEPT_FOR)
    kept = [a for a in known.values() if a.name != alarm.name and (a.is_firing or a.at > oldest)]
    latest = sorted((*kept, alarm), key=lambda a: (a.is_firing, a.at, a.name))[-MAX_ALARMS:]
    text = json.dumps(
        {a.name: f"{_STATES[a.is_firing]} {format_time(a.at)}" for a in sorted(latest, key=lambda a: a.name)}
    )
    why = f"alarm {alarm.name} is {_STATES[alarm.is_firing]}"
    requeue = Requeue(step=Step.CONSOLIDATE, at=snapshot.now, reason=why)

    def store(pool: NodePool) -> Plan:
        patch = PatchObject(
            ref=ObjectRef(resource=NODEPOOL, name=pool.metadata.name, uid=pool.metadata.uid),
            patch={"metadata": {"annotations": {labels.ALARMS: text}}},
            why=why,
            resource_version=pool.metadata.resource_version,
        )
        return Plan(chains=(chain_of(f"NodePool {pool.metadata.name}", patch, requeue),))

    return plan_for_each(snapshot.node_pools, store) + Plan(notes=(why,))


_STATES: Final = {True: "ALARM", False: "OK"}


def _parse_alarms(text: str) -> Iterator[Alarm]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return
    for name, value in found.items() if isinstance(found, dict) else ():
        state, _, since = str(value).partition(" ")
        at = parse_time(since)
        if at is not None:
            yield Alarm(name=name, is_firing=state == _STATES[True], at=at)


def _alarm_pause(pool: NodePool, alarms: Iterable[Alarm]) -> Pause | None:
    text = pool.metadata.annotations.get(labels.PAUSE_ON_ALARMS)
    listed = None if text is None else {name.strip() for name in text.split(",")}
    firing = [alarm for alarm in alarms if alarm.is_firing and (listed is None or alarm.name in listed)]
    if not firing:
        return None
    names = ", ".join(alarm.name for alarm in firing[:3]) + (f" and {len(firing) - 3} more" if len(firing) > 3 else "")
    since = format_time(min(alarm.at for alarm in firing))
    return Pause(
        why=f"in state ALARM since {since}: {names}; annotation {labels.PAUSE_ON_ALARMS} names the alarms that count"
    )


# -- replacements that did not join -------------------------------------------------------------------------------------


def _failed_replacements(snapshot: Snapshot) -> Mapping[str, FailedReplacements]:
    """Return the NodePools whose last replace command was rolled back, by name."""
    outcomes: dict[str, list[tuple[datetime, str, bool]]] = {}
    for disruption in snapshot.node_disruptions:
        end = disruption.status.finished_at
        is_outcome = disruption.spec.replacements and disruption.status.phase in ("Succeeded", "RolledBack")
        if not is_outcome or end is None or snapshot.now - end >= HISTORY_WINDOW:
            continue
        for pool in _replacement_pools(disruption, snapshot):
            is_failure = disruption.status.phase == "RolledBack"
            outcomes.setdefault(pool, []).append((end, disruption.metadata.name, is_failure))
    return {pool: failed for pool, ended in sorted(outcomes.items()) if (failed := _failed(sorted(ended))) is not None}


def _failed(outcomes: list[tuple[datetime, str, bool]]) -> FailedReplacements | None:
    """Return the failures among a NodePool's outcomes (end, name, failed), oldest first; None if the last one is no failure."""
    counted = outcomes[-COMMANDS_COUNTED:]
    end, name, is_failure = counted[-1]
    if not is_failure:
        return None
    failures = sum(failed for _, _, failed in counted)
    until = time_after(end, doubled(MIN_PAUSE, failures, MAX_PAUSE))
    return FailedReplacements(failures=failures, counted=len(counted), until=until, last=name)


def _replacement_pools(disruption: NodeDisruption, snapshot: Snapshot) -> frozenset[str]:
    """Return the NodePools of the replacements, whose names are derived from them."""
    pools = [pool.metadata.name for pool in snapshot.node_pools]
    name, replacements = disruption.metadata.name, enumerate(disruption.spec.replacements)
    return frozenset(p for index, r in replacements for p in pools if replacement_name(name, p, index) == r.name)
