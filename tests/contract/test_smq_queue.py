"""`ports.Queue` on SMQ, with the official SDK over HTTP and in process: queues, delays, retries, dead letters, and errors."""

import base64
import json
from datetime import timedelta
from itertools import count

import pytest
from mns.account import Account
from mns.mns_exception import MNSServerException
from mns.queue import Message as SdkMessage
from mns.queue import QueueMeta
from msgspec.structs import replace

from journeyman.cloud.alibaba.smq_queue import SdkSmq, SmqMessage, SmqQueue, new_client
from journeyman.cloud.messages import receives_of
from journeyman.core.lifecycle.interruption import InterruptionKind
from journeyman.core.plan import Step
from journeyman.errors import CloudProviderError, CloudUnavailableError, ConfigurationError, RateLimitedError
from journeyman.events import parse_trigger
from journeyman.ports import Interruption, Message, ReceivedMessage, RequeueDue
from journeyman_simulator.alibaba_account.smq import InProcessSmq, SimulatedSmq, SmqAttributes
from journeyman_simulator.alibaba_account.smq_http import SmqHttpServer
from journeyman_simulator.cloud_rules.access_keys import SimulatedAccessKey
from journeyman_simulator.in_process_account.sqs_queues import MessageOutcome
from tests.helpers.access_keys import credentials_of

STEPS = (Step.PROVISION, Step.TERMINATE, Step.CONSOLIDATE, Step.INTERRUPT, Step.SWEEP)
WEEK = SmqAttributes(retention_seconds=604_800)


class Role:
    """The temporary credentials of the functions' role, which change while a function lives."""

    def __init__(self):
        self.keys, self.numbers = {}, count(1)
        self.renew()

    def renew(self):
        number = next(self.numbers)
        secret, token = "secret+/=", f"token-{number}"
        self.key = SimulatedAccessKey(id=f"STS.key-{number}", secret=secret, caller="functions", security_token=token)
        self.keys.clear()
        self.keys[self.key.id] = self.key

    def credentials(self):
        return credentials_of(self.key)


class DeployedQueues:
    """The queues of a deployment, and the adapter for them."""

    def __init__(self, smq, clock, transport):
        self.smq, self.clock = smq, clock
        names = {step: f"journeyman-{step.value}" for step in STEPS}
        for name in (*names.values(), "journeyman-dead"):
            smq.create(name, WEEK)
        self.queue = SmqQueue(transport, clock, queues=names, dead_letter_queue="journeyman-dead", max_receives=5)

    def bodies(self, step):
        """Return the bodies of the visible messages of a step's queue, or of the dead-letter queue, and delete them."""
        name = f"journeyman-{step if step == 'dead' else step.value}"
        found = []
        while received := self.smq.receive(name, 16):
            for message in received:
                self.smq.delete(name, message.receipt)
                found.append(message.text)
        return found

    def triggers(self, step):
        return [parse_trigger(json.loads(body)) for body in self.bodies(step)]


@pytest.fixture
def role():
    return Role()


@pytest.fixture(params=["HTTP", "in process"])
def queues(request, clock, role):
    smq = SimulatedSmq(clock)
    if request.param == "in process":
        yield DeployedQueues(smq, clock, InProcessSmq(smq))
        return
    with SmqHttpServer(smq, role.keys) as front:
        deployed = DeployedQueues(smq, clock, SdkSmq(front.endpoint, role.credentials))
        deployed.front = front
        yield deployed


over_http = pytest.mark.parametrize("queues", ["HTTP"], indirect=True)


def a_message(cluster="dev", step=Step.PROVISION, reason="pods are pending", at=None):
    return Message(cluster=cluster, step=step, reason=reason, at=at)


def received(body, *, receives=1, step=Step.PROVISION, id_="m1"):
    return ReceivedMessage(id=id_, body=body, queue=step.value, receives=receives)


