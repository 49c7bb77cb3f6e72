"""Disruption budgets: how many nodes may be disrupted, and when that changes."""

import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from msgspec import structs
from pydantic import ValidationError

from journeyman.core.api import labels
from journeyman.core.api.nodepool import Budget
from journeyman.core.disruption.budgets import UNLIMITED, allowed_nodes, budget_status, is_active, window_of
from journeyman.core.disruption.candidates import DisruptionReason
from journeyman.errors import ConfigurationError
from tests.helpers import builders
from tests.helpers.builders import condition
from tests.helpers.fleets import a_fleet, a_member, a_pool

NOW = datetime(2026, 1, 5, 12, 0, tzinfo=timezone.utc)  # a Monday
EMPTY = DisruptionReason.EMPTY
OFFICE = Budget(nodes="0", schedule="0 9 * * mon-fri", duration="8h")


@pytest.mark.parametrize(
    ("nodes", "total", "allowed"),
    [("10%", 1, 1), ("10%", 11, 2), ("0%", 9, 0), ("100%", 9, 9), ("3", 9, 3), ("3", 1, 3), ("9" * 5000, 9, UNLIMITED)],
)
def test_budget_is_an_integer_or_a_percentage_rounded_up(nodes, total, allowed):
    """Ten percent of one node is one node."""
    assert allowed_nodes([Budget(nodes=nodes)], EMPTY, total, NOW) == allowed


def test_most_restrictive_active_budget_applies():
    """Budgets for other reasons and outside their window are ignored; without an active budget there is no limit."""
    budgets = [Budget(nodes="5"), Budget(nodes="2", reasons=["Empty"]), Budget(nodes="1", reasons=["Drifted"])]
    assert allowed_nodes(budgets, EMPTY, 10, NOW) == 2
    assert allowed_nodes(budgets[2:], EMPTY, 10, NOW) == UNLIMITED
    assert allowed_nodes([Budget(nodes="0", schedule="@yearly", duration="1h")], EMPTY, 10, NOW) == UNLIMITED


EVERY_MINUTE = {"schedule": "* * * * *", "duration": "1h"}
ONCE_A_YEAR = {"schedule": "@yearly", "duration": "1h"}


TEN = Budget(nodes="10")
ALL_REASONS = Budget(nodes="0", reasons=["Empty", "Drifted", "Underutilized"], **EVERY_MINUTE)
CLOSED = (
    Budget(nodes="5", reasons=["Drifted"], **ONCE_A_YEAR),
    Budget(nodes="1", reasons=["Empty", "Underutilized"], **ONCE_A_YEAR),
)


@pytest.mark.parametrize(("budgets", "allowed"), [([TEN, ALL_REASONS], 0), ([TEN, *CLOSED], 10), ([TEN], 10)])
def test_budgets_allow_as_many_nodes_for_every_reason(budgets, allowed):
    """A budget without reasons is for all of them; one whose window is closed is for none."""
    reasons = (EMPTY, DisruptionReason.DRIFTED, DisruptionReason.UNDERUTILIZED)
    assert {reason: allowed_nodes(budgets, reason, 100, NOW) for reason in reasons} == dict.fromkeys(reasons, allowed)


@pytest.mark.parametrize("nodes", ["1000a%", "101%", "-1", "ten"])
def test_budget_with_an_invalid_number_of_nodes_is_no_budget(nodes):
    """The API server refuses it; where it is stored nevertheless, the NodePool is not read, and no node is disrupted."""
    with pytest.raises(ValidationError, match="nodes"):
        Budget(nodes=nodes)


@pytest.mark.parametrize(
    "schedule", ["61 * * * *", "* * * *  nonsense", "0 0 9 * * mon", "@yearly is not enough", "1," * 5000 + "1 * * * *"]
)
def test_budget_with_an_invalid_schedule_allows_no_disruption(schedule):
    """The error names the schedule."""
    broken = Budget.model_construct(nodes="5", schedule=schedule, duration="1h", reasons=())
    assert allowed_nodes([Budget(nodes="7"), broken], EMPTY, 10, NOW) == 0
    with pytest.raises(ConfigurationError) as error:
        window_of(broken).check()
    assert schedule in str(error.value)


