"""Deletions from outside are recorded as Events once, when the termination starts."""

import pytest

from journeyman.core.lifecycle.termination import external_deletion_events
from journeyman.core.state import InvalidObject
from tests.helpers.builders import NOW, a_launched_claim, a_node, a_pool, a_running_claim, a_snapshot, ago, condition
from tests.helpers.small_clusters import table

OWNED = {
    "ownerReferences": [
        {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "name": "default", "uid": a_pool().metadata.uid}
    ]
}
GOING = {"deletionTimestamp": "2026-03-02T21:00:00Z", "finalizers": ["foregroundDeletion"]}
INVALID = InvalidObject(kind="NodePool", name="default", uid=a_pool().metadata.uid, why="it does not validate")


def recorded_events(claim, node=None, **kwargs):
    snapshot = a_snapshot(claims=(claim,), nodes=(node,) if node else (), **kwargs)
    found = external_deletion_events(snapshot.state_nodes[0], snapshot)
    return [(e.ref.resource.kind, e.ref.uid, e.reason) for e in found]


def test_deleted_node_is_recorded_on_its_nodeclaim():
    """Both get an Event; a terminating NodeClaim gets none, because then Journeyman deleted the node."""
    node = a_node(deleting=NOW)
    claim = a_running_claim()
    assert recorded_events(claim, node, node_pools=(a_pool(),)) == [
        ("NodeClaim", claim.metadata.uid, "NodeDeleted"),
        ("Node", node.metadata.uid, "NodeDeleted"),
    ]
    assert recorded_events(a_running_claim(deleting=NOW), node, node_pools=(a_pool(),)) == []


@pytest.mark.parametrize(
    "pools", [(), (a_pool(metadata=GOING),), (a_pool(metadata={"uid": "another"}),)], ids=["gone", "going", "made anew"]
)
@pytest.mark.parametrize("claim", [a_launched_claim, a_running_claim], ids=["in mid-launch", "running"])
def test_deleted_nodepool_is_recorded_on_its_nodeclaims(pools, claim):
    """The garbage collector deletes them with their owner, without an Event."""
    assert recorded_events(claim(deleting=NOW, metadata=OWNED), node_pools=pools) == [
        ("NodeClaim", "uid-default-1", "NodePoolDeleted")
    ]


BEGUN = condition("Drained", "Unknown", since=ago(seconds=1), reason="Draining")


@table(
    "claim, parts",
    its_nodepool_is_only_invalid=(a_running_claim(deleting=NOW, metadata=OWNED), {"invalid_objects": (INVALID,)}),
    no_nodepool_owns_it_as_the_garbage_collector_sees_it=(a_running_claim(deleting=NOW), {}),
    an_earlier_run_recorded_it=(
        a_running_claim(deleting=ago(seconds=1), metadata=OWNED, status={"conditions": [BEGUN]}), {}
    ),
)  # fmt: skip
def test_other_deletions_are_not_recorded(claim, parts):
    """A NodeClaim that is deleted then was deleted by a user. The condition that the first run wrote says that it is recorded."""
    assert recorded_events(claim, node_pools=(), **parts) == []
