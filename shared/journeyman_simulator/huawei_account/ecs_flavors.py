"""Implements the flavors of the region and the stock of each: ListFlavors, ListServerAzInfo and ListFlavorSellPolicies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from journeyman_simulator.cloud_rules.fleet_allocation import CapacityPools
from journeyman_simulator.cloud_rules.price_table import SimulatedPriceTable
from journeyman_simulator.cloud_rules.service_time import ServiceTime
from journeyman_simulator.huawei_account.flavor_data import FlavorFacts, all_flavors
from journeyman_simulator.huawei_account.rest_errors import invalid_request
from journeyman_simulator.huawei_account.rest_operations import OperationHandlers, RestRequest

SPOT: Final = "spot"
ON_DEMAND: Final = "on-demand"
SPOT_SHARES: Final = (0.2, 0.5)
"""The range of Spot prices, as shares of the on-demand price."""

_USABLE: Final = frozenset({"", "normal", "promotion", "obt"})
_MOST_POLICIES: Final = 1000
PoolName = tuple[str, str, str]
"""A flavor, a zone and a capacity type."""


class FlavorCatalogue:
    """The flavors, prices and stock of one region.

    Args:
        names: The flavors, from `flavor_data.all_flavors`.
        zones: The zones of the region.
        missing: The (flavor, zone) pairs that are not offered.
        time: The account's time.
        price_seed: The seed of the Spot prices.

    Raises:
        KeyError: A name is not in `all_flavors`.
    """

    def __init__(
        self,
        names: Iterable[str],
        zones: Sequence[str],
        missing: Collection[tuple[str, str]],
        *,
        time: ServiceTime,
        price_seed: int,
    ) -> None:
        self.flavors: Mapping[str, FlavorFacts] = {name: all_flavors()[name] for name in sorted(names)}
        self.zones = tuple(zones)
        self._time = time
        self.prices = SimulatedPriceTable(
            {name: flavor.price for name, flavor in self.flavors.items()},
            pools=[(name, zone) for name in self.flavors for zone in zones if (name, zone) not in missing],
            since=time.now() - timedelta(days=1),
            without_spot=frozenset(name for name, flavor in self.flavors.items() if not flavor.has_spot),
            seed=price_seed,
            spot_shares=SPOT_SHARES,
        )
        self.hidden_stock = CapacityPools(self.prices)
        """Pools without stock, which only CreateNode shows."""
        self.stock_of_jobs = CapacityPools(self.prices)
        """Pools without stock, which only the job of a node shows."""
        self._sold_out: set[PoolName] = set()

    # -- stock ---------------------------------------------------------------------------------------------------

    def set_sold_out(self, flavor: str, zone: str, capacity_type: str, *, sold_out: bool) -> None:
        """Set whether the lists of flavors show a pool as sold out."""
        change = self._sold_out.add if sold_out else self._sold_out.discard
        change((flavor, zone, capacity_type))

    def is_sold(self, name: str, zone: str, capacity_type: str) -> bool:
        """Whether the lists of flavors show that a zone sells a flavor."""
        flavor = self.flavors[name]
        if not self.prices.is_offered(name, zone) or self.prices.price(name, zone, capacity_type) is None:
            return False
        if flavor.charge == "period" or flavor.status not in _USABLE:
            return False
        return self._zone_status(flavor, zone, capacity_type) == "normal"

    def has_stock(self, name: str, zone: str, capacity_type: str) -> bool:
        """Whether CreateNode accepts a request for a flavor in a zone."""
        hidden = self.hidden_stock.is_out_of_stock(name, zone, capacity_type, self._time.now())
        return self.is_sold(name, zone, capacity_type) and not hidden

    def fails_in_job(self, name: str, zone: str, capacity_type: str) -> bool:
        """Whether the job of a node of this pool finds no stock now."""
        return self.stock_of_jobs.is_out_of_stock(name, zone, capacity_type, self._time.now())

    def _zone_status(self, flavor: FlavorFacts, zone: str, capacity_type: str) -> str:
        is_sold_out = (flavor.name, zone, capacity_type) in self._sold_out
        lacks_stock = bool(flavor.sold_out_in) and zone[-1] in flavor.sold_out_in
        return "sellout" if is_sold_out or lacks_stock else "normal"

    # -- requests ------------------------------------------------------------------------------------------------

    def handlers(self) -> OperationHandlers:
        """Return the handlers of ECS's operations."""
        return {
            "ListFlavors": self._list_flavors,
            "ListServerAzInfo": self._list_zones,
            "ListFlavorSellPolicies": self._list_sell_policies,
        }

    def _list_flavors(self, request: RestRequest) -> dict[str, Any]:
        zone = request.text("availability_zone")
        if zone and zone not in self.zones:
            raise invalid_request("ecs", f"availability_zone {zone} does not exist")
        found = [
            flavor
            for name, flavor in self.flavors.items()
            if request.query.get("flavor_id", name) == name
            and any(self.prices.is_offered(name, each) for each in ([zone] if zone else self.zones))
        ]
        if marker := request.text("marker"):
            if marker not in self.flavors:
                raise invalid_request("ecs", f"marker {marker} is not the id of a flavor")
            found = [flavor for flavor in found if flavor.name > marker]
        return {"flavors": [self._entry(flavor) for flavor in found[: request.query.get("limit")]]}

    def _entry(self, flavor: FlavorFacts) -> dict[str, Any]:
        return {
            "id": flavor.name,
            "name": flavor.name,
            "vcpus": str(flavor.vcpus),
            "ram": flavor.ram_mib,
            "disk": "0",
            "swap": "",
            "OS-FLV-EXT-DATA:ephemeral": 0,
            "OS-FLV-DISABLED:disabled": False,
            "rxtx_factor": 1.0,
            "os-flavor-access:is_public": True,
            "attachableQuantity": {"free_scsi": 59, "free_blk": 23, "free_disk": 59, "free_nic": 8},
            "os_extra_specs": self._extra_specs(flavor),
        }

    def _extra_specs(self, flavor: FlavorFacts) -> dict[str, str]:
        specs = {
            "ecs:performancetype": flavor.performance_type,
            "ecs:generation": flavor.family,
            "ecs:virtualization_env_types": "CloudCompute",
            "resource_type": f"IOoptimized{flavor.family.upper()}",
            "info:cpu:name": flavor.cpu_name,
            "cond:compute": "autorecovery",
            "cond:operation:az": self._by_zone(flavor, ON_DEMAND),
            "quota:max_rate": str(flavor.max_rate_mbit),
            "quota:min_rate": str(flavor.max_rate_mbit // 4),
            "quota:vif_max_num": str(min(8, flavor.vcpus)),
        }
        if flavor.status:
            specs["cond:operation:status"] = flavor.status
        if flavor.charge:
            specs["cond:operation:charge"] = flavor.charge
        if flavor.architecture:
            specs["ecs:instance_architecture"] = flavor.architecture
        if flavor.sub_interfaces:
            specs["quota:sub_network_interface_max_num"] = str(flavor.sub_interfaces)
            specs["cond:network"] = "subnetworkinterface"
        if flavor.has_spot:
            specs["cond:spot:operation:status"] = "normal"
            specs["cond:spot:operation:az"] = self._by_zone(flavor, SPOT)
        if gpu := flavor.gpu:
            specs["info:gpu:name"] = gpu.name
            specs["info:gpus"] = f'[{{"name": "{gpu.alias}", "count": {gpu.count}, "memory_mb": {gpu.memory_mib}}}]'
            specs["pci_passthrough:alias"] = f"{gpu.alias}:{gpu.count}"
        return specs

    def _by_zone(self, flavor: FlavorFacts, capacity_type: str) -> str:
        """Return the states of a flavor in its zones, as `cond:operation:az` has them."""
        # the full-width punctuation is the service's
        separator, opening, closing = ("；", "（", "）") if flavor.full_width else (", ", "(", ")")  # noqa: RUF001
        return separator.join(
            f"{zone}{opening}{self._zone_status(flavor, zone, capacity_type)}{closing}"
            for zone in self.zones
            if self.prices.is_offered(flavor.name, zone)
        )

    def _list_zones(self, _: RestRequest) -> dict[str, Any]:
        zones = [
            {
                "availability_zone_id": zone,
                "type": "Core",
                "mode": "shared",
                "category": 0,
                "alias": [],
                "az_group_ids": [],
            }
            for zone in self.zones
        ]
        return {"availability_zones": zones}

    def _list_sell_policies(self, request: RestRequest) -> dict[str, Any]:
        if request.query.get("sell_mode", SPOT) != SPOT:
            raise invalid_request("ecs", "sell_mode must be spot; the other modes are not supported")
        policies = [
            self._policy(number, name, zone)
            for number, (name, zone) in enumerate(self.prices.pools(), start=1)
            if self.flavors[name].has_spot
        ]
        prefix, marker = request.text("flavor_id"), request.text("marker")
        found = [
            policy
            for policy in policies
            if policy["flavor_id"].startswith(prefix)
            and request.query.get("availability_zone_id", policy["availability_zone_id"])
            == policy["availability_zone_id"]
            and request.query.get("sell_status", policy["sell_status"]) == policy["sell_status"]
            and request.query.get("interruption_policy", "immediate") == "immediate"
        ]
        page = [policy for policy in found if not marker or policy["flavor_id"] > marker]
        return {"sell_policies": page[: request.query.get("limit", _MOST_POLICIES)], "count": len(found)}

    def _policy(self, number: int, name: str, zone: str) -> dict[str, Any]:
        return {
            "id": number,
            "flavor_id": name,
            "sell_status": "available" if self.is_sold(name, zone, SPOT) else "sellout",
            "availability_zone_id": zone,
            "sell_mode": SPOT,
            "spot_options": {
                "longest_spot_duration_hours": 6,
                "largest_spot_duration_count": 24,
                "interruption_policy": "immediate",
            },
        }
