"""Calls of the cloud are timed and counted with Karpenter's names and labels, whatever becomes of them."""

from datetime import datetime, timezone

import msgspec
import pytest

from journeyman.core.api.metrics import METRICS
from journeyman.core.api.objects import NodeClaim
from journeyman.errors import (
    CloudUnavailableError,
    InsufficientCapacityError,
    NodeClaimNotFoundError,
)
from journeyman.observe.metered_cloud import MeteredCloud
from journeyman.ports import LaunchFailed, LaunchRefusal, LaunchRequest
from journeyman_simulator.clock import VirtualClock
from tests.helpers.builders import a_node_class
from tests.helpers.fakes import FakeCloud

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=timezone.utc)
DURATION = "karpenter_cloudprovider_duration_seconds"
ERRORS = "karpenter_cloudprovider_errors_total"
CALL = {"controller": "terminate", "provider": "slow"}


class SlowCloud(FakeCloud):
    """Every answer takes three seconds; `error` is raised instead, if there is one."""

    name = "slow"
    error = None

    def _answer(self):
        self.clock.advance(3)
        if self.error is not None:
            raise self.error

    def list(self):
        self._answer()
        return ()

    def delete(self, provider_id):
        self._answer()

    def launch(self, requests):
        self._answer()
        refusal = LaunchRefusal(zone="z-a", zone_id="z1", capacity_type="spot", reason="LaunchFailed")
        error = InsufficientCapacityError("none left")
        yield LaunchFailed(claim="c-1", error=error, refusals=(refusal, refusal), user_data_bytes=1234)
        self._answer()
        yield LaunchFailed(claim="c-2", error=CloudUnavailableError("no answer"))


@pytest.fixture
def cloud():
    return SlowCloud(VirtualClock(NOW))


@pytest.fixture
def samples():
    return []


@pytest.fixture
def metered(cloud, samples):
    return MeteredCloud(cloud, cloud.clock, samples.append, controller="terminate")


def found(samples, name):
    return [(dict(s.labels), s.value) for s in samples if s.name == name]


def test_a_call_is_timed_by_controller_method_and_provider(metered, samples):
    """The three labels that Karpenter's dashboards group by."""
    metered.list()

    assert found(samples, DURATION) == [({**CALL, "method": "List"}, 3.0)]
    assert found(samples, ERRORS) == []


@pytest.mark.parametrize(
    ("error", "name", "refusals"),
    [
        (NodeClaimNotFoundError("gone"), "NodeClaimNotFoundError", []),
        (CloudUnavailableError("down", zone="z-b"), "", [({"zone": "z-b", "zone_id": ""}, 1.0)]),
    ],
)
def test_a_failed_call_is_timed_and_counted_by_its_error_and_raised(cloud, metered, samples, error, name, refusals):
    """Karpenter names three errors and leaves the others unnamed; an instance that is gone is no failed termination."""
    cloud.error = error

    with pytest.raises(type(error)):
        metered.delete("aws:///z-b/i-1")

    assert found(samples, DURATION) == [({**CALL, "method": "Delete"}, 3.0)]
    assert found(samples, ERRORS) == [({**CALL, "method": "Delete", "error": name}, 1.0)]
    assert found(samples, "karpenter_cloudprovider_instance_termination_failures_total") == refusals


def test_each_launch_is_a_create_and_each_offering_asked_for_in_vain_is_counted(metered, samples):
    """One outcome, one sample, from when the launches were asked for."""
    outcomes = list(metered.launch([]))

    create = {**CALL, "method": "Create"}
    assert [o.claim for o in outcomes] == ["c-1", "c-2"]
    assert found(samples, DURATION) == [(create, 3.0), (create, 6.0)]
    assert found(samples, ERRORS) == [
        ({**create, "error": "InsufficientCapacityError"}, 1.0),
        ({**create, "error": ""}, 1.0),
    ]
    refused = {"zone": "z-a", "zone_id": "z1", "capacity_type": "spot", "reason": "LaunchFailed"}
    assert found(samples, "karpenter_cloudprovider_instance_launch_failures_total") == [(refused, 1.0)] * 2


def test_how_large_the_user_data_is_is_told_of_each_launch_that_made_some(metered, samples):
    """By NodeClass, also of those that are refused: EC2 takes 16 KiB, and somebody may be about to reach that."""
    claims = [msgspec.convert({"metadata": {"name": name}}, NodeClaim) for name in ("c-1", "c-2")]
    list(metered.launch([LaunchRequest(claim=c, node_class=a_node_class("web"), instance_types=()) for c in claims]))

    (sample,) = [s for s in samples if s.name == "karpenter_ec2nodeclasses_userdata_bytes"]
    assert (dict(sample.labels), sample.value, sample.kind) == ({"nodeclass": "web"}, 1234.0, "gauge")


def test_labels_are_those_that_the_table_declares(cloud, metered, samples):
    """A label that is not declared would be lost by whoever exposes it."""
    cloud.error = None
    list(metered.launch([]))
    cloud.error = CloudUnavailableError("down")
    with pytest.raises(CloudUnavailableError):
        metered.delete("x")

    assert len({s.name for s in samples}) == 5
    assert all(set(s.labels) == set(METRICS[s.name].labels) and s.kind == METRICS[s.name].kind for s in samples)
