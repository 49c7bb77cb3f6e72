"""Which pods wait for a node, and whether that is news. Only four fields of a pod are ever decoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import Final, NamedTuple

import msgspec

from infra.forwarder.news import Cause, News

MOST_PODS: Final = 40_000
"""How many are known one by one, in some 160 bytes each, and twice while they are listed. Beyond them a pod is news whenever
it is seen, and is not counted."""

_UNKNOWN: Final = 2**40  # a second later than any


class Condition(msgspec.Struct, frozen=True, gc=False):
    """One entry of `status.conditions`."""

    type: str = ""
    status: str = ""
    reason: str = ""


class PodStatus(msgspec.Struct, frozen=True, gc=False):
    """`status`."""

    conditions: tuple[Condition, ...] = ()


class Metadata(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """`metadata`."""

    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None


class Pod(msgspec.Struct, frozen=True, gc=False):
    """A pod without a node."""

    metadata: Metadata = Metadata()
    status: PodStatus = PodStatus()

    @property
    def is_unschedulable(self) -> bool:
        """Whether kube-scheduler has tried and found no node (scheduling gates are another reason)."""
        return any(
            c.type == "PodScheduled" and c.status == "False" and c.reason == "Unschedulable"
            for c in self.status.conditions
        )


class Summary(NamedTuple):
    """What the message tells of the pods that wait."""

    pending: int
    unschedulable: int
    oldest: datetime | None


class Waiting:
    """The pods without a node, by UID. A pod is the second it was created in, negative while it is unschedulable.

    Args:
        most: How many are known one by one.
    """

    def __init__(self, most: int = MOST_PODS) -> None:
        self._most = most
        self._pods: dict[str, int] = {}
        self._more = False

    def fresh(self) -> Waiting:
        """An empty one of the same size, to list into."""
        return Waiting(self._most)

    def take_page(self, pods: Iterable[Pod], before: Waiting) -> Iterator[News]:
        """Take over a page of a list; what `before` did not know to be unschedulable is news."""
        for pod in pods:
            known = before._pods.get(pod.metadata.uid, 0) < 0
            if self._put(pod) and not known:
                yield _news(pod)

    def ended(self, before: Waiting, version: str) -> Iterator[News]:
        """The list has ended; that pods are no longer there is nothing to tell."""
        return iter(())

    def apply(self, type_: str, pod: Pod) -> News | None:
        """Take over one change; a pod that has just become unschedulable is news.

        A pod that gets a node leaves the watched set, which the API server reports as DELETED.
        """
        if type_ == "DELETED":
            self._pods.pop(pod.metadata.uid, None)
            return None
        known = self._pods.get(pod.metadata.uid, 0) < 0
        return _news(pod) if self._put(pod) and not known else None

    @property
    def wants_list(self) -> bool:
        """Whether there is room again for those that there was none for, so that they should be listed anew."""
        return self._more and len(self._pods) < self._most // 2

    def summary(self) -> Summary:
        """Counts (of those known one by one), and the creation of the oldest unschedulable pod."""
        stuck = [-created for created in self._pods.values() if created < 0]
        oldest = min(stuck, default=_UNKNOWN)
        since = datetime.fromtimestamp(oldest, timezone.utc) if oldest < _UNKNOWN else None
        return Summary(len(self._pods), len(stuck), since)

    def _put(self, pod: Pod) -> bool:
        """Remember it, if there is room; whether it is unschedulable."""
        stuck = pod.is_unschedulable
        if len(self._pods) >= self._most and pod.metadata.uid not in self._pods:
            self._more = True
            return stuck
        created = pod.metadata.creation_timestamp
        second = int(created.timestamp()) if created else _UNKNOWN
        self._pods[pod.metadata.uid] = -second if stuck else second
        return stuck


def _news(pod: Pod) -> News:
    return News(Cause.POD_UNSCHEDULABLE, pod.metadata.uid, pod.metadata.resource_version)
