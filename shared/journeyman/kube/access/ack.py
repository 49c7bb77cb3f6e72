"""Access to an ACK cluster: Alibaba Cloud issues a kubeconfig with a client certificate, valid for some minutes.

DescribeClusterUserKubeconfig (CS 2015-12-15) issues the certificate for the RAM identity that calls it; the cluster's RBAC
decides what that user may do. The identity needs cs:DescribeClusterUserKubeconfig on the cluster, and its user must be bound to
the steps' ClusterRoles (the chart's `access.everyStep`). A private address needs functions inside the cluster's VPC, with a
route to `cs.<region>`.

`alibaba_headers` signs the request, because Alibaba Cloud's SDK is too large (see `signing`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

import msgspec

from journeyman.errors import CloudUnavailableError, ConfigurationError, JourneymanError, UnknownClusterError
from journeyman.kube.access.client_certificate import ClientCertificate, IssuedCertificate
from journeyman.kube.access.kubeconfig import read_kubeconfig, tls_context
from journeyman.kube.connection_pool import Connection
from journeyman.ports import Clock
from journeyman.signing import CloudResponse, Credentials, alibaba_headers, escaped_path, escaped_query, send

ACTION: Final = "DescribeClusterUserKubeconfig"
VERSION: Final = "2015-12-15"


class _IssuedKubeconfig(msgspec.Struct, frozen=True):
    """The response of DescribeClusterUserKubeconfig."""

    config: str
    expiration: str = ""


class _AckError(msgspec.Struct, frozen=True):
    """An error response of a service in ROA style."""

    code: str = ""
    message: str = ""
    request_id: str = msgspec.field(name="requestId", default="")


class AckCluster:
    """One ACK cluster.

    Args:
        cluster_id: ACK's id (`c` and 32 digits), not the name.
        region: The cluster's region.
        credentials: Called for each request, because a function's role gets new credentials.
        clock: Dates requests, and decides when the certificate is renewed.
        private: Use the API server's address inside the VPC.
        minutes: The certificate's lifetime, 15 to 4320; it is renewed when a third is left.
        api: Container Service's URL; by default the region's endpoint.
    """

    def __init__(
        self,
        cluster_id: str,
        region: str,
        credentials: Callable[[], Credentials],
        clock: Clock,
        *,
        private: bool = False,
        minutes: int = 180,
        api: str = "",
    ) -> None:
        self._cluster_id = cluster_id
        self._credentials = credentials
        self._clock = clock
        self._private = private
        self._minutes = minutes
        self._api = (api or f"https://cs.{region}.aliyuncs.com").rstrip("/")
        self._certificate = ClientCertificate(self._issue, clock)
        self._context: dict[str, Any] = {"cluster_id": cluster_id, "region": region, "call": f"cs:{ACTION}"}

    def connect(self) -> Connection:
        """Return the connection to the cluster; its certificate is renewed as long as it is used.

        Raises:
            UnknownClusterError: There is no such cluster.
            ConfigurationError: The caller may not have a kubeconfig, or the response is not one.
            CloudUnavailableError: Container Service does not answer.
        """
        return self._certificate.connection()

    def _issue(self) -> IssuedCertificate:
        now = self._clock.now()
        response = self._send_request(now)
        if response.status != 200:
            raise self._error_of(response)
        try:
            issued = msgspec.json.decode(response.body, type=_IssuedKubeconfig)
            if not issued.config:
                raise self._no_address_error()
            entry = read_kubeconfig(_yaml(issued.config)).entry()
            context = tls_context(entry)
            expires = _parse_time(issued.expiration) or now + timedelta(minutes=self._minutes)
        except ValueError as error:  # msgspec's, and the errors of yaml and ssl as translated below
            raise ConfigurationError(
                f"the kubeconfig of ACK cluster {self._cluster_id} cannot be used: {error}", **self._context
            ) from error
        return IssuedCertificate(server=entry.server, context=context, expires=expires)

    def _send_request(self, now: datetime) -> CloudResponse:
        path = f"/k8s/{self._cluster_id}/user_config"
        query = {
            "PrivateIpAddress": str(self._private).lower(),
            "TemporaryDurationMinutes": str(self._minutes),
        }
        headers = alibaba_headers(
            "GET",
            self._api.partition("://")[2],
            path,
            query,
            action=ACTION,
            version=VERSION,
            credentials=self._credentials(),
            now=now,
            nonce=uuid.uuid4().hex,
        )
        url = f"{self._api}{escaped_path(path)}?{escaped_query(query)}"
        return send("GET", url, {**headers, "Accept": "application/json"}, **self._context)

    def _no_address_error(self) -> ConfigurationError:
        kind = "private" if self._private else "public"
        return ConfigurationError(
            f"ACK cluster {self._cluster_id} has no {kind} address",
            to_do='bind an elastic IP to its API server, or run the functions in its VPC and set "endpoint": "private"',
            **self._context,
        )

    def _error_of(self, response: CloudResponse) -> JourneymanError:
        try:
            refusal = msgspec.json.decode(response.body, type=_AckError)
        except msgspec.DecodeError:
            refusal = _AckError(message=response.body[:200].decode("utf-8", "replace"))
        what = f"{refusal.code or f'HTTP {response.status}'}: {refusal.message}"
        context = {**self._context, "request_id": refusal.request_id}
        if response.status == 404 or refusal.code == "ErrorClusterNotFound":
            return UnknownClusterError(f"there is no ACK cluster {self._cluster_id} in this region: {what}", **context)
        if response.status == 429 or response.status >= 500 or refusal.code.startswith("Throttling"):
            return CloudUnavailableError(f"ACK did not issue a kubeconfig of {self._cluster_id}: {what}", **context)
        return ConfigurationError(
            f"ACK refuses to issue a kubeconfig of {self._cluster_id}: {what}",
            to_do="the function's role needs cs:DescribeClusterUserKubeconfig on the cluster, and valid credentials",
            **context,
        )


def _yaml(text: str) -> Any:
    import yaml  # noqa: PLC0415 - 30 ms, for ACK clusters only

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {error}") from error


def _parse_time(text: str) -> datetime | None:
    """Return an RFC 3339 time, None for an empty text. Raises ValueError."""
    return msgspec.convert(text, Annotated[datetime, msgspec.Meta(tz=True)]) if text else None
