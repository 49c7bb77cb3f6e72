"""What people and the cloud do to us behind our back, each alone: the end is the same as without, and an Event says it.

Six pods need three nodes. The act comes while they run, or while their nodes are being launched.
"""

import pytest

from journeyman.core.api.objects import NODE, NODECLAIM, POD, Resource
from journeyman_simulator.faults import fault_scenario as told
from journeyman_simulator.faults.invariants.checkers import Rule
from journeyman_simulator.faults.scenario_run import tell

RAW_EVENT: Resource = Resource(group="", version="v1", kind="Event", plural="events", namespaced=True, type=dict)
LATER, LAUNCHING = 90, 3  # seconds: all pods run; instances are on their way
ON_DEMAND = told.Setting(pools=(told.Pool(name="default", capacity_types=("on-demand",)),))
SIX = told.Deploy(at_seconds=0, app="a", replicas=6, cpu_millicores=900)


def look(scene):
    """((Running pods, nodes with claim and instance, instances that ever were), kind and reason of every Event)."""
    server, instances = scene.server, scene.instances()
    running = sum(pod.status.phase == "Running" for pod in server.list(POD).items)
    claims, nodes = (len(server.list(resource).items) for resource in (NODECLAIM, NODE))
    assert claims == nodes == sum(instance.runs for instance in instances)
    said = {(e["involvedObject"]["kind"], e["reason"]) for e in server.list(RAW_EVENT).items}
    return (running, nodes, len(instances)), said


def end_of(*acts, setting=None):
    """Tell the story; what is seen when it has come to rest."""
    seen = []

    class AtRest(Rule):
        name = "at rest"

        def at_rest(self):
            seen.append(look(self.scene))
            return ()

    ordered = tuple(sorted((*acts, SIX), key=lambda act: act.at_seconds))
    assert tell(told.Story(seed=1, setting=setting or told.Setting(), acts=ordered), rules=[AtRest]).broken == ()
    return seen[-1]


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (told.ConsoleTerminate(at_seconds=LATER, node=0), ("Node", "TerminatingOnInterruption")),
        (told.StopInstance(at_seconds=LATER, node=0), ("Node", "InstanceStopping")),
        (told.Interrupt(at_seconds=LATER, node=0), ("Node", "SpotInterrupted")),
        (told.Maintenance(at_seconds=LATER, node=0), ("Node", "InstanceUnhealthy")),
        (told.DeleteNode(at_seconds=LATER, node=0), ("NodeClaim", "NodeDeleted")),
        (told.DeleteClaim(at_seconds=LATER, claim=0), ("NodeClaim", "Finalized")),
        (told.DeleteClaim(at_seconds=LAUNCHING, claim=0), ("NodeClaim", "Finalized")),
        (told.StripFinalizer(at_seconds=LATER, claim=0), ("Node", "NodeClaimMissing")),
        (told.NeverJoins(at_seconds=0), ("NodeClaim", "RegistrationTimedOut")),
        (
            told.EditClaim(at_seconds=LAUNCHING, claim=0, change="nonsense-provider-id"),
            ("NodeClaim", "InstanceGone"),
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, told.Act) else value[1],
)
def test_what_is_lost_is_replaced_by_one_node(act, said):
    """All pods run again on three nodes of three claims; no instance is left over, and only one more was launched."""
    numbers, events = end_of(act, setting=ON_DEMAND if isinstance(act, told.StopInstance) else None)

    assert numbers == (6, 3, 4)
    assert said in events


@pytest.mark.parametrize(
    "act",
    [
        *(
            told.EditClaim(at_seconds=LATER, claim=0, change=change)
            for change in ("drop-class-label", "drop-hash", "do-not-disrupt", "foreign-label", "nonsense-end")
        ),
        *(told.EditNode(at_seconds=LATER, node=0, change=change) for change in ("drop-taints", "mark")),
        told.JumpClock(at_seconds=LAUNCHING, seconds=120),
        told.JumpClock(at_seconds=LATER, seconds=600),
        told.JumpClock(at_seconds=LATER, seconds=-600),
        told.StopKubelet(at_seconds=LATER, node=0, seconds=60),
        told.Rebalance(at_seconds=LATER, node=0),
    ],
    ids=lambda act: f"{type(act).__name__}-{getattr(act, 'change', act.at_seconds)}",
)
def test_what_hurts_nobody_changes_nothing(act):
    """No node goes, none is launched for it."""
    assert end_of(act)[0] == (6, 3, 3)


@pytest.mark.parametrize("seconds", [LAUNCHING, LATER])
@pytest.mark.parametrize("change", ["say-registered", "say-initialized"])
def test_a_claim_that_is_said_to_have_come_further_gets_there(change, seconds):
    """Its node is opened to pods all the same."""
    assert end_of(told.EditClaim(at_seconds=seconds, claim=0, change=change))[0][:2] == (6, 3)


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
    numbers, events = end_of(told.EditClaim(at_seconds=LATER, claim=0, change=change))

    assert numbers == (6, 3, 3)
    assert ("NodeClaim", "Restored") in events


@pytest.mark.parametrize("change", ["drop-finalizers", "drop-owner", "drop-labels", "close"])
def test_what_is_taken_off_a_node_is_put_back(change):
    """No node goes for it, and an Event says so."""
    numbers, events = end_of(told.EditNode(at_seconds=LATER, node=0, change=change))

    assert numbers == (6, 3, 3)
    assert ("Node", "Restored") in events


def test_a_pool_that_is_deleted_in_mid_launch_takes_its_instances_along():
    """The pods wait, and say so."""
    numbers, events = end_of(told.DeletePool(at_seconds=LAUNCHING, pool=0))

    assert numbers == (0, 0, 3)
    assert {("Pod", "FailedScheduling"), ("NodeClaim", "NodePoolDeleted"), ("NodeClaim", "Finalized")} <= events


def test_a_node_class_that_becomes_invalid_costs_no_node():
    """Those that run stay; it says so itself, and so does its NodePool."""
    numbers, events = end_of(told.BreakNodeClass(at_seconds=LATER))

    assert numbers == (6, 3, 3)
    assert {("EC2NodeClass", "SubnetsReady"), ("NodePool", "NodeClassReady")} <= events


def test_a_clock_that_jumps_over_every_time_out_costs_what_was_on_its_way_and_is_told():
    """As if their nodes had not joined in all that time: given up, and launched once more."""
    numbers, events = end_of(told.JumpClock(at_seconds=LAUNCHING, seconds=1200))

    assert numbers == (6, 3, 6)
    assert ("NodeClaim", "RegistrationTimedOut") in events


def test_a_node_class_that_is_broken_from_the_start_launches_as_many_once_it_is_mended():
    """Nothing is launched in vain meanwhile."""
    numbers, _ = end_of(told.BreakNodeClass(at_seconds=0), told.MendNodeClass(at_seconds=LATER))

    assert numbers == (6, 3, 3)
