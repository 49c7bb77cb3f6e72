"""Manual edits of NodeClaims and Nodes: every node is drained, and no other NodeClaim's instance is terminated."""

import msgspec
import pytest

from journeyman.core.api import labels
from journeyman.core.api.objects import NODE, NODECLAIM, PDB, POD, is_true
from journeyman.core.plan import Step
from journeyman.errors import NoInstanceIdError
from tests.helpers.builders import SMALL, budget_body, claim_body, condition, pool_body
from tests.helpers.simulated_cluster import SimulatedCluster

BLOCKED = budget_body()


@pytest.fixture
def simulation():
    """Return a cluster with two nodes and a pod on each, without consolidation."""
    simulation = starting()
    simulation.until(lambda: simulation.running() == 2 and len(simulation.initialized()) == 2, "two pods on two nodes")
    return simulation


def starting():
    """Return a cluster with two launched instances whose nodes have not joined."""
    simulation = SimulatedCluster((SMALL,), pool_body(spec={"disruption": {"consolidateAfter": "Never"}}))
    simulation.deploy("web", 2, cpu="1.5")
    simulation.run_for(minutes=0.1)
    return simulation


def write_conditions(simulation, claim, *conditions):
    """Write these conditions to a NodeClaim's status, as a user might."""
    raw = simulation.server.get(msgspec.structs.replace(NODECLAIM, type=dict), claim.metadata.name)
    by_type = {c["type"]: c for c in (*raw["status"]["conditions"], *conditions)}
    status = {"conditions": list(by_type.values())}
    simulation.server.patch(NODECLAIM, claim.metadata.name, {"status": status}, subresource="status")


def nodes(simulation) -> dict[str, object]:
    return {node.spec.provider_id: node for node in simulation.server.list(NODE).items}


def delete(simulation, claim):
    simulation.cluster.add(BLOCKED)
    simulation.server.delete(NODECLAIM, claim)
    simulation.requeue(Step.TERMINATE)
    simulation.run_for(minutes=2)


def states(simulation) -> list[str]:
    return [instance.state for instance in simulation.cloud.list()]


@pytest.mark.parametrize("removed", [{"labels": {labels.REGISTERED: None}}, {"finalizers": None}])
def test_a_node_without_its_registered_label_or_finalizer_is_drained(simulation, removed):
    """A deletion without the finalizer would remove the node and its pod at once, against the pod's budget."""
    claim = simulation.claims()[0]
    simulation.server.patch(NODE, claim.status.node_name, {"metadata": removed})

    delete(simulation, claim.metadata.name)

    assert claim.status.provider_id in nodes(simulation)
    assert states(simulation) == ["running", "running"]
    assert "FailedDraining" in simulation.record.reasons


def test_a_claim_that_loses_its_provider_id_continues_to_drain(simulation):
    """Its node has the provider id; the step drains the node and terminates that instance, and nothing is left."""
    claim = simulation.claims()[0]
    delete(simulation, claim.metadata.name)
    simulation.server.patch(NODECLAIM, claim.metadata.name, {"status": {"providerID": None}}, subresource="status")
    simulation.run_for(minutes=4)
    assert states(simulation) == ["running", "running"]

    simulation.server.patch(POD, on(simulation, claim), {"metadata": {"labels": {"app": "free"}}}, namespace="default")
    simulation.until(
        lambda: claim.metadata.name not in {c.metadata.name for c in simulation.claims()}, "the claim is gone"
    )
    assert claim.status.provider_id not in nodes(simulation)
    assert claim.status.provider_id not in {i.provider_id for i in simulation.cloud.list()}


@pytest.mark.parametrize(
    ("metadata", "lost"),
    [
        ({"finalizers": [], "labels": {labels.NODEPOOL: None}}, ["providerID"]),
        ({}, ["conditions"]),
        ({}, ["conditions", "providerID", "nodeName", "capacity", "allocatable"]),
    ],
)
def test_removed_metadata_and_status_of_a_claim_are_restored(simulation, metadata, lost):
    """The sweep notices it, and an Event reports it; the launch time-out does not apply, because its node runs."""
    simulation.run_for(minutes=10)
    claim = simulation.claims()[0]
    simulation.server.patch(NODECLAIM, claim.metadata.name, {"metadata": metadata})
    simulation.server.patch(NODECLAIM, claim.metadata.name, {"status": dict.fromkeys(lost)}, subresource="status")

    simulation.run_for(minutes=2)

    [healed] = [c for c in simulation.claims() if c.metadata.uid == claim.metadata.uid]
    assert healed.metadata.finalizers == (labels.TERMINATION_FINALIZER,)
    assert healed.metadata.labels[labels.NODEPOOL] == "default"
    assert healed.status.provider_id == claim.status.provider_id
    assert {c.metadata.name for c in simulation.initialized()} == {c.metadata.name for c in simulation.claims()}
    assert "MetadataRestored" in simulation.record.reasons
    assert "Evicted" not in simulation.record.reasons
    assert (states(simulation), len(simulation.cloud.launches)) == (["running", "running"], 2)


