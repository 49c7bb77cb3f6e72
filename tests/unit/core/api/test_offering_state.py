"""OfferingStates: what is avoided, and until when."""

from datetime import datetime, timedelta, timezone

from journeyman.core.api.model import parse
from journeyman.core.api.offering_state import MAX_UNAVAILABLE, OfferingState, remember

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)
SOON = NOW + timedelta(minutes=3)
LARGE = ("m5.large", "eu-west-1a", "spot")
XLARGE = ("m5.xlarge", "eu-west-1a", "spot")


def test_what_failed_is_avoided_for_a_while():
    """Sorted, with the cloud's word for why."""
    kept = remember((), [XLARGE, LARGE], until=SOON, reason="InsufficientInstanceCapacity", now=NOW)
    assert [o.key for o in kept] == [LARGE, XLARGE]
    assert {(o.until, o.reason, o.failures) for o in kept} == {(SOON, "InsufficientInstanceCapacity", 1)}


def test_failing_again_counts_and_never_shortens_the_time():
    """The later end holds."""
    once = remember((), [LARGE], until=SOON, reason="a", now=NOW)
    again = remember(once, [LARGE], until=SOON - timedelta(minutes=1), reason="b", now=NOW)
    assert [(o.until, o.reason, o.failures) for o in again] == [(SOON, "b", 2)]


def test_what_is_over_is_dropped():
    """A first failure after that is a first one again."""
    once = remember((), [LARGE, XLARGE], until=SOON, reason="a", now=NOW)
    later = remember(once, [LARGE], until=SOON + timedelta(minutes=9), reason="a", now=SOON)
    assert [(o.key, o.failures) for o in later] == [(LARGE, 1)]


def test_the_list_is_bounded_and_keeps_what_lasts_longest():
    """An object in etcd must not grow without end."""
    many = [(f"t{i}", "a", "spot") for i in range(MAX_UNAVAILABLE)]
    full = remember((), many, until=SOON, reason="a", now=NOW)
    kept = remember(full, [LARGE], until=SOON + timedelta(minutes=1), reason="a", now=NOW)
    assert len(kept) == MAX_UNAVAILABLE
    assert LARGE in {o.key for o in kept}


def test_it_survives_the_round_trip():
    """With and without a NodeClass reference."""
    unavailable = [o.to_wire() for o in remember((), [LARGE], until=SOON, reason="a", now=NOW)]
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
    assert state.status.unavailable[0].until == SOON
    assert parse(OfferingState, {"metadata": {"name": "x"}}).spec.node_class_ref is None
