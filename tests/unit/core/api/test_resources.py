"""Resource amounts, and the requests of pods."""

import json
from pathlib import Path

import msgspec
import pytest

from journeyman.core.api import resources
from journeyman.core.api.objects import Pod
from journeyman.errors import InvalidQuantityError

RECORDED = json.loads((Path(__file__).parent / "recorded" / "pod_requests.json").read_text())["cases"]


def a_pod(spec, status=None):
    """A pod with that spec and status."""
    body = {"metadata": {"namespace": "default", "name": "web"}, "spec": spec, "status": status or {}}
    return msgspec.convert(body, Pod)


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["name"])
def test_pod_requests_equal_kubernetes(case):
    """They equal the recorded results of kube-scheduler's helper, plus one pod."""
    assert resources.pod_requests(a_pod(case["spec"], case.get("status"))) == {**case["requests"], "pods": 1}


def test_missing_container_request_defaults_to_its_limit():
    """The API server does the same on admission, for every resource and for init containers."""
    limits = {"limits": {"cpu": "2", "nvidia.com/gpu": "1"}, "requests": {"cpu": "1"}}
    pod = a_pod({"containers": [{"resources": limits}], "initContainers": [{"resources": {"limits": {"cpu": "3"}}}]})
    assert resources.pod_requests(pod) == {"cpu": 3000, "nvidia.com/gpu": 1, "pods": 1}


def test_pod_level_limits_default_requests_without_container_requests():
    """cpu comes from the containers, memory from the pod's limit; storage is not a pod-level resource."""
    declared = {"limits": {"cpu": "4", "memory": "2Gi", "ephemeral-storage": "9Gi"}}
    pod = a_pod({"resources": declared, "containers": [{"resources": {"requests": {"cpu": "1"}}}]})
    assert resources.pod_requests(pod) == {"cpu": 1000, "memory": 2 * 2**30, "pods": 1}


def test_invalid_quantity_names_pod_resource_and_text():
    """The user can find the pod."""
    with pytest.raises(InvalidQuantityError, match=r"Pod default/web: memory: 'lots' is not a quantity") as caught:
        resources.pod_requests(a_pod({"containers": [{"resources": {"requests": {"memory": "lots"}}}]}))
    assert caught.value.context == {"pod": "default/web", "resource": "memory", "quantity": "lots"}


def test_negative_amounts_are_rejected():
    """Requests and capacities cannot be negative."""
    with pytest.raises(InvalidQuantityError, match=r"cpu: '-1' is negative"):
        resources.to_resources({"cpu": "-1"}, round_up=True)


def test_requests_round_up_and_capacity_rounds_down():
    """cpu is in millicores, the rest in whole units."""
    texts = {"cpu": 0.0015, "memory": "1.5", "pods": 110}
    assert resources.to_resources(texts, round_up=True) == {"cpu": 2, "memory": 2, "pods": 110}
    assert resources.to_resources(texts, round_up=False) == {"cpu": 1, "memory": 1, "pods": 110}


def test_amounts_are_formatted_as_the_kubelet_does():
    """Bytes are in powers of two, cores in thousandths; names are sorted."""
    written = resources.format_resources({"pods": 110, "memory": 3 * 2**30, "cpu": 1930, "hugepages-2Mi": 2**21})
    assert list(written.items()) == [("cpu", "1930m"), ("hugepages-2Mi", "2Mi"), ("memory", "3Gi"), ("pods", "110")]


def test_resource_lists_add_and_subtract_over_all_names():
    """A missing name counts as zero."""
    assert resources.add({"cpu": 1}, {"cpu": 2, "memory": 5}) == {"cpu": 3, "memory": 5}
    assert resources.subtract({"cpu": 1}, {"cpu": 2, "memory": 5}) == {"cpu": -1, "memory": -5}
    assert resources.maximum({"cpu": 1, "pods": 4}, {"cpu": 2}) == {"cpu": 2, "pods": 4}


def test_request_fits_available_resources_only():
    """Zero of an unknown resource fits."""
    assert resources.fits({"cpu": 1, "nvidia.com/gpu": 0}, {"cpu": 1})
    assert not resources.fits({"nvidia.com/gpu": 1}, {"cpu": 1})
    assert not resources.fits({"cpu": 1}, {"cpu": 5, "memory": -1})


def test_total_requests_include_the_number_of_pods():
    """Without pods, it is zero."""
    pod = a_pod({"containers": [{"resources": {"requests": {"cpu": "250m"}}}]})
    assert resources.total_requests([pod, pod]) == {"cpu": 500, "pods": 2}
    assert resources.total_requests([]) == {"pods": 0}
