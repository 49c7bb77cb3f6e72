"""Defines the packing problem and its result (items, offers, bins), and prices contents.

Offers have node constraints, and `allowed` says which items an offer with these constraints may hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.scheduling.arrays import Bools, Floats, Ints


class Content(NamedTuple):
    """The content of a node: the positive number of `copies` of each of `items` (ascending)."""

    items: tuple[int, ...]
    copies: tuple[int, ...]

    @classmethod
    def of(cls, copies: Mapping[int, int]) -> Content:
        """Return the content with these copies by item."""
        items = tuple(sorted(copies))
        return cls(items, tuple(copies[item] for item in items))

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yield each item with its copies."""
        return zip(self.items, self.copies, strict=True)


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)


class PackingProblem(Struct, frozen=True, kw_only=True, eq=False):
    """The items to place and the offers to buy.

    Attributes:
        counts: Count by item.
        requests: Amounts by item and axis (resources, and what rules about one node count).
        allowed: By node constraints and item, whether such an offer may hold it.
        sizes: Capacity by offer and axis, never negative.
        prices: Hourly price of a node by offer, surcharges per node included; ties go to the earlier offer.
        constraints: By offer, the index of its node constraints in `allowed`.
        selected: By item and conflict (a rule that keeps others off), whether the rule selects the item. It never
            shares a node with another item that owns the rule; axes limit how many copies of one item share a node.
        owning: By item and conflict, whether the item owns the rule.
        reservation: By offer, the index of the reservation that each node uses up a part of; -1 without one. Empty if
            there are no reservations.
        reserved: The nodes left in each reservation; they are already paid for, so these offers cost almost 0.
    """

    counts: Ints
    requests: Ints
    allowed: Bools
    sizes: Ints
    prices: Floats
    constraints: Ints
    selected: Bools
    owning: Bools
    reservation: Ints = field(default_factory=_none)
    reserved: Ints = field(default_factory=_none)

    @property
    def is_reserved(self) -> Bools:
        """By offer, whether it is of a reservation."""
        found: Bools = self.reservation >= 0 if len(self.reservation) else np.zeros(len(self.prices), dtype=bool)
        return found

    @property
    def is_exact(self) -> bool:
        """Whether `cover_exactly` packs it: one kind of items, which some offer holds, and nothing is reserved."""
        return len(self.counts) == 1 and not len(self.reserved) and bool(self.fits().any())

    def only(self, offers: Ints | Bools) -> PackingProblem:
        """Return the problem with only these offers."""
        return replace(
            self,
            sizes=self.sizes[offers],
            prices=self.prices[offers],
            constraints=self.constraints[offers],
            reservation=self.reservation[offers] if len(self.reservation) else self.reservation,
        )

    def of_items(self, items: Ints) -> PackingProblem:
        """Return the problem with only these items; conflicts with items on one side only are removed."""
        selected, owning = self.selected[items], self.owning[items]
        live = selected.any(axis=0) & owning.any(axis=0)
        return replace(
            self,
            counts=self.counts[items],
            requests=self.requests[items],
            allowed=self.allowed[:, items],
            selected=selected[:, live],
            owning=owning[:, live],
        )

    def useful(self) -> Ints:
        """Return the offers that may hold any of the items."""
        suits: Bools = np.logical_or.reduce(self.allowed, axis=1)
        return np.flatnonzero(suits[self.constraints])

    def fits(self) -> Bools:
        """Return by item and offer whether the offer holds one copy."""
        fitting: Bools = self.allowed[self.constraints].T.copy()
        for axis in range(self.requests.shape[1]):
            capacity, requested = self.sizes[:, axis], self.requests[:, axis]
            if capacity.min(initial=0) < requested.max(initial=0):
                fitting &= capacity >= requested[:, None]
        return fitting


