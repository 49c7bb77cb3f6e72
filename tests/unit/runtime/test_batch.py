"""Batches: one run per cluster; only failed records are retried, and only if a retry can help."""

import inspect
import json
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from journeyman.cloud.messages import with_receives
from journeyman.core.plan import Observation, Step
from journeyman.errors import (
    CloudUnavailableError,
    ConfigurationError,
    ForbiddenError,
    InvariantError,
    KubeUnavailableError,
    LeaseLostError,
    MalformedEventError,
    RateLimitedError,
    UnknownClusterError,
)
from journeyman.ports import Message, ScheduledRun
from journeyman.runtime import fc_entry, fgs_entry, lambda_entry
from journeyman.runtime.batch import FAILED, MAX_PARALLEL_CLUSTERS, StepRunner, retry_seconds
from journeyman.runtime.composition import Runtime, installed
from journeyman.runtime.lambda_entry import run_batch, run_sweep
from journeyman.steps.context import BUSY, Outcome, Settings
from tests.helpers.fakes import Cluster, FakeLease, FakeQueue, Record, failing

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=timezone.utc)


class Context:
    aws_request_id = "req-1"

    def __init__(self, milliseconds: int = 30_000) -> None:
        self._milliseconds = milliseconds

    def get_remaining_time_in_millis(self) -> int:
        return self._milliseconds


class LambdaContext(Context):
    function_name, memory_limit_in_mb = "provision", 512
    invoked_function_arn = "arn:aws:lambda:us-east-1:123456789012:function:provision"


FC_CONTEXT = SimpleNamespace(request_id="req-1", function=SimpleNamespace(name="provision", timeout=60))


class FgsContext:
    """The context of an invocation of FunctionGraph with an agency's access key."""

    def getRequestID(self):
        return "req-1"

    def getRemainingTimeInMilliSeconds(self):
        return 59_500

    def getSecurityAccessKey(self):
        return "AK"

    def getSecuritySecretKey(self):
        return "SK"

    def getSecurityToken(self):
        return "token"


class FlushedRecord(Record):
    def __init__(self) -> None:
        super().__init__()
        self.flushed_until: list[datetime] = []

    def flush(self, *, until: datetime) -> None:
        self.flushed_until.append(until)


@dataclass
class Adapters:
    """Fake adapters with an in-memory cluster for every name."""

    made: list[str] = field(default_factory=list)
    fake_queue: FakeQueue = field(default_factory=FakeQueue)
    lines: list[tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)
    records: list[FlushedRecord] = field(default_factory=list)
    counted: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    owners: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)  # by interruption
    looked_up: list[list[str]] = field(default_factory=list)
    look_up_error: Exception | None = None

    def __post_init__(self) -> None:
        self.cluster = Cluster()
        self.clock = self.cluster.clock
        self.clock.advance_to(NOW)

    def store(self, cluster):
        self.made.append(f"store {cluster.cluster_name}")
        return self.cluster.server

    def cloud(self, cluster, store):
        self.made.append(f"cloud {cluster.cluster_name}")
        return self.cluster.cloud

    def is_outdated(self, cluster):
        return False

    def queue(self):
        return self.fake_queue

    def window_schedules(self, cluster):
        return None

    def lease(self, cluster, step, store, holder):
        return FakeLease()

    def telemetry(self, store, fields):
        self.records.append(FlushedRecord())
        return self.records[-1]

    def log(self, level, message, **fields):
        self.lines.append((level, message, fields))

    def clusters_of(self, interruptions):
        self.looked_up.append([i.id for i in interruptions])
        if self.look_up_error is not None:
            raise self.look_up_error
        return {i.id: self.owners.get(i.id, dict.fromkeys(("blue", "green"), i.instance_ids)) for i in interruptions}

    def observe(self, observations):
        self.counted += [(o.name.removeprefix("karpenter_interruption_"), dict(o.labels)) for o in observations]


class StepOf:
    """A step that records its runs, calls `act` in them, raises `fails` by cluster, and returns `status` and `error`."""

    def __init__(self, step=Step.PROVISION, fails=None, status="done", *, act=None, error=None):
        self.step, self.fails, self.status, self.act, self.error = step, fails or {}, status, act, error
        self.runs = []

    def __call__(self, run, trigger):
        self.runs.append((run.cluster, trigger.id))
        run.telemetry.observe(Observation(name="ran_total"))
        if self.act is not None:
            self.act(run, trigger)
        if run.cluster in self.fails:
            raise self.fails[run.cluster]
        return Outcome(step=self.step, cluster=run.cluster, status=self.status, error=self.error)


