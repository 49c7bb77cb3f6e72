"""Function Compute's entry: events as bytes, the time that remains, batches of EventBridge, timers, and HTTP requests."""

import json
from pathlib import Path

import pytest

from journeyman.core.plan import Step
from journeyman.errors import KubeUnavailableError, MalformedEventError, RateLimitedError
from journeyman.ports import ReceivedMessage
from journeyman.runtime.composition import installed
from journeyman.runtime.fc_entry import (
    Invocation,
    entry_point,
    http_request,
    initialize,
    run_batch,
    run_sweep,
)
from journeyman.runtime.http_requests import chalice_event, http_response
from tests.unit.runtime.test_batch import (
    FC_CONTEXT,
    Context,
    StepOf,
    a_record,
    an_interruption,
    cloud_event,
    received_again,
    sweep_all,
)
from tests.unit.runtime.test_batch import adapters as adapters  # noqa: PLC0414 - fixtures
from tests.unit.runtime.test_batch import runtime as runtime  # noqa: PLC0414 - fixtures

SAMPLES = Path(__file__).parents[3] / "events" / "alibaba"


def sample(path):
    return json.loads((SAMPLES / path).read_text())


def answer_of(runtime, step, event):
    with installed(runtime):
        return run_batch(step.step.value, step, event, Context())


def test_remaining_time_is_that_of_the_functions_timeout(adapters):
    invocation = Invocation(FC_CONTEXT, adapters.clock)
    assert (invocation.aws_request_id, invocation.get_remaining_time_in_millis()) == ("req-1", 60_000)

    adapters.clock.advance(59.5)
    assert invocation.get_remaining_time_in_millis() == 500
    adapters.clock.advance(5)
    assert invocation.get_remaining_time_in_millis() == 0


def test_entry_point_parses_the_event_and_the_initializer_creates_the_runtime(runtime):
    """Function Compute passes bytes."""

    @entry_point
    def handler(event, context):
        return event, context.aws_request_id

    with installed(runtime):
        assert initialize(FC_CONTEXT) is None
        assert handler(b'[{"a": 1}]', FC_CONTEXT) == ([{"a": 1}], "req-1")


@pytest.mark.parametrize("event", [b"{", b"\xff", b'{"a":' * 10_000])
def test_event_that_is_no_json_names_what_is_wrong(runtime, adapters, event):
    """It is logged, since the invocation fails."""
    with installed(runtime), pytest.raises(MalformedEventError, match="cannot read the event"):
        entry_point(lambda event, context: None)(event, FC_CONTEXT)

    assert [fields["error"] for _, _, fields in adapters.lines] == ["MalformedEventError"]


def test_failed_message_is_retried_and_the_others_are_done(runtime, adapters):
    """The function returns without an error, so that EventBridge deletes the batch."""
    step = StepOf(fails={"green": RateLimitedError("slow down")})
    records = [a_record(1), received_again(a_record(2, "green"), 5), a_record(3, body="{")]

    answer = answer_of(runtime, step, [cloud_event(record) for record in records])

    assert answer == {"messages": 3, "retried": ["record-2"], "deadLetters": ["record-3"]}
    assert 22 <= adapters.fake_queue.retried["record-2"] <= 30
    (letter,) = adapters.fake_queue.dead_letters
    assert letter == ReceivedMessage(id="record-3", body="{", queue="provision")


@pytest.mark.parametrize("item", [7, None, [], "text"])
def test_item_that_is_no_cloud_event_becomes_a_dead_letter(runtime, adapters, item):
    step = StepOf()
    answer = answer_of(runtime, step, [cloud_event(a_record(1)), item])

    assert (answer["deadLetters"], step.runs) == (["item-1"], [("blue", "m1")])
    assert len(adapters.fake_queue.dead_letters) == 1


def test_event_of_eventbridge_may_invoke_the_function_directly(runtime, adapters):
    """If a run fails, the whole event is sent to the step's queue, and parses there."""
    event = sample("ecs/preemption.json")
    adapters.owners = {event["id"]: {"blue": ("i-bp1a2b3c4d5e6f7g8h9i",)}}
    step = StepOf(Step.INTERRUPT)
    assert answer_of(runtime, step, event)["retried"] == []
    assert step.runs == [("blue", event["id"])]

    failing = StepOf(Step.INTERRUPT, fails={"blue": KubeUnavailableError("down")})
    assert answer_of(runtime, failing, event)["retried"] == [event["id"]]


