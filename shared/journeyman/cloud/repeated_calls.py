"""Repeat requests to a cloud whose SDK repeats nothing by itself, within the time of the call and of the run.

A throttled or failed request is repeated with the same parameters, and so with the same client token. The end of the run bounds
the attempts, as on AWS (`runtime.call_deadline`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, TypeVar

from journeyman.errors import DeadlineError
from journeyman.ports import Clock

T = TypeVar("T")

CONNECT_SECONDS: Final = 2
READ_SECONDS: Final = 15
CALL_SECONDS: Final = 30
"""How long a request may take with its repetitions: a Lease that was just checked outlasts it."""
ATTEMPTS: Final = 3
_FIRST_PAUSE_SECONDS: Final = 0.5  # doubles with each attempt


class RepeatedCalls:
    """Sends requests up to three times.

    Args:
        cloud: The cloud's name, for messages.
        clock: Dates the end of calls.
        ends_at: Returns when the run ends; None for never.
        pause: Waits for so many seconds between attempts.
    """

    def __init__(
        self,
        cloud: str,
        clock: Clock,
        *,
        ends_at: Callable[[], datetime | None] = lambda: None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._cloud = cloud
        self._clock = clock
        self._ends_at = ends_at
        self._pause = pause

    def call(self, operation: str, send: Callable[[float], T], is_transient: Callable[[Exception], bool]) -> T:
        """Return what `send` returns; it gets the seconds that are left.

        Raises:
            DeadlineError: The run's time is up before an attempt.
            Exception: What the last attempt raised.
        """
        started_at = self._clock.now()
        pause = _FIRST_PAUSE_SECONDS
        for attempt in range(1, ATTEMPTS + 1):
            seconds = self._seconds_left(started_at)
            if seconds <= 0:
                raise DeadlineError(f"not calling {self._cloud}: the run's time is up", operation=operation)
            try:
                return send(seconds)
            except Exception as error:
                is_last = attempt == ATTEMPTS or self._seconds_left(started_at) <= pause
                if is_last or not is_transient(error):
                    raise
            self._pause(pause)
            pause *= 2
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _seconds_left(self, started_at: datetime) -> float:
        ends_at, run_ends_at = started_at + timedelta(seconds=CALL_SECONDS), self._ends_at()
        latest = ends_at if run_ends_at is None else min(ends_at, run_ends_at)
        return (latest - self._clock.now()).total_seconds()
