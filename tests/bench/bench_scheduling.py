"""Compares price and speed of the scheduler with Karpenter's, in one run on one machine.

    make bench                                        everything: about half an hour, mostly Karpenter and proofs
    python -m tests.bench.bench_scheduling NAME…      some scenarios, or scenario files

`/bound` is the price over the lower bound that the scheduler reports, that of a linear program over resources.
`/configurations` is the price over the bound of the linear program over whole nodes and their contents, which takes longer to
prove than to plan (`configuration_bound`); a dash where rules or the number of kinds of pods prevent it.

Scenarios are Karpenter's own benchmark, published workloads, and a production-like trace. Only ratios can be compared between
machines, so times never fail the benchmark: the exit status is 1 only if a plan costs more than Karpenter's for as many
scheduled pods, or does not pass verification.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from journeyman.cli.scenario import Scenario, parse_scenario
from journeyman.cli.solve import options_of
from journeyman.core.scheduling import new_nodes
from journeyman.core.scheduling.packing import Packing, PackingProblem, pack
from journeyman.core.scheduling.results import Defect, Results
from journeyman.core.scheduling.scheduler import pods_to_schedule, solve
from journeyman.core.scheduling.verify import verify
from journeyman_simulator.judge import judge
from tests.bench.configuration_bound import configuration_bound, is_suitable
from tests.bench.footprint import growth, imports, memory
from tests.bench.output import say
from tests.differential.karpenter import Karpenter, OracleMissingError
from tests.helpers import karpenter_benchmark, production_trace, workloads

JSONDict = dict[str, Any]
TOLERANCE = 1e-9
REPEAT = 3  # runs of Journeyman per scenario, each with a newly parsed catalogue; the fastest counts
FAR_FROM_BOUND = 1.025  # plans closer to the bound are not bounded more tightly
FEW_KINDS = (40, 150)  # likewise, with fewer or more kinds of pods
TOO_LONG_FOR_KARPENTER = {"diverse-20000", "requests-2000"}  # five minutes and more
COLUMNS = (
    "scenario",
    "pods",
    "nodes",
    "unplaced",
    "price",
    "/bound",
    "/configurations",
    "/karpenter",
    "seconds",
    "karpenter/ours",
    "verify s",
)


def scenarios() -> dict[str, Callable[[], JSONDict]]:
    """Return functions that make the scenarios, by name."""
    found: dict[str, Callable[[], JSONDict]] = {}
    for name in karpenter_benchmark.NAMES:
        found[name] = lambda name=name: karpenter_benchmark.scenario(name)
    for name in workloads.WORKLOADS:
        found[name] = lambda name=name: workloads.scenario(name)
    for count in (400, 4000):
        found[f"production-{count}"] = lambda count=count: production_trace.scenario(count)
    found["production-4000-spread"] = lambda: production_trace.scenario(4000, rules=True)
    for count in (1000, 2000, 4000, 8000):
        found[f"openb-{count}"] = lambda count=count: production_trace.openb_scenario(count)
    found["openb-1000-gpus"] = lambda: production_trace.openb_scenario(1000, gpus=True)
    found["openb-4000-spread"] = lambda: production_trace.openb_scenario(4000, zone_spread=True)
    found["requests-2000"] = lambda: production_trace.diverse_scenario(50_000, 2000)
    return found


@dataclass(frozen=True, kw_only=True)
class Row:
    """One scenario with the results of both schedulers."""

    name: str
    pods: int
    ours: Results
    configurations: float
    seconds: float
    verify_seconds: float
    objections: tuple[Defect, ...]
    karpenter: JSONDict | None

    @property
    def is_dearer(self) -> bool:
        """Return whether Karpenter scheduled as many pods at a lower price."""
        if self.karpenter is None or self.karpenter.get("error"):
            return False
        as_many = len(self.karpenter["errors"]) == len(self.ours.pod_errors)
        return as_many and self.ours.price > self.karpenter["price"] * (1 + TOLERANCE)

    def cells(self) -> tuple[str, ...]:
        """Return the row as text, in the order of COLUMNS."""
        ours, theirs = self.ours, self.karpenter
        return (
            self.name,
            str(self.pods),
            str(len(ours.new_claims)) + (f" ({len(theirs['nodeClaims'])})" if theirs else ""),
            str(len(ours.pod_errors)) + (f" ({len(theirs['errors'])})" if theirs else ""),
            f"{ours.price:.4f}",
            ratio(ours.price, ours.lower_bound),
            ratio(ours.price, self.configurations),
            ratio(ours.price, theirs["price"]) if theirs else "-",
            f"{self.seconds:.3f}",
            ratio(theirs["seconds"], self.seconds, digits=1) if theirs else "-",
            f"{self.verify_seconds:.2f}" + (f", {len(self.objections)} objections" if self.objections else ""),
        )


def ratio(a: float, b: float, *, digits: int = 4) -> str:
    """Return a / b as text; empty if it is undefined."""
    return f"{a / b:.{digits}f}" if b else "-"


def measure(raw: JSONDict, karpenter: Karpenter | None) -> Row:
    """Solve one scenario with both schedulers, one after the other."""
    text = json.dumps(raw).encode()
    best: tuple[float, Results] | None = None
    for _ in range(REPEAT):
        case = parse_scenario(text)
        start = time.perf_counter()
        results = solve(case.snapshot, case.catalogue, options=options_of(case))
        seconds = time.perf_counter() - start
        if best is None or seconds < best[0]:
            best = (seconds, results)
    assert best is not None
    asked = pods_to_schedule(case.snapshot)
    start = time.perf_counter()
    objections = verify(case.snapshot, case.catalogue, best[1], pods=asked)
    verify_seconds = time.perf_counter() - start
    objections = objections or judge(case.snapshot, case.catalogue, best[1], pods=asked)
    return Row(
        name=raw["name"],
        pods=len(asked),
        ours=best[1],
        configurations=bound_of_configurations(case, best[1]),
        seconds=best[0],
        verify_seconds=verify_seconds,
        objections=objections,
        karpenter=karpenter.solve(raw) if karpenter and raw["name"] not in TOO_LONG_FOR_KARPENTER else None,
    )


def bound_of_configurations(case: Scenario, results: Results) -> float:
    """Return the bound of the linear program over whole nodes, where the plan is one packing of few kinds; otherwise 0."""
    packed: list[tuple[PackingProblem, Packing]] = []

    def recorded(problem: PackingProblem, **options: bool) -> Packing:
        packed.append((problem, pack(problem, **options)))
        return packed[-1][1]

    if results.price <= FAR_FROM_BOUND * results.lower_bound:
        return 0.0
    with mock.patch.object(new_nodes, "pack", recorded):
        solve(case.snapshot, case.catalogue, options=options_of(case))
    if len(packed) != 1:
        return 0.0
    problem, packing = packed[0]
    is_small = FEW_KINDS[0] <= len(problem.counts) <= FEW_KINDS[1]
    return configuration_bound(problem, packing) if is_small and is_suitable(problem) else 0.0


def table(chosen: Iterable[Callable[[], JSONDict]], karpenter: Karpenter | None) -> list[Row]:
    """Measure the scenarios and print each row as soon as it is known."""
    rows = []
    say(" | ".join(COLUMNS))
    for make in chosen:
        rows.append(measure(make(), karpenter))
        say(" | ".join(rows[-1].cells()))
        for objection in rows[-1].objections[:3]:
            say(f"  {objection}")
    return rows


def from_file(path: Path) -> JSONDict:
    """Return a scenario from a file."""
    raw: JSONDict = json.loads(path.read_text())
    return {"name": path.stem, **raw}


def main() -> int:
    """Print the table, and memory and import time of a new process."""
    known = scenarios()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"files, or of: {', '.join(known)}")
    parser.add_argument("--alone", action="store_true", help="without Karpenter")
    options = parser.parse_args()
    chosen = [known.get(name, lambda name=name: from_file(Path(name))) for name in options.names or known]
    rows = _with_karpenter(chosen) if not options.alone else table(chosen, None)
    if not options.names:
        say(growth({row.name: row.seconds for row in rows}))
        say(memory(known["diverse-20000"]()))
        say(imports())
    return 1 if any(row.is_dearer or row.objections for row in rows) else 0


def _with_karpenter(chosen: list[Callable[[], JSONDict]]) -> list[Row]:
    try:
        karpenter = Karpenter()
    except OracleMissingError as missing:
        say(str(missing))
        return table(chosen, None)
    with karpenter:
        return table(chosen, karpenter)


if __name__ == "__main__":
    sys.exit(main())
