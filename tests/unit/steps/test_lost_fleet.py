"""NodeClaims that were wiped, a restored API server, and another cluster behind the same name."""

import pytest

from journeyman.core.api import labels
from journeyman.core.api.objects import FLEET_GUARD, NAMESPACE, NODE, NODECLAIM, NODEPOOL, POD, is_true
from journeyman.core.plan import Step
from tests.helpers.builders import SMALL, pool_body
from tests.helpers.simulated_cluster import SimulatedCluster

FLEET = 6


def a_fleet(replicas=FLEET):
    """Return a cluster with a pod on each of its nodes, without consolidation."""
    simulation = SimulatedCluster((SMALL,), pool_body(spec={"disruption": {"consolidateAfter": "Never"}}))
    if not [n for n in simulation.server.list(NAMESPACE).items if n.metadata.name == "kube-system"]:
        simulation.server.create(
            NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}}
        )
    simulation.deploy("web", replicas, cpu="1.5")
    simulation.until(lambda: len(simulation.initialized()) == replicas, "all nodes are initialized")
    simulation.until(lambda: simulation.running() == replicas, "all pods run")
    return simulation


@pytest.fixture(name="simulation")
def _simulation():
    return a_fleet()


def wipe(simulation, resource):
    simulation.server.wipe(resource)
    simulation.requeue(Step.TERMINATE)


def pods(simulation):
    return {p.metadata.uid for p in simulation.server.list(POD).items}


def instances(simulation):
    return {i.provider_id for i in simulation.cloud.list() if i.state == "running"}


def events(simulation, reason):
    return [e for e in simulation.cluster.record.events if e.reason == reason]


def test_wiped_nodeclaims_are_adopted_again_and_no_pod_is_evicted(simulation):
    """Kubernetes deletes their Nodes with them, which our finalizer keeps; nothing is launched, and nothing has drifted.

    An adopted NodeClaim is deleted like any other: its node is drained first, and its instance is terminated.
    """
    before = pods(simulation), instances(simulation), {c.metadata.name for c in simulation.claims()}
    launches = len(simulation.cloud.launches)
    wipe(simulation, NODECLAIM)

    simulation.run_for(minutes=90)

    assert (pods(simulation), instances(simulation), {c.metadata.name for c in simulation.claims()}) == before
    assert len(simulation.initialized()) == FLEET
    assert len(simulation.cloud.launches) == launches
    assert not [c for c in simulation.claims() if is_true(c.status.conditions, "Drifted")]
    adopted = {e.ref.name for e in events(simulation, "NodeClaimAdopted") if e.ref.resource.kind == "NodeClaim"}
    assert len(adopted) == FLEET

    claim = simulation.initialized()[0]
    simulation.server.delete(NODECLAIM, claim.metadata.name)
    simulation.requeue(Step.TERMINATE)
    simulation.until(lambda: claim.status.provider_id not in instances(simulation), "its instance is gone")
    simulation.until(lambda: simulation.running() == FLEET, "its pod runs elsewhere")
    assert claim.status.node_name not in {n.metadata.name for n in simulation.server.list(NODE).items}


def test_without_their_nodepool_wiped_nodeclaims_are_removed_two_in_an_hour(simulation):
    """Their instances are drained; the others are kept, and an Event, a metric and the FleetGuard say so."""
    wipe(simulation, NODEPOOL)
    wipe(simulation, NODECLAIM)

    simulation.run_for(minutes=50)

    assert len(instances(simulation)) == FLEET - 2
    assert events(simulation, "RemovalsHeld")
    held = [o.value for o in simulation.cluster.record.observations if o.name == "journeyman_lost_objects_held"]
    assert max(held) == FLEET - 2
    [guard] = simulation.server.list(FLEET_GUARD).items
    assert len([entry for entry in guard["status"]["lost"] if entry.get("removedAt")]) == 2
    assert guard["status"]["heldSince"]

    simulation.run_for(minutes=60)

    assert len(instances(simulation)) == FLEET - 4


