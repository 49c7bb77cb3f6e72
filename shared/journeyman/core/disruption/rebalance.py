"""Rebalance: replaces Spot nodes for which the cloud sent a rebalance recommendation, within budgets.

::

    interrupt    annotates the NodeClaim               (NodePools with journeyman.dev/rebalance: replace)
    consolidate  proposes all such nodes in one command ─► the next run validates it ─► replacements, then the drain

It is the first disruption method, because the two-minute warning may follow at any time; then the interrupt step deletes
the NodeClaim, and the command finishes like any other whose candidates are deleted. The price of the replacements does
not matter. The offerings of the nodes at risk are not used.

Differs: Karpenter only records an Event for a recommendation. Otherwise it is like Karpenter's methods: the node must be
disruptable; the reason is ``Interrupted``, for which budgets without reasons count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from journeyman.core.api import labels
from journeyman.core.api.conditions import parse_time
from journeyman.core.api.duration import time_after
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.objects import NodeClaim
from journeyman.core.catalogue import Unavailable
from journeyman.core.disruption.candidates import Candidate, DisruptionReason, NodePoolName, within_budgets
from journeyman.core.disruption.commands import Command, difference, pages
from journeyman.core.disruption.simulation import Simulation
from journeyman.core.state import Snapshot

RECOMMENDATION_VALID_FOR: Final = timedelta(days=1)
"""An instance that was not reclaimed within a day is at no higher risk than others."""


def offerings_at_risk(snapshot: Snapshot) -> tuple[Unavailable, ...]:
    """Return the Spot offerings of nodes with a recommendation; replacements are not launched there."""
    found: set[Unavailable] = set()
    for claim in snapshot.claims:
        since, values = _recommended_at(claim, snapshot), claim.metadata.labels
        if since is not None and values.get(labels.CAPACITY_TYPE) == labels.SPOT:
            found.add(
                Unavailable(
                    instance_type=values.get(labels.INSTANCE_TYPE, ""),
                    zone=values.get(labels.ZONE, ""),
                    capacity_type=labels.SPOT,
                    until=time_after(since, RECOMMENDATION_VALID_FOR),
                    reason="RebalanceRecommendation",
                )
            )
    return tuple(sorted(found, key=lambda u: (u.instance_type, u.zone, u.until)))


def rebalance_candidates(candidates: Iterable[Candidate], snapshot: Snapshot) -> tuple[Candidate, ...]:
    """Return the candidates with a recommendation, oldest recommendation first.

    Excluded are empty nodes, which emptiness deletes, and nodes of static NodePools.
    """
    found = []
    for candidate in candidates:
        since = _recommended_at(snapshot.claims_by_name[candidate.nodeclaim], snapshot)
        static = snapshot.node_pools_by_name[candidate.nodepool].spec.replicas is not None
        if since is not None and not candidate.is_empty and not static:
            found.append((since, candidate.nodeclaim, candidate))
    return tuple(candidate for _, _, candidate in sorted(found, key=lambda entry: entry[:2]))


def rebalance_commands(
    simulation: Simulation, candidates: Sequence[Candidate], allowed_disruptions: Mapping[NodePoolName, int]
) -> Iterator[tuple[tuple[Candidate, ...], Command]]:
    """Yield the command for as many of these nodes as budgets and one NodeDisruption allow, and then, as a fallback, for each alone.

    Args:
        simulation: Simulations in the cluster.
        candidates: The result of `rebalance_candidates`.
        allowed_disruptions: Nodes each NodePool may still lose for ``Interrupted``; missing means 0.

    Yields:
        Candidates and command; the caller takes the first command that has candidates and stops.
    """
    chosen = next(pages(within_budgets(candidates, allowed_disruptions)), ())
    attempts = [chosen, *((c,) for c in chosen if len(chosen) > 1)] if chosen else []
    for attempt in attempts:
        yield attempt, _replace_all(simulation, attempt)


def validate_rebalance(
    disruption: NodeDisruption,
    simulation: Simulation,
    candidates: Iterable[Candidate],
    allowed_disruptions: Mapping[NodePoolName, int],
) -> Command:
    """Return the command to execute now for all proposed candidates, or a no-op with the reason.

    Args:
        disruption: The proposal.
        simulation: The cluster as it is now.
        candidates: All nodes that may be disrupted now, those of this proposal included.
        allowed_disruptions: Nodes each NodePool may still lose for ``Interrupted``; missing means 0.
    """
    found = {c.nodeclaim_uid: c for c in rebalance_candidates(candidates, simulation.snapshot)}
    remaining = tuple(found[c.node_claim_uid] for c in disruption.spec.candidates if c.node_claim_uid in found)
    if len(remaining) < len(disruption.spec.candidates):
        return _no_op("churn: a candidate no longer qualifies")
    if len(within_budgets(remaining, allowed_disruptions)) < len(remaining):
        return _no_op("budget: the budgets allow no further disruption")
    command = _replace_all(simulation, remaining)
    why = difference(disruption, command)
    return _no_op(f"scheduling: {why}") if why else command


def _replace_all(simulation: Simulation, candidates: tuple[Candidate, ...]) -> Command:
    """Replace the candidates by existing or new nodes; nodes within their consolidateAfter may run the pods."""
    result = simulation.without(candidates, respect_consolidate_after=False)
    if result.errors:
        pod = min(result.errors)
        return _no_op(f"not all pods would schedule, pod {pod}: {result.errors[pod]}")
    moving = {pod for candidate in candidates for pod in candidate.reschedulable_pods}
    if any(moving.isdisjoint(claim.pods) for claim in result.results.new_claims):
        return _no_op("pending pods need new nodes, which are provisioned first")
    return Command(
        reason=DisruptionReason.INTERRUPTED,
        candidates=candidates,
        replacements=result.results.new_claims,
        simulation_result=result,
    )


def _recommended_at(claim: NodeClaim, snapshot: Snapshot) -> datetime | None:
    """Return the time of a valid recommendation; None if there is none, or the NodePool does not act on it."""
    pool = snapshot.node_pools_by_name.get(claim.metadata.labels.get(labels.NODEPOOL, ""))
    if pool is None or pool.metadata.annotations.get(labels.REBALANCE) != labels.REBALANCE_REPLACE:
        return None
    since = parse_time(claim.metadata.annotations.get(labels.REBALANCE_RECOMMENDED_AT, ""))
    return since if since is not None and snapshot.now < time_after(since, RECOMMENDATION_VALID_FOR) else None


def _no_op(why: str) -> Command:
    return Command(reason=DisruptionReason.INTERRUPTED, why_not=why)
