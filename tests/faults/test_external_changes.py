"""Edits, deletions and failures outside of Journeyman, one at a time: the pods run in the end, and an Event reports each."""

import pytest
from msgspec.structs import replace

from journeyman.core.api.objects import NODE, NODECLAIM, POD, Resource
from journeyman_simulator.faults import fault_scenario
from journeyman_simulator.faults.invariants.checkers import InvariantChecker
from journeyman_simulator.faults.scenario_clouds import CLOUDS
from journeyman_simulator.faults.scenario_run import run_scenario

RAW_EVENT: Resource = Resource(group="", version="v1", kind="Event", plural="events", namespaced=True, type=dict)
LATER, LAUNCHING = 90, 3  # seconds: at the first, all pods run; at the second, instances are launching
SETUPS = tuple(fault_scenario.ScenarioSetup(cloud=cloud.name, types=cloud.large_types) for cloud in CLOUDS.values())
ON_DEMAND = (fault_scenario.ScenarioPool(name="default", capacity_types=("on-demand",)),)
SIX = fault_scenario.Deploy(at_seconds=0, app="a", replicas=6, cpu_millicores=900)


def observe(view):
    """Return (running pods, nodes with NodeClaim and instance, launched instances) and (kind, reason) of every Event."""
    server, instances = view.server, view.instances()
    running = sum(pod.status.phase == "Running" for pod in server.list(POD).items)
    claims, nodes = (len(server.list(resource).items) for resource in (NODECLAIM, NODE))
    assert claims == nodes == sum(instance.runs for instance in instances)
    said = {(e["involvedObject"]["kind"], e["reason"]) for e in server.list(RAW_EVENT).items}
    return (running, nodes, len(instances)), said


def end_of(*operations, setup=None):
    """Run the scenario; return what `observe` returns at rest."""
    seen = []

    class AtRest(InvariantChecker):
        name = "at rest"

        def check_at_rest(self):
            seen.append(observe(self.view))
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
        (fault_scenario.NeverJoins(at_seconds=0), ("NodeClaim", "RegistrationTimedOut")),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, fault_scenario.Operation) else value[1],
)
@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.cloud)
def test_a_lost_node_or_claim_is_replaced_once(setup, operation, said):
    """All pods run again on three nodes of three NodeClaims; only one more instance was launched."""
    if isinstance(operation, fault_scenario.StopInstance):
        setup = replace(setup, pools=ON_DEMAND)
    numbers, events = end_of(operation, setup=setup)

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
def test_harmless_changes_replace_no_node(operation):
    """No node is deleted or launched."""
    assert end_of(operation)[0] == (6, 3, 3)


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.cloud)
def test_a_claim_deleted_without_its_finalizer_is_created_again(setup):
    """Its node keeps its pods, and nothing is launched."""
    numbers, events = end_of(fault_scenario.StripFinalizer(at_seconds=LATER, claim=0), setup=setup)

    assert numbers == (6, 3, 3)
    assert ("NodeClaim", "NodeClaimAdopted") in events


@pytest.mark.parametrize("seconds", [LAUNCHING, LATER])
@pytest.mark.parametrize("change", ["say-registered", "say-initialized"])
def test_a_claim_with_conditions_set_by_hand_still_initializes(change, seconds):
    """Its node's taints are removed, too."""
    assert end_of(fault_scenario.EditClaim(at_seconds=seconds, claim=0, change=change))[0][:2] == (6, 3)


@pytest.mark.parametrize(
    ("change", "at_seconds"),
    [
        ("drop-finalizers", LATER),
        ("drop-provider-id", LATER),
        ("drop-pool-label", LATER),
        ("drop-conditions", LATER),
        ("drop-status", LATER),
        ("nonsense-provider-id", LATER),
        ("nonsense-provider-id", LAUNCHING),
    ],
)
def test_removed_claim_metadata_is_restored(change, at_seconds):
    """No node is replaced, and an Event reports it."""
    numbers, events = end_of(fault_scenario.EditClaim(at_seconds=at_seconds, claim=0, change=change))

    assert numbers == (6, 3, 3)
    assert ("NodeClaim", "MetadataRestored") in events


@pytest.mark.parametrize("change", ["drop-finalizers", "drop-owner", "drop-labels", "close"])
def test_removed_node_metadata_is_restored(change):
    """No node is replaced, and an Event reports it."""
    numbers, events = end_of(fault_scenario.EditNode(at_seconds=LATER, node=0, change=change))

    assert numbers == (6, 3, 3)
    assert ("Node", "MetadataRestored") in events


def test_a_node_that_no_claim_names_any_more_is_restored():
    """Only the tags of its instance connect the two; its pods keep running."""
    numbers, events = end_of(
        fault_scenario.EditNode(at_seconds=LATER, node=0, change="drop-owner"),
        fault_scenario.EditClaim(at_seconds=LATER, claim=0, change="nonsense-provider-id"),
    )

    assert numbers == (6, 3, 3)
    assert {("Node", "MetadataRestored"), ("NodeClaim", "MetadataRestored")} <= events


def test_a_nodepool_deleted_during_a_launch_takes_its_instances_along():
    """The pods are pending, with Events."""
    numbers, events = end_of(fault_scenario.DeletePool(at_seconds=LAUNCHING, pool=0))

    assert numbers == (0, 0, 3)
    assert {("Pod", "FailedScheduling"), ("NodeClaim", "NodePoolDeleted"), ("NodeClaim", "Finalized")} <= events


@pytest.mark.parametrize(
    ("setup", "reason"),
    [*zip(SETUPS, ("SubnetsReady", "VSwitchesReady", "SubnetsReady"), strict=True)],
    ids=[setup.cloud for setup in SETUPS],
)
def test_an_invalid_nodeclass_keeps_its_running_nodes(setup, reason):
    """Conditions of the NodeClass and the NodePool report it."""
    numbers, events = end_of(fault_scenario.BreakNodeClass(at_seconds=LATER), setup=setup)

    assert numbers == (6, 3, 3)
    assert {(CLOUDS[setup.cloud].node_class.kind, reason), ("NodePool", "NodeClassReady")} <= events


def test_a_clock_jump_past_the_registration_timeout_relaunches_nodes():
    """The nodes count as not registered in that time."""
    numbers, events = end_of(fault_scenario.JumpClock(at_seconds=LAUNCHING, seconds=1200))

    assert numbers == (6, 3, 6)
    assert ("NodeClaim", "RegistrationTimedOut") in events


def test_a_nodeclass_repaired_later_launches_as_many_nodes():
    """No node is launched before."""
    numbers, _ = end_of(fault_scenario.BreakNodeClass(at_seconds=0), fault_scenario.MendNodeClass(at_seconds=LATER))

    assert numbers == (6, 3, 3)
