"""Launches that fail for another reason than capacity: who is skipped, until when, which Events say so, and who serves the pods."""

from datetime import timedelta

import pytest

from journeyman.core.api.labels import NODEPOOL as POOL_LABEL
from journeyman.core.api.launch_faults import FaultScope, LaunchFault
from journeyman.core.api.objects import EC2NODECLASS, NODEPOOL, OFFERING_STATE
from journeyman.core.plan import Step
from journeyman.core.state import BuildFailure
from tests.helpers.builders import CLASS_REF, SMALL, node_class_body, pool_body
from tests.helpers.simulated_cluster import SimulatedCluster


def a_fault(scope, reason, message, remedy, *, name="heavy"):
    return LaunchFault(scope=scope, name=name, reason=reason, message=message, remedy=remedy)


NO_PROFILE = a_fault(
    FaultScope.NODE_CLASS,
    "InstanceProfileNameInvalid",
    "InvalidParameterValue: Value (no-such-profile) for parameter iamInstanceProfile.name is invalid",
    "Correct spec.instanceProfile of the EC2NodeClass",
)
EMPTY_FLEET = a_fault(
    FaultScope.NODE_POOL, "LaunchFailed", "the fleet gave neither instances nor errors", "Read the message"
)
NO_RIGHT = a_fault(FaultScope.NODE_CLASS, "Unauthorized", "no policy allows this operation", "Grant ec2:CreateFleet")
IN_ARREARS = a_fault(FaultScope.ACCOUNT, "AccountInArrears", "the account has an overdue payment", "Pay it", name="")
BAD_KEY = BuildFailure(
    reason="InstanceEndedAtBoot",
    message="Client.InternalError: Client error on launch",
    is_capacity=False,
    scope=FaultScope.NODE_CLASS,
    remedy="Allow the KMS key's use",
)


def a_pool(name, weight=0):
    never = {"disruption": {"consolidateAfter": "Never"}}
    ref = {**CLASS_REF, "name": name}
    spec = {**never, **({"weight": weight} if weight else {}), "template": {"spec": {"nodeClassRef": ref}}}
    return pool_body(name, spec=spec)


@pytest.fixture
def simulation():
    """Return a cluster with the NodePools `heavy` (weight 50) and `light` (weight 1), each with its NodeClass."""
    simulation = SimulatedCluster((SMALL,), a_pool("heavy", 50))
    simulation.cluster.add(node_class_body("heavy"), node_class_body("light"), a_pool("light", 1))
    return simulation


def only_heavy():
    simulation = SimulatedCluster((SMALL,), a_pool("heavy"))
    simulation.cluster.add(node_class_body("heavy"))
    return simulation


def events(simulation, reason):
    return {(e.ref.resource.kind, e.ref.name): e.message for e in simulation.record.events if e.reason == reason}


def launches(simulation, pool):
    return [name for name in simulation.cloud.launches if name.startswith(pool)]


def failures(simulation, name="heavy"):
    return simulation.server.get(OFFERING_STATE, name)["status"].get("launchFailures", [])


def pools_of_nodes(simulation):
    claims = (claim for claim in simulation.claims() if claim.metadata.deletion_timestamp is None)
    return {claim.metadata.labels[POOL_LABEL] for claim in claims}


def message_of_pods(simulation):
    return " ".join(e.message for e in simulation.record.events if e.reason == "FailedScheduling")


@pytest.mark.parametrize("fault", [NO_PROFILE, EMPTY_FLEET], ids=["NodeClass", "NodePool"])
def test_pool_of_the_next_weight_serves_pods_of_a_broken_pool(simulation, fault):
    """The first failure suffices; object at fault, NodePool and pods say why, and the condition does after the second one."""
    simulation.cloud.broken["heavy"] = fault
    simulation.deploy("web", 2, cpu="1.5")
    simulation.until(lambda: simulation.running() == 2, "both pods run", minutes=5)
    for number in range(10):  # every five minutes a new pod asks for the preferred NodePool
        simulation.run_for(minutes=5)
        simulation.deploy(f"more{number}", 1, cpu="1.5")
    simulation.run_for(minutes=3)

    assert simulation.running() == 12
    assert pools_of_nodes(simulation) == {"light"}
    assert len(launches(simulation, "heavy")) <= 8
    recorded = events(simulation, "LaunchFailed")
    assert ("NodePool", "heavy") in recorded
    assert {kind for kind, _ in recorded} >= {"NodePool", "Pod"}
    assert (("EC2NodeClass", "heavy") in recorded) == (fault is NO_PROFILE)
    assert fault.message in recorded["NodePool", "heavy"]
    assert fault.remedy in recorded["NodePool", "heavy"]
    [entry] = failures(simulation)
    assert (entry["scope"], entry["name"], entry["reason"]) == (fault.scope.value, "heavy", fault.reason)
    assert entry["failures"] > 3
    conditions = simulation.server.get(NODEPOOL, "heavy")["status"]["conditions"]
    [health] = [c for c in conditions if c["type"] == "NodeRegistrationHealthy"]
    assert (health["status"], health["reason"]) == ("False", fault.reason)
    assert fault.message in health["message"]
    counted = [o.labels for o in simulation.record.observations if o.name == "journeyman_launch_failures_total"]
    assert {"scope": fault.scope.value, "reason": fault.reason} in counted


