"""Parses Huawei Cloud's events: those of FunctionGraph's timers, of the audit log (CTS), of SMN topics and of EventGrid.

The audit log records what happens to ECS servers: that a Spot server is about to be reclaimed, that someone deleted or stopped
one. Such a record, a trace, names the server by ECS's id and no cluster, so the trigger is for every registered cluster, as on AWS.
Traces without effect on a node, such as an operation that failed, get the kind `no_op`.

::

    {"trigger_type": "TIMER", "time": "…", "trigger_name": "sweep", "user_event": "…"}
                                                  a timer; without a user event the sweep of each minute
    {"cts": {"trace_name": "interruptServer", "resource_id": "…", "time": 1746327721000, …}}              a trace
    {"specversion": "1.0", "source": "HC.ECS", "type": "ECS:CloudTrace:SystemAction", "data": {…}, …}      a trace, by EventGrid
    {"record": [{"smn": {"message": "…", "message_id": "…", …}}], …}       messages of an SMN topic: a trace, an event of
                                                  ECS that Cloud Eye reports, or a message of ours

`items_of` divides an event that has several of these, because a parser returns one trigger.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, Final

import msgspec

from journeyman.core.lifecycle.interruption import InterruptionKind
from journeyman.events import wire_format
from journeyman.events.wire_format import Name, Time, decode, decode_json, malformed
from journeyman.ports import EVERY_CLUSTER, Interruption, Trigger

Payload = Mapping[str, Any]
Parser = Callable[[Payload], Trigger]

TRACE_KINDS: Final[Mapping[str, InterruptionKind]] = {
    "interruptServer": InterruptionKind.SPOT_INTERRUPTED,
    "deleteServer": InterruptionKind.INSTANCE_TERMINATED,
    "deleteServerV2": InterruptionKind.INSTANCE_TERMINATED,
    "deleteServerV21": InterruptionKind.INSTANCE_TERMINATED,
    "deleteVmByNative": InterruptionKind.INSTANCE_TERMINATED,
    "stopServer": InterruptionKind.INSTANCE_STOPPED,
}
"""Kind by the operation that a trace records; the others have no lasting effect. A server that reboots keeps its node."""

_SERVICE: Final = "ECS"
_EVENTGRID_SOURCE: Final = "HC."  # and the name of a cloud service
_SUCCEEDED_BELOW: Final = 400
_FAILED: Final = frozenset({"incident", "error"})
_FAILED_WITHOUT_CODE: Final = _FAILED | {"warning"}
"""A trace with the status `warning` failed too, unless its code says otherwise: `interruptServer` always has this status."""

_CLOUD_EYE_EVENT: Final = re.compile(
    r"(instance_(?:reboot|stop|migrate|redeploy)|localdisk_recovery|system_maintenance)_([a-z]+)"
)
"""The name of a scheduled event of ECS in Cloud Eye: the event's type and its state."""
_UPCOMING: Final = frozenset({"inquiring", "scheduled", "executing"})
"""The states of a scheduled event that is yet to happen, or is happening; `inquiring` waits for the user's consent."""

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_ID_FIELDS: Final = frozenset({"server_id", "serverId", "instance_id", "instanceId"})
_ID_LIST_FIELDS: Final = frozenset({"server_ids", "serverIds", "instance_ids", "instanceIds"})
_DEEPEST: Final = 6
_MOST_SERVERS: Final = 1000
"""ECS deletes or stops at most so many servers in one request."""
_LONGEST_ID: Final = 253


class _FgsTimerEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The event of a timer trigger."""

    time: Time
    trigger_name: Name
    user_event: str | None = None


class _SmnMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a topic."""

    message: str
    message_id: str = ""


class _SmnRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record of an SMN event."""

    smn: _SmnMessage


class _SmnEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The event of an SMN trigger."""

    record: tuple[_SmnRecord, ...]


class _EventGridEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an EventGrid event."""

    id: Name
    source: Name
    type: Name
    time: Any = None
    data: Any = None


class _Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A record of the audit log, as far as it has effects.

    Texts may be missing or null, and `request` and `response` may be an object or its JSON.
    """

    trace_name: Name
    trace_id: str | None = None
    service_type: str | None = None
    resource_type: str | None = None
    resource_id: str | None = None
    time: Any = None
    record_time: Any = None
    code: int | str | None = None
    trace_status: str | None = None
    trace_rating: str | None = None
    request: Any = None
    response: Any = None
    user: Any = None
    region: Any = None
    region_id: Any = None


