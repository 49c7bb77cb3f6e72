"""SQS's rules: which messages can be received, what is a duplicate, when a receipt handle expires, and redrive.

Restates: SQS developer guide: "FIFO delivery logic", "Visibility timeout", "Dead-letter queues", "Exactly-once processing".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Final, Generic, Protocol, TypeVar

from msgspec import Struct, field

from journeyman_simulator.cloud_rules.service_errors import ServiceError

_DEDUPLICATION_MILLISECONDS: Final = 5 * 60 * 1000
_FIRST_SEQUENCE_NUMBER: Final = 18_849_496_460_467_696_128  # 20 digits, as AWS's are


class QueuedMessage(Protocol):
    """What the rules read of a message; times are milliseconds since the epoch."""

    @property
    def group(self) -> str | None:
        """Its MessageGroupId."""
        ...

    @property
    def visible_at(self) -> float:
        """When its visibility timeout ends; before its first receive, when its delay ends."""
        ...

    @property
    def receives(self) -> int:
        """How often it was received."""
        ...


M = TypeVar("M", bound=QueuedMessage)
A = TypeVar("A")


class FifoSettings(Struct, frozen=True, kw_only=True):
    """How a queue orders and deduplicates."""

    is_fifo: bool = False
    content_based_deduplication: bool = False
    deduplicates_by_group: bool = False


class DeduplicationWindow(Struct, Generic[A]):
    """What a FIFO queue has accepted in the last five minutes, by deduplication key."""

    accepted: dict[tuple[str, str], tuple[int, A]] = field(default_factory=dict)

    def first(self, key: tuple[str, str], now: int) -> A | None:
        """Return what the first message of that key was answered with, if that was lately."""
        since = now - _DEDUPLICATION_MILLISECONDS
        while self.accepted and next(iter(self.accepted.values()))[0] <= since:  # in the order of their times
            del self.accepted[next(iter(self.accepted))]
        earlier = self.accepted.get(key)
        return earlier[1] if earlier else None

    def remember(self, key: tuple[str, str], answer: A, now: int) -> None:
        """Answer duplicates of this message with `answer` from now on."""
        self.accepted[key] = (now, answer)


def sequence_numbers() -> Iterator[str]:
    """Yield the sequence numbers of a region's FIFO messages."""
    return map(str, count(_FIRST_SEQUENCE_NUMBER, 256))


def deduplication_key(
    settings: FifoSettings, body: str, deduplication_id: str | None, group: str | None
) -> tuple[str, str] | None:
    """Return what makes a message a duplicate in a FIFO queue; None in a standard queue.

    Raises:
        ServiceError: A FIFO queue's message lacks a group or a deduplication id.
    """
    if not settings.is_fifo:
        return None
    if not group:
        raise ServiceError("MissingParameter", "The request must contain the parameter MessageGroupId.")
    if deduplication_id is None and settings.content_based_deduplication:
        deduplication_id = hashlib.sha256(body.encode()).hexdigest()
    if deduplication_id is None:
        message = "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
        raise ServiceError("InvalidParameterValue", message)
    return (group if settings.deduplicates_by_group else "", deduplication_id)


def accepts_events(settings: FifoSettings, group: str | None) -> bool:
    """Whether EventBridge can deliver to the queue; it drops an event for a FIFO queue that it cannot deduplicate for."""
    return not settings.is_fifo or bool(group and settings.content_based_deduplication)


def receivable(messages: Sequence[M], settings: FifoSettings, now: int) -> Iterator[M]:
    """Yield the messages that can be received now, in order; a FIFO group with one in flight or delayed yields none behind it."""
    blocked: set[str | None] = set()
    if settings.is_fifo:
        blocked = {m.group for m in messages if m.receives and m.visible_at > now}
    for message in messages:
        if settings.is_fifo and message.visible_at > now:
            blocked.add(message.group)
        if message.visible_at <= now and not (settings.is_fifo and message.group in blocked):
            yield message


def next_receivable_at(messages: Iterable[QueuedMessage], settings: FifoSettings) -> float:
    """Return the millisecond at which the next of these messages (at least one) can be received."""
    if not settings.is_fifo:
        return min(message.visible_at for message in messages)
    groups: dict[str | None, float] = {}
    for message in messages:
        if message.group not in groups:
            groups[message.group] = message.visible_at
        elif message.receives:
            groups[message.group] = max(groups[message.group], message.visible_at)
    return min(groups.values())


def is_dead_letter(message: QueuedMessage, max_receive_count: int | None) -> bool:
    """Whether the redrive policy sends a message to the dead-letter queue instead of to its next receiver."""
    return max_receive_count is not None and message.receives >= max_receive_count


def is_in_flight(message: QueuedMessage, *, is_latest_handle: bool, now: int) -> bool:
    """Whether a receipt handle stands for a message whose visibility timeout has not ended."""
    return is_latest_handle and message.visible_at > now


def can_delete(message: QueuedMessage, settings: FifoSettings, *, is_latest_handle: bool, now: int) -> bool:
    """Whether a receipt handle deletes its message: only the latest one does, in a FIFO queue only while in flight."""
    return is_latest_handle and (not settings.is_fifo or message.visible_at > now)
