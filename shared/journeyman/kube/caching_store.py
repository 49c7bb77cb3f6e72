"""A store that caches large lists between runs of a sandbox, and reads all lists of a run in parallel.

A list of many objects stays in memory, decoded, with its resourceVersion (`list_cache`). The next run resumes the watch from that
version and gets only the changes. The result is what the server had at one version, with everything that was written before the
read began. The one exception is a watch that was silent for so long that it ended while a change was still on its way: then the
list is slightly stale, as a read from the API server's cache is. The number of objects reveals a missing addition or deletion,
but not a missing modification. Correctness does not depend on it, because every write carries its precondition.

On any failure everything is listed again: a version that is too old (410), a watch that breaks, a list that does not match the
server's, and after `RELIST_AFTER_SECONDS`. Where watching is forbidden, lists are read whole, and a warning is logged. A cluster
that was replaced under the same name has another address or other certificates; if both are the same, its objects' UIDs differ.

The first list of a run starts reading all lists that the last run for the same purpose read, in parallel, so that their round
trips and silences overlap. It starts no earlier, because only then the run holds its Lease. A list that is read later than
`PREFETCH_SECONDS` after that, or after the run has written something, is read again.
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
from journeyman.kube.connection_pool import ConnectionPool
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.list_cache import CachedList, ListCache, ListQuery, key_of, resume_watch
from journeyman.kube.request_budget import RequestBudget
from journeyman.kube.transport import Transport
from journeyman.ports import Listing

T = TypeVar("T")
Log = Callable[..., None]
"""`log(level, message, **fields)`."""

QUIET_SECONDS: Final = 0.05
"""The shortest silence that ends a watch; longer than the 40 ms by which Linux delays an acknowledgement."""
PREFETCH_SECONDS: Final = 2.0
"""A list that was read ahead with a run's first list counts as current for so long."""
_PARALLEL_WATCHES: Final = 6  # each has a connection of its own
_PARALLEL_LISTS: Final = 4  # of lists that are read whole; fewer, because their connections may have to be opened


class _SingleConnections:
    """Pools of one connection each; a connection whose watch ended at once is still open, and is used again."""

    def __init__(self) -> None:
        self._idle: list[ConnectionPool] = []

    @contextmanager
    def transport(self, transport: Transport) -> Iterator[Transport]:
        """Yield the transport over a connection that no other thread uses meanwhile."""
        try:
            pool = self._idle.pop()
        except IndexError:
            pool = transport.new_pool(1)
        try:
            yield transport.with_pool(pool)
        finally:
            self._idle.append(pool)


class _Prefetch(Struct, frozen=True):
    """The lists that a run reads ahead; valid until `until`, and until the run writes (`writes` at the start)."""

    writes: int
    until: float  # time.monotonic()
    listings: dict[ListQuery, Future[Listing[Any]]] = field(default_factory=dict)

    def is_valid(self, writes: int) -> bool:
        """Whether the run has not written since, and `until` has not passed."""
        return writes == self.writes and time.monotonic() < self.until


