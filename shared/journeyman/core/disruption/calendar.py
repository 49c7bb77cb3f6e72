"""The calendar of a cluster: the windows of budgets, of hibernation and of CapacityBuffers, and the steps that start at their edges.

===========  ============================================  ========================  =========================
windows      where they are defined                        when one opens            when it closes
===========  ============================================  ========================  =========================
budget       `spec.disruption.budgets` of a NodePool       consolidate               consolidate
hibernation  `journeyman.dev/hibernate` of a NodePool      consolidate: nodes go     provision: nodes come back
headroom     `journeyman.dev/active` of a CapacityBuffer   provision: nodes come     consolidate: nodes may go
===========  ============================================  ========================  =========================

A step starts at an edge because the cloud's scheduler has an entry for it, where the cloud has such a scheduler, and because the
sweep of every minute finds the edges that have just passed. So an entry may be missing, late or superfluous without harm.

Entries fire once, at a time in UTC, and then delete themselves: the scheduler's own cron has other fields, other rules for days
and other rules where clocks change, and an entry that is forgotten fires once at most. Their names are derived from cluster, object,
step and time, so that the sweep, which compares them with the windows, creates each once, and deletes those of changed windows.

::

    windows ─► the next two edges of each, within `HORIZON` ─► entries ─┬─► missing: create
                                        existing names of the cluster ─┴─► superfluous: delete
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta, tzinfo
from hashlib import blake2b
from heapq import merge
from itertools import islice
from typing import Final, Literal

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.capacity_buffer import CapacityBuffer
from journeyman.core.api.duration import time_after
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import CAPACITY_BUFFER, NODEPOOL
from journeyman.core.api.windows import YEAR, Window, any_open, edges, windows_in, zone_of
from journeyman.core.disruption.budgets import window_of
from journeyman.core.plan import (
    Chain,
    CreateScheduleEntry,
    DeleteScheduleEntry,
    Event,
    ObjectRef,
    Plan,
    ScheduleEntry,
    Step,
    chain_of,
)
from journeyman.core.state import Snapshot
from journeyman.core.state.skipped_objects import SkippedObject, evaluate, report_skipped
from journeyman.errors import ConfigurationError

HORIZON: Final = timedelta(days=8)
"""How far ahead entries are created: a window of every week has one at any time."""
MIN_LEAD: Final = timedelta(seconds=30)
"""An entry for an edge that is nearer than this might come too late to fire; the next sweep sees the edge."""
MAX_ENTRIES: Final = 500
"""Of one cluster, the earliest; the account's quota is shared by all clusters and applications."""
_EDGES_PER_WINDOW: Final = 2
_NAME_PART: Final = 20  # characters of an object's name in an entry's name, which may have 64

WindowKind = Literal["budget", "hibernation", "headroom"]

_STARTS: Final[dict[tuple[WindowKind, bool], Step]] = {
    ("budget", True): Step.CONSOLIDATE,
    ("budget", False): Step.CONSOLIDATE,
    ("hibernation", True): Step.CONSOLIDATE,
    ("hibernation", False): Step.PROVISION,
    ("headroom", True): Step.PROVISION,
    ("headroom", False): Step.CONSOLIDATE,
}


class CalendarWindow(Struct, frozen=True, kw_only=True):
    """Windows of an object that are taken together: of one budget, or of one annotation.

    `title` says what is so while one is open, such as "budget 10% (Empty)".
    """

    ref: ObjectRef
    kind: WindowKind
    title: str
    windows: tuple[Window, ...]

    @property
    def zone(self) -> tzinfo:
        """The time zone of their schedules."""
        return self.windows[0].zone

    def is_open(self, now: datetime) -> bool:
        """Whether one of them is open."""
        return any_open(self.windows, now)

    def edges(self, after: datetime, horizon: datetime) -> Iterator[Edge]:
        """Yield the edges after a time and before the horizon, in order."""
        for at, opens in edges(self.windows, after, horizon):
            yield Edge(at=at, opens=opens, calendar_window=self)


