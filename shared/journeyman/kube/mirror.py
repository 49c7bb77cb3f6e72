"""Warm reads: a sandbox remembers the large lists of its last run and catches up with what has changed since.

A list that had many objects is kept, decoded, with its resourceVersion. When it is asked for again:

1. A consistent list of one object tells the store's version now. The API server answers once its own cache is there.
2. A watch from the version we have, on the same connection, brings all changes up to there, at once.
3. It ends with the first event that reaches that version, or with a short silence: most often another kind's change was the
   last one, and no event of ours will say so. The bookmark that would comes a second later.

Versions are compared as numbers where both are such, which Kubernetes promises since 1.35; otherwise only for being equal,
and the silence decides. A watch that ends too early leaves the list a little behind, as a cached read would be: nobody may
rest correctness on it, and nobody does, since every write carries its precondition. A version that is too old (410), or a
watch that breaks off, means that everything is listed again; so does a list that has been caught up with for long.

The first such list of a run starts to catch up with all those that runs of its kind ask for, side by side, so that their
round trips and silences pass together. A write of the run makes what was read ahead worthless: it is read again.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from operator import attrgetter, itemgetter
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from journeyman.core.api.objects import Object, Resource
from journeyman.errors import GoneError, KubeUnavailableError
from journeyman.kube.allowance import Allowance
from journeyman.kube.http_store import HttpKubeStore
from journeyman.ports import Listing, WatchEvent

T = TypeVar("T")
Key = tuple[str, str, str]

WORTH_KEEPING: Final = 100
"""Objects. A watch costs its connection, as it cannot be ended any other way; a list shorter than this costs less."""
QUIET_SECONDS: Final = 0.03
QUIET_FACTOR: Final = 4.0
"""Where an answer takes long, so do the pauses within one: the silence is at least that many times as long."""
LONGEST_QUIET_SECONDS: Final = 1.0
LISTED_AGAIN_AFTER_SECONDS: Final = 900.0
MOST_OBJECTS: Final = 100_000
"""Of all clusters that a sandbox serves: about 5 kB each."""
_AHEAD: Final = 6  # lists caught up with side by side
_WATCH_SECONDS: Final = 5.0  # the silence ends it long before


class Question(Struct, frozen=True):
    """A list as it was asked for."""

    resource: Resource[Any]
    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""

    @property
    def key(self) -> Key:
        """What tells it from others."""
        return (self.resource.path(self.namespace), self.label_selector, self.field_selector)

    @property
    def selection(self) -> dict[str, str]:
        """As arguments of a store's methods."""
        return {
            "namespace": self.namespace,
            "label_selector": self.label_selector,
            "field_selector": self.field_selector,
        }


class Mirror(Struct, Generic[T], frozen=True, kw_only=True):
    """A list as it was at `version`: the objects in order of namespace and name, which are their keys."""

    question: Question
    objects: Mapping[tuple[str, str], T]
    version: str
    listed_at: float  # time.time()

    def listing(self) -> Listing[T]:
        """The objects, in order."""
        return Listing(items=tuple(self.objects.values()), resource_version=self.version)


class Mirrors:
    """What a process remembers, of all its clusters; the least recently used goes first. Safe to use from several threads.

    Args:
        most_objects: So many are remembered at most.
        worth_keeping: A list of fewer is not.
    """

    def __init__(self, most_objects: int = MOST_OBJECTS, *, worth_keeping: int = WORTH_KEEPING) -> None:
        self.worth_keeping = worth_keeping
        self._most_objects = most_objects
        self._kept: OrderedDict[tuple[str, Key], Mirror[Any]] = OrderedDict()
        self._asked: dict[tuple[str, str], frozenset[Key]] = {}
        self._lock = threading.Lock()

    def of(self, cluster: str, question: Question) -> Mirror[Any] | None:
        """What is remembered of a list."""
        with self._lock:
            key = (cluster, question.key)
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def keep(self, cluster: str, mirror: Mirror[Any]) -> None:
        """Remember, and forget others if it is too much."""
        with self._lock:
            self._kept[(cluster, mirror.question.key)] = mirror
            self._kept.move_to_end((cluster, mirror.question.key))
            while sum(len(kept.objects) for kept in self._kept.values()) > self._most_objects:
                self._kept.popitem(last=False)

    def forget(self, cluster: str, question: Question) -> None:
        """List it again next time."""
        with self._lock:
            self._kept.pop((cluster, question.key), None)

    def usual(self, cluster: str, purpose: str) -> tuple[Question, ...]:
        """The lists that are remembered and that the last run for that purpose asked for."""
        with self._lock:
            asked = self._asked.get((cluster, purpose), frozenset())
            return tuple(
                m.question for (whose, _), m in self._kept.items() if whose == cluster and m.question.key in asked
            )

    def note(self, cluster: str, purpose: str, asked: frozenset[Key]) -> None:
        """These are the lists that a run for that purpose has asked for so far."""
        with self._lock:
            self._asked[(cluster, purpose)] = asked


