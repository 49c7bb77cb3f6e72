"""Implements `ports.Queue` without a queue: a message is an asynchronous invocation of its step's function.

FunctionGraph keeps asynchronous invocations until the function has run, repeats those that failed, and stores the last failure in
the function's failure destination, which so holds the dead letters. It has no delays, and a function cannot choose when its
failed message returns. So:

- a message that is due within a minute goes to the function `delay`, which waits and then invokes the step's function (`deliver_delayed`);
- a message that is due later is not sent: each minute the sweep finds all work that is due in the custom resources;
- a message that failed is sent again by the function that received it, with the number of its receives in its body (`retry`);
- a message that can never succeed, or whose receives are used up, is raised as the function's error.

Invocations are neither ordered nor free of duplicates: the Lease keeps runs of one cluster apart, and steps tolerate both.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

import msgspec

from journeyman.cloud import messages as formats
from journeyman.cloud.huawei.huawei_errors import translated
from journeyman.cloud.huawei.rest_api import FUNCTIONGRAPH, RestApi, RestApiError, RestCall
from journeyman.core.plan import Step
from journeyman.errors import CloudProviderError, ConfigurationError, JourneymanError, MalformedEventError
from journeyman.ports import Clock, Interruption, Message, ReceivedMessage

LONGEST_WAIT_SECONDS: Final = 60
"""How long the function `delay` waits with a message. The sweep starts the work of later ones."""
LARGEST_BODY_BYTES: Final = 256 * 1024
"""FunctionGraph: the body of an asynchronous invocation."""
ATTEMPTS: Final = 3
"""How often a request is sent that gets no answer; a second invocation is harmless."""
PERMISSION: Final = "functiongraph:function:invokeAsync"
HAND_OVER_SECONDS: Final = 5
"""The time that `deliver_delayed` keeps to send what it still has to the function `delay`."""

_DELAY_SOURCE: Final = "delay"
_FIX_SENDER: Final = "fix the sender; only Journeyman's functions invoke the function delay"
_NOT_FOUND: Final = "FSS.1051"
_LARGEST_DELAYED_BYTES: Final = LARGEST_BODY_BYTES - 1024
"""The messages in one payload of the function `delay`, without the rest of it."""

LogFunction = Callable[..., None]


class DelayedMessage(msgspec.Struct, frozen=True):
    """A message that waits: the body of an invocation of a step's function, as text, and when it is sent."""

    at: Annotated[datetime, msgspec.Meta(tz=True)]
    function: Step
    body: str


class _DelayPayload(msgspec.Struct, frozen=True):
    """The event of the function `delay`."""

    version: Literal["1"]
    source: Literal["delay"]
    messages: tuple[DelayedMessage, ...]


def read_delayed(event: object) -> tuple[DelayedMessage, ...]:
    """Return the messages in an event of the function `delay`. Raises MalformedEventError."""
    try:
        return msgspec.convert(event, _DelayPayload).messages
    except msgspec.ValidationError as error:
        raise MalformedEventError(
            f"cannot read the event of the function delay: {error}",
            to_do=_FIX_SENDER,
        ) from error


