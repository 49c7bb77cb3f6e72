"""Durations."""

from datetime import timedelta

import pytest

from journeyman.core.api.duration import doubled, parse_duration, parse_go_duration, parse_nillable_duration
from journeyman.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0),
        ("30s", 30),
        ("1h30m", 5400),
        ("720h", 2592000),
        ("1m1m", 120),
        ("720h0m0s", 2592000),
        ("0" * 5000 + "1h", 3600),
        ("1s" * 999, 999),
    ],
)
def test_duration_sums_hours_minutes_and_seconds(text, seconds):
    """Units may have any order and number, as in Go."""
    assert parse_duration(text) == timedelta(seconds=seconds)


def test_never_is_parsed_as_none_if_it_is_allowed():
    """`Never` is not a duration."""
    assert parse_nillable_duration("Never") is None
    assert parse_nillable_duration("1h") == timedelta(hours=1)


@pytest.mark.parametrize(
    "text",
    ["", "5", "5d", "-5m", "1.5h", "1h 30m", "never", "Never", "\uff11h", "99999999999h", "9" * 5000 + "s", "1d" * 40],
)
def test_invalid_duration_is_rejected_with_the_text(text):
    """The message also says what to write."""
    with pytest.raises(ConfigurationError, match=r"duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2h45m30s", timedelta(hours=2, minutes=45, seconds=30)),
        (".5h", timedelta(minutes=30)),
        ("1.h", timedelta(hours=1)),
        ("+2h", timedelta(hours=2)),
        ("-1.5h", timedelta(hours=-1.5)),
        ("0", timedelta(0)),
        ("-0", timedelta(0)),
        ("7200000000us", timedelta(hours=2)),
        ("5\u00b5s", timedelta(microseconds=5)),
        ("5\u03bcs", timedelta(microseconds=5)),
        ("7200000000000ns", timedelta(hours=2)),
        ("300ms", timedelta(milliseconds=300)),
        ("0.25h", timedelta(minutes=15)),
        ("1.0000000000000000000000000h", timedelta(hours=1)),
    ],
)
def test_go_duration_is_read_as_go_reads_it(text, expected):
    """Go's time.ParseDuration allows signs, fractions, and and units down to nanoseconds."""
    assert parse_go_duration(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "2", "h", ".h", "+", "-", "1h 2m", "1d", "++1h", "1h-2m", "1,5h", "\uff11h"],
)
def test_go_duration_that_go_refuses_is_none(text):
    """Karpenter then ignores the annotation."""
    assert parse_go_duration(text) is None


@pytest.mark.parametrize(
    ("times", "expected"),
    [(0, 30), (1, 30), (2, 60), (3, 120), (6, 960), (7, 1800), (2**63, 1800)],
)
def test_backoff_doubles_up_to_the_longest(times, expected):
    """A count that is read from the cluster may be any number."""
    assert doubled(timedelta(seconds=30), times, timedelta(minutes=30)) == timedelta(seconds=expected)


def test_backoff_is_at_most_the_longest_from_the_first_failure_on():
    """A setting may make the longest shorter than the first."""
    assert doubled(timedelta(minutes=5), 1, timedelta(minutes=1)) == timedelta(minutes=1)
