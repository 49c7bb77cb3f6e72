"""ECSNodeClass (`karpenter.alibabacloud.com/v1alpha1`): the Alibaba Cloud settings of nodes, as the vendor's provider has them.

`ecsnodeclass` is the other API of this kind; `ecs_settings` is the common view of both.

Restates: AliyunContainerService/karpenter-provider-alibabacloud pkg/apis/v1alpha1/ecsnodeclass_types.go,
ecsnodeclass_validation.go, labels.go.
Differs: the CRD has the rules of upstream's webhook. An image may also be an official one, such as `aliyun_3_x64_…vhd`; a disk may
have each of ECS's categories; settings beside a launch template are admitted, and take precedence. Kubelet settings are validated as
in `kubelet_configuration`, and tags and selector terms as those of the other API.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field, Strict, model_validator
from typing_extensions import Self

from journeyman.core.api.conditions import Conditions
from journeyman.core.api.ecsnodeclass import (
    MAX_DATA_DISKS,
    MAX_TAGS,
    DiskCategory,
    PerformanceLevel,
    SecurityGroupSelectorTerm,
)
from journeyman.core.api.kubelet_configuration import KubeletConfiguration
from journeyman.core.api.model import Bool, Int, Metadata, Model, crd, problem, rules
from journeyman.core.api.nodeclass_rules import (
    MAX_TERMS,
    SecurityGroup,
    Tags,
    at_least_one_rule,
    exclusive_rule,
    reject_if_any,
    resource_tags_checker,
    resource_tags_rules,
    terms_checker,
)
from journeyman.core.api.objects import ObjectMeta

FORBIDDEN_TAGS: Final = (
    "karpenter.sh/managed-by",
    "karpenter.sh/cluster-id",
    "karpenter.sh/nodepool",
    "karpenter.sh/nodeclaim",
    "karpenter.sh/kubelet-max-pods",
    "karpenter.alibabacloud.com/ecsnodeclass",
)
MAX_SECURITY_GROUP_TERMS: Final = 5
_IMAGE_ID: Final = r"^(m-[0-9a-z]+|[0-9A-Za-z][0-9A-Za-z_.-]*\.vhd)$"
_KEY_RULE: Final = (
    "kmsKeyID requires encrypted",
    "!has(self.kmsKeyID) || self.kmsKeyID == '' || (has(self.encrypted) && self.encrypted)",
)
_IMAGE_FIELDS: Final = ("tags", "name", "image_family", "image_owner_alias")

Switch = Literal["enabled", "disabled"]


def _check_key(encrypted: bool | None, kms_key_id: str | None) -> None:
    if kms_key_id and not encrypted:
        raise problem("kmsKeyID requires encrypted")


class VSwitchSelectorTerm(Model):
    """VSwitches with these tags and in this zone, or with this id."""

    tags: Tags | None = None
    id: str | None = Field(default=None, pattern=r"^vsw-[0-9a-z]+$", description="ID of the vSwitch.")
    zone_id: str | None = Field(default=None, alias="zoneID", min_length=1, description="Zone of the vSwitch.")


class ImageSelectorTerm(Model):
    """Images with this id, or with all the other fields."""

    tags: Tags | None = None
    id: str | None = Field(default=None, pattern=_IMAGE_ID, description="ID of the image.")
    name: str | None = Field(default=None, description="Name of the image, with wildcards.")
    image_family: str | None = Field(
        default=None, description="Family of the image, such as acs:alibaba_cloud_linux_3_2104_lts_x64."
    )
    image_owner_alias: Literal["system", "self", "others", "marketplace"] | None = Field(
        default=None, description="Source of the image."
    )
    image_owner_id: str | None = Field(
        default=None, alias="imageOwnerID", description="ID of the account that owns the image."
    )


class CapacityReservationSelectorTerm(Model):
    """Capacity reservations with these tags, or this id."""

    tags: Tags | None = None
    id: str | None = Field(default=None, pattern=r"^crp-[0-9a-z]+$", description="ID of the capacity reservation.")


class SystemDisk(Model):
    """The system disk of an instance."""

    model_config = ConfigDict(json_schema_extra=rules(_KEY_RULE))

    category: DiskCategory = Field(default="cloud_essd", description="Category of the disk.")
    size: Int = Field(
        default=40, ge=20, le=500, description="Size of the disk in GiB.", json_schema_extra=crd(format="int32")
    )
    performance_level: PerformanceLevel = Field(
        default="PL0", description="Performance level of a disk of the category cloud_essd."
    )
    encrypted: Bool | None = Field(default=None, description="Whether the disk is encrypted.")
    kms_key_id: str | None = Field(
        default=None, alias="kmsKeyID", description="ID of the KMS key that encrypts the disk."
    )

    @model_validator(mode="after")
    def _key_encrypts(self) -> Self:
        _check_key(self.encrypted, self.kms_key_id)
        return self


class DataDisk(Model):
    """A data disk of an instance."""

    model_config = ConfigDict(json_schema_extra=rules(_KEY_RULE))

    category: DiskCategory = Field(description="Category of the disk.")
    size: Int = Field(ge=20, le=32768, description="Size of the disk in GiB.", json_schema_extra=crd(format="int32"))
    device: str | None = Field(default=None, description="Name of the device, such as /dev/xvdb.")
    performance_level: PerformanceLevel | None = Field(
        default=None, description="Performance level of a disk of the category cloud_essd."
    )
    encrypted: Bool | None = Field(default=None, description="Whether the disk is encrypted.")
    kms_key_id: str | None = Field(
        default=None, alias="kmsKeyID", description="ID of the KMS key that encrypts the disk."
    )
    snapshot_id: str | None = Field(
        default=None, alias="snapshotID", description="ID of the snapshot that the disk is created from."
    )
    delete_with_instance: Bool = Field(default=True, description="Whether the disk is deleted with the instance.")

    @model_validator(mode="after")
    def _key_encrypts(self) -> Self:
        _check_key(self.encrypted, self.kms_key_id)
        return self


class MetadataOptions(Model):
    """Options of the instance metadata service."""

    http_tokens: Literal["optional", "required"] = Field(
        default="optional", description="Whether tokens are required (the security-hardened mode)."
    )
    http_put_response_hop_limit: Int = Field(
        default=1, ge=1, le=64, description="Hop limit of metadata tokens.", json_schema_extra=crd(format="int32")
    )
    http_endpoint: Switch = Field(default="enabled", description="Whether the metadata endpoint is enabled.")


class ACSECSNodeClassSpec(Model):
    """`spec` of an ECSNodeClass."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            *(
                (
                    f"{field} is required when launchTemplateID is not specified",
                    f"has(self.launchTemplateID) || has(self.{field})",
                )
                for field in ("vSwitchSelectorTerms", "securityGroupSelectorTerms", "imageSelectorTerms")
            ),
            (
                "launchTemplateVersion requires launchTemplateID",
                "!has(self.launchTemplateVersion) || has(self.launchTemplateID)",
            ),
            (
                "spotPriceLimit is required when spotStrategy is SpotWithPriceLimit",
                "!has(self.spotStrategy) || self.spotStrategy != 'SpotWithPriceLimit' || has(self.spotPriceLimit)",
            ),
        )
    )

    cluster_id: str | None = Field(default=None, alias="clusterID", description="ID of the ACK cluster.")
    cluster_name: str | None = Field(default=None, description="Name of the ACK cluster.")
    cluster_endpoint: str | None = Field(default=None, description="Endpoint of the cluster's API server.")
    v_switch_selector_terms: (
        Annotated[
            tuple[VSwitchSelectorTerm, ...],
            Field(min_length=1, max_length=MAX_TERMS),
            AfterValidator(terms_checker(reject_if_any("id", ("tags", "zone_id")), of=("tags", "id", "zone_id"))),
        ]
        | None
    ) = Field(
        default=None,
        description="Terms that select the vSwitches of instances.",
        json_schema_extra=rules(
            at_least_one_rule("tags", "id", "zoneID"),
            exclusive_rule("id", ("tags", "zoneID"), "vSwitchSelectorTerms", every=False),
        ),
    )
    security_group_selector_terms: (
        Annotated[
            tuple[SecurityGroupSelectorTerm, ...],
            Field(min_length=1, max_length=MAX_SECURITY_GROUP_TERMS),
            AfterValidator(terms_checker(reject_if_any("id", ("tags", "name")), of=("tags", "id", "name"))),
        ]
        | None
    ) = Field(
        default=None,
        description="Terms that select the security groups of instances.",
        json_schema_extra=rules(
            at_least_one_rule("tags", "id", "name"),
            exclusive_rule("id", ("tags", "name"), "securityGroupSelectorTerms", every=False),
        ),
    )
    image_selector_terms: (
        Annotated[
            tuple[ImageSelectorTerm, ...],
            Field(min_length=1, max_length=MAX_TERMS),
            AfterValidator(terms_checker(reject_if_any("id", _IMAGE_FIELDS), of=("id", *_IMAGE_FIELDS))),
        ]
        | None
    ) = Field(
        default=None,
        description="Terms that select the images of instances.",
        json_schema_extra=rules(
            at_least_one_rule("id", "tags", "name", "imageFamily", "imageOwnerAlias"),
            exclusive_rule("id", ("tags", "name", "imageFamily", "imageOwnerAlias"), "imageSelectorTerms", every=False),
        ),
    )
    role: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9._-]{1,64}$", description="Name of the RAM role of instances."
    )
    system_disk: SystemDisk | None = Field(default=None, description="The system disk of instances.")
    data_disks: tuple[DataDisk, ...] = Field(
        default=(), max_length=MAX_DATA_DISKS, description="Data disks of instances."
    )
    instance_store_policy: Literal["RAID0"] | None = Field(
        default=None, description="Configuration of instance store disks."
    )
    spot_strategy: Literal["SpotAsPriceGo", "SpotWithPriceLimit"] | None = Field(
        default=None, description="Bidding strategy of Spot instances."
    )
    spot_price_limit: Annotated[float, Strict()] | None = Field(
        default=None,
        gt=0,
        description="Maximum price per hour of a Spot instance.",
        json_schema_extra=crd(exclusiveMinimum=True, minimum=0),
    )
    user_data: str | None = Field(default=None, description="User data, merged with ACK's attach script.")
    tags: Annotated[dict[str, str], AfterValidator(resource_tags_checker(FORBIDDEN_TAGS))] = Field(
        default={},
        max_length=MAX_TAGS,
        description="Tags of all resources that are created.",
        json_schema_extra=resource_tags_rules(FORBIDDEN_TAGS),
    )
    kubelet: KubeletConfiguration | None = Field(default=None, description="Settings of the kubelet.")
    capacity_reservation_selector_terms: Annotated[
        tuple[CapacityReservationSelectorTerm, ...],
        AfterValidator(terms_checker(reject_if_any("id", ("tags",)), of=("tags", "id"))),
    ] = Field(
        default=(),
        max_length=MAX_TERMS,
        description="Terms that select the capacity reservations that instances may use.",
        json_schema_extra=rules(
            at_least_one_rule("tags", "id"),
            exclusive_rule("id", ("tags",), "capacityReservationSelectorTerms", every=False),
        ),
    )
    capacity_reservation_preference: Literal["open", "target", "none"] = Field(
        default="open", description="Capacity reservations to use: any open one, the selected ones, or none."
    )
    metadata_options: MetadataOptions | None = Field(
        default=None, description="Options of the instance metadata service."
    )
    launch_template_id: str | None = Field(
        default=None,
        alias="launchTemplateID",
        pattern=r"^lt-[0-9a-z]+$",
        description="ID of the launch template of instances.",
    )
    launch_template_version: Int | None = Field(
        default=None,
        ge=1,
        lt=2**63,
        description="Version of the launch template; its default version if unset.",
        json_schema_extra=crd(format="int64", exclusiveMaximum=None),
    )

    @model_validator(mode="after")
    def _required_without_template(self) -> Self:
        if self.launch_template_id is not None:
            return self
        for field, terms in (
            ("vSwitchSelectorTerms", self.v_switch_selector_terms),
            ("securityGroupSelectorTerms", self.security_group_selector_terms),
            ("imageSelectorTerms", self.image_selector_terms),
        ):
            if terms is None:
                raise problem(f"{field} is required when launchTemplateID is not specified")
        if self.launch_template_version is not None:
            raise problem("launchTemplateVersion requires launchTemplateID")
        return self

    @model_validator(mode="after")
    def _limit_suits_strategy(self) -> Self:
        if self.spot_strategy == "SpotWithPriceLimit" and self.spot_price_limit is None:
            raise problem("spotPriceLimit is required when spotStrategy is SpotWithPriceLimit")
        return self


