"""The output and the exit code of `journeyman faults --seeds`."""

import pytest

from journeyman_simulator.faults.scenario_clouds import CLOUDS
from journeyman_simulator.simulator_cli.faults_command import run_seeds
from tests.faults.mutations import MUTATIONS
from tests.helpers.sampling import aws_and_nightly

DEAF = next(mutation for mutation in MUTATIONS if mutation.name == "no pod is provisionable")


@pytest.mark.parametrize("name", aws_and_nightly(CLOUDS))
def test_a_search_without_violations_succeeds_and_prints_its_coverage(capsys, name):
    """The output has a table of calls and faults, then the totals."""
    assert run_seeds("1..2", cloud=name, require_crash_coverage=False) == 0
    out = capsys.readouterr().out
    assert f"  {CLOUDS[name].launch} " in out
    assert "2 scenarios, " in out
    assert "0 violate an invariant" in out


def test_a_call_without_a_crash_fails_a_search_that_requires_it(capsys):
    """Two scenarios cannot have a crash at every call."""
    assert run_seeds("1..2", require_crash_coverage=True) == 1
    out = capsys.readouterr().out
    assert "terminate: ec2 TerminateInstances: no process crashed at this call" in out
    assert "Replacing: no process crashed while a command was in this phase" in out


@pytest.mark.parametrize(("cloud", "option"), [("aws", ""), ("huawei", "--cloud huawei ")])
def test_a_violation_fails_the_search_and_prints_how_to_reproduce_it(capsys, cloud, option):
    """The seed reproduces it."""
    with DEAF.applied():
        assert run_seeds("1..3", cloud=cloud, require_crash_coverage=False) == 1
    out = capsys.readouterr().out
    assert "schedulable pods run" in out
    assert f"journeyman faults {option}--seed " in out
