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

from collections.abc import Collection, Iterable, Mapping, Sequence
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
"""Key of an existing node's only option, in place of an instance type."""


class DeviceInventory(Struct, kw_only=True, eq=False):
    """The devices of a cluster. `nodes` are those that pods may be scheduled on, in order; `claims` reads all claims."""

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
        """The devices of a cluster.

        Args:
            claims: All claims.
            slices: What drivers publish.
            nodes: The nodes that pods may be put on.
            types: Instance types by NodePool and name.
            rescheduled: Keys of the pods that are to be placed, wherever they are now.
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
        """Return a tracker in which bound pods hold the devices of unallocated claims; before initialization, of all claims."""
        made = AllocationTracker(self.published, self.taken, self.used)
        for place, node in enumerate(self.nodes):
            for pod in node.pods:
                if pod.spec.resource_claims and pod.key not in self.rescheduled and not self.claims.leaves(pod):
                    demands = self.claims.read(pod, ignore_allocation=not node.initialized)
                    if not isinstance(demands, PodError):
                        found = made.propose(place, self.target(place), demands, -1, 0)
                        if found is not None:
                            made.commit(place, found)
        return made

    def target(self, place: int) -> AllocationTarget:
        """An existing node; until it is initialized it has the devices that its instance type promises."""
        if place not in self._targets:
            self._targets[place] = self._existing_target(self.nodes[place])
        return self._targets[place]

    def _existing_target(self, node: StateNode) -> AllocationTarget:
        brought: tuple[DevicePool, ...] = ()
        if not node.initialized:
            named = self.types.get((node.node_pool, node.labels.get(labels.INSTANCE_TYPE, "")))
            brought = self.brought_by(named.device_slices) if named is not None else ()
        option = AllocationOption(types=frozenset({_EXISTING_NODE}), pools=brought)
        return AllocationTarget(name=node.name, offer=from_labels(node.labels), options=(option,))

    def new_target(self, types: Iterable[InstanceType], offer: Requirements) -> AllocationTarget:
        """A new node that may become any of these types; types with the same devices are one option."""
        known: dict[bytes, list[InstanceType]] = {}
        for instance_type in types:
            known.setdefault(_content(instance_type.device_slices), []).append(instance_type)
        options = [
            AllocationOption(types=frozenset(t.name for t in alike), pools=self.brought_by(alike[0].device_slices))
            for alike in known.values()
        ]
        return AllocationTarget(name="", offer=offer, options=options)

    def brought_by(self, slices: tuple[ResourceSliceSpec, ...]) -> tuple[DevicePool, ...]:
        """The pools that a new node with these slices has."""
        key = _content(slices)
        if key not in self._templates:
            self._templates[key] = template_pools(slices)
        return self._templates[key]

    def why_none(self, demands: Iterable[DeviceDemand], allocations: AllocationTracker | None = None) -> str:
        """Return why a pod's devices are not available on any node."""
        requests = [request for demand in demands for request in demand.requests]
        for request in requests:
            if not self._anywhere(request):
                return f"no published device and no instance type has what {_shown(request)} selects"
        if allocations is not None and allocations.exhausted:
            return "the search for devices took so long that it was given up"
        shown = ", ".join(map(_shown, requests))
        return (
            f"the devices for {shown} cannot be had together on one node" if shown else "its claims are bound elsewhere"
        )

    def _anywhere(self, request: ParsedRequest) -> bool:
        brought = {_content(t.device_slices): t.device_slices for t in self.types.values() if t.device_slices}
        pools = (*self.published.pools, *(pool for slices in brought.values() for pool in self.brought_by(slices)))
        devices = [device for pool in pools if not pool.defect for device in pool.devices]
        return any(alternative.would_select(device) for alternative in request.alternatives for device in devices)


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
        if claim.status.allocation is None or claims.gives_back(claim):
            continue
        for result in claim.status.allocation.devices.results:
            if result.admin_access:
                continue
            device = DeviceId(result.driver, result.pool, result.device)
            taken.add(device)
            for name, text in result.consumed_capacity.items():
                counter = CounterId(result.driver, result.pool, True, True, result.device, name)
                used[counter] = used.get(counter, 0) + _read(text)
    for pool in pools:
        for found in pool.devices:
            if found.id in taken:
                for counter, drawn in found.draws:
                    used[counter] = used.get(counter, 0) + drawn
    return frozenset(taken), used


def _read(text: str | int | float) -> int:
    """An amount; an invalid one counts as 0."""
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


class AllocationOption(Struct, frozen=True, kw_only=True, eq=False):
    """The devices that a node holds if it is one of these instance types (one without a name if it exists).

    `pools` are the devices that such a node brings, `devices` and `amounts` what is taken of these and of published ones.
    """

    types: frozenset[str]
    pools: tuple[DevicePool, ...] = ()
    devices: frozenset[DeviceId] = frozenset()
    amounts: Mapping[CounterId, int] = field(default_factory=dict)
    allocated_devices: tuple[AllocatedDevice, ...] = ()

    @property
    def drivers(self) -> tuple[str, ...]:
        """The drivers, by name, of the allocated devices that the node will bring."""
        return tuple(
            sorted({allocated.device.driver for allocated in self.allocated_devices if not allocated.device.published})
        )

    def with_devices(
        self, chosen: Iterable[ChosenDevice], allocated_devices: Iterable[AllocatedDevice]
    ) -> AllocationOption:
        """Return the option with more devices taken."""
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
        )


