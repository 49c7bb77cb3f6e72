"""The calendar: windows of NodePools and CapacityBuffers, the steps at their edges, and the entries of the cloud's scheduler."""

import re
from datetime import datetime, timedelta, timezone

import pytest

from journeyman.core.api import labels
from journeyman.core.api.capacity_buffer import CapacityBuffer
from journeyman.core.api.model import parse
from journeyman.core.disruption.calendar import (
    HORIZON,
    MAX_ENTRIES,
    calendar_of,
    entry_prefix,
    next_edges,
    passed_edges,
    reconcile_entries,
    schedule_entries,
)
from journeyman.core.plan import CreateScheduleEntry, DeleteScheduleEntry, Step
from tests.helpers.actions import of_type
from tests.helpers.builders import a_pool, buffer_body, merge

NOW = datetime(2026, 1, 5, 12, 0, tzinfo=timezone.utc)  # a Monday
OFFICE = {"nodes": "0", "schedule": "0 9 * * mon-fri", "duration": "8h"}


def pool(name="default", *, budgets=(), deleting=False, **annotations):
    deletion = {"deletionTimestamp": "2026-01-05T11:00:00Z"} if deleting else {}
    metadata = {"annotations": annotations, **deletion}
    return a_pool(name, metadata=metadata, spec={"disruption": {"budgets": list(budgets)}})


def buffer(name="spare", **annotations):
    body = buffer_body(name, podTemplateRef={"name": "shape"}, replicas=2)
    return parse(CapacityBuffer, merge(body, {"metadata": {"annotations": annotations}}))


def calendar(*objects):
    pools = [o for o in objects if not isinstance(o, CapacityBuffer)]
    return calendar_of(pools, [o for o in objects if isinstance(o, CapacityBuffer)], NOW)


def entries(*objects, cluster="demo", now=NOW):
    return schedule_entries(calendar(*objects), cluster, now)


def test_each_edge_starts_the_step_that_has_something_to_do():
    """Nodes go in consolidate and come in provision."""
    night = pool("night", **{labels.HIBERNATE: "0 20 * * * / 10h"})
    found = calendar(pool("office", budgets=[OFFICE]), night, buffer(**{labels.ACTIVE: "0 7 * * * / 2h"}))

    listed = [(f"{edge.at:%a %H:%M}", edge.step, edge.reason) for edge in next_edges(found, NOW, 6)]
    assert listed == [
        ("Mon 17:00", Step.CONSOLIDATE, "a budget window of NodePool office closes"),
        ("Mon 20:00", Step.CONSOLIDATE, "a hibernation window of NodePool night opens"),
        ("Tue 06:00", Step.PROVISION, "a hibernation window of NodePool night closes"),
        ("Tue 07:00", Step.PROVISION, "a headroom window of CapacityBuffer default/spare opens"),
        ("Tue 09:00", Step.CONSOLIDATE, "a budget window of NodePool office opens"),
        ("Tue 09:00", Step.CONSOLIDATE, "a headroom window of CapacityBuffer default/spare closes"),
    ]


def test_edges_of_the_last_minute_are_found_once():
    """An edge now is one; an edge at the start of the interval is not, because the sweep before has seen it."""
    found = calendar(pool(budgets=[OFFICE]))
    closes = NOW.replace(hour=17)
    assert [edge.at for edge in passed_edges(found, closes - timedelta(minutes=1), closes)] == [closes]
    assert passed_edges(found, closes, closes + timedelta(minutes=1)) == ()
    assert passed_edges(found, closes - timedelta(minutes=2), closes - timedelta(minutes=1)) == ()


@pytest.mark.parametrize(
    ("found", "reason", "message"),
    [
        (
            pool(**{labels.TIME_ZONE: "Mars/Olympus"}, budgets=[OFFICE]),
            "InvalidAnnotation",
            "schedule allow no disruption",
        ),
        (pool(**{labels.HIBERNATE: "at night"}), "InvalidAnnotation", "it does not hibernate"),
        (pool(**{labels.HIBERNATE: "@hourly / 1h"}), "InvalidAnnotation", "never close"),
        (pool(budgets=[{**OFFICE, "schedule": "0 25 * * *"}]), "InvalidSchedule", "0 25 * * *"),
        (buffer(**{labels.ACTIVE: "0 7 * * *"}), "InvalidAnnotation", "at any time"),
        (buffer(**{labels.ACTIVE: "@daily / 1h", labels.TIME_ZONE: "Nowhere"}), "InvalidAnnotation", "Nowhere"),
    ],
)
def test_invalid_windows_are_reported_and_do_not_hide_others(found, reason, message):
    """The Event is on the object, and says what happens instead."""
    (event,) = calendar(found, pool("other", budgets=[OFFICE])).problems

    assert (event.reason, event.type) == (reason, "Warning")
    assert message in event.message
    assert event.ref.name == found.metadata.name
    edges = next_edges(calendar(found, pool("z", budgets=[OFFICE])), NOW, 9)
    assert {edge.calendar_window.ref.name for edge in edges} == {"z"}


