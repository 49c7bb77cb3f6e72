"""Compares our disruption decisions with Karpenter's in many clusters, and reports how often they agree.

    python -m tests.differential.hunt_disruption --clusters 500 --first 0

prints every difference with its explanation, then for each method how much was compared and how much of it agrees. With
files as arguments it compares these scenarios. The first difference without an explanation is reduced and saved.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from tests.differential.accepted_disruption_differences import Accepted, explanation
from tests.differential.compare_disruption import KINDS, Comparison, Difference, compare_disruption
from tests.differential.draw.running_clusters import running_cluster
from tests.differential.karpenter import Karpenter
from tests.differential.reduce import reduce

JSONDict = dict[str, Any]
SAVED_IN = Path(".cache/differential")
TRIES = 60
ORDER_EVERY = 10
"""Of so many clusters one is also decided with its objects in another order."""


class Listed(Struct, frozen=True, kw_only=True):
    """A difference in a cluster, with what explains it; None if nothing does."""

    scenario: JSONDict
    difference: Difference
    accepted: Accepted | None

    def __str__(self) -> str:
        """Return the cluster, the method, the difference and its explanation."""
        found = self.difference
        where = " ".join(part for part in (self.scenario["name"], found.method, found.node) if part)
        explained = f" [{self.accepted.name}]" if self.accepted else ""
        return f"{where}: {KINDS[found.kind]}: {found.text[:600]}{explained}"


class Tally(Struct, kw_only=True):
    """What several clusters showed."""

    clusters: int = 0
    compared: Counter[tuple[str, str]] = field(default_factory=Counter)
    classes: Counter[tuple[str, str]] = field(default_factory=Counter)
    listed: list[Listed] = []

    @property
    def unexplained(self) -> list[Listed]:
        """The differences that nothing explains."""
        return [listed for listed in self.listed if listed.accepted is None]

    def agreement(self, kind: str) -> float:
        """Return the share of comparisons of a kind without a difference, explained or not."""
        total = sum(count for (compared, _), count in self.compared.items() if compared == kind)
        differences = sum(1 for one in self.listed if one.difference.kind == kind)
        return 1 - differences / total if total else 1.0

    def lines(self) -> Iterator[str]:
        """Yield a line for each method and kind of comparison, and Karpenter's decisions."""
        different = Counter((one.difference.kind, one.difference.method) for one in self.listed)
        for (kind, method), count in sorted(self.compared.items(), key=lambda item: item[0][::-1]):
            same = count - different[kind, method]
            yield f"{method:40} {kind:10} {same:5} of {count:5}  {100 * same / count:6.2f} %"
        for (method, decision), count in sorted(self.classes.items()):
            yield f"{method:40} Karpenter: {decision:8} {count:5}"


def tally(scenarios: Iterable[JSONDict], karpenter: Karpenter) -> Tally:
    """Compare scenarios, and explain their differences."""
    found = Tally()
    for scenario in scenarios:
        comparison = compare_disruption(scenario, karpenter, check_order=found.clusters % ORDER_EVERY == 0)
        found.clusters += 1
        found.compared.update(comparison.compared)
        found.classes.update(comparison.classes)
        for difference in comparison.differences:
            accepted = explanation(scenario, difference, karpenter)
            found.listed.append(Listed(scenario=scenario, difference=difference, accepted=accepted))
    return found


def describe(listed: Listed, karpenter: Karpenter, folder: Path = SAVED_IN) -> str:
    """Reduce a difference's scenario, save it, and return the difference with the objects that are left."""
    key = listed.difference.key

    def has_difference(candidate: JSONDict) -> bool:
        try:
            return key in {found.key for found in compare_disruption(candidate, karpenter).differences}
        except (KeyError, TypeError, AttributeError, StopIteration):  # the candidate lacks what a comparison needs
            return False

    small = reduce(listed.scenario, has_difference, TRIES)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{listed.scenario['name']}.json"
    path.write_text(json.dumps(small, indent=1))
    left = _remaining(compare_disruption(small, karpenter), key) or listed.difference
    lines = [str(listed), f"reduced: {left.text[:600]}", *_summaries(small)]
    return "\n".join([*lines, f"to compare it again: python -m tests.differential.hunt_disruption {path}"])


def _remaining(comparison: Comparison, key: tuple[str, str, str]) -> Difference | None:
    return next((found for found in comparison.differences if found.key == key), None)


def _summaries(scenario: JSONDict) -> Iterator[str]:
    """Yield a line for each object, without what comparisons seldom need."""
    yield f"{len(scenario['instanceTypes'])} types, options {scenario['options']}"
    for raw in scenario["objects"]:
        spec = {key: value for key, value in raw.get("spec", {}).items() if key not in {"nodeClassRef", "providerID"}}
        yield f"  {raw['kind']} {raw['metadata']['name']}: {json.dumps(spec)[:300]}"


def main() -> int:
    """Compare, print the report, and return 1 if a difference has no explanation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="scenarios to compare")
    parser.add_argument("--clusters", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="number of the first cluster")
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.clusters)
    drawn = (running_cluster(number) for number in numbers)
    given = (json.loads(path.read_text()) for path in options.files)
    with Karpenter() as karpenter:
        found = tally(given if options.files else drawn, karpenter)
        lines = [*map(str, found.listed), f"{found.clusters} clusters", *found.lines()]
        sys.stdout.write("\n".join(lines) + "\n")
        if found.unexplained and not options.files:
            sys.stdout.write(describe(found.unexplained[0], karpenter) + "\n")
    return 1 if found.unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
