"""Serves a simulated Alibaba Cloud account over HTTP on 127.0.0.1, to the official SDK; one port serves all services.

A request names its action and version in headers or in the query; in ROA style its method and path name the action.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from journeyman_simulator.alibaba_account.action_table import ApiAction, action_at, action_named, action_not_found
from journeyman_simulator.alibaba_account.alibaba_account import AlibabaAccount
from journeyman_simulator.alibaba_account.openapi_errors import status_of
from journeyman_simulator.alibaba_account.request_signatures import SignatureVerifier
from journeyman_simulator.cloud_rules.local_http import HOST, HttpAnswer, ReceivedRequest, serving_requests, wall_clock
from journeyman_simulator.cloud_rules.service_errors import LostResponseError, NotSimulatedError, ServiceError

_COMMON: Final = frozenset({"Action", "Version", "Format", "AccessKeyId", "SecurityToken", "Timestamp"}) | {
    *("SignatureMethod", "SignatureNonce", "SignatureVersion", "SignatureType", "Signature"),
}
"""Parameters of every RPC request, which are no parameters of the action."""


@contextmanager
def serving(account: AlibabaAccount, *, port: int = 0, now: Callable[[], datetime] = wall_clock) -> Iterator[str]:
    """Serve an account, and yield its endpoint as the SDK takes it: "127.0.0.1:PORT", without a scheme.

    Args:
        account: The account.
        port: The port on which to listen; 0 selects a free one.
        now: The time to which the dates of requests are compared.
    """
    frontend = _Frontend(account, SignatureVerifier(account.access_keys), now)
    with serving_requests(frontend.answer, name="alibaba-account", port=port) as address:
        yield address


class _Frontend:
    """Turns HTTP requests into actions, and their results into HTTP answers."""

    def __init__(self, account: AlibabaAccount, verifier: SignatureVerifier, now: Callable[[], datetime]) -> None:
        self._account = account
        self._verifier = verifier
        self._now = now

    def answer(self, request: ReceivedRequest) -> HttpAnswer | None:
        """Return the answer of a request; None if the caller must not get one."""
        is_rpc = request.path == "/"
        try:
            with self._account.gate.lock:
                caller = self._verifier.caller_of(request, self._now())
            action, arguments = _parsed(request)
            result = self._account.perform(action, arguments, caller=caller)
        except ServiceError as error:
            return self._error(error.code, error.message, is_rpc=is_rpc)
        except NotSimulatedError as error:
            return self._error("NotSimulated", str(error), is_rpc=is_rpc)
        except LostResponseError:
            return None
        if isinstance(result, str):
            headers = {"Content-Type": "text/plain;charset=utf-8"}
            return HttpAnswer(status=200, body=result.encode(), headers=headers)
        if is_rpc:
            result = {"RequestId": self._account.next_request_id(), **result}
        return _json(200, result)

    def _error(self, code: str, message: str, *, is_rpc: bool) -> HttpAnswer:
        request_id = self._account.next_request_id()
        if not is_rpc:
            return _json(status_of(code), {"code": code, "message": message, "requestId": request_id})
        body = {"RequestId": request_id, "HostId": HOST, "Code": code, "Message": message, "Recommend": ""}
        return _json(status_of(code), body)


def _json(status: int, body: Any) -> HttpAnswer:
    headers = {"Content-Type": "application/json;charset=utf-8"}
    return HttpAnswer(status=status, body=json.dumps(body).encode(), headers=headers)


def _parsed(request: ReceivedRequest) -> tuple[ApiAction, dict[str, Any]]:
    """Return the action of a request and its checked parameters. Raises ServiceError."""
    query = dict(parse_qsl(request.query, keep_blank_values=True))
    body: Any = None
    if "json" in request.headers.get("content-type", ""):
        try:
            body = json.loads(request.body) if request.body else None
        except ValueError:
            raise ServiceError("InvalidParameter.Body", "The body is not JSON.") from None
    elif request.body:
        query |= dict(parse_qsl(request.body.decode(), keep_blank_values=True))
    name = request.headers.get("x-acs-action") or query.get("Action", "")
    version = request.headers.get("x-acs-version") or query.get("Version", "")
    action = action_named(name, version) if name or request.path == "/" else action_at(request.method, request.path)
    if bool(action.path) == (request.path == "/") or (action.path and action.method != request.method):
        raise action_not_found(name)
    parameters = {key: value for key, value in query.items() if key not in _COMMON}
    return action, action.arguments(unquote(request.path), parameters, body)
