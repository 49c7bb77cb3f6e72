"""Asynchronous invocations, delays, instances, timers and triggers of the simulated FunctionGraph."""

from datetime import datetime, timedelta, timezone

import pytest

from journeyman.errors import ConfigurationError
from journeyman_simulator.clock import SkewedClock, VirtualClock
from journeyman_simulator.cloud_rules.access_keys import SimulatedAccessKey
from journeyman_simulator.cloud_rules.repeated_invocations import AsyncInvokeConfig
from journeyman_simulator.huawei_account.function_graph import (
    CtsTrigger,
    FgsTimers,
    FunctionGraph,
    fgs_function,
    stored_letters,
    timer_times,
    urn_of,
)
from journeyman_simulator.in_process_account.sqs_queues import MessageOutcome
from journeyman_simulator.lambda_functions import InvocationOutcome
from journeyman_simulator.world import World

START = datetime(2026, 11, 21, 9, 0, 30, tzinfo=timezone.utc)


class Stage:
    """A step's function and the function `delay`, which fail some times, in a simulation."""

    def __init__(self, failures=0, instances=2, **config):
        self.clock = VirtualClock(START)
        self.graph = FunctionGraph(self.clock)
        self.failures, self.events = failures, []
        self.step = fgs_function("step", self._handle, self.clock)
        self.delay = fgs_function("delay", self._handle, self.clock)
        self.graph.add(self.step)
        self.graph.add(self.delay, most_instances=instances, waits=True)
        for function in (self.step, self.delay):
            self.graph.configure(function, AsyncInvokeConfig(on_failure="bucket/dead-letters", **config))
        self.timers = FgsTimers(self.graph, self.clock)
        self.world = World(self.clock, [self.timers, self.graph])

    def _handle(self, event, _context):
        self.events.append((int((self.clock.now() - START).total_seconds()), event))
        if self.failures:
            self.failures -= 1
            raise RuntimeError("no")

    def wait_for(self, *seconds):
        """Invoke `delay` with a message for each of these moments."""
        messages = [{"at": moment(each), "body": str(each)} for each in seconds]
        return self.graph.invoke(urn_of(self.delay), {"version": "1", "messages": messages})

    def run_for(self, seconds):
        self.world.run_for(timedelta(seconds=seconds))

    @property
    def bodies(self):
        return [(at, [message["body"] for message in event["messages"]]) for at, event in self.events]


