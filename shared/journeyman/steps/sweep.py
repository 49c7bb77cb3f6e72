"""Sweep: finds the steps that are due, every minute and from a few objects, and sends them messages.

It finds all work that a lost message would have started, so that no work depends on a message. It runs without a Lease,
since two sweeps at once only send some messages twice. Steps are due for:

=============  ====================================================================================================
provision      pods without a node, or with a stale nomination; NodeClaims that are not initialized, or lack metadata
               that every NodeClaim has; NodePools whose conditions are not current; static NodePools whose number of
               nodes differs from their replicas; changed NodeClasses in use, and those being deleted that no
               NodeClaim uses (every ten minutes: also those in use); CapacityBuffers, which pods use up without an
               event; hibernation that has just ended, and windows of CapacityBuffers that have just opened
terminate      NodeClaims that are being deleted, are expired or expire soon, or that are not deleted although their instance
               terminates; garbage collection, every two minutes (every ten without NodeClaims)
consolidate    NodeClaims of unfinished commands; NodeClaims whose consolidateAfter has just passed; budget windows that
               have just opened or closed; hibernation that has just started; NodeClaims, every two minutes: only a
               run that reads all pods sees which pods are gone, and only one that reads commands sees one whose nodes
               are gone; old commands to delete, every ten minutes
=============  ====================================================================================================

It also keeps the entries of the cloud's scheduler as the calendar says (`core.disruption.calendar`). It writes nothing
into the cluster.

It does not read nodes, which are large. Garbage collection reads them, and finds nodes that are unhealthy, lost a label or
taint, have less capacity than their NodeClaims, or are being deleted while the forwarder is down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final, TypeVar

from journeyman.core.api import labels
from journeyman.core.api.conditions import (
    CONSOLIDATABLE,
    DISRUPTION_REASON,
    EXPIRED,
    INITIALIZED,
    INSTANCE_TERMINATING,
    READY,
    VALIDATION_SUCCEEDED,
)
from journeyman.core.api.duration import time_after
from journeyman.core.api.hashes import NODEPOOL_HASH_VERSION
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NODEPOOL, NodeClaim, Pod, condition_of, is_true
from journeyman.core.disruption.calendar import (
    calendar_of,
    entry_prefix,
    passed_edges,
    reconcile_entries,
    schedule_entries,
)
from journeyman.core.disruption.consolidatable import consolidate_after
from journeyman.core.disruption.static_nodepool_state import static_nodepools
from journeyman.core.lifecycle.expiration import ending_block
from journeyman.core.lifecycle.hydration import has_stale_ready_condition, is_initialized, with_finalizer_and_labels
from journeyman.core.lifecycle.nodeclass_finalizer import REMINDER_INTERVAL, has_finalizer
from journeyman.core.lifecycle.nomination import pod_with_stale_nomination
from journeyman.core.plan import Failure, Plan, Requeue, Step, chain_of
from journeyman.core.scheduling.pod_validation import opted_out
from journeyman.core.state import Snapshot
from journeyman.core.state.expiration_times import expires_soon, is_expired
from journeyman.core.state.pod_predicates import is_provisionable
from journeyman.core.state.skipped_objects import SkippedObject, evaluate
from journeyman.errors import CloudProviderError
from journeyman.ports import Trigger
from journeyman.steps.context import Outcome, RunContext
from journeyman.steps.load import SWEEP_SCOPE, load
from journeyman.steps.scheduling_inputs import StepInputs
from journeyman.steps.step import Reconciler, StepDefinition, run_step

T = TypeVar("T")

SWEEP_OVERLAP: Final = timedelta(seconds=75)  # a minute, and the usual delay of a schedule
GARBAGE_COLLECTION_PERIOD: Final = timedelta(minutes=2)  # karpenter nodeclaim/garbagecollection: every 2 min
GARBAGE_COLLECTION_PERIOD_WITHOUT_CLAIMS: Final = timedelta(minutes=10)
CONSOLIDATION_PERIOD: Final = timedelta(minutes=2)  # Karpenter: every 10 s, unless nothing changed
HISTORY_PERIOD: Final = timedelta(minutes=10)
UNREADY_POOL_PERIOD: Final = timedelta(minutes=5)
SCHEDULE_LIST_PERIOD: Final = timedelta(minutes=5)
"""How often a process lists the entries of the cloud's scheduler again; between, it knows those that it created and deleted."""


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
    snapshot = load(run, SWEEP_SCOPE)
    failures: tuple[Failure, ...] = ()
    try:
        entries = _schedule_entries(run)
    except CloudProviderError as error:
        entries, failures = None, (Failure(subject="schedule entries", error=error),)
    return StepInputs.of(run, trigger, snapshot, schedule_entries=entries, failures=failures)


