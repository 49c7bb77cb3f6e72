"""A story that never comes to rest costs its seed alone, and not the hunt."""

from journeyman_simulator.faults.fault_scenario import Deploy, Story
from journeyman_simulator.faults.scenario_run import ENDLESS, tell


def test_a_story_that_goes_on_and_on_is_ended_and_says_who_ran_and_why():
    """After so many runs."""
    story = Story(seed=1, acts=(Deploy(at_seconds=0, app="a", replicas=6, cpu_millicores=900),))
    told = tell(story, most_runs=12)

    (broken,) = told.broken
    assert broken.rule == ENDLESS
    assert broken.what.startswith("more than 12 runs: provision ")
    assert "times, lastly for NodeClaim" in broken.what
    assert told.runs == 13
