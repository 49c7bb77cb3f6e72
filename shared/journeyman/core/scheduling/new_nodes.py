"""Units merged into items: what packing cannot tell apart is one row with a count.

Opening new nodes: units of pods are packed onto offers by price, and each bin becomes a node to open.

NodePools of one order compete; what they cannot take goes on to the next. Limits and reservations may run out: then
what is left is packed again onto what they still allow. A plan by price may waste a limited resource; if it leaves
pods, plans that weigh that resource compete with it, and the one that places most wins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import groupby

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.scheduling.arrays import Bools, Floats, Ints, distinct, numbered
from journeyman.core.scheduling.demand.classes import PodClass
from journeyman.core.scheduling.demand.topology import Pins
from journeyman.core.scheduling.host_constraints import HostCaps
from journeyman.core.scheduling.instance_type_choice import Shelf, settled
from journeyman.core.scheduling.limits import Headroom, type_costs
from journeyman.core.scheduling.offering.market import open_market, worth_considering
from journeyman.core.scheduling.offering.min_values import distinct_enough, needed_for_variety
from journeyman.core.scheduling.offering.reserved import Reservations
from journeyman.core.scheduling.offering.wishes import Shape, Wish
from journeyman.core.scheduling.options import MinValuesPolicy
from journeyman.core.scheduling.packing import Packing, Problem, pack
from journeyman.core.scheduling.problem import OpenNode, Question, Unit
from journeyman.core.scheduling.requirements import Requirements


class _Queue:
    """Units of one item, drawn from the front."""

    def __init__(self) -> None:
        self._units: list[Unit] = []
        self._left: list[int] = []
        self._front = 0
        self.count = 0

    def add(self, unit: Unit) -> None:
        """Put a unit at the end."""
        self._units.append(unit)
        self._left.append(unit.count)
        self.count += unit.count

    def draw(self, count: int) -> Iterator[tuple[int, int]]:
        """The next pods as (row, how many)."""
        while count:
            n = min(count, self._left[self._front])
            if n:
                yield self._units[self._front].row, n
            self._left[self._front] -= n
            count -= n
            if count:
                self._front += 1

    def rest(self) -> Iterator[tuple[Unit, int]]:
        """The units with how many of them nobody drew."""
        yield from zip(self._units, self._left, strict=True)


class Items(Struct, frozen=True, kw_only=True, eq=False):
    """Units merged into items. Arrays have a row per item; `requests` are amounts by axis, then what rules take."""

    wishes: tuple[Wish, ...]
    wish_of: Ints
    has_alternatives: Bools  # by wish
    counts: Ints
    requests: Ints
    loose: Bools
    bound: Bools
    queues: tuple[_Queue, ...]
    units: tuple[Unit, ...]

    @classmethod
    def of(cls, question: Question, caps: HostCaps, units: Sequence[Unit]) -> Items:
        """The items of these units, by first appearance."""
        demands = np.concatenate((question.requests, caps.takes), axis=1)
        kinds = _Kinds(question.rows, demands, caps)
        wishes: dict[tuple[int, Pins], int] = {}
        queues: dict[tuple[int, int], _Queue] = {}
        rows: list[int] = []
        for unit in units:
            shape, kind = kinds.of(unit.row)
            wish = wishes.setdefault((shape, unit.pins), len(wishes))
            queue = queues.get((wish, kind))
            if queue is None:
                queue = queues[wish, kind] = _Queue()
                rows.append(unit.row)
            queue.add(unit)
        made = tuple(Wish(kinds.shapes[shape], pins=pins) for shape, pins in wishes)
        return cls(
            wishes=made,
            wish_of=np.array([wish for wish, _ in queues], dtype=np.int64),
            has_alternatives=np.array([len(wish.terms) > 1 for wish in made], dtype=bool),
            counts=np.array([queue.count for queue in queues.values()], dtype=np.int64),
            requests=demands[rows],
            loose=caps.counted[rows],
            bound=caps.bound[rows],
            queues=tuple(queues.values()),
            units=tuple(units),
        )

    def draw(self, item: int, count: int) -> Iterator[tuple[int, int]]:
        """The item's next pods as (row, how many)."""
        return self.queues[item].draw(count)

    def rest(self) -> tuple[Unit, ...]:
        """What nobody drew, in the order of the units."""
        left = {id(unit): count for queue in self.queues for unit, count in queue.rest()}
        return tuple(replace(unit, count=left[id(unit)]) for unit in self.units if left[id(unit)])


