"""The door every request to the simulated AWS goes through: one at a time, on current state, failing when told to."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from threading import RLock
from typing import Any

from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult, BaseResponse

from journeyman.simulate.aws.patching import Patch

# What AWS answers with these codes; anything else is a client error.
_HTTP_STATUS = {"InternalError": 500, "InternalFailure": 500, "RequestLimitExceeded": 503, "ServiceUnavailable": 503}
_BAD_REQUEST = 400


class _SimulatedFailure(ServiceException):
    """Of no service: moto looks an error's service up by the module of its class, unless that is not moto's."""


class Gate:
    """Serializes requests (moto is not thread-safe), counts them and injects failures.

    Args:
        before: Called before each request, under the lock: brings state up to the present.
    """

    def __init__(self, before: Callable[[], object]) -> None:
        self.lock = RLock()
        self.calls: Counter[str] = Counter()
        self._before = before
        self._failures: dict[str, deque[str]] = {}

    def fail_next(self, operation: str, code: str, times: int) -> None:
        """Let the next `times` requests for `operation` ("CreateFleet") fail with the error `code`, untouched."""
        self._failures.setdefault(operation, deque()).extend([code] * times)

    def refused(self, operation: str) -> str | None:
        """Count a request for `operation`; the error code it must fail with, or None."""
        self.calls[operation] += 1
        waiting = self._failures.get(operation)
        return waiting.popleft() if waiting else None

    def patches(self) -> tuple[Patch, ...]:
        """The gate stands where moto has found out which operation a request is for."""

        def replace(original: Callable[[BaseResponse], Any]) -> Callable[[BaseResponse], Any]:
            def call_action(response: BaseResponse) -> Any:
                with self.lock:
                    self._before()
                    return self._refusal(response) or original(response)

            return call_action

        return (
            Patch(
                owner=BaseResponse,
                name="call_action",
                replace=replace,
                reason="requests run one at a time, on current state, and fail when a scenario says so",
            ),
        )

    def _refusal(self, response: BaseResponse) -> tuple[int, dict[str, str], Any] | None:
        operation = response._get_action()  # noqa: SLF001 - moto's own way to ask; it has no public one
        code = self.refused(operation)
        if code is None:
            return None
        error = _SimulatedFailure(code, f"simulated failure of {operation}")
        _, headers, body = response.serialized(ActionResult(error))
        status = _HTTP_STATUS.get(code, _BAD_REQUEST)
        return status, {**headers, "status": str(status)}, body
