"""NodeClaim lifecycle: launches, registers, initializes or times out every NodeClaim without a deletionTimestamp.

Restates: karpenter pkg/controllers/nodeclaim/lifecycle/controller.go `Reconcile`.
Differs: the plan holds the launch, and the executor records its outcome with `launch.record_launch`; liveness comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import REGISTERED
from journeyman.core.api.duration import time_after
from journeyman.core.api.node_disruption import UNDONE
from journeyman.core.api.objects import Node, NodeClaim, condition_of, is_true
from journeyman.core.lifecycle.consistency import check_consistency
from journeyman.core.lifecycle.failed_registrations import (
    overdue_initializations,
    record_failed_registrations,
    timed_out_registrations,
)
from journeyman.core.lifecycle.hydration import hydrate_nodeclaim, is_initialized, start_progress, with_recovered_launch
from journeyman.core.lifecycle.initialization import initialize
from journeyman.core.lifecycle.launch import OfferingBackoff, is_pending, launch_nodeclaims, withdraw_nodeclaim
from journeyman.core.lifecycle.liveness import (
    INITIALIZATION_TIMEOUT,
    LivenessTimeouts,
    delete_unregistered,
    is_initialization_overdue,
    timeout_reason,
)
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
from journeyman.core.lifecycle.progress import NodeClaimProgress
from journeyman.core.lifecycle.registration import joining_nodes, register
from journeyman.core.plan import Chain, Plan, Requeue, Step, chain_of, merge_plans, next_requeue
from journeyman.core.state import Snapshot
from journeyman.core.state.skipped_objects import evaluate, plan_for_each

"""Phases of NodeDisruptions that removed no node."""


class RequeueIntervals(Struct, frozen=True, kw_only=True):
    """When to requeue for a NodeClaim that is not initialized: at first every `shortest`, then after twice as long each time.

    It is `shortest` while nodes usually boot, `booting` from the creation, and while they are usually set up, `setting_up` from
    the registration. Nothing waits for the longer intervals: the forwarder reports what changes on such a node.
    """

    shortest: timedelta = timedelta(seconds=5)
    longest: timedelta = timedelta(minutes=1)
    booting: timedelta = timedelta(minutes=2)
    setting_up: timedelta = timedelta(seconds=30)
    starting: timedelta = timedelta(seconds=2)  # while a node keeps the `unregistered` taint until it is ready


class LifecycleOptions(Struct, frozen=True, kw_only=True):
    """Settings of the NodeClaim lifecycle.

    `backoff`: how long a NodePool is skipped whose NodeClaims time out. `wait_for_devices`: a node is initialized only once its DRA drivers have published their pools. `max_nominations`: how
    many pods one run nominates, none if 0. `batch_min_pods`: from how many planned pods on joining nodes wait for each
    other (`NominationWindow`).
    """

    timeouts: LivenessTimeouts = field(default_factory=LivenessTimeouts)
    backoff: OfferingBackoff = OfferingBackoff()
    intervals: RequeueIntervals = field(default_factory=RequeueIntervals)
    wait_for_devices: bool = False
    max_nominations: int = 0
    batch_min_pods: int = 0


def reconcile_nodeclaims(snapshot: Snapshot, lifecycle: LifecycleOptions) -> Plan:
    """Launch, register, initialize or time out every NodeClaim; requeue for those that are not initialized.

    Restates: karpenter pkg/controllers/nodeclaim/lifecycle/controller.go `Reconcile`.
    """
    by_provider = snapshot.nodes_by_provider_id
    claims = [claim for claim in snapshot.claims if claim.metadata.deletion_timestamp is None]
    nominations = _nominations(claims, by_provider, snapshot, lifecycle)
    plan = plan_for_each(
        claims, lambda c: _reconcile_nodeclaim(c, by_provider, snapshot, lifecycle, nominations.get(c.metadata.name))
    )
    timed_out = timed_out_registrations(snapshot, lifecycle.timeouts)
    timed_out += overdue_initializations(snapshot, lifecycle.timeouts)
    return merge_plans(
        (
            record_failed_registrations(snapshot, timed_out, lifecycle.backoff),
            clear_stale_nominations(snapshot),
            plan,
            renominate(nominations.values(), snapshot.now),
        )
    )


def _nominations(
    claims: Sequence[NodeClaim],
    by_provider: Mapping[str, tuple[Node, ...]],
    snapshot: Snapshot,
    lifecycle: LifecycleOptions,
) -> Mapping[str, NodeNomination]:
    """Return the decisions on nodes that have joined and are not registered, by the name of their NodeClaim."""
    found = (evaluate(claim, _joining_node, claim, by_provider, snapshot, lifecycle) for claim in claims)
    joining = [one for one in found if isinstance(one, JoiningNode)]  # the others are reported when they are reconciled
    if not joining:
        return {}
    pods = NominatablePods.of(snapshot, enabled=lifecycle.max_nominations > 0)
    window = NominationWindow.of(snapshot, by_provider, pods, lifecycle.batch_min_pods)
    return decide_nominations(window, joining, pods, lifecycle.max_nominations)


def _joining_node(
    stored: NodeClaim, by_provider: Mapping[str, tuple[Node, ...]], snapshot: Snapshot, lifecycle: LifecycleOptions
) -> JoiningNode | None:
    """Return the NodeClaim and its node, if the node has joined and is not registered."""
    state = snapshot.state_nodes_by_claim[stored.metadata.name]
    nodes = () if is_initialized(stored) else joining_nodes(state, by_provider.get(state.provider_id, ()))
    if len(nodes) != 1:
        return None
    claim = with_recovered_launch(stored, state, snapshot.now)
    registered = is_true(claim.status.conditions, "Registered")
    if registered or is_pending(claim) or timeout_reason(claim, lifecycle.timeouts, snapshot.now):
        return None
    return JoiningNode(claim=claim, node=nodes[0])


def _reconcile_nodeclaim(
    stored: NodeClaim,
    by_provider: Mapping[str, tuple[Node, ...]],
    snapshot: Snapshot,
    lifecycle: LifecycleOptions,
    nomination: NodeNomination | None,
) -> Plan:
    if is_initialized(stored) and not is_pending(stored):  # a user may set Initialized before the launch
        return hydrate_nodeclaim(stored, snapshot)
    state = snapshot.state_nodes_by_claim[stored.metadata.name]
    claim = with_recovered_launch(stored, state, snapshot.now)
    if reason := timeout_reason(claim, lifecycle.timeouts, snapshot.now):
        return delete_unregistered(claim, reason, snapshot.now)
    if is_pending(claim):
        return _withdraw_rolled_back(claim, snapshot) or launch_nodeclaims((claim,), snapshot.now)
    nodes = joining_nodes(state, by_provider.get(state.provider_id, ()))
    progress = start_progress(stored, claim, snapshot.now)
    if nomination is not None and nomination.nominate:
        progress = replace(progress, claim=with_nominated_at(progress.claim, nomination.nominate, snapshot.now))
    keep_taint = nomination.keep_taint if nomination is not None else ""
    progress = register(progress, nodes, keep_taint=keep_taint, duplicate_of=state.duplicate_of)
    progress = initialize(progress, snapshot.resource_slices if lifecycle.wait_for_devices else None)
    if progress.node is not None and is_true(progress.claim.status.conditions, "Initialized"):
        progress = check_consistency(progress, progress.node)
    elif is_initialization_overdue(replace(state, claim=claim), lifecycle.timeouts, snapshot.now):
        return delete_unregistered(progress.claim, INITIALIZATION_TIMEOUT, snapshot.now)
    return _to_plan(progress, lifecycle.intervals, nomination)


def _withdraw_rolled_back(claim: NodeClaim, snapshot: Snapshot) -> Plan | None:
    """Return the deletion of a replacement whose disruption command was rolled back; None for any other NodeClaim.

    A run that froze between its decision and the creation may create the replacement after the rollback.
    """
    name = claim.metadata.annotations.get(labels.DISRUPTION, "")
    phase = next((d.status.phase for d in snapshot.node_disruptions if d.metadata.name == name), "")
    if phase not in UNDONE:
        return None
    why = f"{name}, which created it, was rolled back"
    note = f"deleted NodeClaim {claim.metadata.name}: {why}"
    return Plan(chains=(withdraw_nodeclaim(claim, "DisruptionRolledBack", why, snapshot.now),), notes=(note,))


def _to_plan(progress: NodeClaimProgress, intervals: RequeueIntervals, nomination: NodeNomination | None) -> Plan:
    """Return the plan, nominations first: once the taint is removed, kube-scheduler binds pods within milliseconds."""
    chain = progress.chain(why="NodeClaim lifecycle")
    if nomination is not None:
        chain = replace(chain, actions=(*nomination.actions, *chain.actions), wave=int(nomination.is_last))
    chains: tuple[Chain, ...] = (chain,) if chain.actions else ()
    claim = progress.claim
    if not is_initialized(claim):
        at, reason = (
            min(_requeue_times(progress, intervals, nomination)),
            f"NodeClaim {claim.metadata.name} is not initialized yet",
        )
        chains += (chain_of(f"NodeClaim {claim.metadata.name}", Requeue(step=Step.PROVISION, at=at, reason=reason)),)
    return Plan(chains=chains, notes=progress.notes)


def _interval(progress: NodeClaimProgress, intervals: RequeueIntervals) -> timedelta:
    """Return how long to wait: as long as it has taken already beyond what is usual, so that the interval doubles."""
    registered = condition_of(progress.claim.status.conditions, REGISTERED)
    if registered is not None and registered.status == "True" and registered.last_transition_time is not None:
        usual_until = time_after(registered.last_transition_time, intervals.setting_up)
    else:
        usual_until = time_after(progress.claim.metadata.creation_timestamp or progress.now, intervals.booting)
    return min(max(progress.now - usual_until, intervals.shortest), intervals.longest)


def _requeue_times(
    progress: NodeClaimProgress, intervals: RequeueIntervals, nomination: NodeNomination | None
) -> Iterator[datetime]:
    """Yield the times at which the NodeClaim is due for a check; the earliest of them counts."""
    yield next_requeue(progress.now, _interval(progress, intervals))
    if nomination is not None and nomination.keep_taint:
        yield nomination.until or next_requeue(progress.now, intervals.starting)
