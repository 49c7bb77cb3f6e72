"""Churn counts: what disruption moves, which nodes are launched, and which consolidations are reversed, by hour.

::

    NodeDisruptions (unfinished, or finished and not counted yet) ─┐
    NodeClaims (created lately)                                    ├─► count_churn ─► counters ─► churn_limits
    ChurnLedger (counters by hour, and the NodeDisruptions in it) ─┘        └─► record_churn: one patch of the ChurnLedger

`held_until` says how long consolidation leaves a workload alone after `reversed_consolidations` (`churn_limits`).

No crash loses a count: a NodeDisruption is created before its first effect and lists the workloads that it moves. It counts as
long as it exists, until the patch that adds its evictions to the counters also names it as counted; only then is it deleted as
history. All of its pods count, from its proposal on and for 24 hours after its end, whether or not they were evicted.
Expiration, interruption and deletions by users are not commands, and are not counted.

Differs: Karpenter counts nothing, and repeats a consolidation that is reversed without end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any, Final, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.churn_ledger import (
    HOURS,
    LEDGER_NAME,
    MAX_COMMANDS,
    MAX_COUNT,
    MAX_NODE_POOLS,
    MAX_WORKLOADS,
    ChurnLedgerStatus,
    CountedCommand,
    NodePoolChurn,
    WorkloadChurn,
)
from journeyman.core.api.duration import doubled, time_after
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.objects import CHURN_LEDGER
from journeyman.core.api.wording import counted
from journeyman.core.disruption.commands import NEVER_STARTED, moved_by_pool, moved_pods
from journeyman.core.disruption.reversed_consolidations import (
    ReversedConsolidation,
    planned_workloads,
    reversed_consolidations,
)
from journeyman.core.plan import (
    Chain,
    CreateObject,
    ObjectRef,
    Observation,
    PatchObject,
    Plan,
    chain_of,
)
from journeyman.core.state import Snapshot
from journeyman.core.state.pod_workload import WorkloadKey

K = TypeVar("K")

HOUR: Final = timedelta(hours=1)
RECENT_HOURS: Final = 6
"""Reversed consolidations of the last six hours make a back-off longer."""
MAX_BACKOFF: Final = timedelta(hours=4)
CLOCK_DIFFERENCE: Final = timedelta(seconds=5)
"""NodeClaims younger than this are counted by a later run, which sees all NodeClaims of the same second."""


class Churn(Struct, frozen=True, kw_only=True):
    """Counters of one workload or NodePool by hour, the latest hour first; consolidation leaves a workload alone until `held_until`."""

    evictions: tuple[int, ...] = ()
    launches: tuple[int, ...] = ()
    reversals: tuple[int, ...] = ()
    held_until: datetime | None = None

    def plus(self, counter: str, number: int, hours_ago: int = 0) -> Churn:
        """Return the counters with a larger number for one hour."""
        counts = [*getattr(self, counter), *[0] * (hours_ago + 1)][: max(len(getattr(self, counter)), hours_ago + 1)]
        counts[hours_ago] = min(counts[hours_ago] + number, MAX_COUNT)
        return replace(self, **{counter: tuple(counts[:HOURS])})

    @property
    def recent_reversals(self) -> int:
        """The reversals of the last hours."""
        return sum(self.reversals[: RECENT_HOURS + 1])

    def hours_later(self, hours: int) -> Churn:
        """Return the same counters as seen some hours later."""
        return replace(self, **{name: _shifted(getattr(self, name), hours) for name in _COUNTERS})

    def held_longer(self, until: datetime) -> Churn:
        """Return the counters with a later end of the back-off."""
        return replace(self, held_until=max(until, self.held_until or until))

    def is_kept(self, now: datetime) -> bool:
        """Whether a counter is not zero, or the back-off has not ended."""
        is_held = self.held_until is not None and self.held_until > now
        return is_held or any(any(getattr(self, name)) for name in _COUNTERS)


_COUNTERS: Final = ("evictions", "launches", "reversals")


class ChurnCounts(Struct, frozen=True, kw_only=True):
    """The content of the ledger at `hour`.

    `other_evictions` are at least the evictions of any workload that is not in `workloads`. `commands` are the NodeDisruptions
    that are counted or known as reversed, by name.
    """

    hour: datetime
    workloads: Mapping[WorkloadKey, Churn] = field(default_factory=dict)
    node_pools: Mapping[str, Churn] = field(default_factory=dict)
    other_evictions: tuple[int, ...] = ()
    commands: Mapping[str, CountedCommand] = field(default_factory=dict)
    launches_until: datetime | None = None

    def of_workload(self, key: WorkloadKey) -> Churn:
        """Return the counters of a workload; an unlisted one may have had as many evictions as any that is left out."""
        return self.workloads.get(key) or Churn(evictions=self.other_evictions)

    def of_node_pool(self, name: str) -> Churn:
        """Return the counters of a NodePool."""
        return self.node_pools.get(name) or Churn()


class ChurnUpdate(Struct, frozen=True, kw_only=True):
    """The counters now, and what was counted that the stored ledger does not contain."""

    counts: ChurnCounts
    is_changed: bool
    counted: tuple[NodeDisruption, ...]
    reversals: tuple[ReversedConsolidation, ...]


# -- counting ---------------------------------------------------------------------------------------------------------


def count_churn(snapshot: Snapshot, reversal_window: timedelta) -> ChurnUpdate:
    """Return the stored counters together with all that has happened since they were stored.

    Args:
        snapshot: The cluster with its ChurnLedger, NodeDisruptions and NodeClaims.
        reversal_window: How long after a command a NodeClaim for a workload that it moved reverses it.
    """
    tally = _Tally(snapshot, reversal_window)
    tally.add_launches()
    counted = tally.add_commands()
    reversals = tally.add_reversals()
    return ChurnUpdate(counts=tally.counts, is_changed=tally.is_changed, counted=counted, reversals=reversals)


def record_churn(snapshot: Snapshot, reversal_window: timedelta) -> Plan:
    """Return the plan that writes the ledger if it has changed, with Events and metrics of what was counted.

    The patch has the version that was read. A ledger that does not exist is created; the next run then writes it.
    """
    update = count_churn(snapshot, reversal_window)
    if not update.is_changed:
        return Plan()
    found = _ledger_version(snapshot)
    if found is None:
        body = {"apiVersion": CHURN_LEDGER.api_version, "kind": CHURN_LEDGER.kind, "metadata": {"name": LEDGER_NAME}}
        create = CreateObject(resource=CHURN_LEDGER, body=body, why="counts evictions and launches")
        return Plan(chains=(chain_of(_SUBJECT, create),))
    uid, version = found
    patch = PatchObject(
        ref=ObjectRef(resource=CHURN_LEDGER, name=LEDGER_NAME, uid=uid),
        patch={"status": _to_status(update.counts)},
        why="; ".join(_reasons(update)),
        resource_version=version,
        subresource="status",
    )
    chain = Chain(
        subject=_SUBJECT,
        actions=(patch,),
        events=tuple(reversal.event for reversal in update.reversals),
        observations=tuple(_observations(update, snapshot)),
    )
    return Plan(chains=(chain,), notes=tuple(reversal.message for reversal in update.reversals))


def counted_commands(snapshot: Snapshot, finished: Iterable[NodeDisruption]) -> list[NodeDisruption]:
    """Return those of the finished commands that the stored ledger contains, so that they may be deleted as history."""
    ledger = snapshot.churn_ledger
    stored = {command.name: command for command in ledger.status.commands} if ledger is not None else {}
    return [d for d in finished if _is_counted(d, stored)]


_SUBJECT: Final = f"ChurnLedger {LEDGER_NAME}"


def _is_counted(disruption: NodeDisruption, commands: Mapping[str, CountedCommand]) -> bool:
    found = commands.get(disruption.metadata.name)
    return disruption.status.phase in NEVER_STARTED or (found is not None and found.is_counted)


class _Tally:
    """The stored counters, to which launches, commands and reversed consolidations are added."""

    def __init__(self, snapshot: Snapshot, window: timedelta) -> None:
        self._snapshot = snapshot
        self._window = window
        self._stored = _stored(snapshot)
        self._workloads = dict(self._stored.workloads)
        self._pools = dict(self._stored.node_pools)
        existing = {d.metadata.name for d in snapshot.node_disruptions}
        self._commands = {name: command for name, command in self._stored.commands.items() if name in existing}
        self._launches_until = self._stored.launches_until
        self.is_changed = False

    @property
    def counts(self) -> ChurnCounts:
        """The counters now, as many as the ledger may have."""
        counts = replace(
            self._stored,
            workloads=self._workloads,
            node_pools=self._pools,
            commands=self._commands,
            launches_until=self._launches_until,
        )
        return _bounded(counts, self._snapshot.now)

    def add_launches(self) -> None:
        """Add the NodeClaims that were created since the last one that is counted; at first, in this hour."""
        since = self._launches_until or self._stored.hour - timedelta(seconds=1)
        latest = self._snapshot.now - CLOCK_DIFFERENCE
        for claim in self._snapshot.claims:
            at = claim.metadata.creation_timestamp
            if at is None or not since < at <= latest:
                continue
            hours_ago = min(max(-((at - self._stored.hour) // HOUR), 0), HOURS - 1)
            if pool := claim.metadata.labels.get(labels.NODEPOOL, ""):
                self._pools[pool] = self._of_pool(pool).plus("launches", 1, hours_ago)
            for key in planned_workloads(claim, self._snapshot):
                self._workloads[key] = self._of_workload(key).plus("launches", 1, hours_ago)
            self._launches_until = max(at, self._launches_until or at)
            self.is_changed = True

    def add_commands(self) -> tuple[NodeDisruption, ...]:
        """Add the evictions of finished commands; return these commands."""
        finished = [d for d in self._snapshot.node_disruptions if d.finished and not _is_counted(d, self._commands)]
        added = []
        for disruption in finished:
            if self._name_command(disruption, is_counted=True):
                self._add_command(disruption)
                added.append(disruption)
        return tuple(added)

    def add_reversals(self) -> tuple[ReversedConsolidation, ...]:
        """Add the reversed consolidations that are not known as such; return them.

        Of commands that one NodeClaim reverses, each workload counts once.
        """
        known = {name for name, command in self._commands.items() if command.reversed_by}
        before = {command.reversed_by for command in self._commands.values() if command.reversed_by}
        added, counted = [], set[tuple[str, WorkloadKey]]()
        for reversal in reversed_consolidations(self._snapshot, self._window, frozenset(known)):
            claim = reversal.claim.metadata.name
            if not self._name_command(reversal.disruption, reversed_by=claim):
                continue
            new = {
                (claim, key) for key in reversal.workloads if not reversal.is_growth and claim not in before
            } - counted
            for key in reversal.workloads:
                churn = self._of_workload(key)
                if (claim, key) in new:
                    churn = churn.plus("reversals", 1)
                wait = max(doubled(self._window, churn.recent_reversals, MAX_BACKOFF), self._window)
                self._workloads[key] = churn.held_longer(time_after(reversal.at, wait))
            if new:
                for pool in sorted({c.node_pool for c in reversal.disruption.spec.candidates if c.node_pool}):
                    self._pools[pool] = self._of_pool(pool).plus("reversals", 1)
            counted |= new
            added.append(reversal)
        return tuple(added)

    def _add_command(self, disruption: NodeDisruption) -> None:
        snapshot = self._snapshot
        for key, pods in moved_pods(disruption, snapshot).items():
            self._workloads[key] = self._of_workload(key).plus("evictions", pods)
        for pool, pods in moved_by_pool(disruption, snapshot).items():
            self._pools[pool] = self._of_pool(pool).plus("evictions", pods)

    def _name_command(self, disruption: NodeDisruption, *, is_counted: bool = False, reversed_by: str = "") -> bool:
        """Note a command as counted or reversed; return whether the ledger may have one more."""
        name = disruption.metadata.name
        before = self._commands.get(name)
        if before is None and len(self._commands) >= MAX_COMMANDS:
            return False
        if before is not None:
            is_counted, reversed_by = is_counted or before.is_counted, reversed_by or before.reversed_by
        self._commands[name] = CountedCommand(name=name, is_counted=is_counted, reversed_by=reversed_by)
        self.is_changed = True
        return True

    def _of_workload(self, key: WorkloadKey) -> Churn:
        return self._workloads.get(key) or Churn(evictions=self._stored.other_evictions)

    def _of_pool(self, name: str) -> Churn:
        return self._pools.get(name) or Churn()


def _shifted(counter: tuple[int, ...], hours: int) -> tuple[int, ...]:
    return (*[0] * min(hours, HOURS), *counter)[:HOURS] if any(counter) and hours else counter


# -- the object -------------------------------------------------------------------------------------------------------


def _stored(snapshot: Snapshot) -> ChurnCounts:
    """Return the stored counters as of the current hour; a ledger from the future counts for the current hour."""
    hour = snapshot.now.replace(minute=0, second=0, microsecond=0)
    if snapshot.churn_ledger is None:
        return ChurnCounts(hour=hour)
    status = snapshot.churn_ledger.status
    later = min(max((hour - (status.hour or hour)) // HOUR, 0), HOURS)
    workloads = {
        WorkloadKey(w.kind, w.namespace, w.name, w.uid): Churn(
            evictions=w.evictions, launches=w.launches, reversals=w.reversals, held_until=w.held_until
        ).hours_later(later)
        for w in status.workloads
    }
    pools = {
        p.name: Churn(evictions=p.evictions, launches=p.launches, reversals=p.reversals).hours_later(later)
        for p in status.node_pools
    }
    launches_until = min(status.launches_until, snapshot.now) if status.launches_until is not None else None
    return ChurnCounts(
        hour=hour,
        workloads=workloads,
        node_pools=pools,
        other_evictions=_shifted(status.other_evictions, later),
        commands={command.name: command for command in status.commands},
        launches_until=launches_until,
    )


def _bounded(counts: ChurnCounts, now: datetime) -> ChurnCounts:
    """Return the counters that differ from zero, those of the most evictions first, without those beyond the maximum.

    The largest counts of the workloads that are left out are kept in `other_evictions`, from which such a workload starts when
    it is moved again. So no workload is ever undercounted.
    """
    workloads, pools = _ranked(counts.workloads, now), _ranked(counts.node_pools, now)
    left_out = [churn.evictions for _, churn in workloads[MAX_WORKLOADS:]]
    most = tuple(map(max, zip_longest(counts.other_evictions, *left_out, fillvalue=0))) if left_out else None
    return replace(
        counts,
        workloads=dict(workloads[:MAX_WORKLOADS]),
        node_pools=dict(pools[:MAX_NODE_POOLS]),
        other_evictions=counts.other_evictions if most is None else most,
    )


def _ranked(counters: Mapping[K, Churn], now: datetime) -> list[tuple[K, Churn]]:
    """Return what is not zero: first what consolidation leaves alone, then that with most evictions."""

    def rank(item: tuple[K, Churn]) -> tuple[Any, ...]:
        key, churn = item
        is_held = churn.held_until is not None and churn.held_until > now
        return (not is_held, -sum(churn.evictions), -sum(churn.reversals), -sum(churn.launches), key)

    return sorted((item for item in counters.items() if item[1].is_kept(now)), key=rank)


def _ledger_version(snapshot: Snapshot) -> tuple[str, str] | None:
    """Return UID and resourceVersion of the ledger, valid or not; None if there is none."""
    if snapshot.churn_ledger is not None:
        meta = snapshot.churn_ledger.metadata
        return meta.uid, meta.resource_version
    invalid = (i for i in snapshot.invalid_objects if (i.kind, i.name) == (CHURN_LEDGER.kind, LEDGER_NAME))
    return next(((item.uid, item.resource_version) for item in invalid), None)


def _to_status(counts: ChurnCounts) -> dict[str, Any]:
    """Return the whole status for a merge patch."""
    status = ChurnLedgerStatus(
        hour=counts.hour,
        workloads=tuple(
            WorkloadChurn(
                kind=key.kind,
                namespace=key.namespace,
                name=key.name,
                uid=key.uid,
                evictions=_trimmed(churn.evictions),
                launches=_trimmed(churn.launches),
                reversals=_trimmed(churn.reversals),
                held_until=churn.held_until,
            )
            for key, churn in counts.workloads.items()
        ),
        other_evictions=_trimmed(counts.other_evictions),
        node_pools=tuple(
            NodePoolChurn(
                name=name,
                evictions=_trimmed(churn.evictions),
                launches=_trimmed(churn.launches),
                reversals=_trimmed(churn.reversals),
            )
            for name, churn in counts.node_pools.items()
        ),
        commands=tuple(counts.commands[name] for name in sorted(counts.commands)),
        launches_until=counts.launches_until,
    )
    wire = status.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    always: dict[str, Any] = {"workloads": [], "otherEvictions": [], "nodePools": [], "commands": []}
    return {**always, "launchesUntil": None, **wire}


def _trimmed(counter: tuple[int, ...]) -> tuple[int, ...]:
    """Return the counter without the zeros at its end."""
    end = len(counter)
    while end and not counter[end - 1]:
        end -= 1
    return counter[:end]


# -- what people see --------------------------------------------------------------------------------------------------


def _reasons(update: ChurnUpdate) -> Iterator[str]:
    yield f"{counted(len(update.counted), 'command')} finished"
    yield from (reversal.message for reversal in update.reversals)


def _observations(update: ChurnUpdate, snapshot: Snapshot) -> Iterator[Observation]:
    for disruption in update.counted:
        reason = disruption.spec.reason.lower()
        for pool, pods in sorted(moved_by_pool(disruption, snapshot).items()):
            yield Observation(
                name="journeyman_disruption_evictions_total",
                value=float(pods),
                labels={"nodepool": pool, "reason": reason},
            )
    for reversal in update.reversals:
        for pool in sorted({c.node_pool for c in reversal.disruption.spec.candidates if c.node_pool}):
            yield Observation(
                name="journeyman_consolidations_reversed_total",
                labels={"nodepool": pool, "cause": "growth" if reversal.is_growth else "placement"},
            )
