"""Instance types that an ECSNodeClass can launch, with labels, capacity, overhead and offerings.

Types come from DescribeInstanceTypes, their zones and stock from DescribeAvailableResource, once for each capacity type. A type
without stock keeps its offering, as unavailable, so that an explanation can name the reason.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from operator import attrgetter
from threading import Lock
from typing import Any, Final

from cachetools import TTLCache, cachedmethod
from msgspec import Struct

from journeyman.cloud.alibaba.alibaba_errors import translated
from journeyman.cloud.alibaba.alibaba_settings import AlibabaSettings
from journeyman.cloud.alibaba.open_api import ECS, ApiCall, OpenApi
from journeyman.cloud.caching import BuiltPerNodeClass, ttl_cache
from journeyman.cloud.kubelet_reservations import (
    GIB,
    MIB,
    KubeletSettings,
    NodeSize,
    eviction_threshold,
    kubelet_of,
    reserved_millicores,
)
from journeyman.cloud.parallel_reads import read_each
from journeyman.cloud.prices import PriceProvider
from journeyman.cloud.type_requirements import label_value, linux_labels, offering_requirements, requirements_of
from journeyman.core.api import labels
from journeyman.core.api.ecs_settings import ECSNodeClassView, ResolvedImage
from journeyman.core.api.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS
from journeyman.core.catalogue import NO_STOCK, STOCK_LISTED_FOR, InstanceType, Offering
from journeyman.errors import NodeClassNotReadyError
from journeyman.ports import Clock

_log = logging.getLogger(__name__)

TYPES_TTL: Final = timedelta(hours=12)
STOCK_TTL: Final = STOCK_LISTED_FOR

ZONE_ID: Final = "topology.k8s.alibabacloud/zone-id"
SIZE: Final = f"{labels.ALIBABA_GROUP}/instance-size"
NVIDIA_GPU: Final = "nvidia.com/gpu"
AMD_GPU: Final = "amd.com/gpu"
ENI: Final = "aliyun/eni"
PRIVATE_IPV4: Final = "vpc.alibabacloud.com/PrivateIPv4Address"

TERWAY: Final = "terway-eniip"
_NO_ENI_LIMIT_PODS: Final = 110
_FLANNEL_PODS: Final = 256
_HOST_NETWORK_PODS: Final = 3  # both published providers add them to the pods with an address of their own
_MIN_PODS: Final = 11  # the published provider offers no type for fewer
_ARCHITECTURES: Final = {"X86": "amd64", "ARM": "arm64"}
_STRATEGIES: Final = {labels.ON_DEMAND: "NoSpot", labels.SPOT: "SpotAsPriceGo"}
_SELLABLE: Final = frozenset({"WithStock", "ClosedWithStock"})
_CATEGORY: Final = re.compile(r"^[a-z]+")
_GENERATION: Final = re.compile(r"[0-9]+")

Zones = Mapping[str, bool]
"""Whether a type has stock, by zone where it is sold at all."""
Stock = Mapping[str, Mapping[str, Zones]]
"""Zones by instance type and capacity type."""


class EcsTypeInfo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An instance type. A field is 0 or "" if ECS does not report it."""

    name: str
    arch: str  # as in the label kubernetes.io/arch
    vcpus: int
    memory_mib: int
    network_interfaces: int = 0
    ipv4_per_interface: int = 0
    cpu_model: str = ""
    gpus: int = 0
    gpu_name: str = ""
    gpu_memory_mib: int = 0  # of one GPU

    @property
    def family(self) -> str:
        """The family, such as ecs.g7."""
        return ".".join(self.name.split(".")[:2])

    @property
    def size(self) -> str:
        """The size, such as xlarge."""
        return self.name.split(".")[-1]


