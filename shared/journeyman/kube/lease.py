"""`ports.Lease` as a coordination.k8s.io Lease: one run of a step may write at a time.

A run acquires the Lease, checks it before each write to the outside, and releases it, with the time of the message that it sent to
its step (`next_run`). Every change carries the resourceVersion that
it was decided on, so of two runs that both find the Lease free one gets a conflict and stops. A run that died holds the Lease until
it expires. The clocks of different functions differ by well under a second; a Lease lasts far longer.

What a Lease says is believed only as far as a run could have written it, because any user who may write Leases could otherwise stop a step
for ever: a Lease lasts no longer than the longest that a run takes, whatever its duration, and one that was renewed later than
that from now was renewed by no run (its own clock would have to be that far ahead), so it is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from math import inf
from typing import Any, Final

from journeyman.core.api import labels
from journeyman.core.api.conditions import parse_time
from journeyman.core.api.objects import LEASE, LeaseObject, LeaseSpec
from journeyman.errors import AlreadyExistsError, ConflictError, JourneymanError, LeaseLostError, NotFoundError
from journeyman.ports import Clock, KubeStore

NAMESPACE: Final = "kube-system"
DURATION_SECONDS: Final = 40
"""How long a crashed run's Lease lasts at most. A live run renews it after a quarter of that, and a call to AWS, which takes 30 s at the
longest (`runtime.call_deadline`), ends before it."""


HELD_TOO_LONG: Final = timedelta(minutes=3)
"""No function runs longer, so no run holds its Lease longer."""
_MOST_TRANSITIONS: Final = 2**31 - 1
_SHOWN: Final = 100  # characters of a holder's identity


class KubeLease:
    """A `ports.Lease` over any KubeStore.

    Args:
        store: The cluster.
        clock: Decides whether the Lease has expired.
        name: The Lease's name, one per step.
        holder: The id of this run, the same if its message is delivered again.
        namespace: The Lease's namespace.
        duration_seconds: The Lease expires so long after its renewal; renewed after a quarter of it.
    """

    def __init__(
        self,
        store: KubeStore,
        clock: Clock,
        *,
        name: str,
        holder: str,
        namespace: str = NAMESPACE,
        duration_seconds: int = DURATION_SECONDS,
    ) -> None:
        self._store = store
        self._clock = clock
        self._name = name
        self._holder = holder
        self._namespace = namespace
        self._duration = duration_seconds
        self._version = ""
        self._renewed_at: datetime | None = None
        self.next_run: datetime | None = None
        self.examined_until = ""
        self.disbelieved = ""

    def acquire(self) -> None:
        """Acquire the Lease if it is free, expired, or held by an earlier delivery of this run's message.

        Raises:
            LeaseLostError: Another run holds it, or acquired it first. Its context has `held_seconds` if that is longer than
                any run lasts.
        """
        now = self._clock.now()
        current = self._read()
        if current is None:
            self._create(now)
            return
        self._check_free(current, now)
        self.next_run = _time_of(current)
        self.examined_until = current.metadata.annotations.get(labels.EXAMINED_UNTIL, "")
        is_holder = current.spec.holder_identity == self._holder
        change: dict[str, Any] = {"holderIdentity": self._holder, "leaseDurationSeconds": self._duration}
        if not is_holder:
            transitions = current.spec.lease_transitions + 1
            change |= {
                "acquireTime": _text(now),
                "leaseTransitions": transitions if transitions <= _MOST_TRANSITIONS else 1,
            }
        self._write(change, now, current.metadata.resource_version)

    def check(self) -> None:
        """Verify that this run still holds the Lease; renew it once a quarter of its duration is over.

        Raises:
            LeaseLostError: It was never acquired, or another run has acquired it since.
        """
        now = self._clock.now()
        if self._renewed_at is None:
            raise LeaseLostError(f"Lease {self._name} is not held by this run", holder=self._holder)
        if abs(now - self._renewed_at) >= timedelta(seconds=self._duration) / 4:  # the clock may have been set back
            self._write({}, now, self._version)

    def release(self, next_run: datetime | None = None, examined_until: str = "") -> None:
        """Release the Lease, if this run holds it; errors are ignored, because the Lease expires.

        Args:
            next_run: When a message that was sent starts the step again; the Lease keeps it for that run and those before it.
            examined_until: The object after which the next run continues; empty if it starts with the first one.
        """
        if self._renewed_at is None:
            return
        annotations: dict[str, str | None] = {}
        if next_run != self.next_run:
            annotations[labels.NEXT_RUN] = _text(next_run) if next_run else None
        if examined_until != self.examined_until:
            annotations[labels.EXAMINED_UNTIL] = examined_until or None
        try:
            self._write({"holderIdentity": ""}, self._clock.now(), self._version, annotations)
        except JourneymanError:
            pass  # it expires by itself
        finally:
            self._renewed_at = None

    def _read(self) -> LeaseObject | None:
        try:
            return self._store.get(LEASE, self._name, namespace=self._namespace)
        except NotFoundError:
            return None

    def _check_free(self, current: LeaseObject, now: datetime) -> None:
        spec, renewed = current.spec, parse_time(current.spec.renew_time)
        if spec.holder_identity in {"", self._holder} or not spec.renew_time:
            return
        longest = max(self._duration, DURATION_SECONDS)
        age = (now - renewed).total_seconds() if renewed is not None else -inf
        if age < -longest:
            self.disbelieved = (
                f"Lease {self._name} says that {spec.holder_identity[:_SHOWN]} renews it at {spec.renew_time}, which no run "
                "can have written; this run takes it. See who may write Leases, and whether clocks are synchronized"
            )
            return
        left = min(spec.lease_duration_seconds or self._duration, longest) - age
        if left > 0:
            raise LeaseLostError(
                f"another run holds Lease {self._name}",
                holder=spec.holder_identity[:_SHOWN],
                until=(now + timedelta(seconds=left)).isoformat(),
                **_held_too_long(spec, now),
            )

    def _create(self, now: datetime) -> None:
        spec = {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": self._duration,
            "acquireTime": _text(now),
            "renewTime": _text(now),
            "leaseTransitions": 0,
        }
        body = {"metadata": {"name": self._name, "namespace": self._namespace}, "spec": spec}
        try:
            written = self._store.create(LEASE, body, namespace=self._namespace)
        except AlreadyExistsError as error:
            raise LeaseLostError(f"another run acquired Lease {self._name} first", holder="") from error
        self._record(written, now)

    def _write(
        self,
        change: dict[str, Any],
        now: datetime,
        resource_version: str,
        annotations: Mapping[str, str | None] | None = None,
    ) -> None:
        metadata = {"resourceVersion": resource_version, **({"annotations": dict(annotations)} if annotations else {})}
        patch = {"metadata": metadata, "spec": {**change, "renewTime": _text(now)}}
        try:
            written = self._store.patch(LEASE, self._name, patch, namespace=self._namespace)
        except (ConflictError, NotFoundError) as error:
            self._renewed_at = None
            raise LeaseLostError(f"another run has acquired Lease {self._name}", holder=self._holder) from error
        self._record(written, now)

    def _record(self, written: dict[str, Any], now: datetime) -> None:
        self._version = written["metadata"]["resourceVersion"]
        self._renewed_at = now


def _held_too_long(spec: LeaseSpec, now: datetime) -> dict[str, int]:
    """Return for how many seconds one holder has had the Lease, if that is longer than any run lasts; else nothing."""
    acquired = parse_time(spec.acquire_time)
    held = now - acquired if acquired is not None else timedelta()
    return {"held_seconds": int(held.total_seconds())} if held > HELD_TOO_LONG else {}


def _time_of(lease: LeaseObject) -> datetime | None:
    """Return the time in the annotation; None without one, or if a user broke it."""
    return parse_time(lease.metadata.annotations.get(labels.NEXT_RUN, ""))


def _text(moment: datetime) -> str:
    """Return the time as a `metav1.MicroTime`."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
