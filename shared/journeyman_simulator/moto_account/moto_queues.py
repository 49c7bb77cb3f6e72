"""SQS on moto as AWS runs it: FIFO order and group locks, deduplication that lasts, redrive, retention."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import count
from typing import Any, cast
from weakref import WeakKeyDictionary

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.sqs.exceptions import InvalidParameterValue, ReceiptHandleIsInvalid, SQSException
from moto.sqs.models import Message, Queue, SQSBackend, _filter_message_attributes, sqs_backends

from journeyman_simulator.cloud_rules.service_time import ServiceTime, from_milliseconds
from journeyman_simulator.moto_account.moto_extensions import MotoExtension

_DEDUPLICATION_MILLISECONDS = 5 * 60 * 1000
_FIRST_SEQUENCE_NUMBER = 18_849_496_460_467_696_128  # 20 digits, as AWS's are


class MotoQueues:
    """The region's queues: what moto's do not do by themselves."""

    def __init__(self, time: ServiceTime, region: str) -> None:
        self._time = time
        self._region = region
        self._sequence = count(_FIRST_SEQUENCE_NUMBER, 256)
        self._accepted: WeakKeyDictionary[Queue, dict[tuple[str, str], Message]] = WeakKeyDictionary()

    def due(self, queue_name: str) -> datetime | None:
        """When the next message can be received, which may be in the past; None if there is none or no such queue."""
        queue = sqs_backends[DEFAULT_ACCOUNT_ID][self._region].queues.get(queue_name)
        if queue is None or not queue._messages:  # noqa: SLF001 - moto has no public way to see invisible messages
            return None
        return from_milliseconds(min(_receivable_at(queue)))

    def extensions(self) -> tuple[MotoExtension, ...]:
        """Sending, receiving and deleting; the rest of the queue stays moto's."""
        return (
            MotoExtension(
                owner=SQSBackend,
                name="get_queue",
                replace=self._getting,
                reason="messages older than the retention period are gone",
            ),
            MotoExtension(
                owner=SQSBackend,
                name="send_message",
                replace=self._sending,
                reason="deduplication lasts five minutes, survives deletion and answers the first MessageId",
            ),
            MotoExtension(
                owner=Queue,
                name="add_message",
                replace=lambda _: _append,
                reason="deduplication is done when a message is sent, and redrive is never a duplicate",
            ),
            MotoExtension(
                owner=SQSBackend,
                name="receive_message",
                replace=self._receiving,
                reason="FIFO keeps its order after a visibility timeout; redrive; no waiting on time that stands still",
            ),
            MotoExtension(
                owner=Queue,
                name="delete_message",
                replace=self._deleting,
                reason="only the latest receipt handle deletes, and in a FIFO queue only while it is valid",
            ),
            MotoExtension(
                owner=SQSBackend,
                name="delete_message_batch",
                replace=lambda _: _delete_message_batch,
                reason="an expired receipt handle fails its own entry, not the batch",
            ),
            MotoExtension(
                owner=Message,
                name="visible",
                replace=lambda _: property(lambda message: self._time.milliseconds() >= message.visible_at),
                reason="a message is visible at its deadline, not a moment later",
            ),
        )

    def _getting(self, original: Callable[[SQSBackend, str], Queue]) -> Callable[[SQSBackend, str], Queue]:
        def get_queue(backend: SQSBackend, queue_name: str) -> Queue:
            queue = original(backend, queue_name)
            attributes: Any = queue  # moto sets them by name
            oldest = self._time.milliseconds() - attributes.message_retention_period * 1000
            kept = [m for m in queue._messages if cast("int", m.sent_timestamp) >= oldest]  # noqa: SLF001 - as in `due`
            if len(kept) < len(queue._messages):  # noqa: SLF001 - as in `due`
                queue._messages = kept  # noqa: SLF001 - as in `due`
            return queue

        return get_queue

    def _sending(self, original: Callable[..., Message]) -> Callable[..., Message]:
        def send_message(  # noqa: PLR0917 - moto's signature
            backend: SQSBackend,
            queue_name: str,
            message_body: str,
            message_attributes: dict[str, Any] | None = None,
            delay_seconds: int | None = None,
            deduplication_id: str | None = None,
            group_id: str | None = None,
            system_attributes: dict[str, Any] | None = None,
            validate_group_id: bool = True,
        ) -> Message:
            queue = backend.get_queue(queue_name)
            key = _deduplication_key(queue, message_body, deduplication_id, group_id)
            if key and (earlier := self._accepted_lately(queue, key)):
                return copy.copy(earlier)  # a copy: batches write each entry's Id on it
            message = original(
                backend,
                queue_name,
                message_body,
                message_attributes=message_attributes,
                delay_seconds=delay_seconds,
                deduplication_id=deduplication_id,
                group_id=group_id,
                system_attributes=system_attributes,
                validate_group_id=validate_group_id,
            )
            if key:
                message.sequence_number = str(next(self._sequence))
                self._accepted.setdefault(queue, {})[key] = message
            return message

        return send_message

    def _accepted_lately(self, queue: Queue, key: tuple[str, str]) -> Message | None:
        since = self._time.milliseconds() - _DEDUPLICATION_MILLISECONDS
        accepted = self._accepted.get(queue, {})
        for known in [known for known, message in accepted.items() if cast("int", message.sent_timestamp) <= since]:
            del accepted[known]
        return accepted.get(key)

    def _receiving(self, _original: Callable[..., list[Message]]) -> Callable[..., list[Message]]:
        def receive_message(  # noqa: PLR0917 - moto's signature
            backend: SQSBackend,
            queue_name: str,
            count: int,
            wait_seconds_timeout: int,  # a long poll answers at once: no time passes while a caller waits
            visibility_timeout: int,
            message_attribute_names: list[str] | None = None,
        ) -> list[Message]:
            received = []
            queue = backend.get_queue(queue_name)
            for message in _receivable(queue):
                if _goes_to_dead_letters(queue, message):
                    queue._messages.remove(message)  # noqa: SLF001 - as in `due`
                    queue.dead_letter_queue.add_message(message)  # type: ignore[union-attr] # it has one
                    continue
                message.mark_received(visibility_timeout=visibility_timeout)
                answer = copy.deepcopy(message)
                _filter_message_attributes(answer, message_attribute_names or [])
                received.append(answer)
                if len(received) == count:
                    break
            return received

        return receive_message

    def _deleting(self, original: Callable[[Queue, str], None]) -> Callable[[Queue, str], None]:
        def delete_message(queue: Queue, receipt_handle: str) -> None:
            message = next((m for m in queue._messages if m.had_receipt_handle(receipt_handle)), None)  # noqa: SLF001 - same
            if message is None:
                original(queue, receipt_handle)
            elif queue.fifo_queue and (message.visible or message.receipt_handle != receipt_handle):
                raise InvalidParameterValue(
                    f"Value {receipt_handle} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
                )
            elif message.receipt_handle == receipt_handle:
                original(queue, receipt_handle)

        return delete_message


