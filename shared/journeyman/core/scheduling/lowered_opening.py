"""Opening new nodes: from packed bins to planned claims.

A bin names an instance type at its cheapest offering. The claim made from it keeps every type that holds the same pods at
a price near that, so that the cloud has a choice: all up to `near_price` times the cheapest, at least `min_types` where
there are as many, at most `max_types`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.scheduling.limits import Headroom
from journeyman.core.scheduling.lowering import HostCaps, Unit
from journeyman.core.scheduling.market import (
    Market,
    Shape,
    Stall,
    Variant,
    Wish,
    by_resource,
    open_market,
    worth_considering,
)
from journeyman.core.scheduling.offers import Bools, Ints
from journeyman.core.scheduling.options import Options
from journeyman.core.scheduling.packing import Packing, Problem, lower_bound, pack
from journeyman.core.scheduling.requirements import Requirement, Requirements, requirement
from journeyman.core.scheduling.results import PlannedClaim
from journeyman.core.scheduling.settling import settled


@dataclass(frozen=True, slots=True)
class _Item:
    """What packing sees of a unit: units with equal items are interchangeable to it."""

    wish: Wish
    request: tuple[int, ...]
    counted: tuple[bool, ...]
    bound: tuple[bool, ...]


@dataclass(slots=True, kw_only=True, eq=False)
class Opening:
    """One tier of NodePools taking units. `axes` are the resources; caps come after them in `demands`."""

    stalls: Sequence[Stall]
    headroom: Sequence[Headroom]
    shapes: Sequence[Shape]
    demands: Ints
    caps: HostCaps
    axes: Sequence[str]
    options: Options
    draw: Callable[[int, int], list[str]]  # the keys of a class's next so many pods
    fewest_nodes: bool = False
    claims: list[PlannedClaim] = field(default_factory=list)
    bound: float = 0.0
    _choices: dict[object, _Choice] = field(default_factory=dict)

    def open(self, units: Sequence[Unit]) -> list[Unit]:
        """Plan nodes for the units; what is left of those that this tier cannot take, or not within its limits."""
        items: dict[_Item, list[Unit]] = {}
        for unit in units:
            items.setdefault(self._item(unit), []).append(unit)
        kinds = list(items)
        market = open_market(self.stalls, [item.wish for item in kinds])
        problem = self._problem(market, kinds, [sum(u.count for u in items[kind]) for kind in kinds])
        queues = [_Queue(items[kind]) for kind in kinds]
        placed = self._open_within_limits(market, problem, queues)
        self.bound += lower_bound(_filtered(replace(problem, counts=placed), self._worth(market, problem)))
        return [unit for queue in queues for unit in queue.rest()]

    def _item(self, unit: Unit) -> _Item:
        index = unit.class_index
        return _Item(
            wish=Wish(self.shapes[index], unit.zones),
            request=tuple(int(n) for n in self.demands[index]),
            counted=tuple(bool(b) for b in self.caps.counted[index]),
            bound=tuple(bool(b) for b in self.caps.bound[index]),
        )

    def _problem(self, market: Market, kinds: Sequence[_Item], counts: Sequence[int]) -> Problem:
        caps = np.broadcast_to(self.caps.caps, (len(market.prices), len(self.caps.caps)))
        counted = np.array([kind.counted for kind in kinds], dtype=bool).reshape(len(kinds), -1)
        bound = np.array([kind.bound for kind in kinds], dtype=bool).reshape(len(kinds), -1)
        return Problem(
            counts=np.array(counts, dtype=np.int64),
            requests=np.array([kind.request for kind in kinds], dtype=np.int64),
            allowed=market.allowed,
            sizes=np.concatenate((market.sizes, caps), axis=1),
            prices=market.prices,
            signatures=market.signatures,
            loose=counted & ~bound,
            bound=bound,
        )

    def _worth(self, market: Market, problem: Problem) -> Bools:
        asked = np.flatnonzero(problem.requests[:, : len(self.axes)].any(axis=0))
        return worth_considering(market, asked)

    def _open_within_limits(self, market: Market, problem: Problem, queues: Sequence[_Queue]) -> Ints:
        """Pack, open what the limits allow, and pack the rest again with what they still allow; items placed."""
        left = problem.counts.copy()
        while left.any():
            within = (
                np.array(
                    [self.headroom[s].allows()[t] for s, t in zip(market.stalls, market.types, strict=True)], dtype=bool
                )
                if any(h.resources for h in self.headroom)
                else np.ones(len(market.prices), dtype=bool)
            )
            offers = np.flatnonzero(within)
            offers = offers[self._worth(market.only(within), problem)]
            packing = pack(_filtered(replace(problem, counts=left), offers), fewest_nodes=self.fewest_nodes)
            opened = self._open_bins(market, offers, packing, queues)
            left = left - opened
            if not opened.any() or not any(h.resources for h in self.headroom):
                break
        placed: Ints = problem.counts - left
        return placed

    def _open_bins(self, market: Market, offers: Ints, packing: Packing, queues: Sequence[_Queue]) -> Ints:
        opened = np.zeros(len(queues), dtype=np.int64)
        for b in packing.bins:
            offer = int(offers[b.offer])
            copies = self.headroom[int(market.stalls[offer])].take(int(market.types[offer]), b.copies)
            for _ in range(copies):
                self._open_node(market, offer, b.filling, queues)
            opened += np.array(b.filling, dtype=np.int64) * copies
        return opened

    def _open_node(self, market: Market, offer: int, filling: Sequence[int], queues: Sequence[_Queue]) -> None:
        """Plan one claim: draw its pods, and settle which types may serve it."""
        drawn = [
            (index, n, queue.zones) for queue, k in zip(queues, filling, strict=True) if k for index, n in queue.draw(k)
        ]
        stall_index, type_index = int(market.stalls[offer]), int(market.types[offer])
        variant = market.variants_by_stall[stall_index][int(market.variants[offer])]
        wishes = tuple(dict.fromkeys(Wish(self.shapes[index], zones) for index, _, zones in drawn))
        total = sum(
            (self.demands[index, : len(self.axes)] * n for index, n, _ in drawn), np.zeros(len(self.axes), np.int64)
        )
        key = (stall_index, type_index, int(market.variants[offer]), wishes, total.tobytes())
        if key not in self._choices:
            self._choices[key] = self._choose(stall_index, type_index, variant, wishes, total)
        choice = self._choices[key]
        pods: list[str] = []
        for index, n, _ in drawn:
            pods += self.draw(index, n)
        self.claims.append(
            PlannedClaim(
                node_pool=self.stalls[stall_index].template.name,
                pods=tuple(sorted(pods)),
                instance_types=choice.instance_types,
                requirements=choice.requirements,
                requests=choice.requests,
                offering=choice.offering,
                price=choice.price,
            )
        )

    def _choose(
        self, stall_index: int, type_index: int, variant: Variant, wishes: Sequence[Wish], total: Ints
    ) -> _Choice:
        """The types that hold `total`, near the best price, and the requirements that leave exactly those."""
        stall = self.stalls[stall_index]
        table = stall.template.table
        wanted = settled(stall, type_index, variant, wishes)
        holds = (
            (stall.sizes >= total).all(axis=1) & stall.usable & self.headroom[stall_index].no_larger_than(type_index)
        )
        rows = np.flatnonzero(stall.template.rows & table.rows_meeting(wanted) & holds[table.row_type])
        names = [t.name for t in table.types]
        rows = np.array(sorted(rows, key=lambda r: (table.prices[r], names[table.row_type[r]], r)), dtype=np.int64)
        best = int(rows[0])
        cheapest = dict.fromkeys(int(t) for t in table.row_type[rows])  # by price, each once
        near = table.prices[rows] <= table.prices[best] * self.options.near_price
        count = max(len(set(table.row_type[rows[near]].tolist())), self.options.min_types)
        listed = list(cheapest)[: min(count, self.options.max_types)]
        usable = rows[np.isin(table.row_type[rows], listed)]
        codes, values = table.row_values(labels.CAPACITY_TYPE)
        capacity_types = sorted({v for c in np.unique(codes[usable]) if (v := values[c]) is not None})
        zone_codes, zones = table.row_values(labels.ZONE)
        return _Choice(
            instance_types=tuple(names[t] for t in listed),
            requirements=_as_selectors(_pinned(wanted, table.labels), [names[t] for t in listed], capacity_types),
            requests=by_resource(total + stall.overhead[listed].min(axis=0), self.axes),
            offering=(names[table.row_type[best]], zones[zone_codes[best]] or "", values[codes[best]] or ""),
            price=float(table.prices[best]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """What claims with the same pods and pool have in common."""

    instance_types: tuple[str, ...]
    requirements: tuple[NodeSelectorRequirement, ...]
    requests: Mapping[str, int]
    offering: tuple[str, str, str]
    price: float


class _Queue:
    """Units of one item, drawn from the front."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.zones = units[0].zones
        self._units = list(units)
        self._left = [unit.count for unit in units]
        self._front = 0

    def draw(self, count: int) -> list[tuple[int, int]]:
        """The next pods as (class, how many)."""
        drawn: list[tuple[int, int]] = []
        while count:
            n = min(count, self._left[self._front])
            if n:
                drawn.append((self._units[self._front].class_index, n))
            self._left[self._front] -= n
            count -= n
            if count:
                self._front += 1
        return drawn

    def rest(self) -> list[Unit]:
        """The units with what nobody drew."""
        return [replace(u, count=n) for u, n in zip(self._units, self._left, strict=True) if n]


