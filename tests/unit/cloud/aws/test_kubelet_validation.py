"""Invalid spec.kubelet settings are reported on the NodeClass, before nodes fail to join."""

import pytest

from journeyman.cloud.aws.kubelet_validation import kubelet_problems
from tests.unit.cloud.aws.conftest import node_class

AL2 = [{"alias": "al2@latest"}]
BOTTLEROCKET = [{"alias": "bottlerocket@latest"}]


@pytest.mark.parametrize(
    "kubelet",
    [
        {},
        {"maxPods": 110, "podsPerCore": 0, "clusterDNS": ["10.0.0.10", "10.0.0.11"]},
        {"evictionHard": {"memory.available": "5%", "nodefs.available": "1Gi", "pid.available": "100%"}},
        {"evictionSoft": {"memory.available": "1Gi"}, "evictionSoftGracePeriod": {"memory.available": "1m30s"}},
        {"kubeReserved": {"cpu": "100m", "ephemeral-storage": "1Gi"}, "systemReserved": {"pid": "100"}},
        {"imageGCHighThresholdPercent": 85, "imageGCLowThresholdPercent": 80},
        {"imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 0},
        {"evictionHard": {"memory.available": "0%", "nodefs.available": "0"}, "maxPods": 0},
        {"featureGates": {"NodeSwap": True}, "singleProcessOOMKill": False, "memoryThrottlingFactor": 0.8},
    ],
)
def test_valid_kubelet_settings_are_accepted_on_al2023(kubelet):
    """nodeadm passes the whole object to kubelet."""
    assert kubelet_problems(node_class(kubelet=kubelet)) is None


@pytest.mark.parametrize(
    ("kubelet", "reason", "message"),
    [
        ({"maxPod": 1}, "InvalidKubeletConfiguration", "maxPod: the kubelet has no such setting"),
        ({"podsPerCore": "4"}, "InvalidKubeletConfiguration", "podsPerCore: must be a whole number"),
        ({"failSwapOn": 1}, "InvalidKubeletConfiguration", "failSwapOn: must be true or false"),
        ({"memoryThrottlingFactor": "0.8"}, "InvalidKubeletConfiguration", "memoryThrottlingFactor: must be a number"),
        ({"memoryThrottlingFactor": True}, "InvalidKubeletConfiguration", "memoryThrottlingFactor: must be a number"),
        ({"evictionHard": ["1Gi"]}, "InvalidKubeletConfiguration", "evictionHard: must be an object"),
        ({"podsPerCore": True}, "InvalidKubeletConfiguration", "podsPerCore: must be a whole number"),
        (
            {"kubeReserved": {"cpu": 1, "memory": "1Gi"}},
            "InvalidKubeletConfiguration",
            "kubeReserved: must be an object with string values",
        ),
        ({"registerWithTaints": []}, "InvalidKubeletConfiguration", "remove it"),
        ({"evictionHard": {"memory.free": "1Gi"}}, "InvalidKubeletConfiguration", "no eviction signal"),
        ({"evictionHard": {"memory.available": "101%"}}, "InvalidKubeletConfiguration", "0% to 100%"),
        ({"evictionHard": {"memory.available": "-1%"}}, "InvalidKubeletConfiguration", "0% to 100%"),
        ({"evictionHard": {"memory.available": "-1Gi"}}, "InvalidKubeletConfiguration", "not negative"),
        (
            {"evictionSoft": {"memory.available": "1Gi"}},
            "InvalidKubeletConfiguration",
            "evictionSoftGracePeriod: lacks",
        ),
        ({"evictionSoftGracePeriod": {"memory.available": "1m"}}, "InvalidKubeletConfiguration", "evictionSoft: lacks"),
        (
            {"evictionSoft": {"memory.available": "1Gi"}, "evictionSoftGracePeriod": {"memory.available": "soon"}},
            "InvalidKubeletConfiguration",
            "must be a duration",
        ),
        ({"kubeReserved": {"gpu": "1"}}, "InvalidKubeletConfiguration", "cannot be reserved"),
        ({"kubeReserved": {"cpu": "-1"}}, "InvalidKubeletConfiguration", "negative"),
        ({"imageGCHighThresholdPercent": 101}, "InvalidKubeletConfiguration", "between 0 and 100"),
        ({"imageGCLowThresholdPercent": -1}, "InvalidKubeletConfiguration", "between 0 and 100"),
        (
            {"imageGCHighThresholdPercent": 80, "imageGCLowThresholdPercent": 80},
            "InvalidKubeletConfiguration",
            "must be greater",
        ),
        ({"maxPods": -1}, "InvalidKubeletConfiguration", "maxPods: -1 is negative"),
        ({"maxPods": "vcpus * 10"}, "KubeletExpressionsDisabled", "maxPods"),
        ({"kubeReserved": {"cpu": "vcpus * 10"}}, "KubeletExpressionsDisabled", "kubeReserved[cpu]"),
    ],
)
def test_invalid_setting_has_karpenters_reason_and_its_field(kubelet, reason, message):
    """The condition names the field to change."""
    found = kubelet_problems(node_class(kubelet=kubelet))

    assert found is not None
    assert found[0] == reason
    assert message in found[1]


@pytest.mark.parametrize(
    ("terms", "kubelet", "message"),
    [
        (AL2, {"cpuManagerPolicy": "static"}, "cpuManagerPolicy: is not passed on to AL2"),
        (AL2, {"clusterDNS": ["10.0.0.10", "10.0.0.11"]}, "take one address"),
        (BOTTLEROCKET, {"podsPerCore": 4}, "Bottlerocket has no such setting"),
    ],
)
def test_settings_that_an_ami_family_ignores_are_reported(terms, kubelet, message):
    """The NodeClass's condition names them."""
    found = kubelet_problems(node_class(amiSelectorTerms=terms, kubelet=kubelet))

    assert found is not None
    assert found[0] == "UnsupportedKubeletConfiguration"
    assert message in found[1]
    assert kubelet_problems(node_class(amiSelectorTerms=[{"id": "ami-1"}], amiFamily="Custom", kubelet=kubelet)) is None


@pytest.mark.parametrize(
    ("terms", "kubelet"),
    [
        (AL2, {"clusterDNS": ["10.0.0.10"], "podsPerCore": 4, "maxPods": 20}),
        (BOTTLEROCKET, {"clusterDNS": ["10.0.0.10"], "maxPods": 20, "kubeReserved": {"cpu": "100m"}}),
    ],
)
def test_settings_that_an_ami_family_passes_on_are_accepted(terms, kubelet):
    """The user data has them."""
    assert kubelet_problems(node_class(amiSelectorTerms=terms, kubelet=kubelet)) is None