def test_after_the_back_off_one_launch_tries_and_then_all_follow():
    """Ten pods that need a node each wait for one launch; after its node has registered, the others are launched."""
    simulation = only_heavy()
    simulation.cloud.broken["heavy"] = NO_PROFILE
    simulation.deploy("web", 10, cpu="1.5")
    simulation.run_for(minutes=4)
    before = len(launches(simulation, "heavy"))
    assert before <= 10 + 3  # all ten at first, at once; then one each time
    assert "InstanceProfileNameInvalid" in message_of_pods(simulation)
    assert "Correct spec.instanceProfile" in message_of_pods(simulation)
    assert "It launches again at " in message_of_pods(simulation)

    simulation.cloud.broken.clear()
    simulation.until(lambda: simulation.running() == 10, "all pods run", minutes=10)

    assert len(launches(simulation, "heavy")) == before + 10
    simulation.run_for(minutes=7)
    simulation.requeue(Step.PROVISION)
    simulation.run_for(minutes=1)
    assert failures(simulation) == []


def test_change_of_the_node_class_ends_the_back_off_at_once():
    """The user mended it; no time is lost."""
    simulation = only_heavy()
    simulation.cloud.broken["heavy"] = NO_PROFILE
    simulation.deploy("web", 1, cpu="1.5")
    simulation.run_for(minutes=30)
    assert simulation.running() == 0

    simulation.cloud.broken.clear()
    simulation.server.patch(EC2NODECLASS, "heavy", {"spec": {"tags": {"team": "a"}}})
    simulation.until(lambda: simulation.running() == 1, "the pod runs", minutes=3)


@pytest.mark.parametrize("fault", [IN_ARREARS, NO_RIGHT], ids=["payment", "right"])
def test_fault_that_is_mended_outside_the_cluster_is_tried_every_five_minutes(fault):
    """No change of an object shows that it is mended: after two hours, pods still get their nodes soon."""
    simulation = only_heavy()
    simulation.cloud.broken["heavy"] = fault
    simulation.deploy("web", 2, cpu="1.5")
    simulation.run_for(minutes=120)
    assert 20 <= len(launches(simulation, "heavy")) <= 30

    simulation.cloud.broken.clear()
    simulation.until(lambda: simulation.running() == 2, "both pods run", minutes=8)


@pytest.mark.parametrize(
    ("after", "reason"),
    [(10, BAD_KEY), (10, None), (80, BAD_KEY), (80, None)],
    ids=["at boot", "at boot, unknown", "after it joined", "after it joined, unknown"],
)
def test_instances_that_end_early_are_not_launched_again_and_again(after, reason):
    """Before and after the node joins; the NodePool reports it, with the cloud's reason if there is one."""
    simulation = only_heavy()
    simulation.cloud.dies["heavy"] = (timedelta(seconds=after), reason)
    simulation.deploy("web", 1, cpu="1.5")
    simulation.run_for(minutes=50)

    assert 2 <= len(launches(simulation, "heavy")) <= 10
    conditions = simulation.server.get(NODEPOOL, "heavy")["status"]["conditions"]
    assert [c["status"] for c in conditions if c["type"] == "NodeRegistrationHealthy"] == ["False"]
    recorded = events(simulation, "LaunchFailed")
    subject = ("EC2NodeClass", "heavy") if reason is BAD_KEY else ("NodePool", "heavy")
    assert (BAD_KEY.message if reason else " ended ") in recorded[subject]


@pytest.mark.parametrize("how", ["its instances end at boot", "its nodes never join"])
def test_pool_whose_nodes_never_register_leaves_the_pods_to_the_next_one(simulation, how):
    """The first node's registration time-out is the NodePool's failure, as none of its nodes ever registered."""
    machines = simulation.cloud.machines

    def only_light():
        ids = {c.status.provider_id for c in simulation.claims() if c.metadata.labels[POOL_LABEL] == "light"}
        return tuple(m for m in machines() if m.provider_id in ids)

    at_boot = how == "its instances end at boot"
    if at_boot:
        simulation.cloud.dies["heavy"] = (timedelta(seconds=10), BAD_KEY)
    else:
        simulation.cloud.machines = only_light
    simulation.deploy("web", 2, cpu="1.5")
    simulation.until(lambda: simulation.running() == 2, "both pods run", minutes=6 if at_boot else 20)

    assert pools_of_nodes(simulation) == {"light"}
    why = BAD_KEY.message if at_boot else "Not registered after 15 min"
    assert why in events(simulation, "LaunchFailed")["NodePool", "heavy"]


def test_one_failed_registration_does_not_stop_a_healthy_pool():
    """Nodes of the NodePool registered before: it takes two failures of the last four."""
    simulation = only_heavy()
    simulation.deploy("web", 1, cpu="1.5")
    simulation.until(lambda: simulation.running() == 1, "the pod runs")
    simulation.cloud.dies["heavy"] = (timedelta(seconds=10), None)
    simulation.deploy("more", 1, cpu="1.5")
    simulation.until(lambda: len(launches(simulation, "heavy")) == 2, "the second launch", minutes=2)
    simulation.cloud.dies.clear()
    simulation.until(lambda: simulation.running() == 2, "both pods run", minutes=6)

    assert failures(simulation) == []
