"""Rules of SQS: receivable messages, duplicates, expiry of receipt handles, and redrive.

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
_FIRST_SEQUENCE_NUMBER: Final = 18_849_496_460_467_696_128  # 20 digits, like AWS's numbers


class QueuedMessage(Protocol):
    """The properties of a message that the rules read. Times are milliseconds since the epoch."""

    @property
    def group(self) -> str | None:
        """Return the MessageGroupId."""
        ...

    @property
    def visible_at(self) -> float:
        """Return when the visibility timeout ends or, before the first receive, when the delay ends."""
        ...

    @property
    def receives(self) -> int:
        """Return the number of receives."""
        ...


M = TypeVar("M", bound=QueuedMessage)
A = TypeVar("A")


class FifoSettings(Struct, frozen=True, kw_only=True):
    """A queue's settings of order and deduplication."""

    is_fifo: bool = False
    content_based_deduplication: bool = False
    deduplicates_by_group: bool = False


class DeduplicationWindow(Struct, Generic[A]):
    """The messages that a FIFO queue accepted in the last five minutes, by deduplication key."""

    accepted: dict[tuple[str, str], tuple[int, A]] = field(default_factory=dict)

    def first(self, key: tuple[str, str], now: int) -> A | None:
        """Return the response to the first message with the key in the last five minutes; None if there is none."""
        since = now - _DEDUPLICATION_MILLISECONDS
        while self.accepted and next(iter(self.accepted.values()))[0] <= since:  # `accepted` is in order of time
            del self.accepted[next(iter(self.accepted))]
        earlier = self.accepted.get(key)
        return earlier[1] if earlier else None

    def record_accepted(self, key: tuple[str, str], response: A, now: int) -> None:
        """Return `response` for duplicates of this message from now on."""
        self.accepted[key] = (now, response)


def sequence_numbers() -> Iterator[str]:
    """Yield the sequence numbers of a region's FIFO messages."""
    return map(str, count(_FIRST_SEQUENCE_NUMBER, 256))


def deduplication_key(
    settings: FifoSettings, body: str, deduplication_id: str | None, group: str | None
) -> tuple[str, str] | None:
    """Return the key by which a FIFO queue recognizes duplicates; None for a standard queue.

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
    """Whether EventBridge can deliver to the queue; for a FIFO queue it needs a group and content-based deduplication."""
    return not settings.is_fifo or bool(group and settings.content_based_deduplication)


def receivable(messages: Sequence[M], settings: FifoSettings, now: int) -> Iterator[M]:
    """Yield the receivable messages in order; in a FIFO queue, a message in flight or delayed blocks the rest of its group."""
    blocked: set[str | None] = set()
    if settings.is_fifo:
        blocked = {m.group for m in messages if m.receives and m.visible_at > now}
    for message in messages:
        if settings.is_fifo and message.visible_at > now:
            blocked.add(message.group)
        if message.visible_at <= now and not (settings.is_fifo and message.group in blocked):
            yield message


def next_receivable_at(messages: Iterable[QueuedMessage], settings: FifoSettings) -> float:
    """Return the time in milliseconds at which the next message can be received; `messages` must not be empty."""
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
    """Whether the redrive policy moves a message to the dead-letter queue at its next receive."""
    return max_receive_count is not None and message.receives >= max_receive_count


def is_in_flight(message: QueuedMessage, *, is_latest_handle: bool, now: int) -> bool:
    """Whether a receipt handle is the latest of a message whose visibility timeout has not ended."""
    return is_latest_handle and message.visible_at > now


def can_delete(message: QueuedMessage, settings: FifoSettings, *, is_latest_handle: bool, now: int) -> bool:
    """Whether a receipt handle can delete its message: only the latest can, and in a FIFO queue only while in flight."""
    return is_latest_handle and (not settings.is_fifo or message.visible_at > now)
