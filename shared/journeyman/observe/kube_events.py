"""Kubernetes Events with Karpenter's reasons, deduplicated without a memory.

An Event's name is made of its reason, the object it is about and what else tells it apart (`Event.key`), so a repeat
finds the Event that is there and becomes a patch of its count. Within Karpenter's dedupe window even that is left out.
Explanations are cheap to lose: nothing here raises, and a flood of one reason is cut off and counted.

Restates: karpenter pkg/events/recorder.go (dedupe, rate limit) and the reasons' own windows.
Differs: the window is kept in the Event (`lastTimestamp`), not in memory, so that it holds across functions. Source and
reportingComponent are Karpenter's own unless set otherwise: alerts filter on them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import Struct

from journeyman.core.api.objects import EVENT, Object, Resource
from journeyman.core.plan import Event, ObjectRef
from journeyman.errors import AlreadyExistsError, JourneymanError, NotFoundError
from journeyman.ports import Clock, KubeStore

COMPONENT: Final = "karpenter"  # karpenter pkg/operator/operator.go: the event recorder's name
DEDUPE: Final = timedelta(minutes=2)  # karpenter pkg/events/recorder.go: defaultDedupeTimeout
DEDUPE_BY_REASON: Final[Mapping[str, timedelta]] = {
    "FailedScheduling": timedelta(minutes=5),
    "NoCompatibleInstanceTypes": timedelta(minutes=1),
    "Unconsolidatable": timedelta(minutes=15),
    "NodeRepairBlocked": timedelta(minutes=15),
    "NotUnderstood": timedelta(minutes=15),
}
BUDGET_DEDUPE: Final = timedelta(minutes=1)  # karpenter disruption/events: budgets can change every minute
WRITES_PER_REASON: Final = 10  # Karpenter's burst for Nominated, here for every reason of one run
NAME_LIMIT: Final = 253
MESSAGE_LIMIT: Final = 1024  # the API server refuses longer ones


class _Stored(Object, frozen=True):
    """What a repeat needs to know of the Event that is there."""

    count: int = 0
    last_timestamp: datetime | None = None


_EVENT: Final[Resource[Any]] = msgspec.structs.replace(EVENT, type=_Stored)


class _Pending(Struct, frozen=True):
    event: Event
    count: int


class EventRecorder:
    """Collects the Events of one run and writes them at its end, when they no longer delay the work."""

    def __init__(
        self,
        store: KubeStore,
        clock: Clock,
        *,
        instance: str,
        log: Callable[..., None],
        component: str = COMPONENT,
    ) -> None:
        """Args: `instance` becomes reportingInstance, `component` who says it; `log` takes level, message and fields."""
        self._store = store
        self._clock = clock
        self._instance = instance
        self._log = log
        self._component = component
        self._pending: dict[str, _Pending] = {}

    def record(self, event: Event) -> None:
        """Keep it for `flush`; a repeat in the same run raises the count."""
        name = name_of(event.ref, event.reason, event.key)
        seen = self._pending.get(name)
        self._pending[name] = _Pending(event, seen.count + 1 if seen else 1)

    def flush(self, *, until: datetime) -> None:
        """Write what was recorded, and stop at `until`; what is left is counted in a log line, never raised."""
        pending, self._pending = self._pending, {}
        written: Counter[str] = Counter()
        left_out: Counter[str] = Counter()
        for name, item in pending.items():
            reason = item.event.reason
            if written[reason] >= WRITES_PER_REASON or self._clock.now() >= until:
                left_out[reason] += 1
                continue
            written[reason] += 1
            self._write(name, item)
        if left_out:
            self._log("debug", "events left out", reasons=dict(left_out))

    def _write(self, name: str, item: _Pending) -> None:
        namespace = item.event.ref.namespace or "default"
        now = self._clock.now()
        body = _body(name, namespace, item, now=now) | self._source()
        try:
            try:
                self._store.create(_EVENT, body, namespace=namespace)
            except AlreadyExistsError:
                self._repeat(name, namespace, item, body)
        except JourneymanError as error:
            self._log(
                "debug", "event not recorded", reason=item.event.reason, object=str(item.event.ref), error=str(error)
            )

    def _source(self) -> dict[str, Any]:
        return {
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }

    def _repeat(self, name: str, namespace: str, item: _Pending, body: Mapping[str, Any]) -> None:
        try:
            stored = self._store.get(_EVENT, name, namespace=namespace)
        except NotFoundError:  # it expired in between; the next repeat makes a new one
            return
        window = window_of(item.event)
        if stored.last_timestamp is not None and self._clock.now() - stored.last_timestamp < window:
            return
        changed = {"count": stored.count + item.count, **{k: body[k] for k in ("lastTimestamp", "message", "type")}}
        self._store.patch(_EVENT, name, changed, namespace=namespace)


def window_of(event: Event) -> timedelta:
    """For how long a repeat of it is not told."""
    if (event.ref.resource.kind, event.reason) == ("NodePool", "DisruptionBlocked"):
        return BUDGET_DEDUPE
    return DEDUPE_BY_REASON.get(event.reason, DEDUPE)


def name_of(ref: ObjectRef, reason: str, key: str = "") -> str:
    """The name of the Event with this reason about this object: the same every time, within Kubernetes' limit."""
    identity = "/".join((ref.resource.kind, ref.namespace, ref.name, ref.uid, reason, *([key] if key else [])))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return f"{ref.name[: NAME_LIMIT - len(digest) - 1]}.{digest}"


def _body(name: str, namespace: str, item: _Pending, *, now: datetime) -> dict[str, Any]:
    event = item.event
    moment = msgspec.to_builtins(now.replace(microsecond=0))
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": _involved(event.ref),
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:MESSAGE_LIMIT],
        "count": item.count,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
    }


def _involved(ref: ObjectRef) -> dict[str, str]:
    fields = {
        "apiVersion": ref.resource.api_version,
        "kind": ref.resource.kind,
        "name": ref.name,
        "namespace": ref.namespace,
        "uid": ref.uid,
    }
    return {name: value for name, value in fields.items() if value}
