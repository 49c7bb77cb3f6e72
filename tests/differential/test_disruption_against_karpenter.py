"""Comparison with Karpenter's disruption methods, in clusters of up to 25 nodes that `running_cluster` draws.

Covers: candidates, budgets and decisions of every method. `make test` compares 100 clusters, `make nightly` 500.
accepted_disruption_differences.py has the cases in which we differ on purpose.
"""

import pytest

from tests.differential.draw.running_clusters import running_cluster
from tests.differential.hunt_disruption import describe, tally

LEAST_AGREEMENT = 0.99
GROUPS = (  # first cluster and number: two processes share those of `make test`
    (0, 50),
    (50, 50),
    (428, 1),  # in both, packing by price places the pods of NodePools that pack into the fewest nodes
    (486, 1),
    pytest.param(0, 500, marks=pytest.mark.nightly),  # shares of fewer clusters say less
)


@pytest.mark.parametrize(("first", "number"), GROUPS)
def test_disruption_methods_decide_as_karpenters_and_save_no_less(karpenter, first, number):
    """Candidates and budgets are the same, decisions in 99 % of the cases; each difference has an explanation."""
    found = tally((running_cluster(cluster) for cluster in range(first, first + number)), karpenter)

    assert not found.unexplained, describe(found.unexplained[0], karpenter)
    assert min(found.agreement("class"), found.agreement("alone")) >= LEAST_AGREEMENT, "\n".join(map(str, found.listed))
