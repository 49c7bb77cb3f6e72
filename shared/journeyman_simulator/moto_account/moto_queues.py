"""Makes SQS on moto behave like AWS: FIFO order, locks of message groups, deduplication, redrive, retention."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.sqs.exceptions import InvalidParameterValue, SQSException
from moto.sqs.models import Message, Queue, SQSBackend, _filter_message_attributes, sqs_backends
from moto.sqs.responses import SQSResponse

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
from journeyman_simulator.cloud_rules.service_errors import ServiceError, expired_receipt_handle, message_not_in_flight
from journeyman_simulator.cloud_rules.service_time import ServiceTime, from_milliseconds
from journeyman_simulator.cloud_rules.trace_header import MESSAGE_ATTRIBUTE, sent_header
from journeyman_simulator.moto_account.moto_extensions import MotoExtension


class _MotoMessage(NamedTuple):
    """A message of moto in the form that `queue_rules` reads."""

    message: Message
    group: str | None
    visible_at: float
    receives: int


class MotoQueues:
    """Applies `queue_rules` to the queues of a region."""

    def __init__(self, time: ServiceTime, region: str) -> None:
        self._time = time
        self._region = region
        self._sequence = sequence_numbers()
        self._trace = ""  # of the request that is being handled; the account handles one at a time
        self._windows: WeakKeyDictionary[Queue, DeduplicationWindow[Message]] = WeakKeyDictionary()

    def due(self, queue_name: str) -> datetime | None:
        """Return when the next message can be received, which may be in the past; None if the queue is empty or missing."""
        queue = self._backend.queues.get(queue_name)
        if queue is None or not (messages := _messages(queue)):
            return None
        return from_milliseconds(next_receivable_at(messages, _settings(queue)))

    def deliver(self, queue_name: str, body: str, group: str | None) -> None:
        """Send an event of EventBridge; ignore a queue that does not exist or cannot deduplicate it, as EventBridge does."""
        queue = self._backend.queues.get(queue_name)
        if queue and accepts_events(_settings(queue), group):
            self._backend.send_message(queue_name=queue_name, message_body=body, group_id=group)

    @property
    def _backend(self) -> SQSBackend:
        return sqs_backends[DEFAULT_ACCOUNT_ID][self._region]

    def extensions(self) -> tuple[MotoExtension, ...]:
        """Return the extensions of sending, receiving, deleting and changing the visibility of messages."""
        return (
            MotoExtension(
                owner=SQSBackend,
                name="get_queue",
                replace=self._replace_get_queue,
                reason="deletes messages older than the retention period",
            ),
            MotoExtension(
                owner=SQSBackend,
                name="send_message",
                replace=self._replace_send,
                reason="deduplicates for five minutes, even after deletion, and returns the first MessageId",
            ),
            *(
                MotoExtension(
                    owner=SQSResponse,
                    name=name,
                    replace=self._replace_send_request,
                    reason="keeps the request's trace header, which botocore sends, with the message",
                )
                for name in ("send_message", "send_message_batch")
            ),
            MotoExtension(
                owner=Queue,
                name="add_message",
                replace=lambda _: _append,
                reason="deduplicates when a message is sent, so that a redriven message is never a duplicate",
            ),
            MotoExtension(
                owner=SQSBackend,
                name="receive_message",
                replace=self._replace_receive,
                reason="keeps FIFO order after a visibility timeout, redrives, and does not wait, since virtual time does not advance",
            ),
            MotoExtension(
                owner=Queue,
                name="delete_message",
                replace=self._replace_delete,
                reason="deletes only with the latest receipt handle, and in a FIFO queue only while it is valid",
            ),
            MotoExtension(
                owner=SQSBackend,
                name="delete_message_batch",
                replace=lambda _: _delete_message_batch,
                reason="an expired receipt handle fails its entry, not the batch",
            ),
            MotoExtension(
                owner=SQSBackend,
                name="change_message_visibility",
                replace=self._replace_change_visibility,
                reason="changes the visibility timeout only of a message in flight",
            ),
            MotoExtension(
                owner=SQSBackend,
                name="change_message_visibility_batch",
                replace=lambda _: _change_message_visibility_batch,
                reason="a message that is not in flight fails its entry, not the batch",
            ),
            MotoExtension(
                owner=Message,
                name="visible",
                replace=lambda _: property(lambda message: self._time.milliseconds() >= message.visible_at),
                reason="a message is visible at its deadline, not a millisecond later",
            ),
        )

    def _replace_get_queue(self, original: Callable[[SQSBackend, str], Queue]) -> Callable[[SQSBackend, str], Queue]:
        def get_queue(backend: SQSBackend, queue_name: str) -> Queue:
            queue = original(backend, queue_name)
            attributes: Any = queue  # moto sets the attributes by name
            oldest = self._time.milliseconds() - attributes.message_retention_period * 1000
            kept = [m for m in queue._messages if cast("int", m.sent_timestamp) >= oldest]  # noqa: SLF001 - as in `_messages`
            if len(kept) < len(queue._messages):  # noqa: SLF001 - as in `_messages`
                queue._messages = kept  # noqa: SLF001 - as in `_messages`
            return queue

        return get_queue

    def _replace_send(self, original: Callable[..., Message]) -> Callable[..., Message]:
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
            try:
                key = deduplication_key(_settings(queue), message_body, deduplication_id, group_id)
            except ServiceError as error:
                raise SQSException(error.code, error.message) from error
            window = self._windows.setdefault(queue, DeduplicationWindow())
            now = self._time.milliseconds()
            if key and (earlier := window.first(key, now)):
                return copy.copy(earlier)  # a copy, since a batch sets each entry's Id on it
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
            if self._trace:
                message.system_attributes = {
                    **message.system_attributes,
                    MESSAGE_ATTRIBUTE: {"DataType": "String", "StringValue": self._trace},
                }
            if key:
                message.sequence_number = next(self._sequence)
                window.record_accepted(key, message, now)
            return message

        return send_message

    def _replace_send_request(self, original: Callable[[SQSResponse], Any]) -> Callable[[SQSResponse], Any]:
        def send(response: SQSResponse) -> Any:
            self._trace = sent_header(response.headers)
            try:
                return original(response)
            finally:
                self._trace = ""

        return send

    def _replace_receive(self, _original: Callable[..., list[Message]]) -> Callable[..., list[Message]]:
        def receive_message(  # noqa: PLR0917 - moto's signature
            backend: SQSBackend,
            queue_name: str,
            count: int,
            wait_seconds_timeout: int,  # a long poll returns immediately, since virtual time does not advance during a call
            visibility_timeout: int,
            message_attribute_names: list[str] | None = None,
        ) -> list[Message]:
            received = []
            queue = backend.get_queue(queue_name)
            limit = _max_receive_count(queue)
            for entry in receivable(_messages(queue), _settings(queue), self._time.milliseconds()):
                message = entry.message
                if is_dead_letter(entry, limit):
                    queue._messages.remove(message)  # noqa: SLF001 - as in `_messages`
                    queue.dead_letter_queue.add_message(message)  # type: ignore[union-attr] # a redrive policy names it
                    continue
                message.mark_received(visibility_timeout=visibility_timeout)
                answer = copy.deepcopy(message)
                _filter_message_attributes(answer, message_attribute_names or [])
                received.append(answer)
                if len(received) == count:
                    break
            return received

        return receive_message

    def _replace_delete(self, original: Callable[[Queue, str], None]) -> Callable[[Queue, str], None]:
        def delete_message(queue: Queue, receipt_handle: str) -> None:
            entry = _received_with(queue, receipt_handle)
            if entry is None:
                original(queue, receipt_handle)
                return
            settings, now = _settings(queue), self._time.milliseconds()
            is_latest = entry.message.receipt_handle == receipt_handle
            if can_delete(entry, settings, is_latest_handle=is_latest, now=now):
                original(queue, receipt_handle)
            elif settings.is_fifo:
                error = expired_receipt_handle(receipt_handle)
                raise InvalidParameterValue(error.message)

        return delete_message

    def _replace_change_visibility(self, original: Callable[..., None]) -> Callable[..., None]:
        def change_message_visibility(
            backend: SQSBackend, queue_name: str, receipt_handle: str, visibility_timeout: int
        ) -> None:
            entry = _received_with(backend.get_queue(queue_name), receipt_handle)
            if entry is not None:
                is_latest = entry.message.receipt_handle == receipt_handle
                if not is_in_flight(entry, is_latest_handle=is_latest, now=self._time.milliseconds()):
                    error = message_not_in_flight(receipt_handle)
                    raise SQSException(error.code, error.message)
            original(backend, queue_name, receipt_handle, visibility_timeout)

        return change_message_visibility


def _messages(queue: Queue) -> tuple[_MotoMessage, ...]:
    """Return all messages of a queue in order, including invisible ones, which moto does not publish."""
    return tuple(
        _MotoMessage(m, m.group_id, max(m.visible_at, m.delayed_until), m.approximate_receive_count)
        for m in queue._messages  # noqa: SLF001 - no public way
    )


def _received_with(queue: Queue, receipt_handle: str) -> _MotoMessage | None:
    return next((m for m in _messages(queue) if m.message.had_receipt_handle(receipt_handle)), None)


def _settings(queue: Any) -> FifoSettings:
    return FifoSettings(
        is_fifo=queue.fifo_queue,
        content_based_deduplication=bool(queue.content_based_deduplication),
        deduplicates_by_group=queue.deduplication_scope == "messageGroup",
    )


def _max_receive_count(queue: Queue) -> int | None:
    policy: Any = queue.redrive_policy
    return int(policy["maxReceiveCount"]) if queue.dead_letter_queue and policy else None


def _append(queue: Queue, message: Message) -> None:
    queue._messages.append(message)  # noqa: SLF001 - moto's method does the same under its lock


def _delete_message_batch(
    backend: SQSBackend, queue_name: str, receipts: list[dict[str, Any]]
) -> tuple[list[str], list[dict[str, Any]]]:
    return _batch_results(receipts, lambda entry: backend.delete_message(queue_name, entry["ReceiptHandle"]))


def _change_message_visibility_batch(
    backend: SQSBackend, queue_name: str, entries: list[dict[str, Any]]
) -> tuple[list[str], list[dict[str, Any]]]:
    def change(entry: dict[str, Any]) -> None:
        backend.change_message_visibility(queue_name, entry["ReceiptHandle"], int(entry["VisibilityTimeout"]))

    return _batch_results(entries, change)


def _batch_results(
    entries: list[dict[str, Any]], perform: Callable[[dict[str, Any]], object]
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the ids of the entries that succeeded, and the errors of the others."""
    done, failed = [], []
    for entry in entries:
        try:
            perform(entry)
            done.append(entry["Id"])
        except SQSException as error:  # noqa: PERF203 - each entry fails separately
            failed.append(_failure(entry["Id"], error))
    return done, failed


def _failure(entry_id: str, error: SQSException) -> dict[str, Any]:
    return {"Id": entry_id, "SenderFault": True, "Code": error.code, "Message": error.message}
