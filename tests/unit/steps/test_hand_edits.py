"""What people do to our objects by hand: no pod loses its node without a drain, and no instance is ended for another."""

from collections.abc import Sequence

import msgspec
import pytest

from journeyman.core.api import labels
from journeyman.core.api.objects import NODE, NODECLAIM, PDB, POD, is_true
from journeyman.core.plan import Step
from journeyman.errors import NoInstanceIdError
from tests.helpers.builders import SMALL, claim_body, condition, pool_body
from tests.helpers.living import Living

BLOCKED = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}},
}


@pytest.fixture
def living():
    """Two nodes with a pod each, which nothing consolidates."""
    living = starting()
    living.until(lambda: living.running() == 2 and len(settled(living)) == 2, "two pods on two nodes")
    return living


def starting():
    """Two instances that are to become those nodes."""
    living = Living((SMALL,), pool_body(spec={"disruption": {"consolidateAfter": "Never"}}))
    living.deploy("web", 2, cpu="1.5")
    living.live(minutes=0.1)
    return living


def said_of(living, claim, *conditions):
    """Write these conditions into a claim's status, as a user might."""
    raw = living.server.get(msgspec.structs.replace(NODECLAIM, type=dict), claim.metadata.name)
    by_type = {c["type"]: c for c in (*raw["status"]["conditions"], *conditions)}
    status = {"conditions": list(by_type.values())}
    living.server.patch(NODECLAIM, claim.metadata.name, {"status": status}, subresource="status")


def settled(living) -> Sequence[object]:
    """The claims that are initialized."""
    return [c for c in living.claims() if is_true(c.status.conditions, "Initialized")]


def nodes(living) -> dict[str, object]:
    """Nodes by provider id."""
    return {node.spec.provider_id: node for node in living.server.list(NODE).items}


def delete(living, claim):
    """Delete a claim; two minutes pass, in which its pods may not be evicted."""
    living.cluster.add(BLOCKED)
    living.server.delete(NODECLAIM, claim)
    living.requeue(Step.TERMINATE)
    living.live(minutes=2)


def states(living) -> list[str]:
    """The states of the instances."""
    return [instance.state for instance in living.cloud.list()]


def test_a_node_without_its_registered_label_is_drained(living):
    """Its claim says that it registered. Without a drain its pod would die with the instance, against its budget."""
    claim = living.claims()[0]
    living.server.patch(NODE, claim.status.node_name, {"metadata": {"labels": {labels.REGISTERED: None}}})

    delete(living, claim.metadata.name)

    assert states(living) == ["running", "running"]
    assert "FailedDraining" in living.record.reasons


def test_a_node_whose_finalizer_was_just_removed_is_drained(living):
    """Without it the node is gone as soon as it is deleted, and its pod with it, whatever its budget says."""
    claim = living.claims()[0]
    living.server.patch(NODE, claim.status.node_name, {"metadata": {"finalizers": None}})

    delete(living, claim.metadata.name)

    assert claim.status.provider_id in nodes(living)
    assert states(living) == ["running", "running"]
    assert "FailedDraining" in living.record.reasons


def test_a_claim_that_loses_its_provider_id_continues_to_drain(living):
    """The node that it owns says which instance it is; that one is ended after the drain, and nothing stays."""
    claim = living.claims()[0]
    delete(living, claim.metadata.name)
    living.server.patch(NODECLAIM, claim.metadata.name, {"status": {"providerID": None}}, subresource="status")
    living.live(minutes=4)
    assert states(living) == ["running", "running"]

    living.server.patch(POD, on(living, claim), {"metadata": {"labels": {"app": "free"}}}, namespace="default")
    living.until(lambda: claim.metadata.name not in {c.metadata.name for c in living.claims()}, "the claim is gone")
    assert claim.status.provider_id not in nodes(living)
    assert claim.status.provider_id not in {i.provider_id for i in living.cloud.list()}


def test_what_was_taken_off_a_living_claim_is_back_within_two_minutes(living):
    """The sweep sees it, and an Event says it."""
    claim = living.claims()[0]
    name, provider_id = claim.metadata.name, claim.status.provider_id
    living.server.patch(NODECLAIM, name, {"metadata": {"finalizers": [], "labels": {labels.NODEPOOL: None}}})
    living.server.patch(NODECLAIM, name, {"status": {"providerID": None}}, subresource="status")

    living.live(minutes=2)

    [healed] = [c for c in living.claims() if c.metadata.name == name]
    assert healed.metadata.finalizers == (labels.TERMINATION_FINALIZER,)
    assert healed.metadata.labels[labels.NODEPOOL] == "default"
    assert healed.status.provider_id == provider_id
    assert "MetadataRestored" in living.record.reasons
    assert states(living) == ["running", "running"]


@pytest.mark.parametrize("lost", [["conditions"], ["conditions", "providerID", "nodeName", "capacity", "allocatable"]])
def test_a_claim_whose_status_was_taken_off_keeps_its_node(living, lost):
    """Even long after the time that a launch may take: the node that it owns runs, and an Event says what was done."""
    living.live(minutes=10)
    claim = living.claims()[0]
    living.server.patch(NODECLAIM, claim.metadata.name, {"status": dict.fromkeys(lost)}, subresource="status")

    living.live(minutes=3)

    assert {c.metadata.name for c in settled(living)} == {c.metadata.name for c in living.claims()}
    assert claim.metadata.uid in {c.metadata.uid for c in living.claims()}
    assert claim.status.provider_id in {c.status.provider_id for c in living.claims()}
    assert "MetadataRestored" in living.record.reasons
    assert "Evicted" not in living.record.reasons
    assert len(living.cloud.launches) == 2


