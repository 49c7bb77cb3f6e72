"""The Lease of a step, with several runs and one clock."""

from datetime import datetime, timedelta, timezone

import pytest

from journeyman.core.api.conditions import parse_time
from journeyman.core.api.objects import LEASE
from journeyman.errors import KubeUnavailableError, LeaseLostError
from journeyman.kube.lease import DURATION_SECONDS, KubeLease
from journeyman.runtime.call_deadline import CALL_SECONDS
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.clock import SkewedClock, VirtualClock
from tests.helpers.fakes import Altered, failing


@pytest.fixture
def clock():
    return VirtualClock(datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc))


@pytest.fixture
def server(clock):
    return ApiServer(clock)


@pytest.fixture
def lease(server, clock):
    """Return a function that makes a run's Lease object for one step."""

    def for_run(holder, **settings):
        return KubeLease(server, clock, name="journeyman-provision", holder=holder, **settings)

    return for_run


def acquired(lease, holder, **settings):
    mine = lease(holder, **settings)
    mine.acquire()
    return mine


def stored(server):
    return server.get(LEASE, "journeyman-provision", namespace="kube-system").spec


def test_one_run_holds_the_lease_at_a_time(server, lease):
    first, second = lease("run-1"), lease("run-2")
    first.acquire()
    with pytest.raises(LeaseLostError, match="another run holds") as caught:
        second.acquire()
    assert caught.value.context["holder"] == "run-1"
    assert caught.value.context["until"] == "2026-03-01T12:00:40+00:00"
    assert caught.value.retryable
    first.release()
    second.acquire()
    assert stored(server).holder_identity == "run-2"
    assert stored(server).lease_transitions == 1


def test_next_run_is_kept_for_the_runs_before_it(clock, server, lease):
    """A run that dies sent no message, or one that is still to come; a time that a user broke counts as none.

    The next run continues behind the object that the last one stored; without one the pass has ended.
    """
    at = clock.now() + timedelta(seconds=30)
    first = acquired(lease, "run-1")
    assert (first.next_run, first.examined_until) == (None, "")
    first.release(at, examined_until="default-abc")
    second = acquired(lease, "run-2")
    assert (second.next_run, second.examined_until) == (at, "default-abc")
    second.release(second.next_run)
    third = acquired(lease, "run-3")
    assert (third.next_run, third.examined_until) == (at, "")
    third.release()
    fourth = acquired(lease, "run-4")
    assert fourth.next_run is None
    fourth.release()

    broken = {"metadata": {"annotations": {"journeyman.dev/next-run": "soon"}}}
    server.patch(LEASE, "journeyman-provision", broken, namespace="kube-system")
    assert acquired(lease, "run-5").next_run is None


def test_lease_of_a_dead_run_expires(clock, server, lease):
    dead, heir = lease("run-1", duration_seconds=60), lease("run-2", duration_seconds=60)
    dead.acquire()
    clock.advance(59)
    with pytest.raises(LeaseLostError):
        heir.acquire()
    clock.advance(1)
    heir.acquire()
    with pytest.raises(LeaseLostError, match="another run has acquired"):
        dead.check()
    heir.check()
    assert stored(server).holder_identity == "run-2"


def test_check_renews_the_lease_after_a_quarter_of_its_duration(clock, server, lease):
    """Earlier checks send nothing, and the Lease of a live run never expires."""
    mine, other = lease("run-1", duration_seconds=60), lease("run-2")
    mine.acquire()
    writes = []
    server.on_write(writes.append)
    for _ in range(12):
        clock.advance(5)
        mine.check()
        with pytest.raises(LeaseLostError):
            other.acquire()
    assert len(writes) == 4


def test_lease_that_was_just_checked_outlasts_a_call_to_aws(clock, lease):
    """Another run cannot acquire it before the call of the first has ended."""
    mine, other = lease("run-1"), lease("run-2")
    mine.acquire()
    for _ in range(100):
        clock.advance(0.5)
        mine.check()
    clock.advance(9.9)
    mine.check()
    clock.advance(CALL_SECONDS - 0.1)
    with pytest.raises(LeaseLostError):
        other.acquire()
    clock.advance(1)
    other.acquire()


def test_redelivered_message_keeps_the_lease(clock, server, lease):
    """Its run has the same holder identity, so leaseTransitions does not change."""
    acquired(lease, "run-1")
    clock.advance(20)
    acquired(lease, "run-1").check()
    assert stored(server).lease_transitions == 0
    assert parse_time(stored(server).renew_time) == clock.now()


@pytest.mark.parametrize("exists", [True, False])
def test_one_of_two_runs_acquires_a_free_lease(server, clock, exists):
    """Both read it as free and write it: because of the version, or the name, only one write succeeds."""
    rivals = []

    def get_before_a_rival_acquires_it(*where, **more):
        try:
            return server.get(*where, **more)
        finally:
            if rivals:
                rivals.pop().acquire()

    store = Altered(server, get=get_before_a_rival_acquires_it)
    slow, quick = (KubeLease(store, clock, name="journeyman-provision", holder=holder) for holder in ("slow", "quick"))
    if exists:
        slow.acquire()
        slow.release()
    rivals.append(quick)
    with pytest.raises(LeaseLostError, match="another run"):
        slow.acquire()
    assert stored(server).holder_identity == "quick"
    quick.check()
    with pytest.raises(LeaseLostError):
        slow.check()


