"""Tracks which devices pods hold while they are scheduled.

A new node may become one of several instance types, and the devices of its pods may differ between them. A node
therefore has *options*: sets of instance types with the devices that they would hold. To other nodes' pods every device
of any option is taken, and of counters and shared capacity the maximum over the options. Options without the devices
are dropped, and their instance types with them.

A ResourceClaim that several pods share is allocated once. If it has a device of the node itself, its pods must stay
together on that node.

Restates: karpenter pkg/scheduling/dynamicresources/allocator.go `Allocate`, allocationtracker.go `AllocationTracker`;
pkg/controllers/provisioning/dra.go `gatherAllocatedDevices`; pkg/controllers/provisioning/scheduling/dra.go
`draExistingNode`.
Differs: types with the same devices are searched once; a node keeps only types that need the same drivers as its
cheapest, since its NodeClaim names the drivers to wait for, and does not wait for drivers whose devices are published
elsewhere; the maximum over a node's options does not count against its own pods; pods that wait for a node that is not
initialized hold some of its devices (Karpenter counts these as free).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.dra import ResourceSlice, ResourceSliceSpec
from journeyman.core.catalogue import InstanceType
from journeyman.core.scheduling.dra.devices import (
    AccessibleNodes,
    CounterId,
    DeviceId,
    DevicePool,
    PublishedPools,
    nano_amount,
    published_pools,
    template_pools,
)
from journeyman.core.scheduling.dra.requests import ClaimReader, DeviceDemand, ParsedRequest
from journeyman.core.scheduling.dra.search import MAX_TRIES, ChosenDevice, DeviceSearch, SearchBudget, TargetNode
from journeyman.core.scheduling.requirements import EMPTY, Requirements, from_labels
from journeyman.core.scheduling.results import PlannedDevice, PodError
from journeyman.core.state.state_node import StateNode
from journeyman.errors import InvalidQuantityError

_EXISTING_NODE = ""
"""Key of an existing node's only option, instead of an instance type."""


