"""Unavailable offerings: until when, and how failures and launches change this time."""

from datetime import datetime, timedelta, timezone

from journeyman.core.api.model import parse
from journeyman.core.api.objects import OfferingKey
from journeyman.core.api.offering_state import (
    FAILURE_MEMORY,
    MAX_UNAVAILABLE,
    OfferingState,
    with_failures,
    without_offering,
)

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)
WAIT = timedelta(minutes=3)
LARGE = OfferingKey("m5.large", "eu-west-1a", "spot")
XLARGE = OfferingKey("m5.xlarge", "eu-west-1a", "spot")


def failed(known, *offerings, at=NOW, reason="a", first=WAIT, longest=timedelta(hours=1)):
    """The entries after these offerings failed at that time."""
    return with_failures(known, offerings, at=at, first=first, longest=longest, reason=reason, now=at)


def test_failed_offering_is_unavailable_for_three_minutes():
    """Entries are sorted and carry the error code."""
    kept = failed((), XLARGE, LARGE, reason="InsufficientInstanceCapacity")
    assert [o.key for o in kept] == [LARGE, XLARGE]
    assert {(o.until, o.reason, o.failures) for o in kept} == {(NOW + WAIT, "InsufficientInstanceCapacity", 1)}


def test_time_unavailable_doubles_with_each_failure_up_to_an_hour():
    """Provisioning retries an offering that is out of stock for hours a few times, not every three minutes."""
    known, at, waits = (), NOW, []
    for _ in range(7):
        known = failed(known, LARGE, at=at)
        waits.append((known[0].until - at) // timedelta(minutes=1))
        at = known[0].until + timedelta(seconds=20)
    assert waits == [3, 6, 12, 24, 48, 60, 60]
    assert known[0].failures == 7


def test_concurrent_launch_failures_count_as_one():
    """The last of them decides `until`, which never moves back."""
    known = failed((), LARGE)
    for seconds in (1, 2, 0):
        known = failed(known, LARGE, at=NOW + timedelta(seconds=seconds), reason="b")
    assert [(o.until, o.reason, o.failures) for o in known] == [(NOW + timedelta(seconds=2) + WAIT, "b", 1)]


def test_spot_interruption_marks_offering_unavailable_from_its_event_time():
    """Its time does not double, and a late event does not extend it."""
    known = failed((), LARGE, longest=WAIT)
    known = failed(known, LARGE, at=NOW + timedelta(minutes=10), longest=WAIT)
    late = failed(known, LARGE, at=NOW + timedelta(minutes=9), longest=WAIT)
    assert [(o.until, o.failures) for o in late] == [(NOW + timedelta(minutes=10) + WAIT, 2)]


def test_failures_are_no_longer_counted_six_hours_after_until():
    """Until then the count stands, although the offering is available again."""
    twice = failed(failed((), LARGE, XLARGE), LARGE, at=NOW + timedelta(hours=1))
    late = failed(twice, XLARGE, at=NOW + timedelta(hours=3))
    assert [(o.key, o.failures) for o in late] == [(LARGE, 2), (XLARGE, 2)]
    later = failed(late, LARGE, at=NOW + FAILURE_MEMORY + timedelta(hours=2))
    assert [(o.key, o.failures) for o in later] == [(LARGE, 1), (XLARGE, 2)]


def test_edited_failure_count_does_not_overflow():
    """The upper bound holds for any number."""
    [known] = failed((), LARGE)
    huge = known.model_copy(update={"failures": 10**12})
    [again] = failed((huge,), LARGE, at=NOW + timedelta(hours=1))
    assert again.until == NOW + timedelta(hours=2)


def test_list_is_bounded_and_keeps_entries_that_expire_last():
    """An object in etcd has a limited size."""
    full = failed((), *[OfferingKey(f"t{i}", "a", "spot") for i in range(MAX_UNAVAILABLE)])
    kept = failed(full, LARGE, at=NOW + timedelta(minutes=1))
    assert len(kept) == MAX_UNAVAILABLE
    assert LARGE in {o.key for o in kept}


def test_offering_state_is_unchanged_by_the_round_trip():
    """The NodeClass reference is optional."""
    unavailable = [o.to_wire() for o in failed((), LARGE)]
    raw = {
        "metadata": {"name": "default"},
        "spec": {"nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}},
        "status": {
            "unavailable": unavailable,
            "prices": {"onDemandRefreshedAt": "2026-03-01T12:00:00Z", "source": "api"},
        },
    }
    state = parse(OfferingState, raw)
    assert parse(OfferingState, state.to_wire()) == state
    assert state.status.unavailable[0].until == NOW + WAIT
    assert parse(OfferingState, {"metadata": {"name": "x"}}).spec.node_class_ref is None


def test_successful_launch_resets_the_offering_and_the_entry_for_all_types():
    """Entries that are unavailable at the time of the launch failed later and stay."""
    everywhere = OfferingKey("*", "eu-west-1a", "spot")
    known = failed((), LARGE, XLARGE, everywhere)
    assert without_offering(known, LARGE, NOW) == known
    assert [o.key for o in without_offering(known, LARGE, NOW + WAIT)] == [XLARGE]
