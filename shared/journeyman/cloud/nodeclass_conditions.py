"""The conditions of a NodeClass's status, and its parts: each a field with its condition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from journeyman.core.api.conditions import READY, ConditionSet
from journeyman.core.api.objects import Condition, ObjectMeta
from journeyman.errors import CloudProviderError


class StatusPart(Struct, frozen=True, kw_only=True):
    """A field of the status with its condition, which is True if `reason` is empty; "" means no condition or no field."""

    condition: str
    field: str
    value: Any
    reason: str = ""
    message: str = ""


def selected(condition: str, field: str, value: Any, reason: str, message: str) -> StatusPart:
    """Return the part for a selector's matches; its condition is False, with this reason and message, if there are none."""
    if value:
        return StatusPart(condition=condition, field=field, value=value)
    return StatusPart(condition=condition, field=field, value=value, reason=reason, message=message)


def found_or_refused(condition: str, find: Callable[[], StatusPart]) -> StatusPart:
    """Return the part that `find` returns; if the cloud refuses its request, the condition is False and says what to do.

    The field of the status then stays as it is.

    Raises:
        CloudProviderError: The cloud did not respond, and may next time.
    """
    try:
        return find()
    except CloudProviderError as error:
        if error.retryable:
            raise
        return StatusPart(condition=condition, field="", value=None, reason="RequestRefused", message=error.message)


def unexamined(conditions: ConditionSet, now: datetime, why: str) -> ConditionSet:
    """Return the conditions; those that an earlier generation of the spec left are Unknown, with this reason's message."""
    outdated = (c.type for c in conditions.conditions if c.observed_generation != conditions.generation)
    for type_ in sorted(set(outdated) - {READY}):
        conditions = conditions.set_unknown(type_, now, "NotExamined", why)
    return conditions


def conditions_of(raw: Mapping[str, Any], dependents: tuple[str, ...]) -> ConditionSet:
    """Return the conditions of a NodeClass, which may be invalid, at its current generation; `dependents` decide on Ready."""
    metadata = msgspec.convert(raw.get("metadata") or {}, ObjectMeta)
    return ConditionSet(
        conditions=msgspec.convert((raw.get("status") or {}).get("conditions") or (), tuple[Condition, ...]),
        dependents=dependents,
        generation=metadata.generation,
        created=metadata.creation_timestamp,
        deleting=metadata.deletion_timestamp is not None,
    )
