"""Clocks in virtual time, which only the simulation advances."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone


class VirtualClock:
    """A `ports.Clock` for simulations. Its times are aware, in UTC, and never decrease."""

    def __init__(self, start: datetime) -> None:
        if start.tzinfo is None:
            raise ValueError("a clock needs an aware datetime")
        self._now = start.astimezone(timezone.utc)

    def now(self) -> datetime:
        """Return the virtual time."""
        return self._now

    def advance(self, seconds: float) -> datetime:
        """Advance by `seconds` (0 or more) and return the new time."""
        return self.advance_to(self._now + timedelta(seconds=seconds))

    def advance_to(self, time: datetime) -> datetime:
        """Advance to `time` and return it. Raises ValueError if `time` is in the past."""
        if time < self._now:
            raise ValueError(f"a clock cannot go back from {self._now.isoformat()} to {time.isoformat()}")
        self._now = time.astimezone(timezone.utc)
        return self._now


class SkewedClock:
    """A `ports.Clock` that differs from virtual time by `offset`, like that of a machine without time synchronization."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.offset = timedelta()

    def now(self) -> datetime:
        """Return the virtual time plus `offset`."""
        return self._clock.now() + self.offset
