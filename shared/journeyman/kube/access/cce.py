"""Access to a CCE cluster: Huawei Cloud issues a kubeconfig with a client certificate, valid for some days.

CreateKubernetesClusterCert (CCE v3, `POST …/clustercert`) issues the certificate for the IAM identity that calls it; the
cluster's RBAC decides what that user may do. The identity needs cce:cluster:generateClientCredential (cce:cluster:get in
regions that do not have that action yet). The kubeconfig has a context for the address inside the VPC, and two for a public
address if the cluster has one: `externalTLSVerify`, if the server's certificate names that address, and `external`, with which
clients do not verify the server. Journeyman always verifies: without `externalTLSVerify`, the certificate must be of the
cluster's own authority and name the address inside the VPC.

`huawei_headers` signs the request, because Huawei Cloud's SDK is too large (see `signing`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from journeyman.errors import CloudUnavailableError, ConfigurationError, JourneymanError, UnknownClusterError
from journeyman.kube.access.client_certificate import ClientCertificate, IssuedCertificate
from journeyman.kube.access.kubeconfig import Kubeconfig, KubeconfigEntry, read_kubeconfig, tls_context
from journeyman.kube.connection_pool import Connection
from journeyman.ports import Clock
from journeyman.signing import CloudResponse, Credentials, escaped_path, huawei_headers, send

_INTERNAL, _VERIFIED, _UNVERIFIED = "internal", "externalTLSVerify", "external"


class _CceError(msgspec.Struct, frozen=True):
    """An error response; the API gateway in front of CCE uses other field names."""

    error_code: str = ""
    error_msg: str = ""
    code: str = msgspec.field(name="errorCode", default="")
    message: str = msgspec.field(name="errorMessage", default="")


class CceCluster:
    """One CCE cluster.

    Args:
        cluster_id: CCE's id, a UUID.
        project_id: The project it is in.
        region: The cluster's region.
        credentials: Called for each request, because a function's agency gets new credentials.
        clock: Dates requests, and decides when the certificate is renewed.
        private: Use the API server's address inside the VPC.
        days: The certificate's lifetime, 1 to 1827; it is renewed when a third is left.
        api: CCE's URL; by default the region's endpoint.
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
        self._context: dict[str, Any] = {"cluster_id": cluster_id, "project": project_id, "region": region, "call": "cce:CreateKubernetesClusterCert"}  # fmt: skip

    def connect(self) -> Connection:
        """Return the connection to the cluster; its certificate is renewed as long as it is used.

        Raises:
            UnknownClusterError: There is no such cluster in the project.
            ConfigurationError: The caller may not have a certificate, or the cluster has no public address.
            CloudUnavailableError: CCE does not answer.
        """
        return self._certificate.connection()

    def _issue(self) -> IssuedCertificate:
        now = self._clock.now()
        response = self._send_request(now)
        if response.status not in {200, 201}:
            raise self._error_of(response)
        try:
            entry, name = self._choose_context(read_kubeconfig(msgspec.json.decode(response.body)))
            context = tls_context(entry)
        except ValueError as error:  # msgspec's, and ssl's as translated by `tls_context`
            raise ConfigurationError(
                f"the certificate of CCE cluster {self._cluster_id} cannot be used: {error}", **self._context
            ) from error
        expires = now + timedelta(days=self._days)
        return IssuedCertificate(server=entry.server, context=context, expires=expires, assert_hostname=name)

    def _choose_context(self, kubeconfig: Kubeconfig) -> tuple[KubeconfigEntry, str]:
        """Return the context to use, and the name to verify the server's certificate against if it is not the URL's."""
        if self._private:
            return kubeconfig.entry(_INTERNAL), ""
        if _VERIFIED in kubeconfig.names:
            return kubeconfig.entry(_VERIFIED), ""
        public = kubeconfig.server(_UNVERIFIED)
        if not public:
            raise ConfigurationError(
                f"CCE cluster {self._cluster_id} has no public address",
                to_do='bind an elastic IP to it, or run the functions in its VPC and set "endpoint": "private"',
                **self._context,
            )
        internal = kubeconfig.entry(_INTERNAL)
        return replace(internal, server=public), urlsplit(internal.server).hostname or ""

    def _send_request(self, now: datetime) -> CloudResponse:
        path = f"/api/v3/projects/{self._project_id}/clusters/{self._cluster_id}/clustercert"
        body = msgspec.json.encode({"duration": self._days})
        headers = huawei_headers(
            "POST",
            self._api.partition("://")[2],
            path,
            {},
            credentials=self._credentials(),
            now=now,
            body=body,
            headers={"Content-Type": "application/json", "X-Project-Id": self._project_id},
        )
        return send("POST", f"{self._api}{escaped_path(path)}", headers, body, **self._context)

    def _error_of(self, response: CloudResponse) -> JourneymanError:
        try:
            refusal = msgspec.json.decode(response.body, type=_CceError)
        except msgspec.DecodeError:
            refusal = _CceError(message=response.body[:200].decode("utf-8", "replace"))
        code = refusal.code or refusal.error_code
        what = f"{code or f'HTTP {response.status}'}: {refusal.message or refusal.error_msg}"
        if response.status == 404 or code == "CCE.01404001":
            return UnknownClusterError(
                f"there is no CCE cluster {self._cluster_id} in this project: {what}", **self._context
            )
        if response.status == 429 or response.status >= 500:
            return CloudUnavailableError(
                f"CCE did not issue a certificate for {self._cluster_id}: {what}", **self._context
            )
        return ConfigurationError(
            f"CCE refuses to issue a certificate for {self._cluster_id}: {what}",
            to_do="the function's agency needs cce:cluster:generateClientCredential, and valid credentials",
            **self._context,
        )
