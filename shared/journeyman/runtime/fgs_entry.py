"""Connects FunctionGraph to a step: invocations with one message, events of its triggers, timers, requests of APIG.

Each handler is one call to this module. `initialize` creates the runtime before an instance's first event; importing a handler
reads no environment and opens no connection.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial, wraps
from typing import Any, Protocol, runtime_checkable

import msgspec

from journeyman.core.plan import Step
from journeyman.errors import ConfigurationError, MalformedEventError
from journeyman.events.wire_format import TO_DO
from journeyman.ports import ReceivedMessage
from journeyman.runtime.batch import (
    PERMANENT,
    Answer,
    MessageBatch,
    StepFunction,
    StepRunner,
    log_errors,
    process_batch,
    sweep_clusters,
)
from journeyman.runtime.call_deadline import calls_end_by
from journeyman.runtime.composition import Context, Runtime, current
from journeyman.runtime.http_requests import HttpRequest, respond

Event = Any
"""A function's event, parsed: one of our messages, the event of a trigger, or a request of APIG."""
Handler = Callable[[Event, Context], Any]


class FunctionGraphContext(Protocol):
    """The part that we use of FunctionGraph's context; `use_context` reads the access key from it."""

    def getRequestID(self) -> str:  # noqa: N802 - FunctionGraph's name
        """Return the platform's id of this invocation."""
        ...

    def getRemainingTimeInMilliSeconds(self) -> float:  # noqa: N802 - FunctionGraph's name
        """Return the time until the platform ends the invocation."""
        ...


class FgsInvocation:
    """`composition.Context` on FunctionGraph, whose context has other names."""

    def __init__(self, context: FunctionGraphContext) -> None:
        self.aws_request_id = str(context.getRequestID())
        self._context = context

    def get_remaining_time_in_millis(self) -> float:
        """Return the time until the platform ends the invocation."""
        return max(float(self._context.getRemainingTimeInMilliSeconds()), 0)


def runtime() -> Runtime:
    """Return the installed runtime (`composition.installed`), or else one from the environment.

    FunctionGraph passes a function's settings as environment variables; the context's `getUserData` is not read.

    Raises:
        ConfigurationError: An environment variable is missing or wrong.
    """
    return current(_from_environment)


def _from_environment() -> Runtime:
    from journeyman.runtime.huawei import runtime as of_environment  # noqa: PLC0415 - only a deployed function needs its SDK

    return of_environment()


def initialize(context: FunctionGraphContext) -> None:
    """Create the runtime, and import what the first event and message would wait for: the initializer of a step's function."""
    import journeyman.cloud.huawei.provider  # noqa: PLC0415 - see above
    import journeyman.events.huawei_events  # noqa: F401, PLC0415 - see above

    initialize_delay(context)


def initialize_delay(context: FunctionGraphContext) -> None:
    """Create the runtime and import the SDK: the initializer of the function `delay`, which has no cloud provider."""
    from journeyman.cloud.huawei.sdk_client import import_sdk, use_context  # noqa: PLC0415 - a simulation has no such function

    use_context(context)
    runtime()
    import_sdk()


def entry_point(handler: Handler) -> Callable[[Event, FunctionGraphContext], Any]:
    """Return the handler for FunctionGraph, which gets the parsed event and the time that remains."""

    @wraps(handler)
    def entry(event: Event, context: FunctionGraphContext) -> Any:
        from journeyman.cloud.huawei.sdk_client import use_context  # noqa: PLC0415 - importing a handler stays fast

        use_context(context)
        invocation = FgsInvocation(context)
        with log_errors(runtime()):
            parsed = _parsed(event, invocation.aws_request_id)
        return handler(parsed, invocation)

    return entry


def _parsed(event: Event, request_id: str) -> Event:
    """Return the event as FunctionGraph parsed it; it passes on as text what it does not take for JSON."""
    if not isinstance(event, (str, bytes)):
        return event
    try:
        return msgspec.json.decode(event)
    except (ValueError, RecursionError) as error:  # msgspec's errors are subclasses
        raise MalformedEventError(f"cannot read the event: {error}", id=request_id, to_do=TO_DO) from error


