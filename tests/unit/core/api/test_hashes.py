"""Drift hashes: which fields count, and which hashes are compared."""

import copy

import pytest

from journeyman.core.api.ec2nodeclass import EC2NodeClass
from journeyman.core.api.ecs_settings import ecs_node_class, ecs_node_class_hash
from journeyman.core.api.hashes import (
    ACS_ECSNODECLASS_KEYS,
    EC2NODECLASS_KEYS,
    ECSNODECLASS_KEYS,
    NODEPOOL_KEYS,
    ec2_node_class_hash,
    ec2_node_class_hash_annotations,
    node_pool_hash,
    node_pool_hash_annotations,
)
from journeyman.core.api.model import parse
from journeyman.core.api.nodepool import NodePool

TEMPLATE = {
    "metadata": {"labels": {"a": "1", "b": "2"}},
    "spec": {
        "requirements": [],
        "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"},
        "taints": [{"key": "x", "effect": "NoSchedule"}, {"key": "y", "effect": "NoExecute"}],
        "expireAfter": "60m",
    },
}
NODE_CLASS = {
    "role": "r",
    "amiSelectorTerms": [{"alias": "al2023@latest"}],
    "subnetSelectorTerms": [{"id": "subnet-1"}, {"id": "subnet-2"}],
    "securityGroupSelectorTerms": [{"id": "sg-1"}],
    "blockDeviceMappings": [{"deviceName": "/dev/xvda"}, {"deviceName": "/dev/xvdb"}],
}

SELECTORS = {
    "vSwitchSelectorTerms": [{"id": "vsw-1"}, {"id": "vsw-2"}],
    "securityGroupSelectorTerms": [{"id": "sg-1"}],
    "imageSelectorTerms": [{"id": "m-1"}],
}
ECS = {
    **SELECTORS,
    "systemDisk": {"categories": ["cloud_essd", "cloud_auto"], "volumeSize": "40Gi"},
    "dataDisks": [{"volumeSize": "100Gi"}, {"volumeSize": "200Gi"}],
}
ACS = {
    **SELECTORS,
    "systemDisk": {"category": "cloud_essd"},
    "dataDisks": [{"category": "cloud_essd", "size": 100}, {"category": "cloud_essd", "size": 200}],
}


def pool(change=lambda template: None, **spec):
    """A NodePool with a changed template."""
    template = copy.deepcopy(TEMPLATE)
    change(template)
    return parse(NodePool, {"metadata": {"name": "default"}, "spec": {"template": template, **spec}})


def node_class(**spec):
    """An EC2NodeClass with these spec fields."""
    return parse(EC2NodeClass, {"metadata": {"name": "default"}, "spec": {**NODE_CLASS, **spec}})


def ecs(**spec):
    """The hash of an ECSNodeClass of `karpenter.k8s.alibabacloud`; None removes a field."""
    raw = {"apiVersion": "karpenter.k8s.alibabacloud/v1alpha1", "metadata": {"name": "a"}, "spec": {**ECS, **spec}}
    return ecs_node_class_hash(ecs_node_class(raw).settings)


def acs(**spec):
    """The hash of an ECSNodeClass of `karpenter.alibabacloud.com`; None removes a field."""
    raw = {"apiVersion": "karpenter.alibabacloud.com/v1alpha1", "metadata": {"name": "a"}, "spec": {**ACS, **spec}}
    return ecs_node_class_hash(ecs_node_class(raw).settings)


@pytest.mark.parametrize(
    "same",
    [
        pool(lambda t: t["spec"]["taints"].reverse()),
        pool(lambda t: t["spec"]["requirements"].append({"key": "a", "operator": "Exists"})),
        pool(lambda t: t["spec"].update(expireAfter="1h", startupTaints=[])),
        pool(lambda t: t["metadata"].update(annotations={})),
        pool(weight=5, limits={"cpu": "1"}, disruption={"consolidateAfter": "Never"}),
    ],
)
def test_nodepool_hash_ignores_changes_that_do_not_affect_nodes(same):
    """It ignores list order, duration notation, empty fields, requirements, and fields outside the template."""
    assert node_pool_hash(same) == node_pool_hash(pool())


@pytest.mark.parametrize(
    "different",
    [
        pool(lambda t: t["metadata"]["labels"].update(a="2")),
        pool(lambda t: t["metadata"].update(annotations={"c": "d"})),
        pool(lambda t: t["spec"]["taints"].pop()),
        pool(lambda t: t["spec"].update(startupTaints=[{"key": "x", "effect": "NoExecute"}])),
        pool(lambda t: t["spec"]["nodeClassRef"].update(name="other")),
        pool(lambda t: t["spec"].update(expireAfter="Never")),
        pool(lambda t: t["spec"].update(terminationGracePeriod="0s")),
    ],
)
def test_nodepool_hash_changes_when_nodes_would_differ(different):
    """It covers labels, annotations, taints, NodeClass and durations."""
    assert node_pool_hash(different) != node_pool_hash(pool())


def test_nodeclass_hash_ignores_selectors():
    """Subnets, security groups and images have their own drift checks."""
    before = ec2_node_class_hash(node_class())
    assert ec2_node_class_hash(node_class(subnetSelectorTerms=[{"id": "subnet-9"}])) == before
    assert ec2_node_class_hash(node_class(amiFamily="AL2023", ipPrefixCount=1)) == before
    assert ec2_node_class_hash(node_class(placementGroupSelector={"name": "near"})) == before
    assert ec2_node_class_hash(node_class(capacityReservationSelectorTerms=[{"id": "cr-1"}])) == before
    assert ec2_node_class_hash(node_class(blockDeviceMappings=NODE_CLASS["blockDeviceMappings"][::-1])) == before


