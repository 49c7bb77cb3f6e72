"""Formats the messages that the queues of every cloud send (`journeyman.events.wire_format`), and divides them into calls."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from journeyman.core.plan import Step
from journeyman.errors import ConfigurationError
from journeyman.ports import Clock, Interruption, Message

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
