"""Allocates devices to the pods of one plan, node by node.

A new node may become one of several instance types, and the devices of its pods may differ between them. A node
therefore has *options*: sets of instance types with the devices that they would hold. To other nodes' pods every device
of any option is taken, and of counters and shared capacity the maximum over the options. Options without the devices
are dropped, and their instance types with them.

A ResourceClaim that several pods share is allocated once. If it has a device of the node itself, its pods must stay
together on that node.

Restates: karpenter pkg/scheduling/dynamicresources/allocator.go `Allocate`, allocationtracker.go `AllocationTracker`;
pkg/controllers/provisioning/dra.go `gatherAllocatedDevices`; pkg/controllers/provisioning/scheduling/dra.go
`draExistingNode`, nodeclaim.go `tryVolumeAlternative`, existingnode.go `CanAdd`, as far as they allocate devices.
Differs: types with the same devices are searched once; a node keeps only types that need the same drivers as its
cheapest, since its NodeClaim names the drivers to wait for, and does not wait for drivers whose devices are published
elsewhere; the maximum over a node's options does not count against its own pods; pods that wait for a node that is not
initialized hold some of its devices (Karpenter counts these as free); the search considers the pod's own node
requirements.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from copy import copy
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
    PoolDevice,
    PublishedPools,
    nano_amount,
    published_pools,
    template_pools,
)
from journeyman.core.scheduling.dra.requests import ClaimReader, ClaimRequests, ParsedRequest
from journeyman.core.scheduling.dra.search import MAX_TRIES, ChosenDevice, DeviceSearch, SearchBudget, TargetNode
from journeyman.core.scheduling.requirements import EMPTY, Requirements, from_labels, requirement
from journeyman.core.scheduling.results import PlannedClaim, PlannedDevice, PodError
from journeyman.core.state.state_node import StateNode
from journeyman.errors import InvalidQuantityError

_EXISTING: Final = frozenset({""})  # the instance type of an existing node's only option
_IN_USE: Final = -1  # the node of devices that are not available
_PASS_BUDGET: Final = 500_000
"""Limit of devices tried in all searches of a pass; later pods get no devices."""


class AllocatedDevice(Struct, frozen=True):
    """A device for a claim: of the `pod`-th pod of a row on this node (row -1: bound), or a named claim if `key` is set."""

    row: int
    pod: int
    position: int
    key: str
    request: str
    device: DeviceId


class AllocationOption(Struct, frozen=True, kw_only=True, eq=False):
    """The devices that a node's pods hold if it is one of these instance types (an existing node: one without a name).

    `pools` are the devices of such a node; `devices` and `amounts` are taken from these and from published pools.
    `shared` are by key the nodes that can access the devices of a shared claim that is allocated there: none other if
    they are the node's own.
    """

    types: frozenset[str]
    pools: tuple[DevicePool, ...] = ()
    devices: frozenset[DeviceId] = frozenset()
    amounts: Mapping[CounterId, int] = field(default_factory=dict)
    allocated: tuple[AllocatedDevice, ...] = ()
    shared: Mapping[str, AccessibleNodes] = field(default_factory=dict)

    @property
    def drivers(self) -> tuple[str, ...]:
        """The drivers, by name, of the allocated devices that the node itself will publish."""
        return tuple(sorted({each.device.driver for each in self.allocated if not each.device.published}))


class AllocationProposal(Struct, frozen=True, kw_only=True, eq=False):
    """A possible allocation: the options left, what the node must be, and the keys of the pod's shared claims."""

    options: tuple[AllocationOption, ...]
    requirements: Requirements
    shared: frozenset[str]

    @property
    def types(self) -> frozenset[str]:
        """The instance types left."""
        return frozenset().union(*(option.types for option in self.options))


