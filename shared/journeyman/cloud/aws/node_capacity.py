"""Compute the capacity and overhead of a node, in integers.

Restates: karpenter-provider-aws pkg/providers/instancetype/types.go `computeCapacity`.
Differs: percentages are exact fractions, upstream's are floats; the two can differ by 1 MiB where a float rounds a
whole number up.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from journeyman.cloud.aws.ami_families import CUSTOM, DEFAULT_VOLUME_BYTES
from journeyman.cloud.aws.aws_settings import AwsSettings
from journeyman.cloud.aws.instance_type_info import InstanceTypeInfo, network_limits
from journeyman.cloud.aws.nodeclass_view import NodeClassView
from journeyman.cloud.kubelet_reservations import (
    GIB,
    MIB,
    NodeSize,
    eviction_threshold,
    kubelet_of,
    reserved_millicores,
)
from journeyman.core.api import quantity
from journeyman.core.api.ec2nodeclass import BlockDeviceMapping
from journeyman.core.api.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS

GPU_VENDORS: Final = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu", "Habana": "habana.ai/gaudi"}
NEURON: Final = "aws.amazon.com/neuron"
NEURON_CORE: Final = "aws.amazon.com/neuroncore"
EFA: Final = "vpc.amazonaws.com/efa"
POD_ENI: Final = "vpc.amazonaws.com/pod-eni"
PRIVATE_IPV4: Final = "vpc.amazonaws.com/PrivateIPv4Address"

_GRAVITON_RESERVED_MIB: Final = 64  # types.go `memory`: contiguous memory that Gravitons keep
_PODS_WITHOUT_ENI_LIMIT: Final = 110


class NodeSizing:
    """Computes capacity and overhead of instance types for one NodeClass."""

    def __init__(self, node_class: NodeClassView, settings: AwsSettings) -> None:
        self._node_class = node_class
        self._family = node_class.family
        self._settings = settings
        self._kubelet = kubelet_of(node_class.spec.kubelet)
        self._ebs_bytes = ebs_ephemeral_bytes(node_class)
        efa_only = [nic for nic in node_class.spec.network_interfaces if nic.interface_type == "efa-only"]
        self._efa_only = len(efa_only)
        self._efa_only_on_card_0 = sum(1 for nic in efa_only if nic.network_card_index == 0)

    def size(self, info: InstanceTypeInfo) -> NodeSize:
        """Return capacity and overhead of a node of this type, without resources it lacks."""
        capacity = {
            CPU: info.vcpus * 1000,
            MEMORY: memory_bytes(info, self._settings.vm_memory_overhead_percent),
            EPHEMERAL_STORAGE: self._ephemeral_bytes(info),
            PODS: self._pods(info),
        }
        capacity.update((name, count) for name, count in self._extended(info).items() if count > 0)
        return NodeSize(capacity=capacity, overhead=self._overhead(info, capacity))

    def _ephemeral_bytes(self, info: InstanceTypeInfo) -> int:
        if self._node_class.raid0 and info.local_storage_gb:
            return info.local_storage_gb * 10**9
        return self._ebs_bytes

    def _pods(self, info: InstanceTypeInfo) -> int:
        if self._kubelet.max_pods is not None:
            count = self._kubelet.max_pods
        elif self._family.eni_limited_pods:
            count = self._eni_limited_pods(info, self._settings.reserved_enis)
        else:
            count = _PODS_WITHOUT_ENI_LIMIT
        if self._kubelet.pods_per_core and self._family.pods_per_core:
            count = min(count, self._kubelet.pods_per_core * info.vcpus)
        return count

    def _eni_limited_pods(self, info: InstanceTypeInfo, reserved_enis: int) -> int:
        """Return the pod limit: the node uses one address per interface; kube-proxy and the CNI use the host network."""
        usable = max(info.default_card_interfaces - reserved_enis - self._efa_only_on_card_0, 0)
        return usable * (info.ipv4_per_interface - 1) + 2 if usable else 0

    def _extended(self, info: InstanceTypeInfo) -> dict[str, int]:
        counts = dict.fromkeys(GPU_VENDORS.values(), 0)
        for gpu in info.gpus:
            if gpu.manufacturer in GPU_VENDORS:
                counts[GPU_VENDORS[gpu.manufacturer]] += gpu.count
        counts[NEURON] = sum(device.count for device in info.neuron)
        counts[NEURON_CORE] = info.neuron[0].count * info.neuron[0].cores if info.neuron else 0
        counts[EFA] = self._efa_only if self._node_class.spec.network_interfaces else info.efa_interfaces
        counts[POD_ENI] = network_limits().branch_interfaces.get(info.name, 0)
        if self._family.is_windows:
            counts[PRIVATE_IPV4] = network_limits().ipv4_per_interface.get(info.name, 1) - 1
        return counts

    def _overhead(self, info: InstanceTypeInfo, capacity: Mapping[str, int]) -> dict[str, int]:
        pods = self._eni_limited_pods(info, 0) if self._family.eni_limited_overhead else capacity[PODS]
        kube_reserved = {
            CPU: reserved_millicores(capacity[CPU]),
            MEMORY: (11 * pods + 255) * MIB,
            EPHEMERAL_STORAGE: GIB,
            **self._kubelet.kube_reserved,
        }
        eviction = eviction_threshold(capacity, self._kubelet.eviction_hard)
        names = {*kube_reserved, *self._kubelet.system_reserved, *eviction}
        parts = (kube_reserved, self._kubelet.system_reserved, eviction)
        return {name: sum(part.get(name, 0) for part in parts) for name in sorted(names)}


def memory_bytes(info: InstanceTypeInfo, overhead: Fraction) -> int:
    """Return the estimated bytes of memory that the operating system sees, before a node of the type has run."""
    mib = info.memory_mib - (_GRAVITON_RESERVED_MIB if info.arch == "arm64" else 0)
    hidden_mib = -(-mib * overhead.numerator // overhead.denominator)  # rounded up
    return (mib - hidden_mib) * MIB


def ebs_ephemeral_bytes(node_class: NodeClassView) -> int:
    """Return the size in bytes of the EBS volume that holds ephemeral storage.

    Restates: types.go `ephemeralStorage`: the root volume; for Custom the last mapping; else the mapping of the
    family's device; else that device's default; else 20 GiB.
    Differs: Bottlerocket's disk of the operating system holds no pods' data, also if it is named as the root volume.
    """
    mappings = node_class.spec.block_device_mappings
    family = node_class.family
    system_devices = {device.name for device in family.block_devices} - {family.ephemeral_device}
    root = next((m for m in mappings if m.root_volume and m.device_name not in system_devices), None)
    if root is not None and (size := _volume_bytes(root)):
        return size
    if mappings and family is CUSTOM:
        return _volume_bytes(mappings[-1]) or DEFAULT_VOLUME_BYTES
    ephemeral = next((m for m in mappings if m.device_name == family.ephemeral_device), None)
    if ephemeral is not None and (size := _volume_bytes(ephemeral)):
        return size
    defaults = {device.name: device.size_bytes for device in family.block_devices}
    return defaults.get(family.ephemeral_device, DEFAULT_VOLUME_BYTES)


def _volume_bytes(mapping: BlockDeviceMapping) -> int:
    """Return the volume's size in bytes; 0 if the mapping has none."""
    size = mapping.ebs.volume_size if mapping.ebs is not None else None
    return quantity.parse(size).units(round_up=True) if size is not None else 0
