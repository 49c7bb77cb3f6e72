"""The simulated SQS, EventBridge targets and Lambda event source mapping behave like AWS's."""

import json
import time
from datetime import timedelta

import pytest
from aws_lambda_powertools.utilities.data_classes import SQSEvent
from botocore.exceptions import ClientError

from journeyman_simulator.cloud_rules.service_errors import ServiceError
from journeyman_simulator.lambda_functions import EventSourceMapping, InvocationOutcome, LambdaFunction
from tests.contract.conftest import on_both_accounts

pytestmark = on_both_accounts

FUNCTION = "arn:aws:lambda:us-east-1:123456789012:function:f"


@pytest.fixture
def sqs(aws):
    return aws.client("sqs")


@pytest.fixture
def fifo(sqs):
    """A FIFO queue with a dead-letter queue after three receives; its URL."""
    dead = sqs.create_queue(QueueName="dead.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    redrive = json.dumps({"deadLetterTargetArn": arn_of(sqs, dead), "maxReceiveCount": 3})
    attributes = {"FifoQueue": "true", "VisibilityTimeout": "30", "RedrivePolicy": redrive}
    return sqs.create_queue(QueueName="step.fifo", Attributes=attributes)["QueueUrl"]


@pytest.fixture
def standard(sqs):
    return sqs.create_queue(QueueName="wake", Attributes={"VisibilityTimeout": "30"})["QueueUrl"]


def arn_of(sqs, url):
    return sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]


def send(sqs, url, body, group="a", deduplication=None):
    return sqs.send_message(
        QueueUrl=url, MessageBody=body, MessageGroupId=group, MessageDeduplicationId=deduplication or body
    )


def receive(sqs, url, count=10):
    return sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=count).get("Messages", [])


def bodies(messages):
    return [message["Body"] for message in messages]


def dead_letters(sqs, fifo):
    return bodies(receive(sqs, fifo.replace("step", "dead")))


def delete(sqs, url, message):
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


# --- SQS -------------------------------------------------------------------------------------------------------------


def test_fifo_order_survives_a_visibility_timeout(sqs, clock, fifo):
    """A batch that was not deleted is received again, complete and in order."""
    for body in "123":
        send(sqs, fifo, body)
    assert bodies(receive(sqs, fifo)) == ["1", "2", "3"]
    clock.advance(30)
    assert bodies(receive(sqs, fifo)) == ["1", "2", "3"]


def test_group_waits_while_one_of_its_messages_is_in_flight(sqs, fifo):
    """Other groups are not affected; deleting the message unblocks the group."""
    send(sqs, fifo, "1"), send(sqs, fifo, "2"), send(sqs, fifo, "other", group="b")
    (first,) = receive(sqs, fifo, count=1)
    assert bodies(receive(sqs, fifo)) == ["other"]
    delete(sqs, fifo, first)
    assert bodies(receive(sqs, fifo)) == ["2"]


