"""What a launch template says: images, volumes, network interfaces, user data.

Restates: karpenter-provider-aws pkg/providers/launchtemplate/types.go, launchtemplate.go `generateNetworkInterfaces`,
`blockDeviceMappings`; pkg/providers/amifamily/resolver.go `resolveLaunchTemplates`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from journeyman.cloud.aws import tags
from journeyman.cloud.aws.bootstrap import Bootstrap, boot_taints, node_labels
from journeyman.cloud.aws.families import CUSTOM, GIB
from journeyman.cloud.aws.settings import AwsSettings
from journeyman.cloud.aws.user_data import MAX_BYTES, user_data
from journeyman.cloud.aws.view import NodeClassView
from journeyman.core.api import labels, quantity
from journeyman.core.api.objects import NodeClaim
from journeyman.errors import CreateError, InvalidQuantityError

_NITRO_SANDBOX: Final = "eks.amazonaws.com/nitro-sandbox"
# the CRD's default for spec.metadataOptions
_METADATA_DEFAULTS: Final = {
    "httpEndpoint": "enabled",
    "httpProtocolIPv6": "disabled",
    "httpPutResponseHopLimit": 1,
    "httpTokens": "required",
}
_EBS_FIELDS: Final = {
    "deleteOnTermination": "DeleteOnTermination",
    "encrypted": "Encrypted",
    "iops": "Iops",
    "kmsKeyID": "KmsKeyId",
    "snapshotID": "SnapshotId",
    "throughput": "Throughput",
    "volumeInitializationRate": "VolumeInitializationRate",
    "volumeType": "VolumeType",
}
_TIMEOUTS: Final = {
    "tcpEstablishedTimeout": "TcpEstablishedTimeout",
    "udpStreamTimeout": "UdpStreamTimeout",
    "udpTimeout": "UdpTimeout",
}


class Variant(Struct, frozen=True, kw_only=True):
    """What makes two instance types need different templates."""

    image_id: str
    image_name: str
    max_pods: int
    efa_interfaces: int


class TemplateContent(Struct, frozen=True, kw_only=True):
    """All that the templates of one launch have in common; `data` fills in the variant."""

    settings: AwsSettings
    node_class: NodeClassView
    claim: NodeClaim
    capacity_type: str
    tenancy: str

    def data(self, variant: Variant) -> dict[str, Any]:
        """`LaunchTemplateData`.

        Raises:
            CreateError: User data or a volume size cannot be used.
        """
        node_class = self.node_class
        content: dict[str, Any] = {
            "ImageId": variant.image_id,
            "IamInstanceProfile": {"Name": node_class.status.get("instanceProfile", "")},
            "Monitoring": {"Enabled": bool(node_class.spec.get("detailedMonitoring"))},
            "NetworkInterfaces": network_interfaces(node_class, variant.efa_interfaces, ipv6=self.settings.ipv6),
            "MetadataOptions": metadata_options(node_class, region=self.settings.region),
            "Placement": {"Tenancy": self.tenancy},
            "UserData": self._user_data(variant),
            "TagSpecifications": [{"ResourceType": kind, "Tags": tags.to_aws(self.tags)} for kind in self._tagged()],
        }
        if mappings := block_device_mappings(node_class):
            content["BlockDeviceMappings"] = mappings
        if nested := (node_class.spec.get("cpuOptions") or {}).get("nestedVirtualization"):
            content["CpuOptions"] = {"NestedVirtualization": nested}
        if self.claim.spec.resources.requests.get(_NITRO_SANDBOX):
            content["EnclaveOptions"] = {"Enabled": True}
        return content

    @property
    def tags(self) -> dict[str, str]:
        """Tags of the template and of what no single NodeClaim owns."""
        return tags.shared_tags(
            self.node_class.tags,
            cluster=self.settings.cluster_name,
            node_class=self.node_class.name,
            node_pool=self.claim.metadata.labels.get(labels.NODEPOOL, ""),
        )

    def _tagged(self) -> list[str]:
        return ["network-interface", *(["spot-instances-request"] if self.capacity_type == labels.SPOT else [])]

    def _user_data(self, variant: Variant) -> str:
        """Base64."""
        bootstrap = self._bootstrap(variant)
        try:
            text = user_data(bootstrap).encode()
        except ValueError as error:
            message = f"spec.userData of EC2NodeClass {self.node_class.name} cannot be read: {error}"
            raise CreateError(message, condition_reason="LaunchFailed") from error
        if len(text) > MAX_BYTES:
            message = f"the user data has {len(text)} bytes, EC2 takes {MAX_BYTES}"
            raise CreateError(message, condition_reason="UserDataSizeLimitExceeded", user_data_bytes=len(text))
        return base64.b64encode(text).decode()

    def _bootstrap(self, variant: Variant) -> Bootstrap:
        settings, node_class = self.settings, self.node_class
        kubelet: dict[str, Any] = {**node_class.kubelet, "maxPods": variant.max_pods}
        if settings.cluster_dns:
            kubelet.setdefault("clusterDNS", [settings.cluster_dns])
        return Bootstrap(
            family=node_class.family,
            cluster_name=settings.cluster_name,
            cluster_endpoint=settings.cluster_endpoint,
            cluster_ca=settings.cluster_ca,
            service_cidr=settings.service_cidr,
            kubelet=kubelet,
            labels=node_labels(self.claim, self.capacity_type, node_class.family),
            taints=boot_taints(self.claim),
            custom=str(node_class.spec.get("userData") or ""),
            raid0=node_class.raid0,
            ami_name=variant.image_name,
        )


def network_interfaces(node_class: NodeClassView, efa_interfaces: int, *, ipv6: bool) -> list[dict[str, Any]]:
    """Security groups live in the interfaces, so there is always at least one.

    Restates: launchtemplate.go `generateNetworkInterfaces`.
    """
    groups = [group["id"] for group in node_class.status.get("securityGroups") or ()]
    if node_class.network_interfaces:
        return [_laid_out(node_class, interface, groups, ipv6=ipv6) for interface in node_class.network_interfaces]
    common = {"Groups": groups, **_addressing(node_class, ipv6=ipv6)}
    if efa_interfaces:
        # device 0 of card 0 comes first, the other cards' interfaces are device 1
        return [
            {"NetworkCardIndex": card, "DeviceIndex": 0 if card == 0 else 1, "InterfaceType": "efa", **common}
            for card in range(efa_interfaces)
        ]
    return [{"DeviceIndex": 0, **common}]


def _laid_out(
    node_class: NodeClassView, interface: Mapping[str, Any], groups: list[str], *, ipv6: bool
) -> dict[str, Any]:
    """One interface of the user's own layout; one for EFA alone takes no addresses."""
    kind = interface.get("interfaceType", "interface")
    return {
        "NetworkCardIndex": interface.get("networkCardIndex", 0),
        "DeviceIndex": interface.get("deviceIndex", 0),
        "InterfaceType": kind,
        "Groups": groups,
        **(_addressing(node_class, ipv6=ipv6) if kind != "efa-only" else {}),
    }


