"""FunctionGraph's entry: its context, invocations with one message, events with several, timers, delays, and requests of APIG."""

import base64
import json
from pathlib import Path

import pytest
from chalice.app import Chalice

from journeyman.cloud.messages import with_receives
from journeyman.core.plan import Step
from journeyman.errors import (
    ConfigurationError,
    KubeUnavailableError,
    MalformedEventError,
    RateLimitedError,
    UnknownClusterError,
)
from journeyman.runtime import huawei
from journeyman.runtime.composition import Runtime, installed
from journeyman.runtime.fgs_entry import (
    FgsInvocation,
    entry_point,
    http_request,
    initialize,
    initialize_delay,
    run_api,
    run_batch,
    run_delay,
    run_sweep,
)
from journeyman.runtime.fgs_entry import (
    runtime as current_runtime,
)
from journeyman.runtime.http_requests import chalice_event
from tests.helpers.fakes import FakeQueue
from tests.unit.runtime.test_batch import NOW, Context, FgsContext, StepOf, a_record, sweep_all, topic_event
from tests.unit.runtime.test_batch import adapters as adapters  # noqa: PLC0414 - fixtures
from tests.unit.runtime.test_batch import runtime as runtime  # noqa: PLC0414 - fixtures
from tests.unit.runtime.test_fc_entry import ROUTES

SAMPLES = Path(__file__).parents[3] / "events" / "huawei"


def sample(path):
    return json.loads((SAMPLES / path).read_text())


def answer_of(runtime, step, event):
    with installed(runtime):
        return run_batch(step.step.value, step, event, Context())


def a_message(number, cluster="blue", **more):
    return json.loads(a_record(number, cluster, **more)["body"])


class AllInBlue(dict):
    """The owners of every instance: cluster blue."""

    def get(self, _id, instances):
        return {"blue": instances["blue"]}


class KeepingQueue(FakeQueue):
    """A queue that keeps the bodies of the messages that are sent again, as they are sent."""

    def __init__(self):
        super().__init__()
        self.bodies = []

    def retry(self, seconds_by_message):
        super().retry(seconds_by_message)
        self.bodies += [with_receives(message.body, message.receives) for message in seconds_by_message]


def test_invocation_has_the_platforms_id_time_and_access_key(runtime):
    """The key is that of the current invocation, since agencies get new ones; the time may be negative at the end."""

    @entry_point
    def handler(event, context):
        return event, context.aws_request_id, context.get_remaining_time_in_millis()

    context = FgsContext()
    with installed(runtime):
        assert handler({"a": 1}, context) == ({"a": 1}, "req-1", 59_500)
    context.getRemainingTimeInMilliSeconds = lambda: -3
    assert FgsInvocation(context).get_remaining_time_in_millis() == 0

    key = huawei.function_credentials()
    assert (key.access_key_id, key.access_key_secret, key.security_token) == ("AK", "SK", "token")


def test_initializers_create_the_runtime(runtime):
    """The function `delay` has one of its own, since it needs no cloud provider."""
    with installed(runtime):
        assert initialize_delay(FgsContext()) is None
        assert initialize(FgsContext()) is None
        assert current_runtime() is runtime


@pytest.mark.parametrize("event", ['{"a": [1]}', b'{"a": [1]}'])
def test_event_as_text_is_parsed(runtime, event):
    with installed(runtime):
        assert entry_point(lambda event, context: event)(event, FgsContext()) == {"a": [1]}


@pytest.mark.parametrize("event", ["hello", "", '{"a":' * 10_000])
def test_event_that_is_no_json_names_what_is_wrong(runtime, adapters, event):
    """It is logged, since the invocation fails."""
    with installed(runtime), pytest.raises(MalformedEventError, match="cannot read the event"):
        entry_point(lambda event, context: None)(event, FgsContext())

    assert [fields["error"] for _, _, fields in adapters.lines] == ["MalformedEventError"]


