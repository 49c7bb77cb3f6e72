"""Why a node goes where no decision of ours says so: somebody deleted its Node, or its NodePool.

Karpenter says nothing of either.
"""

from __future__ import annotations

from collections.abc import Iterator

from journeyman.core.api.conditions import DRAINED, INSTANCE_TERMINATING
from journeyman.core.api.objects import NODEPOOL, NodeClaim, OwnerReference, condition_of
from journeyman.core.lifecycle.progress import refs_of
from journeyman.core.plan import Event
from journeyman.core.state import Snapshot, StateNode


def told_why(state: StateNode, snapshot: Snapshot) -> tuple[Event, ...]:
    """Events on the claim and its node, when their end begins; none later, nor if somebody deleted the claim itself.

    Args:
        state: A claim that leaves, or whose node does.
        snapshot: The NodePools, those that do not validate included.
    """
    if state.claim is None or _has_begun(state.claim):
        return ()
    causes = tuple(_causes(state, snapshot))
    return tuple(Event(ref=ref, reason=reason, message=text) for ref in refs_of(state) for reason, text in causes)


def _has_begun(claim: NodeClaim) -> bool:
    return any(condition_of(claim.status.conditions, type_) is not None for type_ in (DRAINED, INSTANCE_TERMINATING))


def _causes(state: StateNode, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    assert state.claim is not None  # noqa: S101 - the caller's
    name = state.claim.metadata.name
    if state.claim.metadata.deletion_timestamp is None:
        yield (
            "NodeDeleted",
            f"Node {state.name} was deleted: NodeClaim {name} goes with it, and its instance once it is drained",
        )
        return
    for owner in state.claim.metadata.owner_references:
        if owner.kind == NODEPOOL.kind and _is_going(owner, snapshot):
            yield "NodePoolDeleted", f"NodePool {owner.name} was deleted: NodeClaim {name} goes with it"


def _is_going(owner: OwnerReference, snapshot: Snapshot) -> bool:
    """Whether the NodePool is gone, or another one has its name by now, or it is being deleted."""
    pool = snapshot.node_pools_by_name.get(owner.name)
    if pool is not None and pool.metadata.uid == owner.uid:
        return pool.metadata.deletion_timestamp is not None
    return not any(item.kind == NODEPOOL.kind and item.uid == owner.uid for item in snapshot.set_aside)
