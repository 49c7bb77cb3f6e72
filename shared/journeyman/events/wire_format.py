"""Parses our own messages, version 1: what the forwarder, the queue adapters and schedules send.

::

    {"version": "1", "source": "forwarder", "id": "…", "time": "2026-11-21T09:00:00Z", "cluster": "dev", "reason": "…",
     "step": "provision", "counts": {"unschedulable": 10}, "oldestPendingTime": "…"}     the step is provision if missing
    {…, "source": "requeue", "step": "terminate", "at": "…"}          a step runs again; `at`, if given, is when it is due;
                                                                      `hops` counts the requeues of its chain
    {…, "source": "interruption", "kind": "spot_interrupted", "instanceIds": […]}
                                                                      an interruption again, for the one cluster that failed
    {…, "source": "schedule", "step": "consolidate"}                  a budget window opens
    {…, "source": "sweep", "cluster": "*"}                            the sweep of every cluster, each minute

`decode` and `decode_json` decode the JSON of untrusted senders; their errors say what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from journeyman.core.lifecycle.interruption import InterruptionKind
from journeyman.core.plan import Step
from journeyman.errors import MalformedEventError
from journeyman.ports import EVERY_CLUSTER, ClusterChanged, Interruption, RequeueDue, ScheduledRun, Trigger

T = TypeVar("T")

Time = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time with its offset; a naive time would mean another moment on each machine."""

_LONGEST_NAME: Final = 253

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=_LONGEST_NAME)]
"""A text that must not be empty."""


def decode(type_: type[T], payload: Mapping[str, Any], *, what: str) -> T:
    """Return the payload as `type_`; unknown fields are ignored, so that a sender may be newer than its reader.

    Args:
        type_: A msgspec Struct.
        payload: Parsed JSON.
        what: The kind of message, for the error: "forwarder message", "EventBridge event".

    Raises:
        MalformedEventError: A field is missing or has the wrong type; it is named by its path.
    """
    try:
        return msgspec.convert(payload, type_)
    except msgspec.ValidationError as error:
        raise malformed(f"cannot read the {what}: {error}", payload) from error


def decode_json(text: str | bytes, *, what: str, message_id: str) -> Mapping[str, Any]:
    """Return the JSON object in a message body; `what` and `message_id` name the message in the error.

    Raises:
        MalformedEventError: It is not JSON, not an object, not Unicode, or nested too deeply.
    """
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except RecursionError as error:
        raise MalformedEventError(
            f"cannot read the {what}: JSON objects are nested too deeply", id=message_id, to_do=TO_DO
        ) from error
    except ValueError as error:  # msgspec's DecodeError and UnicodeError are subclasses
        raise MalformedEventError(f"cannot read the {what}: {error}", id=message_id, to_do=TO_DO) from error


TO_DO = "fix the sender, then redrive the message from the dead-letter queue or delete it; the sweep makes up for it"


def malformed(message: str, payload: Mapping[str, Any]) -> MalformedEventError:
    """Return the error, with the message's id and source, and what to do."""
    return MalformedEventError(message, id=_text(payload, "id"), source=_text(payload, "source"), to_do=TO_DO)


def _text(payload: Mapping[str, Any], field: str) -> str:
    """Return the start of a field that is a text, else nothing: a value of nested objects may be too deep to print."""
    value = payload.get(field)
    return value[:_LONGEST_NAME] if isinstance(value, str) else ""


Count = Annotated[int, msgspec.Meta(ge=0)]


class _Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The fields of every message."""

    version: Literal["1"]
    id: Name
    time: Time
    reason: str = ""


class _Forwarded(_Message, frozen=True):
    """A message of the forwarder: pods are unschedulable, or objects that it watches were added, changed or removed."""

    cluster: Name
    step: Step = Step.PROVISION
    counts: dict[str, Count] = {}
    oldest_pending_time: Time | None = None


class _Requeue(_Message, frozen=True):
    """A requeue message: the step runs again at `at`, or now if that is missing."""

    cluster: Name
    step: Step
    at: Time | None = None
    hops: Count = 0


class _Interruption(_Message, frozen=True):
    """An interruption whose instances' cluster is known."""

    cluster: Name
    kind: InterruptionKind
    instance_ids: tuple[Name, ...]
    account: str = ""
    region: str = ""


class _Scheduled(_Message, frozen=True):
    """A message of a schedule; without a cluster it is for every cluster."""

    cluster: Name = EVERY_CLUSTER
    step: Step = Step.SWEEP


def _forwarded(payload: Mapping[str, Any]) -> Trigger:
    message = decode(_Forwarded, payload, what="forwarder message")
    return ClusterChanged(
        id=message.id,
        cluster=message.cluster,
        reason=message.reason or "pods are pending",
        time=message.time,
        step=message.step,
        counts=message.counts,
        oldest_pending_time=message.oldest_pending_time,
    )


def _requeue(payload: Mapping[str, Any]) -> Trigger:
    message = decode(_Requeue, payload, what="requeue message")
    return RequeueDue(
        id=message.id,
        cluster=message.cluster,
        reason=message.reason or "a step requeued itself",
        time=message.time,
        step=message.step,
        at=message.at,
        hops=message.hops,
    )


def _interruption(payload: Mapping[str, Any]) -> Trigger:
    message = decode(_Interruption, payload, what="interruption message")
    return Interruption(
        id=message.id,
        cluster=message.cluster,
        reason=message.reason,
        time=message.time,
        kind=message.kind,
        instance_ids=message.instance_ids,
        account=message.account,
        region=message.region,
    )


def _scheduled(payload: Mapping[str, Any]) -> Trigger:
    message = decode(_Scheduled, payload, what="schedule's message")
    return ScheduledRun(
        id=message.id,
        cluster=message.cluster,
        reason=message.reason or "the schedule is due",
        time=message.time,
        step=message.step,
    )


PARSERS: Mapping[str, Callable[[Mapping[str, Any]], Trigger]] = {
    "forwarder": _forwarded,
    "requeue": _requeue,
    "interruption": _interruption,
    "schedule": _scheduled,
    "sweep": _scheduled,
}
"""Parser by `source`."""


def parse_timer(name: str, time: datetime, text: str, *, what: str) -> Trigger:
    """Return the trigger of a cloud's timer: the message in its text, or the sweep of each minute without a text.

    A timer's text is the same each time, so its message may lack version, source, id and time.

    Args:
        name: The timer's name.
        time: When it was due.
        text: The text that its event has.
        what: The cloud's name for the text, for the error: "payload".

    Raises:
        MalformedEventError: The text does not parse.
    """
    id_ = f"{name}-{time.isoformat()}"
    if not text.strip():
        return ScheduledRun(id=id_, cluster=EVERY_CLUSTER, reason="every minute", time=time, step=Step.SWEEP)
    given = decode_json(text, what=f"{what} of timer {name}", message_id=id_)
    message = {"version": "1", "source": "schedule", "id": id_, "time": time.isoformat(), **given}
    parser = PARSERS.get(message["source"]) if isinstance(message["source"], str) else None
    if parser is None:
        sources = ", ".join(sorted(PARSERS))
        raise malformed(f"cannot read the {what} of timer {name}: its source is none of {sources}", message)
    return parser(message)
