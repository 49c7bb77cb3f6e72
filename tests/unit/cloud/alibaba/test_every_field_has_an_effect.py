"""No field of an ECSNodeClass is accepted and ignored: a change of each changes the status, the types or the launch.

The fields without an effect are listed, each with the reason.
"""

from typing import Any

import pytest

from journeyman.core.api.acs_ecsnodeclass import ACSECSNodeClassSpec
from journeyman.core.api.ecs_settings import ACS_API, ECS_API
from journeyman.core.api.ecsnodeclass import ECSNodeClassSpec
from journeyman.core.api.kubelet_configuration import KubeletConfiguration
from tests.helpers.field_paths import field_paths
from tests.unit.cloud.alibaba.conftest import AckCluster
from tests.unit.cloud.conftest import a_claim

NONE_FOUND = [{"tags": {"no": "such"}}]
SOFT = {"evictionSoft": {"memory.available": "1Gi"}, "evictionSoftGracePeriod": {"memory.available": "1m"}}
KUBELET: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "clusterDNS": ({}, {"clusterDNS": ["10.0.0.10"]}),
    "maxPods": ({}, {"maxPods": 40}),
    "podsPerCore": ({}, {"podsPerCore": 7}),
    "systemReserved": ({}, {"systemReserved": {"cpu": "200m"}}),
    "kubeReserved": ({}, {"kubeReserved": {"cpu": "200m"}}),
    "evictionHard": ({}, {"evictionHard": {"memory.available": "5%"}}),
    "evictionSoft": (SOFT, {**SOFT, "evictionSoft": {"memory.available": "2Gi"}}),
    "evictionSoftGracePeriod": (SOFT, {**SOFT, "evictionSoftGracePeriod": {"memory.available": "2m"}}),
    "evictionMaxPodGracePeriod": ({}, {"evictionMaxPodGracePeriod": 60}),
    "imageGCHighThresholdPercent": ({}, {"imageGCHighThresholdPercent": 90}),
    "imageGCLowThresholdPercent": ({}, {"imageGCLowThresholdPercent": 50}),
    "cpuCFSQuota": ({}, {"cpuCFSQuota": False}),
}
ESSD = {"categories": ["cloud_essd"]}
DATA = {"dataDisks": [{"volumeSize": "40Gi"}]}
ECS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "vSwitchSelectorTerms.tags": ({}, {"vSwitchSelectorTerms": NONE_FOUND}),
    "vSwitchSelectorTerms.id": ({}, {"vSwitchSelectorTerms": [{"id": "vsw-1"}]}),
    "vSwitchSelectionPolicy": ({}, {"vSwitchSelectionPolicy": "balanced"}),
    "securityGroupSelectorTerms.tags": ({}, {"securityGroupSelectorTerms": NONE_FOUND}),
    "securityGroupSelectorTerms.id": ({}, {"securityGroupSelectorTerms": [{"id": "sg-1"}]}),
    "securityGroupSelectorTerms.name": ({}, {"securityGroupSelectorTerms": [{"name": "none"}]}),
    "imageSelectorTerms.alias": ({}, {"imageSelectorTerms": [{"alias": "ContainerOS@latest"}]}),
    "imageSelectorTerms.id": ({}, {"imageSelectorTerms": [{"id": "m-custom"}]}),
    **{
        f"kubeletConfiguration.{key}": tuple({"kubeletConfiguration": part} for part in parts)
        for key, parts in KUBELET.items()
    },
    "systemDisk.categories": ({}, {"systemDisk": ESSD}),
    "systemDisk.volumeSize": ({}, {"systemDisk": {"volumeSize": "90Gi"}}),
    "systemDisk.size": ({}, {"systemDisk": {"size": 90}}),
    "systemDisk.performanceLevel": ({"systemDisk": ESSD}, {"systemDisk": {**ESSD, "performanceLevel": "PL2"}}),
    "dataDisks.volumeSize": ({}, DATA),
    "dataDisks.device": (DATA, {"dataDisks": [{"volumeSize": "40Gi", "device": "/dev/xvdc"}]}),
    "dataDiskCategories": (DATA, {**DATA, "dataDiskCategories": ["cloud_essd"]}),
    "formatDataDisk": ({}, {"formatDataDisk": True}),
    "tags": ({}, {"tags": {"team": "ml"}}),
    "resourceGroupId": ({}, {"resourceGroupId": "rg-1"}),
    "userData": ({}, {"userData": "echo hello"}),
    "password": ({}, {"password": "Secret-123"}),
    "keyPairName": ({}, {"keyPairName": "admin"}),
    "passwordInherit": ({}, {"passwordInherit": True}),
}

