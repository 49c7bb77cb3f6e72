"""Serves a simulated Alibaba Cloud account over HTTP on 127.0.0.1, to the official SDK; one port serves all services.

A request names its action and version in headers or in the query; in ROA style its method and path name the action.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from journeyman_simulator.alibaba_account.action_table import ApiAction, action_at, action_named, action_not_found
from journeyman_simulator.alibaba_account.alibaba_account import AlibabaAccount, LostResponseError
from journeyman_simulator.alibaba_account.openapi_errors import status_of
from journeyman_simulator.alibaba_account.request_signatures import SignatureVerifier, SignedRequest
from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError, ServiceError

_HOST: Final = "127.0.0.1"
_POLL_SECONDS: Final = 0.02
_COMMON: Final = frozenset({"Action", "Version", "Format", "AccessKeyId", "SecurityToken", "Timestamp"}) | {
    *("SignatureMethod", "SignatureNonce", "SignatureVersion", "SignatureType", "Signature"),
}
"""Parameters of every RPC request, which are no parameters of the action."""


def wall_clock() -> datetime:
    """Return the time of this machine, with which the SDK dates its requests."""
    return datetime.now(timezone.utc)  # noqa: TID251 - the SDK has no other clock


@contextmanager
def serving(account: AlibabaAccount, *, port: int = 0, now: Callable[[], datetime] = wall_clock) -> Iterator[str]:
    """Serve an account, and yield its endpoint as the SDK takes it: "127.0.0.1:PORT", without a scheme.

    Args:
        account: The account.
        port: The port on which to listen; 0 selects a free one.
        now: The time to which the dates of requests are compared.
    """
    verifier = SignatureVerifier(account.access_keys)

    class AccountHandler(_OpenApiHandler):
        frontend = _Frontend(account, verifier, now)

    server = ThreadingHTTPServer((_HOST, port), AccountHandler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, args=(_POLL_SECONDS,), name="alibaba-account", daemon=True)
    thread.start()
    try:
        yield f"{_HOST}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Answer(Struct, frozen=True, kw_only=True):
    """An HTTP answer."""

    status: int
    body: bytes
    content_type: str = "application/json;charset=utf-8"


class _Frontend:
    """Turns HTTP requests into actions, and their results into HTTP answers."""

    def __init__(self, account: AlibabaAccount, verifier: SignatureVerifier, now: Callable[[], datetime]) -> None:
        self._account = account
        self._verifier = verifier
        self._now = now

    def answer(self, request: SignedRequest) -> _Answer:
        """Return the answer of a request. Raises LostResponseError if the caller must not get one."""
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
        if isinstance(result, str):
            return _Answer(status=200, body=result.encode(), content_type="text/plain;charset=utf-8")
        if is_rpc:
            result = {"RequestId": self._account.next_request_id(), **result}
        return _json(200, result)

    def _error(self, code: str, message: str, *, is_rpc: bool) -> _Answer:
        request_id = self._account.next_request_id()
        if not is_rpc:
            return _json(status_of(code), {"code": code, "message": message, "requestId": request_id})
        body = {"RequestId": request_id, "HostId": _HOST, "Code": code, "Message": message, "Recommend": ""}
        return _json(status_of(code), body)


def _json(status: int, body: Any) -> _Answer:
    return _Answer(status=status, body=json.dumps(body).encode())


def _parsed(request: SignedRequest) -> tuple[ApiAction, dict[str, Any]]:
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


class _OpenApiHandler(BaseHTTPRequestHandler):
    """Reads requests from a connection, and writes the answers."""

    protocol_version = "HTTP/1.0"  # a connection for each request, so that none outlives the server
    disable_nagle_algorithm = True  # otherwise the body waits 40 ms for the headers' acknowledgement
    frontend: _Frontend

    def do_GET(self) -> None:
        """Answer a GET request."""
        self._answer()

    def do_POST(self) -> None:
        """Answer a POST request."""
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log nothing."""

    def _answer(self) -> None:
        target = urlsplit(self.path)
        headers: Mapping[str, str] = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length") or 0))
        request = SignedRequest(
            method=self.command, path=target.path or "/", query=target.query, headers=headers, body=body
        )
        try:
            answer = self.frontend.answer(request)
        except LostResponseError:
            self.close_connection = True
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)
