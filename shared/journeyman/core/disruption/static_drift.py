"""Static drift: replaces drifted nodes of static NodePools one for one, as many at once as budgets and limits.nodes allow.

A replacement comes straight from the NodePool's template, and takes over the replica index of its node, so that it is the
same replica. No pod is simulated: the NodePool has as many nodes afterwards. Nothing is replaced while the NodePool has
more nodes than replicas, those under replacement included.

Restates: karpenter pkg/controllers/disruption/staticdrift.go `ComputeCommands`.
Differs: nodes that drifted longest ago are first. While every compatible offering is out of stock, nothing is proposed. A
node for which limits.nodes allows no replacement has an Event, as in Karpenter 1.15.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.resources import NODES
from journeyman.core.api.wording import counted
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.candidates import Blocked, Candidate, DisruptionReason, NodePoolName
from journeyman.core.disruption.commands import Command, has_started, replacement_name, unfinished_commands
from journeyman.core.disruption.static_nodepool_state import StaticNodePool, static_nodepools
from journeyman.core.disruption.static_provisioning import planned_replica
from journeyman.core.scheduling.nodeclaim_templates import NodeClaimTemplate, make_template
from journeyman.core.state import Snapshot
from journeyman.core.state.skipped_objects import SkippedObject, evaluate


def static_drift_candidates(
    candidates: Iterable[Candidate], since: Mapping[str, datetime], snapshot: Snapshot
) -> tuple[Candidate, ...]:
    """Return the drifted candidates of static NodePools, earliest drift first, ties by name; arguments as `drift_candidates`."""
    drifted = [c for c in candidates if c.nodeclaim in since and snapshot.node_pools_by_name[c.nodepool].spec.static]
    return tuple(sorted(drifted, key=lambda c: (since[c.nodeclaim], c.nodeclaim)))


def static_drift_commands(
    snapshot: Snapshot,
    catalogue: Catalogue,
    candidates: Sequence[Candidate],
    allowed_disruptions: Mapping[NodePoolName, int],
) -> Iterator[tuple[Candidate, Command]]:
    """Yield the command of each candidate that may be replaced now; all of them may start together.

    Args:
        snapshot: NodePools and all NodeClaims.
        catalogue: Instance types and offerings by NodePool.
        candidates: The result of `static_drift_candidates`.
        allowed_disruptions: Nodes each NodePool may still lose for ``Drifted``; missing means 0.

    Yields:
        Candidate and command, by NodePool. A no-op says why a candidate within budgets cannot be replaced.
    """
    for pool in static_nodepools(snapshot.claims, snapshot.node_pools):
        own = [c for c in candidates if c.nodepool == pool.name]
        within_budget = own[: allowed_disruptions.get(NodePoolName(pool.name), 0)]
        if within_budget and len(pool.running) + len(pool.replaced) <= pool.replicas:
            yield from _pool_commands(pool, within_budget, snapshot, catalogue)


def validate_static_drift(
    disruption: NodeDisruption,
    snapshot: Snapshot,
    catalogue: Catalogue,
    candidates: Sequence[Candidate],
    allowed_disruptions: Mapping[NodePoolName, int],
) -> Command:
    """Return the command to execute now for a proposal, or a no-op with the reason.

    Proposals of one run share limits.nodes: those for which it allows nothing any more are rejected.

    Args:
        disruption: The proposal.
        snapshot: The cluster as it is now.
        catalogue: Instance types and offerings by NodePool.
        candidates: As in `static_drift_commands`, those of other proposals included.
        allowed_disruptions: Nodes each NodePool may still lose for ``Drifted`` beside all other commands; missing means 0.
    """
    proposed = {c.node_claim_uid for d in proposals(snapshot) for c in d.spec.candidates}
    (uid,) = (c.node_claim_uid for c in disruption.spec.candidates[:1])
    remaining = [c for c in candidates if c.nodeclaim_uid in proposed]
    own = next((c for c in remaining if c.nodeclaim_uid == uid), None)
    if own is None:
        return _no_op("churn: a candidate no longer qualifies")
    if allowed_disruptions.get(own.nodepool, 0) < 1:
        return _no_op(f"budget: the budgets of NodePool {own.nodepool} allow no further disruption")
    together = dict.fromkeys((c.nodepool for c in remaining), len(remaining))
    commands = static_drift_commands(snapshot, catalogue, remaining, together)
    command = next((command for candidate, command in commands if candidate.nodeclaim_uid == uid), None)
    if command is None:
        return _no_op(f"churn: NodePool {own.nodepool} has more nodes than replicas")
    if command.why_not:
        return _no_op(f"scheduling: {command.why_not}")
    (replacement,) = command.replacements
    names = [replacement_name(disruption.metadata.name, replacement.node_pool, 0)]
    if names != [proposed.name for proposed in disruption.spec.replacements]:
        return _no_op("scheduling: the replacement would now be another")
    return command


def proposals(snapshot: Snapshot) -> tuple[NodeDisruption, ...]:
    """Return the commands of static drift that have not started, by name."""
    unfinished = unfinished_commands(snapshot)
    return tuple(d for d in unfinished if d.spec.method == "static-drift" and not has_started(d, snapshot))


def _pool_commands(
    pool: StaticNodePool, candidates: Sequence[Candidate], snapshot: Snapshot, catalogue: Catalogue
) -> Iterator[tuple[Candidate, Command]]:
    template = evaluate(pool.pool, make_template, pool.pool, snapshot, catalogue)
    if isinstance(template, SkippedObject):
        template = template.why
    usable = isinstance(template, NodeClaimTemplate) and bool(template.rows.any())
    headroom = _headroom(pool) if usable else 0
    for candidate in candidates[:headroom]:
        assert isinstance(template, NodeClaimTemplate)  # noqa: S101 - there is no headroom otherwise
        replacement = planned_replica(pool, template, price=candidate.price)
        yield (
            candidate,
            Command(reason=DisruptionReason.DRIFTED, candidates=(candidate,), replacements=(replacement,)),
        )
    if isinstance(template, str):
        why = f"a replacement cannot be launched: {template}"
    elif not usable:
        why = "a replacement cannot be launched: every compatible offering is unavailable now"
    elif headroom:
        why = f"limits.nodes of NodePool {pool.name} allows {headroom} more at a time; it is replaced after others"
    else:
        blocked = without_headroom(pool)
        why = f"{blocked.why}. {blocked.change}"
    for candidate in candidates[headroom:]:
        yield candidate, _no_op(why)


def without_headroom(pool: StaticNodePool) -> Blocked:
    """Return why no drifted node of the NodePool can be replaced while `limits.nodes` allows no further node."""
    return Blocked(
        reason="NodeLimit",
        why=f"limits.nodes of NodePool {pool.name} allows no replacement beside its {counted(_needed(pool), 'node')}",
        change=f"Raise limits.nodes of NodePool {pool.name} to {_needed(pool) + 1} at least: a replacement is launched before its "
        "node is deleted",
    )


def has_headroom(pool: StaticNodePool) -> bool:
    """Whether `limits.nodes` allows a replacement."""
    return _headroom(pool) > 0


def _needed(pool: StaticNodePool) -> int:
    return pool.existing + pool.missing


def _headroom(pool: StaticNodePool) -> int:
    """Return how many replacements limits.nodes allows.

    Replicas that are missing come first: the provision step may launch them at the same time.

    Restates: karpenter pkg/controllers/state/statenodepool.go `ReserveNodeCount`.
    """
    limit = pool.pool.spec.limit_amounts.get(NODES)
    count = _needed(pool)
    return max(limit - count, 0) if limit is not None else count


def _no_op(why: str) -> Command:
    return Command(reason=DisruptionReason.DRIFTED, why_not=why)
