"""The simplex method, compared with HiGHS."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from journeyman.core.scheduling.packing.linear_program import CoveringProgram, affordable


def a_program(seed, rows, columns):
    """Random covers, a tenth of them set, and a column that covers everything dearly."""
    rng = np.random.default_rng(seed)
    cover = rng.uniform(0.1, 1.0, (rows, columns)) * (rng.random((rows, columns)) < 0.1)
    cover[:, 0] = 0.1
    return CoveringProgram.of(rng.uniform(1.0, 2.0, columns), cover)


@pytest.mark.parametrize(("rows", "columns"), [(1, 5), (5, 40), (30, 200), (60, 120)])
def test_prices_and_levels_are_optimal(rows, columns):
    """The duals are worth what the optimum costs, no column is worth more than its price, and the levels cost as much."""
    program = a_program(rows, rows, columns)

    duals = program.solve()

    optimum = linprog(program.prices, A_ub=-program.cover, b_ub=-program.need).fun
    assert duals @ program.need == pytest.approx(optimum)
    assert (duals @ program.cover <= program.prices + 1e-9).all()
    assert sum(program.prices[j] * amount for j, amount in program.levels()) == pytest.approx(optimum)


def test_columns_may_be_added_between_solves():
    """One that covers everything for next to nothing takes over."""
    program = a_program(7, 10, 50)
    program.solve()

    program.add(0.01, np.ones(10))

    assert program.solve().sum() == pytest.approx(0.01)
    assert program.levels() == [(50, pytest.approx(1.0))]


def test_a_row_may_limit_instead_of_demand():
    """Ten are needed; of the cheap ones there are four."""
    program = CoveringProgram(
        prices=np.array([1.0, 3.0]),
        cover=np.array([[1.0, 1.0], [-1.0, 0.0]]),
        need=np.array([10.0, -4.0]),
        penalties=np.array([100.0, 0.0]),
    )

    assert program.solve() @ program.need == pytest.approx(22.0)
    assert program.levels() == [(1, pytest.approx(6.0)), (0, pytest.approx(4.0))]


def test_worth_is_shrunk_to_what_offers_cost():
    """Ten and two units at 0.2 each are worth 2.4, and sold for 1.2."""
    worth = affordable(np.array([0.2, 0.2]), np.array([1.2, 5.0]), np.array([[10.0, 2.0], [2.0, 10.0]]))

    assert worth == pytest.approx([0.1, 0.1])
