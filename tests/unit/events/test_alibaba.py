"""Parsing of Alibaba Cloud's events: every sample in `events/alibaba/`, and errors of malformed events."""

import base64
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
from journeyman.ports import ClusterChanged, Interruption, RequeueDue, ScheduledRun
from tests.unit.events.test_parse import JSON

SAMPLES = Path(__file__).parents[3] / "events" / "alibaba"
EVENTS = sorted(p for folder in ("cloudmonitor", "ecs", "timer", "topic") for p in (SAMPLES / folder).glob("*.json"))
BATCHES = sorted((SAMPLES / "smq").glob("*.json"))
NINE = datetime(2026, 11, 21, 9, 0, tzinfo=timezone.utc)
OURS = "i-bp1a2b3c4d5e6f7g8h9i"


def sample(path):
    return json.loads((SAMPLES / path).read_text())


@pytest.mark.parametrize("path", EVENTS, ids=lambda p: str(p.relative_to(SAMPLES)))
def test_every_sample_event_parses_to_a_trigger_with_id_cluster_and_time(path):
    """The samples cover every shape."""
    trigger = parse_trigger(json.loads(path.read_text()))

    assert trigger.id
    assert trigger.cluster in {"demo", "*"}
    assert trigger.time.tzinfo is not None
    assert trigger.reason


@pytest.mark.parametrize("path", BATCHES, ids=lambda p: p.name)
def test_every_message_of_a_sample_batch_parses_unless_it_is_malformed(path):
    """One sample has a message whose JSON ends too early."""
    items = json.loads(path.read_text())
    malformed = [item for item in items if not item["data"]["messageBody"].endswith("}")]

    assert bool(malformed) == ("malformed" in path.name)
    assert all(parse_trigger(item).id for item in items if item not in malformed)
    for item in malformed:
        with pytest.raises(MalformedEventError):
            parse_trigger(item)


@pytest.mark.parametrize(
    ("path", "step", "type_", "kind"),
    [
        ("ecs/preemption.json", Step.INTERRUPT, Interruption, "spot_interrupted"),
        ("ecs/state-change-stopping.json", Step.INTERRUPT, Interruption, "instance_stopped"),
        ("ecs/state-change-stopped.json", Step.INTERRUPT, Interruption, "instance_stopped"),
        ("ecs/state-change-deleted.json", Step.INTERRUPT, Interruption, "instance_terminated"),
        ("ecs/state-change-running.json", Step.INTERRUPT, Interruption, "no_op"),
        ("ecs/maintenance-scheduled.json", Step.INTERRUPT, Interruption, "scheduled_change"),
        ("ecs/maintenance-canceled.json", Step.INTERRUPT, Interruption, "no_op"),
        ("ecs/maintenance-executed.json", Step.INTERRUPT, Interruption, "no_op"),
        ("ecs/system-failure-executing.json", Step.INTERRUPT, Interruption, "system_status"),
        ("ecs/instance-failure-executing.json", Step.INTERRUPT, Interruption, "instance_status"),
        ("ecs/performance-restricted.json", Step.INTERRUPT, Interruption, "no_op"),
        ("cloudmonitor/maintenance-scheduled.json", Step.INTERRUPT, Interruption, "scheduled_change"),
        ("cloudmonitor/maintenance-avoided.json", Step.INTERRUPT, Interruption, "no_op"),
        ("timer/minute-sweep.json", Step.SWEEP, ScheduledRun, None),
        ("timer/consolidation-window.json", Step.CONSOLIDATE, ScheduledRun, None),
        ("topic/pods-unschedulable.json", Step.PROVISION, ClusterChanged, None),
    ],
)
def test_each_event_has_its_trigger_and_step(path, step, type_, kind):
    """Kinds are Karpenter's metric reasons; events without effect are `no_op`."""
    trigger = parse_trigger(sample(path))

    assert (trigger.step, type(trigger)) == (step, type_)
    assert not kind or trigger.kind.value == kind


@pytest.mark.parametrize(
    "path", ["ecs/preemption.json", "ecs/preemption-without-instance-id.json", "cloudmonitor/preemption.json"]
)
def test_preemption_has_its_instance_account_and_region_in_every_shape(path):
    """EventBridge may leave out the instance id of the data; then it is in the subject."""
    trigger = parse_trigger(sample(path))

    assert (trigger.kind, trigger.instance_ids) == (InterruptionKind.SPOT_INTERRUPTED, (OURS,))
    assert (trigger.account, trigger.region, trigger.cluster) == ("100000000000001", "cn-hangzhou", "*")
    assert trigger.time == NINE


def test_maintenance_of_released_disks_has_no_effect():
    """The instance does not notice it."""
    event = sample("ecs/maintenance-scheduled.json")

    assert parse_trigger({**event, "type": "ecs:Instance:SystemMaintenance.CleanReleasedDisks"}).kind.value == "no_op"


