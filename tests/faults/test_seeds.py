"""No invariant is violated in the scenarios of 25 seeds; `make faults`, and so `make nightly`, runs ten thousand."""

from functools import cache
from statistics import mean

import pytest

from journeyman_simulator.faults.call_sites import CALL_SITES, CALLS_AFTER_FAILURES
from journeyman_simulator.faults.seed_search import SeedSearchResult, search_seeds

SEEDS = range(76, 101)
MEAN_RUNS = 90  # that of many seeds is 77
MOST_OF_ANY = 300

pytestmark = pytest.mark.xdist_group("seeds")  # on one worker they run once


@cache
def result(seed: int) -> SeedSearchResult:
    """Return the result of the seed's scenario."""
    return search_seeds([seed])


def test_no_scenario_violates_an_invariant():
    """Reproduce one with `journeyman faults --seed N --shrink`."""
    results = [result(seed) for seed in SEEDS]
    assert [(found.seed, str(found.violations[0])) for one in results for found in one.found] == []
    assert {call for one in results for call in one.coverage.calls} <= {*CALL_SITES, *CALLS_AFTER_FAILURES}


def test_a_scenario_takes_few_runs():
    """Runs take nearly all of a scenario's time."""
    runs = [result(seed).runs for seed in SEEDS]
    assert mean(runs) <= MEAN_RUNS
    assert max(runs) <= MOST_OF_ANY