def test_message_arrives_in_its_steps_queue_as_a_trigger(queues):
    """The run parses it; the sweep has a queue of its own. A requeue message has no instance ids for interrupt."""
    queues.queue.send([a_message(), a_message("prod", Step.TERMINATE, "drain é"), a_message(step=Step.SWEEP)])

    (trigger,) = queues.triggers(Step.TERMINATE)
    assert (trigger.cluster, type(trigger), trigger.reason) == ("prod", RequeueDue, "drain é")
    assert [t.cluster for t in queues.triggers(Step.PROVISION)] == ["dev"]
    assert [t.step for t in queues.triggers(Step.SWEEP)] == [Step.SWEEP]
    with pytest.raises(ConfigurationError):
        queues.queue.send([a_message(step=Step.INTERRUPT)])


def test_equal_messages_of_one_send_are_sent_once(queues):
    """A plan may contain the same requeue several times."""
    queues.queue.send([a_message(), a_message(), a_message(reason="another")])
    assert len(queues.bodies(Step.PROVISION)) == 2


def test_message_waits_in_its_steps_queue_until_it_is_due(queues, clock):
    """SMQ delays each message by itself. It expires 7 days after it was sent, its delay included."""
    at = clock.now() + timedelta(hours=5, seconds=0.2)
    in_weeks = a_message("weeks", at=clock.now() + timedelta(days=30))
    queues.queue.send([a_message(at=at), a_message("overdue", at=clock.now() - timedelta(hours=1)), in_weeks])

    assert [t.cluster for t in queues.triggers(Step.PROVISION)] == ["overdue"]
    clock.advance(5 * 3600)
    assert queues.bodies(Step.PROVISION) == []
    clock.advance(1)
    assert [t.at for t in queues.triggers(Step.PROVISION)] == [at]
    clock.advance(timedelta(days=6, hours=1).total_seconds() - 5 * 3600 - 1)
    assert len(queues.bodies(Step.PROVISION)) == 1


def test_messages_are_sent_in_batches(queues):
    """The limits of BatchSendMessage are 16 messages, and 64 KiB together, in Base64. Long reasons are cut."""
    queues.queue.send(a_message(f"cluster-{i}") for i in range(33))
    assert queues.smq.calls["BatchSendMessage"] == 3
    assert len(queues.bodies(Step.PROVISION)) == 33
    queues.queue.send([a_message(reason=f"{number:02} " + "é" * 100_000) for number in range(14)])
    assert [len(trigger.reason) for trigger in queues.triggers(Step.PROVISION)] == [1000] * 14
    assert queues.smq.calls["BatchSendMessage"] == 3 + 2


def test_repeated_interruption_arrives_as_it_was_but_for_one_cluster(queues, clock):
    """A message of several clusters is repeated for one that failed; it is delivered after the delay."""
    kind, reason = InterruptionKind.SPOT_INTERRUPTED, "ecs:Instance:PreemptibleInstanceInterruption"
    where = {"cluster": "emea", "account": "100000000000001", "region": "cn-hangzhou"}
    ids = ("i-1", "i-2")
    interruption = Interruption(id="e1", reason=reason, time=clock.now(), kind=kind, instance_ids=ids, **where)
    queues.queue.send_interruptions("interrupt", [interruption], 2)

    assert queues.bodies(Step.INTERRUPT) == []
    clock.advance(2)
    assert queues.triggers(Step.INTERRUPT) == [interruption]


def test_retried_message_is_sent_again_with_its_receives(queues, clock):
    """Its body counts them, since EventBridge deletes the received message."""
    queues.queue.send([a_message()])
    (body,) = queues.bodies(Step.PROVISION)
    queues.queue.retry({received(body): 4})

    assert queues.bodies(Step.PROVISION) == []
    clock.advance(4)
    (again,) = queues.bodies(Step.PROVISION)
    assert (receives_of(body), receives_of(again)) == (1, 2)
    assert parse_trigger(json.loads(again)) == parse_trigger(json.loads(body))


def test_message_whose_receives_are_used_up_becomes_a_dead_letter(queues, clock):
    """Another one of the same retry is sent again."""
    queues.queue.retry({received('{"id":"old"}', receives=5): 4, received('{"id":"new"}', receives=4, id_="m2"): 4})
    clock.advance(4)
    assert queues.bodies("dead") == ['{"id":"old"}']
    assert queues.bodies(Step.PROVISION) == ['{"id":"new","receives":4}']


