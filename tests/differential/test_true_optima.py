"""Integer programming proves the optimum of small workloads, and how near our plans are.

Covers: three published workloads on real types, whose optima are known; small random mixes of up to three sizes.
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
MIXES = 12


def price_of(raw):
    """What our plan for the scenario costs; it must place every pod."""
    case = parse_scenario(json.dumps(raw).encode())
    results = solve(case.snapshot, case.catalogue)
    assert not results.pod_errors
    return results.price


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_published_workloads_are_within_two_percent_of_their_optimum(name):
    """The optimum is computed here, and is what is known of it."""
    best = optimum(scenario(name))

    assert best == pytest.approx(KNOWN[name], abs=5e-5)
    assert best - 1e-9 <= price_of(scenario(name)) <= 1.02 * best


def mix(seed):
    """Up to three sizes of pods, a handful each, on every sixtieth type that the pool admits."""
    rng = random.Random(seed)
    sizes = [(rng.choice((250, 600, 1000, 1900, 3000)), rng.choice((256, 900, 2000, 5000))) for _ in range(3)]
    made = [
        pod
        for index, (cpu, memory) in enumerate(sizes)
        for pod in pods(f"a{index}", rng.randint(1, 9), f"{cpu}m", f"{memory}Mi")
    ]
    few = [t for t in instance_types() if rng.random() < 1 / 20]
    pool = node_pool("spot", "on-demand")
    return {"name": f"mix-{seed}", "instanceTypes": few, "objects": [pool, *made], "options": {}}


@pytest.mark.parametrize("seed", range(MIXES))
def test_small_mixes_are_within_two_percent_of_their_optimum(seed):
    """Sizes that do not add up well are where packing is hard."""
    best = optimum(mix(seed))

    assert best - 1e-9 <= price_of(mix(seed)) <= 1.02 * best


def test_the_workloads_with_a_known_optimum_are_the_published_ones():
    """Or the proof would be about something else."""
    assert KNOWN.keys() <= workloads.WORKLOADS.keys()