def test_duplicate_is_dropped_for_five_minutes_after_deletion_too(sqs, clock, fifo):
    """SQS returns the first message's ids; after five minutes it accepts a new message."""
    first = send(sqs, fifo, "1")
    delete(sqs, fifo, receive(sqs, fifo)[0])
    clock.advance(299)
    second = send(sqs, fifo, "1")
    swallowed = receive(sqs, fifo)
    clock.advance(1)
    third = send(sqs, fifo, "1")

    assert (second["MessageId"], second["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    assert swallowed == []
    assert third["MessageId"] != first["MessageId"]
    assert int(third["SequenceNumber"]) > int(first["SequenceNumber"])


def test_duplicates_in_a_batch_are_answered_by_entry_id(sqs, fifo):
    """The response has each entry, but SQS stores the message once."""
    message = {"MessageBody": "x", "MessageGroupId": "a", "MessageDeduplicationId": "same"}
    answer = sqs.send_message_batch(QueueUrl=fifo, Entries=[{"Id": id_, **message} for id_ in ("p", "q")])["Successful"]
    assert [entry["Id"] for entry in answer] == ["p", "q"]
    assert len({entry["MessageId"] for entry in answer}) == len(receive(sqs, fifo)) == 1


def test_fifo_message_goes_to_the_dead_letter_queue_and_frees_its_group(sqs, clock, fifo):
    """That happens after the redrive policy's maxReceiveCount."""
    send(sqs, fifo, "poison"), send(sqs, fifo, "next")
    for _ in range(3):
        assert bodies(receive(sqs, fifo, count=1)) == ["poison"]
        clock.advance(30)
    assert bodies(receive(sqs, fifo, count=1)) == ["next"]
    assert dead_letters(sqs, fifo) == ["poison"]


def test_fifo_receipt_handle_expires_with_its_visibility_timeout(sqs, clock, fifo):
    """A late handler cannot delete a message that another one may handle."""
    send(sqs, fifo, "1")
    (late,) = receive(sqs, fifo)
    clock.advance(30)

    with pytest.raises(ClientError, match="The receipt handle has expired"):
        delete(sqs, fifo, late)
    batch = sqs.delete_message_batch(QueueUrl=fifo, Entries=[{"Id": "0", "ReceiptHandle": late["ReceiptHandle"]}])

    assert [failure["Code"] for failure in batch["Failed"]] == ["InvalidParameterValue"]
    assert bodies(receive(sqs, fifo)) == ["1"]


def test_delayed_message_is_received_when_its_delay_ends(aws, sqs, clock, standard):
    """It is received exactly then, and the queue says when it is due. A long poll returns at once: no time passes."""
    assert "Messages" not in sqs.receive_message(QueueUrl=standard, WaitTimeSeconds=20)
    sqs.send_message(QueueUrl=standard, MessageBody="later", DelaySeconds=900)
    due = aws.queues.due("wake")
    clock.advance(899.999)
    assert receive(sqs, standard) == []
    clock.advance_to(due)

    assert due == clock.now()
    assert bodies(receive(sqs, standard)) == ["later"]


def test_messages_older_than_the_retention_period_are_gone(sqs, clock):
    """The default is four days."""
    url = sqs.create_queue(QueueName="short", Attributes={"MessageRetentionPeriod": "300"})["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="old")
    clock.advance(301)
    assert receive(sqs, url) == []
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])["Attributes"]
    assert attributes["ApproximateNumberOfMessages"] == "0"


# --- EventBridge -----------------------------------------------------------------------------------------------------


def rule(aws, name, target, state="ENABLED"):
    events = aws.client("events")
    events.put_rule(Name=name, EventPattern=json.dumps({"source": ["my.app"]}), State=state)
    events.put_targets(Rule=name, Targets=[{"Id": "t", **target}])


def put(aws, detail):
    entry = {"Source": "my.app", "DetailType": "Thing happened", "Detail": json.dumps(detail), "Resources": ["arn:x"]}
    aws.client("events").put_events(Entries=[entry])


def test_rule_transforms_the_event_for_its_target(aws, sqs, standard):
    """A transformer may have variables inside and outside of quotes."""
    transformer = {
        "InputPathsMap": {"id": "$.detail.id", "tags": "$.detail.tags"},
        "InputTemplate": '{"text": "id is <id>", "id": <id>, "tags": <tags>}',
    }
    for name, shape in (
        ("shaped", {"InputTransformer": transformer}),
        ("part", {"InputPath": "$.detail"}),
        ("constant", {"Input": '{"fixed": true}'}),
    ):
        rule(aws, name, {"Arn": arn_of(sqs, standard), **shape})

    put(aws, {"id": "i-1", "tags": ["a", "b"]})

    assert [json.loads(body) for body in bodies(receive(sqs, standard))] == [
        {"text": "id is i-1", "id": "i-1", "tags": ["a", "b"]},
        {"id": "i-1", "tags": ["a", "b"]},
        {"fixed": True},
    ]


def test_event_reaches_queues_and_functions_with_aws_keys_only(aws, sqs, standard):
    """The queue and the function get the same event."""
    rule(aws, "queue", {"Arn": arn_of(sqs, standard)})
    rule(aws, "function", {"Arn": FUNCTION})

    put(aws, {"id": 1})

    (delivery,) = aws.take_deliveries()
    (message,) = receive(sqs, standard)
    event = delivery.event
    assert json.loads(message["Body"]) == event
    assert event.pop("id")
    assert event == {
        "version": "0", "detail-type": "Thing happened", "source": "my.app", "account": "123456789012",
        "time": "2026-11-02T08:00:00Z", "region": "us-east-1", "resources": ["arn:x"], "detail": {"id": 1},
    }  # fmt: skip
    assert aws.take_deliveries() == ()


def test_disabled_rule_delivers_nothing(aws):
    """It delivers events once it is enabled."""
    rule(aws, "r", {"Arn": FUNCTION}, state="DISABLED")
    put(aws, {"id": 1})
    aws.client("events").enable_rule(Name="r")
    put(aws, {"id": 2})
    assert [delivery.event["detail"]["id"] for delivery in aws.take_deliveries()] == [2]


def test_fifo_target_needs_content_based_deduplication(aws, sqs, fifo):
    """EventBridge cannot send to a FIFO queue without it, and reports no error."""
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    good = sqs.create_queue(QueueName="good.fifo", Attributes=attributes)["QueueUrl"]
    for name, url in (("good", good), ("step", fifo)):
        rule(aws, name, {"Arn": arn_of(sqs, url), "SqsParameters": {"MessageGroupId": "g"}})
    put(aws, {"id": 1})
    assert (len(receive(sqs, good)), receive(sqs, fifo)) == (1, [])


# --- event source mapping --------------------------------------------------------------------------------------------


def mapping(aws, clock, url, handler, **more):
    given = {"name": "provision", "clock": clock, "memory_mb": 1024, "timeout_seconds": 30, **more}
    function = LambdaFunction(handler=handler, **given)
    queue = url.rsplit("/", 1)[1]
    return function, EventSourceMapping(aws.client("sqs"), url, function, due=lambda: aws.queues.due(queue))


def run_until_idle(source, clock):
    while (due := source.due()) is not None:
        clock.advance_to(max(due, clock.now()))
        source.act()


def test_handler_gets_a_batch_in_lambdas_shape(aws, sqs, clock, fifo):
    """Powertools parses it; ids and checksum are valid. A message from outside of a function has no lineage."""
    seen = []
    _, source = mapping(aws, clock, fifo, lambda event, context: seen.append((event, context)))
    sent = send(sqs, fifo, '{"cluster":"demo"}', deduplication="d1")
    sent_at = clock.now()
    clock.advance(1)

    assert source.act()

    ((event, context),) = seen
    (record,) = SQSEvent(event).records
    attributes = record.attributes
    assert (record.message_id, record.md5_of_body) == (sent["MessageId"], sent["MD5OfMessageBody"])
    assert record.json_body == {"cluster": "demo"}
    assert (attributes.message_group_id, attributes.message_deduplication_id) == ("a", "d1")
    assert attributes.approximate_receive_count == "1"
    assert attributes.sent_timestamp == str(int(sent_at.timestamp() * 1000))
    assert "AWSTraceHeader" not in event["Records"][0]["attributes"]
    assert (record.event_source, record.aws_region) == ("aws:sqs", "us-east-1")
    assert record.event_source_arn == "arn:aws:sqs:us-east-1:123456789012:step.fifo"
    assert (context.function_name, context.memory_limit_in_mb) == ("provision", 1024)
    assert 0 < context.get_remaining_time_in_millis() <= 30_000
    assert aws.queues.due("step.fifo") is None


def test_queue_must_hide_messages_for_as_long_as_the_function_may_run(aws, clock, standard):
    """Lambda refuses the mapping, so that a shorter visibility is a matter of each message."""
    with pytest.raises(ServiceError, match="30 seconds is less than Function timeout: 31 seconds"):
        mapping(aws, clock, standard, lambda *_: None, timeout_seconds=31)


def test_failed_items_stay_and_the_others_are_deleted(aws, sqs, clock, fifo):
    """SQS delivers them again after the visibility timeout."""
    for body in ("good", "bad"):
        send(sqs, fifo, body, group=body)

    def handler(event, _context):
        failed = [record["messageId"] for record in event["Records"] if record["body"] == "bad"]
        return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}

    function, source = mapping(aws, clock, fifo, handler)
    source.act()
    busy = source.act()
    clock.advance_to(source.due())

    assert [invocation.outcome for invocation in function.invocations] == [InvocationOutcome.PARTLY]
    assert not busy
    assert bodies(receive(sqs, fifo)) == ["bad"]


