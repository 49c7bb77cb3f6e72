"""Static pools have as many nodes as they ask for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from journeyman.core.api.objects import NodeClaim
from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.faults.rules import Rule
from journeyman_simulator.faults.rules.looking import (
    claim_named,
    claims,
    holds,
    is_leaving,
    is_ours,
    lateness,
    pool_of,
    pools,
)
from journeyman_simulator.faults.scene import Scene


class StaticPoolsKeepTheirSize(Rule):
    """A static pool is never given more nodes than it asks for; at rest it has just so many.

    Nodes on their way out do not count, nor do those that a command takes: what takes their place may stand beside them.
    """

    name = "static pools have as many nodes as they ask for"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._late = lateness(scene.story)
        self._asked: dict[str, deque[tuple[datetime, int]]] = {}
        self._look()

    def on_write(self, write: Write) -> Iterator[str]:
        """Looks at each node that we open in such a pool."""
        if write.resource.kind == "NodePool":
            self._look()
        elif write.resource.kind == "NodeClaim" and write.verb == "create" and is_ours(write):
            self._look()
            claim = claim_named(self.scene, write.name)
            if claim is not None and pool_of(claim) in self._asked:
                yield from self._judged(pool_of(claim))

    def at_rest(self) -> Iterator[str]:
        """Counts."""
        for pool in pools(self.scene):
            name, asked = pool["metadata"]["name"], _asked(pool)
            own = [claim.metadata.name for claim in claims(self.scene) if pool_of(claim) == name]
            if asked is not None and not pool["metadata"].get("deletionTimestamp") and len(own) != asked:
                yield f"{name} asks for {asked} nodes, and has {len(own)} ({', '.join(sorted(own)) or 'none'})"

    def _judged(self, pool: str) -> Iterator[str]:
        standing = [c.metadata.name for c in claims(self.scene) if pool_of(c) == pool and not _goes(c)]
        most = max(asked for _, asked in self._asked[pool])
        if len(standing) > most:
            yield f"{pool} asks for {most} nodes, and is given {len(standing)} ({', '.join(sorted(standing))})"

    def _look(self) -> None:
        """What static pools ask for, and what they asked for as long ago as a run may be late."""
        now = self.scene.clock.now()
        for pool in pools(self.scene):
            asked = _asked(pool)
            if asked is not None:
                known = self._asked.setdefault(pool["metadata"]["name"], deque())
                known.append((now, asked))
                while len(known) > 1 and known[1][0] <= now - self._late:
                    known.popleft()


def _asked(pool: Mapping[str, Any]) -> int | None:
    """None for pools that are not static."""
    replicas = pool["spec"].get("replicas")
    return None if replicas is None else int(replicas)


def _goes(claim: NodeClaim) -> bool:
    return is_leaving(claim) or holds(claim.status.conditions, "DisruptionReason")
