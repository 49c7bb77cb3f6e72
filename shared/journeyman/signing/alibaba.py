"""Alibaba Cloud's signature V3 (`ACS3-HMAC-SHA256`), for all its OpenAPI services.

Source: Alibaba Cloud SDK, Product Overview, "Request syntax and signature method V3".
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Final

from journeyman.signing.signed_requests import Credentials, escaped_path, escaped_query

ALGORITHM: Final = "ACS3-HMAC-SHA256"


def signed(
    method: str,
    host: str,
    path: str,
    query: Mapping[str, str],
    *,
    action: str,
    version: str,
    credentials: Credentials,
    now: datetime,
    nonce: str,
    body: bytes = b"",
) -> dict[str, str]:
    """Return the headers of a signed request, the Authorization header included. The service accepts each nonce once.

    Args:
        method: In capitals.
        host: The Host header: with the port, unless it is the scheme's default.
        path: Unescaped; send `escaped_path(path)`.
        query: Unescaped; send `escaped_query(query)`.
        action: The operation, e.g. `DescribeClusterUserKubeconfig`.
        version: The service's API version, a date.
        credentials: The caller's access key.
        now: Aware; the service accepts a difference of 15 minutes.
        nonce: A text that was never used before.
        body: The request's body.
    """
    headers = {
        "host": host,
        "x-acs-action": action,
        "x-acs-content-sha256": hashlib.sha256(body).hexdigest(),
        "x-acs-date": now.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "x-acs-signature-nonce": nonce,
        "x-acs-version": version,
    }
    if credentials.security_token:
        headers["x-acs-security-token"] = credentials.security_token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name].strip()}\n" for name in sorted(headers))
    canonical = "\n".join(
        (method, escaped_path(path), escaped_query(query), lines, names, headers["x-acs-content-sha256"])
    )
    to_sign = f"{ALGORITHM}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = hmac.new(credentials.access_key_secret.encode(), to_sign.encode(), hashlib.sha256).hexdigest()
    authorization = f"{ALGORITHM} Credential={credentials.access_key_id},SignedHeaders={names},Signature={signature}"
    return {**headers, "Authorization": authorization}
