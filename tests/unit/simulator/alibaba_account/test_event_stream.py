"""An event stream of EventBridge: batches, deletion, retries, and dead letters."""

import base64
import json
from datetime import datetime, timedelta, timezone

import pytest

from journeyman.cloud.alibaba.smq_queue import SmqMessage
from journeyman_simulator.alibaba_account.event_stream import EventStreamMapping, RetryStrategy, fc_function
from journeyman_simulator.alibaba_account.smq import InProcessSmq, SimulatedSmq
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.lambda_functions import InvocationOutcome
from journeyman_simulator.world import World

START = datetime(2026, 11, 21, 9, 0, tzinfo=timezone.utc)


class CrashError(BaseException):
    """The sandbox crashes."""


class Stream:
    """A function behind a queue; it raises `fails`, one for each invocation."""

    def __init__(self, **given):
        self.clock = VirtualClock(START)
        self.smq = SimulatedSmq(self.clock)
        for name in ("queue", "dead"):
            self.smq.create(name)
        self.fails, self.batches, self.contexts, self.initialized = [], [], [], []
        self.function = fc_function(
            "provision",
            self.handle,
            self.clock,
            initializer=self.initialized.append,
            timeout_seconds=20,
            fatal=(CrashError,),
        )
        self.mapping = EventStreamMapping(self.smq, "queue", self.function, dead_letter_queue="dead", **given)
        self.world = World(self.clock, [self.mapping])

    def handle(self, event, context):
        self.contexts.append(context)
        self.batches.append([item["data"]["messageBody"] for item in json.loads(event)])
        if self.fails:
            raise self.fails.pop(0)
        return {"messages": len(self.batches[-1])}

    def send(self, *bodies, delay=0):
        InProcessSmq(self.smq).send("queue", [SmqMessage(body, delay) for body in bodies])

    def left(self, name="queue"):
        return [message.text for message in self.smq.queues[name].messages]


def test_messages_of_a_batch_are_deleted_after_the_function_returned():
    """The function gets bytes and a context with its timeout; the initializer runs once."""
    stream = Stream(batch_size=2)
    stream.send("a", "b", "c")
    stream.send("late", delay=60)
    stream.world.settle()

    assert stream.batches == [["a", "b"], ["c"]]
    assert stream.left() == ["late"]
    stream.world.run_for(timedelta(seconds=60))
    assert stream.batches[2:] == [["late"]]
    assert (stream.contexts[0].function.timeout, len(stream.initialized)) == (20, 1)


@pytest.mark.parametrize(("error", "outcome"), [(ValueError("no"), "FAILED"), (CrashError(), "CRASHED")])
def test_failed_batch_is_repeated_while_others_go_on(error, outcome):
    """EventBridge keeps the messages until then."""
    stream = Stream(batch_size=1)
    stream.fails = [error]
    stream.send("a", "b")
    stream.world.settle()
    assert stream.batches == [["a"], ["b"]]
    assert stream.left() == ["a"]
    assert stream.function.invocations[0].outcome is InvocationOutcome[outcome]

    stream.world.run_for(timedelta(seconds=14))
    assert len(stream.batches) == 2
    stream.world.run_for(timedelta(seconds=1))
    assert stream.batches[2:] == [["a"]]
    assert stream.left() == []


@pytest.mark.parametrize(
    ("strategy", "attempts", "within"), [("BACKOFF_RETRY", 4, 60), ("EXPONENTIAL_DECAY_RETRY", 177, 90_000)]
)
def test_batch_whose_retries_fail_becomes_dead_letters(strategy, attempts, within):
    """They are the events, not the messages."""
    stream = Stream(strategy=RetryStrategy[strategy])
    stream.fails = [ValueError("no")] * 500
    stream.send("a", "b")
    stream.world.run_for(timedelta(seconds=within))

    assert len(stream.batches) == attempts
    assert stream.left() == []
    assert [json.loads(text)["data"]["messageBody"] for text in stream.left("dead")] == ["a", "b"]


def test_body_stays_encoded_if_the_trigger_does_not_decode_it():
    """IsBase64Decode is a setting of the trigger."""
    stream = Stream(decodes_base64=False)
    stream.send("a")
    stream.world.settle()

    assert stream.batches == [[base64.b64encode(b"a").decode()]]
