"""Who holds which devices while pods are placed.

A new node is many instance types at once, and what its pods' claims get may differ from one to the next. So a place has
*options*: a set of instance types with the devices that they would hold. For everybody else it holds whatever any of
its options does, of counters and shared capacity the most that any of them takes. Options without the devices are
dropped, which prunes the node's types.

A claim that several pods share is decided once. If it has a device of the node itself, its pods must stay together.

Restates: karpenter pkg/scheduling/dynamicresources/allocator.go `Allocate`, allocationtracker.go `AllocationTracker`.
Differs: types with the same devices are searched once; a node keeps only types that need the same drivers as its
cheapest, since its claim names the drivers to wait for, and drivers of devices that are published elsewhere are not
waited for; where a node's own pods take more, its earlier pessimism does not count twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.scheduling.dra.asks import ClaimAsk
from journeyman.core.scheduling.dra.pools import Account, DeviceId, Pool, Published, Reach
from journeyman.core.scheduling.dra.search import MOST_TRIES, Effort, Node, Search, Use
from journeyman.core.scheduling.requirements import EMPTY, Requirements

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
        self._published = published
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
        made = Allocations(self._published, self._taken, self._used)
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
        pools = (*self._published.seen_from(name), *option.pools)

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
        before, devices = _published(self.at(place)), _published(options)
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


def _published(options: Iterable[Option]) -> frozenset[DeviceId]:
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