KEY = {"encrypted": True, "kmsKeyID": "key-1"}
DISK = {"category": "cloud_essd", "size": 40}
LIMIT = {"spotStrategy": "SpotWithPriceLimit", "spotPriceLimit": 0.5}
TEMPLATE = {"launchTemplateID": "lt-1"}
RESERVED = {"capacityReservationSelectorTerms": [{"id": "crp-1"}], "capacityReservationPreference": "target"}


def of_family(**more: Any) -> dict[str, Any]:
    return {"imageSelectorTerms": [{"imageFamily": "acs:alibaba_cloud_linux_3_2104_lts_x64", **more}]}


ACS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "vSwitchSelectorTerms.tags": ({}, {"vSwitchSelectorTerms": NONE_FOUND}),
    "vSwitchSelectorTerms.id": ({}, {"vSwitchSelectorTerms": [{"id": "vsw-1"}]}),
    "vSwitchSelectorTerms.zoneID": ({}, {"vSwitchSelectorTerms": [{"zoneID": "cn-hangzhou-j"}]}),
    "securityGroupSelectorTerms.tags": ({}, {"securityGroupSelectorTerms": NONE_FOUND}),
    "securityGroupSelectorTerms.id": ({}, {"securityGroupSelectorTerms": [{"id": "sg-1"}]}),
    "securityGroupSelectorTerms.name": ({}, {"securityGroupSelectorTerms": [{"name": "none"}]}),
    "imageSelectorTerms.tags": ({}, {"imageSelectorTerms": [{"tags": {"mine": "yes"}}]}),
    "imageSelectorTerms.id": ({}, {"imageSelectorTerms": [{"id": "m-custom"}]}),
    "imageSelectorTerms.name": ({}, {"imageSelectorTerms": [{"name": "m-custom"}]}),
    "imageSelectorTerms.imageFamily": ({}, {"imageSelectorTerms": [{"imageFamily": "acs:containeros_3_x64"}]}),
    "imageSelectorTerms.imageOwnerAlias": ({}, of_family(imageOwnerAlias="self")),
    "imageSelectorTerms.imageOwnerID": ({}, of_family(imageOwnerID="1000000000000002")),
    "role": ({}, {"role": "KarpenterNodeRole-demo"}),
    "systemDisk.category": ({}, {"systemDisk": {"category": "cloud_auto"}}),
    "systemDisk.size": ({}, {"systemDisk": {"size": 90}}),
    "systemDisk.performanceLevel": ({}, {"systemDisk": {"performanceLevel": "PL2"}}),
    "systemDisk.encrypted": ({}, {"systemDisk": {"encrypted": True}}),
    "systemDisk.kmsKeyID": ({"systemDisk": {"encrypted": True}}, {"systemDisk": KEY}),
    "dataDisks.category": ({"dataDisks": [DISK]}, {"dataDisks": [{**DISK, "category": "cloud_auto"}]}),
    "dataDisks.size": ({"dataDisks": [DISK]}, {"dataDisks": [{**DISK, "size": 90}]}),
    "dataDisks.device": ({"dataDisks": [DISK]}, {"dataDisks": [{**DISK, "device": "/dev/xvdc"}]}),
    "dataDisks.performanceLevel": ({"dataDisks": [DISK]}, {"dataDisks": [{**DISK, "performanceLevel": "PL2"}]}),
    "dataDisks.encrypted": ({"dataDisks": [DISK]}, {"dataDisks": [{**DISK, "encrypted": True}]}),
    "dataDisks.kmsKeyID": ({"dataDisks": [{**DISK, "encrypted": True}]}, {"dataDisks": [{**DISK, **KEY}]}),
    "dataDisks.snapshotID": ({"dataDisks": [DISK]}, {"dataDisks": [{**DISK, "snapshotID": "s-1"}]}),
    "dataDisks.deleteWithInstance": ({"dataDisks": [DISK]}, {"dataDisks": [{**DISK, "deleteWithInstance": False}]}),
    "spotStrategy": ({**LIMIT, "spotStrategy": "SpotAsPriceGo"}, LIMIT),
    "spotPriceLimit": (LIMIT, {**LIMIT, "spotPriceLimit": 0.25}),
    "userData": ({}, {"userData": "echo hello"}),
    "tags": ({}, {"tags": {"team": "ml"}}),
    **{f"kubelet.{key}": tuple({"kubelet": part} for part in parts) for key, parts in KUBELET.items()},
    "capacityReservationSelectorTerms.tags": ({}, {"capacityReservationSelectorTerms": [{"tags": {"team": "ml"}}]}),
    "capacityReservationSelectorTerms.id": (
        RESERVED,
        {**RESERVED, "capacityReservationSelectorTerms": [{"id": "crp-2"}]},
    ),
    "capacityReservationPreference": (RESERVED, {**RESERVED, "capacityReservationPreference": "none"}),
    "metadataOptions.httpTokens": ({}, {"metadataOptions": {"httpTokens": "required"}}),
    "metadataOptions.httpEndpoint": ({"metadataOptions": {}}, {"metadataOptions": {"httpEndpoint": "disabled"}}),
    "launchTemplateID": ({}, TEMPLATE),
    "instanceStorePolicy": ({}, {"instanceStorePolicy": "RAID0"}),
    "launchTemplateVersion": (TEMPLATE, {**TEMPLATE, "launchTemplateVersion": 2}),
}
WITHOUT_EFFECT = {
    "clusterID": "the cluster's registration has it",
    "clusterName": "the cluster's registration has it",
    "clusterEndpoint": "ACK's attach script has it",
    "metadataOptions.httpPutResponseHopLimit": "ECS documents HttpPutResponseHopLimit as not available",
}


