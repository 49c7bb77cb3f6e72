"""Windows: the times from each firing of a cron schedule for a duration, in UTC or an IANA time zone.

::

    schedule  0 9 * * mon-fri     |firing                    |firing
    duration  8h                  [==== window ====)         [==== window ====)

Budgets have them as fields; annotations have them as text, schedule and duration separated by " / ", several by ";":

    journeyman.dev/hibernate: "0 20 * * mon-fri / 12h; 0 0 * * sat / 48h"
    journeyman.dev/time-zone: Europe/Berlin

Adjacent and overlapping windows of one schedule are one window. A schedule that names hours fires once a day where clocks
change, as Debian's cron does: a time that the change skips fires right after it, and a time that comes twice fires at the first.
A duration is the time that passes, whatever clocks show.

No firing is read but those near the time of interest, so that neither the age of a schedule nor its frequency costs time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Final, NamedTuple

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.duration import parse_duration, time_after
from journeyman.errors import ConfigurationError

MACROS: Final[Mapping[str, str]] = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}  # robfig/cron `ParseStandard`, which Karpenter uses

YEAR: Final = timedelta(days=366)
MAX_WINDOWS: Final = 50
"""Of one annotation, as many as a NodePool may have budgets."""
_MINUTE: Final = timedelta(minutes=1)
_MAX_SCHEDULE: Final = 10_000  # characters
_MAX_FIRINGS: Final = 1500
"""Firings that the search for an edge reads: a day of a schedule that fires each minute, or four years of a daily one."""
_CLOCK_CHANGE: Final = timedelta(hours=3)
"""Longer than any change of clocks for daylight saving. The search starts so much earlier, and drops what is not asked for."""
_ANY_TIME: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_WINDOW: Final = re.compile(r"\s*(?P<schedule>\S.*?)\s+/\s+(?P<duration>\S+)\s*")


class WindowEdge(NamedTuple):
    """When windows open or close."""

    at: datetime
    opens: bool


class Window(Struct, frozen=True, kw_only=True):
    """The windows of one schedule. Times are returned in UTC."""

    schedule: str
    duration: timedelta
    zone: tzinfo = timezone.utc

    def is_open(self, now: datetime) -> bool:
        """Whether the last firing until now is less than the duration ago."""
        last = self._last_firing(now)
        return last is not None and now - last < self.duration

    def next_edge(self, now: datetime, horizon: datetime) -> datetime | None:
        """Return when the window next opens or closes; None if not before the horizon, or after more firings than are read."""
        last = self._last_firing(now)
        is_open = last is not None and now - last < self.duration
        edge = time_after(last, self.duration) if last is not None and is_open else None
        for number, firing in enumerate(self._firings(now)):
            if edge is None:
                return firing if firing < horizon else None
            if firing > edge or edge >= horizon:
                break
            if number >= _MAX_FIRINGS:
                return None
            edge = time_after(firing, self.duration)
        return edge if edge is not None and edge < horizon else None

    def check(self) -> None:
        """Raise ConfigurationError if the schedule does not parse."""
        self._cron(_ANY_TIME)

    def _last_firing(self, until: datetime) -> datetime | None:
        """Return the last firing that is not after a time; None if there is none in the 50 years before it."""
        minute = until.astimezone(timezone.utc).replace(second=0, microsecond=0)
        start = minute + (_MINUTE if self.zone is timezone.utc else _CLOCK_CHANGE)
        return next((firing for firing in self._cron(start, reverse=True) if firing <= minute), None)

    def _firings(self, after: datetime) -> Iterator[datetime]:
        """Yield the firings after a time, in order."""
        start = after if self.zone is timezone.utc else after - _CLOCK_CHANGE
        return (firing for firing in self._cron(start) if firing > after)

    def _cron(self, start: datetime, *, reverse: bool = False) -> Iterator[datetime]:
        from cronsim import CronSim, CronSimError  # noqa: PLC0415 - most clusters have no schedule

        expression = MACROS.get(self.schedule.strip().lower(), self.schedule).replace("?", "*")
        if len(expression) > _MAX_SCHEDULE or len(expression.split()) != 5:
            raise ConfigurationError("a schedule is five cron fields or a macro", schedule=self.schedule)
        try:
            firings = CronSim(expression, start.astimezone(self.zone), reverse=reverse)
        except CronSimError as error:
            raise ConfigurationError("a schedule does not parse", schedule=self.schedule, why=str(error)) from error
        return (firing.astimezone(timezone.utc) for firing in firings)


def zone_of(annotations: Mapping[str, str]) -> tzinfo:
    """Return the time zone of an object's schedules; UTC without the annotation.

    The zones' rules are reference data, which Python reads from the system or from the package tzdata.

    Raises:
        ConfigurationError: There is no time zone of that name.
    """
    name = annotations.get(labels.TIME_ZONE, "UTC")
    return timezone.utc if name == "UTC" else _zone(name)


@lru_cache(maxsize=64)
def _zone(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - few clusters have an object with a time zone

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ConfigurationError(
            f"annotation {labels.TIME_ZONE}: {name[:64]!r} is not an IANA time zone, such as Europe/Berlin"
        ) from error


def windows_in(annotations: Mapping[str, str], key: str) -> tuple[Window, ...]:
    """Return the windows of an annotation, in its order; none without the annotation.

    Raises:
        ConfigurationError: The annotation or the object's time zone is invalid; the message says what is allowed.
    """
    text = annotations.get(key)
    if text is None:
        return ()
    parts = [part for part in text.split(";") if part.strip()]
    if not 0 < len(parts) <= MAX_WINDOWS:
        raise ConfigurationError(
            f"annotation {key}: {text[:64]!r} has {len(parts)} windows; 1 to {MAX_WINDOWS} are allowed"
        )
    zone = zone_of(annotations)
    return tuple(_window(part, key, zone) for part in parts)


def _window(text: str, key: str, zone: tzinfo) -> Window:
    try:
        return _parsed(text, zone)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"annotation {key}: {text.strip()[:64]!r} is not a window: {error.message}; "
            "write a schedule and a duration, as in '0 20 * * mon-fri / 12h'"
        ) from error


def _parsed(text: str, zone: tzinfo) -> Window:
    match = _WINDOW.fullmatch(text)
    if match is None:
        raise ConfigurationError("there is no ' / ' between schedule and duration")
    window = Window(schedule=match["schedule"], duration=parse_duration(match["duration"]), zone=zone)
    window.check()
    if not window.duration:
        raise ConfigurationError("the duration is 0")
    return window


def any_open(windows: Iterable[Window], now: datetime) -> bool:
    """Whether one of the windows is open now."""
    return any(window.is_open(now) for window in windows)


def edges(windows: Collection[Window], after: datetime, horizon: datetime) -> Iterator[WindowEdge]:
    """Yield the edges of windows taken together, after a time and before the horizon: when the first opens, the last closes.

    It ends early if the windows open and close thousands of times without such an edge.
    """
    was_open = any_open(windows, after)
    for _ in range(_MAX_FIRINGS):
        each = (window.next_edge(after, horizon) for window in windows)
        at = min((edge for edge in each if edge is not None), default=None)
        if at is None:
            return
        after = at
        if any_open(windows, at) is not was_open:
            was_open = not was_open
            yield WindowEdge(at, was_open)


def closing_time(windows: Collection[Window], now: datetime) -> datetime | None:
    """Return the first moment from now on at which none of the windows is open; None if there is none within a year."""
    if not any_open(windows, now):
        return now
    edge = next(edges(windows, now, time_after(now, YEAR)), None)
    return edge.at if edge is not None else None
