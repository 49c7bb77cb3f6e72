"""Parses Alibaba Cloud's events: those of ECS, of Function Compute's timers, and the messages of SMQ queues.

ECS events come as CloudEvents of EventBridge, or in CloudMonitor's older shape, which is changed into the same envelope. They
name no cluster, so the trigger is for every registered cluster, as on AWS. Events without effect on a node, such as a
maintenance that was canceled, get the kind `no_op`.

::

    {"specversion": "1.0", "source": "acs.ecs", "type": "ecs:Instance:StateChange", "data": {…}, …}       an ECS event
    {"specversion": "1.0", "type": "mns:Queue:SendMessage", "data": {"messageBody": "…"}, …}   a message of an SMQ queue
    {"product": "ECS", "name": "Instance:StateChange", "content": {…}, …}                       CloudMonitor's ECS event
    {"triggerTime": "…", "triggerName": "sweep", "payload": "…"}       a timer; without a payload the sweep of each minute
    {"TopicName": "…", "Message": "…", "MessageId": "…", …}                                  a message of an SMQ topic
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from journeyman.core.lifecycle.interruption import InterruptionKind
from journeyman.events import wire_format
from journeyman.events.eventbridge import FORWARDER
from journeyman.events.wire_format import Name, Time, decode, malformed
from journeyman.ports import EVERY_CLUSTER, Interruption, Trigger

Payload = Mapping[str, Any]
Parser = Callable[[Payload], Trigger]

QUEUE_MESSAGE: Final = "mns:Queue:SendMessage"
"""The type of the CloudEvents that hold messages of an SMQ queue."""

STATE_KINDS: Final[Mapping[str, InterruptionKind]] = {
    "Stopping": InterruptionKind.INSTANCE_STOPPED,
    "Stopped": InterruptionKind.INSTANCE_STOPPED,
    "Deleted": InterruptionKind.INSTANCE_TERMINATED,
}
"""Kind by the new state of an instance; the other states have no effect."""

_UPCOMING: Final = frozenset({"Scheduled", "Inquiring", "Executing"})
"""The statuses of a maintenance or failure that is yet to happen, or is happening. Later ones change nothing more by themselves."""

MAINTENANCE_KINDS: Final[Mapping[str, InterruptionKind]] = {
    "ecs:Instance:SystemMaintenance.": InterruptionKind.SCHEDULED_CHANGE,
    "ecs:Instance:SystemFailure.": InterruptionKind.SYSTEM_STATUS,
    "ecs:Instance:InstanceFailure.": InterruptionKind.INSTANCE_STATUS,
}
"""Kind by the start of the event's type, which names the operation after it, such as `Reboot`: the host is maintained, the host
failed, or the instance's operating system failed."""

_HARMLESS: Final = frozenset({"ecs:Instance:SystemMaintenance.CleanReleasedDisks"})
"""Maintenance that the instance does not notice."""


class _CloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an EventBridge event; EventBridge adds those whose names start with `aliyun`."""

    id: Name
    source: Name
    type: Name
    time: Time
    data: dict[str, Any] = {}
    subject: str = ""
    aliyunaccountid: str = ""
    aliyunregionid: str = ""


class _InstanceData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The data of events about one instance, as far as they have effects."""

    instance_id: str = ""
    resource_id: str = ""
    state: str = ""
    event_status: str = ""


class _CloudMonitorEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An event in CloudMonitor's shape. The names of maintenance events end in their status."""

    id: Name
    name: Name
    event_time: Name
    content: dict[str, Any] = {}
    resource_id: str = ""
    user_id: str = ""
    region_id: str = ""


class _TimerEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The event of a timer trigger."""

    trigger_time: Time
    trigger_name: Name
    payload: str = ""


class _TopicMessage(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """A message that an SMQ topic sent to the function."""

    message: str
    message_id: str = ""


def parser_of(payload: Payload) -> Parser | None:
    """Return the function that parses the payload, by its shape; None if it is not one of Alibaba Cloud's."""
    if "specversion" in payload:
        return parse_queue_message if payload.get("type") == QUEUE_MESSAGE else parse_cloud_event
    if "triggerTime" in payload:
        return parse_timer_event
    if "product" in payload:
        return parse_cloud_monitor_event
    return _parse_topic_message if "TopicName" in payload else None


def parse_cloud_event(payload: Payload) -> Trigger:
    """Return the trigger in an EventBridge event. Raises MalformedEventError if it does not parse, or names no instance."""
    return _trigger_of(decode(_CloudEvent, payload, what="EventBridge event"), payload)


