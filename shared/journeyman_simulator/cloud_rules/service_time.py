"""Defines the time of a simulated account: the clock's time, or the due time of an overdue transition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone

from journeyman.ports import Clock

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)


class ServiceTime:
    """The time that an account's services read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._moment: datetime | None = None

    def now(self) -> datetime:
        """Return the clock's time or, inside `at`, its time."""
        return self._moment or self._clock.now()

    def milliseconds(self) -> int:
        """Return whole milliseconds since the epoch; `from_milliseconds` inverts it exactly."""
        return (self.now() - _EPOCH) // _MILLISECOND

    @contextmanager
    def at(self, moment: datetime) -> Iterator[None]:
        """Make `now` return `moment` inside the context, for a transition that was due before the clock's time."""
        previous, self._moment = self._moment, moment
        try:
            yield
        finally:
            self._moment = previous


def from_milliseconds(milliseconds: float) -> datetime:
    """Return the time that many milliseconds after the epoch."""
    return _EPOCH + timedelta(milliseconds=milliseconds)
