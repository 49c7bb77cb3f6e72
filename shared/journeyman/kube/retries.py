"""Which requests are repeated, and when: a policy for urllib3's `Retry`, within the run's `RequestBudget`.

Reads are repeated after a broken connection, 429 and 5xx. Writes are repeated only when the server cannot have seen them
(no connection was made) or says that it did not carry them out (429 of API Priority and Fairness). A write that may
have taken effect is an error of the step, whose preconditions make the next run safe. An eviction's 429 means that a
PodDisruptionBudget forbids it, and is never repeated here.
"""

from __future__ import annotations

from collections.abc import Collection
from types import TracebackType
from typing import Any, Final

import urllib3
from urllib3.connectionpool import ConnectionPool
from urllib3.exceptions import MaxRetryError, ResponseError
from urllib3.response import BaseHTTPResponse

from journeyman.kube.request_budget import RequestBudget

LONGEST_WAIT_SECONDS: Final = 8.0


class BudgetedRetry(urllib3.Retry):
    """Waits as long as the server asks, up to `LONGEST_WAIT_SECONDS`; takes each retry from the run's budget, if it has one."""

    RETRY_AFTER_STATUS_CODES = frozenset({429})  # a write that is answered with 503 may have taken effect
    budget: RequestBudget | None = None

    def new(self, **changes: Any) -> BudgetedRetry:
        """Return a copy with the same budget."""
        fresh: BudgetedRetry = super().new(**changes)
        fresh.budget = self.budget
        return fresh

    def within(self, budget: RequestBudget) -> BudgetedRetry:
        """Return the same policy with a run's budget."""
        fresh = self.new()
        fresh.budget = budget
        return fresh

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
        following = super().increment(method, url, response, error, _pool, _stacktrace)
        requested = following.get_retry_after(response) if response is not None else None
        wait = following.get_backoff_time() if requested is None else requested
        if self.budget is not None and not self.budget.take_retry(wait_seconds=wait):
            raise MaxRetryError(_pool, url or "", error or ResponseError("no retries left"))  # type: ignore[arg-type]
        return following


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
"""For callers that wait and try again themselves."""
