"""Leases between concurrent runs of a step."""

from datetime import timedelta

import pytest

from journeyman.core.api.conditions import parse_time
from journeyman.core.api.objects import LEASE
from journeyman.errors import ConflictError, LeaseLostError
from journeyman.kube.lease import DURATION_SECONDS, KubeLease
from journeyman_simulator.clock import VirtualClock
from tests.contract.kube.clusters import START


@pytest.fixture
def clock():
    return VirtualClock(START)


@pytest.fixture
def lease(cluster, clock):
    def of(holder):
        return KubeLease(cluster.store, clock, name="step", holder=holder, namespace=cluster.namespace)

    return of


def test_one_run_holds_a_lease_at_a_time(cluster, clock, lease):
    """After it releases the Lease or the Lease expires, the first run to acquire it holds it."""
    first, second = lease("first"), lease("second")
    first.acquire()
    with pytest.raises(LeaseLostError):
        second.acquire()
    first.release()
    second.acquire()
    clock.advance(DURATION_SECONDS + 1)
    first.acquire()
    with pytest.raises(LeaseLostError):
        second.check()
    stored = cluster.store.get(LEASE, "step", namespace=cluster.namespace).spec
    assert (stored.holder_identity, stored.lease_transitions) == ("first", 2)
    assert parse_time(stored.renew_time) - START == timedelta(seconds=DURATION_SECONDS + 1)


def test_a_lease_is_renewed_on_the_version_that_was_read(cluster, clock, lease):
    """The server keeps times to the microsecond, and an update of an older version is a conflict."""
    held = lease("first")
    held.acquire()
    read = cluster.store.get(LEASE, "step", namespace=cluster.namespace)
    clock.advance(DURATION_SECONDS / 2 + 0.000_001)
    held.check()
    after = cluster.store.get(LEASE, "step", namespace=cluster.namespace)
    renewed = parse_time(after.spec.renew_time) - parse_time(read.spec.renew_time)
    assert renewed == timedelta(seconds=DURATION_SECONDS / 2, microseconds=1)
    late = {"metadata": {"resourceVersion": read.metadata.resource_version}, "spec": {"holderIdentity": "second"}}
    with pytest.raises(ConflictError):
        cluster.store.patch(LEASE, "step", late, namespace=cluster.namespace)
