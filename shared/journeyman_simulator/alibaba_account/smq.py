"""Implements Simple Message Queue (SMQ) in memory: standard queues, messages and their faults, and a client in process.

Restates: SMQ API reference: SendMessage, BatchSendMessage, ReceiveMessage, DeleteMessage, ChangeMessageVisibility, CreateQueue,
and "Error codes". The retention of a message starts when it is sent, delayed or not.
"""

from __future__ import annotations

import base64
import re
from collections import Counter, deque
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import count
from threading import RLock
from typing import Final

from msgspec import Struct, field

from journeyman.cloud.alibaba.smq_queue import SmqError, SmqMessage
from journeyman.ports import Clock
from journeyman_simulator.cloud_rules.service_time import ServiceTime, from_milliseconds
from journeyman_simulator.in_process_account.sqs_queues import DELIVERED, MessageOutcome

MESSAGES_PER_CALL: Final = 16
LONGEST_DELAY_SECONDS: Final = 604_800
LONGEST_VISIBILITY_SECONDS: Final = 43_200
_LARGEST_CALL_BYTES: Final = 65_536
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,119}")


class SmqAttributes(Struct, frozen=True, kw_only=True):
    """The attributes of a queue, with SMQ's defaults. Messages go to `dead_letter_queue`, if set, after `max_receives` receives."""

    visibility_seconds: int = 30
    retention_seconds: int = 345_600
    delay_seconds: int = 0
    largest_message_bytes: int = 65_536
    dead_letter_queue: str = ""
    max_receives: int = 16


class StoredMessage(Struct, kw_only=True, eq=False):
    """A message in a queue; `body` is as it was sent, usually Base64. Times are milliseconds since the epoch."""

    id: str
    body: str
    sent_at: int
    visible_at: int
    receives: int = 0
    first_received_at: int = 0
    receipt: str = ""

    @property
    def text(self) -> str:
        """The body that was encoded in Base64."""
        return base64.b64decode(self.body).decode()


class StoredQueue(Struct, kw_only=True, eq=False):
    """A queue and its messages, in the order in which they were sent."""

    name: str
    attributes: SmqAttributes
    messages: list[StoredMessage] = field(default_factory=list)


