"""Static NodePools: how many nodes one has, and how many it lacks or has too many of.

A claim counts as one of these:

=========  ======================================================================================
running    neither on its way out nor about to be
replaced   a disruption under way took it, and opens another in its place (DisruptionReason)
leaving    being deleted; against `limits.nodes` it counts to the last
=========  ======================================================================================

Claims and NodePools are enough to know all of that, so that even the sweep can tell what is due.

Restates: karpenter pkg/controllers/state/statenodepool.go.
Differs: counted from the cluster each time, so nothing has to be reserved or released. While nodes are replaced only
what is lacking beside them is opened; Karpenter opens the replaced ones' number once more, and takes it down again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.conditions import DISRUPTION_REASON
from journeyman.core.api.objects import NodeClaim, is_true
from journeyman.core.api.resources import NODES

if TYPE_CHECKING:  # the models build validators; nothing here needs them
    from journeyman.core.api.nodepool import NodePool


class StaticPool(Struct, frozen=True, kw_only=True):
    """A NodePool that asks for so many nodes (`replicas`), and its claims, each kind by name."""

    pool: NodePool
    replicas: int
    running: tuple[NodeClaim, ...]
    replaced: tuple[NodeClaim, ...]
    leaving: tuple[NodeClaim, ...]

    @property
    def name(self) -> str:
        """The NodePool's name."""
        return self.pool.metadata.name

    @property
    def surplus(self) -> int:
        """How many of the running ones are too many; nodes that are replaced do not count, lest their successors go."""
        return max(len(self.running) - self.replicas, 0)

    @property
    def lacking(self) -> int:
        """How many nodes it has too few of, whether it may open them or not."""
        return max(self.replicas - len(self.running) - len(self.replaced), 0)

    @property
    def allowed(self) -> int:
        """How many of those lacking `limits.nodes` leaves room for now."""
        limit = self.pool.spec.limit_amounts.get(NODES)
        if limit is None:
            return self.lacking
        return min(self.lacking, max(limit - len(self.running) - len(self.replaced) - len(self.leaving), 0))


def static_pools(claims: Iterable[NodeClaim], pools: Iterable[NodePool]) -> tuple[StaticPool, ...]:
    """Every static NodePool that is not being deleted, in the order given.

    Args:
        claims: All NodeClaims, by name.
        pools: All NodePools.
    """
    wanted = [p for p in pools if p.spec.replicas is not None and p.metadata.deletion_timestamp is None]
    by_pool: dict[str, list[NodeClaim]] = {pool.metadata.name: [] for pool in wanted}
    for claim in claims:
        by_pool.get(claim.metadata.labels.get(labels.NODEPOOL, ""), []).append(claim)
    return tuple(_counted(pool, by_pool[pool.metadata.name]) for pool in wanted)


def _counted(pool: NodePool, claims: Iterable[NodeClaim]) -> StaticPool:
    running: list[NodeClaim] = []
    replaced: list[NodeClaim] = []
    leaving: list[NodeClaim] = []
    for claim in claims:
        if claim.metadata.deletion_timestamp is not None:
            leaving.append(claim)
        elif is_true(claim.status.conditions, DISRUPTION_REASON):
            replaced.append(claim)
        else:
            running.append(claim)
    return StaticPool(
        pool=pool,
        replicas=pool.spec.replicas or 0,
        running=tuple(running),
        replaced=tuple(replaced),
        leaving=tuple(leaving),
    )