@pytest.mark.parametrize("body", ["{", "\x00\x1b ]]>", "\ud800", "", '{"receives": "two"}'])
def test_message_that_can_never_succeed_goes_to_the_dead_letter_queue(queues, body):
    """No character of it makes the request invalid; its receives are not counted."""
    assert queues.queue.send_to_dead_letters([received(body)])
    queues.queue.retry({received("{}" if body in ("", "\ud800") else body): 0})
    assert len(queues.bodies("dead")) == len(queues.bodies(Step.PROVISION)) == 1
    assert receives_of(body) == 1


def test_dead_letter_that_is_too_large_for_smq_is_cut(queues):
    """An event that invoked the function directly may have 256 KB. To hold a message sends nothing."""
    with queues.queue.hold([received("{}")]):
        pass
    assert not queues.smq.calls
    queues.queue.send_to_dead_letters([received("é" * 100_000), received("{")])
    assert sorted(len(body) for body in queues.bodies("dead")) == [1, 24 * 1024]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("QpsLimitExceeded", RateLimitedError),
        ("AccessDenied", ConfigurationError),
        ("InvalidAccessKeyId", ConfigurationError),
        ("InvalidArgument", CloudProviderError),
    ],
)
def test_smq_errors_are_translated(queues, code, kind):
    """The adapter raises no error of the SDK; a refusal names the permission."""
    queues.smq.fail_next("BatchSendMessage", code)
    with pytest.raises(kind) as caught:
        queues.queue.send([a_message()])
    assert caught.value.context["code"] == code
    assert caught.value.context["operation"] == "mns:SendMessage"
    assert kind is not ConfigurationError or "grant mns:SendMessage" in caught.value.context["to_do"]


def test_missing_queue_is_a_wrong_setting(queues):
    """The error names the queue and the remedy."""
    del queues.smq.queues["journeyman-provision"]
    with pytest.raises(ConfigurationError, match="no queue journeyman-provision") as caught:
        queues.queue.send([a_message()])
    assert "create the queue" in caught.value.context["to_do"]


def test_request_that_fails_inside_smq_is_repeated(queues):
    """After three attempts the sweep does the work of messages that were not sent."""
    queues.smq.fail_next("BatchSendMessage", "InternalError", 2)
    queues.queue.send([a_message()])
    assert len(queues.bodies(Step.PROVISION)) == 1

    queues.smq.fail_next("BatchSendMessage", "InternalError", 3)
    with pytest.raises(CloudUnavailableError):
        queues.queue.send([a_message()])
    assert queues.smq.calls["BatchSendMessage"] == 6


def test_messages_that_fail_inside_smq_are_sent_again_alone(queues):
    """SMQ accepted the others of the call. A rejected message does not delay those of another queue."""
    queues.smq.fail_next("BatchSendMessage", "InternalError/1")
    queues.queue.send(a_message(name) for name in ("a", "b", "c"))
    assert sorted(t.cluster for t in queues.triggers(Step.PROVISION)) == ["a", "b", "c"]

    queues.smq.fail_next("BatchSendMessage", "InvalidArgument/0")
    with pytest.raises(CloudProviderError) as caught:
        queues.queue.send([a_message("a"), a_message("b"), a_message("c", Step.TERMINATE)])
    assert caught.value.context["codes"] == ["InvalidArgument"]
    assert [t.cluster for t in queues.triggers(Step.PROVISION)] == ["b"]
    assert [t.cluster for t in queues.triggers(Step.TERMINATE)] == ["c"]


@over_http
def test_new_credentials_of_the_role_are_used_for_the_next_request(queues, role):
    """They expire while the function lives."""
    queues.queue.send([a_message("first")])
    role.renew()
    queues.queue.send([a_message("second")])
    assert [t.cluster for t in queues.triggers(Step.PROVISION)] == ["first", "second"]


@over_http
@pytest.mark.parametrize("changed", [{"secret": "another"}, {"security_token": "another"}, {"id": "another"}])
def test_request_with_a_wrong_signature_is_refused(queues, role, changed):
    """The simulated SMQ checks signature and token."""
    key = replace(role.key, **changed)
    queues.front.keys = {key.id: key}
    with pytest.raises(ConfigurationError, match="not allowed"):
        queues.queue.send([a_message()])


