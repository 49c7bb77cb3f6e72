"""Access to a CCE cluster: Huawei Cloud issues a client certificate of the caller for some days, as a kubeconfig.

CreateKubernetesClusterCert (CCE v3, `POST …/clustercert`) answers for the IAM identity that asks; the cluster's RBAC decides what it may do.
It needs cce:cluster:generateClientCredential (cce:cluster:get where that is not known yet). The answer has a context for the
address inside the VPC, and two for a public one if the cluster has it: `externalTLSVerify`, where the server's certificate names that
address, and `external`, which tells clients not to check the server. We always check: without the former, the
certificate must be of the cluster's own authority and name the address inside.

The request is made with `signing.huawei` and urllib3, not with Huawei Cloud's SDK: see `signing` for what that would cost.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from journeyman.errors import CloudUnavailableError, ConfigurationError, JourneymanError, UnknownClusterError
from journeyman.kube import cloud_api
from journeyman.kube.client_certificate import Certified, ClientCertificate
from journeyman.kube.connection import Connection
from journeyman.kube.kubeconfig import Entry, Kubeconfig, read_kubeconfig, tls_context
from journeyman.ports import Clock
from journeyman.signing import huawei
from journeyman.signing.credentials import Credentials
from journeyman.signing.escaping import escaped_path

_INTERNAL, _VERIFIED, _UNVERIFIED = "internal", "externalTLSVerify", "external"


class _Refusal(msgspec.Struct, frozen=True):
    """An error; the gateway in front of the service spells it another way."""

    error_code: str = ""
    error_msg: str = ""
    code: str = msgspec.field(name="errorCode", default="")
    message: str = msgspec.field(name="errorMessage", default="")


class Cce:
    """One CCE cluster.

    Args:
        cluster_id: CCE's id, a UUID.
        project_id: The project it is in.
        region: Where it is.
        credentials: Asked for each request: those of a function's agency change.
        clock: Signs requests, and decides when the certificate is renewed.
        private: Use the API server's address inside the VPC.
        days: How long a certificate is good, 1 to 1827; it is renewed when a third is left.
        api: Where CCE answers; by default the region's endpoint.
    """

    def __init__(
        self,
        cluster_id: str,
        project_id: str,
        region: str,
        credentials: Callable[[], Credentials],
        clock: Clock,
        *,
        private: bool = False,
        days: int = 1,
        api: str = "",
    ) -> None:
        self._cluster_id = cluster_id
        self._project_id = project_id
        self._credentials = credentials
        self._clock = clock
        self._private = private
        self._days = days
        self._api = (api or f"https://cce.{region}.myhuaweicloud.com").rstrip("/")
        self._certificate = ClientCertificate(self._issue, clock)
        self._facts: dict[str, Any] = {"cluster_id": cluster_id, "project": project_id, "region": region, "call": "cce:CreateKubernetesClusterCert"}  # fmt: skip

    def connect(self) -> Connection:
        """The connection to the cluster, whose certificate is renewed as long as it is used.

        Raises:
            UnknownClusterError: There is no such cluster in the project.
            ConfigurationError: The caller may not have a certificate, or the cluster has no public address.
            CloudUnavailableError: CCE does not answer.
        """
        return self._certificate.connection()

    def _issue(self) -> Certified:
        now = self._clock.now()
        answer = self._ask(now)
        if answer.status not in {200, 201}:
            raise self._refusal(answer)
        try:
            entry, name = self._chosen(read_kubeconfig(msgspec.json.decode(answer.body)))
            context = tls_context(entry)
        except ValueError as error:  # msgspec's and ssl's are such
            raise ConfigurationError(
                f"the certificate of CCE cluster {self._cluster_id} cannot be used: {error}", **self._facts
            ) from error
        expires = now + timedelta(days=self._days)
        return Certified(server=entry.server, context=context, expires=expires, assert_hostname=name)

    def _chosen(self, found: Kubeconfig) -> tuple[Entry, str]:
        """The context for the address wanted, and the name to check the server by, if it is not the address's own."""
        if self._private:
            return found.entry(_INTERNAL), ""
        if _VERIFIED in found.names:
            return found.entry(_VERIFIED), ""
        public = found.server(_UNVERIFIED)
        if not public:
            raise ConfigurationError(
                f"CCE cluster {self._cluster_id} has no public address",
                to_do='bind an elastic IP to it, or run the functions in its VPC and say "endpoint": "private"',
                **self._facts,
            )
        inside = found.entry(_INTERNAL)
        return replace(inside, server=public), urlsplit(inside.server).hostname or ""

    def _ask(self, now: datetime) -> cloud_api.Answer:
        path = f"/api/v3/projects/{self._project_id}/clusters/{self._cluster_id}/clustercert"
        body = msgspec.json.encode({"duration": self._days})
        headers = huawei.signed(
            "POST",
            self._api.partition("://")[2],
            path,
            {},
            credentials=self._credentials(),
            now=now,
            body=body,
            headers={"Content-Type": "application/json", "X-Project-Id": self._project_id},
        )
        return cloud_api.send("POST", f"{self._api}{escaped_path(path)}", headers, body, **self._facts)

    def _refusal(self, answer: cloud_api.Answer) -> JourneymanError:
        try:
            said = msgspec.json.decode(answer.body, type=_Refusal)
        except msgspec.DecodeError:
            said = _Refusal(message=answer.body[:200].decode("utf-8", "replace"))
        code = said.code or said.error_code
        what = f"{code or f'HTTP {answer.status}'}: {said.message or said.error_msg}"
        if answer.status == 404 or code == "CCE.01404001":
            return UnknownClusterError(
                f"there is no CCE cluster {self._cluster_id} in this project: {what}", **self._facts
            )
        if answer.status == 429 or answer.status >= 500:
            return CloudUnavailableError(f"CCE gives no certificate for {self._cluster_id}: {what}", **self._facts)
        return ConfigurationError(
            f"CCE will not give a certificate for {self._cluster_id}: {what}",
            to_do="the function's agency needs cce:cluster:generateClientCredential, and credentials that are current",
            **self._facts,
        )
