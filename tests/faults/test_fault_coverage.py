"""Counts of calls and faults: for one scenario, added over several, and as a table."""

import pytest

from journeyman_simulator.faults.call_sites import CALL_SITES, FaultCoverage, from_json, has_effect, kinds_of, to_json
from journeyman_simulator.faults.fault_scenario import FaultKind
from journeyman_simulator.faults.scenario_clouds import CLOUDS

LAUNCH, LOOK = "provision: ec2 CreateFleet", "sweep: list Pod"


def counted(*fired):
    coverage = FaultCoverage(scenarios=1)
    coverage.count_call(LAUNCH)
    coverage.count_call(LOOK)
    for site, kind in fired:
        coverage.count_fault(site, kind.value)
    return coverage


def test_counts_of_scenarios_from_several_processes_add_up():
    """They are encoded as JSON between processes."""
    total = counted((LAUNCH, FaultKind.CRASH_AFTER))
    total.count_message_fault("requeue", "drop")
    total.count_crash_in_phase("drift", "Draining")
    total.add(from_json(to_json(counted((LAUNCH, FaultKind.CRASH_AFTER), (LOOK, FaultKind.LAG)))))
    assert (total.scenarios, total.calls[LAUNCH]) == (2, 2)
    assert total.fired == {LAUNCH: {"crash-after": 2}, LOOK: {"lag": 1}}
    assert total.messages == {"requeue": {"drop": 1}}
    assert total.crashes == {"drift": {"Draining": 1}}


def test_a_site_without_one_of_the_fault_kinds_is_reported():
    """A site needs only one of the kinds."""
    coverage = counted((LAUNCH, FaultKind.CRASH_AFTER), (LOOK, FaultKind.LAG))
    assert coverage.sites_without([LAUNCH, LOOK], FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER) == (LOOK,)


def test_a_phase_of_commands_without_a_crash_is_reported():
    """A crash of any method's command in the phase is enough."""
    coverage = counted()
    for method, phase in (("drift", "Draining"), ("fleet-plan", "Validated"), ("fleet-plan", "Draining")):
        coverage.count_crash_in_phase(method, phase)
    assert coverage.phases_without_crash() == ("Proposed", "Replacing")
    assert (
        coverage.table().splitlines()[-1] == "commands of fleet-plan at a crash of consolidate: 1 Validated, 1 Draining"
    )


def test_the_table_marks_possible_faults_that_were_not_injected():
    """The table has a row per call and a column per kind; a launch is never stale."""
    coverage = counted((LAUNCH, FaultKind.CRASH_AFTER))
    coverage.count_message_fault("requeue", "drop")
    _, head, launch, _, sweep, look, _, messages = coverage.table().splitlines()
    words = head.split()[1:]
    cells = {word: launch[head.index(word) :][: len(word)].strip() for word in words}
    assert (head.split()[0], launch.split()[:2], sweep.split()[0]) == ("provision", ["ec2", "CreateFleet"], "sweep")
    assert look.startswith("  list Pod ")
    assert (cells["crash-after"], cells["crash-before"], cells["stale"]) == ("1", ".", "")
    assert messages == "messages to requeue: 1 drop"


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_call_site_is_unique_and_can_crash(cloud):
    """The response of a call with an effect can be lost, too."""
    sites = CALL_SITES[cloud]
    assert len(set(sites)) == len(sites)
    assert all({FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER, FaultKind.PAUSE} <= {*kinds_of(site)} for site in sites)
    effects = [site for site in sites if has_effect(site)]
    assert "terminate: evict Pod" in effects
    assert "provision: get Lease" not in effects
