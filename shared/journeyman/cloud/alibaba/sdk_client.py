"""Send requests to Alibaba Cloud by the official SDK's generic client.

The SDK retries nothing by itself, so throttled and failed requests are repeated (`RepeatedCalls`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from journeyman.cloud.alibaba.open_api import CS, ECS, RAM, VERSIONS, VPC, ApiCall, OpenApiError
from journeyman.cloud.repeated_calls import CONNECT_SECONDS, READ_SECONDS, RepeatedCalls
from journeyman.ports import Clock
from journeyman.signing import Credentials

_TRANSIENT: Final = ("Throttling", "ServiceUnavailable", "InternalError")
_TEXT_ANSWERS: Final = frozenset({"DescribeClusterAttachScripts"})
_CENTRAL_VPC: Final = frozenset({"cn-hangzhou"})
"""The regions that VPC's central endpoint serves."""
_VARIABLES: Final = (
    "ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_SECRET", "ALIBABA_CLOUD_SECURITY_TOKEN",
)  # fmt: skip


class SdkOpenApi:
    """Sends requests to one region. Thread-safe. An `OpenApi`.

    Args:
        region: The region of all requests.
        clock: Dates the end of calls.
        credentials: Returns the access key; called for each request, because a function's role gets new ones.
        endpoint: Returns a service's host, and whether it speaks TLS; by default the region's public endpoints.
        ends_at: Returns when the run ends; None for never.
        pause: Waits for so many seconds between attempts.
    """

    def __init__(
        self,
        region: str,
        clock: Clock,
        credentials: Callable[[], Credentials],
        *,
        endpoint: Callable[[str, str], tuple[str, bool]] | None = None,
        ends_at: Callable[[], datetime | None] = lambda: None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._region = region
        self._credentials = credentials
        self._endpoint = endpoint or public_endpoint
        self._calls = RepeatedCalls("Alibaba Cloud", clock, ends_at=ends_at, pause=pause)
        self._clients: dict[str, tuple[Credentials, Any]] = {}
        self._lock = threading.Lock()

    def __call__(self, call: ApiCall) -> Any:
        """Return the answer (`OpenApi`). Raises OpenApiError, DeadlineError."""
        return self._calls.call(call.action, lambda seconds: self._send(call, seconds), _is_transient)

    def _send(self, call: ApiCall, seconds: float) -> Any:
        from alibabacloud_tea_openapi import utils_models  # noqa: PLC0415 - imported for the first request
        from alibabacloud_tea_openapi.utils import Utils  # noqa: PLC0415 - likewise
        from darabonba.exceptions import TeaException  # noqa: PLC0415 - likewise
        from darabonba.runtime import RuntimeOptions  # noqa: PLC0415 - likewise

        is_roa = bool(call.path)
        params = utils_models.Params(
            action=call.action,
            version=VERSIONS[call.service],
            protocol="HTTPS",
            pathname=call.path or "/",
            method=call.method,
            auth_type="AK",
            style="ROA" if is_roa else "RPC",
            req_body_type="json" if is_roa else "formData",
            body_type="string" if call.action in _TEXT_ANSWERS else "json",
        )
        request = utils_models.OpenApiRequest(query=Utils.query(dict(call.parameters)), body=call.body)
        timeouts = RuntimeOptions(
            connect_timeout=CONNECT_SECONDS * 1000, read_timeout=int(min(READ_SECONDS, max(seconds, 1)) * 1000)
        )
        try:
            return self._client(call.service).call_api(params, request, timeouts)["body"]
        except TeaException as error:  # also of a request without an answer, which is no DaraException
            raise _error_of(error) from error
        except OSError as error:  # requests' errors are OSErrors
            raise OpenApiError("", f"{type(error).__name__}: {error}") from error

    def _client(self, service: str) -> Any:
        from alibabacloud_tea_openapi.client import Client  # noqa: PLC0415 - imported for the first request
        from alibabacloud_tea_openapi.utils_models import Config  # noqa: PLC0415 - likewise

        credentials = self._credentials()
        with self._lock:
            known = self._clients.get(service)
            if known is None or known[0] != credentials:
                host, is_tls = self._endpoint(service, self._region)
                config = Config(
                    access_key_id=credentials.access_key_id,
                    access_key_secret=credentials.access_key_secret,
                    security_token=credentials.security_token or None,
                    region_id=self._region,
                    endpoint=host,
                    protocol="https" if is_tls else "http",
                )
                known = self._clients[service] = (credentials, Client(config))
            return known[1]


def _is_transient(error: Exception) -> bool:
    return isinstance(error, OpenApiError) and (error.code.startswith(_TRANSIENT) or error.status in (429, 503))


def import_sdk() -> None:
    """Import the SDK, which takes half a second, before the first request needs it."""
    import alibabacloud_tea_openapi.client  # noqa: F401, PLC0415 - see above


def _error_of(error: Any) -> OpenApiError:
    """Return the error of the SDK's exception; one without a code means that there was no valid answer."""
    code = str(getattr(error, "code", None) or "")
    status = int(getattr(error, "status_code", None) or 0)
    answer = getattr(error, "data", None) or {}  # its message lacks the status and request id that the SDK adds
    message = str(answer.get("Message") or answer.get("message") or getattr(error, "message", None) or error)
    if not status:
        return OpenApiError("", f"{code}: {message}" if code else message)
    return OpenApiError(code, message, status=status, request_id=str(getattr(error, "request_id", None) or ""))


def public_endpoint(service: str, region: str) -> tuple[str, bool]:
    """Return the host of a service's public endpoint in a region, which speaks TLS."""
    if service == RAM or (service == VPC and region in _CENTRAL_VPC):
        return f"{service}.aliyuncs.com", True
    return f"{service}.{region}.aliyuncs.com", True


def private_endpoint(service: str, region: str) -> tuple[str, bool]:
    """Return the host of a service's endpoint inside a VPC; RAM has none."""
    return (
        (f"{service}-vpc.{region}.aliyuncs.com", True)
        if service in (ECS, VPC, CS)
        else public_endpoint(service, region)
    )


_contexts: Final[list[Any]] = []
"""The context of the latest event, of at most one."""


def use_context(context: Any) -> None:
    """Remember an event's context, in which older runtimes pass the role's access key."""
    _contexts[:] = [context]


def credentials_of(variables: Mapping[str, str] = os.environ) -> Credentials:
    """Return the access key of a function's role, or else of the SDK's default chain.

    Function Compute sets variables; an older runtime may pass the key in the context only (`use_context`). Outside of a function
    the default chain applies: OIDC, profiles, the instance's role.

    Raises:
        OpenApiError: There is no access key.
    """
    key, secret, token = (variables.get(name, "") for name in _VARIABLES)
    given = next((getattr(context, "credentials", None) for context in _contexts), None)
    if not (key and secret) and given is not None:
        key, secret, token = given.access_key_id, given.access_key_secret, given.security_token
    if not (key and secret):
        from alibabacloud_credentials.client import Client  # noqa: PLC0415 - a function does without
        from alibabacloud_credentials.exceptions import CredentialException  # noqa: PLC0415 - likewise

        try:
            found = Client().get_credential()
        except CredentialException as error:
            raise OpenApiError("InvalidAccessKeyId", f"there is no access key: {error}", status=403) from error
        key, secret, token = found.access_key_id, found.access_key_secret, found.security_token
    return Credentials(access_key_id=key, access_key_secret=secret, security_token=token or "")
