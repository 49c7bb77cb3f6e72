"""Labels and requirements of an instance type.

Restates: karpenter-provider-aws pkg/providers/instancetype/types.go `computeRequirements`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from journeyman.cloud.aws.ami_families import AmiFamily
from journeyman.cloud.aws.instance_type_info import Accelerator, InstanceTypeInfo, network_limits
from journeyman.cloud.aws.network_discovery import PlacementGroup
from journeyman.core.api import labels

ZONE_ID: Final = "topology.k8s.aws/zone-id"
TENANCY: Final = f"{labels.AWS_GROUP}/instance-tenancy"
GPU_COUNT: Final = f"{labels.AWS_GROUP}/instance-gpu-count"
ACCELERATOR_COUNT: Final = f"{labels.AWS_GROUP}/instance-accelerator-count"
SIZE: Final = f"{labels.AWS_GROUP}/instance-size"
RESERVATION_LABELS: Final = tuple(
    f"{labels.AWS_GROUP}/capacity-reservation-{part}" for part in ("id", "type", "interruptible")
)
PLACEMENT_GROUP: Final = f"{labels.AWS_GROUP}/placement-group-id"
PARTITION: Final = f"{labels.AWS_GROUP}/placement-group-partition"
_NAME: Final = re.compile(r"(^[a-z]+)(-[0-9]+tb)?([0-9]+).*\.")  # instancetype.go `instanceTypeScheme`


def labels_of(
    info: InstanceTypeInfo,
    *,
    family: AmiFamily,
    region: str,
    zone_ids: Mapping[str, str],
    capacity_types: Iterable[str],
    group: PlacementGroup | None = None,
) -> dict[str, tuple[str, ...]]:
    """Return the labels that nodes of this type carry.

    Args:
        info: The type.
        family: The NodeClass's AMI family.
        region: The AWS region.
        zone_ids: Zones where the type is offered and the NodeClass has a subnet, to their ids ("" if unknown).
        capacity_types: The capacity types in which EC2 offers the type.
        group: The NodeClass's placement group.
    """
    values: dict[str, tuple[str, ...]] = {
        labels.INSTANCE_TYPE: (info.name,),
        labels.ARCH: (info.arch,),
        labels.OS: (family.os,),
        labels.WINDOWS_BUILD: _or_absent(family.windows_build),
        labels.REGION: (region,),
        labels.ZONE: tuple(sorted(zone_ids)),
        labels.CAPACITY_TYPE: tuple(sorted(capacity_types)),
        TENANCY: ("dedicated", "default"),
    }
    if ids := tuple(sorted(filter(None, zone_ids.values()))):
        values[ZONE_ID] = ids
    values.update(
        (f"{labels.AWS_GROUP}/{name}", (value,) if value is not None else ())
        for name, value in _aws_labels(info).items()
    )
    values.update((name, ()) for name in RESERVATION_LABELS)
    values[PLACEMENT_GROUP] = (group.id,) if group is not None else ()
    values[PARTITION] = group.partition_numbers if group is not None else ()
    return values


def _aws_labels(info: InstanceTypeInfo) -> dict[str, str | None]:
    """Return the labels in the domain karpenter.k8s.aws; None for a label that the node lacks."""
    name = _NAME.match(info.name)
    family, _, size = info.name.partition(".")
    bandwidth = network_limits().network_bandwidth_megabits.get(info.name)
    gpu = info.gpus[0] if len(info.gpus) == 1 else None
    accelerator = _accelerator(info)
    return {
        "instance-category": name[1] if name else None,
        "instance-family": family if size else None,
        "instance-generation": name[3] if name else None,
        "instance-size": size or None,
        "instance-cpu": str(info.vcpus),
        "instance-cpu-manufacturer": _kebab(info.cpu_manufacturer) or None,
        "instance-cpu-sustained-clock-speed-mhz": _number(info.clock_mhz),
        "instance-memory": str(info.memory_mib),
        "instance-ebs-bandwidth": _number(info.ebs_megabits),
        "instance-network-bandwidth": _number(bandwidth or 0),
        "instance-local-nvme": _number(info.local_storage_gb if info.nvme else 0),
        "instance-hypervisor": info.hypervisor,
        "instance-encryption-in-transit-supported": _flag(info.encryption_in_transit),
        "instance-capability-flex": _flag("-flex" in family),
        "nitro-sandbox": _flag(info.nitro_enclaves),
        "instance-gpu-name": _kebab(gpu.name) if gpu else None,
        "instance-gpu-manufacturer": _kebab(gpu.manufacturer) if gpu else None,
        "instance-gpu-count": str(gpu.count) if gpu else None,
        "instance-gpu-memory": str(gpu.memory_mib) if gpu else None,
        "instance-accelerator-name": _kebab(accelerator.name) if accelerator else None,
        "instance-accelerator-manufacturer": _kebab(accelerator.manufacturer) if accelerator else None,
        "instance-accelerator-count": str(accelerator.count) if accelerator else None,
    }


def _accelerator(info: InstanceTypeInfo) -> Accelerator | None:
    """Return the Neuron device, else the inference chip; None unless the type has exactly one kind of it."""
    kinds = info.neuron or info.inference
    return kinds[0] if len(kinds) == 1 else None


def _or_absent(value: str) -> tuple[str, ...]:
    return (value,) if value else ()


def _number(value: int) -> str | None:
    return str(value) if value else None


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _kebab(text: str) -> str:
    return text.replace(" ", "-").lower()