class InvocationBatch(MessageBatch):
    """The message of an asynchronous invocation; or those in the event of a trigger, mostly one.

    FunctionGraph repeats the whole event if the function raises an error, at once and a few times only, and then stores it as a
    dead letter. So a failed message is sent again (`ports.Queue.retry`), and an error is raised only if that failed, or
    for a message that can never succeed. Such a message in an event with others is sent again too, and fails alone.
    """

    @classmethod
    def read(cls, step: Step, event: Event) -> InvocationBatch:
        """Return the batch with every message parsed. A message that is twice in the event is one."""
        payloads = {message.id: (message, payload) for message, payload in _received(event, step)}
        batch = cls(runtime=runtime(), messages=[message for message, _ in payloads.values()])
        batch.parse([payload for _, payload in payloads.values()])
        return batch

    def answer(self) -> Answer:
        """Return the number of messages, and the ids of those that were sent again.

        Raises:
            JourneymanError: The only message can never succeed, its receives are used up, or a failed message could not be sent
                again. FunctionGraph repeats the event, and at last stores it as a dead letter.
        """
        failed = self.failed()
        permanent = [error for error in self.failures.values() if isinstance(error, PERMANENT)]
        if permanent and len(self.messages) == 1:
            raise permanent[0]
        with log_errors(self.runtime):
            self.retry(failed)
        return {"messages": len(self.messages), "retried": [message.id for message in failed]}


def _received(event: Event, step: Step) -> Iterator[tuple[ReceivedMessage, Mapping[str, Any]]]:
    """Yield the message of each part of an event with the payload to parse. Its body can be sent again as an event."""
    from journeyman.cloud.messages import receives_of  # noqa: PLC0415 - the first event needs it, no import does
    from journeyman.events.huawei_events import item_id, items_of  # noqa: PLC0415 - same

    for number, item in enumerate(items_of(event)):
        payload: Mapping[str, Any] = item if isinstance(item, dict) else {"body": item}
        body = json.dumps(payload, separators=(",", ":"))
        id_ = item_id(payload) or f"item-{number}"
        yield ReceivedMessage(id=id_, body=body, queue=step.value, receives=receives_of(body)), payload


run_batch: Callable[[str, StepFunction, Event, Context], Answer] = partial(process_batch, InvocationBatch.read)
"""Runs a step, given by its name, for the messages of an event; returns what became of them (`process_batch`)."""


def run_sweep(function: StepFunction, event: Event, context: Context) -> Answer:
    """Sweep all clusters for an event of the timer; sweep the cluster that a message for the sweep names.

    Raises:
        MalformedEventError: The event does not parse.
        JourneymanError: The sweep of a cluster failed, of which the timer starts the next one; or a failed message could not be sent
            again.
    """
    if isinstance(event, dict) and event.get("trigger_type") == "TIMER":
        created = runtime()
        return sweep_clusters(created, StepRunner(created, Step.SWEEP, function, context), event)
    return run_batch(Step.SWEEP.value, function, event, context)


@runtime_checkable
class DelayingQueue(Protocol):
    """A queue whose messages wait in a function."""

    def deliver_delayed(self, event: object, *, ends_at: datetime) -> int:
        """Send each message of an event when it is due; return how many wait on in another invocation."""
        ...


def run_delay(event: Event, context: Context) -> Answer:
    """Send each message of an event to its step's function when it is due; return how many wait on in another invocation.

    Raises:
        MalformedEventError: The event does not parse.
        JourneymanError: No message could be sent; FunctionGraph repeats the event.
    """
    created = runtime()
    ends_at = created.clock.now() + timedelta(milliseconds=context.get_remaining_time_in_millis())
    with log_errors(created), calls_end_by(ends_at):
        queue = created.queue
        if not isinstance(queue, DelayingQueue):
            raise ConfigurationError(
                "messages wait in queues here, not in a function", to_do="remove the function delay"
            )
        return {"waiting": queue.deliver_delayed(event, ends_at=ends_at)}


def run_api(app: Any, event: Event, context: Context, *, base_path: str = "") -> dict[str, Any]:
    """Return the response of a Chalice application (`api.application`) to a request of APIG.

    Args:
        app: The application.
        event: The request.
        context: The invocation's context.
        base_path: The path of the function's trigger, which precedes the application's own paths in a request.
    """
    return respond(app, http_request(event, base_path), context)


def http_request(event: Mapping[str, Any], base_path: str = "") -> HttpRequest:
    """Return the request in an event of APIG, without its base path. Repeated headers and parameters may be lists in it."""
    about = event.get("requestContext") or {}
    headers = event.get("headers") or {}
    parameters = event.get("queryStringParameters") or {}
    path: str = event["path"]
    return HttpRequest(
        method=event["httpMethod"].upper(),
        path=path[len(base_path) :] if base_path and path.startswith(f"{base_path}/") else path,
        headers={name: ", ".join(_texts(value)) for name, value in headers.items()},
        query={name: _texts(value) for name, value in parameters.items()},
        body=event.get("body"),
        is_base64=bool(event.get("isBase64Encoded", False)),
        request_id=str(about.get("requestId", "")),
        source_ip=str(about.get("sourceIp", "")),
    )


def _texts(value: Any) -> list[str]:
    return [str(each) for each in (value if isinstance(value, list) else [value])]