class MirroredKubeStore(HttpKubeStore):
    """An `HttpKubeStore` that reads large lists warm.

    Args:
        store: The cluster.
        mirrors: What the process remembers.
        cluster: The cluster's name among them.
        purpose: What the run is for: runs for the same purpose ask for the same lists.
        quiet_seconds: The shortest silence after which a watch has nothing more to say.
    """

    def __init__(
        self,
        store: HttpKubeStore,
        mirrors: Mirrors,
        *,
        cluster: str = "",
        purpose: str = "",
        quiet_seconds: float = QUIET_SECONDS,
    ) -> None:
        super().__init__(store.transport, page_size=store.page_size)
        self._mirrors = mirrors
        self._cluster = cluster
        self._purpose = purpose
        self._quiet_seconds = quiet_seconds
        self._asked: set[Key] = set()
        self._ahead: dict[Key, Future[Listing[Any]]] | None = None
        self._writes_before = 0

    def for_run(self, allowance: Allowance, purpose: str = "") -> MirroredKubeStore:
        """The same store for one run, within its allowance; `purpose` is the run's step."""
        return MirroredKubeStore(
            super().for_run(allowance),
            self._mirrors,
            cluster=self._cluster,
            purpose=purpose,
            quiet_seconds=self._quiet_seconds,
        )

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
        question = Question(resource, namespace, label_selector, field_selector)
        if self._mirrors.of(self._cluster, question) is None:
            return self._listed(question, cached=cached)
        if self._ahead is None:
            self._ahead = self._read_ahead()
        self._note(question)
        begun = self._ahead.pop(question.key, None)
        if (
            begun is None or self.transport.writes > self._writes_before
        ):  # what was read before may not have our own writes
            return self._caught_up(question)
        return begun.result()

    def _note(self, question: Question) -> None:
        self._asked.add(question.key)
        self._mirrors.note(self._cluster, self._purpose, frozenset(self._asked))

    def _read_ahead(self) -> dict[Key, Future[Listing[Any]]]:
        """Begin to catch up with everything that such runs ask for."""
        self._writes_before = self.transport.writes
        usual = self._mirrors.usual(self._cluster, self._purpose)
        threads = ThreadPoolExecutor(max_workers=_AHEAD)
        begun = {question.key: threads.submit(self._caught_up, question) for question in usual}
        threads.shutdown(wait=False)
        return begun

    def _caught_up(self, question: Question) -> Listing[Any]:
        mirror = self._mirrors.of(self._cluster, question)
        if mirror is None or time.time() - mirror.listed_at > LISTED_AGAIN_AFTER_SECONDS:
            return self._listed(question)
        try:
            current = self._catch_up(mirror)
        except (GoneError, KubeUnavailableError):  # too old, or broken off: what we have is of no more use
            self._mirrors.forget(self._cluster, question)
            return self._listed(question)
        self._mirrors.keep(self._cluster, current)
        return current.listing()

    def _listed(self, question: Question, *, cached: bool = False) -> Listing[Any]:
        """Everything anew; remembered if it is worth it, and if nobody can change what we remember."""
        listed_at = time.time()
        listing = super().list(question.resource, cached=cached, **question.selection)
        if len(listing.items) >= self._mirrors.worth_keeping and issubclass(question.resource.type, Object):
            objects = {_key(item): item for item in sorted(listing.items, key=_key)}
            mirror = Mirror(question=question, objects=objects, version=listing.resource_version, listed_at=listed_at)
            self._mirrors.keep(self._cluster, mirror)
            self._note(question)
        return listing

    def _catch_up(self, mirror: Mirror[Any]) -> Mirror[Any]:
        """The list as it is now. Raises GoneError, KubeUnavailableError."""
        question = mirror.question
        began = time.monotonic()
        wanted = self.latest(question.resource, **question.selection)
        quiet_seconds = min(max(QUIET_FACTOR * (time.monotonic() - began), self._quiet_seconds), LONGEST_QUIET_SECONDS)
        objects, version, is_new = dict(mirror.objects), mirror.version, False
        if not _reached(version, wanted):
            for event in self._changes(question, version, quiet_seconds):
                version = event.resource_version
                if event.type == "DELETED" and event.object is not None:
                    objects.pop(_key(event.object), None)
                elif event.object is not None:
                    is_new = is_new or _key(event.object) not in objects
                    objects[_key(event.object)] = event.object
                if _reached(version, wanted):
                    break
        objects = dict(sorted(objects.items(), key=itemgetter(0))) if is_new else objects
        return Mirror(question=question, objects=objects, version=version, listed_at=mirror.listed_at)

    def _changes(self, question: Question, version: str, quiet_seconds: float) -> Iterator[WatchEvent[Any]]:
        return self.watch(
            question.resource,
            resource_version=version,
            timeout_seconds=_WATCH_SECONDS,
            quiet_seconds=quiet_seconds,
            **question.selection,
        )


_key: Final[Callable[[Object], tuple[str, str]]] = attrgetter("metadata.namespace", "metadata.name")


def _reached(version: str, wanted: str) -> bool:
    """Whether a watch that is at `version` has told all that the store knew at `wanted`.

    Comparing as numbers: KEP-5504, stable in Kubernetes 1.35; any other form says nothing but whether it is the same.
    """
    if version.isdecimal() and wanted.isdecimal():
        return int(version) >= int(wanted)
    return version == wanted
