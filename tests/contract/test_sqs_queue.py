"""`ports.Queue` on SQS over HTTP: queues, delays, deduplication, and partial failures."""

import json
import threading
from datetime import timedelta

import pytest

from journeyman.cloud.aws.sqs_queue import SQSQueue
from journeyman.core.lifecycle.interruption import InterruptionKind
from journeyman.core.plan import Step
from journeyman.errors import CloudProviderError, CloudUnavailableError, ConfigurationError, RateLimitedError
from journeyman.events import parse_trigger
from journeyman.ports import Interruption, Message, ReceivedMessage, RequeueDue
from tests.contract.conftest import on_both_accounts

pytestmark = on_both_accounts


class DeployedQueues:
    """The queues of a deployment, and the adapter for them."""

    def __init__(self, aws, clock):
        self.sqs, self.clock = aws.client("sqs", max_attempts=1), clock
        self.dead_url = self._fifo("provision-dead")
        policy = json.dumps({"deadLetterTargetArn": f"{ARN}provision-dead.fifo", "maxReceiveCount": 50})
        self.urls = {
            Step.PROVISION: self._fifo("provision", RedrivePolicy=policy),
            Step.TERMINATE: self._fifo("terminate"),
        }
        self.requeue_url = self.sqs.create_queue(QueueName="wake")["QueueUrl"]
        self.queue = self.adapter(self.sqs)

    def adapter(self, sqs, **given):
        return SQSQueue(sqs, self.clock, queues=self.urls, requeue_url=self.requeue_url, **given)

    def _fifo(self, name, **attributes):
        attributes = {"FifoQueue": "true", **attributes}
        return self.sqs.create_queue(QueueName=f"{name}.fifo", Attributes=attributes)["QueueUrl"]

    def receive(self, url=None, **given):
        """Return the visible messages of a queue, by default that of provision."""
        given = {"QueueUrl": url or self.urls[Step.PROVISION], "MessageSystemAttributeNames": ["All"], **given}
        return self.sqs.receive_message(**given).get("Messages", [])

    def received(self, url=None):
        """Return the visible messages of a queue, by default that of provision, and delete them."""
        url, found = url or self.urls[Step.PROVISION], []
        while batch := self.receive(url, MaxNumberOfMessages=10):
            for message in batch:
                self.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            found += batch
        return found

    def triggers(self, url=None):
        return [parse_trigger(json.loads(message["Body"])) for message in self.received(url)]

    def in_flight(self):
        """Receive the message of a run, and return its receipt."""
        self.queue.send([a_message()])
        (message,) = self.receive(VisibilityTimeout=125)
        return message["ReceiptHandle"]


@pytest.fixture
def queues(aws, clock):
    return DeployedQueues(aws, clock)


ARN = "arn:aws:sqs:us-east-1:123456789012:"


def a_message(cluster="dev", step=Step.PROVISION, reason="pods are pending", at=None):
    return Message(cluster=cluster, step=step, reason=reason, at=at)


def received(receipt="", *, body="{", queue="provision.fifo"):
    return ReceivedMessage(id="m1", body=body, queue=f"{ARN}{queue}", receipt=receipt, group="dev")


def test_repeated_interruption_arrives_as_it_was_but_for_one_cluster(queues, clock):
    """A record of several clusters is repeated for one that failed; it is delivered after the delay."""
    url = queues.sqs.create_queue(QueueName="interrupt")["QueueUrl"]
    kind, reason = InterruptionKind.SPOT_INTERRUPTED, "EC2 Spot Instance Interruption Warning"
    where = {"cluster": "emea", "account": "123456789012", "region": "eu-west-1"}
    ids = ("i-1", "i-2")
    interruption = Interruption(id="e1", reason=reason, time=clock.now(), kind=kind, instance_ids=ids, **where)
    queues.queue.send_interruptions(f"{ARN}interrupt", [interruption], 2)

    assert queues.triggers(url) == []
    clock.advance(2)
    assert queues.triggers(url) == [interruption]


def test_message_arrives_in_its_steps_queue_as_a_trigger(queues, clock):
    """The receiving run parses it; the message group is the cluster. One that was due an hour ago is not delayed."""
    late = a_message("late", at=clock.now() - timedelta(hours=1))
    queues.queue.send([a_message(), late, a_message("prod", Step.TERMINATE, "drain")])

    (message,) = queues.received(queues.urls[Step.TERMINATE])
    trigger = parse_trigger(json.loads(message["Body"]))
    assert message["Attributes"]["MessageGroupId"] == "prod"
    assert (trigger.cluster, trigger.step, type(trigger)) == ("prod", Step.TERMINATE, RequeueDue)
    assert trigger.reason == "drain"
    assert [t.cluster for t in queues.triggers()] == ["dev", "late"]