class AllocationTarget(Struct, frozen=True, kw_only=True):
    """A node to allocate devices on: an existing one with its `name` and labels as `offer`, or a new one.

    `options` are what it may become while it holds no devices.
    """

    name: str
    offer: Requirements
    options: Sequence[AllocationOption]


class SharedClaim(Struct, frozen=True, kw_only=True):
    """A claim allocated in this pass: its node, the nodes that can access its devices, whether it is bound to its node."""

    place: int
    wanted: Requirements
    local: bool


class AllocationProposal(Struct, frozen=True, kw_only=True, eq=False):
    """A possible allocation: the options left, what the node may still offer, the shared claims allocated by it."""

    options: tuple[AllocationOption, ...]
    offer: Requirements
    decided: tuple[tuple[str, bool, Requirements], ...]

    @property
    def types(self) -> frozenset[str]:
        """The instance types left."""
        return frozenset().union(*(option.types for option in self.options))


class AllocationTracker:
    """The devices held on all nodes of a pass, by the node's number; pools and other allocations do not change."""

    def __init__(self, published: PublishedPools, taken: frozenset[DeviceId], used: Mapping[CounterId, int]) -> None:
        """`taken` and `used` are the published devices and amounts that are not available."""
        self._held_devices = published
        self._taken = taken
        self._used = dict(used)
        self._options: dict[int, tuple[AllocationOption, ...]] = {}
        self._owner: dict[DeviceId, int] = {}
        self._most: dict[int, Mapping[CounterId, int]] = {}
        self._shared: dict[str, SharedClaim] = {}
        self._budget = _PASS_BUDGET
        self.releases = 0
        """Number of releases of published devices; after a release, a failed search may succeed."""

    def copy(self) -> AllocationTracker:
        """Return an independent copy."""
        made = AllocationTracker(self._held_devices, self._taken, self._used)
        made._options = dict(self._options)
        made._owner = dict(self._owner)
        made._most = dict(self._most)
        made._shared = dict(self._shared)
        made._budget = self._budget
        return made

    @property
    def exhausted(self) -> bool:
        """Whether the pass has used up its search budget."""
        return self._budget <= 0

    def options_of(self, place: int) -> tuple[AllocationOption, ...]:
        """The options of a node; empty if it holds no devices."""
        return self._options.get(place, ())

    def propose(
        self, place: int, target: AllocationTarget, demands: Sequence[DeviceDemand], row: int, pod: int
    ) -> AllocationProposal | None:
        """Return an allocation of a pod's devices on a node; None if there is none.

        Args:
            place: The node's number, also of a new one.
            target: The node.
            demands: The requests of the pod's claims.
            row: The pod's row, and
            pod: how many pods of that row are there already.
        """
        pending: list[tuple[int, DeviceDemand]] = []
        offer = target.offer
        for position, demand in enumerate(demands):
            if demand.held is None and demand.key not in self._shared:
                pending.append((position, demand))
                continue
            left = self._with_allocated(demand, place, target.name, offer)
            if left is None:
                return None
            offer = left
        return self._found(place, replace(target, offer=offer), pending, row, pod)

    def _with_allocated(self, demand: DeviceDemand, place: int, name: str, offer: Requirements) -> Requirements | None:
        """Return the node's offer, narrowed to nodes that can access a claim's allocated devices; None if none can."""
        if demand.held is not None:
            return demand.held.narrowed(name, offer)
        known = self._shared[demand.key]
        if place == known.place:
            return offer
        return None if known.local else AccessibleNodes(wanted=known.wanted).narrowed(name, offer)

    def _found(
        self, place: int, target: AllocationTarget, pending: Sequence[tuple[int, DeviceDemand]], row: int, pod: int
    ) -> AllocationProposal | None:
        offer = target.offer
        kept: list[AllocationOption] = []
        chosen: list[ChosenDevice] = []
        for option in self._options_at(place, target):
            search = self._search(place, target.name, offer, option, pending)
            if search is None:
                continue
            keys = {position: demand.key for position, demand in pending}
            allocated_devices = (
                AllocatedDevice(row, pod, choice.claim, keys[choice.claim], choice.alternative.name, choice.device.id)
                for choice in search.chosen
            )
            made = option.with_devices(search.chosen, allocated_devices)
            if kept and made.drivers != kept[0].drivers:
                continue
            offer = search.offer  # later types must suit the devices of earlier ones
            kept.append(made)
            chosen += search.chosen
        if not kept:
            return None
        return AllocationProposal(options=tuple(kept), offer=offer, decided=tuple(_decided(pending, chosen)))

    def _options_at(self, place: int, target: AllocationTarget) -> Sequence[AllocationOption]:
        """Return the node's options, limited to the target's instance types."""
        left = frozenset().union(*(option.types for option in target.options))
        held = self._options.get(place)
        if held is None:
            return target.options
        return [replace(option, types=option.types & left) for option in held if option.types & left]

    def _search(
        self,
        place: int,
        name: str,
        offer: Requirements,
        option: AllocationOption,
        pending: Sequence[tuple[int, DeviceDemand]],
    ) -> DeviceSearch | None:
        """Return a successful search; None if the devices are not available."""
        budget = SearchBudget(min(MAX_TRIES, max(self._budget, 0)))
        before = budget.left
        search = DeviceSearch(node=self._node(place, name, offer, option), demands=pending, budget=budget)
        found = search.run()
        self._budget -= before - max(budget.left, 0)
        return search if found else None

    def _node(self, place: int, name: str, offer: Requirements, option: AllocationOption) -> TargetNode:
        maximum = self._most.get(place, {})
        pools = (*self._held_devices.seen_from(name), *option.pools)

        def is_taken(device: DeviceId) -> bool:
            if device in self._taken or device in option.devices:
                return True
            return self._owner.get(device, place) != place

        def used(counter: CounterId) -> int:
            return self._used.get(counter, 0) - maximum.get(counter, 0) + option.amounts.get(counter, 0)

        return TargetNode(name=name, offer=offer, pools=pools, is_taken=is_taken, used=used)

    # -- deciding -----------------------------------------------------------------------------------------------------

    def commit(self, place: int, proposal: AllocationProposal, types: Collection[str] | None = None) -> None:
        """Take the proposed devices; `types` are the instance types left, by default all."""
        for key, local, wanted in proposal.decided:
            self._shared[key] = SharedClaim(place=place, wanted=wanted, local=local)
        self._hold(place, proposal.options if types is None else _of_types(proposal.options, types))

    def keep(self, place: int, types: Collection[str]) -> None:
        """Keep only these types of a node; the devices of its other options are released."""
        if place in self._options:
            self._hold(place, _of_types(self._options[place], types))

    def _hold(self, place: int, options: tuple[AllocationOption, ...]) -> None:
        before, devices = _held_devices(self.options_of(place)), _held_devices(options)
        most_before, maximum = self._most.get(place, {}), _most(options)
        for device in before - devices:
            del self._owner[device]
        for device in devices - before:
            self._owner[device] = place
        for counter in {**most_before, **maximum}:
            more = maximum.get(counter, 0) - most_before.get(counter, 0)
            self._used[counter] = self._used.get(counter, 0) + more
            self.releases += more < 0
        self.releases += bool(before - devices)
        self._options[place] = options
        self._most[place] = maximum