class CachingKubeStore(HttpKubeStore):
    """An `HttpKubeStore` that caches large lists, and reads all lists of a run in parallel.

    Args:
        store: The cluster.
        cache: The lists that the process caches.
        cluster: The cluster's name.
        purpose: The run's step: runs for the same purpose read the same lists.
        quiet_seconds: The shortest silence that ends a watch.
        prefetch_seconds: How long lists that a run read ahead count as current.
        log: Called once for each kind that may not be watched.
        connections: Connections for watches; its own by default.
    """

    def __init__(
        self,
        store: HttpKubeStore,
        cache: ListCache,
        *,
        cluster: str = "",
        purpose: str = "",
        quiet_seconds: float = QUIET_SECONDS,
        prefetch_seconds: float = PREFETCH_SECONDS,
        log: Log | None = None,
        connections: _SingleConnections | None = None,
    ) -> None:
        super().__init__(store.transport, page_size=store.page_size)
        self._cache = cache
        self._name = cluster
        self._cluster = f"{cluster} {store.transport.identity}"
        self._purpose = purpose
        self._quiet_seconds = quiet_seconds
        self._prefetch_seconds = prefetch_seconds
        self._log = log
        self._connections = connections or _SingleConnections()
        self._queries: dict[ListQuery, None] = {}
        self._prefetch: _Prefetch | None = None
        self._lock = threading.Lock()

    def for_run(self, budget: RequestBudget, purpose: str = "") -> CachingKubeStore:
        """Return this store for one run, within its budget; `purpose` is the run's step."""
        return CachingKubeStore(
            super().for_run(budget),
            self._cache,
            cluster=self._name,
            purpose=purpose,
            quiet_seconds=self._quiet_seconds,
            prefetch_seconds=self._prefetch_seconds,
            log=self._log,
            connections=self._connections,
        )

    def cached_list(self, query: ListQuery) -> CachedList[Any] | None:
        """Return a cached list, None if it is not cached."""
        return self._cache.get(self._cluster, query)

    def list(
        self,
        resource: Resource[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        cached: bool = False,
    ) -> Listing[T]:
        """Return all selected objects, in order of namespace and name if the list is cached."""
        query = ListQuery(resource, namespace, label_selector, field_selector, cached)
        prefetched = self._prefetched(query)
        return self._read_cached(query) if prefetched is None else prefetched.result()

    def _prefetched(self, query: ListQuery) -> Future[Listing[Any]] | None:
        """Return the list that was read ahead, if it is valid; only lists that are read early are read ahead next time."""
        with self._lock:
            if self._prefetch is None:
                self._prefetch = self._start_prefetch()
            if not self._prefetch.is_valid(self.transport.write_count):
                return None
            self._queries[query] = None
            self._cache.record_queries(self._cluster, self._purpose, self._queries)
            return self._prefetch.listings.pop(query, None)

    def _start_prefetch(self) -> _Prefetch:
        """Start reading the lists that the last run for this purpose read."""
        prefetch = _Prefetch(self.transport.write_count, time.monotonic() + self._prefetch_seconds)
        recurring = self._cache.recurring_queries(self._cluster, self._purpose)
        large = [query for query in recurring if self.cached_list(query)]
        small = [query for query in recurring if query not in large]
        for queries, workers in ((large, _PARALLEL_WATCHES), (small, _PARALLEL_LISTS)):
            threads = ThreadPoolExecutor(max_workers=workers)
            prefetch.listings.update({query: threads.submit(self._read_cached, query) for query in queries})
            threads.shutdown(wait=False)
        return prefetch

    def _read_cached(self, query: ListQuery) -> Listing[Any]:
        cached = self.cached_list(query)
        if cached is None or cached.is_expired:
            return self._read_whole(query)
        try:
            with self._connections.transport(self.transport) as transport:
                current = resume_watch(HttpKubeStore(transport), cached, self._quiet_seconds)
        except (GoneError, KubeUnavailableError):  # too old, mismatched or broken off
            self._cache.drop(self._cluster, query)
            return self._read_whole(query)
        except ForbiddenError as error:
            listing = self._read_whole(query)  # raises if listing is forbidden as well
            self._record_refused_watch(query, error)
            return listing
        self._cache.put(self._cluster, current)
        return current.listing()

    def _read_whole(self, query: ListQuery) -> Listing[Any]:
        """List everything, and cache it if it is large enough, may be watched, and its type is immutable."""
        listed_at = time.time()
        listing = super().list(query.resource, cached=query.cached, **query.selection)
        is_cacheable = len(listing.items) >= self._cache.min_objects and issubclass(query.resource.type, Object)
        if is_cacheable and self._cache.may_watch(self._cluster, query):
            objects = {key_of(item): item for item in sorted(listing.items, key=key_of)}
            cached = CachedList(query=query, objects=objects, version=listing.resource_version, listed_at=listed_at)
            self._cache.put(self._cluster, cached)
            return cached.listing()
        return listing

    def _record_refused_watch(self, query: ListQuery, error: ForbiddenError) -> None:
        if self._cache.record_refused_watch(self._cluster, query) and self._log is not None:
            kind = query.resource.kind
            self._log(
                "warning",
                f"objects of kind {kind} may not be watched, so each run lists all of them: {error.message}",
                **{**error.context, "cluster": self._name, "kind": kind},
            )
