"""Follows one kind of object: lists it, watches from there, and never gives up.

An outage is waited out with growing, jittered pauses; then the watch goes on where it was. Where that is too long ago
(410) it is listed again, and compared with what was known: nothing that happened meanwhile is missed or told twice.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, Protocol, TypeVar

from infra.forwarder.apiserver import ApiServer, ApiServerError, Change, ExpiredError
from infra.forwarder.metrics import WATCHES, Metrics
from infra.forwarder.news import News
from infra.forwarder.resources import Resource

S = TypeVar("S", bound="Tracker")
K = TypeVar("K", bound="Tracker")

FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 30.0
STALLED_SECONDS: Final = 900.0

log = logging.getLogger("forwarder")
_chance = random.SystemRandom()


class Tracker(Protocol):
    """What is known of the objects of one kind, and which changes are news."""

    @property
    def wants_list(self) -> bool:
        """Whether it would know more after a list."""
        ...

    def fresh(self: S) -> S:
        """An empty one, to list into."""
        ...

    def take_page(self: S, objects: Iterable[Any], before: S) -> Iterator[News]:
        """Take over a page of a list."""
        ...

    def ended(self: S, before: S, version: str) -> Iterator[News]:
        """The list has ended, at that version."""
        ...

    def apply(self, type_: str, changed: Any) -> News | None:
        """Take over one change: ADDED, MODIFIED, DELETED."""
        ...


class Follower(Generic[K]):
    """A thread that follows one resource until it is stopped.

    Args:
        api: The cluster.
        resource: What is followed.
        tracker: What is known of it, nothing at first.
        tell: Takes news; called with `lock` held.
        lock: Held while the tracker changes.
        metrics: Counts how watches end.
        first_pause_seconds: After the first failure of the API server; doubles up to half a minute.
    """

    def __init__(
        self,
        api: ApiServer,
        resource: Resource[Any],
        tracker: K,
        tell: Callable[[Iterable[News]], None],
        *,
        lock: threading.Condition,
        metrics: Metrics,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
    ) -> None:
        self.tracker = tracker
        self.has_listed = False
        self._api = api
        self._resource = resource
        self._tell = tell
        self._lock = lock
        self._metrics = metrics
        self._first_pause = first_pause_seconds
        self._stopping = threading.Event()
        self._beat = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"follow-{resource.name}", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end; a watch under way ends with its next line or timeout, and tells nothing more."""
        self._stopping.set()

    @property
    def is_alive(self) -> bool:
        """Whether it runs and has come round lately; an outage of the API server is no illness."""
        return self._thread.is_alive() and time.monotonic() - self._beat < STALLED_SECONDS

    def _run(self) -> None:
        version, pause, failed_at = "", self._first_pause, 0.0
        while not self._stopping.is_set():
            self._beat = began = time.monotonic()
            try:
                version = version or self._list()
                changes = self._api.watch(self._resource, version)
                if failed_at:
                    log.info("follows the %s again, after %.0f s", self._resource.name, began - failed_at)
                pause, failed_at = self._first_pause, 0.0
                for reached in self._taken(changes):
                    version = reached
                version = "" if self.tracker.wants_list else version
                self._ended("ended")
                self._rest(began + pause - time.monotonic())  # something may end watches at once; do not hammer it
            except ExpiredError as error:
                log.info("the %s are listed again: %s", self._resource.name, error)
                version = ""
                self._ended("expired")
                self._rest(pause)
            except ApiServerError as error:
                failed_at = failed_at or began
                wait = max(pause * _chance.uniform(0.5, 1.0), min(error.retry_after, LONGEST_PAUSE_SECONDS))
                log.warning("%s; trying again in %.1f s", error, wait)
                self._ended("failed")
                self._rest(wait)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _list(self) -> str:
        listed, version = self.tracker.fresh(), ""
        for page in self._api.pages(self._resource):
            self._beat = time.monotonic()
            version = page.metadata.resource_version
            with self._lock:
                self._tell(listed.take_page(page.objects, self.tracker))
        with self._lock:
            before, self.tracker = self.tracker, listed
            self._tell(listed.ended(before, version))
            self.has_listed = True
        return version

    def _taken(self, changes: Iterable[Change]) -> Iterator[str]:
        """Take changes over: the versions that were reached, one after each."""
        for change in changes:
            self._beat = time.monotonic()
            if self._stopping.is_set():
                return
            if change.object is not None:
                with self._lock:
                    news = self.tracker.apply(change.type, change.object)
                    self._tell([news] if news else [])
            yield change.version

    def _ended(self, outcome: str) -> None:
        self._metrics.count(WATCHES, resource=self._resource.name, outcome=outcome)

    def _rest(self, seconds: float) -> None:
        if seconds > 0:
            self._stopping.wait(seconds)