def test_lease_that_was_not_acquired_is_not_held(lease):
    unheld = lease("run-1")
    with pytest.raises(LeaseLostError, match="not held by this run"):
        unheld.check()
    unheld.release()


def test_release_never_raises(clock, server, lease):
    """It does not release the Lease of another run, either."""
    mine, heir = lease("run-1", duration_seconds=10), lease("run-2")
    mine.acquire()
    clock.advance(11)
    heir.acquire()
    mine.release()
    assert stored(server).holder_identity == "run-2"
    heir.check()
    server.delete(LEASE, "journeyman-provision", namespace="kube-system")
    heir.release()
    with pytest.raises(LeaseLostError):
        heir.check()


def test_unreachable_server_is_not_a_lost_lease(clock, server):
    store = Altered(server)
    lease = KubeLease(store, clock, name="l", holder="run-1", duration_seconds=10)
    lease.acquire()
    store.get = store.patch = failing(KubeUnavailableError("no answer"))
    clock.advance(9)
    with pytest.raises(KubeUnavailableError):
        lease.check()
    with pytest.raises(KubeUnavailableError):
        KubeLease(store, clock, name="l", holder="run-2").acquire()
    lease.release()


def test_lease_times_are_micro_times(server, lease):
    """kubectl and other clients can read them."""
    lease("run-1", namespace="default").acquire()
    raw = server.entry(LEASE, "default", "journeyman-provision").object["spec"]
    assert raw["renewTime"] == raw["acquireTime"] == "2026-03-01T12:00:00.000000Z"
    assert raw["leaseDurationSeconds"] == 40


def claimed(server, **spec):
    """Store a Lease as anyone may write it."""
    full = {"holderIdentity": "someone", "leaseDurationSeconds": 40, "renewTime": "2026-03-01T12:00:00.000000Z", **spec}
    given = {name: value for name, value in full.items() if value is not None}
    body = {"metadata": {"name": "journeyman-provision", "namespace": "kube-system"}, "spec": given}
    server.create(LEASE, body, namespace="kube-system")


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        ({"renewTime": "2099-01-01T00:00:00.000000Z"}, 0),
        ({"renewTime": "9999-12-31T23:59:59.999999Z", "leaseDurationSeconds": 2**31 - 1}, 0),
        ({"renewTime": "0001-01-01T00:00:00Z"}, 0),
        ({"renewTime": "0000-01-01T00:00:00Z"}, 0),
        ({"renewTime": "2026-03-01T12:01:00Z"}, 0),
        ({"renewTime": "2026-03-01T12:00:30Z"}, 70),
        ({"renewTime": "2026-03-01T12:00:40Z"}, 80),
        ({"leaseDurationSeconds": 2**31 - 1}, DURATION_SECONDS),
        ({"leaseDurationSeconds": 1}, 1),
        ({"leaseDurationSeconds": None}, DURATION_SECONDS),
        ({"acquireTime": "2099-01-01T00:00:00.000000Z"}, DURATION_SECONDS),
        ({"leaseTransitions": 2**31 - 1}, DURATION_SECONDS),
        ({"holderIdentity": "\u2028" * 5000}, DURATION_SECONDS),
    ],
)
def test_a_lease_that_no_run_could_have_written_stops_its_step_for_two_durations_at_most(
    clock, server, lease, spec, seconds
):
    """A user who may write Leases could stop a step for ever with a date in 2099, or a duration of 68 years."""
    claimed(server, **spec)

    for _ in range(seconds):
        with pytest.raises(LeaseLostError) as caught:
            lease("run-1").acquire()
        assert len(caught.value.context["holder"]) <= 100
        clock.advance(1)
    mine = lease("run-1")
    mine.acquire()

    assert stored(server).holder_identity == "run-1"
    assert ("no run can have written" in mine.disbelieved) == (
        spec.get("renewTime", "")[:4] in {"0000", "2099", "9999"} or spec.get("renewTime") == "2026-03-01T12:01:00Z"
    )
    mine.check()
    clock.advance(DURATION_SECONDS)
    lease("run-2").acquire()


@pytest.mark.parametrize(("before", "after"), [(0, 1), (7, 8), (2**31 - 2, 2**31 - 1), (2**31 - 1, 1)])
def test_each_change_of_the_holder_is_counted(server, lease, before, after):
    """The API server would refuse a larger number than it can store, so the count begins again."""
    claimed(server, holderIdentity="", leaseTransitions=before)
    acquired(lease, "run-1")
    assert stored(server).lease_transitions == after


def test_a_clock_that_is_set_back_renews_the_lease(server, clock, lease):
    """Otherwise the run would believe for as long as the clock was ahead that it holds a Lease which another has acquired."""
    skewed = SkewedClock(clock)
    mine = KubeLease(server, skewed, name="journeyman-provision", holder="run-1")
    mine.acquire()
    skewed.offset = timedelta(seconds=-300)
    clock.advance(DURATION_SECONDS)
    lease("run-2").acquire()

    with pytest.raises(LeaseLostError, match="another run has acquired"):
        mine.check()


def test_a_lease_held_longer_than_any_run_lasts_is_said_to_be(server, clock, lease):
    """Someone renews it who is no run; until it is three minutes old it may be a run."""
    other = lease("someone")
    other.acquire()
    seen = []
    for _ in range(20):
        clock.advance(10)
        other.check()
        with pytest.raises(LeaseLostError) as caught:
            lease("run-1").acquire()
        seen.append(caught.value.context.get("held_seconds"))

    assert seen == [None] * 18 + [190, 200]
