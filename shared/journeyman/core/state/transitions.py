"""A condition took another status: the Event that says it, the same for every kind.

Restates: awslabs/operatorpkg status/controller.go `reconcileFound`, as karpenter pkg/controllers/controllers.go sets it up.
Differs: told by who writes the condition, with the write, instead of by a watcher that may miss changes; a condition that
is set for the first time was Unknown before.
"""

from __future__ import annotations

from collections.abc import Iterator

from journeyman.core.api.objects import Condition, condition_of
from journeyman.core.plan import Event, ObjectRef


def changes(
    before: tuple[Condition, ...], after: tuple[Condition, ...]
) -> Iterator[tuple[Condition, Condition | None]]:
    """Conditions that took another status, each with what it was."""
    for condition in after:
        was = condition_of(before, condition.type)
        if condition.status != (was.status if was is not None else "Unknown"):
            yield condition, was


def transitions(ref: ObjectRef, before: tuple[Condition, ...], after: tuple[Condition, ...]) -> tuple[Event, ...]:
    """One Event for each condition whose status is another one.

    Args:
        ref: The object they are of.
        before: Its conditions as they were read.
        after: Its conditions as they are written.
    """
    return tuple(
        Event(
            ref=ref,
            reason=condition.type,
            message=_text(condition, was.status if was is not None else "Unknown"),
            key=condition.status,
        )
        for condition, was in changes(before, after)
    )


def _text(condition: Condition, was: str) -> str:
    text = f"Status condition transitioned, Type: {condition.type}, Status: {was} -> {condition.status}"
    text += f", Reason: {condition.reason}"
    return f"{text}, Message: {condition.message}" if condition.message else text
