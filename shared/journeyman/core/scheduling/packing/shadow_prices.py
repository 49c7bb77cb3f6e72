"""Computes shadow prices, the ideal mix of nodes, and the lower bound, by one linear program.

The cheapest way to cover a demand with fractional nodes is a linear program. Its dual prices each unit of demand so that
no offer is worth more than its price. Any dual feasible prices give a lower bound of the price of the integral plan
(weak duality), even if they are not optimal. `CoveringProgram` solves such programs with the revised simplex method.

Similar offers form a *group*: the same signature, about the same size, the same axis that runs out first. Fractional
nodes provide capacity by group and axis, and items are split among the groups that may hold them. So the program buys a
cheap offer that is too small for most items only for the items that fit. Stocks are rows too.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct, field

from journeyman.core.scheduling.arrays import Bools, Floats, Ints, every
from journeyman.core.scheduling.packing.packing_problem import PackingProblem

_ROWS: Final = 160  # of the program; above it, offers and items are grouped more coarsely
_ROWS_FOR_WORTH: Final = 64  # likewise, without the mix
_CELLS: Final = 40_000  # rows times offers, likewise
_FITTING: Final = (0.5, 0.8, 0.95, 1.0)  # offers are distinguished by the share of the items that fit them
DETAILS: Final = ((True, True), (True, False), (False, False))  # distinguish offers by size, and items by share
_SHARES: Final = 3  # items are distinguished by the part of their request on each axis, in so many steps
_TIE_BREAK: Final = 1e-4  # of a typical node's price
_TOLERANCE: Final = 1e-9
_JITTER: Final = 1e-7  # of a demand: breaks ties between rows, so that pivots do not cycle
_DECIMALS: Final = 12  # of margins and ratios
_PIVOTS_PER_ROW: Final = 40
_FRESH_INVERSE: Final = 150  # pivots between inversions, for precision


class ShadowPrices(Struct, frozen=True, kw_only=True, eq=False):
    """The results of the linear program.

    Attributes:
        unit: Worth of one unit by offer and axis; no offer without a stock is worth more than its price.
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
    return sum(
        max(compute_shadow_prices(part, with_mix=False, coarse=c).bound for c in (False, True)) for part in parts
    )


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


def compute_shadow_prices(problem: PackingProblem, *, with_mix: bool = True, coarse: bool = False) -> ShadowPrices:
    """Solve the program; `mix` is all zero without `with_mix`. `coarse`: offers are grouped by signature only."""
    groups = OfferGroups.of(problem, most_rows=_ROWS if with_mix else _ROWS_FOR_WORTH, coarse=coarse)
    worth, mix = groups.solve(with_mix=with_mix)
    each = np.where(groups.allowed, worth @ problem.requests.T.astype(float), np.inf).min(axis=0, initial=np.inf)
    items = np.where(np.isfinite(each), each, 0.0)
    unit: Floats = worth[groups.offer_group]
    bound = float(problem.counts @ items) - _worth_of_stocks(problem, unit, groups.usable)
    return ShadowPrices(unit=unit, items=items, mix=mix, bound=max(bound, 0.0))


