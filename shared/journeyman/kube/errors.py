"""What the API server, or the way to it, said no with: one table from the wire to `journeyman.errors`."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from urllib3 import exceptions

from journeyman.errors import (
    AlreadyExistsError,
    ConfigurationError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    JourneymanError,
    KubeAPIError,
    KubeUnavailableError,
    NotFoundError,
    TooManyRequestsError,
)

_BY_STATUS: Final[Mapping[int, type[KubeAPIError]]] = {
    401: ForbiddenError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: InvalidError,
    429: TooManyRequestsError,
    502: KubeUnavailableError,
    503: KubeUnavailableError,
    504: KubeUnavailableError,
}
_ADVICE: Final[Mapping[int, str]] = {
    401: "the API server does not know this identity; check the cluster's access entries, and that the clock is right",
    403: "grant this right to the identity (the Helm chart's ClusterRole holds what is needed)",
    415: "the API server is too old or no Kubernetes API server",
}
_LONGEST_UNKNOWN_BODY: Final = 300
_DEFAULT_RETRY_AFTER_SECONDS: Final = 1.0


class _Cause(msgspec.Struct, frozen=True):
    message: str = ""


class _Details(msgspec.Struct, frozen=True, rename="camel"):
    causes: tuple[_Cause, ...] = ()
    retry_after_seconds: int = 0


class Status(msgspec.Struct, frozen=True):
    """The `Status` object of a refusal."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


def refusal(code: int, body: bytes, request: str, retry_after: str = "") -> KubeAPIError:
    """The error for an HTTP answer that is no success.

    Args:
        code: The HTTP status.
        body: A Status object, or whatever a proxy in between said.
        request: What was asked (`PATCH nodes/a`), for the reader of the error.
        retry_after: The Retry-After header, in seconds.
    """
    try:
        status = msgspec.json.decode(body, type=Status)
    except msgspec.DecodeError:
        shown = body[:_LONGEST_UNKNOWN_BODY].decode("utf-8", "replace").strip()
        status = Status(message=f"HTTP {code} without a Kubernetes Status: {shown or 'empty body'}")
    return from_status(status, request, code=code, retry_after=retry_after)


def from_status(status: Status, request: str, *, code: int = 0, retry_after: str = "") -> KubeAPIError:
    """The error for a Status object, as it also comes inside a watch."""
    number = code or status.code
    context: dict[str, Any] = {"status": number, "reason": status.reason, "request": request}
    if number in _ADVICE:
        context["advice"] = _ADVICE[number]
    details = status.details or _Details()
    if number == 429:
        if details.causes:
            context["cause"] = "; ".join(cause.message for cause in details.causes)
        return TooManyRequestsError(
            status.message, retry_after_seconds=_seconds(retry_after, details.retry_after_seconds), **context
        )
    if number == 409 and status.reason == "AlreadyExists":
        return AlreadyExistsError(status.message, **context)
    return _BY_STATUS.get(number, KubeAPIError)(status.message, **context)


def unreachable(error: exceptions.HTTPError, server: str, request: str) -> JourneymanError:
    """The error for a request that got no whole answer."""
    reason = error.reason if isinstance(error, exceptions.MaxRetryError) and error.reason is not None else error
    facts: dict[str, Any] = {"server": server, "request": request}
    if isinstance(reason, exceptions.SSLError) or isinstance(reason.__cause__, ssl.SSLCertVerificationError):
        message = f"the API server's certificate is not trusted: {_brief(reason)}"
        return ConfigurationError(message, advice="check the cluster's CA certificate and the server's name", **facts)
    advice = "check the endpoint, its allowed networks, and that this function can reach it"
    for kind, message in (  # the special before the general: urllib3's classes inherit from each other
        (exceptions.NameResolutionError, "the API server's name does not resolve"),
        (exceptions.NewConnectionError, "the API server refuses connections"),
        (exceptions.ConnectTimeoutError, "the API server did not accept a connection in time"),
        (exceptions.ReadTimeoutError, "the API server did not answer in time"),
        (exceptions.ProxyError, "the proxy in front of the API server refuses"),
    ):
        if isinstance(reason, kind):
            return KubeUnavailableError(f"{message}: {_brief(reason)}", reason="Unreachable", advice=advice, **facts)
    return KubeUnavailableError(f"the API server broke off its answer: {_brief(reason)}", reason="Unreachable", **facts)


def _seconds(header: str, in_body: int) -> float:
    if header.isdecimal():
        return float(header)
    return float(in_body) or _DEFAULT_RETRY_AFTER_SECONDS


def _brief(error: BaseException) -> str:
    """What went wrong without urllib3's wrapping of its own objects."""
    return str(error).rpartition(">: ")[2] or str(error)
