"""No invariant is violated in the scenarios of 50 seeds; `make faults`, and so `make nightly`, runs ten thousand."""

from functools import cache
from statistics import mean

import pytest

from journeyman_simulator.faults.call_sites import CALL_SITES, CALLS_AFTER_FAILURES
from journeyman_simulator.faults.seed_search import SeedSearchResult, search_seeds

SEEDS = range(51, 101)
EACH = 25  # seeds of a part; parts go to several workers
COUNTED = range(76, 97)
MEAN_RUNS = 90  # that of many seeds is 77
MOST_OF_ANY = 300

with_those_counted = pytest.mark.xdist_group("counted-scenarios")  # on one worker they run once
PARTS = [
    pytest.param(part, marks=with_those_counted if {*part} >= {*COUNTED} else (), id=f"{part[0]}-{part[-1]}")
    for part in (SEEDS[start : start + EACH] for start in range(0, len(SEEDS), EACH))
]


@cache
def result(seed: int) -> SeedSearchResult:
    """Return the result of the seed's scenario."""
    return search_seeds([seed])


@pytest.mark.parametrize("part", PARTS)
def test_no_scenario_violates_an_invariant(part):
    """Reproduce one with `journeyman faults --seed N --shrink`."""
    caught = [result(seed) for seed in part]
    assert [(found.seed, str(found.violations[0])) for one in caught for found in one.found] == []
    assert {call for one in caught for call in one.coverage.calls} <= {*CALL_SITES, *CALLS_AFTER_FAILURES}


@with_those_counted
def test_a_scenario_takes_few_runs():
    """Runs take nearly all of a scenario's time."""
    runs = [result(seed).runs for seed in COUNTED]
    assert mean(runs) <= MEAN_RUNS
    assert max(runs) <= MOST_OF_ANY
