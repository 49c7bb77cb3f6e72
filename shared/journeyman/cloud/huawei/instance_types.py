"""Build the instance types of a CCENodeClass from flavors: labels, offerings with prices, capacity and overhead.

Restates: huaweicloud-samples/karpenter-provider-huawei pkg/providers/instancetype/types.go.
Differs: every label has a value where ECS reports one; memory that the machine's firmware and kernel hide counts; sub-interfaces
limit pods of CCE Turbo clusters only, there also below `kubelet.maxPods`; Spot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from journeyman.cloud.caching import BuiltPerNodeClass
from journeyman.cloud.huawei.flavors import Flavor, FlavorReader
from journeyman.cloud.huawei.huawei_settings import HuaweiSettings
from journeyman.cloud.huawei.pricing import estimated_price
from journeyman.cloud.kubelet_reservations import (
    GIB,
    MIB,
    KubeletSettings,
    NodeSize,
    eviction_threshold,
    kubelet_of,
    reserved_millicores,
)
from journeyman.cloud.prices import PriceProvider
from journeyman.cloud.type_requirements import label_value, linux_labels, offering_requirements, requirements_of
from journeyman.core.api import labels
from journeyman.core.api.ccenodeclass import CCENodeClassView
from journeyman.core.api.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS
from journeyman.core.catalogue import NO_STOCK, InstanceType, Offering
from journeyman.errors import NodeClassNotReadyError

SIZE: Final = f"{labels.HUAWEI_GROUP}/instance-size"
NVIDIA_GPU: Final = "nvidia.com/gpu"
ASCEND_NPU: Final = "huawei.com/ascend-310"
TURBO: Final = "eni"
"""The network of CCE Turbo clusters, whose pods have sub-interfaces of their node."""
DOCKER: Final = "docker"

_PODS_BY_MEMORY_MIB: Final = ((65536, 110), (32768, 80), (16384, 60), (8192, 40), (0, 20))
_CATEGORY: Final = re.compile(r"^[a-z]+")
_GENERATION: Final = re.compile(r"[0-9]+")
_KUBERNETES_SHARE: Final = 10  # percent of the disk that CCE gives to the kubelet; the rest is the runtime's
_FILE_SYSTEM_SHARE: Final = 2  # percent of it that ext4 uses for inode tables and bitmaps
_JOURNAL_BYTES: Final = 128 * MIB


class InstanceTypeProvider:
    """Builds the instance types of one region for each CCENodeClass. A warm sandbox has one provider.

    Args:
        flavors: The region's flavors.
        settings: The cluster's.
        prices: The region's prices.
        network: Returns the cluster's network mode, such as `vpc-router` or `eni`.
    """

    def __init__(
        self,
        flavors: FlavorReader,
        settings: HuaweiSettings,
        prices: PriceProvider,
        *,
        network: Callable[[], str],
    ) -> None:
        self._flavors = flavors
        self._settings = settings
        self._prices = prices
        self._network = network
        self._built: BuiltPerNodeClass[tuple[InstanceType, ...]] = BuiltPerNodeClass()

    def for_node_class(self, node_class: CCENodeClassView) -> tuple[InstanceType, ...]:
        """Return instance types by name; the identical tuple while NodeClass, prices and the region's answers are the same.

        Raises:
            NodeClassNotReadyError: The NodeClass's status names no subnet.
            CloudProviderError: Huawei Cloud did not respond.
        """
        if not node_class.subnet_ids:
            raise NodeClassNotReadyError("no subnets in the NodeClass's status", node_class=node_class.name)
        flavors = self._flavors.read()
        zones = tuple(sorted({zone for flavor in flavors for zone in flavor.spot}))
        stock = self._flavors.spot_stock(zones)
        network = self._network()
        spec = node_class.spec
        parts = (
            spec.kubelet.model_dump() if spec.kubelet else {},
            spec.k8s_volume.volume_size,
            spec.runtime,
            spec.ims_selector.image_id,
            spec.spot_price_limit,
            network,
        )

        def build() -> tuple[InstanceType, ...]:
            builder = _InstanceTypeBuilder(node_class, network, self._settings, self._prices, stock)
            return tuple(built for flavor in flavors if (built := builder.build(flavor)))

        return self._built.get(parts, (flavors, stock, self._prices.version), build)


class _InstanceTypeBuilder:
    """Builds instance types for one NodeClass."""

    def __init__(
        self,
        node_class: CCENodeClassView,
        network: str,
        settings: HuaweiSettings,
        prices: PriceProvider,
        spot_stock: Mapping[str, frozenset[str]],
    ) -> None:
        self._settings = settings
        self._prices = prices
        self._network = network
        self._spot_stock = spot_stock
        self._spot_limit = node_class.spec.spot_price_limit
        self._disk_gib = node_class.spec.k8s_volume.volume_size
        self._runtime = node_class.spec.runtime
        self._image = node_class.spec.ims_selector.image_id or ""
        kubelet = node_class.spec.kubelet
        self._kubelet = kubelet_of(kubelet.model_dump(by_alias=True, exclude_none=True) if kubelet else {})

    def build(self, flavor: Flavor) -> InstanceType | None:
        """Return the instance type; None if no zone sells it, or it does not suit the cluster's network."""
        zones = sorted({*(zone for zone, _ in flavor.on_demand), *flavor.spot})
        if not zones or (self._network == TURBO and not flavor.sub_interfaces):
            return None
        offerings = tuple(self._offerings(flavor))
        kinds = tuple(sorted({offering.capacity_type for offering in offerings}))
        size = node_size(
            flavor,
            pod_limit(flavor, self._network, self._kubelet),
            disk_gib=self._disk_gib,
            runtime=self._runtime,
            kubelet=self._kubelet,
            memory_overhead=self._settings.vm_memory_overhead_percent,
        )
        return InstanceType(
            name=flavor.name,
            requirements=requirements_of(
                labels_of(flavor, region=self._settings.region, zones=zones, capacity_types=kinds)
            ),
            offerings=offerings,
            capacity=size.capacity,
            overhead=size.overhead,
            image=self._image,
        )

    def _offerings(self, flavor: Flavor) -> Iterable[Offering]:
        price = self._prices.on_demand(flavor.name) or estimated_price(flavor)
        for zone, is_sold in flavor.on_demand:
            yield _offering(zone, labels.ON_DEMAND, price, is_available=is_sold)
        percent = self._settings.spot_price_percent
        spot_price = round(price * percent.numerator / percent.denominator, 6)
        if self._spot_limit is not None and self._spot_limit < spot_price:
            return
        for zone in flavor.spot:
            has_stock = flavor.name in self._spot_stock.get(zone, frozenset())
            yield _offering(zone, labels.SPOT, spot_price, is_available=has_stock)


