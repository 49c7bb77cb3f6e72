"""The lists that a process caches (`ListCache`), and bringing a cached list up to date (`resume_watch`).

1. A consistent list of one object returns the store's current version. The API server answers once its watch cache has it.
2. A watch from the cached version returns all changes up to there at once, because they are in that watch cache already. It
   uses the same connection, because another API server of the control plane may not have them yet.
3. Events come in order, so the watch ends with the first event at that version or later. Usually another kind's change was the
   last one, and no event of ours has that version: then a short silence ends the watch. A bookmark would come a second later.
4. The list of one object also returned the number of objects (where nothing is selected), and one object with its UID and
   version. The cached list must match: it does not if an event was late, or if this is another cluster than before.

After the first mismatch the silence is longer; after the second, everything is listed again. The same holds for a store whose
version is older than the cached one: it was restored from a backup.

Versions are compared as numbers where both are numbers, which Kubernetes promises since 1.35 (KEP-5504). Otherwise only equality
counts, the silence ends the watch, and the result is not checked.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter, itemgetter
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from journeyman.core.api.objects import Object, ObjectMeta, Resource
from journeyman.errors import GoneError
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.transport import LONGEST_QUIET_SECONDS
from journeyman.ports import Listing

T = TypeVar("T")
ListKey = tuple[str, str, str]

MIN_OBJECTS: Final = 100
"""Of a cached list. A watch costs its connection, which cannot be used again; listing fewer objects costs less."""
MAX_OBJECTS: Final = 100_000
"""Of all clusters that a sandbox serves: about 5 kB each."""
RELIST_AFTER_SECONDS: Final = 900.0
"""The age at which a cached list is listed again, and the time after a refused watch of a kind until the next one."""
_WATCH_SECONDS: Final = 5.0  # a silence ends it long before

key_of: Final[Callable[[Object], tuple[str, str]]] = attrgetter("metadata.namespace", "metadata.name")
"""Namespace and name."""


class ListQuery(Struct, frozen=True):
    """The arguments of a list request; `cached` accepts a slightly stale response."""

    resource: Resource[Any]
    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""
    cached: bool = False

    @property
    def key(self) -> ListKey:
        """What is selected, which identifies the list."""
        return (self.resource.path(self.namespace), self.label_selector, self.field_selector)

    @property
    def selection(self) -> dict[str, str]:
        """The arguments for a store's methods."""
        return {
            "namespace": self.namespace,
            "label_selector": self.label_selector,
            "field_selector": self.field_selector,
        }

    @property
    def is_recurring(self) -> bool:
        """Whether the next run may request the same list: not if a field has a value, such as the name of one node."""
        return not self.field_selector or self.field_selector.endswith("=")


class CachedList(Struct, Generic[T], frozen=True, kw_only=True):
    """A list at `version`: the objects by namespace and name, in that order."""

    query: ListQuery
    objects: Mapping[tuple[str, str], T]
    version: str
    listed_at: float  # time.time()

    @property
    def is_expired(self) -> bool:
        """Whether the list must be listed again because of its age."""
        return time.time() - self.listed_at > RELIST_AFTER_SECONDS

    def listing(self) -> Listing[T]:
        """Return the objects, in order."""
        return Listing(items=tuple(self.objects.values()), resource_version=self.version, in_order=True)


class ListCache:
    """The cached lists of a process, of all its clusters; safe to use from several threads.

    The limit counts objects over all lists, and the least recently used list is dropped first.

    Args:
        max_objects: Objects to cache in all.
        min_objects: Lists of fewer objects are not cached.
    """

    def __init__(self, max_objects: int = MAX_OBJECTS, *, min_objects: int = MIN_OBJECTS) -> None:
        self.min_objects = min_objects
        self._max_objects = max_objects
        self._lists: OrderedDict[tuple[str, ListKey], CachedList[Any]] = OrderedDict()
        self._recurring: dict[tuple[str, str], tuple[ListQuery, ...]] = {}
        self._watch_refused_at: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def get(self, cluster: str, query: ListQuery) -> CachedList[Any] | None:
        """Return a cached list, None if it is not cached."""
        with self._lock:
            key = (cluster, query.key)
            if key in self._lists:
                self._lists.move_to_end(key)
            return self._lists.get(key)

    def put(self, cluster: str, cached: CachedList[Any]) -> None:
        """Cache a list, and drop others if there are too many objects."""
        with self._lock:
            self._lists[(cluster, cached.query.key)] = cached
            self._lists.move_to_end((cluster, cached.query.key))
            while sum(len(cached_list.objects) for cached_list in self._lists.values()) > self._max_objects:
                self._lists.popitem(last=False)

    def drop(self, cluster: str, query: ListQuery) -> None:
        """Drop a list, so that it is listed again."""
        with self._lock:
            self._lists.pop((cluster, query.key), None)

    def recurring_queries(self, cluster: str, purpose: str) -> tuple[ListQuery, ...]:
        """Return what the last run for that purpose listed."""
        with self._lock:
            return self._recurring.get((cluster, purpose), ())

    def record_queries(self, cluster: str, purpose: str, queries: Iterable[ListQuery]) -> None:
        """Record what the current run for that purpose has listed so far."""
        recurring = tuple(query for query in queries if query.is_recurring)
        with self._lock:
            self._recurring[(cluster, purpose)] = recurring

    def may_watch(self, cluster: str, query: ListQuery) -> bool:
        """Return False if a watch of such objects was refused recently."""
        refused_at = self._watch_refused_at.get((cluster, query.resource.path(query.namespace)))
        return refused_at is None or time.time() - refused_at > RELIST_AFTER_SECONDS

    def record_refused_watch(self, cluster: str, query: ListQuery) -> bool:
        """Record that such objects may not be watched, and drop the list. Return True at the first refusal."""
        with self._lock:
            self._lists.pop((cluster, query.key), None)
            path = (cluster, query.resource.path(query.namespace))
            is_first = path not in self._watch_refused_at
            self._watch_refused_at[path] = time.time()
            return is_first


