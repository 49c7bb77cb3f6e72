"""Implements the in-process account's EventBridge: service events, rules, targets, and definitions of schedules."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import Any, Final

from msgspec import Struct, field

from journeyman_simulator.cloud_rules.event_delivery import EventEnvelope, EventTargets
from journeyman_simulator.cloud_rules.schedule_expressions import check_rule_expression, check_schedule_expression
from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError, ServiceError
from journeyman_simulator.cloud_rules.service_time import ServiceTime
from journeyman_simulator.in_process_account.service_client import (
    PAGING,
    ServiceOperation,
    ServiceOperations,
    ServiceRequest,
    paged,
)

JSON = Mapping[str, Any]


class _EventRule(Struct, kw_only=True):
    name: str
    arn: str
    pattern: JSON
    schedule: str
    enabled: bool
    targets: dict[str, JSON] = field(default_factory=dict)


class SimulatedEventBus:
    """The default event bus.

    Args:
        time: The time of events.
        region: The region of events and rules.
        account: The account of events and rules.
        send: Sends a message, given the queue's name, the text, and a message group if the target names one.
        on_event: Called with every event.
    """

    def __init__(
        self,
        time: ServiceTime,
        region: str,
        account: str,
        send: Callable[[str, str, str | None], object],
        on_event: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        self._time = time
        self._region = region
        self._account = account
        self._envelope = EventEnvelope(account=account, region=region)
        self._on_event = on_event
        self._serial = count(1)
        self._rules: dict[str, _EventRule] = {}
        self.version = 0  # increases when a rule may have changed
        self.targets = EventTargets(send)

    def publish(self, source: str, detail_type: str, detail: JSON, resources: Sequence[str]) -> None:
        """Put an event on the bus, with the current time."""
        event = self._envelope.event(
            event_id=f"00000000-0000-4000-8000-{next(self._serial):012x}",
            source=source,
            detail_type=detail_type,
            detail=detail,
            resources=resources,
            at=self._time.now(),
        )
        if self._on_event:
            self._on_event(event)
        for rule in self._rules.values():
            if rule.enabled and rule.pattern and is_match(rule.pattern, event):
                for target in rule.targets.values():
                    self.targets.deliver(target, event)

    def announce_maintenance(self, instance_ids: Sequence[str], code: str, starts_at: datetime) -> None:
        """Publish an AWS Health event that announces the maintenance of instances."""
        detail = self._envelope.health_detail(
            number=next(self._serial), code=code, instance_ids=instance_ids, starts_at=starts_at, at=self._time.now()
        )
        self.publish("aws.health", "AWS Health Event", detail, instance_ids)

    def operations(self) -> ServiceOperations:
        """Return EventBridge's operations."""
        rule = ("EventPattern", "ScheduleExpression", "State")
        return {
            "PutRule": ServiceOperation(self._put_rule, requires=("Name",), accepts=rule),
            "PutTargets": ServiceOperation(self._put_targets, requires=("Rule", "Targets")),
            "PutEvents": ServiceOperation(self._put_events, requires=("Entries",)),
            "EnableRule": ServiceOperation(lambda request: self._set_enabled(request, on=True), requires=("Name",)),
            "DisableRule": ServiceOperation(lambda request: self._set_enabled(request, on=False), requires=("Name",)),
            "ListRules": ServiceOperation(self._list_rules, accepts=PAGING),
            "ListTargetsByRule": ServiceOperation(self._list_targets, requires=("Rule",), accepts=PAGING),
        }

    def _put_rule(self, request: ServiceRequest) -> dict[str, Any]:
        name = request["Name"]
        check_rule_expression(request.get("ScheduleExpression", ""))
        known = self._rules.get(name)
        self.version += 1
        self._rules[name] = _EventRule(
            name=name,
            arn=f"arn:aws:events:{self._region}:{self._account}:rule/{name}",
            pattern=json.loads(request.get("EventPattern") or "{}"),
            schedule=request.get("ScheduleExpression", ""),
            enabled=request.get("State", "ENABLED") == "ENABLED",
            targets=known.targets if known else {},
        )
        return {"RuleArn": self._rules[name].arn}

    def _put_targets(self, request: ServiceRequest) -> dict[str, Any]:
        self.version += 1
        self._rule(request["Rule"]).targets.update({target["Id"]: target for target in request["Targets"]})
        return {"FailedEntryCount": 0, "FailedEntries": []}

    def _put_events(self, request: ServiceRequest) -> dict[str, Any]:
        for entry in request["Entries"]:
            detail = json.loads(entry["Detail"])
            self.publish(entry["Source"], entry["DetailType"], detail, entry.get("Resources", ()))
        return {"FailedEntryCount": 0, "Entries": [{} for _ in request["Entries"]]}

    def _set_enabled(self, request: ServiceRequest, *, on: bool) -> dict[str, Any]:
        self.version += 1
        self._rule(request["Name"]).enabled = on
        return {}

    def _list_rules(self, request: ServiceRequest) -> dict[str, Any]:
        listed = [
            {"Name": rule.name, "Arn": rule.arn, "State": "ENABLED" if rule.enabled else "DISABLED"}
            | ({"ScheduleExpression": rule.schedule} if rule.schedule else {})
            for rule in self._rules.values()
        ]
        return paged("Rules", listed, request)

    def _list_targets(self, request: ServiceRequest) -> dict[str, Any]:
        return paged("Targets", list(self._rule(request["Rule"]).targets.values()), request)

    def _rule(self, name: str) -> _EventRule:
        if name not in self._rules:
            raise ServiceError("ResourceNotFoundException", f"Rule {name} does not exist on EventBus default.")
        return self._rules[name]


