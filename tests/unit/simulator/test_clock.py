"""The virtual clock."""

from datetime import datetime, timedelta, timezone

import pytest

from journeyman_simulator.clock import SkewedClock, VirtualClock

START = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)


def test_time_moves_only_when_advanced():
    """It advances by seconds or to a time, and only forward."""
    clock = VirtualClock(START)
    assert clock.now() == clock.now() == START
    clock.advance(1.5)
    assert clock.now() == START + timedelta(seconds=1.5)
    clock.advance_to(START + timedelta(hours=1))
    assert clock.now() == START + timedelta(hours=1)


def test_time_never_goes_back_and_is_never_naive():
    """Both would be errors in a simulation."""
    clock = VirtualClock(START)
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-1)
    with pytest.raises(ValueError, match="aware"):
        VirtualClock(datetime(2026, 3, 1))  # noqa: DTZ001 - the error under test
    assert clock.now() == START


def test_clock_returns_utc():
    """The start time may have any zone."""
    berlin = timezone(timedelta(hours=1))
    assert VirtualClock(datetime(2026, 3, 1, 13, 0, tzinfo=berlin)).now().tzinfo is timezone.utc


def test_skewed_clock_runs_at_the_same_rate():
    """It differs by an offset, which may change at any time in both directions."""
    right = VirtualClock(START)
    skewed = SkewedClock(right)
    skewed.offset = timedelta(minutes=-2)
    right.advance(30)
    assert skewed.now() == START + timedelta(seconds=30) - timedelta(minutes=2)
    skewed.offset = timedelta()
    assert skewed.now() == right.now()
