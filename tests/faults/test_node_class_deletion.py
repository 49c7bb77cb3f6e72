"""An EC2NodeClass and its cloud resources are deleted last, whatever call fails or crashes on the way."""

import pytest

from journeyman.core.api.objects import EC2NODECLASS, NODECLAIM
from journeyman_simulator.faults import fault_scenario
from journeyman_simulator.faults.fault_scenario import CallFault, FaultKind, MessageFault, MessageFaultKind
from journeyman_simulator.faults.invariants.checkers import InvariantChecker
from journeyman_simulator.faults.scenario_run import run_scenario

ACTS = (
    fault_scenario.Deploy(at_seconds=0, app="a", replicas=6, cpu_millicores=900),
    fault_scenario.DeleteNodeClass(at_seconds=90),
    fault_scenario.DeletePool(at_seconds=100, pool=0),
)
CALLS = (
    "patch EC2NodeClass", "iam ListInstanceProfiles", "iam RemoveRoleFromInstanceProfile", "iam DeleteInstanceProfile",
    "ec2 DeleteLaunchTemplate",
)  # fmt: skip


def observe(view):
    """Return (NodeClasses, NodeClaims, running instances, instance profiles, launch templates)."""
    account = view.cloud.account
    classes, claims = (len(view.server.list(kind).items) for kind in (EC2NODECLASS, NODECLAIM))
    templates = account.client("ec2").describe_launch_templates()["LaunchTemplates"]
    running = sum(instance.runs for instance in view.instances())
    return (classes, claims, running, len(account.identity.profiles), len(templates))


def end_of(*faults):
    """Return the objects left at rest, and the numbers of launch templates and profiles while the pods ran."""
    seen = []

    class Looks(InvariantChecker):
        name = "looks"

        def check_at_rest(self):
            seen.append(observe(self.view))
            return ()

    scenario = fault_scenario.FaultScenario(
        seed=1, setup=fault_scenario.ScenarioSetup(), operations=ACTS, faults=faults
    )
    result = run_scenario(scenario, checkers=[Looks])
    assert result.violations == ()
    return seen[0], result.coverage


@pytest.mark.parametrize(
    "kind", [FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER, FaultKind.FAIL_AFTER, FaultKind.FAIL_BEFORE]
)
@pytest.mark.parametrize("call", CALLS)
def test_nothing_remains_after_a_fault_at_any_call(call, kind):
    """The finalizer is removed last, so the next run deletes the rest."""
    site = f"provision: {call}"
    left, coverage = end_of(CallFault(site=site, nth=1, kind=kind))

    assert left == (0, 0, 0, 0, 0)
    assert site in coverage.calls


def test_the_sweep_finds_a_deleted_nodeclass():
    """It does so although every message for provision is lost for a while."""
    lost = (MessageFault(queue="provision", nth=nth, kind=MessageFaultKind.DROP) for nth in range(4, 12))

    assert end_of(*lost)[0] == (0, 0, 0, 0, 0)
