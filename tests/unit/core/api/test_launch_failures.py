"""Launch failures: how long the object at fault is skipped, and what ends that."""

from datetime import datetime, timedelta, timezone

from journeyman.core.api.launch_failures import (
    LAUNCH_FAILURE_MEMORY,
    MAX_LAUNCH_FAILURES,
    with_launch_failure,
    without_launch_failures,
)
from journeyman.core.api.launch_faults import FaultKey, FaultScope, LaunchFault

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)


def fault(name="a", scope=FaultScope.NODE_CLASS, message="no"):
    return LaunchFault(scope=scope, name=name, reason="AMINotFound", message=message, remedy="Correct it")


def failed(known, *faults, at=NOW, generations="1"):
    for each in faults:
        known = with_launch_failure(
            known, each, at=at, first=timedelta(seconds=30), longest=timedelta(hours=1), generations=generations, now=at
        )
    return known


def test_back_off_doubles_from_half_a_minute_to_an_hour():
    """In 50 minutes a broken object is tried seven times."""
    known, at, waits = (), NOW, []
    for _ in range(9):
        known = failed(known, fault(), at=at)
        waits.append((known[0].until - at).total_seconds())
        at = known[0].until + timedelta(seconds=5)

    assert waits == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert known[0].failures == 9


def test_failures_during_the_back_off_count_once():
    """Ten NodeClaims were launched together."""
    known = failed((), *[fault()] * 10)
    assert [(e.failures, e.until) for e in known] == [(1, NOW + timedelta(seconds=30))]


def test_each_object_has_its_own_back_off():
    """They are sorted by scope and name."""
    known = failed((), fault("b"), fault("a"), fault("", FaultScope.ACCOUNT), fault("a", FaultScope.NODE_POOL))
    assert [e.key for e in known] == [
        FaultKey(FaultScope.ACCOUNT, ""),
        FaultKey(FaultScope.NODE_CLASS, "a"),
        FaultKey(FaultScope.NODE_CLASS, "b"),
        FaultKey(FaultScope.NODE_POOL, "a"),
    ]


def test_failure_of_another_generation_is_the_first_one():
    """The user changed the object meanwhile."""
    known = failed(failed((), fault()), fault(), at=NOW + timedelta(minutes=1), generations="2")
    assert [(e.failures, e.generations) for e in known] == [(1, "2")]


def test_success_clears_only_what_failed_before_it():
    """A later failure stays; so do other objects."""
    known = failed((), fault("a"), fault("b"))

    assert without_launch_failures(known, [fault("a").key], NOW) == known
    later = without_launch_failures(known, [fault("a").key], NOW + timedelta(minutes=1))
    assert [e.name for e in later] == ["b"]


def test_list_and_texts_are_bounded_and_old_entries_are_forgotten():
    """An object in etcd has a limited size."""
    many = failed((), *[fault(str(i), message="x" * 9999) for i in range(MAX_LAUNCH_FAILURES + 5)])
    assert len(many) == MAX_LAUNCH_FAILURES
    assert {len(e.message) for e in many} == {2048}
    late = NOW + LAUNCH_FAILURE_MEMORY + timedelta(minutes=1)
    assert [e.name for e in failed(many, fault("new"), at=late)] == ["new"]
