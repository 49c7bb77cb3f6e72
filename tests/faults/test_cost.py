"""What a story costs is pinned by counting, not by a clock: what it takes is by far the functions' runs."""

from statistics import median

from journeyman.runtime.hunt import hunt
from journeyman.runtime.storm import ENDLESS, tell
from journeyman.simulate.faults.story import Deploy, Story

SEEDS = range(101, 122)
MEDIAN_RUNS = 70  # of many seeds it is 52; few of them scatter
MOST_OF_ANY = 300


def test_a_story_takes_few_runs():
    """Else ten thousand do not fit into a coffee break: one takes five milliseconds, on a machine that does nothing else."""
    runs = [hunt([seed]).runs for seed in SEEDS]
    assert median(runs) <= MEDIAN_RUNS
    assert max(runs) <= MOST_OF_ANY


def test_a_story_that_goes_on_and_on_is_ended_and_says_who_ran_and_why():
    """Whatever never comes to rest costs its seed alone, and not the hunt."""
    story = Story(seed=1, acts=(Deploy(at_seconds=0, app="a", replicas=6, cpu_millicores=900),))
    told = tell(story, most_runs=12)

    (broken,) = told.broken
    assert broken.rule == ENDLESS
    assert broken.what.startswith("more than 12 runs: provision ")
    assert "times, lastly for NodeClaim" in broken.what
    assert told.runs == 13
