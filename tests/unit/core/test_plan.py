"""What the plan's own functions promise; actions are values and have nothing to test."""

from datetime import timedelta

import pytest

from journeyman.core.plan import next_requeue
from tests.helpers.builders import NOW


@pytest.mark.parametrize("seconds", [2, 5, 7.5, 10, 30, 45, 60])
def test_runs_that_start_at_different_moments_share_one_requeue(seconds):
    """Otherwise every extra run of a step would keep a series of requeues of its own while the step waits."""
    wait = timedelta(seconds=seconds)
    looks, moments = set(), [NOW + timedelta(seconds=s / 4) for s in range(4 * 600)]
    for now in moments:
        at = next_requeue(now, wait)
        assert timedelta(0) < at - now <= 2 * wait
        looks.add(at)
    assert len(looks) <= 601 / min(seconds, 60) * 2


def test_a_chain_of_looks_keeps_its_pace():
    """A run that begins a little late does not shift those after it."""
    late = timedelta(seconds=0.7)
    assert next_requeue(NOW, timedelta(seconds=30)) == next_requeue(NOW + late, timedelta(seconds=30))
    assert next_requeue(NOW, timedelta(seconds=30)) == NOW + timedelta(seconds=30)
