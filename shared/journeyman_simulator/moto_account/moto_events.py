"""Makes EventBridge on moto behave like AWS: event shapes, input transformers, SQS and Lambda targets, valid schedules."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.events.exceptions import ValidationException as InvalidRuleError
from moto.events.models import Rule, events_backends
from moto.events.responses import EventsHandler
from moto.scheduler.exceptions import ValidationException as InvalidScheduleError
from moto.scheduler.responses import EventBridgeSchedulerResponse

from journeyman_simulator.cloud_rules.event_delivery import EventEnvelope, EventTargets, is_simulated_target, iso
from journeyman_simulator.cloud_rules.schedule_expressions import check_rule_expression, check_schedule_expression
from journeyman_simulator.cloud_rules.service_errors import ServiceError
from journeyman_simulator.cloud_rules.service_time import ServiceTime, from_milliseconds
from journeyman_simulator.moto_account.moto_extensions import MotoExtension


class MotoEventBus:
    """Publishes the events of AWS services and delivers them to the targets of matching rules."""

    def __init__(
        self,
        time: ServiceTime,
        region: str,
        send: Callable[[str, str, str | None], object],
        on_event: Callable[[dict[str, Any]], object] | None,
    ) -> None:
        self._time = time
        self._region = region
        self._on_event = on_event
        self._envelope = EventEnvelope(account=DEFAULT_ACCOUNT_ID, region=region)
        self.targets = EventTargets(send)

    def publish(self, source: str, detail_type: str, detail: Mapping[str, Any], resources: Sequence[str]) -> None:
        """Put a service's event on the default bus, with the current time."""
        event = self._envelope.event(
            event_id=str(uuid.uuid4()),
            source=source,
            detail_type=detail_type,
            detail=detail,
            resources=resources,
            at=self._time.now(),
        )
        if self._on_event:
            self._on_event(event)
        backend = events_backends[DEFAULT_ACCOUNT_ID][self._region]
        for rule in list(backend.describe_event_bus("default").rules.values()):
            self._route(rule, event)

    def extensions(self) -> tuple[MotoExtension, ...]:
        """Return the extension that delivers events accepted by PutEvents."""

        def replace(original: Callable[..., None]) -> Callable[..., None]:
            def send_to_targets(rule: Rule, original_event: dict[str, Any], transform_input: bool = True) -> None:
                event = {key: value for key, value in original_event.items() if key != "ingestion-time"}
                event["time"] = iso(from_milliseconds(float(event["time"]) * 1000))
                others = copy.copy(rule)
                others.targets = [target for target in rule.targets if not is_simulated_target(target)]
                self._route(rule, event)
                if rule.state == "ENABLED":
                    original(others, original_event, transform_input)

            return send_to_targets

        return (
            MotoExtension(
                owner=Rule,
                name="send_to_targets",
                replace=replace,
                reason="ignores disabled rules, supports Lambda targets and all forms of input, and gives events AWS's keys",
            ),
        )

    def _route(self, rule: Rule, event: Any) -> None:
        if (
            rule.state != "ENABLED"
            or not rule.event_pattern.get_pattern()
            or not rule.event_pattern.matches_event(event)
        ):
            return
        for target in rule.targets:
            if is_simulated_target(target):
                self.targets.deliver(target, event)


def schedule_extensions() -> tuple[MotoExtension, ...]:
    """Return extensions that check schedule expressions before moto stores a rule or a schedule."""
    reason = "rejects invalid schedule expressions, and groups that do not exist"
    return (
        MotoExtension(owner=EventsHandler, name="put_rule", replace=_with_rule_check, reason=reason),
        MotoExtension(
            owner=EventBridgeSchedulerResponse, name="create_schedule", replace=_with_schedule_check, reason=reason
        ),
        MotoExtension(
            owner=EventBridgeSchedulerResponse, name="update_schedule", replace=_with_schedule_check, reason=reason
        ),
    )


def _with_rule_check(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def put_rule(response: Any) -> Any:
        try:
            check_rule_expression(response._get_param("ScheduleExpression") or "")  # noqa: SLF001 - moto's way to read a parameter
        except ServiceError as error:
            raise InvalidRuleError(error.message) from error
        return original(response)

    return put_rule


def _with_schedule_check(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def check(response: Any) -> Any:
        read = response._get_param  # noqa: SLF001 - moto's way to read a parameter
        response.scheduler_backend.get_schedule_group(read("GroupName"))  # moto answers 500 for one that does not exist
        try:
            check_schedule_expression(read("ScheduleExpression"), read("ScheduleExpressionTimezone"))
        except ServiceError as error:
            raise InvalidScheduleError(error.message) from error
        return original(response)

    return check
