"""No field of a CCENodeClass is accepted and ignored: a change of each changes the status, the types or the launch."""

from typing import Any

import pytest

from journeyman.core.api.ccenodeclass import CCENodeClassSpec
from tests.helpers.field_paths import field_paths
from tests.unit.cloud.conftest import a_claim
from tests.unit.cloud.huawei.conftest import CceCluster

FAST = {"volumeSize": 40, "volumeType": "GPSSD2", "iops": 3000, "throughput": 125}
ROOT = {"volumeSize": 40, "volumeType": "SSD"}
HARDENED = {"securityReinforcementType": "cybersecurity"}
IMAGE = "8f3d5a3e-0c1d-4c55-9f3b-2f8f5a0c9e11"


def disks(**mappings: Any) -> dict[str, Any]:
    return {"blockDeviceMappings": {"root": ROOT, **mappings}}


def password(text: str, **more: Any) -> dict[str, Any]:
    return {"login": {"userPassword": {"password": text, **more}}}


FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "subnetSelectorTerms.id": ({}, {"subnetSelectorTerms": [{"id": IMAGE}]}),
    "subnetSelectorTerms.name": ({}, {"subnetSelectorTerms": [{"name": "demo-2"}]}),
    "kubelet.maxPods": ({}, {"kubelet": {"maxPods": 17}}),
    "kubelet.systemReserved": ({}, {"kubelet": {"systemReserved": {"cpu": "200m"}}}),
    "kubelet.kubeReserved": ({}, {"kubelet": {"kubeReserved": {"memory": "1Gi"}}}),
    "ecsGroupId": ({}, {"ecsGroupId": IMAGE}),
    "imsSelector.imsFamily": ({}, {"imsSelector": {"imsFamily": "Ubuntu 22.04"}}),
    "imsSelector.imageID": ({}, {"imsSelector": {"imsFamily": "Huawei Cloud EulerOS 2.0", "imageID": IMAGE}}),
    "blockDeviceMappings.root.volumeSize": (disks(), disks(root={**ROOT, "volumeSize": 50})),
    "blockDeviceMappings.root.volumeType": (disks(), disks(root={**ROOT, "volumeType": "SAS"})),
    "blockDeviceMappings.root.iops": (disks(root=FAST), disks(root={**FAST, "iops": 4000})),
    "blockDeviceMappings.root.throughput": (disks(root=FAST), disks(root={**FAST, "throughput": 200})),
    "blockDeviceMappings.k8s.volumeSize": (disks(k8s=ROOT), disks(k8s={**ROOT, "volumeSize": 50})),
    "blockDeviceMappings.k8s.volumeType": (disks(k8s=ROOT), disks(k8s={**ROOT, "volumeType": "SAS"})),
    "blockDeviceMappings.k8s.iops": (disks(k8s=FAST), disks(k8s={**FAST, "iops": 4000})),
    "blockDeviceMappings.k8s.throughput": (disks(k8s=FAST), disks(k8s={**FAST, "throughput": 200})),
    "blockDeviceMappings.users.volumeSize": (disks(users=[ROOT]), disks(users=[{**ROOT, "volumeSize": 50}])),
    "blockDeviceMappings.users.volumeType": (disks(users=[ROOT]), disks(users=[{**ROOT, "volumeType": "SAS"}])),
    "blockDeviceMappings.users.iops": (disks(users=[FAST]), disks(users=[{**FAST, "iops": 4000}])),
    "blockDeviceMappings.users.throughput": (disks(users=[FAST]), disks(users=[{**FAST, "throughput": 200}])),
    "runtimeConfiguration.type": ({}, {"runtimeConfiguration": {"type": "docker"}}),
    "login.userPassword.username": (password("JDYk"), password("JDYk", username="root")),
    "login.userPassword.password": (password("JDYk"), password("JDYl")),
    "login.sshKey": ({}, {"login": {"sshKey": "none-such"}}),
    "agencyName": ({}, {"agencyName": "nodes"}),
    "metadataOptions.httpTokens": ({}, {"metadataOptions": {"httpTokens": "required"}}),
    "preInstall": ({}, {"preInstall": "echo before"}),
    "postInstall": ({}, {"postInstall": "echo after"}),
    "securityReinforcementType": ({}, HARDENED),
    "tags": ({}, {"tags": {"team": "ml"}}),
    "spotPriceLimit": ({}, {"spotPriceLimit": 0.5}),
}
WITHOUT_EFFECT = {"login.userPassword.username": "root is the only value, and the default"}


def test_every_field_is_listed():
    """A new field needs an effect, and a line here."""
    assert set(FIELDS) == set(field_paths(CCENodeClassSpec))


def observed(spec: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a NodeClass with this spec leads to in a new account: status, types, launches on demand and on Spot."""
    cce = CceCluster()
    body = cce.node_class(**spec)
    if not body["status"]["subnets"]:
        return (body["status"],)
    types = cce.provider.get_instance_types(body)
    for kind in ("on-demand", "spot"):
        cce.launch(body, a_claim(kind, capacity_type=kind))
    return body["status"], types, cce.api.bodies("CreateNode")


def test_equal_node_classes_lead_to_equal_requests():
    """Otherwise the next test would prove nothing."""
    assert observed({}) == observed({})
    assert len(observed({})[2]) == 2


@pytest.mark.parametrize("path", [pytest.param(path, id=path) for path in FIELDS if path not in WITHOUT_EFFECT])
def test_a_change_of_the_field_changes_status_types_or_launch(path):
    before, after = FIELDS[path]
    assert observed(before) != observed(after)