class _SampleObject(Struct, frozen=True):
    metadata: ObjectMeta


class _SampleMetadata(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int | None = None


class _SampleList(Struct, frozen=True):
    """A list that is limited to one object."""

    metadata: _SampleMetadata
    items: tuple[_SampleObject, ...] = ()

    @property
    def version(self) -> str:
        return self.metadata.resource_version

    @property
    def count(self) -> int | None:
        """The number of objects in the store; None if the server does not return it."""
        if not self.metadata.continue_:
            return len(self.items)
        remaining = self.metadata.remaining_item_count
        return None if remaining is None else len(self.items) + remaining


_SAMPLE_LIST: Final = msgspec.json.Decoder(_SampleList)  # created at import: see `json_decoding.decoder`


def resume_watch(store: HttpKubeStore, cached: CachedList[Any], quiet_seconds: float) -> CachedList[Any]:
    """Return the list as it is now.

    Args:
        store: Over one connection.
        cached: The list as it was.
        quiet_seconds: The shortest silence that ends the watch.

    Raises:
        GoneError: The cached list is useless; list the objects again.
        ForbiddenError: The objects may be listed, but not watched.
        KubeAPIError: And its other subclasses.
    """
    for silence in (quiet_seconds, max(quiet_seconds, LONGEST_QUIET_SECONDS)):
        sample = _read_sample(store, cached.query)
        cached = _apply_changes(store, cached, sample, silence)
        if _matches(cached, sample):
            return cached
    raise GoneError("the cached list does not match the API server's")


def _read_sample(store: HttpKubeStore, query: ListQuery) -> _SampleList:
    parameters = {"limit": "1", "labelSelector": query.label_selector, "fieldSelector": query.field_selector}
    path = query.resource.path(query.namespace)
    body = store.transport.request("GET", path, query={name: value for name, value in parameters.items() if value})
    try:
        return _SAMPLE_LIST.decode(body)
    except msgspec.DecodeError as error:
        raise GoneError(f"GET {path} did not return a list with a version: {error}") from error


def _apply_changes(
    store: HttpKubeStore, cached: CachedList[Any], sample: _SampleList, quiet_seconds: float
) -> CachedList[Any]:
    """Return the list with its changes up to the sample's version."""
    if cached.version == sample.version:
        return cached
    if _is_later(cached.version, sample.version):
        raise GoneError("the API server's store is older than the cached list")
    objects, version, has_new = dict(cached.objects), cached.version, False
    changes = store.watch(
        cached.query.resource,
        resource_version=version,
        timeout_seconds=_WATCH_SECONDS,
        quiet_seconds=quiet_seconds,
        **cached.query.selection,
    )
    for event in changes:
        if _is_later(event.resource_version, sample.version):  # so all earlier events have arrived
            version = sample.version
            break
        version = event.resource_version
        if event.type == "DELETED" and event.object is not None:
            objects.pop(key_of(event.object), None)
        elif event.object is not None:
            has_new = has_new or key_of(event.object) not in objects
            objects[key_of(event.object)] = event.object
        if version == sample.version:
            break
    objects = dict(sorted(objects.items(), key=itemgetter(0))) if has_new else objects
    return CachedList(query=cached.query, objects=objects, version=version, listed_at=cached.listed_at)


def _matches(cached: CachedList[Any], sample: _SampleList) -> bool:
    """Return whether the server can have this list at the sample's version; True if the versions cannot be compared."""
    if cached.version != sample.version and not _is_later(sample.version, cached.version):
        return True
    if sample.count is not None and sample.count != len(cached.objects):
        return False
    return all(_contains(cached, item.metadata) for item in sample.items)


def _contains(cached: CachedList[Any], expected: ObjectMeta) -> bool:
    found = cached.objects.get((expected.namespace, expected.name))
    return found is not None and (found.metadata.uid, found.metadata.resource_version) == (
        expected.uid,
        expected.resource_version,
    )


def _is_later(version: str, other: str) -> bool:
    """Return whether a version is later than another; False if either is not a number."""
    return version.isdecimal() and other.isdecimal() and int(version) > int(other)
