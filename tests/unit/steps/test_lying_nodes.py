"""Nodes that lie: a Node object with the provider id of another instance, created by a tenant or a kubelet that was taken over."""

import pytest

from journeyman.core.api import labels
from journeyman.core.api.objects import NODE, NODECLAIM, POD, is_true
from journeyman.core.plan import Step
from tests.helpers.builders import TYPES, pool_body
from tests.helpers.simulated_cluster import SimulatedCluster


@pytest.fixture(name="simulation")
def _simulation():
    simulation = SimulatedCluster(TYPES, pool_body(spec={"disruption": {"consolidateAfter": "30s"}}))
    simulation.deploy("web", 1, cpu="3", annotations={labels.DO_NOT_DISRUPT: "true"})
    simulation.until(lambda: simulation.running() == 1, "its pod runs")
    simulation.until(
        lambda: is_true(simulation.claims()[0].status.conditions, "Initialized"), "its node is initialized"
    )
    return simulation


def liar(simulation, name="a-liar", *, taints=(), node_labels=None, owners=()):
    """Create a Ready Node with the provider id of the first NodeClaim's instance, and every label of a node of ours."""
    [claim] = simulation.claims()
    copied = dict(simulation.server.get(NODE, claim.status.node_name).metadata.labels) if claim.status.node_name else {}
    body = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {**copied, "kubernetes.io/hostname": name, **(node_labels or {})},
            "ownerReferences": list(owners),
        },
        "spec": {"providerID": claim.status.provider_id, "taints": list(taints)},
        "status": {
            "capacity": {"cpu": "4", "memory": "16Gi", "pods": "100"},
            "allocatable": {"cpu": "4", "memory": "16Gi", "pods": "100"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }
    simulation.server.create(NODE, body)
    return claim


def owner_of(claim):
    """Return the owner reference that registration writes."""
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "name": claim.metadata.name,
        "uid": claim.metadata.uid,
    }


@pytest.mark.parametrize("name", ["a-liar", "z-liar"])
@pytest.mark.parametrize("is_owned", [False, True])
def test_an_empty_node_with_the_provider_id_of_another_does_not_make_its_claim_look_empty(simulation, is_owned, name):
    """Only the Node in the NodeClaim's status counts; an Event names the other one, and what to do about it."""
    claim = liar(simulation, name, owners=[owner_of(simulation.claims()[0])] if is_owned else [])

    simulation.run_for(minutes=15)

    assert [c.metadata.name for c in simulation.claims()] == [claim.metadata.name]
    assert simulation.running() == 1
    events = [e for e in simulation.cluster.record.events if e.reason == "MultipleNodesFound"]
    assert {e.ref.name for e in events} == {claim.metadata.name, name}
    assert f"delete Node {name}" in events[0].message


def test_the_deletion_of_a_lying_node_does_not_delete_the_claim(simulation):
    """Its finalizer is removed once its own pods are gone, and the instance runs on."""
    claim = liar(simulation)
    simulation.server.patch(NODE, "a-liar", {"metadata": {"finalizers": [labels.TERMINATION_FINALIZER]}})
    simulation.server.delete(NODE, "a-liar")
    simulation.requeue(Step.TERMINATE)

    simulation.run_for(minutes=5)

    assert [c.metadata.deletion_timestamp for c in simulation.claims()] == [None]
    assert [n.metadata.name for n in simulation.server.list(NODE).items] == [claim.status.node_name]
    assert simulation.running() == 1


def test_no_pod_is_planned_for_a_lying_node(simulation):
    """A pod that needs what the lying Node offers gets a node of its own."""
    liar(simulation, taints=[{"key": "tenant", "effect": "NoSchedule"}])
    simulation.deploy("more", 1, cpu="3")

    simulation.until(lambda: simulation.running() == 2, "the second pod runs", minutes=5)

    assert len(simulation.claims()) == 2


def test_a_node_that_lies_before_the_real_one_joins_does_not_stop_its_registration():
    """The instance's own kubelet has the taint that its user data asks for."""
    simulation = SimulatedCluster(TYPES, pool_body())
    simulation.deploy("web", 1, cpu="3")
    simulation.until(lambda: any(c.status.provider_id for c in simulation.claims()), "its instance is launched")
    liar(simulation, taints=[{"key": "tenant", "effect": "NoSchedule"}])

    simulation.until(lambda: simulation.running() == 1, "its pod runs", minutes=5)

    claim = min(simulation.claims(), key=lambda c: c.metadata.creation_timestamp)
    assert claim.status.node_name != "a-liar"
    assert is_true(claim.status.conditions, "Initialized")


def test_pods_of_the_other_node_of_an_instance_keep_it():
    """A kubelet was renamed: its pods run under the new name, and the Node in the NodeClaim's status has none left."""
    simulation = SimulatedCluster(TYPES, pool_body(spec={"disruption": {"consolidateAfter": "30s"}}))
    simulation.deploy("web", 1, cpu="3")
    simulation.until(lambda: simulation.running() == 1, "its pod runs")
    claim = liar(simulation, "renamed")
    [pod] = simulation.server.list(POD).items
    simulation.scale("web", 0)
    simulation.server.delete(POD, pod.metadata.name, namespace="default", grace_period_seconds=0)
    spec = {"nodeName": "renamed", "containers": [{"name": "c", "image": "pause"}]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "moved", "namespace": "default"}, "spec": spec}
    simulation.server.create(POD, body, namespace="default")

    simulation.run_for(minutes=10)

    assert [c.metadata.uid for c in simulation.server.list(NODECLAIM).items] == [claim.metadata.uid]
    assert "moved" in {p.metadata.name for p in simulation.server.list(POD).items}
