"""The test of the test: each promise broken on purpose is seen by its judge within three hundred stories."""

import pytest

from journeyman.runtime.hunt import judged
from journeyman.simulate.faults.generate import story_of
from tests.faults.mutants import MUTANTS, grafted

pytestmark = pytest.mark.hunt

MOST = 300


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_promise_broken_on_purpose_is_seen_by_its_judge(mutant):
    """From the first seed on, until one objects; other judges may object before."""
    with grafted(mutant):
        caught = next((seed for seed in range(1, MOST + 1) if _objects(mutant, seed)), None)
    assert caught is not None
    assert not _objects(mutant, caught)


def _objects(mutant, seed):
    return mutant.rule.name in {broken.rule for broken in judged(story_of(seed)).broken}
