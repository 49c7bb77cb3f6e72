"""Caches of a warm process: entries that expire by the clock of the run, views of NodeClasses, and what is built for them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from threading import Lock
from typing import Any, Final, Generic, TypeVar

import msgspec
from cachetools import LRUCache, TTLCache, cached

from journeyman.ports import JSON, Clock

V = TypeVar("V")

_MAX_ENTRIES: Final = 1000
"""Maximum number of entries of one cache, far more than a cluster needs."""
NODE_CLASSES: Final = 32
"""NodeClasses whose view and instance types stay cached."""


def ttl_cache(clock: Clock, ttl: timedelta) -> TTLCache[Any, Any]:
    """Return an empty cache whose entries expire after `ttl` of the clock's time."""
    return TTLCache(_MAX_ENTRIES, ttl=ttl.total_seconds(), timer=lambda: clock.now().timestamp())


def cached_views(view: Callable[[JSON], V]) -> Callable[[JSON], V]:
    """Return the function with a cache of the newest results: to validate a NodeClass takes milliseconds."""
    views: LRUCache[bytes, V] = LRUCache(NODE_CLASSES)
    return cached(views, key=msgspec.json.encode, lock=Lock())(view)


class BuiltPerNodeClass(Generic[V]):
    """What was built for the newest NodeClasses; it is built again only when its inputs have changed."""

    def __init__(self) -> None:
        self._built: LRUCache[bytes, tuple[tuple[Any, ...], V]] = LRUCache(NODE_CLASSES)
        self._lock = Lock()

    def get(self, settings: Any, inputs: tuple[Any, ...], build: Callable[[], V]) -> V:
        """Return what `build` returned for equal settings and inputs, the identical object; else build it.

        Args:
            settings: What counts of the NodeClass, as JSON can have it.
            inputs: What else counts; compared with `==`.
            build: Builds it. It runs once at a time.
        """
        key = msgspec.json.encode(settings, order="sorted")
        with self._lock:
            found = self._built.get(key)
            if found is None or found[0] != inputs:
                found = self._built[key] = (inputs, build())
            return found[1]