def _schedule_entries(run: RunContext) -> frozenset[str] | None:
    """Return the names of the cluster's entries in the cloud's scheduler; None without one. Raises CloudProviderError."""
    if run.window_schedules is None:
        return None
    memory, now = run.memory, run.clock.now()
    if memory.schedule_entries is None or memory.schedule_entries_due is None or now >= memory.schedule_entries_due:
        memory.schedule_entries = run.window_schedules.list(entry_prefix(run.cluster))
        memory.schedule_entries_due = now + SCHEDULE_LIST_PERIOD
    return memory.schedule_entries


def _requeue_due_steps(inputs: StepInputs) -> Plan:
    due = due_steps(inputs.snapshot, static_capacity=inputs.settings.feature_gates.static_capacity)
    notes = tuple(f"{requeue.step.value} is due: {requeue.reason}" for requeue in due)
    return Plan(chains=(chain_of("requeues", *due),), notes=notes)


def _keep_calendar(inputs: StepInputs) -> Plan:
    """Create and delete entries of the cloud's scheduler, so that they are those of the calendar."""
    if inputs.schedule_entries is None:
        return Plan()
    snapshot = inputs.snapshot
    calendar = calendar_of(snapshot.node_pools, snapshot.capacity_buffers, snapshot.now)
    wanted = schedule_entries(calendar, snapshot.cluster, snapshot.now)
    return reconcile_entries(wanted, inputs.schedule_entries, snapshot.now)


SWEEP: Final = StepDefinition(
    name=Step.SWEEP,
    load=_load,
    reconcilers=(
        Reconciler(_requeue_due_steps, needs_catalogue=False),
        Reconciler(_keep_calendar, needs_catalogue=False),
    ),
    requeues=None,
    fenced=False,
)


def due_steps(snapshot: Snapshot, *, static_capacity: bool = False) -> tuple[Requeue, ...]:
    """Return one requeue for each step that is due now, with the first reason found.

    Args:
        snapshot: Claims, NodePools (also invalid ones), NodeClasses, CapacityBuffers and unassigned pods.
        static_capacity: Whether the feature gate StaticCapacity is enabled.
    """
    reasons = {
        Step.PROVISION: next(_reasons_to_provision(snapshot, static_capacity=static_capacity), None),
        Step.TERMINATE: next(_reasons_to_terminate(snapshot), None),
        Step.CONSOLIDATE: next(_reasons_to_consolidate(snapshot), None),
    }
    return tuple(Requeue(step=step, at=snapshot.now, reason=why) for step, why in reasons.items() if why)


def _reasons_to_provision(snapshot: Snapshot, *, static_capacity: bool) -> Iterator[str]:
    yield from _edges(snapshot, Step.PROVISION)
    yield from _waiting_pods(snapshot)
    yield from _unfinished_claims(snapshot)
    yield from _outdated_pools(snapshot)
    yield from _node_classes(snapshot)
    if static_capacity:
        yield from _static_pools(snapshot)


def _unfinished_claims(snapshot: Snapshot) -> Iterator[str]:
    yield from _reasons_of(snapshot.claims, lambda claim: _unfinished_claim(claim, snapshot))