def test_message_for_the_sweep_goes_to_the_requeue_queue(queues):
    """The sweep function receives only from it. A requeue message has no instance ids, so interrupt gets none."""
    queues.queue.send([a_message(step=Step.SWEEP)])
    assert [t.step for t in queues.triggers(queues.requeue_url)] == [Step.SWEEP]
    with pytest.raises(ConfigurationError):
        queues.queue.send([a_message(step=Step.INTERRUPT)])


def test_equal_messages_of_one_send_are_sent_once(queues):
    """A plan may contain the same requeue several times.

    One of a later send is delivered: deduplication by content would drop it for five minutes, although the first may
    have been received.
    """
    queues.queue.send([a_message(), a_message(), a_message(reason="another")])
    assert len(queues.received()) == 2
    queues.queue.send([a_message()])
    assert len(queues.received()) == 1


def test_message_not_yet_due_waits_in_the_requeue_queue(queues, clock):
    """FIFO queues have no delay per message."""
    at = clock.now() + timedelta(seconds=30.2)
    queues.queue.send([a_message(at=at)])

    assert queues.received() == []
    clock.advance(30)
    assert queues.received(queues.requeue_url) == []
    clock.advance(1)
    assert [(t.step, t.at) for t in queues.triggers(queues.requeue_url)] == [(Step.PROVISION, at)]


def test_delay_is_at_most_15_minutes(queues, clock):
    """SQS refuses a longer delay, so the message is sent again until it is due."""
    at = clock.now() + timedelta(days=1)
    queues.queue.send([a_message(at=at)])
    clock.advance(900)
    assert [trigger.at for trigger in queues.triggers(queues.requeue_url)] == [at]


def test_messages_are_sent_in_batches_of_ten(queues, aws):
    """That is the limit of SendMessageBatch."""
    before = aws.calls().get("SendMessageBatch", 0)
    queues.queue.send(a_message(f"cluster-{i}") for i in range(25))
    assert aws.calls()["SendMessageBatch"] - before == 3
    assert len(queues.received()) == 25


@pytest.mark.parametrize(
    ("code", "kind"), [("RequestThrottled", RateLimitedError), ("InternalError", CloudUnavailableError)]
)
def test_sqs_errors_are_translated(queues, aws, code, kind):
    """The adapter raises no botocore error; both errors are retryable."""
    aws.fail_next("SendMessageBatch", code)
    with pytest.raises(kind):
        queues.queue.send([a_message()])


def test_retried_message_unblocks_its_group(queues, clock):
    """The message is received again after the given time, and its receive count grows."""
    queues.queue.send([a_message(reason="first"), a_message(reason="second")])

    (first,) = queues.receive()
    assert queues.receive() == []
    queues.queue.retry({received(first["ReceiptHandle"]): 4})
    clock.advance(3)
    assert queues.receive() == []
    clock.advance(1)
    (again,) = queues.receive()

    assert again["MessageId"] == first["MessageId"]
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"


def test_message_of_a_crashed_process_is_delivered_again_after_20_seconds(queues, clock):
    """The queue's visibility timeout, with which Lambda received it, would be over after 125 s."""
    queues.queue.hold([received(queues.in_flight())]).__enter__()  # and the process dies
    clock.advance(19)
    assert queues.receive() == []
    clock.advance(1)
    assert len(queues.receive()) == 1


class Renewals:
    """An SQS client that counts the renewals of the visibility."""

    def __init__(self, sqs):
        self._sqs, self.count, self.renewed = sqs, 0, threading.Event()

    def change_message_visibility_batch(self, **request):
        reply = self._sqs.change_message_visibility_batch(**request)
        self.count += 1
        if self.count > 2:  # one that started after the clock moved
            self.renewed.set()
        return reply


