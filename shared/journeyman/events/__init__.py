"""Parses triggers: one parser per source, one closed union of values (`ports.Trigger`).

`parse_trigger` accepts an SQS record (its body is parsed), an EventBridge event, an event of Alibaba Cloud or Huawei Cloud, or a
message of ours (forwarder, requeue, schedule, sweep). Any other payload raises MalformedEventError, which names the message and
says what to do; redelivery cannot help, so the message ends in the dead-letter queue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from journeyman.errors import MalformedEventError
from journeyman.events import eventbridge, wire_format
from journeyman.events.wire_format import decode_json, malformed
from journeyman.ports import Trigger

_HUAWEI_FIELDS: Final = frozenset({"cts", "record", "trigger_type"})
_EVENTGRID_SOURCE: Final = "HC."  # and the name of a cloud service


def parse_trigger(payload: Mapping[str, Any]) -> Trigger:
    """Return the trigger in a payload.

    Args:
        payload: An SQS record as Lambda passes it (`body` is text), an EventBridge event (`detail-type`), or a message
            of ours (`version` and `source`), or an event in one of the shapes of `events.alibaba_events` or
            `events.huawei_events`.

    Raises:
        MalformedEventError: It is none of these, or a field is missing or wrong. Nothing else is raised, because an error of
            another kind would fail the other records of the batch.
    """
    try:
        return _parse(payload)
    except MalformedEventError:
        raise
    except Exception as error:
        raise malformed(f"cannot read the event: {type(error).__name__}: {str(error)[:200]}", payload) from error


def _parse(payload: Mapping[str, Any]) -> Trigger:
    if "body" in payload and "detail-type" not in payload:
        return _parse_sqs_record(payload)
    if "detail-type" in payload:
        return eventbridge.parse(payload)
    source = payload.get("source")
    parser = wire_format.PARSERS.get(source) if isinstance(source, str) else None
    if parser is None:
        parser = _parser_of_cloud(payload)
    if parser is None:
        sources = ", ".join(sorted(wire_format.PARSERS))
        raise malformed(
            f"cannot read the event: source {source!r} is none of {sources}, nor an EventBridge event", payload
        )
    return parser(payload)


def _parser_of_cloud(payload: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Trigger] | None:
    """Return the parser for an event of Alibaba Cloud or Huawei Cloud; None if it is neither.

    Each cloud's parsers are imported for its own events only.
    """
    source = payload.get("source")
    is_of_eventgrid = isinstance(source, str) and source.startswith(_EVENTGRID_SOURCE)
    if _HUAWEI_FIELDS.isdisjoint(payload) and not is_of_eventgrid:
        from journeyman.events import alibaba_events  # noqa: PLC0415 - see above

        return alibaba_events.parser_of(payload)
    from journeyman.events import huawei_events  # noqa: PLC0415 - see above

    return huawei_events.parser_of(payload)


def _parse_sqs_record(record: Mapping[str, Any]) -> Trigger:
    return parse_body(record["body"], what="SQS message", message_id=str(record.get("messageId", "")))


def parse_body(body: object, *, what: str, message_id: str) -> Trigger:
    """Return the trigger in the body of a queue's message; `what` and `message_id` name it in the error.

    Raises:
        MalformedEventError: The body is not text, or does not parse.
    """
    if not isinstance(body, str):
        raise malformed(f"cannot read {what} {message_id}: its body is not text", {"id": message_id})
    return parse_trigger(decode_json(body, what=f"body of {what} {message_id}", message_id=message_id))
