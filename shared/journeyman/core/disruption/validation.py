"""Validation of a proposed command, at least 15 seconds after the proposal.

Meanwhile pods may have been created, deleted or bound, budgets may have changed, and nodes may have joined or left. So
candidates, budgets and the simulation are computed again.

Restates: karpenter pkg/controllers/disruption/validation.go `Validate`, `validateCandidates`, `validateCommand`.
Differs: of the proposed instance types, the launch may choose those that are cheaper also now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.disruption.candidates import Candidate, DisruptionReason, NodePoolName
from journeyman.core.disruption.commands import Command, difference, proposed_types
from journeyman.core.disruption.consolidation import compute_consolidation, narrowed_to
from journeyman.core.disruption.emptiness import delete_empty
from journeyman.core.disruption.simulation import Simulation
from journeyman.core.disruption.single_node_consolidation import unconsolidatable_reason


def validate(
    disruption: NodeDisruption,
    simulation: Simulation,
    candidates: Iterable[Candidate],
    allowed_disruptions: Mapping[NodePoolName, int],
    *,
    spot_to_spot: bool = False,
) -> Command:
    """Return the command to execute now.

    Args:
        disruption: The proposal.
        simulation: The cluster as it is now.
        candidates: All nodes that may be disrupted now, those of this proposal included.
        allowed_disruptions: Nodes each NodePool may still lose for the proposal's reason; missing means 0.
        spot_to_spot: Gate SpotToSpotConsolidation.

    Returns:
        For emptiness, the candidates that are still empty and within budgets; otherwise all of them or none. `why_not`
        of a no-op starts with Karpenter's kind of failure: churn, budget or scheduling.
    """
    remaining = _remaining_candidates(disruption, candidates)
    if disruption.spec.reason == DisruptionReason.EMPTY.value:
        commands, _ = delete_empty(remaining, allowed_disruptions)
        return commands[0] if commands else _no_op(disruption, "churn: no candidate is empty and within budget")
    if len(remaining) < len(disruption.spec.candidates):
        return _no_op(disruption, "churn: a candidate no longer qualifies")
    if why := _why_disqualified(remaining, simulation):
        return _no_op(disruption, f"churn: {why}")
    over = [pool for pool, n in Counter(c.nodepool for c in remaining).items() if n > allowed_disruptions.get(pool, 0)]
    if over:
        return _no_op(
            disruption, f"budget: the budgets of NodePool {', '.join(sorted(over))} allow no further disruption"
        )
    single_node = len(remaining) == 1
    command = compute_consolidation(simulation, remaining, spot_to_spot=spot_to_spot, single_node=single_node)
    if why := difference(disruption, command):
        return _no_op(disruption, f"scheduling: {why}")
    if command.replacements:
        command = narrowed_to(command, proposed_types(disruption.spec.replacements[0]), simulation)
    return command if command.candidates else _no_op(disruption, f"scheduling: {command.why_not}")


def _remaining_candidates(disruption: NodeDisruption, candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Return the proposed candidates that are still candidates, in the proposal's order."""
    found = {c.nodeclaim_uid: c for c in candidates if c.consolidatable}
    return tuple(found[c.node_claim_uid] for c in disruption.spec.candidates if c.node_claim_uid in found)


def _why_disqualified(candidates: Sequence[Candidate], simulation: Simulation) -> str:
    reasons = (
        unconsolidatable_reason(c, simulation.snapshot) or ("the node is empty" if c.is_empty else "")
        for c in candidates
    )
    return next((reason for reason in reasons if reason), "")


def _no_op(disruption: NodeDisruption, why: str) -> Command:
    return Command(reason=DisruptionReason(disruption.spec.reason), why_not=why)