def _offering(zone: str, capacity_type: str, price: float, *, is_available: bool) -> Offering:
    return Offering(
        zone=zone,
        capacity_type=capacity_type,
        price=price,
        available=is_available,
        unavailable_reason="" if is_available else NO_STOCK,
        requirements=offering_requirements(zone, capacity_type),
    )


def default_pods(memory_mib: int) -> int:
    """Return CCE's default for a node's maximum number of pods, by its memory."""
    return next(pods for least, pods in _PODS_BY_MEMORY_MIB if memory_mib >= least)


def pod_limit(flavor: Flavor, network: str, kubelet: KubeletSettings) -> int:
    """Return how many pods a node of the flavor may have, by the cluster's network and the NodeClass's settings."""
    count = kubelet.max_pods if kubelet.max_pods is not None else default_pods(flavor.memory_mib)
    return min(count, flavor.sub_interfaces) if network == TURBO else count


def node_size(
    flavor: Flavor, pods: int, *, disk_gib: int, runtime: str, kubelet: KubeletSettings, memory_overhead: Any
) -> NodeSize:
    """Return capacity and overhead of a node, in integers: millicores, bytes, counts.

    CCE reserves memory for its default number of pods, whatever `kubelet.maxPods` is.

    Restates: pkg/providers/instancetype/types.go (`systemReservedMemoryMiB`, `kubeReservedMemoryMiB`, `ephemeralStorage`).
    Differs: of the kubelet's disk, the file system's own share is rounded up.
    """
    memory = flavor.memory_mib
    hidden_mib = -(-memory * memory_overhead.numerator // memory_overhead.denominator)  # rounded up
    disk = disk_gib * GIB * _KUBERNETES_SHARE // 100
    capacity = {
        CPU: flavor.vcpus * 1000,
        MEMORY: (memory - hidden_mib) * MIB,
        EPHEMERAL_STORAGE: max(disk * (100 - _FILE_SYSTEM_SHARE) // 100 - _JOURNAL_BYTES, 0),
        PODS: pods,
    }
    if flavor.gpus:
        capacity[ASCEND_NPU if "ascend" in flavor.gpu_name.lower() else NVIDIA_GPU] = flavor.gpus
    per_pod = 20 if runtime == DOCKER else 5
    kube_reserved = {
        CPU: reserved_millicores(capacity[CPU]),
        MEMORY: (500 + per_pod * default_pods(memory)) * MIB,
        **kubelet.kube_reserved,
    }
    system_reserved = {MEMORY: (400 + 25 * memory // 1024) * MIB, **kubelet.system_reserved}
    parts = (kube_reserved, system_reserved, eviction_threshold(capacity, kubelet.eviction_hard))
    names = sorted({name for part in parts for name in part if name in capacity})
    return NodeSize(capacity=capacity, overhead={name: sum(part.get(name, 0) for part in parts) for name in names})


def labels_of(
    flavor: Flavor, *, region: str, zones: Iterable[str], capacity_types: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """Return the labels that nodes of this flavor carry; an empty tuple means that they lack the label."""
    generation, category = _GENERATION.search(flavor.family), _CATEGORY.search(flavor.family)
    has_gpu = bool(flavor.gpus)
    of_type = {
        "category": category and category.group(),
        "family": flavor.family,
        "generation": generation and generation.group(),
        "size": flavor.size,
        "cpu": str(flavor.vcpus),
        "memory": str(flavor.memory_mib),
        "network-bandwidth": str(flavor.max_rate_mbit or ""),
        "gpu-name": label_value(flavor.gpu_name) if has_gpu else "",
        "gpu-manufacturer": _manufacturer(flavor.gpu_name) if has_gpu else "",
        "gpu-count": str(flavor.gpus or ""),
        "gpu-memory": str(flavor.gpu_memory_mib or ""),
    }
    return linux_labels(
        flavor.name,
        flavor.arch,
        region=region,
        zones=zones,
        capacity_types=capacity_types,
        group=labels.HUAWEI_GROUP,
        of_type=of_type,
    )


def _manufacturer(gpu_name: str) -> str:
    return "huawei" if "ascend" in gpu_name.lower() else "nvidia"
