"""Translate refusals of the API server, and failures of the connection to it, to `journeyman.errors`."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from urllib3 import exceptions
from urllib3.connectionpool import ConnectionPool

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
from journeyman.kube.connection_pool import client_context

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
_PERMISSIONS: Final = (
    "the ClusterRoles of the Helm chart grant every permission that is needed: helm upgrade --install journeyman infra/chart; "
    "then check that this identity is in the group that they are bound to"
)
_CRDS: Final = (
    "install the CRDs: kubectl apply --server-side -f infra/crds, or install the Helm chart infra/chart, which has them"
)
_OWN_GROUPS: Final = frozenset(  # written out: the forwarder's transport imports nothing of the core
    {
        *("karpenter.sh", "journeyman.dev"),
        *("karpenter.k8s.aws", "karpenter.k8s.alibabacloud", "karpenter.alibabacloud.com", "karpenter.k8s.huawei"),
    }
)
_ADVICE: Final[Mapping[int, str]] = {
    401: "check the cluster's access entries, that the token or client certificate has not expired, and that the clock is "
    "right",
    403: _PERMISSIONS,
    415: "the server is too old, or is not a Kubernetes API server",
}
_NO_SUCH_KIND: Final = "the server could not find the requested resource"
_FORBIDDEN: Final = re.compile(
    r'cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<api_group>[^"]*)"'
)
_KIND_PATH: Final = re.compile(r"/apis/(?P<group>[^/]+)/(?P<version>[^/]+)/(?:namespaces/[^/]+/)?(?P<plural>[^/?]+)")
_TOO_LARGE_VERSION: Final = "Too large resource version"  # 504 of a server whose etcd was restored to an older state
_CLIENT_CERTIFICATE_ALERTS: Final = ("certificate", "unknown ca", "access denied")
_LONGEST_UNKNOWN_BODY: Final = 300
_DEFAULT_RETRY_AFTER_SECONDS: Final = 1.0
_HANDSHAKE_SECONDS: Final = 3.0
_HTTPS: Final = 443
_OPENSSL_MISMATCH: Final = re.compile(
    r"(?:Hostname|IP address) mismatch, certificate is not valid for '(?P<used>[^']*)'"
)
_URLLIB3_MISMATCH: Final = re.compile(r"hostname '(?P<used>[^']*)' doesn't match (?P<names>.*)")
_URLLIB3_OBJECT: Final = re.compile(r"^HTTPS?Connection(?:Pool)?\([^)]*\): ")
_QUOTED: Final = re.compile(r"'([^']*)'")


class StatusCause(msgspec.Struct, frozen=True):
    """An entry of `details.causes` of a Status."""

    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """`details` of a Status."""

    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: int = 0


class Status(msgspec.Struct, frozen=True):
    """The `Status` object of a failure response."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


_STATUS: Final = msgspec.json.Decoder(Status)  # created at import: see `json_decoding.decoder`


def decode_status(body: bytes) -> Status:
    """Return the Status in a JSON response. Raises ValueError if there is none."""
    return _STATUS.decode(body)


def refusal(
    code: int,
    body: bytes,
    request: str,
    *,
    retry_after: str = "",
    cluster: str = "",
    decode: Callable[[bytes], Status] = decode_status,
) -> KubeAPIError:
    """Return the error for an HTTP response that is not a success.

    Args:
        code: The HTTP status.
        body: A Status object, or the text of a proxy in between.
        request: Method and path (`PATCH /api/v1/nodes/a`), for the error's reader.
        retry_after: The Retry-After header, in seconds.
        cluster: The cluster's name.
        decode: Returns the Status in the body, or raises ValueError.
    """
    try:
        status = decode(body)
    except ValueError:
        shown = body[:_LONGEST_UNKNOWN_BODY].decode("utf-8", "replace").strip()
        status = Status(message=f"HTTP {code} without a Kubernetes Status: {shown or 'empty body'}")
    return from_status(status, request, code=code, retry_after=retry_after, cluster=cluster)


