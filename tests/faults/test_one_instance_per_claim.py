"""No NodeClaim ever has two instances, after any lost answer and with any delay of the cloud's lists."""

from collections import Counter

import pytest

from journeyman_simulator.faults.fault_scenario import (
    CallFault,
    DeleteClaim,
    Deploy,
    FaultKind,
    FaultScenario,
    OutOfStock,
    ScenarioSetup,
)
from journeyman_simulator.faults.invariants import ALL_CHECKERS
from journeyman_simulator.faults.invariants.checkers import InvariantChecker
from journeyman_simulator.faults.scenario_clouds import CLOUDS
from journeyman_simulator.faults.scenario_run import run_scenario

SIX = Deploy(at_seconds=0, app="a", replicas=6, cpu_millicores=900)
CHEAPEST_IS_GONE = OutOfStock(at_seconds=0, type=0, zone=-1, capacity_type="spot", seconds=120)


EACH_CLOUD = pytest.mark.parametrize("cloud", CLOUDS.values(), ids=lambda cloud: cloud.name)


def launches(cloud, kind, *ordinals, seconds=0.0):
    return [CallFault(site=f"provision: {cloud.launch}", nth=nth, kind=kind, seconds=seconds) for nth in ordinals]


def stale_lists(cloud, *ordinals):
    site = f"provision: {cloud.describe}"
    return [CallFault(site=site, nth=nth, kind=FaultKind.STALE, seconds=20) for nth in ordinals]


def instances_by_claim(cloud, *faults):
    """Run a scenario without the cheapest offering; return how many instances each NodeClaim ever had."""
    seen = []

    class AtRest(InvariantChecker):
        name = "at rest"

        def check_at_rest(self):
            seen.append(Counter(instance.claim for instance in self.view.instances()))
            return ()

    setup = ScenarioSetup(cloud=cloud.name)
    scenario = FaultScenario(seed=1, setup=setup, operations=(CHEAPEST_IS_GONE, SIX), faults=faults)
    assert run_scenario(scenario, checkers=[AtRest]).violations == ()
    return seen[-1]


@EACH_CLOUD
@pytest.mark.parametrize("kind", [FaultKind.FAIL_AFTER, FaultKind.TIMEOUT_AFTER, FaultKind.CRASH_AFTER])
def test_a_lost_answer_and_a_stale_list_launch_no_second_instance(cloud, kind):
    """The next attempt requests other offerings, so the cloud compares the client token; without one it waits for the list."""
    lost = launches(cloud, kind, 1, seconds=1)

    assert set(instances_by_claim(cloud, *lost, *stale_lists(cloud, *range(2, 12))).values()) == {1}


@EACH_CLOUD
def test_a_throttled_retry_does_not_answer_for_the_first_launch(cloud):
    """The retry's error does not prove that the first launch failed."""
    lost = launches(cloud, FaultKind.FAIL_AFTER, 1)
    throttled = launches(cloud, FaultKind.THROTTLE, 4, 5)

    assert set(instances_by_claim(cloud, *lost, *throttled, *stale_lists(cloud, *range(2, 14))).values()) == {1}


@pytest.mark.parametrize("deleted_at", [100, 110, 125])
def test_a_second_instance_of_a_deleted_nodeclaim_is_terminated_with_it(deleted_at):
    """Without a client token a run that was paused before its launch launches one; it is not adopted as if it were lost."""
    setup = ScenarioSetup(cloud="huawei", thaw=True)
    two = Deploy(at_seconds=0, app="a", replicas=2, cpu_millicores=900)
    paused = CallFault(site="provision: cce CreateNode", nth=1, kind=FaultKind.PAUSE, seconds=95)
    deletion = DeleteClaim(at_seconds=deleted_at, claim=0)
    scenario = FaultScenario(seed=1, setup=setup, operations=(two, deletion), faults=(paused,))

    history = run_scenario(scenario, checkers=ALL_CHECKERS)

    assert history.violations == ()
    whats = [entry.what for entry in history.history]
    assert sum(what.startswith("launched") for what in whats) == 3
    assert not [what for what in whats if "NodeClaimAdopted" in what]
