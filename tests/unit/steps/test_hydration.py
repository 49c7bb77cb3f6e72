"""The terminate step restores metadata that Karpenter, a user or the kubelet changed on claims and nodes."""

import pytest

from journeyman.core.api import labels
from journeyman.core.api.hashes import NODEPOOL_HASH_VERSION
from journeyman.core.api.objects import NODE, NODECLAIM, NODEPOOL, is_true
from tests.helpers.builders import CLASS, CLASS_LABEL, SMALL, pool_body
from tests.helpers.simulated_cluster import SimulatedCluster


@pytest.fixture
def simulation():
    """Return a cluster with one node and a pod, without consolidation."""
    simulation = SimulatedCluster((SMALL,), pool_body(spec={"disruption": {"consolidateAfter": "Never"}}))
    simulation.deploy("web", 1, cpu="1.5")
    simulation.until(
        lambda: simulation.running() == 1 and is_true(the_claim(simulation).status.conditions, "Ready"), "a pod runs"
    )
    return simulation


def the_claim(simulation):
    [claim] = simulation.claims()
    return claim


def the_node(simulation):
    [node] = simulation.server.list(NODE).items
    return node


def test_removed_node_metadata_is_restored_within_two_minutes(simulation):
    """The finalizer is needed for the drain, the labels for all controllers.

    The instance got its node's name, which EC2's console shows, in the run that registered it; the request is not repeated.
    """
    claim, node = the_claim(simulation), the_node(simulation)
    assert simulation.cloud.names == {claim.status.provider_id: claim.status.node_name}
    assert claim.metadata.annotations["karpenter.k8s.aws/tagged"] == "true"
    simulation.cloud.names.clear()
    gone = dict.fromkeys([labels.REGISTERED, labels.INITIALIZED, labels.NODEPOOL])
    simulation.server.patch(
        NODE, node.metadata.name, {"metadata": {"finalizers": [], "ownerReferences": [], "labels": gone}}
    )

    simulation.run_for(minutes=2)

    healed = the_node(simulation).metadata
    assert healed.finalizers == node.metadata.finalizers
    assert healed.labels == node.metadata.labels
    assert healed.owner_references == node.metadata.owner_references
    [message] = simulation.messages("MetadataRestored")
    assert all(mark in message for mark in ("finalizer", "owner", labels.NODEPOOL, labels.REGISTERED))
    assert simulation.cloud.names == {}


def test_a_cluster_taken_over_from_karpenter_keeps_its_nodes(simulation):
    """The step adds labels that older releases did not set and updates hashes; it replaces no node and emits no Event."""
    claim, node = the_claim(simulation), the_node(simulation)
    theirs = {labels.NODEPOOL_HASH: "17231489120348", labels.NODEPOOL_HASH_VERSION: "v3"}
    simulation.server.patch(NODEPOOL, "default", {"metadata": {"annotations": theirs}})
    simulation.server.patch(
        NODECLAIM, claim.metadata.name, {"metadata": {"annotations": theirs, "labels": {CLASS_LABEL: None}}}
    )
    simulation.server.patch(NODE, node.metadata.name, {"metadata": {"labels": {CLASS_LABEL: None}}})

    simulation.run_for(minutes=3)

    adopted, pool = the_claim(simulation).metadata, simulation.server.get(NODEPOOL, "default")["metadata"]
    assert adopted.uid == claim.metadata.uid
    assert adopted.labels[CLASS_LABEL] == the_node(simulation).metadata.labels[CLASS_LABEL] == CLASS
    assert adopted.annotations[labels.NODEPOOL_HASH_VERSION] == NODEPOOL_HASH_VERSION
    assert adopted.annotations[labels.NODEPOOL_HASH] == pool["annotations"][labels.NODEPOOL_HASH] != "17231489120348"
    assert simulation.messages("MetadataRestored") == []
    assert len(simulation.cloud.launches) == 1


def test_a_node_smaller_than_its_claim_is_reported_in_ten_minutes(simulation):
    """Huge pages or broken memory may lower its capacity, so that planned pods do not fit."""
    assert is_true(the_claim(simulation).status.conditions, "ConsistentStateFound")
    simulation.server.patch(
        NODE, the_node(simulation).metadata.name, {"status": {"capacity": {"memory": "2Gi"}}}, subresource="status"
    )

    simulation.run_for(minutes=11)

    [message] = set(simulation.messages("FailedConsistencyCheck"))
    assert message == "expected 8Gi of resource memory, but found 2Gi (25.0% of expected)"
    assert not is_true(the_claim(simulation).status.conditions, "ConsistentStateFound")
