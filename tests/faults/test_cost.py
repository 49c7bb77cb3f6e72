"""A scenario that never comes to rest costs its seed alone, and not the hunt."""

from journeyman_simulator.faults.fault_scenario import Deploy, FaultScenario
from journeyman_simulator.faults.scenario_run import TOO_MANY_RUNS, run_scenario


def test_a_story_that_goes_on_and_on_is_ended_and_says_who_ran_and_why():
    """After so many runs."""
    scenario = FaultScenario(seed=1, operations=(Deploy(at_seconds=0, app="a", replicas=6, cpu_millicores=900),))
    result = run_scenario(scenario, most_runs=12)

    (violation,) = result.violations
    assert violation.invariant == TOO_MANY_RUNS
    assert violation.what.startswith("more than 12 runs: provision ")
    assert "times, last for NodeClaim" in violation.what
    assert result.runs == 13
