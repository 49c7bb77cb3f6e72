"""Three hundred stories, and no rule is broken in any; `make faults` tells ten thousand."""

import pytest

from journeyman.runtime.hunt import hunt
from journeyman.simulate.faults.sites import CALL_SITES

SEEDS = 300
PARTS = 30


@pytest.mark.parametrize("part", range(PARTS))
def test_no_story_breaks_a_rule(part):
    """A seed that does is told again, and shortened, by `journeyman simulate --seed N --shrink`."""
    each = SEEDS // PARTS
    caught = hunt(range(part * each + 1, (part + 1) * each + 1))
    assert [(found.seed, str(found.broken[0])) for found in caught.found] == []
    assert {*caught.coverage.calls} <= {*CALL_SITES}
