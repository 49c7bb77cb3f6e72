"""Notifications and their causes, one open batch for each step, and the body of a batch's message.

Time is a parameter everywhere here. Memory grows neither with the cluster nor with the length of an outage: a step's batch is a
count for each cause, and one number that identifies the notifications in it.

==================  ==================  ===========================================================================
cause               starts              because
==================  ==================  ===========================================================================
pod unschedulable   provision           the pod needs a node
node joined         provision           it registers the node: labels, taints, nominated pods
node ready          provision           it initializes the node
node set up         provision           a startup taint is gone, or a device plugin has registered its resource
node not ready      terminate           the node's instance may be gone
node deleting       terminate           it drains the node and deletes its NodeClaim
node gone           provision,          its pods are pending
                    terminate           it finalizes the NodeClaim
claim created       provision           it launches manually created NodeClaims (those without a NodePool)
claim deleting      terminate           it drains the node
claim gone          provision           the NodePool's limits may allow a new node
pool changed        provision           it validates the NodePool, which may allow nodes for pending pods
class changed       provision           the same for a NodeClass; it finalizes one that is being deleted
started             provision,          changes before the forwarder started are unknown; only a cluster with NodeClaims
                    terminate           can have missed any
==================  ==================  ===========================================================================
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum
from typing import Final, NamedTuple

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 30.0


class NotifiedStep(str, Enum):
    """The steps that the forwarder starts; each has a queue of its own."""

    PROVISION = "provision"
    TERMINATE = "terminate"


class NotificationCause(str, Enum):
    """Why a step is started; the value is the key in the message's counts."""

    POD_UNSCHEDULABLE = "podsNewlyUnschedulable"
    NODE_JOINED = "nodesJoined"
    NODE_READY = "nodesReady"
    NODE_SET_UP = "nodesSetUp"
    NODE_NOT_READY = "nodesNotReady"
    NODE_DELETING = "nodesDeleting"
    NODE_GONE = "nodesGone"
    CLAIM_CREATED = "claimsCreated"
    CLAIM_DELETING = "claimsDeleting"
    CLAIM_GONE = "claimsGone"
    POOL_CHANGED = "nodePoolsChanged"
    CLASS_CHANGED = "nodeClassesChanged"
    STARTED = "forwarderStarted"


_BOTH: Final = (NotifiedStep.PROVISION, NotifiedStep.TERMINATE)
REQUEUED_STEPS: Final[Mapping[NotificationCause, tuple[NotifiedStep, ...]]] = {
    NotificationCause.POD_UNSCHEDULABLE: (NotifiedStep.PROVISION,),
    NotificationCause.NODE_JOINED: (NotifiedStep.PROVISION,),
    NotificationCause.NODE_READY: (NotifiedStep.PROVISION,),
    NotificationCause.NODE_SET_UP: (NotifiedStep.PROVISION,),
    NotificationCause.NODE_NOT_READY: (NotifiedStep.TERMINATE,),
    NotificationCause.NODE_DELETING: (NotifiedStep.TERMINATE,),
    NotificationCause.NODE_GONE: _BOTH,
    NotificationCause.CLAIM_CREATED: (NotifiedStep.PROVISION,),
    NotificationCause.CLAIM_DELETING: (NotifiedStep.TERMINATE,),
    NotificationCause.CLAIM_GONE: (NotifiedStep.PROVISION,),
    NotificationCause.POOL_CHANGED: (NotifiedStep.PROVISION,),
    NotificationCause.CLASS_CHANGED: (NotifiedStep.PROVISION,),
    NotificationCause.STARTED: _BOTH,
}
_REASONS: Final[Mapping[NotificationCause, tuple[str, str]]] = {
    NotificationCause.NODE_JOINED: ("node joined", "nodes joined"),
    NotificationCause.NODE_READY: ("node became ready", "nodes became ready"),
    NotificationCause.NODE_SET_UP: (
        "node lost a taint or has a new resource",
        "nodes lost a taint or have a new resource",
    ),
    NotificationCause.NODE_NOT_READY: ("node is no longer ready", "nodes are no longer ready"),
    NotificationCause.NODE_DELETING: ("node is being deleted", "nodes are being deleted"),
    NotificationCause.NODE_GONE: ("node is gone", "nodes are gone"),
    NotificationCause.CLAIM_CREATED: ("NodeClaim was created manually", "NodeClaims were created manually"),
    NotificationCause.CLAIM_DELETING: ("NodeClaim is being deleted", "NodeClaims are being deleted"),
    NotificationCause.CLAIM_GONE: ("NodeClaim is gone", "NodeClaims are gone"),
    NotificationCause.POOL_CHANGED: ("NodePool is new or changed", "NodePools are new or changed"),
    NotificationCause.CLASS_CHANGED: ("NodeClass is new or changed", "NodeClasses are new or changed"),
}
"""What happened to one object, and to several."""


