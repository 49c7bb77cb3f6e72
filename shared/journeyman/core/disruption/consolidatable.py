"""The Consolidatable condition: true once no pod of the node was bound or removed for consolidateAfter.

Karpenter watches pods, and writes `status.lastPodEventTime` of a NodeClaim. A run sees only the pods that exist, so an
annotation of the NodeClaim has a hash of the pods of the last run (UIDs of those bound, neither finished nor terminating,
neither of a DaemonSet nor of the node itself). The same hash means no pod event. Another hash means one since the last run,
and consolidateAfter starts again from now: never earlier than with Karpenter, and later by at most the time between two
runs. Without a hash, the last pod event among the existing pods counts.

Restates: karpenter pkg/controllers/nodeclaim/podevents/controller.go `Reconcile`,
pkg/controllers/nodeclaim/disruption/consolidation.go `Reconcile`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any, Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.conditions import CONSOLIDATABLE, INITIALIZED, ConditionSet, format_time
from journeyman.core.api.duration import parse_nillable_duration, time_after
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NodeClaim, Pod, condition_of
from journeyman.core.plan import Action, PatchObject, Plan, chain_of, claim_ref
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.condition_transitions import with_transitions
from journeyman.core.state.pod_predicates import is_owned_by_daemon_set, is_owned_by_node
from journeyman.core.state.skipped_objects import evaluate_each, plan_for_each, report_skipped

POD_EVENT_DEDUPE: Final = timedelta(seconds=10)  # karpenter pkg/controllers/nodeclaim/podevents `dedupeTimeout`


class Consolidatability(Struct, frozen=True, kw_only=True):
    """Which NodeClaims (by name) are consolidatable.

    `claims` are consolidatable now. `within_window` are still within their consolidateAfter: the simulation may not
    schedule pods of candidates on their nodes. At `next_at` the next of them becomes consolidatable, at `ends` each of them.
    `plan` writes the changed conditions, times and hashes.
    """

    claims: frozenset[str]
    within_window: frozenset[str]
    next_at: datetime | None
    plan: Plan
    ends: Mapping[str, datetime] = {}


class _PodEvents(Struct, frozen=True, kw_only=True):
    """One NodeClaim: its last pod event, the hash of its pods, and when it becomes (or became) consolidatable."""

    claim: NodeClaim
    last_at: datetime | None
    pods_hash: str
    consolidatable_at: datetime | None


def assess_consolidatable(snapshot: Snapshot, without_writes: frozenset[str] = frozenset()) -> Consolidatability:
    """Return which NodeClaims are consolidatable at `snapshot.now`.

    Args:
        snapshot: The cluster with all its pods.
        without_writes: Names of NodeClaims whose conditions this run writes elsewhere: the plan leaves them out.

    Returns:
        Its plan has one chain for each NodeClaim whose condition, lastPodEventTime or hash changed.
    """
    now = snapshot.now
    found, skipped = evaluate_each(snapshot.state_nodes, lambda node: _pod_events(node, snapshot))
    events = [one for one in found if one is not None]
    times = {e.claim.metadata.name: e.consolidatable_at for e in events if e.consolidatable_at is not None}
    written = (e for e in events if e.claim.metadata.name not in without_writes)
    return Consolidatability(
        claims=frozenset(name for name, at in times.items() if at <= now),
        within_window=frozenset(name for name, at in times.items() if at > now),
        next_at=min((at for at in times.values() if at > now), default=None),
        ends={name: at for name, at in times.items() if at > now},
        plan=report_skipped(skipped) + plan_for_each(written, lambda e: _plan(e, now), about=lambda e: e.claim),
    )


def consolidate_after(pool: NodePool) -> timedelta | None:
    """Return the NodePool's consolidateAfter; None for `Never` and for static NodePools."""
    return None if pool.spec.static else parse_nillable_duration(pool.spec.disruption.consolidate_after)