def _addressing(node_class: NodeClassView, *, ipv6: bool) -> dict[str, Any]:
    spec = node_class.spec
    addressing: dict[str, Any] = {"PrimaryIpv6": True, "Ipv6AddressCount": 1} if ipv6 else {}
    if spec.get("associatePublicIPAddress") is not None:
        addressing["AssociatePublicIpAddress"] = bool(spec["associatePublicIPAddress"])
    if spec.get("ipPrefixCount"):
        addressing["Ipv6PrefixCount" if ipv6 else "Ipv4PrefixCount"] = spec["ipPrefixCount"]
    tracking = spec.get("connectionTracking") or {}
    timeouts = {theirs: tracking[ours] for ours, theirs in _TIMEOUTS.items() if tracking.get(ours) is not None}
    return {**addressing, **({"ConnectionTrackingSpecification": timeouts} if timeouts else {})}


def metadata_options(node_class: NodeClassView, *, region: str) -> dict[str, Any]:
    """Instance metadata service; tags in it stay off, since our tag keys are not allowed there."""
    options = {**_METADATA_DEFAULTS, **(node_class.spec.get("metadataOptions") or {})}
    ipv6 = {} if "-iso" in region else {"HttpProtocolIpv6": options["httpProtocolIPv6"]}
    return {
        "HttpEndpoint": options["httpEndpoint"],
        "HttpPutResponseHopLimit": options["httpPutResponseHopLimit"],
        "HttpTokens": options["httpTokens"],
        "InstanceMetadataTags": "disabled",
        **ipv6,
    }


def block_device_mappings(node_class: NodeClassView) -> list[dict[str, Any]]:
    """The user's volumes, else the family's; none for Custom, whose image says."""
    if node_class.block_device_mappings:
        return [_user_mapping(mapping) for mapping in node_class.block_device_mappings]
    if node_class.family is CUSTOM:
        return []
    return [
        {
            "DeviceName": device.name,
            "Ebs": {"Encrypted": True, "VolumeType": "gp3", "VolumeSize": device.size_bytes // GIB},
        }
        for device in node_class.family.block_devices
    ]


def _user_mapping(mapping: Mapping[str, Any]) -> dict[str, Any]:
    ebs = mapping.get("ebs") or {}
    wanted = {theirs: ebs[ours] for ours, theirs in _EBS_FIELDS.items() if ebs.get(ours) is not None}
    if ebs.get("volumeSize") is not None:
        wanted["VolumeSize"] = _gibibytes(ebs["volumeSize"])
    return {"DeviceName": mapping.get("deviceName", ""), "Ebs": wanted}


def _gibibytes(size: str) -> int:
    """Rounded up.

    Raises:
        CreateError: It is no quantity.
    """
    try:
        return -(-quantity.parse(size).units(round_up=True) // GIB)
    except InvalidQuantityError as error:
        raise CreateError(f"a volume size: {error.message}", condition_reason="LaunchFailed") from error
