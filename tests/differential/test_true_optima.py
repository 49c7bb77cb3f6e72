"""The prices of our plans for small workloads, against the optimum that integer programming finds.

Covers: three published workloads on real types, whose optima are known; random workloads of up to three pod sizes.
"""

import json
import random

import pytest

from journeyman.cli.scenario import parse_scenario
from journeyman.core.scheduling.scheduler import solve
from tests.helpers import workloads
from tests.helpers.optimum import optimum
from tests.helpers.workloads import instance_types, node_pool, pods, scenario

KNOWN = {"habr-100x1": 1.1767, "habr-10x10": 1.2749, "cce-cpu-burst": 0.1772}
RANDOM_WORKLOADS = 12


def price_of(raw):
    """Return the price of our plan for the scenario; assert that it schedules every pod."""
    case = parse_scenario(json.dumps(raw).encode())
    results = solve(case.snapshot, case.catalogue)
    assert not results.pod_errors
    return results.price


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_published_workloads_are_within_two_percent_of_their_optimum(name):
    """The computed optimum equals the known one."""
    best = optimum(scenario(name))

    assert best == pytest.approx(KNOWN[name], abs=5e-5)
    assert best - 1e-9 <= price_of(scenario(name)) <= 1.02 * best


def random_workload(seed):
    """Return a scenario with up to nine pods of each of three sizes, and about every twentieth instance type."""
    rng = random.Random(seed)
    sizes = [(rng.choice((250, 600, 1000, 1900, 3000)), rng.choice((256, 900, 2000, 5000))) for _ in range(3)]
    drawn = [
        pod
        for index, (cpu, memory) in enumerate(sizes)
        for pod in pods(f"a{index}", rng.randint(1, 9), f"{cpu}m", f"{memory}Mi")
    ]
    types = [t for t in instance_types() if rng.random() < 1 / 20]
    pool = node_pool("spot", "on-demand")
    return {"name": f"mix-{seed}", "instanceTypes": types, "objects": [pool, *drawn], "options": {}}


@pytest.mark.parametrize("seed", range(RANDOM_WORKLOADS))
def test_small_random_workloads_are_within_two_percent_of_their_optimum(seed):
    """Pod sizes that do not add up to node sizes are hard to pack."""
    best = optimum(random_workload(seed))

    assert best - 1e-9 <= price_of(random_workload(seed)) <= 1.02 * best


def test_workloads_with_a_known_optimum_are_published():
    """`WORKLOADS` has each workload of `KNOWN`."""
    assert KNOWN.keys() <= workloads.WORKLOADS.keys()
