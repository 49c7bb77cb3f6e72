"""Allocates devices to the pods of one plan, node by node.

A new node may become one of several instance types, and the devices of its pods may differ between them. A node
therefore has *options*: sets of instance types with what they would use. To other nodes' pods the maximum over the
options is in use: every device of any option, and the most that one of them draws on a counter or on shared capacity.
Options without the devices are dropped, and their instance types with them.

A ResourceClaim that several pods share is allocated once. If it has a device of the node itself, its pods must stay
together on that node.

Restates: karpenter pkg/scheduling/dynamicresources/allocator.go `Allocate`, allocationtracker.go `AllocationTracker`;
pkg/controllers/provisioning/dra.go `gatherAllocatedDevices`; pkg/controllers/provisioning/scheduling/dra.go
`draExistingNode`; nodeclaim.go `tryVolumeAlternative`, existingnode.go `CanAdd`, as far as they allocate devices.
Differs: types with the same devices are searched once; a node keeps only types that need the same drivers as its
cheapest, since its NodeClaim names the drivers to wait for, and does not wait for drivers whose devices are published
elsewhere; the maximum over a node's options does not count against its own pods; pods that wait for a node that is not
initialized hold some of its devices (Karpenter counts these as free); the search considers the pod's own node
requirements.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.dra import ResourceSlice, ResourceSliceSpec
from journeyman.core.catalogue import InstanceType
from journeyman.core.scheduling.dra.devices import (
    AccessibleNodes,
    AmountId,
    CounterId,
    DeviceId,
    DevicePool,
    PoolDevice,
    PublishedPools,
    nano_amount,
    pools_of,
)
from journeyman.core.scheduling.dra.requests import ClaimReader, ClaimRequests, ParsedRequest
from journeyman.core.scheduling.dra.search import MAX_TRIES, Choices, DeviceSearch
from journeyman.core.scheduling.requirements import EMPTY, Requirements, from_labels, requirement
from journeyman.core.scheduling.results import PlannedClaim, PlannedDevice, PodError
from journeyman.core.state.state_node import StateNode
from journeyman.errors import InvalidQuantityError

_EXISTING: Final = frozenset({""})  # the instance type of an existing node's only option
_PASS_BUDGET: Final = 500_000
"""Limit of devices tried in all searches of a pass; later pods get no devices."""


class AllocatedDevice(NamedTuple):
    """A device for a claim of the `pod`-th pod of a row on this node (a bound pod has a negative row), by position.

    The planned device names only a claim that pods share.
    """

    row: int
    pod: int
    position: int
    planned: PlannedDevice


class AllocationOption(Struct, frozen=True, kw_only=True, eq=False):
    """What a node's pods use if it is one of these instance types (an existing node: one without a name).

    `pools` are the devices of such a node; `used` are the amounts used of these and of published pools. `shared` are by
    key the nodes that can access the devices of a shared claim that is allocated there: none other if they are the
    node's own.
    """

    types: frozenset[str]
    pools: tuple[DevicePool, ...] = ()
    used: Mapping[AmountId, int] = field(default_factory=dict)
    allocated: tuple[AllocatedDevice, ...] = ()
    shared: Mapping[str, AccessibleNodes] = field(default_factory=dict)

    @property
    def drivers(self) -> tuple[str, ...]:
        """The drivers, by name, of the allocated devices that the node itself will publish."""
        return tuple(sorted({found.driver for _, _, _, found in self.allocated if not found.published}))


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
    """The devices of a cluster, and the pods that hold them in a plan. Indices of new nodes follow existing ones.

    After a search fails for a row on a node, it is repeated only after something relevant has changed: a device became
    free or, for shared claims, any allocation was made.
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

        `slices` are published, pods may be scheduled on `nodes`; `types` are the instance types by NodePool and name,
        and `rescheduled` the keys of the pods to schedule, bound or not.
        """
        self._claims = claims
        self._nodes = nodes
        self._types = types
        ready = frozenset(node.name for node in nodes if node.initialized and node.node is not None)
        self._published = PublishedPools(slices, ready)
        self._templates: dict[bytes, tuple[DevicePool, ...]] = {}
        self._existing: dict[int, tuple[Requirements, AllocationOption]] = {}
        self._options: dict[int, tuple[AllocationOption, ...]] = {}
        self._used = _in_use(claims, self._published.pools)
        self._maximum: dict[int, Mapping[AmountId, int]] = {}  # that a node's options use of what is published
        self._shared: dict[str, int] = {}  # the node on which each shared claim is allocated
        self._budget = _PASS_BUDGET
        self._releases = 0  # of something published; after a release, a failed search may succeed
        self._changes = 0
        self._failed: dict[Hashable, int] = {}
        self._planned: frozenset[str] = frozenset()  # the shared claims of planned pods
        for index, node in enumerate(nodes):
            for number, pod in enumerate(node.pods):
                stays = pod.key not in rescheduled and pod.metadata.uid not in claims.rescheduled
                if pod.spec.resource_claims and stays:
                    read = claims.read(pod, ignore_allocation=not node.initialized)
                    if not isinstance(read, PodError):
                        self.fits_existing(index, -1 - number, 0, read)
        self._planned = frozenset()  # so far no pod is planned

    def copy(self) -> DeviceAllocator:
        """Return an independent copy."""
        other: DeviceAllocator = copy(self)
        other._options = dict(self._options)
        other._used = dict(self._used)
        other._maximum = dict(self._maximum)
        other._shared = dict(self._shared)
        other._releases = other._changes = 0
        other._failed = {}
        return other

    # -- allocating ---------------------------------------------------------------------------------------------------

    def fits_existing(self, node: int, row: int, pods: int, claims: Sequence[ClaimRequests]) -> bool:
        """Allocate devices on an existing node for a row's next pod, after `pods` others; return whether it could."""
        case, version = (node, row), self._version(claims)
        if self._failed.get(case) == version:
            return False
        target = self._nodes[node]
        if node not in self._existing:  # until it is initialized, it has the devices of its instance type
            key = (target.node_pool, target.labels.get(labels.INSTANCE_TYPE, ""))
            found = None if target.initialized else self._types.get(key)
            pools = self._pools_of(found.device_slices) if found is not None else ()
            self._existing[node] = from_labels(target.labels), AllocationOption(types=_EXISTING, pools=pools)
        offer, option = self._existing[node]
        proposal = self._proposal(node, row, pods, claims, name=target.name, offer=offer, options=[option])
        if proposal is None:
            self._failed[case] = version
            return False
        self.commit(node, _EXISTING, proposal)
        return True

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
        """Return devices on a new node for a row's next pod, after `pods` others; None if there are none.

        `types_meeting` returns the instance types that the node may become if it has requirements, in order; `case` is
        what distinguishes these, and the `requirements`, from others.
        """
        case, version = (node, row, case), self._version(claims)
        if self._failed.get(case) == version:
            return None
        types = types_meeting(requirements)
        options = self._new_options(types)
        proposal = self._proposal(node, row, pods, claims, name="", offer=requirements, options=options)
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
        options = self._options[node] if proposal is None else proposal.options
        if proposal is not None:
            self._shared |= dict.fromkeys(proposal.shared - self._shared.keys(), node)
            self._planned |= proposal.shared
        self._options[node] = options = _of_types(options, frozenset(types))
        before, maximum = self._maximum.get(node, {}), dict[AmountId, int]()
        for counter, amount in (entry for option in options for entry in option.used.items()):
            if counter.published:
                maximum[counter] = max(maximum.get(counter, 0), amount)
        for counter in {**before, **maximum}:
            more = maximum.get(counter, 0) - before.get(counter, 0)
            self._used[counter] = self._used.get(counter, 0) + more
            self._releases += more < 0
        self._maximum[node] = maximum
        self._changes += 1

    def _version(self, claims: Iterable[ClaimRequests]) -> int:
        """Return a version that changes when a failed search for such a pod may succeed."""
        return self._releases + (self._changes if any(claim.key for claim in claims) else 0)

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
            self._templates[key] = pools_of(slices, published=False)
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
            tries, pools = min(MAX_TRIES, self._budget), (*self._published.seen_from(name), *option.pools)
            used = self._used_beside(node, option)
            search = DeviceSearch(pending, name=name, offer=offer, pools=pools, used=used, tries=tries)
            found = search.run()
            self._budget -= tries - max(search.tries, 0)
            extended = _extended(option, found, dict(pending), row, pods) if found is not None else None
            if extended is None or found is None or (kept and extended.drivers != kept[0].drivers):
                continue
            offer = found.offer  # later types must suit the devices of earlier ones
            kept.append(extended)
        shared = frozenset(claim.key for claim in claims if claim.key and claim.held is None)
        return AllocationProposal(options=tuple(kept), requirements=offer, shared=shared) if kept else None

    def _nodes_of(self, claim: ClaimRequests, node: int) -> Sequence[AccessibleNodes]:
        """Return the nodes that can access a claim's allocated devices: this one must be among all of them."""
        if claim.held is not None:
            return (claim.held,)
        owner = self._shared.get(claim.key, node)
        return [option.shared[claim.key] for option in self._options[owner]] if owner != node else ()

    def _used_beside(self, node: int, option: AllocationOption) -> Callable[[AmountId], int]:
        """Return what says how much is in use if a node becomes one of an option's types."""
        everywhere, maximum, own = self._used, self._maximum.get(node, {}), option.used
        return lambda counter: everywhere.get(counter, 0) - maximum.get(counter, 0) + own.get(counter, 0)

    # -- the result ---------------------------------------------------------------------------------------------------

    def planned(
        self, pods: Sequence[Mapping[int, Sequence[str]]], new: Iterable[PlannedClaim]
    ) -> tuple[tuple[PlannedClaim, ...], dict[str, tuple[PlannedDevice, ...]]]:
        """Return the NodeClaims with devices and drivers, and by name of an existing node its planned devices.

        `pods` are by node the keys of the planned pods by row, in scheduling order.
        """
        names, existing, claims = self._claims.names, {}, list(new)
        for index, drawn in enumerate(pods):
            options = self._options.get(index, ())
            by_type = {
                name: tuple(
                    found if found.claim else replace(found, claim=names[drawn[row][pod]][position])
                    for row, pod, position, found in option.allocated
                    if row >= 0 or found.claim in self._planned  # bound pods' devices only in claims that they share
                )
                for option in options
                for name in option.types
            }
            new_index = index - len(self._nodes)
            if new_index >= 0 and options:
                listed = {name: by_type[name] for name in claims[new_index].instance_types if name in by_type}
                claims[new_index] = replace(claims[new_index], devices=listed, dra_drivers=options[0].drivers)
            elif by_type.get(""):
                existing[self._nodes[index].name] = by_type[""]
        return tuple(claims), existing

    def explain(self, claims: Iterable[ClaimRequests]) -> str:
        """Return why a pod's devices are not available on any node."""
        requests = [request for claim in claims for request in claim.requests]
        templates = {_content(t.device_slices): t.device_slices for t in self._types.values() if t.device_slices}
        pools = [*self._published.pools, *(pool for slices in templates.values() for pool in self._pools_of(slices))]
        devices = [device for pool in pools if not pool.defect for device in pool.devices]
        for request in requests:
            if not _selects_any(request, devices):
                missing = f"no published device and no instance type has what {_shown(request)} selects"
                return missing + _left_out([request], pools)
        if self._budget <= 0:
            return "the search for devices took so long that it was given up"
        if not requests:
            return "its claims are bound elsewhere"
        shown = ", ".join(map(_shown, requests))
        return f"the devices for {shown} cannot be had together on one node" + _left_out(requests, pools)


