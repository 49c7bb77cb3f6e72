"""The simulated SQS, EventBridge targets and Lambda event source mapping behave like AWS's."""

import json
from datetime import timedelta

import pytest
from aws_lambda_powertools.utilities.data_classes import SQSEvent
from botocore.exceptions import ClientError

from journeyman_simulator.cloud_rules.service_errors import ServiceError
from journeyman_simulator.lambda_functions import EventSourceMapping, InvocationOutcome, LambdaFunction
from tests.contract.conftest import on_both_accounts

pytestmark = on_both_accounts


@pytest.fixture
def sqs(aws):
    return aws.client("sqs")


@pytest.fixture
def fifo(sqs):
    """A FIFO queue with a dead-letter queue after three receives; its URL."""
    dead = sqs.create_queue(QueueName="dead.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    attributes = {
        "FifoQueue": "true",
        "VisibilityTimeout": "30",
        "RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3}),
    }
    return sqs.create_queue(QueueName="step.fifo", Attributes=attributes)["QueueUrl"]


@pytest.fixture
def standard(sqs):
    return sqs.create_queue(QueueName="wake", Attributes={"VisibilityTimeout": "30"})["QueueUrl"]


def send(sqs, url, body, group="a", deduplication=None):
    return sqs.send_message(
        QueueUrl=url, MessageBody=body, MessageGroupId=group, MessageDeduplicationId=deduplication or body
    )


def receive(sqs, url, count=10):
    return sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=count).get("Messages", [])


def bodies(messages):
    return [message["Body"] for message in messages]


def delete(sqs, url, message):
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


# --- SQS -------------------------------------------------------------------------------------------------------------


def test_fifo_order_survives_a_visibility_timeout(sqs, clock, fifo):
    """A batch that was not deleted is received again, complete and in order."""
    for body in "123":
        send(sqs, fifo, body)
    first = receive(sqs, fifo)
    clock.advance(30)

    assert bodies(first) == ["1", "2", "3"]
    assert bodies(receive(sqs, fifo)) == ["1", "2", "3"]


def test_group_waits_while_one_of_its_messages_is_in_flight(sqs, fifo):
    """Other groups are not affected; deleting the message unblocks the group."""
    for body in ("1", "2"):
        send(sqs, fifo, body)
    send(sqs, fifo, "other", group="b")

    (first,) = receive(sqs, fifo, count=1)
    meanwhile = receive(sqs, fifo)
    delete(sqs, fifo, first)

    assert bodies(meanwhile) == ["other"]
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
    entries = [
        {"Id": entry, "MessageBody": "x", "MessageGroupId": "a", "MessageDeduplicationId": "same"}
        for entry in ("p", "q")
    ]

    answer = sqs.send_message_batch(QueueUrl=fifo, Entries=entries)["Successful"]

    assert [entry["Id"] for entry in answer] == ["p", "q"]
    assert len({entry["MessageId"] for entry in answer}) == 1
    assert len(receive(sqs, fifo)) == 1


def test_fifo_message_goes_to_the_dead_letter_queue_and_frees_its_group(sqs, clock, fifo):
    """That happens after the redrive policy's maxReceiveCount."""
    send(sqs, fifo, "poison")
    send(sqs, fifo, "next")
    for _ in range(3):
        assert bodies(receive(sqs, fifo, count=1)) == ["poison"]
        clock.advance(30)

    after = receive(sqs, fifo, count=1)
    dead = receive(sqs, fifo.replace("step", "dead"))

    assert bodies(after) == ["next"]
    assert bodies(dead) == ["poison"]


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
    """It is received exactly then; and the queue reports when it is due."""
    sqs.send_message(QueueUrl=standard, MessageBody="later", DelaySeconds=900)
    due = aws.queues.due("wake")
    clock.advance(899.999)
    early = receive(sqs, standard)
    clock.advance_to(due)

    assert due == clock.now()
    assert early == []
    assert bodies(receive(sqs, standard)) == ["later"]


def test_messages_older_than_the_retention_period_are_gone(sqs, clock):
    """The default is four days."""
    url = sqs.create_queue(QueueName="short", Attributes={"MessageRetentionPeriod": "300"})["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="old")
    clock.advance(301)

    assert receive(sqs, url) == []
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])["Attributes"]
    assert attributes["ApproximateNumberOfMessages"] == "0"