def from_status(
    status: Status, request: str, *, code: int = 0, retry_after: str = "", cluster: str = ""
) -> KubeAPIError:
    """Return the error for a Status object, of a response or inside a watch."""
    code = code or status.code
    context: dict[str, Any] = {**_cluster_field(cluster), "status": code, "reason": status.reason, "request": request}
    if code in _ADVICE:
        context["to_do"] = _ADVICE[code]
    details = status.details or StatusDetails()
    if code == 401:
        return ForbiddenError(f"the API server does not accept this identity: {status.message}", **context)
    if code == 403 and (permission := _FORBIDDEN.search(status.message)):
        context |= permission.groupdict()
    if _TOO_LARGE_VERSION in status.message:
        return GoneError(status.message, **context)
    if code == 404 and (status.message == _NO_SUCH_KIND or not status.reason):
        return _not_served(status.message, context)
    if code == 429:
        if details.causes:
            context["cause"] = "; ".join(cause.message for cause in details.causes)
        return TooManyRequestsError(
            status.message, retry_after_seconds=_seconds(retry_after, details.retry_after_seconds), **context
        )
    if code == 409 and status.reason == "AlreadyExists":
        return AlreadyExistsError(status.message, **context)
    if code == 422 and any(cause.field == "metadata.uid" for cause in details.causes):
        return ConflictError(status.message, **context)  # a patch whose UID precondition failed
    return _BY_STATUS.get(code, KubeAPIError)(status.message, **context)


def _not_served(message: str, context: dict[str, Any]) -> NotFoundError:
    """Return the error for the path of an unknown kind, which an API server answers in plain text or in client-go's words."""
    kind = _KIND_PATH.search(context["request"])
    if kind is None:
        return NotFoundError(message, **context)
    group, version, plural = kind["group"], kind["version"], kind["plural"]
    other = f"the API server is too old for {group}/{version}, or its CRDs are missing"
    advice = _CRDS if group in _OWN_GROUPS else other
    message = f"the API server does not serve {plural} of {group}/{version}"
    return NotFoundError(message, **{**context, "reason": NOT_SERVED, "to_do": advice})


def with_served_versions(error: NotFoundError, version: str, served: Sequence[str]) -> NotFoundError:
    """Return the error with the versions of the group that the API server serves."""
    if not served or version in served:
        return error
    context = {**error.context, "served": ", ".join(served), "status": error.status, "reason": error.reason}
    return NotFoundError(f"{error.message}, but {', '.join(served)}: the CRDs are of another version", **context)


def unreachable(error: exceptions.HTTPError, server: str, request: str, *, cluster: str = "") -> JourneymanError:
    """Return the error for a request without a complete response."""
    reason = error.reason if isinstance(error, exceptions.MaxRetryError) and error.reason is not None else error
    context: dict[str, Any] = {**_cluster_field(cluster), "server": server, "request": request}
    if isinstance(reason, exceptions.SSLError) or isinstance(reason.__cause__, ssl.SSLError):
        names = _mismatched_names(str(reason), getattr(error, "pool", None))
        return _name_mismatch(*names, context) if names else _tls_error(_brief(reason), context)
    advice = "check the endpoint, its allowed networks, and that this function can reach it"
    for kind, message in (  # the specific before the general: urllib3's classes inherit from each other
        (exceptions.NameResolutionError, "the API server's name does not resolve"),
        (exceptions.NewConnectionError, "the API server refuses connections"),
        (exceptions.ConnectTimeoutError, "the API server did not accept a connection in time"),
        (exceptions.ReadTimeoutError, "the API server did not answer in time"),
        (exceptions.ProxyError, "the proxy in front of the API server refuses"),
    ):
        if isinstance(reason, kind):
            return KubeUnavailableError(f"{message}: {_brief(reason)}", reason="Unreachable", to_do=advice, **context)
    return KubeUnavailableError(
        f"the API server closed the connection before the response was complete: {_brief(reason)}",
        reason="Unreachable",
        **context,
    )


