"""Warm reads: a sandbox remembers the large lists of its last run, catches up with what changed, and reads all at once.

A list that had many objects is kept, decoded, with its resourceVersion (`remembered`). When it is asked for again, a watch
brings what has changed since (`catch_up`). It is then what the server had at one version, and knows all that was written
before the read began, with one exception: a watch that was silent for so long that nothing more seemed to come, while a
change was still on its way, leaves the list a little behind, as a cached read would be. Objects that were added or deleted
are missed by their number then, changed ones are not. Nobody may rest correctness on it, and nobody does, since every
write carries its precondition.

Whatever goes wrong means that everything is listed again: a version that is too old (410), a watch that breaks off, a list
that does not fit what the API server tells of it, and time. Where watching is forbidden, lists are read whole, and the log
says so. Another cluster of the same name is another cluster, for its address or its certificates are others; where both
are the same, its objects' UIDs are not.

The first list of a run begins to read all those that the last run of its kind asked for, side by side, so that their round
trips and silences pass together. It begins no earlier, since only then a run has its lease. So a list knows what was
written before the run's first list; one that is asked for later than `AHEAD_SECONDS` after that, or after the run has
written something, is read again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from msgspec import Struct, field

from journeyman.core.api.objects import Object, Resource
from journeyman.errors import ForbiddenError, GoneError, KubeUnavailableError
from journeyman.kube.allowance import Allowance
from journeyman.kube.catch_up import catch_up, key_of
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.pool import Pool
from journeyman.kube.remembered import Mirror, Mirrors, Question
from journeyman.kube.transport import Transport
from journeyman.ports import Listing

__all__ = ["MirroredKubeStore", "Mirrors", "Question"]

T = TypeVar("T")
Log = Callable[..., None]
"""`log(level, message, **fields)`."""

QUIET_SECONDS: Final = 0.05
"""Longer than the 40 ms for which Linux delays an acknowledgement, in case something on the way waits for one."""
AHEAD_SECONDS: Final = 2.0
"""So long after a run's first list, what was read ahead with it is as good as a list of now."""
_CATCHING_UP: Final = 6  # lists side by side: each has a connection of its own
_LISTING: Final = 4  # side by side, of those that are read whole: few connections to open where none is warm


class _Lanes:
    """Connections on which one request follows the other. Kept, as one that was not watched on is still open."""

    def __init__(self) -> None:
        self._idle: list[Pool] = []

    @contextmanager
    def one(self, transport: Transport) -> Iterator[Transport]:
        """The transport over a connection that nobody else uses meanwhile."""
        try:
            pool = self._idle.pop()
        except IndexError:
            pool = transport.new_pool(1)
        try:
            yield transport.through(pool)
        finally:
            self._idle.append(pool)


class _Ahead(Struct, frozen=True):
    """What a run has begun to read, until when that is good, and how many writes it had made by then."""

    writes: int
    until: float  # time.monotonic()
    begun: dict[Question, Future[Listing[Any]]] = field(default_factory=dict)

    def is_good(self, writes: int) -> bool:
        """Whether nothing of the run's own can have changed since, and not much of others."""
        return writes == self.writes and time.monotonic() < self.until