def test_message_is_held_while_the_process_lives_and_no_longer(queues, clock):
    """A thread renews it; SQS delivers it after the end of the run, unless Lambda deletes it."""
    receipt, renewals = queues.in_flight(), Renewals(queues.sqs)
    with queues.adapter(renewals, renew_seconds=0.01).hold([received(receipt)]):
        clock.advance(15)
        renewals.count = 0
        renewals.renewed.clear()
        assert renewals.renewed.wait(5)
        clock.advance(15)
        assert queues.receive() == []
    after = renewals.count
    clock.advance(20)

    assert len(queues.receive()) == 1
    assert renewals.count == after


def test_hold_without_an_answer_of_sqs_stops_no_run(queues, aws):
    """The message may be delivered a second time, when the Lease makes the second run wait."""
    lines, receipt = [], queues.in_flight()
    queue = queues.adapter(queues.sqs, log=lambda *line, **_: lines.append(line))
    aws.fail_next("ChangeMessageVisibilityBatch", "ServiceUnavailable")

    with queue.hold([received(receipt)]):
        pass

    ((level, text),) = lines
    assert level == "warning"
    assert "may be delivered a second time" in text


def test_message_that_can_never_succeed_goes_to_the_dead_letter_queue(queues):
    """It keeps its body and its message group; a queue without a dead-letter queue keeps its messages.

    Large ones are sent one by one: the messages of a batch may have the size limit of a single message together.
    """
    assert queues.queue.send_to_dead_letters([received(), received()])
    assert not queues.queue.send_to_dead_letters([received(queue="terminate.fifo")])
    dead = queues.received(queues.dead_url)
    assert [(message["Body"], message["Attributes"]["MessageGroupId"]) for message in dead] == [("{", "dev")] * 2
    assert queues.queue.send_to_dead_letters([received(body=str(number) * 900_000) for number in range(3)])
    assert [message["Body"][0] for message in queues.received(queues.dead_url)] == ["0", "1", "2"]


def test_long_reasons_are_cut_and_reach_their_queue(queues):
    """A reason may quote an error of any length, such as that of an admission webhook."""
    queues.queue.send([a_message(reason=f"{number} " + "x" * 400_000) for number in range(4)])
    reasons = [trigger.reason for trigger in queues.triggers()]
    assert [(reason[:4], len(reason)) for reason in reasons] == [(f"{number} xx", 1000) for number in range(4)]


class PartialFailures:
    """An SQS client that fails some entries of each call and sends the others."""

    def __init__(self, sqs, *failures):
        self._sqs, self._failures, self.calls = sqs, list(failures), []

    def send_message_batch(self, **request):
        self.calls.append([entry["Id"] for entry in request["Entries"]])
        failing = self._failures.pop(0) if self._failures else {}
        entries = [e for i, e in enumerate(request["Entries"]) if i not in failing]
        reply = self._sqs.send_message_batch(**{**request, "Entries": entries}) if entries else {}
        failed = [{"Id": request["Entries"][i]["Id"], **facts} for i, facts in failing.items()]
        return {**reply, "Failed": failed}


THEIRS = {"SenderFault": False, "Code": "InternalError"}
OURS = {"SenderFault": True, "Code": "InvalidMessageContents"}


def test_entries_that_fail_in_sqs_are_sent_again_with_the_same_id(queues):
    """SQS then drops the second message if it accepted the first."""
    sqs = PartialFailures(queues.sqs, {1: THEIRS})
    queues.adapter(sqs).send(a_message(name) for name in ("a", "b", "c"))
    assert sqs.calls[1] == [sqs.calls[0][1]]
    assert sorted(t.cluster for t in queues.triggers()) == ["a", "b", "c"]


def test_rejected_entries_are_named_after_all_others_were_sent(queues):
    """A rejected message does not delay the messages of another queue."""
    queue = queues.adapter(PartialFailures(queues.sqs, {0: OURS, 1: THEIRS}))
    with pytest.raises(CloudProviderError) as caught:
        queue.send([a_message("a"), a_message("b"), a_message("c", Step.TERMINATE)])
    assert caught.value.context["codes"] == ["InvalidMessageContents"]
    assert [t.cluster for t in queues.triggers()] == ["b"]
    assert [t.cluster for t in queues.triggers(queues.urls[Step.TERMINATE])] == ["c"]


def test_send_fails_after_three_attempts(queues):
    """The sweep later does the work of messages that were not sent."""
    sqs = PartialFailures(queues.sqs, *[{0: THEIRS}] * 5)
    with pytest.raises(CloudProviderError, match="1 requeue"):
        queues.adapter(sqs).send([a_message()])
    assert len(sqs.calls) == 3
