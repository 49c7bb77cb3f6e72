"""A fake of Container Service for Kubernetes (CS 2015-12-15) with one operation, DescribeClusterUserKubeconfig.

It verifies the request's signature and issues kubeconfigs whose client certificates a real authority signs.

Written from Alibaba Cloud's API reference and "Request syntax and signature method V3", independently of the code it tests.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import yaml

from journeyman.ports import Clock
from tests.controlplane.certificates import Authority
from tests.helpers.signed_api import Request

KEY, SECRET, TOKEN = "STS.NTexample", "alibaba-secret", "sts-token"
CLUSTER = "c5b5e80b0b64a4bf6939d2d8fbbc50000"
_SIGNED = re.compile(r"ACS3-HMAC-SHA256 Credential=([^,]+),SignedHeaders=([^,]+),Signature=([0-9a-f]{64})")
_MUST_BE_SIGNED = {"host", "x-acs-action", "x-acs-content-sha256", "x-acs-date", "x-acs-signature-nonce", "x-acs-version"}  # fmt: skip


class FakeAck:
    """Container Service with one cluster.

    Args:
        authority: The cluster's authority, which signs the client certificates.
        server: The API server's public address.
        clock: The clock that validates request timestamps. Certificates expire by the real clock, as servers verify them.
        private_server: The API server's address inside the VPC.
        user: The user in the client certificates.
        groups: That user's groups.

    Attributes:
        user: The user in the client certificates.
        requests: The requests with a valid signature, in order.
        failing: The (status, body) of every response, if set.
        expiration: The expiry in the responses, if set; by default the certificate's.
    """

    def __init__(
        self,
        authority: Authority,
        server: str,
        clock: Clock,
        *,
        private_server: str = "",
        user: str = "2600000000-1700000000",
        groups: Sequence[str] = ("system:users",),
    ) -> None:
        self._authority = authority
        self._servers = {"false": server, "true": private_server}
        self._clock = clock
        self.user, self._groups = user, groups
        self._nonces: set[str] = set()
        self.requests: list[Request] = []
        self.failing: tuple[int, Any] | None = None
        self.expiration: str | None = None

    def answer(self, request: Request) -> tuple[int, Any]:
        """Return the service's response."""
        complaint = self._complaint(request)
        if complaint:
            return 400, {"code": complaint, "message": f"{complaint}: see the signature method", "requestId": "R-1"}
        self.requests.append(request)
        if self.failing is not None:
            return self.failing
        if request.method != "GET" or request.headers["x-acs-action"] != "DescribeClusterUserKubeconfig":
            return 404, {"code": "InvalidAction.NotFound", "message": "no such operation", "requestId": "R-1"}
        if request.path != f"/k8s/{CLUSTER}/user_config":
            return 404, {"code": "ErrorClusterNotFound", "message": "cluster not found", "requestId": "R-1"}
        return self._kubeconfig(request)

    def _kubeconfig(self, request: Request) -> tuple[int, Any]:
        minutes = int(request.parameters.get("TemporaryDurationMinutes", 3 * 365 * 24 * 60))
        if not 15 <= minutes <= 4320:
            return 400, {"code": "InvalidParameter", "message": "TemporaryDurationMinutes", "requestId": "R-1"}
        server = self._servers[request.parameters.get("PrivateIpAddress", "false").lower()]
        if not server:
            return 200, {"config": "", "expiration": ""}
        certificate, key = self._authority.issue(self.user, self._groups, timedelta(minutes=minutes))
        encoded = [
            base64.b64encode(path.read_bytes()).decode() for path in (self._authority.certificate, certificate, key)
        ]
        config = {
            "apiVersion": "v1",
            "clusters": [{"cluster": {"server": server, "certificate-authority-data": encoded[0]}, "name": "kubernetes"}],
            "contexts": [{"context": {"cluster": "kubernetes", "user": self.user}, "name": f"{self.user}-{CLUSTER}"}],
            "current-context": f"{self.user}-{CLUSTER}",
            "kind": "Config",
            "preferences": {},
            "users": [{"name": self.user, "user": {"client-certificate-data": encoded[1], "client-key-data": encoded[2]}}],
        }  # fmt: skip
        expires = (self._clock.now() + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
        stated = expires if self.expiration is None else self.expiration
        return 200, {"config": yaml.safe_dump(config), "expiration": stated}

    def _complaint(self, request: Request) -> str:
        """Return the service's error code for an invalid signature; empty for a valid one."""
        match = _SIGNED.fullmatch(request.headers.get("authorization", ""))
        if match is None:
            return "IncompleteSignature"
        key, names, signature = match[1], match[2].split(";"), match[3]
        if key != KEY or request.headers.get("x-acs-security-token") != TOKEN:
            return "InvalidAccessKeyId.NotFound"
        if not {*_MUST_BE_SIGNED, "x-acs-security-token"} <= set(names) or names != sorted(names):
            return "IncompleteSignature"
        if request.headers["x-acs-content-sha256"] != hashlib.sha256(request.body).hexdigest():
            return "SignatureDoesNotMatch"
        at = datetime.strptime(request.headers["x-acs-date"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
        if abs(self._clock.now() - at) > timedelta(minutes=15):
            return "InvalidTimeStamp.Expired"
        nonce = request.headers["x-acs-signature-nonce"]
        if nonce in self._nonces:
            return "SignatureNonceUsed"
        self._nonces.add(nonce)
        return "" if hmac.compare_digest(signature, _signature(request, names)) else "SignatureDoesNotMatch"


def _signature(request: Request, names: Sequence[str]) -> str:
    """Compute the signature of the received request."""
    text = f"{request.method}\n{request.path}\n{'&'.join(sorted(request.query.split('&')))}\n"
    for name in names:
        text += f"{name}:{request.headers[name]}\n"
    text += f"\n{';'.join(names)}\n{request.headers['x-acs-content-sha256']}"
    digest = hashlib.sha256(text.encode()).hexdigest()
    return hmac.new(SECRET.encode(), f"ACS3-HMAC-SHA256\n{digest}".encode(), "sha256").hexdigest()
