"""Alibaba Cloud's signature V3 (`ACS3-HMAC-SHA256`), which all its OpenAPI services take.

Source: Alibaba Cloud SDK, Product Overview, "Request syntax and signature method V3".
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Final

from journeyman.signing.credentials import Credentials
from journeyman.signing.escaping import escaped_path, escaped_query

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
    """The headers that make a request the caller's own. Each is good for one request: the service remembers nonces.

    Args:
        method: In capitals.
        host: As the request names it, with a port that is not the scheme's own.
        path: Unescaped, as the operation has it; send `escaped_path(path)`.
        query: Unescaped; send `escaped_query(query)`.
        action: The operation, e.g. `DescribeClusterUserKubeconfig`.
        version: The service's API version, a date.
        credentials: Whose request it is.
        now: Aware; the service takes 15 minutes either way.
        nonce: A text never used before.
        body: What is sent.
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
