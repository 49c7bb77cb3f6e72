"""Invokes Function Compute functions asynchronously: its retries, its timer triggers, and EventBridge's rules for cloud events.

Restates: Function Compute user guide, "Timer triggers", "Asynchronous invocation: retry policies, result callback";
EventBridge user guide, "Event patterns".
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import Struct

from journeyman.cloud.alibaba.smq_queue import SmqError, SmqMessage
from journeyman.errors import ConfigurationError
from journeyman.ports import Clock
from journeyman_simulator.alibaba_account.smq import SimulatedSmq
from journeyman_simulator.cloud_rules.repeated_invocations import (
    FunctionTimer,
    FunctionTimers,
    PendingInvocation,
    RepeatedInvocations,
    cron_times,
    every_interval,
)
from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError
from journeyman_simulator.lambda_functions import LambdaFunction, LambdaInvocation

_EVERY: Final = re.compile(r"@every (\d+)(s|m|h)")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours"}
_ZONE: Final = re.compile(r"CRON_TZ=(\S+)\s+(.+)")


class AsyncInvocations(RepeatedInvocations):
    """The asynchronous invocations of Function Compute. An `Actor` of a simulated `World`.

    Args:
        smq: The queues, for events without success: `on_failure` of a function's settings is the name of one.
        clock: The time.
    """

    def __init__(self, smq: SimulatedSmq, clock: Clock) -> None:
        super().__init__(clock)
        self._smq = smq

    def store_failure(self, pending: PendingInvocation, destination: str, invocation: LambdaInvocation) -> None:
        """Send an event that had no success to a queue."""
        context = {"condition": "RetriesExhausted", "approximateInvokeCount": pending.failures + 1}
        letter = {"requestContext": context, "requestPayload": pending.event, "responsePayload": invocation.error}
        try:
            self._smq.send(destination, [SmqMessage(base64.b64encode(json.dumps(letter).encode()).decode())])
        except SmqError:
            return


class TimerSchedule:
    """The times of a timer trigger: `@every 5m`, or six fields of cron with the seconds first, in UTC or the zone of `CRON_TZ=`.

    Raises:
        ConfigurationError: Function Compute would reject the expression.
    """

    def __init__(self, expression: str) -> None:
        zone, cron = "UTC", expression
        if zoned := _ZONE.fullmatch(expression):
            zone, cron = zoned.groups()
        try:
            every = _EVERY.fullmatch(expression)
            self._times = (
                every_interval(timedelta(**{_UNITS[every[2]]: int(every[1])})) if every else cron_times(cron, zone)
            )
        except ValueError as error:
            raise _invalid(expression, str(error)) from error

    def after(self, moment: datetime) -> datetime:
        """Return the first time after a moment, in the moment's zone."""
        return self._times(moment)


def _invalid(expression: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"the timer's cronExpression {expression!r} is invalid: {why}",
        to_do="write it as '@every 1m' or '0 0 22 * * *'",
    )


class FcTimers(FunctionTimers):
    """Fires timer triggers, whose invocations are asynchronous. An `Actor` of a simulated `World`.

    Args:
        invocations: Accepts the events.
        clock: The time; a timer exists from the time at which it is added.
    """

    def __init__(self, invocations: AsyncInvocations, clock: Clock) -> None:
        super().__init__(invocations, clock, lambda expression: TimerSchedule(expression).after, _timer_event)


def _timer_event(timer: FunctionTimer) -> dict[str, Any]:
    time = timer.at.isoformat().replace("+00:00", "Z")
    return {"triggerTime": time, "triggerName": timer.name, "payload": timer.payload}


class EventRule(Struct, frozen=True, kw_only=True):
    """A rule on the default event bus, which passes the events that match its pattern to a function."""

    name: str
    pattern: Mapping[str, Any]
    function: LambdaFunction

    def matches(self, event: Mapping[str, Any]) -> bool:
        """Whether the rule passes the event on. Raises NotSimulatedError for an unknown kind of match."""
        return _matches(self.pattern, event)


def _matches(pattern: Mapping[str, Any], event: Any) -> bool:
    if not isinstance(event, Mapping):
        return False
    for key, wanted in pattern.items():
        if isinstance(wanted, Mapping):
            if not _matches(wanted, event.get(key)):
                return False
        elif not any(_is_like(one, event.get(key)) for one in _listed(wanted)):
            return False
    return True


def _is_like(wanted: Any, value: Any) -> bool:
    if not isinstance(wanted, Mapping):
        return bool(wanted == value)
    ((kind, text),) = wanted.items()
    if kind == "prefix":
        return isinstance(value, str) and value.startswith(text)
    if kind == "suffix":
        return isinstance(value, str) and value.endswith(text)
    raise NotSimulatedError(f"the simulation does not support {kind} in an event pattern")


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]
