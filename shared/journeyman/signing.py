"""Signs and sends requests to Alibaba Cloud and Huawei Cloud without their SDKs.

Signing is pure: no clock, no randomness, no I/O. botocore signs requests to AWS. The SDKs of the other two clouds are too
large for the few requests that a function sends: Alibaba Cloud's has 32 MB and takes 0.3 s to import, Huawei Cloud's 30 MB
and 0.2 s (with the services needed here). Tests check each signature against the cloud's published example.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Final
from urllib.parse import quote

import urllib3
from msgspec import Struct

from journeyman.errors import CloudUnavailableError

_UNRESERVED: Final = "-_.~"  # and letters and digits (RFC 3986)
_TIMEOUT: Final = urllib3.Timeout(connect=3.0, read=15.0)
# Repeat only connection attempts: a nonce or timestamp may be rejected when the same signed request is sent twice.
_RETRIES: Final = urllib3.Retry(total=2, connect=2, read=0, status=0, redirect=0, other=0, backoff_factor=0.2)


class Credentials(Struct, frozen=True, kw_only=True):
    """An access key; `security_token` is set for temporary keys only."""

    access_key_id: str
    access_key_secret: str
    security_token: str = ""

    def __repr__(self) -> str:
        return f"Credentials(access_key_id={self.access_key_id!r})"  # the rest is secret


class CloudResponse(Struct, frozen=True, kw_only=True):
    """An HTTP response: status and body."""

    status: int
    body: bytes


def escaped_path(path: str) -> str:
    """Return the path as it is signed and sent."""
    return quote(path, safe=f"/{_UNRESERVED}") or "/"


def escaped_query(query: Mapping[str, str]) -> str:
    """Return the query as it is signed and sent: escaped, and sorted by name."""
    pairs = sorted((quote(name, safe=_UNRESERVED), quote(value, safe=_UNRESERVED)) for name, value in query.items())
    return "&".join(f"{name}={value}" for name, value in pairs)


def send(method: str, url: str, headers: Mapping[str, str], body: bytes = b"", **context: Any) -> CloudResponse:
    """Send one signed request, and return the response whatever its status.

    Args:
        method: In capitals.
        url: Escaped as it was signed.
        headers: All headers, the signed ones included.
        body: As it was signed.
        **context: Fields for the error: the cluster, the call.

    Raises:
        CloudUnavailableError: There is no response.
    """
    with urllib3.PoolManager(timeout=_TIMEOUT, retries=_RETRIES) as http:
        try:
            response = http.request(method, url, headers=dict(headers), body=body or None)
        except urllib3.exceptions.HTTPError as error:
            endpoint = urllib3.util.parse_url(url).netloc
            raise CloudUnavailableError(
                f"{endpoint} does not answer: {error}",
                to_do="in a VPC, functions need a NAT gateway or a VPC endpoint for this service",
                **context,
            ) from error
        return CloudResponse(status=response.status, body=response.data)


_ALIBABA_ALGORITHM: Final = "ACS3-HMAC-SHA256"


def alibaba_headers(
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
    """Return the headers of a request to Alibaba Cloud, signed by its signature V3 (`ACS3-HMAC-SHA256`).

    The Authorization header is among them. The service accepts each nonce once.

    Source: Alibaba Cloud SDK, Product Overview, "Request syntax and signature method V3".

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
    request_hash = _request_hash(method, escaped_path(path), query, headers, body)
    signature = _signature(f"{_ALIBABA_ALGORITHM}\n{request_hash}", credentials)
    authorization = (
        f"{_ALIBABA_ALGORITHM} Credential={credentials.access_key_id},SignedHeaders={names},Signature={signature}"
    )
    return {**headers, "Authorization": authorization}


_HUAWEI_ALGORITHM: Final = "SDK-HMAC-SHA256"


def huawei_headers(
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
    """Return the headers of a request to Huawei Cloud, signed by access key (`SDK-HMAC-SHA256`).

    The Authorization header is among them.

    Source: Huawei Cloud, "API Request Signing Guide", AK/SK Signing and Authentication Algorithm.

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
    request_hash = _request_hash(method, f"{escaped_path(path).rstrip('/')}/", query, all_headers, body)
    signature = _signature(f"{_HUAWEI_ALGORITHM}\n{all_headers['x-sdk-date']}\n{request_hash}", credentials)
    authorization = (
        f"{_HUAWEI_ALGORITHM} Access={credentials.access_key_id}, SignedHeaders={names}, Signature={signature}"
    )
    return {**all_headers, "Authorization": authorization}


def _request_hash(method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes) -> str:
    """Return the SHA-256 of the canonical request, which both algorithms build from all headers in the same way."""
    names = sorted(headers)
    lines = "".join(f"{name}:{headers[name].strip()}\n" for name in names)
    body_hash = hashlib.sha256(body).hexdigest()
    canonical = "\n".join((method, path, escaped_query(query), lines, ";".join(names), body_hash))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _signature(text: str, credentials: Credentials) -> str:
    return hmac.new(credentials.access_key_secret.encode(), text.encode(), hashlib.sha256).hexdigest()
