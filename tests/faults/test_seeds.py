"""No invariant is violated in the scenarios of some seeds on each cloud; `make faults`, and so `make nightly`, runs thousands."""

from functools import cache
from statistics import mean

import pytest

from journeyman_simulator.faults.call_sites import CALL_SITES, CALLS_AFTER_FAILURES
from journeyman_simulator.faults.fault_scenario import CloudName
from journeyman_simulator.faults.seed_search import SeedSearchResult, search_seeds

SEEDS = {"aws": range(76, 96), "alibaba": range(26, 38), "huawei": range(1, 13)}
MEAN_RUNS = 90  # that of many seeds is 77 on AWS
MOST_OF_ANY = 350

pytestmark = [
    pytest.mark.xdist_group("seeds"),  # on one worker they run once
    pytest.mark.parametrize("cloud", SEEDS),
]


@cache
def result(cloud: CloudName, seed: int) -> SeedSearchResult:
    """Return the result of the seed's scenario on a cloud."""
    return search_seeds([seed], cloud=cloud)


def test_no_scenario_violates_an_invariant(cloud):
    """Reproduce one with `journeyman faults --cloud CLOUD --seed N --shrink`."""
    results = [result(cloud, seed) for seed in SEEDS[cloud]]
    assert [(found.seed, str(found.violations[0])) for one in results for found in one.found] == []
    assert {call for one in results for call in one.coverage.calls} <= {*CALL_SITES[cloud], *CALLS_AFTER_FAILURES}


def test_a_scenario_takes_few_runs(cloud):
    """Runs take nearly all of a scenario's time."""
    runs = [result(cloud, seed).runs for seed in SEEDS[cloud]]
    assert mean(runs) <= MEAN_RUNS
    assert max(runs) <= MOST_OF_ANY
