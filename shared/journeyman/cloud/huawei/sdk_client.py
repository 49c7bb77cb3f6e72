"""Send requests to Huawei Cloud by the official SDK's generic client, which signs them.

The SDK repeats nothing by itself, so throttled and failed requests are repeated (`RepeatedCalls`). CreateNode has no client token:
it is repeated only if it was throttled, since a failed one may have created a node.

The SDK is imported for the first request, so that importing a handler stays fast.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import quote

import msgspec

from journeyman.cloud.huawei.rest_api import BSS, DOMAIN_SCOPED, RestApiError, RestCall
from journeyman.cloud.repeated_calls import CONNECT_SECONDS, READ_SECONDS, RepeatedCalls
from journeyman.errors import ConfigurationError
from journeyman.ports import Clock
from journeyman.signing import Credentials

LOCKED: Final = "CCE.01429002"  # another operation on the node or cluster is under way
THROTTLED: Final = frozenset({"APIGW.0308", "CCE.02429001"})
_NOT_REPEATABLE: Final = frozenset({"CreateNode"})
_ANSWER: Final = "Answer"
_LONGEST_TEXT: Final = 500  # of an answer that is no JSON
_VARIABLES: Final = ("HUAWEICLOUD_SDK_AK", "HUAWEICLOUD_SDK_SK", "HUAWEICLOUD_SDK_SECURITY_TOKEN")


class SdkRestApi:
    """Sends requests to one project and region. Thread-safe. A `RestApi`.

    Args:
        region: The region of all requests.
        project_id: The project of all requests.
        domain_id: The account, for prices; empty if it is unknown.
        clock: Dates the end of calls.
        credentials: Returns the access key; called for each request, because a function's agency gets new ones.
        endpoint: Returns a service's URL in a region; by default its public endpoint.
        ends_at: Returns when the run ends; None for never.
        pause: Waits for so many seconds between attempts.
        read_seconds: How long an answer may take to begin and to go on.
    """

    def __init__(
        self,
        region: str,
        project_id: str,
        domain_id: str,
        clock: Clock,
        credentials: Callable[[], Credentials],
        *,
        endpoint: Callable[[str, str], str] | None = None,
        ends_at: Callable[[], datetime | None] = lambda: None,
        pause: Callable[[float], object] = time.sleep,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        self._region = region
        self._read_seconds = read_seconds
        self._project_id = project_id
        self._domain_id = domain_id
        self._credentials = credentials
        self._endpoint = endpoint or public_endpoint
        self._calls = RepeatedCalls("Huawei Cloud", clock, ends_at=ends_at, pause=pause)
        self._clients: dict[str, tuple[Credentials, Any]] = {}
        self._lock = threading.Lock()

    def __call__(self, call: RestCall) -> Any:
        """Return the answer (`RestApi`). Raises RestApiError, DeadlineError."""

        def is_transient(error: Exception) -> bool:
            if not isinstance(error, RestApiError):
                return False
            is_throttled = error.status == 429 or error.code in (LOCKED, *THROTTLED)
            return is_throttled or (error.status >= 500 and call.operation not in _NOT_REPEATABLE)

        return self._calls.call(call.operation, lambda _seconds: self._send(call), is_transient)

    def _send(self, call: RestCall) -> Any:
        from huaweicloudsdkcore.exceptions.exceptions import SdkException  # noqa: PLC0415 - imported for the first request

        body = None if call.body is None else msgspec.json.encode(call.body).decode()
        try:
            response = self._client(call.service).do_http_request(
                method=call.method,
                resource_path=quote(call.path, safe="/"),  # a function's URN has colons, which the SDK's clients escape
                query_params=[(name, str(value)) for name, value in call.query.items()],
                body=body,
                response_type=_ANSWER,
            )
        except SdkException as error:
            raise RestApiError("", str(error.error_msg)) from error
        except OSError as error:  # the errors of `requests` are OSErrors
            raise RestApiError("", f"{type(error).__name__}: {error}") from error
        content = response.raw_content
        if not content:
            return None
        try:
            return msgspec.json.decode(content)
        except ValueError:  # msgspec's errors are subclasses
            return content.decode(errors="replace")

    def _client(self, service: str) -> Any:
        credentials = self._credentials()
        with self._lock:
            known = self._clients.get(service)
            if known is None or known[0] != credentials:
                known = self._clients[service] = (credentials, self._new_client(service, credentials))
            return known[1]

    def _new_client(self, service: str, credentials: Credentials) -> Any:
        from huaweicloudsdkcore.auth.credentials import (  # noqa: PLC0415 - imported for the first request
            BasicCredentials,
            GlobalCredentials,
        )
        from huaweicloudsdkcore.client import Client, ClientBuilder  # noqa: PLC0415 - likewise
        from huaweicloudsdkcore.exceptions.exception_handler import ExceptionHandler  # noqa: PLC0415 - likewise
        from huaweicloudsdkcore.http.http_config import HttpConfig  # noqa: PLC0415 - likewise
        from huaweicloudsdkcore.sdk_response import SdkResponse  # noqa: PLC0415 - likewise
        from requests.adapters import HTTPAdapter  # noqa: PLC0415 - likewise

        class Answer(SdkResponse):  # type: ignore[misc]
            """An answer whose bytes are read, not the SDK's model of it."""

            openapi_types: Final[Mapping[str, str]] = {}
            attribute_map: Final[Mapping[str, str]] = {}

        class Refusals(ExceptionHandler):  # type: ignore[misc]
            """Raises RestApiError for an answer with an error; the SDK's own handler reads one of two codes only."""

            def handle_exception(self, request: Any, response: Any) -> None:
                raise _error_of(response.status_code, response.text, response.headers.get("X-Request-Id") or "")

        class RestClient(Client):  # type: ignore[misc]
            """The SDK's client of any service."""

            def __init__(self) -> None:
                super().__init__()
                logging.getLogger("HuaweiCloud-SDK-RestClient").handlers = [
                    logging.NullHandler()
                ]  # it reports what it also raises
                self.model_package = SimpleNamespace(**{_ANSWER: Answer})

        key = (credentials.access_key_id, credentials.access_key_secret)
        known = (
            GlobalCredentials(*key, self._domain_id)
            if service in DOMAIN_SCOPED
            else BasicCredentials(*key, self._project_id)
        )
        if credentials.security_token:
            known.with_security_token(credentials.security_token)
        config = HttpConfig.get_default_config()
        config.timeout = (CONNECT_SECONDS, self._read_seconds)
        client = (
            ClientBuilder(RestClient, "BasicCredentials,GlobalCredentials")
            .with_credentials(known)
            .with_http_config(config)
            .with_exception_handler(Refusals())
            .with_endpoint(self._endpoint(service, self._region))
            .build()
        )
        transport = client.get_http_client()._session  # noqa: SLF001 - it refuses answers with 429 without their codes
        transport.mount(f"{self._endpoint(service, self._region).partition('://')[0]}://", HTTPAdapter())
        return client


