"""Production clusters as scenarios: pods of a public trace, and drawn ones with mostly different requests.

`openb_scenario` draws pods, with replacement, from half of the public trace openb (Alibaba's cluster-trace-gpu-v2023; requests and
counts are in `openb_pods.csv`): about a hundred different requests, and on average two pods fill a node.

`scenario` and `diverse_scenario` draw requests that are heavy-tailed, as in published traces of shared clusters: most pods request
little, a few request whole nodes. Replica counts follow a power law; memory per core varies by a factor of a hundred.

All scenarios have the real instance types of `workloads`.
"""

from __future__ import annotations

import csv
import functools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.helpers.workloads import HOSTNAME, ZONE, instance_types, node_pool, pods, spread

SEED = 2011
MEDIAN_MILLICORES, SIGMA_CPU = 250, 1.3
MEDIAN_MIB_PER_CORE, SIGMA_MEMORY = 3000, 1.1
LARGEST_MILLICORES, LARGEST_MIB = 45_000, 350_000
OPENB_PODS = Path(__file__).with_name("openb_pods.csv")
JSONDict = dict[str, Any]


class _TraceRequest(NamedTuple):
    """What a pod of the trace requests."""

    millicores: int
    mebibytes: int
    gpus: int


def scenario(count: int, *, rules: bool = False) -> JSONDict:
    """Return a scenario of so many drawn pods; with `rules` a third of the workloads are spread over zones or hosts."""
    name = f"production-{count}{'-spread' if rules else ''}"
    pool = node_pool("spot", "on-demand")
    made = [pool, *_workloads(count, random.Random(SEED), rules=rules)]
    return {"name": name, "instanceTypes": instance_types(), "objects": made, "options": {}}


def diverse_scenario(count: int, requests: int) -> JSONDict:
    """Return a scenario of so many drawn pods with this number of different requests, each by equally many pods."""
    rng = random.Random(SEED)
    different: dict[tuple[int, int], None] = {}
    while len(different) < requests:
        different[_drawn_request(rng)] = None
    made: list[JSONDict] = [node_pool("spot", "on-demand")]
    for index, (millicores, mebibytes) in enumerate(different):
        replicas = count * (index + 1) // requests - count * index // requests
        made += pods(f"w{index:05d}", replicas, f"{millicores}m", f"{mebibytes}Mi")
    return {"name": f"requests-{requests}", "instanceTypes": instance_types(), "objects": made, "options": {}}


def openb_scenario(count: int, *, gpus: bool = False, zone_spread: bool = False) -> JSONDict:
    """Return a scenario of so many pods drawn from the trace openb.

    Args:
        count: The number of pods.
        gpus: Whether pods request the trace's GPUs too; all types are then allowed.
        zone_spread: Whether a third of the pods spread over zones, by workload: pods with equal requests are one.
    """
    rng = random.Random(SEED)
    trace = _trace()
    drawn: dict[_TraceRequest, int] = {}
    for request in rng.choices(list(trace), weights=list(trace.values()), k=count):
        drawn[request] = drawn.get(request, 0) + 1
    made: list[JSONDict] = [node_pool("spot", "on-demand", every_type=gpus)]
    for index, (request, replicas) in enumerate(sorted(drawn.items())):
        spread_pods = replicas // 3 if zone_spread else 0
        devices = request.gpus if gpus else 0
        cpu, memory = f"{request.millicores}m", f"{request.mebibytes}Mi"
        made += pods(f"t{index:03d}", replicas - spread_pods, cpu, memory, gpus=devices)
        app = f"s{index:03d}"
        rule = spread(app, ZONE, 1)
        made += pods(app, spread_pods, cpu, memory, gpus=devices, topologySpreadConstraints=rule)
    name = f"openb-{count}{'-gpus' if gpus else ''}{'-spread' if zone_spread else ''}"
    return {"name": name, "instanceTypes": instance_types(), "objects": made, "options": {}}


@functools.cache
def _trace() -> dict[_TraceRequest, int]:
    """Return the number of pods of the trace by what they request."""
    with OPENB_PODS.open() as rows:
        return {
            _TraceRequest(int(row["cpu_milli"]), int(row["memory_mib"]), int(row["num_gpu"])): int(row["pods"])
            for row in csv.DictReader(rows)
        }


def _workloads(count: int, rng: random.Random, *, rules: bool) -> Iterator[JSONDict]:
    index, left = 0, count
    while left > 0:
        replicas = min(left, int(rng.paretovariate(1.1)), 60)
        app = f"w{index:05d}"
        millicores, mebibytes = _drawn_request(rng)
        spec: JSONDict = {}
        if rules and replicas > 1 and rng.random() < 1 / 3:
            spec["topologySpreadConstraints"] = spread(app, rng.choice((ZONE, HOSTNAME)), 1)
        yield from pods(app, replicas, f"{millicores}m", f"{mebibytes}Mi", **spec)
        index, left = index + 1, left - replicas


def _drawn_request(rng: random.Random) -> tuple[int, int]:
    """Return millicores and mebibytes."""
    millicores = min(LARGEST_MILLICORES, max(10, round(rng.lognormvariate(0, SIGMA_CPU) * MEDIAN_MILLICORES)))
    per_core = rng.lognormvariate(0, SIGMA_MEMORY) * MEDIAN_MIB_PER_CORE
    return millicores, min(LARGEST_MIB, max(16, round(per_core * millicores / 1000)))
