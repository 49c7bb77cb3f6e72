"""For any schedule, duration and time zone: edges and openness agree, also where clocks change."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from journeyman.core.api.windows import Window

ZONES = [timezone.utc, *map(ZoneInfo, ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"))]
CHANGES = [  # of clocks in these zones, within hours
    datetime(2026, 3, 29, tzinfo=timezone.utc),
    datetime(2026, 10, 25, tzinfo=timezone.utc),
    datetime(2026, 3, 8, tzinfo=timezone.utc),
    datetime(2026, 11, 1, tzinfo=timezone.utc),
    datetime(2026, 4, 4, tzinfo=timezone.utc),
    datetime(2026, 10, 3, tzinfo=timezone.utc),
]
MINUTE = timedelta(minutes=1)

SCHEDULES = st.builds(
    "{} {} * * {}".format,
    st.sampled_from(["0", "30", "15,45", "*/20", "59"]),
    st.sampled_from(["0", "1", "2", "3", "1-3", "*", "*/2", "23"]),
    st.sampled_from(["*", "sun", "mon-sat"]),
)
WINDOWS = st.builds(
    lambda schedule, minutes, zone: Window(schedule=schedule, duration=timedelta(minutes=minutes), zone=zone),
    SCHEDULES,
    st.sampled_from([1, 19, 60, 90, 600, 1500]),
    st.sampled_from(ZONES),
)
MOMENTS = st.builds(
    lambda change, minutes: change + timedelta(minutes=minutes), st.sampled_from(CHANGES), st.integers(-600, 1800)
)


@given(WINDOWS, MOMENTS)
def test_window_changes_at_its_next_edge_and_not_before(window, now):
    """Just before the edge it is as now, and at the edge it is not."""
    edge = window.next_edge(now, now + timedelta(days=8))

    if edge is None:
        assert window.is_open(now + timedelta(days=3)) == window.is_open(now)
        return
    assert edge > now
    for moment in {now, max(now, edge - MINUTE), now + (edge - now) / 2}:
        assert window.is_open(moment) == window.is_open(now)
    assert window.is_open(edge) != window.is_open(now)


@given(WINDOWS, MOMENTS)
def test_window_is_open_for_its_duration_at_least(window, now):
    """An edge at which it opens is at least the duration before the next one."""
    edge = window.next_edge(now, now + timedelta(days=8))
    if edge is not None and window.is_open(edge):
        closes = window.next_edge(edge, edge + timedelta(days=8))
        assert closes is None or closes - edge >= window.duration
