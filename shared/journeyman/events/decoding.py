"""Untrusted JSON in, typed values out, and one kind of error in between."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec

from journeyman.errors import MalformedEventError

T = TypeVar("T")

Time = Annotated[datetime, msgspec.Meta(tz=True)]
"""A moment with its offset; a naive time would mean a different moment on every machine."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
"""A text that must not be empty."""


def decode(type_: type[T], payload: Mapping[str, Any], *, what: str) -> T:
    """The payload as `type_`; unknown fields are ignored, so that a sender may be newer than its reader.

    Args:
        type_: A msgspec Struct.
        payload: Parsed JSON.
        what: The message in a person's words, for the error: "forwarder message", "Spot interruption warning".

    Raises:
        MalformedEventError: A field is missing or has the wrong type; it is named by its path.
    """
    try:
        return msgspec.convert(payload, type_)
    except msgspec.ValidationError as error:
        raise malformed(f"cannot read the {what}: {error}", payload) from error


def decode_json(text: str | bytes, *, what: str, which: str) -> Mapping[str, Any]:
    """The JSON object in a message body.

    Raises:
        MalformedEventError: It is not JSON, or not an object.
    """
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:  # ValidationError is one of its kinds
        raise MalformedEventError(f"cannot read the {what}: {error}", id=which, to_do=TO_DO) from error


TO_DO = "fix the sender, then redrive the message from the dead-letter queue or delete it; the sweep makes up for it"


def malformed(message: str, payload: Mapping[str, Any]) -> MalformedEventError:
    """The error, with what identifies the message and what to do about it."""
    return MalformedEventError(
        message, id=str(payload.get("id", "")), source=str(payload.get("source", "")), to_do=TO_DO
    )
