"""The instance catalogue: what can be launched, how big it is, and at what price.

Values only; `cloud` fetches them. One `Catalogue` serves one decision: by NodePool the instance types that its NodeClass
admits, each with its offerings (zone × capacity type) and whether each is available now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.dra import ResourceSliceSpec
from journeyman.core.api.objects import LearnedSize, NodeSelectorRequirement, OfferingKey

Resources = Mapping[str, int]
"""Exact amounts: `cpu` in millicores, everything else in whole units (bytes, counts). Requests are rounded up,
allocatable down, when they are made from quantities (`core.api.resources`)."""
NO_STOCK: Final = "NoStock"
"""Why an offering is unavailable that the cloud lists as sold out; what it lists is read again after `STOCK_LISTED_FOR`."""
STOCK_LISTED_FOR: Final = timedelta(minutes=5)


class Offering(Struct, frozen=True, kw_only=True):
    """One way to buy an instance type. `price` is provider currency per hour.

    `requirements` are what the node will carry as labels if launched this way (zone and capacity type among
    them, each `In` one value; reservation ids and the like too). `reservation_id` is the capacity reservation that it uses,
    if any, and `reservation_capacity` how many more nodes fit into that.
    """

    zone: str
    capacity_type: str
    price: float
    available: bool = True
    unavailable_reason: str = ""
    unavailable_until: datetime | None = None
    requirements: tuple[NodeSelectorRequirement, ...] = ()
    price_overlaid: bool = False  # a NodeOverlay sets or adjusts it
    reservation_id: str = ""
    reservation_capacity: int = 0


class InstanceType(Struct, frozen=True, kw_only=True):
    """An instance type. `requirements` are its labels as requirements (`In` values, `DoesNotExist` for a missing label).

    `overhead` is what the system keeps (kube-reserved + system-reserved + eviction threshold):
    allocatable = capacity − overhead, never below 0. `device_slices` are the devices that DRA drivers will publish on such a
    node, as far as they are known in advance. `image` is the id of the image that it boots from; empty if that is unknown.
    """

    name: str
    requirements: tuple[NodeSelectorRequirement, ...]
    offerings: tuple[Offering, ...]
    capacity: Resources
    overhead: Resources = field(default_factory=dict)
    capacity_overlaid: bool = False  # a NodeOverlay adds resources
    device_slices: tuple[ResourceSliceSpec, ...] = ()
    image: str = ""

    @property
    def allocatable(self) -> dict[str, int]:
        """Capacity less overhead, for the requests of all pods, DaemonSet pods included."""
        return {name: max(amount - self.overhead.get(name, 0), 0) for name, amount in self.capacity.items()}


class Catalogue(Struct, frozen=True, eq=False):
    """Instance types by NodePool. Solvers cache by its identity: keep one object while nothing changes."""

    by_node_pool: Mapping[str, tuple[InstanceType, ...]]

    def instance_types(self, node_pool: str) -> tuple[InstanceType, ...]:
        """Return the instance types that the NodePool may use, by name; empty if the NodePool is unknown."""
        return self.by_node_pool.get(node_pool, ())


class Unavailable(Struct, frozen=True, kw_only=True):
    """An unavailable offering, and until when it is skipped."""

    instance_type: str
    zone: str
    capacity_type: str
    until: datetime
    reason: str = ""
    reservation_id: str = ""  # empty: every reservation of the type and zone
    node_class: str = ""  # the only NodeClass for which it is unavailable; empty: all of them

    @property
    def key(self) -> OfferingKey:
        """The offering's name."""
        return OfferingKey(self.instance_type, self.zone, self.capacity_type, self.reservation_id)


def with_learned_sizes(types: Iterable[InstanceType], sizes: Iterable[LearnedSize]) -> tuple[InstanceType, ...]:
    """Return the types of one NodeClass with the sizes that were learned for it, larger or smaller than the catalogue's.

    While a type's image is unknown, the least counts that was learned with any image.
    """
    found: dict[str, list[LearnedSize]] = {}
    for size in sizes:
        found.setdefault(size.instance_type, []).append(size)
    if not found:
        return tuple(types)
    return tuple(_with_sizes(t, found[t.name]) if t.name in found else t for t in types)


def _with_sizes(instance_type: InstanceType, sizes: Iterable[LearnedSize]) -> InstanceType:
    allocatable: dict[str, int] = {}
    for size in sizes:
        if instance_type.image in ("", size.image):
            for name, amount in size.allocatable.items():
                allocatable[name] = min(amount, allocatable.get(name, amount))
    capacity, overhead = dict(instance_type.capacity), dict(instance_type.overhead)
    for name, amount in allocatable.items():
        capacity[name] = max(capacity.get(name, 0), amount)
        overhead[name] = capacity[name] - amount
    return replace(instance_type, capacity=capacity, overhead=overhead) if allocatable else instance_type


def without_unavailable(types: Iterable[InstanceType], unavailable: Iterable[Unavailable]) -> tuple[InstanceType, ...]:
    """Return the types with these offerings marked as unavailable.

    `instance_type` "*" means every type of that zone and capacity type (a missing spot service-linked role, say).
    """
    skipped = {u.key: u for u in unavailable}
    if not skipped:
        return tuple(types)
    names = {key.instance_type for key in skipped}

    def mark(name: str, offering: Offering) -> Offering:
        key = OfferingKey(name, offering.zone, offering.capacity_type, offering.reservation_id)
        entry = next(filter(None, map(skipped.get, key.meant_by)), None)
        if entry is None or not offering.available:
            return offering
        return replace(offering, available=False, unavailable_reason=entry.reason, unavailable_until=entry.until)

    return tuple(
        t if names.isdisjoint((t.name, "*")) else replace(t, offerings=tuple(mark(t.name, o) for o in t.offerings))
        for t in types
    )


def price_of(types: Iterable[InstanceType], instance_type: str, zone: str, capacity_type: str) -> float:
    """Return the price per hour of a running node; 0.0 if its offering is unknown, as in Karpenter."""
    for candidate in types:
        if candidate.name == instance_type:
            for offering in candidate.offerings:
                if offering.zone == zone and offering.capacity_type == capacity_type:
                    return offering.price
    return 0.0


def label_requirements(**values: str) -> tuple[NodeSelectorRequirement, ...]:
    """Return `In` requirements for `zone` and `capacity_type`, as an offering has them."""
    keys = {"zone": labels.ZONE, "capacity_type": labels.CAPACITY_TYPE}
    return tuple(NodeSelectorRequirement(key=keys[k], operator="In", values=(v,)) for k, v in values.items())
