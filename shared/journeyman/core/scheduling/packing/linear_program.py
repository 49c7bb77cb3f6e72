"""Solves linear programs that cover needs at the lowest price, with HiGHS.

HiGHS is imported when the first program is made: the import takes 20 ms of CPU, and many runs need no program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from journeyman.core.scheduling.arrays import Floats

_PIVOTS_PER_ROW: Final = 40  # programs need about two; a program that takes more keeps the best it has found
_PRICE_SCALE: Final = 1024.0  # prices of reserved capacity, a millionth of others, would be within the tolerance
_DECIMALS: Final = 12  # of dual prices, relative to the highest: rounding errors of HiGHS decide nothing
_AMOUNT_DECIMALS: Final = 9
_OPTIONS: Final[Mapping[str, bool | int | float | str]] = {
    "output_flag": False,
    "threads": 1,
    "parallel": "off",
    "presolve": "off",  # would discard the last basis
    "solver": "simplex",
    "dual_feasibility_tolerance": 1e-9,
    "small_matrix_value": 1e-12,
}


class CoveringProgram:
    """min prices·x, subject to covers·x ≥ need in every row, x ≥ 0.

    Columns may be added and prices changed between solves; each solve starts from the last basis, which is fast. Some
    columns must cover every positive need, and no price may be negative: so there is always an optimum.
    """

    def __init__(self, need: Floats) -> None:
        """Begin a program without columns; `need` is by row, and a negative need limits the columns of its row."""
        from highspy import Highs, kHighsInf  # noqa: PLC0415 - see above

        self._infinity = kHighsInf
        self._scale: Floats = np.where(need == 0, 1.0, np.abs(need))
        self._highs = Highs()  # type: ignore[no-untyped-call]
        rows = len(need)
        for option, value in _OPTIONS.items():
            self._highs.setOptionValue(option, value)
        self._highs.setOptionValue("simplex_iteration_limit", _PIVOTS_PER_ROW * (rows + 1))
        no_entries = np.zeros(rows, np.int32), np.zeros(0, np.int32), np.zeros(0)
        self._highs.addRows(rows, need / self._scale, np.full(rows, kHighsInf), 0, *no_entries)

    def add(self, prices: Floats, covers: Floats) -> None:
        """Add columns: `covers` says by column and row how much one of the column covers."""
        count = len(prices)
        column, row = np.nonzero(covers)
        self._highs.addCols(
            count,
            prices * _PRICE_SCALE,
            np.zeros(count),
            np.full(count, self._infinity),
            len(column),
            np.searchsorted(column, np.arange(count)).astype(np.int32),
            row.astype(np.int32),
            covers[column, row] / self._scale[row],
        )

    def set_prices(self, prices: Floats) -> None:
        """Replace the prices of the first columns."""
        count = len(prices)
        self._highs.changeColsCost(count, np.arange(count, dtype=np.int32), prices * _PRICE_SCALE)

    def solve(self) -> Floats:
        """Solve the program; return the nonnegative dual price of one unit of each row.

        No column is worth more than its price, except for a tolerance; see `affordable`.
        """
        self._highs.run()
        duals = np.maximum(np.array(self._highs.getSolution().row_dual), 0.0)
        highest = max(float(duals.max(initial=0.0)), 1e-300)
        found: Floats = np.round(duals / highest, _DECIMALS) * (highest / _PRICE_SCALE) / self._scale
        return found

    @property
    def amounts(self) -> Floats:
        """How many of each column the last solution buys."""
        found: Floats = np.maximum(np.round(self._highs.getSolution().col_value, _AMOUNT_DECIMALS), 0.0)
        return found

    @property
    def pivots(self) -> int:
        """Pivots of the last solve."""
        return max(int(self._highs.getInfo().simplex_iteration_count), 0)


def affordable(worth: Floats, prices: Floats, sizes: Floats) -> Floats:
    """Return the dual prices by resource, reduced so that no offer is worth more than its price."""
    value = sizes @ worth
    needed = value > 0
    shrunk: Floats = worth * float((prices[needed] / value[needed]).min(initial=1.0))
    return shrunk