def parse_type(entry: Mapping[str, Any]) -> EcsTypeInfo | None:
    """Return the instance type of a DescribeInstanceTypes entry; None if nodes cannot have its architecture."""
    arch = _ARCHITECTURES.get(entry.get("CpuArchitecture") or "")
    if arch is None:
        return None
    return EcsTypeInfo(
        name=entry["InstanceTypeId"],
        arch=arch,
        vcpus=int(entry["CpuCoreCount"]),
        memory_mib=round(float(entry["MemorySize"]) * 1024),
        network_interfaces=int(entry.get("EniQuantity") or 0),
        ipv4_per_interface=int(entry.get("EniPrivateIpAddressQuantity") or 0),
        cpu_model=entry.get("PhysicalProcessorModel") or "",
        gpus=int(entry.get("GPUAmount") or 0),
        gpu_name=entry.get("GPUSpec") or "",
        gpu_memory_mib=round(float(entry.get("GPUMemorySize") or 0) * 1024),
    )


class RegionTypes:
    """The instance types of Alibaba Cloud. Which of them a region sells is known from its stock. Thread-safe."""

    def __init__(self, call: OpenApi, clock: Clock) -> None:
        self._call = call
        self._cache: TTLCache[Any, tuple[EcsTypeInfo, ...]] = ttl_cache(clock, TYPES_TTL)
        self._lock = Lock()

    @cachedmethod(attrgetter("_cache"), lock=attrgetter("_lock"))
    def read(self) -> tuple[EcsTypeInfo, ...]:
        """Return the types by name. Raises CloudProviderError."""
        infos: list[EcsTypeInfo] = []
        more: dict[str, Any] = {}
        while True:
            with translated("ecs:DescribeInstanceTypes"):
                page = self._call(ApiCall(service=ECS, action="DescribeInstanceTypes", parameters=more))
            entries = (page.get("InstanceTypes") or {}).get("InstanceType") or ()
            infos += [info for entry in entries if (info := parse_type(entry)) is not None]
            if not page.get("NextToken"):
                break
            more = {"NextToken": page["NextToken"]}
        _log.info("discovered instance types", extra={"count": len(infos)})
        return tuple(sorted(infos, key=lambda info: info.name))


class InstanceTypeProvider:
    """Builds the instance types of one region for each NodeClass. A warm sandbox has one provider.

    Args:
        call: Sends requests to the region.
        settings: The cluster's.
        types: The instance types of Alibaba Cloud.
        prices: The region's prices.
        clock: Decides when types and stock are read again.
        network: Returns the cluster's network plugin, such as `terway-eniip` or `Flannel`.
    """

    def __init__(
        self,
        call: OpenApi,
        settings: AlibabaSettings,
        types: RegionTypes,
        prices: PriceProvider,
        *,
        clock: Clock,
        network: Callable[[], str],
    ) -> None:
        self._call = call
        self._settings = settings
        self._prices = prices
        self._network = network
        self._types = types
        self._stock_cache: TTLCache[Any, Stock] = ttl_cache(clock, STOCK_TTL)
        self._built: BuiltPerNodeClass[tuple[InstanceType, ...]] = BuiltPerNodeClass()
        self._lock = Lock()

    def for_node_class(self, node_class: ECSNodeClassView) -> tuple[InstanceType, ...]:
        """Return instance types by name; the identical tuple while NodeClass, prices and the region's answers are the same.

        Raises:
            NodeClassNotReadyError: The NodeClass's status names no vSwitch.
            CloudProviderError: Alibaba Cloud did not respond.
        """
        if not node_class.resolved.vswitches:
            raise NodeClassNotReadyError("no vSwitches in the NodeClass's status", node_class=node_class.name)
        infos, stock = self._types.read(), self._stock()
        self._prices.refresh_spot_if_due()
        network = self._network()
        settings, resolved = node_class.settings, node_class.resolved
        zones = sorted({vswitch.zone for vswitch in resolved.vswitches})
        architectures = sorted({arch for image in resolved.images for arch in image.architectures})
        images = [image.id for image in resolved.images]
        parts = (settings.kubelet, settings.system_disk.size_gib, zones, architectures, images, network)

        def build() -> tuple[InstanceType, ...]:
            builder = _InstanceTypeBuilder(node_class, network, self._settings, self._prices)
            return tuple(built for info in infos if (built := builder.build(info, stock.get(info.name, {}))))

        return self._built.get(parts, (infos, stock, self._prices.version), build)

    @cachedmethod(attrgetter("_stock_cache"), lock=attrgetter("_lock"))
    def _stock(self) -> Stock:
        found = read_each(self._read_stock, tuple(_STRATEGIES), in_parallel=self._settings.parallel_reads)
        names = sorted({name for zones in found.values() for name in zones})
        return {name: {kind: zones[name] for kind, zones in found.items() if name in zones} for name in names}

    def _read_stock(self, capacity_type: str) -> dict[str, dict[str, bool]]:
        parameters = {
            "RegionId": self._settings.region,
            "DestinationResource": "InstanceType",
            "InstanceChargeType": "PostPaid",
            "SpotStrategy": _STRATEGIES[capacity_type],
        }
        with translated("ecs:DescribeAvailableResource"):
            answer = self._call(ApiCall(service=ECS, action="DescribeAvailableResource", parameters=parameters))
        stock: dict[str, dict[str, bool]] = {}
        for zone, resource in available_resources(answer):
            has_stock = resource.get("StatusCategory") in _SELLABLE
            stock.setdefault(resource["Value"], {})[zone] = has_stock
        return stock


