"""What an EC2NodeClass resolved to: subnets, security groups, images, reservations.

Restates: karpenter-provider-aws pkg/apis/v1/ec2nodeclass_status.go.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from journeyman.core.api.conditions import Conditions
from journeyman.core.api.model import Bool, Checked, Model, Time, crd
from journeyman.core.api.objects import NodeSelectorRequirement


class Subnet(Model):
    """A subnet that was found."""

    id: str = Field(description="Its id.")
    zone: str = Field(description="Its availability zone.")
    zone_id: str = Field(default="", alias="zoneID", description="The zone's id, the same in every account.")


class SecurityGroup(Model):
    """A security group that was found."""

    id: str = Field(description="Its id.")
    name: str = Field(default="", description="Its name.")


class AMIRequirementModel(Model):
    """What instance types an image suits."""

    key: str = Field(description="The label it is about.")
    operator: str = Field(description="How the label relates to the values.")
    values: tuple[str, ...] = Field(
        default=(), description="The values.", json_schema_extra=crd(x_kubernetes_list_type="atomic")
    )


class AMI(Model):
    """A machine image that was found."""

    id: str = Field(description="Its id.")
    name: str = Field(default="", description="Its name.")
    deprecated: Bool = Field(default=False, description="Whether its owner advises against it.")
    requirements: tuple[Annotated[NodeSelectorRequirement, Checked(AMIRequirementModel)], ...] = Field(
        description="What instance types it suits."
    )


class CapacityReservation(Model):
    """A capacity reservation that was found."""

    availability_zone: str = Field(description="Its zone.")
    end_time: Time | None = Field(default=None, description="When it ends, if it does.")
    id: str = Field(pattern=r"^cr-[0-9a-z]+$", description="Its id.")
    instance_match_criteria: Literal["open", "targeted"] = Field(description="Who may use it.")
    instance_type: str = Field(description="Its instance type.")
    interruptible: Bool = Field(default=False, description="Whether its instances may be interrupted.")
    owner_id: str = Field(alias="ownerID", pattern=r"^[0-9]{12}$", description="The account that owns it.")
    reservation_type: Literal["default", "capacity-block"] = Field(default="default", description="Its kind.")
    state: Literal["active", "expiring"] = Field(default="active", description="Whether it is about to end.")


class EC2NodeClassStatus(Model):
    """`status` of an EC2NodeClass: what it resolved to."""

    subnets: tuple[Subnet, ...] = Field(default=(), description="Subnets, most free addresses first.")
    security_groups: tuple[SecurityGroup, ...] = Field(default=(), description="Security groups.")
    capacity_reservations: tuple[CapacityReservation, ...] = Field(default=(), description="Capacity reservations.")
    amis: tuple[AMI, ...] = Field(default=(), description="Machine images, newest first.")
    instance_profile: str = Field(default="", description="The instance profile in use.")
    conditions: Conditions = Field(default=(), description="AMIsReady, SubnetsReady, Ready and others.")
