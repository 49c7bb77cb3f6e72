"""Schedule expressions fire at the times that AWS documents."""

from datetime import datetime, timedelta, timezone

import pytest

from journeyman.errors import ConfigurationError
from journeyman_simulator.cloud_rules.schedule_expressions import parse

MONDAY = datetime(2026, 11, 2, 8, 0, tzinfo=timezone.utc)


def firings(expression, count=3, start=MONDAY, zone="UTC"):
    """Return the next times after `start`, in UTC."""
    recurrence = parse(expression, first=start + timedelta(hours=1), zone=zone)
    moments = []
    while len(moments) < count and (start := recurrence.after(start)) is not None:
        moments.append(start.strftime("%Y-%m-%d %H:%M"))
    return moments


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("rate(5 minutes)", ["2026-11-02 09:00", "2026-11-02 09:05", "2026-11-02 09:10"]),
        ("rate(1 day)", ["2026-11-02 09:00", "2026-11-03 09:00", "2026-11-04 09:00"]),
        ("at(2026-11-02T09:30:00)", ["2026-11-02 09:30"]),
        ("at(2026-11-02T07:30:00)", []),
        ("cron(0/20 9 * * ? *)", ["2026-11-02 09:00", "2026-11-02 09:20", "2026-11-02 09:40"]),
        ("cron(15 10 ? * MON-FRI *)", ["2026-11-02 10:15", "2026-11-03 10:15", "2026-11-04 10:15"]),
        # 1 is Sunday and 7 is Saturday
        ("cron(0 9 ? * 1,7 *)", ["2026-11-07 09:00", "2026-11-08 09:00", "2026-11-14 09:00"]),
        ("cron(0 9 ? * 2#1 *)", ["2026-11-02 09:00", "2026-12-07 09:00", "2027-01-04 09:00"]),
        ("cron(0 9 ? * 6L *)", ["2026-11-27 09:00", "2026-12-25 09:00", "2027-01-29 09:00"]),
        ("cron(0 9 ? * L *)", ["2026-11-07 09:00", "2026-11-14 09:00", "2026-11-21 09:00"]),
        ("cron(0 9 L * ? *)", ["2026-11-30 09:00", "2026-12-31 09:00", "2027-01-31 09:00"]),
        ("cron(0 9 1 1 ? 2028-2030/2)", ["2028-01-01 09:00", "2030-01-01 09:00"]),
        ("cron(0 9 1 1 ? 2020)", []),
    ],
)
def test_expression_fires_at_awss_times(expression, expected):
    """The expressions are from AWS's user guide."""
    assert firings(expression) == expected


def test_cron_time_is_local_and_follows_daylight_saving():
    """9:00 in Berlin is 7:00 UTC in summer and 8:00 UTC in winter."""
    october = datetime(2026, 10, 24, 12, 0, tzinfo=timezone.utc)

    assert firings("cron(0 9 * * ? *)", 2, october - timedelta(days=1), "Europe/Berlin") == [
        "2026-10-24 07:00",
        "2026-10-25 08:00",
    ]


def test_daylight_saving_skips_missing_times_and_fires_once_on_doubled():
    """That is EventBridge Scheduler's rule: in Berlin, 02:30 is skipped on 29 March and doubled on 25 October 2026."""
    spring = datetime(2026, 3, 28, 0, 0, tzinfo=timezone.utc)
    autumn = datetime(2026, 10, 24, 12, 0, tzinfo=timezone.utc)

    assert firings("cron(30 2 * * ? *)", 2, spring, "Europe/Berlin") == ["2026-03-28 01:30", "2026-03-30 00:30"]
    assert firings("cron(30 2 * * ? *)", 2, autumn, "Europe/Berlin") == ["2026-10-25 00:30", "2026-10-26 01:30"]


@pytest.mark.parametrize(
    "expression",
    [
        "nonsense",
        "rate(0 minutes)",
        "rate(5 seconds)",
        "rate(5minutes)",
        "at(2020)",
        "cron(0 9 * * *)",
        "cron(0 9 * * * *)",
        "cron(0 9 ? * ? *)",
        "cron(0 25 * * ? *)",
        "cron(0 9 ? * 8 *)",
        "cron(0 9 ? * 0 *)",
        "cron(0 9 15W * ? *)",
        "cron(0 9 * * ? 1066)",
    ],
)
def test_invalid_expression_is_refused(expression):
    """The message contains the expression."""
    with pytest.raises(ConfigurationError, match="is not valid"):
        parse(expression, first=MONDAY)


def test_unknown_time_zone_is_refused():
    """Such a schedule would never fire."""
    with pytest.raises(ConfigurationError, match="Mars"):
        parse("cron(0 9 * * ? *)", first=MONDAY, zone="Mars/Olympus")


@pytest.mark.parametrize("expression", ["rate(1 minutes)", "rate(5 minute)"])
def test_rules_are_strict_about_plurals_and_scheduler_is_not(expression):
    """The two services have different parsers."""
    assert firings(expression, 1) == ["2026-11-02 09:00"]
    with pytest.raises(ConfigurationError, match="write"):
        parse(expression, first=MONDAY, strict_units=True)
