"""`ports.Queue` on SQS, over the wire: queues, delays, deduplication, and what happens when SQS takes only some."""

import json
from datetime import timedelta

import pytest

from journeyman.cloud.aws.sqs_queue import SQSQueue
from journeyman.core.plan import Step
from journeyman.errors import CloudProviderError, CloudUnavailableError, ConfigurationError, RateLimitedError
from journeyman.events import parse_trigger
from journeyman.ports import Message, RequeueDue
from tests.contract.conftest import on_both_accounts

pytestmark = on_both_accounts


class FakeQueue:
    """The queues of a deployment, and the adapter on them."""

    def __init__(self, aws, clock):
        self.sqs, self.clock = aws.client("sqs", max_attempts=1), clock
        self.urls = {step: self._fifo(step.value) for step in (Step.PROVISION, Step.TERMINATE)}
        self.requeue_url = self.sqs.create_queue(QueueName="wake")["QueueUrl"]
        self.queue = SQSQueue(self.sqs, clock, queues=self.urls, requeue_url=self.requeue_url)

    def _fifo(self, name):
        return self.sqs.create_queue(QueueName=f"{name}.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]

    def received(self, url):
        found = []
        while batch := self.sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, MessageSystemAttributeNames=["All"]
        ).get("Messages"):
            for message in batch:
                self.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            found += batch
        return found

    def triggers(self, url):
        return [parse_trigger(json.loads(message["Body"])) for message in self.received(url)]


@pytest.fixture
def queues(aws, clock):
    return FakeQueue(aws, clock)


def a_message(cluster="dev", step=Step.PROVISION, reason="pods are pending", at=None):
    return Message(cluster=cluster, step=step, reason=reason, at=at)


def test_a_message_arrives_in_its_steps_queue_as_a_trigger(queues):
    """What one run sends, another can read; the message group is the cluster."""
    queues.queue.send([a_message(), a_message("prod", Step.TERMINATE, "drain")])

    (message,) = queues.received(queues.urls[Step.TERMINATE])
    trigger = parse_trigger(json.loads(message["Body"]))
    assert message["Attributes"]["MessageGroupId"] == "prod"
    assert (trigger.cluster, trigger.step, type(trigger), trigger.reason) == (
        "prod",
        Step.TERMINATE,
        RequeueDue,
        "drain",
    )
    assert [t.cluster for t in queues.triggers(queues.urls[Step.PROVISION])] == ["dev"]


def test_the_same_wish_a_moment_later_arrives_too(queues):
    """Deduplication by content would drop it for five minutes, although the first may have been consumed."""
    queues.queue.send([a_message()])
    first = queues.received(queues.urls[Step.PROVISION])
    queues.queue.send([a_message()])

    assert (len(first), len(queues.received(queues.urls[Step.PROVISION]))) == (1, 1)


def test_the_same_wish_twice_in_one_call_is_one(queues):
    """A plan may ask for the same requeue in several places."""
    queues.queue.send([a_message(), a_message(), a_message(reason="another")])

    assert len(queues.received(queues.urls[Step.PROVISION])) == 2


def test_a_late_message_waits_in_the_requeue_queue_with_its_due_time(queues, clock):
    """FakeQueue know no delay per message."""
    at = clock.now() + timedelta(seconds=30.2)
    queues.queue.send([a_message(at=at)])

    assert queues.received(queues.urls[Step.PROVISION]) == []
    clock.advance(30)
    assert queues.received(queues.requeue_url) == []
    clock.advance(1)
    (trigger,) = queues.triggers(queues.requeue_url)
    assert (trigger.step, trigger.at) == (Step.PROVISION, at)


def test_a_message_for_tomorrow_is_sent_again_every_15_minutes(queues, clock):
    """SQS delays for 900 seconds at most; asking for more would be refused."""
    at = clock.now() + timedelta(days=1)
    queues.queue.send([a_message(at=at)])
    clock.advance(900)

    (trigger,) = queues.triggers(queues.requeue_url)
    assert trigger.at == at


def test_a_message_that_is_due_goes_straight_to_its_queue(queues, clock):
    """Also one that should have gone an hour ago."""
    queues.queue.send([a_message(at=clock.now() - timedelta(hours=1))])

    assert len(queues.received(queues.urls[Step.PROVISION])) == 1


def test_a_sweep_has_no_queue_and_is_handed_over_by_the_requeue_queue(queues):
    """The function behind it is the sweep itself."""
    queues.queue.send([a_message(step=Step.SWEEP)])

    assert [t.step for t in queues.triggers(queues.requeue_url)] == [Step.SWEEP]


