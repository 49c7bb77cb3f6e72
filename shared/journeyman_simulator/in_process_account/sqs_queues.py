"""Implements the in-process account's SQS: queues, messages and their faults, and the operations.

Restates: SQS developer guide: "FIFO delivery logic", "Visibility timeout", "Dead-letter queues", "Exactly-once processing".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from itertools import count
from typing import Any, Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.errors import ConfigurationError
from journeyman_simulator.cloud_rules.queue_rules import (
    DeduplicationWindow,
    FifoSettings,
    accepts_events,
    can_delete,
    deduplication_key,
    is_dead_letter,
    is_in_flight,
    next_receivable_at,
    receivable,
    sequence_numbers,
)
from journeyman_simulator.cloud_rules.service_errors import (
    NotSimulatedError,
    ServiceError,
    expired_receipt_handle,
    message_not_in_flight,
)
from journeyman_simulator.cloud_rules.service_time import ServiceTime, from_milliseconds
from journeyman_simulator.cloud_rules.trace_header import MESSAGE_ATTRIBUTE, current_trace
from journeyman_simulator.in_process_account.service_client import (
    ServiceOperation,
    ServiceOperations,
    ServiceRequest,
)


class MessageOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of a message that a queue accepted.

    Each copy is a message with its own id. `overtakes` puts the message before all others, which a FIFO queue never
    does.
    """

    copies: int = 1
    delay_seconds: float = 0
    overtakes: bool = False


DELIVERED: Final = MessageOutcome()
"""The message is delivered once, in order."""


class SimulatedMessage(Struct, kw_only=True, eq=False):
    """A message in a queue. Times are milliseconds since the epoch."""

    id: str
    body: str
    sent_at: int
    visible_at: int  # before its first receive, when its delay ends
    group: str | None = None
    deduplication_id: str | None = None
    sequence: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    receives: int = 0
    first_received_at: int = 0
    handle: str = ""
    trace: str = ""  # the sender's trace header


class AcceptedMessage(NamedTuple):
    """The response of SendMessage."""

    id: str
    sequence: str
    at: int


class SimulatedQueue(Struct, kw_only=True, eq=False):
    """A queue, with its messages in receive order."""

    name: str
    attributes: Mapping[str, str] = field(default_factory=dict)  # the attributes in CreateQueue's request
    settings: FifoSettings = FifoSettings()
    visibility_seconds: int = 30
    retention_seconds: int = 4 * 24 * 3600
    delay_seconds: int = 0
    dead_letters: SimulatedQueue | None = None
    max_receive_count: int | None = None
    messages: list[SimulatedMessage] = field(default_factory=list)
    window: DeduplicationWindow[AcceptedMessage] = field(default_factory=DeduplicationWindow)


