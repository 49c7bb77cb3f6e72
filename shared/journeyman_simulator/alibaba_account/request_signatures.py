"""Verifies the signatures of OpenAPI requests (V3, ACS3-HMAC-SHA256), and their dates and nonces.

Restates: "Signature mechanism V3" of Alibaba Cloud's API reference.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Final

from journeyman_simulator.alibaba_account.openapi_errors import missing_parameter
from journeyman_simulator.cloud_rules.access_keys import SimulatedAccessKey
from journeyman_simulator.cloud_rules.local_http import ReceivedRequest, canonical_query
from journeyman_simulator.cloud_rules.service_errors import ServiceError

_ALGORITHM: Final = "ACS3-HMAC-SHA256"
_AUTHORIZATION: Final = re.compile(
    _ALGORITHM + r" Credential=(?P<key>[^,]+),\s*SignedHeaders=(?P<headers>[^,]+),\s*Signature=(?P<signature>[0-9a-f]+)"
)
_MUST_BE_SIGNED: Final = ("host", "x-acs-action", "x-acs-content-sha256", "x-acs-date", "x-acs-signature-nonce")
_VALIDITY: Final = timedelta(minutes=15)


class SignatureVerifier:
    """Finds the caller of each request, by the account's access keys, and remembers the nonces."""

    def __init__(self, access_keys: Mapping[str, SimulatedAccessKey]) -> None:
        self._access_keys = access_keys
        self._nonces: dict[str, datetime] = {}

    def caller_of(self, request: ReceivedRequest, now: datetime) -> str:
        """Return the caller who signed a request.

        Raises:
            ServiceError: The signature, the access key, the date, the nonce or the security token is missing or not valid.
        """
        headers = request.headers
        matched = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
        if not matched:
            raise ServiceError("IncompleteSignature", f"The Authorization header is missing or not {_ALGORITHM}.")
        for name in ("x-acs-date", "x-acs-signature-nonce", "x-acs-content-sha256"):
            if not headers.get(name):
                raise missing_parameter(name)
        key = self._access_keys.get(matched["key"])
        if key is None:
            raise ServiceError("InvalidAccessKeyId.NotFound", "Specified access key is not found.")
        self._check_date(headers["x-acs-date"], now)
        self._check_signature(request, matched["headers"].split(";"), matched["signature"], key)
        self._check_token(headers.get("x-acs-security-token", ""), key)
        self._check_nonce(f"{key.id}/{headers['x-acs-signature-nonce']}", now)
        return key.caller

    def _check_date(self, text: str, now: datetime) -> None:
        try:
            date = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
        except ValueError:
            raise ServiceError("InvalidTimeStamp.Format", "Specified time stamp or date value is invalid.") from None
        if abs(now - date) > _VALIDITY:
            raise ServiceError("InvalidTimeStamp.Expired", "Specified time stamp or date value is expired.")

    def _check_signature(
        self, request: ReceivedRequest, signed: list[str], signature: str, key: SimulatedAccessKey
    ) -> None:
        payload = hashlib.sha256(request.body).hexdigest()
        if request.headers["x-acs-content-sha256"] != payload:
            raise _mismatch("the body's hash differs from x-acs-content-sha256")
        if unsigned := [name for name in _MUST_BE_SIGNED if name in request.headers and name not in signed]:
            raise _mismatch(f"the header {unsigned[0]} is not signed")
        lines = [f"{name}:{request.headers.get(name, '').strip()}" for name in signed]
        canonical = "\n".join(
            (request.method, request.path, canonical_query(request.query), *lines, "", ";".join(signed), payload)
        )
        text = f"{_ALGORITHM}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        expected = hmac.new(key.secret.encode(), text.encode(), hashlib.sha256).hexdigest()
        if not hmac.compare_digest(expected, signature):
            raise _mismatch(f"server string to sign is: {text}")

    def _check_token(self, token: str, key: SimulatedAccessKey) -> None:
        if key.security_token and not token:
            raise ServiceError("MissingSecurityToken", "SecurityToken is mandatory for this action.")
        if token != key.security_token:
            raise ServiceError("InvalidSecurityToken.Malformed", "Specified SecurityToken is malformed.")

    def _check_nonce(self, nonce: str, now: datetime) -> None:
        if len(self._nonces) > 10_000:
            self._nonces = {known: used for known, used in self._nonces.items() if now - used <= 2 * _VALIDITY}
        if nonce in self._nonces:
            raise ServiceError("SignatureNonceUsed", "Specified signature nonce was used already.")
        self._nonces[nonce] = now


def _mismatch(reason: str) -> ServiceError:
    return ServiceError("SignatureDoesNotMatch", f"Specified signature is not matched with our calculation: {reason}")
