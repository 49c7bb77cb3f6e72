"""Instance types that a NodeClass can launch, with labels, capacity, overhead and offerings.

Restates: karpenter-provider-aws pkg/providers/instancetype (instancetype.go, types.go, offering/base_resolver.go).
Differs: a type that no AMI of the NodeClass fits has no available offering; upstream plans it, and its launch fails.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import timedelta
from operator import attrgetter
from threading import Lock
from typing import Any, Final

from cachetools import TTLCache, cachedmethod
from msgspec import Struct

from journeyman.cloud.aws.ami_families import AL2023
from journeyman.cloud.aws.aws_errors import translated
from journeyman.cloud.aws.aws_settings import AwsSettings, Clients
from journeyman.cloud.aws.capacity_reservations import CapacityReservationProvider, with_reserved_offerings
from journeyman.cloud.aws.instance_type_info import DESCRIBE_FILTERS, InstanceTypeInfo, parse_all
from journeyman.cloud.aws.instance_type_labels import ZONE_ID, labels_of
from journeyman.cloud.aws.network_discovery import PlacementGroup, PlacementGroupProvider
from journeyman.cloud.aws.node_capacity import NodeSizing
from journeyman.cloud.aws.nodeclass_view import NodeClassView
from journeyman.cloud.caching import BuiltPerNodeClass, ttl_cache
from journeyman.cloud.prices import PriceProvider
from journeyman.cloud.type_requirements import Labels, offering_requirements, requirements_of, satisfies
from journeyman.core.api import labels
from journeyman.core.api.ec2nodeclass import NetworkInterface
from journeyman.core.api.ec2nodeclass_status import AMI
from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.catalogue import InstanceType, Offering
from journeyman.errors import NodeClassNotReadyError
from journeyman.ports import Clock

_log = logging.getLogger(__name__)

_FIELDS_THAT_COUNT: Final = {
    "kubelet",
    "block_device_mappings",
    "network_interfaces",
    "instance_store_policy",
    "connection_tracking",
    "cpu_options",
}
RAW_TTL: Final = timedelta(hours=12)  # controllers/providers/instancetype/controller.go refresh period


class RegionInstanceTypes(Struct, frozen=True, eq=False):
    """The instance types that EC2 offers in the region. Instances compare by identity."""

    infos: tuple[InstanceTypeInfo, ...]  # by name
    zones: Mapping[str, frozenset[str]]  # where each type is offered


class InstanceTypeProvider:
    """Builds the instance types of one region for each NodeClass. A warm sandbox has one provider."""

    def __init__(
        self,
        clients: Clients,
        settings: AwsSettings,
        prices: PriceProvider,
        clock: Clock,
        *,
        reservations: CapacityReservationProvider,
        groups: PlacementGroupProvider,
    ) -> None:
        self._reservations = reservations
        self._groups = groups
        self._reserved: BuiltPerNodeClass[tuple[InstanceType, ...]] = BuiltPerNodeClass()
        self._clients = clients
        self._settings = settings
        self._prices = prices
        self._region_cache: TTLCache[Any, RegionInstanceTypes] = ttl_cache(clock, RAW_TTL)
        self._built: BuiltPerNodeClass[tuple[InstanceType, ...]] = BuiltPerNodeClass()
        self._lock = Lock()

    def for_node_class(self, node_class: NodeClassView) -> tuple[InstanceType, ...]:
        """Return instance types by name; the identical tuple while NodeClass, prices and EC2's response are the same.

        Raises:
            NodeClassNotReadyError: The NodeClass's status names no subnet.
            CloudProviderError: EC2 did not respond.
        """
        if not node_class.status.subnets:
            raise NodeClassNotReadyError("no subnets in the NodeClass's status", node_class=node_class.name)
        self._prices.refresh_spot_if_due()
        free = self._reservations.free(node_class)
        group = self._groups.find(node_class)
        types = self._without_reservations(node_class, group)
        if not node_class.status.capacity_reservations:
            return types
        settings = _settings_that_count(node_class, group, with_reservations=True)
        return self._reserved.get(settings, (types, free), lambda: with_reserved_offerings(types, node_class, free))

    def _without_reservations(
        self, node_class: NodeClassView, group: PlacementGroup | None
    ) -> tuple[InstanceType, ...]:
        region_types = self._region_types()
        settings, inputs = _settings_that_count(node_class, group), (region_types, self._prices.version)
        return self._built.get(settings, inputs, lambda: self._build(region_types, node_class, group))

    @cachedmethod(attrgetter("_region_cache"), lock=attrgetter("_lock"))
    def _region_types(self) -> RegionInstanceTypes:
        infos, zones = self._read_both(self._clients.ec2)
        region_types = RegionInstanceTypes(tuple(sorted(infos, key=lambda info: info.name)), zones)
        _log.info("discovered instance types", extra={"count": len(region_types.infos)})
        return region_types

    def _read_both(self, ec2: Any) -> tuple[list[InstanceTypeInfo], dict[str, frozenset[str]]]:
        """Return the instance types, and each type's zones. Reads them in parallel, since a cold start waits for both."""
        if not self._settings.parallel_reads:
            return _read_infos(ec2), _read_zones(ec2)
        with ThreadPoolExecutor(max_workers=2, thread_name_prefix="instance-types") as pool:
            infos = pool.submit(copy_context().run, _read_infos, ec2)
            zones = pool.submit(copy_context().run, _read_zones, ec2)
            return infos.result(), zones.result()

    def _build(
        self, region_types: RegionInstanceTypes, node_class: NodeClassView, group: PlacementGroup | None
    ) -> tuple[InstanceType, ...]:
        builder = _InstanceTypeBuilder(node_class, group, self._settings, self._prices)
        return tuple(
            builder.build(info, region_types.zones.get(info.name, frozenset()))
            for info in region_types.infos
            # the EKS-optimised Windows images are built for x86 alone
            if not (node_class.family.is_windows and info.arch != "amd64")
        )