class DeviceInventory(Struct, kw_only=True, eq=False):
    """The devices of a cluster. Pods may be scheduled on `nodes`, in this order; `claims` reads all claims."""

    published: PublishedPools
    claims: ClaimReader
    nodes: Sequence[StateNode]
    taken: frozenset[DeviceId]
    used: Mapping[CounterId, int]
    types: Mapping[tuple[str, str], InstanceType]
    rescheduled: Collection[str]
    _templates: dict[bytes, tuple[DevicePool, ...]] = field(default_factory=dict)
    _targets: dict[int, AllocationTarget] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        claims: ClaimReader,
        slices: Iterable[ResourceSlice],
        nodes: Sequence[StateNode],
        types: Mapping[tuple[str, str], InstanceType],
        rescheduled: Collection[str],
    ) -> DeviceInventory:
        """Return the devices of a cluster.

        Args:
            claims: All claims.
            slices: The ResourceSlices that drivers publish.
            nodes: The nodes that pods may be scheduled on.
            types: Instance types by NodePool and name.
            rescheduled: Keys of the pods to schedule, bound or not.
        """
        ready = frozenset(node.name for node in nodes if node.initialized and node.node is not None)
        pools = published_pools(slices, ready)
        taken, used = _in_use(claims, pools)
        return cls(
            published=PublishedPools(pools),
            claims=claims,
            nodes=nodes,
            taken=taken,
            used=used,
            types=types,
            rescheduled=rescheduled,
        )

    def begin(self) -> AllocationTracker:
        """Return a tracker in which bound pods hold devices: of unallocated claims, on uninitialized nodes of all claims."""
        tracker = AllocationTracker(self.published, self.taken, self.used)
        for index, node in enumerate(self.nodes):
            for pod in node.pods:
                if pod.spec.resource_claims and pod.key not in self.rescheduled and not self.claims.is_rescheduled(pod):
                    demands = self.claims.read(pod, ignore_allocation=not node.initialized)
                    if not isinstance(demands, PodError):
                        proposal = tracker.propose(index, self.target(index), demands, -1, 0)
                        if proposal is not None:
                            tracker.commit(index, proposal)
        return tracker

    def target(self, node_index: int) -> AllocationTarget:
        """Return an existing node; until it is initialized, it has the devices of its instance type."""
        if node_index not in self._targets:
            self._targets[node_index] = self._existing_target(self.nodes[node_index])
        return self._targets[node_index]

    def _existing_target(self, node: StateNode) -> AllocationTarget:
        pools: tuple[DevicePool, ...] = ()
        if not node.initialized:
            instance_type = self.types.get((node.node_pool, node.labels.get(labels.INSTANCE_TYPE, "")))
            pools = self.pools_of(instance_type.device_slices) if instance_type is not None else ()
        option = AllocationOption(types=frozenset({_EXISTING_NODE}), pools=pools)
        return AllocationTarget(name=node.name, offer=from_labels(node.labels), options=(option,))

    def new_target(self, types: Iterable[InstanceType], offer: Requirements) -> AllocationTarget:
        """Return a new node that may become any of these types; types with the same devices are one option."""
        by_devices: dict[bytes, list[InstanceType]] = {}
        for instance_type in types:
            by_devices.setdefault(_content(instance_type.device_slices), []).append(instance_type)
        options = [
            AllocationOption(types=frozenset(t.name for t in alike), pools=self.pools_of(alike[0].device_slices))
            for alike in by_devices.values()
        ]
        return AllocationTarget(name="", offer=offer, options=options)

    def pools_of(self, slices: tuple[ResourceSliceSpec, ...]) -> tuple[DevicePool, ...]:
        """Return the pools of a new node with these slices."""
        key = _content(slices)
        if key not in self._templates:
            self._templates[key] = template_pools(slices)
        return self._templates[key]

    def explain_failure(self, demands: Iterable[DeviceDemand], allocations: AllocationTracker | None = None) -> str:
        """Return why a pod's devices are not available on any node."""
        requests = [request for demand in demands for request in demand.requests]
        pools = self._all_pools()
        devices = [device for pool in pools if not pool.defect for device in pool.devices]
        for request in requests:
            if not any(map(request.would_select, devices)):
                missing = f"no published device and no instance type has what {_shown(request)} selects"
                return missing + _left_out([request], pools)
        if allocations is not None and allocations.exhausted:
            return "the search for devices took so long that it was given up"
        if not requests:
            return "its claims are bound elsewhere"
        shown = ", ".join(map(_shown, requests))
        return f"the devices for {shown} cannot be had together on one node" + _left_out(requests, pools)

    def _all_pools(self) -> Sequence[DevicePool]:
        templates = {_content(t.device_slices): t.device_slices for t in self.types.values() if t.device_slices}
        return (*self.published.pools, *(pool for slices in templates.values() for pool in self.pools_of(slices)))


def _left_out(requests: Sequence[ParsedRequest], pools: Iterable[DevicePool]) -> str:
    """Return the first pool with a defect that has devices for these requests, as the end of a message; empty if none has."""
    for pool in pools:
        if pool.defect and (not pool.devices or any(r.would_select(d) for r in requests for d in pool.devices)):
            return f"; pool {pool.driver}/{pool.name} is left out because {pool.defect}"
    return ""


def _shown(request: ParsedRequest) -> str:
    classes = dict.fromkeys(alternative.device_class for alternative in request.alternatives)
    return f"request {request.name!r} (DeviceClass {' or '.join(classes)})"


def _content(slices: tuple[ResourceSliceSpec, ...]) -> bytes:
    return msgspec.msgpack.encode(slices, order="deterministic") if slices else b""


def _in_use(claims: ClaimReader, pools: Iterable[DevicePool]) -> tuple[frozenset[DeviceId], dict[CounterId, int]]:
    """Return the allocated devices, and the used amounts of counters and shared capacity."""
    taken: set[DeviceId] = set()
    used: dict[CounterId, int] = {}
    for claim in claims:
        if claim.status.allocation is None or claims.is_released(claim):
            continue
        for result in claim.status.allocation.devices.results:
            if result.admin_access:
                continue
            device = DeviceId(result.driver, result.pool, result.device)
            taken.add(device)
            for name, text in result.consumed_capacity.items():
                counter = CounterId(result.driver, result.pool, True, True, result.device, name)
                used[counter] = used.get(counter, 0) + _amount_or_zero(text)
    for pool in pools:
        for found in pool.devices:
            if found.id in taken:
                for counter, drawn in found.draws:
                    used[counter] = used.get(counter, 0) + drawn
    return frozenset(taken), used