def test_every_field_is_listed():
    """A new field needs an effect, and a line here."""
    assert set(KUBELET) == set(field_paths(KubeletConfiguration))
    assert set(ECS) == set(field_paths(ECSNodeClassSpec))
    assert set(ACS) | set(WITHOUT_EFFECT) == set(field_paths(ACSECSNodeClassSpec))
    assert not set(ACS) & set(WITHOUT_EFFECT)


def observed(api: Any, spec: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a NodeClass with this spec leads to in a new account: status, types, launches on demand and of Spot."""
    ack = AckCluster(api)
    ack.account.images.add_custom("m-custom", tags={"mine": "yes"})
    body = ack.node_class(**spec)
    if not body["status"]["vSwitches"]:
        return (body["status"],)
    types = ack.provider.get_instance_types(body)
    for kind in ("on-demand", "spot"):
        ack.launch(body, a_claim(kind, capacity_type=kind))
    return body["status"], types, ack.open_api.launches, ack.open_api.image_searches


@pytest.mark.parametrize("api", [ECS_API, ACS_API], ids=lambda api: api.resource.group)
def test_equal_node_classes_lead_to_equal_requests(api):
    """Otherwise the next test would prove nothing."""
    assert observed(api, {}) == observed(api, {})
    assert [action for action, _ in observed(api, {})[2]][1:] == ["CreateAutoProvisioningGroup"] * 2


@pytest.mark.parametrize(
    ("api", "parts"),
    [
        pytest.param(api, parts, id=f"{api.resource.group}: {path}")
        for api, table in ((ECS_API, ECS), (ACS_API, ACS))
        for path, parts in table.items()
    ],
)
def test_a_change_of_the_field_changes_status_types_or_launch(api, parts):
    before, after = parts
    assert observed(api, before) != observed(api, after)
