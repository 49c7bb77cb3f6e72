"""Pools' limits hold whenever a node is opened."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from datetime import datetime

from journeyman.core.api.objects import NodeClaim
from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.faults.rules import Rule
from journeyman_simulator.faults.rules.looking import (
    UID_TAG,
    claim_named,
    claims,
    cpus,
    has_taint,
    holds,
    is_leaving,
    lateness,
    nodes,
    pool_of,
    pools,
)
from journeyman_simulator.faults.scene import CloudEvent, Scene

_UNLIMITED = 1_000_000


class LimitsHold(Rule):
    """A pool's nodes have no more vCPUs together than its limit says, as it stood when the newest claim was created.

    Nodes on their way out do not count, as for Karpenter: what takes their place may stand beside them.
    """

    name = "limits"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._late = lateness(scene.story)
        self._limits: dict[str, deque[tuple[datetime, int]]] = {}
        self._at_creation: dict[str, int] = {}
        self._look()

    def on_write(self, write: Write) -> Iterator[str]:
        """Keeps limits as they change, and what they were when a claim was created."""
        kind = write.resource.kind
        if kind == "NodePool":
            self._look()
        elif kind == "NodeClaim" and write.verb == "create":
            self._look()
            pool = write.result["metadata"].get("labels", {}).get("karpenter.sh/nodepool", "")
            limits = self._limits.get(pool, ())
            self._at_creation[write.name] = max((limit for _, limit in limits), default=_UNLIMITED)
        yield from ()

    def on_cloud(self, event: CloudEvent) -> Iterator[str]:
        """Adds up at each launch."""
        claim = claim_named(self.scene, event.instance.claim)
        if event.kind != "launched" or claim is None:
            return
        limit = self._at_creation.get(claim.metadata.name, _UNLIMITED)
        gone = {
            node.spec.provider_id for node in nodes(self.scene) if node.metadata.deletion_timestamp or has_taint(node)
        }
        standing = {c.metadata.uid for c in claims(self.scene) if pool_of(c) == pool_of(claim) and not _goes(c, gone)}
        total = sum(cpus(i.instance_type) for i in self.scene.instances() if i.runs and i.tags.get(UID_TAG) in standing)
        if total > limit:
            yield f"{pool_of(claim)} has {total} vCPUs with {event.instance.instance_type} {claim.metadata.name}, {limit} may be"

    def _look(self) -> None:
        now = self.scene.clock.now()
        for pool in pools(self.scene):
            limit = (pool["spec"].get("limits") or {}).get("cpu")
            known = self._limits.setdefault(pool["metadata"]["name"], deque())
            known.append((now, int(limit) if limit else _UNLIMITED))
            while len(known) > 1 and known[1][0] <= now - self._late:
                known.popleft()


def _goes(claim: NodeClaim, gone: Collection[str]) -> bool:
    """Whether it or its node was deleted, or a command takes it once its replacement is ready."""
    return is_leaving(claim) or claim.status.provider_id in gone or holds(claim.status.conditions, "DisruptionReason")