def _amount_or_zero(text: str | int | float) -> int:
    """Return the amount; 0 if it is invalid."""
    try:
        return nano_amount(text)
    except InvalidQuantityError:
        return 0


_PASS_BUDGET: Final = 500_000
"""Limit of devices tried in all searches of a pass; later pods get no devices."""


class AllocatedDevice(Struct, frozen=True):
    """A device for a claim: of the `pod`-th pod of a row on this node, or a named claim if `key` is set."""

    row: int
    pod: int
    position: int
    key: str
    request: str
    device: DeviceId


class SharedClaim(Struct, frozen=True, kw_only=True):
    """The nodes that can access the devices of an allocated claim: those that meet `requirements`, or only its own (`local`)."""

    requirements: Requirements
    local: bool


class AllocationOption(Struct, frozen=True, kw_only=True, eq=False):
    """The devices that a node's pods hold if it is one of these instance types (an existing node: one without a name).

    `pools` are the devices of such a node; `devices` and `amounts` are taken from these and from published pools.
    `shared` are the shared claims that are allocated there, by key.
    """

    types: frozenset[str]
    pools: tuple[DevicePool, ...] = ()
    devices: frozenset[DeviceId] = frozenset()
    amounts: Mapping[CounterId, int] = field(default_factory=dict)
    allocated_devices: tuple[AllocatedDevice, ...] = ()
    shared: Mapping[str, SharedClaim] = field(default_factory=dict)

    @property
    def drivers(self) -> tuple[str, ...]:
        """The drivers, by name, of the allocated devices that the node itself will publish."""
        return tuple(
            sorted({allocated.device.driver for allocated in self.allocated_devices if not allocated.device.published})
        )

    def with_devices(
        self,
        chosen: Iterable[ChosenDevice],
        allocated_devices: Iterable[AllocatedDevice],
        shared: Mapping[str, SharedClaim],
    ) -> AllocationOption:
        """Return the option with more devices taken and more shared claims allocated."""
        amounts = dict(self.amounts)
        taken = set(self.devices)
        for choice in chosen:
            if choice.exclusive:
                taken.add(choice.device.id)
            for counter, amount in choice.draws:
                amounts[counter] = amounts.get(counter, 0) + amount
        return replace(
            self,
            devices=frozenset(taken),
            amounts=amounts,
            allocated_devices=(*self.allocated_devices, *allocated_devices),
            shared={**self.shared, **shared},
        )


class AllocationTarget(Struct, frozen=True, kw_only=True):
    """A node to allocate devices on: an existing one with its `name` and labels as `offer`, or a new one.

    `options` are what it may become while it holds no devices.
    """

    name: str
    offer: Requirements
    options: Sequence[AllocationOption]


class AllocationProposal(Struct, frozen=True, kw_only=True, eq=False):
    """A possible allocation: the options left, what the node may still offer, the keys of shared claims that it allocates."""

    options: tuple[AllocationOption, ...]
    offer: Requirements
    newly_shared: tuple[str, ...]

    @property
    def types(self) -> frozenset[str]:
        """The instance types left."""
        return frozenset().union(*(option.types for option in self.options))


