"""One run's limits for requests to its API server (time, retries), what it has used of them, and the retry policies.

Reads are repeated after a broken connection, 429 and 5xx. Writes are repeated only when the server cannot have seen them
(no connection was made) or says that it did not carry them out (429 of API Priority and Fairness). A write that may
have taken effect is an error of the step, whose preconditions make the next run safe. An eviction's 429 means that a
PodDisruptionBudget forbids it, and is never repeated here.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import urllib3
from msgspec import Struct
from msgspec.structs import replace
from urllib3.connectionpool import ConnectionPool
from urllib3.exceptions import MaxRetryError, ResponseError
from urllib3.response import BaseHTTPResponse

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
        """Requests, retries and bytes so far."""
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


LONGEST_WAIT_SECONDS: Final = 8.0


class BudgetedRetry(urllib3.Retry):
    """Waits as long as the server requests, up to `LONGEST_WAIT_SECONDS`; takes each retry from the run's budget, if it has one."""

    RETRY_AFTER_STATUS_CODES = frozenset({429})  # a write that is answered with 503 may have taken effect
    budget: RequestBudget | None = None

    def new(self, **changes: Any) -> BudgetedRetry:
        """Return a copy with the same budget."""
        policy: BudgetedRetry = super().new(**changes)
        policy.budget = self.budget
        return policy

    def within(self, budget: RequestBudget) -> BudgetedRetry:
        """Return the same policy with a run's budget."""
        policy = self.new()
        policy.budget = budget
        return policy

    def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
        """Return the seconds of the Retry-After header, at most `LONGEST_WAIT_SECONDS`; None without the header."""
        seconds = super().get_retry_after(response)
        return None if seconds is None else min(seconds, LONGEST_WAIT_SECONDS)

    def increment(
        self,
        method: str | None = None,
        url: str | None = None,
        response: BaseHTTPResponse | None = None,
        error: Exception | None = None,
        _pool: ConnectionPool | None = None,
        _stacktrace: TracebackType | None = None,
    ) -> BudgetedRetry:
        """Return the policy for the next attempt. Raises MaxRetryError if there is none left."""
        next_policy = super().increment(method, url, response, error, _pool, _stacktrace)
        requested = next_policy.get_retry_after(response) if response is not None else None
        wait = next_policy.get_backoff_time() if requested is None else requested
        if self.budget is not None and not self.budget.take_retry(wait_seconds=wait):
            raise MaxRetryError(_pool, url, error or ResponseError("no retries left"))  # type: ignore[arg-type]
        return next_policy


def _policy(methods: Collection[str], *, read: int, statuses: Collection[int]) -> BudgetedRetry:
    return BudgetedRetry(
        total=5,
        connect=3,
        read=read,
        status=3,
        redirect=0,
        other=0,
        allowed_methods=methods,
        status_forcelist=statuses,
        backoff_factor=0.1,
        backoff_jitter=0.2,
        backoff_max=LONGEST_WAIT_SECONDS,
        raise_on_status=False,
    )


READS: Final = _policy({"GET"}, read=2, statuses={429, 500, 502, 503, 504})
WRITES: Final = _policy({"POST", "PUT", "PATCH", "DELETE"}, read=0, statuses={429})
EVICTIONS: Final = WRITES.new(status_forcelist=(), respect_retry_after_header=False)
NO_RETRIES: Final = READS.new(total=0, status_forcelist=(), respect_retry_after_header=False)
"""For callers that wait and try again themselves, or that must decide again first."""
