"""Searches for clusters on which our plan is invalid, or worse than Karpenter's.

    python -m tests.differential.hunt --cases 500 --seed 1 --save .cache/hunt

prints a table of findings by kind and cause, and saves the smallest example of each as a scenario that
`journeyman solve` and the oracle read. Copy an example worth keeping to tests/differential/cases/regressions.
With files as arguments it compares these scenarios instead of random ones.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.differential.accepted_differences import unaccepted
from tests.differential.clusters import clusters
from tests.differential.compare import KINDS, Finding, compare_plans, parse, solve_scenario
from tests.differential.karpenter import Karpenter
from tests.differential.reduce import reduce

JSONDict = dict[str, Any]
Cause = tuple[str, str]


class Hunt:
    """The findings so far: how many of each cause, and the smallest scenario with it before reduction."""

    def __init__(self, karpenter: Karpenter) -> None:
        self.karpenter = karpenter
        self.cases = 0
        self.counts: Counter[Cause] = Counter()
        self.examples: dict[Cause, tuple[JSONDict, Finding]] = {}

    def compare(self, scenario: JSONDict) -> None:
        """Compare our plan for a scenario with Karpenter's, and record the findings."""
        self.cases += 1
        if self.cases % 100 == 0:
            sys.stderr.write(f"{self.cases} cases, {self.counts.total()} findings\n")
        for finding in self._findings(scenario):
            cause = (finding.kind, finding.cause)
            self.counts[cause] += 1
            known = self.examples.get(cause)
            if known is None or len(json.dumps(scenario)) < len(json.dumps(known[0])):
                self.examples[cause] = (scenario, finding)

    def _findings(self, scenario: JSONDict) -> list[Finding]:
        return unaccepted(scenario, compare_plans(scenario, self.karpenter))

    def reduced_example(self, cause: Cause, tries: int) -> tuple[JSONDict, Finding]:
        """Return the example of a cause, reduced in at most `tries` comparisons; it has no finding of another kind."""
        scenario, finding = self.examples[cause]
        invalid, kinds = _invalid_pods(scenario), {f.kind for f in self._findings(scenario)}

        def has_finding(candidate: JSONDict) -> bool:
            try:
                findings = self._findings(candidate)
                found = any((f.kind, f.cause) == cause for f in findings) and {f.kind for f in findings} <= kinds
                return found and _invalid_pods(candidate) <= invalid
            except (KeyError, TypeError, AttributeError):  # the candidate lacks fields that the comparison needs
                return False

        small = reduce(scenario, has_finding, tries)
        return small, next((f for f in self._findings(small) if (f.kind, f.cause) == cause), finding)


def _invalid_pods(scenario: JSONDict) -> frozenset[str]:
    """Return the keys of the pods that the API server would reject; none if our solver raises."""
    try:
        errors = solve_scenario(parse(scenario)).pod_errors
    except Exception:  # noqa: BLE001 - as in `compare_plans`
        return frozenset()
    return frozenset(key for key, error in errors.items() if error.kind == "invalid")


def compare_random_clusters(hunt: Hunt, cases: int, random_seed: int, pods: int) -> None:
    """Compare random clusters; hypothesis draws them, but does not shrink them."""

    @seed(random_seed)
    @settings(
        max_examples=cases,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(clusters(pods))
    def each(scenario: JSONDict) -> None:
        hunt.compare(scenario)

    each()


def write_report(hunt: Hunt, folder: Path, tries: int) -> None:
    """Write the examples, first as drawn, then reduced, and a summary."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {cause: f"{n:02}-{cause[0]}" for n, (cause, _) in enumerate(hunt.counts.most_common(), 1)}
    for cause, name in names.items():
        scenario, finding = hunt.examples[cause]
        save(folder / f"{name}.json", scenario, finding)
        print_line(f"{hunt.counts[cause]:4}  {name}: {KINDS[cause[0]]}\n      {finding.text[:600]}")
    lines = [f"{hunt.cases} cases"]
    for cause, name in names.items():
        save(folder / f"{name}.json", *hunt.reduced_example(cause, tries))
        lines.append(f"{hunt.counts[cause]:4}  {name}: {KINDS[cause[0]]}\n      {hunt.examples[cause][1].text[:600]}")
    (folder / "SUMMARY.txt").write_text("\n".join(lines) + "\n")


def save(path: Path, scenario: JSONDict, finding: Finding) -> None:
    """Write the scenario and its finding to a file."""
    path.write_text(json.dumps({**scenario, "name": path.stem, "finding": finding.text}, indent=1))


def print_line(line: str) -> None:
    """Write a line to stdout, and flush it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run the search; return 1 if there are findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="scenarios to compare")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pods", type=int, default=100, help="maximum number of pending pods per case")
    parser.add_argument("--tries", type=int, default=300, help="maximum number of comparisons to reduce an example")
    parser.add_argument("--save", type=Path, default=Path(".cache/hunt"))
    options = parser.parse_args()
    started = time.monotonic()
    with Karpenter() as karpenter:
        hunt = Hunt(karpenter)
        for path in options.files:
            hunt.compare(json.loads(path.read_text()))
        if not options.files:
            compare_random_clusters(hunt, options.cases, options.seed, options.pods)
        print_line(f"{hunt.cases} cases, {hunt.counts.total()} findings, {time.monotonic() - started:.0f} s")
        write_report(hunt, options.save, options.tries)
    return 1 if hunt.counts else 0


if __name__ == "__main__":
    sys.exit(main())
