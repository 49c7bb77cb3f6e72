"""Solves linear programs over what can be bought: the revised simplex method, small and without dependencies.

The cheapest way to cover a demand, if nodes could be bought in fractions, is a linear program; its dual gives each unit
demanded a price such that no offer sells for less than it is worth. Any such prices bound the price of the real plan
from below (weak duality), whether or not they are the best ones.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct, field

from journeyman.core.scheduling.arrays import Floats

_TOLERANCE: Final = 1e-9
_JITTER: Final = 1e-7  # of a demand: breaks ties between rows, so that pivots never go in circles
_DECIMALS: Final = 12  # of margins and ratios
_PIVOTS_PER_ROW: Final = 40
_FRESH_INVERSE: Final = 150  # pivots between inversions, for precision


class CoveringProgram(Struct, kw_only=True, eq=False):
    """min prices·x subject to cover·x ≥ need in every row, x ≥ 0.

    `basis` names one column per row: a column j ≥ 0, the artificial column of row r as -1-r (it serves that demand
    alone at price `penalties[r]`, which must be above what serving it by columns costs), or the surplus of row r as
    -1-rows-r. Columns may be added and prices changed between solves; the basis is kept, so that solving again is
    cheap.
    """

    prices: Floats
    cover: Floats
    need: Floats
    penalties: Floats
    basis: list[int] = field(default_factory=list)
    _inverse: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    def __post_init__(self) -> None:
        """Begin with what serves each demand alone; a row that demands nothing has its surplus."""
        rows = len(self.need)
        self.basis = [-1 - r if self.need[r] > 0 else -1 - rows - r for r in range(rows)]
        self._inverse = np.diag(np.where(self.need > 0, 1.0, -1.0))

    @classmethod
    def of(cls, prices: Floats, cover: Floats) -> CoveringProgram:
        """A program in which every row demands 1; a demand that no column serves costs nothing."""
        alone = np.where(cover > 0, prices / np.where(cover > 0, cover, 1.0), np.inf).min(axis=1, initial=np.inf)
        penalties = np.where(np.isfinite(alone), 2.0 * alone, 0.0)
        return cls(prices=prices, cover=cover, need=np.ones(len(cover)), penalties=penalties)

    def add(self, price: float, column: Floats) -> None:
        """One more column."""
        self.prices = np.append(self.prices, price)
        self.cover = np.column_stack((self.cover, column))

    def solve(self) -> Floats:
        """Dual prices by row, never negative; no column is worth more than its price but for rounding."""
        rows = len(self.need)
        if not len(self.prices):
            return np.zeros(rows)
        # rows that demand something ask for a trifle more, those that demand nothing for a trifle less than nothing
        trifle = np.where(self.need > 0, _JITTER, -_JITTER) * (1 + np.arange(rows) / rows)
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

    def levels(self) -> list[tuple[int, float]]:
        """How much of each column in the basis the optimum buys, as (column, amount), most first."""
        amounts = self._inverse @ self.need
        bought = [(j, float(x)) for j, x in zip(self.basis, amounts, strict=True) if j >= 0 and x > 0]
        return sorted(bought, key=lambda entry: (-entry[1], entry[0]))

    def _basis_prices(self) -> Floats:
        rows = len(self.need)
        return np.array(
            [self.prices[j] if j >= 0 else self.penalties[-1 - j] if j >= -rows else 0.0 for j in self.basis]
        )

    def _pivot(self, level: Floats, entering: int) -> bool:
        """Bring a column into the basis and `level` up to date; False if nothing bounds it."""
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
        """The column worth most above its price, or the surplus of a row priced below zero; None at the optimum."""
        margins = np.round((self.prices - duals @ self.cover) / scale, _DECIMALS)  # so that noise chooses nothing
        margins[[j for j in self.basis if j >= 0]] = 0.0  # by definition; rounding must not bring them in again
        best, row = int(np.argmin(margins)), int(np.argmin(duals))
        least = -_TOLERANCE * float(np.abs(duals).max())
        if min(margins[best], duals[row]) >= least:
            return None
        return best if margins[best] <= duals[row] else -1 - len(duals) - row


def affordable(worth: Floats, prices: Floats, sizes: Floats) -> Floats:
    """The prices by resource, shrunk where rounding left an offer worth more than it costs."""
    value = sizes @ worth
    asked = value > 0
    shrunk: Floats = worth * float((prices[asked] / value[asked]).min(initial=1.0))
    return shrunk
