"""Cloud provider calls are measured with Karpenter's names and labels, whether they succeed or fail."""

from datetime import datetime, timezone
from typing import ClassVar

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
    """A cloud whose calls take three seconds and raise `error`, if set, or return the errors of `refused` instances."""

    name = "slow"
    error = None
    refused: ClassVar = {}

    def _answer(self):
        self.clock.advance(3)
        if self.error is not None:
            raise self.error

    def list(self):
        self._answer()
        return ()

    def delete_each(self, provider_ids):
        self._answer()
        return self.refused

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


def test_call_duration_has_controller_method_and_provider(metered, samples):
    """Karpenter's dashboards group by these labels."""
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
def test_refused_termination_is_measured_and_counted(cloud, metered, samples, error, name, refusals):
    """The error label has three values; a missing instance is not a failed termination."""
    cloud.refused = {"aws:///z-b/i-1": error}

    assert metered.delete_each(["aws:///z-b/i-1", "aws:///z-b/i-2"]) == cloud.refused

    assert found(samples, DURATION) == [({**CALL, "method": "Delete"}, 3.0)]
    assert found(samples, ERRORS) == [({**CALL, "method": "Delete", "error": name}, 1.0)]
    assert found(samples, "karpenter_cloudprovider_instance_termination_failures_total") == refusals


def test_failed_call_is_measured_counted_and_raised(cloud, metered, samples):
    """It concerns no single instance."""
    cloud.error = CloudUnavailableError("down")

    with pytest.raises(CloudUnavailableError):
        metered.list()

    assert found(samples, DURATION) == [({**CALL, "method": "List"}, 3.0)]
    assert found(samples, ERRORS) == [({**CALL, "method": "List", "error": ""}, 1.0)]


def test_each_launch_is_a_create_and_unavailable_offerings_are_counted(metered, samples):
    """Each outcome has one sample, measured from the request."""
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


def test_user_data_size_is_recorded_for_each_launch(metered, samples):
    """The metric is labelled by NodeClass and includes failed launches: EC2 accepts 16 KiB."""
    claims = [msgspec.convert({"metadata": {"name": name}}, NodeClaim) for name in ("c-1", "c-2")]
    list(metered.launch([LaunchRequest(claim=c, node_class=a_node_class("web"), instance_types=()) for c in claims]))

    (sample,) = [s for s in samples if s.name == "karpenter_ec2nodeclasses_userdata_bytes"]
    assert (dict(sample.labels), sample.value, sample.kind) == ({"nodeclass": "web"}, 1234.0, "gauge")


def test_metered_cloud_uses_the_declared_labels(cloud, metered, samples):
    """An undeclared label would be lost."""
    cloud.error = None
    list(metered.launch([]))
    cloud.refused = {"x": CloudUnavailableError("down")}
    metered.delete_each(["x"])

    assert len({s.name for s in samples}) == 5
    assert all(set(s.labels) == set(METRICS[s.name].labels) and s.kind == METRICS[s.name].kind for s in samples)
