"""Scheduled rules and EventBridge Scheduler fire in virtual time; moto's own never fire."""

import json
from datetime import timedelta

import pytest
from botocore.exceptions import ClientError

from journeyman_simulator.cloud_rules.schedule_runner import ScheduleRunner
from tests.contract.conftest import on_both_accounts

FUNCTION = "arn:aws:lambda:us-east-1:123456789012:function:sweep"


@pytest.fixture
def schedule_runner(aws, clock):
    events, scheduler = aws.client("events"), aws.client("scheduler")
    return ScheduleRunner(events, scheduler, clock, aws.deliver, version=aws.schedule_version)


def every(aws, rate, **more):
    events = aws.client("events")
    events.put_rule(Name="sweep", ScheduleExpression=rate, **more)
    events.put_targets(Rule="sweep", Targets=[{"Id": "function", "Arn": FUNCTION}])


def schedule(aws, expression, name="window", target=None, **more):
    aws.client("scheduler").create_schedule(
        Name=name,
        ScheduleExpression=expression,
        FlexibleTimeWindow={"Mode": "OFF"},
        Target={"Arn": FUNCTION, "RoleArn": "arn:aws:iam::123456789012:role/r", **(target or {})},
        **more,
    )


def run(aws, clock, schedule_runner, **span):
    """Run from one invocation to the next; return the times of the invocations, and their events."""
    end, times, events = clock.now() + timedelta(**span), [], []
    while True:
        schedule_runner.act()
        for delivery in aws.take_deliveries():
            times.append(clock.now().strftime("%H:%M:%S"))
            events.append(delivery.event)
        due = schedule_runner.due()
        if due is None or due > end:
            return times, events
        clock.advance_to(due)


@on_both_accounts
def test_scheduled_rule_fires_first_one_interval_after_creation(aws, clock, schedule_runner):
    """The event is EventBridge's scheduled event."""
    every(aws, "rate(1 minute)")

    times, events = run(aws, clock, schedule_runner, minutes=3)

    assert times == ["08:01:00", "08:02:00", "08:03:00"]
    assert events[0].pop("id")
    assert events[0] == {
        "version": "0", "detail-type": "Scheduled Event", "source": "aws.events", "account": "123456789012",
        "time": "2026-11-02T08:01:00Z", "region": "us-east-1", "detail": {},
        "resources": ["arn:aws:events:us-east-1:123456789012:rule/sweep"],
    }  # fmt: skip


@on_both_accounts
def test_disabled_rule_does_not_fire_until_it_is_enabled(aws, clock, schedule_runner):
    """The runner notices changed definitions by itself."""
    every(aws, "rate(1 minute)", State="DISABLED")
    assert run(aws, clock, schedule_runner, minutes=3)[0] == []
    aws.client("events").enable_rule(Name="sweep")
    assert len(run(aws, clock, schedule_runner, minutes=2)[0]) == 2


@on_both_accounts
def test_schedule_fires_its_input_with_context_attributes(aws, clock, schedule_runner):
    """A rate schedule fires first at its creation, unlike a scheduled rule."""
    text = json.dumps({"cluster": "demo", "at": "<aws.scheduler.scheduled-time>"})
    schedule(aws, "rate(10 minutes)", target={"Input": text})
    times, events = run(aws, clock, schedule_runner, minutes=10)
    assert times == ["08:00:00", "08:10:00"]
    assert events == [{"cluster": "demo", "at": f"2026-11-02T{time}Z"} for time in times]


@on_both_accounts
def test_schedule_fires_at_its_local_time(aws, clock, schedule_runner):
    """8:00 in New York is 13:00 UTC in winter."""
    schedule(aws, "cron(0 8 ? * MON-FRI *)", ScheduleExpressionTimezone="America/New_York")
    times, events = run(aws, clock, schedule_runner, days=1)
    assert times == ["13:00:00"]
    assert events[0]["resources"] == ["arn:aws:scheduler:us-east-1:123456789012:schedule/default/window"]


@on_both_accounts
def test_one_time_schedule_fires_once_and_can_delete_itself(aws, clock, schedule_runner):
    """Completed schedules then do not accumulate."""
    schedule(aws, "at(2026-11-02T08:05:00)", name="goes", ActionAfterCompletion="DELETE")
    schedule(aws, "at(2026-11-02T08:06:00)", name="stays")
    schedule(aws, "at(2026-11-02T07:00:00)", name="too-late")
    assert run(aws, clock, schedule_runner, days=1)[0] == ["08:05:00", "08:06:00"]
    left = aws.client("scheduler").list_schedules()["Schedules"]
    assert [item["Name"] for item in left] == ["stays", "too-late"]


@on_both_accounts
def test_schedule_fires_between_its_start_and_end(aws, clock, schedule_runner):
    """The interval includes both."""
    start, end = (clock.now() + timedelta(minutes=minutes) for minutes in (30, 50))
    schedule(aws, "rate(10 minutes)", StartDate=start, EndDate=end)
    assert run(aws, clock, schedule_runner, hours=2)[0] == ["08:30:00", "08:40:00", "08:50:00"]


@on_both_accounts
def test_changed_schedule_restarts_and_an_unchanged_one_continues(aws, clock, schedule_runner):
    """Creating another schedule does not affect the first."""
    every(aws, "rate(10 minutes)")
    run(aws, clock, schedule_runner, minutes=0)
    clock.advance(240)
    schedule(aws, "at(2026-11-02T23:00:00)")

    assert schedule_runner.due().strftime("%H:%M") == "08:10"
    every(aws, "rate(3 minutes)")
    assert schedule_runner.due().strftime("%H:%M") == "08:07"


@on_both_accounts
def test_clock_jump_fires_every_missed_occurrence(aws, clock, schedule_runner):
    """Each event has the time at which it was due."""
    every(aws, "rate(1 minute)")
    schedule_runner.refresh()
    clock.advance(180)
    assert schedule_runner.act()
    times = [delivery.event["time"][11:19] for delivery in aws.take_deliveries()]
    assert times == ["08:01:00", "08:02:00", "08:03:00"]


@pytest.mark.parametrize("expression", ["nonsense", "rate(0 minutes)", "at(2020)", "cron(0 9 * * * *)"])
def test_invalid_schedule_expressions_are_refused(aws, expression):
    """Both services reject them."""
    with pytest.raises(ClientError, match="ValidationException"):
        aws.client("events").put_rule(Name="r", ScheduleExpression=expression)
    with pytest.raises(ClientError, match="ValidationException"):
        schedule(aws, expression)
