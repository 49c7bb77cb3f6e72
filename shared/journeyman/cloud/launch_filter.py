"""Select the instance types and the capacity type of a launch.

Restates: karpenter-provider-aws pkg/providers/instance/filter/filter.go and instance.go `filterInstanceTypes`,
`getCapacityType`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeClaim, NodeSelectorRequirement
from journeyman.core.api.resources import fits, to_resources
from journeyman.core.catalogue import InstanceType, Offering
from journeyman.core.scheduling import requirements
from journeyman.core.scheduling.requirements import Requirements


class LaunchLimits(Struct, frozen=True, kw_only=True):
    """What a cloud's launch request can hold, and which of its types pods must ask for by name."""

    max_instance_types: int
    size_label: str  # its value contains `metal` for bare metal
    accelerators: tuple[str, ...]  # the resources of GPUs and the like


def launchable(claim: NodeClaim, types: Iterable[InstanceType], limits: LaunchLimits) -> tuple[InstanceType, ...]:
    """Return the types that the launch may use, cheapest first, with only the offerings it may use.

    Args:
        claim: The NodeClaim, of which the requirements and resource requests are read.
        types: Instance types in any order; an offering's `available` is current.
        limits: The cloud's.

    Returns:
        At most `limits.max_instance_types`; none if no type fits now, or too few fit for the claim's minValues. If a requirement has minValues,
        expensive spot offerings, bare metal and accelerators stay, since removing them could violate minValues.
    """
    required = requirements.from_selectors(claim.spec.requirements)
    min_values = {key: each.min_values for key, each in required.items() if each.min_values is not None}
    candidates = _compatible_and_available(claim, required, types)
    if not min_values:
        candidates = _without_expensive_spot(_without_exotic(candidates, limits))
    cheapest = tuple(sorted(candidates, key=lambda t: (_cheapest_price(t), t.name))[: limits.max_instance_types])
    return cheapest if _has_variety(cheapest, min_values) else ()


def has_unsatisfiable_min_values(claim: NodeClaim, types: Iterable[InstanceType], limits: LaunchLimits) -> bool:
    """Whether minValues cannot be met even if every offering were available, though some types fit."""
    all_available = tuple(replace(t, offerings=tuple(replace(o, available=True) for o in t.offerings)) for t in types)
    fitting = _compatible_and_available(claim, requirements.from_selectors(claim.spec.requirements), all_available)
    return bool(fitting) and not launchable(claim, all_available, limits)


def capacity_type_of(types: Iterable[InstanceType]) -> str:
    """Return the capacity type for types that `launchable` returned: reserved before spot before on-demand."""
    offered = {offering.capacity_type for t in types for offering in t.offerings}
    return next((kind for kind in (labels.RESERVED, labels.SPOT) if kind in offered), labels.ON_DEMAND)


def with_capacity_type(capacity_type: str, types: Iterable[InstanceType]) -> tuple[InstanceType, ...]:
    """Return the types that have offerings of the capacity type, with only those offerings, in the same order.

    A launch uses one reservation: the cheapest, whose price includes the order of their kinds, and of equal ones that with
    the most capacity.
    """
    offered = _with_offerings(types, lambda offering: offering.capacity_type == capacity_type)
    if capacity_type != labels.RESERVED:
        return offered
    reserved = (offering for t in offered for offering in t.offerings)
    best = min(reserved, key=lambda o: (o.price, -o.reservation_capacity, o.reservation_id))
    return _with_offerings(offered, lambda offering: offering.reservation_id == best.reservation_id)


def _with_offerings(types: Iterable[InstanceType], keep: Callable[[Offering], bool]) -> tuple[InstanceType, ...]:
    reduced = (replace(t, offerings=tuple(o for o in t.offerings if keep(o))) for t in types)
    return tuple(t for t in reduced if t.offerings)


def _cheapest_price(instance_type: InstanceType) -> float:
    return min(offering.price for offering in instance_type.offerings)


def _compatible_and_available(
    claim: NodeClaim, required: Requirements, types: Iterable[InstanceType]
) -> tuple[InstanceType, ...]:
    requests = to_resources(claim.spec.resources.requests, round_up=True)
    name = required.get(labels.INSTANCE_TYPE)
    suitable = (
        t
        for t in types
        # a set lookup of the name excludes most types; only the others have all their labels compared
        if (name is None or name.has(t.name))
        and _is_compatible(required, t.requirements)
        and fits(requests, t.allocatable)
    )
    return _with_offerings(
        suitable, lambda offering: offering.available and _is_compatible(required, offering.requirements)
    )


def _is_compatible(required: Requirements, offered: tuple[NodeSelectorRequirement, ...]) -> bool:
    return required.conflict(_read(offered)) is None


@lru_cache(maxsize=4096)
def _read(offered: tuple[NodeSelectorRequirement, ...]) -> Requirements:
    """Return requirements, cached: thousands of offerings share a few, and all launches of a batch read the same types."""
    return requirements.from_selectors(offered)


def _without_exotic(types: tuple[InstanceType, ...], limits: LaunchLimits) -> tuple[InstanceType, ...]:
    """Return the types without bare metal and accelerators, or all types if none would be left."""
    return tuple(t for t in types if not is_exotic(t, limits)) or types


def is_exotic(instance_type: InstanceType, limits: LaunchLimits) -> bool:
    """Whether the type is bare metal or has GPUs or other accelerators."""
    size = _values(instance_type, limits.size_label)
    has_accelerator = any(instance_type.capacity.get(name) for name in limits.accelerators)
    return has_accelerator or any("metal" in value for value in size)


def _without_expensive_spot(types: tuple[InstanceType, ...]) -> tuple[InstanceType, ...]:
    """Return the types without spot offerings above the cheapest on-demand price, where both may be used."""
    on_demand = [o.price for t in types for o in t.offerings if o.capacity_type == labels.ON_DEMAND]
    if not on_demand:
        return types
    cheapest = min(on_demand)
    return _with_offerings(types, lambda offering: offering.capacity_type != labels.SPOT or offering.price <= cheapest)


def _has_variety(types: Iterable[InstanceType], min_values: Mapping[str, int]) -> bool:
    """Whether the types have at least `min_values` different values of each label.

    Restates: karpenter pkg/cloudprovider/types.go `SatisfiesMinValues`.
    """
    listed = tuple(types)
    return all(len({v for t in listed for v in _values(t, key)}) >= count for key, count in min_values.items())


def _values(instance_type: InstanceType, key: str) -> tuple[str, ...]:
    return next((r.values for r in instance_type.requirements if r.key == key), ())
