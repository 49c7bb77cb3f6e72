"""Decodes the encoded messages of refused EC2 requests, if the function's role may do so.

EC2 encodes why it refused a request; only a caller with sts:DecodeAuthorizationMessage can read it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from journeyman.cloud.aws.aws_errors import translated
from journeyman.cloud.aws.aws_settings import Clients
from journeyman.errors import CloudProviderError

_ENCODED: Final = re.compile(r"Encoded authorization failure message:\s*([A-Za-z0-9_-]+)")
_MAX_DECODED: Final = 64  # messages that a process keeps


class AuthorizationMessages:
    """Reads encoded messages. Each is decoded once; after a refusal the process does not ask again."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._decoded: dict[str, str] = {}
        self._is_refused = False

    def readable(self, text: str) -> str:
        """Return the text with each encoded message decoded, or with the command that decodes it."""
        return _ENCODED.sub(lambda found: self._read(found.group(1)), text)

    def _read(self, encoded: str) -> str:
        if encoded in self._decoded:
            return self._decoded[encoded]
        command = f"read it with: aws sts decode-authorization-message --encoded-message {encoded}"
        if self._is_refused:
            return command
        try:
            with translated("sts:DecodeAuthorizationMessage"):
                answer = self._clients.sts.decode_authorization_message(EncodedMessage=encoded)
        except CloudProviderError as error:
            self._is_refused = not error.retryable
            return command
        if len(self._decoded) >= _MAX_DECODED:
            self._decoded.clear()
        self._decoded[encoded] = _in_words(str(answer.get("DecodedMessage") or ""))
        return self._decoded[encoded]


def _in_words(decoded: str) -> str:
    """Return which principal may not do what to which resource; the message itself if it has another form."""
    try:
        message: Mapping[str, Any] = json.loads(decoded)
        context = message["context"]
        principal = context["principal"].get("arn") or context["principal"].get("id", "")
        verb = "a statement denies" if message.get("explicitDeny") else "no statement allows"
        return f"{verb} {principal} {context['action']} on {context['resource']}"
    except (AttributeError, KeyError, TypeError, ValueError):
        return decoded
