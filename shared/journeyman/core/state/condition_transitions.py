"""Events and metrics of status condition transitions, the same for every kind.

Restates: awslabs/operatorpkg status/controller.go `reconcileFound`, as karpenter pkg/controllers/controllers.go sets it up.
Differs: they are recorded with the write of the condition; Karpenter watches objects and may miss a transition. A condition
that is set for the first time was Unknown before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from msgspec.structs import replace

from journeyman.core.api.metrics import OBJECT_LABELS, OPTIONAL_LABELS, object_label
from journeyman.core.api.objects import Condition, condition_of
from journeyman.core.plan import Chain, Event, ObjectRef, Observation


def changed_conditions(
    before: tuple[Condition, ...], after: tuple[Condition, ...]
) -> Iterator[tuple[Condition, Condition | None]]:
    """Yield each condition whose status changed, and the condition before; None if it is new."""
    for condition in after:
        was = condition_of(before, condition.type)
        if condition.status != (was.status if was is not None else "Unknown"):
            yield condition, was


def transition_events(ref: ObjectRef, before: tuple[Condition, ...], after: tuple[Condition, ...]) -> tuple[Event, ...]:
    """Return one Event for each condition whose status changed.

    Args:
        ref: The object that has the conditions.
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
    """Return a counter sample for each transition, and the seconds that the condition had its previous status.

    Args:
        ref: The object that has the conditions; its kind is one of `OBJECT_LABELS`.
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
    """Return the chain, which writes `after`, with the Events and metrics of the transitions."""
    return replace(
        chain,
        events=chain.events + transition_events(ref, before, after),
        observations=chain.observations + transition_metrics(ref, labels, before, after),
    )


def termination_metrics(
    kind: str, labels: Mapping[str, str], since: datetime | None, now: datetime
) -> tuple[Observation, ...]:
    """Return how long the deletion of an object took whose finalizer is removed now; empty if it is not being deleted.

    Args:
        kind: In lower case, one of `OBJECT_LABELS`.
        labels: The object's Kubernetes labels.
        since: Its deletionTimestamp.
        now: When the finalizer is removed.
    """
    if since is None:
        return ()
    name, took = f"operator_{kind}_termination_duration_seconds", max((now - since).total_seconds(), 0.0)
    return (Observation(name=name, value=took, labels=object_labels(kind, labels), kind="histogram"),)


def object_labels(kind: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the Kubernetes labels that metrics of this kind have, by metric label name; empty values for missing ones."""
    return {
        object_label(key): labels.get(key, "")
        for key in OBJECT_LABELS[kind]
        if key in labels or key not in OPTIONAL_LABELS
    }
