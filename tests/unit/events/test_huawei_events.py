"""Parsing of Huawei Cloud's events: every sample in `events/huawei/`, and errors of malformed events."""

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.core.lifecycle.interruption import InterruptionKind
from journeyman.core.plan import Step
from journeyman.errors import MalformedEventError
from journeyman.events import parse_trigger
from journeyman.events.huawei_events import item_id, items_of
from journeyman.ports import ClusterChanged, Interruption, RequeueDue, ScheduledRun
from tests.unit.events.test_parse import JSON

SAMPLES = Path(__file__).parents[3] / "events" / "huawei"
EVENTS = sorted(
    path
    for folder in ("async", "cts", "eventgrid", "smn", "timer")
    for path in (SAMPLES / folder).glob("*.json")
    if path.name != "delayed-messages.json"  # of the function `delay`, which runs no step
)
NINE = datetime(2026, 11, 21, 9, 0, tzinfo=timezone.utc)
SERVER = "6c1f4a52-3b8d-4f0e-9a7c-5d2e1b0f9a83"
OTHER = "6c1f4a52-3b8d-4f0e-9a7c-5d2e1b0f9a84"


def sample(path):
    return json.loads((SAMPLES / path).read_text())


def trace(**changes):
    return {"cts": {**sample("cts/interrupt-server.json")["cts"], **changes}}


def topic(message):
    """Return an SMN event with this message."""
    event = sample("smn/interrupt-server.json")
    (record,) = event["record"]
    text = message if isinstance(message, str) else json.dumps(message)
    return {**event, "record": [{**record, "smn": {**record["smn"], "message": text}}]}


@pytest.mark.parametrize("path", EVENTS, ids=lambda p: str(p.relative_to(SAMPLES)))
def test_every_part_of_a_sample_has_a_trigger_and_an_id(path):
    """The samples cover every shape."""
    for item in items_of(json.loads(path.read_text())):
        trigger = parse_trigger(item)

        assert item_id(item)
        assert trigger.id
        assert trigger.reason
        assert trigger.cluster in {"demo", "*"}
        assert trigger.time.utcoffset() is not None


@pytest.mark.parametrize(
    ("path", "step", "type_", "kind"),
    [
        ("cts/interrupt-server.json", Step.INTERRUPT, Interruption, "spot_interrupted"),
        ("cts/delete-server.json", Step.INTERRUPT, Interruption, "instance_terminated"),
        ("cts/delete-server-refused.json", Step.INTERRUPT, Interruption, "no_op"),
        ("cts/stop-two-servers.json", Step.INTERRUPT, Interruption, "instance_stopped"),
        ("cts/reboot-server.json", Step.INTERRUPT, Interruption, "no_op"),
        ("cts/create-server.json", Step.INTERRUPT, Interruption, "no_op"),
        ("smn/cloud-eye-reboot-scheduled.json", Step.INTERRUPT, Interruption, "scheduled_change"),
        ("smn/pods-unschedulable.json", Step.PROVISION, ClusterChanged, None),
        ("async/requeue-received-again.json", Step.TERMINATE, RequeueDue, None),
        ("async/interruption-of-one-cluster.json", Step.INTERRUPT, Interruption, "spot_interrupted"),
        ("timer/minute-sweep.json", Step.SWEEP, ScheduledRun, None),
        ("timer/consolidation-window.json", Step.CONSOLIDATE, ScheduledRun, None),
    ],
)
def test_each_event_has_its_trigger_and_step(path, step, type_, kind):
    """Kinds are Karpenter's metric reasons; events without effect are `no_op`."""
    trigger = parse_trigger(sample(path))

    assert (trigger.step, type(trigger)) == (step, type_)
    assert not kind or trigger.kind.value == kind