def parse_cloud_monitor_event(payload: Payload) -> Trigger:
    """Return the trigger in an event of CloudMonitor. Raises MalformedEventError if it does not parse, or names no instance."""
    event = decode(_CloudMonitorEvent, payload, what="CloudMonitor event")
    try:
        time = datetime.strptime(event.event_time, "%Y%m%dT%H%M%S.%f%z")
    except ValueError as error:
        raise malformed(f"cannot read the CloudMonitor event: {error} - at `$.eventTime`", payload) from error
    name, status = event.name, ""
    if name.count(":") > 1:
        name, _, status = name.rpartition(":")
    product = str(payload["product"]).lower()
    envelope = _CloudEvent(
        id=event.id,
        source=f"acs.{product}",
        type=f"{product}:{name}",
        time=time,
        data={**event.content, "eventStatus": status or event.content.get("eventStatus", "")},
        subject=event.resource_id,
        aliyunaccountid=event.user_id,
        aliyunregionid=event.region_id,
    )
    return _trigger_of(envelope, payload)


def parse_timer_event(payload: Payload) -> Trigger:
    """Return the trigger in a timer's event: the message in its payload, or the sweep of each minute without a payload.

    Raises:
        MalformedEventError: The event or its payload does not parse.
    """
    event = decode(_TimerEvent, payload, what="timer event")
    return wire_format.parse_timer(event.trigger_name, event.trigger_time, event.payload, what="payload")


def parse_queue_message(payload: Payload) -> Trigger:
    """Return the trigger in a message of an SMQ queue: one of our own messages, or an ECS event that a rule sent there.

    Raises:
        MalformedEventError: The message does not parse.
    """
    from journeyman.events import parse_body  # noqa: PLC0415 - the package imports this module for Alibaba Cloud's events only

    body = body_of(payload)
    if not body:
        raise malformed("cannot read the SMQ message: no text in `data.messageBody`", payload)
    return parse_body(body, what="SMQ message", message_id=message_id_of(payload))


def body_of(item: Payload) -> str:
    """Return the body of a message in a CloudEvent, decoded if EventBridge did not decode it; empty if it has no text."""
    data = item.get("data")
    body = data.get("messageBody") if isinstance(data, Mapping) else None
    if not isinstance(body, str):
        return msgspec.json.encode(body).decode() if isinstance(body, Mapping) else ""
    if body.lstrip().startswith("{"):
        return body
    try:
        return base64.b64decode(body, validate=True).decode()
    except (binascii.Error, ValueError):
        return body


def message_id_of(item: Payload) -> str:
    """Return the id of a message in a CloudEvent; that of the CloudEvent if its data has none."""
    data = item.get("data")
    id_ = data.get("messageId") if isinstance(data, Mapping) else None
    return str(id_ or item.get("id", ""))[:253]


def _parse_topic_message(payload: Payload) -> Trigger:
    from journeyman.events import parse_body  # noqa: PLC0415 - as above

    message = decode(_TopicMessage, payload, what="message of an SMQ topic")
    return parse_body(message.message, what="SMQ message", message_id=message.message_id)


def _trigger_of(event: _CloudEvent, payload: Payload) -> Trigger:
    if event.source == FORWARDER:
        return wire_format.PARSERS["forwarder"](event.data)
    kind = InterruptionKind.NO_OP
    instance_ids: tuple[str, ...] = ()
    if event.source == "acs.ecs" and event.type.startswith("ecs:Instance:"):
        data = decode(_InstanceData, event.data, what=event.type)
        kind, instance_ids = _kind_of(event.type, data), _instance_of(event, data)
        if kind is not InterruptionKind.NO_OP and not instance_ids:
            raise malformed(
                f"cannot read the {event.type}: no instance id in `data.instanceId`, `data.resourceId` or `subject`",
                payload,
            )
    return Interruption(
        id=event.id,
        cluster=EVERY_CLUSTER,
        reason=event.type,
        time=event.time,
        kind=kind,
        instance_ids=instance_ids,
        account=event.aliyunaccountid,
        region=event.aliyunregionid,
    )


def _kind_of(event_type: str, data: _InstanceData) -> InterruptionKind:
    if event_type == "ecs:Instance:PreemptibleInstanceInterruption":
        return InterruptionKind.SPOT_INTERRUPTED
    if event_type == "ecs:Instance:StateChange":
        return STATE_KINDS.get(data.state, InterruptionKind.NO_OP)
    kinds = (kind for start, kind in MAINTENANCE_KINDS.items() if event_type.startswith(start))
    kind = next(kinds, InterruptionKind.NO_OP)
    is_upcoming = data.event_status in _UPCOMING and event_type not in _HARMLESS
    return kind if is_upcoming else InterruptionKind.NO_OP


def _instance_of(event: _CloudEvent, data: _InstanceData) -> tuple[str, ...]:
    """Return the id of the event's instance; empty if none of the fields that may have it does."""
    for text in (data.instance_id, data.resource_id, event.subject):
        id_ = text.rpartition("/")[2]
        if id_.startswith("i-"):
            return (id_,)
    return ()