def test_a_held_node_goes_once_the_cloud_has_ended_its_instance(simulation):
    """The brake has nothing left to keep, and its pods wait for the Node to go."""
    wipe(simulation, NODEPOOL)
    wipe(simulation, NODECLAIM)
    simulation.run_for(minutes=5)
    lost = min(instances(simulation))
    simulation.cloud.lose(lost)
    simulation.requeue(Step.TERMINATE)

    simulation.run_for(minutes=5)

    assert lost not in {n.spec.provider_id for n in simulation.server.list(NODE).items}
    assert len(instances(simulation)) == FLEET - 3


def test_an_api_server_restored_from_a_backup_keeps_the_instances_launched_since(simulation):
    """Their kubelets register again, and their NodeClaims are created again, one by one."""
    old = simulation.server.backup()
    simulation.scale("web", FLEET + 4)
    simulation.requeue(Step.PROVISION)
    simulation.until(lambda: len(simulation.initialized()) == FLEET + 4, "four more nodes")
    running = instances(simulation)

    simulation.server.restore(old)
    simulation.requeue(Step.TERMINATE)
    simulation.run_for(minutes=10)

    assert instances(simulation) >= running
    assert {c.status.provider_id for c in simulation.initialized()} >= running


def test_instances_of_another_cluster_of_the_same_name_are_never_touched(simulation):
    """The entry in the register points to a cluster that was built again; its kube-system has another UID."""
    uid = simulation.server.get(NAMESPACE, "kube-system").metadata.uid
    assert {i.tags.get(labels.CLUSTER_UID_TAG) for i in simulation.cloud.list()} == {uid}
    running = instances(simulation)
    for resource in (NODECLAIM, NODE):
        wipe(simulation, resource)
    rebuild(simulation)

    simulation.run_for(minutes=120)

    assert instances(simulation) >= running
    assert not set().union(*simulation.cloud.deletions) & running
    assert events(simulation, "ForeignInstances")


def test_a_nodeclaim_copied_from_another_cluster_does_not_terminate_its_instance(simulation):
    """A backup of one cluster was restored in another one of the same name, and its NodeClaims are deleted there."""
    running = instances(simulation)
    rebuild(simulation)
    for claim in simulation.claims():
        simulation.server.delete(NODECLAIM, claim.metadata.name)
    simulation.requeue(Step.TERMINATE)

    simulation.run_for(minutes=30)

    assert instances(simulation) >= running


def rebuild(simulation):
    """Give the namespace kube-system another UID, as in another cluster."""
    others = [n.metadata.name for n in simulation.server.list(NAMESPACE).items if n.metadata.name != "kube-system"]
    simulation.server.wipe(NAMESPACE)
    for name in (*others, "kube-system"):
        simulation.server.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


def test_the_loss_of_half_the_fleet_is_not_held(simulation):
    """The cloud terminates the instances of a zone: it finds none of them by its id, and still lists the others."""
    for provider_id in sorted(instances(simulation))[: FLEET // 2]:
        simulation.cloud.lose(provider_id)

    simulation.until(lambda: simulation.running() == FLEET, "their pods run elsewhere", minutes=15)

    assert not events(simulation, "RemovalsHeld")


def test_a_cloud_account_without_any_instance_of_the_fleet_deletes_two_nodeclaims_in_an_hour(simulation):
    """The credentials are those of another account; the kubelets stopped reporting at the same time."""
    hidden = simulation.cloud.list()
    simulation.cloud.list = lambda: ()
    simulation.cloud.machines = lambda: ()
    for node in simulation.server.list(NODE).items:
        status = {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]}
        simulation.server.patch(NODE, node.metadata.name, {"status": status}, subresource="status")
    simulation.requeue(Step.TERMINATE)

    simulation.run_for(minutes=50)

    kept = {c.status.provider_id for c in simulation.claims() if c.metadata.deletion_timestamp is None}
    assert len(kept & {i.provider_id for i in hidden}) == FLEET - 2
    assert events(simulation, "RemovalsHeld")
