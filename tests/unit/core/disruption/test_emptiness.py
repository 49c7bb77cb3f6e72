"""Emptiness: which empty nodes go in one run."""

from __future__ import annotations

import pytest

from journeyman.core.disruption.candidates import Candidate, NodeClaimName, NodePoolName
from journeyman.core.disruption.commands import Decision
from journeyman.core.disruption.emptiness import delete_empty


def a_candidate(
    name: str, *, price: float = 1.0, pool: str = "default", cost: float = 1.0, consolidatable: bool = True
):
    """A node, empty unless it costs something."""
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
def test_the_nodepool_budget_caps_how_many_empty_nodes_go():
    """A budget of three takes the three most valuable nodes and reports the pool as constrained."""
    pool = NodePoolName("default")
    nodes = [a_candidate(f"n{usd}", price=float(usd)) for usd in range(10)]

    command, constrained = delete_empty(nodes, {pool: 3})

    assert [c.price for c in command.candidates] == [9.0, 8.0, 7.0]
    assert command.decision is Decision.DELETE
    assert constrained == {pool}


def test_nodes_with_pods_and_nodes_still_in_their_window_stay():
    """Neither is empty and quiet; with nothing to do the command says so."""
    command, constrained = delete_empty(
        [a_candidate("busy", cost=2.0), a_candidate("fresh", consolidatable=False)], {NodePoolName("default"): 9}
    )

    assert command.decision is Decision.NO_OP
    assert constrained == frozenset()


def test_a_pool_without_a_budget_entry_loses_nothing():
    """Missing means none, never all."""
    command, constrained = delete_empty([a_candidate("n", pool="unknown")], {})

    assert command.candidates == ()
    assert constrained == {"unknown"}
