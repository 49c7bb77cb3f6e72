"""The errors that simulated AWS services answer with, and the gate that counts requests and makes them fail on purpose."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from threading import RLock


class ServiceError(Exception):
    """AWS would refuse, in its words. Leaves the account as the error that its callers know."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


# What AWS answers with these codes; anything else is a client error.
HTTP_STATUS = {"InternalError": 500, "InternalFailure": 500, "RequestLimitExceeded": 503, "ServiceUnavailable": 503}
BAD_REQUEST = 400


class RequestGate:
    """Serializes requests (an account's state is not thread-safe), counts them and injects failures.

    Args:
        before: Called before each request, under the lock: brings state up to the present.
    """

    def __init__(self, before: Callable[[], object]) -> None:
        self.lock = RLock()
        self.calls: Counter[str] = Counter()
        self.before = before
        self._failures: dict[str, deque[str]] = {}

    def fail_next(self, operation: str, code: str, times: int) -> None:
        """Let the next `times` requests for `operation` ("CreateFleet") fail with the error `code`, untouched."""
        self._failures.setdefault(operation, deque()).extend([code] * times)

    def refused(self, operation: str) -> str | None:
        """Count a request for `operation`; the error code it must fail with, or None."""
        self.calls[operation] += 1
        waiting = self._failures.get(operation)
        return waiting.popleft() if waiting else None
