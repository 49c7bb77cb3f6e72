"""`journeyman faults --seeds`: what it prints, and that nobody overlooks what it found."""

from journeyman_simulator.simulator_cli.faults_command import run_seeds
from tests.faults.mutations import MUTATIONS

DEAF = next(mutation for mutation in MUTATIONS if mutation.name == "no pod is provisionable")


def test_a_hunt_that_finds_nothing_ends_well_and_shows_what_went_wrong_where(capsys):
    """Step by step, call by call; then the figures."""
    assert run_seeds("1..2", require_crash_coverage=False) == 0
    out = capsys.readouterr().out
    assert "  ec2 CreateFleet " in out
    assert "2 scenarios, " in out
    assert "0 violate an invariant" in out


def test_a_call_that_was_never_a_process_s_last_fails_the_hunt_that_asks_for_it(capsys):
    """By its name: two scenarios cannot have died everywhere."""
    assert run_seeds("1..2", require_crash_coverage=True) == 1
    assert "terminate: ec2 TerminateInstances: no process crashed at this call" in capsys.readouterr().out


def test_a_broken_rule_fails_the_hunt_and_says_how_to_see_it_again(capsys):
    """With the seed."""
    with DEAF.applied():
        assert run_seeds("1..3", require_crash_coverage=False) == 1
    out = capsys.readouterr().out
    assert "schedulable pods run" in out
    assert "journeyman faults --seed " in out
