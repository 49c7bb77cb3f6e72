"""Finds the NodePools that may launch no nodes.

Their offerings give no topology domains either: kube-scheduler knows the domains of existing nodes only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from journeyman.core.api.conditions import REGISTERED
from journeyman.core.api.objects import is_true
from journeyman.core.state import Snapshot
from journeyman.core.state.launch_backoff import backoffs_of, claims_of

if TYPE_CHECKING:  # the models build validators; nothing here needs them
    from journeyman.core.api.nodepool import NodePool


def why_unusable(pool: NodePool, snapshot: Snapshot) -> str:
    """Return why the NodePool may launch no nodes; empty if it may."""
    if pool.spec.static:
        return "has a fixed number of nodes"
    if pool.metadata.deletion_timestamp is not None:
        return "is being deleted"
    if pool.is_hibernating(snapshot.now):
        return "hibernates"
    node_class = snapshot.node_class_of(pool)
    if node_class is None or node_class.deleting or not node_class.ready:
        return "has no NodeClass that is ready"
    return _why_waiting(pool, snapshot)


def _why_waiting(pool: NodePool, snapshot: Snapshot) -> str:
    """Return why the NodePool waits after a failed launch: for the end of the back-off, then for the one node that tries again."""
    for backoff in backoffs_of(pool, snapshot):
        if not backoff.is_over:
            return "launches nothing for now, because of a failed launch"
        ended = backoff.until.replace(microsecond=0)  # as the API server writes times of creation
        tries = [
            claim
            for claim in claims_of(backoff.fault.key, snapshot)
            if claim.metadata.creation_timestamp is not None and claim.metadata.creation_timestamp >= ended
        ]
        if tries and not any(is_true(claim.status.conditions, REGISTERED) for claim in tries):
            name = tries[0].metadata.name
            return f"launches nothing until the node of NodeClaim {name} registers, after a failed launch"
    return ""