class Edge(Struct, frozen=True, kw_only=True):
    """The time at which a window opens or closes."""

    at: datetime
    opens: bool
    calendar_window: CalendarWindow

    @property
    def step(self) -> Step:
        """The step that has something to do then."""
        return _STARTS[self.calendar_window.kind, self.opens]

    @property
    def reason(self) -> str:
        """What happens, for people."""
        found = self.calendar_window
        return f"a {found.kind} window of {found.ref} {'opens' if self.opens else 'closes'}"


class Calendar(Struct, frozen=True, kw_only=True):
    """All windows of a cluster, those of NodePools first, by name; and Events on the objects whose windows are invalid."""

    windows: tuple[CalendarWindow, ...] = ()
    problems: tuple[Event, ...] = ()
    skipped: tuple[SkippedObject, ...] = ()

    def edges(self, after: datetime, horizon: datetime) -> Iterator[Edge]:
        """Yield the edges of all windows after a time and before the horizon, in order of time, then of the windows."""
        return merge(*(window.edges(after, horizon) for window in self.windows), key=lambda edge: edge.at)


def calendar_of(pools: Iterable[NodePool], buffers: Iterable[CapacityBuffer], now: datetime) -> Calendar:
    """Return the calendar of a cluster. Invalid windows are left out, and reported.

    Args:
        pools: NodePools, by name.
        buffers: CapacityBuffers, by namespace and name.
        now: The time; hibernation that never ends from now on is invalid.
    """
    windows: list[CalendarWindow] = []
    problems: list[Event] = []
    skipped: list[SkippedObject] = []
    found = [evaluate(pool, _of_pool, pool, now) for pool in pools if pool.metadata.deletion_timestamp is None]
    found += [evaluate(buffer, _of_buffer, buffer) for buffer in buffers if buffer.active]
    for each in found:
        if isinstance(each, SkippedObject):
            skipped.append(each)
        else:
            windows += each.windows
            problems += each.problems
    return Calendar(windows=tuple(windows), problems=tuple(problems), skipped=tuple(skipped))


def next_edges(calendar: Calendar, now: datetime, count: int) -> tuple[Edge, ...]:
    """Return the next edges of all windows within a year, at most `count`."""
    return tuple(islice(calendar.edges(now, time_after(now, YEAR)), count))


def passed_edges(calendar: Calendar, since: datetime, now: datetime) -> tuple[Edge, ...]:
    """Return the edges after `since` and not after `now`."""
    return tuple(calendar.edges(since, now + timedelta(microseconds=1)))


def report_invalid_windows(snapshot: Snapshot) -> Plan:
    """Return Events on the NodePools and CapacityBuffers whose windows are invalid."""
    calendar = calendar_of(snapshot.node_pools, snapshot.capacity_buffers, snapshot.now)
    return Plan(events=calendar.problems) + report_skipped(calendar.skipped)


# -- windows ------------------------------------------------------------------------------------------------------------


def _of_pool(pool: NodePool, now: datetime) -> Calendar:
    meta = pool.metadata
    ref = ObjectRef(resource=NODEPOOL, name=meta.name, uid=meta.uid)
    problems: list[Event] = []
    windows: list[CalendarWindow] = []
    scheduled = [(budget, window) for budget in pool.spec.disruption.budgets if (window := window_of(budget))]
    try:
        zone = zone_of(meta.annotations)
    except ConfigurationError as error:
        effects = ["its budgets with a schedule allow no disruption"] if scheduled else []
        if labels.HIBERNATE in meta.annotations:
            effects.append("it does not hibernate")
        return Calendar(problems=(_problem(ref, "; ".join((error.message, *effects))),))
    for budget, _ in scheduled:
        window = window_of(budget, zone)
        assert window is not None  # noqa: S101 - it has a schedule
        try:
            window.check()
        except ConfigurationError as error:
            message = f"budget with schedule {budget.schedule!r}: {error}; it allows no disruption"
            problems.append(_problem(ref, message, "InvalidSchedule"))
            continue
        reasons = f" ({', '.join(budget.reasons)})" if budget.reasons else ""
        title = f"budget {budget.nodes}{reasons}"
        windows.append(CalendarWindow(ref=ref, kind="budget", title=title, windows=(window,)))
    try:
        pool.hibernates_until(now)  # reports windows that never close
        if hibernation := windows_in(meta.annotations, labels.HIBERNATE):
            windows.append(CalendarWindow(ref=ref, kind="hibernation", title="hibernation", windows=hibernation))
    except ConfigurationError as error:
        problems.append(_problem(ref, f"{error.message}; it does not hibernate"))
    return Calendar(windows=tuple(windows), problems=tuple(problems))


