"""`ports.Queue` on FunctionGraph, with the official SDK over HTTP and in process: delays, retries, dead letters, and errors."""

import json
from datetime import timedelta

import pytest

from journeyman.cloud.huawei.function_queue import LARGEST_BODY_BYTES, FunctionQueue
from journeyman.cloud.huawei.sdk_client import SdkRestApi
from journeyman.cloud.messages import receives_of
from journeyman.core.lifecycle.interruption import InterruptionKind
from journeyman.core.plan import Step
from journeyman.errors import (
    CloudProviderError,
    CloudUnavailableError,
    ConfigurationError,
    MalformedEventError,
    RateLimitedError,
)
from journeyman.events import parse_trigger
from journeyman.ports import Interruption, Message, ReceivedMessage, RequeueDue
from journeyman_simulator.huawei_account.huawei_account import DOMAIN_ID, PROJECT_ID, HuaweiAccount
from journeyman_simulator.huawei_account.rest_server import serving
from tests.helpers.access_keys import credentials_of

STEPS = (Step.PROVISION, Step.TERMINATE, Step.CONSOLIDATE, Step.INTERRUPT, Step.SWEEP)
PREFIX = f"urn:fss:cn-north-4:{PROJECT_ID}:function:default:journeyman-"
CALL = "functiongraph AsyncInvokeFunction"


class DeployedFunctions:
    """The functions' invocations, the adapter that sends them, and the function `delay`."""

    def __init__(self, account, clock, api, *, attempts=1):
        self.attempts = attempts  # of the API's client, for a request that is throttled or fails inside the service
        self.account, self.clock, self.lines, self.pauses = account, clock, [], []
        self.invocations = {f"{PREFIX}{name}": [] for name in (*(step.value for step in STEPS), "delay")}
        account.async_invocations = self._invoke
        self.queue = FunctionQueue(
            api,
            clock,
            project_id=PROJECT_ID,
            functions={step: f"{PREFIX}{step.value}" for step in STEPS},
            delay_function=f"{PREFIX}delay",
            max_receives=5,
            log=lambda *line, **fields: self.lines.append((*line, fields)),
            pause=self._pause,
        )

    def _invoke(self, urn, body):
        self.invocations[urn].append((self.clock.now(), body))
        return f"request-{len(self.invocations[urn])}"

    def _pause(self, seconds):
        self.pauses.append(seconds)
        self.clock.advance(seconds)

    def bodies(self, function):
        """Return the events of the function's invocations so far, and forget them."""
        invocations = self.invocations[f"{PREFIX}{getattr(function, 'value', function)}"]
        found = [body for _, body in invocations]
        invocations.clear()
        return found

    def times(self, step):
        return [time for time, _ in self.invocations[f"{PREFIX}{step.value}"]]

    def triggers(self, step):
        return [parse_trigger(body) for body in self.bodies(step)]

    def run_delay(self, event, *, seconds=90):
        """Run the function `delay`, which ends after so many seconds."""
        return self.queue.deliver_delayed(event, ends_at=self.clock.now() + timedelta(seconds=seconds))

    def run_delays(self):
        """Run the function `delay` until no message waits."""
        while events := self.bodies("delay"):
            for event in events:
                self.run_delay(event)


@pytest.fixture(params=["HTTP", "in process"])
def functions(request, clock):
    account = HuaweiAccount(clock, types=[])
    if request.param == "in process":
        yield DeployedFunctions(account, clock, account.rest_api())
        return
    with serving(account) as url:
        options = {"endpoint": lambda _service, _region: url, "pause": lambda _seconds: None}
        credentials = credentials_of(account.access_key)
        api = SdkRestApi("cn-north-4", PROJECT_ID, DOMAIN_ID, clock, lambda: credentials, **options)
        yield DeployedFunctions(account, clock, api, attempts=3)


def a_message(cluster="dev", step=Step.PROVISION, reason="pods are pending", at=None):
    return Message(cluster=cluster, step=step, reason=reason, at=at)


def received(body, *, receives=1, step=Step.PROVISION, id_="m1"):
    return ReceivedMessage(id=id_, body=json.dumps(body), queue=step.value, receives=receives)


