"""Hibernation: removes the nodes of a NodePool in its windows (`journeyman.dev/hibernate`), within budgets.

::

    window opens   consolidate deletes the NodePool's nodes, no replacements; their pods wait, or move where others may run them
    meanwhile      the NodePool launches no nodes (`NodePool.is_hibernating`); budgets below 100 % let nodes go in waves
    window closes  provision schedules the waiting pods, which brings the nodes back

The nodes must be disruptable like those of every method: a node with a do-not-disrupt pod, or with a pod that its
PodDisruptionBudget keeps, stays, and its Event says why. The reason is ``Hibernated``, for which budgets without reasons count:
one of 0 nodes keeps all nodes, which the NodePool's Event says. Empty nodes go first, then those that cost most for the pods
that they move. Nodes of static NodePools go, too.

Differs: Karpenter has no hibernation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from journeyman.core.api.conditions import format_time
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.objects import NODEPOOL
from journeyman.core.disruption.candidates import Candidate, DisruptionReason, NodePoolName, by_savings, within_budgets
from journeyman.core.disruption.commands import Command, pages
from journeyman.core.plan import Event, ObjectRef
from journeyman.core.state import Snapshot


def hibernating_pools(snapshot: Snapshot) -> frozenset[str]:
    """Return the names of the NodePools that hibernate now."""
    return frozenset(pool.metadata.name for pool in snapshot.node_pools if pool.is_hibernating(snapshot.now))


def hibernation_commands(
    candidates: Iterable[Candidate], pools: frozenset[str], allowed_disruptions: Mapping[NodePoolName, int]
) -> tuple[Command, ...]:
    """Return the commands that delete nodes of hibernating NodePools, as many nodes as budgets allow; none if there are none.

    Args:
        candidates: Disruptable nodes, any order.
        pools: The hibernating NodePools.
        allowed_disruptions: Nodes each NodePool may still lose for ``Hibernated``; missing means 0.
    """
    own = (candidate for candidate in candidates if candidate.nodepool in pools)
    ordered = sorted(own, key=lambda c: (not c.is_empty, *by_savings(c)))
    chosen = within_budgets(ordered, allowed_disruptions)
    return tuple(Command(reason=DisruptionReason.HIBERNATED, candidates=page) for page in pages(chosen))


def validate_hibernation(
    disruption: NodeDisruption,
    candidates: Iterable[Candidate],
    pools: frozenset[str],
    allowed_disruptions: Mapping[NodePoolName, int],
) -> Command:
    """Return the command to execute now: the proposed nodes that still qualify; a no-op if there are none.

    Arguments as `hibernation_commands`; `candidates` include those of this proposal.
    """
    proposed = {c.node_claim_uid for c in disruption.spec.candidates}
    remaining = (c for c in candidates if c.nodeclaim_uid in proposed)
    commands = hibernation_commands(remaining, pools, allowed_disruptions)
    if commands:
        return commands[0]
    why = "churn: no candidate is in a hibernating NodePool and within budget"
    return Command(reason=DisruptionReason.HIBERNATED, why_not=why)


def hibernation_events(pools: frozenset[str], snapshot: Snapshot) -> tuple[Event, ...]:
    """Return an Event on each hibernating NodePool that says until when it launches no nodes."""
    events = []
    for name in sorted(pools):
        pool = snapshot.node_pools_by_name[name]
        end = pool.hibernates_until(snapshot.now)
        until = f"until {format_time(end)}" if end is not None else "no longer"
        ref = ObjectRef(resource=NODEPOOL, name=name, uid=pool.metadata.uid)
        message = f"NodePool {name} hibernates {until}: its nodes are removed within budgets, and it launches none"
        events.append(Event(ref=ref, reason="Hibernating", message=message, key=until))
    return tuple(events)
