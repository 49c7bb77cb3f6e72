"""Invalid spec.kubelet settings are reported on the NodeClass, before nodes fail to join."""

import pytest

from journeyman.cloud.aws.kubelet_validation import kubelet_problems
from tests.unit.cloud.aws.conftest import node_class

AL2 = [{"alias": "al2@latest"}]
AL2023 = [{"alias": "al2023@latest"}]
BOTTLEROCKET = [{"alias": "bottlerocket@latest"}]
SOFT = {"memory.available": "1Gi"}


@pytest.mark.parametrize(
    ("terms", "kubelet"),
    [
        (AL2023, {}),
        (AL2023, {"maxPods": 110, "podsPerCore": 0, "clusterDNS": ["10.0.0.10", "10.0.0.11"]}),
        (AL2023, {"evictionHard": {"memory.available": "5%", "nodefs.available": "1Gi", "pid.available": "100%"}}),
        (AL2023, {"evictionSoft": SOFT, "evictionSoftGracePeriod": {"memory.available": "1m30s"}}),
        (AL2023, {"kubeReserved": {"cpu": "100m", "ephemeral-storage": "1Gi"}, "systemReserved": {"pid": "100"}}),
        (AL2023, {"imageGCHighThresholdPercent": 85, "imageGCLowThresholdPercent": 80}),
        (AL2023, {"imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 0}),
        (AL2023, {"evictionHard": {"memory.available": "0%", "nodefs.available": "0"}, "maxPods": 0}),
        (AL2023, {"featureGates": {"NodeSwap": True}, "singleProcessOOMKill": False, "memoryThrottlingFactor": 0.8}),
        (AL2, {"clusterDNS": ["10.0.0.10"], "podsPerCore": 4, "maxPods": 20}),
        (BOTTLEROCKET, {"clusterDNS": ["10.0.0.10"], "maxPods": 20, "kubeReserved": {"cpu": "100m"}}),
    ],
)
def test_settings_that_an_ami_family_passes_on_are_accepted(terms, kubelet):
    """nodeadm passes the whole object to kubelet."""
    assert kubelet_problems(node_class(amiSelectorTerms=terms, kubelet=kubelet)) is None


@pytest.mark.parametrize(
    ("kubelet", "message"),
    [
        ({"maxPod": 1}, "maxPod: the kubelet has no such setting"),
        ({"podsPerCore": "4"}, "podsPerCore: must be a whole number"),
        ({"failSwapOn": 1}, "failSwapOn: must be true or false"),
        ({"memoryThrottlingFactor": "0.8"}, "memoryThrottlingFactor: must be a number"),
        ({"memoryThrottlingFactor": True}, "memoryThrottlingFactor: must be a number"),
        ({"evictionHard": ["1Gi"]}, "evictionHard: must be an object"),
        ({"podsPerCore": True}, "podsPerCore: must be a whole number"),
        ({"kubeReserved": {"cpu": 1, "memory": "1Gi"}}, "kubeReserved: must be an object with string values"),
        ({"registerWithTaints": []}, "remove it"),
        ({"evictionHard": {"memory.free": "1Gi"}}, "no eviction signal"),
        ({"evictionHard": {"memory.available": "101%"}}, "0% to 100%"),
        ({"evictionHard": {"memory.available": "-1%"}}, "0% to 100%"),
        ({"evictionHard": {"memory.available": "-1Gi"}}, "not negative"),
        ({"evictionSoft": SOFT}, "evictionSoftGracePeriod: lacks"),
        ({"evictionSoftGracePeriod": {"memory.available": "1m"}}, "evictionSoft: lacks"),
        ({"evictionSoft": SOFT, "evictionSoftGracePeriod": {"memory.available": "soon"}}, "must be a duration"),
        ({"kubeReserved": {"gpu": "1"}}, "cannot be reserved"),
        ({"kubeReserved": {"cpu": "-1"}}, "negative"),
        ({"imageGCHighThresholdPercent": 101}, "between 0 and 100"),
        ({"imageGCLowThresholdPercent": -1}, "between 0 and 100"),
        ({"imageGCHighThresholdPercent": 80, "imageGCLowThresholdPercent": 80}, "must be greater"),
        ({"maxPods": -1}, "maxPods: -1 is negative"),
        ({"maxPods": "vcpus * 10"}, "maxPods"),
        ({"kubeReserved": {"cpu": "vcpus * 10"}}, "kubeReserved[cpu]"),
    ],
)
def test_invalid_setting_has_karpenters_reason_and_its_field(kubelet, message):
    reason = "KubeletExpressionsDisabled" if "vcpus" in str(kubelet) else "InvalidKubeletConfiguration"
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
    found = kubelet_problems(node_class(amiSelectorTerms=terms, kubelet=kubelet))
    assert found is not None
    assert found[0] == "UnsupportedKubeletConfiguration"
    assert message in found[1]
    assert kubelet_problems(node_class(amiSelectorTerms=[{"id": "ami-1"}], amiFamily="Custom", kubelet=kubelet)) is None
