"""What the pods of one row ask of a place, prepared once for all of them.

Restates: karpenter pkg/controllers/provisioning/scheduling/scheduler.go `PodData`; preferences.go
`removeRequiredNodeAffinityTerm`: the terms of a required node affinity are tried one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from journeyman.core.scheduling.arrays import Bools
from journeyman.core.scheduling.draft import Question
from journeyman.core.scheduling.offering.wishes import Shape
from journeyman.core.scheduling.one_by_one.book import NONE, Book
from journeyman.core.scheduling.one_by_one.rules import Rules
from journeyman.core.scheduling.one_by_one.shelves import Shelf
from journeyman.core.scheduling.opening.settling import held
from journeyman.core.scheduling.requirements import Requirements


class Opening(Struct, frozen=True):
    """A way to open a node: what its claim asks for (a number), the offerings it leaves, the reservation it draws on."""

    wanted: int
    offerings: int
    reservation: str = ""


class Ask:
    """One row by one of its terms: `amounts` as (axis, how much), `rules` between pods.

    `wishes` are the term with each of the alternatives that its volumes leave (numbers).
    """

    def __init__(self, question: Question, row: int, term: Requirements, rules: Rules, book: Book) -> None:
        """Prepare a row."""
        cls = question.rows[row]
        self.row = row
        self.rules = rules
        self.ports = cls.ports
        self.cls = cls
        self.amounts: tuple[tuple[int, int], ...] = tuple(
            (axis, amount) for axis, amount in enumerate(question.requests[row].tolist()) if amount
        )
        both = [term & volumes for volumes in cls.volume_terms]
        wishes = [wanted for wanted in both if not any(r.impossible for r in wanted.values())]
        self.wishes = tuple(book.number(wanted) for wanted in wishes)
        self._book = book
        self._shape = Shape.of(cls)
        columns = question.existing.columns
        self._open: Bools = columns.meeting(wishes) & columns.accepted(
            cls.tolerations, heeds_preferences=cls.heeds_preferences
        )  # by place; grows with the places
        self._openings: dict[int, tuple[Opening, ...]] = {}

    def may_go(self, places: int) -> Bools:
        """By place, whether it may still take one of these; places that once refused for good are left out."""
        if places > len(self._open):
            more = np.ones(max(2 * places, 64), dtype=bool)
            more[: len(self._open)] = self._open
            self._open = more
        return self._open[:places]

    def rule_out(self, place: int) -> None:
        """The place will never take one of these again."""
        self._open[place] = False

    def on_new(self, shelf: Shelf) -> Sequence[Opening]:
        """The ways to open a node for one of these."""
        found = self._openings.get(shelf.index)
        if found is None:
            found = self._openings[shelf.index] = tuple(self._found(shelf)) if self.tolerates(shelf) else ()
        return found

    def _found(self, shelf: Shelf) -> Iterator[Opening]:
        holding = shelf.free_of(self.ports)
        for axis, amount in self.amounts:
            holding &= shelf.holding(axis, amount)
        for wish in self.wishes:
            wanted = self._book.narrowed(shelf.offer, wish)
            if wanted == NONE:
                continue
            if left := shelf.suiting(wanted) & shelf.ordinary & holding:
                yield Opening(wanted, left)
            for name, offerings in shelf.reserved:
                reserved = self._book.number(held(self._book[wanted], name))
                if left := shelf.suiting(reserved) & offerings & holding:
                    yield Opening(reserved, left, name)

    def tolerates(self, shelf: Shelf) -> bool:
        """Whether the pool's taints let these in."""
        return self._shape.accepts(shelf.stall.template.pool.spec.template.spec.taints)
