"""How dear and how fast: the scheduler against Karpenter and the linear-programming bound, on the same scenarios.

    python tests/bench/bench_scheduling.py --oracle ORACLE --scenarios DIR [--scenarios DIR …] [--repeat 3]

ORACLE is a command that takes a scenario file and prints Karpenter's answer as one JSON line; DIR holds scenario files.
Both run on this machine, one after the other. Ratios, not seconds, are what can be compared between machines. Exit
status 1 if a plan costs more than Karpenter's although it places as many pods.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from journeyman.cli.solve import answer
from journeyman.core.scheduling.scheduler import pods_to_place
from journeyman.simulate.scenario import read_scenario

COLUMNS = ("scenario", "pods", "nodes", "price", "price/bound", "price/oracle", "seconds", "oracle/seconds", "errors")
TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Row:
    """One scenario, answered by both."""

    name: str
    pods: int
    ours: dict[str, Any]
    oracle: dict[str, Any] | None

    @property
    def is_dearer(self) -> bool:
        """Whether Karpenter placed as many pods for less."""
        if self.oracle is None or len(self.oracle["errors"]) > len(self.ours["errors"]):
            return False
        same = len(self.oracle["errors"]) == len(self.ours["errors"])
        return same and self.ours["price"] > self.oracle["price"] * (1 + TOLERANCE)

    def cells(self) -> tuple[str, ...]:
        """As text, in the order of COLUMNS."""
        ours, oracle = self.ours, self.oracle
        return (
            self.name,
            str(self.pods),
            str(len(ours["nodeClaims"])),
            f"{ours['price']:.4f}",
            ratio(ours["price"], ours["lowerBound"]),
            ratio(ours["price"], oracle["price"]) if oracle else "-",
            f"{ours['seconds']:.3f}",
            ratio(oracle["seconds"], ours["seconds"]) if oracle else "-",
            f"{len(ours['errors'])}" + (f" ({len(oracle['errors'])})" if oracle else ""),
        )


def ratio(a: float, b: float) -> str:
    """a over b, if that makes sense."""
    return f"{a / b:.3f}" if b else "-"


def measure(path: Path, oracle: str | None, repeat: int) -> Row:
    """Answer one file with both; of ours the fastest of some runs counts, on a catalogue read afresh each time."""
    answers = [answer(read_scenario(path)) for _ in range(repeat)]
    scenario = read_scenario(path)
    return Row(
        name=scenario.name,
        pods=len(pods_to_place(scenario.snapshot)),
        ours=min(answers, key=lambda a: float(a["seconds"])),
        oracle=ask(oracle, path) if oracle else None,
    )


def ask(oracle: str, path: Path) -> dict[str, Any]:
    """The oracle's answer."""
    done = subprocess.run([oracle, str(path)], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oracle", help="command that answers a scenario file as Karpenter does")
    parser.add_argument("--scenarios", action="append", type=Path, required=True, help="folder of scenario files")
    parser.add_argument("--repeat", type=int, default=1, help="runs of ours per file; the fastest counts")
    options = parser.parse_args()
    rows = []
    sys.stdout.write(" | ".join(COLUMNS) + "\n")
    for path in sorted(file for folder in options.scenarios for file in folder.glob("*.json")):
        rows.append(measure(path, options.oracle, options.repeat))
        sys.stdout.write(" | ".join(rows[-1].cells()) + "\n")
        sys.stdout.flush()
    return 1 if any(row.is_dearer for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