class FunctionQueue:
    """Sends messages to the functions of the steps. Safe to share between threads."""

    def __init__(
        self,
        api: RestApi,
        clock: Clock,
        *,
        project_id: str,
        functions: Mapping[Step, str],
        delay_function: str,
        max_receives: int = formats.MAX_RECEIVES,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        log: LogFunction = lambda *_, **__: None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """Create a sender.

        Args:
            api: Sends requests in the functions' region and project.
            clock: Decides whether a message is due.
            project_id: The project of the functions.
            functions: The URN of each step's function.
            delay_function: The URN of the function that waits with messages.
            max_receives: How often a message is received before it becomes a dead letter.
            new_id: Returns a new message id.
            log: Writes a log line: level, message, fields.
            pause: Waits for so many seconds.
        """
        self._api = api
        self._clock = clock
        self._project_id = project_id
        self._functions = dict(functions)
        self._delay_function = delay_function
        self._max_receives = max_receives
        self._new_id = new_id
        self._log = log
        self._pause = pause

    def send(self, messages: Iterable[Message]) -> None:
        """Send the messages that are due within a minute, each distinct message once, to their steps' functions when they are due.

        Raises:
            RateLimitedError, CloudUnavailableError: FunctionGraph throttles the requests, or cannot be reached.
            ConfigurationError: A function does not exist, or the caller may not invoke it.
            CloudProviderError: FunctionGraph refused a message.
        """
        latest = self._clock.now() + timedelta(seconds=LONGEST_WAIT_SECONDS)
        bodies: list[DelayedMessage] = []
        for message in formats.distinct(messages):
            if message.at is not None and message.at > latest:
                self._log(
                    "debug",
                    f"not sending a message for {message.step.value}: it is due later than the next sweep, which starts the step",
                    cluster=message.cluster,
                    at=message.at.isoformat(),
                )
                continue
            body = formats.requeue_body(message, message_id=self._new_id(), clock=self._clock)
            bodies.append(DelayedMessage(message.at or self._clock.now(), message.step, body))
        self._send(bodies)

    @contextmanager
    def hold(self, messages: Sequence[ReceivedMessage]) -> Iterator[None]:
        """Do nothing: FunctionGraph keeps an invocation until the function returned, and repeats it after a crash."""
        yield

    def retry(self, seconds_by_message: Mapping[ReceivedMessage, int]) -> None:
        """Send received messages again, to be delivered after so many seconds, and with one more receive in their bodies.

        Raises:
            RateLimitedError, CloudUnavailableError, ConfigurationError: As `send`.
            CloudProviderError: The receives of a message are used up, or FunctionGraph refused one; the others were sent. The
                function raises the error on, so that FunctionGraph stores the message in the failure destination.
        """
        now = self._clock.now()
        used_up = [message for message in seconds_by_message if message.receives >= self._max_receives]
        self._send(
            DelayedMessage(
                now + timedelta(seconds=seconds),
                Step(message.queue),
                formats.with_receives(message.body, message.receives),
            )
            for message, seconds in seconds_by_message.items()
            if message.receives < self._max_receives
        )
        for message in used_up:
            raise CloudProviderError(
                f"message {message.id} for {message.queue} failed {message.receives} times and is not sent again; FunctionGraph "
                "stores it in the function's failure destination",
                id=message.id,
                step=message.queue,
                to_do="read the errors of its runs in the log; the sweep starts the step again where there is work",
            )

    def send_interruptions(self, queue: str, interruptions: Sequence[Interruption], delay_seconds: int) -> None:
        """Send interruptions, each of one cluster, to a step's function; deliver them after so many seconds.

        Raises:
            RateLimitedError, CloudUnavailableError, ConfigurationError, CloudProviderError: As `send`.
        """
        at = self._clock.now() + timedelta(seconds=delay_seconds)
        self._send(DelayedMessage(at, Step(queue), formats.interruption_body(each)) for each in interruptions)

    def send_to_dead_letters(self, messages: Sequence[ReceivedMessage]) -> bool:
        """Return False: the function raises an error, after which FunctionGraph stores the message in the failure destination."""
        return False

    def deliver_delayed(self, event: object, *, ends_at: datetime) -> int:
        """Send each message of an event when it is due; return how many the function `delay` was invoked with again.

        This is the work of that function. It is invoked again with the messages for which its time is too short, and with those
        that could not be sent if others could. A crash repeats the messages that were sent before it.

        Args:
            event: That of the function `delay`; its messages may be in any order.
            ends_at: When FunctionGraph ends the function.

        Raises:
            MalformedEventError: The event does not parse.
            RateLimitedError, CloudUnavailableError, ConfigurationError, CloudProviderError: As `send`, for a single message, or
                for all of them. FunctionGraph repeats the function's whole event.
        """
        messages = read_delayed(event)
        waiting = sorted(messages, key=lambda message: message.at)
        latest = ends_at - timedelta(seconds=HAND_OVER_SECONDS)
        failed: list[DelayedMessage] = []
        errors: list[JourneymanError] = []
        while waiting and self._wait_until(waiting[0].at, latest):
            message = waiting.pop(0)
            with _collected(errors):
                self._invoke(self._function_of(message.function), message.body)
                continue
            failed.append(message)
        if failed and len(failed) == len(messages):
            raise errors[0]
        rest = [*failed, *waiting]
        self._delay(rest)
        return len(rest)

    def _wait_until(self, at: datetime, latest: datetime) -> bool:
        """Wait until a message is due, but no longer than `latest`; return whether it is due."""
        while (now := self._clock.now()) < min(at, latest):
            self._pause((min(at, latest) - now).total_seconds())
        return at <= self._clock.now()

    def _send(self, messages: Iterable[DelayedMessage]) -> None:
        """Invoke the functions of messages that are due, and the function `delay` with the others.

        Raises the first error after all of them were tried, so that one that is refused delays no other.
        """
        now = self._clock.now()
        delayed: list[DelayedMessage] = []
        errors: list[JourneymanError] = []
        for message in messages:
            with _collected(errors):
                function = self._function_of(message.function)  # also of delayed ones, so that the sender learns of it
                if message.at > now and _size_in_payload(message) <= _LARGEST_DELAYED_BYTES:
                    delayed.append(message)
                else:
                    self._invoke(function, message.body)
        with _collected(errors):
            self._delay(delayed)
        if errors:
            raise errors[0]

    def _delay(self, messages: Sequence[DelayedMessage]) -> None:
        """Invoke the function `delay` with the messages, in as few invocations as their sizes allow."""
        batches = formats.batches(
            messages, entries_per_call=len(messages), bytes_per_call=_LARGEST_DELAYED_BYTES, size_of=_size_in_payload
        )
        for batch in batches:
            payload = {"version": "1", "source": _DELAY_SOURCE, "messages": msgspec.to_builtins(batch)}
            self._invoke(self._delay_function, msgspec.json.encode(payload).decode())

    def _function_of(self, step: Step) -> str:
        if step not in self._functions:
            raise ConfigurationError(
                f"no function is configured for {step.value}",
                step=step.value,
                to_do="set JOURNEYMAN_FUNCTION_URN_PREFIX",
            )
        return self._functions[step]

    def _invoke(self, urn: str, body: str) -> None:
        """Invoke a function asynchronously with a body, a JSON object."""
        size = len(body.encode(errors="replace"))
        if size > LARGEST_BODY_BYTES:
            text = f"cannot send {size} bytes to {urn}: FunctionGraph accepts {LARGEST_BODY_BYTES} asynchronously"
            raise CloudProviderError(text, function=urn)
        try:
            event = msgspec.json.decode(body)
        except ValueError as error:  # msgspec's errors are subclasses
            raise MalformedEventError(
                f"the body of a message for {urn} is not JSON: {error}", function=urn, to_do=_FIX_SENDER
            ) from error
        call = RestCall(
            service=FUNCTIONGRAPH,
            operation="AsyncInvokeFunction",
            method="POST",
            path=f"/v2/{self._project_id}/fgs/functions/{urn}/invocations-async",
            body=event,
        )
        with _translated(urn):
            self._call(call, ATTEMPTS)

    def _call(self, call: RestCall, attempts: int) -> None:
        try:
            self._api(call)
        except RestApiError as error:
            if error.status or attempts == 1:  # the API's client repeats requests that were answered by an error
                raise
            self._call(call, attempts - 1)


@contextmanager
def _translated(urn: str) -> Iterator[None]:
    """Translate the errors of an invocation; those of a wrong deployment say what to correct."""
    facts: dict[str, Any] = {"operation": PERMISSION, "function": urn}
    try:
        with translated(PERMISSION, function=urn):
            yield
    except CloudProviderError as error:
        refusal = error.__cause__
        if not isinstance(refusal, RestApiError):
            raise
        if refusal.status == 404 or refusal.code == _NOT_FOUND:
            to_do = (
                "deploy the function in the region and project of the others, or correct JOURNEYMAN_FUNCTION_URN_PREFIX"
            )
            raise ConfigurationError(
                f"FunctionGraph has no function {urn}", **facts, code=refusal.code, to_do=to_do
            ) from refusal
        if refusal.status == 403:
            to_do = f"grant {PERMISSION} on {urn} to the agency of the functions"
            text = f"not allowed to invoke {urn}: {refusal.message}"
            raise ConfigurationError(text, **facts, code=refusal.code, to_do=to_do) from refusal
        raise


@contextmanager
def _collected(errors: list[JourneymanError]) -> Iterator[None]:
    """Add an error that is raised inside the block to the list, and go on after the block."""
    try:
        yield
    except JourneymanError as error:
        errors.append(error)


def _size_in_payload(message: DelayedMessage) -> int:
    """Return the bytes of a message in the payload of the function `delay`, its comma included."""
    return len(msgspec.json.encode(message)) + 1
