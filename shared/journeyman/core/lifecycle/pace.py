"""How often what is on its way out is looked at: soon at first, ever more rarely as it drags on.

Differs: Karpenter looks at drains and volumes every second, at instances every five, however long that takes.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from journeyman.core.api.objects import NodeClaim, condition_of
from journeyman.core.lifecycle.drain import Drain
from journeyman.core.lifecycle.progress import poll_at
from journeyman.core.plan import Requeue, Step

SLOWEST_POLL: Final = timedelta(seconds=30)
A_MOMENT: Final = timedelta(seconds=1)


class Termination(Struct, frozen=True, kw_only=True):
    """The pace: the least a drain takes, and how often drain, volumes and instance are looked at."""

    min_drain: timedelta = timedelta(seconds=5)
    drain_poll: timedelta = timedelta(seconds=2)
    instance_poll: timedelta = timedelta(seconds=5)


def since(claim: NodeClaim, condition: str, now: datetime) -> datetime:
    """When the condition came to say what it says; now if it is not there yet."""
    found = condition_of(claim.status.conditions, condition)
    return found.last_transition_time if found is not None and found.last_transition_time is not None else now


def drain_look(decided: Drain, node: str, now: datetime, began: datetime, pace: Termination) -> Requeue:
    """The next look at a drain: no later than the next forced deletion, nor than the least that a drain takes."""
    at = poll_at(now, began, pace.drain_poll, SLOWEST_POLL)
    if not decided.remaining:
        at = max(began + pace.min_drain, now)
    if decided.next_force is not None:
        at = min(at, decided.next_force + A_MOMENT)
    return Requeue(step=Step.TERMINATE, at=at, reason=f"node {node} is draining")


def volume_look(node: str, now: datetime, began: datetime, end: datetime | None, pace: Termination) -> Requeue:
    """The next look at volumes: no later than the node's end, at which they are waited for no longer."""
    at = poll_at(now, began, pace.drain_poll, SLOWEST_POLL)
    if end is not None:
        at = min(at, end + A_MOMENT)
    return Requeue(step=Step.TERMINATE, at=at, reason=f"volumes of node {node} are being detached")


def instance_look(provider_id: str, now: datetime, began: datetime, pace: Termination) -> Requeue:
    """The next look at an instance that is ending."""
    at = poll_at(now, began, pace.instance_poll, SLOWEST_POLL)
    return Requeue(step=Step.TERMINATE, at=at, reason=f"instance {provider_id} is terminating")