def pods_hash(pods: Iterable[Pod]) -> str:
    """Return the number of pods and a hash of their UIDs, whatever their order."""
    uids = sorted(p.metadata.uid for p in pods if _counts(p))
    return f"{len(uids)}-{blake2b(' '.join(uids).encode(), digest_size=8).hexdigest()}"


def _counts(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is None and not is_owned_by_daemon_set(pod) and not is_owned_by_node(pod)


def _pod_events(node: StateNode, snapshot: Snapshot) -> _PodEvents | None:
    """Return the pod events of a node that may become consolidatable; None for others."""
    pool = snapshot.node_pools_by_name.get(node.node_pool)
    if node.claim is None or node.node is None or pool is None or node.is_terminating:
        return None
    current = pods_hash(node.pods)
    last_at = _last_pod_event(node.claim, node.pods, current, snapshot.now)
    at = _consolidatable_at(node.claim, consolidate_after(pool), last_at)
    return _PodEvents(claim=node.claim, last_at=last_at, pods_hash=current, consolidatable_at=at)


def _last_pod_event(claim: NodeClaim, pods: Iterable[Pod], current_hash: str, now: datetime) -> datetime | None:
    stored = claim.status.last_pod_event_time
    stored_hash = claim.metadata.annotations.get(labels.PODS_HASH)
    if stored_hash == current_hash:
        return stored
    if stored_hash is not None:
        return now
    bound = [at for pod in pods if _counts(pod) and (at := _bound_at(pod)) is not None and at <= now]
    return max((*bound, *(t for t in (stored,) if t is not None)), default=None)


def _bound_at(pod: Pod) -> datetime | None:
    scheduled = condition_of(pod.status.conditions, "PodScheduled")
    if scheduled is not None and scheduled.status == "True" and scheduled.last_transition_time is not None:
        return scheduled.last_transition_time
    return pod.status.start_time


def _consolidatable_at(claim: NodeClaim, after: timedelta | None, last_event: datetime | None) -> datetime | None:
    initialized = condition_of(claim.status.conditions, INITIALIZED)
    if after is None or initialized is None or initialized.status != "True":
        return None
    since = last_event or initialized.last_transition_time
    return time_after(since, after) if since is not None else None


def _plan(events: _PodEvents, now: datetime) -> Plan:
    claim = events.claim
    after = _conditions(claim, events.consolidatable_at is not None and events.consolidatable_at <= now, now)
    actions = tuple(_patches(events, after, now))
    if not actions:
        return Plan()
    ref, chain = claim_ref(claim), chain_of(f"NodeClaim {claim.metadata.name}", *actions)
    chain = with_transitions(chain, ref, claim.metadata.labels, claim.status.conditions, after.conditions)
    return Plan(chains=(chain,))


def _patches(events: _PodEvents, updated: ConditionSet, now: datetime) -> Iterator[Action]:
    """Yield the status first: if a run dies before it writes the hash, consolidateAfter only starts once more."""
    claim = events.claim
    ref = claim_ref(claim)
    stored = claim.status.last_pod_event_time
    is_new = claim.metadata.annotations.get(labels.PODS_HASH) != events.pods_hash
    is_new = is_new and (stored is None or now - stored >= POD_EVENT_DEDUPE)
    status: dict[str, Any] = {}
    if is_new and events.last_at is not None and events.last_at != stored:
        status["lastPodEventTime"] = format_time(events.last_at)
    if updated.changed_from(claim.status.conditions):
        status["conditions"] = updated.to_wire()
    if status:
        yield PatchObject(
            ref=ref,
            patch={"status": status},
            why="consolidateAfter and pod events",
            resource_version=claim.metadata.resource_version,
            subresource="status",
        )
    if is_new:
        patch = {"metadata": {"annotations": {labels.PODS_HASH: events.pods_hash}}}
        yield PatchObject(ref=ref, patch=patch, why="pods of the node changed")


def _conditions(claim: NodeClaim, consolidatable: bool, now: datetime) -> ConditionSet:
    conditions = ConditionSet.of_claim(claim, now)
    return conditions.set_true(CONSOLIDATABLE, now) if consolidatable else conditions.clear(CONSOLIDATABLE)
