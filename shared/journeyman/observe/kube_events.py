"""Writes Kubernetes Events with Karpenter's reasons, deduplicated by their names.

An Event's name is derived from its reason, its object and its key (`Event.key`), so that a repeat finds the existing Event
and increments its count. Within the reason's dedupe window a repeat is not written at all. Events may be lost: no
error is raised, and at most `WRITES_PER_REASON` Events of one reason are written in a run.

Restates: karpenter pkg/events/recorder.go (deduplication and rate limit).
Differs: the window is measured from the stored Event's `lastTimestamp`, so that it holds across functions. Source and
reportingComponent are Karpenter's unless configured otherwise, because alerts filter on them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import Struct

from journeyman.core.api.event_reasons import DEFAULT_DEDUPE_WINDOW, EVENT_REASONS
from journeyman.core.api.objects import EVENT, Object, Resource
from journeyman.core.plan import Event, ObjectRef
from journeyman.errors import AlreadyExistsError, JourneymanError, NotFoundError
from journeyman.ports import Clock, KubeStore

COMPONENT: Final = "karpenter"  # karpenter pkg/operator/operator.go: the event recorder's name
BUDGET_DEDUPE_WINDOW: Final = timedelta(minutes=1)  # karpenter disruption/events: budgets can change every minute
WRITES_PER_REASON: Final = 10  # per run; Karpenter's burst for Nominated
MAX_NAME: Final = 253
MAX_MESSAGE: Final = 1024  # the API server rejects longer ones


class _StoredEvent(Object, frozen=True):
    """The fields of an existing Event that a repeat reads."""

    count: int = 0
    last_timestamp: datetime | None = None


_EVENT: Final[Resource[Any]] = msgspec.structs.replace(EVENT, type=_StoredEvent)


class _PendingEvent(Struct, frozen=True):
    event: Event
    count: int


class EventRecorder:
    """Collects the Events of one run and writes them at its end, so that they do not delay the run."""

    def __init__(
        self,
        store: KubeStore,
        clock: Clock,
        *,
        instance: str,
        log: Callable[..., None],
        component: str = COMPONENT,
    ) -> None:
        """Prepare to record.

        Args:
            store: The API server.
            clock: The time of the Events.
            instance: Their reportingInstance.
            log: Takes level, message and fields.
            component: Their reportingComponent and source.
        """
        self._store = store
        self._clock = clock
        self._instance = instance
        self._log = log
        self._component = component
        self._pending: dict[str, _PendingEvent] = {}

    def record(self, event: Event) -> None:
        """Keep the Event for `flush`; a repeat in the same run increments its count."""
        name = name_of(event.ref, event.reason, event.key)
        seen = self._pending.get(name)
        self._pending[name] = _PendingEvent(event, seen.count + 1 if seen else 1)

    def flush(self, *, until: datetime) -> None:
        """Write the recorded Events until `until`; a log line counts those that were not written."""
        pending, self._pending = self._pending, {}
        written: Counter[str] = Counter()
        omitted: Counter[str] = Counter()
        for name, item in pending.items():
            reason = item.event.reason
            if written[reason] >= WRITES_PER_REASON or self._clock.now() >= until:
                omitted[reason] += 1
                continue
            written[reason] += 1
            self._write(name, item)
        if omitted:
            self._log("debug", "events omitted", reasons=dict(omitted))

    def _write(self, name: str, item: _PendingEvent) -> None:
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

    def _repeat(self, name: str, namespace: str, item: _PendingEvent, body: Mapping[str, Any]) -> None:
        try:
            stored = self._store.get(_EVENT, name, namespace=namespace)
        except NotFoundError:  # it expired meanwhile; the next repeat creates a new one
            return
        window = dedupe_window(item.event)
        if stored.last_timestamp is not None and self._clock.now() - stored.last_timestamp < window:
            return
        changed = {"count": stored.count + item.count, **{k: body[k] for k in ("lastTimestamp", "message", "type")}}
        self._store.patch(_EVENT, name, changed, namespace=namespace)


def dedupe_window(event: Event) -> timedelta:
    """Return for how long repeats of the Event are not written."""
    if (event.ref.resource.kind, event.reason) == ("NodePool", "DisruptionBlocked"):
        return BUDGET_DEDUPE_WINDOW
    entry = EVENT_REASONS.get(event.reason)
    return entry.dedupe_window if entry is not None else DEFAULT_DEDUPE_WINDOW  # a condition's type


def name_of(ref: ObjectRef, reason: str, key: str = "") -> str:
    """Return the name of the Event with this reason on this object: always the same, within Kubernetes' limit."""
    identity = "/".join((ref.resource.kind, ref.namespace, ref.name, ref.uid, reason, *([key] if key else [])))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return f"{ref.name[: MAX_NAME - len(digest) - 1]}.{digest}"


def _body(name: str, namespace: str, item: _PendingEvent, *, now: datetime) -> dict[str, Any]:
    event = item.event
    moment = msgspec.to_builtins(now.replace(microsecond=0))
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": _involved(event.ref),
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:MAX_MESSAGE],
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