def test_message_invokes_its_steps_function(functions):
    """The run parses it; the sweep has a function of its own. A requeue message has no instance ids for interrupt."""
    functions.queue.send([a_message(), a_message("prod", Step.TERMINATE, "drain é"), a_message(step=Step.SWEEP)])

    (trigger,) = functions.triggers(Step.TERMINATE)
    assert (trigger.cluster, type(trigger), trigger.reason) == ("prod", RequeueDue, "drain é")
    assert [t.cluster for t in functions.triggers(Step.PROVISION)] == ["dev"]
    assert [t.step for t in functions.triggers(Step.SWEEP)] == [Step.SWEEP]
    assert functions.bodies("delay") == []
    with pytest.raises(ConfigurationError):
        functions.queue.send([a_message(step=Step.INTERRUPT)])


def test_equal_messages_of_one_send_are_one_invocation(functions):
    """A plan may contain the same requeue several times."""
    functions.queue.send([a_message(), a_message(), a_message(reason="another")])
    assert len(functions.bodies(Step.PROVISION)) == 2


def test_message_waits_in_a_function_until_it_is_due(functions, clock):
    """Messages of one send wait in one invocation; an overdue one does not wait."""
    start = clock.now()
    third, second, overdue = (start + timedelta(seconds=seconds) for seconds in (60, 2.5, -3600))
    late = a_message("second", Step.TERMINATE, at=second)
    functions.queue.send([a_message("third", at=third), late, a_message("overdue", at=overdue)])
    assert [t.cluster for t in functions.triggers(Step.PROVISION)] == ["overdue"]
    (event,) = functions.bodies("delay")
    assert functions.run_delay(event) == 0

    assert functions.times(Step.TERMINATE) == [second]
    assert functions.times(Step.PROVISION) == [third]
    assert [(t.cluster, t.at) for t in functions.triggers(Step.PROVISION)] == [("third", third)]


def test_message_due_after_the_next_sweep_is_left_to_the_sweep(functions, clock):
    """The custom resources say what is due; the log says that nothing was sent."""
    functions.queue.send([a_message(at=clock.now() + timedelta(seconds=61))])
    assert not any(functions.invocations.values())
    ((level, text, fields),) = functions.lines
    assert (level, fields["cluster"]) == ("debug", "dev")
    assert "sweep" in text


def test_function_without_enough_time_hands_its_messages_on(functions, clock):
    """It waits as long as it can, so that invocations do not follow one another at once."""
    start = clock.now()
    functions.queue.send([a_message(at=start + timedelta(seconds=40)), a_message("b", at=start + timedelta(seconds=3))])
    (event,) = functions.bodies("delay")

    assert functions.run_delay(event, seconds=30) == 1
    assert [t.cluster for t in functions.triggers(Step.PROVISION)] == ["b"]
    assert clock.now() == start + timedelta(seconds=25)
    functions.run_delays()
    assert functions.times(Step.PROVISION) == [start + timedelta(seconds=40)]


def test_late_function_sends_what_is_due_even_without_time(functions, clock):
    """Otherwise a message could be handed on for ever."""
    functions.queue.send([a_message(at=clock.now() + timedelta(seconds=5))])
    (event,) = functions.bodies("delay")
    clock.advance(300)
    assert functions.run_delay(event, seconds=1) == 0
    assert (len(functions.bodies(Step.PROVISION)), functions.pauses) == (1, [])


def test_delayed_message_that_is_refused_is_kept_and_delays_no_other(functions, clock):
    """Alone in an event it fails the function, so that FunctionGraph repeats it and at last stores it."""
    at = clock.now() + timedelta(seconds=5)
    functions.queue.send([a_message(step=Step.TERMINATE, at=at), a_message(step=Step.CONSOLIDATE, at=at)])
    (event,) = functions.bodies("delay")
    terminate = functions.invocations.pop(f"{PREFIX}terminate")

    assert functions.run_delay(event) == 1
    assert len(functions.bodies(Step.CONSOLIDATE)) == 1
    (rest,) = functions.bodies("delay")
    assert [message["function"] for message in rest["messages"]] == ["terminate"]
    with pytest.raises(ConfigurationError, match="no function"):
        functions.run_delay(rest)
    assert functions.bodies("delay") == []

    functions.invocations[f"{PREFIX}terminate"] = terminate
    assert functions.run_delay(rest) == 0
    assert len(functions.bodies(Step.TERMINATE)) == 1


