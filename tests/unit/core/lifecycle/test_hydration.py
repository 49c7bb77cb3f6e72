"""Hydration restores removed metadata of registered nodes, and does not change complete ones."""

import pytest

from journeyman.core.api import labels
from journeyman.core.lifecycle.hydration import hydrate_nodes, relabel_unreserved
from journeyman.core.state.instances import CloudInstances
from tests.helpers.builders import CLASS_LABEL, a_node, a_running_claim, a_snapshot, an_instance

OWNER = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodeClaim",
    "name": "default-1",
    "uid": "uid-default-1",
    "blockOwnerDeletion": True,
}


def hydrate(**changes):
    """Return the chains for the complete node of a running NodeClaim with these changes."""
    metadata = {"ownerReferences": [OWNER], **changes.pop("metadata", {})}
    return hydrate_nodes(a_snapshot(claims=(a_running_claim(),), nodes=(a_node(metadata=metadata, **changes),))).chains


REGISTERED_AGAIN = {"taints": [{"key": labels.UNREGISTERED_TAINT, "effect": "NoExecute"}]}


@pytest.mark.parametrize(
    ("changes", "restored"),
    [
        ({"metadata": {"finalizers": []}}, f"finalizer {labels.TERMINATION_FINALIZER}"),
        ({"metadata": {"ownerReferences": []}}, "owner NodeClaim default-1"),
        ({"spec": REGISTERED_AGAIN}, "registration of the recreated Node"),
    ],
)
def test_removed_metadata_is_restored_with_an_event(changes, restored):
    """A single missing part is enough. Most nodes are complete, and every run checks all of them."""
    (chain,) = hydrate(**changes)
    assert len(chain.actions) == 1
    assert [event.message for event in chain.events] == [f"Restored what was removed or changed: {restored}"]
    assert hydrate() == ()


def test_missing_nodeclass_label_is_added_without_an_event():
    """Older versions of Karpenter did not set it."""
    node = a_node(metadata={"ownerReferences": [OWNER], "labels": {CLASS_LABEL: "x"}})
    del node.metadata.labels[CLASS_LABEL]
    (chain,) = hydrate_nodes(a_snapshot(claims=(a_running_claim(),), nodes=(node,))).chains
    assert chain.actions[0].patch == {"metadata": {"labels": {CLASS_LABEL: "default"}}}
    assert chain.events == ()


RESERVED = {
    labels.CAPACITY_TYPE: labels.RESERVED,
    labels.RESERVATION_ID: "cr-1",
    "karpenter.k8s.aws/capacity-reservation-type": "default",
}


def relabel(capacity_type, *, claim_labels=RESERVED, **claim):
    """Return the chains for a reserved node whose instance has this capacity type now."""
    own = a_running_claim(metadata={"labels": claim_labels}, **claim)
    node = a_node(metadata={"labels": claim_labels})
    instance = an_instance(capacity_type=capacity_type)
    return relabel_unreserved(a_snapshot(claims=(own,), nodes=(node,)), CloudInstances(listed=(instance,))).chains


def test_node_becomes_on_demand_when_its_reservation_ends():
    """The instance goes on running at another price; NodeClaim and Node lose the labels of the reservation."""
    (chain,) = relabel(labels.ON_DEMAND)

    assert [action.ref.resource.kind for action in chain.actions] == ["NodeClaim", "Node"]
    relabelled = {**dict.fromkeys(RESERVED), labels.CAPACITY_TYPE: labels.ON_DEMAND}
    assert [action.patch["metadata"]["labels"] for action in chain.actions] == [relabelled] * 2


def test_node_keeps_its_labels_while_it_is_reserved_or_was_not():
    """An on-demand instance that an open reservation takes in stays on-demand, as with Karpenter."""
    assert relabel(labels.RESERVED) == ()
    for kind in (labels.ON_DEMAND, labels.RESERVED):
        assert relabel(kind, claim_labels={labels.CAPACITY_TYPE: labels.ON_DEMAND}) == ()
    assert relabel(labels.ON_DEMAND, status={"conditions": []}) == ()
