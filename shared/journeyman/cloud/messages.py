"""Formats the messages that the queues of every cloud send (`journeyman.events.wire_format`), and divides them into calls."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

import msgspec

from journeyman.core.plan import Step
from journeyman.errors import ConfigurationError
from journeyman.ports import Clock, Interruption, Message

MAX_RECEIVES: Final = 50
"""How often a message is received before it becomes a dead letter, as on AWS."""
LONGEST_REASON: Final = 1000
"""The characters of a reason that are sent; it is for people, and may quote an error of any length."""

E = TypeVar("E")


def distinct(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return each distinct message once, in order, since a plan may contain the same requeue several times.

    Raises:
        ConfigurationError: A message is for interrupt, and would lack the ids of the instances.
    """
    once = tuple(dict.fromkeys(messages))
    for message in once:
        if message.step is Step.INTERRUPT:
            raise ConfigurationError(
                "an interruption message cannot be requeued: only the cloud sends it", cluster=message.cluster
            )
    return once


def requeue_body(message: Message, *, message_id: str, clock: Clock) -> str:
    """Return the body of a requeue message."""
    body: dict[str, Any] = {
        "version": "1",
        "source": "requeue",
        "id": message_id,
        "time": clock.now().isoformat(),
        "cluster": message.cluster,
        "step": message.step.value,
        "reason": message.reason[:LONGEST_REASON],
    }
    if message.at is not None:
        body["at"] = message.at.isoformat()
    if message.hops:
        body["hops"] = message.hops
    return json.dumps(body, separators=(",", ":"))


def interruption_body(interruption: Interruption) -> str:
    """Return the body of a message about instances of one cluster."""
    body = {
        "version": "1",
        "source": "interruption",
        "id": interruption.id,
        "time": interruption.time.isoformat(),
        "cluster": interruption.cluster,
        "reason": interruption.reason,
        "kind": interruption.kind.value,
        "instanceIds": interruption.instance_ids,
        "account": interruption.account,
        "region": interruption.region,
    }
    return json.dumps(body, separators=(",", ":"))


def delay_seconds(message: Message, clock: Clock, *, longest: int) -> int:
    """Return the whole seconds until a message is due, at most `longest`; 0 if it is due already."""
    if message.at is None:
        return 0
    seconds = math.ceil((message.at - clock.now()).total_seconds())
    return min(max(seconds, 0), longest)


def with_receives(body: str, receives: int) -> str:
    """Return the body of a message with the number of its receives; unchanged if it is not a JSON object."""
    try:
        counted = {**msgspec.json.decode(body, type=dict[str, Any]), "receives": receives}
        return json.dumps(counted, separators=(",", ":"))
    except (ValueError, RecursionError):  # msgspec's errors are subclasses
        return body


def receives_of(body: str) -> int:
    """Return which receive of a message this is, by its body; 1 if it was not sent again yet, or does not parse."""
    try:
        return max(msgspec.json.decode(body, type=_Counted).receives, 0) + 1
    except (ValueError, RecursionError):
        return 1


class _Counted(msgspec.Struct, frozen=True):
    """The field that `with_receives` adds to a body."""

    receives: int = 0


def batches(
    entries: Iterable[E], *, entries_per_call: int, bytes_per_call: int, size_of: Callable[[E], int]
) -> Iterator[list[E]]:
    """Yield the entries in batches of at most so many entries and bytes, in order; a larger entry is alone in its batch."""
    batch: list[E] = []
    batch_bytes = 0
    for entry in entries:
        entry_bytes = size_of(entry)
        if batch and (len(batch) == entries_per_call or batch_bytes + entry_bytes > bytes_per_call):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(entry)
        batch_bytes += entry_bytes
    if batch:
        yield batch
