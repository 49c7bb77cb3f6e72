"""Plans of recorded scenarios stay as they are: what a node is, what it costs, and why a pod has none.

Covers: published workloads, Karpenter's benchmark, production-like traces below and above the size for bulk packing, and
the clusters that once went wrong. A change of the scheduler that is meant to change plans records them again, and its
author reads the difference:

    python -m tests.unit.core.scheduling.test_recorded_plans
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from journeyman.cli.scenario import parse_scenario
from journeyman.cli.solve import options_of
from journeyman.core.scheduling import scheduler
from journeyman.core.scheduling.results import Results
from tests.helpers import karpenter_benchmark, production_trace, workloads
from tests.helpers.examples import marked

RECORDED = Path(__file__).with_suffix(".json")
REGRESSIONS = Path(__file__).parents[3] / "differential" / "cases" / "regressions"
BENCHMARKS = ("diverse-400", "diverse-1000", "preferences-400")
TRACES = ((150, False), (400, False), (400, True), (800, True), (1500, False))
LONGEST = {"diverse-400", "production-400-spread", "production-800-spread", "production-1500"}
LONG = {"diverse-1000", "production-150", "production-400"}


@cache
def scenarios() -> dict[str, dict[str, Any]]:
    """Return every scenario by name."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(REGRESSIONS.glob("*.json"))}
    found |= {name: karpenter_benchmark.scenario(name) for name in BENCHMARKS}
    found |= {name: workloads.scenario(name) for name in workloads.WORKLOADS}
    traces = [production_trace.scenario(count, rules=rules) for count, rules in TRACES]
    return found | {trace["name"]: trace for trace in traces}


def solve(name: str) -> Results:
    """Return the plan of a scenario."""
    case = parse_scenario(json.dumps(scenarios()[name]).encode())
    return scheduler.solve(case.snapshot, case.catalogue, options=options_of(case))


def record(results: Results) -> dict[str, Any]:
    """Return what is compared: prices to a millionth, nodes by their offering and pods, and each pod's error."""
    nodes = Counter(f"{claim.node_pool} {claim.offering}: {len(claim.pods)} pods" for claim in results.new_claims)
    return {
        "price": round(results.price, 6),
        "lowerBound": round(results.lower_bound, 6),
        "nodes": dict(sorted(nodes.items())),
        "existing": {node: list(pods) for node, pods in sorted(results.existing.items())},
        "errors": dict(_errors(results)),
    }


def _errors(results: Results) -> Iterator[tuple[str, str]]:
    return ((pod, error.message) for pod, error in sorted(results.pod_errors.items()))


@pytest.mark.parametrize("name", marked(sorted(scenarios()), slow=LONG, nightly=LONGEST))
def test_plan_is_as_recorded(name):
    """Same price, bound, nodes, placements on existing nodes, and errors."""
    assert record(solve(name)) == json.loads(RECORDED.read_text())[name]


if __name__ == "__main__":
    made = {name: record(solve(name)) for name in sorted(scenarios())}
    RECORDED.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
