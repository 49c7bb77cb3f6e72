"""Device pools: those that drivers publish in ResourceSlices, and those of a new node of an instance type.

Of a published pool only the newest generation counts, and its devices are available only while all of its slices are
there. Slices of nodes that are being disrupted or not initialized are left out: until then a node has what its instance
type promises.

Restates: karpenter pkg/scheduling/dynamicresources/pool.go `GatherPools`; pkg/controllers/provisioning/dra.go
`gatherResourceSlices`; pkg/scheduling/dynamicresources/consumable_capacity.go `calculateConsumedCapacity`,
`violatesPolicy`.
Differs: a pool is validated as a whole, from whichever node it is seen; node selection per device
(`perDeviceNodeSelection`) and device taints are honored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels, quantity
from journeyman.core.api.device_selectors import DeviceFacts
from journeyman.core.api.dra import Device, DeviceCapacity, ResourceSlice, ResourceSliceSpec
from journeyman.core.api.objects import NodeSelector, QuantityText, Taint
from journeyman.core.scheduling.requirements import EMPTY, InvalidRequirementError, Requirements, from_selectors
from journeyman.errors import InvalidQuantityError

_NODE_NAME: Final = "metadata.name"  # the only field that a node selector may use
_BLOCKING: Final = frozenset({"NoSchedule", "NoExecute"})


class DeviceId(NamedTuple):
    """A device; one that is not `published` belongs to a planned node, and is unique on it."""

    driver: str
    pool: str
    name: str
    published: bool = True


class CounterId(NamedTuple):
    """A counter of a pool, or a capacity of a shared device (`of_device`): several allocations draw on it."""

    driver: str
    pool: str
    published: bool
    of_device: bool
    holder: str
    name: str


class CounterDraw(NamedTuple):
    """The amount that an allocation takes of a counter."""

    counter: CounterId
    amount: int


class AccessibleNodes(Struct, frozen=True):
    """The nodes that can access a device: those named (None: any), if their labels meet `requirements`."""

    nodes: frozenset[str] | None = None
    requirements: Requirements = EMPTY

    def narrowed(self, node: str, offer: Requirements) -> Requirements | None:
        """Return a node's offer, narrowed to these nodes; None if the node is not one of them.

        `node` is the name of an existing node, whose offer are its labels; a new one has no name, and may still get any
        well-known label.
        """
        if self.nodes is not None and node not in self.nodes:
            return None
        if not self.requirements:
            return offer
        undefined: Collection[str] = () if node else labels.WELL_KNOWN
        return (
            None if not offer.is_compatible(self.requirements, allow_undefined=undefined) else offer & self.requirements
        )


ALL_NODES: Final = AccessibleNodes()


class PoolDevice(Struct, frozen=True, kw_only=True, eq=False):
    """A device. `capacity` only counts if it is `shared` (allowMultipleAllocations).

    An allocation takes `draws` of its pool's counters.
    """

    id: DeviceId
    facts: DeviceFacts
    capacity: Mapping[str, ConsumableCapacity]
    draws: tuple[CounterDraw, ...]
    shared: bool
    taints: tuple[Taint, ...]
    accessible_nodes: AccessibleNodes

    def counter(self, name: str) -> CounterId:
        """The counter of one of its capacities."""
        return CounterId(self.id.driver, self.id.pool, self.id.published, True, self.id.name, name)


class DevicePool(Struct, frozen=True, kw_only=True, eq=False):
    """Devices of one driver; `limits` are its counters. `defect` says why its devices are not available; empty if they are."""

    driver: str
    name: str
    devices: tuple[PoolDevice, ...] = ()
    limits: Mapping[CounterId, int] = field(default_factory=dict)
    defect: str = ""


class PublishedPools:
    """Published pools, and by node name the devices that the node can access."""

    def __init__(self, pools: Sequence[DevicePool]) -> None:
        self.pools = tuple(pools)
        not_local = [
            replace(pool, devices=tuple(d for d in pool.devices if d.accessible_nodes.nodes is None)) for pool in pools
        ]
        self._not_local = {i: pool for i, pool in enumerate(not_local) if pool.devices or not pools[i].devices}
        self._seen: dict[str, tuple[DevicePool, ...]] = {}
        self._named: dict[str, dict[int, list[PoolDevice]]] = {}
        for index, pool in enumerate(pools):
            for device in pool.devices:
                for node in device.accessible_nodes.nodes or ():
                    self._named.setdefault(node, {}).setdefault(index, []).append(device)

    def seen_from(self, node: str) -> tuple[DevicePool, ...]:
        """Return the pools with the devices that the named node can access; an empty name is a new node."""
        if node not in self._seen:
            seen = dict(self._not_local)
            for index, devices in self._named.get(node, {}).items():
                others = seen[index].devices if index in seen else ()
                seen[index] = replace(self.pools[index], devices=(*devices, *others))
            self._seen[node] = tuple(seen[index] for index in sorted(seen))
        return self._seen[node]


def published_pools(slices: Iterable[ResourceSlice], nodes: Collection[str]) -> tuple[DevicePool, ...]:
    """Return the pools that drivers publish, by driver and name; of node-local slices only those of `nodes` (by name)."""
    by_pool: dict[tuple[str, str], list[ResourceSliceSpec]] = {}
    for entry in slices:
        owner = next((ref.name for ref in entry.metadata.owner_references if ref.kind == "Node"), None)
        if owner is None or owner in nodes:
            by_pool.setdefault((entry.spec.driver, entry.spec.pool.name), []).append(entry.spec)
    return tuple(_pool(key, _newest(found), published=True) for key, found in sorted(by_pool.items()))


def template_pools(slices: Iterable[ResourceSliceSpec]) -> tuple[DevicePool, ...]:
    """Return the pools that a new node will have, by driver and name."""
    by_pool: dict[tuple[str, str], list[ResourceSliceSpec]] = {}
    for spec in slices:
        by_pool.setdefault((spec.driver, spec.pool.name), []).append(spec)
    return tuple(_pool(key, found, published=False) for key, found in sorted(by_pool.items()))


def _newest(slices: Sequence[ResourceSliceSpec]) -> list[ResourceSliceSpec]:
    newest = max(spec.pool.generation for spec in slices)
    return [spec for spec in slices if spec.pool.generation == newest]


def _pool(key: tuple[str, str], slices: Sequence[ResourceSliceSpec], *, published: bool) -> DevicePool:
    driver, name = key
    try:
        limits = _counters(key, slices, published=published)
        devices = _devices(key, slices, published=published)
    except InvalidQuantityError as error:
        return DevicePool(driver=driver, name=name, defect=error.message)
    defect = _pool_defect(slices, devices, limits, published=published)
    return DevicePool(driver=driver, name=name, devices=tuple(devices), limits=limits, defect=defect)


def _pool_defect(
    slices: Sequence[ResourceSliceSpec],
    devices: Sequence[PoolDevice],
    limits: Mapping[CounterId, int],
    *,
    published: bool,
) -> str:
    if published and len(slices) != slices[0].pool.resource_slice_count:
        return f"it has {len(slices)} of its {slices[0].pool.resource_slice_count} slices"
    if len({device.id for device in devices}) != len(devices):
        return "two of its devices have the same name"
    sets = [counters.name for spec in slices for counters in spec.shared_counters]
    if published and len(set(sets)) != len(sets):
        return "two of its counter sets have the same name"
    if any(draw.counter not in limits for device in devices for draw in device.draws):
        return "a device draws on counters that it does not have"
    return ""


def _counters(key: tuple[str, str], slices: Iterable[ResourceSliceSpec], *, published: bool) -> dict[CounterId, int]:
    return {
        CounterId(*key, published, False, counters.name, name): nano_amount(counter.value)
        for spec in slices
        for counters in spec.shared_counters
        for name, counter in counters.counters.items()
    }


def _devices(key: tuple[str, str], slices: Iterable[ResourceSliceSpec], *, published: bool) -> list[PoolDevice]:
    """Return the devices by slice, in order; published slices with counters have none."""
    found: list[PoolDevice] = []
    for spec in slices:
        for device in () if published and spec.shared_counters else spec.devices:
            accessible_nodes = _accessible_nodes(spec, device) if published else ALL_NODES
            if accessible_nodes is not None:
                found.append(_device(key, device, accessible_nodes, published=published))
    return found


def _device(key: tuple[str, str], device: Device, accessible_nodes: AccessibleNodes, *, published: bool) -> PoolDevice:
    driver, pool = key
    return PoolDevice(
        id=DeviceId(driver, pool, device.name, published),
        facts=DeviceFacts.of(driver, device),
        capacity={name: ConsumableCapacity.of(found) for name, found in device.capacity.items()},
        draws=tuple(
            CounterDraw(
                CounterId(driver, pool, published, False, consumed.counter_set, name), nano_amount(counter.value)
            )
            for consumed in device.consumes_counters
            for name, counter in consumed.counters.items()
        ),
        shared=device.allow_multiple_allocations,
        taints=tuple(Taint(t.key, t.effect, t.value) for t in device.taints if t.effect in _BLOCKING),
        accessible_nodes=accessible_nodes,
    )


def _accessible_nodes(spec: ResourceSliceSpec, device: Device) -> AccessibleNodes | None:
    where = device if spec.per_device_node_selection else spec
    if where.all_nodes:
        return ALL_NODES
    if where.node_name:
        return AccessibleNodes(nodes=frozenset({where.node_name}))
    return accessible_nodes_of(where.node_selector)


def accessible_nodes_of(selector: NodeSelector | None) -> AccessibleNodes | None:
    """Return the nodes of a node selector with one term; None if it cannot be read."""
    if selector is None or len(selector.node_selector_terms) != 1:
        return None
    term = selector.node_selector_terms[0]
    nodes: frozenset[str] | None = None
    for entry in term.match_fields:
        if entry.key != _NODE_NAME or entry.operator != "In":
            return None
        named = frozenset(entry.values)
        nodes = named if nodes is None else nodes & named
    try:
        return AccessibleNodes(nodes, from_selectors(term.match_expressions))
    except InvalidRequirementError:
        return None


class ConsumableCapacity(Struct, frozen=True, kw_only=True):
    """One capacity of a device, in nano units: `total`, and the amounts that a request may consume.

    `default` is consumed by a request that names no amount; `values` (ascending) or `lowest` to `highest` in steps of `step`
    are the valid amounts, others are rounded up. Without either every amount is valid.
    """

    total: int
    default: int | None = None
    values: tuple[int, ...] = ()
    lowest: int | None = None
    highest: int | None = None
    step: int | None = None

    @classmethod
    def of(cls, published: DeviceCapacity) -> ConsumableCapacity:
        """Return the capacity that a driver publishes. Raises InvalidQuantityError."""
        policy = published.request_policy
        total = nano_amount(published.value)
        if policy is None:
            return cls(total=total)
        default = _nano_or_none(policy.default)
        allowed = policy.valid_range
        if allowed is None:
            return cls(total=total, default=default, values=tuple(nano_amount(value) for value in policy.valid_values))
        return cls(
            total=total,
            default=default,
            lowest=_nano_or_none(allowed.min) or 0,
            highest=_nano_or_none(allowed.max),
            step=_nano_or_none(allowed.step),
        )

    def consumed(self, requested: int | None) -> int | None:
        """Return the amount that a request consumes (None: it names none); None if it exceeds the valid amounts."""
        if requested is None:
            return self.total if self.default is None else self.default
        if self.values:
            return next((value for value in self.values if value >= requested), None)
        taken = requested if self.lowest is None else self._in_range(requested, self.lowest)
        return None if self.highest is not None and taken > self.highest else taken

    def _in_range(self, requested: int, lowest: int) -> int:
        if requested <= lowest or not self.step:
            return max(requested, lowest)
        return lowest - (lowest - requested) // self.step * self.step


def nano_amount(text: QuantityText) -> int:
    """Return a quantity in nano units. Raises InvalidQuantityError, also if it is negative."""
    nano = quantity.parse(text).nano
    if nano < 0:
        raise InvalidQuantityError(f"{text!r} is negative", quantity=str(text))
    return nano


def _nano_or_none(text: QuantityText | None) -> int | None:
    return None if text is None else nano_amount(text)
