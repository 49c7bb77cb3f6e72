"""The time of a simulated account: the clock's, or the moment of an overdue transition."""

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
        """Return the clock's time, or inside `at` that moment."""
        return self._moment or self._clock.now()

    def milliseconds(self) -> int:
        """Return whole milliseconds since the epoch, exact in both directions with `from_milliseconds`."""
        return (self.now() - _EPOCH) // _MILLISECOND

    @contextmanager
    def at(self, moment: datetime) -> Iterator[None]:
        """Let things happen as of `moment`: the clock may have jumped over the time at which they were due."""
        previous, self._moment = self._moment, moment
        try:
            yield
        finally:
            self._moment = previous


def from_milliseconds(milliseconds: float) -> datetime:
    """Return the moment that many milliseconds after the epoch."""
    return _EPOCH + timedelta(milliseconds=milliseconds)