@pytest.fixture
def adapters():
    return Adapters()


@pytest.fixture
def runtime(adapters):
    return Runtime({name: Settings(cluster_name=name) for name in ("blue", "green")}, adapters)


def a_record(number, cluster="blue", *, body=None, step="provision", **more):
    message = {"version": "1", "source": "requeue", "id": f"m{number}", "time": NOW.isoformat(), "cluster": cluster}
    return {
        "messageId": f"record-{number}",
        "body": body if body is not None else json.dumps({**message, "step": step, **more}),
        "attributes": {"MessageGroupId": cluster},
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:us-east-1:123456789012:{step}.fifo",
        "receiptHandle": f"receipt-{number}",
    }


def run_sqs(runtime, function, *records, context=None):
    with installed(runtime):
        answer = run_batch(function.step.value, function, {"Records": list(records)}, context or Context())
    return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]


def cloud_event(record):
    """Return an SQS record as EventBridge passes a message of SMQ, whose body counts its receives."""
    receives = int(record["attributes"].get("ApproximateReceiveCount", 1))
    body = record["body"] if receives == 1 else with_receives(record["body"], receives - 1)
    return {
        "id": f"event-{record['messageId']}",
        "source": "trigger",
        "specversion": "1.0",
        "type": "mns:Queue:SendMessage",
        "data": {"messageId": record["messageId"], "messageBody": body},
    }


def run_smq(runtime, function, *records, context=None):
    event = [cloud_event(record) for record in records]
    with installed(runtime):
        answer = fc_entry.run_batch(function.step.value, function, event, context or Context())
    return answer["retried"]


def topic_event(*records):
    """Return SQS records as FunctionGraph passes messages of an SMN topic; an event that was sent again has one record."""
    found = [
        {"event_source": "smn", "smn": {"message_id": each["messageId"], "message": each["body"]}} for each in records
    ]
    receives = max(int(each["attributes"].get("ApproximateReceiveCount", 1)) for each in records)
    return {"record": found, "functionname": "journeyman", **({"receives": receives - 1} if receives > 1 else {})}


def run_functions(runtime, function, *records, context=None):
    with installed(runtime):
        answer = fgs_entry.run_batch(function.step.value, function, topic_event(*records), context or Context())
    return answer["retried"]


@pytest.fixture(params=[run_sqs, run_smq, run_functions], ids=["SQS", "SMQ", "FunctionGraph"])
def run_queue(request):
    """Return the function that runs a step for records of a queue, on each cloud, and returns the ids of those that are retried."""
    return request.param


@pytest.fixture(params=[run_sqs, run_smq], ids=["SQS", "SMQ"])
def run_queue_with_dead_letters(request):
    """Return the same for the clouds that have a queue for dead letters."""
    return request.param


def test_messages_for_one_cluster_are_one_run(run_queue, runtime):
    step = StepOf()

    failed = run_queue(runtime, step, a_record(1), a_record(2), a_record(3, "green"), a_record(4))

    assert (failed, sorted(step.runs)) == ([], [("blue", "m1"), ("green", "m3")])


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"body": "{"}, MalformedEventError),
        ({"body": '{"a":' * 10_000 + "1" + "}" * 10_000}, MalformedEventError),
        ({"cluster": "nowhere"}, UnknownClusterError),
        ({"step": "terminate"}, MalformedEventError),
    ],
    ids=["no JSON", "nested so deep that the decoder stops with another error", "unknown cluster", "another step's"],
)
def test_malformed_message_fails_alone(run_queue_with_dead_letters, runtime, adapters, wrong, error):
    """It goes to the dead-letter queue at once; later messages are handled. If that queue refuses it, it is delivered again."""
    run, step, record = run_queue_with_dead_letters, StepOf(), a_record(2, **wrong)

    assert run(runtime, step, a_record(1), record, a_record(3)) == []

    assert step.runs == [("blue", "m1")]
    (letter,) = adapters.fake_queue.dead_letters
    assert (letter.body, letter.group) == (record["body"], wrong.get("cluster", "blue") if run is run_sqs else "")
    ((level, _, fields),) = adapters.lines
    assert (level, fields["error"], bool(fields["to_do"])) == ("error", error.__name__, True)
    adapters.fake_queue.fails = RateLimitedError("SQS is busy")
    if run is run_sqs:
        assert run(runtime, step, record) == ["record-2"]
        return
    with pytest.raises(RateLimitedError):
        run(runtime, step, record)