def _filtered(problem: Problem, offers: Ints | Bools) -> Problem:
    return replace(
        problem,
        sizes=problem.sizes[offers],
        prices=problem.prices[offers],
        signatures=problem.signatures[offers],
    )


def _as_selectors(
    wanted: Requirements, instance_types: Sequence[str], capacity_types: Sequence[str]
) -> tuple[NodeSelectorRequirement, ...]:
    """The claim's requirements, sorted by key; types stay in price order."""
    simulated = {labels.REGISTERED, labels.INITIALIZED, labels.HOSTNAME, labels.INSTANCE_TYPE}
    kept: dict[str, Requirement] = {key: r for key, r in wanted.items() if key not in simulated}
    if capacity_types:
        kept[labels.CAPACITY_TYPE] = requirement(labels.CAPACITY_TYPE, "In", capacity_types)
    types = NodeSelectorRequirement(key=labels.INSTANCE_TYPE, operator="In", values=tuple(instance_types))
    return tuple(sorted((*Requirements(kept).to_selectors(), types), key=lambda r: (r.key, r.operator)))


def _pinned(wanted: Requirements, defined: Collection[str]) -> Requirements:
    """Labels that somebody wants to be there, but that no instance type defines, with a value for the node to get.

    Restates: karpenter pkg/scheduling/requirements.go `Labels`. Differs: the value is not random.
    """
    own = {key: r for key, r in wanted.items() if r.complement and r.present and key not in defined}
    values = {key: r.any_value() for key, r in own.items() if not labels.is_restricted(key)}
    return wanted & {
        key: requirement(key, "In", (value,)) for key, value in values.items() if key not in labels.WELL_KNOWN
    }