def available_resources(answer: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the zone and each resource in an answer of DescribeAvailableResource."""
    for zone in (answer.get("AvailableZones") or {}).get("AvailableZone") or ():
        for group in (zone.get("AvailableResources") or {}).get("AvailableResource") or ():
            for resource in (group.get("SupportedResources") or {}).get("SupportedResource") or ():
                yield zone["ZoneId"], resource


class _InstanceTypeBuilder:
    """Builds instance types for one NodeClass."""

    def __init__(
        self, node_class: ECSNodeClassView, network: str, settings: AlibabaSettings, prices: PriceProvider
    ) -> None:
        self._region = settings.region
        self._memory_overhead = settings.vm_memory_overhead_percent
        self._prices = prices
        self._network = network
        self._zones = frozenset(vswitch.zone for vswitch in node_class.resolved.vswitches)
        self._images = node_class.resolved.images
        self._image_architectures = frozenset(arch for image in self._images for arch in image.architectures)
        self._storage_bytes = node_class.settings.system_disk.size_gib * GIB
        self._kubelet = kubelet_of(node_class.settings.kubelet)

    def build(self, info: EcsTypeInfo, sold: Mapping[str, Zones]) -> InstanceType | None:
        """Return the instance type, with an offering for each zone and capacity type that has a price.

        None if it is sold in none of the NodeClass's zones, or holds fewer pods than ACK's own take.
        """
        zones = sorted({zone for by_zone in sold.values() for zone in by_zone} & self._zones)
        pods = pod_limit(info, self._network, self._kubelet)
        if not zones or pods < _MIN_PODS:
            return None
        fits_image = not self._image_architectures or info.arch in self._image_architectures
        offerings = tuple(
            Offering(
                zone=zone,
                capacity_type=kind,
                price=price,
                available=has_stock and fits_image,
                unavailable_reason="" if has_stock and fits_image else NO_STOCK if fits_image else "NoImage",
                requirements=offering_requirements(zone, kind, (ZONE_ID, zone)),
            )
            for kind in _STRATEGIES
            for zone, has_stock in sorted(sold.get(kind, {}).items())
            if zone in self._zones and (price := self._prices.offering(info.name, zone, kind)) is not None
        )
        size = node_size(info, pods, self._storage_bytes, self._kubelet, self._memory_overhead)
        kinds = tuple(sorted({offering.capacity_type for offering in offerings}))
        return InstanceType(
            name=info.name,
            requirements=requirements_of(labels_of(info, region=self._region, zones=zones, capacity_types=kinds)),
            offerings=offerings,
            capacity=size.capacity,
            overhead=size.overhead,
            image=image_of(info.arch, self._images),
        )


def image_of(arch: str, images: Iterable[ResolvedImage]) -> str:
    """Return the id of the image for an architecture; empty without one."""
    return next((image.id for image in images if not image.architectures or arch in image.architectures), "")


def pod_limit(info: EcsTypeInfo, network: str, kubelet: KubeletSettings) -> int:
    """Return how many pods a node of the type may have, by its network plugin and the NodeClass's settings."""
    if kubelet.max_pods is not None:
        count = kubelet.max_pods
    elif network == TERWAY:
        count = max(info.network_interfaces - 1, 0) * info.ipv4_per_interface + _HOST_NETWORK_PODS
    else:
        count = _FLANNEL_PODS if network == "Flannel" else _NO_ENI_LIMIT_PODS
    if kubelet.pods_per_core:
        count = min(count, kubelet.pods_per_core * info.vcpus)
    return count


def node_size(
    info: EcsTypeInfo, pods: int, storage_bytes: int, kubelet: KubeletSettings, memory_overhead: Any
) -> NodeSize:
    """Return capacity and overhead of a node, in integers: millicores, bytes, counts.

    Restates: cloudpilot-ai/karpenter-provider-alibabacloud pkg/providers/instancetype/types.go (`kubeReservedResources`).
    Differs: the kubelet's own eviction threshold counts as overhead, as it does in a node's allocatable.
    """
    hidden_mib = -(-info.memory_mib * memory_overhead.numerator // memory_overhead.denominator)  # rounded up
    capacity = {
        CPU: info.vcpus * 1000,
        MEMORY: (info.memory_mib - hidden_mib) * MIB,
        EPHEMERAL_STORAGE: storage_bytes,
        PODS: pods,
    }
    gpu = AMD_GPU if "AMD" in info.gpu_name.upper() else NVIDIA_GPU
    more = {
        gpu: info.gpus,
        ENI: info.network_interfaces - 1,
        PRIVATE_IPV4: max(info.network_interfaces - 1, 0) * info.ipv4_per_interface,
    }
    capacity.update((name, count) for name, count in more.items() if count > 0)
    reserved = {
        CPU: reserved_millicores(capacity[CPU]),
        MEMORY: min((11 * pods + 255) * MIB, capacity[MEMORY] // 4) + 200 * MIB,
        **kubelet.kube_reserved,
    }
    parts = (reserved, kubelet.system_reserved, eviction_threshold(capacity, kubelet.eviction_hard))
    names = sorted({name for part in parts for name in part})
    return NodeSize(capacity=capacity, overhead={name: sum(part.get(name, 0) for part in parts) for name in names})


def labels_of(
    info: EcsTypeInfo, *, region: str, zones: Iterable[str], capacity_types: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """Return the labels that nodes of this type carry; an empty tuple means that they lack the label."""
    variant = info.family.partition(".")[2]
    generation = _GENERATION.search(variant)
    category = _CATEGORY.search(variant)
    of_type = {
        "category": category and category.group(),
        "family": info.family,
        "generation": generation and generation.group(),
        "size": info.size,
        "cpu": str(info.vcpus),
        "cpu-model": label_value(info.cpu_model),
        "memory": str(info.memory_mib),
        "gpu-name": label_value(info.gpu_name) if info.gpus else "",
        "gpu-manufacturer": _manufacturer(info.gpu_name) if info.gpus else "",
        "gpu-count": str(info.gpus or ""),
        "gpu-memory": str(info.gpu_memory_mib or ""),
    }
    named = tuple(zones)
    common = linux_labels(
        info.name,
        info.arch,
        region=region,
        zones=named,
        capacity_types=capacity_types,
        group=labels.ALIBABA_GROUP,
        of_type=of_type,
    )
    return {**common, ZONE_ID: named}


def _manufacturer(gpu_name: str) -> str:
    return "amd" if "AMD" in gpu_name.upper() else "nvidia"