@pytest.mark.parametrize("run", [run_smq, run_functions], ids=["SMQ", "FunctionGraph"])
def test_message_that_is_delivered_twice_in_a_batch_is_one_and_none_is_lost(run, runtime, adapters):
    """Otherwise each retry would double it. One that cannot be sent again fails the invocation, which the cloud repeats."""
    step = StepOf(fails={"blue": InvariantError("a bug")})
    assert run(runtime, step, a_record(1), a_record(1)) == ["record-1"]

    adapters.fake_queue.fails = RateLimitedError("the queue is busy")
    with pytest.raises(RateLimitedError):
        run(runtime, step, a_record(1))


def received_again(record, receives):
    return {**record, "attributes": {**record["attributes"], "ApproximateReceiveCount": str(receives)}}


def test_failed_messages_are_delivered_again_within_30_seconds(runtime, adapters):
    """A visibility timeout would block the message group for minutes; messages of one group return together."""
    step = StepOf(fails={"green": RateLimitedError("slow down"), "blue": RateLimitedError("slow down")})
    records = [a_record(1, "green"), received_again(a_record(2, "blue"), 5), a_record(3, "blue")]

    assert run_sqs(runtime, step, *records) == ["record-1", "record-2", "record-3"]

    delays = adapters.fake_queue.retried
    assert 1 <= delays["record-1"] <= 2
    assert 22 <= delays["record-2"] <= 30
    assert delays["record-3"] == delays["record-2"]


def test_messages_return_later_each_time_and_not_together():
    """Clusters that fail together, as in an outage of a region, come back apart."""
    delays = {name: [retry_seconds(receives, name) for receives in range(1, 40)] for name in map(str, range(50))}

    assert all(1 <= seconds <= 30 for row in delays.values() for seconds in row)
    assert all(row[:4] == sorted(row[:4]) for row in delays.values())
    assert len({tuple(row) for row in delays.values()}) == 50
    assert len({row[10] for row in delays.values()}) >= 5


def test_failed_run_fails_all_records_of_its_cluster_only(run_queue, runtime, adapters):
    """The error is logged once. Nothing is raised: a function error would be an alarm although the cloud only throttles."""
    step = StepOf(fails={"blue": RateLimitedError("EC2 throttles us")})

    assert run_queue(runtime, step, a_record(1), a_record(2, "green"), a_record(3)) == ["record-1", "record-3"]
    assert len(step.runs) == 2
    assert [line[1] for line in adapters.lines] == ["EC2 throttles us"]
    assert run_queue(runtime, step, a_record(4)) == ["record-4"]


def test_wrong_setting_acknowledges_the_message(run_queue, runtime, adapters):
    """Redelivery cannot help; the sweep tries again each minute."""
    step = StepOf(fails={"blue": ConfigurationError("the role is missing", role="node")})

    assert run_queue(runtime, step, a_record(1)) == []
    assert adapters.lines[0][2]["role"] == "node"


def test_unhandled_interruption_is_never_acknowledged(run_queue, runtime):
    """EC2 does not repeat it."""
    error = ConfigurationError("the role is missing")
    step = StepOf(Step.INTERRUPT, fails={"blue": error, "green": error})

    assert run_queue(runtime, step, an_interruption(1)) == ["record-1"]
    assert sorted(cluster for cluster, _ in step.runs) == ["blue", "green"]


def test_record_of_several_clusters_is_repeated_for_the_failed_one_only(run_queue, runtime, adapters):
    """The other cluster's instances are handled; a redelivery of the record would handle them again, each time."""
    adapters.owners = {"e1": {"blue": ("i-1",), "green": ("i-2", "i-3")}}
    step = StepOf(Step.INTERRUPT, fails={"green": KubeUnavailableError("down", status=0, reason="")})

    assert run_queue(runtime, step, an_interruption(1)) == []

    (again,) = adapters.fake_queue.interruptions
    assert (again.cluster, again.instance_ids, again.kind.value) == ("green", ("i-2", "i-3"), "instance_stopped")
    assert adapters.fake_queue.sent == []


