"""Consolidation on a real control plane: kube-scheduler binds evicted pods' successors without a new launch."""

from __future__ import annotations

import pytest

from tests.helpers.removals import measure_removals


@pytest.mark.nightly  # `make bench-removals` measures larger clusters
def test_removed_nodes_are_not_launched_again():
    """The saving of the fleet is the planned one, and no pod is evicted twice on average."""
    found = measure_removals(deployments=20, seed=1)

    assert found.removed > 3
    assert found.launched_again == 0
    assert found.realised_share >= 0.98
    assert found.evictions <= found.pods
