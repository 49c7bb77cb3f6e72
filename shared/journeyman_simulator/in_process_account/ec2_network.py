"""Implements the in-process account's network: subnets with their addresses, and security groups."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from ipaddress import ip_network
from itertools import count
from typing import Any, Final

from msgspec import Struct, field

from journeyman_simulator.cloud_rules.service_errors import ServiceError, insufficient_addresses, require_few_tags
from journeyman_simulator.in_process_account.service_client import (
    PAGING,
    ServiceOperation,
    ServiceOperations,
    ServiceRequest,
    paged,
    selected,
    tag_pairs,
    to_pairs,
)

VPC: Final = "vpc-00000000000000001"
_RESERVED_ADDRESSES: Final = 5  # AWS reserves the first four and the last address of every subnet

_block = cache(ip_network)  # cached, since parsing a CIDR takes longer than the rest of a launch


class SimulatedSubnet(Struct, kw_only=True, eq=False):
    """A subnet and its addresses."""

    id: str
    zone: str
    zone_id: str
    cidr: str
    tags: dict[str, str] = field(default_factory=dict)
    taken: int = 0
    assigned: int = 0  # the number of addresses assigned so far, so that an address is not reused soon

    @property
    def free(self) -> int:
        """Return the number of free addresses."""
        return _block(self.cidr).num_addresses - _RESERVED_ADDRESSES - self.taken


class SimulatedSecurityGroup(Struct, kw_only=True, eq=False):
    """A security group."""

    id: str
    name: str
    tags: dict[str, str] = field(default_factory=dict)


class SimulatedNetwork:
    """A VPC.

    Args:
        zones: Zone ids by zone; each zone has a default subnet.
    """

    def __init__(self, zones: Mapping[str, str]) -> None:
        self._zones = dict(zones)
        self._serial = count(1)
        self.subnets: dict[str, SimulatedSubnet] = {}
        self.groups: dict[str, SimulatedSecurityGroup] = {}
        self.instances: Mapping[str, Any] = {}  # whose tags CreateTags changes as well, by id
        for index, zone in enumerate(sorted(zones)):
            self.add_subnet(zone, f"172.31.{16 * index}.0/20")
        self.add_group("default")

    def add_subnet(self, zone: str, cidr: str) -> SimulatedSubnet:
        """Create a subnet."""
        id_ = f"subnet-{next(self._serial):017x}"
        subnet = self.subnets[id_] = SimulatedSubnet(id=id_, zone=zone, zone_id=self._zones[zone], cidr=cidr)
        return subnet

    def add_group(self, name: str) -> SimulatedSecurityGroup:
        """Create a security group."""
        id_ = f"sg-{next(self._serial):017x}"
        group = self.groups[id_] = SimulatedSecurityGroup(id=id_, name=name)
        return group

    def zone_of(self, subnet_id: str) -> str:
        """Return the zone of a subnet; empty if the subnet does not exist."""
        subnet = self.subnets.get(subnet_id)
        return subnet.zone if subnet else ""

    def default_subnet(self, zone: str) -> str:
        """Return the id of the zone's first subnet."""
        return next(subnet.id for subnet in self.subnets.values() if subnet.zone == zone)

    def assign_address(self, subnet_id: str) -> str:
        """Assign an address to an instance, and return it. Raises ServiceError if no address is free."""
        subnet = self.subnets[subnet_id]
        self.require_addresses(subnet_id, 1)
        subnet.taken += 1
        block = _block(subnet.cidr)
        offset = subnet.assigned % (block.num_addresses - _RESERVED_ADDRESSES)
        subnet.assigned += 1
        return str(block[_RESERVED_ADDRESSES - 1 + offset])

    def require_addresses(self, subnet_id: str, number: int) -> None:
        """Raise ServiceError if fewer than `number` addresses are free."""
        if self.subnets[subnet_id].free < number:
            raise insufficient_addresses(subnet_id)

    def release_address(self, subnet_id: str) -> None:
        """Release the address of a terminated instance."""
        self.subnets[subnet_id].taken -= 1

    def operations(self) -> ServiceOperations:
        """Return EC2's operations."""
        return {
            "DescribeSubnets": ServiceOperation(self._describe_subnets, accepts=("Filters", "SubnetIds", *PAGING)),
            "DescribeSecurityGroups": ServiceOperation(self._describe_groups, accepts=("Filters", "GroupIds", *PAGING)),
            "CreateSubnet": ServiceOperation(self._create_subnet, requires=("AvailabilityZone", "CidrBlock", "VpcId")),
            "CreateTags": ServiceOperation(self._create_tags, requires=("Resources", "Tags")),
            "DeleteTags": ServiceOperation(self._delete_tags, requires=("Resources", "Tags")),
        }

    def _describe_subnets(self, request: ServiceRequest) -> dict[str, Any]:
        known = _named(self.subnets, request.get("SubnetIds"), "InvalidSubnetID.NotFound", "subnet ID")
        found = selected(known, request.get("Filters", ()), _SUBNET_READERS)
        return paged("Subnets", [_described_subnet(subnet) for subnet in found], request)

    def _describe_groups(self, request: ServiceRequest) -> dict[str, Any]:
        known = _named(self.groups, request.get("GroupIds"), "InvalidGroup.NotFound", "security group")
        found = selected(known, request.get("Filters", ()), _GROUP_READERS)
        described = [{"GroupId": g.id, "GroupName": g.name, "VpcId": VPC, "Tags": to_pairs(g.tags)} for g in found]
        return paged("SecurityGroups", described, request)

    def _create_subnet(self, request: ServiceRequest) -> dict[str, Any]:
        return {"Subnet": _described_subnet(self.add_subnet(request["AvailabilityZone"], request["CidrBlock"]))}

    def _create_tags(self, request: ServiceRequest) -> dict[str, Any]:
        new = {tag["Key"]: tag["Value"] for tag in request["Tags"]}
        found = self._tags_of(request["Resources"])
        for tags in found:
            require_few_tags({**tags, **new})
        for tags in found:
            tags.update(new)
        return {}

    def _delete_tags(self, request: ServiceRequest) -> dict[str, Any]:
        for tags in self._tags_of(request["Resources"]):
            for tag in request["Tags"]:
                tags.pop(tag["Key"], None)
        return {}

    def _tags_of(self, ids: list[str]) -> list[dict[str, str]]:
        known: dict[str, Any] = {**self.subnets, **self.groups, **self.instances}
        if unknown := [id_ for id_ in ids if id_ not in known]:
            raise ServiceError("InvalidID", f"The ID '{unknown[0]}' is not valid")
        return [known[id_].tags for id_ in ids]


