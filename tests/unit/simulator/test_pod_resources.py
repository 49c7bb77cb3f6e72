"""What the simulated kube-scheduler and kubelets count for a pod."""

import json
from pathlib import Path

import msgspec
import pytest

from journeyman.core.api.objects import Pod
from journeyman_simulator.pod_resources import allocated_requests, scheduled_requests, wanted_requests

RECORDED = json.loads((Path(__file__).parents[1] / "core/api/recorded/pod_requests.json").read_text())["cases"]


def a_pod(spec, status):
    return msgspec.convert({"metadata": {"name": "web"}, "spec": spec, "status": status}, Pod)


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["name"])
def test_scheduled_requests_equal_those_of_kube_scheduler(case):
    """They equal the recorded results of its helper, plus one pod."""
    assert scheduled_requests(a_pod(case["spec"], case.get("status", {}))) == {**case["requests"], "pods": 1}


def test_kubelet_counts_what_it_has_allocated():
    """A deferred growth is not allocated yet; a container without a status counts with its requests."""
    containers = [{"name": name, "resources": {"requests": {"cpu": "3"}}} for name in "ab"]
    pod = a_pod({"containers": containers}, {"containerStatuses": [{"name": "a", "allocatedResources": {"cpu": "1"}}]})
    assert (allocated_requests(pod), wanted_requests(pod)) == ({"cpu": 4000, "pods": 1}, {"cpu": 6000, "pods": 1})
