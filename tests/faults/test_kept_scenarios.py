"""Scenarios that violated an invariant once, shortened: they are told again in each build, and must not any more.

`scenarios/<what happened>.json` is what `journeyman journeyman_simulator --seed N --shrink` wrote. Seeds draw other scenarios once the
generator changes; these stay as they are.
"""

from pathlib import Path

import pytest

from journeyman_simulator.faults.fault_scenario import from_json
from journeyman_simulator.faults.seed_search import run_checked

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.json"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_story_that_broke_a_rule_once_breaks_none(path):
    """Its file's name says what happened."""
    assert [str(violation) for violation in run_checked(from_json(path.read_bytes())).violations] == []


def test_there_are_such_stories():
    """An empty folder would prove nothing."""
    assert SCENARIOS
