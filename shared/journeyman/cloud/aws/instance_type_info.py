"""Instance types from DescribeInstanceTypes, reduced to the fields that are used.

`ec2:DescribeInstanceTypes` returns some 15 kB for each of 1,400 types; `InstanceTypeInfo` keeps 1 % of it. It is a
msgspec Struct, so that the whole list can be kept as a small JSON document between cold starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import resources
from typing import Any, Final

import msgspec

_ARCHITECTURES: Final = {"x86_64": "amd64", "arm64": "arm64"}  # labels.go `AWSToKubeArchitectures`
_HVM: Final = {"Name": "supported-virtualization-type", "Values": ["hvm"]}
_ARCHES: Final = {"Name": "processor-info.supported-architecture", "Values": ["x86_64", "arm64"]}
DESCRIBE_FILTERS: Final = [_HVM, _ARCHES]
"""Filters for the instance types that can be nodes, including bare metal."""


class Accelerator(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A kind of GPU, inference chip or Neuron device in an instance type. `cores` and `memory_mib` are per device."""

    name: str
    manufacturer: str
    count: int
    memory_mib: int = 0
    cores: int = 0


class InstanceTypeInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An instance type. A field is 0 or "" if EC2 does not report it."""

    name: str
    arch: str  # as in the label kubernetes.io/arch
    vcpus: int
    memory_mib: int
    usage_classes: tuple[str, ...]  # on-demand and spot, sorted
    bare_metal: bool = False
    hypervisor: str = ""
    cpu_manufacturer: str = ""
    clock_mhz: int = 0
    default_card_interfaces: int = 0  # network interfaces on the card that the VPC CNI uses
    card_interfaces: tuple[int, ...] = ()  # by network card
    ipv4_per_interface: int = 0
    efa_interfaces: int = 0
    encryption_in_transit: bool = False
    ebs_megabits: int = 0  # only where EBS-optimised by default
    local_storage_gb: int = 0
    nvme: bool = False
    nitro_enclaves: bool = False
    nested_virtualization: bool = False
    placement_strategies: tuple[str, ...] = ()
    gpus: tuple[Accelerator, ...] = ()
    inference: tuple[Accelerator, ...] = ()
    neuron: tuple[Accelerator, ...] = ()


def parse_all(entries: Iterable[Mapping[str, Any]]) -> list[InstanceTypeInfo]:
    """Return the instance types with a supported architecture, in the order of the entries."""
    return [info for entry in entries if (info := parse(entry)) is not None]


def parse(entry: Mapping[str, Any]) -> InstanceTypeInfo | None:
    """Return the instance type of a DescribeInstanceTypes entry; None if its architecture is not supported."""
    processor = entry.get("ProcessorInfo", {})
    arch = next((_ARCHITECTURES[a] for a in processor.get("SupportedArchitectures", ()) if a in _ARCHITECTURES), None)
    if arch is None:
        return None
    storage = entry.get("InstanceStorageInfo", {})
    return InstanceTypeInfo(
        name=entry["InstanceType"],
        arch=arch,
        vcpus=entry["VCpuInfo"]["DefaultVCpus"],
        memory_mib=entry["MemoryInfo"]["SizeInMiB"],
        usage_classes=tuple(sorted({"on-demand", "spot"}.intersection(entry.get("SupportedUsageClasses", ())))),
        bare_metal=entry.get("BareMetal", False),
        hypervisor=entry.get("Hypervisor", ""),
        cpu_manufacturer=processor.get("Manufacturer", ""),
        clock_mhz=round(processor.get("SustainedClockSpeedInGhz", 0) * 1000),
        local_storage_gb=storage.get("TotalSizeInGB", 0),
        nvme=storage.get("NvmeSupport", "unsupported") != "unsupported",
        nitro_enclaves=entry.get("NitroEnclavesSupport") == "supported",
        nested_virtualization="nested-virtualization" in processor.get("SupportedFeatures", ()),
        placement_strategies=tuple(entry.get("PlacementGroupInfo", {}).get("SupportedStrategies", ())),
        ebs_megabits=_ebs_megabits(entry.get("EbsInfo", {})),
        gpus=_accelerators(entry.get("GpuInfo", {}).get("Gpus", ())),
        inference=_accelerators(entry.get("InferenceAcceleratorInfo", {}).get("Accelerators", ())),
        neuron=_accelerators(entry.get("NeuronInfo", {}).get("NeuronDevices", ()), manufacturer="aws"),
        **_network(entry.get("NetworkInfo", {})),
    )


def _ebs_megabits(ebs: Mapping[str, Any]) -> int:
    if ebs.get("EbsOptimizedSupport") != "default":
        return 0
    return int(ebs.get("EbsOptimizedInfo", {}).get("MaximumBandwidthInMbps", 0))


def _network(network: Mapping[str, Any]) -> dict[str, Any]:
    cards = sorted(network.get("NetworkCards", ()), key=lambda card: int(card.get("NetworkCardIndex", 0)))
    interfaces = tuple(int(card.get("MaximumNetworkInterfaces", 0)) for card in cards)
    default = network.get("DefaultNetworkCardIndex", 0)
    return {
        "card_interfaces": interfaces,
        "default_card_interfaces": interfaces[default] if default < len(interfaces) else 0,
        "ipv4_per_interface": network.get("Ipv4AddressesPerInterface", 0),
        "efa_interfaces": network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        "encryption_in_transit": network.get("EncryptionInTransitSupported", False),
    }


def _accelerators(entries: Iterable[Mapping[str, Any]], manufacturer: str = "") -> tuple[Accelerator, ...]:
    return tuple(
        Accelerator(
            name=entry.get("Name", ""),
            manufacturer=manufacturer or entry.get("Manufacturer", ""),
            count=entry.get("Count", 0),
            memory_mib=entry.get("MemoryInfo", {}).get("SizeInMiB", 0),
            cores=entry.get("CoreInfo", {}).get("Count", 0),
        )
        for entry in entries
    )


class NetworkLimits(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Limits by instance type that no EC2 API returns. Types that `branch_interfaces` lacks have no trunk interface."""

    source: str
    as_of: str
    branch_interfaces: dict[str, int]
    ipv4_per_interface: dict[str, int]
    network_bandwidth_megabits: dict[str, int]


@lru_cache(maxsize=1)
def network_limits() -> NetworkLimits:
    """Return the table that ships with the package."""
    text = resources.files(__package__).joinpath("data/network_limits.json").read_bytes()
    return msgspec.json.decode(text, type=NetworkLimits)