@pytest.mark.parametrize(
    "spec",
    [
        {"amiFamily": "Custom"},
        {"userData": "echo"},
        {"tags": {"a": "b"}},
        {"kubelet": {"maxPods": 10}},
        {"associatePublicIPAddress": False},
        {"metadataOptions": {"httpTokens": "optional"}},
        {"blockDeviceMappings": []},
        {"role": "other"},
    ],
)
def test_nodeclass_hash_changes_with_its_settings(spec):
    """It covers user data, tags, kubelet, addresses, metadata options, volumes and role; `false` differs from unset."""
    assert ec2_node_class_hash(node_class(**spec)) != ec2_node_class_hash(node_class())


def test_nodeclass_hash_includes_the_ca_bundle():
    """A new CA of the cluster needs new nodes."""
    assert ec2_node_class_hash(node_class(), ca_bundle="x") != ec2_node_class_hash(node_class())


@pytest.mark.parametrize(
    "same",
    [
        ecs(vSwitchSelectorTerms=[{"id": "vsw-9"}], securityGroupSelectorTerms=[{"name": "a"}]),
        ecs(imageSelectorTerms=[{"alias": "AlibabaCloudLinux3@latest"}]),
        ecs(dataDisks=ECS["dataDisks"][::-1]),
        ecs(systemDisk={"categories": ["cloud_auto", "cloud_essd"], "size": 40}),
        ecs(
            tags={},
            userData="",
            kubeletConfiguration={},
            formatDataDisk=False,
            passwordInherit=False,
            dataDiskCategories=[],
        ),
        ecs(vSwitchSelectionPolicy="cheapest"),
    ],
)
def test_ecsnodeclass_hash_ignores_selectors_order_and_empty_values(same):
    """Both notations of the system disk's size are the same."""
    assert same == ecs()


@pytest.mark.parametrize(
    "different",
    [
        *(ecs(systemDisk=disk) for disk in (None, {**ECS["systemDisk"], "volumeSize": "41Gi"})),
        *(
            ecs(systemDisk={**ECS["systemDisk"], **over})
            for over in ({"performanceLevel": "PL1"}, {"categories": ["cloud"]})
        ),
        *(ecs(dataDisks=[]), ecs(dataDiskCategories=["cloud_ssd"]), ecs(formatDataDisk=True)),
        *(
            ecs(vSwitchSelectionPolicy="balanced"),
            ecs(tags={"a": "b"}),
            ecs(userData="echo"),
            ecs(resourceGroupId="rg-1"),
        ),
        *(ecs(kubeletConfiguration={"maxPods": 10}), ecs(kubeletConfiguration={"cpuCFSQuota": False})),
        *(ecs(password="Passw0rd"), ecs(keyPairName="a"), ecs(passwordInherit=True)),
    ],
)
def test_ecsnodeclass_hash_changes_with_its_settings(different):
    """It covers disks, tags, user data, kubelet, login and resource group."""
    assert different != ecs()


def test_vendors_ecsnodeclass_hash_changes_with_its_settings():
    """It covers the settings of that API alone, and not its selectors and cluster."""
    disk = ACS["dataDisks"][0]
    changed = [
        *(
            acs(role="r"),
            acs(spotStrategy="SpotAsPriceGo"),
            acs(spotPriceLimit=1),
            acs(metadataOptions={"httpTokens": "required"}),
        ),
        *(acs(launchTemplateID="lt-1"), acs(capacityReservationPreference="none"), acs(instanceStorePolicy="RAID0")),
        *(acs(systemDisk={"size": 41}), acs(systemDisk={"encrypted": True}), acs(kubelet={"maxPods": 10})),
        *(acs(dataDisks=[{**disk, **over}]) for over in ({"snapshotID": "s-1"}, {"deleteWithInstance": False})),
    ]
    assert len({acs(), *changed}) == len(changed) + 1
    assert acs(clusterID="c1", clusterName="a", clusterEndpoint="https://a") == acs()
    assert acs(capacityReservationSelectorTerms=[{"id": "crp-1"}], vSwitchSelectorTerms=[{"zoneID": "z"}]) == acs()


def test_hashes_do_not_change_between_releases():
    """NodeClaims store them, so other values would replace every node."""
    assert node_pool_hash_annotations(pool()) == {
        "karpenter.sh/nodepool-hash": "ef7befbd568d166a",
        "karpenter.sh/nodepool-hash-version": "journeyman-v3",
    }
    assert ec2_node_class_hash_annotations(node_class()) == {
        "karpenter.k8s.aws/ec2nodeclass-hash": "ada3861ecfe255d7",
        "karpenter.k8s.aws/ec2nodeclass-hash-version": "journeyman-v6",
    }
    assert (ecs(), acs()) == ("0717d62a47c4712e", "8c48a4a731a81878")


@pytest.mark.parametrize("keys", [NODEPOOL_KEYS, EC2NODECLASS_KEYS, ECSNODECLASS_KEYS, ACS_ECSNODECLASS_KEYS])
def test_hashes_of_different_versions_are_not_compared(keys):
    """A NodeClaim that Karpenter created, or without a hash, has not drifted."""
    owner = {keys.hash: "1", keys.version: "journeyman-v3"}
    assert keys.differ(owner, {keys.hash: "2", keys.version: "journeyman-v3"})
    assert not keys.differ(owner, dict(owner))
    assert not keys.differ(owner, {keys.hash: "2", keys.version: "v3"})
    assert not keys.differ(owner, {})
    assert not keys.differ(owner, {keys.version: "journeyman-v3"})
    assert not keys.differ(owner, {keys.hash: "2"})
    assert not keys.differ({}, owner)
