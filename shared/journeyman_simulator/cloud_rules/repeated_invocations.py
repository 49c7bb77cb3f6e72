"""Invokes functions asynchronously: repeats those that failed, and fires timers. Function Compute and FunctionGraph share this.

Differs: neither cloud publishes how long it waits before it repeats an invocation that failed; here a second, doubling.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from msgspec import Struct
from msgspec.structs import replace

from journeyman.ports import Clock
from journeyman_simulator.lambda_functions import InvocationOutcome, LambdaFunction, LambdaInvocation

Times = Callable[[datetime], datetime]
"""Returns the first time of a schedule after a moment, in the moment's zone."""
_SHORTEST_INTERVAL: Final = timedelta(minutes=1)
_FIELDS: Final = 6  # seconds first


class AsyncInvokeConfig(Struct, frozen=True, kw_only=True):
    """How often and how long a function's asynchronous invocations are repeated.

    Attributes:
        retries: How often an invocation is repeated after the function failed.
        longest_age: After which an event is not repeated.
        on_failure: What gets events without success; empty for nothing.
    """

    retries: int = 3
    longest_age: timedelta = timedelta(hours=24)
    on_failure: str = ""


class PendingInvocation(Struct, frozen=True, kw_only=True):
    """An event that waits for its next invocation at `at`, after so many failures.

    `is_part` says that it is a part of an event whose function waits with it: the instance for it runs already.
    """

    function: LambdaFunction
    event: Any
    request_id: str
    sent_at: datetime
    at: datetime
    failures: int = 0
    is_part: bool = False


class RepeatedInvocations(ABC):
    """Invokes functions with the events that it accepted, and repeats those that failed. An `Actor` of a simulated `World`.

    Args:
        clock: The time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._configs: dict[str, AsyncInvokeConfig] = {}
        self._pending: list[PendingInvocation] = []
        self.start: Callable[[LambdaFunction, Callable[[], object]], object] = lambda _function, invoke: invoke()
        """Runs an invocation of a function; a simulation whose functions pause replaces it."""

    @property
    def pending(self) -> Sequence[PendingInvocation]:
        """Return the invocations that wait, in the order in which those that are due at the same time start."""
        return tuple(self._pending)

    def configure(self, function: LambdaFunction, config: AsyncInvokeConfig) -> None:
        """Set how a function's events are repeated."""
        self._configs[function.name] = config

    def accept(
        self,
        function: LambdaFunction,
        event: Any,
        *,
        request_id: str = "",
        delay: timedelta = timedelta(),
        overtakes: bool = False,
    ) -> None:
        """Accept an event for a function, which the next `act` invokes, or that after a delay.

        Args:
            function: The function.
            event: The handler's first argument.
            request_id: The id of the request that sent the event.
            delay: How long the event waits.
            overtakes: Whether the event is before all others that are due at its time.
        """
        now = self._clock.now()
        pending = PendingInvocation(function=function, event=event, request_id=request_id, sent_at=now, at=now + delay)
        self._pending.insert(0 if overtakes else len(self._pending), pending)

    def due(self) -> datetime | None:
        """Return when the next event is due; None if none waits."""
        return min((pending.at for pending in self._pending), default=None)

    def act(self) -> bool:
        """Invoke the functions whose events are due; return whether there was one."""
        now = self._clock.now()
        ready = [pending for pending in self._pending if pending.at <= now]
        self._pending = [pending for pending in self._pending if pending.at > now]
        for pending in ready:
            self.begin(pending)
        return bool(ready)

    def begin(self, pending: PendingInvocation) -> None:
        """Invoke the function of an event that is due."""
        self.start(pending.function, partial(self._invoke, pending))

    def wait(self, pending: PendingInvocation) -> None:
        """Keep an event until its time."""
        self._pending.append(pending)

    @abstractmethod
    def store_failure(self, pending: PendingInvocation, destination: str, invocation: LambdaInvocation) -> None:
        """Pass an event that had no success to the function's `on_failure`, after its last invocation."""

    def _invoke(self, pending: PendingInvocation) -> None:
        function = pending.function
        invocation = function.invoke(pending.event)
        if invocation.outcome is InvocationOutcome.SUCCEEDED:
            return
        config = self._configs.get(function.name, AsyncInvokeConfig())
        at = self._clock.now() + timedelta(seconds=1 << pending.failures)
        if pending.failures < config.retries and at - pending.sent_at <= config.longest_age:
            self.wait(replace(pending, at=at, failures=pending.failures + 1))
        elif config.on_failure:
            self.store_failure(pending, config.on_failure, invocation)


class FunctionTimer(Struct, kw_only=True):
    """A timer trigger of a function."""

    name: str
    function: LambdaFunction
    times: Times
    payload: str
    at: datetime


class FunctionTimers:
    """Fires timer triggers, whose invocations are asynchronous. An `Actor` of a simulated `World`.

    Args:
        invocations: Accepts the events.
        clock: The time; a timer exists from the time at which it is added.
        schedule: Returns the times of an expression. Raises ConfigurationError if it is invalid.
        event: Returns the event of a timer that fires.
    """

    def __init__(
        self,
        invocations: RepeatedInvocations,
        clock: Clock,
        schedule: Callable[[str], Times],
        event: Callable[[FunctionTimer], Any],
    ) -> None:
        self._invocations = invocations
        self._clock = clock
        self._schedule = schedule
        self._event = event
        self.timers: list[FunctionTimer] = []

    def add(self, name: str, function: LambdaFunction, expression: str, payload: str) -> None:
        """Create a timer. Raises ConfigurationError if its expression is invalid."""
        times = self._schedule(expression)
        at = times(self._clock.now())
        self.timers.append(FunctionTimer(name=name, function=function, times=times, payload=payload, at=at))

    def due(self) -> datetime | None:
        """Return when the next timer fires; None without a timer."""
        return min((timer.at for timer in self.timers), default=None)

    def act(self) -> bool:
        """Fire the timers that are due; return whether one fired."""
        now = self._clock.now()
        fired = [timer for timer in self.timers if timer.at <= now]
        for timer in fired:
            event = self._event(timer)
            timer.at = timer.times(timer.at)
            self._invocations.accept(timer.function, event)
        return bool(fired)


def every_interval(interval: timedelta) -> Times:
    """Return the times that are an interval apart. Raises ValueError if it is shorter than a minute."""
    if interval < _SHORTEST_INTERVAL:
        raise ValueError("the shortest interval is a minute")
    return lambda moment: moment + interval


def cron_times(expression: str, zone: str) -> Times:
    """Return the times of six fields of cron, the seconds first. Raises ValueError if the clouds would reject them."""
    cron = expression.replace("?", "*")
    if len(cron.split()) != _FIELDS:
        raise ValueError("it needs six fields, the first of which is the seconds")
    try:
        CronSim(cron, datetime(2026, 1, 1, tzinfo=ZoneInfo(zone)))
    except CronSimError as error:
        raise ValueError(str(error)) from error
    return lambda moment: next(CronSim(cron, moment.astimezone(ZoneInfo(zone)))).astimezone(moment.tzinfo)
