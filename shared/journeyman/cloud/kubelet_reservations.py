"""What the kubelet keeps from pods: reserved CPU and memory, eviction thresholds, and a NodeClass's settings for them.

All in integers; percentages are exact fractions.

Restates: karpenter-provider-aws pkg/providers/instancetype/types.go (`kubeReservedResources`, `evictionThreshold`).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from msgspec import Struct

from journeyman.core.api import quantity
from journeyman.core.api.resources import EPHEMERAL_STORAGE, MEMORY, amount
from journeyman.errors import InvalidQuantityError

MIB: Final = 1 << 20
GIB: Final = 1 << 30
_EVICTION_MEMORY: Final = 100 * MIB
# types.go `kubeReservedResources`: (from, to, parts per 10,000) in millicores
_CPU_RESERVED: Final = ((0, 1000, 600), (1000, 2000, 100), (2000, 4000, 50), (4000, 1 << 31, 25))


class KubeletSettings(Struct, frozen=True, kw_only=True):
    """The kubelet settings that change a node's capacity. Invalid quantities count as unset."""

    max_pods: int | None
    pods_per_core: int
    kube_reserved: Mapping[str, int]
    system_reserved: Mapping[str, int]
    eviction_hard: Mapping[str, str]


def kubelet_of(raw: Mapping[str, Any]) -> KubeletSettings:
    """Return the settings of a NodeClass, as its spec has them."""
    max_pods = raw.get("maxPods")
    pods_per_core = raw.get("podsPerCore")
    return KubeletSettings(
        max_pods=max_pods if isinstance(max_pods, int) else None,
        pods_per_core=pods_per_core if isinstance(pods_per_core, int) else 0,
        kube_reserved=_amounts(raw.get("kubeReserved")),
        system_reserved=_amounts(raw.get("systemReserved")),
        eviction_hard={key: str(value) for key, value in _mapping(raw.get("evictionHard")).items()},
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _amounts(value: Any) -> dict[str, int]:
    """Return the valid quantities. The others are reported elsewhere: a NodeClass with one is not Ready."""
    parsed = {name: _amount_or_none(name, text) for name, text in _mapping(value).items()}
    return {name: found for name, found in parsed.items() if found is not None}


def _amount_or_none(name: str, text: Any) -> int | None:
    try:
        return amount(name, text, round_up=True)
    except InvalidQuantityError:
        return None


class NodeSize(Struct, frozen=True, kw_only=True):
    """Capacity of a node and its overhead."""

    capacity: dict[str, int]
    overhead: dict[str, int]


def reserved_millicores(millicores: int) -> int:
    """Return kube-reserved CPU: 6 % of the first core, 1 % of the second, 0.5 % of the next two, 0.25 % of the rest."""
    return sum(max(min(millicores, end) - start, 0) * share // 10_000 for start, end, share in _CPU_RESERVED)


def eviction_threshold(capacity: Mapping[str, int], eviction_hard: Mapping[str, str]) -> dict[str, int]:
    """Return what the kubelet keeps free: 100 MiB of memory and a tenth of the disk, unless `eviction_hard` differs."""
    threshold = {MEMORY: _EVICTION_MEMORY, EPHEMERAL_STORAGE: -(-capacity[EPHEMERAL_STORAGE] // 10)}
    for signal, resource in (("memory.available", MEMORY), ("nodefs.available", EPHEMERAL_STORAGE)):
        if signal in eviction_hard:
            threshold[resource] = _signal_amount(eviction_hard[signal], capacity[resource], threshold[resource])
    return threshold


def _signal_amount(text: str, capacity: int, default: int) -> int:
    """Return a threshold, given as a percentage or quantity: 0 for 100 %, which disables it; `default` if invalid."""
    try:
        if not text.endswith("%"):
            return quantity.parse(text).units(round_up=True)
        percent = Fraction(text[:-1])
    except (InvalidQuantityError, ValueError):
        return default
    return 0 if percent == 100 else -(-capacity * percent.numerator // (100 * percent.denominator))