@pytest.mark.parametrize(
    "response", [{"batchItemFailures": [{"itemIdentifier": "unknown"}]}, {"batchItemFailures": ["text"]}, ["text"]]
)
def test_invalid_failure_report_keeps_the_whole_batch(aws, sqs, clock, fifo, response):
    """Lambda treats it as a failure of all messages."""
    send(sqs, fifo, "1")
    _, source = mapping(aws, clock, fifo, lambda _event, _context: response)
    source.act()
    clock.advance(30)
    assert bodies(receive(sqs, fifo)) == ["1"]


def test_failing_handler_keeps_the_batch_until_redrive(aws, sqs, clock, fifo):
    """Every attempt is recorded and billed; then the message is in the dead-letter queue."""

    def handler(_event, _context):
        raise ValueError("no such cluster")

    send(sqs, fifo, "1")
    function, source = mapping(aws, clock, fifo, handler)
    run_until_idle(source, clock)

    assert [invocation.outcome for invocation in function.invocations] == [InvocationOutcome.FAILED] * 3
    assert {invocation.error for invocation in function.invocations} == {"ValueError: no such cluster"}
    assert all(invocation.billed_ms >= 1 for invocation in function.invocations)
    assert dead_letters(sqs, fifo) == ["1"]


class SandboxDiedError(BaseException):
    """Not an Exception, so that no handler catches it."""


