"""The status of an EC2NodeClass: subnets, security groups, images and reservations found by its selectors.

Restates: karpenter-provider-aws pkg/apis/v1/ec2nodeclass_status.go.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from journeyman.core.api.conditions import Conditions
from journeyman.core.api.model import Bool, Model, Time, ValidatedBy
from journeyman.core.api.nodeclass_rules import ImageRequirementModel, SecurityGroup
from journeyman.core.api.objects import NodeSelectorRequirement


class Subnet(Model):
    """A subnet found by the selector terms."""

    id: str = Field(description="ID of the subnet.")
    zone: str = Field(description="Availability zone of the subnet.")
    zone_id: str = Field(
        default="", alias="zoneID", description="ID of the availability zone, the same in every account."
    )


class AMI(Model):
    """A machine image found by the selector terms."""

    id: str = Field(description="ID of the image.")
    name: str = Field(default="", description="Name of the image.")
    deprecated: Bool = Field(default=False, description="Whether the image is deprecated.")
    requirements: tuple[Annotated[NodeSelectorRequirement, ValidatedBy(ImageRequirementModel)], ...] = Field(
        description="Requirements on the instance types that can boot the image."
    )


class CapacityReservation(Model):
    """A capacity reservation found by the selector terms."""

    availability_zone: str = Field(description="Availability zone of the capacity reservation.")
    end_time: Time | None = Field(default=None, description="End time of the capacity reservation, if it has one.")
    id: str = Field(pattern=r"^cr-[0-9a-z]+$", description="ID of the capacity reservation.")
    instance_match_criteria: Literal["open", "targeted"] = Field(
        description="Instance matching of the capacity reservation: open or targeted."
    )
    instance_type: str = Field(description="Instance type of the capacity reservation.")
    interruptible: Bool = Field(
        default=False, description="Whether instances in the capacity reservation may be interrupted."
    )
    owner_id: str = Field(
        alias="ownerID", pattern=r"^[0-9]{12}$", description="ID of the account that owns the capacity reservation."
    )
    reservation_type: Literal["default", "capacity-block"] = Field(
        default="default", description="Type of the capacity reservation."
    )
    state: Literal["active", "expiring"] = Field(default="active", description="State of the capacity reservation.")


class EC2NodeClassStatus(Model):
    """`status` of an EC2NodeClass."""

    subnets: tuple[Subnet, ...] = Field(default=(), description="Subnets, those with the most free addresses first.")
    security_groups: tuple[SecurityGroup, ...] = Field(default=(), description="Security groups.")
    capacity_reservations: tuple[CapacityReservation, ...] = Field(default=(), description="Capacity reservations.")
    amis: tuple[AMI, ...] = Field(default=(), description="Machine images, newest first.")
    instance_profile: str = Field(default="", description="Instance profile of the nodes.")
    conditions: Conditions = Field(default=(), description="AMIsReady, SubnetsReady, Ready and others.")
