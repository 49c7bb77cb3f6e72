"""Validation: does a proposal still hold, at least 15 seconds after it was made?

In those seconds pods may have come, gone or been bound, budgets may have closed, others may have changed the fleet. So
the candidates are looked for again, the budgets are counted again and the simulation is run again.

Restates: karpenter pkg/controllers/disruption/validation.go `Validate`, `validateCandidates`, `validateCommand`.
Differs: the command that goes on is the one found now, not the one proposed, so the price of the replacement is that
of this moment; the type that was proposed must still be among its options, or the plan has changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.disruption.consolidation import consolidate
from journeyman.core.disruption.emptiness import delete_empty
from journeyman.core.disruption.proposals import changed
from journeyman.core.disruption.simulation import Simulation
from journeyman.core.disruption.single_node_consolidation import barred
from journeyman.core.disruption.types import Candidate, Command, DisruptionReason, NodePoolName


def validate(
    disruption: NodeDisruption,
    simulation: Simulation,
    candidates: Iterable[Candidate],
    allowed_disruptions: Mapping[NodePoolName, int],
    *,
    spot_to_spot: bool = False,
) -> Command:
    """The command to carry out now.

    Args:
        disruption: The proposal.
        simulation: The cluster as it is now.
        candidates: All nodes that may be disrupted now, those of this proposal included.
        allowed_disruptions: Nodes each NodePool may still lose for the proposal's reason; missing means 0.
        spot_to_spot: Gate SpotToSpotConsolidation.

    Returns:
        For emptiness, the candidates that are still empty and within budget; otherwise all of them or none. A command
        without candidates says in `why_not` what changed: churn, budget or scheduling.
    """
    still = _still_there(disruption, candidates)
    if disruption.spec.reason == DisruptionReason.EMPTY.value:
        command, _ = delete_empty(still, allowed_disruptions)
        return command if command.candidates else _no(disruption, "churn: no candidate is empty and within budget")
    if len(still) < len(disruption.spec.candidates):
        return _no(disruption, "churn: a candidate no longer qualifies")
    if why := _disqualified(still, simulation):
        return _no(disruption, f"churn: {why}")
    over = [pool for pool, n in Counter(c.nodepool for c in still).items() if n > allowed_disruptions.get(pool, 0)]
    if over:
        return _no(disruption, f"budget: of NodePool {', '.join(sorted(over))} is used up")
    command = consolidate(simulation, still, spot_to_spot=spot_to_spot, single_node=len(still) == 1)
    if why := changed(disruption, command):
        return _no(disruption, f"scheduling: {why}")
    return command


def _still_there(disruption: NodeDisruption, candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """The proposal's own candidates among those of now, in the proposal's order."""
    found = {c.nodeclaim_uid: c for c in candidates if c.consolidatable}
    return tuple(found[c.node_claim_uid] for c in disruption.spec.candidates if c.node_claim_uid in found)


def _disqualified(candidates: Sequence[Candidate], simulation: Simulation) -> str:
    reasons = (barred(c, simulation.snapshot) or ("the node is empty" if c.is_empty else "") for c in candidates)
    return next((reason for reason in reasons if reason), "")


def _no(disruption: NodeDisruption, why: str) -> Command:
    return Command(reason=DisruptionReason(disruption.spec.reason), why_not=why)