class _CloudEyeNotice(msgspec.Struct, frozen=True, kw_only=True):
    """A notice of Cloud Eye about an event; a notice about a metric has the same fields."""

    namespace: str
    time: Any = None
    metric_name: str | None = None
    event_name: str | None = None
    alarm_id: str | None = None
    alarm_status: str | None = None
    dimension: str | None = None
    template_variable: dict[str, Any] | None = None


def items_of(event: object) -> list[Any]:
    """Return the parts of an event that have a trigger each: records of a topic, events of a list; mostly the event itself."""
    if isinstance(event, list):
        return list(event)
    if not isinstance(event, dict):
        return [event]
    events, records = event.get("events"), event.get("record")
    if isinstance(events, list) and "source" not in event:
        return list(events)
    if isinstance(records, list) and len(records) > 1:
        return [{**event, "record": [record]} for record in records]
    return [event]


def item_id(item: object) -> str:
    """Return the id of an item (`items_of`) that its sender gave it, at most 253 characters; empty if it has none."""
    if not isinstance(item, Mapping):
        return ""
    if item.get("trigger_type") == "TIMER":
        return f"{item.get('trigger_name', '')}-{item.get('time', '')}"[:_LONGEST_ID]
    records = item.get("record")
    record = records[0] if isinstance(records, list) and records else None
    places = ((_at(record, "smn"), "message_id"), (item.get("cts"), "trace_id"), (item, "id"))
    found = (_at(holder, name) for holder, name in places)
    return next((text[:_LONGEST_ID] for text in found if isinstance(text, str) and text), "")


def _at(holder: object, name: str) -> object:
    return holder.get(name) if isinstance(holder, Mapping) else None


def parser_of(payload: Payload) -> Parser | None:
    """Return the function that parses the payload, by its shape; None if it is not one of Huawei Cloud's."""
    if "cts" in payload:
        return parse_trace_event
    if "record" in payload:
        return parse_topic_event
    if payload.get("trigger_type") == "TIMER":
        return parse_timer_event
    is_event = "specversion" in payload and str(payload.get("source", "")).startswith(_EVENTGRID_SOURCE)
    return parse_cloud_event if is_event else None


def parse_timer_event(payload: Payload) -> Trigger:
    """Return the trigger in a timer's event: the message in its user event, or the sweep of each minute without one.

    Raises:
        MalformedEventError: The event or its user event does not parse.
    """
    event = decode(_FgsTimerEvent, payload, what="timer event")
    time = event.time.astimezone(timezone.utc)
    return wire_format.parse_timer(event.trigger_name, time, event.user_event or "", what="user event")


def parse_trace_event(payload: Payload) -> Trigger:
    """Return the trigger in the event of a CTS trigger. Raises MalformedEventError if it does not parse, or names no server."""
    trace = payload["cts"]
    if not isinstance(trace, Mapping):
        raise malformed("cannot read the CTS event: expected an object - at `$.cts`", payload)
    return _interruption_of(trace, payload)


def parse_cloud_event(payload: Payload) -> Trigger:
    """Return the trigger in an EventGrid event. Raises MalformedEventError if it does not parse, or names no server."""
    event = decode(_EventGridEvent, payload, what="EventGrid event")
    if not event.type.startswith(f"{_SERVICE}:CloudTrace:"):
        time = _time_of({"time": event.time}, ("time",), "EventGrid event", payload)
        return Interruption(
            id=event.id,
            cluster=EVERY_CLUSTER,
            reason=event.type,
            time=time,
            kind=InterruptionKind.NO_OP,
            instance_ids=(),
        )
    trace = _trace_in(event.data)
    if trace is None:
        raise malformed("cannot read the EventGrid event: no trace with a `trace_name` - at `$.data`", payload)
    given = {"time": event.time, "service_type": _SERVICE}
    present = {name: value for name, value in trace.items() if value is not None}
    return _interruption_of({**given, **present, "trace_id": event.id}, payload)


