"""Parsing of every sample in `events/`, and errors of malformed events."""

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.core.lifecycle.health import INTERRUPTION_KINDS
from journeyman.core.lifecycle.interruption import InterruptionKind
from journeyman.core.plan import Step
from journeyman.errors import MalformedEventError
from journeyman.events import parse_trigger
from journeyman.events.eventbridge import STATE_KINDS
from journeyman.ports import AlarmChanged, ClusterChanged, Interruption, RequeueDue, ScheduledRun

SAMPLES = Path(__file__).parents[3] / "events"
MESSAGES = sorted(
    path
    for folder in ("forwarder", "requeue", "schedule", "eventbridge")
    for path in (SAMPLES / folder).rglob("*.json")
)
BATCHES = sorted((SAMPLES / "sqs").glob("*.json"))
NINE = datetime(2026, 11, 21, 9, 0, tzinfo=timezone.utc)
OURS = "i-0123456789abcdef0"


def sample(path: str) -> dict:
    return json.loads((SAMPLES / path).read_text())


@pytest.mark.parametrize("path", MESSAGES, ids=lambda p: str(p.relative_to(SAMPLES)))
def test_every_sample_parses_to_a_trigger_with_id_cluster_and_time(path):
    """The samples cover every source."""
    trigger = parse_trigger(json.loads(path.read_text()))

    assert trigger.id
    assert trigger.cluster in {"demo", "*"}
    assert trigger.time.tzinfo is not None
    assert trigger.reason


@pytest.mark.parametrize(
    ("path", "step", "type_", "kind"),
    [
        ("forwarder/pods-unschedulable.json", Step.PROVISION, ClusterChanged, None),
        ("requeue/terminate-now.json", Step.TERMINATE, RequeueDue, None),
        ("schedule/minute-sweep.json", Step.SWEEP, ScheduledRun, None),
        ("schedule/scheduled-rule.json", Step.SWEEP, ScheduledRun, None),
        ("schedule/consolidation-window.json", Step.CONSOLIDATE, ScheduledRun, None),
        ("eventbridge/ec2-spot-interruption/terminate.json", Step.INTERRUPT, Interruption, "spot_interrupted"),
        (
            "eventbridge/ec2-rebalance-recommendation/elevated-risk.json",
            Step.INTERRUPT,
            Interruption,
            "rebalance_recommendation",
        ),
        (
            "eventbridge/ec2-capacity-reservation-interruption/reclaimed.json",
            Step.INTERRUPT,
            Interruption,
            "capacity_reservation_interrupted",
        ),
        ("eventbridge/ec2-state-change/stopping.json", Step.INTERRUPT, Interruption, "instance_stopped"),
        ("eventbridge/ec2-state-change/stopped.json", Step.INTERRUPT, Interruption, "instance_stopped"),
        ("eventbridge/ec2-state-change/shutting-down.json", Step.INTERRUPT, Interruption, "instance_terminated"),
        ("eventbridge/ec2-state-change/terminated.json", Step.INTERRUPT, Interruption, "instance_terminated"),
        ("eventbridge/ec2-state-change/running.json", Step.INTERRUPT, Interruption, "no_op"),
        ("eventbridge/health/instance-retirement.json", Step.INTERRUPT, Interruption, "scheduled_change"),
        ("eventbridge/health/open-issue.json", Step.INTERRUPT, Interruption, "no_op"),
        ("eventbridge/cloudwatch-alarm/alarm.json", Step.INTERRUPT, AlarmChanged, None),
    ],
)
def test_each_source_has_its_trigger_and_step(path, step, type_, kind):
    """Kinds are Karpenter's metric reasons; ignored events are `no_op`."""
    trigger = parse_trigger(sample(path))

    assert (trigger.step, type(trigger)) == (step, type_)
    assert not kind or trigger.kind.value == kind


def test_kinds_are_those_of_the_interrupt_step():
    """An unknown kind would send real interruptions to the dead-letter queue."""
    triggers = [parse_trigger(json.loads(p.read_text())) for p in MESSAGES]
    kinds = {t.kind for t in triggers if isinstance(t, Interruption)} | {*STATE_KINDS.values()}

    assert kinds == {*InterruptionKind} - {*INTERRUPTION_KINDS.values()}


def test_forwarder_message_has_pending_pods_and_their_age():
    """Logs and latency metrics need them."""
    trigger = parse_trigger(sample("forwarder/pods-unschedulable.json"))

    assert trigger.cluster == "demo"
    assert trigger.counts == {"pending": 10, "unschedulable": 10}
    assert trigger.oldest_pending_time < trigger.time == NINE


def test_forwarder_message_parses_as_eventbridge_event_or_detail():
    """A rule may send the whole event or only its detail."""
    detail = sample("forwarder/node-gone.json")
    envelope = {
        "version": "0", "id": "e-1", "source": "journeyman.forwarder", "detail-type": "Journeyman Notification",
        "time": "2026-11-21T09:00:01Z", "account": "123456789012", "region": "us-east-1", "detail": detail,
    }  # fmt: skip
    trigger = parse_trigger(envelope)

    assert trigger == parse_trigger(detail)
    assert (trigger.step, trigger.cluster, type(trigger)) == (Step.TERMINATE, "demo", ClusterChanged)