def _named(known: Mapping[str, Any], ids: list[str] | None, code: str, what: str) -> list[Any]:
    if missing := [id_ for id_ in ids or () if id_ not in known]:
        raise ServiceError(code, f"The {what} '{missing[0]}' does not exist")
    return [known[id_] for id_ in ids or known]


_SUBNET_READERS = {
    "subnet-id": lambda subnet: [subnet.id],
    "availability-zone": lambda subnet: [subnet.zone],
    "default-for-az": lambda _: ["true"],
    "vpc-id": lambda _: [VPC],
    "tag": lambda subnet: tag_pairs(subnet.tags),
}
_GROUP_READERS = {
    "group-id": lambda group: [group.id],
    "group-name": lambda group: [group.name],
    "vpc-id": lambda _: [VPC],
    "tag": lambda group: tag_pairs(group.tags),
}


def _described_subnet(subnet: SimulatedSubnet) -> dict[str, Any]:
    return {
        "SubnetId": subnet.id,
        "VpcId": VPC,
        "AvailabilityZone": subnet.zone,
        "AvailabilityZoneId": subnet.zone_id,
        "AvailableIpAddressCount": subnet.free,
        "CidrBlock": subnet.cidr,
        "State": "available",
        "Tags": to_pairs(subnet.tags),
    }
