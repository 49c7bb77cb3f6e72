"""Self-healing: marks that no command answers for are taken off, and history that is old is forgotten.

Restates: karpenter pkg/controllers/disruption/controller.go `Reconcile`, its first part.
Differs: Karpenter forgets its commands on a restart and takes all marks off; here commands survive, so only marks
without one (an operator deleted the NodeDisruption, a run died between two writes) are.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Final

from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.objects import NODE_DISRUPTION
from journeyman.core.disruption.damping import was_in_vain
from journeyman.core.disruption.in_flight import under_way
from journeyman.core.disruption.marks import unmark
from journeyman.core.plan import Action, Chain, DeleteObject, ObjectRef, Plan, chain_of
from journeyman.core.state import Snapshot

HISTORY: Final = timedelta(hours=24)
MOST_HISTORY: Final = 100
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


def heal(snapshot: Snapshot) -> Plan:
    """Take taint and DisruptionReason off nodes that are neither leaving nor named by an active command."""
    return Plan(chains=tuple(chain_of(f"NodeClaim {name}", *actions) for name, actions in _stale_marks(snapshot)))


def forget(snapshot: Snapshot) -> Plan:
    """Delete NodeDisruptions that ended over a day ago, and the oldest ones beyond a hundred.

    Those that were in vain are counted apart, lest the others push out what consolidation is held back by.
    """
    ended = sorted((d for d in snapshot.node_disruptions if d.finished), key=_newest_first)
    kinds = ([d for d in ended if was_in_vain(d)], [d for d in ended if not was_in_vain(d)])
    ranked = (entry for kind in kinds for entry in enumerate(kind))
    old = [d for rank, d in ranked if rank >= MOST_HISTORY or snapshot.now - _end(d) > HISTORY]
    return Plan(chains=tuple(_deletion(d) for d in sorted(old, key=lambda d: d.metadata.name)))


def marked(snapshot: Snapshot) -> frozenset[str]:
    """Names of the claims whose marks `heal` takes off."""
    return frozenset(name for name, _ in _stale_marks(snapshot))


def _stale_marks(snapshot: Snapshot) -> Iterator[tuple[str, tuple[Action, ...]]]:
    busy = under_way(snapshot)
    for node in snapshot.state_nodes:
        if node.claim is None or node.deleting or node.claim.metadata.name in busy:
            continue
        actions = unmark(node, "no disruption is under way", snapshot.now)
        if actions:
            yield node.claim.metadata.name, actions


def _end(disruption: NodeDisruption) -> datetime:
    return disruption.status.finished_at or disruption.since or _EPOCH


def _newest_first(disruption: NodeDisruption) -> tuple[float, str]:
    return (-_end(disruption).timestamp(), disruption.metadata.name)


def _deletion(disruption: NodeDisruption) -> Chain:
    name = disruption.metadata.name
    ref = ObjectRef(resource=NODE_DISRUPTION, name=name, uid=disruption.metadata.uid)
    return chain_of(f"NodeDisruption {name}", DeleteObject(ref=ref, why="history"))
