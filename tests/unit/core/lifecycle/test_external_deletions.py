"""What nobody here decided is told once, when it begins."""

from datetime import timedelta

import pytest

from journeyman.core.lifecycle.termination import external_deletion_events
from journeyman.core.state import InvalidObject
from tests.helpers.builders import NOW, a_launched_claim, a_node, a_pool, a_running_claim, a_snapshot, ago, condition

OWNED = {
    "ownerReferences": [
        {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "name": "default", "uid": a_pool().metadata.uid}
    ]
}
GOING = {"deletionTimestamp": "2026-03-02T21:00:00Z", "finalizers": ["foregroundDeletion"]}
INVALID = InvalidObject(kind="NodePool", name="default", uid=a_pool().metadata.uid, why="it does not validate")


def told(claim, node=None, **kwargs):
    snapshot = a_snapshot(claims=(claim,), nodes=(node,) if node else (), **kwargs)
    return [
        (e.ref.resource.kind, e.ref.uid, e.reason) for e in external_deletion_events(snapshot.state_nodes[0], snapshot)
    ]


def test_a_deleted_node_is_why_its_claim_goes():
    """Said on both, and no more once the claim is being deleted: then that is our doing."""
    node = a_node(deleting=NOW)
    claim = a_running_claim()
    assert told(claim, node, node_pools=(a_pool(),)) == [
        ("NodeClaim", claim.metadata.uid, "NodeDeleted"),
        ("Node", node.metadata.uid, "NodeDeleted"),
    ]
    assert told(a_running_claim(deleting=NOW), node, node_pools=(a_pool(),)) == []


@pytest.mark.parametrize(
    "pools",
    [(), (a_pool(metadata=GOING),), (a_pool(metadata={"uid": "another"}),)],
    ids=["gone", "going", "made anew"],
)
@pytest.mark.parametrize("claim", [a_launched_claim, a_running_claim], ids=["in mid-launch", "at work"])
def test_a_deleted_pool_is_why_its_claims_go(pools, claim):
    """The API server deletes them with their owner, and says nothing."""
    assert told(claim(deleting=NOW, metadata=OWNED), node_pools=pools) == [
        ("NodeClaim", "uid-default-1", "NodePoolDeleted")
    ]


def test_a_pool_that_does_not_validate_is_there():
    """A claim that is deleted meanwhile goes because somebody wanted that."""
    assert told(a_running_claim(deleting=NOW, metadata=OWNED), node_pools=(), invalid_objects=(INVALID,)) == []


def test_a_claim_that_no_pool_owns_goes_as_somebody_wants_it():
    """Its label alone takes no claim along."""
    assert told(a_running_claim(deleting=NOW), node_pools=()) == []


def test_it_is_told_once():
    """Later runs see what the first one wrote."""
    begun = condition("Drained", "Unknown", since=ago(seconds=1), reason="Draining")
    claim = a_running_claim(deleting=NOW - timedelta(seconds=1), metadata=OWNED, status={"conditions": [begun]})
    assert told(claim, node_pools=()) == []