def is_match(pattern: JSON, event: Any) -> bool:
    """Whether an event has at each key of a pattern one of the pattern's values, or a text with its `prefix`."""
    for key, wanted in pattern.items():
        value = event.get(key) if isinstance(event, Mapping) else None
        if isinstance(wanted, Mapping):
            if not is_match(wanted, value):
                return False
        elif not any(_matches(one, value) for one in wanted):
            return False
    return True


def _matches(wanted: Any, value: Any) -> bool:
    if not isinstance(wanted, Mapping):
        return wanted in value if isinstance(value, list) else bool(wanted == value)
    if set(wanted) != {"prefix"}:
        raise NotSimulatedError(
            f"the simulation does not support the event pattern {dict(wanted)}, only values and prefixes"
        )
    return isinstance(value, str) and value.startswith(wanted["prefix"])


_DEFAULT_GROUP: Final = "default"
_OPTIONS: Final = (
    *(
        "ActionAfterCompletion",
        "Description",
        "EndDate",
        "GroupName",
        "ScheduleExpressionTimezone",
        "StartDate",
        "State",
    ),
)
_SCHEDULE_NAME: Final = re.compile(r"[0-9a-zA-Z-_.]{1,64}", re.ASCII)


class SimulatedSchedules:
    """The definitions of schedules by group and name."""

    def __init__(self, region: str, account: str) -> None:
        self._arn = f"arn:aws:scheduler:{region}:{account}:schedule/"
        self._groups = {_DEFAULT_GROUP}
        self.known: dict[tuple[str, str], dict[str, Any]] = {}
        self.version = 0  # increases when a schedule may have changed

    def operations(self) -> ServiceOperations:
        """Return EventBridge Scheduler's operations."""
        create = ("Name", "ScheduleExpression", "FlexibleTimeWindow", "Target")
        return {
            "CreateSchedule": ServiceOperation(self._create, requires=create, accepts=_OPTIONS),
            "GetSchedule": ServiceOperation(self._get, requires=("Name",), accepts=("GroupName",)),
            "ListSchedules": ServiceOperation(self._list, accepts=(*PAGING, "GroupName", "NamePrefix")),
            "DeleteSchedule": ServiceOperation(self._delete, requires=("Name",), accepts=("GroupName",)),
            "CreateScheduleGroup": ServiceOperation(self._create_group, requires=("Name",)),
        }

    def _create_group(self, request: ServiceRequest) -> dict[str, Any]:
        self._groups.add(request["Name"])
        return {"ScheduleGroupArn": self._arn.replace("schedule/", "schedule-group/") + request["Name"]}

    def _create(self, request: ServiceRequest) -> dict[str, Any]:
        group, name = key = self._key(request)
        if not _SCHEDULE_NAME.fullmatch(name):
            raise ServiceError("ValidationException", f"Value '{name}' at 'name' failed to satisfy constraint.")
        if key in self.known:
            raise ServiceError("ConflictException", f"Schedule {name} already exists.")
        check_schedule_expression(request["ScheduleExpression"], request.get("ScheduleExpressionTimezone"))
        self.version += 1
        arn = f"{self._arn}{group}/{name}"
        self.known[key] = {"State": "ENABLED", **request.parameters, "GroupName": group, "Arn": arn}
        return {"ScheduleArn": arn}

    def _get(self, request: ServiceRequest) -> dict[str, Any]:
        key = self._key(request)
        if key not in self.known:
            raise ServiceError("ResourceNotFoundException", f"Schedule {request['Name']} does not exist.")
        return dict(self.known[key])

    def _list(self, request: ServiceRequest) -> dict[str, Any]:
        wanted, prefix = request.get("GroupName"), request.get("NamePrefix", "")
        listed = [
            {field: known[field] for field in ("Name", "GroupName", "Arn", "State")}
            for (group, name), known in self.known.items()
            if wanted in (None, group) and name.startswith(prefix)
        ]
        return paged("Schedules", listed, request, 100)

    def _delete(self, request: ServiceRequest) -> dict[str, Any]:
        self._get(request)
        self.version += 1
        del self.known[self._key(request)]
        return {}

    def _key(self, request: ServiceRequest) -> tuple[str, str]:
        group = request.get("GroupName", _DEFAULT_GROUP)
        if group not in self._groups:
            raise ServiceError("ResourceNotFoundException", f"Schedule group {group} does not exist.")
        return group, request["Name"]
