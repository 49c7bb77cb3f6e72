"""Watch one kind of object: list it, watch from there, and never give up.

An outage is waited out with growing, jittered pauses; then the watch resumes where it ended. Where that is too long ago (410), the
objects are listed again and compared with the tracked ones, so that no change is missed or sent twice.

A page of a list that turns out too large (pods of a megabyte each) is dropped and requested again with fewer objects, so that the
process holds one page and one object at a time.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from infra.forwarder.notifications import Notification
from infra.forwarder.observability import BYTES, WATCHES, Metrics
from infra.forwarder.trackers import Tracker
from infra.forwarder.watched_objects import ObjectPage, WatchedResource
from journeyman.errors import GoneError, JourneymanError, KubeAPIError, TooManyRequestsError
from journeyman.kube.json_decoding import Versioned, decode, decode_watch_line
from journeyman.kube.request_budget import NO_RETRIES, RequestBudget
from journeyman.kube.transport import MAX_LINE_BYTES, READ_SECONDS, Transport

K = TypeVar("K", bound=Tracker)

PAGE_SIZE: Final = 250
MAX_PAGE_BYTES: Final = 4 << 20
WATCH_SECONDS: Final = 300.0
FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 30.0
STALLED_SECONDS: Final = 900.0

log = logging.getLogger("forwarder")
_jitter = random.SystemRandom()


class ObjectEvent(NamedTuple):
    """One event of a watch; a BOOKMARK has no object, only the version that the watch has reached."""

    type: str
    object: Any
    version: str


class _PageTooLargeError(Exception):
    pass


def read_pages(transport: Transport, resource: WatchedResource[Any]) -> Iterator[ObjectPage[Any]]:
    """Yield all objects, page by page; the last page has the version to watch from.

    Raises:
        GoneError: The list changed too much between two pages.
        JourneymanError: The objects cannot be listed.
    """
    token, limit = "", PAGE_SIZE
    while True:
        query = {**resource.parameters, "limit": str(limit), **({"continue": token} if token else {})}
        collect = partial(_collect, max_bytes=MAX_PAGE_BYTES if limit > 1 else MAX_LINE_BYTES)
        try:
            body = transport.read(resource.path, collect, query=query, accept=resource.list_accept, retries=NO_RETRIES)
        except _PageTooLargeError:
            if limit == 1:
                raise KubeAPIError(f"one of the {resource.name} has over {MAX_LINE_BYTES} bytes") from None
            limit = max(limit // 8, 1)
            continue
        page = resource.decode_page(body)
        yield page
        token = page.metadata.continue_
        if not token:
            return


def _collect(pieces: Iterable[bytes], *, max_bytes: int) -> bytearray:
    body = bytearray()
    for piece in pieces:
        body += piece
        if len(body) > max_bytes:
            raise _PageTooLargeError
    return body


def watch(
    transport: Transport, resource: WatchedResource[Any], version: str, *, seconds: float = WATCH_SECONDS
) -> Iterator[ObjectEvent]:
    """Return the changes since that version, until the server ends the watch; it has begun when this returns.

    Raises:
        GoneError: The version is too old; also while iterating.
        JourneymanError: The server refuses; while iterating, the connection broke.
    """
    timeout = max(int(seconds), 1)
    query = {
        **resource.parameters,
        "watch": "true",
        "resourceVersion": version,
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(timeout),
    }
    lines = transport.stream(
        resource.path, query, timeout + READ_SECONDS, accept=resource.watch_accept, retries=NO_RETRIES
    )
    return (_event(resource, line) for line in lines)


def _event(resource: WatchedResource[Any], line: bytes) -> ObjectEvent:
    event = decode_watch_line(line, f"GET {resource.path}", kind=resource.name)
    if event.type == "BOOKMARK":
        bookmark: Versioned = decode(event.object, Versioned, kind=resource.name)
        return ObjectEvent(event.type, None, bookmark.metadata.resource_version)
    return ObjectEvent(event.type, *resource.decode_object(event.object))


class Watcher(Generic[K]):
    """A thread that watches one resource until it is stopped.

    Args:
        transport: The cluster.
        resource: The kind of object to watch.
        tracker: The state of its objects; empty at first.
        notify: Takes notifications; called with `lock` held.
        lock: Held while the tracker changes.
        metrics: Counts bytes, and how watches end.
        watch_seconds: How long one watch lasts before the next one begins.
        first_pause_seconds: The pause after the first failure of the API server; it doubles up to half a minute.
    """

    def __init__(
        self,
        transport: Transport,
        resource: WatchedResource[Any],
        tracker: K,
        notify: Callable[[Iterable[Notification]], None],
        *,
        lock: threading.Condition,
        metrics: Metrics,
        watch_seconds: float = WATCH_SECONDS,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
    ) -> None:
        self.tracker = tracker
        self.has_listed = False
        self._budget = RequestBudget()
        self._transport = transport.for_run(self._budget)
        self._resource = resource
        self._notify = notify
        self._lock = lock
        self._metrics = metrics
        self._watch_seconds = watch_seconds
        self._first_pause = first_pause_seconds
        self._counted_bytes = 0
        self._stopping = threading.Event()
        self._last_progress = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"watch-{resource.name}", daemon=True)

    def start(self) -> None:
        """Start the thread; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Signal the thread to end; the current watch ends with its next line or timeout, and sends no further notification."""
        self._stopping.set()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs and has made progress recently; it does so during an outage of the API server, too."""
        return self._thread.is_alive() and time.monotonic() - self._last_progress < STALLED_SECONDS

    def _run(self) -> None:
        version, pause, failed_at = "", self._first_pause, 0.0
        while not self._stopping.is_set():
            self._last_progress = started_at = time.monotonic()
            try:
                version = version or self._list()
                events = watch(self._transport, self._resource, version, seconds=self._watch_seconds)
                if failed_at:
                    log.info("watching the %s again, after %.0f s", self._resource.name, started_at - failed_at)
                pause, failed_at = self._first_pause, 0.0
                for reached in self._apply(events):
                    version = reached
                version = "" if self.tracker.needs_list else version
                self._count_watch("ended")
                self._wait(started_at + pause - time.monotonic())  # a proxy may end watches at once
            except GoneError as error:
                log.info("listing the %s again: %s", self._resource.name, error)
                version = ""
                self._count_watch("expired")
                self._wait(pause)
            except JourneymanError as error:
                failed_at = failed_at or started_at
                retry_after = error.retry_after_seconds if isinstance(error, TooManyRequestsError) else 0.0
                wait = max(pause * _jitter.uniform(0.5, 1.0), min(retry_after, LONGEST_PAUSE_SECONDS))
                log.warning("cannot watch the %s: %s; trying again in %.1f s", self._resource.name, error, wait)
                self._count_watch("failed")
                self._wait(wait)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _list(self) -> str:
        """List all objects into a new tracker, and return the list's version."""
        listed, version = self.tracker.fresh(), ""
        for page in read_pages(self._transport, self._resource):
            self._last_progress = time.monotonic()
            self._count_bytes()
            version = page.metadata.resource_version
            with self._lock:
                self._notify(listed.add_page(page.objects, self.tracker))
        with self._lock:
            before, self.tracker = self.tracker, listed
            self._notify(listed.finish_list(before, version))
            self.has_listed = True
        return version

    def _apply(self, events: Iterable[ObjectEvent]) -> Iterator[str]:
        """Apply the events to the tracker; yield the version that was reached after each."""
        for event in events:
            self._last_progress = time.monotonic()
            self._count_bytes()
            if self._stopping.is_set():
                return
            if event.object is not None:
                with self._lock:
                    notification = self.tracker.apply(event.type, event.object)
                    self._notify([notification] if notification else [])
            yield event.version

    def _count_watch(self, outcome: str) -> None:
        self._metrics.count(WATCHES, resource=self._resource.name, outcome=outcome)

    def _count_bytes(self) -> None:
        received = self._budget.usage.received_bytes
        self._metrics.count(BYTES, received - self._counted_bytes, resource=self._resource.name)
        self._counted_bytes = received

    def _wait(self, seconds: float) -> None:
        if seconds > 0:
            self._stopping.wait(seconds)