class MirroredKubeStore(HttpKubeStore):
    """An `HttpKubeStore` that reads large lists warm, and all lists of a run side by side.

    Args:
        store: The cluster.
        mirrors: What the process remembers.
        cluster: The cluster's name among them.
        purpose: What the run is for: runs for the same purpose ask for the same lists.
        quiet_seconds: The shortest silence after which a watch has nothing more to say.
        ahead_seconds: How long what a run reads ahead is good.
        log: Told once, where lists cannot be remembered.
        lanes: Connections to watch on; its own by default.
    """

    def __init__(
        self,
        store: HttpKubeStore,
        mirrors: Mirrors,
        *,
        cluster: str = "",
        purpose: str = "",
        quiet_seconds: float = QUIET_SECONDS,
        ahead_seconds: float = AHEAD_SECONDS,
        log: Log | None = None,
        lanes: _Lanes | None = None,
    ) -> None:
        super().__init__(store.transport, page_size=store.page_size)
        self._mirrors = mirrors
        self._name = cluster
        self._cluster = f"{cluster} {store.transport.identity}"
        self._purpose = purpose
        self._quiet_seconds = quiet_seconds
        self._ahead_seconds = ahead_seconds
        self._log = log
        self._lanes = lanes or _Lanes()
        self._asked: dict[Question, None] = {}
        self._ahead: _Ahead | None = None
        self._lock = threading.Lock()

    def for_run(self, allowance: Allowance, purpose: str = "") -> MirroredKubeStore:
        """The same store for one run, within its allowance; `purpose` is the run's step."""
        return MirroredKubeStore(
            super().for_run(allowance),
            self._mirrors,
            cluster=self._name,
            purpose=purpose,
            quiet_seconds=self._quiet_seconds,
            ahead_seconds=self._ahead_seconds,
            log=self._log,
            lanes=self._lanes,
        )

    def remembered(self, question: Question) -> Mirror[Any] | None:
        """What is remembered of a list."""
        return self._mirrors.of(self._cluster, question)

    def list(
        self,
        resource: Resource[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        cached: bool = False,
    ) -> Listing[T]:
        """All selected objects, by namespace and name if they are remembered."""
        question = Question(resource, namespace, label_selector, field_selector, cached)
        begun = self._begun(question)
        return self._read_warm(question) if begun is None else begun.result()

    def _begun(self, question: Question) -> Future[Listing[Any]] | None:
        """What was read ahead of a list, if it is still good; only such lists are worth reading ahead next time."""
        with self._lock:
            if self._ahead is None:
                self._ahead = self._read_ahead()
            if not self._ahead.is_good(self.transport.writes):
                return None
            self._asked[question] = None
            self._mirrors.note(self._cluster, self._purpose, self._asked)
            return self._ahead.begun.pop(question, None)

    def _read_ahead(self) -> _Ahead:
        """Begin to read everything that such runs ask for."""
        ahead = _Ahead(self.transport.writes, time.monotonic() + self._ahead_seconds)
        usual = self._mirrors.usual(self._cluster, self._purpose)
        large = [question for question in usual if self.remembered(question)]
        small = [question for question in usual if question not in large]
        for questions, at_a_time in ((large, _CATCHING_UP), (small, _LISTING)):
            threads = ThreadPoolExecutor(max_workers=at_a_time)
            ahead.begun.update({question: threads.submit(self._read_warm, question) for question in questions})
            threads.shutdown(wait=False)
        return ahead

    def _read_warm(self, question: Question) -> Listing[Any]:
        mirror = self.remembered(question)
        if mirror is None or mirror.is_due:
            return self._read_whole(question)
        try:
            with self._lanes.one(self.transport) as lane:
                current = catch_up(HttpKubeStore(lane), mirror, self._quiet_seconds)
        except (GoneError, KubeUnavailableError):  # too old, in doubt or broken off: what we have is of no more use
            self._mirrors.forget(self._cluster, question)
            return self._read_whole(question)
        except ForbiddenError as error:
            listing = self._read_whole(question)  # this is an error if it is forbidden, too
            self._refused(question, error)
            return listing
        self._mirrors.keep(self._cluster, current)
        return current.listing()

    def _read_whole(self, question: Question) -> Listing[Any]:
        """Everything anew; remembered if it is worth it, and if nobody can change what we remember."""
        listed_at = time.time()
        listing = super().list(question.resource, cached=question.cached, **question.selection)
        worth_keeping = len(listing.items) >= self._mirrors.worth_keeping and issubclass(question.resource.type, Object)
        if worth_keeping and self._mirrors.may_watch(self._cluster, question):
            objects = {key_of(item): item for item in sorted(listing.items, key=key_of)}
            mirror = Mirror(question=question, objects=objects, version=listing.resource_version, listed_at=listed_at)
            self._mirrors.keep(self._cluster, mirror)
            return mirror.listing()
        return listing

    def _refused(self, question: Question, error: ForbiddenError) -> None:
        if self._mirrors.refuse(self._cluster, question) and self._log is not None:
            kind = question.resource.kind
            self._log(
                "warning",
                f"objects of kind {kind} may not be watched, so each run reads them all: {error.message}",
                **{**error.context, "cluster": self._name, "kind": kind},
            )
