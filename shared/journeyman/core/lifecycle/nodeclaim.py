"""One run's worth of life for every NodeClaim that is not being deleted: launch → register → initialize, or time out.

Restates: karpenter pkg/controllers/nodeclaim/lifecycle/controller.go `Reconcile`.
Differs: launching is asked for and not awaited; what the cloud answers comes back through `launch.after_launch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import Node, NodeClaim, is_true
from journeyman.core.lifecycle.consistency import check_consistency
from journeyman.core.lifecycle.hydration import hydrate_nodeclaim, is_initialized, start_progress, with_recovered_launch
from journeyman.core.lifecycle.initialization import initialize
from journeyman.core.lifecycle.launch import is_pending, launch_nodeclaims, withdraw_nodeclaim
from journeyman.core.lifecycle.liveness import LivenessTimeouts, delete_unregistered, timeout_reason
from journeyman.core.lifecycle.nomination import (
    JoiningNode,
    NodeNomination,
    NominatablePods,
    NominationWindow,
    clear_stale_nominations,
    decide_nominations,
    renominate,
    with_nominated_at,
)
from journeyman.core.lifecycle.progress import NodeClaimProgress, poll_time
from journeyman.core.lifecycle.registration import register
from journeyman.core.plan import Chain, Plan, Requeue, Step, chain_of, merge_plans, next_requeue
from journeyman.core.state import Snapshot

_ROLLED_BACK: Final = frozenset({"Rejected", "RolledBack"})
"""Phases of commands that came to nothing."""


class RequeueIntervals(Struct, frozen=True, kw_only=True):
    """How often a claim that is on its way is looked at: at first every `shortest`, later more rarely."""

    shortest: timedelta = timedelta(seconds=5)
    longest: timedelta = timedelta(seconds=30)
    starting: timedelta = timedelta(seconds=2)  # a node that keeps the taint until it is ready


class LifecycleOptions(Struct, frozen=True, kw_only=True):
    """What the lifecycle needs to know besides the snapshot.

    `wait_for_devices`: ResourceClaims are planned for. `max_nominations`: how many pods one run may nominate, none if 0.
    `batch_min_pods`: planned pods from which joining nodes wait for each other (`NominationWindow`).
    """

    timeouts: LivenessTimeouts = field(default_factory=LivenessTimeouts)
    pace: RequeueIntervals = field(default_factory=RequeueIntervals)
    wait_for_devices: bool = False
    max_nominations: int = 0
    batch_min_pods: int = 0


def reconcile_nodeclaims(snapshot: Snapshot, lifecycle: LifecycleOptions) -> Plan:
    """Move every NodeClaim on as far as it gets now; requeue for those that are not initialized yet."""
    by_provider = nodes_by_provider_id(snapshot)
    claims = [claim for claim in snapshot.claims if claim.metadata.deletion_timestamp is None]
    nominations = _nominations(claims, by_provider, snapshot, lifecycle)
    plans = [
        _reconcile_nodeclaim(c, by_provider, snapshot, lifecycle, nominations.get(c.metadata.name)) for c in claims
    ]
    return merge_plans((clear_stale_nominations(snapshot), *plans, renominate(nominations.values(), snapshot.now)))


def _nominations(
    claims: Sequence[NodeClaim],
    by_provider: Mapping[str, tuple[Node, ...]],
    snapshot: Snapshot,
    lifecycle: LifecycleOptions,
) -> Mapping[str, NodeNomination]:
    """Return what to do with each node that has joined and is not registered, by the name of its NodeClaim."""
    joining = []
    for stored in claims:
        state = snapshot.state_nodes_by_claim[stored.metadata.name]
        nodes = () if state.duplicate_of or is_initialized(stored) else by_provider.get(state.provider_id, ())
        if len(nodes) != 1:
            continue
        claim = with_recovered_launch(stored, state, snapshot.now)
        registered = is_true(claim.status.conditions, "Registered")
        if not registered and not is_pending(claim) and not timeout_reason(claim, lifecycle.timeouts, snapshot.now):
            joining.append(JoiningNode(claim=claim, node=nodes[0]))
    if not joining:
        return {}
    pods = NominatablePods.of(snapshot, enabled=lifecycle.max_nominations > 0)
    window = NominationWindow.of(snapshot, by_provider, pods, lifecycle.batch_min_pods)
    return decide_nominations(window, joining, pods, lifecycle.max_nominations)


def nodes_by_provider_id(snapshot: Snapshot) -> Mapping[str, tuple[Node, ...]]:
    """Nodes by the cloud's id; more than one under an id is something gone wrong."""
    found: dict[str, tuple[Node, ...]] = {}
    for node in snapshot.nodes:
        if node.spec.provider_id:
            found[node.spec.provider_id] = (*found.get(node.spec.provider_id, ()), node)
    return found


