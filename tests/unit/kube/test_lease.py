"""The fence, with several runs and one clock."""

from datetime import datetime, timezone

import pytest

from journeyman.core.api.objects import LEASE
from journeyman.errors import KubeUnavailableError, LeaseLostError
from journeyman.kube.lease import KubeLease
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.clock import VirtualClock


@pytest.fixture
def clock():
    return VirtualClock(datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc))


@pytest.fixture
def server(clock):
    return ApiServer(clock)


@pytest.fixture
def lease(server, clock):
    """The Lease of one step, as seen by a run."""

    def for_run(holder, **settings):
        return KubeLease(server, clock, name="journeyman-provision", holder=holder, **settings)

    return for_run


def stored(server):
    return server.get(LEASE, "journeyman-provision", namespace="kube-system").spec


def test_one_run_holds_the_lease_at_a_time(server, lease):
    """The second is refused until the first gives it back, and is told who has it."""
    first, second = lease("run-1"), lease("run-2")
    first.acquire()
    with pytest.raises(LeaseLostError, match="another run holds") as caught:
        second.acquire()
    assert caught.value.context["holder"] == "run-1"
    assert caught.value.retryable
    first.release()
    second.acquire()
    assert stored(server).holder_identity == "run-2"
    assert stored(server).lease_transitions == 1


def test_a_run_that_died_is_waited_out(clock, server, lease):
    """Its Lease counts until it expires, not a second longer; then the next run fences it out."""
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


def test_holding_on_costs_a_write_only_every_half_duration(clock, server, lease):
    """Checks between are free; a check in the second half renews, so the Lease never runs out under a live run."""
    mine, other = lease("run-1", duration_seconds=60), lease("run-2")
    mine.acquire()
    writes = []
    server.on_write(writes.append)
    for _ in range(12):
        clock.advance(10)
        mine.check()
        with pytest.raises(LeaseLostError):
            other.acquire()
    assert len(writes) == 4


def test_the_same_run_delivered_again_goes_on(clock, server, lease):
    """A message delivered twice has one holder identity; it takes its own Lease over, without a transition."""
    lease("run-1").acquire()
    clock.advance(20)
    again = lease("run-1")
    again.acquire()
    again.check()
    assert stored(server).lease_transitions == 0
    assert stored(server).renew_time == clock.now()


class Contested(ApiServer):
    """A server on which a rival takes the Lease between every reading and the writing that follows it."""

    def __init__(self, clock):
        super().__init__(clock)
        self.rival = None

    def get(self, resource, name, *, namespace=""):
        try:
            return super().get(resource, name, namespace=namespace)
        finally:
            if self.rival is not None:
                rival, self.rival = self.rival, None
                rival.acquire()


@pytest.mark.parametrize("exists", [True, False])
def test_of_two_runs_that_find_it_free_one_wins(clock, exists):
    """Both read that it is free, both write: the version, or the name, lets one through."""
    store = Contested(clock)
    slow, quick = (KubeLease(store, clock, name="journeyman-provision", holder=holder) for holder in ("slow", "quick"))
    if exists:
        slow.acquire()
        slow.release()
    store.rival = quick
    with pytest.raises(LeaseLostError, match="another run"):
        slow.acquire()
    assert stored(store).holder_identity == "quick"
    quick.check()
    with pytest.raises(LeaseLostError):
        slow.check()


def test_a_lease_that_was_never_taken_is_not_held(lease):
    """Checking without acquiring is refused; releasing does nothing."""
    unheld = lease("run-1")
    with pytest.raises(LeaseLostError, match="not held by this run"):
        unheld.check()
    unheld.release()


def test_release_never_raises(clock, server, lease):
    """Whatever became of the Lease meanwhile; and a lost one is not given away under its new holder."""
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


def test_an_unreachable_server_is_not_a_lost_lease(clock, server):
    """The step must know that nothing is decided: the error passes through acquire and check, not through release."""

    class Down(ApiServer):
        down = False

        def get(self, *args, **kwargs):
            if self.down:
                raise KubeUnavailableError("no answer")
            return super().get(*args, **kwargs)

        def patch(self, *args, **kwargs):
            if self.down:
                raise KubeUnavailableError("no answer")
            return super().patch(*args, **kwargs)

    store = Down(clock)
    lease = KubeLease(store, clock, name="l", holder="run-1", duration_seconds=10)
    lease.acquire()
    store.down = True
    clock.advance(9)
    with pytest.raises(KubeUnavailableError):
        lease.check()
    with pytest.raises(KubeUnavailableError):
        KubeLease(store, clock, name="l", holder="run-2").acquire()
    lease.release()


def test_times_are_written_as_kubernetes_writes_them(server, lease):
    """MicroTime: kubectl and other clients can read it."""
    lease("run-1", namespace="default").acquire()
    raw = server.entry(LEASE, "default", "journeyman-provision").object["spec"]
    assert raw["renewTime"] == raw["acquireTime"] == "2026-03-01T12:00:00.000000Z"
    assert raw["leaseDurationSeconds"] == 60
