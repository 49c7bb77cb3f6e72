"""Shadow prices: what a millicore, a byte or a pod slot is worth at this moment's offers.

The cheapest way to cover a demand, if nodes could be bought in fractions, is a small linear program; its dual gives each
resource a price such that no offer sells for less than it is worth. Any such prices bound what the real plan can cost
from below (weak duality), whether or not they are the best ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from journeyman.core.scheduling.offers import Floats

_TOLERANCE: Final = 1e-9
_MAX_PIVOTS_PER_ROW: Final = 60


@dataclass(slots=True, eq=False)
class CoveringProgram:
    """min prices·x subject to cover·x ≥ 1 in every row, x ≥ 0, by the revised simplex method.

    `basis` names one column per row: an offer j ≥ 0, the artificial column of row r as -1-r (it serves that demand at
    twice the price of the best single offer for it, `artificial[r]`, and so is never part of a best answer), or the
    surplus of row r as -1-rows-r. Offers may be added between solves; the basis is kept, so that solving again is cheap.
    """

    prices: Floats
    cover: Floats
    artificial: Floats
    basis: list[int]

    @classmethod
    def of(cls, prices: Floats, cover: Floats) -> CoveringProgram:
        """A program with a row per demand in `cover` and a column per offer."""
        alone = np.where(cover > 0, prices / np.where(cover > 0, cover, 1.0), np.inf).min(axis=1, initial=np.inf)
        artificial = np.where(np.isfinite(alone), 2.0 * alone, 0.0)  # a demand nobody serves costs nothing
        return cls(prices=prices, cover=cover, artificial=artificial, basis=[-1 - row for row in range(len(cover))])

    def add(self, price: float, column: Floats) -> None:
        """One more offer."""
        self.prices = np.append(self.prices, price)
        self.cover = np.column_stack((self.cover, column))

    def solve(self) -> Floats:
        """Dual prices by row, never negative and never above what an offer costs."""
        rows = len(self.cover)
        if not len(self.prices):
            return np.zeros(rows)
        duals = np.zeros(rows)
        for _ in range(_MAX_PIVOTS_PER_ROW * (rows + 1)):
            matrix = np.column_stack([self._column(j) for j in self.basis])
            duals = np.linalg.solve(matrix.T, np.array([self._price(j) for j in self.basis]))
            entering = self._entering(duals)
            if entering is None or not self._pivot(matrix, entering):
                break
        return self._feasible(duals)

    def levels(self) -> list[tuple[int, float]]:
        """How much of each offer in the basis the optimum buys, as (offer, amount), most first."""
        matrix = np.column_stack([self._column(j) for j in self.basis])
        amounts = np.linalg.solve(matrix, np.ones(len(matrix)))
        bought = [(j, float(x)) for j, x in zip(self.basis, amounts, strict=True) if j >= 0 and x > 0]
        return sorted(bought, key=lambda entry: (-entry[1], entry[0]))

    def _pivot(self, matrix: Floats, entering: int) -> bool:
        """Bring a column into the basis; False if that bounds nothing."""
        direction = np.linalg.solve(matrix, self._column(entering))
        level = np.linalg.solve(matrix, np.ones(len(matrix)))
        rising = direction > _TOLERANCE
        if not rising.any():
            return False
        ratios = np.full(len(matrix), np.inf)
        ratios[rising] = np.maximum(level[rising], 0.0) / direction[rising]
        self.basis[int(np.argmin(ratios))] = entering
        return True

    def _column(self, j: int) -> Floats:
        rows = len(self.cover)
        if j >= 0:
            column: Floats = self.cover[:, j]
            return column
        unit = np.zeros(rows)
        unit[(-1 - j) % rows] = 1.0 if j >= -rows else -1.0
        return unit

    def _price(self, j: int) -> float:
        if j >= 0:
            return float(self.prices[j])
        return float(self.artificial[-1 - j]) if j >= -len(self.cover) else 0.0

    def _entering(self, duals: Floats) -> int | None:
        """The offer that undercuts its worth most, or the surplus of a row priced below zero; None at the optimum."""
        margins = 1.0 - (duals @ self.cover) / np.maximum(self.prices, _TOLERANCE)
        margins[[j for j in self.basis if j >= 0]] = 0.0  # by definition; rounding must not bring them in again
        best = int(np.argmin(margins))
        if margins[best] < -_TOLERANCE:
            return best
        row = int(np.argmin(duals))
        return -1 - len(duals) - row if duals[row] < -_TOLERANCE * float(np.abs(duals).max()) else None

    def _feasible(self, duals: Floats) -> Floats:
        """The duals, shrunk where a pivot limit or rounding left them worth more than an offer costs."""
        positive: Floats = np.maximum(duals, 0.0)
        worth = positive @ self.cover
        asked = worth > _TOLERANCE
        scale = float((self.prices[asked] / worth[asked]).min(initial=1.0))
        return positive * scale


def shadow_prices(need: Floats, prices: Floats, sizes: Floats) -> Floats:
    """What one unit of each resource is worth.

    Args:
        need: Total demand by resource.
        prices: Price by offer.
        sizes: Amounts by offer (rows) and resource (columns).

    Returns:
        Prices by resource, 0 for those nobody asks for; `need @ result` is a lower bound on the cost of the need.
    """
    worth = np.zeros(len(need))
    asked = np.flatnonzero(need > 0)
    if len(asked) and len(prices):
        program = CoveringProgram.of(prices, (sizes[:, asked] / need[asked]).T)
        worth[asked] = program.solve() / need[asked]
    return worth
