"""What the pods of one row ask of a place, prepared once for all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from journeyman.core.scheduling.draft import Question
from journeyman.core.scheduling.market import Shape
from journeyman.core.scheduling.offers import Bools
from journeyman.core.scheduling.one_by_one.book import NONE, Book
from journeyman.core.scheduling.one_by_one.rules import Rules
from journeyman.core.scheduling.one_by_one.shelves import Shelf


class Ask:
    """One row: `amounts` as (axis, how much), `wishes` the alternatives for its node (numbers), `rules` between pods."""

    def __init__(self, question: Question, row: int, rules: Rules, book: Book) -> None:
        """Prepare a row."""
        cls = question.rows[row]
        self.row = row
        self.rules = rules
        self.ports = cls.ports
        self.cls = cls
        self.amounts: tuple[tuple[int, int], ...] = tuple(
            (axis, amount) for axis, amount in enumerate(question.requests[row].tolist()) if amount
        )
        self.wishes = tuple(book.number(term) for term in cls.node_terms)
        self._book = book
        self._shape = Shape.of(cls)
        columns = question.existing.columns
        self._open: Bools = columns.meeting(cls.node_terms) & columns.accepted(
            cls.tolerations, heeds_preferences=cls.heeds_preferences
        )  # by place; grows with the places
        self._shelves: dict[int, tuple[tuple[int, int], ...]] = {}

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

    def on_new(self, shelf: Shelf) -> Sequence[tuple[int, int]]:
        """The ways to open a node for one of these: what its claim asks for (a number), and the offerings it leaves."""
        found = self._shelves.get(shelf.index)
        if found is None:
            found = self._shelves[shelf.index] = tuple(self._ways(shelf)) if self.tolerates(shelf) else ()
        return found

    def _ways(self, shelf: Shelf) -> Sequence[tuple[int, int]]:
        holding = shelf.everything
        for axis, amount in self.amounts:
            holding &= shelf.holding(axis, amount)
        ways = []
        for wish in self.wishes:
            wanted = self._book.narrowed(shelf.offer, wish)
            if wanted != NONE and (left := shelf.suiting(wanted) & holding):
                ways.append((wanted, left))
        return ways

    def tolerates(self, shelf: Shelf) -> bool:
        """Whether the pool's taints let these in."""
        return self._shape.accepts(shelf.stall.template.pool.spec.template.spec.taints)