def test_event_of_another_service_has_no_effect():
    """It must not fill the dead-letter queue."""
    event = {**sample("ecs/preemption.json"), "source": "acs.oss", "type": "oss:ObjectCreated:PutObject", "subject": ""}

    assert parse_trigger(event).kind is InterruptionKind.NO_OP


def test_timer_names_itself_and_its_time():
    """A repeated invocation of the timer has the same id."""
    trigger = parse_trigger(sample("timer/consolidation-window.json"))

    assert trigger.id == "consolidation-window-2026-11-21T22:00:00+00:00"
    assert (trigger.cluster, trigger.reason) == ("demo", "a disruption budget's window opens")
    assert trigger.time == datetime(2026, 11, 21, 22, 0, tzinfo=timezone.utc)


def test_smq_message_parses_as_its_body_decoded_or_not():
    """EventBridge decodes Base64 unless IsBase64Decode is false, and may pass JSON on as an object."""
    item = sample("smq/requeue-batch.json")[0]
    body = item["data"]["messageBody"]
    encoded = {**item, "data": {**item["data"], "messageBody": base64.b64encode(body.encode()).decode()}}
    as_object = {**item, "data": {**item["data"], "messageBody": json.loads(body)}}

    assert parse_trigger(item) == parse_trigger(json.loads(body))
    assert parse_trigger(encoded) == parse_trigger(as_object) == parse_trigger(item)
    assert isinstance(parse_trigger(item), RequeueDue)


def test_smq_message_of_an_event_rule_parses_as_the_event():
    """A rule of EventBridge sends ECS events to the interrupt queue."""
    assert parse_trigger(sample("smq/interrupt-batch.json")[0]) == parse_trigger(sample("ecs/preemption.json"))


def test_cloud_event_of_a_forwarder_parses_as_its_data():
    """A forwarder may publish to a bus."""
    detail = json.loads((SAMPLES.parent / "forwarder" / "node-gone.json").read_text())
    event = {**sample("ecs/preemption.json"), "source": "journeyman.forwarder", "data": detail}

    assert parse_trigger(event) == parse_trigger(detail)


def broken():
    spot, timer = sample("ecs/preemption.json"), sample("timer/consolidation-window.json")
    monitor, item = sample("cloudmonitor/preemption.json"), sample("smq/requeue-batch.json")[0]
    return [
        pytest.param({**spot, "subject": "", "data": {}}, "instanceId", id="no instance"),
        pytest.param({**spot, "subject": "acs:ecs:cn-hangzhou:1:disk/d-1", "data": {}}, "instanceId", id="a disk"),
        pytest.param({**spot, "data": {"instanceId": 7}}, "instanceId", id="instance is a number"),
        pytest.param({**spot, "data": "text"}, "data", id="data is text"),
        pytest.param({k: v for k, v in spot.items() if k != "time"}, "time", id="no time"),
        pytest.param({k: v for k, v in spot.items() if k != "source"}, "source", id="no source"),
        pytest.param({**monitor, "eventTime": "yesterday"}, "eventTime", id="CloudMonitor's time"),
        pytest.param({**monitor, "content": []}, "content", id="CloudMonitor's content"),
        pytest.param({**timer, "payload": "{"}, "payload of timer consolidation-window", id="payload is no JSON"),
        pytest.param({**timer, "payload": '{"source": "aws"}'}, "source", id="payload of another source"),
        pytest.param({**timer, "payload": '{"source": []}'}, "source", id="source of the payload is a list"),
        pytest.param({**timer, "triggerTime": "now"}, "triggerTime", id="timer without a time"),
        pytest.param({**item, "data": None}, "messageBody", id="message without data"),
        pytest.param({**item, "data": {"messageBody": 7}}, "messageBody", id="body is a number"),
        pytest.param({**item, "data": {"messageBody": "{", "messageId": "m7"}}, "m7", id="body is no JSON"),
        pytest.param({"TopicName": "t", "Message": 7}, "Message", id="topic message is a number"),
    ]


@pytest.mark.parametrize(("payload", "names"), broken())
def test_malformed_event_names_the_field_and_what_to_do(payload, names):
    """One error, as for AWS's events."""
    with pytest.raises(MalformedEventError) as caught:
        parse_trigger(payload)

    assert names in str(caught.value)
    assert "dead-letter" in caught.value.context["to_do"]


KEYS = ["specversion", "type", "source", "data", "product", "content", "triggerTime", "payload", "TopicName", "Message"]
VALUES = ["1.0", "acs.ecs", "mns:Queue:SendMessage", "ecs:Instance:StateChange", "2026-11-21T09:00:00Z", "ECS", "{}"]


@given(st.dictionaries(st.sampled_from([*KEYS, "id", "time", "name", "eventTime"]), JSON | st.sampled_from(VALUES)))
def test_any_payload_parses_or_raises_malformed_event(payload):
    """Any other exception would fail the other messages of the batch."""
    try:
        parse_trigger(payload)
    except MalformedEventError as error:
        assert error.message  # noqa: PT017 - both outcomes are valid, any other error is not