def test_entries_are_the_next_two_edges_of_each_window():
    """Their names are valid, readable, and differ by cluster, object, step and time."""
    found = entries(pool("a" * 63, budgets=[OFFICE]), pool("b", **{labels.HIBERNATE: "0 20 * * sat / 10h"}))

    assert [(f"{entry.at:%a %H:%M}", entry.step) for entry in found] == [
        ("Mon 17:00", Step.CONSOLIDATE),
        ("Tue 09:00", Step.CONSOLIDATE),
        ("Sat 20:00", Step.CONSOLIDATE),
        ("Sun 06:00", Step.PROVISION),
    ]
    assert all(re.fullmatch(r"[0-9a-zA-Z-_.]{1,64}", entry.name) for entry in found)
    assert all(entry.name.startswith(entry_prefix("demo")) for entry in found)
    assert found[0].name.endswith("-c-20260105T1700Z")
    long = pool("a" * 63, budgets=[OFFICE])
    others = entries(pool("a" * 62 + "b", budgets=[OFFICE])) + entries(long, cluster="other")
    assert not {entry.name for entry in found} & {entry.name for entry in others}
    assert found == entries(pool("b", **{labels.HIBERNATE: "0 20 * * sat / 10h"}), long)


def test_entries_reach_a_week_ahead_and_leave_the_next_seconds_to_the_sweep():
    """A yearly window has no entry yet; an edge in ten seconds has none any more."""
    yearly = pool(budgets=[{**OFFICE, "schedule": "@yearly"}])
    soon = NOW.replace(hour=16, minute=59, second=50)
    assert entries(yearly) == ()
    assert all(entry.at < NOW + HORIZON for entry in entries(pool(budgets=[OFFICE])))
    assert [entry.at for entry in entries(pool(budgets=[OFFICE]), now=soon)] == [NOW.replace(day=6, hour=9)]


def test_windows_with_the_same_edges_share_entries_and_their_number_is_bounded():
    """The account's quota is shared with others."""
    doubled = pool(budgets=[OFFICE, {**OFFICE, "nodes": "1"}])
    many = [pool(f"p{n}", budgets=[OFFICE]) for n in range(300)]
    assert len(entries(doubled)) == 2
    assert len(entries(*many)) == MAX_ENTRIES


def test_entries_follow_their_nodepools():
    """A changed window changes its entries, and a deleted NodePool's are deleted; what is right already is left alone."""
    before = entries(pool("a", budgets=[OFFICE]), pool("b", budgets=[OFFICE]))
    existing = frozenset(entry.name for entry in before)
    changed = pool("a", budgets=[{**OFFICE, "duration": "9h"}])

    plan = reconcile_entries(entries(changed, pool("b", budgets=[OFFICE], deleting=True)), existing, NOW)

    kept = {entry.name for entry in entries(pool("a", budgets=[OFFICE])) if entry.at != NOW.replace(hour=17)}
    assert [each.entry.at for each in of_type(plan, CreateScheduleEntry)] == [NOW.replace(hour=18)]
    assert [each.name for each in of_type(plan, DeleteScheduleEntry)] == sorted(existing - kept)
    assert reconcile_entries(before, existing, NOW).actions == ()


def test_entry_that_fires_now_is_not_deleted():
    """It deletes itself; one that is older has not, and goes."""
    existing = frozenset(entry.name for entry in entries(pool(budgets=[OFFICE])))
    closes = NOW.replace(hour=17)
    for later, expected in ((timedelta(seconds=20), []), (timedelta(minutes=3), ["20260105T1700Z"])):
        plan = reconcile_entries(entries(pool(budgets=[OFFICE]), now=closes + later), existing, closes + later)
        assert [each.name[-14:] for each in of_type(plan, DeleteScheduleEntry)] == expected
