"""Sweep: every minute, find the steps that are due from a few objects, and send messages only.

What any lost message would have started is found here, so nothing relies on one. It runs without a Lease: two sweeps at once
send a few messages twice, and those are harmless. Due are:

=============  ====================================================================================================
provision      pods without a node, or whose nomination is stale; NodeClaims that are not initialized, or lack what
               every NodeClaim carries; NodePools whose conditions are not current, or static ones with another
               number of nodes than their replicas; NodeClasses in use that changed, and those being deleted that no
               NodeClaim needs (every ten minutes: also those that are needed); capacity buffers, which pods use up
               without an event
terminate      NodeClaims being deleted or expired, or marked as terminating although they are not deleted; and every
               two minutes, for garbage collection (ten without any NodeClaim)
consolidate    a command that is not finished; a NodeClaim whose consolidateAfter has just passed; a budget window
               that has just opened; every two minutes while there are nodes to consolidate, as only a run that reads
               all pods sees that pods are gone; and every ten minutes, for commands whose nodes are gone and for
               history to delete
=============  ====================================================================================================

Nodes are not read, as all of them together are large: unhealthy ones, those that lost a label or a taint of ours, have less
capacity than their NodeClaims promise, or are being deleted while the forwarder is down, are found by the run that collects
garbage, which reads them anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from journeyman.core.api import labels
from journeyman.core.api.conditions import (
    CONSOLIDATABLE,
    DISRUPTION_REASON,
    INITIALIZED,
    INSTANCE_TERMINATING,
    READY,
    VALIDATION_SUCCEEDED,
)
from journeyman.core.api.hashes import NODEPOOL_HASH_VERSION
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NODEPOOL, NodeClaim, condition_of, is_true
from journeyman.core.disruption.budgets import windows
from journeyman.core.disruption.consolidatable import consolidate_after
from journeyman.core.disruption.static_nodepools import static_nodepools
from journeyman.core.lifecycle.expiration import is_expired
from journeyman.core.lifecycle.hydration import has_stale_ready_condition, is_initialized, with_finalizer_and_labels
from journeyman.core.lifecycle.nodeclass_finalizer import REMINDER_INTERVAL, has_finalizer
from journeyman.core.lifecycle.nomination import pod_with_stale_nomination
from journeyman.core.plan import Plan, Requeue, Step, chain_of
from journeyman.core.scheduling.pod_validation import opted_out
from journeyman.core.state import Snapshot
from journeyman.core.state.pod_predicates import is_provisionable
from journeyman.ports import Trigger
from journeyman.steps.context import Outcome, RunContext
from journeyman.steps.load import GLANCE, load
from journeyman.steps.scheduling_inputs import StepInputs
from journeyman.steps.step import Reconciler, StepDefinition, run_step

SWEEP_OVERLAP: Final = timedelta(seconds=75)  # a minute, and what schedules are late by
GARBAGE_PERIOD: Final = timedelta(minutes=2)  # karpenter nodeclaim/garbagecollection: every 2 min
GARBAGE_PERIOD_WITHOUT_CLAIMS: Final = timedelta(minutes=10)
CONSOLIDATION_PERIOD: Final = timedelta(minutes=2)  # Karpenter looks every 10 s, and skips while nothing changed
HISTORY_PERIOD: Final = timedelta(minutes=10)
UNREADY_POOL_PERIOD: Final = timedelta(minutes=5)


def sweep(run: RunContext, trigger: Trigger) -> Outcome:
    """Send a message to every step that is due.

    Raises:
        JourneymanError: The cluster could not be read; the next sweep tries again.
    """
    outcome = run_step(run, SWEEP, trigger)
    if outcome.error is not None:
        raise outcome.error
    return outcome


def _load(run: RunContext, trigger: Trigger) -> StepInputs:
    return StepInputs.of(run, trigger, load(run, GLANCE))


def _requeue_due_steps(inputs: StepInputs) -> Plan:
    due = due_steps(inputs.snapshot, static_capacity=inputs.settings.feature_gates.static_capacity)
    notes = tuple(f"{requeue.step.value} is due: {requeue.reason}" for requeue in due)
    return Plan(chains=(chain_of("requeues", *due),), notes=notes)


SWEEP: Final = StepDefinition(
    name=Step.SWEEP,
    load=_load,
    reconcilers=(Reconciler(_requeue_due_steps, needs_catalogue=False),),
    requeues=None,
    fenced=False,
)


def due_steps(snapshot: Snapshot, *, static_capacity: bool = False) -> tuple[Requeue, ...]:
    """At most one requeue for each step that has work to do now, with the first reason found for it.

    Args:
        snapshot: Claims, pools (and those set aside), NodeClasses, buffers and unassigned pods.
        static_capacity: Whether pools with a fixed number of nodes are looked after.
    """
    reasons = {
        Step.PROVISION: next(_provision(snapshot, static_capacity=static_capacity), None),
        Step.TERMINATE: next(_terminate(snapshot), None),
        Step.CONSOLIDATE: next(_consolidate(snapshot), None),
    }
    return tuple(Requeue(step=step, at=snapshot.now, reason=why) for step, why in reasons.items() if why)


def _provision(snapshot: Snapshot, *, static_capacity: bool) -> Iterator[str]:
    yield from _waiting_pods(snapshot)
    yield from _unfinished(snapshot)
    yield from _outdated_pools(snapshot)
    yield from _node_classes(snapshot)
    if static_capacity:
        yield from _static(snapshot)


def _unfinished(snapshot: Snapshot) -> Iterator[str]:
    for claim in snapshot.claims:
        if claim.metadata.deletion_timestamp is not None:
            continue
        if not is_initialized(claim):
            yield f"NodeClaim {claim.metadata.name} is not initialized"
        if not _is_whole(claim):
            yield f"NodeClaim {claim.metadata.name} lacks its finalizer, a label, its provider id or Ready"
        if _is_hashed_otherwise(claim, snapshot):
            yield f"NodeClaim {claim.metadata.name} has a hash of another version"


def _is_whole(claim: NodeClaim) -> bool:
    """Whether it carries what every initialized claim does; Karpenter's old ones and hand-edited ones may not."""
    return (
        bool(claim.status.provider_id)
        and with_finalizer_and_labels(claim) is claim
        and not has_stale_ready_condition(claim)
    )


