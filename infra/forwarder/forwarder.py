"""Two threads: one follows the pods, the other sends a batch when it is complete. Neither ever gives up.

A wake-up is lost only with the process, and a new one lists first and so tells everything again. The message carries
counts and an age, never pods: the function reads the truth itself.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timezone

from infra.forwarder.batching import Batch
from infra.forwarder.pods import Pod, Summary, Waiting
from infra.forwarder.watch import ApiServerError, Bookmark, ExpiredError, PodSource

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
STALLED_SECONDS = 900.0

Send = Callable[[str, str], None]
"""Hands over a body under a deduplication id; raises `SendError` if it could not."""

log = logging.getLogger("forwarder")


class SendError(Exception):
    """The queue did not take the message; it is tried again."""


class Forwarder:
    """Follows one cluster until `stop`.

    Args:
        cluster: Its name in the messages.
        source: Its pods.
        send: The queue.
        batch: The windows.
        first_pause_seconds: After the first failure of the API server; doubles up to half a minute.
    """

    def __init__(
        self,
        cluster: str,
        source: PodSource,
        send: Send,
        *,
        batch: Batch | None = None,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
    ) -> None:
        self._cluster = cluster
        self._source = source
        self._send = send
        self._batch = batch or Batch()
        self._first_pause = first_pause_seconds
        self._waiting = Waiting()
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow, daemon=True),
            threading.Thread(target=self._tell, daemon=True),
        ]
        self._beat = time.monotonic()

    def start(self) -> None:
        """Begin; returns at once."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask both threads to end; a watch under way ends with its next line or timeout."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()

    @property
    def healthy(self) -> bool:
        """Whether both threads live and the follower has come round lately; an outage of the API server is no illness."""
        return all(t.is_alive() for t in self._threads) and time.monotonic() - self._beat < STALLED_SECONDS

    def _follow(self) -> None:
        pause = self._first_pause
        version = ""
        while not self._stopping.is_set():
            self._beat = time.monotonic()
            try:
                version = version or self._list()
                began = time.monotonic()
                version = self._watch(version)
                pause = self._first_pause
                if time.monotonic() - began < pause:  # something ends watches at once; do not hammer it
                    self._stopping.wait(pause)
            except ExpiredError:
                version = ""
            except ApiServerError as error:
                log.warning("%s; trying again in %.1f s", error, pause)
                self._stopping.wait(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _list(self) -> str:
        version = ""

        def pods() -> Iterator[tuple[Pod, ...]]:
            nonlocal version
            for page in self._source.pages():
                version = page.resource_version
                yield page.pods

        listed = Waiting.of(pods())
        with self._changed:
            news = self._waiting.replace(listed)
        self._took(news=news)
        return version

    def _watch(self, version: str) -> str:
        for change in self._source.watch(version):
            self._beat = time.monotonic()
            if self._stopping.is_set():
                break
            if isinstance(change, Bookmark):
                version = change.resource_version
                continue
            type_, pod = change
            with self._changed:
                news = self._waiting.apply(type_, pod)
            version = pod.metadata.resource_version
            self._took(news=news)
        return version

    def _took(self, *, news: bool) -> None:
        if news:
            with self._changed:
                self._batch.add(time.monotonic())
                self._changed.notify_all()

    def _tell(self) -> None:
        while not self._stopping.is_set():
            with self._changed:
                due = self._batch.due()
                now = time.monotonic()
                if due is None or due > now:
                    self._changed.wait(None if due is None else due - now)
                    continue
                self._batch.take(now)
                summary = self._waiting.summary()
            if summary.unschedulable:  # none left means that they found a place meanwhile
                self._hand_over(summary)

    def _hand_over(self, summary: Summary) -> None:
        message_id = uuid.uuid4().hex
        try:
            self._send(message(self._cluster, summary, message_id, datetime.now(timezone.utc)), message_id)  # noqa: TID251
        except SendError as error:
            log.warning("%s; trying again", error)
            with self._changed:
                self._batch.failed(time.monotonic())
            return
        with self._changed:
            self._batch.sent()
        log.info("told that %d of %d waiting pods are unschedulable", summary.unschedulable, summary.pending)


def message(cluster: str, summary: Summary, message_id: str, now: datetime) -> str:
    """The message's body, in Journeyman's wire format."""
    body: dict[str, object] = {
        "version": "1",
        "source": "forwarder",
        "id": message_id,
        "time": now.isoformat(),
        "cluster": cluster,
        "reason": f"{summary.unschedulable} pods are unschedulable",
        "counts": {"pending": summary.pending, "unschedulable": summary.unschedulable},
    }
    if summary.oldest is not None:
        body["oldestPendingTime"] = summary.oldest.isoformat()
    return json.dumps(body, separators=(",", ":"))
