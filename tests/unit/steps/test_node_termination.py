"""Node termination, by cause: protected pods keep running, nothing is left over, and Events report it."""

from datetime import timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.api.objects import (
    EC2NODECLASS,
    NODE,
    NODECLAIM,
    NODEPOOL,
    PDB,
    POD,
    condition_of,
)
from journeyman.core.api.storage import VOLUME_ATTACHMENT
from journeyman.core.plan import Step
from tests.helpers.builders import SMALL, a_body, budget_body, pool_body, stamp
from tests.helpers.simulated_cluster import SimulatedCluster


@pytest.fixture
def simulation():
    """Return a cluster with two nodes and a pod on each, without consolidation."""
    return two_nodes()


def two_nodes(**template):
    spec = {"disruption": {"consolidateAfter": "Never"}, "template": {"spec": template}}
    simulation = SimulatedCluster((SMALL,), pool_body(spec=spec))
    simulation.deploy("web", 2, cpu="1.5")
    simulation.until(lambda: simulation.running() == 2 and len(simulation.initialized()) == 2, "two pods on two nodes")
    return simulation


def delete(simulation, claim):
    simulation.server.delete(NODECLAIM, claim.metadata.name)
    simulation.requeue(Step.TERMINATE)


def state(simulation, claim):
    return next((i.state for i in simulation.cloud.list() if i.provider_id == claim.status.provider_id), "")


def kinds_with_event(simulation, reason):
    return {event.ref.resource.kind for event in simulation.record.events if event.reason == reason}


def is_gone(simulation, claim):
    names = {c.metadata.name for c in simulation.claims()}
    ids = {n.spec.provider_id for n in simulation.server.list(NODE).items}
    return claim.metadata.name not in names and claim.status.provider_id not in ids and not state(simulation, claim)


def attach(simulation, node):
    spec = {"attacher": "ebs.csi.aws.com", "nodeName": node, "source": {"persistentVolumeName": "pv"}}
    simulation.cluster.add(a_body("storage.k8s.io/v1", "VolumeAttachment", "attached", spec=spec))


def test_the_instance_waits_until_its_volumes_are_detached(simulation):
    """The pod already runs on another node; a detach completes its writes to the volume."""
    claim = simulation.claims()[0]
    attach(simulation, claim.status.node_name)
    delete(simulation, claim)
    simulation.run_for(minutes=5)

    (waiting,) = [c for c in simulation.claims() if c.metadata.name == claim.metadata.name]
    detached = condition_of(waiting.status.conditions, "VolumesDetached")
    assert (detached.status, detached.reason) == ("Unknown", "AwaitingVolumeDetachment")
    assert state(simulation, claim) == "running"
    assert kinds_with_event(simulation, "AwaitingVolumeDetachment") == {"Node"}
    assert simulation.record.count_of("karpenter_nodes_drained_total") == 1

    simulation.server.delete(VOLUME_ATTACHMENT, "attached")
    simulation.until(lambda: is_gone(simulation, claim), "all of it is gone", minutes=2)
    assert simulation.running() == 2


def test_termination_grace_period_ends_all_waiting():
    """A budget, an annotation and a volume block until terminationGracePeriod ends, but not longer."""
    simulation = two_nodes(terminationGracePeriod="10m")
    claim = simulation.claims()[0]
    simulation.cluster.add(budget_body("web", maxUnavailable=0))
    attach(simulation, claim.status.node_name)
    began = simulation.clock.now()
    delete(simulation, claim)

    simulation.run_for(minutes=9)
    assert state(simulation, claim) == "running"
    assert kinds_with_event(simulation, "TerminationGracePeriodExpiring") == {"Node", "NodeClaim"}

    simulation.until(lambda: is_gone(simulation, claim), "all of it is gone", minutes=3)
    assert simulation.clock.now() < began + timedelta(minutes=11)
    assert kinds_with_event(simulation, "Disrupted") == {"Pod"}


def forbid_adoption(simulation):
    """Give the instances and nodes the name of a NodePool that does not exist, so that no NodeClaim can be created for them again."""
    for instance in simulation.cloud.list():
        simulation.cloud.edit_tags(instance.provider_id, {labels.NODEPOOL: "gone"})
    for node in simulation.server.list(NODE).items:
        simulation.server.patch(NODE, node.metadata.name, {"metadata": {"labels": {labels.NODEPOOL: "gone"}}})


@pytest.mark.parametrize("has_owner", [True, False])
def test_a_node_whose_claim_vanished_is_drained_before_termination(simulation, has_owner):
    """The API server deletes a node with its owner; the instance stays until the pod's budget allows an eviction."""
    claim = simulation.claims()[0]
    simulation.cluster.add(budget_body("web", maxUnavailable=0))
    if not has_owner:
        bare = {"metadata": {"ownerReferences": None, "finalizers": []}}
        simulation.server.patch(NODE, claim.status.node_name, bare)
    forbid_adoption(simulation)
    simulation.server.patch(NODECLAIM, claim.metadata.name, {"metadata": {"finalizers": []}})
    delete(simulation, claim)
    simulation.run_for(minutes=10)

    assert claim.metadata.name not in {c.metadata.name for c in simulation.claims()}
    assert state(simulation, claim) == "running"
    assert "NodeClaimNotFound" in simulation.record.reasons

    simulation.server.delete(PDB, "web", namespace="default")
    simulation.until(lambda: is_gone(simulation, claim), "all of it is gone")
    simulation.until(lambda: simulation.running() == 2, "its pod runs elsewhere")