class Notification(NamedTuple):
    """One change that starts a step: its cause, the object's name or UID, and the object's version."""

    cause: NotificationCause
    name: str
    version: str

    @property
    def fingerprint(self) -> int:
        """A number that is the same in every replica."""
        text = "/".join((self.cause.value, self.name, self.version))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big")


class PodSummary(NamedTuple):
    """The pending pods: how many, how many of them are unschedulable, and when the oldest of those was created."""

    pending: int
    unschedulable: int
    oldest: datetime | None


class Batch(NamedTuple):
    """A closed batch: how many notifications of each cause a step gets in one message."""

    step: NotifiedStep
    counts: Mapping[NotificationCause, int]
    fingerprint: int

    @property
    def id(self) -> str:
        """The deduplication id, the same in every replica with the same notifications; at most 128 characters, as SQS requires."""
        return f"{self.step.value}-{self.fingerprint:032x}"

    def is_obsolete(self, pods: PodSummary) -> bool:
        """Return whether the batch is about unschedulable pods only, and there are none any more."""
        return not pods.unschedulable and self.counts.keys() <= {NotificationCause.POD_UNSCHEDULABLE}

    def message(self, cluster: str, pods: PodSummary, now: datetime) -> str:
        """Return the body of the message: counts and an age, never objects, because the step reads the cluster itself.

        Args:
            cluster: Its registered name.
            pods: The pods that are pending now.
            now: When the message is sent.
        """
        counts = {cause.value: self.counts[cause] for cause in NotificationCause if self.counts.get(cause)}
        body: dict[str, object] = {
            "version": "1",
            "source": "forwarder",
            "id": self.id,
            "time": now.isoformat(),
            "cluster": cluster,
            "step": self.step.value,
            "reason": self.reason(pods),
            "counts": {"pending": pods.pending, "unschedulable": pods.unschedulable, **counts},
        }
        if pods.oldest is not None:
            body["oldestPendingTime"] = pods.oldest.isoformat()
        return json.dumps(body, separators=(",", ":"))

    def reason(self, pods: PodSummary) -> str:
        """Return the causes as readable text."""
        reasons = [_counted(self.counts[cause], texts) for cause, texts in _REASONS.items() if self.counts.get(cause)]
        if NotificationCause.STARTED in self.counts:
            reasons.append("the forwarder has started")
        if self.step is NotifiedStep.PROVISION and pods.unschedulable:
            reasons.insert(0, _counted(pods.unschedulable, ("pod is unschedulable", "pods are unschedulable")))
        return ", ".join(reasons)


def _counted(number: int, texts: tuple[str, str]) -> str:
    """Return the number before the text for one, or for several."""
    one, several = texts
    return f"{number} {one if number == 1 else several}"