@pytest.mark.parametrize(
    "path", ["cts/interrupt-server.json", "smn/interrupt-server.json", "eventgrid/interrupt-server.json"]
)
def test_spot_interruption_is_the_same_by_every_way(path):
    """The trace names the ECS server, the account and the time of the announcement."""
    trigger = parse_trigger(sample(path))

    assert (trigger.kind, trigger.instance_ids, trigger.time) == (InterruptionKind.SPOT_INTERRUPTED, (SERVER,), NINE)
    assert (trigger.cluster, trigger.account) == ("*", "d78cbac186b744899480f25bd022f468")
    assert trigger.reason == "ECS:server:interruptServer"


@pytest.mark.parametrize(
    "wrapped",
    [
        {"cts": "TRACE"},
        {"trace": json.dumps({"trace_name": "interruptServer"})},
        {"detail": {"message": "TRACE"}},
        {"data": {"cts": "TRACE"}},
    ],
)
def test_trace_in_a_notice_is_found_in_any_wrapping(wrapped):
    """The shape of CTS's notices is not documented."""
    whole = sample("cts/interrupt-server.json")["cts"]
    text = json.dumps(wrapped)
    inner = json.dumps({"trace_name": "interruptServer"})
    text = text.replace('"TRACE"', json.dumps(whole)).replace(json.dumps(inner), json.dumps(json.dumps(whole)))

    assert parse_trigger(topic(text)).instance_ids == (SERVER,)


@pytest.mark.parametrize(
    "time",
    [
        1795251600000,
        1795251600,
        "1795251600000",
        1795251600000000000,
        1795251600000000,
        "2026/11/21 17:00:00 GMT+08:00",
        "2026/11/21 09:00:00 GMT+00:00",
        "2026-11-21T09:00:00.000000000Z",
        "2026-11-21T17:00:00+08:00",
    ],
)
def test_time_of_a_trace_has_many_forms(time):
    """`record_time` counts if `time` is missing."""
    assert parse_trigger(trace(time=time)).time == NINE
    assert parse_trigger(trace(time=None, record_time=time)).time == NINE


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "instance_stopped"),
        ({"code": "200"}, "instance_stopped"),
        ({"code": 409}, "no_op"),
        ({"code": "403"}, "no_op"),
        ({"trace_status": "incident"}, "no_op"),
        ({"trace_status": None, "trace_rating": "error"}, "no_op"),
        ({"trace_status": "warning"}, "instance_stopped"),
        ({"trace_status": "warning", "code": None}, "no_op"),
        ({"trace_status": None, "code": None}, "instance_stopped"),
        ({"service_type": "EVS"}, "no_op"),
        ({"service_type": None}, "instance_stopped"),
    ],
)
def test_failed_operation_has_no_effect(changes, kind):
    """The server goes on running."""
    event = {"cts": {**trace()["cts"], "trace_name": "stopServer", "trace_status": "normal", **changes}}

    assert parse_trigger(event).kind.value == kind


@pytest.mark.parametrize("name", ["deleteServer", "deleteServerV2", "deleteServerV21", "deleteVmByNative"])
def test_every_way_to_delete_a_server_terminates_the_instance(name):
    """ECS has four operations for it."""
    assert parse_trigger(trace(trace_name=name, trace_status="normal")).kind is InterruptionKind.INSTANCE_TERMINATED


@pytest.mark.parametrize(
    "changes",
    [
        {"request": {"servers": [{"id": SERVER}, {"id": OTHER}]}},
        {"request": json.dumps({"os-stop": {"servers": [{"id": SERVER}, {"id": OTHER}]}})},
        {"request": {"server_id": SERVER}, "response": json.dumps({"servers": [OTHER]})},
        {"request": {"serverIds": [SERVER, OTHER, "no server", 7]}},
        {"resource_id": f"{SERVER}, {OTHER}"},
        {"resource_id": SERVER, "request": [{"server": {"id": OTHER}}], "response": "{"},
    ],
)
def test_operation_on_several_servers_names_them_all(changes):
    """The ids are in the request or the response, as object or as JSON."""
    event = trace(trace_name="stopServer", trace_status="normal", **{"resource_id": None, **changes})

    assert parse_trigger(event).instance_ids == (SERVER, OTHER)


