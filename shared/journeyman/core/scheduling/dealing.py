"""Pods dealt to cells, one at a time, as rules over domains allow.

Always the emptiest domain that every rule admits. A rule is a *level*: counts by domain, and how far a domain may be
above the emptiest one. What repeats itself is dealt many times at once, so that ten thousand pods cost a few rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from journeyman.core.scheduling.topology import Pins

UNLIMITED: Final = 1 << 40
_WORTH_A_LEAP: Final = 24  # pods; for fewer, watching for repetition costs more than it saves
_LOOSE_DEPTH: Final = 8  # differences beyond this look alike to pods that no rule binds
_NEAR: Final = 1.01  # of the best price; what costs no more is free


@dataclass(slots=True, kw_only=True)
class Cell:
    """One combination of domains that pods of a row may go to.

    `room` of them fit on nodes that exist, `more` may go to new nodes, there the best NodePools of those that differ in
    weight are of this `order`, and a pod costs at least `price` there. `apart` is how many pods that must follow these
    could not come there.
    """

    pins: Pins
    values: dict[str, str]
    room: int = 0
    more: int = 0
    order: tuple[int, bool] = (0, False)
    price: float = 0.0
    apart: int = 0


@dataclass(slots=True, kw_only=True)
class Level:
    """One rule over the domains of `key`.

    `counts` are the pods counted by domain, over all domains that the emptiest is looked for in. `rivals` are those
    among them that came by a rule of their own: only these can be held against a pod if all others come after it. A
    domain may be `skew` above the emptiest (None: it is merely kept level). `step` is 1 if the pods being dealt count.
    `from_zero`: the emptiest counts as empty. `is_ban`: a domain is open or closed, and none is better than another.
    """

    key: str
    counts: dict[str, int]
    rivals: dict[str, int]
    skew: int | None
    step: int
    from_zero: bool = False
    is_ban: bool = False

    def floor(self) -> int:
        """What domains are compared with."""
        return 0 if self.from_zero or not self.counts else min(self.counts.values())

    def admits(self, value: str) -> bool:
        """Whether one more pod may go to a domain, if all that are merely counted come after it."""
        return self.skew is None or self.rivals.get(value, 0) + self.step - self.floor() <= self.skew

    def add(self, cell: Cell, pods: int) -> None:
        """Count pods that were dealt."""
        value = cell.values.get(self.key)
        if value is not None and self.step:
            self.counts[value] = self.counts.get(value, 0) + pods
            self.rivals[value] = self.rivals.get(value, 0) + pods


def deal(pods: int, cells: Sequence[Cell], levels: Sequence[Level], *, is_loose: bool) -> list[int]:
    """How many of the pods each cell gets; those that no cell takes are left.

    Args:
        pods: How many there are.
        cells: Where they may go.
        levels: Their rules, and the counts to be kept level. Changed as pods are dealt.
        is_loose: No spread binds the pods: they are kept level only where that is free.
    """
    return _Dealing(cells, levels, is_loose=is_loose).deal(pods)


class _Dealing:
    def __init__(self, cells: Sequence[Cell], levels: Sequence[Level], *, is_loose: bool) -> None:
        self._cells = cells
        self._levels = levels
        self._rules = [level for level in levels if level.skew is not None]
        self._is_loose = is_loose
        self._room = [cell.room for cell in cells]
        self._more = [cell.more for cell in cells]
        self._given = [0] * len(cells)
        cheapest = min(((c.order, c.price) for c in cells), default=((0, False), 0.0))
        self._dear = [(c.order, c.price) > (cheapest[0], cheapest[1] * _NEAR) for c in cells]
        self._ranked = sorted(range(len(cells)), key=lambda i: (cells[i].price, cells[i].pins))

    def deal(self, pods: int) -> list[int]:
        seen: dict[object, tuple[list[int], list[dict[str, int]]]] = {}
        while pods > 0:
            chosen = self._choose(strict=True)
            if chosen is None:
                chosen = self._choose(strict=False)
            if chosen is None:
                break
            self._give(chosen, 1)
            pods -= 1
            if pods >= _WORTH_A_LEAP:
                state = self._state()
                if state in seen:
                    pods -= self._leap(pods, *seen[state])
                    seen.clear()
                else:
                    seen[state] = (list(self._given), [dict(level.counts) for level in self._levels])
        return self._given

    def _give(self, i: int, pods: int) -> None:
        """Pods for a cell; nodes that exist come first."""
        self._given[i] += pods
        here = min(pods, self._room[i])
        self._room[i] -= here
        self._more[i] -= pods - here
        for level in self._levels:
            level.add(self._cells[i], pods)

    def _choose(self, *, strict: bool) -> int | None:
        """The best cell for the next pod; if not `strict`, pods that are merely counted are not held against it."""
        floors = [level.floor() for level in self._levels]
        best: tuple[tuple[object, ...], int] | None = None
        for i in self._ranked:
            if (self._room[i] > 0 or self._more[i] > 0) and self._admits(i, floors, strict=strict):
                rank = self._rank(i, floors)
                if best is None or rank < best[0]:
                    best = (rank, i)
        return best[1] if best is not None else None

    def _admits(self, i: int, floors: Sequence[int], *, strict: bool) -> bool:
        values = self._cells[i].values
        for level, floor in zip(self._levels, floors, strict=True):
            if level.skew is None:
                continue
            value = values.get(level.key)
            if value is None:
                continue
            held = level.rivals.get(value, 0)
            if strict:
                held = max(held, level.counts.get(value, 0))
            if held + level.step - floor > level.skew:
                return False
        return True

    def _rank(self, i: int, floors: Sequence[int]) -> tuple[object, ...]:
        cell = self._cells[i]
        bound = other = 0
        for level, floor in zip(self._levels, floors, strict=True):
            value = cell.values.get(level.key)
            if value is not None and not level.is_ban:
                above = level.counts.get(value, 0) - floor
                if level.skew is not None:
                    bound = max(bound, above)
                else:
                    other = max(other, above)
        if self._is_loose:
            return cell.apart, self._room[i] <= 0, self._dear[i], other
        return self._room[i] <= 0, cell.order, bound, cell.apart, other

    # --- repetition

    def _state(self) -> object:
        """All that the next choices depend on: how the domains differ, and which cells are open."""
        differences = []
        for level in self._levels:
            floor = level.floor()
            deepest = self._deepest(level)
            differences.append(tuple(min(n - floor, deepest) for n in level.counts.values()))
            if level.skew is not None:
                differences.append(tuple(min(n - floor, deepest) for n in level.rivals.values()))
        return tuple(differences), tuple(n > 0 for n in self._room), tuple(n > 0 for n in self._more)

    def _deepest(self, level: Level) -> int:
        return _LOOSE_DEPTH if level.skew is None else level.skew + 1

    def _leap(self, pods: int, given: Sequence[int], counts: Sequence[dict[str, int]]) -> int:
        """Deal again what was dealt since, as often as nothing changes; how many pods that were."""
        cycle = [now - then for now, then in zip(self._given, given, strict=True)]
        times = pods // sum(cycle)
        for i, n in enumerate(cycle):
            left = self._room[i] if self._room[i] > 0 else self._more[i]
            if n:
                times = min(times, (left - 1) // n)
        for level, then in zip(self._levels, counts, strict=True):
            times = min(times, self._steady(level, then))
        for i, n in enumerate(cycle):
            if n and times > 0:
                self._give(i, n * times)
        return sum(cycle) * max(times, 0)

    def _steady(self, level: Level, then: dict[str, int]) -> int:
        """How often the cycle may be repeated before a domain that was far above the others is so no more."""
        floor, deepest = level.floor(), self._deepest(level)
        rise = floor - (0 if level.from_zero else min(then.values(), default=0))
        times = UNLIMITED
        for value, count in level.counts.items():
            nearer = rise - (count - then.get(value, 0))
            if count - floor > deepest and nearer > 0:
                times = min(times, (count - floor - deepest) // nearer)
        return times
