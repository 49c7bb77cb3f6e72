"""Access keys, URL escaping, and sending of one signed request: the parts that both clouds' signatures share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import urllib3
from msgspec import Struct

from journeyman.errors import CloudUnavailableError

_UNRESERVED: Final = "-_.~"  # beside letters and digits (RFC 3986)
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
