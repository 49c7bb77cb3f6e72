"""Comparison with Karpenter's scheduler: we schedule every pod that it schedules, for no more, in verified plans.

Covers: every kind of scheduling constraint, on 30 random clusters; `make nightly` draws 2,000 new ones.
accepted_differences.py has the cases in which we differ on purpose.
"""

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.differential.accepted_differences import unaccepted
from tests.differential.clusters import clusters
from tests.differential.compare import compare_plans
from tests.differential.failure_report import describe_failure

CASES = Path(__file__).parent / "cases/regressions"
MAX_EXAMPLES = int(os.environ.get("JOURNEYMAN_CASES", "30"))
# hypothesis would shrink a failure for minutes; `hunt` reduces it in seconds
GENERATE_ONLY = settings(max_examples=MAX_EXAMPLES, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # the failure report is shorter
@GENERATE_ONLY
@given(scenario=clusters())
def test_every_pod_that_karpenter_schedules_is_scheduled_for_no_more(karpenter, scenario):
    """The plan passes verification, costs no more, is repeatable, and does not depend on the order of the objects."""
    found = unaccepted(scenario, compare_plans(scenario, karpenter))

    assert not found, describe_failure(scenario, found)


@pytest.mark.parametrize("path", sorted(CASES.glob("*.json")), ids=lambda path: path.stem)
def test_regression_clusters_agree_with_karpenter(karpenter, path):
    """Reduced clusters of earlier findings."""
    scenario = json.loads(path.read_text())

    found = unaccepted(scenario, compare_plans(scenario, karpenter))

    assert not found, describe_failure(scenario, found)
