"""Which pods wait for a node, and whether that is news. Only four fields of a pod are ever decoded."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

import msgspec


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
    """The pods without a node, by UID."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[datetime | None, bool]] = {}

    @classmethod
    def of(cls, pages: Iterable[Iterable[Pod]]) -> Waiting:
        """Those of a list, taken over page by page, so that no more than one page is held."""
        listed = cls()
        for page in pages:
            for pod in page:
                listed.apply("ADDED", pod)
        return listed

    def replace(self, listed: Waiting) -> bool:
        """Become what was listed; True if a pod is unschedulable that was not known to be."""
        before, self._pods = self._pods, listed._pods
        return any(stuck and not before.get(uid, (None, False))[1] for uid, (_, stuck) in self._pods.items())

    def apply(self, type_: str, pod: Pod) -> bool:
        """Take over one change; True if the pod has just become unschedulable.

        A pod that gets a node leaves the watched set, which the API server reports as DELETED.
        """
        if type_ == "DELETED":
            self._pods.pop(pod.metadata.uid, None)
            return False
        uid = pod.metadata.uid
        known = self._pods.get(uid, (None, False))[1]
        self._pods[uid] = (pod.metadata.creation_timestamp, pod.is_unschedulable)
        return pod.is_unschedulable and not known

    def summary(self) -> Summary:
        """Counts, and the creation of the oldest unschedulable pod."""
        created = [created for created, unschedulable in self._pods.values() if unschedulable]
        return Summary(len(self._pods), len(created), min((c for c in created if c is not None), default=None))
