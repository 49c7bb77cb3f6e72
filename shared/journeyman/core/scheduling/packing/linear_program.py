"""Solves covering linear programs with the revised simplex method.

The cheapest way to cover a demand with fractional nodes is a linear program. Its dual prices each unit of demand so that
no offer is worth more than its price. Any dual feasible prices give a lower bound of the price of the integral plan
(weak duality), even if they are not optimal.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct, field

from journeyman.core.scheduling.arrays import Floats

_TOLERANCE: Final = 1e-9
_JITTER: Final = 1e-7  # of a demand: breaks ties between rows, so that pivots do not cycle
_DECIMALS: Final = 12  # of margins and ratios
_PIVOTS_PER_ROW: Final = 40
_FRESH_INVERSE: Final = 150  # pivots between inversions, for precision


class BoughtColumn(NamedTuple):
    """The level of a column in a solution."""

    column: int
    amount: float


class CoveringProgram(Struct, kw_only=True, eq=False):
    """min prices·x subject to cover·x ≥ need in every row, x ≥ 0.

    `basis` names one column per row: a column j ≥ 0, the artificial column of row r as -1-r (it covers only that row, at
    price `penalties[r]`, which must exceed the price of covering it with columns), or the surplus of row r as -1-rows-r.
    `effort` counts the cells of the tables that all solves have gone through.
    Columns may be added and prices changed between solves; each solve starts from the last basis, which is fast.
    """

    prices: Floats
    cover: Floats
    need: Floats
    penalties: Floats
    basis: list[int] = field(default_factory=list)
    effort: int = 0
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

    def add_all(self, prices: Floats, columns: Floats) -> None:
        """Add columns; `columns` has a row per row of the program."""
        self.prices = np.append(self.prices, prices)
        self.cover = np.column_stack((self.cover, columns))

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
            self.effort += rows * (rows + len(self.prices))
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
