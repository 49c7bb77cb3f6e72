"""Linear programs: dual prices and amounts prove each other optimal, and small programs are compared with all their bases."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest

from journeyman.core.scheduling.packing.linear_program import CoveringProgram, affordable


def a_program(need, prices, covers):
    """Return a program with these columns; `covers` is by column and row."""
    program = CoveringProgram(np.array(need, dtype=float))
    program.add(np.array(prices, dtype=float), np.array(covers, dtype=float))
    return program


def check_optimal(program, need, prices, covers):
    """Check that dual prices and amounts are feasible and cost the same, which proves both optimal."""
    need, prices, covers = (np.array(values, dtype=float) for values in (need, prices, covers))

    duals = program.solve()

    assert (duals >= 0).all()
    assert (covers @ duals <= prices * (1 + 1e-7) + 1e-9).all()
    assert (program.amounts >= 0).all()
    assert (program.amounts @ covers >= need - 1e-6 * np.abs(need) - 1e-9).all()
    assert program.amounts @ prices == pytest.approx(duals @ need, rel=1e-7, abs=1e-9)


def cheapest_basis(need, prices, covers):
    """Return the lowest price of all feasible bases, by brute force."""
    rows = len(need)
    columns = np.vstack((covers, -np.eye(rows)))
    best = np.inf
    for chosen in itertools.combinations(range(len(columns)), rows):
        basis = columns[list(chosen)].T
        if abs(np.linalg.det(basis)) > 1e-9:
            amounts = np.linalg.solve(basis, need)
            if (amounts >= -1e-9).all():
                best = min(best, float(np.append(prices, np.zeros(rows))[list(chosen)] @ amounts))
    return best


@pytest.mark.parametrize(("rows", "columns"), [(1, 5), (5, 40), (30, 200), (60, 120), (200, 900)])
def test_dual_prices_and_amounts_are_optimal(rows, columns):
    """A tenth of the entries is set, and an expensive first column covers every row."""
    rng = np.random.default_rng(rows)
    covers = rng.uniform(0.1, 1.0, (columns, rows)) * (rng.random((columns, rows)) < 0.1)
    covers[0] = 0.1
    prices = rng.uniform(1.0, 2.0, columns)

    check_optimal(a_program(np.ones(rows), prices, covers), np.ones(rows), prices, covers)


@pytest.mark.parametrize("seed", range(30))
def test_price_is_that_of_the_cheapest_basis(seed):
    """Three rows and six columns; some needs are zero, some limit columns."""
    rng = np.random.default_rng(seed)
    covers = np.round(rng.uniform(0.1, 5.0, (6, 3)), 1) * (rng.random((6, 3)) < 0.7)
    covers[0] = 1.0
    covers[1:, 2] *= rng.choice((-1.0, 1.0))
    need, prices = np.array([3.0, 1.0, rng.choice((0.0, 2.0, -1.0))]), np.round(rng.uniform(1.0, 2.0, 6), 2)

    assert a_program(need, prices, covers).solve() @ need == pytest.approx(cheapest_basis(need, prices, covers))


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
    need, prices = [3.0, 1.0, 0.5, 2.0, -1.0, 0.0, -0.5], rng.uniform(1.0, 2.0, columns) * scale
    covers = np.vstack((demand, limit)).T

    check_optimal(a_program(need, prices, covers), need, prices, covers)


def test_columns_may_be_added_between_solves():
    """A column that covers every row at almost no price replaces all other columns."""
    program = a_program([1.0, 1.0], [1.0, 2.0], [[1.0, 0.0], [0.0, 1.0]])
    assert program.solve().sum() == pytest.approx(3.0)

    program.add(np.array([0.01]), np.ones((1, 2)))

    assert program.solve().sum() == pytest.approx(0.01)
    assert program.amounts == pytest.approx([0.0, 0.0, 1.0])


def test_prices_may_change_between_solves():
    """The first column becomes the dearer one; the price of the second stays."""
    program = a_program([6.0], [1.0, 1.5], [[1.0], [1.0]])
    assert program.solve() == pytest.approx([1.0])

    program.set_prices(np.array([2.0]))

    assert program.solve() == pytest.approx([1.5])
    assert program.amounts == pytest.approx([0.0, 6.0])


def test_row_with_negative_need_limits_a_column():
    """Ten units are needed; the cheap column may supply at most four of them."""
    program = a_program([10.0, -4.0], [1.0, 3.0], [[1.0, -1.0], [1.0, 0.0]])

    assert program.solve() == pytest.approx([3.0, 2.0])
    assert program.amounts == pytest.approx([4.0, 6.0])


def test_prices_of_reserved_capacity_are_told_apart():
    """Prices of a ten-millionth beside one of a hundred: of two reserved columns the cheaper one is used up first."""
    need, prices = [10.0, -2.0, -2.0], [100.0, 3e-7, 2e-7]
    covers = [[5.0, 0.0, 0.0], [3.0, -1.0, 0.0], [3.0, 0.0, -1.0]]
    program = a_program(need, prices, covers)

    check_optimal(program, need, prices, covers)
    assert program.amounts == pytest.approx([0.0, 4 / 3, 2.0])


def test_amounts_may_be_as_large_as_the_memory_of_a_fleet():
    """Of 2^51 bytes and of one GPU are needed in one program."""
    need, prices = [2.0**51, 1.0], [1.0, 2.5]
    covers = [[2.0**38, 0.0], [2.0**38, 0.125]]

    check_optimal(a_program(need, prices, covers), need, prices, covers)


def test_row_that_needs_nothing_costs_nothing():
    """Neither does a program without rows."""
    assert a_program([0.0, 2.0], [1.0], [[1.0, 1.0]]).solve() == pytest.approx([0.0, 1.0])
    assert a_program([], [1.0], np.zeros((1, 0))).solve().tolist() == []
    assert a_program([0.0], [], np.zeros((0, 1))).solve().tolist() == [0.0]


def test_equal_programs_have_equal_solutions_to_the_last_bit():
    """Also after columns were added."""
    rng = np.random.default_rng(3)
    covers, prices = rng.uniform(0.0, 1.0, (80, 30)), rng.uniform(1.0, 2.0, 80)

    def solved():
        program = a_program(np.ones(30), prices[:40], covers[:40])
        program.solve()
        program.add(prices[40:], covers[40:])
        return program.solve().tobytes(), program.amounts.tobytes(), program.pivots

    assert solved() == solved()


def test_highs_is_not_imported_before_a_program_is_needed():
    """The import takes 20 ms; one kind of pod is packed without a program."""
    script = """
import sys, numpy as np
from journeyman.core.scheduling.packing import PackingProblem, pack
none = np.zeros((1, 0), dtype=bool)
found = pack(PackingProblem(counts=np.array([3]), requests=np.array([[2]]), allowed=np.ones((1, 1), dtype=bool),
    sizes=np.array([[4]]), prices=np.array([1.0]), constraints=np.array([0]), selected=none, owning=none))
print(found.price, "highspy" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "2.0 False\n"


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
