"""Labels: well-known ones, reserved domains, and aliases."""

import pytest

from journeyman.core.api import labels
from journeyman.core.api.objects import NODE_CLASSES
from journeyman.core.api.requirement_rules import domain_rules

ALIBABA = {key for key in labels.WELL_KNOWN if "alibabacloud" in key}
HUAWEI = {key for key in labels.WELL_KNOWN if "huawei" in key}


def test_alibaba_clouds_well_known_labels():
    """They are those of karpenter-provider-alibabacloud."""
    names = ("category", "family", "generation", "size", "cpu", "cpu-model", "memory")
    gpus = ("gpu-name", "gpu-manufacturer", "gpu-count", "gpu-memory")
    assert {
        "topology.k8s.alibabacloud/zone-id",
        *(f"karpenter.k8s.alibabacloud/instance-{name}" for name in (*names, *gpus)),
    } == ALIBABA


def test_huawei_clouds_well_known_labels():
    """They are those of karpenter-provider-huawei, and category, family and generation as other clouds have them."""
    gpus = ("gpu-name", "gpu-manufacturer", "gpu-count", "gpu-memory")
    names = ("category", "family", "generation", "size", "cpu", "memory", "network-bandwidth", *gpus)
    assert {f"karpenter.k8s.huawei/instance-{name}" for name in names} == HUAWEI


@pytest.mark.parametrize("key", sorted(ALIBABA | HUAWEI))
def test_well_known_label_is_not_reserved(key):
    """NodePools and pods may require it."""
    assert not labels.is_restricted(key)


@pytest.mark.parametrize("domain", labels.RESTRICTED_DOMAINS)
def test_domain_of_a_cloud_is_reserved(domain):
    """Its sub-domains are, too, but no domain that only ends like it."""
    assert labels.is_restricted(f"{domain}/unknown")
    assert labels.is_restricted(f"sub.{domain}/unknown")
    assert not labels.is_restricted(f"my{domain}/unknown")


def test_label_of_a_nodeclass_follows_from_its_group_and_kind():
    """Each node has the one of its NodeClass, which the CRDs admit in requirements."""
    assert tuple(labels.node_class_label(r.group, r.kind) for r in NODE_CLASSES) == labels.NODE_CLASSES
    rules = "".join(rule for _, rule in domain_rules("self", node_pool_allowed=True))
    assert all(f'"{key}"' in rules for key in labels.NODE_CLASSES)


def test_taints_of_a_node_that_cce_prepares_are_ephemeral():
    """Pods are scheduled on the node, because CCE removes the taints; a pod's network may stay away on another effect."""
    for key in ("node.kubernetes.io/network-unavailable", "node.cloudprovider.kubernetes.io/uninitialized"):
        assert labels.is_ephemeral_taint(key, "NoSchedule")
        assert not labels.is_ephemeral_taint(key, "NoExecute")


def test_zone_labels_of_disk_drivers_mean_the_zone():
    """PersistentVolumes of both clouds have them."""
    for key in ("topology.ebs.csi.aws.com/zone", "topology.diskplugin.csi.alibabacloud.com/zone"):
        assert labels.ALIASES[key] == labels.ZONE
