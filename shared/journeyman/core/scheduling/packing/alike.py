"""Items that differ in nothing that matters here are packed as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.scheduling.arrays import Bools, Ints
from journeyman.core.scheduling.packing.problem import Bin, Problem


class Kinds(Struct, frozen=True, kw_only=True, eq=False):
    """A problem over kinds of items; `members[k]` are the items of kind k, of a problem with `width` items."""

    problem: Problem
    members: tuple[Ints, ...]
    width: int
    counts: Ints  # by item

    @classmethod
    def of(cls, problem: Problem, items: Ints) -> Kinds:
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


def _mixed_up(problem: Problem) -> Bools:
    """Items that are on both sides of a conflict: it is between two of them, but not between two of one."""
    found: Bools = np.logical_or.reduce(problem.loose & problem.bound, axis=1)
    return found
