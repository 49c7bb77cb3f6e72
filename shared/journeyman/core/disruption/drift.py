"""Drift: replaces nodes of dynamic NodePools that have drifted, one at a time.

Empty nodes go first, then those that drifted longest ago. The first whose pods all fit elsewhere is chosen, whatever that costs,
and may need several new nodes. A pod that must not be disrupted, or that a PodDisruptionBudget protects, does not keep a
node whose NodeClaim has a terminationGracePeriod: such a pod is no longer than that in the way of its drain.

Restates: karpenter pkg/controllers/disruption/drift.go `ComputeCommands`.
Differs: candidates are yielded one by one, so that the caller can stop at its deadline; the next run continues after the
last one. While pending pods need new nodes, the provision step launches those first. A proposal is validated without delay
by a second run, because every command is written down before it starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.disruption.candidates import Candidate, DisruptionReason, NodePoolName
from journeyman.core.disruption.commands import Command, difference
from journeyman.core.disruption.consolidation import first_error
from journeyman.core.disruption.simulation import Simulation
from journeyman.core.state import Snapshot


def drift_candidates(
    candidates: Iterable[Candidate], since: Mapping[str, datetime], snapshot: Snapshot
) -> tuple[Candidate, ...]:
    """Return the drifted candidates of dynamic NodePools: without pods first, then earliest drift first, ties by name.

    Args:
        candidates: Nodes that may be disrupted eventually, any order.
        since: Since when NodeClaims (by name) have drifted.
        snapshot: The cluster.
    """
    drifted = [
        c for c in candidates if c.nodeclaim in since and not snapshot.node_pools_by_name[c.nodepool].spec.static
    ]
    return tuple(sorted(drifted, key=lambda c: (bool(c.reschedulable_pods), since[c.nodeclaim], c.nodeclaim)))


def drift_commands(
    simulation: Simulation,
    candidates: Sequence[Candidate],
    allowed_disruptions: Mapping[NodePoolName, int],
    *,
    after: str = "",
) -> Iterator[tuple[Candidate, Command]]:
    """Yield each candidate that budgets allow with its command.

    Args:
        simulation: The cluster to schedule their pods in.
        candidates: The result of `drift_candidates`.
        allowed_disruptions: Nodes each NodePool may still lose for ``Drifted``; missing means 0.
        after: The NodeClaim with which an earlier run stopped: only those behind it are left, if it is still among them.

    Yields:
        Candidate and command; the caller takes the first command that has candidates and stops.
    """
    first = next((place for place, c in enumerate(candidates, start=1) if c.nodeclaim == after), 0)
    for candidate in candidates[first:]:
        if allowed_disruptions.get(candidate.nodepool, 0) > 0:
            yield candidate, _replace(simulation, candidate)


def validate_drift(
    disruption: NodeDisruption,
    simulation: Simulation,
    candidates: Iterable[Candidate],
    allowed_disruptions: Mapping[NodePoolName, int],
    since: Mapping[str, datetime],
) -> Command:
    """Return the command to execute now for a proposal, or a no-op with the reason.

    Args:
        disruption: The proposal.
        simulation: The cluster as it is now.
        candidates: Nodes that may be disrupted eventually, that of this proposal included.
        allowed_disruptions: Nodes each NodePool may still lose for ``Drifted``; missing means 0.
        since: Since when NodeClaims (by name) have drifted.
    """
    uids = {c.node_claim_uid for c in disruption.spec.candidates}
    found = [c for c in drift_candidates(candidates, since, simulation.snapshot) if c.nodeclaim_uid in uids]
    if len(found) != 1:
        return _no_op("churn: a candidate no longer qualifies")
    (candidate,) = found
    if allowed_disruptions.get(candidate.nodepool, 0) < 1:
        return _no_op(f"budget: the budgets of NodePool {candidate.nodepool} allow no further disruption")
    command = _replace(simulation, candidate)
    why = difference(disruption, command)
    return _no_op(f"scheduling: {why}") if why else command


def _replace(simulation: Simulation, candidate: Candidate) -> Command:
    """Return the command that moves the pods to existing or new nodes; nodes within their consolidateAfter may run them."""
    if not candidate.reschedulable_pods:
        return Command(reason=DisruptionReason.DRIFTED, candidates=(candidate,))
    result = simulation.without((candidate,), respect_consolidate_after=False)
    if result.errors:
        return _no_op("not all pods would schedule, " + first_error(result.errors))
    if any(frozenset(candidate.reschedulable_pods).isdisjoint(claim.pods) for claim in result.results.new_claims):
        return _no_op("pending pods need new nodes, which are provisioned first")
    return Command(
        reason=DisruptionReason.DRIFTED,
        candidates=(candidate,),
        replacements=result.results.new_claims,
        simulation_result=result,
    )


def _no_op(why: str) -> Command:
    return Command(reason=DisruptionReason.DRIFTED, why_not=why)
