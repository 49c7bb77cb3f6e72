"""Implements vSwitches with their free addresses, and security groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network
from itertools import count
from typing import Any, Final

from msgspec import Struct, field

from journeyman_simulator.alibaba_account.openapi_requests import (
    ActionHandlers,
    ActionRequest,
    has_tags,
    known_among,
    numbered_page,
    tag_entries,
    token_page,
)
from journeyman_simulator.cloud_rules.service_errors import ServiceError

_RESERVED: Final = 4  # the first address and the last three of a vSwitch are the system's


class SimulatedVSwitch(Struct, kw_only=True, eq=False):
    """A vSwitch; `free` is the number of free addresses."""

    id: str
    zone: str
    first_address: int  # of its block
    cidr: str
    free: int
    tags: dict[str, str] = field(default_factory=dict)
    assigned: int = 0  # addresses ever assigned


class VpcSecurityGroup(Struct, kw_only=True, eq=False):
    """A security group."""

    id: str
    name: str
    tags: dict[str, str] = field(default_factory=dict)


class VpcNetwork:
    """The account's VPC, with one vSwitch in each zone."""

    def __init__(self, region: str, zones: Sequence[str]) -> None:
        self.vpc_id = "vpc-bp1000000000000000001"
        self._region = region
        self._serial = count(1)
        self.vswitches: dict[str, SimulatedVSwitch] = {}
        self.groups: dict[str, VpcSecurityGroup] = {}
        for number, zone in enumerate(zones):
            self.add_vswitch(zone, f"10.0.{16 * number}.0/20")

    def add_vswitch(self, zone: str, cidr: str) -> SimulatedVSwitch:
        """Create a vSwitch."""
        block = IPv4Network(cidr)
        vswitch = SimulatedVSwitch(
            id=f"vsw-bp1{next(self._serial):018d}",
            zone=zone,
            first_address=int(block.network_address),
            cidr=cidr,
            free=block.num_addresses - _RESERVED,
        )
        self.vswitches[vswitch.id] = vswitch
        return vswitch

    def add_group(self, name: str) -> VpcSecurityGroup:
        """Create a security group."""
        group = VpcSecurityGroup(id=f"sg-bp1{next(self._serial):017d}", name=name)
        self.groups[group.id] = group
        return group

    def require_vswitch(self, vswitch_id: str) -> SimulatedVSwitch:
        """Return a vSwitch. Raises ServiceError if it does not exist."""
        if vswitch_id not in self.vswitches:
            raise ServiceError("InvalidVSwitchId.NotFound", f"The specified VSwitchId {vswitch_id} does not exist.")
        return self.vswitches[vswitch_id]

    def require_groups(self, ids: Sequence[str]) -> tuple[str, ...]:
        """Return the ids of security groups. Raises ServiceError if one does not exist."""
        if missing := [id_ for id_ in ids if id_ not in self.groups]:
            message = f"The specified SecurityGroupId {missing[0]} does not exist."
            raise ServiceError("InvalidSecurityGroupId.NotFound", message)
        return tuple(ids)

    def require_addresses(self, vswitch: SimulatedVSwitch, number: int) -> None:
        """Raise ServiceError if a vSwitch has fewer than `number` free addresses."""
        if vswitch.free < number:
            message = f"The vSwitch {vswitch.id} has {vswitch.free} free private IP addresses; {number} are needed."
            raise ServiceError("QuotaExceeded.PrivateIpAddress", message)

    def assign_address(self, vswitch: SimulatedVSwitch) -> str:
        """Assign a free address to an instance, and return it."""
        size = 2 ** (32 - int(vswitch.cidr.partition("/")[2])) - _RESERVED
        address = vswitch.first_address + 1 + vswitch.assigned % size
        vswitch.assigned += 1
        vswitch.free -= 1
        return ".".join(str(address >> shift & 255) for shift in (24, 16, 8, 0))

    def handlers(self) -> ActionHandlers:
        """Return the handlers of VPC's actions, and ECS's on security groups."""
        return {"DescribeVSwitches": self._describe_vswitches, "DescribeSecurityGroups": self._describe_groups}

    def _describe_vswitches(self, request: ActionRequest) -> dict[str, Any]:
        found = [vswitch for vswitch in self.vswitches.values() if self._is_selected(vswitch, request)]
        page, numbers = numbered_page(request, found)
        return {"VSwitches": {"VSwitch": [self._vswitch_entry(vswitch) for vswitch in page]}, **numbers}

    def _is_selected(self, vswitch: SimulatedVSwitch, request: ActionRequest) -> bool:
        ids = request.get("VSwitchId")
        return (
            (not ids or vswitch.id in ids.split(","))
            and request.get("ZoneId", vswitch.zone) == vswitch.zone
            and request.get("VpcId", self.vpc_id) == self.vpc_id
            and request.get("VSwitchName", vswitch.zone) == vswitch.zone
            and has_tags(vswitch.tags, request.tags())
        )

    def _vswitch_entry(self, vswitch: SimulatedVSwitch) -> dict[str, Any]:
        return {
            "VSwitchId": vswitch.id,
            "VSwitchName": vswitch.zone,
            "VpcId": self.vpc_id,
            "ZoneId": vswitch.zone,
            "CidrBlock": vswitch.cidr,
            "AvailableIpAddressCount": vswitch.free,
            "Status": "Available",
            "IsDefault": False,
            # VPC names the parts of a tag differently from ECS
            "Tags": {"Tag": [{"Key": key, "Value": value} for key, value in vswitch.tags.items()]},
        }

    def _describe_groups(self, request: ActionRequest) -> dict[str, Any]:
        ids = request.get("SecurityGroupIds")
        if ids is None and "SecurityGroupId" in request.parameters:
            ids = [request["SecurityGroupId"]]
        groups = list(self.groups.values()) if ids is None else known_among(self.groups, ids)
        found = [group for group in groups if self._is_selected_group(group, request)]
        answer: Mapping[str, Any]
        if "PageNumber" in request.parameters or "PageSize" in request.parameters:
            page, answer = numbered_page(request, found)
        else:
            page, token = token_page(request, found, default=10)
            answer = {**token, "TotalCount": len(found), "PageNumber": 1, "PageSize": 10}
        return {
            "RegionId": self._region,
            "SecurityGroups": {"SecurityGroup": [self._group_entry(group) for group in page]},
            **answer,
        }

    def _is_selected_group(self, group: VpcSecurityGroup, request: ActionRequest) -> bool:
        return (
            request.get("SecurityGroupName", group.name) == group.name
            and request.get("VpcId", self.vpc_id) == self.vpc_id
            and has_tags(group.tags, request.tags())
        )

    def _group_entry(self, group: VpcSecurityGroup) -> dict[str, Any]:
        return {
            "SecurityGroupId": group.id,
            "SecurityGroupName": group.name,
            "SecurityGroupType": "normal",
            "Description": "",
            "VpcId": self.vpc_id,
            "Tags": tag_entries(group.tags),
        }
