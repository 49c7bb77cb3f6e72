"""Invokes Function Compute functions asynchronously: its retries, its timer triggers, and EventBridge's rules for cloud events.

Restates: Function Compute user guide, "Timer triggers", "Asynchronous invocation: retry policies, result callback";
EventBridge user guide, "Event patterns".
Differs: Function Compute does not publish how long it waits before it repeats an invocation that failed; here a second, doubling.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from msgspec import Struct

from journeyman.cloud.alibaba.smq_queue import SmqError, SmqMessage
from journeyman.errors import ConfigurationError
from journeyman.ports import Clock
from journeyman_simulator.alibaba_account.smq import SimulatedSmq
from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError
from journeyman_simulator.lambda_functions import InvocationOutcome, LambdaFunction

_EVERY: Final = re.compile(r"@every (\d+)(s|m|h)")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours"}
_SHORTEST_INTERVAL: Final = timedelta(minutes=1)
_ZONE: Final = re.compile(r"CRON_TZ=(\S+)\s+(.+)")
_FIELDS: Final = 6  # seconds first


class AsyncInvokeConfig(Struct, frozen=True, kw_only=True):
    """How often and how long a function's asynchronous invocations are repeated, with Function Compute's defaults.

    Attributes:
        retries: How often an invocation is repeated after the function failed.
        longest_age: After which an event is not repeated.
        on_failure: The name of the queue that gets events without success; empty for none.
    """

    retries: int = 3
    longest_age: timedelta = timedelta(hours=24)
    on_failure: str = ""


class _PendingInvocation(Struct, frozen=True, kw_only=True):
    """An event that waits for its next invocation."""

    function: LambdaFunction
    event: Any
    sent_at: datetime
    at: datetime
    failures: int = 0


class AsyncInvocations:
    """Invokes functions with the events that it accepted, and repeats those that failed. An `Actor` of a simulated `World`.

    Args:
        smq: The queues, for events without success.
        clock: The time.
    """

    def __init__(self, smq: SimulatedSmq, clock: Clock) -> None:
        self._smq = smq
        self._clock = clock
        self._configs: dict[str, AsyncInvokeConfig] = {}
        self._pending: list[_PendingInvocation] = []
        self.start: Callable[[LambdaFunction, Callable[[], object]], object] = lambda _function, invoke: invoke()
        """Runs an invocation of a function; a simulation whose functions pause replaces it."""

    def configure(self, function: LambdaFunction, config: AsyncInvokeConfig) -> None:
        """Set how a function's events are repeated."""
        self._configs[function.name] = config

    def accept(self, function: LambdaFunction, event: Any) -> None:
        """Accept an event for a function, which the next `act` invokes."""
        now = self._clock.now()
        self._pending.append(_PendingInvocation(function=function, event=event, sent_at=now, at=now))

    def due(self) -> datetime | None:
        """Return when the next event is due; None if none waits."""
        return min((pending.at for pending in self._pending), default=None)

    def act(self) -> bool:
        """Invoke the functions whose events are due; return whether there was one."""
        now = self._clock.now()
        ready = [pending for pending in self._pending if pending.at <= now]
        self._pending = [pending for pending in self._pending if pending.at > now]
        for pending in ready:
            self.start(pending.function, partial(self._invoke, pending))
        return bool(ready)

    def _invoke(self, pending: _PendingInvocation) -> None:
        function = pending.function
        invocation = function.invoke(pending.event)
        if invocation.outcome is InvocationOutcome.SUCCEEDED:
            return
        config = self._configs.get(function.name, AsyncInvokeConfig())
        at = self._clock.now() + timedelta(seconds=1 << pending.failures)
        if pending.failures < config.retries and at - pending.sent_at <= config.longest_age:
            again = _PendingInvocation(
                function=function, event=pending.event, sent_at=pending.sent_at, at=at, failures=pending.failures + 1
            )
            self._pending.append(again)
        elif config.on_failure:
            self._send_to(config.on_failure, pending, invocation.error)

    def _send_to(self, queue: str, pending: _PendingInvocation, error: str) -> None:
        context = {"condition": "RetriesExhausted", "approximateInvokeCount": pending.failures + 1}
        letter = {"requestContext": context, "requestPayload": pending.event, "responsePayload": error}
        try:
            self._smq.send(queue, [SmqMessage(base64.b64encode(json.dumps(letter).encode()).decode())])
        except SmqError:
            return


class TimerSchedule:
    """The times of a timer trigger: `@every 5m`, or six fields of cron with the seconds first, in UTC or the zone of `CRON_TZ=`.

    Raises:
        ConfigurationError: Function Compute would reject the expression.
    """

    def __init__(self, expression: str) -> None:
        self._interval: timedelta | None = None
        self._cron = ""
        self._zone = ZoneInfo("UTC")
        if every := _EVERY.fullmatch(expression):
            self._interval = timedelta(**{_UNITS[every[2]]: int(every[1])})
            if self._interval < _SHORTEST_INTERVAL:
                raise _invalid(expression, "the shortest interval is a minute")
            return
        if zoned := _ZONE.fullmatch(expression):
            expression = zoned[2]
            self._zone = ZoneInfo(zoned[1])
        self._cron = expression.replace("?", "*")
        if len(self._cron.split()) != _FIELDS:
            raise _invalid(expression, "it needs six fields, the first of which is the seconds")
        try:
            CronSim(self._cron, datetime(2026, 1, 1, tzinfo=self._zone))
        except CronSimError as error:
            raise _invalid(expression, str(error)) from error

    def after(self, moment: datetime) -> datetime:
        """Return the first time after a moment, in the moment's zone."""
        if self._interval is not None:
            return moment + self._interval
        return next(CronSim(self._cron, moment.astimezone(self._zone))).astimezone(moment.tzinfo)


def _invalid(expression: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"the timer's cronExpression {expression!r} is invalid: {why}",
        to_do="write it as '@every 1m' or '0 0 22 * * *'",
    )


class FcTimer(Struct, kw_only=True):
    """A timer trigger of a function."""

    name: str
    function: LambdaFunction
    schedule: TimerSchedule
    payload: str
    at: datetime


class FcTimers:
    """Fires timer triggers, whose invocations are asynchronous. An `Actor` of a simulated `World`.

    Args:
        invocations: Accepts the events.
        clock: The time; a timer exists from the time at which it is added.
    """

    def __init__(self, invocations: AsyncInvocations, clock: Clock) -> None:
        self._invocations = invocations
        self._clock = clock
        self.timers: list[FcTimer] = []

    def add(self, name: str, function: LambdaFunction, expression: str, payload: str) -> None:
        """Create a timer. Raises ConfigurationError if its expression is invalid."""
        schedule = TimerSchedule(expression)
        at = schedule.after(self._clock.now())
        self.timers.append(FcTimer(name=name, function=function, schedule=schedule, payload=payload, at=at))

    def due(self) -> datetime | None:
        """Return when the next timer fires; None without a timer."""
        return min((timer.at for timer in self.timers), default=None)

    def act(self) -> bool:
        """Fire the timers that are due; return whether one fired."""
        now = self._clock.now()
        fired = [timer for timer in self.timers if timer.at <= now]
        for timer in fired:
            event = {
                "triggerTime": timer.at.isoformat().replace("+00:00", "Z"),
                "triggerName": timer.name,
                "payload": timer.payload,
            }
            timer.at = timer.schedule.after(timer.at)
            self._invocations.accept(timer.function, event)
        return bool(fired)


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