def _decided(
    pending: Iterable[tuple[int, DeviceDemand]], chosen: Sequence[ChosenDevice]
) -> Iterable[tuple[str, bool, Requirements]]:
    """Yield each shared claim, whether it is bound to the node, and requirements of the nodes that can access it."""
    for position, demand in pending:
        if demand.key:
            devices = [choice.device for choice in chosen if choice.claim == position]
            wanted = EMPTY
            for device in devices:
                wanted = wanted & device.accessible_nodes.wanted
            local = any(not device.id.published or device.accessible_nodes.nodes is not None for device in devices)
            yield demand.key, local, wanted


def _held_devices(options: Iterable[AllocationOption]) -> frozenset[DeviceId]:
    """The published devices that any of these holds."""
    return frozenset(device for option in options for device in option.devices if device.published)


def _of_types(options: Iterable[AllocationOption], types: Collection[str]) -> tuple[AllocationOption, ...]:
    left = frozenset(types)
    return tuple(replace(option, types=option.types & left) for option in options if option.types & left)


def _most(options: Iterable[AllocationOption]) -> dict[CounterId, int]:
    """The maximum of each published counter over the options."""
    found: dict[CounterId, int] = {}
    for option in options:
        for counter, amount in option.amounts.items():
            if counter.published:
                found[counter] = max(found.get(counter, 0), amount)
    return found


Drawn = Mapping[int, Sequence[str]]
"""The keys of the pods on a node by row, in scheduling order."""


def planned_devices(
    options: Iterable[AllocationOption], drawn: Drawn, names: Mapping[str, Sequence[str]], shared: Collection[str]
) -> dict[str, tuple[PlannedDevice, ...]]:
    """Return the devices on a node, by instance type (one without a name if it exists).

    Args:
        options: Its options.
        drawn: The pods there.
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
    """The drivers, by name, whose devices a node must publish before its pods can run; equal for all options."""
    return options[0].drivers if options else ()


def _planned_device(allocated: AllocatedDevice, drawn: Drawn, names: Mapping[str, Sequence[str]]) -> PlannedDevice:
    return PlannedDevice(
        claim=allocated.key or names[drawn[allocated.row][allocated.pod]][allocated.position],
        request=allocated.request,
        driver=allocated.device.driver,
        pool=allocated.device.pool,
        device=allocated.device.name,
        published=allocated.device.published,
    )
