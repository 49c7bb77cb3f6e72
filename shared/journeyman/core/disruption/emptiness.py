"""Emptiness: deletes all empty nodes, as far as budgets allow, in as few commands as can hold them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from journeyman.core.disruption.candidates import Candidate, DisruptionReason, NodePoolName, by_savings
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
    chosen: list[Candidate] = []
    spent: Counter[NodePoolName] = Counter()
    constrained: set[NodePoolName] = set()
    for c in sorted(candidates, key=by_savings):
        if not (c.is_empty and c.consolidatable):
            continue
        if spent[c.nodepool] >= allowed_disruptions.get(c.nodepool, 0):
            constrained.add(c.nodepool)
            continue
        spent[c.nodepool] += 1
        chosen.append(c)
    commands = tuple(Command(reason=DisruptionReason.EMPTY, candidates=page) for page in pages(chosen))
    return commands, frozenset(constrained)
