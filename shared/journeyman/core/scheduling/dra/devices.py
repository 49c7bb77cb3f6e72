"""The devices of a question: what is published and free, what instance types bring, and what pods on their way will take.

Restates: karpenter pkg/controllers/provisioning/dra.go `gatherAllocatedDevices`; scheduling/dra.go `draExistingNode`.
Differs: pods that wait for a node that is not initialized hold some of its devices (Karpenter counts these as free).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct, field

from journeyman.core.api import labels
from journeyman.core.api.dra import ResourceSlice, ResourceSliceSpec
from journeyman.core.catalogue import InstanceType
from journeyman.core.scheduling.dra.allocations import Allocations, Option, Spot
from journeyman.core.scheduling.dra.asks import ClaimAsk, Request
from journeyman.core.scheduling.dra.capacity import amount
from journeyman.core.scheduling.dra.claims import Claims
from journeyman.core.scheduling.dra.pools import Account, DeviceId, Pool, Published, published_pools, template_pools
from journeyman.core.scheduling.requirements import Requirements, from_labels
from journeyman.core.scheduling.results import PodError
from journeyman.core.state.state_node import StateNode
from journeyman.errors import InvalidQuantityError

_STANDS = ""
"""Instead of an instance type, for a node that stands."""


class Devices(Struct, frozen=True, kw_only=True, eq=False):
    """The devices of a question. `nodes` are those that pods may be put on, in their order; `claims` knows all claims."""

    published: Published
    claims: Claims
    nodes: Sequence[StateNode]
    taken: frozenset[DeviceId]
    used: Mapping[Account, int]
    types: Mapping[tuple[str, str], InstanceType]
    leaving: Collection[str]
    _templates: dict[bytes, tuple[Pool, ...]] = field(default_factory=dict)
    _spots: dict[int, Spot] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        claims: Claims,
        slices: Iterable[ResourceSlice],
        nodes: Sequence[StateNode],
        types: Mapping[tuple[str, str], InstanceType],
        leaving: Collection[str],
    ) -> Devices:
        """The devices of a cluster.

        Args:
            claims: All claims.
            slices: What drivers publish.
            nodes: The nodes that pods may be put on.
            types: Instance types by NodePool and name.
            leaving: Keys of the pods that are to be placed, wherever they are now.
        """
        ready = frozenset(node.name for node in nodes if node.initialized and node.node is not None)
        pools = published_pools(slices, ready)
        taken, used = _in_use(claims, pools)
        return cls(
            published=Published(pools), claims=claims, nodes=nodes, taken=taken, used=used, types=types, leaving=leaving
        )

    def begin(self) -> Allocations:
        """Nothing decided yet; pods that are on their way to a node of these have their devices there."""
        made = Allocations(self.published, self.taken, self.used)
        for place, node in enumerate(self.nodes):
            for pod in node.pods:
                if pod.spec.resource_claims and pod.key not in self.leaving and not self.claims.leaves(pod):
                    asks = self.claims.read(pod, anew=not node.initialized)
                    if not isinstance(asks, PodError):
                        found = made.propose(place, self.spot(place), asks, -1, 0)
                        if found is not None:
                            made.commit(place, found)
        return made

    def spot(self, place: int) -> Spot:
        """A node that stands; until it is initialized it has what its instance type promises."""
        if place not in self._spots:
            self._spots[place] = self._standing(self.nodes[place])
        return self._spots[place]

    def _standing(self, node: StateNode) -> Spot:
        brought: tuple[Pool, ...] = ()
        if not node.initialized:
            named = self.types.get((node.node_pool, node.labels.get(labels.INSTANCE_TYPE, "")))
            brought = self.brought_by(named.device_slices) if named is not None else ()
        option = Option(types=frozenset({_STANDS}), pools=brought)
        return Spot(name=node.name, offer=from_labels(node.labels), options=(option,))

    def new_spot(self, types: Iterable[InstanceType], offer: Requirements) -> Spot:
        """A node to open that may be of any of these types; those with the same devices are one option."""
        known: dict[bytes, list[InstanceType]] = {}
        for instance_type in types:
            known.setdefault(_content(instance_type.device_slices), []).append(instance_type)
        options = [
            Option(types=frozenset(t.name for t in alike), pools=self.brought_by(alike[0].device_slices))
            for alike in known.values()
        ]
        return Spot(name="", offer=offer, options=options)

    def brought_by(self, slices: tuple[ResourceSliceSpec, ...]) -> tuple[Pool, ...]:
        """The pools that a new node with these slices has."""
        key = _content(slices)
        if key not in self._templates:
            self._templates[key] = template_pools(slices)
        return self._templates[key]

    def why_none(self, asks: Iterable[ClaimAsk], allocations: Allocations | None = None) -> str:
        """What to say of a pod whose devices were nowhere to be had."""
        requests = [request for ask in asks for request in ask.requests]
        for request in requests:
            if not self._anywhere(request):
                return f"no published device and no instance type has what {_shown(request)} selects"
        if allocations is not None and allocations.exhausted:
            return "the search for devices took so long that it was given up"
        shown = ", ".join(map(_shown, requests))
        return (
            f"the devices for {shown} cannot be had together on one node" if shown else "its claims are bound elsewhere"
        )

    def _anywhere(self, request: Request) -> bool:
        brought = {_content(t.device_slices): t.device_slices for t in self.types.values() if t.device_slices}
        pools = (*self.published.pools, *(pool for slices in brought.values() for pool in self.brought_by(slices)))
        devices = [device for pool in pools if not pool.defect for device in pool.devices]
        return any(way.would_select(device) for way in request.ways for device in devices)


def _shown(request: Request) -> str:
    classes = dict.fromkeys(way.device_class for way in request.ways)
    return f"request {request.name!r} (DeviceClass {' or '.join(classes)})"


def _content(slices: tuple[ResourceSliceSpec, ...]) -> bytes:
    return msgspec.msgpack.encode(slices, order="deterministic") if slices else b""


def _in_use(claims: Claims, pools: Iterable[Pool]) -> tuple[frozenset[DeviceId], dict[Account, int]]:
    """Devices that claims have for good, and what is used of counters and shared capacity."""
    taken: set[DeviceId] = set()
    used: dict[Account, int] = {}
    for claim in claims:
        if claim.status.allocation is None or claims.gives_back(claim):
            continue
        for result in claim.status.allocation.devices.results:
            if result.admin_access:
                continue
            device = DeviceId(result.driver, result.pool, result.device)
            taken.add(device)
            for name, text in result.consumed_capacity.items():
                account = Account(result.driver, result.pool, True, True, result.device, name)
                used[account] = used.get(account, 0) + _read(text)
    for pool in pools:
        for found in pool.devices:
            if found.id in taken:
                for account, drawn in found.draws:
                    used[account] = used.get(account, 0) + drawn
    return frozenset(taken), used


def _read(text: str | int | float) -> int:
    """An amount; what cannot be read counts for nothing."""
    try:
        return amount(text)
    except InvalidQuantityError:
        return 0
