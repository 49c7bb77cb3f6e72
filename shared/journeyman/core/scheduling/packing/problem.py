"""The question that packing answers, and the answer: values without pods, zones or pools.

Offers carry a signature, and `allowed` says which items an offer of that signature may hold.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.scheduling.arrays import Bools, Floats, Ints

Content = tuple[tuple[int, int], ...]
"""What a node holds: (item, how many) by item, none of them zero."""


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)


class Problem(Struct, frozen=True, kw_only=True, eq=False):
    """What to place, and what can be bought.

    Attributes:
        counts: How many of each item.
        requests: Amounts by item and axis (resources and caps per node).
        allowed: By signature and item, whether such an offer may hold it.
        sizes: Room by offer and axis, never negative.
        prices: Price of a node by offer, per hour, with whatever is to be reckoned per node; ties go to the earlier
            offer.
        signatures: Signature by offer.
        loose: By item and conflict. An item that is loose in a conflict never shares a node with another that is bound
            in it; how many of one and the same item share a node is a matter for axes.
        bound: The other side, same shape.
        stock: By offer, which of `stocks` each node takes one of; -1 if there are as many as one likes, and so for all
            offers if it is empty.
        stocks: How many nodes there are; what is reserved is paid for already, so such offers cost next to nothing.
    """

    counts: Ints
    requests: Ints
    allowed: Bools
    sizes: Ints
    prices: Floats
    signatures: Ints
    loose: Bools
    bound: Bools
    stock: Ints = field(default_factory=_none)
    stocks: Ints = field(default_factory=_none)

    @property
    def limited(self) -> Bools:
        """By offer, whether there are only so many."""
        found: Bools = self.stock >= 0 if len(self.stock) else np.zeros(len(self.prices), dtype=bool)
        return found

    def only(self, offers: Ints | Bools) -> Problem:
        """The same with some of the offers."""
        return replace(
            self,
            sizes=self.sizes[offers],
            prices=self.prices[offers],
            signatures=self.signatures[offers],
            stock=self.stock[offers] if len(self.stock) else self.stock,
        )

    def of_items(self, items: Ints) -> Problem:
        """The same with some of the items; conflicts of which one side is missing are forgotten."""
        loose, bound = self.loose[items], self.bound[items]
        live = loose.any(axis=0) & bound.any(axis=0)
        return replace(
            self,
            counts=self.counts[items],
            requests=self.requests[items],
            allowed=self.allowed[:, items],
            loose=loose[:, live],
            bound=bound[:, live],
        )

    def useful(self) -> Ints:
        """The offers that may hold any of the items."""
        suits: Bools = np.logical_or.reduce(self.allowed, axis=1)
        return np.flatnonzero(suits[self.signatures])

    def fits(self) -> Bools:
        """By item and offer, whether the offer holds one."""
        verdict: Bools = self.allowed[self.signatures].T.copy()
        for axis in range(self.requests.shape[1]):
            room, asked = self.sizes[:, axis], self.requests[:, axis]
            if room.min(initial=0) < asked.max(initial=0):
                verdict &= room >= asked[:, None]
        return verdict


class Bin(Struct, frozen=True):
    """`copies` nodes of one offer with the same content, of a problem with `width` items."""

    offer: int
    content: Content
    copies: int
    width: int

    @property
    def filling(self) -> Ints:
        """How many of every item."""
        found = np.zeros(self.width, dtype=np.int64)
        for item, count in self.content:
            found[item] = count
        return found


class Packing(Struct, frozen=True):
    """Nodes to open, and how many of each item no offer could take."""

    bins: tuple[Bin, ...]
    price: float
    left: tuple[int, ...]


def price_of(bins: Iterable[Bin], prices: Floats) -> float:
    """What the bins cost together."""
    return float(sum(prices[b.offer] * b.copies for b in bins))


def held_by(bins: Iterable[Bin], width: int) -> Ints:
    """How many of each item the bins hold together."""
    held = np.zeros(width, dtype=np.int64)
    for b in bins:
        for item, count in b.content:
            held[item] += count * b.copies
    return held


def content_of(filling: Ints) -> Content:
    """A filling without its zeros."""
    kinds = np.flatnonzero(filling)
    return tuple(zip(kinds.tolist(), filling[kinds].tolist(), strict=True))


def merged(bins: Iterable[Bin]) -> list[Bin]:
    """Bins of equal offer and content as one, in order of first appearance."""
    copies: dict[tuple[int, Content], int] = {}
    width = 0
    for b in bins:
        width = b.width
        copies[b.offer, b.content] = copies.get((b.offer, b.content), 0) + b.copies
    return [Bin(offer, content, n, width) for (offer, content), n in copies.items()]


def translated(bins: Iterable[Bin], items: Ints, offers: Ints, width: int) -> list[Bin]:
    """Bins of a part of a problem, of these items and offers, as bins of the whole."""
    return [
        Bin(int(offers[b.offer]), tuple((int(items[item]), count) for item, count in b.content), b.copies, width)
        for b in bins
    ]
