"""A fake of Cloud Container Engine (v3) with one operation, CreateKubernetesClusterCert.

It verifies the request's signature and issues kubeconfigs whose client certificates a real authority signs.

Written from Huawei Cloud's API reference and "API Request Signing Guide", independently of the code it tests.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from journeyman.ports import Clock
from tests.controlplane.certificates import Authority
from tests.helpers.signed_api import Request

KEY, SECRET, TOKEN = "HSTexample", "huawei-secret", "security-token"
PROJECT, CLUSTER = "0605768a3300d5762f82c01180692873", "fc2ef5c8-0a8e-11f0-9c3e-0255ac100b05"
_SIGNED = re.compile(r"SDK-HMAC-SHA256 Access=([^,]+), SignedHeaders=([^,]+), Signature=([0-9a-f]{64})")


class FakeCce:
    """CCE with one cluster.

    Args:
        authority: The cluster's authority, which signs the client certificates.
        server: The API server's address inside the VPC.
        clock: The clock that validates request timestamps.
        public_server: The API server's public address, if it has one.
        verified: Whether the server's certificate is valid for the public address.
        user: The user in the client certificates.
        groups: That user's groups.

    Attributes:
        user: The user in the client certificates.
        server: The API server's address inside the VPC.
        requests: The requests with a valid signature, in order.
        failing: The (status, body) of every response, if set.
    """

    def __init__(
        self,
        authority: Authority,
        server: str,
        clock: Clock,
        *,
        public_server: str = "",
        verified: bool = False,
        user: str = "1efbc2fd2b7e4a46a2a5ad8e1e2e5e8d",
        groups: Sequence[str] = ("admin",),
    ) -> None:
        self._authority = authority
        self.server, self._public_server, self._verified = server, public_server, verified
        self._clock = clock
        self.user, self._groups = user, groups
        self.requests: list[Request] = []
        self.failing: tuple[int, Any] | None = None

    def answer(self, request: Request) -> tuple[int, Any]:
        """Return the service's response."""
        complaint = self._complaint(request)
        if complaint:
            return 401, {
                "error_code": "APIGW.0301",
                "error_msg": f"Incorrect IAM authentication information: {complaint}",
            }
        self.requests.append(request)
        if self.failing is not None:
            return self.failing
        if (request.method, request.path) != ("POST", f"/api/v3/projects/{PROJECT}/clusters/{CLUSTER}/clustercert"):
            return 404, {"errorCode": "CCE.01404001", "errorMessage": "Resource not found", "error_code": "CCE_CM.0003", "error_msg": "Resource not found"}  # fmt: skip
        days = json.loads(request.body)["duration"]
        if not (days == -1 or 1 <= days <= 1827):
            return 400, {"errorCode": "CCE.01400001", "errorMessage": "Invalid request.", "error_code": "CCE_CM.0004", "error_msg": "Invalid request."}  # fmt: skip
        return 200, self._kubeconfig(days)

    def _kubeconfig(self, days: int) -> dict[str, Any]:
        certificate, key = self._authority.issue(self.user, self._groups, timedelta(days=days if days > 0 else 1827))
        encoded = [
            base64.b64encode(path.read_bytes()).decode() for path in (self._authority.certificate, certificate, key)
        ]
        clusters = {"internalCluster": {"server": self.server, "certificate-authority-data": encoded[0]}}
        contexts = {"internal": "internalCluster"}
        if self._public_server:
            clusters["externalCluster"] = {"server": self._public_server, "insecure-skip-tls-verify": True}
            contexts["external"] = "externalCluster"
        if self._public_server and self._verified:
            clusters["externalClusterTLSVerify"] = {
                "server": self._public_server,
                "certificate-authority-data": encoded[0],
            }
            contexts["externalTLSVerify"] = "externalClusterTLSVerify"
        return {
            "kind": "Config",
            "apiVersion": "v1",
            "preferences": {},
            "clusters": [{"name": name, "cluster": cluster} for name, cluster in clusters.items()],
            "users": [{"name": "user", "user": {"client-certificate-data": encoded[1], "client-key-data": encoded[2]}}],
            "contexts": [{"name": name, "context": {"cluster": c, "user": "user"}} for name, c in contexts.items()],
            "current-context": "external" if self._public_server else "internal",
        }

    def _complaint(self, request: Request) -> str:
        """Return what is wrong with the signature; empty if it is valid."""
        match = _SIGNED.fullmatch(request.headers.get("authorization", ""))
        if match is None:
            return "Authorization format error"
        key, names, signature = match[1], match[2].split(";"), match[3]
        if key != KEY or request.headers.get("x-security-token") != TOKEN:
            return "Get secretKey failed"
        if not {"host", "x-sdk-date", "x-security-token"} <= set(names) or names != sorted(names):
            return "SignedHeaders error"
        at = datetime.strptime(request.headers["x-sdk-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
        if abs(self._clock.now() - at) > timedelta(minutes=15):
            return "Signature expired"
        if request.headers.get("x-project-id", PROJECT) != PROJECT:
            return "X-Project-Id is another project's"
        return "" if hmac.compare_digest(signature, _signature(request, names)) else "verify aksk signature fail"


def _signature(request: Request, names: Sequence[str]) -> str:
    """Compute the signature of the received request."""
    path = request.path if request.path.endswith("/") else request.path + "/"
    text = f"{request.method}\n{path}\n{'&'.join(sorted(filter(None, request.query.split('&'))))}\n"
    for name in names:
        text += f"{name}:{request.headers[name]}\n"
    text += f"\n{';'.join(names)}\n{hashlib.sha256(request.body).hexdigest()}"
    to_sign = f"SDK-HMAC-SHA256\n{request.headers['x-sdk-date']}\n{hashlib.sha256(text.encode()).hexdigest()}"
    return hmac.new(SECRET.encode(), to_sign.encode(), "sha256").hexdigest()
