"""Verifies the signatures of requests (`SDK-HMAC-SHA256`), their dates, security tokens and projects.

Restates: Huawei Cloud, "API Request Signing Guide", AK/SK signing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Final
from urllib.parse import quote, unquote

from journeyman_simulator.cloud_rules.access_keys import SimulatedAccessKey
from journeyman_simulator.cloud_rules.local_http import ReceivedRequest, canonical_query
from journeyman_simulator.huawei_account.rest_errors import unauthenticated

_ALGORITHM: Final = "SDK-HMAC-SHA256"
_AUTHORIZATION: Final = re.compile(
    _ALGORITHM + r" Access=(?P<key>[^,]+), SignedHeaders=(?P<headers>[^,]+), Signature=(?P<signature>[0-9a-f]{64})"
)
_MUST_BE_SIGNED: Final = ("host", "x-sdk-date", "x-project-id", "x-domain-id", "x-security-token")
_UNSIGNED_BODY: Final = "UNSIGNED-PAYLOAD"
_VALIDITY: Final = timedelta(minutes=15)


class RestSignatureVerifier:
    """Finds the caller of each request, by the account's access keys."""

    def __init__(self, access_keys: Mapping[str, SimulatedAccessKey]) -> None:
        self._access_keys = access_keys

    def caller_of(self, request: ReceivedRequest, now: datetime) -> str:
        """Return the caller who signed a request.

        Raises:
            ServiceError: The signature, the access key, the date or the security token is missing or not valid.
        """
        matched = _AUTHORIZATION.fullmatch(request.headers.get("authorization", ""))
        if not matched:
            raise unauthenticated(f"the Authorization header is missing or not {_ALGORITHM}")
        key = self._access_keys.get(matched["key"])
        if key is None:
            raise unauthenticated("get secretKey failed, ak does not exist")
        _check_date(request.headers.get("x-sdk-date", ""), now)
        _check_signature(request, matched["headers"].split(";"), matched["signature"], key)
        if request.headers.get("x-security-token", "") != key.security_token:
            raise unauthenticated("the security token is missing, not valid, or has expired")
        return key.caller


def _check_date(text: str, now: datetime) -> None:
    try:
        date = datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    except ValueError:
        raise unauthenticated(f"the header X-Sdk-Date is not a date: {text!r}") from None
    if abs(now - date) > _VALIDITY:
        raise unauthenticated("the request has expired: X-Sdk-Date differs by more than 15 minutes")


def _check_signature(request: ReceivedRequest, signed: list[str], signature: str, key: SimulatedAccessKey) -> None:
    headers = request.headers
    if unsigned := [name for name in _MUST_BE_SIGNED if name in headers and name not in signed]:
        raise unauthenticated(f"the header {unsigned[0]} is not signed")
    payload = hashlib.sha256(request.body).hexdigest()
    declared = headers.get("x-sdk-content-sha256", payload) if request.body else payload
    if declared not in {payload, _UNSIGNED_BODY}:
        raise unauthenticated("the body's hash differs from X-Sdk-Content-Sha256")
    lines = [f"{name}:{headers.get(name, '').strip()}" for name in signed]
    canonical = "\n".join(
        (
            request.method,
            canonical_path(request.path),
            canonical_query(request.query),
            *lines,
            "",
            ";".join(signed),
            declared,
        )
    )
    text = f"{_ALGORITHM}\n{headers['x-sdk-date']}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    expected = hmac.new(key.secret.encode(), text.encode(), hashlib.sha256).hexdigest()
    if not hmac.compare_digest(expected, signature):
        raise unauthenticated("verify aksk signature fail")


def canonical_path(path: str) -> str:
    """Return a path with each segment percent-encoded once, and with a slash at its end."""
    encoded = "/".join(quote(segment, safe="~") for segment in unquote(path).split("/"))
    return encoded if encoded.endswith("/") else f"{encoded}/"
