"""EventBridge schedules that fire: scheduled rules and EventBridge Scheduler, on virtual time.

Moto keeps both but never fires them. This reads the definitions through the API, so it works with any account.
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
    """The definition of a schedule; one that has not changed keeps its rhythm."""

    arn: str
    source: str  # aws.events or aws.scheduler
    expression: str
    zone: str
    targets: tuple[str, ...]  # JSON, so that definitions compare
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    deleted_when_done: bool = False


class _RunningSchedule(Struct, kw_only=True):
    definition: ScheduleDefinition
    recurrence: Recurrence
    due: datetime | None


class ScheduleFiring(Struct, frozen=True, kw_only=True):
    """One occurrence of a schedule."""

    arn: str
    at: datetime
    targets: tuple[Mapping[str, Any], ...]
    event: Mapping[str, Any]


class ScheduleRunner:
    """Fires schedules when their time has come. An `Actor` of a simulated `World`.

    Args:
        events: A boto3 client of EventBridge.
        scheduler: A boto3 client of EventBridge Scheduler.
        clock: Virtual time; a schedule exists from the moment the ticker first sees it.
        deliver: Gets each target (Arn, Input, SqsParameters…) and the event, which the target's Input may replace.
        version: Changes whenever a definition may have changed; without it call `refresh` after changes.
        new_id: Of each event.
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
        self._seen: int | None = None
        self._ticking: dict[str, _RunningSchedule] = {}

    def act(self) -> bool:
        """Fire what is due by now, earliest first; True if any schedule fired."""
        self._catch_up()
        firings = list(self._firings())
        for firing in firings:
            for target in firing.targets:
                self._deliver(_with_context(target, firing), firing.event)
        return bool(firings)

    def due(self) -> datetime | None:
        """Return when the next schedule fires."""
        self._catch_up()
        return min((ticking.due for ticking in self._ticking.values() if ticking.due), default=None)

    def refresh(self) -> None:
        """Read all definitions again.

        Raises:
            ConfigurationError: One has an expression that AWS would have refused.
        """
        now = self._clock.now()
        definitions = {definition.arn: definition for definition in (*self._rules(), *self._schedules())}
        for arn in self._ticking.keys() - definitions.keys():
            del self._ticking[arn]
        for arn, definition in definitions.items():
            if arn not in self._ticking or self._ticking[arn].definition != definition:
                self._ticking[arn] = _begin(definition, now)

    def _catch_up(self) -> None:
        version = self._version()
        if version != self._seen:
            self.refresh()
            self._seen = version

    def _firings(self) -> Iterator[ScheduleFiring]:
        now = self._clock.now()
        while due := [ticking for ticking in self._ticking.values() if ticking.due and ticking.due <= now]:
            ticking = min(due, key=lambda one: (one.due, one.definition.arn))
            definition, moment = ticking.definition, ticking.due or now
            ticking.due = _within(definition, ticking.recurrence.after(moment))
            yield ScheduleFiring(
                arn=definition.arn,
                at=moment,
                targets=tuple(json.loads(target) for target in definition.targets),
                event=_event(definition, moment, self._new_id()),
            )
            if ticking.due is None and definition.deleted_when_done:
                self._delete(definition)

    def _delete(self, definition: ScheduleDefinition) -> None:
        group, name = definition.arn.split("/")[-2:]
        self._scheduler.delete_schedule(GroupName=group, Name=name)
        del self._ticking[definition.arn]

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


def _begin(definition: ScheduleDefinition, now: datetime) -> _RunningSchedule:
    """Start a schedule: a rule's rate fires first one interval after its creation, a schedule's at its start: EventBridge user guides."""
    of_rule = definition.source == "aws.events"
    start = max(now, definition.starts_at) if definition.starts_at else now
    recurrence = parse(definition.expression, first=start, zone=definition.zone, strict_units=of_rule)
    if isinstance(recurrence, Once) and recurrence.at <= now:
        due = None  # a time that is past when the schedule is made never comes
    else:
        due = recurrence.after(start) if of_rule else _first_at_or_after(recurrence, start)
    return _RunningSchedule(definition=definition, recurrence=recurrence, due=_within(definition, due))


def _first_at_or_after(recurrence: Recurrence, start: datetime) -> datetime | None:
    return recurrence.after(start - _RESOLUTION)


def _within(definition: ScheduleDefinition, moment: datetime | None) -> datetime | None:
    return None if moment and definition.ends_at and moment > definition.ends_at else moment


def _event(definition: ScheduleDefinition, moment: datetime, event_id: str) -> dict[str, Any]:
    """Return the event of a target without Input; Scheduler's `detail` is text, as AWS sends it."""
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
    """Return the target with EventBridge Scheduler's context attributes filled into its Input."""
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