def moment(seconds):
    return (START + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


# --- asynchronous invocations


def test_failed_invocation_is_repeated_with_growing_delays():
    """A second, then two."""
    stage = Stage(failures=2)
    stage.graph.invoke(f"{urn_of(stage.step)}:latest", {"a": 1})
    stage.run_for(60)

    assert stage.events == [(0, {"a": 1}), (1, {"a": 1}), (3, {"a": 1})]
    assert stage.graph.objects == {}


def test_invocation_without_success_is_stored_with_its_error():
    """The object has the documented envelope."""
    stage = Stage(failures=9, retries=1)
    request_id = stage.graph.invoke(urn_of(stage.step), {"a": 1})
    stage.run_for(60)
    (letter,) = stored_letters(stage.graph.objects, ("bucket/dead-letters/",))

    assert len(stage.events) == 2
    assert letter["request_payload"] == {"a": 1}
    assert letter["request_context"] == {
        "request_id": request_id,
        "function_urn": f"{urn_of(stage.step)}:latest",
        "condition": "RetriesExhausted",
        "approximate_invoke_count": 2,
    }
    assert letter["response_payload"] == "RuntimeError: no"


def test_event_that_becomes_too_old_is_not_repeated():
    """The next attempt would be after the event's age."""
    stage = Stage(failures=9, longest_age=timedelta(seconds=2))
    stage.graph.invoke(urn_of(stage.step), {})
    stage.run_for(60)

    assert [at for at, _ in stage.events] == [0, 1]
    assert len(stage.graph.objects) == 1


def test_unknown_function_cannot_be_invoked():
    """Also one with the name of a function of another project."""
    stage = Stage()

    for urn in (urn_of(stage.step).replace(":p:", ":q:"), "step"):
        with pytest.raises(KeyError):
            stage.graph.invoke(urn, {})


@pytest.mark.parametrize(
    ("outcome", "times"),
    [
        (MessageOutcome(copies=0), []),
        (MessageOutcome(copies=2), [0, 0]),
        (MessageOutcome(delay_seconds=7), [7]),
    ],
    ids=["lost", "duplicated", "late"],
)
def test_invocations_can_be_lost_duplicated_and_late(outcome, times):
    """The fault simulation decides it for each one."""
    stage = Stage()
    decided = []
    stage.graph.decide = lambda name, body: decided.append((name, body)) or outcome
    stage.graph.invoke(urn_of(stage.step), {"a": 1})
    stage.run_for(60)

    assert [at for at, _ in stage.events] == times
    assert decided == [("step", '{"a":1}')]


def test_invocation_can_overtake_earlier_ones():
    """FunctionGraph promises no order."""
    stage = Stage()
    stage.graph.invoke(urn_of(stage.step), {"n": 1})
    stage.graph.decide = lambda _name, _body: MessageOutcome(overtakes=True)
    stage.graph.invoke(urn_of(stage.step), {"n": 2})
    stage.run_for(1)

    assert [event["n"] for _, event in stage.events] == [2, 1]


def test_throttled_function_gets_its_events_later():
    """They are no failures, which are repeated three times only."""
    stage = Stage()
    stage.step.is_throttled = True
    stage.graph.invoke(urn_of(stage.step), {"a": 1})
    stage.run_for(95)
    stage.step.is_throttled = False
    stage.run_for(10)

    assert stage.events == [(100, {"a": 1})]
    assert stage.graph.objects == {}


# --- delays


def test_delayed_messages_are_sent_when_each_is_due():
    """The handler never sleeps: it gets the messages of each moment when that has come."""
    stage = Stage()
    stage.wait_for(30, 0, 30, 10)
    stage.run_for(60)

    assert stage.bodies == [(0, ["0"]), (10, ["10"]), (30, ["30", "30"])]


def test_function_waits_by_its_own_clock():
    """The clock that dated the messages is a minute ahead; when it is corrected, the function waits on."""
    stage = Stage()
    clock = stage.graph.function_clock = SkewedClock(stage.clock)
    clock.offset = timedelta(minutes=1)
    stage.wait_for(70, 80)
    stage.run_for(15)
    clock.offset = timedelta()
    stage.run_for(60)

    assert stage.bodies == [(10, ["70"])]
    stage.run_for(10)
    assert stage.bodies == [(10, ["70"]), (80, ["80"])]


def test_delayed_message_that_fails_is_repeated_alone():
    """The others were sent."""
    stage = Stage(failures=1)
    stage.wait_for(10, 20)
    stage.run_for(60)

    assert stage.bodies == [(10, ["10"]), (11, ["10"]), (20, ["20"])]


def test_delays_beyond_the_functions_instances_start_when_one_is_free():
    """Each instance waits until its last message is due; a message of a later one is late."""
    stage = Stage(instances=2)
    stage.wait_for(10, 30)
    stage.wait_for(20)
    stage.wait_for(5)
    stage.wait_for(6)
    stage.run_for(60)

    assert stage.bodies == [(10, ["10"]), (20, ["20"]), (20, ["5"]), (20, ["6"]), (30, ["30"])]


def test_other_functions_wait_while_all_instances_of_the_account_are_busy():
    """A hundred run at a time."""
    stage = Stage(instances=100)
    for _ in range(100):
        stage.wait_for(50)
    stage.run_for(1)
    stage.graph.invoke(urn_of(stage.step), {"messages": [{"body": "step"}]})
    stage.run_for(60)

    assert [body for at, body in stage.bodies if body == ["step"] and at == 50] == [["step"]]


def test_event_without_messages_is_passed_on_as_it_is():
    """The handler finds out what is wrong with it."""
    stage = Stage()
    for event in ({"messages": [{"at": "soon"}]}, {"messages": 1}, {}):
        stage.graph.invoke(urn_of(stage.delay), event)
    stage.run_for(1)

    assert [event for _, event in stage.events] == [{"messages": [{"at": "soon"}]}, {"messages": 1}, {}]


# --- the context


def test_context_has_the_agencys_key_and_the_functions_settings():
    """Under FunctionGraph's names."""
    seen = []
    key = SimulatedAccessKey(id="id", secret="secret", caller="f", security_token="token")
    function = fgs_function(
        "f",
        lambda _event, context: seen.append(context),
        VirtualClock(START),
        key=key,
        user_data={"LOG_LEVEL": "debug"},
        project_id="p1",
        timeout_seconds=60,
        memory_mb=256,
        new_id=lambda: "r1",
    )
    function.invoke({})
    (context,) = seen

    assert (context.getRequestID(), context.getFunctionName(), context.getProjectID()) == ("r1", "f", "p1")
    assert (context.getSecurityAccessKey(), context.getSecuritySecretKey()) == ("id", "secret")
    assert context.getSecurityToken() == "token"
    assert (context.getUserData("LOG_LEVEL"), context.getUserData("OTHER")) == ("debug", None)
    assert 0 < context.getRemainingTimeInMilliSeconds() <= 60_000
    assert (context.getRunningTimeInSeconds(), context.getMemorySize()) == (60, 256)


def test_initializer_runs_once_and_its_failure_fails_the_invocation():
    """The next invocation initializes again."""
    attempts = []

    def initialize(_context):
        attempts.append(1)
        if len(attempts) == 1:
            raise RuntimeError("no")

    function = fgs_function("f", lambda _event, _context: "done", VirtualClock(START), initializer=initialize)
    outcomes = [function.invoke({}).outcome for _ in range(3)]

    assert outcomes == [InvocationOutcome.FAILED, InvocationOutcome.SUCCEEDED, InvocationOutcome.SUCCEEDED]
    assert len(attempts) == 2


# --- triggers


def test_cts_trigger_passes_only_its_operations():
    """By service, resource type and the trace's name."""
    stage = Stage()
    trigger = CtsTrigger(name="t", function=stage.step, operations=frozenset({"ECS:server:interruptServer"}))
    stage.graph.cts_triggers.append(trigger)
    trace = {"service_type": "ECS", "resource_type": "server", "trace_name": "interruptServer"}
    for change in ({}, {"resource_type": "ecs"}, {"trace_name": "stopServer"}, {"service_type": "EVS"}):
        stage.graph.deliver_trace({"cts": {**trace, **change}})
    stage.run_for(1)

    assert [event for _, event in stage.events] == [{"cts": trace}]


def test_traces_can_be_lost_and_duplicated_and_timers_cannot():
    """A trace is an asynchronous invocation too; the sweep of each minute stands in for what is lost."""
    stage = Stage()
    stage.graph.cts_triggers.append(CtsTrigger(name="t", function=stage.step, operations=frozenset({"A:b:c"})))
    event = {"cts": {"service_type": "A", "resource_type": "b", "trace_name": "c"}}
    stage.graph.decide = lambda _name, _body: MessageOutcome(copies=2)
    stage.graph.deliver_trace(event)
    stage.graph.decide = lambda _name, _body: MessageOutcome(copies=0)
    stage.graph.deliver_trace(event)
    stage.timers.add("timer", stage.step, "1m", "payload")
    stage.run_for(60)

    assert [at for at, _ in stage.events] == [0, 0, 60]
    assert stage.events[-1][1]["user_event"] == "payload"


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("1m", START + timedelta(minutes=1)),
        ("2h", START + timedelta(hours=2)),
        ("30d", START + timedelta(days=30)),
        ("@every 1h30m", START + timedelta(minutes=90)),
        ("0 0 22 * * ?", datetime(2026, 11, 21, 14, 0, tzinfo=timezone.utc)),
    ],
)
def test_timer_fires_at_its_rate_or_cron_expression(schedule, expected):
    """Cron has the seconds first, and China's time."""
    assert timer_times(schedule)(START) == expected


@pytest.mark.parametrize("schedule", ["61m", "25h", "31d", "0m", "30s", "0 22 * * *", "99 0 0 * * ?", "@every 30s", ""])
def test_schedule_that_function_graph_rejects_is_an_error(schedule):
    """Rates are whole minutes, hours or days within bounds; cron has six fields."""
    with pytest.raises(ConfigurationError, match="invalid"):
        timer_times(schedule)