class SimulatedQueues:
    """The queues of the region.

    Args:
        time: The account's time.
        decide: Returns the outcome of an accepted message, given the queue's name and the body.
    """

    def __init__(self, time: ServiceTime, decide: Callable[[str, str], MessageOutcome] | None = None) -> None:
        self._time = time
        self.decide = decide or (lambda _queue, _body: DELIVERED)
        self._ids = count(1)
        self._handles = count(1)
        self._sequence = sequence_numbers()
        self.known: dict[str, SimulatedQueue] = {}

    def create(self, name: str, attributes: Mapping[str, str]) -> SimulatedQueue:
        """Create a queue, or return the existing one. Raises ServiceError if that has other attributes."""
        if name not in self.known:
            self.known[name] = SimulatedQueue(name=name, attributes=dict(attributes))
            self._set(self.known[name], attributes)
        elif self.known[name].attributes != attributes:
            message = "A queue already exists with the same name and a different value for its attributes"
            raise ServiceError("QueueAlreadyExists", message)
        return self.known[name]

    def of(self, name: str) -> SimulatedQueue:
        """Return the queue with that name, without expired messages. Raises ServiceError if it does not exist."""
        if name not in self.known:
            raise ServiceError("AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist.")
        queue = self.known[name]
        oldest = self._time.milliseconds() - queue.retention_seconds * 1000
        if queue.messages and any(message.sent_at < oldest for message in queue.messages):
            queue.messages = [message for message in queue.messages if message.sent_at >= oldest]
        return queue

    def due(self, name: str) -> datetime | None:
        """Return when the next message can be received, which may be in the past; None if the queue is empty or missing."""
        queue = self.known.get(name)
        if queue is None or not queue.messages:
            return None
        return from_milliseconds(next_receivable_at(queue.messages, queue.settings))

    def deliver(self, name: str, body: str, group: str | None) -> None:
        """Send an event of EventBridge; ignore a queue that does not exist or cannot deduplicate it, as EventBridge does."""
        queue = self.known.get(name)
        if queue and accepts_events(queue.settings, group):
            self.send(name, body, group=group)

    def send(
        self,
        name: str,
        body: str,
        *,
        group: str | None = None,
        deduplication_id: str | None = None,
        delay_seconds: int | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> AcceptedMessage:
        """Accept a message.

        Raises:
            ServiceError: The queue does not exist, or a FIFO queue's message has a delay, or lacks a group or a deduplication
                id.
            ConfigurationError: `decide` lets a message of a FIFO queue overtake others.
        """
        queue = self.of(name)
        if len(body.encode()) > _MAX_BYTES:
            message = f"One or more parameters are invalid. Reason: Message must be shorter than {_MAX_BYTES} bytes."
            raise ServiceError("InvalidParameterValue", message)
        if queue.settings.is_fifo and delay_seconds:
            message = f"Value {delay_seconds} for parameter DelaySeconds is invalid for this queue type."
            raise ServiceError("InvalidParameterValue", message)
        key = deduplication_key(queue.settings, body, deduplication_id, group)
        now = self._time.milliseconds()
        if key and (earlier := queue.window.first(key, now)):
            return earlier
        outcome = self.decide(name, body)
        if outcome.overtakes and queue.settings.is_fifo:
            raise ConfigurationError("a FIFO queue's messages cannot overtake each other", queue=name)
        delay = (queue.delay_seconds if delay_seconds is None else delay_seconds) + outcome.delay_seconds
        copies = [
            SimulatedMessage(
                id=f"00000000-0000-4000-9000-{next(self._ids):012x}",
                body=body,
                sent_at=now,
                visible_at=now + int(delay * 1000),
                group=group,
                deduplication_id=key[1] if key else None,
                sequence=next(self._sequence) if queue.settings.is_fifo else "",
                attributes=attributes or {},
                trace=current_trace(),
            )
            for _ in range(max(1, outcome.copies))
        ]
        if outcome.copies:
            queue.messages[:] = [*copies, *queue.messages] if outcome.overtakes else [*queue.messages, *copies]
        accepted = AcceptedMessage(copies[0].id, copies[0].sequence, now)
        if key:
            queue.window.record_accepted(key, accepted, now)
        return accepted

    def receive(self, name: str, max_messages: int, visibility_seconds: int | None = None) -> list[SimulatedMessage]:
        """Receive messages in order; they are invisible until their visibility timeout ends.

        Messages whose receives have reached the redrive policy's maximum move to the dead-letter queue.
        """
        queue = self.of(name)
        if not queue.messages:
            return []
        now = self._time.milliseconds()
        visibility = queue.visibility_seconds if visibility_seconds is None else visibility_seconds
        received: list[SimulatedMessage] = []
        for message in receivable(tuple(queue.messages), queue.settings, now):
            if queue.dead_letters is not None and is_dead_letter(message, queue.max_receive_count):
                queue.messages.remove(message)
                message.visible_at = now
                queue.dead_letters.messages.append(message)
                continue
            message.receives += 1
            message.first_received_at = message.first_received_at or now
            message.visible_at = now + visibility * 1000
            message.handle = f"handle-{next(self._handles)}-{message.id}"
            received.append(message)
            if len(received) == max_messages:
                break
        return received

    def delete(self, name: str, handle: str) -> None:
        """Delete a received message; in a standard queue, an earlier handle has no effect.

        Raises:
            ServiceError: The handle is not a receipt handle, or a FIFO queue's handle has expired.
        """
        queue = self.of(name)
        message = self._message_of_handle(queue, handle)
        if message is None:
            return
        is_latest, now = message.handle == handle, self._time.milliseconds()
        if can_delete(message, queue.settings, is_latest_handle=is_latest, now=now):
            queue.messages.remove(message)
        elif queue.settings.is_fifo:
            raise expired_receipt_handle(handle)

    def change_visibility(self, name: str, handle: str, seconds: int) -> None:
        """Change the visibility timeout of a message in flight. Raises ServiceError if it is not in flight."""
        queue = self.of(name)
        message = self._message_of_handle(queue, handle)
        now = self._time.milliseconds()
        if message is None or not is_in_flight(message, is_latest_handle=message.handle == handle, now=now):
            raise message_not_in_flight(handle)
        message.visible_at = now + seconds * 1000

    def _message_of_handle(self, queue: SimulatedQueue, handle: str) -> SimulatedMessage | None:
        """Return the message of a receipt handle; None if it was deleted."""
        marker, _, id_ = handle.partition("-")[2].partition("-")
        if not handle.startswith("handle-") or not marker.isdigit():
            message = f'The input receipt handle "{handle}" is not a valid receipt handle.'
            raise ServiceError("ReceiptHandleIsInvalid", message)
        return next((message for message in queue.messages if message.id == id_), None)

    def _set(self, queue: SimulatedQueue, attributes: Mapping[str, str]) -> None:
        for attribute, value in attributes.items():
            if attribute == "RedrivePolicy":
                policy = json.loads(value)
                queue.dead_letters = self.of(policy["deadLetterTargetArn"].rsplit(":", 1)[-1])
                queue.max_receive_count = int(policy["maxReceiveCount"])
            elif attribute in _SWITCHES:
                enabled = {_SWITCHES[attribute]: value in {"true", "messageGroup"}}
                queue.settings = replace(queue.settings, **enabled)
            elif attribute in _NUMBERS:
                setattr(queue, _NUMBERS[attribute], int(value))
            elif attribute not in _WITHOUT_EFFECT:
                raise ServiceError("InvalidAttributeName", f"Unknown Attribute {attribute}.")


_SWITCHES: Final = {
    "FifoQueue": "is_fifo",
    "ContentBasedDeduplication": "content_based_deduplication",
    "DeduplicationScope": "deduplicates_by_group",
}
_NUMBERS: Final = {
    "VisibilityTimeout": "visibility_seconds",
    "MessageRetentionPeriod": "retention_seconds",
    "DelaySeconds": "delay_seconds",
}
_WITHOUT_EFFECT: Final = frozenset({"FifoThroughputLimit"})


_MAX_ENTRIES: Final = 10
_MAX_BYTES: Final = 1 << 20  # of a message, and of all messages of a batch
_MAX_DELAY_SECONDS: Final = 900
_SENDING: Final = ("DelaySeconds", "MessageAttributes", "MessageDeduplicationId", "MessageGroupId")
_RECEIVING: Final = (
    *("AttributeNames", "MaxNumberOfMessages", "MessageAttributeNames", "MessageSystemAttributeNames"),
    *("VisibilityTimeout", "WaitTimeSeconds"),
)
JSON = Mapping[str, Any]


class SqsOperations:
    """Implements SQS's operations. A long poll returns immediately, since virtual time does not advance during a call."""

    def __init__(self, queues: SimulatedQueues, time: ServiceTime, region: str, account: str) -> None:
        self._queues = queues
        self._time = time
        self._url = f"https://sqs.{region}.amazonaws.com/{account}/"
        self._arn = f"arn:aws:sqs:{region}:{account}:"
        self._account = account

    def operations(self) -> ServiceOperations:
        """Return SQS's operations."""
        url, batch = ("QueueUrl",), ("QueueUrl", "Entries")
        return {
            "CreateQueue": ServiceOperation(self._create, requires=("QueueName",), accepts=("Attributes",)),
            "GetQueueUrl": ServiceOperation(self._get_url, requires=("QueueName",)),
            "GetQueueAttributes": ServiceOperation(self._get_attributes, requires=url, accepts=("AttributeNames",)),
            "SendMessage": ServiceOperation(self._send, requires=(*url, "MessageBody"), accepts=_SENDING),
            "SendMessageBatch": ServiceOperation(self._send_batch, requires=batch),
            "ReceiveMessage": ServiceOperation(self._receive, requires=url, accepts=_RECEIVING),
            "DeleteMessage": ServiceOperation(self._delete, requires=(*url, "ReceiptHandle")),
            "DeleteMessageBatch": ServiceOperation(self._delete_batch, requires=batch),
            "ChangeMessageVisibility": ServiceOperation(
                self._change_visibility, requires=(*url, "ReceiptHandle", "VisibilityTimeout")
            ),
            "ChangeMessageVisibilityBatch": ServiceOperation(self._change_visibility_batch, requires=batch),
        }

    def _create(self, request: ServiceRequest) -> dict[str, Any]:
        return {"QueueUrl": self._url + self._queues.create(request["QueueName"], request.get("Attributes", {})).name}

    def _get_url(self, request: ServiceRequest) -> dict[str, Any]:
        return {"QueueUrl": self._url + self._queues.of(request["QueueName"]).name}

    def _get_attributes(self, request: ServiceRequest) -> dict[str, Any]:
        queue = self._queues.of(_name(request))
        now = self._time.milliseconds()
        values = {
            "QueueArn": self._arn + queue.name,
            "VisibilityTimeout": str(queue.visibility_seconds),
            "ApproximateNumberOfMessages": str(sum(m.visible_at <= now for m in queue.messages)),
            "ApproximateNumberOfMessagesDelayed": str(_count_messages(queue, now, received=False)),
            "ApproximateNumberOfMessagesNotVisible": str(_count_messages(queue, now, received=True)),
        }
        if "RedrivePolicy" in queue.attributes:
            values["RedrivePolicy"] = queue.attributes["RedrivePolicy"]
        wanted = request.get("AttributeNames", ())
        if unknown := sorted(set(wanted) - {*values, "RedrivePolicy", "All"}):
            raise NotSimulatedError(f"the simulation does not support the queue attribute {unknown[0]}")
        return {"Attributes": _named(values, wanted)}

    def _send(self, request: ServiceRequest) -> dict[str, Any]:
        return self._send_entry(_name(request), request.parameters)

    def _send_batch(self, request: ServiceRequest) -> dict[str, Any]:
        return _batch_results(request, lambda entry: self._send_entry(_name(request), entry))

    def _send_entry(self, queue: str, entry: JSON) -> dict[str, Any]:
        delay = entry.get("DelaySeconds")
        if delay is not None and not 0 <= delay <= _MAX_DELAY_SECONDS:
            raise ServiceError("InvalidParameterValue", f"Value {delay} for parameter DelaySeconds is invalid.")
        accepted = self._queues.send(
            queue,
            entry["MessageBody"],
            group=entry.get("MessageGroupId"),
            deduplication_id=entry.get("MessageDeduplicationId"),
            delay_seconds=delay,
            attributes=entry.get("MessageAttributes"),
        )
        return _accepted_message(accepted, entry["MessageBody"])

    def _receive(self, request: ServiceRequest) -> dict[str, Any]:
        max_messages = request.get("MaxNumberOfMessages", 1)
        received = self._queues.receive(_name(request), max_messages, request.get("VisibilityTimeout"))
        return {"Messages": [self._received_message(message, request) for message in received]} if received else {}

    def _received_message(self, message: SimulatedMessage, request: ServiceRequest) -> dict[str, Any]:
        """Return a message with the requested attributes."""
        system = {
            "SenderId": self._account,
            "SentTimestamp": str(message.sent_at),
            "ApproximateReceiveCount": str(message.receives),
            "ApproximateFirstReceiveTimestamp": str(message.first_received_at),
        }
        if message.sequence:
            system["SequenceNumber"] = message.sequence
            system["MessageGroupId"] = str(message.group)
            system["MessageDeduplicationId"] = str(message.deduplication_id)
        if message.trace:
            system[MESSAGE_ATTRIBUTE] = message.trace
        response: dict[str, Any] = {
            "MessageId": message.id,
            "ReceiptHandle": message.handle,
            "MD5OfBody": _md5(message.body),
            "Body": message.body,
        }
        of_system = (*request.get("AttributeNames", ()), *request.get("MessageSystemAttributeNames", ()))
        if wanted := _named(system, of_system):
            response["Attributes"] = wanted
        if message_attributes := _named(message.attributes, request.get("MessageAttributeNames", ())):
            response["MessageAttributes"] = message_attributes
        return response

    def _delete(self, request: ServiceRequest) -> dict[str, Any]:
        self._queues.delete(_name(request), request["ReceiptHandle"])
        return {}

    def _delete_batch(self, request: ServiceRequest) -> dict[str, Any]:
        def delete(entry: JSON) -> dict[str, Any]:
            self._queues.delete(_name(request), entry["ReceiptHandle"])
            return {}

        return _batch_results(request, delete)

    def _change_visibility(self, request: ServiceRequest) -> dict[str, Any]:
        self._queues.change_visibility(_name(request), request["ReceiptHandle"], request["VisibilityTimeout"])
        return {}

    def _change_visibility_batch(self, request: ServiceRequest) -> dict[str, Any]:
        def change(entry: JSON) -> dict[str, Any]:
            self._queues.change_visibility(_name(request), entry["ReceiptHandle"], entry["VisibilityTimeout"])
            return {}

        return _batch_results(request, change)


def _name(request: ServiceRequest) -> str:
    return str(request["QueueUrl"]).rsplit("/", 1)[-1]


def _batch_results(request: ServiceRequest, perform: Callable[[JSON], dict[str, Any]]) -> dict[str, Any]:
    """Perform the action for each entry; an error fails its entry, not the batch."""
    entries = request["Entries"]
    if not entries:
        raise ServiceError(
            "AWS.SimpleQueueService.EmptyBatchRequest", "There should be at least one entry in the request."
        )
    if sum(len(str(entry.get("MessageBody", "")).encode()) for entry in entries) > _MAX_BYTES:
        message = f"Batch requests cannot be longer than {_MAX_BYTES} bytes."
        raise ServiceError("AWS.SimpleQueueService.BatchRequestTooLong", message)
    if len(entries) > _MAX_ENTRIES:
        raise ServiceError("AWS.SimpleQueueService.TooManyEntriesInBatchRequest", "Maximum number of entries is 10.")
    done, failed = [], []
    for entry in entries:
        try:
            done.append({"Id": entry["Id"], **perform(entry)})
        except ServiceError as error:  # noqa: PERF203 - each entry fails separately
            failed.append({"Id": entry["Id"], "SenderFault": True, "Code": error.code, "Message": error.message})
    return {"Successful": done, **({"Failed": failed} if failed else {})}


def _named(values: Mapping[str, Any], wanted: Collection[str]) -> dict[str, Any]:
    """Return the requested values."""
    return {name: value for name, value in values.items() if name in wanted or "All" in wanted}


def _accepted_message(accepted: AcceptedMessage, body: str) -> dict[str, Any]:
    response = {"MessageId": accepted.id, "MD5OfMessageBody": _md5(body)}
    return response | ({"SequenceNumber": accepted.sequence} if accepted.sequence else {})


def _count_messages(queue: SimulatedQueue, now: int, *, received: bool) -> int:
    return sum(message.visible_at > now and bool(message.receives) is received for message in queue.messages)


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
