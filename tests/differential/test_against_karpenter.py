"""Karpenter itself decides the same clusters: whatever it places we place, for no more money, and by the rules.

Covers: every kind of rule, mixed. 150 clusters here; `make nightly` draws 2,000 new ones. Where we mean to decide
otherwise is said in accepted_differences.py.
"""

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.differential.accepted_differences import unaccepted
from tests.differential.clusters import clusters
from tests.differential.compare import findings
from tests.differential.failure_report import describe_failure

CASES = Path(__file__).parent / "cases/regressions"
MANY = int(os.environ.get("JOURNEYMAN_CASES", "150"))
# hypothesis would shrink a failure for minutes; `hunt` does it in seconds, and knows what a cluster is
DRAWN = settings(max_examples=MANY, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # the failure report is shorter
@DRAWN
@given(scenario=clusters())
def test_what_karpenter_places_we_place_by_the_rules_and_for_no_more(karpenter, scenario):
    """Every pod that Karpenter places, verified, never dearer, the same again, the same in another order."""
    found = unaccepted(scenario, findings(scenario, karpenter))

    assert not found, describe_failure(scenario, found)


@pytest.mark.parametrize("path", sorted(CASES.glob("*.json")), ids=lambda path: path.stem)
def test_what_once_went_wrong_goes_right(karpenter, path):
    """Clusters that a hunt found, at their smallest."""
    scenario = json.loads(path.read_text())

    found = unaccepted(scenario, findings(scenario, karpenter))

    assert not found, describe_failure(scenario, found)
