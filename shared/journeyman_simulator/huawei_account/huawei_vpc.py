"""Implements the VPC: subnets with their free addresses, and ListSubnets."""

from __future__ import annotations

from ipaddress import IPv4Network
from itertools import count
from typing import Any, Final

from msgspec import Struct

from journeyman.cloud.huawei.rest_api import VPC
from journeyman_simulator.cloud_rules.service_errors import ServiceError
from journeyman_simulator.huawei_account.rest_errors import (
    SUBNET_NOT_IN_VPC,
    invalid_request,
    no_free_address,
)
from journeyman_simulator.huawei_account.rest_operations import OperationHandlers, RestRequest

DEMO_SUBNET_ID: Final = "30abcb7b-ddeb-4a93-9e83-0b21f59b07a3"
_RESERVED: Final = 5  # the first two addresses of a subnet and its last three are the system's
_DEFAULT_LIMIT: Final = 2000


class HuaweiSubnet(Struct, kw_only=True, eq=False):
    """A subnet, which all zones of the region share; `free` is the number of free addresses."""

    id: str
    name: str
    vpc_id: str
    cidr: str
    free: int
    assigned: int = 0  # addresses ever assigned

    @property
    def network_id(self) -> str:
        """Return the subnet's id in Neutron."""
        return f"{self.id[:-4]}{self.id[-4:][::-1]}"


class HuaweiVpc:
    """The account's VPCs and subnets; servers are in the first VPC."""

    def __init__(self) -> None:
        self.vpc_id = "7c700000-0000-4000-8000-000000000001"
        self._serial = count(1)
        self.subnets: dict[str, HuaweiSubnet] = {}

    def add_subnet(self, name: str, cidr: str, *, subnet_id: str = "", vpc_id: str = "") -> HuaweiSubnet:
        """Create a subnet."""
        subnet = HuaweiSubnet(
            id=subnet_id or f"5b000000-0000-4000-8000-{next(self._serial):012x}",
            name=name,
            vpc_id=vpc_id or self.vpc_id,
            cidr=cidr,
            free=IPv4Network(cidr).num_addresses - _RESERVED,
        )
        self.subnets[subnet.id] = subnet
        return subnet

    def require_free_address(self, subnet_id: str, vpc_id: str) -> HuaweiSubnet:
        """Return a subnet of a VPC. Raises ServiceError if the VPC does not have it, or no address is free."""
        subnet = self.subnets.get(subnet_id)
        if subnet is None or subnet.vpc_id != vpc_id:
            raise ServiceError(SUBNET_NOT_IN_VPC, f"subnet {subnet_id} not found in VPC {vpc_id}")
        if subnet.free < 1:
            raise no_free_address(subnet.network_id)
        return subnet

    def assign_address(self, subnet_id: str) -> str:
        """Assign a free address to a server, and return it."""
        subnet = self.subnets[subnet_id]
        block = IPv4Network(subnet.cidr)
        address = block.network_address + 2 + subnet.assigned % (block.num_addresses - _RESERVED)
        subnet.assigned += 1
        subnet.free -= 1
        return str(address)

    def handlers(self) -> OperationHandlers:
        """Return the handler of VPC's operation."""
        return {"ListSubnets": self._list}

    def _list(self, request: RestRequest) -> dict[str, Any]:
        wanted = request.text("vpc_id")
        found = [subnet for subnet in self.subnets.values() if not wanted or subnet.vpc_id == wanted]
        found.sort(key=lambda subnet: subnet.id)
        if marker := request.text("marker"):
            if marker not in self.subnets:
                raise invalid_request(VPC, f"marker {marker} is not the id of a subnet")
            found = [subnet for subnet in found if subnet.id > marker]
        return {"subnets": [_entry(subnet) for subnet in found[: request.query.get("limit", _DEFAULT_LIMIT)]]}


def _entry(subnet: HuaweiSubnet) -> dict[str, Any]:
    return {
        "id": subnet.id,
        "name": subnet.name,
        "description": "",
        "cidr": subnet.cidr,
        "gateway_ip": str(IPv4Network(subnet.cidr).network_address + 1),
        "dhcp_enable": True,
        "ipv6_enable": False,
        "primary_dns": "100.125.1.250",
        "dnsList": ["100.125.1.250"],
        "availability_zone": "",
        "vpc_id": subnet.vpc_id,
        "status": "ACTIVE",
        "neutron_network_id": subnet.network_id,
        "neutron_subnet_id": f"{subnet.network_id[:-1]}f",
        "available_ip_address_count": subnet.free,
        "tags": [],
    }
