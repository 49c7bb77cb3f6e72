"""Hydration restores removed metadata of registered nodes, and does not change complete ones."""

import pytest

from journeyman.core.api import labels
from journeyman.core.lifecycle.hydration import hydrate_nodes
from tests.helpers.builders import CLASS_LABEL, a_node, a_running_claim, a_snapshot

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


@pytest.mark.karpenter("node/hydration", it="should hydrate missing metadata onto the Node")
def test_missing_nodeclass_label_is_added_without_an_event():
    """Older versions of Karpenter did not set it."""
    node = a_node(metadata={"ownerReferences": [OWNER], "labels": {CLASS_LABEL: "x"}})
    del node.metadata.labels[CLASS_LABEL]
    (chain,) = hydrate_nodes(a_snapshot(claims=(a_running_claim(),), nodes=(node,))).chains
    assert chain.actions[0].patch == {"metadata": {"labels": {CLASS_LABEL: "default"}}}
    assert chain.events == ()