def _error_of(status: int, text: str, request_id: str) -> RestApiError:
    """Return the error of an answer: of CCE's two codes the newer, and of other services the only one."""
    try:
        body = msgspec.json.decode(text)
    except ValueError:
        body = None
    if isinstance(body, dict) and len(body) == 1 and isinstance(inner := next(iter(body.values())), dict):
        body = inner  # such as {"badRequest": {"code": …, "message": …}}
    if not isinstance(body, dict):
        return RestApiError(str(status), text[:_LONGEST_TEXT], status=status, request_id=request_id)
    code = next((str(body[name]) for name in ("errorCode", "error_code", "code") if body.get(name)), str(status))
    parts = (str(body.get(name) or "") for name in ("errorMessage", "error_msg", "errorMsg", "message"))
    message = " ".join(dict.fromkeys(part for part in parts if part)) or text[:_LONGEST_TEXT]
    return RestApiError(code, message, status=status, request_id=request_id)


def import_sdk() -> None:
    """Import the SDK, which takes a quarter of a second, before the first request needs it."""
    import huaweicloudsdkcore.auth.credentials  # noqa: PLC0415 - see above
    import huaweicloudsdkcore.client  # noqa: F401, PLC0415 - see above


def public_endpoint(service: str, region: str) -> str:
    """Return the URL of a service's public endpoint in a region. BSS has one for all regions of the Chinese site."""
    return f"https://{BSS}.myhuaweicloud.com" if service == BSS else f"https://{service}.{region}.myhuaweicloud.com"


_contexts: Final[list[Any]] = []
"""The context of the latest event, of at most one."""


def use_context(context: Any) -> None:
    """Remember an event's context, in which FunctionGraph passes the access key of the function's agency."""
    _contexts[:] = [context]


def function_credentials(variables: Mapping[str, str] = os.environ) -> Credentials:
    """Return the access key of the function's agency, or else that in the SDK's variables.

    Raises:
        ConfigurationError: There is no access key.
    """
    for context in _contexts:
        key, secret = context.getSecurityAccessKey(), context.getSecuritySecretKey()
        if key and secret:
            return Credentials(
                access_key_id=key, access_key_secret=secret, security_token=context.getSecurityToken() or ""
            )
    key, secret, token = (variables.get(name, "") for name in _VARIABLES)
    if not (key and secret):
        raise ConfigurationError(
            "there is no access key: the function has no agency",
            to_do=f"give the function an agency; outside of FunctionGraph, set {_VARIABLES[0]} and {_VARIABLES[1]}",
        )
    return Credentials(access_key_id=key, access_key_secret=secret, security_token=token)
