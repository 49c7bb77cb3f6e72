"""Runs FunctionGraph functions in this process: their context, asynchronous invocations, instances, timers and CTS triggers.

FunctionGraph has no delays, so a deployed function waits with messages in its own sleep. Here its instance is busy until the last
of its messages is due, and its handler runs for each moment at which messages are due, with these messages only: it never sleeps,
and the simulation goes on meanwhile.

Restates: FunctionGraph user guide, "Configuring asynchronous execution", "Using a timer trigger", "Using a CTS trigger",
"Notes and constraints"; developer guide, "Python: context methods".
Differs: FunctionGraph documents neither when it repeats a failed invocation (`repeated_invocations`), nor the zone of a timer's cron
expression: here that of the time in a timer's event, UTC+8.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Final, cast
from zoneinfo import ZoneInfo

from msgspec import Struct
from msgspec.structs import replace

from journeyman.errors import ConfigurationError
from journeyman.ports import Clock
from journeyman_simulator.cloud_rules.access_keys import SimulatedAccessKey
from journeyman_simulator.cloud_rules.repeated_invocations import (
    FunctionTimer,
    FunctionTimers,
    PendingInvocation,
    RepeatedInvocations,
    Times,
    cron_times,
    every_interval,
)
from journeyman_simulator.in_process_account.sqs_queues import DELIVERED, MessageOutcome
from journeyman_simulator.lambda_functions import LambdaContext, LambdaFunction, LambdaInvocation, initialized

FgsHandler = Callable[[Any, Any], Any]
MOST_INSTANCES: Final = 100
"""The instances of all functions of an account that run at a time."""
_THROTTLED: Final = timedelta(seconds=10)
"""When FunctionGraph tries again to start an instance of a throttled function; it is not documented."""
_ZONE: Final = "Asia/Shanghai"
_RATE: Final = re.compile(r"(\d+)(m|h|d)")
_LONGEST_RATE: Final = {"m": 60, "h": 24, "d": 30}
_EVERY: Final = re.compile(r"@every (?:(\d+)h)?(?:(\d+)m)?")
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days"}


class FgsContext:
    """The context that FunctionGraph passes as the handler's second argument."""

    def __init__(
        self, function: LambdaFunction, request_id: str, key: SimulatedAccessKey | None, user_data: Mapping[str, str]
    ) -> None:
        self._function = function
        self._request_id = request_id
        self._key = key
        self._user_data = user_data
        self._deadline = time.monotonic() + function.timeout_seconds

    def getRequestID(self) -> str:  # noqa: N802 - FunctionGraph's name
        """Return the id of the request."""
        return self._request_id

    def getRemainingTimeInMilliSeconds(self) -> int:  # noqa: N802 - same
        """Return the milliseconds of real time until the timeout; virtual time does not advance while a function runs."""
        return max(0, int((self._deadline - time.monotonic()) * 1000))

    def getRunningTimeInSeconds(self) -> int:  # noqa: N802 - same
        """Return the function's timeout."""
        return int(self._function.timeout_seconds)

    def getSecurityAccessKey(self) -> str:  # noqa: N802 - same
        """Return the id of the agency's access key."""
        return self._key.id if self._key else ""

    def getSecuritySecretKey(self) -> str:  # noqa: N802 - same
        """Return the secret of the agency's access key."""
        return self._key.secret if self._key else ""

    def getSecurityToken(self) -> str:  # noqa: N802 - same
        """Return the security token of the agency's access key."""
        return self._key.security_token if self._key else ""

    def getUserData(self, name: str) -> str | None:  # noqa: N802 - same
        """Return one of the function's settings; None without it."""
        return self._user_data.get(name)

    def getFunctionName(self) -> str:  # noqa: N802 - same
        """Return the function's name."""
        return self._function.name

    def getVersion(self) -> str:  # noqa: N802 - same
        """Return the function's version."""
        return "latest"

    def getMemorySize(self) -> int:  # noqa: N802 - same
        """Return the function's memory in MB."""
        return self._function.memory_mb

    def getPackage(self) -> str:  # noqa: N802 - same
        """Return the group of the function."""
        return "default"

    def getProjectID(self) -> str:  # noqa: N802 - same
        """Return the project of the function."""
        return self._function.account