@over_http
def test_unauthorized_queue_names_the_permission(queues):
    """RAM policies grant operations on queues."""
    queues.front.authorize = lambda _, *denied: denied != ("mns:SendMessage", "journeyman-provision")
    queues.queue.send([a_message(step=Step.TERMINATE)])
    with pytest.raises(ConfigurationError) as caught:
        queues.queue.send([a_message()])
    assert "journeyman-provision" in caught.value.context["to_do"]


def test_unreachable_endpoint_is_unavailable(clock, role):
    """The next run tries again."""
    smq = SdkSmq("http://127.0.0.1:9", role.credentials)
    queue = SmqQueue(smq, clock, queues={Step.PROVISION: "p"}, dead_letter_queue="dead")
    with pytest.raises(CloudUnavailableError, match="no valid response"):
        queue.send([a_message()])


@pytest.mark.parametrize("url", ["http://smq.example", "https://smq.example"])
def test_client_keeps_its_scheme_and_has_a_timeout(role, url):
    """The SDK's own method for the timeout would turn HTTPS into HTTP."""
    client = new_client(url, role.credentials)
    assert type(client.http.conn).__name__ == ("MNSHTTPSConnection" if url[4] == "s" else "MNSHTTPConnection")
    assert client.http.conn.timeout == client.http.conn.connection_timeout == 10


@over_http
def test_simulated_smq_serves_the_other_requests_of_the_sdk(queues, role):
    """The strict fake is honest towards the whole queue class of the SDK."""
    queue = Account(queues.front.endpoint, role.key.id, role.key.secret, role.key.security_token).get_queue("q")

    def refuses(code, call, *given):
        with pytest.raises(MNSServerException, match=code):
            call(*given)

    assert queue.create(QueueMeta(vis_timeout=60)).endswith("/queues/q")
    refuses("QueueAlreadyExist", queue.create, QueueMeta(vis_timeout=61))
    queue.send_message(SdkMessage("text"))
    assert queue.peek_message().message_body == b"text"
    message = queue.receive_message()
    changed = queue.change_message_visibility(message.receipt_handle, 10)
    refuses("MessageNotExist", queue.delete_message, message.receipt_handle)
    queues.clock.advance(10)
    (again,) = queue.batch_receive_message(16)
    assert (again.message_id, again.dequeue_count) == (message.message_id, 2)
    assert again.receipt_handle != changed.receipt_handle
    queue.delete_message(again.receipt_handle)
    refuses("MessageNotExist", queue.receive_message)
    for delay, body in ((604_801, "text"), (0, "x" * 65_536)):
        refuses("InvalidArgument", queue.send_message, SdkMessage(body, delay))
    assert queues.smq.queues["q"].messages == []


def test_duplicated_delayed_and_lost_messages_are_faults_of_the_simulation(clock):
    """SMQ delivers at least once; the fault simulation decides for each message."""
    outcomes = [MessageOutcome(copies=2), MessageOutcome(delay_seconds=5), MessageOutcome(copies=0)]
    smq = SimulatedSmq(clock, lambda _queue, _body: outcomes.pop(0))
    queues = DeployedQueues(smq, clock, InProcessSmq(smq))
    for cluster in ("doubled", "late", "lost"):
        queues.queue.send([a_message(cluster)])

    assert [t.cluster for t in queues.triggers(Step.PROVISION)] == ["doubled", "doubled"]
    clock.advance(5)
    assert [t.cluster for t in queues.triggers(Step.PROVISION)] == ["late"]


def test_simulated_queue_drops_expired_messages_and_moves_dead_letters(clock):
    """Retention and the queue's own dead-letter policy."""
    smq = SimulatedSmq(clock)
    smq.create("dead")
    policy = {"dead_letter_queue": "dead", "max_receives": 2, "visibility_seconds": 1}
    smq.create("q", SmqAttributes(retention_seconds=100, **policy))
    InProcessSmq(smq).send("q", [SmqMessage("a")])
    for _ in range(2):
        assert len(smq.receive("q", 16)) == 1
        clock.advance(1)
    assert smq.receive("q", 16) == []
    assert [base64.b64decode(message.body) for message in smq.receive("dead")] == [b"a"]

    InProcessSmq(smq).send("q", [SmqMessage("b")])
    clock.advance(100)
    assert smq.receive("q") == []
