"""Comparison with Karpenter's disruption methods, in clusters of up to 25 nodes that `running_cluster` draws.

Covers: candidates, budgets and decisions of every method. `make test` compares 100 clusters, `make nightly` 500.
accepted_disruption_differences.py has the cases in which we differ on purpose.
"""

import pytest

from tests.differential.draw.running_clusters import running_cluster
from tests.differential.hunt_disruption import describe, tally

CLUSTERS = 50  # per test, so that two processes share those of `make test`
LEAST_AGREEMENT = 0.99


def _groups():
    """Return the number of the first cluster of each group; those behind 100 are for `make nightly`."""
    return [pytest.param(first, marks=() if first < 100 else pytest.mark.nightly) for first in range(0, 500, CLUSTERS)]


@pytest.mark.parametrize("first", _groups())
def test_disruption_methods_decide_as_karpenters_and_save_no_less(karpenter, first):
    """Candidates and budgets are the same, decisions in 99 % of the cases; each difference has an explanation."""
    found = tally((running_cluster(number) for number in range(first, first + CLUSTERS)), karpenter)

    assert not found.unexplained, describe(found.unexplained[0], karpenter)
    assert min(found.agreement("class"), found.agreement("alone")) >= LEAST_AGREEMENT, "\n".join(map(str, found.listed))
