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


def test_worth_is_shrunk_by_the_offer_that_is_exceeded_most():
    """The first is worth 3 at a price of 2, the second 6 at a price of 2; the third has no worth and decides nothing."""
    sizes = np.array([[3.0, 0.0, 0.0], [0.0, 6.0, 0.0], [0.0, 0.0, 5.0]])

    worth = affordable(np.array([1.0, 1.0, 0.0]), np.array([2.0, 2.0, 0.0]), sizes)

    assert worth == pytest.approx([1 / 3, 1 / 3, 0.0])


def test_worth_that_no_offer_exceeds_is_kept():
    """It is never raised to the prices."""
    assert affordable(np.array([0.5]), np.array([2.0]), np.array([[1.0]])) == pytest.approx([0.5])


def test_a_program_starts_with_artificial_columns_and_surpluses():
    """A demand starts with its artificial column, a row without one with its surplus."""
    program = CoveringProgram(
        prices=np.array([1.0]),
        cover=np.array([[1.0], [1.0], [1.0]]),
        need=np.array([2.0, 0.0, -3.0]),
        penalties=np.array([9.0, 9.0, 9.0]),
    )

    assert program.basis == [-1, -5, -6]


def test_penalty_of_a_row_is_twice_its_cheapest_cover():
    """3 / 2 and 1 / 0.25 by column for the first row; no column covers the second."""
    program = CoveringProgram.of(np.array([3.0, 1.0]), np.array([[2.0, 0.25], [0.0, 0.0]]))

    assert program.penalties == pytest.approx([3.0, 0.0])


@pytest.mark.parametrize("seed", range(20))
def test_demands_limits_and_zero_rows_together_are_optimal(seed):
    """Rows that demand, rows that demand nothing and rows that limit, with scales of columns that differ widely."""
    rng = np.random.default_rng(seed)
    columns = 12
    scale = 10.0 ** rng.integers(-2, 3, columns)
    demand = rng.uniform(0.1, 1.0, (4, columns)) * (rng.random((4, columns)) < 0.6) * scale
    demand[:, 0] = scale[0]
    limit = np.where(rng.random((3, columns)) < 0.4, -scale, 0.0)
    limit[:, 0] = 0.0
    need = np.array([3.0, 1.0, 0.5, 2.0, -1.0, 0.0, -0.5])
    program = CoveringProgram(
        prices=rng.uniform(1.0, 2.0, columns) * scale,
        cover=np.vstack((demand, limit)),
        need=need,
        penalties=np.array([1e4] * 4 + [0.0] * 3),
    )

    duals = program.solve()

    optimum = linprog(program.prices, A_ub=-program.cover, b_ub=-need).fun
    assert duals @ need == pytest.approx(optimum, rel=1e-5)
    assert (duals @ program.cover <= program.prices * (1 + 1e-6)).all()
    assert sum(program.prices[j] * amount for j, amount in program.levels()) == pytest.approx(optimum, rel=1e-5)