class SimulatedSmq:
    """The queues of one account and region; requests run one at a time.

    Args:
        clock: The time.
        decide: Returns the outcome of an accepted message, given the queue's name and the body: copies, delays, losses.
    """

    def __init__(self, clock: Clock, decide: Callable[[str, str], MessageOutcome] | None = None) -> None:
        self._time = ServiceTime(clock)
        self.decide = decide or (lambda _queue, _body: DELIVERED)
        self.lock = RLock()
        self.queues: dict[str, StoredQueue] = {}
        self.calls: Counter[str] = Counter()
        self._failures: dict[str, deque[str]] = {}
        self._ids = count(1)
        self._receipts = count(1)

    def fail_next(self, operation: str, code: str, times: int = 1) -> None:
        """Make the next `times` requests for `operation` ("BatchSendMessage") fail with the error `code`, without effect.

        A code that ends in `/` and numbers, such as `InternalError/0,2`, is the error of these messages of a batch only.
        """
        self._failures.setdefault(operation, deque()).extend([code] * times)

    def create(self, name: str, attributes: SmqAttributes | None = None) -> StoredQueue:
        """Create a queue, or return the existing one. Raises SmqError if that has other attributes, or one is invalid."""
        attributes = attributes or SmqAttributes()
        if not _NAME.fullmatch(name):
            raise SmqError("InvalidQueueName", f"The queue name {name!r} is invalid.")
        _check_range("VisibilityTimeout", attributes.visibility_seconds, 1, LONGEST_VISIBILITY_SECONDS)
        _check_range("MessageRetentionPeriod", attributes.retention_seconds, 60, LONGEST_DELAY_SECONDS)
        _check_range("DelaySeconds", attributes.delay_seconds, 0, LONGEST_DELAY_SECONDS)
        _check_range("MaximumMessageSize", attributes.largest_message_bytes, 1024, 65_536)
        queue = self.queues.setdefault(name, StoredQueue(name=name, attributes=attributes))
        if queue.attributes != attributes:
            raise SmqError("QueueAlreadyExist", "The queue you want to create is already exist.")
        return queue

    def queue(self, name: str) -> StoredQueue:
        """Return a queue without its expired messages. Raises SmqError if it does not exist."""
        if name not in self.queues:
            raise SmqError("QueueNotExist", "The queue name you provided is not exist.")
        queue = self.queues[name]
        oldest = self._time.milliseconds() - queue.attributes.retention_seconds * 1000
        queue.messages[:] = [message for message in queue.messages if message.sent_at > oldest]
        return queue

    def due(self, name: str) -> datetime | None:
        """Return when the next message can be received, which may be in the past; None if the queue is empty or missing."""
        queue = self.queues.get(name)
        moments = [message.visible_at for message in queue.messages] if queue else []
        return from_milliseconds(min(moments)) if moments else None

    def send(self, name: str, messages: Sequence[SmqMessage]) -> list[StoredMessage]:
        """Accept up to 16 messages, whose bodies are as on the wire; return them.

        Raises:
            SmqError: The request, or some of its messages (`refused`), are invalid or were made to fail.
        """
        failure = self._failure("BatchSendMessage")
        queue = self.queue(name)
        if not 1 <= len(messages) <= MESSAGES_PER_CALL:
            raise SmqError("InvalidArgument", f"The number of messages should be between 1 and {MESSAGES_PER_CALL}.")
        largest = min(queue.attributes.largest_message_bytes, _LARGEST_CALL_BYTES)
        if sum(len(message.body.encode()) for message in messages) > largest:
            raise SmqError("InvalidArgument", f"The value of MessageBody should be between 1 and {largest} bytes.")
        for message in messages:
            _check_range("MessageBody", len(message.body), 1, largest)
            _check_range("DelaySeconds", message.delay_seconds, 0, LONGEST_DELAY_SECONDS)
        accepted = [self._accept(queue, message) for i, message in enumerate(messages) if i not in failure]
        if failure:
            raise SmqError(next(iter(failure.values())), "Some messages were not sent.", refused=failure)
        return accepted

    def _accept(self, queue: StoredQueue, message: SmqMessage) -> StoredMessage:
        outcome = self.decide(queue.name, message.body)
        now = self._time.milliseconds()
        delay = message.delay_seconds or queue.attributes.delay_seconds
        id_ = f"{next(self._ids):016X}-SMQ"
        copies = [
            StoredMessage(
                id=id_, body=message.body, sent_at=now, visible_at=now + int((delay + outcome.delay_seconds) * 1000)
            )
            for _ in range(max(1, outcome.copies))
        ]
        if outcome.copies:
            queue.messages[:] = [*copies, *queue.messages] if outcome.overtakes else [*queue.messages, *copies]
        return copies[0]

    def receive(self, name: str, number: int = 1) -> list[StoredMessage]:
        """Receive up to 16 visible messages, which are invisible then; an empty list if there is none. Raises SmqError."""
        self._failure("BatchReceiveMessage")
        _check_range("numOfMessages", number, 1, MESSAGES_PER_CALL)
        queue, now = self.queue(name), self._time.milliseconds()
        received: list[StoredMessage] = []
        for message in [message for message in queue.messages if message.visible_at <= now]:
            if queue.attributes.dead_letter_queue and message.receives >= queue.attributes.max_receives:
                queue.messages.remove(message)
                message.visible_at = now
                self.queue(queue.attributes.dead_letter_queue).messages.append(message)
                continue
            message.receives += 1
            message.first_received_at = message.first_received_at or now
            self._hide(message, queue.attributes.visibility_seconds)
            received.append(message)
            if len(received) == number:
                break
        return received

    def peek(self, name: str) -> list[StoredMessage]:
        """Return the visible messages without receiving them. Raises SmqError."""
        now = self._time.milliseconds()
        return [message for message in self.queue(name).messages if message.visible_at <= now]

    def delete(self, name: str, receipt: str) -> None:
        """Delete a received message. Raises SmqError if its receipt is not its latest one, or its visibility timeout ended."""
        self._failure("DeleteMessage")
        self.queue(name).messages.remove(self._in_flight(name, receipt))

    def change_visibility(self, name: str, receipt: str, seconds: int) -> StoredMessage:
        """Make a received message visible after so many seconds, and return it with another receipt. Raises SmqError."""
        self._failure("ChangeMessageVisibility")
        _check_range("VisibilityTimeout", seconds, 1, LONGEST_VISIBILITY_SECONDS)
        message = self._in_flight(name, receipt)
        self._hide(message, seconds)
        return message

    def _hide(self, message: StoredMessage, seconds: int) -> None:
        message.visible_at = self._time.milliseconds() + seconds * 1000
        message.receipt = f"{next(self._receipts)}-{message.id}"

    def _in_flight(self, name: str, receipt: str) -> StoredMessage:
        if not re.fullmatch(r"[0-9]+-[0-9A-F]{16}-SMQ", receipt):
            raise SmqError("ReceiptHandleError", "The receipt handle you provide is not valid.")
        now = self._time.milliseconds()
        for message in self.queue(name).messages:
            if message.receipt == receipt and message.visible_at > now:
                return message
        raise SmqError("MessageNotExist", "Message not exist.")

    def _failure(self, operation: str) -> dict[int, str]:
        """Count a request; return the injected errors of its messages. Raises SmqError if the request itself must fail."""
        self.calls[operation] += 1
        failures = self._failures.get(operation)
        if not failures:
            return {}
        code, _, indices = failures.popleft().partition("/")
        if not indices:
            raise SmqError(code, f"simulated failure of {operation}")
        return {int(index): code for index in indices.split(",")}


class InProcessSmq:
    """`Smq` without a wire: sends to the simulated queues directly, as the SDK encodes the bodies."""

    def __init__(self, smq: SimulatedSmq) -> None:
        self._smq = smq

    def send(self, queue: str, messages: Sequence[SmqMessage]) -> None:
        """Send messages in one request. Raises SmqError."""
        encoded = [SmqMessage(base64.b64encode(m.body.encode()).decode(), m.delay_seconds) for m in messages]
        with self._smq.lock:
            self._smq.send(queue, encoded)


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise SmqError("InvalidArgument", f"The value of {name} should be between {low} and {high} seconds/bytes.")