def _reconcile_nodeclaim(
    stored: NodeClaim,
    by_provider: Mapping[str, tuple[Node, ...]],
    snapshot: Snapshot,
    lifecycle: LifecycleOptions,
    nomination: NodeNomination | None,
) -> Plan:
    if is_initialized(stored):
        return hydrate_nodeclaim(stored, snapshot)
    state = snapshot.state_nodes_by_claim[stored.metadata.name]
    claim = with_recovered_launch(stored, state, snapshot.now)
    if reason := timeout_reason(claim, lifecycle.timeouts, snapshot.now):
        return delete_unregistered(claim, reason, snapshot.now)
    if is_pending(claim):
        return _withdraw_rolled_back(claim, snapshot) or launch_nodeclaims((claim,), snapshot.now)
    nodes = () if state.duplicate_of else by_provider.get(state.provider_id, ())
    progress = start_progress(stored, claim, snapshot.now)
    if nomination is not None and nomination.nominate:
        progress = replace(progress, claim=with_nominated_at(progress.claim, snapshot.now))
    keep_taint = nomination.keep_taint if nomination is not None else ""
    progress = register(progress, nodes, keep_taint=keep_taint, duplicate_of=state.duplicate_of)
    progress = initialize(progress, snapshot.resource_slices if lifecycle.wait_for_devices else None)
    if progress.node is not None and is_true(progress.claim.status.conditions, "Initialized"):
        progress = check_consistency(progress, progress.node)
    return _plan_of(progress, lifecycle.pace, nomination)


def _withdraw_rolled_back(claim: NodeClaim, snapshot: Snapshot) -> Plan | None:
    """Withdraws a replacement whose command was undone, None for any other claim.

    A run that was frozen before it created the claim finds nothing wrong with that when it wakes.
    """
    name = claim.metadata.annotations.get(labels.DISRUPTION, "")
    phase = next((d.status.phase for d in snapshot.node_disruptions if d.metadata.name == name), "")
    if phase not in _ROLLED_BACK:
        return None
    why = f"{name}, which created it, was rolled back"
    note = f"NodeClaim {claim.metadata.name} is withdrawn: {why}"
    return Plan(chains=(withdraw_nodeclaim(claim, "DisruptionRolledBack", why, snapshot.now),), notes=(note,))


def _plan_of(progress: NodeClaimProgress, pace: RequeueIntervals, nomination: NodeNomination | None) -> Plan:
    """Nominations come first: once the taint is gone kube-scheduler binds pods within milliseconds."""
    chain = progress.chain(why="the claim moved on")
    if nomination is not None:
        chain = replace(chain, actions=(*nomination.actions, *chain.actions))
    chains: tuple[Chain, ...] = (chain,) if chain.actions else ()
    claim = progress.claim
    if not is_initialized(claim):
        at, reason = min(_checks(progress, pace, nomination)), f"NodeClaim {claim.metadata.name} is not initialized yet"
        chains += (chain_of(f"NodeClaim {claim.metadata.name}", Requeue(step=Step.PROVISION, at=at, reason=reason)),)
    return Plan(chains=chains, notes=progress.notes)


def _checks(
    progress: NodeClaimProgress, pace: RequeueIntervals, nomination: NodeNomination | None
) -> Iterator[datetime]:
    since = progress.claim.metadata.creation_timestamp or progress.now
    yield poll_time(progress.now, since, pace.shortest, pace.longest)
    if nomination is not None and nomination.keep_taint:
        yield nomination.until or next_requeue(progress.now, pace.starting)
