"""The gate of the account on moto: where moto has found out which operation a request is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult, BaseResponse

from journeyman_simulator.aws.gate import BAD_REQUEST, HTTP_STATUS, Gate
from journeyman_simulator.aws.patching import Patch


class _SimulatedFailure(ServiceException):
    """Of no service: moto looks an error's service up by the module of its class, unless that is not moto's."""


def patches(gate: Gate) -> tuple[Patch, ...]:
    """Every request passes the gate."""

    def replace(original: Callable[[BaseResponse], Any]) -> Callable[[BaseResponse], Any]:
        def call_action(response: BaseResponse) -> Any:
            with gate.lock:
                gate.before()
                return _refusal(gate, response) or original(response)

        return call_action

    return (
        Patch(
            owner=BaseResponse,
            name="call_action",
            replace=replace,
            reason="requests run one at a time, on current state, and fail when a scenario says so",
        ),
    )


def _refusal(gate: Gate, response: BaseResponse) -> tuple[int, dict[str, str], Any] | None:
    operation = response._get_action()  # noqa: SLF001 - moto's own way to ask; it has no public one
    code = gate.refused(operation)
    if code is None:
        return None
    error = _SimulatedFailure(code, f"simulated failure of {operation}")
    _, headers, body = response.serialized(ActionResult(error))
    status = HTTP_STATUS.get(code, BAD_REQUEST)
    return status, {**headers, "status": str(status)}, body
