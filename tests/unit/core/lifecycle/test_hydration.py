"""Hydration restores removed metadata of registered nodes, and does not change complete ones."""

import pytest

from journeyman.core.api import labels
from journeyman.core.lifecycle.hydration import hydrate_nodes, relabel_unreserved
from journeyman.core.state.instances import CloudInstances
from journeyman.ports import Instance
from tests.helpers.builders import CLASS_LABEL, NOW, a_node, a_running_claim, a_snapshot

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


def test_complete_node_needs_no_chain():
    """Most nodes are complete, and every run checks all of them."""
    assert hydrate() == ()


@pytest.mark.parametrize(
    ("changes", "restored"),
    [
        ({"metadata": {"finalizers": []}}, f"finalizer {labels.TERMINATION_FINALIZER}"),
        ({"metadata": {"ownerReferences": []}}, "owner NodeClaim default-1"),
        (
            {"spec": {"taints": [{"key": labels.UNREGISTERED_TAINT, "effect": "NoExecute"}]}},
            "registration of the recreated Node",
        ),
    ],
)
def test_removed_metadata_is_restored_with_an_event(changes, restored):
    """A single missing part is enough."""
    (chain,) = hydrate(**changes)
    assert len(chain.actions) == 1
    assert [event.message for event in chain.events] == [f"Restored what was removed or changed: {restored}"]


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
    instance = Instance(
        provider_id=own.status.provider_id,
        instance_type="m.medium",
        zone="a",
        capacity_type=capacity_type,
        state="running",
        launched_at=NOW,
    )
    return relabel_unreserved(a_snapshot(claims=(own,), nodes=(node,)), CloudInstances(listed=(instance,))).chains


def test_node_becomes_on_demand_when_its_reservation_ends():
    """The instance goes on running at another price; NodeClaim and Node lose the labels of the reservation."""
    (chain,) = relabel(labels.ON_DEMAND)

    assert [action.ref.resource.kind for action in chain.actions] == ["NodeClaim", "Node"]
    for action in chain.actions:
        assert action.patch["metadata"]["labels"] == {
            labels.CAPACITY_TYPE: labels.ON_DEMAND,
            labels.RESERVATION_ID: None,
            "karpenter.k8s.aws/capacity-reservation-type": None,
        }


def test_node_keeps_its_labels_while_it_is_reserved_or_was_not():
    """An on-demand instance that an open reservation takes in stays on-demand, as with Karpenter."""
    assert relabel(labels.RESERVED) == ()
    assert relabel(labels.ON_DEMAND, claim_labels={labels.CAPACITY_TYPE: labels.ON_DEMAND}) == ()
    assert relabel(labels.RESERVED, claim_labels={labels.CAPACITY_TYPE: labels.ON_DEMAND}) == ()
    assert relabel(labels.ON_DEMAND, status={"conditions": []}) == ()
