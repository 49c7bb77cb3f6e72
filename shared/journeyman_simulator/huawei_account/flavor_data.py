"""Lists the flavors of the simulated region: families of servers with their sizes, networks and prices.

The names, sizes and sub-interface quotas are those of Huawei Cloud's flavors; prices are near its price list, in CNY per hour.
A few flavors are made unusual, since the service has such: sold for months only, withdrawn, or without stock in a zone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from msgspec import Struct

SMALL_SELECTION: Final = (
    *("c7.large.2", "c7.xlarge.2", "c9.large.4", "c9.2xlarge.4", "c9.4xlarge.4", "kc1.large.2", "kc1.xlarge.4"),
)
"""Flavors for short simulations: several families and sizes, two of them ARM."""

_VCPUS: Final = {"large": 2, "xlarge": 4, "2xlarge": 8, "4xlarge": 16, "8xlarge": 32}
_SUB_INTERFACES: Final = {"large": 16, "xlarge": 32, "2xlarge": 64, "4xlarge": 128, "8xlarge": 256}
_CNY_PER_VCPU, _CNY_PER_GIB, _CNY_PER_GPU = 0.2, 0.03, 8.0
_MIB_PER_GIB: Final = 1024


class FlavorGpu(Struct, frozen=True, kw_only=True):
    """The GPUs of a flavor; `alias` is that of their PCI devices."""

    name: str
    count: int
    memory_mib: int
    alias: str


class FlavorFacts(Struct, frozen=True, kw_only=True):
    """What is known of a flavor apart from its stock.

    Attributes:
        name: "c7.large.2".
        family: "c7".
        vcpus: The number of vCPUs.
        ram_mib: The memory.
        architecture: "arm64", or "" as ECS does not name x86.
        performance_type: ECS's name for the kind of family.
        cpu_name: The processor.
        max_rate_mbit: The highest bandwidth.
        sub_interfaces: The most sub-interfaces; 0 if it supports none.
        price: CNY per hour on demand.
        has_spot: Whether it is sold as Spot.
        status: `cond:operation:status`; "" if ECS leaves it out.
        charge: `cond:operation:charge`; "" if it is sold in both ways.
        gpu: Its GPUs.
        full_width: Whether its zones are written with full-width punctuation.
        sold_out_in: The last letters of the zones that have no stock of it.
    """

    name: str
    family: str
    vcpus: int
    ram_mib: int
    architecture: str = ""
    performance_type: str = "normal"
    cpu_name: str = ""
    max_rate_mbit: int = 3000
    sub_interfaces: int = 0
    price: float = 0.0
    has_spot: bool = True
    status: str = "normal"
    charge: str = ""
    gpu: FlavorGpu | None = None
    full_width: bool = False
    sold_out_in: str = ""


class _Family(Struct, frozen=True, kw_only=True):
    name: str
    performance_type: str
    cpu_name: str
    price_factor: float
    sizes: Mapping[int, tuple[str, ...]]  # sizes by GiB per vCPU
    architecture: str = ""
    has_sub_interfaces: bool = True
    has_spot: bool = True


_S = ("large", "xlarge", "2xlarge")
_M = (*_S, "4xlarge")
_L = (*_M, "8xlarge")
_ICE_LAKE, _CASCADE_LAKE = "Intel Ice Lake", "Intel Cascade Lake"
_FAMILIES: Final = (
    _Family(
        name="s6",
        performance_type="normal",
        cpu_name=_CASCADE_LAKE,
        price_factor=0.8,
        sizes={2: _S, 4: _S},
        has_sub_interfaces=False,
    ),
    _Family(name="s7", performance_type="normal", cpu_name=_ICE_LAKE, price_factor=0.85, sizes={2: _S, 4: _S}),
    _Family(name="c6", performance_type="computingv3", cpu_name=_CASCADE_LAKE, price_factor=1.1, sizes={2: _M, 4: _M}),
    _Family(name="c7", performance_type="computingv3", cpu_name=_ICE_LAKE, price_factor=1.15, sizes={2: _L, 4: _L}),
    _Family(name="c7n", performance_type="computingv3", cpu_name=_ICE_LAKE, price_factor=1.0, sizes={2: _S, 4: _M}),
    _Family(
        name="c9",
        performance_type="computingv3",
        cpu_name="Intel Emerald Rapids",
        price_factor=1.2,
        sizes={2: _S, 4: _L},
    ),
    _Family(name="m6", performance_type="highmem", cpu_name=_CASCADE_LAKE, price_factor=1.0, sizes={8: _M}),
    _Family(name="m7", performance_type="highmem", cpu_name=_ICE_LAKE, price_factor=1.05, sizes={8: _L}),
    _Family(
        name="kc1",
        performance_type="kunpeng_computing",
        cpu_name="Huawei Kunpeng 920 2.6GHz",
        price_factor=0.75,
        sizes={2: _M, 4: _S},
        architecture="arm64",
    ),
)
_GPUS: Final = {
    "pi2.2xlarge.4": FlavorGpu(name="1 * NVIDIA Tesla T4 / 1 * 16G", count=1, memory_mib=16384, alias="nvidia-t4"),
    "pi2.4xlarge.4": FlavorGpu(name="2 * NVIDIA Tesla T4 / 2 * 16G", count=2, memory_mib=16384, alias="nvidia-t4"),
    "p2s.2xlarge.8": FlavorGpu(
        name="1 * NVIDIA V100-32G / 1 * 32G", count=1, memory_mib=32768, alias="nvidia-v100-32g"
    ),
}
_UNUSUAL: Final[Mapping[str, Mapping[str, str | bool]]] = {
    "s6.2xlarge.4": {"sold_out_in": "b"},
    "m6.2xlarge.8": {"sold_out_in": "c", "full_width": True},
    "m6.4xlarge.8": {"charge": "period"},
    "s7.2xlarge.4": {"status": "obt"},
    "c6.4xlarge.4": {"status": "abandon"},
    "c7n.large.2": {"status": ""},
}


@cache
def all_flavors() -> Mapping[str, FlavorFacts]:
    """Return all flavors that the simulation knows, by name."""
    flavors = [
        _flavor(family, size, ratio) for family in _FAMILIES for ratio, sizes in family.sizes.items() for size in sizes
    ]
    flavors.extend(_gpu_flavor(name, gpu) for name, gpu in _GPUS.items())
    return {flavor.name: flavor for flavor in flavors}


def _flavor(family: _Family, size: str, ratio: int) -> FlavorFacts:
    name, vcpus = f"{family.name}.{size}.{ratio}", _VCPUS[size]
    return FlavorFacts(
        name=name,
        family=family.name,
        vcpus=vcpus,
        ram_mib=vcpus * ratio * _MIB_PER_GIB,
        architecture=family.architecture,
        performance_type=family.performance_type,
        cpu_name=family.cpu_name,
        max_rate_mbit=1500 * vcpus,
        sub_interfaces=_SUB_INTERFACES[size] if family.has_sub_interfaces else 0,
        price=round(family.price_factor * _list_price(vcpus, vcpus * ratio), 4),
        has_spot=family.has_spot,
        **_UNUSUAL.get(name, {}),  # type: ignore[arg-type]
    )


def _gpu_flavor(name: str, gpu: FlavorGpu) -> FlavorFacts:
    family, size, ratio = name.split(".")
    vcpus = _VCPUS[size]
    memory = vcpus * int(ratio)
    return FlavorFacts(
        name=name,
        family=family,
        vcpus=vcpus,
        ram_mib=memory * _MIB_PER_GIB,
        performance_type="gpu",
        cpu_name=_CASCADE_LAKE,
        max_rate_mbit=1500 * vcpus,
        sub_interfaces=_SUB_INTERFACES[size],
        price=round(_list_price(vcpus, memory) + _CNY_PER_GPU * gpu.count, 4),
        has_spot=False,
        gpu=gpu,
    )


def _list_price(vcpus: int, memory_gib: int) -> float:
    return _CNY_PER_VCPU * vcpus + _CNY_PER_GIB * memory_gib
