"""ECSNodeClass (`karpenter.k8s.alibabacloud/v1alpha1`): the Alibaba Cloud settings of nodes.

`acs_ecsnodeclass` is the other API of this kind; `ecs_settings` is the common view of both.

Restates: cloudpilot-ai/karpenter-provider-alibabacloud pkg/apis/v1alpha1/ecsnodeclass.go, ecsnodeclass_status.go, labels.go.
Differs: a `volumeSize` needs a number (upstream's pattern also has a bare `Ti` and `T`) and may be 18Ti, 19Ti, 28Ti and so on; ids
are matched as a whole; an instance has at most 16 data disks and 20 tags, as ECS allows; `spec` is required.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator
from typing_extensions import Self

from journeyman.core.api.conditions import Conditions
from journeyman.core.api.kubelet_configuration import KubeletConfiguration
from journeyman.core.api.model import MAX_INT32, Bool, Int, Metadata, Model, ValidatedBy, crd, problem, rules
from journeyman.core.api.nodeclass_rules import (
    MAX_TERMS,
    VOLUME_SIZE,
    ImageRequirementModel,
    SecurityGroup,
    Tags,
    alias_checker,
    alias_rules,
    at_least_one_rule,
    check_volume_size,
    exclusive_rule,
    only_alias_rule,
    reject_alias_beside_others,
    reject_if_any,
    reject_if_every,
    resource_tags_checker,
    resource_tags_rules,
    terms_checker,
)
from journeyman.core.api.objects import NodeSelectorRequirement, ObjectMeta

DiskCategory = Literal["cloud", "cloud_efficiency", "cloud_ssd", "cloud_essd", "cloud_auto", "cloud_essd_entry"]
PerformanceLevel = Literal["PL0", "PL1", "PL2", "PL3"]
SelectionPolicy = Literal["balanced", "cheapest"]

DISK_CATEGORIES: Final[tuple[DiskCategory, ...]] = (
    "cloud",
    "cloud_efficiency",
    "cloud_ssd",
    "cloud_essd",
    "cloud_auto",
    "cloud_essd_entry",
)
IMAGE_FAMILIES: Final = ("AlibabaCloudLinux3", "ContainerOS")
FORBIDDEN_TAGS: Final = (
    "ecs:ecs-cluster-name",
    "karpenter.sh/nodepool",
    "karpenter.sh/nodeclaim",
    "karpenter.k8s.alibabacloud/ecsnodeclass",
)
MAX_TAGS: Final = 20
MAX_DATA_DISKS: Final = 16
_ROOT_LOGIN: Final = r"""^[A-Za-z0-9~!@#$%^&*()_+\-=\[\]{}|\\:;"'<>,.?/]{8,30}$"""

_VolumeSize = Annotated[str, AfterValidator(check_volume_size), Field(json_schema_extra=crd(pattern=VOLUME_SIZE))]


def _check_password(value: Any) -> str:
    """Return a valid password. Its error does not repeat it, because Events and logs have the error."""
    if not isinstance(value, str) or not re.fullmatch(_ROOT_LOGIN, value, re.ASCII):
        raise problem("a password is 8 to 30 letters, digits and special characters, as text")
    return value


class VSwitchSelectorTerm(Model):
    """VSwitches with these tags, or this id."""

    tags: Tags | None = None
    id: str | None = Field(default=None, pattern=r"^vsw-[0-9a-z]+$", description="ID of the vSwitch.")


class SecurityGroupSelectorTerm(Model):
    """Security groups with these tags, this id or this name."""

    tags: Tags | None = None
    id: str | None = Field(default=None, pattern=r"^sg-[0-9a-z]+$", description="ID of the security group.")
    name: str | None = Field(default=None, description="Name of the security group (not its Name tag).")


class ImageSelectorTerm(Model):
    """An image with this id, or of this alias."""

    alias: Annotated[str, Field(max_length=30), AfterValidator(alias_checker(IMAGE_FAMILIES))] | None = Field(
        default=None,
        description="An image of ACK as family@version, such as AlibabaCloudLinux3@latest.",
        json_schema_extra=rules(*alias_rules(IMAGE_FAMILIES)),
    )
    id: str | None = Field(default=None, description="ID of the image.")


class SystemDisk(Model):
    """The system disk of an instance."""

    categories: tuple[DiskCategory, ...] = Field(
        default=DISK_CATEGORIES, description="Categories of the disk; ECS uses the first one that is available."
    )
    volume_size: _VolumeSize | None = Field(
        default=None, description="Size of the disk in Gi, G, Ti or T; 20Gi if neither this nor size is set."
    )
    size: Int | None = Field(
        default=None,
        ge=20,
        le=MAX_INT32,
        description="Size of the disk in GiB. Deprecated: use volumeSize, which takes precedence.",
        json_schema_extra=crd(format="int32"),
    )
    performance_level: PerformanceLevel = Field(
        default="PL0", description="Performance level of a disk of the category cloud_essd."
    )


class DataDisk(Model):
    """A data disk of an instance."""

    volume_size: _VolumeSize = Field(default="20Gi", description="Size of the disk in Gi, G, Ti or T.")
    device: str | None = Field(default=None, description="Name of the device, such as /dev/xvdb.")


class ECSNodeClassSpec(Model):
    """`spec` of an ECSNodeClass."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "password cannot be set when passwordInherit is true",
                "!(has(self.passwordInherit) && self.passwordInherit && has(self.password))",
            ),
        )
    )

    v_switch_selector_terms: Annotated[
        tuple[VSwitchSelectorTerm, ...],
        AfterValidator(terms_checker(reject_if_every("id", ("tags",)), of=("tags", "id"))),
    ] = Field(
        min_length=1,
        max_length=MAX_TERMS,
        description="Terms that select the vSwitches of instances.",
        json_schema_extra=rules(
            ("vSwitchSelectorTerms cannot be empty", "self.size() != 0"),
            at_least_one_rule("tags", "id"),
            exclusive_rule("id", ("tags",), "vSwitchSelectorTerms"),
        ),
    )
    v_switch_selection_policy: SelectionPolicy = Field(
        default="cheapest",
        description="How the vSwitch of a Spot instance is selected: the cheapest zone for its type, or balanced over all.",
    )
    security_group_selector_terms: Annotated[
        tuple[SecurityGroupSelectorTerm, ...],
        AfterValidator(
            terms_checker(
                reject_if_every("id", ("tags", "name")),
                reject_if_every("name", ("tags", "id")),
                of=("tags", "id", "name"),
            )
        ),
    ] = Field(
        min_length=1,
        max_length=MAX_TERMS,
        description="Terms that select the security groups of instances.",
        json_schema_extra=rules(
            ("securityGroupSelectorTerms cannot be empty", "self.size() != 0"),
            at_least_one_rule("tags", "id", "name"),
            exclusive_rule("id", ("tags", "name"), "securityGroupSelectorTerms"),
            exclusive_rule("name", ("tags", "id"), "securityGroupSelectorTerms"),
        ),
    )
    image_selector_terms: Annotated[
        tuple[ImageSelectorTerm, ...],
        AfterValidator(terms_checker(reject_if_any("id", ("alias",)), reject_alias_beside_others, of=("id", "alias"))),
    ] = Field(
        min_length=1,
        max_length=MAX_TERMS,
        description="Terms that select the images of instances.",
        json_schema_extra=rules(
            at_least_one_rule("id", "alias"),
            exclusive_rule("id", ("alias",), "imageSelectorTerms", every=False),
            only_alias_rule("imageSelectorTerms"),
        ),
    )
    kubelet_configuration: KubeletConfiguration | None = Field(default=None, description="Settings of the kubelet.")
    system_disk: SystemDisk | None = Field(default=None, description="The system disk of instances.")
    data_disks: tuple[DataDisk, ...] = Field(
        default=(), max_length=MAX_DATA_DISKS, description="Data disks of instances."
    )
    data_disk_categories: tuple[DiskCategory, ...] = Field(
        default=(), description="Categories of all data disks; ECS uses the first one that is available."
    )
    format_data_disk: Bool = Field(
        default=False, description="Whether the last data disk is formatted and holds container data."
    )
    tags: Annotated[dict[str, str], AfterValidator(resource_tags_checker(FORBIDDEN_TAGS))] = Field(
        default={},
        max_length=MAX_TAGS,
        description="Tags of all resources that are created.",
        json_schema_extra=resource_tags_rules(FORBIDDEN_TAGS),
    )
    resource_group_id: str | None = Field(
        default=None, pattern=r"^rg-[0-9a-z]+$", description="ID of the resource group of instances."
    )
    user_data: str | None = Field(
        default=None, description="User data: a script or a MIME multipart document, merged with ACK's attach script."
    )
    password: Annotated[str, BeforeValidator(_check_password)] | None = Field(
        default=None, description="Password of the user root.", json_schema_extra=crd(pattern=_ROOT_LOGIN)
    )
    key_pair_name: str | None = Field(default=None, description="Name of the key pair of the user root.")
    password_inherit: Bool | None = Field(default=None, description="Whether the image's password is kept.")

    @model_validator(mode="after")
    def _one_password(self) -> Self:
        if self.password_inherit and self.password is not None:
            raise problem("password cannot be set when passwordInherit is true")
        return self


class VSwitch(Model):
    """A vSwitch found by the selector terms."""

    id: str = Field(description="ID of the vSwitch.")
    zone_id: str = Field(alias="zoneID", description="Zone of the vSwitch.")


class Image(Model):
    """An image found by the selector terms."""

    id: str = Field(description="ID of the image.")
    name: str = Field(default="", description="Name of the image.")
    requirements: tuple[Annotated[NodeSelectorRequirement, ValidatedBy(ImageRequirementModel)], ...] = Field(
        description="Requirements on the instance types that can boot the image."
    )


class ECSNodeClassStatus(Model):
    """`status` of an ECSNodeClass."""

    v_switches: tuple[VSwitch, ...] = Field(default=(), description="VSwitches.")
    security_groups: tuple[SecurityGroup, ...] = Field(default=(), description="Security groups.")
    images: tuple[Image, ...] = Field(default=(), description="Images, newest first.")
    conditions: Conditions = Field(default=(), description="VSwitchesReady, ImagesReady, Ready and others.")


class ECSNodeClass(Model):
    """The Alibaba Cloud settings of nodes: network, image and disks."""

    api_version: Literal["karpenter.k8s.alibabacloud/v1alpha1"] = "karpenter.k8s.alibabacloud/v1alpha1"
    kind: Literal["ECSNodeClass"] = "ECSNodeClass"
    metadata: Metadata = Field(default_factory=ObjectMeta)
    spec: ECSNodeClassSpec
    status: ECSNodeClassStatus = Field(default_factory=ECSNodeClassStatus)
