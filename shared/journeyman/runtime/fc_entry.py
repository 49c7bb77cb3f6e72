"""Connects Function Compute to a step: events as bytes, batches of EventBridge, timers, HTTP. Each handler is one call to this module.

`initialize` creates the runtime before an instance's first event; importing a handler reads no environment and opens no connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial, wraps
from typing import Any, Protocol

import msgspec

from journeyman.core.plan import Step
from journeyman.errors import MalformedEventError
from journeyman.events.wire_format import TO_DO
from journeyman.ports import Clock, ReceivedMessage
from journeyman.runtime.batch import (
    Answer,
    MessageBatch,
    StepFunction,
    StepRunner,
    log_errors,
    process_batch,
    sweep_clusters,
)
from journeyman.runtime.composition import Context, Runtime, current
from journeyman.runtime.http_requests import HttpRequest, respond

Event = Any
"""A function's event, parsed: an array of CloudEvents, one CloudEvent, a timer event, or an HTTP request."""
Handler = Callable[[Event, Context], Any]


class FcFunction(Protocol):
    """The part that we use of the function in Function Compute's context."""

    @property
    def timeout(self) -> int:
        """The function's timeout in seconds."""
        ...


class FcContext(Protocol):
    """The part that we use of Function Compute's context."""

    @property
    def request_id(self) -> str:
        """The platform's id of this invocation."""
        ...

    @property
    def function(self) -> FcFunction:
        """The function."""
        ...


class Invocation:
    """`composition.Context` on Function Compute, whose context has the function's timeout but not the time that remains."""

    def __init__(self, context: FcContext, clock: Clock) -> None:
        self.aws_request_id = context.request_id
        self._clock = clock
        self._ends_at: datetime = clock.now() + timedelta(seconds=int(context.function.timeout))

    def get_remaining_time_in_millis(self) -> float:
        """Return the time until the platform ends the invocation."""
        return max((self._ends_at - self._clock.now()).total_seconds(), 0) * 1000


def runtime() -> Runtime:
    """Return the installed runtime (`composition.installed`), or else one from the environment.

    Raises:
        ConfigurationError: An environment variable is missing or wrong.
    """
    return current(_from_environment)


def _from_environment() -> Runtime:
    """Return the runtime of the deployed function, after importing what its first event and message would wait for."""
    import mns.mns_client  # noqa: F401, PLC0415 - see above

    import journeyman.events.alibaba_events  # noqa: F401, PLC0415 - see above
    from journeyman.runtime.alibaba import runtime as of_environment  # noqa: PLC0415 - only a deployed function needs its SDKs

    return of_environment()


def initialize(_context: FcContext) -> None:
    """Create the runtime and import the SDK: the function's initializer, whose time the first event need not wait for."""
    from journeyman.cloud.alibaba.sdk_client import import_sdk  # noqa: PLC0415 - a simulation has no such function

    runtime()
    import_sdk()


def entry_point(handler: Handler) -> Callable[[bytes, FcContext], Any]:
    """Return the handler for Function Compute, which gets the parsed event and the time that remains."""

    @wraps(handler)
    def entry(event: bytes, context: FcContext) -> Any:
        from journeyman.cloud.alibaba.sdk_client import use_context  # noqa: PLC0415 - importing a handler stays fast

        use_context(context)
        created = runtime()
        invocation = Invocation(context, created.clock)
        with log_errors(created):
            parsed = _decoded(event, context.request_id)
        return handler(parsed, invocation)

    return entry


def _decoded(event: bytes, request_id: str) -> Event:
    try:
        return msgspec.json.decode(event)
    except (ValueError, RecursionError) as error:  # msgspec's errors are subclasses
        raise MalformedEventError(f"cannot read the event: {error}", id=request_id, to_do=TO_DO) from error


