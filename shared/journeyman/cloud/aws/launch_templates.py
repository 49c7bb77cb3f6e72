"""Create and delete launch templates, which are named by a digest of their content and of the day they are for.

Each AMI, label or taint makes another template, and EC2 does not report when a template was last used. So a template is only
for NodeClaims that were created on its day: a launch repeats with the same template, and a template that is older than a day
and the longest launch is used by none. `delete_old` deletes those; running instances do not need them.

Restates: karpenter-provider-aws pkg/providers/launchtemplate/launchtemplate.go `EnsureAll`,
pkg/providers/amifamily/resolver.go `Resolve`.
Differs: one request looks up all names; a template is deleted by age and with its NodeClass, not when its cache entry expires.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import datetime, timedelta, timezone
from threading import Lock
from typing import Any, Final

from cachetools import TTLCache
from msgspec import Struct

from journeyman.cloud.aws import tags
from journeyman.cloud.aws.ami_families import CUSTOM
from journeyman.cloud.aws.aws_errors import error_code, translated
from journeyman.cloud.aws.aws_settings import AwsSettings, Clients
from journeyman.cloud.aws.instance_types import ami_for
from journeyman.cloud.aws.node_capacity import EFA
from journeyman.cloud.aws.nodeclass_view import NodeClassView
from journeyman.cloud.aws.user_data import MAX_BYTES, Bootstrap, node_labels, user_data
from journeyman.cloud.caching import ttl_cache
from journeyman.cloud.kubelet_reservations import GIB
from journeyman.cloud.node_bootstrap import boot_taints
from journeyman.core.api import labels, quantity
from journeyman.core.api.ec2nodeclass import BlockDevice, BlockDeviceMapping, EC2NodeClassSpec, NetworkInterface
from journeyman.core.api.ec2nodeclass_status import AMI
from journeyman.core.api.objects import NodeClaim
from journeyman.core.api.resources import PODS
from journeyman.core.catalogue import InstanceType
from journeyman.errors import CloudProviderError, CreateError
from journeyman.ports import Clock

_PREFIX: Final = "karpenter.k8s.aws"
_TTL: Final = timedelta(minutes=5)
_KEPT_FOR: Final = timedelta(hours=26)  # a day, and more than any NodeClaim waits for its launch
_DELETIONS_PER_CALL: Final = 200  # the next call deletes the others
_CREATIONS_IN_PARALLEL: Final = 4
_NAMES_PER_CALL: Final = 200  # EC2's limit of values in one filter
_ALREADY_EXISTS: Final = "InvalidLaunchTemplateName.AlreadyExistsException"
_NOT_FOUND: Final = "InvalidLaunchTemplateName.NotFoundException"


class LaunchTemplate(Struct, frozen=True, kw_only=True):
    """A template and the types that launch from it, in the order given."""

    name: str
    image_id: str
    instance_types: tuple[InstanceType, ...]
    user_data_bytes: int = 0  # before base64


class LaunchTemplateProvider:
    """Creates the launch templates of one cluster on first use, and deletes them."""

    def __init__(self, clients: Clients, clock: Clock) -> None:
        self._clients = clients
        self._cache: TTLCache[str, bool] = ttl_cache(clock, _TTL)
        self._lock = Lock()

    def ensure(self, content: TemplateContent, types: Iterable[InstanceType]) -> tuple[LaunchTemplate, ...]:
        """Return the launch templates for these types, by name, after creating the missing ones.

        Raises:
            CreateError: No image of the NodeClass fits any type, or the user data is invalid.
            CloudProviderError: EC2 did not respond, or rejected the call.
        """
        bodies: dict[str, dict[str, Any]] = {}
        templates: list[LaunchTemplate] = []
        for variant, members in _variants(content, types).items():
            body = content.data(variant)
            name = f"{_PREFIX}/{_digest({'day': content.day, 'data': body})}"
            bodies[name] = body
            templates.append(
                LaunchTemplate(
                    name=name,
                    image_id=variant.image_id,
                    instance_types=tuple(members),
                    user_data_bytes=len(base64.b64decode(body["UserData"])),
                )
            )
        if not templates:
            raise CreateError("no AMI of the NodeClass fits the instance types", condition_reason="AMINotFound")
        self._create_missing(bodies, content.tags, in_parallel=content.settings.parallel_reads)
        return tuple(sorted(templates, key=lambda template: template.name))

    def forget(self, templates: Iterable[LaunchTemplate]) -> None:
        """Drop templates from the cache that EC2 does not have."""
        with self._lock:
            for template in templates:
                self._cache.pop(template.name, None)

    def release(self, *, cluster: str, node_class: str) -> None:
        """Delete the templates that were created for the NodeClass in this cluster.

        Raises:
            CloudProviderError: EC2 did not respond, or rejected a call.
        """
        owned = [
            {"Name": f"tag:{tags.CLUSTER}", "Values": [cluster]},
            {"Name": f"tag:{tags.NODE_CLASS}", "Values": [node_class]},
        ]
        for name in sorted(self._created(owned)):
            self._delete(name)

    def delete_old(self, *, cluster: str, now: datetime) -> tuple[str, ...]:
        """Delete the templates of this cluster that no launch uses any more; return their names.

        Raises:
            CloudProviderError: EC2 did not respond, or rejected a call.
        """
        owned = [
            {"Name": f"tag:{tags.CLUSTER}", "Values": [cluster]},
            {"Name": "tag-key", "Values": [tags.NODE_CLASS]},
        ]
        by_age = sorted((created, name) for name, created in self._created(owned).items())
        old = [name for created, name in by_age if name.startswith(f"{_PREFIX}/") and now - created >= _KEPT_FOR]
        for name in old[:_DELETIONS_PER_CALL]:
            self._delete(name)
        return tuple(old[:_DELETIONS_PER_CALL])

    def _delete(self, name: str) -> None:
        try:
            with translated("ec2:DeleteLaunchTemplate", launch_template=name):
                self._clients.ec2.delete_launch_template(LaunchTemplateName=name)
        except CloudProviderError as error:
            if error_code(error) != _NOT_FOUND:
                raise
        with self._lock:
            self._cache.pop(name, None)

    def _create_missing(
        self, bodies: Mapping[str, dict[str, Any]], shared: Mapping[str, str], *, in_parallel: bool
    ) -> None:
        with self._lock:
            uncached = sorted(name for name in bodies if name not in self._cache)
        existing = self._existing(uncached)
        missing = [name for name in uncached if name not in existing]
        if in_parallel and len(missing) > 1:
            with ThreadPoolExecutor(_CREATIONS_IN_PARALLEL, thread_name_prefix="launch-templates") as pool:
                creations = [pool.submit(copy_context().run, self._create, n, bodies[n], shared) for n in missing]
                for creation in creations:
                    creation.result()
        else:
            for name in missing:
                self._create(name, bodies[name], shared)
        with self._lock:
            self._cache.update(dict.fromkeys(uncached, True))

    def _existing(self, names: list[str]) -> set[str]:
        """Return those of the names that exist. A filter, unlike a list of names, does not fail on a missing one."""
        found: set[str] = set()
        for start in range(0, len(names), _NAMES_PER_CALL):
            values = names[start : start + _NAMES_PER_CALL]
            found |= self._created([{"Name": "launch-template-name", "Values": values}]).keys()
        return found

    def _created(self, filters: list[dict[str, Any]]) -> dict[str, datetime]:
        """Return when each matching template was created, by name."""
        pages = self._clients.ec2.get_paginator("describe_launch_templates")
        with translated("ec2:DescribeLaunchTemplates"):
            return {
                t["LaunchTemplateName"]: t["CreateTime"]
                for page in pages.paginate(Filters=filters)
                for t in page["LaunchTemplates"]
            }

    def _create(self, name: str, body: dict[str, Any], shared: Mapping[str, str]) -> None:
        try:
            with translated("ec2:CreateLaunchTemplate", launch_template=name):
                self._clients.ec2.create_launch_template(
                    LaunchTemplateName=name,
                    LaunchTemplateData=body,
                    TagSpecifications=[{"ResourceType": "launch-template", "Tags": tags.to_aws(shared)}],
                )
        except CloudProviderError as error:
            # a concurrent launch may have created the template, whose name identifies its content
            if error_code(error) != _ALREADY_EXISTS:
                raise


def _digest(content: Mapping[str, Any]) -> str:
    """Return a digest, which is equal for equal content in every run and on every machine."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]