def _reasons_of(items: Iterable[T], reason: Callable[[T], str]) -> Iterator[str]:
    """Yield the reason of each object that has one; an object that cannot be evaluated is one, since the step reports it."""
    for item in items:
        found = evaluate(item, reason, item)
        if isinstance(found, SkippedObject):
            yield f"{found.refs[0]} cannot be evaluated: {found.why}"
        elif found:
            yield found


def _unfinished_claim(claim: NodeClaim, snapshot: Snapshot) -> str:
    if claim.metadata.deletion_timestamp is not None:
        return ""
    if not is_initialized(claim):
        return f"NodeClaim {claim.metadata.name} is not initialized"
    if block := ending_block(claim, snapshot):
        return f"capacity block {block} of NodeClaim {claim.metadata.name} ends soon"
    if not _is_complete(claim):
        return f"NodeClaim {claim.metadata.name} lacks its finalizer, a label, its provider id or Ready"
    if _has_other_hash_version(claim, snapshot):
        return f"NodeClaim {claim.metadata.name} has a hash of another version"
    return ""


def _is_complete(claim: NodeClaim) -> bool:
    """Whether it has the metadata and status of every initialized claim, which old or edited claims may lack."""
    return (
        bool(claim.status.provider_id)
        and with_finalizer_and_labels(claim) is claim
        and not has_stale_ready_condition(claim)
    )


def _has_other_hash_version(claim: NodeClaim, snapshot: Snapshot) -> bool:
    """Whether Karpenter or an earlier release computed its NodePool hash."""
    version = claim.metadata.annotations.get(labels.NODEPOOL_HASH_VERSION, NODEPOOL_HASH_VERSION)
    has_pool = claim.metadata.labels.get(labels.NODEPOOL) in snapshot.node_pools_by_name
    return has_pool and version != NODEPOOL_HASH_VERSION


def _static_pools(snapshot: Snapshot) -> Iterator[str]:
    """Yield static NodePools whose number of nodes differs from their replicas, unless because of their limit."""
    for pool in static_nodepools(snapshot.claims, snapshot.node_pools):
        if (pool.surplus or pool.allowed) and not pool.pool.is_hibernating(snapshot.now):
            yield f"NodePool {pool.name} has {len(pool.running)} of {pool.replicas} nodes"


def _outdated_pools(snapshot: Snapshot) -> Iterator[str]:
    def outdated(pool: NodePool) -> str:
        validated = condition_of(pool.status.conditions, VALIDATION_SUCCEEDED)
        if validated is None or validated.observed_generation != pool.metadata.generation:
            return f"NodePool {pool.metadata.name} is new or changed"
        is_ready = is_true(pool.status.conditions, READY) or not _period_ends(snapshot.now, UNREADY_POOL_PERIOD)
        return "" if is_ready else f"NodePool {pool.metadata.name} is not ready"

    yield from _reasons_of(snapshot.node_pools, outdated)
    for item in snapshot.invalid_objects:
        reported = condition_of(item.conditions, VALIDATION_SUCCEEDED)
        if item.kind == NODEPOOL.kind and (reported is None or reported.observed_generation != item.generation):
            yield f"NodePool {item.name} does not validate"


def _node_classes(snapshot: Snapshot) -> Iterator[str]:
    used_by_claims = {claim.spec.node_class_ref.name for claim in snapshot.claims}
    in_use = used_by_claims | {pool.spec.template.spec.node_class_ref.name for pool in snapshot.node_pools}
    for node_class in snapshot.node_classes:
        if node_class.deleting:
            if has_finalizer(node_class) and (
                node_class.name not in used_by_claims or _period_ends(snapshot.now, REMINDER_INTERVAL)
            ):
                yield f"{node_class.kind} {node_class.name} is being deleted"
        elif node_class.name in in_use and node_class.observed_generation != node_class.generation:
            yield f"{node_class.kind} {node_class.name} is new or changed"


def _waiting_pods(snapshot: Snapshot) -> Iterator[str]:
    def waiting(pod: Pod) -> str:
        return f"pod {pod.key} has no node" if is_provisionable(pod) and not opted_out(pod) else ""

    yield from _reasons_of(snapshot.pods, waiting)
    if key := pod_with_stale_nomination(snapshot):
        yield f"pod {key} may have missed the node it was planned for"
    for buffer in snapshot.capacity_buffers:
        if buffer.reserves_capacity(snapshot.now):
            yield f"CapacityBuffer {buffer.key} may have been used up"