def test_requeue_of_several_clusters_is_repeated_for_the_failed_one_only(run_queue, runtime, adapters):
    step = StepOf(fails={"green": RateLimitedError("EC2 throttles us")})

    assert run_queue(runtime, step, a_record(1, "*", hops=3, reason="window opens")) == []

    assert adapters.fake_queue.sent == [Message(cluster="green", step=Step.PROVISION, reason="window opens", hops=3)]
    assert adapters.fake_queue.interruptions == []


def test_record_of_several_clusters_is_redelivered_if_it_cannot_be_repeated(runtime, adapters):
    """SQS may be down for a moment, or the record is of no queue, as in a test event that is written by hand."""
    step = StepOf(Step.INTERRUPT, fails={"green": KubeUnavailableError("down", status=0, reason="")})
    by_hand = {name: value for name, value in an_interruption(1).items() if name != "receiptHandle"}

    assert run_sqs(runtime, step, by_hand) == ["record-1"]
    adapters.fake_queue.fails = RateLimitedError("SQS is busy")
    assert run_sqs(runtime, step, an_interruption(1)) == ["record-1"]
    assert adapters.fake_queue.interruptions == []


def test_alarm_is_redelivered_to_all_clusters_if_one_fails(runtime):
    """A message for one cluster could not carry the alarm; where its state is stored already, nothing changes."""
    alarm = {
        "id": "e1", "detail-type": "CloudWatch Alarm State Change", "source": "aws.cloudwatch", "time": NOW.isoformat(),
        "detail": {"alarmName": "errors", "state": {"value": "ALARM"}},
    }  # fmt: skip
    step = StepOf(Step.INTERRUPT, fails={"green": KubeUnavailableError("down", status=0, reason="")})

    assert run_sqs(runtime, step, a_record(1, body=json.dumps(alarm))) == ["record-1"]
    assert sorted(cluster for cluster, _ in step.runs) == ["blue", "green"]


def test_interruption_whose_clusters_cannot_be_looked_up_is_retried(run_queue, runtime, adapters):
    """One that names its cluster, as SQSQueue writes what it repeats, is handled, and is not looked up again."""
    adapters.look_up_error = CloudUnavailableError("CCE does not answer")
    body = {"version": "1", "source": "interruption", "id": "e2", "time": NOW.isoformat(), "cluster": "green"}
    body |= {"kind": "spot_interrupted", "instanceIds": ["i-2"], "reason": "-"}
    step = StepOf(Step.INTERRUPT)
    ours = a_record(2, body=json.dumps(body), step="interrupt")

    assert run_queue(runtime, step, ours) == []
    assert adapters.looked_up == []
    assert run_queue(runtime, step, an_interruption(1), ours) == ["record-1"]
    assert step.runs == [("green", "e2")] * 2
    assert [text for _, text, _ in adapters.lines] == ["CCE does not answer"]


@pytest.mark.parametrize(("allowed", "is_shared"), [(12, True), (15, True), (16, False), (240, False)])
@pytest.mark.parametrize("forged", [True, False])
def test_forged_hops_do_not_end_the_chains_of_the_batch(adapters, allowed, is_shared, forged):
    """No message of ours has more hops than the limit. Below Lambda's own limit all chains of a batch are as long."""
    longest = allowed + 1 if forged else allowed
    settings = {name: Settings(cluster_name=name, max_hops=allowed) for name in ("blue", "green")}
    hops = {}
    step = StepOf(act=lambda run, trigger: hops.update({run.cluster: trigger.hops}))
    records = [a_record(1, hops=longest), a_record(2, hops=2), a_record(3, "green", hops=1)]
    assert run_sqs(Runtime(settings, adapters), step, *records) == []

    shared = 2 if forged else allowed
    assert hops == {"blue": shared if is_shared else 2, "green": shared if is_shared else 1}


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1)])
def test_run_of_several_messages_has_the_fewest_hops_and_the_latest_time(adapters, order):
    """A message with that time has started the run, so no later one may be taken for it."""
    triggers = []
    early, late = (NOW + timedelta(seconds=seconds) for seconds in (1, 2))
    records = {
        1: a_record(1, hops=3, at=late.isoformat()),
        2: a_record(2, hops=2, at=early.isoformat()),
        3: a_record(3, hops=5),
    }
    runtime = Runtime({"blue": Settings(cluster_name="blue", max_hops=240)}, adapters)
    step = StepOf(act=lambda _, trigger: triggers.append(trigger))
    assert run_sqs(runtime, step, *(records[number] for number in order)) == []

    assert [(trigger.hops, trigger.at) for trigger in triggers] == [(2, late)]