class DeviceAllocator:
    """The devices of a cluster, and the pods that hold them in one plan. Nodes have indices, new ones after existing ones.

    After a search fails for a row on a node, it is repeated only after something relevant has changed: a device became free
    or, for shared claims, any allocation was made.
    """

    def __init__(
        self,
        claims: ClaimReader,
        slices: Iterable[ResourceSlice],
        nodes: Sequence[StateNode],
        types: Mapping[tuple[str, str], InstanceType],
        rescheduled: Collection[str],
    ) -> None:
        """Let bound pods hold devices: of unallocated claims, and on uninitialized nodes of all claims.

        Args:
            claims: All claims.
            slices: The ResourceSlices that drivers publish.
            nodes: The nodes that pods may be scheduled on.
            types: Instance types by NodePool and name.
            rescheduled: Keys of the pods to schedule, bound or not.
        """
        self._claims = claims
        self._nodes = nodes
        self._types = types
        ready = frozenset(node.name for node in nodes if node.initialized and node.node is not None)
        self._published = PublishedPools(published_pools(slices, ready))
        self._templates: dict[bytes, tuple[DevicePool, ...]] = {}
        self._existing: dict[int, tuple[Requirements, AllocationOption]] = {}
        self._options: dict[int, tuple[AllocationOption, ...]] = {}
        taken, self._used = _in_use(claims, self._published.pools)
        self._owner = dict.fromkeys(taken, _IN_USE)  # the node of each published device that is held
        self._maximum_amounts: dict[int, Mapping[CounterId, int]] = {}
        self._shared: dict[str, int] = {}  # the node on which each shared claim is allocated
        self._planned: frozenset[str] = frozenset()  # the shared claims of planned pods
        self._budget = _PASS_BUDGET
        self._releases = 0  # of published devices; after a release, a failed search may succeed
        self._changes = 0
        self._failed: dict[Hashable, int] = {}
        for index, node in enumerate(nodes):
            for pod in node.pods:
                if pod.spec.resource_claims and pod.key not in rescheduled and not claims.is_rescheduled(pod):
                    read = claims.read(pod, ignore_allocation=not node.initialized)
                    if not isinstance(read, PodError):
                        self._add_to_existing(index, -1, 0, read)

    def copy(self) -> DeviceAllocator:
        """Return an independent copy."""
        other: DeviceAllocator = copy(self)
        other._options = dict(self._options)
        other._used = dict(self._used)
        other._owner = dict(self._owner)
        other._maximum_amounts = dict(self._maximum_amounts)
        other._shared = dict(self._shared)
        other._releases = other._changes = 0
        other._failed = {}
        return other

    # -- allocating ---------------------------------------------------------------------------------------------------

    def fits_existing(self, node: int, row: int, pods: int, claims: Sequence[ClaimRequests]) -> bool:
        """Allocate devices on an existing node for a row's next pod, after `pods` others; return whether that succeeded."""
        case, version = (node, row), self._version(claims)
        if self._failed.get(case) == version:
            return False
        if self._add_to_existing(node, row, pods, claims):
            return True
        self._failed[case] = version
        return False

    def propose(
        self,
        node: int,
        row: int,
        pods: int,
        claims: Sequence[ClaimRequests],
        *,
        requirements: Requirements,
        types_meeting: Callable[[Requirements], Sequence[InstanceType]],
        case: Hashable,
    ) -> AllocationProposal | None:
        """Return devices on a new node for the next pod of a row; None if there are none.

        Args:
            node: The node.
            row: The pod's row.
            pods: The number of pods of that row already on the node.
            claims: The pod's claims.
            requirements: What the node must be for the pod.
            types_meeting: Returns the instance types that a node with these requirements may become, in order.
            case: What distinguishes these requirements and instance types from others.
        """
        case, version = (node, row, case), self._version(claims)
        if self._failed.get(case) == version:
            return None
        types = types_meeting(requirements)
        proposal = self._proposal(
            node, row, pods, claims, name="", offer=requirements, options=self._new_options(types)
        )
        if proposal is not None and len(proposal.types) < len(types):
            key = labels.INSTANCE_TYPE
            kept = AccessibleNodes(requirements=Requirements({key: requirement(key, "In", proposal.types)}))
            left = kept.narrowed("", proposal.requirements)
            proposal = None if left is None else replace(proposal, requirements=left)
        if proposal is not None:
            names = {found.name for found in types_meeting(proposal.requirements)}
            if names and proposal.types >= names:  # a type may lack the instance type label
                return proposal
        self._failed[case] = version
        return None

    def holds(self, node: int) -> bool:
        """Whether pods of a node hold devices."""
        return bool(self._options.get(node))

    def commit(self, node: int, types: Iterable[str], proposal: AllocationProposal | None = None) -> None:
        """Take the proposed devices, if any; keep only these types of a node, and release the devices of its others."""
        self._planned |= proposal.shared if proposal is not None else frozenset()
        self._commit(node, frozenset(types), proposal)

    def _version(self, claims: Iterable[ClaimRequests]) -> int:
        """Return a version that changes when a failed search for such a pod may succeed."""
        return self._releases + (self._changes if any(claim.key for claim in claims) else 0)

    def _add_to_existing(self, node: int, row: int, pods: int, claims: Sequence[ClaimRequests]) -> bool:
        if node not in self._existing:
            self._existing[node] = self._existing_option(self._nodes[node])
        offer, option = self._existing[node]
        proposal = self._proposal(node, row, pods, claims, name=self._nodes[node].name, offer=offer, options=[option])
        if proposal is not None:
            self._planned |= proposal.shared if row >= 0 else frozenset()
            self._commit(node, _EXISTING, proposal)
        return proposal is not None

    def _existing_option(self, node: StateNode) -> tuple[Requirements, AllocationOption]:
        """Return a node's labels and its devices; until it is initialized, these are the devices of its instance type."""
        pools: tuple[DevicePool, ...] = ()
        if not node.initialized:
            instance_type = self._types.get((node.node_pool, node.labels.get(labels.INSTANCE_TYPE, "")))
            pools = self._pools_of(instance_type.device_slices) if instance_type is not None else ()
        return from_labels(node.labels), AllocationOption(types=_EXISTING, pools=pools)

    def _new_options(self, types: Iterable[InstanceType]) -> list[AllocationOption]:
        """Return what a new node may become; types with the same devices are one option."""
        by_devices: dict[bytes, list[InstanceType]] = {}
        for instance_type in types:
            by_devices.setdefault(_content(instance_type.device_slices), []).append(instance_type)
        return [
            AllocationOption(types=frozenset(t.name for t in alike), pools=self._pools_of(alike[0].device_slices))
            for alike in by_devices.values()
        ]

    def _pools_of(self, slices: tuple[ResourceSliceSpec, ...]) -> tuple[DevicePool, ...]:
        """Return the pools of a new node with these slices."""
        key = _content(slices)
        if key not in self._templates:
            self._templates[key] = template_pools(slices)
        return self._templates[key]

    def _proposal(
        self,
        node: int,
        row: int,
        pods: int,
        claims: Sequence[ClaimRequests],
        *,
        name: str,
        offer: Requirements,
        options: Sequence[AllocationOption],
    ) -> AllocationProposal | None:
        """Return an allocation of a pod's devices on a node with this name and offer; None if there is none.

        `options` are what the node may become; if its pods hold devices, only their types matter.
        """
        pending: list[tuple[int, ClaimRequests]] = []
        for position, claim in enumerate(claims):
            if claim.held is None and claim.key not in self._shared:
                pending.append((position, claim))
            for nodes in self._nodes_of(claim, node):
                left = nodes.narrowed(name, offer)
                if left is None:
                    return None
                offer = left
        if node in self._options:
            options = _of_types(self._options[node], frozenset().union(*(option.types for option in options)))
        kept: list[AllocationOption] = []
        for option in options:
            search = self._search(node, name, offer, option, pending)
            if search is None:
                continue
            extended = _extended(option, search.chosen, dict(pending), row, pods)
            if kept and extended.drivers != kept[0].drivers:
                continue
            offer = search.offer  # later types must suit the devices of earlier ones
            kept.append(extended)
        if not kept:
            return None
        shared = frozenset(claim.key for claim in claims if claim.key and claim.held is None)
        return AllocationProposal(options=tuple(kept), requirements=offer, shared=shared)

    def _nodes_of(self, claim: ClaimRequests, node: int) -> Sequence[AccessibleNodes]:
        """Return the nodes that can access a claim's allocated devices: this one must be among all of them."""
        if claim.held is not None:
            return (claim.held,)
        owner = self._shared.get(claim.key, node)
        return [option.shared[claim.key] for option in self._options[owner]] if owner != node else ()

    def _search(
        self,
        node: int,
        name: str,
        offer: Requirements,
        option: AllocationOption,
        pending: Sequence[tuple[int, ClaimRequests]],
    ) -> DeviceSearch | None:
        """Return a successful search; None if the devices are not available."""
        maximum = self._maximum_amounts.get(node, {})

        def is_taken(device: DeviceId) -> bool:
            return device in option.devices or self._owner.get(device, node) != node

        def used(counter: CounterId) -> int:
            return self._used.get(counter, 0) - maximum.get(counter, 0) + option.amounts.get(counter, 0)

        pools = (*self._published.seen_from(name), *option.pools)
        target = TargetNode(name=name, offer=offer, pools=pools, is_taken=is_taken, used=used)
        budget = SearchBudget(min(MAX_TRIES, max(self._budget, 0)))
        before = budget.left
        search = DeviceSearch(node=target, demands=pending, budget=budget)
        found = search.run()
        self._budget -= before - max(budget.left, 0)
        return search if found else None

    def _commit(self, node: int, types: frozenset[str], proposal: AllocationProposal | None) -> None:
        if proposal is not None:
            self._shared |= dict.fromkeys(proposal.shared - self._shared.keys(), node)
        before = self._options.get(node, ())
        options = _of_types(before if proposal is None else proposal.options, types)
        devices_before, devices = _held_devices(before), _held_devices(options)
        for device in devices_before - devices:
            del self._owner[device]
        self._owner |= dict.fromkeys(devices - devices_before, node)
        maximum_before, maximum = self._maximum_amounts.get(node, {}), _maximum_amounts(options)
        for counter in {**maximum_before, **maximum}:
            more = maximum.get(counter, 0) - maximum_before.get(counter, 0)
            self._used[counter] = self._used.get(counter, 0) + more
            self._releases += more < 0
        self._releases += bool(devices_before - devices)
        self._changes += 1
        self._options[node] = options
        self._maximum_amounts[node] = maximum

    # -- the result ---------------------------------------------------------------------------------------------------

    def planned(
        self, pods: Sequence[Mapping[int, Sequence[str]]], new: Iterable[PlannedClaim]
    ) -> tuple[tuple[PlannedClaim, ...], dict[str, tuple[PlannedDevice, ...]]]:
        """Return the NodeClaims with devices and drivers, and by name of an existing node its planned devices.

        Args:
            pods: By node the keys of the planned pods by row, in scheduling order.
            new: The NodeClaims of the new nodes.
        """
        existing = {}
        for index, node in enumerate(self._nodes):
            for devices in self._planned_devices(index, pods[index]).values():
                if devices:
                    existing[node.name] = devices
        claims = []
        for index, claim in enumerate(new, len(self._nodes)):
            by_type = self._planned_devices(index, pods[index])
            listed = {name: by_type[name] for name in claim.instance_types if name in by_type}
            drivers = self._options[index][0].drivers if by_type else ()
            claims.append(replace(claim, devices=listed, dra_drivers=drivers) if by_type else claim)
        return tuple(claims), existing

    def _planned_devices(self, node: int, pods: Mapping[int, Sequence[str]]) -> dict[str, tuple[PlannedDevice, ...]]:
        """Return the devices of a node's planned pods by instance type, and those of bound pods in claims that they share."""
        return {
            name: tuple(
                PlannedDevice(
                    claim=each.key or self._claims.names[pods[each.row][each.pod]][each.position],
                    request=each.request,
                    driver=each.device.driver,
                    pool=each.device.pool,
                    device=each.device.name,
                    published=each.device.published,
                )
                for each in option.allocated
                if each.row >= 0 or each.key in self._planned
            )
            for option in self._options.get(node, ())
            for name in sorted(option.types)
        }

    def explain(self, claims: Iterable[ClaimRequests]) -> str:
        """Return why a pod's devices are not available on any node."""
        requests = [request for claim in claims for request in claim.requests]
        templates = {_content(t.device_slices): t.device_slices for t in self._types.values() if t.device_slices}
        pools = [*self._published.pools, *(pool for slices in templates.values() for pool in self._pools_of(slices))]
        devices = [device for pool in pools if not pool.defect for device in pool.devices]
        for request in requests:
            if not any(map(request.would_select, devices)):
                missing = f"no published device and no instance type has what {_shown(request)} selects"
                return missing + _left_out([request], pools)
        if self._budget <= 0:
            return "the search for devices took so long that it was given up"
        if not requests:
            return "its claims are bound elsewhere"
        shown = ", ".join(map(_shown, requests))
        return f"the devices for {shown} cannot be had together on one node" + _left_out(requests, pools)


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
            taken.add(DeviceId(result.driver, result.pool, result.device))
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