class BatchWindow:
    """When the open batch closes: after `idle_seconds` without a notification, or `max_seconds` after the first one.

    A batch that could not be sent stays open, with a growing pause between attempts; later notifications join it.

    Restates: karpenter pkg/controllers/provisioning/batcher.go (BATCH_IDLE_DURATION, BATCH_MAX_DURATION).
    """

    def __init__(self, idle_seconds: float = 1.0, max_seconds: float = 10.0) -> None:
        self._idle_seconds = idle_seconds
        self._max_seconds = max_seconds
        self._opened: float | None = None
        self._latest = 0.0
        self._failures = 0
        self._not_before = 0.0

    def add(self, now: float) -> None:
        """Open the batch, or keep it open, for a notification."""
        self._opened = now if self._opened is None else self._opened
        self._latest = now

    def due(self) -> float | None:
        """Return when the batch closes; None if none is open."""
        if self._opened is None:
            return None
        return max(min(self._latest + self._idle_seconds, self._opened + self._max_seconds), self._not_before)

    def close(self, now: float) -> bool:
        """Close the batch if it is due, and return whether it was; then call `sent` or `failed`."""
        due = self.due()
        if due is None or due > now:
            return False
        self._opened = None
        return True

    def close_now(self) -> bool:
        """Close the batch, whatever its window; return whether one was open."""
        was_open, self._opened = self._opened is not None, None
        return was_open

    def sent(self) -> None:
        """Reset the pauses: the batch was sent."""
        self._failures = 0
        self._not_before = 0.0

    def failed(self, now: float, *, min_seconds: float = 0.0, jitter: float = 1.0) -> None:
        """Open the batch again, because it was not sent, and wait before the next attempt.

        Args:
            now: The time.
            min_seconds: The shortest pause, if the sink requested one, up to `LONGEST_PAUSE_SECONDS`.
            jitter: A factor above 0 up to 1, so that many senders do not try again together.
        """
        pause = jitter * min(FIRST_PAUSE_SECONDS * 2**self._failures, LONGEST_PAUSE_SECONDS)
        self._failures = min(self._failures + 1, 16)  # the pause stopped growing long before
        self._not_before = now + min(max(pause, min_seconds), LONGEST_PAUSE_SECONDS)
        self.add(now)


class _OpenBatch:
    """The notifications for one step that are not sent yet."""

    def __init__(self, window: BatchWindow) -> None:
        self.window = window
        self.counts: Counter[NotificationCause] = Counter()
        self.fingerprint = 0
        self._known: set[tuple[NotificationCause, str]] = set()

    def notify(self, notification: Notification, now: float) -> None:
        """Add a notification; another one of the same cause and object does not extend the window.

        A pod whose status changes all the time must not delay the others.
        """
        self.add({notification.cause: 1}, notification.fingerprint)
        if (notification.cause, notification.name) not in self._known:
            self._known.add((notification.cause, notification.name))
            self.window.add(now)

    def add(self, counts: Mapping[NotificationCause, int], fingerprint: int) -> None:
        self.counts.update(counts)
        self.fingerprint ^= fingerprint

    def take(self, step: NotifiedStep) -> Batch:
        taken = Batch(step, self.counts, self.fingerprint)
        self.counts, self.fingerprint = Counter(), 0
        self._known.clear()
        return taken


class Batcher:
    """Collects notifications into one batch for each step. Not safe to use from several threads.

    Args:
        idle_seconds: A batch closes after so long without a notification.
        max_seconds: A batch closes so long after its first notification at the latest.
    """

    def __init__(self, idle_seconds: float = 1.0, max_seconds: float = 10.0) -> None:
        self._open = {step: _OpenBatch(BatchWindow(idle_seconds, max_seconds)) for step in NotifiedStep}

    def add(self, notifications: Iterable[Notification], now: float) -> bool:
        """Add notifications to the batches of their steps; return whether there were any."""
        added = False
        for notification in notifications:
            added = True
            for step in REQUEUED_STEPS[notification.cause]:
                self._open[step].notify(notification, now)
        return added

    def due(self) -> float | None:
        """Return when the next batch closes; None if none is open."""
        return min((due for each in self._open.values() if (due := each.window.due()) is not None), default=None)

    def take(self, now: float, *, flush: bool = False) -> tuple[Batch, ...]:
        """Return the batches that are due, or all open ones; call `delivered` or `failed` for each."""
        return tuple(
            each.take(step)
            for step, each in self._open.items()
            if (each.window.close_now() if flush else each.window.close(now))
        )

    def delivered(self, batch: Batch) -> None:
        """Record that a batch was sent, or was obsolete."""
        self._open[batch.step].window.sent()

    def failed(self, batch: Batch, now: float, *, min_seconds: float = 0.0, jitter: float = 1.0) -> None:
        """Put a batch that was not sent back into the open one, to be sent after a pause (`BatchWindow.failed`)."""
        open_batch = self._open[batch.step]
        open_batch.add(batch.counts, batch.fingerprint)
        open_batch.window.failed(now, min_seconds=min_seconds, jitter=jitter)
