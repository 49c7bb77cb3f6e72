"""EventBridge events about our instances: Spot warnings, rebalance, state changes, health, reservations. And the forwarder's.

None of the former names a cluster, so the trigger is for every registered cluster and each looks whether the
instance is its own. What Karpenter would ignore becomes kind `no_op`: acknowledged, and nothing runs.

Restates: karpenter-provider-aws pkg/controllers/interruption/messages (`Parser`, `Kind` of each event).
Differs: one trigger per event holds all instances of a health event; the kinds are the metric reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from journeyman.core.plan import Step
from journeyman.events import wire_format
from journeyman.events.decoding import EVERY_CLUSTER, Name, Time, decode
from journeyman.ports import Trigger

NO_OP = "no_op"
FORWARDER = "journeyman.forwarder"
"""The source of events whose detail is in our own wire format."""

STATE_KINDS: Mapping[str, str] = {
    "stopping": "instance_stopped",
    "stopped": "instance_stopped",
    "shutting-down": "instance_terminated",
    "terminated": "instance_terminated",
}


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """What EventBridge puts around every event."""

    id: Name
    source: Name
    detail_type: Name = msgspec.field(name="detail-type")
    time: Time
    detail: dict[str, Any]
    account: str = ""
    region: str = ""


class _InstanceDetail(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The detail of events about one instance; the fields besides its id belong to some of them only."""

    instance_id: Name
    state: str = ""
    instance_action: str = ""
    instance_termination_time: str = ""


class _HealthEntity(msgspec.Struct, frozen=True, rename="camel"):
    entity_value: str = ""


class _HealthDetail(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The detail of an AWS Health event; public ones carry no entities."""

    service: str
    event_type_category: str
    event_type_code: str = ""
    affected_entities: tuple[_HealthEntity, ...] = ()


Parsed = tuple[str, tuple[str, ...], Mapping[str, str]]
"""Kind, instance ids (sorted), and facts worth keeping."""


def _about_one(kind: str) -> Callable[[_InstanceDetail], Parsed]:
    def parse(detail: _InstanceDetail) -> Parsed:
        facts = {"action": detail.instance_action, "termination_time": detail.instance_termination_time}
        return kind, (detail.instance_id,), {name: value for name, value in facts.items() if value}

    return parse


def _state_change(detail: _InstanceDetail) -> Parsed:
    state = detail.state.lower()
    return STATE_KINDS.get(state, NO_OP), (detail.instance_id,), {"state": state}


def _health(detail: _HealthDetail) -> Parsed:
    instances = tuple(sorted({e.entity_value for e in detail.affected_entities if e.entity_value.startswith("i-")}))
    ours = detail.service == "EC2" and detail.event_type_category == "scheduledChange" and bool(instances)
    return ("scheduled_change" if ours else NO_OP), instances, {"event_type_code": detail.event_type_code}


PARSERS: Mapping[tuple[str, str], tuple[str, type[Any], Callable[[Any], Parsed]]] = {
    ("aws.ec2", "EC2 Spot Instance Interruption Warning"): (
        "spot-interruption",
        _InstanceDetail,
        _about_one("spot_interrupted"),
    ),
    ("aws.ec2", "EC2 Instance Rebalance Recommendation"): (
        "rebalance-recommendation",
        _InstanceDetail,
        _about_one("rebalance_recommendation"),
    ),
    ("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning"): (
        "capacity-reservation-interruption",
        _InstanceDetail,
        _about_one("capacity_reservation_interrupted"),
    ),
    ("aws.ec2", "EC2 Instance State-change Notification"): ("state-change", _InstanceDetail, _state_change),
    ("aws.health", "AWS Health Event"): ("health", _HealthDetail, _health),
}
"""By source and detail-type: `Trigger.source`, what the detail decodes to, and its parser."""


def parse(payload: Mapping[str, Any]) -> Trigger:
    """The trigger of one EventBridge event.

    Raises:
        MalformedEventError: The envelope, or the detail of an event we know, cannot be read.
    """
    envelope = decode(_Envelope, payload, what="EventBridge event")
    if (envelope.source, envelope.detail_type) == ("aws.events", "Scheduled Event"):
        return _scheduled(envelope)
    if envelope.source == FORWARDER:
        return wire_format.PARSERS["forwarder"](envelope.detail)
    known = PARSERS.get((envelope.source, envelope.detail_type))
    if known is None:
        return _interruption(envelope, "eventbridge", (NO_OP, (), {}))
    source, detail_type, parser = known
    return _interruption(envelope, source, parser(decode(detail_type, envelope.detail, what=envelope.detail_type)))


def _interruption(envelope: _Envelope, source: str, parsed: Parsed) -> Trigger:
    kind, instance_ids, facts = parsed
    return Trigger(
        id=envelope.id,
        cluster=EVERY_CLUSTER,
        step=Step.INTERRUPT,
        source=source,
        reason=envelope.detail_type,
        time=envelope.time,
        details={
            "instance_ids": list(instance_ids),
            "kind": kind,
            "event_time": envelope.time,
            "account": envelope.account,
            "region": envelope.region,
            **facts,
        },
    )


def _scheduled(envelope: _Envelope) -> Trigger:
    """A plain scheduled rule, for those who sweep with one instead of EventBridge Scheduler."""
    return Trigger(
        id=envelope.id,
        cluster=EVERY_CLUSTER,
        step=Step.SWEEP,
        source="sweep",
        reason=envelope.detail_type,
        time=envelope.time,
    )
