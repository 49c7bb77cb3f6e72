"""Fires scheduled rules of EventBridge and schedules of EventBridge Scheduler in virtual time.

moto stores both but never fires them. This module reads the definitions through the API, so it works with any account.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from journeyman.ports import Clock
from journeyman_simulator.cloud_rules.schedule_expressions import Once, Recurrence, parse

_RESOLUTION = timedelta(seconds=1)  # of schedules
Deliver = Callable[[Mapping[str, Any], Mapping[str, Any]], object]


class ScheduleDefinition(Struct, frozen=True, kw_only=True):
    """The definition of a schedule. `refresh` keeps the next time of a schedule whose definition is unchanged."""

    arn: str
    source: str  # aws.events or aws.scheduler
    expression: str
    zone: str
    targets: tuple[str, ...]  # as JSON, so that definitions can be compared
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    deleted_when_done: bool = False


class _RunningSchedule(Struct, kw_only=True):
    definition: ScheduleDefinition
    recurrence: Recurrence
    due: datetime | None


class ScheduleFiring(Struct, frozen=True, kw_only=True):
    """A firing of a schedule."""

    arn: str
    at: datetime
    targets: tuple[Mapping[str, Any], ...]
    event: Mapping[str, Any]


class ScheduleRunner:
    """Fires schedules when they are due. An `Actor` of a simulated `World`.

    Args:
        events: A boto3 client of EventBridge.
        scheduler: A boto3 client of EventBridge Scheduler.
        clock: The virtual clock; a schedule exists from the time at which the runner first reads it.
        deliver: Called with each target (Arn, Input, SqsParameters…) and the event, which the target's Input may replace.
        version: Returns a number that changes when a definition may have changed; without it, call `refresh` after changes.
        new_id: Returns the id of an event.
    """

    def __init__(
        self,
        events: Any,
        scheduler: Any,
        clock: Clock,
        deliver: Deliver,
        *,
        version: Callable[[], int] = lambda: 0,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._events = events
        self._scheduler = scheduler
        self._clock = clock
        self._deliver = deliver
        self._version = version
        self._new_id = new_id
        self._read_version: int | None = None
        self._running: dict[str, _RunningSchedule] = {}

    def act(self) -> bool:
        """Fire the schedules that are due, earliest first; return whether one fired."""
        self._refresh_if_changed()
        firings = list(self._firings())
        for firing in firings:
            for target in firing.targets:
                self._deliver(_with_context(target, firing), firing.event)
        return bool(firings)

    def due(self) -> datetime | None:
        """Return when the next schedule fires."""
        self._refresh_if_changed()
        return min((running.due for running in self._running.values() if running.due), default=None)

    def refresh(self) -> None:
        """Read all definitions again.

        Raises:
            ConfigurationError: A definition has an expression that AWS would reject.
        """
        now = self._clock.now()
        definitions = {definition.arn: definition for definition in (*self._rules(), *self._schedules())}
        for arn in self._running.keys() - definitions.keys():
            del self._running[arn]
        for arn, definition in definitions.items():
            if arn not in self._running or self._running[arn].definition != definition:
                self._running[arn] = _start(definition, now)

    def _refresh_if_changed(self) -> None:
        version = self._version()
        if version != self._read_version:
            self.refresh()
            self._read_version = version

    def _firings(self) -> Iterator[ScheduleFiring]:
        now = self._clock.now()
        while due := [running for running in self._running.values() if running.due and running.due <= now]:
            running = min(due, key=lambda one: (one.due, one.definition.arn))
            definition, moment = running.definition, running.due or now
            running.due = _within(definition, running.recurrence.after(moment))
            yield ScheduleFiring(
                arn=definition.arn,
                at=moment,
                targets=tuple(json.loads(target) for target in definition.targets),
                event=_event(definition, moment, self._new_id()),
            )
            if running.due is None and definition.deleted_when_done:
                self._delete(definition)

    def _delete(self, definition: ScheduleDefinition) -> None:
        group, name = definition.arn.split("/")[-2:]
        self._scheduler.delete_schedule(GroupName=group, Name=name)
        del self._running[definition.arn]

    def _rules(self) -> Iterator[ScheduleDefinition]:
        for page in self._events.get_paginator("list_rules").paginate():
            for rule in page["Rules"]:
                if rule.get("ScheduleExpression") and rule["State"] == "ENABLED":
                    targets = self._events.list_targets_by_rule(Rule=rule["Name"])["Targets"]
                    yield ScheduleDefinition(
                        arn=rule["Arn"],
                        source="aws.events",
                        expression=rule["ScheduleExpression"],
                        zone="UTC",
                        targets=tuple(json.dumps(target, sort_keys=True) for target in targets),
                    )

    def _schedules(self) -> Iterator[ScheduleDefinition]:
        for page in self._scheduler.get_paginator("list_schedules").paginate():
            for item in page["Schedules"]:
                schedule = self._scheduler.get_schedule(GroupName=item["GroupName"], Name=item["Name"])
                if schedule["State"] == "ENABLED":
                    yield ScheduleDefinition(
                        arn=schedule["Arn"],
                        source="aws.scheduler",
                        expression=schedule["ScheduleExpression"],
                        zone=schedule.get("ScheduleExpressionTimezone") or "UTC",
                        targets=(json.dumps(schedule["Target"], sort_keys=True),),
                        starts_at=schedule.get("StartDate"),
                        ends_at=schedule.get("EndDate"),
                        deleted_when_done=schedule.get("ActionAfterCompletion") == "DELETE",
                    )


def _start(definition: ScheduleDefinition, now: datetime) -> _RunningSchedule:
    """Start a schedule. A rule's rate first fires one interval after its creation, a schedule's at its start.

    Restates: EventBridge user guide, EventBridge Scheduler user guide.
    """
    of_rule = definition.source == "aws.events"
    start = max(now, definition.starts_at) if definition.starts_at else now
    recurrence = parse(definition.expression, first=start, zone=definition.zone, strict_units=of_rule)
    if isinstance(recurrence, Once) and recurrence.at <= now:
        due = None  # a schedule whose single time is past at its creation never fires
    else:
        due = recurrence.after(start) if of_rule else _first_at_or_after(recurrence, start)
    return _RunningSchedule(definition=definition, recurrence=recurrence, due=_within(definition, due))


def _first_at_or_after(recurrence: Recurrence, start: datetime) -> datetime | None:
    return recurrence.after(start - _RESOLUTION)


def _within(definition: ScheduleDefinition, moment: datetime | None) -> datetime | None:
    return None if moment and definition.ends_at and moment > definition.ends_at else moment


def _event(definition: ScheduleDefinition, moment: datetime, event_id: str) -> dict[str, Any]:
    """Return the event for a target without Input; the `detail` of EventBridge Scheduler is text, as from AWS."""
    _, _, _, region, account, _ = definition.arn.split(":", 5)
    return {
        "version": "0",
        "id": event_id,
        "detail-type": "Scheduled Event",
        "source": definition.source,
        "account": account,
        "time": _iso(moment),
        "region": region,
        "resources": [definition.arn],
        "detail": {} if definition.source == "aws.events" else "{}",
    }


def _with_context(target: Mapping[str, Any], firing: ScheduleFiring) -> Mapping[str, Any]:
    """Return the target with the context attributes of EventBridge Scheduler replaced in its Input."""
    if "Input" not in target or firing.event["source"] != "aws.scheduler":
        return target
    text = target["Input"]
    for word, value in (
        ("schedule-arn", firing.arn),
        ("scheduled-time", _iso(firing.at)),
        ("execution-id", firing.event["id"]),
        ("attempt-number", "1"),
    ):
        text = text.replace(f"<aws.scheduler.{word}>", value)
    return {**target, "Input": text}


def _iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