def die(_event, _context):
    raise SandboxDiedError


def be_late(_event, _context):
    time.sleep(0.02)


@pytest.mark.parametrize(
    ("handler", "seconds", "outcome"),
    [(die, 30, InvocationOutcome.CRASHED), (be_late, 0.01, InvocationOutcome.TIMED_OUT)],
    ids=["crashed", "timed out"],
)
def test_crashed_or_late_function_keeps_the_batch(aws, sqs, clock, fifo, handler, seconds, outcome):
    """A crash is no exception that a handler could catch; Lambda ignores a late result."""
    send(sqs, fifo, "1")
    _, source = mapping(aws, clock, fifo, handler, fatal=(SandboxDiedError,), timeout_seconds=seconds)
    invocation = source.poll()
    clock.advance(30)
    assert invocation.outcome is outcome
    assert bodies(receive(sqs, fifo)) == ["1"]


def test_throttled_polls_use_up_the_receives(aws, sqs, clock, fifo):
    """Lambda receives the message before it knows that the function cannot run."""
    send(sqs, fifo, "1")
    function, source = mapping(aws, clock, fifo, lambda *_: None)
    function.is_throttled = True
    run_until_idle(source, clock)
    assert function.invocations == []
    assert dead_letters(sqs, fifo) == ["1"]


# --- recursive loops -------------------------------------------------------------------------------------------------


def chain(aws, sqs, clock, fifo, standard, *, allows_loops=False):
    """Two functions that send each other one message; the first polls every five seconds."""

    def send_back(_event, _context):
        sqs.send_message_batch(QueueUrl=standard, Entries=[{"Id": "1", "MessageBody": "later", "DelaySeconds": 5}])

    def forward(event, _context):
        send(sqs, fifo, f"message {clock.now()}")

    pairs = [
        mapping(aws, clock, url, handler, name=name, allows_loops=allows_loops)
        for name, url, handler in (("terminate", fifo, send_back), ("sweep", standard, forward))
    ]
    send(sqs, fifo, "first")
    for _ in range(120):
        while any(source.act() for _, source in pairs):
            pass
        clock.advance(1)
    return [function for function, _ in pairs]


def test_lambda_stops_a_chain_of_messages_after_16_runs(aws, sqs, clock, fifo, standard):
    """The message goes to the dead-letter queue: a chain that polls every five seconds lasts 80 seconds."""
    terminate, sweep = chain(aws, sqs, clock, fifo, standard)
    assert (len(terminate.invocations), len(sweep.invocations)) == (16, 16)
    assert (terminate.stopped, sweep.stopped) == (1, 0)
    assert terminate.invocations[-1].started_at - terminate.invocations[0].started_at == timedelta(seconds=75)
    assert len(dead_letters(sqs, fifo)) == 1
    assert receive(sqs, fifo) == []


def test_function_that_allows_loops_is_never_stopped(aws, sqs, clock, fifo, standard):
    """The property RecursiveLoop is "Allow"."""
    terminate, sweep = chain(aws, sqs, clock, fifo, standard, allows_loops=True)
    assert len(terminate.invocations) == 24
    assert (terminate.stopped, sweep.stopped) == (0, 0)
