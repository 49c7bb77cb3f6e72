"""Consolidation over hours of changing workloads evicts far fewer pods than Karpenter's plain rules, at about their price."""

from __future__ import annotations

import pytest

from tests.helpers.simulated_days import SCENARIOS, run_days


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["diurnal-day", "batch-night"])
def test_consolidation_evicts_far_fewer_pods_than_karpenters_rules(name):
    """Over six hours, the first of which have no history; `make bench-days` measures whole days and a week, against a quarter."""
    theirs, ours = (run_days(SCENARIOS[name], days=0.25, karpenter=karpenter) for karpenter in (True, False))

    assert ours.evictions <= 0.35 * theirs.evictions
    assert ours.dollars <= 1.03 * theirs.dollars
