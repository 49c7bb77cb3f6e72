"""Caches of a warm process: entries that expire by the clock of the run, and a few newest entries."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import timedelta
from typing import Any, Final, TypeVar

from cachetools import TTLCache

from journeyman.ports import Clock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MAX_ENTRIES: Final = 1000
"""Maximum number of entries of one cache, far more than a cluster needs."""
NODE_CLASSES: Final = 32
"""NodeClasses whose view and instance types stay cached."""


def ttl_cache(clock: Clock, ttl: timedelta) -> TTLCache[Any, Any]:
    """Return an empty cache whose entries expire after `ttl` of the clock's time."""
    return TTLCache(_MAX_ENTRIES, ttl=ttl.total_seconds(), timer=lambda: clock.now().timestamp())


def put_newest(cache: dict[K, V], key: K, value: V, limit: int = NODE_CLASSES) -> None:
    """Add an entry; remove the oldest ones if the cache is full."""
    cache.pop(key, None)
    while len(cache) >= limit:
        cache.pop(next(iter(cache)))
    cache[key] = value
