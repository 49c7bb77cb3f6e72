"""What one run may spend on its API server, and what it has spent: time, retries, requests, bytes."""

from __future__ import annotations

import math
import threading
from datetime import datetime
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.errors import DeadlineError

if TYPE_CHECKING:
    from journeyman.ports import Clock

RETRIES: Final = 30
"""Retries of a run in all. An overloaded API server must not receive each of hundreds of writes several times; a run without
retries left ends with the server's last response, and its requeue message starts the next run."""


class RequestUsage(Struct, frozen=True, kw_only=True):
    """Requests and bytes of one run. Each attempt is a request; bytes are those of bodies, compressed as on the wire."""

    requests: int = 0
    writes: int = 0  # requests other than GET, without their retries
    retries: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


class RequestBudget:
    """One run's budget; safe to use from several threads.

    Args:
        clock: Needed for `until`.
        until: When the run ends; None means never.
        retries: Retries of the run in all.
    """

    def __init__(self, *, clock: Clock | None = None, until: datetime | None = None, retries: float = RETRIES) -> None:
        self._clock = clock
        self._until = until
        self._retries = retries
        self._lock = threading.Lock()
        self._usage = RequestUsage()

    @property
    def usage(self) -> RequestUsage:
        """What has been spent so far."""
        return self._usage

    def remaining_seconds(self) -> float:
        """Return the time until the run ends; negative once it has ended."""
        if self._clock is None or self._until is None:
            return math.inf
        return (self._until - self._clock.now()).total_seconds()

    def limit(self, seconds: float) -> float:
        """Return `seconds`, or the time until the run ends if that is shorter.

        Raises:
            DeadlineError: The run has ended.
        """
        remaining = self.remaining_seconds()
        if remaining <= 0:
            raise DeadlineError("the run's time is over; no further request is sent to the API server")
        return min(seconds, remaining)

    def count_request(self, size: int, *, is_write: bool) -> None:
        """Count a request with a body of that many bytes."""
        with self._lock:
            usage = self._usage
            self._usage = replace(
                usage, requests=usage.requests + 1, writes=usage.writes + is_write, sent_bytes=usage.sent_bytes + size
            )

    def count_received(self, size: int) -> None:
        """Count bytes of a response."""
        with self._lock:
            self._usage = replace(self._usage, received_bytes=self._usage.received_bytes + size)

    def take_retry(self, *, wait_seconds: float) -> bool:
        """Take one retry and return True, if one is left and its wait ends before the run does."""
        if wait_seconds >= self.remaining_seconds():
            return False
        with self._lock:
            if self._usage.retries >= self._retries:
                return False
            self._usage = replace(self._usage, requests=self._usage.requests + 1, retries=self._usage.retries + 1)
            return True
