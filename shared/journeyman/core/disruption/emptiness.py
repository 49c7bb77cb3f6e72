"""Emptiness: nodes on which nothing of worth runs are deleted, all at once, as far as the budgets go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from journeyman.core.disruption.types import Candidate, Command, DisruptionReason, NodePoolName, by_savings


def delete_empty(
    candidates: Iterable[Candidate], allowed_disruptions: Mapping[NodePoolName, int]
) -> tuple[Command, frozenset[NodePoolName]]:
    """Choose the empty nodes to delete in this run.

    Args:
        candidates: Disruptable nodes, any order; at most one per NodeClaim.
        allowed_disruptions: Nodes each NodePool may still lose for ``Empty``; missing means 0.

    Returns:
        The command, most valuable node first (no candidates if nothing to do), and the NodePools
        that had an empty node but no budget left for it.

    Restates: karpenter 226646810, pkg/controllers/disruption/emptiness.go `ComputeCommands`.
    Differs: budgets are not mutated; equal savings ratios fall back to the name, so runs replay.
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
    return Command(reason=DisruptionReason.EMPTY, candidates=tuple(chosen)), frozenset(constrained)
