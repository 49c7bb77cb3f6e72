"""A hunt for clusters on which we do worse than Karpenter, or wrong.

    python -m tests.differential.hunt --cases 500 --seed 1 --save .cache/hunt

prints a table of findings by kind and cause, and saves the smallest example of each as a scenario that
`journeyman solve` and the oracle read. An example worth keeping goes to tests/differential/cases/regressions.
With files as arguments it looks at these scenarios instead of drawing any.
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
from tests.differential.compare import KINDS, Finding, answer_to, findings, read
from tests.differential.karpenter import Karpenter
from tests.differential.reduce import reduce

JSONDict = dict[str, Any]
Cause = tuple[str, str]


class Hunt:
    """What was found so far: how often each cause, and the smallest raw example of it."""

    def __init__(self, karpenter: Karpenter) -> None:
        self.karpenter = karpenter
        self.cases = 0
        self.seen: Counter[Cause] = Counter()
        self.examples: dict[Cause, tuple[JSONDict, Finding]] = {}

    def look(self, scenario: JSONDict) -> None:
        """Compare one more."""
        self.cases += 1
        if self.cases % 100 == 0:
            sys.stderr.write(f"{self.cases} cases, {self.seen.total()} findings\n")
        for finding in self._found(scenario):
            cause = (finding.kind, finding.cause)
            self.seen[cause] += 1
            known = self.examples.get(cause)
            if known is None or len(json.dumps(scenario)) < len(json.dumps(known[0])):
                self.examples[cause] = (scenario, finding)

    def _found(self, scenario: JSONDict) -> list[Finding]:
        return unaccepted(scenario, findings(scenario, self.karpenter))

    def smallest(self, cause: Cause, tries: int) -> tuple[JSONDict, Finding]:
        """The example of a cause, made smaller."""
        scenario, finding = self.examples[cause]
        invalid = _invalid_pods(scenario)

        def shows(candidate: JSONDict) -> bool:
            try:
                found = any((f.kind, f.cause) == cause for f in self._found(candidate))
                return found and _invalid_pods(candidate) <= invalid
            except (KeyError, TypeError, AttributeError):  # too little is left of it to be looked at
                return False

        small = reduce(scenario, shows, tries)
        return small, next((f for f in self._found(small) if (f.kind, f.cause) == cause), finding)


def _invalid_pods(scenario: JSONDict) -> frozenset[str]:
    """Return the keys of the pods that the API server would not accept; none if our solver raises, the finding then."""
    try:
        errors = answer_to(read(scenario)).pod_errors
    except Exception:  # noqa: BLE001 - as in `findings`
        return frozenset()
    return frozenset(key for key, error in errors.items() if error.kind == "invalid")


def draw_and_look(hunt: Hunt, cases: int, start: int, pods: int) -> None:
    """Draw clusters without hypothesis judging or shrinking any of them."""

    @seed(start)
    @settings(
        max_examples=cases,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(clusters(pods))
    def each(scenario: JSONDict) -> None:
        hunt.look(scenario)

    each()


def report(hunt: Hunt, folder: Path, tries: int) -> None:
    """The examples as files, first as they were drawn, then at their smallest; and the table."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {cause: f"{n:02}-{cause[0]}" for n, (cause, _) in enumerate(hunt.seen.most_common(), 1)}
    for cause, name in names.items():
        scenario, finding = hunt.examples[cause]
        save(folder / f"{name}.json", scenario, finding)
        say(f"{hunt.seen[cause]:4}  {name}: {KINDS[cause[0]]}\n      {finding.text[:600]}")
    lines = [f"{hunt.cases} cases"]
    for cause, name in names.items():
        save(folder / f"{name}.json", *hunt.smallest(cause, tries))
        lines.append(f"{hunt.seen[cause]:4}  {name}: {KINDS[cause[0]]}\n      {hunt.examples[cause][1].text[:600]}")
    (folder / "SUMMARY.txt").write_text("\n".join(lines) + "\n")


def save(path: Path, scenario: JSONDict, finding: Finding) -> None:
    """Write the scenario, with its finding, as a file."""
    path.write_text(json.dumps({**scenario, "name": path.stem, "finding": finding.text}, indent=1))


def say(line: str) -> None:
    """Print now."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Hunt; status 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="scenarios to look at")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pods", type=int, default=100, help="at most so many per case")
    parser.add_argument("--tries", type=int, default=300, help="to make each example smaller")
    parser.add_argument("--save", type=Path, default=Path(".cache/hunt"))
    options = parser.parse_args()
    started = time.monotonic()
    with Karpenter() as karpenter:
        hunt = Hunt(karpenter)
        for path in options.files:
            hunt.look(json.loads(path.read_text()))
        if not options.files:
            draw_and_look(hunt, options.cases, options.seed, options.pods)
        say(f"{hunt.cases} cases, {hunt.seen.total()} findings, {time.monotonic() - started:.0f} s")
        report(hunt, options.save, options.tries)
    return 1 if hunt.seen else 0


if __name__ == "__main__":
    sys.exit(main())
