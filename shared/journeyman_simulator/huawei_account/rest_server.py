"""Serves a simulated account over HTTP on 127.0.0.1, for the official SDK: one port for all services."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from journeyman.cloud.huawei.rest_api import DOMAIN_SCOPED
from journeyman_simulator.cloud_rules.local_http import HttpAnswer, ReceivedRequest, serving_requests, wall_clock
from journeyman_simulator.cloud_rules.service_errors import LostResponseError, NotSimulatedError, ServiceError
from journeyman_simulator.huawei_account.huawei_account import HuaweiAccount
from journeyman_simulator.huawei_account.rest_errors import error_body, invalid_request, status_of, unauthenticated
from journeyman_simulator.huawei_account.rest_operations import RestOperation, operation_at
from journeyman_simulator.huawei_account.rest_signatures import RestSignatureVerifier

_JSON: Final = "application/json"


@contextmanager
def serving(account: HuaweiAccount, *, port: int = 0, now: Callable[[], datetime] = wall_clock) -> Iterator[str]:
    """Serve an account, and yield the URL of all its services: "http://127.0.0.1:PORT".

    Args:
        account: The account.
        port: The port on which to listen; 0 selects a free one.
        now: The time to which the dates of requests are compared.
    """
    frontend = _RestFrontend(account, RestSignatureVerifier(account.access_keys), now)
    with serving_requests(frontend.answer, name="huawei-account", port=port) as address:
        yield f"http://{address}"


class _RestFrontend:
    """Turns HTTP requests into operations, and their results into HTTP answers."""

    def __init__(self, account: HuaweiAccount, verifier: RestSignatureVerifier, now: Callable[[], datetime]) -> None:
        self._account = account
        self._verifier = verifier
        self._now = now

    def answer(self, request: ReceivedRequest) -> HttpAnswer | None:
        """Return the answer of a request; None if the caller must not get one."""
        service = ""
        try:
            operation, path = operation_at(request.method, unquote(request.path))
            service = operation.service
            with self._account.gate.lock:
                caller = self._verifier.caller_of(request, self._now())
            self._check_scope(request, operation, path)
            query = dict(parse_qsl(request.query, keep_blank_values=True))
            result = self._account.perform(operation, path, query, _body(request, service), caller=caller)
            return self._json(operation.status, result)
        except ServiceError as error:
            return self._error(service, error)
        except NotSimulatedError as error:
            return self._error(service, ServiceError("NotSimulated", str(error)))
        except LostResponseError:
            return None

    def _check_scope(self, request: ReceivedRequest, operation: RestOperation, path: dict[str, str]) -> None:
        """Raise ServiceError if the request's headers do not name the project in its path, or the account."""
        if operation.service in DOMAIN_SCOPED:
            if request.headers.get("x-domain-id") != self._account.domain_id:
                raise unauthenticated("the header X-Domain-Id is missing, or is not the caller's account")
        elif request.headers.get("x-project-id") != path["project_id"]:
            raise unauthenticated("the header X-Project-Id is missing, or differs from the project in the path")

    def _error(self, service: str, error: ServiceError) -> HttpAnswer:
        body = error_body(service, error, self._account.next_request_id())
        return self._json(status_of(error.code), body)

    def _json(self, status: int, body: Any) -> HttpAnswer:
        headers = {"Content-Type": _JSON, "X-Request-Id": self._account.next_request_id()}
        return HttpAnswer(status=status, body=json.dumps(body).encode(), headers=headers)


def _body(request: ReceivedRequest, service: str) -> Any:
    """Return the body's JSON; None if there is none. Raises ServiceError if it is not JSON."""
    if not request.body:
        return None
    if _JSON not in request.headers.get("content-type", ""):
        raise invalid_request(service, f"the Content-Type must be {_JSON}")
    try:
        return json.loads(request.body)
    except ValueError:
        raise invalid_request(service, "the body is not JSON") from None