def image_for(instance_type: InstanceType, node_class: NodeClassView) -> AMI | None:
    """Return the AMI in the NodeClass's status from which the type is launched: the newest that fits; None if none does."""
    values = {r.key: r.values for r in instance_type.requirements}
    return ami_for(values, node_class.status.amis)


def _variants(
    content: TemplateContent, types: Iterable[InstanceType]
) -> dict[LaunchTemplateVariant, list[InstanceType]]:
    """Return the types by the template they need, without types that no AMI fits.

    Restates: pkg/providers/amifamily/ami.go `MapToInstanceTypes`.
    """
    requests_efa = bool(content.claim.spec.resources.requests.get(EFA))
    groups: dict[LaunchTemplateVariant, list[InstanceType]] = {}
    for candidate in types:
        image = image_for(candidate, content.node_class)
        if image is None:
            continue
        variant = LaunchTemplateVariant(
            image_id=image.id,
            image_name=image.name,
            max_pods=candidate.capacity.get(PODS, 0),
            efa_interfaces=candidate.capacity.get(EFA, 0) if requests_efa else 0,
        )
        groups.setdefault(variant, []).append(candidate)
    return groups


_NITRO_SANDBOX: Final = "eks.amazonaws.com/nitro-sandbox"


class LaunchTemplateVariant(Struct, frozen=True, kw_only=True):
    """The values by which the launch templates of one launch differ."""

    image_id: str
    image_name: str
    max_pods: int
    efa_interfaces: int


