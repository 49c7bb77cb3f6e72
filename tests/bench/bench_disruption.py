"""Measures the examination of large fleets, and compares it with simulating node after node, in one run on one machine.

    make bench                                     with the scheduler's own benchmark
    python -m tests.bench.bench_disruption         2,000 and 10,000 nodes, with and without pod rules: some minutes
    python -m tests.bench.bench_disruption 2000    one size

Each fleet is read in a process of its own. `examined` is the time from the parsed cluster to a verdict on every node:
`candidates` (which nodes may be disrupted, with their consolidateAfter), `columns` (reading the cluster once) and `nodes`
(removing one after another). `parsed` is the time of reading the scenario's JSON before that, as a measure of the machine.
`simulation` is the mean time of `compute_consolidation` for one node, over a sample of nodes
of each verdict; `all simulated` is that mean times the number of nodes, which the examination replaces. `wrong` counts the
nodes of the sample that the examination excludes although the simulation removes them. Times are of the process's CPU, so
that other work on the machine counts little; `wall` is the examination's wall time.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from journeyman.cli.scenario import parse_scenario
from journeyman.cli.solve import options_of
from journeyman.core.disruption.candidates import find_candidates
from journeyman.core.disruption.commands import Decision
from journeyman.core.disruption.consolidatable import assess_consolidatable
from journeyman.core.disruption.consolidation import compute_consolidation
from journeyman.core.disruption.fleet_examination import FleetExaminer, NodeVerdict
from journeyman.core.disruption.simulation import Simulation
from journeyman.core.disruption.single_node_consolidation import eligible_candidates, interleaved
from tests.bench.output import say
from tests.helpers.large_fleets import fleet

SIZES = (2_000, 10_000)
PODS_PER_NODE = 10
USAGES = (0.6, 1.1)  # of the fleet's CPUs that the pods request; beyond 1, pods that find no capacity are left out
SAMPLE = 20  # nodes of each verdict that are simulated, too
COLUMNS = (
    *("fleet", "pods", "verdicts", "parsed s", "examined s", "candidates", "columns", "nodes", "wall"),
    *("peak MB", "simulation ms", "all simulated s", "ratio", "wrong"),
)


def measure(path: Path) -> dict[str, Any]:
    """Return the figures of one fleet."""
    before = time.process_time()
    scenario = parse_scenario(path.read_bytes())
    read = time.process_time() - before
    snapshot, catalogue = scenario.snapshot, scenario.catalogue
    before, wall = time.process_time(), time.perf_counter()
    ready = assess_consolidatable(snapshot)
    simulation = Simulation(
        snapshot, catalogue, within_consolidate_after=ready.within_window, options=options_of(scenario)
    )
    found = find_candidates(snapshot, catalogue, consolidatable=ready.claims, in_commands=frozenset())
    candidates = interleaved(eligible_candidates(found.candidates, snapshot))
    with_candidates = time.process_time()
    examiner = FleetExaminer(simulation, candidates)
    first = examiner.examine(candidates[0])
    with_columns = time.process_time()
    examinations = [first, *(examiner.examine(candidate) for candidate in candidates[1:])]
    end = time.process_time()
    wall = time.perf_counter() - wall
    peak = peak_bytes()
    by_verdict = {v: [e for e in examinations if e.verdict is v] for v in NodeVerdict}
    seconds, wrong, simulated = 0.0, 0, 0
    for verdict, members in by_verdict.items():
        sample = random.Random(verdict.value).sample(members, min(SAMPLE, len(members)))
        start = time.process_time()
        decisions = [compute_consolidation(simulation, (e.candidate,)).decision for e in sample]
        mean = (time.process_time() - start) / max(len(sample), 1)
        seconds += mean * len(members)
        simulated += len(sample)
        wrong += sum(d is not Decision.NO_OP for d in decisions) if verdict is NodeVerdict.STAYS else 0
    return {
        "fleet": scenario.name,
        "pods": len(snapshot.pods),
        "verdicts": ", ".join(f"{n} {v}" for v, n in sorted(Counter(e.verdict.value for e in examinations).items())),
        "examined s": f"{end - before:.2f}",
        "parsed s": f"{read:.2f}",
        "candidates": f"{with_candidates - before:.2f}",
        "columns": f"{with_columns - with_candidates:.2f}",
        "nodes": f"{end - with_columns:.2f}",
        "wall": f"{wall:.2f}",
        "peak MB": f"{peak / 1e6:.0f}",
        "simulation ms": f"{1000 * seconds / len(candidates):.1f}",
        "all simulated s": f"{seconds:.0f}",
        "ratio": f"{seconds / (end - with_candidates):.0f}",
        "wrong": f"{wrong} of {simulated}",
    }


def peak_bytes() -> int:
    """Return the most memory that this process has used; 0 where the kernel does not say."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def main(sizes: tuple[int, ...]) -> None:
    """Print a line for each fleet."""
    say(" | ".join(COLUMNS))
    for nodes in sizes:
        for rules in (False, True):
            for usage in USAGES:
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / "fleet.json"
                    path.write_text(json.dumps(fleet(nodes, nodes * PODS_PER_NODE, usage=usage, rules=rules)))
                    command = [sys.executable, "-m", "tests.bench.bench_disruption", "--measure", str(path)]
                    figures = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
                say(" | ".join(str(figures[column]) for column in COLUMNS))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        say(json.dumps(measure(Path(sys.argv[2]))))
    else:
        main(tuple(map(int, sys.argv[1:])) or SIZES)
