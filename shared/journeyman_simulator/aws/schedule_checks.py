"""Rules and schedules with an expression that can never fire are refused when they are made."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from moto.events.exceptions import ValidationException as RuleRefused
from moto.events.responses import EventsHandler
from moto.scheduler.exceptions import ValidationException as ScheduleRefused
from moto.scheduler.responses import EventBridgeSchedulerResponse

from journeyman.errors import ConfigurationError
from journeyman_simulator.aws.patching import Patch
from journeyman_simulator.aws.schedule_expressions import parse

_ANY_TIME = datetime(2000, 1, 1, tzinfo=timezone.utc)


def patches() -> tuple[Patch, ...]:
    """Checks before moto stores a definition."""
    reason = "bad schedule expressions are refused"
    return (
        Patch(owner=EventsHandler, name="put_rule", replace=_checking_rule, reason=reason),
        Patch(owner=EventBridgeSchedulerResponse, name="create_schedule", replace=_checking_schedule, reason=reason),
        Patch(owner=EventBridgeSchedulerResponse, name="update_schedule", replace=_checking_schedule, reason=reason),
    )


def _checking_rule(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def put_rule(response: Any) -> Any:
        if expression := response._get_param("ScheduleExpression"):  # noqa: SLF001 - moto's way to read a parameter
            try:
                parse(expression, first=_ANY_TIME, strict_units=True)
            except ConfigurationError as error:
                raise RuleRefused("Parameter ScheduleExpression is not valid.") from error
        return original(response)

    return put_rule


def _checking_schedule(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def check(response: Any) -> Any:
        read = response._get_param  # noqa: SLF001 - moto's way to read a parameter
        expression, zone = read("ScheduleExpression"), read("ScheduleExpressionTimezone") or "UTC"
        try:
            parse(expression, first=_ANY_TIME, zone=zone)
        except ConfigurationError as error:
            raise ScheduleRefused(f"Invalid Schedule Expression {expression}.") from error
        return original(response)

    return check
