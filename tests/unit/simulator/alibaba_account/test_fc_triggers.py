"""Timers, rules for cloud events, and asynchronous invocations of Function Compute."""

from datetime import datetime, timedelta, timezone

import pytest

from journeyman.errors import ConfigurationError
from journeyman_simulator.alibaba_account.event_stream import fc_function
from journeyman_simulator.alibaba_account.fc_triggers import (
    AsyncInvocations,
    EventRule,
    FcTimers,
    TimerSchedule,
)
from journeyman_simulator.alibaba_account.smq import SimulatedSmq
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.cloud_rules.repeated_invocations import AsyncInvokeConfig
from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError
from journeyman_simulator.world import World

START = datetime(2026, 11, 21, 9, 0, 30, tzinfo=timezone.utc)


class Stage:
    """A function that fails some times, and its asynchronous invocations."""

    def __init__(self, failures=0, **config):
        self.clock = VirtualClock(START)
        self.smq = SimulatedSmq(self.clock)
        self.smq.create("dead")
        self.failures, self.times = failures, []
        self.function = fc_function("f", self._handle, self.clock)
        self.invocations = AsyncInvocations(self.smq, self.clock)
        self.invocations.configure(self.function, AsyncInvokeConfig(on_failure="dead", **config))
        self.timers = FcTimers(self.invocations, self.clock)
        self.world = World(self.clock, [self.timers, self.invocations])

    def _handle(self, _event, _context):
        self.times.append((self.clock.now() - START).total_seconds())
        if len(self.times) <= self.failures:
            raise RuntimeError("no")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("@every 1m", START + timedelta(minutes=1)),
        ("@every 2h", START + timedelta(hours=2)),
        ("0 0 22 * * *", START.replace(hour=22, minute=0, second=0)),
        ("15 * * * * *", START.replace(minute=1, second=15)),
        ("CRON_TZ=Asia/Shanghai 0 0 22 * * *", START.replace(hour=14, minute=0, second=0)),
        ("0 30 9 ? * MON-FRI", datetime(2026, 11, 23, 9, 30, tzinfo=timezone.utc)),
    ],
)
def test_timer_fires_at_the_next_time_of_its_expression(expression, expected):
    """In UTC unless the expression names a zone."""
    assert TimerSchedule(expression).after(START) == expected


@pytest.mark.parametrize(
    "expression", ["@every 30s", "0 22 * * *", "0 0 25 * * *", "rate(1 minute)", "cron(0 22 * * ? *)"]
)
def test_invalid_timer_is_refused(expression):
    """A shorter interval than a minute, five fields, and the expressions of AWS."""
    with pytest.raises(ConfigurationError, match="cronExpression"):
        TimerSchedule(expression)


def test_timer_invokes_its_function_each_time_with_its_payload():
    """The event is the one that Function Compute documents."""
    stage = Stage()
    stage.timers.add("every-minute", stage.function, "@every 1m", '{"source": "sweep"}')
    stage.world.run_for(timedelta(minutes=3))

    assert stage.times == [60, 120, 180]
    event = stage.function.invocations[0].event
    assert event == {
        "triggerTime": "2026-11-21T09:01:30Z",
        "triggerName": "every-minute",
        "payload": '{"source": "sweep"}',
    }


@pytest.mark.parametrize(
    ("failures", "config", "times", "letters"),
    [
        (0, {}, [0], 0),
        (2, {}, [0, 1, 3], 0),
        (9, {}, [0, 1, 3, 7], 1),
        (9, {"retries": 0}, [0], 1),
        (9, {"longest_age": timedelta(seconds=5)}, [0, 1, 3], 1),
    ],
)
def test_failed_invocation_is_repeated_until_its_retries_or_its_age_are_used_up(failures, config, times, letters):
    """Then its event goes to the destination of failures."""
    stage = Stage(failures, **config)
    stage.invocations.accept(stage.function, {"id": 1})
    stage.world.run_for(timedelta(minutes=5))

    assert stage.times == times
    assert len(stage.smq.queue("dead").messages) == letters


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ({"source": ["acs.ecs"]}, True),
        ({"source": ["acs.oss"]}, False),
        ({"source": ["acs.oss", "acs.ecs"], "type": [{"prefix": "ecs:Instance:"}]}, True),
        ({"type": [{"prefix": "ecs:Disk:"}]}, False),
        ({"type": [{"suffix": "Change"}]}, True),
        ({"data": {"state": ["Stopped"]}}, True),
        ({"data": {"state": ["Running"]}}, False),
        ({"data": {"other": ["Stopped"]}}, False),
        ({"subject": {"state": ["Stopped"]}}, False),
    ],
)
def test_rule_matches_by_values_prefixes_and_nested_fields(pattern, expected):
    """Each field of the pattern must match."""
    event = {"source": "acs.ecs", "type": "ecs:Instance:StateChange", "subject": "x", "data": {"state": "Stopped"}}

    assert EventRule(name="r", pattern=pattern, function=Stage().function).matches(event) is expected


def test_rule_with_an_unknown_kind_of_match_is_an_error():
    """It must not look as if no event matched."""
    rule = EventRule(name="r", pattern={"type": [{"anything-but": "x"}]}, function=Stage().function)

    with pytest.raises(NotSimulatedError, match="anything-but"):
        rule.matches({"type": "y"})
