"""Windows of schedules: when they are open, in which time zone, and what is wrong with an annotation."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from journeyman.core.api import labels
from journeyman.core.api.windows import Window, any_open, closing_time, windows_in, zone_of
from journeyman.errors import ConfigurationError

NOW = datetime(2026, 1, 5, 12, 0, tzinfo=timezone.utc)  # a Monday
BERLIN = ZoneInfo("Europe/Berlin")
DAY = timedelta(days=1)


def window(schedule, duration, zone=timezone.utc):
    return Window(schedule=schedule, duration=duration, zone=zone)


def edges(found, after, count):
    """Return the next edges as times of the window's zone."""
    listed = []
    for _ in range(count):
        after = found.next_edge(after, after + 8 * DAY)
        listed.append(f"{after.astimezone(found.zone):%a %H:%M %Z}")
    return listed


def test_window_in_a_time_zone_follows_its_clock():
    """Nine in the morning is 8:00 UTC in winter and 7:00 UTC in summer; the duration is the time that passes."""
    office = window("0 9 * * mon-fri", timedelta(hours=8), BERLIN)
    summer = datetime(2026, 7, 6, 12, 0, tzinfo=timezone.utc)

    assert edges(office, NOW, 3) == ["Mon 17:00 CET", "Tue 09:00 CET", "Tue 17:00 CET"]
    assert [office.is_open(NOW.replace(hour=h, minute=m)) for h, m in ((7, 59), (8, 0), (15, 59), (16, 0))] == [
        *(False, True),
        *(True, False),
    ]
    assert [office.is_open(summer.replace(hour=h, minute=m)) for h, m in ((6, 59), (7, 0))] == [False, True]


def test_window_that_starts_in_the_skipped_hour_opens_right_after_it():
    """On 29 March 2026 Berlin's clocks go from 2:00 to 3:00, which is 1:00 UTC."""
    night = window("30 2 * * *", timedelta(hours=1), BERLIN)
    change = datetime(2026, 3, 29, 1, 0, tzinfo=timezone.utc)

    assert night.next_edge(change - timedelta(minutes=45), change + DAY) == change
    assert not night.is_open(change - timedelta(minutes=1))
    assert night.is_open(change)
    assert night.next_edge(change, change + DAY) == change + timedelta(hours=1)
    assert not night.is_open(change + timedelta(hours=1))
    assert edges(night, change + timedelta(hours=1), 2) == ["Mon 02:30 CEST", "Mon 03:30 CEST"]


def test_window_that_starts_in_the_repeated_hour_opens_once():
    """On 25 October 2026 Berlin has 2:30 twice, at 0:30 and 1:30 UTC; the window opens at the first."""
    night = window("30 2 * * *", timedelta(minutes=20), BERLIN)
    first = datetime(2026, 10, 25, 0, 30, tzinfo=timezone.utc)

    assert night.next_edge(first - timedelta(hours=3), first + DAY) == first
    assert night.next_edge(first, first + DAY) == first + timedelta(minutes=20)
    assert night.next_edge(first + timedelta(minutes=20), first + 2 * DAY) == first + DAY + timedelta(hours=1)
    assert not night.is_open(first + timedelta(hours=1))


def test_window_stays_open_through_the_repeated_hour():
    """It opens at 1:30 for three hours, which end at 3:30 as clocks then show, not at 4:30."""
    night = window("30 1 * * *", timedelta(hours=3), BERLIN)
    opens = datetime(2026, 10, 24, 23, 30, tzinfo=timezone.utc)

    assert all(night.is_open(opens + timedelta(minutes=m)) for m in range(0, 180, 10))
    assert edges(night, opens, 1) == ["Sun 03:30 CET"]


@pytest.mark.parametrize("macro", ["@daily", "@midnight", "0 0 * * *", "0 0 ? * ?"])
def test_cron_macros_and_question_marks_are_supported(macro):
    """robfig/cron, which Karpenter uses, supports them, too."""
    found = window(macro, timedelta(hours=1))

    assert found.next_edge(NOW, NOW + DAY) == NOW + timedelta(hours=12)
    assert found.next_edge(NOW + timedelta(hours=12), NOW + DAY) == NOW + timedelta(hours=13)


@pytest.mark.parametrize("duration", [timedelta(hours=1), timedelta(hours=1, minutes=30)])
def test_adjacent_and_overlapping_windows_are_one_window(duration):
    """An hourly window of at least an hour has no edge."""
    always = window("@hourly", duration)

    assert always.is_open(NOW)
    assert always.next_edge(NOW, NOW + 30 * DAY) is None
    assert closing_time([always], NOW) is None


def test_next_edge_is_after_now_and_before_the_horizon():
    """If a window opens now, its end is the next edge."""
    office = window("0 9 * * mon-fri", timedelta(hours=8))

    assert office.next_edge(NOW.replace(hour=9), NOW + DAY) == NOW.replace(hour=17)
    assert office.next_edge(NOW.replace(day=9, hour=17), NOW.replace(day=12, hour=9)) is None


@pytest.mark.parametrize("duration", [timedelta(minutes=2), timedelta(days=730), timedelta(days=10**5)])
def test_frequent_and_long_windows_are_not_walked(duration):
    """A window that opens each minute has no edge that is near; to find that out takes a bounded number of firings."""
    always = window("* * * * *", duration, BERLIN)
    started = time.process_time()

    assert always.is_open(NOW)
    assert always.next_edge(NOW, NOW + 366 * DAY) is None
    assert time.process_time() - started < 1


def test_windows_close_when_none_of_them_is_open():
    """The nights of the week and the weekend overlap; from Friday evening they are one."""
    annotation = {labels.HIBERNATE: "0 20 * * mon-fri / 12h; 0 0 * * sat,sun / 24h; 0 0 * * mon / 8h"}
    windows = windows_in(annotation, labels.HIBERNATE)
    friday = NOW.replace(day=9, hour=21)

    assert any_open(windows, friday)
    assert closing_time(windows, friday) == NOW.replace(day=12, hour=8)
    assert closing_time(windows, NOW) == NOW


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0 20 * * mon-fri", "no ' / ' between"),
        ("0 20 * * mon-fri / soon", "not a duration"),
        ("0 25 * * mon-fri / 12h", "does not parse"),
        ("0 20 * * / 12h", "five cron fields"),
        ("0 20 * * mon-fri / 0h", "the duration is 0"),
        ("0 20 * * mon-fri / 12h; tomorrow / 1h", "'tomorrow / 1h'"),
        (" ; ", "0 windows"),
        (";".join(["@daily / 1h"] * 51), "51 windows"),
    ],
)
def test_invalid_window_annotation_says_what_is_wrong(text, why):
    """The message names the annotation, for the Event on the object."""
    with pytest.raises(ConfigurationError, match=why) as error:
        windows_in({labels.HIBERNATE: text}, labels.HIBERNATE)
    assert labels.HIBERNATE in error.value.message


@pytest.mark.parametrize("name", ["Europe/Berlim", "../../etc/passwd", "America", "", "\0", "x" * 300])
def test_unknown_time_zone_is_an_error(name):
    """Whatever the text is: a folder of the database, a path out of it, or no name at all."""
    with pytest.raises(ConfigurationError, match="is not an IANA time zone"):
        zone_of({labels.TIME_ZONE: name})
    with pytest.raises(ConfigurationError, match="is not an IANA time zone"):
        windows_in({labels.TIME_ZONE: name, labels.ACTIVE: "@daily / 1h"}, labels.ACTIVE)