def _is_hashed_otherwise(claim: NodeClaim, snapshot: Snapshot) -> bool:
    """Whether Karpenter, or an earlier release, made the hash of its NodePool."""
    version = claim.metadata.annotations.get(labels.NODEPOOL_HASH_VERSION, NODEPOOL_HASH_VERSION)
    has_pool = claim.metadata.labels.get(labels.NODEPOOL) in snapshot.node_pools_by_name
    return has_pool and version != NODEPOOL_HASH_VERSION


def _static(snapshot: Snapshot) -> Iterator[str]:
    """Yield static NodePools with another number of nodes than their replicas, unless their limit is the reason."""
    for pool in static_nodepools(snapshot.claims, snapshot.node_pools):
        if pool.surplus or pool.allowed:
            yield f"NodePool {pool.name} has {len(pool.running)} of {pool.replicas} nodes"


def _outdated_pools(snapshot: Snapshot) -> Iterator[str]:
    for pool in snapshot.node_pools:
        validated = condition_of(pool.status.conditions, VALIDATION_SUCCEEDED)
        if validated is None or validated.observed_generation != pool.metadata.generation:
            yield f"NodePool {pool.metadata.name} is new or changed"
        elif not is_true(pool.status.conditions, READY) and _passed(snapshot.now, UNREADY_POOL_PERIOD):
            yield f"NodePool {pool.metadata.name} is not ready"
    for item in snapshot.invalid_objects:
        refused = condition_of(item.conditions, VALIDATION_SUCCEEDED)
        if item.kind == NODEPOOL.kind and (refused is None or refused.observed_generation != item.generation):
            yield f"NodePool {item.name} does not validate"