def _read_infos(ec2: Any) -> list[InstanceTypeInfo]:
    infos: list[InstanceTypeInfo] = []
    with translated("ec2:DescribeInstanceTypes"):
        for page in ec2.get_paginator("describe_instance_types").paginate(Filters=DESCRIBE_FILTERS):
            infos += parse_all(page["InstanceTypes"])
    return infos


def _read_zones(ec2: Any) -> dict[str, frozenset[str]]:
    zones: dict[str, set[str]] = {}
    with translated("ec2:DescribeInstanceTypeOfferings"):
        pages = ec2.get_paginator("describe_instance_type_offerings").paginate(LocationType="availability-zone")
        for page in pages:
            for offering in page["InstanceTypeOfferings"]:
                zones.setdefault(offering["InstanceType"], set()).add(offering["Location"])
    return {name: frozenset(found) for name, found in zones.items()}


def _settings_that_count(
    node_class: NodeClassView, group: PlacementGroup | None, *, with_reservations: bool = False
) -> tuple[Any, ...]:
    """Return all fields of a NodeClass that its instance types depend on."""
    status = {"amis", "capacity_reservations"} if with_reservations else {"amis"}
    return (
        node_class.family.name,
        node_class.zone_ids,
        node_class.spec.model_dump(mode="json", include=_FIELDS_THAT_COUNT),
        node_class.status.model_dump(mode="json", include=status),
        group,
    )