@pytest.mark.parametrize("protected", [False, True])
def test_stopped_instance_is_replaced(simulation, protected):
    """The event was lost; the instance does not start again, so no protection of its pods applies."""
    claim = simulation.claims()[0]
    if protected:
        simulation.cluster.add(budget_body("web", maxUnavailable=0))
    simulation.cloud.stop(claim.status.provider_id)

    simulation.until(lambda: is_gone(simulation, claim), "all of it is gone", minutes=10)
    simulation.until(lambda: simulation.running() == 2, "its pod runs elsewhere")


def test_a_claim_whose_node_was_deleted_is_deleted_after_five_minutes(simulation):
    """Within that time its kubelet could register it again."""
    claim = simulation.claims()[0]
    simulation.delete_node_and_kubelet(claim)

    simulation.run_for(minutes=4)
    (waiting,) = [c for c in simulation.claims() if c.metadata.name == claim.metadata.name]
    assert labels.NODE_MISSING_SINCE in waiting.metadata.annotations
    assert state(simulation, claim) == "running"

    simulation.until(lambda: is_gone(simulation, claim), "all of it is gone", minutes=5)
    assert kinds_with_event(simulation, "NodeNotFound") == {"NodeClaim"}
    assert simulation.running() == 2


def test_a_node_that_registers_again_keeps_its_claim_and_accepts_pods(simulation):
    """For example, its kubelet restarted and added the taints of a new node."""
    claim = simulation.claims()[0]
    simulation.server.patch(NODE, claim.status.node_name, {"metadata": {"finalizers": []}})
    simulation.server.delete(NODE, claim.status.node_name)
    simulation.run_for(minutes=10)

    node = simulation.server.get(NODE, claim.status.node_name)
    assert labels.UNREGISTERED_TAINT not in {taint.key for taint in node.spec.taints}
    assert node.metadata.labels[labels.REGISTERED] == "true"
    assert claim.metadata.name in {c.metadata.name for c in simulation.claims()}
    assert state(simulation, claim) == "running"
    assert "MetadataRestored" in simulation.record.reasons


def test_claim_is_finalized_without_its_node_class(simulation):
    """Termination does not need the NodeClass: a user removed its finalizer, so it did not wait for its claims."""
    claim = simulation.claims()[0]
    simulation.server.delete(EC2NODECLASS, "default")
    simulation.server.patch(EC2NODECLASS, "default", {"metadata": {"finalizers": []}})
    assert simulation.server.list(EC2NODECLASS).items == ()
    delete(simulation, claim)
    simulation.until(lambda: is_gone(simulation, claim), "all of it is gone", minutes=3)


def test_a_deleted_node_pool_drains_its_nodes_within_budgets(simulation):
    """The API server deletes its NodeClaims; the step creates no new one for it."""
    claims = simulation.claims()
    simulation.cluster.add(budget_body("web", maxUnavailable=0))
    simulation.server.delete(NODEPOOL, "default")
    simulation.run_for(minutes=5)
    assert [state(simulation, claim) for claim in claims] == ["running", "running"]
    assert simulation.running() == 2

    simulation.server.delete(PDB, "web", namespace="default")
    simulation.until(lambda: all(is_gone(simulation, claim) for claim in claims), "all of it is gone")
    assert simulation.claims() == ()
    assert len(simulation.cloud.launches) == 2
    assert "RemovalsHeld" not in simulation.record.reasons, "a user decided that"


def test_do_not_disrupt_is_honoured_and_its_end_reported(simulation):
    """A duration counts from its start; the Event has the end, and later reports that it is over."""
    claim = simulation.claims()[0]
    (pod,) = [p for p in simulation.server.list(POD).items if p.spec.node_name == claim.status.node_name]
    protection = {"metadata": {"annotations": {labels.DO_NOT_DISRUPT: "15m"}}}
    simulation.server.patch(POD, pod.metadata.name, protection, namespace="default")
    end = pod.status.start_time + timedelta(minutes=15)
    delete(simulation, claim)

    simulation.run_for(minutes=8)
    assert state(simulation, claim) == "running"
    (until,) = {event.message for event in simulation.record.events if event.reason == "DoNotDisruptUntil"}
    assert stamp(end) in until

    simulation.until(lambda: is_gone(simulation, claim), "all of it is gone", minutes=10)
    assert simulation.clock.now() >= end
    assert kinds_with_event(simulation, "DoNotDisruptGracePeriodElapsed") == {"Pod"}
