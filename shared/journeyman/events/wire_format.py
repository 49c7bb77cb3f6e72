"""Our own wire format, version 1: what the forwarder, the queue adapters and schedules send.

::

    {"version": "1", "source": "forwarder", "id": "…", "time": "2026-11-21T09:00:00Z", "cluster": "dev", "reason": "…",
     "step": "provision", "counts": {"unschedulable": 10}, "oldestPendingTime": "…"}     a step is provision if not given
    {…, "source": "wake", "step": "terminate", "at": "…"}             a step's wake-up; `at`, if given, is when it is due
    {…, "source": "schedule", "step": "consolidate"}                  a window opens
    {…, "source": "sweep", "cluster": "*"}                            the minute sweep of every cluster
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from journeyman.core.plan import Step
from journeyman.events.decoding import EVERY_CLUSTER, Name, Time, decode
from journeyman.ports import Trigger

DEFAULT_REASONS: Mapping[str, str] = {
    "forwarder": "pods are pending",
    "wake": "asked to look again",
    "schedule": "the schedule says so",
    "sweep": "the schedule says so",
}

Count = Annotated[int, msgspec.Meta(ge=0)]


class Target(NamedTuple):
    """What is to run, and for which cluster."""

    cluster: str
    step: Step


class _Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What every message of ours carries."""

    version: Literal["1"]
    id: Name
    time: Time
    reason: str = ""


class _Forwarded(_Message, frozen=True):
    """The forwarder: pods wait for a node, or nodes or claims came, changed or went."""

    cluster: Name
    step: Step = Step.PROVISION
    counts: dict[str, Count] = {}
    oldest_pending_time: Time | None = None


class _WakeUp(_Message, frozen=True):
    """A step wants to look again; `at` missing means now."""

    cluster: Name
    step: Step
    at: Time | None = None


class _Scheduled(_Message, frozen=True):
    """A schedule fired; without a cluster it means every one."""

    cluster: Name = EVERY_CLUSTER
    step: Step = Step.SWEEP


def _forwarded(payload: Mapping[str, Any]) -> Trigger:
    message = decode(_Forwarded, payload, what="forwarder message")
    details = {"counts": message.counts, "oldest_pending_time": message.oldest_pending_time}
    return _trigger(message, "forwarder", Target(message.cluster, message.step), details)


def _wake_up(payload: Mapping[str, Any]) -> Trigger:
    message = decode(_WakeUp, payload, what="wake-up message")
    return _trigger(message, "wake", Target(message.cluster, message.step), {"at": message.at})


def _scheduled(source: str) -> Callable[[Mapping[str, Any]], Trigger]:
    def parse(payload: Mapping[str, Any]) -> Trigger:
        message = decode(_Scheduled, payload, what=f"{source} message")
        return _trigger(message, source, Target(message.cluster, message.step), {})

    return parse


def _trigger(message: _Message, source: str, target: Target, details: Mapping[str, Any]) -> Trigger:
    return Trigger(
        id=message.id,
        cluster=target.cluster,
        step=target.step,
        source=source,
        reason=message.reason or DEFAULT_REASONS[source],
        time=message.time,
        details={name: value for name, value in details.items() if value is not None},
    )


PARSERS: Mapping[str, Callable[[Mapping[str, Any]], Trigger]] = {
    "forwarder": _forwarded,
    "wake": _wake_up,
    "schedule": _scheduled("schedule"),
    "sweep": _scheduled("sweep"),
}
"""Parser by `source`."""