class _Kinds:
    """What rows are to packing: numbers for their shapes, and for their demands."""

    def __init__(self, rows: Sequence[PodClass], demands: Ints, caps: HostCaps) -> None:
        self.shapes: list[Shape] = []
        self._rows = rows
        self._demands, self._caps = demands, caps
        self._numbers: dict[Shape, int] = {}
        self._by_parts: dict[tuple[int, int, int, bool], int] = {}
        self._kinds: dict[bytes, int] = {}
        self._known: dict[int, tuple[int, int]] = {}

    def of(self, row: int) -> tuple[int, int]:
        """The numbers of a row's shape and of its demands."""
        if row not in self._known:
            caps = self._caps
            demand = self._demands[row].tobytes() + caps.counted[row].tobytes() + caps.bound[row].tobytes()
            self._known[row] = self._shape(self._rows[row]), self._kinds.setdefault(demand, len(self._kinds))
        return self._known[row]

    def _shape(self, pods: PodClass) -> int:
        """Classes mostly share the very same terms and tolerations, so these are compared by identity first."""
        parts = (id(pods.terms), id(pods.volume_terms), id(pods.tolerations), pods.heeds_preferences)
        if parts not in self._by_parts:
            shape = Shape.of(pods)
            number = self._by_parts[parts] = self._numbers.setdefault(shape, len(self._numbers))
            if number == len(self.shapes):
                self.shapes.append(shape)
        return self._by_parts[parts]