class TemplateContent(Struct, frozen=True, kw_only=True):
    """The values that the launch templates of one launch share; `data` adds the variant."""

    settings: AwsSettings
    node_class: NodeClassView
    claim: NodeClaim
    capacity_type: str
    tenancy: str
    reservation: str = ""  # the id of the capacity reservation of a reserved launch
    group: str = ""  # the id of the placement group
    partition: str = ""  # of that group, if it has partitions
    market: str = ""  # EC2's market type, for a capacity block or an interruptible reservation

    def data(self, variant: LaunchTemplateVariant) -> dict[str, Any]:
        """Return EC2's `LaunchTemplateData` for a variant.

        Raises:
            CreateError: The user data is invalid.
        """
        node_class = self.node_class
        content: dict[str, Any] = {
            "ImageId": variant.image_id,
            "IamInstanceProfile": {"Name": node_class.status.instance_profile},
            "Monitoring": {"Enabled": bool(node_class.spec.detailed_monitoring)},
            "NetworkInterfaces": network_interfaces(node_class, variant.efa_interfaces, ipv6=self.settings.ipv6),
            "MetadataOptions": metadata_options(node_class, region=self.settings.region),
            "Placement": self._placement(),
            "UserData": self._user_data(variant),
            "TagSpecifications": [
                {"ResourceType": kind, "Tags": tags.to_aws(self.tags)} for kind in self._tagged_resources()
            ],
        }
        if self.reservation:
            content["CapacityReservationSpecification"] = {
                "CapacityReservationPreference": "capacity-reservations-only",
                "CapacityReservationTarget": {"CapacityReservationId": self.reservation},
            }
        elif self.settings.reserved_capacity:
            # otherwise an instance could use an open reservation that another NodeClass selects
            content["CapacityReservationSpecification"] = {"CapacityReservationPreference": "none"}
        if self.market:
            content["InstanceMarketOptions"] = {"MarketType": self.market}
        if mappings := block_device_mappings(node_class):
            content["BlockDeviceMappings"] = mappings
        options = node_class.spec.cpu_options
        if options is not None and options.nested_virtualization is not None:
            content["CpuOptions"] = {"NestedVirtualization": options.nested_virtualization}
        if self.claim.spec.resources.requests.get(_NITRO_SANDBOX):
            content["EnclaveOptions"] = {"Enabled": True}
        return content

    @property
    def day(self) -> str:
        """Return the day on which the NodeClaim was created, in UTC; a repeated launch has the same template."""
        created = self.claim.metadata.creation_timestamp
        return created.astimezone(timezone.utc).date().isoformat() if created is not None else ""

    @property
    def tags(self) -> dict[str, str]:
        """Return the tags of the template and of the resources that no single NodeClaim owns."""
        return tags.shared_tags(
            self.node_class.spec.tags,
            cluster=self.settings.cluster_name,
            node_class=self.node_class.name,
            node_pool=self.claim.metadata.labels.get(labels.NODEPOOL, ""),
        )

    def _placement(self) -> dict[str, Any]:
        return {
            "Tenancy": self.tenancy,
            **({"GroupId": self.group} if self.group else {}),
            **({"PartitionNumber": int(self.partition)} if self.partition else {}),
        }

    def _tagged_resources(self) -> list[str]:
        return ["network-interface", *(["spot-instances-request"] if self.capacity_type == labels.SPOT else [])]

    def _user_data(self, variant: LaunchTemplateVariant) -> str:
        """Return the user data in base64."""
        bootstrap = self._bootstrap(variant)
        try:
            text = user_data(bootstrap).encode()
        except ValueError as error:
            message = f"spec.userData of EC2NodeClass {self.node_class.name} cannot be read: {error}"
            raise CreateError(message, condition_reason="LaunchFailed") from error
        if len(text) > MAX_BYTES:
            message = f"the user data has {len(text)} bytes, EC2 accepts at most {MAX_BYTES}"
            raise CreateError(message, condition_reason="UserDataSizeLimitExceeded", user_data_bytes=len(text))
        return base64.b64encode(text).decode()

    def _bootstrap(self, variant: LaunchTemplateVariant) -> Bootstrap:
        settings, node_class = self.settings, self.node_class
        kubelet: dict[str, Any] = {**node_class.spec.kubelet, "maxPods": variant.max_pods}
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
            custom=node_class.spec.user_data or "",
            raid0=node_class.raid0,
            ami_name=variant.image_name,
        )


