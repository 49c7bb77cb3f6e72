"""Measures on the real kube-scheduler whether consolidation comes true: removals without a new launch, and realised savings.

    make bench-removals                       three clusters of forty Deployments: some minutes
    python -m tests.bench.bench_removals 7 8  clusters of these seeds

Each cluster is filled, loses between a quarter and three quarters of its pods, and is consolidated until it is at rest. The
exit status is 1 if a node was launched again after more than 1 % of the removals, or less than 98 % of the planned saving was
realised.
"""

from __future__ import annotations

import sys

from tests.bench.output import say
from tests.helpers.removals import RemovalResult, measure_removals

DEPLOYMENTS = 40
SEEDS = (1, 2, 3)
LEAST_WITHOUT_LAUNCH = 0.99
LEAST_REALISED = 0.98
COLUMNS = ("seed", "pods", "nodes", "removed", "launched again", "planned $/h", "realised $/h", "evictions", "seconds")
_ROW = "{:>5}  {:>5}  {:>10}  {:>7}  {:>14}  {:>11}  {:>12}  {:>9}  {:>7}"


def row(seed: int, found: RemovalResult) -> str:
    """Return one line of the table."""
    return _ROW.format(
        seed,
        found.pods,
        f"{found.nodes_before} to {found.nodes_after}",
        found.removed,
        found.launched_again,
        f"{found.planned:.3f}",
        f"{found.realised:.3f}",
        found.evictions,
        f"{found.seconds:.0f}",
    )


def main(seeds: tuple[int, ...]) -> int:
    """Print the table and the totals; return 1 if they miss their targets."""
    say(_ROW.format(*COLUMNS))
    results = []
    for seed in seeds:
        results.append(measure_removals(deployments=DEPLOYMENTS, seed=seed))
        say(row(seed, results[-1]))
    removed, again = sum(r.removed for r in results), sum(r.launched_again for r in results)
    planned, realised = sum(r.planned for r in results), sum(r.realised for r in results)
    without = 1 - again / max(removed, 1)
    say(f"removals without a new launch {without:.1%}, realised saving {realised / planned:.3f} of the planned one")
    return int(without < LEAST_WITHOUT_LAUNCH or realised < LEAST_REALISED * planned)


if __name__ == "__main__":
    sys.exit(main(tuple(map(int, sys.argv[1:])) or SEEDS))