def _node_classes(snapshot: Snapshot) -> Iterator[str]:
    needed = {claim.spec.node_class_ref.name for claim in snapshot.claims}
    in_use = needed | {pool.spec.template.spec.node_class_ref.name for pool in snapshot.node_pools}
    for node_class in snapshot.node_classes:
        if node_class.deleting:
            if has_finalizer(node_class) and (
                node_class.name not in needed or _passed(snapshot.now, REMINDER_INTERVAL)
            ):
                yield f"{node_class.kind} {node_class.name} is being deleted"
        elif node_class.name in in_use and node_class.observed_generation != node_class.generation:
            yield f"{node_class.kind} {node_class.name} is new or changed"


def _waiting_pods(snapshot: Snapshot) -> Iterator[str]:
    for pod in snapshot.pods:
        if is_provisionable(pod) and not opted_out(pod):
            yield f"pod {pod.key} has no node"
    if key := pod_with_stale_nomination(snapshot):
        yield f"pod {key} may have missed the node it was planned for"
    for buffer in snapshot.capacity_buffers:
        if buffer.active:
            yield f"CapacityBuffer {buffer.key} may have been used up"


def _terminate(snapshot: Snapshot) -> Iterator[str]:
    for claim in snapshot.claims:
        if claim.metadata.deletion_timestamp is not None:
            yield f"NodeClaim {claim.metadata.name} is being deleted"
        elif is_expired(claim, snapshot.now):
            yield f"NodeClaim {claim.metadata.name} has expired"
        elif is_true(claim.status.conditions, INSTANCE_TERMINATING):
            yield f"NodeClaim {claim.metadata.name} is marked as terminating, although it is not deleted"
    if _passed(snapshot.now, GARBAGE_PERIOD if snapshot.claims else GARBAGE_PERIOD_WITHOUT_CLAIMS):
        yield "garbage collection"


def _consolidate(snapshot: Snapshot) -> Iterator[str]:
    pools = snapshot.node_pools_by_name
    in_use: set[str] = set()
    for claim in snapshot.claims:
        if claim.metadata.deletion_timestamp is not None:
            continue
        if is_true(claim.status.conditions, DISRUPTION_REASON):
            yield f"NodeClaim {claim.metadata.name} is being disrupted"
        pool = pools.get(claim.metadata.labels.get(labels.NODEPOOL, ""))
        if pool is None or not is_true(claim.status.conditions, INITIALIZED):
            continue
        in_use.add(pool.metadata.name)
        if _just_consolidatable(claim, pool, snapshot.now):
            yield f"NodeClaim {claim.metadata.name} may be consolidated"
    for name in sorted(in_use):
        if _window_opened(pools[name], snapshot.now):
            yield f"a budget window of NodePool {name} has opened"
    if in_use and _passed(snapshot.now, CONSOLIDATION_PERIOD):
        yield "there are nodes to look at"
    if _passed(snapshot.now, HISTORY_PERIOD):
        yield "commands that ended"


def _just_consolidatable(claim: NodeClaim, pool: NodePool, now: datetime) -> bool:
    """Whether its consolidateAfter has passed, and the condition does not say so yet."""
    after = consolidate_after(pool)
    if after is None or is_true(claim.status.conditions, CONSOLIDATABLE):
        return False
    initialized = condition_of(claim.status.conditions, INITIALIZED)
    since = claim.status.last_pod_event_time or (initialized.last_transition_time if initialized else None)
    return since is not None and now >= since + after


def _window_opened(pool: NodePool, now: datetime) -> bool:
    found = windows(pool.spec.disruption.budgets, now - SWEEP_OVERLAP, now + timedelta(seconds=1))
    return any(now - SWEEP_OVERLAP < window.opens <= now for window in found)


def _passed(now: datetime, period: timedelta) -> bool:
    """Whether this minute's sweep is the one in each period; schedules are off by seconds, so minutes are rounded."""
    return round(now.timestamp() / 60) % (period // timedelta(minutes=1)) == 0
