"""Stories that broke a rule once, shortened: they are told again in each build, and must not any more.

`stories/<what happened>.json` is what `journeyman journeyman_simulator --seed N --shrink` wrote. Seeds draw other stories once the
generator changes; these stay as they are.
"""

from pathlib import Path

import pytest

from journeyman_simulator.faults.fault_scenario import from_json
from journeyman_simulator.faults.seed_search import judged

STORIES = sorted((Path(__file__).parent / "stories").glob("*.json"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_that_broke_a_rule_once_breaks_none(path):
    """Its file's name says what happened."""
    assert [str(broken) for broken in judged(from_json(path.read_bytes())).broken] == []


def test_there_are_such_stories():
    """An empty folder would prove nothing."""
    assert STORIES
