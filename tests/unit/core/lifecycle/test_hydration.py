"""Hydration: registered nodes get back what was removed from them, and complete ones are left alone."""

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
    """The chains for the node of a running NodeClaim, complete but for these changes."""
    metadata = {"ownerReferences": [OWNER], **changes.pop("metadata", {})}
    return hydrate_nodes(a_snapshot(claims=(a_running_claim(),), nodes=(a_node(metadata=metadata, **changes),))).chains


def test_complete_node_needs_no_chain():
    """Every sweep looks at every node."""
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
def test_what_a_node_lacks_is_restored_and_named(changes, restored):
    """One thing missing is enough."""
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
