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


AmountId = CounterId | DeviceId
"""What has a limit: a counter, or a device that only one allocation may have, whose limit is 1."""


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
        is_compatible = offer.is_compatible(self.requirements, allow_undefined=undefined)
        return offer & self.requirements if is_compatible else None


ALL_NODES: Final = AccessibleNodes()


class PoolDevice(Struct, frozen=True, kw_only=True, eq=False):
    """A device. `capacity` only counts if it is `shared` (allowMultipleAllocations).

    An allocation takes `draws` of its pool's counters.
    """

    id: DeviceId
    facts: DeviceFacts
    capacity: Mapping[str, ConsumableCapacity]
    draws: tuple[tuple[CounterId, int], ...]
    shared: bool
    taints: tuple[Taint, ...]
    accessible_nodes: AccessibleNodes

    def counter(self, name: str) -> CounterId:
        """The counter of one of its capacities."""
        return CounterId(self.id.driver, self.id.pool, self.id.published, True, self.id.name, name)


class DevicePool(Struct, frozen=True, kw_only=True, eq=False):
    """Devices of one driver; `limits` are its counters, `defect` says why its devices are unavailable, if so."""

    driver: str
    name: str
    devices: tuple[PoolDevice, ...] = ()
    limits: Mapping[CounterId, int] = field(default_factory=dict)
    defect: str = ""


class PublishedPools:
    """The pools that drivers publish, and by node name the devices that the node can access."""

    def __init__(self, slices: Iterable[ResourceSlice], nodes: Collection[str]) -> None:
        """Of slices that belong to a node only those of `nodes` (by name) count."""
        by_owner = (
            (next((ref.name for ref in entry.metadata.owner_references if ref.kind == "Node"), None), entry.spec)
            for entry in slices
        )
        self.pools = pools_of((spec for owner, spec in by_owner if owner is None or owner in nodes), published=True)
        self._not_local: dict[int, DevicePool] = {}
        self._seen: dict[str, tuple[DevicePool, ...]] = {}
        self._named: dict[str, dict[int, list[PoolDevice]]] = {}
        for index, pool in enumerate(self.pools):
            not_local = tuple(device for device in pool.devices if device.accessible_nodes.nodes is None)
            if not_local or not pool.devices:
                self._not_local[index] = replace(pool, devices=not_local)
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


def pools_of(slices: Iterable[ResourceSliceSpec], *, published: bool) -> tuple[DevicePool, ...]:
    """Return the pools of slices that are published, or of those of a new node, by driver and name."""
    by_pool: dict[tuple[str, str], list[ResourceSliceSpec]] = {}
    for spec in slices:
        by_pool.setdefault((spec.driver, spec.pool.name), []).append(spec)
    return tuple(_pool(key, found, published=published) for key, found in sorted(by_pool.items()))


def _pool(key: tuple[str, str], slices: Sequence[ResourceSliceSpec], *, published: bool) -> DevicePool:
    driver, name = key
    if published:
        newest = max(spec.pool.generation for spec in slices)
        slices = [spec for spec in slices if spec.pool.generation == newest]
    try:
        limits = {
            CounterId(driver, name, published, False, counters.name, counter): nano_amount(found.value)
            for spec in slices
            for counters in spec.shared_counters
            for counter, found in counters.counters.items()
        }
        devices = tuple(
            _device(key, device, accessible_nodes, published=published)
            for spec in slices
            for device in (() if published and spec.shared_counters else spec.devices)
            if (accessible_nodes := _accessible_nodes(spec, device) if published else ALL_NODES) is not None
        )
    except InvalidQuantityError as error:
        return DevicePool(driver=driver, name=name, defect=error.message)
    pool = DevicePool(driver=driver, name=name, devices=devices, limits=limits)
    return replace(pool, defect=_defect(pool, slices, published=published))


def _defect(pool: DevicePool, slices: Sequence[ResourceSliceSpec], *, published: bool) -> str:
    if published and len(slices) != slices[0].pool.resource_slice_count:
        return f"it has {len(slices)} of its {slices[0].pool.resource_slice_count} slices"
    if len({device.id for device in pool.devices}) != len(pool.devices):
        return "two of its devices have the same name"
    sets = [counters.name for spec in slices for counters in spec.shared_counters]
    if published and len(set(sets)) != len(sets):
        return "two of its counter sets have the same name"
    if any(counter not in pool.limits for device in pool.devices for counter, _ in device.draws):
        return "a device draws on counters that it does not have"
    return ""


def _device(key: tuple[str, str], device: Device, accessible_nodes: AccessibleNodes, *, published: bool) -> PoolDevice:
    return PoolDevice(
        id=DeviceId(*key, device.name, published),
        facts=DeviceFacts.of(key[0], device),
        capacity={name: ConsumableCapacity.of(found) for name, found in device.capacity.items()},
        draws=tuple(
            (CounterId(*key, published, False, consumed.counter_set, name), nano_amount(counter.value))
            for consumed in device.consumes_counters
            for name, counter in consumed.counters.items()
        ),
        shared=device.allow_multiple_allocations,
        taints=tuple(Taint(t.key, t.effect, t.value) for t in device.taints if t.effect in _BLOCKING),
        accessible_nodes=accessible_nodes,
    )


def _accessible_nodes(spec: ResourceSliceSpec, device: Device) -> AccessibleNodes | None:
    where = device if spec.per_device_node_selection else spec
    if where.all_nodes or where.node_name:
        return ALL_NODES if where.all_nodes else AccessibleNodes(nodes=frozenset({where.node_name}))
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
        nodes = frozenset(entry.values) if nodes is None else nodes.intersection(entry.values)
    try:
        return AccessibleNodes(nodes, from_selectors(term.match_expressions))
    except InvalidRequirementError:
        return None


class ConsumableCapacity(Struct, frozen=True, kw_only=True):
    """One capacity of a device, in nano units: `total`, and the amounts that a request may consume.

    `default` is consumed by a request that names no amount; `values` (ascending) or `lowest` to `highest` in steps of
    `step` are the valid amounts, others are rounded up. Without either every amount is valid.
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
        total, policy = nano_amount(published.value), published.request_policy
        if policy is None:
            return cls(total=total)
        default, allowed = _nano_or_none(policy.default), policy.valid_range
        if allowed is None:
            return cls(total=total, default=default, values=tuple(map(nano_amount, policy.valid_values)))
        lowest, highest, step = map(_nano_or_none, (allowed.min, allowed.max, allowed.step))
        return cls(total=total, default=default, lowest=lowest or 0, highest=highest, step=step)

    def consumed(self, requested: int | None) -> int | None:
        """Return the amount that a request consumes (None: it names none); None if it exceeds the valid amounts."""
        if requested is None:
            return self.total if self.default is None else self.default
        if self.values:
            return next((value for value in self.values if value >= requested), None)
        if self.lowest is not None:
            missing = max(requested - self.lowest, 0)
            requested = self.lowest + (-(-missing // self.step) * self.step if self.step else missing)
        return None if self.highest is not None and requested > self.highest else requested


def nano_amount(text: QuantityText) -> int:
    """Return a quantity in nano units. Raises InvalidQuantityError, also if it is negative."""
    nano = quantity.parse(text).nano
    if nano < 0:
        raise InvalidQuantityError(f"{text!r} is negative", quantity=str(text))
    return nano


def _nano_or_none(text: QuantityText | None) -> int | None:
    return None if text is None else nano_amount(text)
