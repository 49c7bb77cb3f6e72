"""What people and the cloud do to us behind our back, each alone: the end is the same as without, and an Event says it.

Six pods need three nodes. The act comes while they run, or while their nodes are being launched.
"""

import pytest

from journeyman.core.api.objects import NODE, NODECLAIM, POD, Resource
from journeyman_simulator.faults import fault_scenario
from journeyman_simulator.faults.invariants.checkers import InvariantChecker
from journeyman_simulator.faults.scenario_run import run_scenario

RAW_EVENT: Resource = Resource(group="", version="v1", kind="Event", plural="events", namespaced=True, type=dict)
LATER, LAUNCHING = 90, 3  # seconds: all pods run; instances are on their way
ON_DEMAND = fault_scenario.ScenarioSetup(
    pools=(fault_scenario.ScenarioPool(name="default", capacity_types=("on-demand",)),)
)
SIX = fault_scenario.Deploy(at_seconds=0, app="a", replicas=6, cpu_millicores=900)


def look(view):
    """((Running pods, nodes with claim and instance, instances that ever were), kind and reason of every Event)."""
    server, instances = view.server, view.instances()
    running = sum(pod.status.phase == "Running" for pod in server.list(POD).items)
    claims, nodes = (len(server.list(resource).items) for resource in (NODECLAIM, NODE))
    assert claims == nodes == sum(instance.runs for instance in instances)
    said = {(e["involvedObject"]["kind"], e["reason"]) for e in server.list(RAW_EVENT).items}
    return (running, nodes, len(instances)), said


def end_of(*operations, setup=None):
    """Tell the scenario; what is seen when it has come to rest."""
    seen = []

    class AtRest(InvariantChecker):
        name = "at rest"

        def check_at_rest(self):
            seen.append(look(self.view))
            return ()

    ordered = tuple(sorted((*operations, SIX), key=lambda operation: operation.at_seconds))
    assert (
        run_scenario(
            fault_scenario.FaultScenario(seed=1, setup=setup or fault_scenario.ScenarioSetup(), operations=ordered),
            checkers=[AtRest],
        ).violations
        == ()
    )
    return seen[-1]


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        (fault_scenario.ConsoleTerminate(at_seconds=LATER, node=0), ("Node", "TerminatingOnInterruption")),
        (fault_scenario.StopInstance(at_seconds=LATER, node=0), ("Node", "InstanceStopping")),
        (fault_scenario.Interrupt(at_seconds=LATER, node=0), ("Node", "SpotInterrupted")),
        (fault_scenario.Maintenance(at_seconds=LATER, node=0), ("Node", "InstanceUnhealthy")),
        (fault_scenario.DeleteNode(at_seconds=LATER, node=0), ("NodeClaim", "NodeDeleted")),
        (fault_scenario.DeleteClaim(at_seconds=LATER, claim=0), ("NodeClaim", "Finalized")),
        (fault_scenario.DeleteClaim(at_seconds=LAUNCHING, claim=0), ("NodeClaim", "Finalized")),
        (fault_scenario.StripFinalizer(at_seconds=LATER, claim=0), ("Node", "NodeClaimNotFound")),
        (fault_scenario.NeverJoins(at_seconds=0), ("NodeClaim", "RegistrationTimedOut")),
        (
            fault_scenario.EditClaim(at_seconds=LAUNCHING, claim=0, change="nonsense-provider-id"),
            ("NodeClaim", "InstanceNotFound"),
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, fault_scenario.Operation) else value[1],
)
def test_what_is_lost_is_replaced_by_one_node(operation, said):
    """All pods run again on three nodes of three claims; no instance is left over, and only one more was launched."""
    numbers, events = end_of(operation, setup=ON_DEMAND if isinstance(operation, fault_scenario.StopInstance) else None)

    assert numbers == (6, 3, 4)
    assert said in events


