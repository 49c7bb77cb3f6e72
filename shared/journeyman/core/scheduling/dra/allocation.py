"""The devices of a question: what is published and free, what instance types bring, and what pods on their way will take.

Restates: karpenter pkg/controllers/provisioning/dra.go `gatherAllocatedDevices`; scheduling/dra.go `draExistingNode`.
Differs: pods that wait for a node that is not initialized hold some of its devices (Karpenter counts these as free).

Who holds which devices while pods are placed.

A new node is many instance types at once, and what its pods' claims get may differ from one to the next. So a place has
*options*: a set of instance types with the devices that they would hold. For everybody else it holds whatever any of
its options does, of counters and shared capacity the most that any of them takes. Options without the devices are
dropped, which prunes the node's types.

A claim that several pods share is decided once. If it has a device of the node itself, its pods must stay together.

Restates: karpenter pkg/scheduling/dynamicresources/allocator.go `Allocate`, allocationtracker.go `AllocationTracker`.
Differs: types with the same devices are searched once; a node keeps only types that need the same drivers as its
cheapest, since its claim names the drivers to wait for, and drivers of devices that are published elsewhere are not
waited for; where a node's own pods take more, its earlier pessimism does not count twice.

Which pod's claim gets which device, once it is known which pods are where.
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
    Account,
    DeviceId,
    Pool,
    Published,
    Reach,
    nano_amount,
    published_pools,
    template_pools,
)
from journeyman.core.scheduling.dra.requests import ClaimAsk, Claims, Request
from journeyman.core.scheduling.dra.search import MOST_TRIES, Effort, Node, Search, Use
from journeyman.core.scheduling.requirements import EMPTY, Requirements, from_labels
from journeyman.core.scheduling.results import DeviceGrant, PodError
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
        return nano_amount(text)
    except InvalidQuantityError:
        return 0


_EFFORT: Final = 500_000
"""Devices tried in all searches of a pass together; pods that come later are left without."""


class Grant(Struct, frozen=True):
    """A device for a claim: for the `pod`-th pod of a row here, or for one certain claim if `key` is set."""

    row: int
    pod: int
    position: int
    key: str
    request: str
    device: DeviceId


class Option(Struct, frozen=True, kw_only=True, eq=False):
    """What a place holds if it is one of these instance types (one without a name if it stands).

    `pools` are the devices that such a node brings, `devices` and `amounts` what is taken of these and of published
    ones.
    """

    types: frozenset[str]
    pools: tuple[Pool, ...] = ()
    devices: frozenset[DeviceId] = frozenset()
    amounts: Mapping[Account, int] = field(default_factory=dict)
    grants: tuple[Grant, ...] = ()

    @property
    def drivers(self) -> tuple[str, ...]:
        """The drivers, by name, of the devices granted that the node is going to bring."""
        return tuple(sorted({grant.device.driver for grant in self.grants if not grant.device.published}))

    def with_uses(self, uses: Iterable[Use], grants: Iterable[Grant]) -> Option:
        """The same with more."""
        amounts = dict(self.amounts)
        taken = set(self.devices)
        for use in uses:
            if use.exclusive:
                taken.add(use.device.id)
            for account, amount in use.draws:
                amounts[account] = amounts.get(account, 0) + amount
        return replace(self, devices=frozenset(taken), amounts=amounts, grants=(*self.grants, *grants))


class Spot(Struct, frozen=True, kw_only=True):
    """A place to look at: `name` and labels as `offer` if it stands, else what its claim may ask for.

    `options` are what it can be as long as it holds nothing.
    """

    name: str
    offer: Requirements
    options: Sequence[Option]


class Shared(Struct, frozen=True, kw_only=True):
    """A claim that was decided in this pass: where, from where it can be reached, and whether only there."""

    place: int
    wanted: Requirements
    local: bool


class Proposal(Struct, frozen=True, kw_only=True, eq=False):
    """A way to give a pod its devices: the options left, what the node may still offer, the claims decided by it."""

    options: tuple[Option, ...]
    offer: Requirements
    decided: tuple[tuple[str, bool, Requirements], ...]

    @property
    def types(self) -> frozenset[str]:
        """The instance types left."""
        return frozenset().union(*(option.types for option in self.options))


class Allocations:
    """All places of a pass that hold devices, by their number; pools and what is taken from outside do not change."""

    def __init__(self, published: Published, taken: frozenset[DeviceId], used: Mapping[Account, int]) -> None:
        """Of what is published `taken` and `used` is not to be had."""
        self._held_devices = published
        self._taken = taken
        self._used = dict(used)
        self._options: dict[int, tuple[Option, ...]] = {}
        self._owner: dict[DeviceId, int] = {}
        self._most: dict[int, Mapping[Account, int]] = {}
        self._shared: dict[str, Shared] = {}
        self._effort = _EFFORT
        self.releases = 0
        """How often something published that was held became free again, so that a search that failed may succeed."""

    def copy(self) -> Allocations:
        """The same, to be changed apart."""
        made = Allocations(self._held_devices, self._taken, self._used)
        made._options = dict(self._options)
        made._owner = dict(self._owner)
        made._most = dict(self._most)
        made._shared = dict(self._shared)
        made._effort = self._effort
        return made

    @property
    def exhausted(self) -> bool:
        """Whether no more devices are looked for in this pass."""
        return self._effort <= 0

    def at(self, place: int) -> tuple[Option, ...]:
        """What a place may hold; empty if it holds nothing."""
        return self._options.get(place, ())

    def propose(self, place: int, spot: Spot, asks: Sequence[ClaimAsk], row: int, pod: int) -> Proposal | None:
        """How a pod could get its devices at a place; None if it cannot.

        Args:
            place: Its number, also that which a new one is going to have.
            spot: The place.
            asks: What the pod's claims ask for.
            row: The pod's row, and
            pod: how many pods of that row are there already.
        """
        pending: list[tuple[int, ClaimAsk]] = []
        offer = spot.offer
        for position, ask in enumerate(asks):
            if ask.held is None and ask.key not in self._shared:
                pending.append((position, ask))
                continue
            left = self._beside(ask, place, spot.name, offer)
            if left is None:
                return None
            offer = left
        return self._found(place, replace(spot, offer=offer), pending, (row, pod))

    def _beside(self, ask: ClaimAsk, place: int, name: str, offer: Requirements) -> Requirements | None:
        """What is left of a node's offer if it is to reach what a claim has already, here or elsewhere."""
        if ask.held is not None:
            return ask.held.narrowed(name, offer)
        known = self._shared[ask.key]
        if place == known.place:
            return offer
        return None if known.local else Reach(wanted=known.wanted).narrowed(name, offer)

    def _found(
        self, place: int, spot: Spot, pending: Sequence[tuple[int, ClaimAsk]], who: tuple[int, int]
    ) -> Proposal | None:
        offer = spot.offer
        kept: list[Option] = []
        uses: list[Use] = []
        for option in self._options_at(place, spot):
            search = self._search(place, spot.name, offer, option, pending)
            if search is None:
                continue
            keys = {position: ask.key for position, ask in pending}
            grants = (Grant(*who, use.claim, keys[use.claim], use.way.name, use.device.id) for use in search.uses)
            made = option.with_uses(search.uses, grants)
            if kept and made.drivers != kept[0].drivers:
                continue
            offer = search.offer  # later types must suit the devices of earlier ones
            kept.append(made)
            uses += search.uses
        if not kept:
            return None
        return Proposal(options=tuple(kept), offer=offer, decided=tuple(_decided(pending, uses)))

    def _options_at(self, place: int, spot: Spot) -> Sequence[Option]:
        """What the place holds, as far as it may still be of these types."""
        left = frozenset().union(*(option.types for option in spot.options))
        held = self._options.get(place)
        if held is None:
            return spot.options
        return [replace(option, types=option.types & left) for option in held if option.types & left]

    def _search(
        self, place: int, name: str, offer: Requirements, option: Option, pending: Sequence[tuple[int, ClaimAsk]]
    ) -> Search | None:
        """A successful search."""
        effort = Effort(min(MOST_TRIES, max(self._effort, 0)))
        before = effort.left
        search = Search(node=self._node(place, name, offer, option), asks=pending, effort=effort)
        found = search.run()
        self._effort -= before - max(effort.left, 0)
        return search if found else None

    def _node(self, place: int, name: str, offer: Requirements, option: Option) -> Node:
        most = self._most.get(place, {})
        pools = (*self._held_devices.seen_from(name), *option.pools)

        def is_taken(device: DeviceId) -> bool:
            if device in self._taken or device in option.devices:
                return True
            return self._owner.get(device, place) != place

        def used(account: Account) -> int:
            return self._used.get(account, 0) - most.get(account, 0) + option.amounts.get(account, 0)

        return Node(name=name, offer=offer, pools=pools, is_taken=is_taken, used=used)

    # -- deciding -----------------------------------------------------------------------------------------------------

    def commit(self, place: int, proposal: Proposal, types: Collection[str] | None = None) -> None:
        """Take what was proposed; of the types only these, by default all."""
        for key, local, wanted in proposal.decided:
            self._shared[key] = Shared(place=place, wanted=wanted, local=local)
        self._hold(place, proposal.options if types is None else _of_types(proposal.options, types))

    def keep(self, place: int, types: Collection[str]) -> None:
        """A place has only these types left; what others would have held is free."""
        if place in self._options:
            self._hold(place, _of_types(self._options[place], types))

    def _hold(self, place: int, options: tuple[Option, ...]) -> None:
        before, devices = _held_devices(self.at(place)), _held_devices(options)
        most_before, most = self._most.get(place, {}), _most(options)
        for device in before - devices:
            del self._owner[device]
        for device in devices - before:
            self._owner[device] = place
        for account in {**most_before, **most}:
            more = most.get(account, 0) - most_before.get(account, 0)
            self._used[account] = self._used.get(account, 0) + more
            self.releases += more < 0
        self.releases += bool(before - devices)
        self._options[place] = options
        self._most[place] = most


