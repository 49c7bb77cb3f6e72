"""Runs Function Compute functions in this process, and the event streams of EventBridge that invoke them with messages of SMQ.

Restates: EventBridge user guide: "Retry policies and dead-letter queues" (delays of both strategies), trigger of an SMQ queue.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, cast

from msgspec import Struct

from journeyman.cloud.alibaba.smq_queue import SmqError, SmqMessage
from journeyman.ports import Clock
from journeyman_simulator.alibaba_account.smq import SimulatedSmq, StoredMessage
from journeyman_simulator.lambda_functions import (
    InvocationOutcome,
    LambdaContext,
    LambdaFunction,
    LambdaInvocation,
    initialized,
)

FcHandler = Callable[[bytes, Any], Any]

_BACKOFF_SECONDS: Final = (15, 15, 15)  # three times after 10 to 20 s
_DECAY_SECONDS: Final = tuple(min(1 << attempt, 512) for attempt in range(176))  # for a day


class RetryStrategy(Enum):
    """After which seconds EventBridge repeats a batch whose function failed."""

    BACKOFF_RETRY = _BACKOFF_SECONDS
    EXPONENTIAL_DECAY_RETRY = _DECAY_SECONDS


class FcFunctionFacts(Struct, frozen=True):
    """The function in a context."""

    name: str
    timeout: int
    memory: int
    handler: str = "index.handler"


class FcInvocationContext:
    """The context that Function Compute passes as the handler's second argument, as on Python 3.12."""

    def __init__(self, function: LambdaFunction, request_id: str) -> None:
        self.request_id = request_id
        self.function = FcFunctionFacts(function.name, int(function.timeout_seconds), function.memory_mb)
        self.region = function.region
        self.account_id = function.account


def fc_function(
    name: str,
    handler: FcHandler,
    clock: Clock,
    *,
    initializer: Callable[[Any], object] | None = None,
    region: str = "cn-hangzhou",
    account: str = "100000000000001",
    **more: Any,
) -> LambdaFunction:
    """Return a function whose handler gets bytes and Function Compute's context; the initializer runs before the first event.

    Args:
        name: The function's name.
        handler: The handler.
        clock: The time.
        initializer: The function's initializer.
        region: The region in the context.
        account: The account in the context.
        more: Further fields of `LambdaFunction`, such as its timeout.
    """

    def invoke(event: Any, context: Any) -> Any:
        answer = handler(json.dumps(event).encode(), context)
        return answer if answer is None or isinstance(answer, (str, bytes)) else json.loads(json.dumps(answer))

    context = cast("Callable[[LambdaFunction, str], LambdaContext]", FcInvocationContext)
    return LambdaFunction(
        name=name,
        handler=initialized(invoke, initializer),
        clock=clock,
        region=region,
        account=account,
        context=context,
        **more,
    )


class _FailedBatch(Struct, frozen=True):
    """A batch whose function failed, how often, and when it is repeated."""

    messages: tuple[StoredMessage, ...]
    failures: int
    at: datetime


class EventStreamMapping:
    """Takes messages from a queue for a function, as an event stream of EventBridge does. An `Actor` of a simulated `World`.

    It invokes the function with an array of CloudEvents, one batch at a time, and deletes the messages once it returned. It repeats
    a batch whose function failed; at the end the events go to the dead-letter queue, if there is one. Other batches go on meanwhile.

    Args:
        smq: The queues.
        queue: The name of the queue.
        function: The function to invoke.
        batch_size: The maximum number of messages per event (CountBasedWindow).
        strategy: When a failed batch is repeated.
        dead_letter_queue: The name of the queue for events whose retries failed; empty for none.
        decodes_base64: Whether bodies are decoded (IsBase64Decode).
    """

    def __init__(
        self,
        smq: SimulatedSmq,
        queue: str,
        function: LambdaFunction,
        *,
        batch_size: int = 16,
        strategy: RetryStrategy = RetryStrategy.BACKOFF_RETRY,
        dead_letter_queue: str = "",
        decodes_base64: bool = True,
    ) -> None:
        self._smq = smq
        self._queue = queue
        self.function = function
        self._batch_size = batch_size
        self._delays = strategy.value
        self._dead_letter_queue = dead_letter_queue
        self._decodes_base64 = decodes_base64
        self._failed: list[_FailedBatch] = []

    def due(self) -> datetime | None:
        """Return when the next message can be taken, or a batch is repeated; None if there is none."""
        moments = [self._smq.due(self._queue), *(batch.at for batch in self._failed)]
        return min((moment for moment in moments if moment is not None), default=None)

    def act(self) -> bool:
        """Invoke the function with the next batch that is due; return whether there was one."""
        return self.poll() is not None

    def poll(self) -> LambdaInvocation | None:
        """Invoke the function with the next batch that is due, and return the invocation; None if there is none."""
        now = self.function.clock.now()
        repeated = next((batch for batch in self._failed if batch.at <= now), None)
        if repeated is not None:
            self._failed.remove(repeated)
            return self._invoke(repeated.messages, repeated.failures)
        due = self._smq.due(self._queue)
        received = self._smq.receive(self._queue, min(self._batch_size, 16)) if due is not None and due <= now else []
        return self._invoke(tuple(received), 0) if received else None

    def _invoke(self, messages: Sequence[StoredMessage], failures: int) -> LambdaInvocation:
        event: Any = [self._cloud_event(message) for message in messages]
        invocation = self.function.invoke(event)
        if invocation.outcome is InvocationOutcome.SUCCEEDED:
            self._delete(messages)
        elif failures < len(self._delays):
            self._repeat(messages, failures)
        else:
            self._send_to_dead_letters(event)
            self._delete(messages)
        return invocation

    def _repeat(self, messages: Sequence[StoredMessage], failures: int) -> None:
        seconds = self._delays[failures]
        hidden = seconds + int(self.function.timeout_seconds) + 1
        kept = tuple(m for m in messages if _try(self._smq.change_visibility, self._queue, m.receipt, hidden))
        if kept:
            at = self.function.clock.now() + timedelta(seconds=seconds)
            self._failed.append(_FailedBatch(kept, failures + 1, at))

    def _send_to_dead_letters(self, events: Sequence[Any]) -> None:
        if not self._dead_letter_queue:
            return
        for event in events:
            body = base64.b64encode(json.dumps(event).encode()).decode()
            _try(self._smq.send, self._dead_letter_queue, [SmqMessage(body)])

    def _delete(self, messages: Sequence[StoredMessage]) -> None:
        for message in messages:
            _try(self._smq.delete, self._queue, message.receipt)

    def _cloud_event(self, message: StoredMessage) -> dict[str, Any]:
        function = self.function
        return {
            "id": message.id,
            "source": f"{function.name}-trigger",
            "specversion": "1.0",
            "type": "mns:Queue:SendMessage",
            "datacontenttype": "application/json; charset=utf-8",
            "subject": f"acs:mns:{function.region}:{function.account}:queues/{self._queue}",
            "time": function.clock.now().isoformat().replace("+00:00", "Z"),
            "aliyunaccountid": function.account,
            "aliyunregionid": function.region,
            "aliyuneventbusname": f"{function.name}-trigger",
            "data": {
                "requestId": f"request-{message.id}",
                "messageId": message.id,
                "messageBody": message.text if self._decodes_base64 else message.body,
            },
        }


def _try(request: Callable[..., object], *arguments: object) -> bool:
    """Send a request; return False if SMQ refuses it. Its message is then delivered again."""
    try:
        request(*arguments)
    except SmqError:
        return False
    return True
