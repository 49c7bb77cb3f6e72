"""The scenario's clock on a real control plane: the application's time only jumps, while Kubernetes runs in real time.

So a scenario takes the same time by its clock on a busy machine as on an idle one. The API server writes timestamps of
real time; `DatedStore` converts them to the scenario's clock, so that no object is too old because a process was slow, and
none has a timestamp in the future.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from journeyman.core.api.objects import ObjectMeta, Pod
from journeyman.ports import Listing
from journeyman.runtime.adapters import SystemClock

_RESOLUTION = timedelta(seconds=1)  # the API server rounds timestamps down to it
_DEFAULT_GRACE_SECONDS = 30


class JumpingClock:
    """A `ports.Clock` that starts at the current time and records at which moments of real time it jumped."""

    def __init__(self) -> None:
        self._real = SystemClock()
        self.began = self._real.now()
        self._moments, self._times = [self.began], [self.began]
        self._known: dict[tuple[str, datetime], datetime] = {}

    def now(self) -> datetime:
        """Return the scenario's time, aware, UTC."""
        return self._times[-1]

    def jump_to(self, moment: datetime) -> None:
        """Move the clock forward to a moment; do nothing if it is later already."""
        if moment > self.now():
            self._moments.append(self._real.now())
            self._times.append(moment)

    def follow(self, other: JumpingClock) -> None:
        """Copy the state of a clock that another process sent."""
        self._moments, self._times, self._known = other._moments, other._times, {**other._known}

    def of(self, stamp: datetime, uid: str) -> datetime:
        """Return this clock's time when the API server wrote a timestamp on an object; the same at every call."""
        jumps = bisect_right(self._moments, stamp + _RESOLUTION)
        return self._known.setdefault((uid, stamp), self._times[jumps - 1] if jumps else stamp)


class DatedStore:
    """A KubeStore that converts creation and deletion timestamps to the scenario's clock and forwards all other calls."""

    def __init__(self, store: Any, clock: JumpingClock) -> None:
        self._store = store
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def for_run(self, *args: Any) -> DatedStore:
        """Return the same store for one run."""
        return DatedStore(self._store.for_run(*args), self._clock)

    def list(self, *args: Any, **selection: Any) -> Listing[Any]:
        """Return the store's list with converted timestamps."""
        listing = self._store.list(*args, **selection)
        return replace(listing, items=tuple(map(self._dated, listing.items)))

    def get(self, *args: Any, **where: Any) -> Any:
        """Return the store's object with converted timestamps."""
        return self._dated(self._store.get(*args, **where))

    def _dated(self, found: Any) -> Any:
        if isinstance(found, dict):  # NodePools, NodeClasses and the like, whose age no code reads
            return found
        meta: ObjectMeta = found.metadata
        created = meta.creation_timestamp and self._clock.of(meta.creation_timestamp, meta.uid)
        deleted = meta.deletion_timestamp and self._deadline(found, meta.deletion_timestamp)
        return replace(found, metadata=replace(meta, creation_timestamp=created, deletion_timestamp=deleted))

    def _deadline(self, found: Any, stamp: datetime) -> datetime:
        """Convert a deletion timestamp; a pod's is the end of the grace period that started with the DELETE request."""
        seconds = (found.spec.termination_grace_period_seconds or _DEFAULT_GRACE_SECONDS) if type(found) is Pod else 0
        grace = timedelta(seconds=seconds)
        return self._clock.of(stamp - grace, found.metadata.uid) + grace