def test_an_interruption_cannot_be_sent(queues):
    """It has instances in it, which a requeue does not."""
    with pytest.raises(ConfigurationError):
        queues.queue.send([a_message(step=Step.INTERRUPT)])


def test_any_number_of_messages_is_sent_ten_at_a_time(queues, aws):
    """SQS takes ten in one call."""
    before = aws.calls().get("SendMessageBatch", 0)
    queues.queue.send(a_message(f"cluster-{i}") for i in range(25))

    assert aws.calls()["SendMessageBatch"] - before == 3
    assert len(queues.received(queues.urls[Step.PROVISION])) == 25


@pytest.mark.parametrize(
    ("code", "kind"), [("RequestThrottled", RateLimitedError), ("InternalError", CloudUnavailableError)]
)
def test_what_sqs_says_leaves_as_one_of_our_errors(queues, aws, code, kind):
    """No botocore error leaks; both may help later."""
    aws.fail_next("SendMessageBatch", code)

    with pytest.raises(kind):
        queues.queue.send([a_message()])


def test_a_retried_message_unblocks_its_group_and_counts_its_receives(queues):
    """The group of a FIFO queue is locked while a message is in flight; another queue's name is passed over."""
    url = queues.urls[Step.PROVISION]
    queues.queue.send([a_message(reason="first"), a_message(reason="second")])

    def receive():
        return queues.sqs.receive_message(QueueUrl=url, MessageSystemAttributeNames=["All"]).get("Messages", [])

    (first,) = receive()
    assert receive() == []
    queues.queue.retry_now("arn:aws:sqs:us-east-1:123456789012:elsewhere", [first["ReceiptHandle"]])
    assert receive() == []
    queues.queue.retry_now("arn:aws:sqs:us-east-1:123456789012:provision.fifo", [first["ReceiptHandle"]])
    (again,) = receive()

    assert again["MessageId"] == first["MessageId"]
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"


class Partial:
    """An SQS that fails some entries of each call before it hands the rest on."""

    def __init__(self, sqs, *failures):
        self._sqs, self._failures, self.calls = sqs, list(failures), []

    def send_message_batch(self, **request):
        self.calls.append([entry["Id"] for entry in request["Entries"]])
        failing = self._failures.pop(0) if self._failures else {}
        entries = [e for i, e in enumerate(request["Entries"]) if i not in failing]
        reply = self._sqs.send_message_batch(**{**request, "Entries": entries}) if entries else {}
        failed = [{"Id": request["Entries"][i]["Id"], **facts} for i, facts in failing.items()]
        return {**reply, "Failed": failed}


def partial_queue(queues, clock, *failures):
    sqs = Partial(queues.sqs, *failures)
    return sqs, SQSQueue(sqs, clock, queues=queues.urls, requeue_url=queues.requeue_url)


THEIRS = {"SenderFault": False, "Code": "InternalError"}
OURS = {"SenderFault": True, "Code": "InvalidMessageContents"}


def test_entries_that_fail_in_sqs_are_sent_again_under_the_same_id(queues, clock):
    """The same id, so that SQS drops the second if the first went through after all."""
    sqs, queue = partial_queue(queues, clock, {1: THEIRS})
    queue.send(a_message(name) for name in ("a", "b", "c"))

    assert sqs.calls[1] == [sqs.calls[0][1]]
    assert sorted(t.cluster for t in queues.triggers(queues.urls[Step.PROVISION])) == ["a", "b", "c"]


def test_entries_that_sqs_rejects_are_named_after_all_others_were_sent(queues, clock):
    """One bad message must not keep a second queue waiting."""
    _, queue = partial_queue(queues, clock, {0: OURS, 1: THEIRS})

    with pytest.raises(CloudProviderError) as caught:
        queue.send([a_message("a"), a_message("b"), a_message("c", Step.TERMINATE)])

    assert caught.value.context["codes"] == ["InvalidMessageContents"]
    assert [t.cluster for t in queues.triggers(queues.urls[Step.PROVISION])] == ["b"]
    assert [t.cluster for t in queues.triggers(queues.urls[Step.TERMINATE])] == ["c"]


def test_sqs_is_asked_three_times_and_then_it_is_an_error(queues, clock):
    """The sweep makes up for what never got through."""
    sqs, queue = partial_queue(queues, clock, *[{0: THEIRS}] * 5)

    with pytest.raises(CloudProviderError, match="1 requeue"):
        queue.send([a_message()])

    assert len(sqs.calls) == 3