class AllocationTracker:
    """The devices that pods hold on all nodes of a pass, by node index; pools and other allocations do not change."""

    def __init__(self, published: PublishedPools, taken: frozenset[DeviceId], used: Mapping[CounterId, int]) -> None:
        """`taken` and `used` are the published devices and amounts that are not available."""
        self._published = published
        self._taken = taken
        self._used = dict(used)
        self._options: dict[int, tuple[AllocationOption, ...]] = {}
        self._owner: dict[DeviceId, int] = {}
        self._maximum_amounts: dict[int, Mapping[CounterId, int]] = {}
        self._shared: dict[str, int] = {}  # the node on which each shared claim is allocated
        self._budget = _PASS_BUDGET
        self.releases = 0
        """Number of releases of published devices; after a release, a failed search may succeed."""

    def copy(self) -> AllocationTracker:
        """Return an independent copy."""
        copy = AllocationTracker(self._published, self._taken, self._used)
        copy._options = dict(self._options)
        copy._owner = dict(self._owner)
        copy._maximum_amounts = dict(self._maximum_amounts)
        copy._shared = dict(self._shared)
        copy._budget = self._budget
        return copy

    @property
    def exhausted(self) -> bool:
        """Whether the pass has used up its search budget."""
        return self._budget <= 0

    def options_of(self, node_index: int) -> tuple[AllocationOption, ...]:
        """Return the options of a node; empty if its pods hold no devices."""
        return self._options.get(node_index, ())

    def propose(
        self, node_index: int, target: AllocationTarget, demands: Sequence[DeviceDemand], row: int, pod: int
    ) -> AllocationProposal | None:
        """Return an allocation of a pod's devices on a node; None if there is none.

        Args:
            node_index: The index of the node; new nodes follow existing ones.
            target: The node.
            demands: The requests of the pod's claims.
            row: The pod's row.
            pod: The number of pods of that row already on the node.
        """
        pending: list[tuple[int, DeviceDemand]] = []
        offer = target.offer
        for position, demand in enumerate(demands):
            if demand.held is None and demand.key not in self._shared:
                pending.append((position, demand))
                continue
            left = self._with_allocated(demand, node_index, target.name, offer)
            if left is None:
                return None
            offer = left
        return self._allocate(node_index, replace(target, offer=offer), pending, row, pod)

    def _with_allocated(
        self, demand: DeviceDemand, node_index: int, name: str, offer: Requirements
    ) -> Requirements | None:
        """Return the node's offer, narrowed to nodes that can access a claim's allocated devices; None if none can."""
        if demand.held is not None:
            return demand.held.narrowed(name, offer)
        owner = self._shared[demand.key]
        if node_index == owner:
            return offer
        for option in self.options_of(owner):
            shared = option.shared[demand.key]
            left = None if shared.local else AccessibleNodes(requirements=shared.requirements).narrowed(name, offer)
            if left is None:
                return None
            offer = left
        return offer

    def _allocate(
        self, node_index: int, target: AllocationTarget, pending: Sequence[tuple[int, DeviceDemand]], row: int, pod: int
    ) -> AllocationProposal | None:
        offer = target.offer
        kept: list[AllocationOption] = []
        for option in self._options_at(node_index, target):
            search = self._search(node_index, target.name, offer, option, pending)
            if search is None:
                continue
            keys = {position: demand.key for position, demand in pending}
            allocated_devices = (
                AllocatedDevice(row, pod, choice.claim, keys[choice.claim], choice.alternative.name, choice.device.id)
                for choice in search.chosen
            )
            extended = option.with_devices(search.chosen, allocated_devices, dict(_shared(pending, search.chosen)))
            if kept and extended.drivers != kept[0].drivers:
                continue
            offer = search.offer  # later types must suit the devices of earlier ones
            kept.append(extended)
        if not kept:
            return None
        newly_shared = tuple(demand.key for _, demand in pending if demand.key)
        return AllocationProposal(options=tuple(kept), offer=offer, newly_shared=newly_shared)

    def _options_at(self, node_index: int, target: AllocationTarget) -> Sequence[AllocationOption]:
        """Return the node's options, limited to the target's instance types."""
        left = frozenset().union(*(option.types for option in target.options))
        options = self._options.get(node_index)
        if options is None:
            return target.options
        return [replace(option, types=option.types & left) for option in options if option.types & left]

    def _search(
        self,
        node_index: int,
        name: str,
        offer: Requirements,
        option: AllocationOption,
        pending: Sequence[tuple[int, DeviceDemand]],
    ) -> DeviceSearch | None:
        """Return a successful search; None if the devices are not available."""
        budget = SearchBudget(min(MAX_TRIES, max(self._budget, 0)))
        before = budget.left
        search = DeviceSearch(node=self._node(node_index, name, offer, option), demands=pending, budget=budget)
        found = search.run()
        self._budget -= before - max(budget.left, 0)
        return search if found else None

    def _node(self, node_index: int, name: str, offer: Requirements, option: AllocationOption) -> TargetNode:
        maximum = self._maximum_amounts.get(node_index, {})
        pools = (*self._published.seen_from(name), *option.pools)

        def is_taken(device: DeviceId) -> bool:
            if device in self._taken or device in option.devices:
                return True
            return self._owner.get(device, node_index) != node_index

        def used(counter: CounterId) -> int:
            return self._used.get(counter, 0) - maximum.get(counter, 0) + option.amounts.get(counter, 0)

        return TargetNode(name=name, offer=offer, pools=pools, is_taken=is_taken, used=used)

    # -- committing ---------------------------------------------------------------------------------------------------

    def commit(self, node_index: int, proposal: AllocationProposal, types: Collection[str] | None = None) -> None:
        """Take the proposed devices; `types` are the instance types left, by default all."""
        for key in proposal.newly_shared:
            self._shared[key] = node_index
        self._set_options(node_index, proposal.options if types is None else _of_types(proposal.options, types))

    def keep(self, node_index: int, types: Collection[str]) -> None:
        """Keep only these types of a node; release the devices of its other options."""
        if node_index in self._options:
            self._set_options(node_index, _of_types(self._options[node_index], types))

    def _set_options(self, node_index: int, options: tuple[AllocationOption, ...]) -> None:
        before, devices = _held_devices(self.options_of(node_index)), _held_devices(options)
        maximum_before, maximum = self._maximum_amounts.get(node_index, {}), _maximum_amounts(options)
        for device in before - devices:
            del self._owner[device]
        for device in devices - before:
            self._owner[device] = node_index
        for counter in {**maximum_before, **maximum}:
            more = maximum.get(counter, 0) - maximum_before.get(counter, 0)
            self._used[counter] = self._used.get(counter, 0) + more
            self.releases += more < 0
        self.releases += bool(before - devices)
        self._options[node_index] = options
        self._maximum_amounts[node_index] = maximum