def test_delayed_messages_are_divided_among_invocations_by_size(functions):
    """An invocation has 256 KB; a message that would not fit beside the rest of the event goes without delay.

    Of many small messages, what JSON needs between them counts, too.
    """
    large = received({"id": "large", "text": "x" * (LARGEST_BODY_BYTES - 500)}, id_="large")
    five = [received({"id": str(n), "text": "x" * 100_000}, id_=str(n)) for n in range(5)]
    functions.queue.retry(dict.fromkeys([*five, large], 2))

    assert [body["id"] for body in functions.bodies(Step.PROVISION)] == ["large"]
    events = functions.bodies("delay")
    assert [len(event["messages"]) for event in events] == [2, 2, 1]
    for event in events:
        functions.run_delay(event)
    assert sorted(body["id"] for body in functions.bodies(Step.PROVISION)) == ["0", "1", "2", "3", "4"]

    functions.queue.retry({received({}, id_=str(n)): 2 for n in range(6000)})
    events = functions.bodies("delay")
    assert sum(len(event["messages"]) for event in events) == 6000
    assert 1 < len(events) < 4


def test_message_of_the_largest_size_is_sent(functions):
    """FunctionGraph refuses one byte more, and the function raises the error. Other messages are sent."""
    left = LARGEST_BODY_BYTES - len('{"text":"","receives":1}')
    functions.queue.retry({received({"text": "x" * left}): 2})
    assert len(functions.bodies(Step.PROVISION)) == 1
    with pytest.raises(CloudProviderError, match=str(LARGEST_BODY_BYTES + 1)):
        functions.queue.retry({received({"text": "x" * (left + 1)}): 2})

    huge = received({"id": "huge", "text": "é" * LARGEST_BODY_BYTES}, id_="huge")
    with pytest.raises(CloudProviderError, match=str(LARGEST_BODY_BYTES)):
        functions.queue.retry({huge: 1, received({"id": "small"}): 1})
    assert [len(event["messages"]) for event in functions.bodies("delay")] == [1]


def test_repeated_interruption_arrives_as_it_was_but_for_one_cluster(functions, clock):
    """An event of several clusters is repeated for one that failed; it is delivered after the delay."""
    kind, reason = InterruptionKind.SPOT_INTERRUPTED, "ECS:server:interruptServer"
    where = {"cluster": "emea", "account": DOMAIN_ID, "region": "cn-north-4"}
    ids = ("0f5b6a7c-9d8e-4f10-a1b2-c3d4e5f60718",)
    interruption = Interruption(id="t1", reason=reason, time=clock.now(), kind=kind, instance_ids=ids, **where)
    functions.queue.send_interruptions("interrupt", [interruption], 2)

    assert functions.bodies(Step.INTERRUPT) == []
    functions.run_delays()
    assert functions.triggers(Step.INTERRUPT) == [interruption]
    assert functions.pauses == [2]


def test_retried_message_is_sent_again_with_its_receives(functions):
    """Its body counts them, since FunctionGraph does not say which retry an invocation is."""
    functions.queue.send([a_message()])
    (body,) = functions.bodies(Step.PROVISION)
    functions.queue.retry({received(body): 4})

    assert functions.bodies(Step.PROVISION) == []
    functions.run_delays()
    (again,) = functions.bodies(Step.PROVISION)
    assert (receives_of(json.dumps(body)), receives_of(json.dumps(again))) == (1, 2)
    assert parse_trigger(again) == parse_trigger(body)
    assert functions.pauses == [4]


def test_message_whose_receives_are_used_up_is_raised(functions):
    """FunctionGraph then stores it; another message of the same retry is sent again."""
    old, new = (received({"id": id_}, receives=n, id_=id_) for id_, n in (("old", 5), ("new", 4)))
    with pytest.raises(CloudProviderError, match="old for provision failed 5 times") as caught:
        functions.queue.retry({old: 4, new: 4})
    assert not caught.value.retryable
    functions.run_delays()
    assert functions.bodies(Step.PROVISION) == [{"id": "new", "receives": 4}]