def _decided(pending: Iterable[tuple[int, ClaimAsk]], uses: Sequence[Use]) -> Iterable[tuple[str, bool, Requirements]]:
    """The shared claims among these, with whether they are bound to the node, and else from where they can be reached."""
    for position, ask in pending:
        if ask.key:
            devices = [use.device for use in uses if use.claim == position]
            wanted = EMPTY
            for device in devices:
                wanted = wanted & device.reach.wanted
            local = any(not device.id.published or device.reach.nodes is not None for device in devices)
            yield ask.key, local, wanted


def _held_devices(options: Iterable[Option]) -> frozenset[DeviceId]:
    """The published devices that any of these holds."""
    return frozenset(device for option in options for device in option.devices if device.published)


def _of_types(options: Iterable[Option], types: Collection[str]) -> tuple[Option, ...]:
    left = frozenset(types)
    return tuple(replace(option, types=option.types & left) for option in options if option.types & left)


def _most(options: Iterable[Option]) -> dict[Account, int]:
    """The most of each published account that any of these takes."""
    found: dict[Account, int] = {}
    for option in options:
        for account, amount in option.amounts.items():
            if account.published:
                found[account] = max(found.get(account, 0), amount)
    return found


Drawn = Mapping[int, Sequence[str]]
"""By row the keys of the pods at a place, in the order in which they got there."""


def granted(
    options: Iterable[Option], drawn: Drawn, names: Mapping[str, Sequence[str]]
) -> dict[str, tuple[DeviceGrant, ...]]:
    """The devices at a place, by instance type (one without a name if it stands).

    Args:
        options: What it holds.
        drawn: The pods there.
        names: The claims of every pod, in the order of what they ask for.
    """
    return {
        name: tuple(_grant(grant, drawn, names) for grant in option.grants if grant.row >= 0)
        for option in options
        for name in sorted(option.types)
    }


def drivers_of(options: Sequence[Option]) -> tuple[str, ...]:
    """The drivers, by name, whose devices a node must publish before its pods can run; equal for all options."""
    return options[0].drivers if options else ()


def _grant(grant: Grant, drawn: Drawn, names: Mapping[str, Sequence[str]]) -> DeviceGrant:
    return DeviceGrant(
        claim=grant.key or names[drawn[grant.row][grant.pod]][grant.position],
        request=grant.request,
        driver=grant.device.driver,
        pool=grant.device.pool,
        device=grant.device.name,
        published=grant.device.published,
    )