def test_failed_event_of_several_clusters_is_repeated_for_one(runtime, adapters):
    """It goes to the interrupt queue, although it came directly."""
    step = StepOf(Step.INTERRUPT, fails={"green": KubeUnavailableError("down")})
    event = json.loads(an_interruption(1)["body"])

    assert answer_of(runtime, step, [cloud_event(a_record(1, body=json.dumps(event)))])["retried"] == []
    assert [again.cluster for again in adapters.fake_queue.interruptions] == ["green"]


def test_timer_of_a_window_starts_its_step(runtime, adapters):
    """Its payload names the cluster; a failed run is sent to the step's queue."""
    event = {**sample("timer/consolidation-window.json"), "payload": '{"cluster": "blue", "step": "consolidate"}'}
    step = StepOf(Step.CONSOLIDATE)
    assert answer_of(runtime, step, event) == {"messages": 1, "retried": [], "deadLetters": []}
    assert [cluster for cluster, _ in step.runs] == ["blue"]

    answer_of(runtime, StepOf(Step.CONSOLIDATE, fails={"blue": RateLimitedError("slow")}), event)
    assert list(adapters.fake_queue.retried) == ["2026-11-21T22:00:00Z"]


def test_timer_sweeps_all_clusters_and_messages_sweep_theirs(runtime, adapters):
    """The answers are those of the schedule on AWS, and of a batch; a message may also invoke the function directly."""
    sweep = StepOf(Step.SWEEP)
    with installed(runtime):
        answer = run_sweep(sweep, sample("timer/minute-sweep.json"), Context())
        batch = run_sweep(sweep, [cloud_event(a_record(1, step="sweep"))], Context())
        direct = run_sweep(sweep, json.loads(a_record(2, "green", step="sweep")["body"]), Context())

    assert answer == sweep_all(runtime, StepOf(Step.SWEEP))
    assert sorted(cluster for cluster, _ in sweep.runs) == ["blue", "blue", "green", "green"]
    assert batch == direct == {"messages": 1, "retried": [], "deadLetters": []}
    assert adapters.counted[0] == ("journeyman_sweeps_total", {})


ROUTES = ("/clusters", "/clusters/{name}/plan", "/clusters/{name}/metrics", "/clusters/{name}/events")


def test_http_request_has_the_shape_of_api_gateway():
    """Chalice reads route, parameters, headers and body from it."""
    event = chalice_event(http_request(sample("http/post-event.json")), ROUTES)

    assert event["requestContext"]["resourcePath"] == "/clusters/{name}/events"
    assert event["requestContext"]["httpMethod"] == "POST"
    assert event["pathParameters"] == {"name": "demo"}
    assert event["headers"]["Authorization"] == "Bearer not-a-token"
    assert json.loads(event["body"])["cluster"] == "demo"
    query = chalice_event(http_request(sample("http/get-metrics.json")), ROUTES)["multiValueQueryStringParameters"]
    assert query == {"of": ["cluster,nodepools"]}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/clusters/a%2Fb%20c/plan", "a/b c"),
        ("/clusters/demo/plan/", "demo"),
        ("/clusters//plan", None),
        ("/clusters/demo", None),
        ("/clusters/demo/plan/more", None),
        ("/", None),
    ],
)
def test_path_is_matched_with_the_routes(path, name):
    """A parameter may contain an encoded slash; a path without a route has no event."""
    event = chalice_event(http_request({**sample("http/get-plan.json"), "rawPath": path}), ROUTES)

    assert (event and event["pathParameters"]) == (name and {"name": name})


def test_response_joins_repeated_headers():
    answer = {"statusCode": 200, "body": "x", "headers": {"A": "1"}, "multiValueHeaders": {"B": ["2", "3"]}}

    assert http_response(answer) == {
        "statusCode": 200,
        "headers": {"A": "1", "B": "2, 3"},
        "body": "x",
        "isBase64Encoded": False,
    }