def test_failed_message_is_sent_again_and_the_invocation_succeeds(runtime, adapters):
    """FunctionGraph would repeat it at once, and only three times."""
    step = StepOf(fails={"blue": RateLimitedError("slow down")})

    assert answer_of(runtime, step, a_message(1)) == {"messages": 1, "retried": ["m1"]}
    assert 1 <= adapters.fake_queue.retried["m1"] <= 2
    assert answer_of(runtime, step, {**a_message(2), "receives": 4}) == {"messages": 1, "retried": ["m2"]}
    assert 22 <= adapters.fake_queue.retried["m2"] <= 30
    assert answer_of(runtime, StepOf(), a_message(3)) == {"messages": 1, "retried": []}


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"version": "1", "source": "requeue"}, MalformedEventError),
        (a_message(1, "nowhere"), UnknownClusterError),
        (a_message(1, step="terminate"), MalformedEventError),
        (7, MalformedEventError),
        (None, MalformedEventError),
        ({}, MalformedEventError),
    ],
)
def test_message_that_can_never_succeed_fails_the_invocation(runtime, adapters, event, kind):
    """FunctionGraph stores it in the failure destination, and it is not sent again."""
    with pytest.raises(kind):
        answer_of(runtime, StepOf(), event)

    assert adapters.fake_queue.retried == {}
    assert [fields["error"] for _, _, fields in adapters.lines] == [kind.__name__]


def test_malformed_message_among_others_is_sent_again_alone(runtime, adapters):
    """Alone it fails its invocation; the others of the event are done once."""
    step = StepOf()
    event = topic_event(a_record(1), a_record(2, body="{"), a_record(3, "green"))

    assert answer_of(runtime, step, event) == {"messages": 3, "retried": ["record-2"]}
    assert sorted(step.runs) == [("blue", "m1"), ("green", "m3")]


@pytest.mark.parametrize(
    ("path", "runs"),
    [
        ("cts/interrupt-server.json", 1),
        ("cts/stop-two-servers.json", 1),
        ("smn/two-traces.json", 2),
        ("eventgrid/two-events.json", 2),
        ("cts/reboot-server.json", 0),
    ],
)
def test_event_of_a_trigger_runs_its_step(runtime, adapters, path, runs):
    """If a run fails, the event is sent to the step's function in its own shape, and parses there again."""
    adapters.owners, adapters.fake_queue = AllInBlue(), KeepingQueue()
    step = StepOf(Step.INTERRUPT)
    assert answer_of(runtime, step, sample(path))["retried"] == []
    assert len(step.runs) == runs

    failing = StepOf(Step.INTERRUPT, fails={"blue": KubeUnavailableError("down")})
    assert len(answer_of(runtime, failing, sample(path))["retried"]) == runs
    again = StepOf(Step.INTERRUPT)
    for message in adapters.fake_queue.bodies:
        answer_of(runtime, again, json.loads(message))
    assert sorted(again.runs) == sorted(step.runs)


def test_timer_of_a_window_starts_its_step(runtime, adapters):
    """Its user event names the cluster; a failed run is sent to the step's function."""
    event = {**sample("timer/consolidation-window.json"), "user_event": '{"cluster": "blue", "step": "consolidate"}'}
    step = StepOf(Step.CONSOLIDATE)
    assert answer_of(runtime, step, event) == {"messages": 1, "retried": []}
    assert [cluster for cluster, _ in step.runs] == ["blue"]

    answer_of(runtime, StepOf(Step.CONSOLIDATE, fails={"blue": RateLimitedError("slow")}), event)
    assert list(adapters.fake_queue.retried) == ["consolidation-window-2026-11-22T06:00:00+08:00"]


def test_timer_sweeps_all_clusters_and_a_message_sweeps_its_own(runtime, adapters):
    """The answers are those of the schedule on AWS, and of a message."""
    sweep = StepOf(Step.SWEEP)
    with installed(runtime):
        answer = run_sweep(sweep, sample("timer/minute-sweep.json"), Context())
        one = run_sweep(sweep, a_message(1, step="sweep"), Context())

    assert answer == sweep_all(runtime, StepOf(Step.SWEEP))
    assert sorted(cluster for cluster, _ in sweep.runs) == ["blue", "blue", "green"]
    assert one == {"messages": 1, "retried": []}
    assert adapters.counted[0] == ("journeyman_sweeps_total", {})