def _selects_any(request: ParsedRequest, devices: Iterable[PoolDevice]) -> bool:
    return any(alternative.would_select(device) for device in devices for alternative in request)


def _left_out(requests: Sequence[ParsedRequest], pools: Iterable[DevicePool]) -> str:
    """Return the first defective pool with devices for these requests, as the end of a message; or nothing."""
    for pool in pools:
        if pool.defect and (not pool.devices or any(_selects_any(request, pool.devices) for request in requests)):
            return f"; pool {pool.driver}/{pool.name} is left out because {pool.defect}"
    return ""


def _shown(request: ParsedRequest) -> str:
    classes = dict.fromkeys(alternative.device_class for alternative in request)
    return f"request {request[0].name.partition('/')[0]!r} (DeviceClass {' or '.join(classes)})"


def _content(slices: tuple[ResourceSliceSpec, ...]) -> bytes:
    return msgspec.msgpack.encode(slices, order="deterministic") if slices else b""


def _in_use(claims: ClaimReader, pools: Iterable[DevicePool]) -> dict[AmountId, int]:
    """Return what allocated claims use of devices, counters and shared capacity."""
    used: dict[AmountId, int] = {}
    for claim in claims:
        allocation = claim.status.allocation
        for result in allocation.devices.results if allocation is not None and not claims.is_released(claim) else ():
            if not result.admin_access:
                used[DeviceId(result.driver, result.pool, result.device)] = 1
                for name, text in result.consumed_capacity.items():
                    counter = CounterId(result.driver, result.pool, True, True, result.device, name)
                    with suppress(InvalidQuantityError):
                        used[counter] = used.get(counter, 0) + nano_amount(text)
    for device in (device for pool in pools for device in pool.devices if device.id in used):
        for counter, drawn in device.draws:
            used[counter] = used.get(counter, 0) + drawn
    return used


def _extended(
    option: AllocationOption, choices: Choices, claims: Mapping[int, ClaimRequests], row: int, pod: int
) -> AllocationOption:
    """Return the option with the devices chosen for a pod's claims, which are given by position."""
    used, allocated, shared = dict(option.used), [*option.allocated], dict(option.shared)
    for counter, amount in choices.drawn.items():
        used[counter] = used.get(counter, 0) + amount
    for position, alternative, device in choices.chosen:
        driver, pool, name, published = device.id
        found = PlannedDevice(
            claim=claims[position].key,
            request=alternative.name,
            driver=driver,
            pool=pool,
            device=name,
            published=published,
        )
        allocated.append(AllocatedDevice(row, pod, position, found))
    for position, claim in claims.items():
        if claim.key:
            shared[claim.key] = _accessible_to_all(each.device for each in choices.chosen if each.claim == position)
    return replace(option, used=used, allocated=tuple(allocated), shared=shared)


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