def _append(queue: Queue, message: Message) -> None:
    queue._messages.append(message)  # noqa: SLF001 - moto's own method does the same under its lock


def _delete_message_batch(
    backend: SQSBackend, queue_name: str, receipts: list[dict[str, Any]]
) -> tuple[list[str], list[dict[str, Any]]]:
    deleted, failed = [], []
    for entry in receipts:
        try:
            backend.delete_message(queue_name, entry["ReceiptHandle"])
            deleted.append(entry["Id"])
        except (InvalidParameterValue, ReceiptHandleIsInvalid) as error:  # noqa: PERF203 - each entry for itself
            failed.append(_failure(entry["Id"], error))
    return deleted, failed


def _failure(entry_id: str, error: SQSException) -> dict[str, Any]:
    return {"Id": entry_id, "SenderFault": True, "Code": error.code, "Message": error.message}


def _deduplication_key(
    queue: Any, body: str, deduplication_id: str | None, group_id: str | None
) -> tuple[str, str] | None:
    """What makes a message a duplicate in a FIFO queue; None if it has no deduplication id (and will be refused)."""
    if not queue.fifo_queue:
        return None
    if deduplication_id is None and queue.content_based_deduplication:
        deduplication_id = hashlib.sha256(body.encode()).hexdigest()
    scope = (group_id or "") if queue.deduplication_scope == "messageGroup" else ""
    return (scope, deduplication_id) if deduplication_id else None


def _receivable(queue: Queue) -> Iterator[Message]:
    """Messages that may be received now, in order; a FIFO group with one in flight or delayed gives none."""
    blocked: set[str | None] = set()
    if queue.fifo_queue:
        blocked = {m.group_id for m in queue._messages if not m.visible}  # noqa: SLF001 - as in `MotoQueues.due`
    for message in list(queue._messages):  # noqa: SLF001 - as in `due`
        if queue.fifo_queue:
            if message.delayed:
                blocked.add(message.group_id)
            if message.group_id in blocked:
                continue
        if message.visible and not message.delayed:
            yield message


def _receivable_at(queue: Queue) -> Iterator[float]:
    """For each message (each group, in a FIFO queue) the millisecond at which it can be received."""
    groups: dict[str | None, float] = {}
    for message in queue._messages:  # noqa: SLF001 - as in `MotoQueues.due`
        if not queue.fifo_queue:
            yield max(message.visible_at, message.delayed_until)
        elif message.group_id in groups:
            groups[message.group_id] = max(groups[message.group_id], message.visible_at)
        else:
            groups[message.group_id] = max(message.visible_at, message.delayed_until)
    yield from groups.values()


def _goes_to_dead_letters(queue: Queue, message: Message) -> bool:
    policy: Any = queue.redrive_policy
    return bool(queue.dead_letter_queue and policy and message.approximate_receive_count >= policy["maxReceiveCount"])
