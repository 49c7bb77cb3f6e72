"""Parses EventBridge events: Spot interruption, rebalance, state change, health, capacity reservation; alarms; the forwarder's.

An alarm pauses disruption in every registered cluster whose NodePools listen to it. Events about instances name no cluster, so the trigger is for every registered cluster, and the runtime looks up by the
instances' tags which clusters have them. An event that Karpenter ignores gets the kind `no_op`: it is acknowledged, and no step
runs.

Restates: karpenter-provider-aws pkg/controllers/interruption/messages (`Parser`, `Kind` of each event).
Differs: one trigger per event holds all instances of a health event; the kinds are the metric reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from journeyman.core.lifecycle.interruption import InterruptionKind
from journeyman.core.plan import Step
from journeyman.events import wire_format
from journeyman.events.wire_format import Name, Time, decode
from journeyman.ports import EVERY_CLUSTER, AlarmChanged, Interruption, ScheduledRun, Trigger

FORWARDER = "journeyman.forwarder"
"""The source of events whose detail is a message of ours."""

STATE_KINDS: Mapping[str, InterruptionKind] = {
    "stopping": InterruptionKind.INSTANCE_STOPPED,
    "stopped": InterruptionKind.INSTANCE_STOPPED,
    "shutting-down": InterruptionKind.INSTANCE_TERMINATED,
    "terminated": InterruptionKind.INSTANCE_TERMINATED,
}


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of every EventBridge event."""

    id: Name
    source: Name
    detail_type: Name = msgspec.field(name="detail-type")
    time: Time
    detail: dict[str, Any]
    account: str = ""
    region: str = ""


class _InstanceDetail(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The detail of events about one instance; only state changes have a state."""

    instance_id: Name
    state: str = ""


class _OtherDetail(msgspec.Struct, frozen=True):
    """The detail of an event that starts no step."""


class _AlarmState(msgspec.Struct, frozen=True, kw_only=True):
    value: Name


class _AlarmDetail(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The detail of a state change of a CloudWatch alarm; its state is OK, ALARM or INSUFFICIENT_DATA."""

    alarm_name: Name
    state: _AlarmState


class _HealthEntity(msgspec.Struct, frozen=True, rename="camel"):
    entity_value: str = ""


class _HealthDetail(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The detail of an AWS Health event; public events name no entities."""

    service: str
    event_type_category: str
    affected_entities: tuple[_HealthEntity, ...] = ()


Parsed = tuple[InterruptionKind, tuple[str, ...]]
"""The kind of interruption, and the instances' ids, sorted."""


def _of_kind(kind: InterruptionKind) -> Callable[[_InstanceDetail], Parsed]:
    return lambda detail: (kind, (detail.instance_id,))


def _state_change(detail: _InstanceDetail) -> Parsed:
    return STATE_KINDS.get(detail.state.lower(), InterruptionKind.NO_OP), (detail.instance_id,)


def _health(detail: _HealthDetail) -> Parsed:
    instances = tuple(sorted({e.entity_value for e in detail.affected_entities if e.entity_value.startswith("i-")}))
    concerns_us = detail.service == "EC2" and detail.event_type_category == "scheduledChange" and bool(instances)
    return InterruptionKind.SCHEDULED_CHANGE if concerns_us else InterruptionKind.NO_OP, instances


PARSERS: Mapping[tuple[str, str], tuple[type[Any], Callable[[Any], Parsed]]] = {
    ("aws.ec2", "EC2 Spot Instance Interruption Warning"): (
        _InstanceDetail,
        _of_kind(InterruptionKind.SPOT_INTERRUPTED),
    ),
    ("aws.ec2", "EC2 Instance Rebalance Recommendation"): (
        _InstanceDetail,
        _of_kind(InterruptionKind.REBALANCE_RECOMMENDATION),
    ),
    ("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning"): (
        _InstanceDetail,
        _of_kind(InterruptionKind.CAPACITY_RESERVATION_INTERRUPTED),
    ),
    ("aws.ec2", "EC2 Instance State-change Notification"): (_InstanceDetail, _state_change),
    ("aws.health", "AWS Health Event"): (_HealthDetail, _health),
}
"""The type of the detail and the detail's parser, by source and detail-type."""


_IGNORED: tuple[type[Any], Callable[[Any], Parsed]] = (_OtherDetail, lambda _: (InterruptionKind.NO_OP, ()))


def parse(payload: Mapping[str, Any]) -> Trigger:
    """Return the trigger in one EventBridge event.

    Raises:
        MalformedEventError: The envelope, or the detail of an event in `PARSERS`, does not parse.
    """
    envelope = decode(_Envelope, payload, what="EventBridge event")
    if (envelope.source, envelope.detail_type) == ("aws.events", "Scheduled Event"):
        return _scheduled(envelope)
    if (envelope.source, envelope.detail_type) == ("aws.cloudwatch", "CloudWatch Alarm State Change"):
        return _alarm(envelope)
    if envelope.source == FORWARDER:
        return wire_format.PARSERS["forwarder"](envelope.detail)
    detail_type, parser = PARSERS.get((envelope.source, envelope.detail_type), _IGNORED)
    kind, instance_ids = parser(decode(detail_type, envelope.detail, what=envelope.detail_type))
    return Interruption(
        id=envelope.id,
        cluster=EVERY_CLUSTER,
        reason=envelope.detail_type,
        time=envelope.time,
        kind=kind,
        instance_ids=instance_ids,
        account=envelope.account,
        region=envelope.region,
    )


def _alarm(envelope: _Envelope) -> AlarmChanged:
    """Return the trigger of an alarm; an alarm without sufficient data is not firing."""
    detail = decode(_AlarmDetail, envelope.detail, what=envelope.detail_type)
    return AlarmChanged(
        id=envelope.id,
        cluster=EVERY_CLUSTER,
        reason=f"{envelope.detail_type}: {detail.alarm_name}",
        time=envelope.time,
        alarm=detail.alarm_name,
        is_firing=detail.state.value == "ALARM",
    )


def _scheduled(envelope: _Envelope) -> ScheduledRun:
    """Return the trigger of a scheduled rule, for deployments that sweep with a rule instead of EventBridge Scheduler."""
    return ScheduledRun(
        id=envelope.id, cluster=EVERY_CLUSTER, reason=envelope.detail_type, time=envelope.time, step=Step.SWEEP
    )
