"""When a request is repeated: only where that is safe, with jitter, as the server asks, and within the run's allowance.

Reads are repeated after a broken connection, 429 and 5xx. Writes are repeated only when the server cannot have seen them
(no connection was made) or says that it has not carried them out (429 of its priority and fairness); a write that may
have happened is an error for the step, whose preconditions make the next run safe. An eviction's 429 is an answer, not
a hiccup, and is never repeated here.
"""

from __future__ import annotations

from collections.abc import Collection
from types import TracebackType
from typing import Any, Final

import urllib3
from urllib3.connectionpool import ConnectionPool
from urllib3.exceptions import MaxRetryError, ResponseError
from urllib3.response import BaseHTTPResponse

from journeyman.kube.allowance import Allowance

LONGEST_WAIT_SECONDS: Final = 8.0


class Patient(urllib3.Retry):
    """Waits as the server asks, but never so long that a function's time is wasted.

    `allowance` is the run's; without one there is no other limit than the policy's own.
    """

    RETRY_AFTER_STATUS_CODES = frozenset({429})  # a 503 on a write may have happened
    allowance: Allowance | None = None

    def new(self, **changes: Any) -> Patient:
        """A copy, under the same allowance."""
        fresh: Patient = super().new(**changes)
        fresh.allowance = self.allowance
        return fresh

    def within(self, allowance: Allowance) -> Patient:
        """The same policy, under a run's allowance."""
        fresh = self.new()
        fresh.allowance = allowance
        return fresh

    def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
        """Seconds the server asks us to wait, cut to what we are ready to."""
        asked = super().get_retry_after(response)
        return None if asked is None else min(asked, LONGEST_WAIT_SECONDS)

    def increment(
        self,
        method: str | None = None,
        url: str | None = None,
        response: BaseHTTPResponse | None = None,
        error: Exception | None = None,
        _pool: ConnectionPool | None = None,
        _stacktrace: TracebackType | None = None,
    ) -> Patient:
        """The policy for the next try. Raises MaxRetryError if there is to be none."""
        following = super().increment(method, url, response, error, _pool, _stacktrace)
        asked = following.get_retry_after(response) if response is not None else None
        wait = following.get_backoff_time() if asked is None else asked
        if self.allowance is not None and not self.allowance.may_repeat(wait_seconds=wait):
            raise MaxRetryError(_pool, url or "", error or ResponseError("no retries left"))  # type: ignore[arg-type]
        return following


def _policy(methods: Collection[str], *, read: int, statuses: Collection[int]) -> Patient:
    return Patient(
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
