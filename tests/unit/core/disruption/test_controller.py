"""One pass of disruption: what it proposes first, and what it leaves alone."""

from __future__ import annotations

from journeyman.core.api import labels
from journeyman.core.disruption.consolidatable import Consolidatability
from journeyman.core.disruption.controller import DisruptionController
from journeyman.core.plan import Plan
from tests.helpers.fleets import a_catalogue, a_fleet, a_member, a_pod


def proposed(snapshot):
    """What a pass over nodes that are all quiet proposes: the method, and the claims that would go."""
    quiet = frozenset(claim.metadata.name for claim in snapshot.claims)
    judged = Consolidatability(claims=quiet, within_window=frozenset(), next_at=None, plan=Plan())
    looked = DisruptionController(snapshot, a_catalogue(), judged).evaluate_methods()
    first = next((seen for seen in looked if seen.command.candidates), None)
    return None if first is None else (first.method, [c.nodeclaim for c in first.command.candidates])


def a_spare_pod(cpu: str):
    """A pod that only stands for the room of a CapacityBuffer."""
    return a_pod("spare", cpu=cpu, metadata={"annotations": {labels.BUFFER_POD: "true"}})


def test_a_node_that_keeps_room_for_a_buffer_is_not_empty():
    """No pod runs there; were it deleted, the next pass would open another."""
    empty = (a_member("n"), a_member("surplus"))

    assert proposed(a_fleet(*empty)) == ("emptiness", ["n", "surplus"])
    assert proposed(a_fleet(*empty, pending=[a_spare_pod("1")])) == ("emptiness", ["surplus"])


def test_room_for_a_buffer_may_move_to_a_cheaper_node():
    """Consolidation asks for the buffer's pods like for any that wait."""
    assert proposed(a_fleet(a_member("n", size="xl"), pending=[a_spare_pod("1")])) == ("single-node", ["n"])
    assert proposed(a_fleet(a_member("n", size="s"), pending=[a_spare_pod("1")])) is None
