"""Single-node consolidation: one node after another, until one can go or be replaced by a cheaper one.

Restates: karpenter pkg/controllers/disruption/singlenodeconsolidation.go `ComputeCommands`.
Differs: what a pass that ran out of time had not reached is not remembered; instead the NodePools take turns at being
first, by the minute. Candidates are yielded one by one, so that the caller minds the clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from journeyman.core.api import labels
from journeyman.core.disruption.consolidatable import consolidate_after
from journeyman.core.disruption.consolidation import consolidate
from journeyman.core.disruption.simulation import Simulation
from journeyman.core.disruption.types import Candidate, Command, NodePoolName, by_savings
from journeyman.core.state import Snapshot


def consider(
    simulation: Simulation,
    candidates: Iterable[Candidate],
    allowed_disruptions: Mapping[NodePoolName, int],
    *,
    spot_to_spot: bool = False,
) -> Iterator[tuple[Candidate, Command]]:
    """Each candidate that may be consolidated now, with what to do about it, in the order they are worth it.

    Args:
        simulation: The cluster to schedule their pods in.
        candidates: Disruptable nodes, any order.
        allowed_disruptions: Nodes each NodePool may still lose for ``Underutilized``; missing means 0.
        spot_to_spot: Gate SpotToSpotConsolidation.

    Yields:
        Candidate and command; take the first command that has candidates and stop.
    """
    eligible = [c for c in candidates if c.consolidatable and not c.is_empty and not barred(c, simulation.snapshot)]
    for candidate in interleaved(eligible, simulation.snapshot.now):
        if allowed_disruptions.get(candidate.nodepool, 0) > 0:
            yield candidate, consolidate(simulation, (candidate,), spot_to_spot=spot_to_spot)


def barred(candidate: Candidate, snapshot: Snapshot) -> str:
    """Why a node is out of the question for consolidation whatever the others do; empty if it is not.

    Restates: karpenter pkg/controllers/disruption/consolidation.go `ShouldDisrupt`.
    """
    pool = snapshot.node_pools_by_name[candidate.nodepool]
    if not candidate.instance_type:
        return "Instance Type not found"
    for key, value in ((labels.CAPACITY_TYPE, candidate.capacity_type), (labels.ZONE, candidate.zone)):
        if not value:
            return f'Node does not have label "{key}"'
    if consolidate_after(pool) is None:
        return f'NodePool "{candidate.nodepool}" has consolidation disabled'
    if pool.spec.disruption.consolidation_policy == "WhenEmpty":
        return f'NodePool "{candidate.nodepool}" has non-empty consolidation disabled'
    if pool.spec.disruption.consolidation_policy == "Balanced":
        return f'NodePool "{candidate.nodepool}" asks for Balanced consolidation, which is not supported yet'
    return ""


def interleaved(candidates: Iterable[Candidate], now: datetime) -> Iterator[Candidate]:
    """Round-robin over the NodePools, best first within each; which pool begins changes every minute."""
    lanes: dict[str, list[Candidate]] = {}
    for candidate in sorted(candidates, key=by_savings):
        lanes.setdefault(candidate.nodepool, []).append(candidate)
    names = sorted(lanes)
    turn = int(now.timestamp() // 60) % len(names) if names else 0
    order = names[turn:] + names[:turn]
    for rank in range(max((len(lane) for lane in lanes.values()), default=0)):
        yield from (lanes[name][rank] for name in order if rank < len(lanes[name]))
