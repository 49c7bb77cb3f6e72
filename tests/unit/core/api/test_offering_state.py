"""OfferingStates: what is avoided, and until when."""

from datetime import datetime, timedelta, timezone

from journeyman.core.api.model import parse
from journeyman.core.api.offering_state import MAX_UNAVAILABLE, MEMORY, OfferingState, forget, remember

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)
WAIT = timedelta(minutes=3)
LARGE = ("m5.large", "eu-west-1a", "spot")
XLARGE = ("m5.xlarge", "eu-west-1a", "spot")


def failed(known, *offerings, at=NOW, reason="a", first=WAIT, longest=timedelta(hours=1)):
    """What is remembered once these have failed at that moment."""
    return remember(known, offerings, at=at, first=first, longest=longest, reason=reason, now=at)


def test_what_failed_is_avoided_for_a_while():
    """Sorted, with the cloud's word for why."""
    kept = failed((), XLARGE, LARGE, reason="InsufficientInstanceCapacity")
    assert [o.key for o in kept] == [LARGE, XLARGE]
    assert {(o.until, o.reason, o.failures) for o in kept} == {(NOW + WAIT, "InsufficientInstanceCapacity", 1)}


def test_an_offering_that_fails_each_time_it_is_tried_again_is_avoided_ever_longer():
    """Out of stock for hours: it is asked for a few times, not every three minutes."""
    known, at, waits = (), NOW, []
    for _ in range(7):
        known = failed(known, LARGE, at=at)
        waits.append((known[0].until - at) // timedelta(minutes=1))
        at = known[0].until + timedelta(seconds=20)
    assert waits == [3, 6, 12, 24, 48, 60, 60]
    assert known[0].failures == 7


def test_launches_side_by_side_that_hit_one_shortage_are_one_failure():
    """Ten claims of one plan learn the same thing; the end moves with the last of them, and never back."""
    known = failed((), LARGE)
    for seconds in (1, 2, 0):
        known = failed(known, LARGE, at=NOW + timedelta(seconds=seconds), reason="b")
    assert [(o.until, o.reason, o.failures) for o in known] == [(NOW + timedelta(seconds=2) + WAIT, "b", 1)]


def test_an_interruption_is_avoided_for_its_own_time_however_often_it_happens():
    """It counts from the event, so that one that is late adds nothing."""
    known = failed((), LARGE, longest=WAIT)
    known = failed(known, LARGE, at=NOW + timedelta(minutes=10), longest=WAIT)
    late = failed(known, LARGE, at=NOW + timedelta(minutes=9), longest=WAIT)
    assert [(o.until, o.failures) for o in late] == [(NOW + timedelta(minutes=10) + WAIT, 2)]


def test_failures_are_forgotten_once_an_offering_was_free_to_try_for_hours():
    """A first failure after that is a first one again; until then the count stands, though it is not avoided."""
    twice = failed(failed((), LARGE, XLARGE), LARGE, at=NOW + timedelta(hours=1))
    late = failed(twice, XLARGE, at=NOW + timedelta(hours=3))
    assert [(o.key, o.failures) for o in late] == [(LARGE, 2), (XLARGE, 2)]
    later = failed(late, LARGE, at=NOW + MEMORY + timedelta(hours=2))
    assert [(o.key, o.failures) for o in later] == [(LARGE, 1), (XLARGE, 2)]


def test_a_count_from_the_cluster_may_be_any_number():
    """Somebody wrote it by hand: the longest wait holds, and nothing overflows."""
    [known] = failed((), LARGE)
    huge = known.model_copy(update={"failures": 10**12})
    [again] = failed((huge,), LARGE, at=NOW + timedelta(hours=1))
    assert again.until == NOW + timedelta(hours=2)


def test_the_list_is_bounded_and_keeps_what_lasts_longest():
    """An object in etcd must not grow without end."""
    full = failed((), *[(f"t{i}", "a", "spot") for i in range(MAX_UNAVAILABLE)])
    kept = failed(full, LARGE, at=NOW + timedelta(minutes=1))
    assert len(kept) == MAX_UNAVAILABLE
    assert LARGE in {o.key for o in kept}


def test_it_survives_the_round_trip():
    """With and without a NodeClass reference."""
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


def test_a_success_ends_what_was_said_of_the_offering_and_of_all_types_there():
    """Only what was over before it: what is avoided at that moment failed side by side with it."""
    everywhere = ("*", "eu-west-1a", "spot")
    known = failed((), LARGE, XLARGE, everywhere)
    assert forget(known, LARGE, NOW) == known
    assert [o.key for o in forget(known, LARGE, NOW + WAIT)] == [XLARGE]
