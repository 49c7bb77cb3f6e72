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
    is_true,
)
from journeyman.core.api.storage import VOLUME_ATTACHMENT
from journeyman.core.plan import Step
from tests.helpers.builders import SMALL, pool_body, stamp
from tests.helpers.living import Living


@pytest.fixture
def living():
    """Two nodes with a pod each, which nothing consolidates."""
    return two_nodes()


def two_nodes(**template):
    spec = {"disruption": {"consolidateAfter": "Never"}, "template": {"spec": template}}
    living = Living((SMALL,), pool_body(spec=spec))
    living.deploy("web", 2, cpu="1.5")
    living.until(lambda: living.running() == 2 and len(settled(living)) == 2, "two pods on two nodes")
    return living


def settled(living):
    """The claims that are initialized."""
    return [c for c in living.claims() if is_true(c.status.conditions, "Initialized")]


def a_budget(name, **spec):
    metadata = {"name": name, "namespace": "default"}
    spec = {"selector": {"matchLabels": {"app": "web"}}, **spec}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec}


def delete(living, claim):
    """Delete a claim."""
    living.server.delete(NODECLAIM, claim.metadata.name)
    living.requeue(Step.TERMINATE)


def state(living, claim):
    """The state of its instance, empty once it is gone."""
    return next((i.state for i in living.cloud.list() if i.provider_id == claim.status.provider_id), "")


def kinds_with_event(living, reason):
    """Return the kinds of the objects that have an Event with this reason."""
    return {event.ref.resource.kind for event in living.record.events if event.reason == reason}


def is_gone(living, claim):
    """No claim, no node, no instance."""
    names = {c.metadata.name for c in living.claims()}
    ids = {n.spec.provider_id for n in living.server.list(NODE).items}
    return claim.metadata.name not in names and claim.status.provider_id not in ids and not state(living, claim)


def attach(living, node):
    body = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": "attached"},
        "spec": {"attacher": "ebs.csi.aws.com", "nodeName": node, "source": {"persistentVolumeName": "pv"}},
    }
    living.cluster.add(body)


def test_the_instance_waits_until_its_volumes_are_detached(living):
    """The pod runs elsewhere by then; what it wrote must be there as soon as its volume is."""
    claim = living.claims()[0]
    attach(living, claim.status.node_name)
    delete(living, claim)
    living.live(minutes=5)

    (waiting,) = [c for c in living.claims() if c.metadata.name == claim.metadata.name]
    detached = condition_of(waiting.status.conditions, "VolumesDetached")
    assert (detached.status, detached.reason) == ("Unknown", "AwaitingVolumeDetachment")
    assert state(living, claim) == "running"
    assert kinds_with_event(living, "AwaitingVolumeDetachment") == {"Node"}
    assert living.record.count_of("karpenter_nodes_drained_total") == 1

    living.server.delete(VOLUME_ATTACHMENT, "attached")
    living.until(lambda: is_gone(living, claim), "all of it is gone", minutes=2)
    assert living.running() == 2


def test_a_node_s_end_is_waited_for_and_no_longer():
    """terminationGracePeriod: budget, annotation and volume hold until then, and not after."""
    living = two_nodes(terminationGracePeriod="10m")
    claim = living.claims()[0]
    living.cluster.add(a_budget("web", maxUnavailable=0))
    attach(living, claim.status.node_name)
    began = living.clock.now()
    delete(living, claim)

    living.live(minutes=9)
    assert state(living, claim) == "running"
    assert kinds_with_event(living, "TerminationGracePeriodExpiring") == {"Node", "NodeClaim"}

    living.until(lambda: is_gone(living, claim), "all of it is gone", minutes=3)
    assert living.clock.now() < began + timedelta(minutes=11)
    assert kinds_with_event(living, "Disrupted") == {"Pod"}


def test_two_budgets_over_a_pod_hold_its_node_and_are_no_error(living):
    """The Eviction API answers 500 for good; the drain keeps its own pace until one budget is taken away."""
    claim = living.claims()[0]
    living.cluster.add(a_budget("a", maxUnavailable=1), a_budget("b", maxUnavailable=1))
    delete(living, claim)
    before = len(living.functions.outcomes)
    living.live(minutes=10)

    outcomes = [o for _, o in living.functions.outcomes[before:] if o.step is Step.TERMINATE]
    assert sum(o.counts.get("errors", 0) for o in outcomes) == 0
    assert len(outcomes) < 120
    assert state(living, claim) == "running"
    assert kinds_with_event(living, "FailedDraining") == {"Node"}
    codes = {o.labels["code"] for o in living.record.observations if o.name == "karpenter_pods_eviction_requests_total"}
    assert codes == {"500"}

    living.server.delete(PDB, "b", namespace="default")
    living.until(lambda: is_gone(living, claim), "all of it is gone")


def test_a_node_whose_claim_vanished_is_drained_before_termination(living):
    """The API server deletes the node with its owner; its pod may not go yet, so its instance may not either."""
    claim = living.claims()[0]
    living.cluster.add(a_budget("web", maxUnavailable=0))
    living.server.patch(NODECLAIM, claim.metadata.name, {"metadata": {"finalizers": []}})
    delete(living, claim)
    living.live(minutes=10)

    assert claim.metadata.name not in {c.metadata.name for c in living.claims()}
    assert state(living, claim) == "running"
    assert "NodeClaimNotFound" in living.record.reasons

    living.server.delete(PDB, "web", namespace="default")
    living.until(lambda: is_gone(living, claim), "all of it is gone")
    living.until(lambda: living.running() == 2, "its pod runs elsewhere")