def _reasons_to_terminate(snapshot: Snapshot) -> Iterator[str]:
    def leaving(claim: NodeClaim) -> str:
        name = claim.metadata.name
        if claim.metadata.deletion_timestamp is not None:
            return f"NodeClaim {name} is being deleted"
        if is_expired(claim, snapshot.now):
            return f"NodeClaim {name} has expired"
        if expires_soon(claim, snapshot.now) and not is_true(claim.status.conditions, DISRUPTION_REASON):
            return f"NodeClaim {name} expires soon"
        terminates = is_true(claim.status.conditions, INSTANCE_TERMINATING)
        return f"the instance of NodeClaim {name} terminates, although the claim is not deleted" if terminates else ""

    yield from _reasons_of(snapshot.claims, leaving)
    if _period_ends(
        snapshot.now, GARBAGE_COLLECTION_PERIOD if snapshot.claims else GARBAGE_COLLECTION_PERIOD_WITHOUT_CLAIMS
    ):
        yield "garbage collection is due"


def _reasons_to_consolidate(snapshot: Snapshot) -> Iterator[str]:
    def disruptable(claim: NodeClaim) -> str:
        if claim.metadata.deletion_timestamp is not None:
            return ""
        disrupted = condition_of(claim.status.conditions, DISRUPTION_REASON)
        if disrupted is not None and disrupted.status == "True" and disrupted.reason != EXPIRED:
            return f"NodeClaim {claim.metadata.name} is being disrupted"
        pool = _pool_with_node(claim, snapshot)
        due = pool is not None and _just_consolidatable(claim, pool, snapshot.now)
        return f"NodeClaim {claim.metadata.name} may be consolidated" if due else ""

    yield from _reasons_of(snapshot.claims, disruptable)
    if any(_pool_with_node(claim, snapshot) for claim in snapshot.claims):
        yield from _edges(snapshot, Step.CONSOLIDATE)
    if snapshot.claims and _period_ends(snapshot.now, CONSOLIDATION_PERIOD):
        yield "nodes may be consolidated, or a command may have ended with its last node"
    if _period_ends(snapshot.now, HISTORY_PERIOD):
        yield "old commands may be deleted"


def _pool_with_node(claim: NodeClaim, snapshot: Snapshot) -> NodePool | None:
    """Return the NodePool of a node that stays; None if there is none, or the node is not initialized, or leaves."""
    if claim.metadata.deletion_timestamp is not None or not is_true(claim.status.conditions, INITIALIZED):
        return None
    return snapshot.node_pools_by_name.get(claim.metadata.labels.get(labels.NODEPOOL, ""))


def _edges(snapshot: Snapshot, step: Step) -> Iterator[str]:
    """Yield why the step is due: windows that have opened or closed since the last sweep."""
    calendar = calendar_of(snapshot.node_pools, snapshot.capacity_buffers, snapshot.now)
    for edge in passed_edges(calendar, snapshot.now - SWEEP_OVERLAP, snapshot.now):
        if edge.step is step:
            yield edge.reason


def _just_consolidatable(claim: NodeClaim, pool: NodePool, now: datetime) -> bool:
    """Whether its consolidateAfter has passed since the Consolidatable condition was written."""
    after = consolidate_after(pool)
    if after is None or is_true(claim.status.conditions, CONSOLIDATABLE):
        return False
    initialized = condition_of(claim.status.conditions, INITIALIZED)
    since = claim.status.last_pod_event_time or (initialized.last_transition_time if initialized else None)
    return since is not None and now >= time_after(since, after)


def _period_ends(now: datetime, period: timedelta) -> bool:
    """Whether a period ends in this minute; minutes are rounded, since schedules start some seconds early or late."""
    return round(now.timestamp() / 60) % (period // timedelta(minutes=1)) == 0