@pytest.mark.parametrize(
    ("at", "active"), [("08:59:59", False), ("09:00:00", True), ("16:59:59", True), ("17:00:00", False)]
)
def test_budget_window_opens_when_its_schedule_fires_and_closes_after_its_duration(at, active):
    """The budget is active from 09:00:00 until just before 17:00:00."""
    moment = datetime.fromisoformat(f"2026-01-05T{at}+00:00")
    assert is_active(OFFICE, moment) is active


def test_budget_schedule_is_in_utc_and_overlapping_windows_are_merged():
    """The time zone of the clock does not matter. An hourly budget with a duration of 1h30m is always active."""
    elsewhere = datetime(2026, 1, 5, 4, 30, tzinfo=timezone(timedelta(hours=-5)))  # 09:30 UTC
    always = Budget(nodes="0", schedule="@hourly", duration="1h30m")
    assert is_active(OFFICE, elsewhere)
    assert all(is_active(always, NOW + timedelta(minutes=minutes)) for minutes in range(0, 180, 7))


@pytest.mark.parametrize(("zone", "allowed"), [("UTC", UNLIMITED), ("Europe/Berlin", 0), ("Europe/Berlim", 0)])
def test_budget_schedule_is_in_the_time_zone_of_the_nodepool(zone, allowed):
    """At 8:30 UTC it is 9:30 in Berlin. In a time zone that does not exist, a budget with a schedule allows none at any time.

    Only what depends on the unknown time zone is blocked.
    """
    pool = a_pool(budgets=[{"nodes": "0", "schedule": "0 9 * * mon-fri", "duration": "8h"}])
    pool.metadata.annotations[labels.TIME_ZONE] = zone
    snapshot = structs.replace(a_fleet(a_member("n0"), pools=[pool]), now=NOW.replace(hour=8, minute=30))
    assert budget_status(snapshot, EMPTY, frozenset())["default"].allowed == allowed
    assert allowed_nodes([Budget(nodes="3")], EMPTY, 10, NOW, zone=None) == 3


def test_not_ready_deleting_and_marked_nodes_consume_the_budget():
    """NodeClaims that are not initialized do not count."""
    snapshot = a_fleet(
        *(a_member(f"n{i}") for i in range(5)),
        a_member("unready", ready=False),
        a_member("leaving", deleting=True),
        a_member("new", initialized=False),
        pools=[a_pool(budgets=[{"nodes": "50%"}])],
    )

    found = budget_status(snapshot, EMPTY, in_commands=frozenset({"n0"}))["default"]

    assert (found.total, found.disrupting, found.allowed, found.remaining) == (7, 3, 4, 1)


NINE = tuple(a_member(f"n{i}") for i in range(9))
STOPPING = {"status": {"conditions": [condition("InstanceTerminating")]}}


@pytest.mark.parametrize("reason", [EMPTY, DisruptionReason.UNDERUTILIZED, DisruptionReason.DRIFTED])
@pytest.mark.parametrize(
    ("budget", "members", "remaining"),
    [
        ("100%", (*NINE, replace(a_member("foreign"), claim=None)), 9),
        ("100%", (*NINE, a_member("stopping", claim=STOPPING)), 9),
        ("10%", tuple(a_member(f"n{i}", deleting=True) for i in range(9)), 0),
    ],
    ids=["unmanaged", "instance terminating", "all deleting"],
)
def test_budget_counts_managed_nodes_whose_instances_run(reason, budget, members, remaining):
    """For every reason alike; what remains is never negative."""
    claims = tuple(m.claim for m in members if m.claim is not None)
    nodes = tuple(m.node for m in members)
    snapshot = builders.a_snapshot(node_pools=(a_pool(budgets=[{"nodes": budget}]),), claims=claims, nodes=nodes)
    assert budget_status(snapshot, reason, frozenset())["default"].remaining == remaining


@pytest.mark.parametrize("duration", ["2m", "17520h", "2562047h"])
def test_frequent_and_long_windows_are_not_walked(duration):
    """A budget that opens each minute is active without end."""
    always = [Budget(nodes="1", schedule="* * * * *", duration=duration)]
    started = time.process_time()
    assert allowed_nodes(always, EMPTY, 10, NOW) == 1
    assert time.process_time() - started < 1