def _shared(
    pending: Iterable[tuple[int, DeviceDemand]], chosen: Sequence[ChosenDevice]
) -> Iterator[tuple[str, SharedClaim]]:
    """Yield each shared claim with the nodes that can access all devices chosen for it."""
    for position, demand in pending:
        if demand.key:
            devices = [choice.device for choice in chosen if choice.claim == position]
            requirements = EMPTY
            for device in devices:
                requirements = requirements & device.accessible_nodes.requirements
            local = any(not device.id.published or device.accessible_nodes.nodes is not None for device in devices)
            yield demand.key, SharedClaim(requirements=requirements, local=local)


def _held_devices(options: Iterable[AllocationOption]) -> frozenset[DeviceId]:
    """Return the published devices that any of these options holds."""
    return frozenset(device for option in options for device in option.devices if device.published)


def _of_types(options: Iterable[AllocationOption], types: Collection[str]) -> tuple[AllocationOption, ...]:
    left = frozenset(types)
    return tuple(replace(option, types=option.types & left) for option in options if option.types & left)


def _maximum_amounts(options: Iterable[AllocationOption]) -> dict[CounterId, int]:
    """Return the maximum of each published counter over the options."""
    found: dict[CounterId, int] = {}
    for option in options:
        for counter, amount in option.amounts.items():
            if counter.published:
                found[counter] = max(found.get(counter, 0), amount)
    return found


PodsByRow = Mapping[int, Sequence[str]]
"""The keys of the pods on a node by row, in scheduling order."""


def planned_devices(
    options: Iterable[AllocationOption], drawn: PodsByRow, names: Mapping[str, Sequence[str]], shared: Collection[str]
) -> dict[str, tuple[PlannedDevice, ...]]:
    """Return the planned devices on a node, by instance type (an existing node: one without a name).

    Args:
        options: Its options.
        drawn: The pods on the node.
        names: The claims of every pod, in the order of their demands.
        shared: The shared claims whose devices are included although they are held by a bound pod.
    """
    return {
        name: tuple(
            _planned_device(allocated, drawn, names)
            for allocated in option.allocated_devices
            if allocated.row >= 0 or allocated.key in shared
        )
        for option in options
        for name in sorted(option.types)
    }


def drivers_of(options: Sequence[AllocationOption]) -> tuple[str, ...]:
    """Return the drivers, by name, that must publish devices before the node's pods can run; equal for all options."""
    return options[0].drivers if options else ()


def _planned_device(allocated: AllocatedDevice, drawn: PodsByRow, names: Mapping[str, Sequence[str]]) -> PlannedDevice:
    return PlannedDevice(
        claim=allocated.key or names[drawn[allocated.row][allocated.pod]][allocated.position],
        request=allocated.request,
        driver=allocated.device.driver,
        pool=allocated.device.pool,
        device=allocated.device.name,
        published=allocated.device.published,
    )
