"""The list of call sites is recorded from the code, and a new call appears in it by itself."""

import ast

import pytest

from journeyman.steps.sweep import sweep
from journeyman_simulator.faults.call_site_recording import record_call_sites, sample_scenarios
from journeyman_simulator.faults.call_sites import CALL_SITES
from journeyman_simulator.faults.fault_scenario import Deploy, FaultScenario
from journeyman_simulator.faults.scenario_clouds import CLOUDS
from journeyman_simulator.faults.scenario_generator import RARE_CALL_SCENARIOS
from tests.faults.mutations import SyntaxMutation

POD = FaultScenario(seed=1, operations=(Deploy(at_seconds=0, app="a", replicas=1),))


@pytest.mark.nightly  # `test_seeds.py` detects a new call in a sample of scenarios
@pytest.mark.parametrize("cloud", CLOUDS)
def test_recorded_call_sites_are_up_to_date(cloud):
    """`make call-sites` writes them again after a step calls something new, or no longer calls something."""
    assert record_call_sites(sample_scenarios(cloud)) == CALL_SITES[cloud]


def test_a_new_call_of_a_step_is_recorded_by_itself():
    """The list of calls comes from the product's code alone."""
    version = ast.parse("run.store.version()").body

    def call_version(function):
        function.body[:0] = version
        return 1

    with SyntaxMutation(sweep, call_version).applied():
        sites = record_call_sites([POD])

    assert {*sites} - {*CALL_SITES["aws"]} == {"sweep: version"}


@pytest.mark.parametrize("cloud", CLOUDS)
def test_each_rare_call_with_a_scenario_of_its_own_is_a_call_site(cloud):
    """A call that no step makes needs no scenario."""
    assert RARE_CALL_SCENARIOS[cloud].keys() <= {*CALL_SITES[cloud]}
