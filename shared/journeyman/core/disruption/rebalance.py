"""Rebalance: nodes that the cloud recommends to leave are replaced before it takes them back, as far as budgets go.

::

    interrupt    notes the recommendation on the claim         (NodePools with journeyman.dev/rebalance: replace)
    consolidate  proposes all such nodes at once ─► validated by the next run ─► replacements first, then the drain

It is the first thing that is looked for, since the warning of two minutes may follow at any time; then the claim is
deleted by the interrupt step, and the command ends like any other whose candidates are gone. What a replacement costs
does not matter. The offerings that are at risk are avoided.

Karpenter tells of recommendations and leaves it at that. The rest is as with its disruption methods: the node must be
disruptable, the reason is ``Interrupted``, which budgets without reasons count for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.objects import NodeClaim
from journeyman.core.catalogue import Unavailable
from journeyman.core.disruption.proposals import changed
from journeyman.core.disruption.simulation import Simulation
from journeyman.core.disruption.types import Candidate, Command, DisruptionReason, NodePoolName
from journeyman.core.state import Snapshot

METHOD: Final = "rebalance"
HOLDS_FOR: Final = timedelta(days=1)
"""An instance that was not taken back within a day after all is no longer at more risk than others."""
SHORTEST_REST: Final = timedelta(minutes=1)
LONGEST_REST: Final = timedelta(hours=1)


def endangered(snapshot: Snapshot) -> tuple[Unavailable, ...]:
    """The Spot offerings of nodes that are to be left: nothing that takes their place may be launched there."""
    found: set[Unavailable] = set()
    for claim in snapshot.claims:
        since, own = _recommended_at(claim, snapshot), claim.metadata.labels
        if since is not None and own.get(labels.CAPACITY_TYPE) == labels.SPOT:
            offering = (own.get(labels.INSTANCE_TYPE, ""), own.get(labels.ZONE, ""), labels.SPOT)
            found.add(
                Unavailable(
                    instance_type=offering[0],
                    zone=offering[1],
                    capacity_type=offering[2],
                    until=since + HOLDS_FOR,
                    reason="RebalanceRecommendation",
                )
            )
    return tuple(sorted(found, key=lambda u: (u.instance_type, u.zone, u.until)))


def to_leave(candidates: Iterable[Candidate], snapshot: Snapshot) -> tuple[Candidate, ...]:
    """The candidates that are recommended to be left now, the longest recommended first.

    Left out are empty ones, on which nothing is at risk; those of static pools, whose replacement is opened by number;
    and for ever longer those whose replacements could not be had.
    """
    found = []
    for candidate in candidates:
        since = _recommended_at(snapshot.claims_by_name[candidate.nodeclaim], snapshot)
        static = snapshot.node_pools_by_name[candidate.nodepool].spec.replicas is not None
        if since is not None and not candidate.is_empty and not static and not _rests(candidate, snapshot):
            found.append((since, candidate.nodeclaim, candidate))
    return tuple(candidate for _, _, candidate in sorted(found, key=lambda entry: entry[:2]))


def rebalance(
    simulation: Simulation, candidates: Sequence[Candidate], allowed_disruptions: Mapping[NodePoolName, int]
) -> Iterator[tuple[tuple[Candidate, ...], Command]]:
    """What to do about these nodes: all of them together that budgets allow; should that not go, each alone.

    Args:
        simulation: The cluster to schedule their pods in.
        candidates: As `to_leave` gives them.
        allowed_disruptions: Nodes each NodePool may still lose for ``Interrupted``; missing means 0.

    Yields:
        Candidates and command; take the first command that has candidates and stop.
    """
    chosen = _within(candidates, allowed_disruptions)
    attempts = [chosen, *((c,) for c in chosen if len(chosen) > 1)] if chosen else []
    for attempt in attempts:
        yield attempt, _leave(simulation, attempt)


def validate_rebalance(
    disruption: NodeDisruption,
    simulation: Simulation,
    candidates: Iterable[Candidate],
    allowed_disruptions: Mapping[NodePoolName, int],
) -> Command:
    """The command to carry out now: the proposed one for all of its candidates, or none and why.

    Args:
        disruption: The proposal.
        simulation: The cluster as it is now.
        candidates: All nodes that may be disrupted now, those of this proposal included.
        allowed_disruptions: Nodes each NodePool may still lose for ``Interrupted``; missing means 0.
    """
    found = {c.nodeclaim_uid: c for c in to_leave(candidates, simulation.snapshot)}
    still = tuple(found[c.node_claim_uid] for c in disruption.spec.candidates if c.node_claim_uid in found)
    if len(still) < len(disruption.spec.candidates):
        return _no("churn: a candidate no longer qualifies")
    if len(_within(still, allowed_disruptions)) < len(still):
        return _no("budget: it is used up")
    command = _leave(simulation, still)
    why = changed(disruption, command)
    return _no(f"scheduling: {why}") if why else command


def _leave(simulation: Simulation, candidates: tuple[Candidate, ...]) -> Command:
    """Replace them by whatever takes their pods; nodes within their consolidateAfter will do."""
    simulated = replace(simulation, waiting=frozenset()).without(candidates)
    if simulated.errors:
        pod = min(simulated.errors)
        return _no(f"not all pods would schedule, pod {pod}: {simulated.errors[pod]}")
    moving = {pod for candidate in candidates for pod in candidate.reschedulable_pods}
    if any(moving.isdisjoint(claim.pods) for claim in simulated.results.new_claims):
        return _no("other pods are waiting for nodes, which are opened first")
    return Command(
        reason=DisruptionReason.INTERRUPTED,
        candidates=candidates,
        replacements=simulated.results.new_claims,
        simulated=simulated,
    )


def _within(candidates: Iterable[Candidate], allowed: Mapping[NodePoolName, int]) -> tuple[Candidate, ...]:
    """As many of each pool, from the first, as its budgets allow."""
    spent: Counter[NodePoolName] = Counter()
    chosen = []
    for candidate in candidates:
        if spent[candidate.nodepool] < allowed.get(candidate.nodepool, 0):
            spent[candidate.nodepool] += 1
            chosen.append(candidate)
    return tuple(chosen)


def _recommended_at(claim: NodeClaim, snapshot: Snapshot) -> datetime | None:
    """Since when the node should be left; None if it need not, or its pool does not want that (any more)."""
    pool = snapshot.node_pools_by_name.get(claim.metadata.labels.get(labels.NODEPOOL, ""))
    if pool is None or pool.metadata.annotations.get(labels.REBALANCE) != labels.REBALANCE_REPLACE:
        return None
    try:
        since = datetime.fromisoformat(
            claim.metadata.annotations.get(labels.REBALANCE_RECOMMENDED_AT, "").replace("Z", "+00:00")
        )
    except ValueError:
        return None
    return since if since.tzinfo is not None and snapshot.now < since + HOLDS_FOR else None


def _rests(candidate: Candidate, snapshot: Snapshot) -> bool:
    """Whether its replacements could not be had lately: a minute after the first time, twice as long after each other."""
    failed = [
        d.status.finished_at
        for d in snapshot.node_disruptions
        if d.spec.method == METHOD
        and d.status.phase == "RolledBack"
        and d.status.finished_at is not None
        and any(c.node_claim_uid == candidate.nodeclaim_uid for c in d.spec.candidates)
    ]
    if not failed:
        return False
    rest = min(SHORTEST_REST * (1 << min(len(failed) - 1, 10)), LONGEST_REST)
    return snapshot.now < max(failed) + rest


def _no(why: str) -> Command:
    return Command(reason=DisruptionReason.INTERRUPTED, why_not=why)
