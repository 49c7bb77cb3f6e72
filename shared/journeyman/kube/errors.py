"""What the API server, or the way to it, said no with: one table from the wire to `journeyman.errors`."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from urllib3 import exceptions

from journeyman.errors import (
    NOT_SERVED,
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
from journeyman.kube import protobuf
from journeyman.kube.certificate_names import mismatch

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
_RIGHTS: Final = (
    "the ClusterRoles of the Helm chart hold every right that is needed: helm upgrade --install journeyman infra/chart; "
    "then check that this identity is in the group that they are bound to"
)
_CRDS: Final = (
    "install the CRDs: kubectl apply --server-side -f infra/crds, or the Helm chart infra/chart, which has them"
)
_OWN_GROUPS: Final = frozenset({"karpenter.sh", "karpenter.k8s.aws", "journeyman.dev"})
_ADVICE: Final[Mapping[int, str]] = {
    401: "check the cluster's access entries, that the token or client certificate has not expired, and that the clock is "
    "right",
    403: _RIGHTS,
    415: "the API server is too old or no Kubernetes API server",
}
"""The reason of a NotFoundError that is about a whole kind: nobody serves it."""
_NO_SUCH_KIND: Final = "the server could not find the requested resource"
_FORBIDDEN: Final = re.compile(
    r'cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<api_group>[^"]*)"'
)
_KIND_PATH: Final = re.compile(r"/apis/(?P<group>[^/]+)/(?P<version>[^/]+)/(?:namespaces/[^/]+/)?(?P<plural>[^/?]+)")
_OF_OUR_CERTIFICATE: Final = ("certificate", "unknown ca", "access denied")  # among the alerts of TLS
_LONGEST_UNKNOWN_BODY: Final = 300
_DEFAULT_RETRY_AFTER_SECONDS: Final = 1.0


class Cause(msgspec.Struct, frozen=True):
    """One of the causes in a Status's details."""

    message: str = ""
    field: str = ""


class Details(msgspec.Struct, frozen=True, rename="camel"):
    """`details` of a Status."""

    causes: tuple[Cause, ...] = ()
    retry_after_seconds: int = 0


class Status(msgspec.Struct, frozen=True):
    """The `Status` object of a refusal."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: Details | None = None


_STATUS: Final = msgspec.json.Decoder(Status)  # made before threads meet in it: see `lists._decoder`


def refusal(code: int, body: bytes, request: str, *, retry_after: str = "", cluster: str = "") -> KubeAPIError:
    """The error for an HTTP answer that is no success.

    Args:
        code: The HTTP status.
        body: A Status object, or whatever a proxy in between said.
        request: What was asked (`PATCH /api/v1/nodes/a`), for the reader of the error.
        retry_after: The Retry-After header, in seconds.
        cluster: Whose API server it was.
    """
    try:
        status = _status(body)
    except ValueError:
        shown = body[:_LONGEST_UNKNOWN_BODY].decode("utf-8", "replace").strip()
        status = Status(message=f"HTTP {code} without a Kubernetes Status: {shown or 'empty body'}")
    return from_status(status, request, code=code, retry_after=retry_after, cluster=cluster)


def _status(body: bytes) -> Status:
    """The Status that an answer is. Raises ValueError: it is none."""
    if not body.startswith(protobuf.MAGIC):
        return _STATUS.decode(body)
    from journeyman.kube.protobuf import reading  # noqa: PLC0415 - only who asks for such answers pays for it

    return reading.refusal(body)


def from_status(
    status: Status, request: str, *, code: int = 0, retry_after: str = "", cluster: str = ""
) -> KubeAPIError:
    """The error for a Status object, as it also comes inside a watch."""
    number = code or status.code
    context: dict[str, Any] = {**_named(cluster), "status": number, "reason": status.reason, "request": request}
    if number in _ADVICE:
        context["to_do"] = _ADVICE[number]
    details = status.details or Details()
    if number == 401:
        return ForbiddenError(f"the API server does not let us in: {status.message}", **context)
    if number == 403 and (right := _FORBIDDEN.search(status.message)):
        context |= right.groupdict()
    if number == 404 and (status.message == _NO_SUCH_KIND or not status.reason):
        return _not_served(status.message, context)
    if number == 429:
        if details.causes:
            context["cause"] = "; ".join(cause.message for cause in details.causes)
        return TooManyRequestsError(
            status.message, retry_after_seconds=_seconds(retry_after, details.retry_after_seconds), **context
        )
    if number == 409 and status.reason == "AlreadyExists":
        return AlreadyExistsError(status.message, **context)
    if number == 422 and any(cause.field == "metadata.uid" for cause in details.causes):
        return ConflictError(status.message, **context)  # how a patch is told that it means another incarnation
    return _BY_STATUS.get(number, KubeAPIError)(status.message, **context)


def _not_served(said: str, context: dict[str, Any]) -> NotFoundError:
    """404 for a path that is no kind's: an API server says so in plain text, or as client-go words it."""
    kind = _KIND_PATH.search(context["request"])
    if kind is None:
        return NotFoundError(said, **context)
    group, version, plural = kind["group"], kind["version"], kind["plural"]
    other = f"the API server is too old for {group}/{version}, or its CRDs are missing"
    advice = _CRDS if group in _OWN_GROUPS else other
    message = f"the API server does not serve {plural} of {group}/{version}"
    return NotFoundError(message, **{**context, "reason": NOT_SERVED, "to_do": advice})