def _of_buffer(buffer: CapacityBuffer) -> Calendar:
    meta = buffer.metadata
    ref = ObjectRef(resource=CAPACITY_BUFFER, name=meta.name, namespace=meta.namespace, uid=meta.uid)
    try:
        windows = windows_in(meta.annotations, labels.ACTIVE)
    except ConfigurationError as error:
        return Calendar(problems=(_problem(ref, f"{error.message}; it reserves capacity at any time"),))
    if not windows:
        return Calendar()
    return Calendar(windows=(CalendarWindow(ref=ref, kind="headroom", title="reserved capacity", windows=windows),))


def _problem(ref: ObjectRef, message: str, reason: str = "InvalidAnnotation") -> Event:
    return Event(ref=ref, reason=reason, message=f"{ref}: {message}", type="Warning")


# -- entries of the cloud's scheduler -------------------------------------------------------------------------------------


def entry_prefix(cluster: str) -> str:
    """Return the start of the names of a cluster's entries."""
    return f"{_digest(cluster)}-"


def schedule_entries(calendar: Calendar, cluster: str, now: datetime) -> tuple[ScheduleEntry, ...]:
    """Return the entries that the cloud's scheduler should have for a cluster, earliest first, at most `MAX_ENTRIES`.

    Edges of one object at one time that start the same step share an entry.
    """
    horizon = time_after(now, HORIZON)
    found = (edge for window in calendar.windows for edge in islice(window.edges(now, horizon), _EDGES_PER_WINDOW))
    each = (_entry(edge, cluster) for edge in found if edge.at >= time_after(now, MIN_LEAD))
    entries = {entry.name: entry for entry in each}
    return tuple(sorted(entries.values(), key=lambda entry: (entry.at, entry.name))[:MAX_ENTRIES])


def reconcile_entries(wanted: Sequence[ScheduleEntry], existing: frozenset[str], now: datetime) -> Plan:
    """Return a plan that creates the entries that are missing, and deletes those that are superfluous.

    Args:
        wanted: The result of `schedule_entries`.
        existing: The names of the cluster's entries.
        now: The time; an entry that is due about now is left, because it fires and deletes itself.
    """
    names = {entry.name for entry in wanted}
    due = {f"{at:{_TIME}}" for at in (now - timedelta(minutes=1), now, time_after(now, MIN_LEAD))}
    superfluous = sorted(name for name in existing - names if name[-len(_EXAMPLE_TIME) :] not in due)
    chains: list[Chain] = [
        chain_of(f"schedule entry {entry.name}", CreateScheduleEntry(entry=entry))
        for entry in wanted
        if entry.name not in existing
    ]
    chains += [
        chain_of(f"schedule entry {name}", DeleteScheduleEntry(name=name, why="no window opens or closes then"))
        for name in superfluous
    ]
    return Plan(chains=tuple(chains))


_TIME: Final = "%Y%m%dT%H%MZ"
_EXAMPLE_TIME: Final = "20260105T0900Z"


def _entry(edge: Edge, cluster: str) -> ScheduleEntry:
    ref = edge.calendar_window.ref
    readable = re.sub(r"[^a-z0-9.-]", "-", ref.name.lower())[:_NAME_PART]
    identity = _digest("/".join((ref.resource.kind, ref.namespace, ref.name)))
    name = f"{entry_prefix(cluster)}{readable}-{identity}-{edge.step.value[0]}-{edge.at:{_TIME}}"
    return ScheduleEntry(name=name, step=edge.step, at=edge.at, reason=edge.reason)


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=4).hexdigest()
