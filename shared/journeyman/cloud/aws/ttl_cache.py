"""A small cache with an age limit, for a warm sandbox. It may vanish at any time, so nothing's correctness rests on it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from datetime import datetime, timedelta
from threading import Lock
from typing import Generic, TypeVar

from journeyman.ports import Clock

T = TypeVar("T")


class TtlCache(Generic[T]):
    """Remembers what was read, for `ttl`. Safe to share between threads; two may read the same thing at once."""

    def __init__(self, clock: Clock, ttl: timedelta) -> None:
        self._clock = clock
        self._ttl = ttl
        self._entries: dict[Hashable, tuple[datetime, T]] = {}
        self._lock = Lock()

    def get(self, key: Hashable, read: Callable[[], T]) -> T:
        """The remembered value, or what `read` gives; what it raises is not remembered."""
        now = self._clock.now()
        with self._lock:
            entry = self._entries.get(key)
        if entry is not None and entry[0] > now:
            return entry[1]
        value = read()
        self.put(key, value)
        return value

    def put(self, key: Hashable, value: T) -> None:
        """Remember it from now on; what has become too old is dropped."""
        now = self._clock.now()
        with self._lock:
            self._entries = {k: e for k, e in self._entries.items() if e[0] > now}
            self._entries[key] = (now + self._ttl, value)

    def has(self, key: Hashable) -> bool:
        """Whether the value is remembered."""
        with self._lock:
            entry = self._entries.get(key)
        return entry is not None and entry[0] > self._clock.now()

    def forget(self, key: Hashable) -> None:
        """Read it anew next time."""
        with self._lock:
            self._entries.pop(key, None)
