"""EC2NodeClass (`karpenter.k8s.aws/v1`): the AWS settings of nodes.

Restates: karpenter-provider-aws pkg/apis/v1/ec2nodeclass.go, and its CRD.
Differs: a `volumeSize` of 18Ti to 58Ti is accepted throughout; Karpenter's pattern omits 18, 19, 28 and so on. The CRD admits
what Karpenter's admits; what cannot work of that the model rejects, and the condition ValidationSucceeded reports.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from typing_extensions import Self

from journeyman.core.api.ec2nodeclass_selectors import (
    FAMILY_OF_ALIAS,
    AMIFamily,
    AMISelectorTerms,
    CapacityReservationSelectorTerms,
    PlacementGroupSelector,
    SecurityGroupSelectorTerms,
    SubnetSelectorTerms,
)
from journeyman.core.api.ec2nodeclass_status import EC2NodeClassStatus
from journeyman.core.api.model import MAX_INT32, Bool, Int, Metadata, Model, crd, problem, rules
from journeyman.core.api.nodeclass_rules import (
    VOLUME_SIZE,
    check_volume_size,
    resource_tags_checker,
    resource_tags_rules,
)
from journeyman.core.api.objects import ObjectMeta

VolumeType = Literal["standard", "io1", "io2", "gp2", "sc1", "st1", "gp3"]
Switch = Literal["enabled", "disabled"]

FORBIDDEN_TAGS: Final = (
    "eks:eks-cluster-name",
    "karpenter.sh/nodepool",
    "karpenter.sh/nodeclaim",
    "karpenter.k8s.aws/ec2nodeclass",
)
MAX_TAGS: Final = 50

_Text = Annotated[str, Field(min_length=1)]


_check_tag_keys = resource_tags_checker(FORBIDDEN_TAGS)


def _check_tags(tags: dict[str, str]) -> dict[str, str]:
    if len(tags) > MAX_TAGS:
        raise problem(f"{len(tags)} tags are too many; a resource in EC2 has at most {MAX_TAGS}")
    return _check_tag_keys(tags)


class BlockDevice(Model):
    """An EBS volume."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("snapshotID or volumeSize must be defined", "has(self.snapshotID) || has(self.volumeSize)"),
            (
                "snapshotID must be set when volumeInitializationRate is set",
                "!has(self.volumeInitializationRate) || (has(self.snapshotID) && self.snapshotID != '')",
            ),
        )
    )

    delete_on_termination: Bool | None = Field(
        default=None, description="Whether the volume is deleted with the instance."
    )
    encrypted: Bool | None = Field(default=None, description="Whether the volume is encrypted.")
    iops: Int | None = Field(
        default=None, description="I/O operations per second of the volume.", json_schema_extra=crd(format="int64")
    )
    kms_key_id: str | None = Field(
        default=None, alias="kmsKeyID", description="ARN of the KMS key that encrypts the volume."
    )
    snapshot_id: str | None = Field(
        default=None, alias="snapshotID", description="ID of the snapshot that the volume is created from."
    )
    throughput: Int | None = Field(
        default=None, description="Throughput of a gp3 volume in MiB per second.", json_schema_extra=crd(format="int64")
    )
    volume_initialization_rate: Int | None = Field(
        default=None, ge=100, le=300, description="Rate in MiB per second at which the snapshot is loaded."
    )
    volume_size: Annotated[str, AfterValidator(check_volume_size)] | None = Field(
        default=None,
        description="Size of the volume in Gi, G, Ti or T.",
        json_schema_extra=crd(pattern=f"^Ti?$|{VOLUME_SIZE}"),  # Karpenter's admits a bare Ti and T
    )
    volume_type: VolumeType | None = Field(default=None, description="Type of the volume.")

    @model_validator(mode="after")
    def _size_or_snapshot(self) -> Self:
        if self.snapshot_id is None and self.volume_size is None:
            raise problem("snapshotID or volumeSize must be defined")
        if self.volume_initialization_rate is not None and not self.snapshot_id:
            raise problem("snapshotID must be set when volumeInitializationRate is set")
        return self


class BlockDeviceMapping(Model):
    """A device name and its EBS volume."""

    device_name: str | None = Field(default=None, description="Name of the device, such as /dev/xvda.")
    ebs: BlockDevice | None = Field(default=None, description="The EBS volume.")
    root_volume: Bool = Field(
        default=False, description="Whether the volume holds the kubelet's root directory; at most one does."
    )


class MetadataOptions(Model):
    """Options of the instance metadata service."""

    http_endpoint: Switch = Field(default="enabled", description="Whether the metadata endpoint is enabled.")
    http_protocol_ipv6: Switch = Field(
        default="disabled", alias="httpProtocolIPv6", description="Whether the IPv6 endpoint is enabled."
    )
    http_put_response_hop_limit: Int = Field(
        default=1,
        ge=1,
        le=64,
        description="Hop limit of metadata tokens; pods without host network need 2.",
        json_schema_extra=crd(format="int64"),
    )
    http_tokens: Literal["required", "optional"] = Field(
        default="required", description="Whether IMDSv2 tokens are required."
    )


