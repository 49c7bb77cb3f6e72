"""Durations."""

from datetime import timedelta

import pytest

from journeyman.core.api.duration import parse_duration, parse_nillable_duration
from journeyman.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0s", 0), ("30s", 30), ("1h30m", 5400), ("720h", 2592000), ("1m1m", 120), ("720h0m0s", 2592000)],
)
def test_hours_minutes_and_seconds_add_up(text, seconds):
    """In any order and number, as Go reads them."""
    assert parse_duration(text) == timedelta(seconds=seconds)


def test_never_is_no_time_where_it_is_allowed():
    """`Never` is not a duration, it is the lack of one."""
    assert parse_nillable_duration("Never") is None
    assert parse_nillable_duration("1h") == timedelta(hours=1)


@pytest.mark.parametrize(
    "text", ["", "5", "5d", "-5m", "1.5h", "1h 30m", "never", "Never", "\uff11h", "99999999999h", "1s" * 40]
)
def test_anything_else_is_refused_with_the_way_out(text):
    """One clear message with the text in it."""
    with pytest.raises(ConfigurationError, match=r"duration"):
        parse_duration(text)
