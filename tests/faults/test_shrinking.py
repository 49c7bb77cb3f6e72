"""Shrinking removes every part of a scenario that the violation does not need."""

from journeyman_simulator.faults.call_sites import CALL_SITES
from journeyman_simulator.faults.fault_scenario import (
    CallFault,
    Deploy,
    FaultKind,
    FaultScenario,
    Scale,
    ScenarioPool,
    ScenarioSetup,
    describe_scenario,
)
from journeyman_simulator.faults.scenario_generator import generate_scenario
from journeyman_simulator.faults.shrinking import shrink_scenario

LONG = generate_scenario(4)
CULPRIT = CallFault(site="provision: ec2 CreateFleet", nth=3, kind=FaultKind.CRASH_AFTER, seconds=0)


def breaks(scenario):
    """Return whether the scenario has that crash and at least three pods, which stands for a violation."""
    deaths = [
        f for f in scenario.faults if isinstance(f, CallFault) and f.site == CULPRIT.site and f.kind is CULPRIT.kind
    ]
    return bool(deaths) and any(
        isinstance(operation, Deploy) and operation.replicas >= 3 for operation in scenario.operations
    )


def test_parts_that_are_not_needed_are_removed():
    """Shrinking removes operations, faults and NodePools, and lowers numbers."""
    operations = (
        Deploy(at_seconds=0, app="a", replicas=9),
        *LONG.operations,
        Scale(at_seconds=300, app="a", replicas=0),
    )
    setup = ScenarioSetup(
        pools=(ScenarioPool(name="a", limit_cpus=8), ScenarioPool(name="b", weight=10)), daemons=True, zones=3
    )
    scenario = FaultScenario(
        seed=4, setup=setup, operations=operations, faults=(*LONG.faults, CULPRIT, *generate_scenario(6).faults)
    )
    short = shrink_scenario(scenario, breaks)
    (operation,) = short.operations
    assert (operation.replicas, short.faults) == (3, (CallFault(site=CULPRIT.site, nth=1, kind=CULPRIT.kind),))
    assert short.setup == ScenarioSetup(pools=(ScenarioPool(name="b"),))


def test_shrinking_stops_after_the_given_number_of_runs():
    """It returns the smallest scenario so far."""
    result = []

    def counting(scenario):
        result.append(scenario)
        return breaks(scenario)

    scenario = FaultScenario(
        seed=4, operations=(Deploy(at_seconds=0, app="a", replicas=9), *LONG.operations), faults=(*LONG.faults, CULPRIT)
    )
    short = shrink_scenario(scenario, counting, max_attempts=5)
    assert len(result) == 5
    assert breaks(short)


def test_a_seed_always_gives_the_same_scenario_and_each_site_crashes():
    """It crashes before and after its effect."""
    assert generate_scenario(7) == generate_scenario(7)
    scenarios = [generate_scenario(seed) for seed in range(6 * len(CALL_SITES["aws"]))]
    died = {(f.site, f.kind) for s in scenarios for f in s.faults if isinstance(f, CallFault) and f.nth == 1}
    swept = [s for s in scenarios if s.setup.sweep]
    assert len(swept) < len(scenarios)
    assert len({pair for pair in died if pair[1] in {FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER}}) > 1.8 * len(
        CALL_SITES["aws"]
    )


def test_a_description_shows_what_differs_from_the_defaults():
    """It has a line per operation and fault."""
    scenario = FaultScenario(seed=1, operations=(Deploy(at_seconds=5, app="a", replicas=2),), faults=(CULPRIT,))
    assert describe_scenario(scenario) == [
        "scenario of seed 1:",
        "  default setup",
        "  pool default: defaults",
        "     5 s  Deploy app=a replicas=2",
        "  call 3 of provision: ec2 CreateFleet: crash-after",
    ]
