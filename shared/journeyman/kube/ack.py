"""Access to an ACK cluster: Alibaba Cloud issues a kubeconfig for some minutes, with a client certificate of the caller.

DescribeClusterUserKubeconfig (CS 2015-12-15) answers for the RAM identity that asks: the certificate names it, and the cluster's
RBAC decides what it may do. The RAM identity needs cs:DescribeClusterUserKubeconfig on the cluster, and in the cluster to be bound to
the steps' roles (the chart's `access.everyStep`). An internal address needs functions inside the cluster's VPC, with a way to `cs.<region>`.

The request is made with `signing.alibaba` and urllib3, not with Alibaba Cloud's SDK: see `signing` for what that would cost.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

import msgspec

from journeyman.errors import CloudUnavailableError, ConfigurationError, JourneymanError, UnknownClusterError
from journeyman.kube import cloud_api
from journeyman.kube.client_certificate import Certified, ClientCertificate
from journeyman.kube.connection import Connection
from journeyman.kube.kubeconfig import read_kubeconfig, tls_context
from journeyman.ports import Clock
from journeyman.signing import alibaba
from journeyman.signing.credentials import Credentials
from journeyman.signing.escaping import escaped_path, escaped_query

ACTION: Final = "DescribeClusterUserKubeconfig"
VERSION: Final = "2015-12-15"


class _Issued(msgspec.Struct, frozen=True):
    """The answer."""

    config: str
    expiration: str = ""


class _Refusal(msgspec.Struct, frozen=True):
    """An error of a service in ROA style."""

    code: str = ""
    message: str = ""
    request_id: str = msgspec.field(name="requestId", default="")


class Ack:
    """One ACK cluster.

    Args:
        cluster_id: ACK's id (`c` and 32 digits), not the name.
        region: Where it is.
        credentials: Asked for each request: those of a function's role change.
        clock: Signs requests, and decides when the certificate is renewed.
        private: Use the API server's address inside the VPC.
        minutes: How long a certificate is good, 15 to 4320; it is renewed when a third is left.
        api: Where Container Service answers; by default the region's endpoint.
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
        self._facts: dict[str, Any] = {"cluster_id": cluster_id, "region": region, "call": f"cs:{ACTION}"}

    def connect(self) -> Connection:
        """The connection to the cluster, whose certificate is renewed as long as it is used.

        Raises:
            UnknownClusterError: There is no such cluster.
            ConfigurationError: The caller may not have a kubeconfig, or what came is none.
            CloudUnavailableError: Container Service does not answer.
        """
        return self._certificate.connection()

    def _issue(self) -> Certified:
        now = self._clock.now()
        answer = self._ask(now)
        if answer.status != 200:
            raise self._refusal(answer)
        try:
            issued = msgspec.json.decode(answer.body, type=_Issued)
            if not issued.config:
                raise self._without_address()
            entry = read_kubeconfig(_yaml(issued.config)).entry()
            context = tls_context(entry)
            expires = _moment(issued.expiration) or now + timedelta(minutes=self._minutes)
        except ValueError as error:  # msgspec's, yaml's and ssl's are turned into these
            raise ConfigurationError(
                f"the kubeconfig of ACK cluster {self._cluster_id} cannot be used: {error}", **self._facts
            ) from error
        return Certified(server=entry.server, context=context, expires=expires)

    def _ask(self, now: datetime) -> cloud_api.Answer:
        path = f"/k8s/{self._cluster_id}/user_config"
        query = {
            "PrivateIpAddress": str(self._private).lower(),
            "TemporaryDurationMinutes": str(self._minutes),
        }
        headers = alibaba.signed(
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
        return cloud_api.send("GET", url, {**headers, "Accept": "application/json"}, **self._facts)

    def _without_address(self) -> ConfigurationError:
        kind = "private" if self._private else "public"
        return ConfigurationError(
            f"ACK cluster {self._cluster_id} has no {kind} address",
            to_do='bind an elastic IP to its API server, or run the functions in its VPC and say "endpoint": "private"',
            **self._facts,
        )

    def _refusal(self, answer: cloud_api.Answer) -> JourneymanError:
        try:
            said = msgspec.json.decode(answer.body, type=_Refusal)
        except msgspec.DecodeError:
            said = _Refusal(message=answer.body[:200].decode("utf-8", "replace"))
        what = f"{said.code or f'HTTP {answer.status}'}: {said.message}"
        facts = {**self._facts, "request_id": said.request_id}
        if answer.status == 404 or said.code == "ErrorClusterNotFound":
            return UnknownClusterError(f"there is no ACK cluster {self._cluster_id} in this region: {what}", **facts)
        if answer.status == 429 or answer.status >= 500 or said.code.startswith("Throttling"):
            return CloudUnavailableError(f"ACK gives no kubeconfig of {self._cluster_id}: {what}", **facts)
        return ConfigurationError(
            f"ACK will not give a kubeconfig of {self._cluster_id}: {what}",
            to_do="the function's role needs cs:DescribeClusterUserKubeconfig on the cluster, and credentials that are current",
            **facts,
        )


def _yaml(text: str) -> Any:
    import yaml  # noqa: PLC0415 - 30 ms that only ACK clusters cost

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {error}") from error


def _moment(text: str) -> datetime | None:
    """An RFC 3339 time; None if there is none. Raises ValueError."""
    return msgspec.convert(text, Annotated[datetime, msgspec.Meta(tz=True)]) if text else None
