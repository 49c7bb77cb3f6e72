"""No NodeClaim ever has two instances, after any lost answer and with any delay of EC2's lists."""

from collections import Counter

import pytest

from journeyman_simulator.faults.fault_scenario import CallFault, Deploy, FaultKind, FaultScenario, OutOfStock
from journeyman_simulator.faults.invariants.checkers import InvariantChecker
from journeyman_simulator.faults.scenario_run import run_scenario

FLEET, LISTING = "provision: ec2 CreateFleet", "provision: ec2 DescribeInstances"
SIX = Deploy(at_seconds=0, app="a", replicas=6, cpu_millicores=900)
CHEAPEST_IS_GONE = OutOfStock(at_seconds=0, type=0, zone=-1, capacity_type="spot", seconds=120)


def instances_by_claim(*faults):
    """Run a scenario without the cheapest offering; return how many instances each NodeClaim ever had."""
    seen = []

    class AtRest(InvariantChecker):
        name = "at rest"

        def check_at_rest(self):
            seen.append(Counter(instance.claim for instance in self.view.instances()))
            return ()

    assert (
        run_scenario(
            FaultScenario(seed=1, operations=(CHEAPEST_IS_GONE, SIX), faults=faults), checkers=[AtRest]
        ).violations
        == ()
    )
    return seen[-1]


@pytest.mark.parametrize("kind", [FaultKind.FAIL_AFTER, FaultKind.TIMEOUT_AFTER, FaultKind.CRASH_AFTER])
def test_a_lost_answer_and_a_stale_list_launch_no_second_instance(kind):
    """The next attempt requests other offerings, so EC2 compares the client token."""
    late = (CallFault(site=LISTING, nth=nth, kind=FaultKind.STALE, seconds=20) for nth in range(2, 12))

    assert set(instances_by_claim(CallFault(site=FLEET, nth=1, kind=kind, seconds=1), *late).values()) == {1}


def test_a_throttled_retry_does_not_answer_for_the_first_launch():
    """The retry's error does not prove that the first launch failed."""
    throttled = (CallFault(site=FLEET, nth=nth, kind=FaultKind.THROTTLE) for nth in (4, 5))
    late = (CallFault(site=LISTING, nth=nth, kind=FaultKind.STALE, seconds=20) for nth in range(2, 14))
    lost = CallFault(site=FLEET, nth=1, kind=FaultKind.FAIL_AFTER)

    assert set(instances_by_claim(lost, *throttled, *late).values()) == {1}