def test_long_poll_on_an_empty_queue_returns_at_once(sqs, standard):
    """No virtual time passes during the call, so no message could arrive."""
    assert "Messages" not in sqs.receive_message(QueueUrl=standard, WaitTimeSeconds=20)


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
    arn = sqs.get_queue_attributes(QueueUrl=standard, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    transformer = {
        "InputPathsMap": {"id": "$.detail.id", "tags": "$.detail.tags"},
        "InputTemplate": '{"text": "id is <id>", "id": <id>, "tags": <tags>}',
    }
    rule(aws, "shaped", {"Arn": arn, "InputTransformer": transformer})
    rule(aws, "part", {"Arn": arn, "InputPath": "$.detail"})
    rule(aws, "constant", {"Arn": arn, "Input": '{"fixed": true}'})

    put(aws, {"id": "i-1", "tags": ["a", "b"]})

    assert [json.loads(body) for body in bodies(receive(sqs, standard))] == [
        {"text": "id is i-1", "id": "i-1", "tags": ["a", "b"]},
        {"id": "i-1", "tags": ["a", "b"]},
        {"fixed": True},
    ]


def test_event_reaches_queues_and_functions_with_aws_keys_only(aws, sqs, standard):
    """The queue and the function get the same event."""
    arn = sqs.get_queue_attributes(QueueUrl=standard, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    rule(aws, "queue", {"Arn": arn})
    rule(aws, "function", {"Arn": "arn:aws:lambda:us-east-1:123456789012:function:f"})

    put(aws, {"id": 1})

    (delivery,) = aws.take_deliveries()
    (message,) = receive(sqs, standard)
    event = delivery.event
    assert json.loads(message["Body"]) == event
    assert event.pop("id")
    assert event == {
        "version": "0",
        "detail-type": "Thing happened",
        "source": "my.app",
        "account": "123456789012",
        "time": "2026-11-02T08:00:00Z",
        "region": "us-east-1",
        "resources": ["arn:x"],
        "detail": {"id": 1},
    }
    assert aws.take_deliveries() == ()


def test_disabled_rule_delivers_nothing(aws):
    """It delivers events once it is enabled."""
    rule(aws, "r", {"Arn": "arn:aws:lambda:us-east-1:123456789012:function:f"}, state="DISABLED")
    put(aws, {"id": 1})
    aws.client("events").enable_rule(Name="r")
    put(aws, {"id": 2})

    assert [delivery.event["detail"]["id"] for delivery in aws.take_deliveries()] == [2]


def test_fifo_target_needs_content_based_deduplication(aws, sqs, fifo):
    """EventBridge cannot send to a FIFO queue without it, and reports no error."""
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    good = sqs.create_queue(QueueName="good.fifo", Attributes=attributes)["QueueUrl"]
    for url in (good, fifo):
        arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        rule(aws, url.rsplit("/", 1)[1].removesuffix(".fifo"), {"Arn": arn, "SqsParameters": {"MessageGroupId": "g"}})

    put(aws, {"id": 1})

    assert len(receive(sqs, good)) == 1
    assert receive(sqs, fifo) == []


# --- event source mapping --------------------------------------------------------------------------------------------


def mapping(aws, clock, url, handler, **more):
    function = LambdaFunction(name="provision", handler=handler, clock=clock, memory_mb=1024, timeout_seconds=30)
    queue = url.rsplit("/", 1)[1]
    return function, EventSourceMapping(aws.client("sqs"), url, function, due=lambda: aws.queues.due(queue), **more)


def test_handler_gets_a_batch_in_lambdas_shape(aws, sqs, clock, fifo):
    """Powertools parses it; ids, attributes and checksum are valid."""
    seen = []
    _, source = mapping(aws, clock, fifo, lambda event, context: seen.append((event, context)))
    sent = send(sqs, fifo, '{"cluster":"demo"}', deduplication="d1")
    clock.advance(1)

    assert source.act()

    ((event, context),) = seen
    (record,) = SQSEvent(event).records
    assert record.message_id == sent["MessageId"]
    assert record.json_body == {"cluster": "demo"}
    assert record.md5_of_body == sent["MD5OfMessageBody"]
    assert record.attributes.message_group_id == "a"
    assert record.attributes.message_deduplication_id == "d1"
    assert record.attributes.approximate_receive_count == "1"
    assert record.attributes.sent_timestamp == str(int((clock.now() - timedelta(seconds=1)).timestamp() * 1000))
    assert (record.event_source, record.aws_region) == ("aws:sqs", "us-east-1")
    assert record.event_source_arn == "arn:aws:sqs:us-east-1:123456789012:step.fifo"
    assert (context.function_name, context.memory_limit_in_mb) == ("provision", 1024)
    assert 0 < context.get_remaining_time_in_millis() <= 30_000
    assert aws.queues.due("step.fifo") is None


def test_queue_must_hide_messages_for_as_long_as_the_function_may_run(aws, clock, standard):
    """Lambda refuses the mapping, so that a shorter visibility is a matter of each message."""
    function = LambdaFunction(name="provision", handler=lambda _event, _context: None, clock=clock, timeout_seconds=31)

    with pytest.raises(ServiceError, match="30 seconds is less than Function timeout: 31 seconds"):
        EventSourceMapping(aws.client("sqs"), standard, function)


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
    while (due := source.due()) is not None:
        clock.advance_to(max(due, clock.now()))
        source.act()

    assert [invocation.outcome for invocation in function.invocations] == [InvocationOutcome.FAILED] * 3
    assert {invocation.error for invocation in function.invocations} == {"ValueError: no such cluster"}
    assert all(invocation.billed_ms >= 1 for invocation in function.invocations)
    assert bodies(receive(sqs, fifo.replace("step", "dead"))) == ["1"]


def test_crashed_sandbox_keeps_the_batch(aws, sqs, clock, fifo):
    """A crash is no exception that a handler could catch."""

    class SandboxDiedError(BaseException):
        """Not an Exception, so that no handler catches it."""

    def handler(_event, _context):
        raise SandboxDiedError

    send(sqs, fifo, "1")
    function = LambdaFunction(name="f", handler=handler, clock=clock, fatal=(SandboxDiedError,), timeout_seconds=30)

    invocation = EventSourceMapping(sqs, fifo, function).poll()
    clock.advance(30)

    assert invocation.outcome is InvocationOutcome.CRASHED
    assert bodies(receive(sqs, fifo)) == ["1"]


def test_throttled_polls_use_up_the_receives(aws, sqs, clock, fifo):
    """Lambda receives the message before it knows that the function cannot run."""
    send(sqs, fifo, "1")
    function, source = mapping(aws, clock, fifo, lambda *_: None)
    function.is_throttled = True
    while (due := source.due()) is not None:
        clock.advance_to(max(due, clock.now()))
        source.act()

    assert function.invocations == []
    assert bodies(receive(sqs, fifo.replace("step", "dead"))) == ["1"]


def test_function_past_its_timeout_has_failed(aws, sqs, clock, fifo):
    """Lambda ignores its result."""
    import time

    send(sqs, fifo, "1")
    function = LambdaFunction(name="f", handler=lambda *_: time.sleep(0.02), clock=clock, timeout_seconds=0.01)

    invocation = EventSourceMapping(sqs, fifo, function).poll()
    clock.advance(30)

    assert invocation.outcome is InvocationOutcome.TIMED_OUT
    assert bodies(receive(sqs, fifo)) == ["1"]


# --- recursive loops -------------------------------------------------------------------------------------------------


def chain(aws, sqs, clock, fifo, standard, *, allows_loops=False):
    """Two functions that send each other one message; the first polls every five seconds."""

    def send_back(_event, _context):
        sqs.send_message_batch(QueueUrl=standard, Entries=[{"Id": "1", "MessageBody": "later", "DelaySeconds": 5}])

    def forward(event, _context):
        sent = f"message {clock.now()}"
        sqs.send_message(QueueUrl=fifo, MessageBody=sent, MessageGroupId="a", MessageDeduplicationId=sent)

    functions = [
        LambdaFunction(name=name, handler=handler, clock=clock, allows_loops=allows_loops, timeout_seconds=30)
        for name, handler in (("terminate", send_back), ("sweep", forward))
    ]
    sources = [
        EventSourceMapping(sqs, url, function, due=lambda url=url: aws.queues.due(url.rsplit("/", 1)[1]))
        for url, function in zip((fifo, standard), functions, strict=True)
    ]
    send(sqs, fifo, "first")
    for _ in range(120):
        while any(source.act() for source in sources):
            pass
        clock.advance(1)
    return functions


def test_lambda_stops_a_chain_of_messages_after_16_runs(aws, sqs, clock, fifo, standard):
    """The message goes to the dead-letter queue: a chain that polls every five seconds lasts 80 seconds."""
    terminate, sweep = chain(aws, sqs, clock, fifo, standard)

    assert (len(terminate.invocations), len(sweep.invocations)) == (16, 16)
    assert (terminate.stopped, sweep.stopped) == (1, 0)
    assert terminate.invocations[-1].started_at - terminate.invocations[0].started_at == timedelta(seconds=75)
    assert len(receive(sqs, fifo.replace("step", "dead"))) == 1
    assert receive(sqs, fifo) == []


def test_function_that_allows_loops_is_never_stopped(aws, sqs, clock, fifo, standard):
    """The property RecursiveLoop is "Allow"."""
    terminate, sweep = chain(aws, sqs, clock, fifo, standard, allows_loops=True)

    assert len(terminate.invocations) == 24
    assert (terminate.stopped, sweep.stopped) == (0, 0)


def test_message_from_outside_of_a_function_starts_a_lineage(aws, sqs, clock, fifo):
    """The forwarder's messages have none, and neither has an invocation by a schedule."""
    seen = []
    function = LambdaFunction(name="f", handler=lambda event, _: seen.append(event), clock=clock, timeout_seconds=30)
    send(sqs, fifo, "1")

    EventSourceMapping(sqs, fifo, function).poll()

    assert "AWSTraceHeader" not in seen[0]["Records"][0]["attributes"]