def test_trace_keeps_its_region_if_it_has_one():
    """Then only clusters of that region are looked at."""
    assert parse_trigger(trace(region_id="cn-north-4")).region == "cn-north-4"
    assert parse_trigger(trace(user="ops")).account == ""


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"metric_name": "system_maintenance_inquiring"}, "scheduled_change"),
        ({"metric_name": None, "event_name": "instance-redeploy_executing"}, "scheduled_change"),
        ({"metric_name": "instance_reboot_completed"}, "no_op"),
        ({"metric_name": "instance_reboot_canceled"}, "no_op"),
        ({"metric_name": "cpu_util"}, "no_op"),
        ({"alarm_status": "ok"}, "no_op"),
    ],
)
def test_cloud_eye_notice_of_an_upcoming_event_is_a_scheduled_change(changes, kind):
    """Events that are over, and alarms about metrics, have no effect."""
    notice = json.loads(sample("smn/cloud-eye-reboot-scheduled.json")["record"][0]["smn"]["message"])
    trigger = parse_trigger(topic({**notice, **changes}))

    assert trigger.kind.value == kind
    assert trigger.instance_ids == (() if kind == "no_op" else (SERVER,))


def test_event_of_another_service_has_no_effect():
    """It must not become a dead letter."""
    event = {**sample("eventgrid/interrupt-server.json"), "source": "HC.OBS.DWR", "type": "OBS:DWR:ObjectCreated:PUT"}

    assert parse_trigger(event).kind is InterruptionKind.NO_OP


def test_event_with_several_records_is_divided():
    """Each part keeps the envelope, so that it can be sent again alone."""
    event = sample("smn/two-traces.json")
    first, second = items_of(event)

    assert [parse_trigger(item).instance_ids for item in (first, second)] == [(SERVER,), (OTHER,)]
    assert first["functionname"] == event["functionname"]
    assert item_id(first) != item_id(second)
    assert items_of(first) == [first]
    assert [len(items_of(e)) for e in (sample("eventgrid/two-events.json"), [1, {}], 7, {})] == [2, 2, 1, 1]


def test_timer_names_itself_and_its_time():
    """A repeated event of the timer has the same id."""
    trigger = parse_trigger(sample("timer/consolidation-window.json"))

    assert trigger.id == "consolidation-window-2026-11-21T22:00:00+00:00"
    assert (trigger.cluster, trigger.reason) == ("demo", "a disruption budget's window opens")


def broken():
    timer, grid = sample("timer/consolidation-window.json"), sample("eventgrid/interrupt-server.json")
    notice = json.loads(sample("smn/cloud-eye-reboot-scheduled.json")["record"][0]["smn"]["message"])
    nowhere = {**notice, "dimension": "", "template_variable": {"ResourceId": "ecs-1"}}
    return [
        pytest.param({"cts": "text"}, "$.cts", id="trace is text"),
        pytest.param({"cts": {}}, "trace_name", id="no name of the trace"),
        pytest.param(trace(resource_id=None, request="x"), "resource_id", id="no server"),
        pytest.param(trace(resource_id=7), "resource_id", id="server is a number"),
        pytest.param(trace(resource_id="x" * 300), "resource_id", id="server's id is too long"),
        pytest.param(trace(time="yesterday"), "`time`", id="time is a word"),
        pytest.param(trace(time=10**40), "`time`", id="time is too late"),
        pytest.param(trace(time="9" * 5000), "`time`", id="time has too many digits"),
        pytest.param(trace(time=True), "`time`", id="time is a Boolean"),
        pytest.param(trace(time=None, record_time=None), "`time`", id="no time"),
        pytest.param(trace(trace_id=["t"]), "trace_id", id="id is a list"),
        pytest.param(
            {**timer, "user_event": "{"}, "user event of timer consolidation-window", id="user event is no JSON"
        ),
        pytest.param({**timer, "user_event": '{"source": "aws"}'}, "source", id="user event of another source"),
        pytest.param({**timer, "user_event": {}}, "user_event", id="user event is an object"),
        pytest.param({**timer, "time": "now"}, "$.time", id="timer without a time"),
        pytest.param({"record": []}, "$.record", id="no record"),
        pytest.param({"record": [{}]}, "smn", id="record of another service"),
        pytest.param({"record": "text"}, "record", id="record is text"),
        pytest.param(sample("smn/two-traces.json"), "expected one message, got 2", id="two records at once"),
        pytest.param(topic("An alarm was triggered."), "message bf94b63a", id="message is prose"),
        pytest.param(topic({"text": "hello"}), "source", id="message of an unknown sender"),
        pytest.param(topic(nowhere), "dimension", id="notice without a server"),
        pytest.param(topic({**notice, "time": None}), "`time`", id="notice without a time"),
        pytest.param({**grid, "data": {"bucket": "b"}}, "$.data", id="EventGrid event without a trace"),
        pytest.param({**grid, "id": 7}, "$.id", id="EventGrid event with a number as id"),
        pytest.param({"trigger_type": "OBS"}, "source", id="event of another trigger"),
    ]