def test_failed_sweep_fails_the_timers_invocation(runtime):
    """The alarm on errors shows it."""
    with installed(runtime), pytest.raises(KubeUnavailableError):
        run_sweep(
            StepOf(Step.SWEEP, fails={"green": KubeUnavailableError("down")}),
            sample("timer/minute-sweep.json"),
            Context(),
        )


class DelayingQueue:
    def __init__(self):
        self.ends = []

    def deliver_delayed(self, event, *, ends_at):
        self.ends.append((event, ends_at))
        return 2


def test_function_delay_sends_messages_until_its_time_is_up(adapters):
    """The time that remains is the platform's."""
    queue = adapters.fake_queue = DelayingQueue()
    event = sample("async/delayed-messages.json")
    with installed(Runtime({}, adapters)):
        assert run_delay(event, Context()) == {"waiting": 2}

    ((given, ends_at),) = queue.ends
    assert given == event
    assert (ends_at - NOW).total_seconds() == 30


def test_function_delay_needs_a_queue_without_delays(runtime):
    """On another cloud it has no work."""
    with installed(runtime), pytest.raises(ConfigurationError, match="in queues"):
        run_delay({}, Context())


def test_request_of_apig_has_the_shape_of_api_gateway():
    """Chalice reads route, parameters, headers and body from it; the trigger's own path is not the application's."""
    event = chalice_event(http_request(sample("apig/post-event.json"), "/events"), ROUTES)

    assert event["requestContext"]["resourcePath"] == "/clusters/{name}/events"
    assert (event["requestContext"]["httpMethod"], event["pathParameters"]) == ("POST", {"name": "demo"})
    assert event["headers"]["authorization"] == "Bearer not-a-token"
    assert event["requestContext"]["identity"] == {"sourceIp": "203.0.113.7"}
    query = chalice_event(http_request(sample("apig/get-metrics.json")), ROUTES)["multiValueQueryStringParameters"]
    assert query == {"of": ["cluster,nodepools"]}


def test_repeated_headers_and_parameters_of_apig_are_kept():
    """They may be lists; a missing part is empty."""
    event = {
        "httpMethod": "get",
        "path": "/clusters",
        "headers": {"Accept": ["a", "b"]},
        "queryStringParameters": {"of": ["x", "y"]},
    }
    request = http_request(event)

    assert (request.method, request.headers, request.query) == ("GET", {"Accept": "a, b"}, {"of": ["x", "y"]})
    assert http_request({"httpMethod": "GET", "path": "/clusters", "headers": None}).headers == {}


def echo():
    app = Chalice(app_name="echo", configure_logs=False)

    @app.route("/echo", methods=["POST"], content_types=["application/json"])
    def post():
        return {"body": app.current_request.json_body}

    return app


@pytest.mark.parametrize(
    ("body", "is_base64", "status", "text"),
    [
        (base64.b64encode(b'{"a": 1}').decode(), True, 200, '{"body":{"a":1}}'),
        ('{"a": 1}', False, 200, '{"body":{"a":1}}'),
        ("a", True, 400, "not valid Base64"),
        ("{", False, 400, "BadRequest"),
    ],
)
def test_answer_to_apig_has_all_four_fields(body, is_base64, status, text):
    """Without one of them the caller would see an internal error."""
    event = {"httpMethod": "POST", "path": "/echo", "headers": {"content-type": "application/json"}}
    answer = run_api(echo(), {**event, "body": body, "isBase64Encoded": is_base64}, Context())

    assert set(answer) == {"statusCode", "headers", "body", "isBase64Encoded"}
    assert (answer["statusCode"], answer["isBase64Encoded"]) == (status, False)
    assert text in answer["body"]


def test_path_without_a_route_is_not_found():
    """The gateway passes all paths on; a base path is removed only as a whole."""
    event = {"httpMethod": "GET", "headers": {}}

    assert run_api(echo(), {**event, "path": "/nothing"}, Context())["statusCode"] == 404
    assert http_request({**event, "path": "/events-more/x"}, "/events").path == "/events-more/x"
    assert http_request({**event, "path": "/clusters"}, "/events").path == "/clusters"
