"""Watches one cluster, and sends each step one message per batch of notifications.

A thread each watches pods, nodes, those that join, NodeClaims, NodePools and each kind of NodeClass; one thread sends the batches that are due. All of them
retry forever. A notification is lost only with the process, and the next process notifies again once it has listed everything:
of unschedulable pods, and of its start if there are NodeClaims. A step's open batch is a count for each cause
(`notifications.Batcher`), so neither an outage of the sink nor many changes cost memory.

Replicas need no coordination: each sees the same changes and gives its message the same deduplication id, so a FIFO queue
drops the second message, and a step that is started twice finds nothing to do the second time. Electing a leader would need
write permission, and a failover would take the seconds that a second replica saves.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any, Final, Protocol

from infra.forwarder import trackers, watched_objects
from infra.forwarder.notifications import Batch, Batcher, Notification, NotificationCause, NotifiedStep
from infra.forwarder.observability import MESSAGES, Metrics
from infra.forwarder.watcher import FIRST_PAUSE_SECONDS, WATCH_SECONDS, Watcher
from journeyman.kube.transport import Transport

FLUSH_SECONDS: Final = 10.0

log = logging.getLogger("forwarder")
_jitter = random.SystemRandom()


class SendError(Exception):
    """The sink did not accept the message, which is sent again after at least `retry_after` seconds."""

    def __init__(self, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Sink(Protocol):
    """Where messages are sent."""

    @property
    def name(self) -> str:
        """The sink's label in metrics."""
        ...

    def send(self, step: NotifiedStep, body: str, message_id: str) -> None:
        """Send one message for a step. Raises SendError if the sink did not accept it."""
        ...


class Forwarder:
    """Watches one cluster until `stop`.

    Args:
        cluster: The cluster's name in the functions' settings.
        transport: Sends requests to the cluster's API server.
        sink: Sends messages to the functions.
        cloud: The cloud whose NodeClasses are watched: a key of `NODE_CLASSES`.
        batcher: Collects notifications into batches.
        metrics: Counts messages, watches and bytes.
        watch_seconds: How long one watch lasts before the next one begins.
        first_pause_seconds: The pause after the first failure of the API server; it doubles up to half a minute.
    """

    def __init__(
        self,
        cluster: str,
        transport: Transport,
        sink: Sink,
        *,
        cloud: str = "aws",
        batcher: Batcher | None = None,
        metrics: Metrics | None = None,
        watch_seconds: float = WATCH_SECONDS,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
    ) -> None:
        self._cluster = cluster
        self._sink = sink
        self._batcher = batcher or Batcher()
        self._metrics = metrics or Metrics()
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._undelivered_since: dict[NotifiedStep, float] = {}
        shared: dict[str, Any] = {
            "lock": self._changed,
            "metrics": self._metrics,
            "watch_seconds": watch_seconds,
            "first_pause_seconds": first_pause_seconds,
        }
        pools = trackers.SpecTracker(NotificationCause.POOL_CHANGED)
        self._pods = Watcher(transport, watched_objects.PodResource(), trackers.PodTracker(), self._notify, **shared)
        self._watchers: tuple[Watcher[Any], ...] = (
            self._pods,
            Watcher(transport, watched_objects.NodeResource(), trackers.NodeTracker(), self._notify, **shared),
            Watcher(
                transport,
                watched_objects.UninitializedNodeResource(),
                trackers.UninitializedNodeTracker(),
                self._notify,
                **shared,
            ),
            Watcher(
                transport, watched_objects.NodeClaimResource(), trackers.NodeClaimTracker(), self._notify, **shared
            ),
            Watcher(transport, watched_objects.NodePoolResource(), pools, self._notify, **shared),
            *(
                Watcher(transport, kind, trackers.SpecTracker(NotificationCause.CLASS_CHANGED), self._notify, **shared)
                for kind in watched_objects.NODE_CLASSES[cloud]
            ),
        )
        self._sender = threading.Thread(target=self._send_batches, name="send", daemon=True)

    def start(self) -> None:
        """Start all threads; returns at once."""
        for watcher in self._watchers:
            watcher.start()
        self._sender.start()

    def stop(self, flush_seconds: float = FLUSH_SECONDS) -> bool:
        """Stop watching, and try once to send each open batch.

        Returns:
            Whether all batches were delivered. The next process notifies again after its first list.
        """
        for watcher in self._watchers:
            watcher.stop()
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        self._sender.join(flush_seconds)
        return not self._sender.is_alive() and self._batcher.due() is None

    @property
    def is_live(self) -> bool:
        """Whether all threads run, also during an outage of the API server or the sink; if not, a restart helps."""
        return self._sender.is_alive() and all(watcher.is_alive for watcher in self._watchers)

    @property
    def is_ready(self) -> bool:
        """Whether everything was listed once, so that no later change is missed."""
        return all(watcher.has_listed for watcher in self._watchers)

    def gauges(self) -> Mapping[str, float]:
        """Return the gauges of the metrics."""
        with self._changed:
            summary = self._pods.tracker.summary()
            undelivered = min(self._undelivered_since.values(), default=None)
        age = (_now() - summary.oldest).total_seconds() if summary.oldest else 0.0
        return {
            "pending_pods": summary.pending,
            "unschedulable_pods": summary.unschedulable,
            "oldest_pending_seconds": max(age, 0.0),
            "undelivered_seconds": time.monotonic() - undelivered if undelivered is not None else 0.0,
        }

    def _notify(self, notifications: Iterable[Notification]) -> None:
        if self._batcher.add(notifications, time.monotonic()):
            self._changed.notify_all()

    def _send_batches(self) -> None:
        while not self._stopping.is_set():
            with self._changed:
                due, now = self._batcher.due(), time.monotonic()
                if due is None or due > now:
                    self._changed.wait(None if due is None else due - now)
                    continue
                batches = self._batcher.take(now)
            self._send(batches)
        with self._changed:
            batches = self._batcher.take(time.monotonic(), flush=True)
        self._send(batches)

    def _send(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            with self._changed:
                pods = self._pods.tracker.summary()
            if batch.is_obsolete(pods):
                self._record_delivered(batch, "obsolete")
                continue
            try:
                self._sink.send(batch.step, batch.message(self._cluster, pods, _now()), batch.id)
            except SendError as error:
                self._record_failed(batch, error)
            else:
                self._record_delivered(batch, "sent")
                log.info("requeued %s: %s", batch.step.value, batch.reason(pods), extra={"id": batch.id})

    def _record_delivered(self, batch: Batch, outcome: str) -> None:
        with self._changed:
            self._batcher.delivered(batch)
            self._undelivered_since.pop(batch.step, None)
        self._count(batch, outcome)

    def _record_failed(self, batch: Batch, error: SendError) -> None:
        now = time.monotonic()
        with self._changed:
            self._batcher.failed(batch, now, min_seconds=error.retry_after, jitter=_jitter.uniform(0.5, 1.0))
            self._undelivered_since.setdefault(batch.step, now)
        self._count(batch, "failed")
        log.warning("%s; sending the message for %s again later", error, batch.step.value)

    def _count(self, batch: Batch, outcome: str) -> None:
        self._metrics.count(MESSAGES, step=batch.step.value, sink=self._sink.name, outcome=outcome)


def _now() -> datetime:
    return datetime.now(timezone.utc)  # noqa: TID251 - the process's own clock; decisions take the time as a parameter
