"""Emptiness: which empty nodes one command deletes."""

from __future__ import annotations

import pytest

from journeyman.core.disruption.candidates import Candidate, NodeClaimName, NodePoolName
from journeyman.core.disruption.commands import Decision
from journeyman.core.disruption.emptiness import delete_empty


def a_candidate(
    name: str, *, price: float = 1.0, pool: str = "default", cost: float = 1.0, consolidatable: bool = True
):
    """A node, empty unless it has a disruption cost."""
    return Candidate(
        nodeclaim=NodeClaimName(name),
        nodeclaim_uid=f"uid-{name}",
        node=name,
        node_uid=name,
        nodepool=NodePoolName(pool),
        instance_type="m",
        zone="zone-a",
        capacity_type="on-demand",
        price=price,
        disruption_cost=cost,
        consolidatable=consolidatable,
    )


@pytest.mark.karpenter("disruption/emptiness", it="should only allow 3 empty nodes to be disrupted")
def test_budget_limits_the_number_of_empty_nodes_deleted():
    """A budget of three deletes the three most expensive nodes, and the NodePool is reported as constrained."""
    pool = NodePoolName("default")
    nodes = [a_candidate(f"n{usd}", price=float(usd)) for usd in range(10)]

    command, constrained = delete_empty(nodes, {pool: 3})

    assert [c.price for c in command.candidates] == [9.0, 8.0, 7.0]
    assert command.decision is Decision.DELETE
    assert constrained == {pool}


@pytest.mark.karpenter("disruption/emptiness", it="should ignore nodes that have pods")
@pytest.mark.karpenter("disruption/emptiness", it="should ignore nodes without the consolidatable status condition")
def test_nodes_with_pods_or_within_consolidate_after_are_not_deleted():
    """Without candidates the command is a no-op."""
    command, constrained = delete_empty(
        [a_candidate("busy", cost=2.0), a_candidate("fresh", consolidatable=False)], {NodePoolName("default"): 9}
    )

    assert command.decision is Decision.NO_OP
    assert constrained == frozenset()


@pytest.mark.karpenter("disruption/emptiness", it="should allow no empty nodes to be disrupted")
def test_nodes_of_a_nodepool_without_budget_entry_are_not_deleted():
    """A NodePool without an entry has a budget of 0."""
    command, constrained = delete_empty([a_candidate("n", pool="unknown")], {})

    assert command.candidates == ()
    assert constrained == {"unknown"}