class _InstanceTypeBuilder:
    """Builds instance types for one NodeClass."""

    def __init__(
        self, node_class: NodeClassView, group: PlacementGroup | None, settings: AwsSettings, prices: PriceProvider
    ) -> None:
        self._node_class = node_class
        self._group = group
        self._region = settings.region
        self._prices = prices
        self._sizing = NodeSizing(node_class, settings)
        self._zone_ids = node_class.zone_ids
        self._requirements = _offering_requirements(node_class.zone_ids)

    def build(self, info: InstanceTypeInfo, offered_in: frozenset[str]) -> InstanceType:
        """Return the instance type, with an offering for each zone and capacity type that EC2 sells at a known price."""
        zone_ids = {zone: zone_id for zone, zone_id in self._zone_ids.items() if zone in offered_in}
        values = labels_of(
            info,
            family=self._node_class.family,
            region=self._region,
            zone_ids=zone_ids,
            capacity_types=info.usage_classes,
            group=self._group,
        )
        size = self._sizing.size(info)
        reason = incompatibility(info, values, self._node_class, self._group)
        offerings = tuple(
            Offering(
                zone=zone,
                capacity_type=capacity_type,
                price=price,
                available=not reason,
                unavailable_reason=reason,
                requirements=self._requirements[zone, capacity_type],
            )
            for zone in zone_ids
            for capacity_type in info.usage_classes
            if (price := self._prices.offering(info.name, zone, capacity_type)) is not None
        )
        return InstanceType(
            name=info.name,
            requirements=requirements_of(values),
            offerings=offerings,
            capacity=size.capacity,
            overhead=size.overhead,
            image=ami.id if (ami := ami_for(values, self._node_class.status.amis)) is not None else "",
        )


def ami_for(values: Labels, amis: Iterable[AMI]) -> AMI | None:
    """Return the AMI from which a type with these labels is launched: the first that fits, the newest; None if none does."""
    return next((ami for ami in amis if satisfies(values, ami.requirements)), None)


def _offering_requirements(
    zone_ids: Mapping[str, str],
) -> dict[tuple[str, str], tuple[NodeSelectorRequirement, ...]]:
    """Return the requirements of offerings by zone and capacity type; thousands of offerings share them."""
    return {
        (zone, capacity_type): offering_requirements(zone, capacity_type, *([(ZONE_ID, zone_id)] if zone_id else []))
        for zone, zone_id in zone_ids.items()
        for capacity_type in (labels.ON_DEMAND, labels.SPOT)
    }


def incompatibility(
    info: InstanceTypeInfo,
    values: Mapping[str, tuple[str, ...]],
    node_class: NodeClassView,
    group: PlacementGroup | None = None,
) -> str:
    """Return why this NodeClass cannot use the type; empty if it can.

    Restates: karpenter-provider-aws pkg/providers/instancetype/compatibility/compatibility.go.
    """
    if info.name.startswith("a1.") and node_class.family is AL2023:
        return "a1 instances cannot run AL2023"  # its kernel needs a newer ARM core
    spec = node_class.spec
    if spec.connection_tracking is not None and info.hypervisor != "nitro":
        return "connection tracking needs a Nitro instance"
    nested = spec.cpu_options.nested_virtualization if spec.cpu_options is not None else None
    if nested == "enabled" and not info.nested_virtualization:
        return "nested virtualization is not supported"
    if group is not None and info.placement_strategies and group.strategy not in info.placement_strategies:
        return f"it cannot be in a placement group of the strategy {group.strategy}"
    if not _interfaces_fit(info, spec.network_interfaces):
        return "the network interface layout does not fit"
    if node_class.status.amis and ami_for(values, node_class.status.amis) is None:
        return "no AMI of the NodeClass fits"
    return ""


def _interfaces_fit(info: InstanceTypeInfo, interfaces: Sequence[NetworkInterface]) -> bool:
    """Whether the type has the network cards, device slots and EFA interfaces that the NodeClass's interfaces need."""
    efa = sum(1 for interface in interfaces if interface.interface_type == "efa-only")
    return efa <= info.efa_interfaces and all(
        interface.device_index < _slots(info, interface.network_card_index) for interface in interfaces
    )


def _slots(info: InstanceTypeInfo, card: int) -> int:
    return info.card_interfaces[card] if card < len(info.card_interfaces) else 0
