"""Durations."""

from datetime import timedelta

import pytest

from journeyman.core.api.duration import parse_duration, parse_nillable_duration
from journeyman.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0s", 0), ("30s", 30), ("1h30m", 5400), ("720h", 2592000), ("1m1m", 120), ("720h0m0s", 2592000)],
)
def test_duration_sums_hours_minutes_and_seconds(text, seconds):
    """Units may have any order and number, as in Go."""
    assert parse_duration(text) == timedelta(seconds=seconds)


def test_never_is_parsed_as_none_if_it_is_allowed():
    """`Never` is not a duration."""
    assert parse_nillable_duration("Never") is None
    assert parse_nillable_duration("1h") == timedelta(hours=1)


@pytest.mark.parametrize(
    "text", ["", "5", "5d", "-5m", "1.5h", "1h 30m", "never", "Never", "\uff11h", "99999999999h", "1s" * 40]
)
def test_invalid_duration_is_rejected_with_the_text(text):
    """The message also says what to write."""
    with pytest.raises(ConfigurationError, match=r"duration"):
        parse_duration(text)
