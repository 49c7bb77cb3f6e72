"""The state that the forwarder keeps of watched objects, and the changes that it sends notifications for.

A tracker keeps no objects, except of the few nodes that join: a pod is one number, a node two flags. A list fills a new tracker page by page, which is compared with the
one before, so that changes during an outage are found and nothing is sent twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import Any, Final, Protocol, TypeVar

from infra.forwarder.notifications import Notification, NotificationCause, PodSummary
from infra.forwarder.watched_objects import (
    NodeClaimState,
    NodeState,
    PendingPod,
    SpecRevision,
    SpecState,
    UninitializedNode,
)

S = TypeVar("S", bound="Tracker")

MAX_PODS: Final = 40_000
"""Pods that are tracked one by one, in some 160 bytes each, and twice during a list. Pods beyond them are not counted, and a
notification is sent each time they change."""

_UNKNOWN: Final = 2**40  # later than any creation time


class Tracker(Protocol):
    """The state of the objects of one kind."""

    @property
    def needs_list(self) -> bool:
        """Whether the objects should be listed again."""
        ...

    def fresh(self: S) -> S:
        """Return an empty tracker, for a list."""
        ...

    def add_page(self: S, objects: Iterable[Any], before: S) -> Iterator[Notification]:
        """Add a page of a list; notify of differences from the tracker before."""
        ...

    def finish_list(self: S, before: S, version: str) -> Iterator[Notification]:
        """End the list, at that version."""
        ...

    def apply(self, type_: str, changed: Any) -> Notification | None:
        """Apply a watch event: ADDED, MODIFIED, DELETED."""
        ...


class PodTracker:
    """The pods without a node, by UID. A pod is the second of its creation, negative while it is unschedulable.

    Args:
        max_pods: Pods that are tracked one by one.
    """

    def __init__(self, max_pods: int = MAX_PODS) -> None:
        self._max_pods = max_pods
        self._pods: dict[str, int] = {}
        self._is_incomplete = False

    def fresh(self) -> PodTracker:
        """Return an empty tracker of the same size, for a list."""
        return PodTracker(self._max_pods)

    def add_page(self, pods: Iterable[PendingPod], before: PodTracker) -> Iterator[Notification]:
        """Add a page of a list; notify of pods that were not unschedulable before."""
        for pod in pods:
            was_unschedulable = before._pods.get(pod.metadata.uid, 0) < 0
            if self._put(pod) and not was_unschedulable:
                yield _unschedulable(pod)

    def finish_list(self, before: PodTracker, version: str) -> Iterator[Notification]:
        """End the list; pods that are gone need no notification."""
        return iter(())

    def apply(self, type_: str, pod: PendingPod) -> Notification | None:
        """Apply a watch event; notify of a pod that has become unschedulable.

        A pod that gets a node no longer matches the field selector, which the API server reports as DELETED.
        """
        if type_ == "DELETED":
            self._pods.pop(pod.metadata.uid, None)
            return None
        was_unschedulable = self._pods.get(pod.metadata.uid, 0) < 0
        return _unschedulable(pod) if self._put(pod) and not was_unschedulable else None

    @property
    def needs_list(self) -> bool:
        """Whether pods beyond `max_pods` were dropped, and half of the others are gone by now."""
        return self._is_incomplete and len(self._pods) < self._max_pods // 2

    def summary(self) -> PodSummary:
        """Return the counts (of the tracked pods), and when the oldest unschedulable pod was created."""
        unschedulable = [-created for created in self._pods.values() if created < 0]
        oldest = min(unschedulable, default=_UNKNOWN)
        since = datetime.fromtimestamp(oldest, timezone.utc) if oldest < _UNKNOWN else None
        return PodSummary(len(self._pods), len(unschedulable), since)

    def _put(self, pod: PendingPod) -> bool:
        """Track the pod, unless there are too many; return whether it is unschedulable."""
        unschedulable = pod.is_unschedulable
        if len(self._pods) >= self._max_pods and pod.metadata.uid not in self._pods:
            self._is_incomplete = True
            return unschedulable
        created = pod.metadata.creation_timestamp
        second = int(created.timestamp()) if created else _UNKNOWN
        self._pods[pod.metadata.uid] = -second if unschedulable else second
        return unschedulable


def _unschedulable(pod: PendingPod) -> Notification:
    return Notification(NotificationCause.POD_UNSCHEDULABLE, pod.metadata.uid, pod.metadata.resource_version)


class NodeTracker:
    """The nodes by name: whether each is ready, and whether it is being deleted."""

    needs_list: Final = False

    def __init__(self) -> None:
        self._ready: dict[str, bool] = {}
        self._deleting: set[str] = set()
        self._is_listed = False

    def fresh(self) -> NodeTracker:
        """Return an empty tracker, for a list."""
        return NodeTracker()

    def add_page(self, nodes: Iterable[NodeState], before: NodeTracker) -> Iterator[Notification]:
        """Add a page of a list; notify of differences from the tracker before.

        The first list notifies of nodes that are being deleted only, because the forwarder may not have run when they were deleted.
        """
        for node in nodes:
            self._put(node)
            cause = before._cause(node)
            if cause and (before._is_listed or cause is NotificationCause.NODE_DELETING):
                yield Notification(cause, node.name, node.version)

    def finish_list(self, before: NodeTracker, version: str) -> Iterator[Notification]:
        """End the list; notify of nodes that are gone."""
        self._is_listed = True
        for name in before._ready.keys() - self._ready.keys():
            yield Notification(NotificationCause.NODE_GONE, name, version)

    def apply(self, type_: str, node: NodeState) -> Notification | None:
        """Apply a watch event."""
        if type_ == "DELETED":
            self._ready.pop(node.name, None)
            self._deleting.discard(node.name)
            return Notification(NotificationCause.NODE_GONE, node.name, node.version)
        cause = self._cause(node)
        self._put(node)
        return Notification(cause, node.name, node.version) if cause else None

    def _put(self, node: NodeState) -> None:
        self._ready[node.name] = node.ready
        if node.deleting:
            self._deleting.add(node.name)
        else:
            self._deleting.discard(node.name)  # a new node of the same name

    def _cause(self, node: NodeState) -> NotificationCause | None:
        """Return what has changed; the deletion comes first."""
        if node.deleting and node.name not in self._deleting:
            return NotificationCause.NODE_DELETING
        was_ready = self._ready.get(node.name)
        if was_ready is None:
            return NotificationCause.NODE_JOINED
        if was_ready == node.ready:
            return None
        return NotificationCause.NODE_READY if node.ready else NotificationCause.NODE_NOT_READY


class UninitializedNodeTracker:
    """The nodes that are not initialized, by name: their taints and resources. Notifies when a taint goes or a resource comes."""

    needs_list: Final = False

    def __init__(self) -> None:
        self._nodes: dict[str, UninitializedNode] = {}

    def fresh(self) -> UninitializedNodeTracker:
        """Return an empty tracker, for a list."""
        return UninitializedNodeTracker()

    def add_page(self, nodes: Iterable[UninitializedNode], before: UninitializedNodeTracker) -> Iterator[Notification]:
        """Add a page of a list; notify of differences from the tracker before."""
        for node in nodes:
            self._nodes[node.name] = node
            if notification := _set_up(before._nodes.get(node.name), node):
                yield notification

    def finish_list(self, before: UninitializedNodeTracker, version: str) -> Iterator[Notification]:
        """End the list; a node that is initialized or gone needs no notification of this kind."""
        return iter(())

    def apply(self, type_: str, node: UninitializedNode) -> Notification | None:
        """Apply a watch event. The API server reports a node that no longer matches the selector as DELETED."""
        before = self._nodes.pop(node.name, None)
        if type_ == "DELETED":
            return None
        self._nodes[node.name] = node
        return _set_up(before, node)


def _set_up(before: UninitializedNode | None, node: UninitializedNode) -> Notification | None:
    if before is None or (node.taints >= before.taints and node.resources <= before.resources):
        return None
    return Notification(NotificationCause.NODE_SET_UP, node.name, node.metadata.resource_version)


class NodeClaimTracker:
    """The NodeClaims by UID, and whether each is being deleted."""

    needs_list: Final = False

    def __init__(self) -> None:
        self._deleting: dict[str, bool] = {}
        self._is_listed = False

    def fresh(self) -> NodeClaimTracker:
        """Return an empty tracker, for a list."""
        return NodeClaimTracker()

    def add_page(self, claims: Iterable[NodeClaimState], before: NodeClaimTracker) -> Iterator[Notification]:
        """Add a page of a list; notify of differences from the tracker before, unless this is the first list."""
        for claim in claims:
            uid, deleting = claim.metadata.uid, claim.is_deleting
            self._deleting[uid] = deleting
            if before._is_listed and (cause := _claim_cause(before._deleting.get(uid), claim)):
                yield Notification(cause, uid, claim.metadata.resource_version)

    def finish_list(self, before: NodeClaimTracker, version: str) -> Iterator[Notification]:
        """End the list; notify of NodeClaims that are gone, and of the start if this is the first list and there are any."""
        self._is_listed = True
        if self._deleting and not before._is_listed:
            yield Notification(NotificationCause.STARTED, "claims", version)
        for uid in before._deleting.keys() - self._deleting.keys():
            yield Notification(NotificationCause.CLAIM_GONE, uid, version)

    def apply(self, type_: str, claim: NodeClaimState) -> Notification | None:
        """Apply a watch event."""
        uid, version = claim.metadata.uid, claim.metadata.resource_version
        if type_ == "DELETED":
            self._deleting.pop(uid, None)
            return Notification(NotificationCause.CLAIM_GONE, uid, version)
        cause = _claim_cause(self._deleting.get(uid), claim)
        self._deleting[uid] = claim.is_deleting
        return Notification(cause, uid, version) if cause else None


def _claim_cause(was_deleting: bool | None, claim: NodeClaimState) -> NotificationCause | None:
    if claim.is_deleting and not was_deleting:
        return NotificationCause.CLAIM_DELETING
    return NotificationCause.CLAIM_CREATED if was_deleting is None and not claim.has_node_pool else None


class SpecTracker:
    """NodePools or NodeClasses by UID. Notifies of new specs and changes of a spec, but not of statuses and metadata.

    A NodePool that is new or was changed is validated, and may have capacity for pending pods; so may a NodeClass that was
    corrected. A NodeClass that is being deleted is finalized after its last NodeClaim.

    Args:
        cause: The cause of its notifications.
    """

    needs_list: Final = False

    def __init__(self, cause: NotificationCause) -> None:
        self._cause = cause
        self._revisions: dict[str, SpecRevision] = {}
        self._is_listed = False

    def fresh(self) -> SpecTracker:
        """Return an empty tracker, for a list."""
        return SpecTracker(self._cause)

    def add_page(self, specs: Iterable[SpecState], before: SpecTracker) -> Iterator[Notification]:
        """Add a page of a list; notify of differences from the tracker before, unless this is the first list."""
        for spec in specs:
            if (notification := self._put(spec, before._revisions)) and before._is_listed:
                yield notification

    def finish_list(self, before: SpecTracker, version: str) -> Iterator[Notification]:
        """End the list; objects that are gone need no notification, because their NodeClaims are notified of."""
        self._is_listed = True
        return iter(())

    def apply(self, type_: str, spec: SpecState) -> Notification | None:
        """Apply a watch event."""
        if type_ == "DELETED":
            self._revisions.pop(spec.metadata.uid, None)
            return None
        return self._put(spec, self._revisions)

    def _put(self, spec: SpecState, earlier: dict[str, SpecRevision]) -> Notification | None:
        uid, revision = spec.metadata.uid, spec.revision
        has_changed = earlier.get(uid) != revision
        self._revisions[uid] = revision
        return Notification(self._cause, uid, spec.metadata.resource_version) if has_changed else None
