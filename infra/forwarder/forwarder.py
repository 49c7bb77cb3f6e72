"""Five threads follow pods, nodes, claims, pools and NodeClasses; one sends what is owed when a batch is complete. None ever gives up.

A wake-up is lost only with the process, and a new one tells everything again once it has listed: pods that are unschedulable,
and that somebody has started to look if there are claims. All that is held for sending is a count for each cause
(`news.Ledger`), so that neither an outage of the sink nor a storm of changes costs memory.

Several replicas are harmless, and that is all the coordination there is: each sees the same news and gives its
message the same id, a FIFO queue drops the second of two alike, and a step that is woken twice finds nothing to do the
second time. A leader elected by a Lease would need the right to write, and its failure would cost the very seconds
that a second replica is there to save.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any, Final, Protocol

from infra.forwarder import fleet, pods, resources, specs
from infra.forwarder.apiserver import ApiServer
from infra.forwarder.following import FIRST_PAUSE_SECONDS, Follower
from infra.forwarder.message import is_needless, message, reason
from infra.forwarder.metrics import EVENTS, Metrics
from infra.forwarder.news import Cause, Ledger, News, Parcel, Step

FLUSH_SECONDS: Final = 10.0

log = logging.getLogger("forwarder")
_chance = random.SystemRandom()


class SendError(Exception):
    """The sink did not take the message; it is tried again, after `retry_after` seconds at least."""

    def __init__(self, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Sink(Protocol):
    """Where messages go."""

    @property
    def name(self) -> str:
        """For the metrics."""
        ...

    def send(self, step: Step, body: str, message_id: str) -> None:
        """Hand over one message for a step. Raises SendError if it could not be handed over."""
        ...


class Forwarder:
    """Follows one cluster until `stop`.

    Args:
        cluster: Its name in the messages.
        api: Its API server.
        sink: Takes the messages.
        ledger: The windows.
        metrics: Where it counts.
        first_pause_seconds: After the first failure of the API server; doubles up to half a minute.
    """

    def __init__(
        self,
        cluster: str,
        api: ApiServer,
        sink: Sink,
        *,
        ledger: Ledger | None = None,
        metrics: Metrics | None = None,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
    ) -> None:
        self._cluster = cluster
        self._sink = sink
        self._ledger = ledger or Ledger()
        self._metrics = metrics or Metrics()
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._owed_since: dict[Step, float] = {}
        shared: dict[str, Any] = {
            "lock": self._changed,
            "metrics": self._metrics,
            "first_pause_seconds": first_pause_seconds,
        }
        self._pods = Follower(api, resources.Pods(), pods.Waiting(), self._note, **shared)
        self._followers: tuple[Follower[Any], ...] = (
            self._pods,
            Follower(api, resources.Nodes(), fleet.Nodes(), self._note, **shared),
            Follower(api, resources.NodeClaims(), fleet.Claims(), self._note, **shared),
            Follower(api, resources.NodePools(), specs.Specs(Cause.POOL_CHANGED), self._note, **shared),
            Follower(api, resources.NodeClasses(), specs.Specs(Cause.CLASS_CHANGED), self._note, **shared),
        )
        self._teller = threading.Thread(target=self._tell, name="tell", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        for follower in self._followers:
            follower.start()
        self._teller.start()

    def stop(self, flush_seconds: float = FLUSH_SECONDS) -> bool:
        """Take no more news, and send what is owed at once, without its windows; each message is tried once.

        Returns:
            Whether everything that was owed is delivered. What is not will be told by the next process's first list.
        """
        for follower in self._followers:
            follower.stop()
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        self._teller.join(flush_seconds)
        return not self._teller.is_alive() and self._ledger.due() is None

    @property
    def is_live(self) -> bool:
        """Whether all threads work; a restart would help if not. Outages outside are no illness."""
        return self._teller.is_alive() and all(follower.is_alive for follower in self._followers)

    @property
    def is_ready(self) -> bool:
        """Whether everything has been listed once, so that nothing that happens from now on is missed."""
        return all(follower.has_listed for follower in self._followers)

    def gauges(self) -> Mapping[str, float]:
        """What is waiting now, for the metrics."""
        with self._changed:
            summary = self._pods.tracker.summary()
            owed = min(self._owed_since.values(), default=None)
        age = (_now() - summary.oldest).total_seconds() if summary.oldest else 0.0
        return {
            "pending_pods": summary.pending,
            "unschedulable_pods": summary.unschedulable,
            "oldest_pending_seconds": max(age, 0.0),
            "owed_seconds": time.monotonic() - owed if owed is not None else 0.0,
        }

    def _note(self, news: Iterable[News]) -> None:
        if self._ledger.note(news, time.monotonic()):
            self._changed.notify_all()

    def _tell(self) -> None:
        while not self._stopping.is_set():
            with self._changed:
                due, now = self._ledger.due(), time.monotonic()
                if due is None or due > now:
                    self._changed.wait(None if due is None else due - now)
                    continue
                parcels = self._ledger.take(now)
            self._hand_over(parcels)
        with self._changed:
            parcels = self._ledger.take(time.monotonic(), hurry=True)
        self._hand_over(parcels)

    def _hand_over(self, parcels: Iterable[Parcel]) -> None:
        for parcel in parcels:
            with self._changed:
                summary = self._pods.tracker.summary()
            if is_needless(parcel, summary):
                self._delivered(parcel, "needless")
                continue
            try:
                self._sink.send(parcel.step, message(self._cluster, parcel, summary, _now()), parcel.id)
            except SendError as error:
                self._failed(parcel, error)
            else:
                self._delivered(parcel, "sent")
                log.info("woke %s: %s", parcel.step.value, reason(parcel, summary), extra={"id": parcel.id})

    def _delivered(self, parcel: Parcel, outcome: str) -> None:
        with self._changed:
            self._ledger.delivered(parcel)
            self._owed_since.pop(parcel.step, None)
        self._count(parcel, outcome)

    def _failed(self, parcel: Parcel, error: SendError) -> None:
        now = time.monotonic()
        with self._changed:
            self._ledger.failed(parcel, now, least_seconds=error.retry_after, jitter=_chance.uniform(0.5, 1.0))
            self._owed_since.setdefault(parcel.step, now)
        self._count(parcel, "failed")
        log.warning("%s; the wake-up of %s is kept and tried again", error, parcel.step.value)

    def _count(self, parcel: Parcel, outcome: str) -> None:
        self._metrics.count(EVENTS, step=parcel.step.value, sink=self._sink.name, outcome=outcome)


def _now() -> datetime:
    return datetime.now(timezone.utc)  # noqa: TID251 - the process's own clock; what decides takes the time as a parameter
