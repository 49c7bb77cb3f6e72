"""Computes shadow prices, the ideal mix of nodes, and the lower bound, by one linear program.

The cheapest way to cover a demand with fractional nodes is a linear program. Its dual prices each unit of demand so
that no offer is worth more than its price. Any dual feasible prices give a lower bound of the price of the integral
plan (weak duality), even if they are not optimal.

Similar offers form a *group*: the same node constraints, about the same size, the same axis that runs out first.
Fractional nodes provide capacity by group and axis, and items are split among the groups that may hold them. So the
program buys a cheap offer that is too small for most items only for the items that fit. Reservations are rows too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import numpy as np
from msgspec import Struct

from journeyman.core.scheduling.arrays import Bools, Floats, Ints, every
from journeyman.core.scheduling.packing.linear_program import CoveringProgram, affordable
from journeyman.core.scheduling.packing.packing_problem import PackingProblem

_ROWS: Final = 160  # of the program; above it, offers and items are grouped more coarsely
_ENTRIES: Final = 40_000  # rows times offers, likewise
_FITTING: Final = (0.5, 0.8, 0.95, 1.0)  # offers are distinguished by the share of the items that fit them
BY_SIZE: Final = (True, False)  # whether offers are distinguished by size, finest first
STEPS: Final = (8, 5, 3)  # in which the parts of the axes in a request are distinguished, likewise
_TIE_BREAK: Final = 1e-4  # of a typical node's price


class ShadowPrices(Struct, frozen=True, kw_only=True, eq=False):
    """The results of the linear program.

    Attributes:
        unit: Worth of one unit by offer and axis; no offer is worth more than its price, unless it is reserved.
        items: Worth of one copy of each item, in the group where it is lowest.
        mix: The optimal fractional number of nodes by offer; of equal optima, one with nodes of similar price.
        bound: A lower bound of the price of any packing.
    """

    unit: Floats
    items: Floats
    mix: Floats
    bound: float


def lower_bound(problem: PackingProblem) -> float:
    """Return a lower bound of the price of any packing of the problem's items.

    Items that share no offer are bounded separately, and the bounds are added.
    """
    demanded = problem.of_items(np.flatnonzero(problem.counts))
    parts = [part.only(part.useful()) for part in (demanded.of_items(items) for items in independent(demanded.allowed))]
    return sum(max(compute_shadow_prices(part, coarse=c).bound for c in (False, True)) for part in parts)


def independent(allowed: Bools) -> list[Ints]:
    """Return the items in groups such that no offer may hold items of two groups; sorted by first item."""
    if not allowed.shape[1]:
        return []
    columns, which = np.unique(allowed, axis=1, return_inverse=True)
    groups: list[tuple[Bools, list[int]]] = []
    for column in range(columns.shape[1]):
        mask, members = columns[:, column].copy(), [column]
        separate: list[tuple[Bools, list[int]]] = []
        for other, others in groups:
            if (other & mask).any():
                mask, members = mask | other, others + members
            else:
                separate.append((other, others))
        groups = [*separate, (mask, members)]
    found = [np.flatnonzero(np.isin(which.ravel(), members)) for _, members in groups]
    return sorted(found, key=lambda items: int(items[0]))


def compute_shadow_prices(problem: PackingProblem, *, coarse: bool = False) -> ShadowPrices:
    """Solve the program; `coarse`: offers are grouped by node constraints only."""
    groups = OfferGroups.of(problem, coarse=coarse)
    worth, mix = groups.solve()
    each = np.where(groups.allowed, worth @ problem.requests.T.astype(float), np.inf).min(axis=0, initial=np.inf)
    items = np.where(np.isfinite(each), each, 0.0)
    unit: Floats = worth[groups.offer_group]
    bound = float(problem.counts @ items) - _worth_of_reservations(problem, unit, groups.usable)
    return ShadowPrices(unit=unit, items=items, mix=mix, bound=max(bound, 0.0))


def _worth_of_reservations(problem: PackingProblem, unit: Floats, usable: Floats) -> float:
    """Return an upper bound of the worth above their price of the reserved nodes."""
    gain = np.maximum((usable * unit).sum(axis=1) - problem.prices, 0.0)
    total = 0.0
    for index, nodes in enumerate(problem.reserved):
        total += float(nodes) * float(gain[problem.reservation == index].max(initial=0.0))
    return total


class OfferGroups(Struct, frozen=True, kw_only=True, eq=False):
    """Offers in groups, and items in groups by the offer groups that may hold them.

    Attributes:
        problem: The problem with the offers and items.
        offer_group: Group by offer.
        allowed: By offer group and item, whether some offer of the group may hold it.
        group: Group by item; the same offer groups may hold all items of a group.
        usable: Capacity by offer and axis that any content can use.
    """

    problem: PackingProblem
    offer_group: Ints
    allowed: Bools
    group: Ints
    usable: Floats

    @classmethod
    def of(cls, problem: PackingProblem, *, coarse: bool) -> OfferGroups:
        """Group offers and items as finely as the size of the program allows; if `coarse`, offers not by size."""
        offer_group, allowed, group = next(_groupings(problem, coarse=coarse))
        usable = _usable_sizes(problem, offer_group, allowed)
        return cls(problem=problem, offer_group=offer_group, allowed=allowed, group=group, usable=usable)

    def solve(self) -> tuple[Floats, Floats]:
        """Return the worth by offer group and axis, safe against rounding, and the mix of offers."""
        problem = self.problem
        worth = np.zeros((len(self.allowed), problem.requests.shape[1]))
        demand = self._demand()
        capacities = np.argwhere(self._reachable() @ demand > 0)
        if not len(problem.prices) or not len(capacities):
            return worth, np.zeros(len(problem.prices))
        program = self._program(demand, capacities)
        worth[capacities[:, 0], capacities[:, 1]] = (
            program.solve()[: len(capacities)] / demand.sum(axis=0)[capacities[:, 1]]
        )
        for offer_group in range(len(worth)):
            offers = np.flatnonzero((self.offer_group == offer_group) & ~problem.is_reserved)
            worth[offer_group] = affordable(worth[offer_group], problem.prices[offers], self.usable[offers])
        self.prefer_equal_nodes(program)
        return worth, program.amounts[: len(problem.prices)]

    def _demand(self) -> Floats:
        """Return the total requests by group and axis."""
        demand = np.zeros((int(self.group.max(initial=-1)) + 1, self.problem.requests.shape[1]))
        np.add.at(demand, self.group, self.problem.counts[:, None] * self.problem.requests.astype(float))
        return demand

    def _reachable(self) -> Floats:
        """Return by offer group and item group 1 where the offers may hold the items, else 0."""
        _, first = np.unique(self.group, return_index=True)
        found: Floats = self.allowed[:, first].astype(float)
        return found

    def _program(self, demand: Floats, capacities: Ints) -> CoveringProgram:
        """Return the program: rows are capacities, item groups and reservations; columns are offers and flows."""
        problem = self.problem
        scale = demand.sum(axis=0)[capacities[:, 1]]
        program = CoveringProgram(np.concatenate((np.zeros(len(capacities)), np.ones(len(demand)), -problem.reserved)))
        is_member = self.offer_group[:, None] == capacities[:, 0]
        provided = np.where(is_member, self.usable[:, capacities[:, 1]] / scale, 0.0)
        taken = -1.0 * (problem.reservation[:, None] == np.arange(len(problem.reserved)))
        no_demand = np.zeros((len(problem.prices), len(demand)))
        program.add(
            problem.prices, np.hstack((provided, no_demand, taken.reshape(len(provided), len(problem.reserved))))
        )
        group, offer_group = np.nonzero(self._reachable().T)  # by flow
        used = np.where(offer_group[:, None] == capacities[:, 0], demand[group][:, capacities[:, 1]] / scale, 0.0)
        unlimited = np.zeros((len(group), len(problem.reserved)))
        program.add(np.zeros(len(group)), np.hstack((-used, np.eye(len(demand))[group], unlimited)))
        uncovered = np.eye(len(demand), len(problem.reserved) + sum(map(len, (capacities, demand))), len(capacities))
        program.add(np.full(len(demand), self._penalty(provided)), uncovered)
        return program

    def _penalty(self, provided: Floats) -> float:
        """Return a price that exceeds the price of the demand of any item group in any optimum."""
        problem = self.problem
        each = np.where(provided > 0, problem.prices[:, None] / np.where(provided > 0, provided, 1.0), np.inf)
        bought = each[~problem.is_reserved].min(axis=0, initial=np.inf)
        return 2.0 * float(bought[np.isfinite(bought)].sum() + problem.prices.max(initial=0.0))

    def prefer_equal_nodes(self, program: CoveringProgram) -> None:
        """Move to an optimal mix whose nodes have similar prices."""
        prices = self.problem.prices
        bought = program.amounts[: len(prices)]
        spent = float(bought @ prices)
        if spent:  # otherwise the mix is empty or free
            typical = spent / float(bought.sum())
            program.set_prices(prices * (1 + _TIE_BREAK * prices / typical))
            program.solve()


def _groupings(problem: PackingProblem, *, coarse: bool) -> Iterator[tuple[Ints, Bools, Ints]]:
    """Yield groups of offers, the items that they may hold, and groups of items, the finest first."""
    axes = int(problem.requests.any(axis=0).sum())
    for by_size in BY_SIZE[-1:] if coarse else BY_SIZE:
        offer_group, allowed = _offer_groups(problem, by_size=by_size)
        rows = min(_ROWS, _ENTRIES // max(len(offer_group), 1)) if by_size else _ROWS
        for group in _item_groups(problem, allowed, STEPS if by_size else ()):
            if len(allowed) * axes + int(group.max(initial=-1)) + 1 <= rows:
                yield offer_group, allowed, group
    reachable: Bools = np.logical_or.reduce(problem.allowed[np.unique(problem.constraints)], axis=0)
    yield np.zeros_like(problem.constraints), reachable[None, :], np.zeros(len(problem.counts), dtype=np.int64)


def _offer_groups(problem: PackingProblem, *, by_size: bool) -> tuple[Ints, Bools]:
    """Return the group of each offer, and by group and item whether one of its offers may hold the item."""
    keys = [problem.constraints]
    if by_size and len(problem.counts):
        ordered = np.sort(problem.requests, axis=0)
        axes = range(ordered.shape[1])
        fitting = np.array([np.searchsorted(ordered[:, a], problem.sizes[:, a], side="right") for a in axes])
        keys.append(np.searchsorted(_FITTING, fitting.min(axis=0) / len(problem.counts), side="right"))
        need = np.maximum(problem.counts @ problem.requests, 1)
        keys.append(np.argmin(problem.sizes / need, axis=1))
    _, offer_group = np.unique(np.stack(keys, axis=1), axis=0, return_inverse=True)
    offer_group = offer_group.ravel()
    allowed = np.zeros((int(offer_group.max(initial=-1)) + 1, len(problem.counts)), dtype=bool)
    for index in range(len(allowed)):
        offers = np.flatnonzero(offer_group == index)
        largest = problem.sizes[offers].max(axis=0)
        allowed[index] = problem.allowed[problem.constraints[offers[0]]] & every(problem.requests <= largest)
    return offer_group, allowed


def _item_groups(problem: PackingProblem, allowed: Bools, steps: Collection[int]) -> Iterator[Ints]:
    """Yield the group of each item: first each on its own, at last those with the same offer groups together.

    Between these are groups of items whose requests also have similar proportions: `steps` are the numbers of steps in
    which the part of each axis in a request is distinguished. Without steps, there are only the last groups.
    """
    if steps:
        yield np.arange(len(problem.counts))
    alike = np.zeros(len(problem.counts), dtype=np.int64)
    for row in allowed:
        _, alike = np.unique(alike * 2 + row, return_inverse=True)
    shares = problem.requests / np.maximum(problem.counts @ problem.requests, 1)
    shares = shares / np.maximum(shares.sum(axis=1, keepdims=True), 1e-300)
    for most in steps:
        group = alike
        for share in np.minimum((shares * most).astype(np.int64), most - 1).T:
            _, group = np.unique(group * most + share, return_inverse=True)
        yield group
    yield alike


def _usable_sizes(problem: PackingProblem, offer_group: Ints, allowed: Bools) -> Floats:
    """Return by offer and axis the capacity that any content can use.

    No node holds more than all items; and if every item requests memory along with cpu, a node with little memory
    cannot use all its cpu.
    """
    sizes = problem.sizes.astype(float)
    requests = problem.requests.astype(float)
    for index, members in enumerate(allowed):
        offers = offer_group == index
        demanded = requests[members]
        capacity = np.minimum(sizes[offers], problem.counts[members] @ demanded)
        limit = capacity.copy()
        for axis in range(requests.shape[1]):
            divisor = demanded[:, axis]
            if len(divisor) and divisor.all():
                ratios = (demanded / divisor[:, None]).max(axis=0)
                limit = np.minimum(limit, capacity[:, axis, None] * ratios * (1 + 1e-12))
        sizes[offers] = limit
    return sizes