def _worth_of_stocks(problem: PackingProblem, unit: Floats, usable: Floats) -> float:
    """Return an upper bound of the worth above their price of the nodes in stock."""
    gain = np.maximum((usable * unit).sum(axis=1) - problem.prices, 0.0)
    total = 0.0
    for index, nodes in enumerate(problem.stocks):
        total += float(nodes) * float(gain[problem.stock == index].max(initial=0.0))
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
    def of(cls, problem: PackingProblem, *, most_rows: int, coarse: bool) -> OfferGroups:
        """Group offers and items as finely as `most_rows` allows; if `coarse`, not by size."""
        axes = int(problem.requests.any(axis=0).sum())
        for by_size, by_share in DETAILS[-1:] if coarse else DETAILS:
            offer_group, allowed = _offer_groups(problem, by_size=by_size)
            group = _item_groups(problem, allowed, by_share=by_share)
            rows = (int(offer_group.max(initial=-1)) + 1) * axes + int(group.max(initial=-1)) + 1
            if rows <= (most_rows if by_size else _ROWS) and (not by_size or rows * len(offer_group) <= _CELLS):
                break
        else:
            offer_group, group = np.zeros_like(problem.signatures), np.zeros(len(problem.counts), dtype=np.int64)
            reachable: Bools = np.logical_or.reduce(problem.allowed[np.unique(problem.signatures)], axis=0)
            allowed = reachable[None, :]
        usable = _usable_sizes(problem, offer_group, allowed)
        return cls(problem=problem, offer_group=offer_group, allowed=allowed, group=group, usable=usable)

    def solve(self, *, with_mix: bool) -> tuple[Floats, Floats]:
        """Return the worth by offer group and axis, safe against rounding, and the mix of offers."""
        problem = self.problem
        worth = np.zeros((len(self.allowed), problem.requests.shape[1]))
        mix = np.zeros(len(problem.prices))
        demand = self._demand()
        capacities = np.argwhere(self._reachable() @ demand > 0)
        if not len(problem.prices) or not len(capacities):
            return worth, mix
        program = self._program(demand, capacities)
        worth[capacities[:, 0], capacities[:, 1]] = (
            program.solve()[: len(capacities)] / demand.sum(axis=0)[capacities[:, 1]]
        )
        for offer_group in range(len(worth)):
            offers = np.flatnonzero((self.offer_group == offer_group) & ~problem.limited)
            worth[offer_group] = affordable(worth[offer_group], problem.prices[offers], self.usable[offers])
        if with_mix:
            self.prefer_equal_nodes(program)
            for column, amount in program.levels():
                if column < len(mix):
                    mix[column] = amount
        return worth, mix

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
        """Return the program: rows are capacities (offer group, axis), item groups, stocks; columns are offers, flows."""
        problem, offers = self.problem, len(self.problem.prices)
        scale = demand.sum(axis=0)[capacities[:, 1]]
        flows = np.argwhere(self._reachable().T > 0)  # (item group, offer group) by column
        cover = np.zeros((len(capacities) + len(demand) + len(problem.stocks), offers + len(flows)))
        in_group = self.offer_group == capacities[:, 0, None]
        cover[: len(capacities), :offers] = np.where(in_group, self.usable[:, capacities[:, 1]].T / scale[:, None], 0.0)
        demanded = np.where(flows[:, 1] == capacities[:, 0, None], demand[flows[:, 0]][:, capacities[:, 1]].T, 0.0)
        cover[: len(capacities), offers:] = -demanded / scale[:, None]
        cover[len(capacities) + flows[:, 0], offers + np.arange(len(flows))] = 1.0
        for index, nodes in enumerate(problem.stocks):
            cover[len(capacities) + len(demand) + index, np.flatnonzero(problem.stock == index)] = -1.0 / max(
                int(nodes), 1
            )
        return CoveringProgram(
            prices=np.concatenate((problem.prices, np.zeros(len(flows)))),
            cover=cover,
            need=np.concatenate(
                (np.zeros(len(capacities)), np.ones(len(demand)), np.where(problem.stocks > 0, -1.0, 0.0))
            ),
            penalties=self._penalties(cover[: len(capacities), :offers], len(demand)),
        )

    def _penalties(self, capacity: Floats, groups: int) -> Floats:
        """Return by row a price that exceeds the price of its demand in any optimum."""
        each = np.where(capacity > 0, self.problem.prices / np.where(capacity > 0, capacity, 1.0), np.inf)
        bought = np.where(self.problem.limited, np.inf, each).min(axis=1, initial=np.inf)
        penalty = 2.0 * float(bought[np.isfinite(bought)].sum() + self.problem.prices.max(initial=0.0))
        return np.concatenate((np.zeros(len(capacity)), np.full(groups, penalty), np.zeros(len(self.problem.stocks))))

    def prefer_equal_nodes(self, program: CoveringProgram) -> None:
        """Move to an optimal mix whose nodes have similar prices."""
        offers = len(self.problem.prices)
        bought = [(j, amount) for j, amount in program.levels() if j < offers]
        nodes = sum(amount for _, amount in bought)
        typical = sum(self.problem.prices[j] * amount for j, amount in bought) / nodes if nodes else 0.0
        if not typical:  # the mix is empty or free
            return
        program.prices = program.prices * (1 + _TIE_BREAK * program.prices / typical)
        program.solve()


def _offer_groups(problem: PackingProblem, *, by_size: bool) -> tuple[Ints, Bools]:
    """Return the group of each offer, and by group and item whether one of its offers may hold the item."""
    keys = [problem.signatures]
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
        allowed[index] = problem.allowed[problem.signatures[offers[0]]] & every(problem.requests <= largest)
    return offer_group, allowed


def _item_groups(problem: PackingProblem, allowed: Bools, *, by_share: bool) -> Ints:
    """Return the group of each item: items with the same offer groups and, with `by_share`, similar request proportions."""
    group = np.zeros(len(problem.counts), dtype=np.int64)
    for row in allowed:
        _, group = np.unique(group * 2 + row, return_inverse=True)
    if by_share:
        shares = problem.requests / np.maximum(problem.counts @ problem.requests, 1)
        shares = shares / np.maximum(shares.sum(axis=1, keepdims=True), 1e-300)
        for share in np.minimum((shares * _SHARES).astype(np.int64), _SHARES - 1).T:
            _, group = np.unique(group * _SHARES + share, return_inverse=True)
    return group


