"""Huawei Cloud's signature by access key (`SDK-HMAC-SHA256`), for all its services.

Source: Huawei Cloud, "API Request Signing Guide", AK/SK Signing and Authentication Algorithm.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Final

from journeyman.signing.signed_requests import Credentials, escaped_path, escaped_query

ALGORITHM: Final = "SDK-HMAC-SHA256"


def signed(
    method: str,
    host: str,
    path: str,
    query: Mapping[str, str],
    *,
    credentials: Credentials,
    now: datetime,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the headers of a signed request, the Authorization header included.

    Args:
        method: In capitals.
        host: The Host header: with the port, unless it is the scheme's default.
        path: Unescaped; send `escaped_path(path)`. It is signed with a slash at its end, and sent without.
        query: Unescaped; send `escaped_query(query)`.
        credentials: The caller's access key.
        now: Aware; the service accepts a difference of 15 minutes.
        body: The request's body.
        headers: Further headers to send and sign: Content-Type, X-Project-Id.
    """
    all_headers = {name.lower(): value.strip() for name, value in (headers or {}).items()}
    all_headers |= {"host": host, "x-sdk-date": now.astimezone(timezone.utc).strftime("%Y%m%dT%H%M%SZ")}
    if credentials.security_token:
        all_headers["x-security-token"] = credentials.security_token
    names = ";".join(sorted(all_headers))
    lines = "".join(f"{name}:{all_headers[name]}\n" for name in sorted(all_headers))
    signed_path = f"{escaped_path(path).rstrip('/')}/"
    body_hash = hashlib.sha256(body).hexdigest()
    canonical = "\n".join((method, signed_path, escaped_query(query), lines, names, body_hash))
    to_sign = f"{ALGORITHM}\n{all_headers['x-sdk-date']}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = hmac.new(credentials.access_key_secret.encode(), to_sign.encode(), hashlib.sha256).hexdigest()
    authorization = f"{ALGORITHM} Access={credentials.access_key_id}, SignedHeaders={names}, Signature={signature}"
    return {**all_headers, "Authorization": authorization}