def test_instance_event_is_for_every_cluster():
    """It names no cluster, so each checks whether the instance is its own."""
    trigger = parse_trigger(sample("eventbridge/ec2-spot-interruption/terminate.json"))

    assert trigger.cluster == "*"
    assert trigger.instance_ids == (OURS,)
    assert trigger.time == NINE


@pytest.mark.parametrize(("state", "is_firing"), [("ALARM", True), ("OK", False), ("INSUFFICIENT_DATA", False)])
def test_alarm_fires_in_the_state_alarm_only(state, is_firing):
    """An alarm without data is no reason to pause."""
    event = sample("eventbridge/cloudwatch-alarm/alarm.json")
    event["detail"]["state"]["value"] = state
    trigger = parse_trigger(event)

    assert (trigger.alarm, trigger.is_firing, trigger.cluster, trigger.time) == ("shop-errors", is_firing, "*", NINE)


def test_health_event_has_all_its_instances_once_and_in_order():
    """One maintenance event may concern many instances."""
    event = sample("eventbridge/health/instance-retirement.json")
    event["detail"]["affectedEntities"] *= 2

    assert parse_trigger(event).instance_ids == (
        OURS,
        "i-0fedcba9876543210",
    )


def test_requeue_message_has_its_due_time():
    """SQS delays a message by at most 15 minutes."""
    assert parse_trigger(sample("requeue/consolidate-in-an-hour.json")).at == datetime(
        2026, 11, 21, 10, 0, tzinfo=timezone.utc
    )


def test_sqs_record_parses_as_its_body():
    """Lambda wraps each message in a record."""
    record = sample("sqs/interrupt-batch.json")["Records"][0]

    assert parse_trigger(record) == parse_trigger(sample("eventbridge/ec2-spot-interruption/terminate.json"))


def test_event_of_another_service_is_ignored():
    """Karpenter deletes unknown events, too; they must not fill the dead-letter queue."""
    event = {**sample("eventbridge/ec2-spot-interruption/terminate.json"), "detail-type": "EC2 Fleet Instance Change"}

    assert parse_trigger(event).kind is InterruptionKind.NO_OP


def nested(depth: int) -> str:
    """Return an object in an object, and so on."""
    return '{"id":' * depth + "1" + "}" * depth


def broken() -> list:
    good, spot = sample("forwarder/pods-unschedulable.json"), sample("eventbridge/ec2-spot-interruption/terminate.json")
    record = sample("sqs/provision-batch.json")["Records"][0]
    return [
        pytest.param({k: v for k, v in good.items() if k != "cluster"}, "cluster", id="no cluster"),
        pytest.param({**good, "cluster": ""}, "cluster", id="empty cluster"),
        pytest.param({**good, "version": "2"}, "version", id="newer version"),
        pytest.param({**good, "time": "yesterday"}, "time", id="no time"),
        pytest.param({**good, "time": "2026-11-21T09:00:00"}, "time", id="naive time"),
        pytest.param({**good, "counts": {"pending": -1}}, "counts", id="negative count"),
        pytest.param({**good, "source": "elsewhere"}, "elsewhere", id="unknown source"),
        pytest.param({**good, "source": ["forwarder"]}, "forwarder", id="source is a list"),
        pytest.param({**sample("requeue/terminate-now.json"), "step": "reboot"}, "reboot", id="unknown step"),
        pytest.param({}, "source", id="nothing"),
        pytest.param({**spot, "detail": None}, "detail", id="no detail"),
        pytest.param({**spot, "detail": {"instance-action": "stop"}}, "instance-id", id="no instance"),
        pytest.param({**record, "body": "{"}, record["messageId"], id="body is no JSON"),
        pytest.param({**record, "body": "[1]"}, record["messageId"], id="body is a list"),
        pytest.param({**record, "body": 7}, record["messageId"], id="body is no text"),
        pytest.param({**record, "body": nested(10_000)}, "JSON objects", id="body of nested objects"),
        pytest.param({**record, "body": '{"id": "\ud800"}'}, record["messageId"], id="body is no Unicode"),
        pytest.param({**good, "source": {"id": json.loads(nested(900))}}, "source", id="source of nested objects"),
        pytest.param({**good, "version": "2", "id": json.loads(nested(900))}, "version", id="id of nested objects"),
    ]


@pytest.mark.parametrize(("payload", "names"), broken())
def test_malformed_event_names_the_field_and_what_to_do(payload, names):
    """One error, with the id of the message."""
    with pytest.raises(MalformedEventError) as caught:
        parse_trigger(payload)

    assert names in str(caught.value)
    assert "dead-letter" in caught.value.context["to_do"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(["source", "version", "body", "detail-type", "detail", "id", "time", "cluster", "step", "at"])


@given(
    st.dictionaries(KEYS, JSON | st.sampled_from(["forwarder", "requeue", "aws.ec2", "1", "{}", "AWS Health Event"]))
)
def test_any_payload_parses_or_raises_malformed_event(payload):
    """Any other exception would fail the other records of the batch."""
    try:
        parse_trigger(payload)
    except MalformedEventError as error:
        assert error.message  # noqa: PT017 - both outcomes are valid, any other error is not
