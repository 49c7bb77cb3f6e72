"""Emptiness: deletes all empty nodes, as far as budgets allow, in as few commands as can hold them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from journeyman.core.disruption.candidates import Candidate, DisruptionReason, NodePoolName, by_savings, within_budgets
from journeyman.core.disruption.commands import Command, pages


def delete_empty(
    candidates: Iterable[Candidate], allowed_disruptions: Mapping[NodePoolName, int]
) -> tuple[tuple[Command, ...], frozenset[NodePoolName]]:
    """Return the commands that delete empty nodes, within budgets.

    Args:
        candidates: Disruptable nodes, any order; at most one per NodeClaim.
        allowed_disruptions: Nodes each NodePool may still lose for ``Empty``; missing means 0.

    Returns:
        The commands, highest savings first (none if there is no empty node), and the NodePools whose budgets left
        an empty node.

    Restates: karpenter 226646810, pkg/controllers/disruption/emptiness.go `ComputeCommands`.
    Differs: the budgets passed in are not changed; ties are sorted by name, so that a replayed run decides the same; nodes that
    one NodeDisruption cannot hold are in further commands.
    """
    empty = sorted((c for c in candidates if c.is_empty and c.consolidatable), key=by_savings)
    chosen = within_budgets(empty, allowed_disruptions)
    left = Counter(c.nodepool for c in empty)
    left.subtract(c.nodepool for c in chosen)
    constrained = {pool for pool, nodes in left.items() if nodes}
    commands = tuple(Command(reason=DisruptionReason.EMPTY, candidates=page) for page in pages(chosen))
    return commands, frozenset(constrained)
