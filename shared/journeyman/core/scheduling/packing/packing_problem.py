"""The packing problem and its result: items, offers, bins; items that are equal merged, contents priced.

Offers have a signature, and `allowed` says which items an offer of that signature may hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.scheduling.arrays import Bools, Floats, Ints

Content = tuple[tuple[int, int], ...]
"""What a node holds: (item, how many) by item, none of them zero."""


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)


class PackingProblem(Struct, frozen=True, kw_only=True, eq=False):
    """What to place, and what can be bought.

    Attributes:
        counts: How many of each item.
        requests: Amounts by item and axis (resources and caps per node).
        allowed: By signature and item, whether such an offer may hold it.
        sizes: Capacity by offer and axis, never negative.
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

    def only(self, offers: Ints | Bools) -> PackingProblem:
        """The same with some of the offers."""
        return replace(
            self,
            sizes=self.sizes[offers],
            prices=self.prices[offers],
            signatures=self.signatures[offers],
            stock=self.stock[offers] if len(self.stock) else self.stock,
        )

    def of_items(self, items: Ints) -> PackingProblem:
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
            capacity, asked = self.sizes[:, axis], self.requests[:, axis]
            if capacity.min(initial=0) < asked.max(initial=0):
                verdict &= capacity >= asked[:, None]
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
    """New nodes, and how many of each item no offer could take."""

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


class MergedItems(Struct, frozen=True, kw_only=True, eq=False):
    """A problem over kinds of items; `members[k]` are the items of kind k, of a problem with `width` items."""

    problem: PackingProblem
    members: tuple[Ints, ...]
    width: int
    counts: Ints  # by item

    @classmethod
    def of(cls, problem: PackingProblem, items: Ints) -> MergedItems:
        """The kinds among these items, in order of their first."""
        part = problem.of_items(items)
        unlike = np.where(_mixed_up(part), np.arange(len(items)), -1)
        rows = np.column_stack(
            (part.requests, unlike, *(np.packbits(bits, axis=1) for bits in (part.allowed.T, part.loose, part.bound)))
        )
        _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        rank = np.argsort(np.argsort(first))
        kind = rank[which.ravel()]
        order = np.argsort(kind, kind="stable")
        members = np.split(items[order], np.cumsum(np.bincount(kind))[:-1])
        merged = part.of_items(np.sort(first))
        counts = np.bincount(kind, weights=part.counts, minlength=len(first)).astype(np.int64)
        return cls(
            problem=replace(merged, counts=counts),
            members=tuple(members),
            width=len(problem.counts),
            counts=problem.counts,
        )

    def apart(self, bins: Iterable[Bin]) -> list[Bin]:
        """The bins in terms of the items: those of a kind are used up one after the other."""
        left = self.counts.copy()
        return [single for b in bins for single in self._drawn(b, left)]

    def _drawn(self, b: Bin, left: Ints) -> Iterator[Bin]:
        """The bin's copies; as many at once as hold the same."""
        copies = b.copies
        while copies:
            content: list[tuple[int, int]] = []
            alike = copies
            for kind, count in b.content:
                wanted = count
                for item in self.members[kind]:
                    taken = min(wanted, int(left[item]))
                    if taken:
                        content.append((int(item), taken))
                        alike = min(alike, int(left[item]) // taken)
                        wanted -= taken
                    if not wanted:
                        break
            for item, taken in content:
                left[item] -= taken * alike
            copies -= alike
            yield Bin(b.offer, tuple(sorted(content)), alike, self.width)


def _mixed_up(problem: PackingProblem) -> Bools:
    """Items that are on both sides of a conflict: it is between two of them, but not between two of one."""
    found: Bools = np.logical_or.reduce(problem.loose & problem.bound, axis=1)
    return found


_CHUNK: Final = 1 << 20  # contents times offers looked at together


def cheapest_offers(problem: PackingProblem, totals: Ints, possible: Bools) -> Ints:
    """By content, the cheapest offer without a stock that holds it; -1 if there is none.

    Args:
        problem: Whose offers to choose from.
        totals: What each content asks for, by content and axis.
        possible: By content and signature, whether such an offer may hold it.
    """
    order = np.argsort(problem.prices, kind="stable")
    order = order[~problem.limited[order]]
    found = np.full(len(totals), -1, dtype=np.int64)
    if not len(order):
        return found
    sizes, signatures = problem.sizes[order], problem.signatures[order]
    step = max(_CHUNK // len(order), 1)
    for start in range(0, len(totals), step):
        some = slice(start, start + step)
        holds = possible[some][:, signatures]
        for axis in np.flatnonzero(totals[some].max(axis=0) > sizes.min(axis=0)):
            holds &= sizes[:, axis] >= totals[some, axis, None]
        first = holds.argmax(axis=1)
        found[some] = np.where(holds[np.arange(len(first)), first], order[first], -1)
    return found