def test_a_claim_with_an_invalid_provider_id_gets_its_own_again():
    """Before its node joins, only the instance's tags name the NodeClaim; they suffice to find the instance."""
    simulation = starting()
    simulation.cloud.get = particular(simulation.cloud.get)
    simulation.cloud.delete = particular(simulation.cloud.delete)
    first, other = simulation.claims()
    edited = {"status": {"providerID": "i-am-none"}}
    simulation.server.patch(NODECLAIM, first.metadata.name, edited, subresource="status")

    simulation.run_for(minutes=5)

    assert simulation.running() == 2
    assert states(simulation) == ["running", "running"]
    claims = {claim.metadata.uid: claim.status.provider_id for claim in simulation.initialized()}
    assert claims == {claim.metadata.uid: claim.status.provider_id for claim in (first, other)}
    [event] = [e for e in simulation.record.events if e.reason == "MetadataRestored"]
    assert event.ref.uid == first.metadata.uid


def particular(method):
    """Wrap a method of the cloud so that it rejects an invalid provider id, as the real one does."""

    def asked(provider_id):
        if not provider_id.startswith("aws:///"):
            raise NoInstanceIdError("not an AWS provider id", provider_id=provider_id)
        return method(provider_id)

    return asked


@pytest.mark.parametrize("said", ["Registered", "Initialized"])
def test_a_claim_with_forged_conditions_is_registered(said):
    """Its node joins and loses the unregistered taint, whatever conditions a user wrote before."""
    simulation = starting()
    write_conditions(simulation, simulation.claims()[0], condition(said, since=simulation.clock.now()))

    simulation.run_for(minutes=4)

    assert simulation.running() == 2
    assert all(node.metadata.labels.get(labels.REGISTERED) == "true" for node in nodes(simulation).values())
    assert all(is_true(c.status.conditions, "Ready") for c in simulation.claims())


def test_claim_with_anothers_provider_id_is_deleted_alone(simulation):
    """A user creates and deletes it; the node with that provider id, and the node's NodeClaim, are not changed."""
    claim = simulation.claims()[0]
    simulation.server.create(NODECLAIM, claim_body("handmade"))
    simulation.server.patch(
        NODECLAIM, "handmade", {"status": {"providerID": claim.status.provider_id}}, subresource="status"
    )
    simulation.requeue(Step.PROVISION)
    simulation.run_for(minutes=1)
    [handmade] = [c for c in simulation.claims() if c.metadata.name == "handmade"]
    refused = next(c for c in handmade.status.conditions if c.type == "Registered")

    simulation.server.delete(NODECLAIM, "handmade")
    simulation.requeue(Step.TERMINATE)
    simulation.run_for(minutes=5)

    assert (refused.status, refused.reason) == ("False", "MultipleNodeClaimsFound")
    assert claim.metadata.name in refused.message
    assert sorted(c.metadata.name for c in simulation.claims()) == sorted(
        c.metadata.name for c in simulation.initialized()
    )
    assert len(simulation.initialized()) == 2
    assert states(simulation) == ["running", "running"]
    assert "Evicted" not in simulation.record.reasons


def test_a_claim_with_anothers_provider_id_terminates_its_own_instance(simulation):
    mine, other = simulation.claims()
    simulation.server.patch(
        NODECLAIM, mine.metadata.name, {"status": {"providerID": other.status.provider_id}}, subresource="status"
    )
    simulation.run_for(minutes=3)
    assert states(simulation) == ["running", "running"]

    simulation.server.delete(NODECLAIM, mine.metadata.name)
    simulation.requeue(Step.TERMINATE)
    simulation.until(
        lambda: mine.metadata.name not in {c.metadata.name for c in simulation.claims()}, "the claim is gone"
    )

    assert other.metadata.name in {c.metadata.name for c in simulation.initialized()}
    assert other.status.provider_id in nodes(simulation)
    assert mine.status.provider_id not in nodes(simulation)
    assert mine.status.provider_id not in {i.provider_id for i in simulation.cloud.list()}


def test_a_claim_with_a_forged_instance_terminating_is_replaced(simulation):
    """The step deletes a NodeClaim with InstanceTerminating but no deletion timestamp, with an Event, after a drain."""
    claim = simulation.claims()[0]
    simulation.cluster.add(BLOCKED)
    write_conditions(simulation, claim, condition("InstanceTerminating", since=simulation.clock.now()))

    simulation.run_for(minutes=4)
    [event] = [e for e in simulation.record.events if e.reason == "InconsistentStatus"]
    assert event.ref.uid == claim.metadata.uid
    assert claim.status.provider_id in nodes(simulation)
    assert set(states(simulation)) == {"running"}

    simulation.server.delete(PDB, "web", namespace="default")
    simulation.until(lambda: claim.status.provider_id not in nodes(simulation), "its node is gone")
    simulation.until(lambda: simulation.running() == 2, "its pod runs elsewhere")
    assert len(simulation.initialized()) == 2


def test_pod_of_an_externally_deleted_node_gets_a_new_node(simulation):
    """The NodeClaim is still Registered, but its node will not return, so the pod does not wait for it."""
    claim = simulation.claims()[0]
    simulation.delete_node_and_kubelet(claim)
    simulation.server.delete(POD, on(simulation, claim), namespace="default", grace_period_seconds=0)

    simulation.requeue(Step.PROVISION)
    simulation.until(lambda: simulation.running() == 2, "its pod runs elsewhere", minutes=3)


def on(simulation, claim) -> str:
    [pod] = [p for p in simulation.server.list(POD).items if p.spec.node_name == claim.status.node_name]
    return str(pod.metadata.name)
