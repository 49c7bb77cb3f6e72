"""Consolidatable: a node may be consolidated once its pods have been left alone for its pool's consolidateAfter.

Karpenter stamps `status.lastPodEventTime` on a NodeClaim as it watches pods come and go. A function sees the pods only
now and then, so the claim also remembers, in an annotation, a digest of the pods that were counted last (UIDs of those
bound, neither finished nor terminating, neither of a DaemonSet nor of the node itself). While the digest is the same
nothing happened. When it differs, something did, at the latest now: the clock starts again from now, which is never
earlier than Karpenter's own stamp, and later by at most the time between two looks. On the first look nothing is known
of pods that have gone, so the newest sign of those still there is taken.

Restates: karpenter pkg/controllers/nodeclaim/podevents `Reconcile`, pkg/controllers/nodeclaim/disruption/consolidation.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any, Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.conditions import CONSOLIDATABLE, INITIALIZED, ConditionSet, format_time
from journeyman.core.api.duration import parse_nillable_duration
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NODECLAIM, NodeClaim, Pod, condition_of
from journeyman.core.plan import Action, Chain, ObjectRef, PatchObject, Plan, chain_of
from journeyman.core.scheduling.pods import is_owned_by_daemon_set, is_owned_by_node
from journeyman.core.state import Snapshot
from journeyman.core.state.transition_samples import told_with

POD_EVENT_DEDUPE: Final = timedelta(seconds=10)  # karpenter pkg/controllers/nodeclaim/podevents `dedupeTimeout`


class Consolidatability(Struct, frozen=True, kw_only=True):
    """Which claims are consolidatable now (`claims`, names), when the next one becomes so, and what to write."""

    claims: frozenset[str]
    waiting: frozenset[str]
    next_at: datetime | None
    plan: Plan


class _Verdict(Struct, frozen=True, kw_only=True):
    """One claim's clock: the last pod event, the digest that goes with it, and since or from when it is idle enough."""

    claim: NodeClaim
    last_pod_event: datetime | None
    digest: str
    at: datetime | None


def assess(snapshot: Snapshot, leave_alone: frozenset[str] = frozenset()) -> Consolidatability:
    """Judge every claim of a NodePool at `snapshot.now`.

    Args:
        snapshot: The cluster with all its pods.
        leave_alone: Names of claims whose conditions others write in this run: they are judged, not written.

    Returns:
        `waiting` are the claims still inside their window: pods of candidates may not be planned onto them. The plan
        has one chain for each claim whose condition, lastPodEventTime or digest changed, none for the others.
    """
    verdicts = tuple(_verdicts(snapshot))
    now = snapshot.now
    due = [v.at for v in verdicts if v.at is not None and v.at > now]
    return Consolidatability(
        claims=frozenset(v.claim.metadata.name for v in verdicts if v.at is not None and v.at <= now),
        waiting=frozenset(v.claim.metadata.name for v in verdicts if v.at is not None and v.at > now),
        next_at=min(due, default=None),
        plan=Plan(chains=tuple(_chains((v for v in verdicts if v.claim.metadata.name not in leave_alone), now))),
    )


def consolidate_after(pool: NodePool) -> timedelta | None:
    """The pool's consolidateAfter; None if it never consolidates (`Never`, or a static pool)."""
    return None if pool.spec.static else parse_nillable_duration(pool.spec.disruption.consolidate_after)


def pods_digest(pods: Iterable[Pod]) -> str:
    """What a claim remembers of its pods: how many, and a hash of their UIDs; arrival order does not matter."""
    uids = sorted(p.metadata.uid for p in pods if _counts(p))
    return f"{len(uids)}-{blake2b(' '.join(uids).encode(), digest_size=8).hexdigest()}"


def _counts(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is None and not is_owned_by_daemon_set(pod) and not is_owned_by_node(pod)


def _verdicts(snapshot: Snapshot) -> Iterator[_Verdict]:
    for node in snapshot.state_nodes:
        pool = snapshot.node_pools_by_name.get(node.node_pool)
        if node.claim is None or node.node is None or pool is None or node.deleting:
            continue
        digest = pods_digest(node.pods)
        event = _last_pod_event(node.claim, node.pods, digest, snapshot.now)
        at = _consolidatable_at(node.claim, consolidate_after(pool), event)
        yield _Verdict(claim=node.claim, last_pod_event=event, digest=digest, at=at)


def _last_pod_event(claim: NodeClaim, pods: Iterable[Pod], digest: str, now: datetime) -> datetime | None:
    stored = claim.status.last_pod_event_time
    seen = claim.metadata.annotations.get(labels.PODS_HASH)
    if seen == digest:
        return stored
    if seen is not None:
        return now
    signs = [sign for pod in pods if _counts(pod) and (sign := _bound_at(pod)) is not None and sign <= now]
    return max((*signs, *(t for t in (stored,) if t is not None)), default=None)


def _bound_at(pod: Pod) -> datetime | None:
    scheduled = condition_of(pod.status.conditions, "PodScheduled")
    if scheduled is not None and scheduled.status == "True" and scheduled.last_transition_time is not None:
        return scheduled.last_transition_time
    return pod.status.start_time


def _consolidatable_at(claim: NodeClaim, after: timedelta | None, event: datetime | None) -> datetime | None:
    initialized = condition_of(claim.status.conditions, INITIALIZED)
    if after is None or initialized is None or initialized.status != "True":
        return None
    since = event or initialized.last_transition_time
    return since + after if since is not None else None


def _chains(verdicts: Iterable[_Verdict], now: datetime) -> Iterator[Chain]:
    for verdict in verdicts:
        claim = verdict.claim
        after = _conditions(claim, verdict.at is not None and verdict.at <= now, now)
        actions = tuple(_writes(verdict, after, now))
        if actions:
            ref, chain = _ref(claim), chain_of(f"NodeClaim {claim.metadata.name}", *actions)
            yield told_with(chain, ref, claim.metadata.labels, claim.status.conditions, after.conditions)


def _ref(claim: NodeClaim) -> ObjectRef:
    return ObjectRef(resource=NODECLAIM, name=claim.metadata.name, uid=claim.metadata.uid)


def _writes(verdict: _Verdict, updated: ConditionSet, now: datetime) -> Iterator[Action]:
    """Status first: a digest that is not yet stored only means that the clock may start once more."""
    claim = verdict.claim
    ref = _ref(claim)
    stored = claim.status.last_pod_event_time
    news = claim.metadata.annotations.get(labels.PODS_HASH) != verdict.digest
    news = news and (stored is None or now - stored >= POD_EVENT_DEDUPE)
    status: dict[str, Any] = {}
    if news and verdict.last_pod_event is not None and verdict.last_pod_event != stored:
        status["lastPodEventTime"] = format_time(verdict.last_pod_event)
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
    if news:
        patch = {"metadata": {"annotations": {labels.PODS_HASH: verdict.digest}}}
        yield PatchObject(ref=ref, patch=patch, why="pods seen on the node")


def _conditions(claim: NodeClaim, consolidatable: bool, now: datetime) -> ConditionSet:
    conditions = ConditionSet.of_claim(claim, now)
    return conditions.set_true(CONSOLIDATABLE, now) if consolidatable else conditions.clear(CONSOLIDATABLE)