def test_dead_letters_are_left_to_functiongraph(functions):
    """The function's error sends them."""
    with functions.queue.hold([received({})]):
        assert functions.queue.send_to_dead_letters([received({})]) is False
    assert not any(functions.invocations.values())


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("APIGW.0308", RateLimitedError),
        ("429", RateLimitedError),
        ("500", CloudUnavailableError),
        ("FSS.0413", CloudProviderError),
        ("FSS.0403", ConfigurationError),
        ("APIGW.0301", CloudProviderError),
    ],
)
def test_functiongraphs_errors_are_translated(functions, code, kind):
    """The adapter raises no error of the SDK, and sends the other messages first."""
    is_repeated = code in ("APIGW.0308", "429", "500")
    functions.account.fail_next(CALL, code, functions.attempts if is_repeated else 1)

    with pytest.raises(kind) as caught:
        functions.queue.send([a_message("refused"), a_message("sent")])

    assert type(caught.value) is kind
    assert caught.value.context["code"] == code
    assert caught.value.context["operation"] == "functiongraph:function:invokeAsync"
    assert [t.cluster for t in functions.triggers(Step.PROVISION)] == ["sent"]


def test_unauthorized_function_names_the_permission(functions):
    """Policies grant the action on functions."""
    functions.account.deny("functiongraph:function:invokeAsync")
    with pytest.raises(ConfigurationError) as caught:
        functions.queue.send([a_message()])
    assert f"grant functiongraph:function:invokeAsync on {PREFIX}provision" in caught.value.context["to_do"]


def test_missing_function_is_a_wrong_setting(functions, clock):
    """The error names the function and the remedy. One of a step without a function comes before the message waits."""
    del functions.invocations[f"{PREFIX}provision"]
    with pytest.raises(ConfigurationError, match=f"no function {PREFIX}provision") as caught:
        functions.queue.send([a_message()])
    assert "JOURNEYMAN_FUNCTION_URN_PREFIX" in caught.value.context["to_do"]

    queue = FunctionQueue(lambda _call: None, clock, project_id="p", functions={}, delay_function="d")
    with pytest.raises(ConfigurationError, match="no function is configured for terminate"):
        queue.send([a_message(step=Step.TERMINATE, at=clock.now() + timedelta(seconds=9))])


def test_request_without_answer_is_sent_three_times(functions):
    """Each may have invoked the function, which a step tolerates; then the sweep does the work."""
    functions.account.lose_next_answer(CALL, 2)
    functions.queue.send([a_message()])
    assert len(functions.bodies(Step.PROVISION)) == 3

    functions.account.lose_next_answer(CALL, 3)
    with pytest.raises(CloudUnavailableError):
        functions.queue.send([a_message()])
    assert len(functions.bodies(Step.PROVISION)) == 3


WAITING = {"at": "2026-11-21T09:00:00Z", "function": "provision", "body": "{}"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"source": "requeue"}, "source"),
        ({"messages": None}, "messages"),
        ({"messages": [{**WAITING, "at": "2026-11-21T09:00:00"}]}, "at"),
        ({"messages": [{**WAITING, "function": "cook"}]}, "function"),
        (None, "object"),
    ],
)
def test_malformed_event_of_the_function_delay_names_the_field(functions, changes, named):
    """It becomes a dead letter of that function."""
    event = {"version": "1", "source": "delay", "messages": [], **(changes or {})}
    event = {key: value for key, value in event.items() if value is not None}
    with pytest.raises(MalformedEventError, match=named):
        functions.run_delay("text" if changes is None else event)


def test_delayed_body_that_is_no_json_delays_no_other(functions, clock):
    """It is handed on alone, and then raised as the function's error."""
    bad = {"at": clock.now().isoformat(), "function": "provision", "body": "not JSON"}
    event = {"version": "1", "source": "delay", "messages": [bad, {**bad, "body": "{}"}]}

    assert functions.run_delay(event) == 1
    assert functions.bodies(Step.PROVISION) == [{}]
    (rest,) = functions.bodies("delay")
    with pytest.raises(MalformedEventError, match="not JSON"):
        functions.run_delay(rest)