def _name_mismatch(used: str, names: Sequence[str], context: Mapping[str, Any]) -> ConfigurationError:
    """Return the error for a certificate of another server, or of this server under another name."""
    shown = ", ".join(map(repr, names)) or "other names"
    advice = (
        "correct the endpoint; if it is the right server, use a name of its certificate (in a kubeconfig: server, or "
        f"tls-server-name next to it), or add {used} to the certificate"
    )
    return ConfigurationError(
        f"the API server's certificate is not for {used!r} but for {shown}", to_do=advice, **context
    )


def _mismatched_names(message: str, pool: ConnectionPool | None) -> tuple[str, tuple[str, ...]] | None:
    """Return the name that was used and the certificate's names, if the message is about such a mismatch; None otherwise.

    OpenSSL ends such a handshake without returning the certificate, so a second handshake gets it; nothing is sent on that
    connection, and only a certificate of a trusted authority is read. The names are empty if that fails. urllib3, which
    verifies `assert_hostname` itself, has them in its message.
    """
    if found := _URLLIB3_MISMATCH.search(message):
        return found["used"], tuple(_QUOTED.findall(found["names"]))
    if found := _OPENSSL_MISMATCH.search(message):
        return found["used"], _certificate_names(pool) if pool is not None else ()
    return None


def _certificate_names(pool: ConnectionPool) -> tuple[str, ...]:
    trusted: ssl.SSLContext | None = getattr(pool, "conn_kw", {}).get("ssl_context")
    authorities = b"".join(trusted.get_ca_certs(binary_form=True)) if trusted is not None else b""
    context = client_context(ca_data=authorities)
    context.check_hostname = False
    try:
        with (
            socket.create_connection((pool.host, pool.port or _HTTPS), timeout=_HANDSHAKE_SECONDS) as plain,
            context.wrap_socket(plain) as secured,
        ):
            certificate: Mapping[str, Any] = secured.getpeercert() or {}
            return tuple(name for _, name in certificate.get("subjectAltName", ()))
    except OSError:  # ssl.SSLError is one
        return ()


def _tls_error(message: str, context: Mapping[str, Any]) -> JourneymanError:
    """Return the error for a failed handshake, by the certificate that OpenSSL's message is about."""
    # an alert comes from the server
    if "alert" in message and any(text in message for text in _CLIENT_CERTIFICATE_ALERTS):
        advice = "renew the client certificate of the kubeconfig"
        return ConfigurationError(
            f"the API server does not accept the client certificate: {message}", to_do=advice, **context
        )
    if "expired" in message or "not yet valid" in message:
        advice = "renew the API server's certificate; if it is valid, the clock here is wrong"
        return ConfigurationError(
            f"the API server's certificate has expired or is not valid yet: {message}", to_do=advice, **context
        )
    if "alert" not in message and "certificate" in message.lower():
        advice = "check the cluster's CA certificate and the server's name"
        return ConfigurationError(f"the API server's certificate is not trusted: {message}", to_do=advice, **context)
    advice = "check that the endpoint is an API server's, and any proxy or load balancer in front of it"
    return KubeUnavailableError(
        f"TLS with the API server failed: {message}", reason="Unreachable", to_do=advice, **context
    )


def _cluster_field(cluster: str) -> dict[str, str]:
    return {"cluster": cluster} if cluster else {}


def _seconds(header: str, in_body: int) -> float:
    if header.isdecimal():
        return float(header)
    return float(in_body) or _DEFAULT_RETRY_AFTER_SECONDS


def _brief(error: BaseException) -> str:
    """Return the message without the connection or pool that urllib3 puts before it."""
    return _URLLIB3_OBJECT.sub("", str(error))