@pytest.mark.parametrize(
    "operation",
    [
        *(
            fault_scenario.EditClaim(at_seconds=LATER, claim=0, change=change)
            for change in ("drop-class-label", "drop-hash", "do-not-disrupt", "foreign-label", "nonsense-end")
        ),
        *(fault_scenario.EditNode(at_seconds=LATER, node=0, change=change) for change in ("drop-taints", "mark")),
        fault_scenario.JumpClock(at_seconds=LAUNCHING, seconds=120),
        fault_scenario.JumpClock(at_seconds=LATER, seconds=600),
        fault_scenario.JumpClock(at_seconds=LATER, seconds=-600),
        fault_scenario.StopKubelet(at_seconds=LATER, node=0, seconds=60),
        fault_scenario.Rebalance(at_seconds=LATER, node=0),
    ],
    ids=lambda operation: f"{type(operation).__name__}-{getattr(operation, 'change', operation.at_seconds)}",
)
def test_what_hurts_nobody_changes_nothing(operation):
    """No node goes, none is launched for it."""
    assert end_of(operation)[0] == (6, 3, 3)


@pytest.mark.parametrize("seconds", [LAUNCHING, LATER])
@pytest.mark.parametrize("change", ["say-registered", "say-initialized"])
def test_a_claim_that_is_said_to_have_come_further_gets_there(change, seconds):
    """Its node is opened to pods all the same."""
    assert end_of(fault_scenario.EditClaim(at_seconds=seconds, claim=0, change=change))[0][:2] == (6, 3)


@pytest.mark.parametrize(
    "change",
    [
        "drop-finalizers",
        "drop-provider-id",
        "drop-pool-label",
        "drop-conditions",
        "drop-status",
        "nonsense-provider-id",
    ],
)
def test_what_is_taken_off_a_claim_is_put_back(change):
    """No node goes for it, and an Event says so."""
    numbers, events = end_of(fault_scenario.EditClaim(at_seconds=LATER, claim=0, change=change))

    assert numbers == (6, 3, 3)
    assert ("NodeClaim", "MetadataRestored") in events


@pytest.mark.parametrize("change", ["drop-finalizers", "drop-owner", "drop-labels", "close"])
def test_what_is_taken_off_a_node_is_put_back(change):
    """No node goes for it, and an Event says so."""
    numbers, events = end_of(fault_scenario.EditNode(at_seconds=LATER, node=0, change=change))

    assert numbers == (6, 3, 3)
    assert ("Node", "MetadataRestored") in events


def test_a_pool_that_is_deleted_in_mid_launch_takes_its_instances_along():
    """The pods wait, and say so."""
    numbers, events = end_of(fault_scenario.DeletePool(at_seconds=LAUNCHING, pool=0))

    assert numbers == (0, 0, 3)
    assert {("Pod", "FailedScheduling"), ("NodeClaim", "NodePoolDeleted"), ("NodeClaim", "Finalized")} <= events


def test_a_node_class_that_becomes_invalid_costs_no_node():
    """Those that run stay; it says so itself, and so does its NodePool."""
    numbers, events = end_of(fault_scenario.BreakNodeClass(at_seconds=LATER))

    assert numbers == (6, 3, 3)
    assert {("EC2NodeClass", "SubnetsReady"), ("NodePool", "NodeClassReady")} <= events


def test_a_clock_that_jumps_over_every_time_out_costs_what_was_on_its_way_and_is_told():
    """As if their nodes had not joined in all that time: given up, and launched once more."""
    numbers, events = end_of(fault_scenario.JumpClock(at_seconds=LAUNCHING, seconds=1200))

    assert numbers == (6, 3, 6)
    assert ("NodeClaim", "RegistrationTimedOut") in events


def test_a_node_class_that_is_broken_from_the_start_launches_as_many_once_it_is_mended():
    """Nothing is launched in vain meanwhile."""
    numbers, _ = end_of(fault_scenario.BreakNodeClass(at_seconds=0), fault_scenario.MendNodeClass(at_seconds=LATER))

    assert numbers == (6, 3, 3)
