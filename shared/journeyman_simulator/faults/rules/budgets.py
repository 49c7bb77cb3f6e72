"""Disruption budgets hold at every moment."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from journeyman.core.api.objects import NodeClaim
from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.faults.rules import Rule
from journeyman_simulator.faults.rules.looking import claims, holds, is_ours, lateness, pool_of, pools
from journeyman_simulator.faults.scene import Scene

_UNLIMITED = 1_000_000


class _Seen(Struct, frozen=True):
    """A pool at a moment."""

    at: datetime
    nodes: int
    budgets: list[Mapping[str, Any]]


class BudgetsHold(Rule):
    """Of a pool no more nodes are taken at once than its budgets allow for that reason.

    Nodes that are taken are those whose claims carry a DisruptionReason, until they are empty and their instances are being
    ended; such nodes count on neither side (karpenter `BuildDisruptionBudgetMapping`). A run that knows the
    cluster late is excused by what it may have seen.
    """

    name = "budgets"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._late = lateness(scene.story)
        self._taken: dict[str, str] = {}  # claims that carry a reason
        self._seen: dict[str, deque[_Seen]] = {}

    def on_write(self, write: Write) -> Iterator[str]:
        """Looks at each claim that is newly taken."""
        if write.resource.kind == "NodeClaim":
            taken = _reason(write.result)
            fresh = taken and write.name not in self._taken and is_ours(write)
            self._note(write.name, taken)
            if fresh:
                yield from self._judged(write.name, taken)
        if write.resource.kind in {"NodeClaim", "NodePool"}:
            self._remember()

    def _note(self, name: str, taken: str) -> None:
        if taken:
            self._taken[name] = taken
        else:
            self._taken.pop(name, None)

    def _judged(self, name: str, reason: str) -> Iterator[str]:
        all_ = claims(self.scene)
        pool = next((pool_of(claim) for claim in all_ if claim.metadata.name == name), "")
        taken = [c for c in all_ if pool_of(c) == pool and c.metadata.name in self._taken and not _has_ended(c)]
        self._remember()
        allowed = max((_allowed(seen, reason) for seen in self._seen.get(pool, ())), default=_UNLIMITED)
        if len(taken) > allowed:
            names = ", ".join(sorted(claim.metadata.name for claim in taken))
            yield f"{len(taken)} nodes of {pool} are taken ({names}), {allowed} may be ({reason})"

    def _remember(self) -> None:
        """What a run may know: the pools as they are, and as they were as long ago as a run may be late."""
        now = self.scene.clock.now()
        for pool in pools(self.scene):
            name = pool["metadata"]["name"]
            own = [claim for claim in claims(self.scene) if pool_of(claim) == name]
            budgets = (pool["spec"].get("disruption") or {}).get("budgets") or [{"nodes": "10%"}]
            seen = self._seen.setdefault(name, deque())
            seen.append(_Seen(now, sum(map(_counts, own)), budgets))
            while len(seen) > 1 and seen[1].at <= now - self._late:
                seen.popleft()


def _counts(claim: NodeClaim) -> bool:
    return holds(claim.status.conditions, "Initialized") and not _has_ended(claim)


def _has_ended(claim: NodeClaim) -> bool:
    return holds(claim.status.conditions, "InstanceTerminating")


def _reason(claim: Mapping[str, Any]) -> str:
    conditions = (claim.get("status") or {}).get("conditions") or ()
    return next(
        (c.get("reason", "?") for c in conditions if c["type"] == "DisruptionReason" and c["status"] == "True"), ""
    )


def _allowed(seen: _Seen, reason: str) -> int:
    """The smallest of the budgets that count: a number, or a share of the pool's nodes, rounded up."""
    counting = [b for b in seen.budgets if not b.get("reasons") or reason in b["reasons"]]
    return min((_number(str(budget["nodes"]), seen.nodes) for budget in counting), default=_UNLIMITED)


def _number(nodes: str, total: int) -> int:
    if not nodes.endswith("%"):
        return int(nodes)
    whole, rest = divmod(total * int(nodes[:-1]), 100)
    return whole + (rest > 0)
