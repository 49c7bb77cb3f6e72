"""Units merged into items: what packing cannot tell apart is one row with a count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.scheduling.arrays import Bools, Ints
from journeyman.core.scheduling.demand.classes import PodClass
from journeyman.core.scheduling.demand.topology import Pins
from journeyman.core.scheduling.draft import Question, Unit
from journeyman.core.scheduling.offering.wishes import Shape, Wish
from journeyman.core.scheduling.standing.caps import HostCaps


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
