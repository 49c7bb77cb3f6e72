"""Faults of a kubelet configuration, as reasons of a condition."""

import pytest

from journeyman.core.api.kubelet_rules import kubelet_fault


@pytest.mark.parametrize(
    ("kubelet", "family"),
    [
        ({}, "AL2"),
        ({"maxPods": 110, "clusterDNS": ["10.0.0.10"], "kubeReserved": {"cpu": "100m", "pid": "100"}}, "Bottlerocket"),
        ({"topologyManagerPolicy": "best-effort", "featureGates": {"A": True}, "podsPerCore": 2}, "AL2023"),
        (
            {
                "evictionHard": {"memory.available": "5%", "nodefs.available": "1Gi"},
                "evictionSoft": {"memory.available": "10%"},
                "evictionSoftGracePeriod": {"memory.available": "1m30s"},
            },
            "AL2",
        ),
        ({"imageGCHighThresholdPercent": 85, "imageGCLowThresholdPercent": 80}, "Custom"),
    ],
)
def test_a_sound_configuration_has_no_fault(kubelet, family):
    """Families that take the whole configuration take more."""
    assert kubelet_fault(kubelet, family) is None


@pytest.mark.parametrize(
    ("kubelet", "words"),
    [
        ({"maxPod": 5}, "spec.kubelet.maxPod: unknown field"),
        ({"maxPods": True}, "spec.kubelet.maxPods: must be of type integer"),
        ({"cpuCFSQuota": "yes"}, "spec.kubelet.cpuCFSQuota: must be of type boolean"),
        ({"kubeReserved": {"cpu": 1}}, "spec.kubelet.kubeReserved: must be of type map of strings"),
        ({"registerWithTaints": []}, "registerWithTaints: can't be set"),
        ({"evictionHard": {"disk": "5%"}}, "evictionHard[disk]: isn't an eviction signal"),
        ({"evictionHard": {"pid.available": "101%"}}, "'101%' must be a percentage or a resource quantity"),
        ({"evictionHard": {"pid.available": "-5"}}, "'-5' must be a percentage or a resource quantity"),
        (
            {"evictionSoft": {"pid.available": "5%"}},
            "evictionSoft[pid.available]: has no matching evictionSoftGracePeriod",
        ),
        ({"evictionSoftGracePeriod": {"pid.available": "1m"}}, "has no matching evictionSoft"),
        (
            {"evictionSoft": {"pid.available": "5%"}, "evictionSoftGracePeriod": {"pid.available": "soon"}},
            "'soon' must be a duration",
        ),
        ({"systemReserved": {"gpu": "1"}}, "systemReserved[gpu]: isn't reservable"),
        ({"systemReserved": {"cpu": "-1"}}, "systemReserved[cpu]: '-1' can't be negative"),
        ({"imageGCHighThresholdPercent": 101}, "101 must be between 0 and 100"),
        ({"imageGCHighThresholdPercent": 50, "imageGCLowThresholdPercent": 50}, "must be greater than"),
        ({"podsPerCore": -1}, "spec.kubelet.podsPerCore: -1 can't be negative"),
        ({"maxPods": -1}, "spec.kubelet.maxPods: -1 can't be negative"),
    ],
)
def test_a_wrong_configuration_is_invalid(kubelet, words):
    """Unknown fields, wrong types, and what types cannot say."""
    fault = kubelet_fault(kubelet, "AL2023")
    assert fault.reason == "InvalidKubeletConfiguration"
    assert words in fault.message


def test_expressions_are_not_enabled():
    """Where a number belongs stands a formula: a reason of its own, and only once the rest is sound."""
    kubelet = {"maxPods": "vcpus * 8", "kubeReserved": {"memory": "memory_mib / 10"}}
    fault = kubelet_fault(kubelet, "AL2023")
    assert fault.reason == "KubeletExpressionsDisabled"
    assert "spec.kubelet.maxPods, spec.kubelet.kubeReserved[memory]" in fault.message
    assert kubelet_fault({**kubelet, "foo": 1}, "AL2023").reason == "InvalidKubeletConfiguration"


@pytest.mark.parametrize(
    ("kubelet", "family", "words"),
    [
        ({"topologyManagerPolicy": "none"}, "AL2", "topologyManagerPolicy can't be passed to nodes of the AL2"),
        ({"clusterDNS": ["10.0.0.10", "10.0.0.11"]}, "Windows2022", "takes one address only"),
        ({"podsPerCore": 2}, "Bottlerocket", "podsPerCore: not supported"),
    ],
)
def test_what_a_family_cannot_pass_on_is_unsupported(kubelet, family, words):
    """Better not ready than silently without."""
    fault = kubelet_fault(kubelet, family)
    assert fault.reason == "UnsupportedKubeletConfiguration"
    assert words in fault.message