def _usable_sizes(problem: PackingProblem, offer_group: Ints, allowed: Bools) -> Floats:
    """Return by offer and axis the capacity that any content can use.

    No node holds more than all items; and if every item requests memory along with cpu, a node with little memory cannot
    use all its cpu.
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


class BoughtColumn(NamedTuple):
    """The level of a column in a solution."""

    column: int
    amount: float


class CoveringProgram(Struct, kw_only=True, eq=False):
    """min prices·x subject to cover·x ≥ need in every row, x ≥ 0.

    `basis` names one column per row: a column j ≥ 0, the artificial column of row r as -1-r (it covers only that row, at
    price `penalties[r]`, which must exceed the price of covering it with columns), or the surplus of row r as -1-rows-r.
    Columns may be added and prices changed between solves; each solve starts from the last basis, which is fast.
    """

    prices: Floats
    cover: Floats
    need: Floats
    penalties: Floats
    basis: list[int] = field(default_factory=list)
    _inverse: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    def __post_init__(self) -> None:
        """Start with the artificial column of each row with a demand, and the surplus of the other rows."""
        rows = len(self.need)
        self.basis = [-1 - r if self.need[r] > 0 else -1 - rows - r for r in range(rows)]
        self._inverse = np.diag(np.where(self.need > 0, 1.0, -1.0))

    @classmethod
    def of(cls, prices: Floats, cover: Floats) -> CoveringProgram:
        """Return a program in which every row demands 1; the penalty of a row that no column covers is 0."""
        alone = np.where(cover > 0, prices / np.where(cover > 0, cover, 1.0), np.inf).min(axis=1, initial=np.inf)
        penalties = np.where(np.isfinite(alone), 2.0 * alone, 0.0)
        return cls(prices=prices, cover=cover, need=np.ones(len(cover)), penalties=penalties)

    def add(self, price: float, column: Floats) -> None:
        """Add a column."""
        self.prices = np.append(self.prices, price)
        self.cover = np.column_stack((self.cover, column))

    def solve(self) -> Floats:
        """Solve the program; return the nonnegative dual price of each row.

        Except for rounding, no column is worth more than its price.
        """
        rows = len(self.need)
        if not len(self.prices):
            return np.zeros(rows)
        # perturb the demands: positive ones up, zero ones below zero
        trifle = np.where(self.need > 0, _JITTER, -_JITTER) * np.linspace(1.0, 2.0, rows, endpoint=False)
        level = self._inverse @ (self.need + trifle)
        scale = np.abs(self.cover).max(axis=0) + _TOLERANCE
        duals = self._basis_prices() @ self._inverse
        for pivot in range(1, _PIVOTS_PER_ROW * (rows + 1)):
            entering = self._entering(duals, scale)
            if entering is None or not self._pivot(level, entering):
                break
            if pivot % _FRESH_INVERSE == 0:
                self._inverse = np.linalg.inv(np.column_stack([self._column(j) for j in self.basis]))
                level = self._inverse @ (self.need + trifle)
            duals = self._basis_prices() @ self._inverse
        return np.maximum(duals, 0.0)

    def levels(self) -> list[BoughtColumn]:
        """Return the level of each column in the optimal basis, highest first."""
        amounts = self._inverse @ self.need
        bought = [BoughtColumn(j, float(x)) for j, x in zip(self.basis, amounts, strict=True) if j >= 0 and x > 0]
        return sorted(bought, key=lambda entry: (-entry.amount, entry.column))

    def _basis_prices(self) -> Floats:
        rows = len(self.need)
        return np.array(
            [self.prices[j] if j >= 0 else self.penalties[-1 - j] if j >= -rows else 0.0 for j in self.basis]
        )

    def _pivot(self, level: Floats, entering: int) -> bool:
        """Move a column into the basis and update `level`; return False if the column is unbounded."""
        direction = self._inverse @ self._column(entering)
        rising = np.flatnonzero(direction > _TOLERANCE)
        if not len(rising):
            return False
        ratios = np.round(np.maximum(level[rising], 0.0) / direction[rising], _DECIMALS)
        row = int(rising[np.argmin(ratios)])
        self.basis[row] = entering
        pivot_row = self._inverse[row] / direction[row]
        direction[row] -= 1.0
        self._inverse -= np.outer(direction, pivot_row)
        level -= direction * float(ratios.min())
        return True

    def _column(self, j: int) -> Floats:
        rows = len(self.need)
        if j >= 0:
            column: Floats = self.cover[:, j]
            return column
        unit = np.zeros(rows)
        unit[(-1 - j) % rows] = 1.0 if j >= -rows else -1.0
        return unit

    def _entering(self, duals: Floats, scale: Floats) -> int | None:
        """Return the column with the most negative reduced cost, or the surplus of a row priced below zero; None if optimal."""
        margins = np.round(
            (self.prices - duals @ self.cover) / scale, _DECIMALS
        )  # so that rounding errors decide nothing
        margins[[j for j in self.basis if j >= 0]] = 0.0  # by definition; rounding must not select them again
        best, row = int(np.argmin(margins)), int(np.argmin(duals))
        least = -_TOLERANCE * float(np.abs(duals).max())
        if min(margins[best], duals[row]) >= least:
            return None
        return best if margins[best] <= duals[row] else -1 - len(duals) - row


def affordable(worth: Floats, prices: Floats, sizes: Floats) -> Floats:
    """Return the prices by resource, reduced so that rounding leaves no offer worth more than its price."""
    value = sizes @ worth
    needed = value > 0
    shrunk: Floats = worth * float((prices[needed] / value[needed]).min(initial=1.0))
    return shrunk
