"""The simplex method, compared with HiGHS."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from journeyman.core.scheduling.packing.shadow_prices import CoveringProgram, affordable


def a_program(seed, rows, columns):
    """Return a random program; a tenth of the entries is set, and an expensive first column covers every row."""
    rng = np.random.default_rng(seed)
    cover = rng.uniform(0.1, 1.0, (rows, columns)) * (rng.random((rows, columns)) < 0.1)
    cover[:, 0] = 0.1
    return CoveringProgram.of(rng.uniform(1.0, 2.0, columns), cover)


@pytest.mark.parametrize(("rows", "columns"), [(1, 5), (5, 40), (30, 200), (60, 120)])
def test_dual_prices_and_levels_are_optimal(rows, columns):
    """Dual prices and levels both yield the optimal price, and no column is worth more than its price."""
    program = a_program(rows, rows, columns)

    duals = program.solve()

    optimum = linprog(program.prices, A_ub=-program.cover, b_ub=-program.need).fun
    assert duals @ program.need == pytest.approx(optimum)
    assert (duals @ program.cover <= program.prices + 1e-9).all()
    assert sum(program.prices[j] * amount for j, amount in program.levels()) == pytest.approx(optimum)


def test_columns_may_be_added_between_solves():
    """A column that covers every row at almost no price replaces all other columns."""
    program = a_program(7, 10, 50)
    program.solve()

    program.add(0.01, np.ones(10))

    assert program.solve().sum() == pytest.approx(0.01)
    assert program.levels() == [(50, pytest.approx(1.0))]


def test_row_with_negative_need_limits_a_column():
    """Ten units are needed; the cheap column may supply at most four of them."""
    program = CoveringProgram(
        prices=np.array([1.0, 3.0]),
        cover=np.array([[1.0, 1.0], [-1.0, 0.0]]),
        need=np.array([10.0, -4.0]),
        penalties=np.array([100.0, 0.0]),
    )

    assert program.solve() @ program.need == pytest.approx(22.0)
    assert program.levels() == [(1, pytest.approx(6.0)), (0, pytest.approx(4.0))]


def test_shadow_prices_are_reduced_until_no_offer_is_worth_more_than_its_price():
    """An offer of ten and two units at 0.2 each is worth 2.4 but costs 1.2, so the shadow prices are halved."""
    worth = affordable(np.array([0.2, 0.2]), np.array([1.2, 5.0]), np.array([[10.0, 2.0], [2.0, 10.0]]))

    assert worth == pytest.approx([0.1, 0.1])


def test_offer_worth_most_above_its_price_determines_the_reduction():
    """Offer 1 is worth 3 and costs 2, offer 2 is worth 6 and costs 2; offer 3 is worth 0 and is ignored."""
    sizes = np.array([[3.0, 0.0, 0.0], [0.0, 6.0, 0.0], [0.0, 0.0, 5.0]])

    worth = affordable(np.array([1.0, 1.0, 0.0]), np.array([2.0, 2.0, 0.0]), sizes)

    assert worth == pytest.approx([1 / 3, 1 / 3, 0.0])


def test_shadow_prices_are_kept_when_no_offer_is_worth_more_than_its_price():
    """The function never raises shadow prices to match the prices of offers."""
    assert affordable(np.array([0.5]), np.array([2.0]), np.array([[1.0]])) == pytest.approx([0.5])


def test_initial_basis_has_artificial_columns_and_surpluses():
    """A row with positive need starts with its artificial column, any other row with its surplus."""
    program = CoveringProgram(
        prices=np.array([1.0]),
        cover=np.array([[1.0], [1.0], [1.0]]),
        need=np.array([2.0, 0.0, -3.0]),
        penalties=np.array([9.0, 9.0, 9.0]),
    )

    assert program.basis == [-1, -5, -6]


def test_penalty_of_a_row_is_twice_its_cheapest_cover():
    """The columns cover row 1 at 3 / 2 and 1 / 0.25 per unit; no column covers row 2, so its penalty is 0."""
    program = CoveringProgram.of(np.array([3.0, 1.0]), np.array([[2.0, 0.25], [0.0, 0.0]]))

    assert program.penalties == pytest.approx([3.0, 0.0])


@pytest.mark.parametrize("seed", range(20))
def test_solution_is_optimal_when_rows_have_positive_zero_and_negative_needs(seed):
    """The entries of different columns differ by orders of magnitude."""
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
