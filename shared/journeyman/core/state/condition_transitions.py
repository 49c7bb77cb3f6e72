"""Events and metrics of a status condition that changes its status, the same for every kind.

Restates: awslabs/operatorpkg status/controller.go `reconcileFound`, as karpenter pkg/controllers/controllers.go sets it up.
Differs: recorded with the write of the condition instead of by a watcher that may miss changes; a condition that is set for
the first time was Unknown before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from msgspec.structs import replace

from journeyman.core.api.metrics import OBJECT_LABELS, object_label
from journeyman.core.api.objects import Condition, condition_of
from journeyman.core.plan import Chain, Event, ObjectRef, Observation


def changed_conditions(
    before: tuple[Condition, ...], after: tuple[Condition, ...]
) -> Iterator[tuple[Condition, Condition | None]]:
    """Conditions that took another status, each with what it was."""
    for condition in after:
        was = condition_of(before, condition.type)
        if condition.status != (was.status if was is not None else "Unknown"):
            yield condition, was


def transition_events(ref: ObjectRef, before: tuple[Condition, ...], after: tuple[Condition, ...]) -> tuple[Event, ...]:
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
        for condition, was in changed_conditions(before, after)
    )


def _text(condition: Condition, was: str) -> str:
    text = f"Status condition transitioned, Type: {condition.type}, Status: {was} -> {condition.status}"
    text += f", Reason: {condition.reason}"
    return f"{text}, Message: {condition.message}" if condition.message else text


def transition_metrics(
    ref: ObjectRef, labels: Mapping[str, str], before: tuple[Condition, ...], after: tuple[Condition, ...]
) -> tuple[Observation, ...]:
    """How often conditions took which status, and how long they had had the one before.

    Args:
        ref: The object they are of; its kind is one of `OBJECT_LABELS`.
        labels: The object's Kubernetes labels.
        before: Its conditions as they were read.
        after: Its conditions as they are written.
    """
    kind = ref.resource.kind.lower()
    own = object_labels(kind, labels)
    samples: list[Observation] = []
    for condition, was in changed_conditions(before, after):
        counted = {"type": condition.type, "status": condition.status, "reason": condition.reason, **own}
        samples.append(Observation(name=f"operator_{kind}_status_condition_transitions_total", labels=counted))
        if was is None or was.last_transition_time is None or condition.last_transition_time is None:
            continue
        samples.append(
            Observation(
                name=f"operator_{kind}_status_condition_transition_seconds",
                value=max((condition.last_transition_time - was.last_transition_time).total_seconds(), 0.0),
                labels={"type": was.type, "status": was.status, **own},
                kind="histogram",
            )
        )
    return tuple(samples)


def with_transitions(
    chain: Chain,
    ref: ObjectRef,
    labels: Mapping[str, str],
    before: tuple[Condition, ...],
    after: tuple[Condition, ...],
) -> Chain:
    """The chain that writes these conditions, with the Events and samples of what changes by it."""
    return replace(
        chain,
        events=chain.events + transition_events(ref, before, after),
        observations=chain.observations + transition_metrics(ref, labels, before, after),
    )


def termination_metrics(
    kind: str, labels: Mapping[str, str], since: datetime | None, now: datetime
) -> tuple[Observation, ...]:
    """How long the deletion of an object took that is let go now; nothing if it is in none.

    Args:
        kind: In lower case, one of `OBJECT_LABELS`.
        labels: The object's Kubernetes labels.
        since: Its deletionTimestamp.
        now: The time.
    """
    if since is None:
        return ()
    name, took = f"operator_{kind}_termination_duration_seconds", max((now - since).total_seconds(), 0.0)
    return (Observation(name=name, value=took, labels=object_labels(kind, labels), kind="histogram"),)


def object_labels(kind: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Those of an object's Kubernetes labels that metrics of its kind carry, as metrics call them."""
    return {object_label(key): labels.get(key, "") for key in OBJECT_LABELS[kind]}
