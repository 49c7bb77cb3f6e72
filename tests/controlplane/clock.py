"""Time on a real control plane: for the application it stands still but for jumps, while Kubernetes' own runs on.

So a scenario takes the same time by its clock on a busy machine as on an idle one. What the API server stamps is real time;
readers get it as it was by the scenario's clock: nothing is ever too old because a process was slow, or from the future.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from journeyman.core.api.objects import ObjectMeta, Pod
from journeyman.ports import Listing
from journeyman.runtime.aws import SystemClock

_RESOLUTION = timedelta(seconds=1)  # of the API server's stamps, which are cut off
_DEFAULT_GRACE_SECONDS = 30


class JumpingClock:
    """A `ports.Clock` that begins now, and remembers at which moments of real time it jumped."""

    def __init__(self) -> None:
        self._real = SystemClock()
        self.began = self._real.now()
        self._moments, self._times = [self.began], [self.began]
        self._known: dict[tuple[str, datetime], datetime] = {}

    def now(self) -> datetime:
        """The time, aware, UTC."""
        return self._times[-1]

    def jump_to(self, moment: datetime) -> None:
        """Let it be at least that moment."""
        if moment > self.now():
            self._moments.append(self._real.now())
            self._times.append(moment)

    def follow(self, other: JumpingClock) -> None:
        """Stand as the other does, which another process has."""
        self._moments, self._times, self._known = other._moments, other._times, {**other._known}

    def of(self, stamp: datetime, uid: str) -> datetime:
        """What it was by this clock when the API server stamped the object; always the same once it was asked for."""
        jumps = bisect_right(self._moments, stamp + _RESOLUTION)
        return self._known.setdefault((uid, stamp), self._times[jumps - 1] if jumps else stamp)


class DatedStore:
    """A KubeStore whose objects were made, and are being deleted, by the scenario's clock. All else passes through."""

    def __init__(self, store: Any, clock: JumpingClock) -> None:
        self._store = store
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def for_run(self, *args: Any) -> DatedStore:
        """The same store for one run."""
        return DatedStore(self._store.for_run(*args), self._clock)

    def list(self, *args: Any, **selection: Any) -> Listing[Any]:
        """As the store's."""
        listing = self._store.list(*args, **selection)
        return replace(listing, items=tuple(map(self._dated, listing.items)))

    def get(self, *args: Any, **where: Any) -> Any:
        """As the store's."""
        return self._dated(self._store.get(*args, **where))

    def _dated(self, found: Any) -> Any:
        if isinstance(found, dict):  # read as it is: pools, NodeClasses and the like, whose age is never read
            return found
        meta: ObjectMeta = found.metadata
        made = meta.creation_timestamp and self._clock.of(meta.creation_timestamp, meta.uid)
        leaving = meta.deletion_timestamp and self._deadline(found, meta.deletion_timestamp)
        return replace(found, metadata=replace(meta, creation_timestamp=made, deletion_timestamp=leaving))

    def _deadline(self, found: Any, stamp: datetime) -> datetime:
        """A pod's is the end of its grace period, which began when the deletion was asked for."""
        seconds = (found.spec.termination_grace_period_seconds or _DEFAULT_GRACE_SECONDS) if type(found) is Pod else 0
        grace = timedelta(seconds=seconds)
        return self._clock.of(stamp - grace, found.metadata.uid) + grace