def test_a_claim_with_an_invalid_provider_id_is_replaced():
    """Before its node has joined nothing else knows its instance but its tags; those are enough to end it."""
    living = starting()
    living.cloud.get = particular(living.cloud.get)
    living.cloud.delete = particular(living.cloud.delete)
    first, other = living.claims()
    edited = {"status": {"providerID": "i-am-none"}}
    living.server.patch(NODECLAIM, first.metadata.name, edited, subresource="status")

    living.live(minutes=5)

    assert living.running() == 2
    assert states(living) == ["running", "running"]
    assert first.status.provider_id not in {i.provider_id for i in living.cloud.list()}
    assert other.metadata.name in {c.metadata.name for c in settled(living)}
    assert len(settled(living)) == len(living.claims()) == 2
    [event] = [e for e in living.record.events if e.reason == "InstanceNotFound"]
    assert event.ref.uid == first.metadata.uid


def particular(method):
    """A method of the cloud that, like the real one's, takes nothing for an id that is none."""

    def asked(provider_id):
        if not provider_id.startswith("aws:///"):
            raise NoInstanceIdError("not an AWS provider id", provider_id=provider_id)
        return method(provider_id)

    return asked


@pytest.mark.parametrize("said", ["Registered", "Initialized"])
def test_a_claim_with_forged_conditions_is_registered(said):
    """Its node joins, and loses the unregistered taint, whatever a user wrote into the claim's status before."""
    living = starting()
    said_of(living, living.claims()[0], condition(said, since=living.clock.now()))

    living.live(minutes=4)

    assert living.running() == 2
    assert all(node.metadata.labels.get(labels.REGISTERED) == "true" for node in nodes(living).values())
    assert all(is_true(c.status.conditions, "Ready") for c in living.claims())


def test_a_claim_with_the_provider_id_of_another_goes_without_it(living):
    """Made by hand, deleted by hand: the node whose id it carries, and the claim behind that, stay as they are."""
    claim = living.claims()[0]
    living.server.create(NODECLAIM, claim_body("handmade"))
    living.server.patch(
        NODECLAIM, "handmade", {"status": {"providerID": claim.status.provider_id}}, subresource="status"
    )
    living.requeue(Step.PROVISION)
    living.live(minutes=1)
    [handmade] = [c for c in living.claims() if c.metadata.name == "handmade"]
    refused = next(c for c in handmade.status.conditions if c.type == "Registered")

    living.server.delete(NODECLAIM, "handmade")
    living.requeue(Step.TERMINATE)
    living.live(minutes=5)

    assert (refused.status, refused.reason) == ("False", "MultipleNodeClaimsFound")
    assert claim.metadata.name in refused.message
    assert sorted(c.metadata.name for c in living.claims()) == sorted(c.metadata.name for c in settled(living))
    assert len(settled(living)) == 2
    assert states(living) == ["running", "running"]
    assert "Evicted" not in living.record.reasons


def test_a_claim_with_anothers_provider_id_terminates_its_own_instance(living):
    """Its node still says which one that is."""
    mine, other = living.claims()
    living.server.patch(
        NODECLAIM, mine.metadata.name, {"status": {"providerID": other.status.provider_id}}, subresource="status"
    )
    living.live(minutes=3)
    assert states(living) == ["running", "running"]

    living.server.delete(NODECLAIM, mine.metadata.name)
    living.requeue(Step.TERMINATE)
    living.until(lambda: mine.metadata.name not in {c.metadata.name for c in living.claims()}, "the claim is gone")

    assert other.metadata.name in {c.metadata.name for c in settled(living)}
    assert other.status.provider_id in nodes(living)
    assert mine.status.provider_id not in nodes(living)
    assert mine.status.provider_id not in {i.provider_id for i in living.cloud.list()}


def test_a_claim_with_a_forged_instance_terminating_is_replaced(living):
    """InstanceTerminating on a claim without a deletion timestamp: the claim goes, with an Event, after its pod."""
    claim = living.claims()[0]
    living.cluster.add(BLOCKED)
    said_of(living, claim, condition("InstanceTerminating", since=living.clock.now()))

    living.live(minutes=4)
    [event] = [e for e in living.record.events if e.reason == "InconsistentStatus"]
    assert event.ref.uid == claim.metadata.uid
    assert claim.status.provider_id in nodes(living)
    assert set(states(living)) == {"running"}

    living.server.delete(PDB, "web", namespace="default")
    living.until(lambda: claim.status.provider_id not in nodes(living), "its node is gone")
    living.until(lambda: living.running() == 2, "its pod runs elsewhere")
    assert len(settled(living)) == 2


def test_a_pod_does_not_wait_for_an_externally_deleted_node(living):
    """The claim is still there, and registered: no node will come of it by waiting."""
    claim = living.claims()[0]
    machines = living.cloud.machines
    living.cloud.machines = lambda: tuple(m for m in machines() if m.node_name != claim.status.node_name)
    living.server.patch(NODE, claim.status.node_name, {"metadata": {"finalizers": []}})
    living.server.delete(NODE, claim.status.node_name)
    living.server.delete(POD, on(living, claim), namespace="default", grace_period_seconds=0)

    living.requeue(Step.PROVISION)
    living.until(lambda: living.running() == 2, "its pod runs elsewhere", minutes=3)


def on(living, claim) -> str:
    """The pod on the claim's node."""
    [pod] = [p for p in living.server.list(POD).items if p.spec.node_name == claim.status.node_name]
    return str(pod.metadata.name)