def together(drawn: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Pods by row, each row once, by row."""
    if len(drawn) == 1:
        return tuple(drawn)
    counts: dict[int, int] = {}
    for row, count in drawn:
        counts[row] = counts.get(row, 0) + count
    return tuple(sorted(counts.items()))


class Opened(Struct, frozen=True, kw_only=True):
    """Nodes to open, and the units with what no node could be opened for."""

    nodes: tuple[OpenNode, ...]
    left: tuple[Unit, ...]


def open_nodes(
    units: Sequence[Unit], question: Question, headroom: Sequence[Headroom], reservations: Reservations
) -> Opened:
    """Plan new nodes for the units, NodePools of greater weight first.

    Args:
        units: Each bound to its pins and to nothing else beyond one node.
        question: What the rows of the units are, and the stalls.
        headroom: What is left of the limits of each stall; what the nodes take is used up.
        reservations: Likewise.
    """
    nodes: list[OpenNode] = []
    left = tuple(unit for unit in units if unit.count)
    caps = _caps_of(left, question)
    served = _Served(question)
    for members, varied in _tiers(question):
        mine = tuple(unit for unit in left if served.by_any(members, unit.row))
        if not mine:
            continue
        tier = _Tier(question, members, caps, mine, varied=varied)
        outcome = tier.open([headroom[s] for s in tier.members], reservations)
        for s, room in zip(tier.members, outcome.headroom, strict=True):
            headroom[s].left = room.left
        reservations.left.update(outcome.reservations.left)
        nodes += tier.nodes(outcome)
        left = _replaced(left, mine, tier.rest())
    return Opened(nodes=tuple(nodes), left=left)


class _Served:
    """Which NodePools have anything that rows would go to; rows of one shape are judged once."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._by_parts: dict[object, frozenset[int]] = {}

    def by_any(self, stalls: Collection[int], row: int) -> bool:
        """Whether one of these stalls does."""
        pods = self._question.rows[row]
        parts = (id(pods.terms), id(pods.volume_terms), id(pods.tolerations), pods.heeds_preferences)
        found = self._by_parts.get(parts)
        if found is None:
            wish = Wish(Shape.of(pods))
            serving = (s for s, stall in enumerate(self._question.stalls) if stall.serves(wish))
            found = self._by_parts[parts] = frozenset(serving)
        return not found.isdisjoint(stalls)


def _replaced(units: Sequence[Unit], some: Sequence[Unit], by: Sequence[Unit]) -> tuple[Unit, ...]:
    """The units with what is left of some of them, `by`, in their place."""
    left = {(unit.row, unit.pins, unit.is_quota): unit for unit in by}
    gone = {id(unit) for unit in some}
    kept = (left.get((u.row, u.pins, u.is_quota)) if id(u) in gone else u for u in units)
    return tuple(unit for unit in kept if unit is not None)


def _smallest(counts: Ints, each: Ints, room: int) -> Ints:
    """As many of the items as there is room for, those first that ask for least."""
    if counts @ each <= room:
        return counts
    order = np.argsort(each, kind="stable")
    taken = counts[order] * each[order]
    before = np.cumsum(taken) - taken
    fitting = np.maximum(room - before, 0) // np.maximum(each[order], 1)
    kept: Ints = counts.copy()
    kept[order] = np.where(each[order] > 0, np.minimum(counts[order], fitting), counts[order])
    return kept


def _tiers(question: Question) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Stalls that compete, in order, and whether minValues hold; where these may be lowered, once more without."""
    lenient = question.options.min_values is MinValuesPolicy.BEST_EFFORT
    for _, group in groupby(range(len(question.stalls)), key=lambda s: question.stalls[s].template.order):
        members = tuple(group)
        yield members, True
        demanding = tuple(s for s in members if question.stalls[s].template.min_values)
        if demanding and lenient:
            yield demanding, False


def _caps_of(units: Sequence[Unit], question: Question) -> HostCaps:
    """The rules about one node that can matter to these units."""
    counts = np.zeros(len(question.rows), dtype=np.int64)
    for unit in units:
        counts[unit.row] += unit.count
    return question.caps.for_new_nodes(counts)


class _Bin(Struct, frozen=True, eq=False):
    """A node of one offer: `counts` of the items `kinds` on it, and `share`, what it takes of its pool's limits."""

    offer: int
    kinds: Ints
    counts: Ints
    share: Ints | None


class _Outcome(Struct, kw_only=True, eq=False):
    """Bins opened so far, and what they left of items, limits and reservations; `hopeless` items fit no offer at all."""

    left: Ints
    headroom: list[Headroom]
    reservations: Reservations
    hopeless: int
    bins: list[tuple[_Bin, int]] = field(default_factory=list)
    price: float = 0.0

    @property
    def rank(self) -> tuple[int, float]:
        """The smaller the better: pods left, then price."""
        return int(self.left.sum()), self.price


class _Tier:
    """NodePools of one order taking units.

    Units that nothing here can tell apart (equal wishes, requests, and rules about one node) are one item.
    """

    def __init__(
        self, question: Question, members: tuple[int, ...], caps: HostCaps, units: Sequence[Unit], *, varied: bool
    ) -> None:
        self.members = members
        self._question = question
        self._stalls = [question.stalls[s] for s in members]
        self._varied = varied
        self._items = Items.of(question, caps, units)
        self._asked = np.flatnonzero(self._items.requests[:, : len(question.axes)].any(axis=0))
        self._market = open_market(self._stalls, self._items.wishes, self._asked if varied else None)
        self._problem = self._make_problem(caps)
        self._costs = [type_costs(stall.template) for stall in self._stalls]
        self._settled: dict[tuple[int, int, int, int, bytes], Requirements] = {}
        self._twins: dict[tuple[float, bytes], list[int]] = {}

    def _make_problem(self, caps: HostCaps) -> Problem:
        items, market = self._items, self._market
        return Problem(
            counts=items.counts,
            requests=items.requests,
            allowed=market.allowed[:, items.wish_of],
            sizes=np.concatenate((market.sizes, self._caps_by_offer(caps)), axis=1),
            prices=market.prices,
            signatures=market.signatures,
            loose=items.loose,
            bound=items.bound,
            stock=market.stock,
        )

    def _caps_by_offer(self, caps: HostCaps) -> Ints:
        """What a node of each offer has of the axes of rules: less where its daemons use host ports."""
        market = self._market
        found = np.tile(caps.caps, (len(market.prices), 1))
        for s, stall in enumerate(self._stalls):
            for group, ports in enumerate(stall.daemon_ports):
                if ports:
                    found[(market.stalls == s) & (stall.daemon_group[market.types] == group)] = caps.beside(ports)
        return found

    def open(self, headroom: Sequence[Headroom], reservations: Reservations) -> _Outcome:
        """The best plan for the units within limits and reservations."""
        best = self._attempt(self._market.prices, headroom, reservations)
        if best.left.sum() > best.hopeless and any(room.resources for room in headroom):
            shares = self._shares_of_limits(headroom)
            scale = float(self._market.prices.max(initial=0.0))
            for weight in (scale, 1e6 * scale):
                rival = self._attempt(self._market.prices + weight * shares, headroom, reservations)
                best = min(best, rival, key=lambda outcome: outcome.rank)
        return best

    def _shares_of_limits(self, headroom: Sequence[Headroom]) -> Floats:
        """By offer, how much of what its pool's limits leave one node takes at most."""
        shares = np.zeros(len(self._market.prices))
        for s, room in enumerate(headroom):
            offers = np.flatnonzero(self._market.stalls == s)
            costs = room.costs[self._market.types[offers]] / np.maximum(room.left, 1)
            shares[offers] = costs.max(axis=1, initial=0.0)
        return shares

    def _attempt(self, prices: Floats, headroom: Sequence[Headroom], reservations: Reservations) -> _Outcome:
        """Pack at these prices, open what limits allow, and pack the rest again with what they still allow."""
        outcome = _Outcome(
            left=self._problem.counts.copy(),
            headroom=[room.copy() for room in headroom],
            reservations=reservations.copy(),
            hopeless=0,
        )
        outcome.hopeless = self._hopeless(outcome)
        exhaustible = any(room.resources for room in headroom) or bool(self._market.reservations)
        while outcome.left.any():
            offers = np.flatnonzero(self._within(outcome)) if exhaustible else np.arange(len(prices))
            offers = offers[np.argsort(prices[offers], kind="stable")]
            offers = offers[worth_considering(replace(self._market, prices=prices).only(offers), self._asked)]
            counts = self._within_reach(outcome) if exhaustible else outcome.left
            part = self._part(offers, prices, counts, outcome.reservations)
            opened = self._take(outcome, offers, pack(part, fewest_nodes=self._stalls[0].template.order[1]))
            if not opened or not exhaustible:
                break
        return outcome

    def _within(self, outcome: _Outcome) -> Bools:
        """The offers of which one more node could be opened."""
        market = self._market
        found: Bools = np.ones(len(market.prices), dtype=bool)
        for s, room in enumerate(outcome.headroom):
            if room.resources:
                offers = np.flatnonzero(market.stalls == s)
                found[offers] = room.allows()[market.types[offers]]
        for index, name in enumerate(market.reservations):
            if outcome.reservations.left.get(name, 0) <= 0:
                found &= market.stock != index
        return found

    def _hopeless(self, outcome: _Outcome) -> int:
        """How many pods fit nothing of which a node could be opened."""
        fits = self._problem.only(np.flatnonzero(self._within(outcome))).fits()
        return int(outcome.left[~np.logical_or.reduce(fits, axis=1)].sum())

    def _within_reach(self, outcome: _Outcome) -> Ints:
        """How many of each item are left, less those for which limits leave no room whatever is opened.

        The smallest are kept: of these most can be placed.
        """
        counts: Ints = outcome.left.copy()
        for stalls, items in self._rivals:
            for axis, name in enumerate(self._question.axes):
                rooms = [outcome.headroom[s].left_of(name) for s in stalls]
                if None not in rooms:
                    room = sum(filter(None, rooms))
                    counts[items] = _smallest(counts[items], self._items.requests[items, axis], room)
        return counts

    @cached_property
    def _rivals(self) -> list[tuple[list[int], Ints]]:
        """Items that may go to the same stalls, as (stalls, items)."""
        market, wish_of = self._market, self._items.wish_of
        offered = [distinct(market.signatures[market.stalls == s]) for s in range(len(self._stalls))]
        admitted = np.array([np.logical_or.reduce(market.allowed[signatures], axis=0) for signatures in offered])
        numbers, patterns = numbered(admitted[:, wish_of])
        return [(np.flatnonzero(pattern).tolist(), np.flatnonzero(numbers == n)) for n, pattern in enumerate(patterns)]

    def _part(self, offers: Ints, prices: Floats, counts: Ints, reservations: Reservations) -> Problem:
        """So many items to pack onto these offers."""
        stocks = [reservations.left.get(name, 0) for name in self._market.reservations]
        whole = replace(self._problem, prices=prices, counts=counts, stocks=np.array(stocks, dtype=np.int64))
        return whole.only(offers)

    def _take(self, outcome: _Outcome, offers: Ints, packing: Packing) -> int:
        """Enter as many copies of each bin as limits, reservations and minValues allow; how many nodes that were.

        Where a NodePool has no room for them another may, for the same price.
        """
        opened = 0
        for packed in packing.bins:
            kinds, counts = np.array(packed.content, dtype=np.int64).T
            wanted = packed.copies
            for offer in self._alternatives(int(offers[packed.offer]), kinds):
                b = self._with_share(_Bin(offer, kinds, counts, None))
                copies = self._enter(outcome, b, wanted) if b is not None else 0
                opened += copies
                wanted -= copies
                if not wanted:
                    break
        return opened

    def _alternatives(self, offer: int, kinds: Ints) -> Iterator[int]:
        """An offer, then others that hold the same for the same price, NodePools in their order."""
        yield offer
        market, problem = self._market, self._problem
        if market.stock[offer] >= 0:
            return
        if not self._twins:
            for other in np.flatnonzero(market.stock < 0).tolist():
                alike = (float(market.prices[other]), problem.sizes[other].tobytes())
                self._twins.setdefault(alike, []).append(other)
        for twin in self._twins[float(market.prices[offer]), problem.sizes[offer].tobytes()]:
            if twin != offer and problem.allowed[market.signatures[twin], kinds].all():
                yield twin

    def _enter(self, outcome: _Outcome, b: _Bin, copies: int) -> int:
        market = self._market
        room, stock = outcome.headroom[int(market.stalls[b.offer])], int(market.stock[b.offer])
        copies = room.allowing(b.share, copies) if b.share is not None else copies
        copies = outcome.reservations.take(market.reservations[stock], copies) if stock >= 0 else copies
        if copies:
            if b.share is not None:
                room.spend(b.share, copies)
            outcome.bins.append((b, copies))
            outcome.left[b.kinds] -= b.counts * copies
            outcome.price += float(market.prices[b.offer]) * copies
        return copies

    def _with_share(self, b: _Bin) -> _Bin | None:
        """The bin with what its claim may take of limits; None if too few types hold it for the pool's minValues."""
        s, own = int(self._market.stalls[b.offer]), int(self._market.types[b.offer])
        stall, types = self._stalls[s], [own]
        if stall.template.min_values:
            shelf = Shelf.of(stall, self._requirements(b), self._question.options)
            holding = shelf.types[shelf.holding([self._node(b)])[0]]
            if self._varied and not distinct_enough(stall, holding):
                return None
            types += needed_for_variety(stall, holding)
        limited = bool(stall.template.pool.spec.limits)
        return replace(b, share=self._costs[s][types].max(axis=0)) if limited else b

    # --- from the outcome to nodes

    def nodes(self, outcome: _Outcome) -> Iterator[OpenNode]:
        """A node for each copy of each bin, its pods drawn from the units in order."""
        for b, copies in outcome.bins:
            node = self._node(b)
            kinds = list(zip(b.kinds.tolist(), b.counts.tolist(), strict=True))
            for _ in range(copies):
                drawn = [pods for item, count in kinds for pods in self._items.draw(item, count)]
                yield OpenNode(
                    stall=node.stall,
                    requirements=node.requirements,
                    pods=together(drawn),
                    total=node.total,
                    share=node.share,
                )

    def _node(self, b: _Bin) -> OpenNode:
        """The node without its pods."""
        s, width = int(self._market.stalls[b.offer]), len(self._question.axes)
        return OpenNode(
            stall=self.members[s],
            requirements=self._requirements(b),
            pods=(),
            total=b.counts @ self._items.requests[b.kinds, :width],
            share=b.share,
        )

    def _requirements(self, b: _Bin) -> Requirements:
        """What its claim asks for; alike for offers of one pool and variant, unless pods have alternatives."""
        market, offer = self._market, b.offer
        wishes = distinct(self._items.wish_of[b.kinds])
        s, v, t, stock = (int(column[offer]) for column in (market.stalls, market.variants, market.types, market.stock))
        plain = not self._items.has_alternatives[wishes].any()
        key = (s, v, stock, -1 if plain else t, wishes.tobytes())
        if key not in self._settled:
            chosen = [self._items.wishes[w] for w in wishes]
            reservation = market.reservations[stock] if stock >= 0 else ""
            self._settled[key] = settled(self._stalls[s], t, market.variants_by_stall[s][v], chosen, reservation)
        return self._settled[key]

    def rest(self) -> tuple[Unit, ...]:
        """The units with what was not drawn."""
        return self._items.rest()