class EventStreamBatch(MessageBatch):
    """The messages of a batch that EventBridge received from a step's queue; or one event that invoked the function directly.

    EventBridge repeats the whole batch if the function raises an error, and deletes all of it otherwise. So a failed message is sent
    again (`ports.Queue.retry`), also one that came directly, and an error is raised only if that failed.
    """

    @classmethod
    def read(cls, step: Step, event: Event) -> EventStreamBatch:
        """Return the batch with every message parsed. A message that EventBridge delivered twice in the batch is one."""
        items: Sequence[Any] = event if isinstance(event, list) else [event]
        payloads = {message.id: (message, payload) for message, payload in _received(items, step)}
        batch = cls(runtime=runtime(), messages=[message for message, _ in payloads.values()])
        batch.parse([payload for _, payload in payloads.values()])
        return batch

    def answer(self) -> Answer:
        """Return the number of messages, and the ids of those that were sent again or to the dead-letter queue.

        Raises:
            JourneymanError: A failed message could not be sent again; EventBridge repeats the batch.
        """
        dead = self.send_dead_letters()
        failed = [message for message in self.failed() if message.id not in dead]
        with log_errors(self.runtime):
            self.retry(failed)
        return {
            "messages": len(self.messages),
            "retried": [message.id for message in failed],
            "deadLetters": sorted(dead),
        }


def _received(items: Iterable[Any], step: Step) -> Iterator[tuple[ReceivedMessage, Mapping[str, Any]]]:
    """Yield the message of each item with the payload to parse. Direct events get a body with which they can be sent again."""
    from journeyman.cloud.messages import receives_of  # noqa: PLC0415 - the first event needs it, no import does
    from journeyman.events.alibaba_events import QUEUE_MESSAGE, body_of, message_id_of  # noqa: PLC0415 - same

    for number, item in enumerate(items):
        payload: Mapping[str, Any] = item if isinstance(item, dict) else {"body": item}
        direct = item if isinstance(item, str) else msgspec.json.encode(item).decode()
        body = body_of(payload) if payload.get("type") == QUEUE_MESSAGE else direct
        id_ = message_id_of(payload) or str(payload.get("triggerTime", "")) or f"item-{number}"
        yield ReceivedMessage(id=id_, body=body, queue=step.value, receives=receives_of(body)), payload


run_batch: Callable[[str, StepFunction, Event, Context], Answer] = partial(process_batch, EventStreamBatch.read)
"""Runs a step, given by its name, for a batch of messages or one event; returns what became of them (`process_batch`)."""


def run_sweep(function: StepFunction, event: Event, context: Context) -> Answer:
    """Sweep all clusters for an event of the timer; sweep those that messages of the sweep's queue name.

    Raises:
        MalformedEventError: The timer's event does not parse.
        JourneymanError: The sweep of a cluster failed, of which the timer starts the next one; or a failed message could not be sent
            again.
    """
    if isinstance(event, dict) and "triggerTime" in event:
        created = runtime()
        return sweep_clusters(created, StepRunner(created, Step.SWEEP, function, context), event)
    return run_batch(Step.SWEEP.value, function, event, context)


def run_api(app: Any, event: Event, context: Context) -> dict[str, Any]:
    """Return the response of a Chalice application (`api.application`) to a request of an HTTP trigger."""
    return respond(app, http_request(event), context)


def http_request(event: Mapping[str, Any]) -> HttpRequest:
    """Return the request in an event of an HTTP trigger, version v1. Repeated headers and parameters are joined by commas in it."""
    http = event["requestContext"]["http"]
    return HttpRequest(
        method=http["method"],
        path=event.get("rawPath") or http["path"],
        headers=event.get("headers") or {},
        query={name: [value] for name, value in (event.get("queryParameters") or {}).items()},
        body=event.get("body"),
        is_base64=bool(event.get("isBase64Encoded", False)),
        request_id=event["requestContext"].get("requestId", ""),
        source_ip=http.get("sourceIp", ""),
    )
