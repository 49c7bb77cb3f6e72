"""The disruption controller: the first command of all methods."""

from __future__ import annotations

import pytest

from journeyman.core.api import labels
from journeyman.core.disruption.consolidatable import Consolidatability
from journeyman.core.disruption.controller import DisruptionController
from journeyman.core.plan import Plan
from tests.helpers.fleets import a_catalogue, a_fleet, a_member, a_pod


def proposed(snapshot):
    """Method and NodeClaims of the first command, if all nodes are consolidatable."""
    names = frozenset(claim.metadata.name for claim in snapshot.claims)
    consolidatability = Consolidatability(claims=names, within_window=frozenset(), next_at=None, plan=Plan())
    evaluations = DisruptionController(snapshot, a_catalogue(), consolidatability).evaluate_methods()
    first = next((e for e in evaluations if e.command.candidates), None)
    return None if first is None else (first.method, [c.nodeclaim for c in first.command.candidates])


def a_buffer_pod(cpu: str):
    """A virtual pod of a CapacityBuffer."""
    return a_pod("spare", cpu=cpu, metadata={"annotations": {labels.BUFFER_POD: "true"}})


@pytest.mark.karpenter("disruption/emptiness", it="should not disrupt a node that hosts virtual buffer pods")
@pytest.mark.karpenter("disruption/emptiness", it="should only protect the specific node with buffer pods, not others")
def test_node_with_buffer_pods_is_not_empty():
    """Without pods, but the next run would launch another node."""
    empty = (a_member("n"), a_member("surplus"))

    assert proposed(a_fleet(*empty)) == ("emptiness", ["n", "surplus"])
    assert proposed(a_fleet(*empty, pending=[a_buffer_pod("1")])) == ("emptiness", ["surplus"])


def test_buffer_pods_may_move_to_a_cheaper_node():
    """Consolidation reschedules buffer pods like pending ones."""
    assert proposed(a_fleet(a_member("n", size="xl"), pending=[a_buffer_pod("1")])) == ("single-node", ["n"])
    assert proposed(a_fleet(a_member("n", size="s"), pending=[a_buffer_pod("1")])) is None