class Bin(Struct, frozen=True):
    """`copies` nodes of one offer with the same content, of a problem with `width` items."""

    offer: int
    content: Content
    copies: int
    width: int

    @property
    def filling(self) -> Ints:
        """The copies of every item in one node."""
        found = np.zeros(self.width, dtype=np.int64)
        found[list(self.content.items)] = self.content.copies
        return found


class Packing(Struct, frozen=True):
    """New nodes, and the count of each item that no offer could take."""

    bins: tuple[Bin, ...]
    price: float
    left: tuple[int, ...]


MANY_AXES: Final = 100
MOST_ENTRIES: Final = 150_000
"""Entries of the table of requests, by item and axis, of a problem with many axes that is packed as a whole."""
_UNITS_PER_ENTRY: Final = 4
_UNITS_PER_KIND: Final = 100


def packing_work(kinds: int, axes: int, offers: int = 0) -> int:
    """Return how long it takes to pack so many kinds of items with so many axes and conflicts, in microseconds.

    Each part has at most as many axes as a square table of its size.
    """
    in_part = min(axes, int(np.sqrt(MOST_ENTRIES))) if kinds * axes > MOST_ENTRIES else axes
    return _UNITS_PER_KIND * kinds + (_UNITS_PER_ENTRY * (kinds + offers) * in_part if axes > MANY_AXES else 0)


def price_of(bins: Iterable[Bin], prices: Floats) -> float:
    """Return the total price of the bins."""
    return float(sum(prices[b.offer] * b.copies for b in bins))


def held_by(bins: Iterable[Bin], width: int) -> Ints:
    """Return the total count of each item in the bins."""
    held = np.zeros(width, dtype=np.int64)
    for b in bins:
        for item, count in b.content.pairs():
            held[item] += count * b.copies
    return held


def content_of(filling: Ints) -> Content:
    """Return a filling as content, without zeros."""
    kinds = np.flatnonzero(filling)
    return Content(tuple(kinds.tolist()), tuple(filling[kinds].tolist()))


def merged(bins: Iterable[Bin]) -> list[Bin]:
    """Return the bins with those of equal offer and content merged, in order of first appearance."""
    copies: dict[tuple[int, Content], int] = {}
    width = 0
    for b in bins:
        width = b.width
        key = (b.offer, b.content)
        copies[key] = copies.get(key, 0) + b.copies
    return [Bin(offer, content, n, width) for (offer, content), n in copies.items()]


def translated(bins: Iterable[Bin], items: Ints, offers: Ints, width: int) -> list[Bin]:
    """Return the bins of a subproblem with these items and offers as bins of the whole problem."""
    return [
        Bin(
            int(offers[b.offer]),
            Content(tuple(int(items[item]) for item in b.content.items), b.content.copies),
            b.copies,
            width,
        )
        for b in bins
    ]


_CHUNK: Final = 1 << 20  # contents times offers compared at once


def cheapest_offers(problem: PackingProblem, totals: Ints, possible: Bools) -> Ints:
    """Return by content the cheapest offer that holds it and is not reserved; -1 if there is none.

    Args:
        problem: The problem with the offers.
        totals: The requests of each content, by content and axis.
        possible: By content and node constraints, whether such an offer may hold it.
    """
    order = np.argsort(problem.prices, kind="stable")
    order = order[~problem.is_reserved[order]]
    found = np.full(len(totals), -1, dtype=np.int64)
    if not len(order):
        return found
    sizes, constraints = problem.sizes[order], problem.constraints[order]
    step = max(_CHUNK // len(order), 1)
    for start in range(0, len(totals), step):
        some = slice(start, start + step)
        holds = possible[some][:, constraints]
        for axis in np.flatnonzero(totals[some].max(axis=0) > sizes.min(axis=0)):
            holds &= sizes[:, axis] >= totals[some, axis, None]
        first = holds.argmax(axis=1)
        found[some] = np.where(holds[np.arange(len(first)), first], order[first], -1)
    return found
