"""Static NodePools: the NodeClaims of each one, counted as running, being replaced and deleting.

=========  ======================================================================================
running    neither deleting nor being replaced
replaced   a disruption command replaces it (DisruptionReason)
expiring   expires soon: a missing replica is launched for it, as long as it counts against `limits.nodes`
deleting   being deleted; counts against `limits.nodes` until it is removed
adopting   a Node that has lost its NodeClaim, which the terminate step creates again; it counts as running
=========  ======================================================================================

It needs NodeClaims and NodePools only, so that the sweep can call it; those who create NodeClaims pass the nodes as well.

Restates: karpenter pkg/controllers/state/statenodepool.go `NodePoolState`.
Differs: counted from the cluster in each run, so that nothing is reserved or released. While nodes are being replaced,
only the replicas that are missing beside them are provisioned; Karpenter provisions the replaced ones once more, and
deprovisions them again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.conditions import DISRUPTION_REASON, EXPIRED
from journeyman.core.api.objects import NodeClaim, condition_of, is_true
from journeyman.core.api.resources import NODES

if TYPE_CHECKING:  # importing the model builds its validators, which the sweep does not need
    from journeyman.core.api.nodepool import NodePool
    from journeyman.core.state.state_node import StateNode


class StaticNodePool(Struct, frozen=True, kw_only=True):
    """A NodePool with `replicas`, and its NodeClaims, each kind by name."""

    pool: NodePool
    replicas: int
    running: tuple[NodeClaim, ...]
    replaced: tuple[NodeClaim, ...]
    deleting: tuple[NodeClaim, ...]
    expiring: tuple[NodeClaim, ...] = ()
    adopting: int = 0

    @property
    def name(self) -> str:
        """The NodePool's name."""
        return self.pool.metadata.name

    @property
    def surplus(self) -> int:
        """Number of running nodes beyond `replicas`; nodes that are being replaced do not count."""
        return max(len(self.running) - self.replicas, 0)

    @property
    def missing(self) -> int:
        """Number of nodes that are missing from `replicas`, whatever limits allow."""
        return max(self.replicas - len(self.running) - len(self.replaced) - self.adopting, 0)

    @property
    def existing(self) -> int:
        """Number of all nodes."""
        return len(self.running) + len(self.replaced) + len(self.deleting) + len(self.expiring) + self.adopting

    @property
    def allowed(self) -> int:
        """Number of the missing nodes that `limits.nodes` allows now."""
        limit = self.pool.spec.limit_amounts.get(NODES)
        if limit is None:
            return self.missing
        return min(self.missing, max(limit - self.existing, 0))


def static_nodepools(
    claims: Iterable[NodeClaim], pools: Iterable[NodePool], nodes: Iterable[StateNode] = ()
) -> tuple[StaticNodePool, ...]:
    """Return every static NodePool that is not being deleted, in the order given.

    Args:
        claims: All NodeClaims, by name.
        pools: All NodePools.
        nodes: All nodes, of which some may have lost their NodeClaim.
    """
    adopting = Counter(n.node.metadata.labels.get(labels.NODEPOOL, "") for n in nodes if n.node and _is_adopting(n))
    static = [p for p in pools if p.spec.replicas is not None and p.metadata.deletion_timestamp is None]
    by_pool: dict[str, list[NodeClaim]] = {pool.metadata.name: [] for pool in static}
    for claim in claims:
        by_pool.get(claim.metadata.labels.get(labels.NODEPOOL, ""), []).append(claim)
    return tuple(_counted(pool, by_pool[pool.metadata.name], adopting[pool.metadata.name]) for pool in static)


def _is_adopting(node: StateNode) -> bool:
    """Whether it may be adopted, and its kubelet reports: a machine that has stopped is not adopted."""
    ready = condition_of(node.node.status.conditions, "Ready") if node.node is not None else None
    return node.may_be_adopted and ready is not None and ready.status != "Unknown"


def _counted(pool: NodePool, claims: Iterable[NodeClaim], adopting: int) -> StaticNodePool:
    running: list[NodeClaim] = []
    replaced: list[NodeClaim] = []
    deleting: list[NodeClaim] = []
    expiring: list[NodeClaim] = []
    for claim in claims:
        if claim.metadata.deletion_timestamp is not None:
            deleting.append(claim)
        elif is_true(claim.status.conditions, DISRUPTION_REASON):
            reason = condition_of(claim.status.conditions, DISRUPTION_REASON)
            (expiring if reason is not None and reason.reason == EXPIRED else replaced).append(claim)
        else:
            running.append(claim)
    return StaticNodePool(
        pool=pool,
        replicas=pool.spec.replicas or 0,
        running=tuple(running),
        replaced=tuple(replaced),
        deleting=tuple(deleting),
        expiring=tuple(expiring),
        adopting=adopting,
    )