def fgs_function(
    name: str,
    handler: FgsHandler,
    clock: Clock,
    *,
    initializer: Callable[[Any], object] | None = None,
    key: SimulatedAccessKey | None = None,
    user_data: Mapping[str, str] | None = None,
    region: str = "cn-north-4",
    project_id: str = "p",
    **more: Any,
) -> LambdaFunction:
    """Return a function whose handler gets FunctionGraph's context; the initializer runs before the first event.

    Args:
        name: The function's name.
        handler: The handler.
        clock: The time.
        initializer: The function's initializer.
        key: The access key of its agency.
        user_data: Its settings.
        region: Its region.
        project_id: Its project.
        more: Further fields of `LambdaFunction`, such as its timeout.
    """

    def invoke(event: Any, context: Any) -> Any:
        answer = handler(json.loads(json.dumps(event)), context)
        return json.loads(json.dumps(answer))

    def context(function: LambdaFunction, request_id: str) -> LambdaContext:
        return cast("LambdaContext", FgsContext(function, request_id, key, user_data or {}))

    return LambdaFunction(
        name=name,
        handler=initialized(invoke, initializer),
        clock=clock,
        region=region,
        account=project_id,
        context=context,
        **more,
    )


def urn_of(function: LambdaFunction) -> str:
    """Return the URN of a function, without a version."""
    return f"urn:fss:{function.region}:{function.account}:function:default:{function.name}"


class CtsTrigger(Struct, frozen=True, kw_only=True):
    """Passes the traces of some operations to a function; an operation is `<service>:<resource type>:<trace name>`."""

    name: str
    function: LambdaFunction
    operations: frozenset[str]

    def matches(self, event: Mapping[str, Any]) -> bool:
        """Whether the trigger passes the event of a trace on."""
        trace = event["cts"]
        return f"{trace['service_type']}:{trace['resource_type']}:{trace['trace_name']}" in self.operations


class FunctionGraph(RepeatedInvocations):
    """The functions of a project, and their asynchronous invocations. An `Actor` of a simulated `World`.

    An invocation for which no instance is free waits for one; FunctionGraph refuses only synchronous ones then.

    Args:
        clock: The time.
        decide: Returns the outcome of an accepted invocation or trace, given the function's name and the body: copies, delays,
            losses. Timers have no faults.
    """

    def __init__(self, clock: Clock, decide: Callable[[str, str], MessageOutcome] | None = None) -> None:
        super().__init__(clock)
        self.decide = decide or (lambda _function, _body: DELIVERED)
        self.functions: dict[str, LambdaFunction] = {}
        """The functions by their URNs without a version."""
        self.function_clock = clock
        """The clock by which functions wait; a simulation whose functions have wrong clocks replaces it."""
        self.cts_triggers: list[CtsTrigger] = []
        self.objects: dict[str, str] = {}
        """What failure destinations stored: the content of OBS objects by `<bucket>/<key>`, oldest first."""
        self._most_instances: dict[str, int] = {}
        self._waiting_function = ""
        self._busy: list[tuple[datetime, str]] = []
        self._serial = count(1)

    def add(self, function: LambdaFunction, *, most_instances: int = MOST_INSTANCES, waits: bool = False) -> None:
        """Create a function.

        Args:
            function: The function.
            most_instances: How many of its instances run at a time.
            waits: Whether its events have messages (`messages`) with times (`at`), for which it waits.
        """
        self.functions[urn_of(function)] = function
        self._most_instances[function.name] = most_instances
        if waits:
            self._waiting_function = function.name

    def invoke(self, urn: str, body: Any) -> str:
        """Accept an asynchronous invocation, and return its request id.

        Args:
            urn: The function's URN, with or without a version.
            body: The event; JSON.

        Raises:
            KeyError: There is no such function.
        """
        return self._accept(self.functions[urn.removesuffix(":latest")], body)

    def deliver_trace(self, event: dict[str, Any]) -> None:
        """Pass the event of a trace to the functions whose triggers name its operation."""
        for trigger in self.cts_triggers:
            if trigger.matches(event):
                self._accept(trigger.function, event)

    def _accept(self, function: LambdaFunction, body: Any) -> str:
        """Accept an invocation as often and as late as is decided, and return its request id."""
        request_id = f"00000000-0000-4000-9000-{next(self._serial):012x}"
        outcome = self.decide(function.name, json.dumps(body, separators=(",", ":")))
        for _ in range(outcome.copies):
            self.accept(
                function,
                body,
                request_id=request_id,
                delay=timedelta(seconds=outcome.delay_seconds),
                overtakes=outcome.overtakes,
            )
        return request_id

    def begin(self, pending: PendingInvocation) -> None:
        """Invoke the function of an event that is due, unless it is throttled or all instances are busy: then later."""
        now = self._clock.now()
        self._busy = [(until, name) for until, name in self._busy if until > now]
        at = now + _THROTTLED if pending.function.is_throttled else self._free_at(pending)
        if at is None:
            self._run(pending, now)
        else:
            self.wait(replace(pending, at=at))

    def store_failure(self, pending: PendingInvocation, destination: str, invocation: LambdaInvocation) -> None:
        """Store an event that had no success as an object in OBS."""
        function = pending.function
        letter = {
            "timestamp": self._clock.now().isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "request_context": {
                "request_id": pending.request_id or invocation.request_id,
                "function_urn": f"{urn_of(function)}:latest",
                "condition": "RetriesExhausted",
                "approximate_invoke_count": pending.failures + 1,
            },
            "request_payload": pending.event,
            "response_context": {"status_code": 500, "function_error": invocation.outcome.value},
            "response_payload": invocation.error,
        }
        self.objects[f"{destination}/{function.name}/{next(self._serial):08d}.json"] = json.dumps(letter)

    def _free_at(self, pending: PendingInvocation) -> datetime | None:
        """Return when an instance can run for an event; None for now."""
        if pending.is_part:
            return None
        name = pending.function.name
        own = sorted(until for until, function in self._busy if function == name)
        if len(own) >= self._most_instances[name]:
            return own[-self._most_instances[name]]
        all_ = sorted(until for until, _ in self._busy)
        return all_[-MOST_INSTANCES] if len(all_) >= MOST_INSTANCES else None

    def _run(self, pending: PendingInvocation, now: datetime) -> None:
        """Invoke a function; one that waits with the messages that are due, and with the others when these are."""
        moments = self._moments(pending) if pending.function.name == self._waiting_function else {}
        if not moments:
            super().begin(pending)
            return
        due = [message for at, messages in moments.items() if at <= now for message in messages]
        later = {at: messages for at, messages in moments.items() if at > now}
        for at, messages in later.items():
            self.wait(replace(pending, event={**pending.event, "messages": messages}, at=at, is_part=True))
        if later and not pending.is_part:
            self._busy.append((max(later), pending.function.name))
        if due:
            super().begin(replace(pending, event={**pending.event, "messages": due}))

    def _moments(self, pending: PendingInvocation) -> dict[datetime, list[Any]]:
        """Return the messages in an event by the times for which they wait; empty if it has none, or does not parse."""
        ahead = self.function_clock.now() - self._clock.now()
        found: dict[datetime, list[Any]] = {}
        try:
            for message in pending.event["messages"]:
                at = datetime.fromisoformat(message["at"].replace("Z", "+00:00")) - ahead
                found.setdefault(at, []).append(message)
        except (AttributeError, KeyError, TypeError, ValueError):
            return {}
        return found


