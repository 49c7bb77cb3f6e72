"""Scenarios that once violated an invariant, shrunk; none does any more."""

from pathlib import Path

import pytest

from journeyman_simulator.faults.fault_scenario import from_json
from journeyman_simulator.faults.seed_search import run_checked

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.json"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_kept_scenario_violates_no_invariant(path):
    """The file's name describes the violation."""
    assert [str(violation) for violation in run_checked(from_json(path.read_bytes())).violations] == []


def test_there_are_kept_scenarios():
    """With an empty folder the test above would check nothing."""
    assert SCENARIOS