def network_interfaces(node_class: NodeClassView, efa_interfaces: int, *, ipv6: bool) -> list[dict[str, Any]]:
    """Return the network interfaces; there is at least one, since it holds the security groups.

    Restates: launchtemplate.go `generateNetworkInterfaces`.
    """
    groups = [group.id for group in node_class.status.security_groups]
    addressing = _addressing(node_class.spec, ipv6=ipv6)
    if node_class.spec.network_interfaces:
        return [_user_interface(interface, groups, addressing) for interface in node_class.spec.network_interfaces]
    common = {"Groups": groups, **addressing}
    if efa_interfaces:
        # device 0 of card 0 comes first, the other cards' interfaces are device 1
        return [
            {"NetworkCardIndex": card, "DeviceIndex": 0 if card == 0 else 1, "InterfaceType": "efa", **common}
            for card in range(efa_interfaces)
        ]
    return [{"DeviceIndex": 0, **common}]


def _user_interface(interface: NetworkInterface, groups: list[str], addressing: Mapping[str, Any]) -> dict[str, Any]:
    """Return an interface of `spec.networkInterfaces`; an EFA-only interface gets no IP addresses."""
    return {
        "NetworkCardIndex": interface.network_card_index,
        "DeviceIndex": interface.device_index,
        "InterfaceType": interface.interface_type,
        "Groups": groups,
        **(addressing if interface.interface_type != "efa-only" else {}),
    }


def _addressing(spec: EC2NodeClassSpec, *, ipv6: bool) -> dict[str, Any]:
    addressing: dict[str, Any] = {"PrimaryIpv6": True, "Ipv6AddressCount": 1} if ipv6 else {}
    if spec.associate_public_ip_address is not None:
        addressing["AssociatePublicIpAddress"] = spec.associate_public_ip_address
    if spec.ip_prefix_count:
        addressing["Ipv6PrefixCount" if ipv6 else "Ipv4PrefixCount"] = spec.ip_prefix_count
    if (tracking := spec.connection_tracking) is not None:
        addressing["ConnectionTrackingSpecification"] = _given(
            TcpEstablishedTimeout=tracking.tcp_established_timeout,
            UdpStreamTimeout=tracking.udp_stream_timeout,
            UdpTimeout=tracking.udp_timeout,
        )
    return addressing


def _given(**parameters: Any) -> dict[str, Any]:
    """Return the parameters of a request that have a value."""
    return {name: value for name, value in parameters.items() if value is not None}


def metadata_options(node_class: NodeClassView, *, region: str) -> dict[str, Any]:
    """Return the options of the instance metadata service, without tags: it does not support our tag keys."""
    options = node_class.spec.metadata_options
    ipv6 = {} if "-iso" in region else {"HttpProtocolIpv6": options.http_protocol_ipv6}
    return {
        "HttpEndpoint": options.http_endpoint,
        "HttpPutResponseHopLimit": options.http_put_response_hop_limit,
        "HttpTokens": options.http_tokens,
        "InstanceMetadataTags": "disabled",
        **ipv6,
    }


def block_device_mappings(node_class: NodeClassView) -> list[dict[str, Any]]:
    """Return the user's volumes, otherwise the family's; none for Custom, whose image defines them."""
    if node_class.spec.block_device_mappings:
        return [_user_mapping(mapping) for mapping in node_class.spec.block_device_mappings]
    if node_class.family is CUSTOM:
        return []
    return [
        {
            "DeviceName": device.name,
            "Ebs": {"Encrypted": True, "VolumeType": "gp3", "VolumeSize": device.size_bytes // GIB},
        }
        for device in node_class.family.block_devices
    ]


def _user_mapping(mapping: BlockDeviceMapping) -> dict[str, Any]:
    return {"DeviceName": mapping.device_name or "", "Ebs": _ebs(mapping.ebs) if mapping.ebs is not None else {}}


def _ebs(volume: BlockDevice) -> dict[str, Any]:
    size = volume.volume_size
    return _given(
        DeleteOnTermination=volume.delete_on_termination,
        Encrypted=volume.encrypted,
        Iops=volume.iops,
        KmsKeyId=volume.kms_key_id,
        SnapshotId=volume.snapshot_id,
        Throughput=volume.throughput,
        VolumeInitializationRate=volume.volume_initialization_rate,
        VolumeType=volume.volume_type,
        VolumeSize=-(-quantity.parse(size).units(round_up=True) // GIB) if size is not None else None,  # rounded up
    )