def test_bug_fails_the_record_and_logs_a_stack_trace(run_queue, runtime, adapters):
    """The message goes to the dead-letter queue, which has an alarm."""
    step = StepOf(fails={"blue": InvariantError("verify rejects the plan"), "green": ZeroDivisionError("oops")})

    assert run_queue(runtime, step, a_record(1), a_record(2, "green")) == ["record-1", "record-2"]
    assert all("Traceback" in fields["stacktrace"] for _, _, fields in adapters.lines)


def test_messages_are_held_while_the_step_runs_and_released_before_they_are_retried(run_queue, runtime, adapters):
    """After a crash in the step they are delivered again within seconds; a renewal after the retry would delay it."""
    queue, seen = adapters.fake_queue, []
    step = StepOf(
        fails={"blue": RateLimitedError("slow down")},
        act=lambda *_: seen.append((list(queue.held), list(queue.released), dict(queue.retried))),
    )
    assert run_queue(runtime, step, a_record(1), a_record(2)) == ["record-1", "record-2"]

    assert seen == [(["record-1", "record-2"], [], {})]
    assert queue.released == ["record-1", "record-2"]
    assert set(queue.retried) == {"record-1", "record-2"}


@pytest.mark.parametrize(("seconds", "expected"), [(None, 30), (8, 8), (0, 1), (-3, 1), (300, 30)])
def test_message_of_a_busy_run_returns_when_the_lease_of_a_crashed_run_ends(
    run_queue, runtime, adapters, seconds, expected
):
    """The other run may have read the cluster before this message's cause; being busy is no error. Its fifth retry is later."""
    until = None if seconds is None else (NOW + timedelta(seconds=seconds)).isoformat()
    lost = None if until is None else LeaseLostError("another run holds it", until=until)

    step = StepOf(status=BUSY, error=lost)
    assert run_queue(runtime, step, received_again(a_record(1), 9)) == ["record-1"]
    assert adapters.fake_queue.retried["record-1"] in range(expected * 3 // 4, expected + 1)
    assert adapters.lines[0][0] == "info"


def an_interruption(number, instance="i-1", state="stopping"):
    event = {
        "version": "0",
        "id": f"e{number}",
        "detail-type": "EC2 Instance State-change Notification",
        "source": "aws.ec2",
        "time": NOW.isoformat(),
        "detail": {"instance-id": instance, "state": state},
    }
    return a_record(number, body=json.dumps(event))


@pytest.mark.parametrize(
    ("owners", "failed", "runs"),
    [
        ({}, [], [("blue", "e1"), ("blue", "e2"), ("green", "e1"), ("green", "e2")]),
        ({"e1": {"blue": ("i-1",)}, "e2": {}}, [], [("blue", "e1")]),
        ({"e1": {"blue": ("i-1",)}, "e2": {"green": ("i-2",)}}, ["record-2"], [("blue", "e1"), ("green", "e2")]),
    ],
)
def test_interruption_runs_only_for_the_clusters_that_may_have_the_instance(
    run_queue, runtime, adapters, owners, failed, runs
):
    """One look-up serves the batch; the cloud may not know an instance yet. Another cluster's outage fails no record."""
    adapters.owners = owners
    outage = {"green": KubeUnavailableError("down", status=0, reason="")} if owners else {}
    step = StepOf(Step.INTERRUPT, fails=outage)

    assert run_queue(runtime, step, an_interruption(1), an_interruption(2, "i-2")) == failed
    assert sorted(step.runs) == runs
    assert adapters.looked_up == [["e1", "e2"]]
    assert [kind for kind, _ in adapters.counted].count("received_messages_total") == 2


def test_interruption_is_counted_at_each_receive_and_once_as_deleted(run_queue, runtime, adapters):
    """Once for all clusters, although every cluster handles it."""
    run_queue(runtime, StepOf(Step.INTERRUPT, fails={"green": RateLimitedError("busy")}), an_interruption(1))
    assert [name for name, _ in adapters.counted] == ["received_messages_total"]

    adapters.counted.clear()
    run_queue(runtime, StepOf(Step.INTERRUPT), an_interruption(1))
    assert adapters.counted == [
        ("received_messages_total", {"message_type": "instance_stopped"}),
        ("message_queue_duration_seconds", {}),
        ("deleted_messages_total", {}),
    ]


def test_ignored_event_is_counted_and_starts_nothing(run_queue, runtime, adapters):
    """Every launch in the account sends two of them; they are acknowledged and counted, as Karpenter does."""
    step = StepOf(Step.INTERRUPT)

    assert run_queue(runtime, step, an_interruption(1, state="running")) == []

    assert (step.runs, adapters.made, adapters.looked_up) == ([], [], [])
    assert ("received_messages_total", {"message_type": "no_op"}) in adapters.counted
    assert ("deleted_messages_total", {}) in adapters.counted


def run_everywhere(runtime, step, context=None):
    every = ScheduledRun(id="t", cluster="*", step=Step.SWEEP, reason="every minute", time=NOW)
    runner = StepRunner(runtime, Step.SWEEP, step, context or Context())
    return runner.run(runner.accept(every))


def test_unreachable_cluster_does_not_delay_others_of_its_batch(run_queue, runtime):
    """A later message's cluster completes while an unreachable one waits; only the latter's messages are retried."""
    green_is_done = threading.Event()

    def wait_for_green(run, _):
        if run.cluster == "green":
            green_is_done.set()
        elif not green_is_done.wait(timeout=10):
            raise AssertionError("green was made to wait for blue")

    step = StepOf(fails={"blue": KubeUnavailableError("no answer")}, act=wait_for_green)
    assert run_queue(runtime, step, a_record(1), a_record(2, "green"), a_record(3)) == ["record-1", "record-3"]
    assert green_is_done.is_set()


def test_clusters_that_did_not_answer_go_last_next_time(adapters):
    """More of them than run in parallel would otherwise use up the time of all others, minute after minute."""
    unreachable = [f"a{number:02}" for number in range(2 * MAX_PARALLEL_CLUSTERS)]
    runtime = Runtime({name: Settings(cluster_name=name) for name in (*unreachable, "healthy")}, adapters)
    run_everywhere(runtime, StepOf(Step.SWEEP, fails=dict.fromkeys(unreachable, KubeUnavailableError("no answer"))))
    started, waiting = [], threading.Event()

    def black_holes(run, _):
        started.append(run.cluster)
        if run.cluster != "healthy":
            waiting.wait(timeout=10)

    try:
        results = run_everywhere(runtime, StepOf(Step.SWEEP, act=black_holes), Context(1_500))
    finally:
        waiting.set()

    assert started[0] == "healthy"
    assert len(started) <= MAX_PARALLEL_CLUSTERS + 1
    assert [result.cluster for result in results if isinstance(result, Outcome)] == ["healthy"]


def test_cluster_that_answers_again_is_in_its_place(adapters):
    names = [f"c{number:02}" for number in range(3)]
    runtime = Runtime({name: Settings(cluster_name=name) for name in names}, adapters)
    run_everywhere(runtime, StepOf(Step.SWEEP, fails={"c00": KubeUnavailableError("no answer")}))
    assert runtime.in_order_of_reachability(names) == ["c01", "c02", "c00"]

    run_everywhere(runtime, StepOf(Step.SWEEP))
    assert runtime.in_order_of_reachability(names) == names


def test_unreachable_cluster_is_tried_once_per_batch(run_queue, runtime, adapters):
    """Otherwise ten Spot warnings in a batch would wait ten times and use all the time."""
    step = StepOf(Step.INTERRUPT, fails={"blue": KubeUnavailableError("no answer")})

    failed = run_queue(runtime, step, an_interruption(1), an_interruption(2, "i-2"))

    assert failed == []
    assert [(again.cluster, again.id) for again in adapters.fake_queue.interruptions] == [
        ("blue", "e1"),
        ("blue", "e2"),
    ]
    assert sorted(step.runs) == [("blue", "e1"), ("green", "e1"), ("green", "e2")]
    assert [line[1] for line in adapters.lines] == ["no answer"]


def test_only_messages_of_runs_past_the_deadline_are_retried(run_queue, runtime, adapters):
    """The platform would end the process, and the queue would deliver the messages of all clusters again."""
    end = threading.Event()
    step = StepOf(act=lambda run, _: run.cluster == "blue" and end.wait(timeout=10))
    try:
        failed = run_queue(runtime, step, a_record(1), a_record(2, "green"), context=Context(1_500))
    finally:
        end.set()

    assert failed == ["record-1"]
    ((_, _, line),) = adapters.lines
    assert (line["error"], line["cluster"]) == ("DeadlineError", "blue")


def test_run_that_would_end_after_the_response_has_failed(run_queue, runtime):
    """The response takes half a second, so that such a run's message is delivered again."""
    ends = threading.Event()
    step = StepOf(act=lambda *_: ends.wait(timeout=0.3))
    failed = run_queue(runtime, step, a_record(1), a_record(2, "green"), context=Context(400))
    assert failed == ["record-1", "record-2"]


def test_requests_of_a_run_end_before_it_and_are_counted(adapters):
    """A second is left for its telemetry, which is flushed again for the requests that the first flush sends."""
    budgets = []

    def for_run(budget, purpose):
        budgets.append((budget.remaining_seconds(), purpose))
        budget.count_request(7, is_write=True)
        return adapters.cluster.server

    adapters.store = lambda _: SimpleNamespace(for_run=for_run)
    run_sqs(Runtime({"blue": Settings(cluster_name="blue")}, adapters), StepOf(), a_record(1))

    assert budgets == [(29, "provision")]
    (record,) = adapters.records
    assert record.flushed_until == [NOW + timedelta(seconds=29)] * 2
    assert record.count_of("journeyman_kube_requests_total") == 1


def test_only_the_sweep_keeps_entries_in_the_clouds_scheduler(runtime, adapters):
    """Other steps neither need them nor may write them."""
    adapters.window_schedules = lambda settings: f"entries of {settings.cluster_name}"
    seen = {}
    for step in (Step.SWEEP, Step.PROVISION):
        trigger = ScheduledRun(id="t", cluster="blue", step=step, reason="every minute", time=NOW)
        with runtime.invocation(trigger, Context()) as run:
            seen[step] = run.window_schedules

    assert seen == {Step.SWEEP: "entries of blue", Step.PROVISION: None}


@pytest.mark.parametrize(
    "error", [KubeUnavailableError("no answer"), ForbiddenError("Unauthorized"), ConfigurationError("not trusted")]
)
def test_only_an_unreachable_cluster_is_connected_again(run_queue, runtime, adapters, error):
    """It may have been created again with another address and CA; other connections are reused."""
    run_queue(runtime, StepOf(fails={"blue": error}), a_record(1), a_record(2, "green"))
    run_queue(runtime, StepOf(), a_record(3), a_record(4, "green"))

    made = Counter(adapters.made)
    assert made == {"store blue": 2, "cloud blue": 2, "store green": 1, "cloud green": 1}


def test_cluster_without_a_connection_does_not_stop_others(adapters):
    server = adapters.cluster.server

    def store(cluster):
        if cluster.cluster_name == "blue":
            raise UnknownClusterError("there is no EKS cluster blue", cluster="blue")
        return server

    adapters.store = store
    runtime = Runtime({name: Settings(cluster_name=name) for name in ("blue", "green")}, adapters)
    outcomes = run_everywhere(runtime, StepOf(Step.SWEEP))

    assert [(outcome.cluster, outcome.status) for outcome in outcomes] == [("blue", FAILED), ("green", "done")]
    assert [line[1] for line in adapters.lines] == ["there is no EKS cluster blue"]


def test_events_are_flushed_however_the_run_ends(run_queue, runtime, adapters):
    """That happens a second before the platform ends the process."""
    run_queue(runtime, StepOf(fails={"blue": ZeroDivisionError("oops")}), a_record(1))

    (record,) = adapters.records
    assert record.count_of("ran_total") == 1
    assert record.flushed_until == [NOW + timedelta(seconds=29)]


def hand_on(runtime, sweep, *records):
    with installed(runtime):
        return run_sweep(sweep, {"Records": list(records)}, Context())["batchItemFailures"]


LATER = NOW + timedelta(hours=1)


@pytest.mark.parametrize(
    ("messages", "sent"),
    [
        (  # equal ones are one message; it says when it was due, for a run whose clock is behind
            [{"at": NOW.isoformat()}, {"at": NOW.isoformat()}, {"step": "terminate"}],
            [("blue", Step.PROVISION, NOW, 0), ("blue", Step.TERMINATE, None, 0)],
        ),
        # SQS delays by at most 15 minutes
        ([{"at": LATER.isoformat()}], [("blue", Step.PROVISION, LATER, 1)]),
        (  # a due one keeps its hops: the run that it starts sends the next one
            [{"hops": 3}, {"hops": 7, "cluster": "green"}],
            [("blue", Step.PROVISION, None, 7), ("green", Step.PROVISION, None, 7)],
        ),
        ([{"step": "sweep"}], []),  # the sweep has no queue of its own, so it runs
    ],
)
def test_requeue_is_forwarded_once_when_it_is_due(runtime, adapters, messages, sent):
    """It is held meanwhile: a sweep that crashes delays it by seconds."""
    sweep, queue = StepOf(Step.SWEEP), adapters.fake_queue
    records = [a_record(number, reason="due", **message) for number, message in enumerate(messages, start=1)]

    assert hand_on(runtime, sweep, *records) == []
    assert [(m.cluster, m.step, m.at, m.hops) for m in queue.sent] == sent
    assert {m.reason for m in queue.sent} <= {"due"}
    assert sweep.runs == ([] if sent else [("blue", "m1")])
    assert sorted(queue.held) == sorted(queue.released) == [record["messageId"] for record in records]


def sweep_all(runtime, sweep):
    event = {"version": "1", "source": "sweep", "id": "s", "time": NOW.isoformat(), "cluster": "*"}
    with installed(runtime):
        return run_sweep(sweep, event, Context())


def test_each_sweep_is_counted_if_it_swept_a_cluster(runtime, adapters):
    """The metric is the heartbeat, whose absence raises an alarm; one cluster that cannot be swept fails the invocation."""
    sweep_all(runtime, StepOf(Step.SWEEP))
    assert adapters.counted == [("journeyman_sweeps_total", {})]

    with pytest.raises(KubeUnavailableError):
        sweep_all(runtime, StepOf(Step.SWEEP, fails={"blue": KubeUnavailableError("no answer")}))
    assert len(adapters.counted) == 2

    with pytest.raises(KubeUnavailableError):
        sweep_all(
            runtime, StepOf(Step.SWEEP, fails=dict.fromkeys(("blue", "green"), KubeUnavailableError("no answer")))
        )
    assert len(adapters.counted) == 2


def test_error_before_a_run_starts_is_counted(run_queue, adapters):
    """A wrong setting fails no message and no function; the metric raises an alarm."""
    adapters.store = failing(ConfigurationError("the role is missing"))
    assert run_queue(Runtime({"blue": Settings(cluster_name="blue")}, adapters), StepOf(), a_record(1)) == []
    assert adapters.counted == [("journeyman_errors_total", {"controller": "provision", "error": "ConfigurationError"})]


def test_requeue_that_is_sent_back_too_often_ends_its_chain(runtime, adapters):
    """Lambda would stop it, and it would be a dead letter; the sweep finds the due work."""
    later = (NOW + timedelta(hours=9)).isoformat()

    assert hand_on(runtime, StepOf(Step.SWEEP), a_record(1, at=later, hops=12)) == []

    assert adapters.fake_queue.sent == []
    assert ("info", "blue") in [(level, fields.get("cluster")) for level, _, fields in adapters.lines]


def test_requeue_that_cannot_be_forwarded_fails_its_record(runtime, adapters):
    """Otherwise a drain would pause until the next sweep."""
    adapters.fake_queue.fails = RateLimitedError("SQS throttles us")

    assert hand_on(runtime, StepOf(Step.SWEEP), a_record(1)) == [{"itemIdentifier": "record-1"}]


@pytest.mark.parametrize(
    ("entry", "event", "context"),
    [
        (lambda_entry, {"Records": [a_record(1)]}, LambdaContext()),
        (fc_entry, json.dumps([cloud_event(a_record(1))]).encode(), FC_CONTEXT),
        (fgs_entry, json.loads(a_record(1)["body"]), FgsContext()),
    ],
)
def test_at_most_six_frames_from_the_platforms_entry_to_the_step(runtime, entry, event, context):
    frames = []

    def step(run, trigger):
        found = (frame.filename for frame in inspect.stack())
        frames.extend(f for f in found if "/shared/journeyman/" in f or f == __file__)
        return Outcome(step=Step.PROVISION, cluster=run.cluster)

    @entry.entry_point
    def handler(event, context):
        return entry.run_batch("provision", step, event, context)

    with installed(runtime):
        handler(event, context)

    assert len(frames) - 1 <= 6, frames  # the last frame is this test's