class NetworkInterface(Model):
    """A network interface of the instance."""

    network_card_index: Int = Field(
        ge=0, le=MAX_INT32, description="Index of the network card.", json_schema_extra=crd(format="int32")
    )
    device_index: Int = Field(
        ge=0,
        le=MAX_INT32,
        description="Index of the device on the network card.",
        json_schema_extra=crd(format="int32"),
    )
    interface_type: Literal["interface", "efa-only"] = Field(description="Type of the interface.")


def _check_interfaces(interfaces: tuple[NetworkInterface, ...]) -> tuple[NetworkInterface, ...]:
    if interfaces and not any(
        (i.network_card_index, i.device_index, i.interface_type) == (0, 0, "interface") for i in interfaces
    ):
        raise problem("a primary interface is required: networkCardIndex 0, deviceIndex 0, interfaceType interface")
    indexes = Counter((i.network_card_index, i.device_index) for i in interfaces)
    if any(count > 1 for count in indexes.values()):
        raise problem("two interfaces share networkCardIndex and deviceIndex")
    efas = Counter(i.network_card_index for i in interfaces if i.interface_type == "efa-only")
    if any(count > 1 for count in efas.values()):
        raise problem("a network card can have at most one efa-only interface")
    return interfaces


class ConnectionTracking(Model):
    """Idle timeouts of tracked connections, in seconds."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "at least one of tcpEstablishedTimeout, udpStreamTimeout, or udpTimeout must be set",
                "has(self.tcpEstablishedTimeout) || has(self.udpStreamTimeout) || has(self.udpTimeout)",
            )
        )
    )

    tcp_established_timeout: Int | None = Field(
        default=None, ge=60, le=432000, description="Timeout of established TCP connections."
    )
    udp_stream_timeout: Int | None = Field(default=None, ge=60, le=180, description="Timeout of UDP streams.")
    udp_timeout: Int | None = Field(default=None, ge=30, le=60, description="Timeout of single UDP requests.")

    @model_validator(mode="after")
    def _something_is_set(self) -> Self:
        if self.tcp_established_timeout is None and self.udp_stream_timeout is None and self.udp_timeout is None:
            raise problem("at least one of tcpEstablishedTimeout, udpStreamTimeout and udpTimeout must be set")
        return self


class CPUOptions(Model):
    """CPU features."""

    nested_virtualization: Switch | None = Field(default=None, description="Whether nested virtualization is enabled.")


def _alias_rules() -> list[tuple[str, str]]:
    return [
        (
            f"if set, amiFamily must be '{family}' or 'Custom' when using an {alias} alias",
            (
                f"!has(self.amiFamily) || !self.amiSelectorTerms.exists(x, has(x.alias) && x.alias.find('^[^@]+') == '{alias}')"
                f" || self.amiFamily in ['Custom', '{family}']"
            ),
        )
        for alias, family in FAMILY_OF_ALIAS.items()
    ]


class EC2NodeClassSpec(Model):
    """`spec` of an EC2NodeClass."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "must specify exactly one of ['role', 'instanceProfile']",
                "has(self.role) != has(self.instanceProfile)",
            ),
            *_alias_rules(),
            (
                "must specify amiFamily if amiSelectorTerms does not contain an alias",
                "self.amiSelectorTerms.exists(x, has(x.alias)) || has(self.amiFamily)",
            ),
        )
    )

    subnet_selector_terms: SubnetSelectorTerms = Field(description="Terms that select the subnets of instances.")
    security_group_selector_terms: SecurityGroupSelectorTerms = Field(
        description="Terms that select the security groups of instances."
    )
    capacity_reservation_selector_terms: CapacityReservationSelectorTerms = Field(
        default=(), description="Terms that select the capacity reservations that instances may use."
    )
    placement_group_selector: PlacementGroupSelector | None = Field(
        default=None, description="The placement group of instances."
    )
    associate_public_ip_address: Bool | None = Field(
        default=None, alias="associatePublicIPAddress", description="Whether instances have a public IP address."
    )
    ip_prefix_count: Int | None = Field(
        default=None,
        ge=0,
        le=MAX_INT32,
        alias="ipPrefixCount",
        description="Number of IPv4 prefixes of the primary interface.",
        json_schema_extra=crd(format="int32"),
    )
    ami_selector_terms: AMISelectorTerms = Field(description="Terms that select the machine images of instances.")
    ami_family: AMIFamily | None = Field(
        default=None, description="Format of the user data and default block devices; derived from an alias."
    )
    user_data: str | None = Field(default=None, description="User data of instances, in the format of the AMI family.")
    role: _Text | None = Field(
        default=None, description="IAM role of the nodes; an instance profile is created for it."
    )
    instance_profile: _Text | None = Field(default=None, description="An existing instance profile, instead of a role.")
    tags: Annotated[dict[str, str], AfterValidator(_check_tags)] = Field(
        default={},
        description="Tags of all resources that are created.",
        json_schema_extra=resource_tags_rules(FORBIDDEN_TAGS),
    )
    kubelet: dict[str, Any] = Field(
        default={},
        description="Kubelet configuration, as kubelet.config.k8s.io/v1beta1 has it.",
        json_schema_extra=crd(x_kubernetes_preserve_unknown_fields=True, additionalProperties=None),
    )
    block_device_mappings: tuple[BlockDeviceMapping, ...] = Field(
        default=(),
        max_length=50,
        description="Block devices of instances; those of the AMI family if unset.",
        json_schema_extra=rules(
            (
                "must have only one blockDeviceMappings with rootVolume",
                "self.filter(x, has(x.rootVolume) ? x.rootVolume : false).size() <= 1",
            )
        ),
    )
    instance_store_policy: Literal["RAID0"] | None = Field(
        default=None, description="Configuration of instance store disks."
    )
    network_interfaces: Annotated[tuple[NetworkInterface, ...], AfterValidator(_check_interfaces)] = Field(
        default=(),
        max_length=150,
        description="Network interfaces of instances.",
        json_schema_extra=rules(
            (
                "networkInterfaces must include a primary interface with interfaceType='interface'",
                (
                    "self.size() == 0 || self.exists(x, x.deviceIndex == 0 && x.networkCardIndex == 0 "
                    "&& x.interfaceType == 'interface')"
                ),
            ),
            (
                (
                    "networkInterfaces must not have duplicate networkCardIndex and deviceIndex pairs, and can have at most "
                    "one efa device per network card"
                ),
                (
                    "self.all(x, self.filter(y, x.networkCardIndex == y.networkCardIndex && x.deviceIndex == y.deviceIndex)"
                    ".size() == 1 && (x.interfaceType != 'efa-only' || self.filter(y, x.networkCardIndex == "
                    "y.networkCardIndex && y.interfaceType == 'efa-only').size() == 1))"
                ),
            ),
        ),
    )
    detailed_monitoring: Bool | None = Field(
        default=None, description="Whether detailed monitoring (metrics every minute) is enabled."
    )
    metadata_options: MetadataOptions = Field(
        default_factory=MetadataOptions,
        description="Options of the instance metadata service.",
        json_schema_extra=crd(
            default={
                "httpEndpoint": "enabled",
                "httpProtocolIPv6": "disabled",
                "httpPutResponseHopLimit": 1,
                "httpTokens": "required",
            }
        ),
    )
    connection_tracking: ConnectionTracking | None = Field(
        default=None, description="Idle timeouts of tracked connections."
    )
    context: str | None = Field(default=None, description="Reserved by EC2; passed on.")
    cpu_options: CPUOptions | None = Field(default=None, description="CPU options of instances.")

    @property
    def alias(self) -> str | None:
        """The AMI alias `family@version`, if one is used."""
        return next((term.alias for term in self.ami_selector_terms if term.alias is not None), None)

    @property
    def resolved_ami_family(self) -> AMIFamily:
        """`amiFamily`, or the family of the alias."""
        if self.ami_family is not None or self.alias is None:
            return self.ami_family or "Custom"
        return FAMILY_OF_ALIAS[self.alias.split("@", 1)[0]]

    @model_validator(mode="after")
    def _one_identity(self) -> Self:
        if (self.role is None) == (self.instance_profile is None):
            raise problem("must specify exactly one of 'role' and 'instanceProfile'")
        return self

    @model_validator(mode="after")
    def _family_suits_alias(self) -> Self:
        if self.alias is None:
            if self.ami_family is None:
                raise problem("must specify amiFamily if amiSelectorTerms does not contain an alias")
            return self
        expected = FAMILY_OF_ALIAS[self.alias.split("@", 1)[0]]
        if self.ami_family not in (None, "Custom", expected):
            raise problem(f"amiFamily must be '{expected}' or 'Custom' with the alias {self.alias!r}, or left out")
        return self

    @model_validator(mode="after")
    def _one_root_volume(self) -> Self:
        if sum(mapping.root_volume for mapping in self.block_device_mappings) > 1:
            raise problem("blockDeviceMappings: only one may have rootVolume")
        return self


class EC2NodeClass(Model):
    """The AWS settings of nodes: network, machine image, identity and storage."""

    model_config = ConfigDict(json_schema_extra=crd(required=None))  # Karpenter's CRD admits one without `spec`

    api_version: Literal["karpenter.k8s.aws/v1"] = "karpenter.k8s.aws/v1"
    kind: Literal["EC2NodeClass"] = "EC2NodeClass"
    metadata: Metadata = Field(default_factory=ObjectMeta)
    spec: EC2NodeClassSpec
    status: EC2NodeClassStatus = Field(default_factory=EC2NodeClassStatus)