class FgsTimers(FunctionTimers):
    """Fires timer triggers, whose invocations are asynchronous. An `Actor` of a simulated `World`."""

    def __init__(self, graph: FunctionGraph, clock: Clock) -> None:
        super().__init__(graph, clock, timer_times, _timer_event)


def timer_times(expression: str) -> Times:
    """Return the times of a timer: `1m`, `2h`, `3d`, `@every 1h30m`, or six fields of cron with the seconds first.

    Raises:
        ConfigurationError: FunctionGraph would reject the expression.
    """
    try:
        if rate := _RATE.fullmatch(expression):
            return _rate(int(rate[1]), rate[2])
        if every := _EVERY.fullmatch(expression):
            return every_interval(timedelta(hours=int(every[1] or 0), minutes=int(every[2] or 0)))
        return cron_times(expression, _ZONE)
    except ValueError as error:
        raise ConfigurationError(
            f"the timer's schedule {expression!r} is invalid: {error}", to_do="write it as 1m or '0 0 22 * * ?'"
        ) from error


def _rate(number: int, unit: str) -> Times:
    if number > _LONGEST_RATE[unit]:
        raise ValueError(f"the longest rate is {_LONGEST_RATE[unit]}{unit}")
    return every_interval(timedelta(**{_UNITS[unit]: number}))


def _timer_event(timer: FunctionTimer) -> dict[str, Any]:
    return {
        "version": "v1.0",
        "time": timer.at.astimezone(ZoneInfo(_ZONE)).isoformat(timespec="seconds"),
        "trigger_type": "TIMER",
        "trigger_name": timer.name,
        "user_event": timer.payload,
    }


def stored_letters(objects: Mapping[str, str], prefixes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the dead letters among OBS objects: those whose places have one of these prefixes, oldest first."""
    return [json.loads(content) for place, content in objects.items() if place.startswith(prefixes)]
