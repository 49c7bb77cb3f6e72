"""Writes Kubernetes Events with Karpenter's reasons, deduplicated by their names.

An Event's name is derived from its reason, its object and its key (`Event.key`), so that a repeat finds the existing Event
and increments its count. Within the reason's dedupe window a repeat is not written at all.

::

    recorded ─► reasons with a rate limit are cut ─► repeats within the window are dropped ─► first Events, then the oldest
                                                     (one list per reason with many)           repeats, `WRITES_PER_RUN` at most

What is not written, for its rate limit, the run's limit or the run's end, is counted in `journeyman_events_omitted_total`. What still
holds is recorded by the next run again, which finds the others written, so a fleet's Events need a few runs and no memory.
Events may be lost: no error is raised.

Restates: karpenter pkg/events/recorder.go (deduplication and rate limit).
Differs: the window is measured from the stored Event's `lastTimestamp`, so that it holds across functions. Source and
reportingComponent are Karpenter's unless configured otherwise, because alerts filter on them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec import Struct

from journeyman.core.api.event_reasons import DEFAULT_DEDUPE_WINDOW, EVENT_REASONS
from journeyman.core.api.objects import EVENT, ObjectMeta, Resource
from journeyman.core.plan import Event, ObjectRef, Observation
from journeyman.errors import AlreadyExistsError, JourneymanError, NotFoundError
from journeyman.ports import Clock, KubeStore, Patch

COMPONENT: Final = "karpenter"  # karpenter pkg/operator/operator.go: the event recorder's name
BUDGET_DEDUPE_WINDOW: Final = timedelta(minutes=1)  # karpenter disruption/events: budgets can change every minute
RATE_LIMITS: Final[Mapping[str, int]] = {"Nominated": 10}
"""The most Events of a reason per run; the burst of karpenter pkg/controllers/provisioning/scheduling `PodNominationRateLimiter`."""
WRITES_PER_RUN: Final = 1000
LISTED_FROM: Final = 10
"""With more Events of one reason, one list replaces the read of each. A list reads all Events of the cluster on the server."""
BATCH: Final = 64  # writes between two checks of the time
MAX_NAME: Final = 253
MAX_MESSAGE: Final = 1024  # the API server rejects longer ones


class _StoredEvent(Struct, frozen=True, rename="camel"):
    """The fields of an existing Event that a repeat reads. Not an `Object`: no process caches and watches Events."""

    metadata: ObjectMeta = ObjectMeta()
    count: int = 0
    last_timestamp: datetime | None = None


_EVENT: Final[Resource[Any]] = msgspec.structs.replace(EVENT, type=_StoredEvent)
_NEVER: Final = datetime.min.replace(tzinfo=timezone.utc)


class _PendingEvent(Struct, frozen=True):
    event: Event
    count: int
    name: str
    stored: _StoredEvent | None = None

    @property
    def namespace(self) -> str:
        return self.event.ref.namespace or "default"

    @property
    def last_at(self) -> datetime:
        """When it was last written; the earliest time if it was not."""
        return self.stored.last_timestamp or _NEVER if self.stored is not None else _NEVER


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
        self._pending[name] = _PendingEvent(event, seen.count + 1 if seen else 1, name)

    def flush(self, *, until: datetime) -> tuple[Observation, ...]:
        """Write the recorded Events until `until`; return metric samples that count those that were not written, by reason."""
        pending, self._pending = self._pending, {}
        omitted: Counter[str] = Counter()
        due = self._due(_within_rate_limits(pending.values(), omitted), until)
        omitted.update(item.event.reason for item in due[WRITES_PER_RUN:])
        writes = due[:WRITES_PER_RUN]
        for start in range(0, len(writes), BATCH):
            if self._clock.now() >= until:
                omitted.update(item.event.reason for item in writes[start:])
                break
            self._write(writes[start : start + BATCH])
        if omitted:
            self._log("debug", "events omitted", reasons=dict(omitted))
        return tuple(_omitted(reason, number) for reason, number in sorted(omitted.items()))

    def _due(self, pending: Iterable[_PendingEvent], until: datetime) -> list[_PendingEvent]:
        """Return the Events to write: first those that are not known to exist, then repeats, the oldest first."""
        by_reason: dict[str, list[_PendingEvent]] = {}
        for item in pending:
            by_reason.setdefault(item.event.reason, []).append(item)
        found = chain.from_iterable(self._read(reason, items, until) for reason, items in by_reason.items())
        return sorted((item for item in found if not self._is_within_window(item)), key=lambda item: item.last_at)

    def _read(self, reason: str, items: list[_PendingEvent], until: datetime) -> list[_PendingEvent]:
        """Return the Events of one reason with what is stored of them, if there are many."""
        if len(items) <= LISTED_FROM or self._clock.now() >= until:
            return items
        selector = f"reason={reason},reportingComponent={self._component}"
        try:
            listed = self._store.list(_EVENT, field_selector=selector).items
        except JourneymanError as error:
            text = "events cannot be listed, so repeats are not counted; update the roles of the chart"
            self._log("warning", text, reason=reason, error=str(error))
            return items
        stored = {(event.metadata.namespace, event.metadata.name): event for event in listed}
        return [msgspec.structs.replace(item, stored=stored.get((item.namespace, item.name))) for item in items]

    def _is_within_window(self, item: _PendingEvent) -> bool:
        return self._clock.now() - item.last_at < dedupe_window(item.event) if item.stored is not None else False

    def _write(self, items: Sequence[_PendingEvent]) -> None:
        """Create the Events that are not known to exist, and repeat the others; no error is raised."""
        new = [item for item in items if item.stored is None]
        repeats = [item for item in items if item.stored is not None]
        if new:
            repeats += self._create(new)
        if repeats:
            self._report(repeats, self._store.patch_each(_EVENT, [self._repeat(item) for item in repeats]))

    def _create(self, items: Sequence[_PendingEvent]) -> Iterator[_PendingEvent]:
        """Create Events; yield those that exist already and are due again."""
        results = self._store.create_each(_EVENT, [self._body(item) for item in items])
        self._report(items, [None if isinstance(r, AlreadyExistsError) else r for r in results])
        for item, result in zip(items, results, strict=True):
            if isinstance(result, AlreadyExistsError):
                yield from (known for known in self._stored(item) if not self._is_within_window(known))

    def _stored(self, item: _PendingEvent) -> Iterator[_PendingEvent]:
        """Yield the Event with what is stored of it; nothing if it expired meanwhile, as the next repeat creates a new one.

        A list by name, for which the API server reads one object, needs no permission besides that to list.
        """
        selector = f"metadata.name={item.name}"
        try:
            for stored in self._store.list(_EVENT, namespace=item.namespace, field_selector=selector).items:
                yield msgspec.structs.replace(item, stored=stored)
        except JourneymanError as error:
            self._report((item,), (error,))

    def _repeat(self, item: _PendingEvent) -> Patch:
        count = item.stored.count if item.stored is not None else 0
        body = self._body(item)
        changed = {"count": count + item.count, **{k: body[k] for k in ("lastTimestamp", "message", "type")}}
        return Patch(name=item.name, namespace=item.namespace, body=changed)

    def _report(self, items: Sequence[_PendingEvent], results: Iterable[object]) -> None:
        for item, result in zip(items, results, strict=True):
            if isinstance(result, JourneymanError) and not isinstance(result, NotFoundError):
                reason, ref = item.event.reason, str(item.event.ref)
                self._log("debug", "event not recorded", reason=reason, object=ref, error=str(result))

    def _body(self, item: _PendingEvent) -> dict[str, Any]:
        source = {
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }
        return _body(item, now=self._clock.now()) | source


def _within_rate_limits(pending: Iterable[_PendingEvent], omitted: Counter[str]) -> Iterator[_PendingEvent]:
    """Yield the Events within their reason's rate limit, and count the others in `omitted`."""
    taken: Counter[str] = Counter()
    for item in pending:
        reason = item.event.reason
        taken[reason] += 1
        if taken[reason] > RATE_LIMITS.get(reason, taken[reason]):
            omitted[reason] += 1
        else:
            yield item


def _omitted(reason: str, number: int) -> Observation:
    return Observation(name="journeyman_events_omitted_total", value=float(number), labels={"reason": reason})


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


def _body(item: _PendingEvent, *, now: datetime) -> dict[str, Any]:
    event = item.event
    moment = msgspec.to_builtins(now.replace(microsecond=0))
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": item.name, "namespace": item.namespace},
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
