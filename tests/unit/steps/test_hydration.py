"""The terminate step restores metadata that Karpenter, a user or the kubelet changed on claims and nodes."""

import pytest

from journeyman.core.api import labels
from journeyman.core.api.hashes import NODEPOOL_HASH_VERSION
from journeyman.core.api.objects import NODE, NODECLAIM, NODEPOOL, is_true
from tests.helpers.builders import CLASS, CLASS_LABEL, SMALL, pool_body
from tests.helpers.living import Living


@pytest.fixture
def living():
    """One node with a pod, which nothing consolidates."""
    living = Living((SMALL,), pool_body(spec={"disruption": {"consolidateAfter": "Never"}}))
    living.deploy("web", 1, cpu="1.5")
    living.until(lambda: living.running() == 1 and is_true(the_claim(living).status.conditions, "Ready"), "a pod runs")
    return living


def the_claim(living):
    [claim] = living.claims()
    return claim


def the_node(living):
    [node] = living.server.list(NODE).items
    return node


def messages_of(living, reason):
    return [event.message for event in living.record.events if event.reason == reason]


def test_what_was_taken_off_a_living_node_is_back_within_two_minutes(living):
    """Without the finalizer it would go without a drain, without the labels no controller would recognise it."""
    node = the_node(living)
    gone = dict.fromkeys([labels.REGISTERED, labels.INITIALIZED, labels.NODEPOOL])
    living.server.patch(
        NODE, node.metadata.name, {"metadata": {"finalizers": [], "ownerReferences": [], "labels": gone}}
    )

    living.live(minutes=2)

    healed = the_node(living).metadata
    assert healed.finalizers == node.metadata.finalizers
    assert healed.labels == node.metadata.labels
    assert healed.owner_references == node.metadata.owner_references
    [message] = messages_of(living, "MetadataRestored")
    assert all(mark in message for mark in ("finalizer", "owner", labels.NODEPOOL, labels.REGISTERED))


def test_a_cluster_taken_over_from_karpenter_keeps_its_nodes(living):
    """Labels that older releases did not set are added, hashes are stamped anew; no node is replaced, and no Event is emitted."""
    claim, node = the_claim(living), the_node(living)
    theirs = {labels.NODEPOOL_HASH: "17231489120348", labels.NODEPOOL_HASH_VERSION: "v3"}
    living.server.patch(NODEPOOL, "default", {"metadata": {"annotations": theirs}})
    living.server.patch(
        NODECLAIM, claim.metadata.name, {"metadata": {"annotations": theirs, "labels": {CLASS_LABEL: None}}}
    )
    living.server.patch(NODE, node.metadata.name, {"metadata": {"labels": {CLASS_LABEL: None}}})

    living.live(minutes=3)

    adopted, pool = the_claim(living).metadata, living.server.get(NODEPOOL, "default")["metadata"]
    assert adopted.uid == claim.metadata.uid
    assert adopted.labels[CLASS_LABEL] == the_node(living).metadata.labels[CLASS_LABEL] == CLASS
    assert adopted.annotations[labels.NODEPOOL_HASH_VERSION] == NODEPOOL_HASH_VERSION
    assert adopted.annotations[labels.NODEPOOL_HASH] == pool["annotations"][labels.NODEPOOL_HASH] != "17231489120348"
    assert messages_of(living, "MetadataRestored") == []
    assert len(living.cloud.launches) == 1


def test_a_node_smaller_than_its_claim_is_reported_in_ten_minutes(living):
    """A huge page setting, a broken bank of memory: pods that were planned for it may not fit."""
    assert is_true(the_claim(living).status.conditions, "ConsistentStateFound")
    living.server.patch(
        NODE, the_node(living).metadata.name, {"status": {"capacity": {"memory": "2Gi"}}}, subresource="status"
    )

    living.live(minutes=11)

    [message] = set(messages_of(living, "FailedConsistencyCheck"))
    assert message == "expected 8Gi of resource memory, but found 2Gi (25.0% of expected)"
    assert not is_true(the_claim(living).status.conditions, "ConsistentStateFound")