class VSwitch(Model):
    """A vSwitch found by the selector terms."""

    id: str = Field(description="ID of the vSwitch.")
    zone: str = Field(description="Zone of the vSwitch.")
    zone_id: str = Field(default="", alias="zoneID", description="Zone of the vSwitch as well.")
    available_ip_address_count: Int = Field(
        default=0,
        alias="availableIPAddressCount",
        description="Number of free addresses of the vSwitch.",
        json_schema_extra=crd(default=None),
    )


class Image(Model):
    """An image found by the selector terms."""

    id: str = Field(description="ID of the image.")
    name: str = Field(default="", description="Name of the image.")
    architecture: str = Field(default="", description="Architecture of the image: x86_64 or arm64.")


class ACSECSNodeClassStatus(Model):
    """`status` of an ECSNodeClass."""

    ready: Bool = Field(default=False, description="Whether nodes can be launched.")
    v_switches: tuple[VSwitch, ...] = Field(
        default=(), description="VSwitches, those with the most free addresses first."
    )
    security_groups: tuple[SecurityGroup, ...] = Field(default=(), description="Security groups.")
    images: tuple[Image, ...] = Field(default=(), description="Images, newest first.")
    ram_role: str | None = Field(default=None, description="RAM role of instances.")
    conditions: Conditions = Field(default=(), description="VSwitchResolved, ImageResolved, Ready and others.")


class ACSECSNodeClass(Model):
    """The Alibaba Cloud settings of nodes: network, image, identity and disks."""

    api_version: Literal["karpenter.alibabacloud.com/v1alpha1"] = "karpenter.alibabacloud.com/v1alpha1"
    kind: Literal["ECSNodeClass"] = "ECSNodeClass"
    metadata: Metadata = Field(default_factory=ObjectMeta)
    spec: ACSECSNodeClassSpec
    status: ACSECSNodeClassStatus = Field(default_factory=ACSECSNodeClassStatus)