def parse_topic_event(payload: Payload) -> Trigger:
    """Return the trigger in the event of an SMN trigger that has one message (`items_of`).

    Raises:
        MalformedEventError: The event or its message does not parse, or has no trigger.
    """
    from journeyman.events import parse_trigger  # noqa: PLC0415 - the package imports this module for these events only

    event = decode(_SmnEvent, payload, what="SMN event")
    if len(event.record) != 1:
        raise malformed(
            f"cannot read the SMN event: expected one message, got {len(event.record)} - at `$.record`", payload
        )
    message = event.record[0].smn
    body = decode_json(message.message, what=f"message {message.message_id} of a topic", message_id=message.message_id)
    trace = _trace_in(body)
    if trace is not None:
        return _interruption_of({"trace_id": message.message_id, **trace}, body)
    return _cloud_eye_trigger(body, message.message_id) if "namespace" in body else parse_trigger(body)


def _trace_in(value: object, depth: int = 0) -> Payload | None:
    """Return the trace in a notice, whose shape is not documented: the notice itself, or an object in it, or in JSON in it."""
    value = _decoded(value)
    if not isinstance(value, Mapping) or depth > _DEEPEST:
        return None
    if isinstance(value.get("trace_name"), str):
        return value
    inner = (value.get(name) for name in ("cts", "trace", "data", "detail", "message"))
    return next((found for each in inner if (found := _trace_in(each, depth + 1)) is not None), None)


def _decoded(value: object) -> object:
    """Return the value; what it means if it is an object or a list as JSON."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return msgspec.json.decode(value)
    except ValueError:  # msgspec's errors are subclasses
        return value


def _interruption_of(payload: Payload, whole: Payload) -> Interruption:
    """Return the interruption that a trace records; `whole` names the event in errors."""
    trace = decode(_Trace, payload, what="trace")
    time = _time_of(payload, ("time", "record_time"), "trace", whole)
    kind = _kind_of(trace)
    servers = _servers_of(trace) if kind is not InterruptionKind.NO_OP else ()
    if kind is not InterruptionKind.NO_OP and not servers:
        raise malformed(
            f"cannot read the trace {trace.trace_name}: it names no server - at `resource_id`, `request` or `response`",
            whole,
        )
    operation = ":".join(
        part for part in (trace.service_type, trace.resource_type, trace.trace_name) if part is not None
    )
    domain = _at(_at(_decoded(trace.user), "domain"), "id")
    region = trace.region_id or trace.region
    return Interruption(
        id=(trace.trace_id or f"{trace.trace_name}-{time.isoformat()}")[:_LONGEST_ID],
        cluster=EVERY_CLUSTER,
        reason=operation,
        time=time,
        kind=kind,
        instance_ids=servers,
        account=domain if isinstance(domain, str) else "",
        region=region if isinstance(region, str) else "",
    )


def _kind_of(trace: _Trace) -> InterruptionKind:
    kind = TRACE_KINDS.get(trace.trace_name, InterruptionKind.NO_OP)
    if (trace.service_type or _SERVICE).upper() != _SERVICE:
        return InterruptionKind.NO_OP
    is_users = kind is not InterruptionKind.SPOT_INTERRUPTED  # ECS itself records interruptServer, as a warning
    return InterruptionKind.NO_OP if is_users and _has_failed(trace) else kind


def _has_failed(trace: _Trace) -> bool:
    """Whether the operation failed; its HTTP status counts more than its rating."""
    status = (trace.trace_status or trace.trace_rating or "").lower()
    try:
        code = int(trace.code) if trace.code is not None else None
    except ValueError:
        code = None
    if code is None:
        return status in _FAILED_WITHOUT_CODE
    return code >= _SUCCEEDED_BELOW or status in _FAILED


def _servers_of(trace: _Trace) -> tuple[str, ...]:
    """Return the ids of the servers, each once: the trace's resource, and those of an operation on several servers."""
    named = [text.strip() for text in (trace.resource_id or "").split(",")]
    found = dict.fromkeys(text for text in named if 0 < len(text) <= _LONGEST_ID)
    for body in (trace.request, trace.response):
        found |= dict.fromkeys(_ids_in(body))
    return tuple(found)[:_MOST_SERVERS]


