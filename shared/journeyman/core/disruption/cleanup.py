"""Clean-up of disruption: removes taints and conditions without a command, and deletes old NodeDisruptions.

Restates: karpenter pkg/controllers/disruption/controller.go `Reconcile`, its first part.
Differs: Karpenter loses its commands on a restart and removes all taints then. Here commands survive, so only taints
without a command are stale: a user deleted the NodeDisruption, or a run crashed between two writes.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Final

from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.objects import NODE_DISRUPTION
from journeyman.core.disruption.churn_counts import counted_commands
from journeyman.core.disruption.commands import claims_in_commands
from journeyman.core.disruption.orchestration import undo_disruption
from journeyman.core.plan import Action, Chain, DeleteObject, ObjectRef, Plan, chain_of
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.expiration_times import expires_soon
from journeyman.core.state.skipped_objects import evaluate, plan_for_each

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


def remove_stale_taints(snapshot: Snapshot) -> Plan:
    """Remove taint and DisruptionReason from nodes that neither are deleting, nor expire soon, nor are in an unfinished command."""
    in_commands = claims_in_commands(snapshot)

    def decide(node: StateNode) -> Plan:
        actions = _undo(node, in_commands, snapshot.now)
        return (
            Plan(chains=(chain_of(f"NodeClaim {node.claim.metadata.name}", *actions),))
            if node.claim and actions
            else Plan()
        )

    return plan_for_each(snapshot.state_nodes, decide)


def claims_with_stale_taints(snapshot: Snapshot) -> frozenset[str]:
    """Return the names of the NodeClaims that `remove_stale_taints` writes."""
    in_commands = claims_in_commands(snapshot)
    return frozenset(
        node.claim.metadata.name
        for node in snapshot.state_nodes
        if node.claim is not None and evaluate(node, _undo, node, in_commands, snapshot.now) != ()
    )


def delete_old_commands(snapshot: Snapshot, *, limit: int, age: timedelta) -> Plan:
    """Delete NodeDisruptions that finished longer ago than `age`, and the oldest ones beyond `limit` that are counted.

    Younger ones stay until the churn ledger contains them, which takes one run.
    """
    finished = sorted((d for d in snapshot.node_disruptions if d.finished), key=_newest_first)
    surplus = {d.metadata.name for d in counted_commands(snapshot, finished[limit:])}
    old = [d for d in finished if d.metadata.name in surplus or snapshot.now - _finished_at(d) > age]
    return Plan(chains=tuple(_deletion(d) for d in sorted(old, key=lambda d: d.metadata.name)))


def _undo(node: StateNode, in_commands: frozenset[str], now: datetime) -> tuple[Action, ...]:
    """Return the actions that remove a stale taint and DisruptionReason from a node; none if it has neither."""
    if node.claim is None or node.is_terminating or node.claim.metadata.name in in_commands:
        return ()
    if expires_soon(node.claim, now):  # its mark
        return ()
    return undo_disruption(node, "no disruption command is in progress", now)


def _finished_at(disruption: NodeDisruption) -> datetime:
    return disruption.status.finished_at or disruption.since or _EPOCH


def _newest_first(disruption: NodeDisruption) -> tuple[float, str]:
    return (-_finished_at(disruption).timestamp(), disruption.metadata.name)


def _deletion(disruption: NodeDisruption) -> Chain:
    name = disruption.metadata.name
    ref = ObjectRef(resource=NODE_DISRUPTION, name=name, uid=disruption.metadata.uid)
    return chain_of(f"NodeDisruption {name}", DeleteObject(ref=ref, why="history"))
