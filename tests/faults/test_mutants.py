"""The test of the test: every promise is broken on purpose, and its judge sees it within three hundred stories."""

from collections.abc import Iterator

import pytest

from journeyman_simulator.faults.invariants import RULES
from journeyman_simulator.faults.scenario_generator import story_of
from journeyman_simulator.faults.seed_search import judged
from tests.faults.mutants import MUTANTS, grafted

MOST = 300


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_promise_broken_on_purpose_is_seen_by_its_judge(mutant):
    """In one of the stories that may have to do with it; to the product its judge does not object there."""
    stories = filter(mutant.where, map(story_of, _all_from(mutant.seed)))
    with grafted(mutant):
        caught = next((story for story in stories if _objects(mutant, story)), None)
    assert caught is not None
    assert not _objects(mutant, caught)


def test_every_judge_is_seen_to_object_to_the_product():
    """A rule that nothing can break is none."""
    assert {mutant.rule for mutant in MUTANTS} == {*RULES}


def _all_from(seed: int) -> Iterator[int]:
    """All seeds once: that one, whoever comes after it, and then those before it."""
    yield from range(seed, MOST + 1)
    yield from range(1, seed)


def _objects(mutant, story):
    return mutant.rule.name in {broken.rule for broken in judged(story).broken}