def _extended(
    option: AllocationOption, chosen: Sequence[ChosenDevice], claims: Mapping[int, ClaimRequests], row: int, pod: int
) -> AllocationOption:
    """Return the option with the devices chosen for a pod's claims, which are given by position."""
    amounts = dict(option.amounts)
    for choice in chosen:
        for counter, amount in choice.draws:
            amounts[counter] = amounts.get(counter, 0) + amount
    return replace(
        option,
        devices=option.devices.union(choice.device.id for choice in chosen if choice.exclusive),
        amounts=amounts,
        allocated=(
            *option.allocated,
            *(
                AllocatedDevice(row, pod, each.claim, claims[each.claim].key, each.alternative.name, each.device.id)
                for each in chosen
            ),
        ),
        shared={
            **option.shared,
            **{
                claim.key: _accessible_to_all(choice.device for choice in chosen if choice.claim == position)
                for position, claim in claims.items()
                if claim.key
            },
        },
    )


def _accessible_to_all(devices: Iterable[PoolDevice]) -> AccessibleNodes:
    """Return the nodes that can access all of these devices, beside the one on which they are allocated."""
    requirements = EMPTY
    nodes: frozenset[str] | None = None
    for device in devices:
        requirements = requirements & device.accessible_nodes.requirements
        if not device.id.published or device.accessible_nodes.nodes is not None:
            nodes = frozenset()
    return AccessibleNodes(nodes, requirements)


def _of_types(options: Iterable[AllocationOption], types: frozenset[str]) -> tuple[AllocationOption, ...]:
    return tuple(replace(option, types=option.types & types) for option in options if option.types & types)


def _held_devices(options: Iterable[AllocationOption]) -> frozenset[DeviceId]:
    """Return the published devices that any of these options holds."""
    return frozenset(device for option in options for device in option.devices if device.published)


def _maximum_amounts(options: Iterable[AllocationOption]) -> dict[CounterId, int]:
    """Return the maximum of each published counter over the options."""
    found: dict[CounterId, int] = {}
    for option in options:
        for counter, amount in option.amounts.items():
            if counter.published:
                found[counter] = max(found.get(counter, 0), amount)
    return found
