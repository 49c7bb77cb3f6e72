"""What everything is worth at this moment's offers: shadow prices, the ideal mix of nodes, and the bound.

One linear program for all signatures together: nodes in fractions give room by signature and axis, items that may go to
one signature only ask for room there, and those that may go to several are split among them. Stocks are rows too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from journeyman.core.scheduling.offers import Bools, Floats, Ints
from journeyman.core.scheduling.packing.problem import Problem
from journeyman.core.scheduling.pricing import CoveringProgram

_ROWS: Final = 160  # of the program; with more, all signatures are taken for one
_TIE_BREAK: Final = 1e-4  # of a typical node's price


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Appraisal:
    """Shadow prices.

    Attributes:
        unit: Worth of one unit by signature and axis; no offer without a stock is worth more than it costs.
        items: Worth of one of each item, where it is worth least.
        mix: How many nodes of each offer would be bought, if fractions could be; of equal mixes one of alike nodes.
        bound: A price that no packing can undercut.
    """

    unit: Floats
    items: Floats
    mix: Floats
    bound: float


def lower_bound(problem: Problem) -> float:
    """A price that no packing of the problem's items can undercut.

    Items whose offers have nothing in common with other items' are bounded apart, and the bounds add up.
    """
    asked = problem.of_items(np.flatnonzero(problem.counts))
    return sum(appraise(_alone(asked, items), with_mix=False).bound for items in independent(asked.allowed))


def _alone(problem: Problem, items: Ints) -> Problem:
    """The problem of these items and of the offers that may hold some of them."""
    part = problem.of_items(items)
    return part.only(np.flatnonzero(np.logical_or.reduce(part.allowed, axis=1)[part.signatures]))


def independent(allowed: Bools) -> list[Ints]:
    """Items grouped so that no offer may hold items of two groups; by first item."""
    if not allowed.shape[1]:
        return []
    columns, which = np.unique(allowed, axis=1, return_inverse=True)
    groups: list[tuple[Bools, list[int]]] = []
    for column in range(columns.shape[1]):
        mask, members = columns[:, column].copy(), [column]
        apart: list[tuple[Bools, list[int]]] = []
        for other, others in groups:
            if (other & mask).any():
                mask, members = mask | other, others + members
            else:
                apart.append((other, others))
        groups = [*apart, (mask, members)]
    found = [np.flatnonzero(np.isin(which.ravel(), members)) for _, members in groups]
    return sorted(found, key=lambda items: int(items[0]))


def appraise(problem: Problem, *, with_mix: bool = True) -> Appraisal:
    """Solve the program for these items; `mix` is all zero unless asked for."""
    market = _Market.of(problem)
    unit, mix = market.solve(with_mix=with_mix)
    reachable = problem.allowed & np.isin(np.arange(len(problem.allowed)), problem.signatures)[:, None]
    each = np.where(reachable, unit @ problem.requests.T.astype(float), np.inf).min(axis=0, initial=np.inf)
    items = np.where(np.isfinite(each), each, 0.0)
    bound = float(problem.counts @ items) - _worth_of_stocks(problem, unit, market.usable)
    return Appraisal(unit=unit, items=items, mix=mix, bound=max(bound, 0.0))


def _worth_of_stocks(problem: Problem, unit: Floats, usable: Floats) -> float:
    """What the nodes in stock are worth above their price, at most."""
    gain = np.maximum((usable * unit[problem.signatures]).sum(axis=1) - problem.prices, 0.0)
    total = 0.0
    for index, nodes in enumerate(problem.stocks):
        total += float(nodes) * float(gain[problem.stock == index].max(initial=0.0))
    return total


def _usable_sizes(problem: Problem, demand: Floats) -> Floats:
    """Room by offer and axis as far as any content can use it.

    No node holds more than all there is; and where every item asks for memory along with cpu, a node with little memory
    cannot use all its cpu.
    """
    sizes = problem.sizes.astype(float)
    present = np.unique(problem.signatures)
    requests = problem.requests.astype(float)
    axes = np.flatnonzero(requests.any(axis=0))
    for signature in present:
        members = problem.allowed[signature]
        offers = problem.signatures == signature
        total = demand[members].sum(axis=0)
        room = np.minimum(sizes[offers], total)
        limit = room.copy()
        for axis in axes:
            divisor = requests[members, axis]
            if not divisor.size or not divisor.all():
                continue
            ratios = (requests[members] / divisor[:, None]).max(axis=0)
            limit = np.minimum(limit, room[:, axis, None] * ratios * (1 + 1e-12))
        sizes[offers] = limit
    return sizes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Market:
    """The program's rows: room by signature and axis, then items by where they may go, then stocks."""

    problem: Problem
    usable: Floats
    rooms: tuple[tuple[int, int], ...]  # (signature, axis) by row
    scale: Floats  # the most that could be asked for, by row of `rooms`
    fixed: Floats  # what must be there, same
    flows: tuple[tuple[int, Floats], ...]  # (row among the free groups, what goes there by room), a column each
    free: int
    place: Ints  # by offer, its signature among those of the rows

    @classmethod
    def of(cls, problem: Problem) -> _Market:
        """Group the items by where they may go; with too many rows, all signatures are taken for one."""
        demand = problem.counts[:, None] * problem.requests.astype(float)
        present = np.unique(problem.signatures)
        columns, which = np.unique(problem.allowed[present], axis=1, return_inverse=True)
        by_group = np.zeros((columns.shape[1], demand.shape[1]))
        np.add.at(by_group, which.ravel(), demand)
        place = np.searchsorted(present, problem.signatures)
        several = columns.sum(axis=0) > 1
        if len(present) * int(demand.any(axis=0).sum()) + int(several.sum()) + len(problem.stocks) > _ROWS:
            columns, by_group = np.ones((1, 1), dtype=bool), by_group.sum(axis=0, keepdims=True)
            place, several = np.zeros_like(place), np.zeros(1, dtype=bool)
        potential = columns @ by_group
        rooms = [(int(s), int(a)) for s, a in np.argwhere(potential > 0)]
        scale = np.array([potential[s, a] for s, a in rooms])
        alone = columns & ~several
        fixed = np.array([float(alone[s] @ by_group[:, a]) for s, a in rooms])
        flows = [
            (row, np.array([by_group[g, a] if s == signature else 0.0 for s, a in rooms]))
            for row, g in enumerate(np.flatnonzero(several))
            for signature in np.flatnonzero(columns[:, g])
        ]
        return cls(
            problem=problem,
            usable=_usable_sizes(problem, demand),
            rooms=tuple(rooms),
            scale=scale,
            fixed=fixed,
            flows=tuple(flows),
            free=int(several.sum()),
            place=place,
        )

    def solve(self, *, with_mix: bool) -> tuple[Floats, Floats]:
        """Worth by signature and axis, made safe against rounding; and the mix of offers."""
        problem = self.problem
        unit = np.zeros((len(problem.allowed), problem.requests.shape[1]))
        mix = np.zeros(len(problem.prices))
        if not len(problem.prices) or not self.rooms:
            return unit, mix
        program = self._program()
        duals = program.solve()[: len(self.rooms)] / self.scale
        places = np.zeros((int(self.place.max()) + 1, unit.shape[1]))
        for (signature, axis), worth in zip(self.rooms, duals, strict=True):
            places[signature, axis] = worth
        for signature in np.unique(problem.signatures):
            offers = np.flatnonzero((problem.signatures == signature) & ~problem.limited)
            here = places[self.place[np.flatnonzero(problem.signatures == signature)[0]]]
            value = self.usable[offers] @ here
            asked = value > 0
            unit[signature] = here * float((problem.prices[offers][asked] / value[asked]).min(initial=1.0))
        if with_mix:
            self._prefer_alike(program)
            for column, amount in program.levels():
                if column < len(mix):
                    mix[column] = amount
        return unit, mix

    def _program(self) -> CoveringProgram:
        problem, rows = self.problem, len(self.rooms)
        signature = np.array([s for s, _ in self.rooms])
        axes = np.array([a for _, a in self.rooms])
        room = np.where(self.place == signature[:, None], self.usable[:, axes].T / self.scale[:, None], 0.0)
        groups = np.zeros((self.free, len(problem.prices) + len(self.flows)))
        flows = np.zeros((rows, len(self.flows)))
        for column, (group, amounts) in enumerate(self.flows):
            groups[group, len(problem.prices) + column] = 1.0
            flows[:, column] = -amounts / self.scale
        stocks = np.zeros((len(problem.stocks), len(problem.prices) + len(self.flows)))
        for index, nodes in enumerate(problem.stocks):
            stocks[index, np.flatnonzero(problem.stock == index)] = -1.0 / max(int(nodes), 1)
        prices = np.concatenate((problem.prices, np.zeros(len(self.flows))))
        penalties = self._penalties(room)
        return CoveringProgram(
            prices=prices,
            cover=np.vstack((np.hstack((room, flows)), groups, stocks)),
            need=np.concatenate((self.fixed / self.scale, np.ones(self.free), np.where(problem.stocks > 0, -1.0, 0.0))),
            penalties=penalties,
        )

    def _penalties(self, room: Floats) -> Floats:
        """By row, more than any optimum pays for the whole of its demand; nothing where no offer serves it."""
        problem = self.problem
        each = np.where(room > 0, problem.prices / np.where(room > 0, room, 1.0), np.inf)
        bought = np.where(problem.limited, np.inf, each).min(axis=1, initial=np.inf)
        most = 2.0 * float(bought[np.isfinite(bought)].sum() + problem.prices.max(initial=0.0))
        served = np.isfinite(each.min(axis=1, initial=np.inf))
        alone = np.where(np.isfinite(bought), 2.0 * bought, np.where(served, most, 0.0))
        return np.concatenate((alone, np.full(self.free, most), np.zeros(len(problem.stocks))))

    def _prefer_alike(self, program: CoveringProgram) -> None:
        """Of all optimal mixes move on to one of nodes of much the same price, not giants among dwarfs."""
        offers = len(self.problem.prices)
        bought = [(j, amount) for j, amount in program.levels() if j < offers]
        nodes = sum(amount for _, amount in bought)
        if not nodes:
            return
        typical = sum(self.problem.prices[j] * amount for j, amount in bought) / nodes
        program.prices = program.prices * (1 + _TIE_BREAK * program.prices / max(typical, 1e-300))
        program.solve()
