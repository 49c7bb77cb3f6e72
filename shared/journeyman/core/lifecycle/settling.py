"""Settling: nodes that join within the same seconds get their hints together, and open together a little later.

kube-scheduler's watch of pods lags behind its watch of nodes, by 100 ms and more: a node that opens right after its hints
is filled by whoever is tried first. And whatever happens to any node makes kube-scheduler try the pods that wait, and
takes the hints of those for whom nothing is open yet. So

* nodes that are ready wait for those launched no later than they, for `GATHER` at most; then all their pods are nominated;
* a run that nominates opens no node: they open once no pod was nominated to any of them for `SETTLE`, and `MOST_SETTLE`
  after its first hints at the latest;
* a node that joined `HOLD` ago waits for nothing: daemons that do not tolerate the taint may wait for it.

The claim's annotation `hinted-at` says when its hints were first given. Without it (the run died before it was written)
pods that have their hints wait for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.objects import Node, NodeClaim, condition_of, is_true
from journeyman.core.lifecycle.hints import HOLD, Hints, hinted_at, is_held
from journeyman.core.lifecycle.progress import with_metadata
from journeyman.core.scheduling.claims import remembered_pods
from journeyman.core.state import Snapshot

SETTLE: Final = timedelta(seconds=2)
"""Counted from the beginning of the run that nominates; its own requests take some of it."""
MOST_SETTLE: Final = timedelta(seconds=12)
"""How long after its first hints a node waits for pods that keep losing theirs, and for those of other nodes."""
GATHER: Final = timedelta(seconds=10)
"""How long a node that is ready waits for others: a third of the half minute and more that a node takes to boot."""
SETTLES_FROM: Final = 50
"""Planned pods. With fewer, seconds to running matter more than the odd pod that goes elsewhere."""
_SAME_LAUNCH: Final = timedelta(seconds=2)
"""Claims of one run are created one after the other."""


def hinted(claim: NodeClaim, now: datetime) -> NodeClaim:
    """The claim, saying since when its pods have hints, to the millisecond; what it says already stays."""
    if hinted_at(claim) is not None:
        return claim
    at = now.isoformat(timespec="milliseconds")
    return with_metadata(claim, annotations={**claim.metadata.annotations, labels.NOMINATED_AT: at})


class Settling(Struct, frozen=True, kw_only=True):
    """When pods are nominated to the nodes that are closed, and when these are opened."""

    now: datetime
    hinting: datetime
    opening: datetime
    is_worth_it: bool = True

    @classmethod
    def of(cls, snapshot: Snapshot, nodes: Mapping[str, Sequence[Node]], hints: Hints, least: int = 0) -> Settling:
        """Of all claims whose nodes are closed or have yet to join.

        Args:
            snapshot: The moment.
            nodes: By provider id.
            hints: Whom this run may nominate.
            least: Nodes planned for fewer pods than that, all together, are hinted and opened at once: the few that
                kube-scheduler puts elsewhere are not worth the others' seconds.
        """
        now = snapshot.now
        on_their_way = [c for c in snapshot.claims if _is_on_its_way(c, nodes.get(c.status.provider_id, ()), now)]
        if sum(len(remembered_pods(c.metadata.annotations)) for c in on_their_way) < least:
            return cls(now=now, hinting=now, opening=now, is_worth_it=False)
        ready = {
            c.metadata.name: node for c in on_their_way if (node := _ready(nodes.get(c.status.provider_id, ()), now))
        }
        closed = [claim for claim in on_their_way if claim.metadata.name in ready]
        since = [at for at in map(hinted_at, closed) if at is not None]
        waiting = [claim for claim in closed if hints.waiting(claim)]
        hinting = now
        if not since and _is_waited_for(on_their_way, closed, hints):
            hinting = min(_ready_since(ready[claim.metadata.name], now) for claim in waiting or closed) + GATHER
        latest = now if waiting else max(since, default=now)
        return cls(now=now, hinting=hinting, opening=min([latest + SETTLE, *(at + MOST_SETTLE for at in since)]))

    def hinted_from(self, node: Node) -> datetime | None:
        """When pods are nominated to this node, None if it may be now."""
        return self._later(node, self.hinting)

    def opened_from(self, claim: NodeClaim, node: Node) -> datetime | None:
        """When this node is opened, None if it may be now."""
        at = hinted_at(claim) if self.is_worth_it else None
        return self._later(node, max(at + SETTLE, self.opening)) if at is not None else None

    def _later(self, node: Node, at: datetime) -> datetime | None:
        joined = node.metadata.creation_timestamp
        at = min(at, joined + HOLD) if joined is not None else self.now
        return at if at > self.now else None


def _is_on_its_way(claim: NodeClaim, nodes: Sequence[Node], now: datetime) -> bool:
    """Whether it has an instance whose node has yet to join, or is closed and has not been for too long."""
    if not claim.status.provider_id or claim.metadata.deletion_timestamp is not None:
        return False
    joined = nodes[0].metadata.creation_timestamp if nodes else now
    return joined is not None and now < joined + HOLD and not is_true(claim.status.conditions, "Registered")


def _ready(nodes: Sequence[Node], now: datetime) -> Node | None:
    """The claim's node, if it could take pods."""
    return nodes[0] if len(nodes) == 1 and not is_held(nodes[0], now) else None


def _ready_since(node: Node, now: datetime) -> datetime:
    ready = condition_of(node.status.conditions, "Ready")
    return now if ready is None or ready.last_transition_time is None else ready.last_transition_time


def _is_waited_for(on_their_way: Sequence[NodeClaim], closed: Sequence[NodeClaim], hints: Hints) -> bool:
    """Whether pods wait for others of the same launches, or of earlier ones."""
    created = [claim.metadata.creation_timestamp for claim in closed if claim.metadata.creation_timestamp is not None]
    if not created:
        return False
    names, last = {claim.metadata.name for claim in closed}, max(created) + _SAME_LAUNCH
    others = (claim for claim in on_their_way if claim.metadata.name not in names)
    return any(
        c.metadata.creation_timestamp is None or c.metadata.creation_timestamp <= last
        for c in others
        if hints.waiting(c)
    )
