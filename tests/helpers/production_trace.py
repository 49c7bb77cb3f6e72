"""A production-like cluster as a scenario: thousands of pods with mostly different requests, on real instance types.

Requests are heavy-tailed, as in published traces of shared clusters: most pods request little, a few request whole nodes.
Replica counts follow a power law; memory per core varies by a factor of a hundred. A third of the workloads spread their
replicas over zones or hosts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.helpers.workloads import HOSTNAME, ZONE, instance_types, node_pool, pods, spread

SEED = 2011
MEDIAN_MILLICORES, SIGMA_CPU = 250, 1.3
MEDIAN_MIB_PER_CORE, SIGMA_MEMORY = 3000, 1.1
LARGEST_MILLICORES, LARGEST_MIB = 45_000, 350_000
JSONDict = dict[str, Any]


def scenario(count: int, *, rules: bool = False) -> JSONDict:
    """Return a scenario of so many pods; with `rules` a third of the workloads are spread."""
    name = f"production-{count}{'-spread' if rules else ''}"
    pool = node_pool("spot", "on-demand")
    made = [pool, *_workloads(count, random.Random(SEED), rules=rules)]
    return {"name": name, "instanceTypes": instance_types(), "objects": made, "options": {}}


def _workloads(count: int, rng: random.Random, *, rules: bool) -> Iterator[JSONDict]:
    index, left = 0, count
    while left > 0:
        replicas = min(left, int(rng.paretovariate(1.1)), 60)
        app = f"w{index:05d}"
        millicores = min(LARGEST_MILLICORES, max(10, round(rng.lognormvariate(0, SIGMA_CPU) * MEDIAN_MILLICORES)))
        per_core = rng.lognormvariate(0, SIGMA_MEMORY) * MEDIAN_MIB_PER_CORE
        mebibytes = min(LARGEST_MIB, max(16, round(per_core * millicores / 1000)))
        spec: JSONDict = {}
        if rules and replicas > 1 and rng.random() < 1 / 3:
            spec["topologySpreadConstraints"] = spread(app, rng.choice((ZONE, HOSTNAME)), 1)
        yield from pods(app, replicas, f"{millicores}m", f"{mebibytes}Mi", **spec)
        index, left = index + 1, left - replicas