def test_a_node_without_claim_and_owner_is_drained_before_termination(living):
    """No controller deletes it: its ownerReference was taken off, too."""
    claim = living.claims()[0]
    living.cluster.add(a_budget("web", maxUnavailable=0))
    bare = {"metadata": {"ownerReferences": None, "finalizers": []}}
    living.server.patch(NODE, claim.status.node_name, bare)
    living.server.patch(NODECLAIM, claim.metadata.name, {"metadata": {"finalizers": []}})
    delete(living, claim)
    living.live(minutes=10)
    assert state(living, claim) == "running"

    living.server.delete(PDB, "web", namespace="default")
    living.until(lambda: is_gone(living, claim), "all of it is gone")


@pytest.mark.parametrize("protected", [False, True])
def test_a_machine_that_was_stopped_is_replaced(living, protected):
    """The notice was lost; nothing will start it again, and its disk is paid for, whatever protects what ran there."""
    claim = living.claims()[0]
    if protected:
        living.cluster.add(a_budget("web", maxUnavailable=0))
    living.cloud.stop(claim.status.provider_id)

    living.until(lambda: is_gone(living, claim), "all of it is gone", minutes=10)
    living.until(lambda: living.running() == 2, "its pod runs elsewhere")


def test_a_claim_whose_node_was_deleted_is_deleted_after_five_minutes(living):
    """Its kubelet could have registered it again."""
    claim = living.claims()[0]
    machines = living.cloud.machines
    living.cloud.machines = lambda: tuple(m for m in machines() if m.node_name != claim.status.node_name)
    living.server.patch(NODE, claim.status.node_name, {"metadata": {"finalizers": []}})
    living.server.delete(NODE, claim.status.node_name)

    living.live(minutes=4)
    (waiting,) = [c for c in living.claims() if c.metadata.name == claim.metadata.name]
    assert labels.NODE_MISSING_SINCE in waiting.metadata.annotations
    assert state(living, claim) == "running"

    living.until(lambda: is_gone(living, claim), "all of it is gone", minutes=5)
    assert kinds_with_event(living, "NodeNotFound") == {"NodeClaim"}
    assert living.running() == 2


def test_a_node_that_registers_again_keeps_its_claim_and_accepts_pods(living):
    """Its kubelet was restarted, say, and closed it as it does every new node."""
    claim = living.claims()[0]
    living.server.patch(NODE, claim.status.node_name, {"metadata": {"finalizers": []}})
    living.server.delete(NODE, claim.status.node_name)
    living.live(minutes=10)

    node = living.server.get(NODE, claim.status.node_name)
    assert labels.UNREGISTERED_TAINT not in {taint.key for taint in node.spec.taints}
    assert node.metadata.labels[labels.REGISTERED] == "true"
    assert claim.metadata.name in {c.metadata.name for c in living.claims()}
    assert state(living, claim) == "running"
    assert "MetadataRestored" in living.record.reasons


def test_a_claim_goes_although_its_node_class_is_gone(living):
    """Termination does not need the NodeClass: a user removed its finalizer, so it did not wait for its claims."""
    claim = living.claims()[0]
    living.server.delete(EC2NODECLASS, "default")
    living.server.patch(EC2NODECLASS, "default", {"metadata": {"finalizers": []}})
    assert living.server.list(EC2NODECLASS).items == ()
    delete(living, claim)
    living.until(lambda: is_gone(living, claim), "all of it is gone", minutes=3)


def test_a_deleted_node_pool_drains_its_nodes_within_budgets(living):
    """The API server deletes its claims; no new one is opened for it meanwhile."""
    claims = living.claims()
    living.cluster.add(a_budget("web", maxUnavailable=0))
    living.server.delete(NODEPOOL, "default")
    living.live(minutes=5)
    assert [state(living, claim) for claim in claims] == ["running", "running"]
    assert living.running() == 2

    living.server.delete(PDB, "web", namespace="default")
    living.until(lambda: all(is_gone(living, claim) for claim in claims), "all of it is gone")
    assert living.claims() == ()
    assert len(living.cloud.launches) == 2


def test_a_pod_s_do_not_disrupt_is_honoured_and_its_end_reported(living):
    """A duration counts from its start; until then the Event says when, later that it is over."""
    claim = living.claims()[0]
    (pod,) = [p for p in living.server.list(POD).items if p.spec.node_name == claim.status.node_name]
    protection = {"metadata": {"annotations": {labels.DO_NOT_DISRUPT: "15m"}}}
    living.server.patch(POD, pod.metadata.name, protection, namespace="default")
    end = pod.status.start_time + timedelta(minutes=15)
    delete(living, claim)

    living.live(minutes=8)
    assert state(living, claim) == "running"
    (until,) = {event.message for event in living.record.events if event.reason == "DoNotDisruptUntil"}
    assert stamp(end) in until

    living.until(lambda: is_gone(living, claim), "all of it is gone", minutes=10)
    assert living.clock.now() >= end
    assert kinds_with_event(living, "DoNotDisruptGracePeriodElapsed") == {"Pod"}