@pytest.mark.parametrize(("payload", "names"), broken())
def test_malformed_event_names_the_field_and_what_to_do(payload, names):
    """One error, as for the events of the other clouds."""
    with pytest.raises(MalformedEventError) as caught:
        parse_trigger(payload)

    assert names in str(caught.value)
    assert "dead-letter" in caught.value.context["to_do"]


def nested(depth):
    """Return JSON text in JSON text, which doubles with each level."""
    text = "{}"
    for _ in range(depth):
        text = json.dumps({"message": text})
    return text


@pytest.mark.parametrize(
    "payload",
    [
        trace(request='{"a":' * 5000, time=1),
        trace(request=[[[[[[[[[[{"server_id": OTHER}]]]]]]]]]]),
        topic(nested(9)),
        topic('{"cts":' * 5000),
    ],
)
def test_deeply_nested_event_parses_or_is_malformed(payload):
    """It must not end the process, nor take long."""
    try:
        assert parse_trigger(payload).instance_ids == (SERVER,)
    except MalformedEventError as error:
        assert error.message  # noqa: PT017 - both outcomes are valid, any other error is not


KEYS = [
    "cts",
    "record",
    "trigger_type",
    "time",
    "trigger_name",
    "user_event",
    "specversion",
    "source",
    "type",
    "id",
    "data",
]
TRACE = [
    "trace_name",
    "time",
    "record_time",
    "code",
    "resource_id",
    "request",
    "response",
    "user",
    "trace_id",
    "service_type",
]
VALUES = [
    "TIMER",
    "HC.ECS",
    "ECS:CloudTrace:ApiCall",
    "interruptServer",
    "stopServer",
    SERVER,
    "{}",
    1795251600000,
    "2026-11-21T09:00:00Z",
]
LEAVES = JSON | st.sampled_from(VALUES)
TRACES = st.dictionaries(st.sampled_from(TRACE), LEAVES)


@given(
    st.dictionaries(st.sampled_from(KEYS), LEAVES | TRACES)
    | TRACES.map(lambda found: {"cts": {"trace_name": "stopServer", "time": 1, **found}})
    | (TRACES | LEAVES).map(lambda message: {"record": [{"smn": {"message": json.dumps(message)}}]})
)
def test_any_payload_parses_or_raises_malformed_event(payload):
    """Any other exception would fail the other messages of the event."""
    for item in items_of(payload):
        item_id(item)
        try:
            parse_trigger(item if isinstance(item, dict) else {"body": item})
        except MalformedEventError as error:
            assert error.message  # noqa: PT017 - both outcomes are valid, any other error is not