def _ids_in(value: object, depth: int = 0) -> Iterator[str]:
    """Yield the server ids in a request or response: `{"servers": [{"id": …}]}`, `{"server_id": …}` and the like."""
    value = _decoded(value)
    if depth > _DEEPEST:
        return
    if isinstance(value, list):
        for each in value:
            yield from _ids_in(each, depth + 1)
    if not isinstance(value, Mapping):
        return
    for name, inner in value.items():
        if name in _ID_FIELDS:
            yield from _uuids((inner,))
        elif name in _ID_LIST_FIELDS:
            yield from _uuids(inner if isinstance(inner, list) else (inner,))
        elif name in ("server", "servers"):
            servers = inner if isinstance(inner, list) else [inner]
            yield from _uuids(each if isinstance(each, str) else _at(each, "id") for each in servers)
            yield from _ids_in(inner, depth + 1)
        else:
            yield from _ids_in(inner, depth + 1)


def _uuids(values: Iterable[object]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str) and _UUID.fullmatch(value):
            yield value


def _cloud_eye_trigger(body: Payload, message_id: str) -> Interruption:
    """Return the trigger in a notice of Cloud Eye: a change of a scheduled event, or one without effect for other notices."""
    notice = decode(_CloudEyeNotice, body, what="Cloud Eye notice")
    time = _time_of(body, ("time",), "Cloud Eye notice", body)
    variables = notice.template_variable or {}
    candidates = (notice.event_name, notice.metric_name, variables.get("EventName"), variables.get("MetricName"))
    names = [text.lower().replace("-", "_") for text in candidates if isinstance(text, str)]
    match = next((found for name in names if (found := _CLOUD_EYE_EVENT.fullmatch(name))), None)
    is_upcoming = match is not None and match[2] in _UPCOMING and (notice.alarm_status or "alarm") == "alarm"
    dimension = (notice.dimension or "").partition("instance_id:")[2].partition(",")[0]
    servers = tuple(dict.fromkeys(_uuids((dimension, variables.get("ResourceId")))))
    if is_upcoming and not servers:
        raise malformed(
            "cannot read the Cloud Eye notice: it names no server - at `dimension` or `template_variable.ResourceId`",
            body,
        )
    region = variables.get("RegionId")
    return Interruption(
        id=(message_id or notice.alarm_id or f"cloud-eye-{time.isoformat()}")[:_LONGEST_ID],
        cluster=EVERY_CLUSTER,
        reason=f"{notice.namespace}:{match[0] if match else next(iter(names), 'notice')}",
        time=time,
        kind=InterruptionKind.SCHEDULED_CHANGE if is_upcoming else InterruptionKind.NO_OP,
        instance_ids=servers if is_upcoming else (),
        region=region if isinstance(region, str) else "",
    )


_UNITS: Final = ((10**17, 10**9), (10**14, 10**6), (10**11, 10**3))
"""From which number on a time counts nanoseconds, microseconds or milliseconds, and how many make a second."""


def _time_of(payload: Payload, names: Iterable[str], what: str, whole: Payload) -> datetime:
    """Return the first of these fields that is set, as a time. Raises MalformedEventError, which names the field."""
    given = [(name, payload.get(name)) for name in names if payload.get(name) not in (None, "")]
    name, value = given[0] if given else (next(iter(names)), None)
    time = _time(value)
    if time is None:
        raise malformed(f"cannot read the {what}: no time - at `{name}`", whole)
    return time.astimezone(timezone.utc)


def _time(value: object) -> datetime | None:
    """Return a time that is a number, a number as text, `2016/12/08 11:07:28 GMT+08:00` or in RFC 3339; None if it is none."""
    if isinstance(value, str):
        text = value.strip()
        if not text.isdecimal():
            return _time_in(text)
        value = int(text[:30])
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    per_second = next((unit for least, unit in _UNITS if value >= least), 1)
    try:
        return datetime.fromtimestamp(value / per_second, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None


def _time_in(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "%Y/%m/%d %H:%M:%S GMT%z")
    except ValueError:
        pass
    try:
        return msgspec.convert(text, Time)
    except msgspec.ValidationError:
        return None