def served_otherwise(error: NotFoundError, version: str, served: Sequence[str]) -> NotFoundError:
    """The same error, once the versions of the group that are served are known."""
    if not served or version in served:
        return error
    context = {**error.context, "served": ", ".join(served), "status": error.status, "reason": error.reason}
    return NotFoundError(f"{error.message}, but {', '.join(served)}: its CRDs are of another version", **context)


def unreachable(error: exceptions.HTTPError, server: str, request: str, *, cluster: str = "") -> JourneymanError:
    """The error for a request that got no whole answer."""
    reason = error.reason if isinstance(error, exceptions.MaxRetryError) and error.reason is not None else error
    facts: dict[str, Any] = {**_named(cluster), "server": server, "request": request}
    if isinstance(reason, exceptions.SSLError) or isinstance(reason.__cause__, ssl.SSLError):
        named_otherwise = mismatch(str(reason), getattr(error, "pool", None))
        return _other_name(*named_otherwise, facts) if named_otherwise else _untrusted(_brief(reason), facts)
    advice = "check the endpoint, its allowed networks, and that this function can reach it"
    for kind, message in (  # the special before the general: urllib3's classes inherit from each other
        (exceptions.NameResolutionError, "the API server's name does not resolve"),
        (exceptions.NewConnectionError, "the API server refuses connections"),
        (exceptions.ConnectTimeoutError, "the API server did not accept a connection in time"),
        (exceptions.ReadTimeoutError, "the API server did not answer in time"),
        (exceptions.ProxyError, "the proxy in front of the API server refuses"),
    ):
        if isinstance(reason, kind):
            return KubeUnavailableError(f"{message}: {_brief(reason)}", reason="Unreachable", to_do=advice, **facts)
    return KubeUnavailableError(f"the API server broke off its answer: {_brief(reason)}", reason="Unreachable", **facts)


def _other_name(ours: str, theirs: Sequence[str], facts: Mapping[str, Any]) -> ConfigurationError:
    """A certificate that is somebody else's, or this server's under another name."""
    shown = ", ".join(map(repr, theirs)) or "other names"
    advice = (
        "correct the endpoint; if it is the right server, call it by a name of its certificate (in a kubeconfig: server, or "
        f"tls-server-name beside it), or have {ours} added to the certificate"
    )
    message = f"the API server's certificate is not for {ours!r} but for {shown}"
    return ConfigurationError(message, to_do=advice, **facts)


def _untrusted(told: str, facts: Mapping[str, Any]) -> JourneymanError:
    """What OpenSSL says, by whose certificate it is about."""
    if "alert" in told and any(sign in told for sign in _OF_OUR_CERTIFICATE):  # what the other side says of ours
        advice = "renew the client certificate of the kubeconfig"
        return ConfigurationError(f"the API server does not accept our certificate: {told}", to_do=advice, **facts)
    if "expired" in told or "not yet valid" in told:
        advice = "renew the API server's certificate; if it is valid, the clock here is wrong"
        return ConfigurationError(
            f"the API server's certificate has expired or is not valid yet: {told}", to_do=advice, **facts
        )
    if "alert" not in told and "certificate" in told.lower():
        advice = "check the cluster's CA certificate and the server's name"
        return ConfigurationError(f"the API server's certificate is not trusted: {told}", to_do=advice, **facts)
    advice = "check that the endpoint is an API server's, and what stands in front of it"
    return KubeUnavailableError(f"TLS with the API server failed: {told}", reason="Unreachable", to_do=advice, **facts)


def _named(cluster: str) -> dict[str, str]:
    return {"cluster": cluster} if cluster else {}


def _seconds(header: str, in_body: int) -> float:
    if header.isdecimal():
        return float(header)
    return float(in_body) or _DEFAULT_RETRY_AFTER_SECONDS


def _brief(error: BaseException) -> str:
    """What went wrong without urllib3's wrapping of its own objects."""
    return str(error).rpartition(">: ")[2] or str(error)
