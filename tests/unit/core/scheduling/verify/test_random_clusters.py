"""Plans of random clusters verify."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from journeyman.cli.scenario import parse_scenario
from journeyman.cli.solve import options_of
from journeyman.core.scheduling import scheduler
from journeyman_simulator.judge import verify_strictly
from tests.helpers import random_clusters

SEEDS = (*range(160, 200), 420, 464, 599, 649, 852)
EACH = [seed if seed % 2 == 0 else pytest.param(seed, marks=pytest.mark.nightly) for seed in SEEDS]


@pytest.mark.parametrize("seed", EACH)
@pytest.mark.parametrize("is_compared", [True, False])
def test_plan_of_a_random_cluster_verifies(seed, is_compared):
    """No placement is left out, whether plans are compared or not."""
    case = parse_scenario(json.dumps(random_clusters.scenario(seed)).encode())
    pods = scheduler.pods_to_schedule(case.snapshot)
    options = replace(options_of(case), compare_up_to=len(pods) if is_compared else 0)

    results = scheduler.solve(case.snapshot, case.catalogue, options=options)

    assert list(verify_strictly(case.snapshot, case.catalogue, results, pods=pods)) == []
