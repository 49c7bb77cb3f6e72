"""Termination: finalizes Nodes and NodeClaims with a deletionTimestamp, one step per run.

::

    NodeClaim or Node gets a deletionTimestamp
      └─ taint, exclude from load balancers, delete the counterpart
           └─ drain (at least 5 s)                 Drained
                └─ wait for volumes                VolumesDetached
                     └─ terminate the instance     InstanceTerminating
                          └─ remove the finalizers of Node and NodeClaim

Every run derives the stage from the objects, does the next step, and requeues. Nodes whose NodeClaim does not exist go
through the same stages: someone removed the finalizer of the NodeClaim, and the garbage collector deleted the Node with its
owner. Events say when a Node or NodePool was deleted from outside.

Restates: karpenter pkg/controllers/node/termination/controller.go `finalize`, `awaitInstanceTermination`, `removeFinalizer`;
pkg/controllers/node/termination/terminator/terminator.go `Taint`; pkg/controllers/nodeclaim/lifecycle/controller.go
`finalize`, `ensureTerminationGracePeriodTerminationTimeAnnotation`.
Differs: Node and NodeClaim are finalized in one run; a NodeClaim that was deleted before its provider id was written finds
its instance by tag; InstanceTerminating counts only after a drain, also if a user set it; a stopped instance is not waited for.
Karpenter removes the finalizer of a Node without a NodeClaim once it is drained, and terminates its instance as an orphan.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import DRAINED, INSTANCE_TERMINATING, VOLUMES_DETACHED, format_time
from journeyman.core.api.duration import parse_duration
from journeyman.core.api.objects import NODEPOOL, Node, NodeClaim, OwnerReference, condition_of, is_true
from journeyman.core.lifecycle.drain import (
    FORCEFUL,
    DrainDecision,
    TerminationIntervals,
    attached_volumes,
    condition_since,
    decide_drain,
    drain_after_taint,
    drain_events,
    eviction_chains,
    eviction_reason,
    has_active_sibling,
    requeue_for_drain,
    requeue_for_instance,
    requeue_for_volumes,
    requeue_provisioning,
    volume_events,
)
from journeyman.core.lifecycle.progress import (
    NodeClaimProgress,
    claim_ref,
    event_refs,
    node_patches,
    node_ref,
    with_metadata,
    with_node,
)
from journeyman.core.plan import (
    Action,
    Chain,
    DeleteObject,
    Event,
    ObjectRef,
    Plan,
    Requeue,
    Step,
    TerminateInstance,
    chain_of,
    merge_plans,
)
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.disrupted_taint import has_disrupted_taint, with_disrupted_taint
from journeyman.core.state.instances import CloudInstances, RunningInstance
from journeyman.core.state.nodeclaim_metrics import claim_termination_metrics, node_counter, node_termination_metrics
from journeyman.errors import ConfigurationError


def finalize_terminating(snapshot: Snapshot, cloud: CloudInstances, pace: TerminationIntervals) -> Plan:
    """Move everything that is being deleted one step on.

    Args:
        snapshot: Nodes, claims, the pods of nodes that are being deleted, and the volumes attached to those of them whose
            volumes matter now (`awaits_volumes`).
        cloud: What is known of their instances.
        pace: How long to wait for what.
    """
    leaving = [n for n in snapshot.state_nodes if needs_termination(n)]
    deletions = Plan(events=tuple(event for n in leaving for event in external_deletion_events(n, snapshot)))
    return merge_plans([deletions, *(_finalize(n, snapshot, cloud, pace) for n in leaving)])


def awaits_volumes(state: StateNode, now: datetime) -> bool:
    """Whether volumes are what comes next: no pod of the node is waited for, and its instance is not ending yet."""
    if state.node is None or not needs_termination(state) or decide_drain(state.pods, now, None).remaining:
        return False
    return state.claim is None or not _is_instance_terminating(state.claim)


def _finalize(state: StateNode, snapshot: Snapshot, cloud: CloudInstances, pace: TerminationIntervals) -> Plan:
    claim, node = _with_instance(state, cloud), state.node
    if node is None or not (awaits_finalizer(node) or state.registered):
        # a node that never registered is not ours to drain: the instance goes, the cloud's controller removes the node
        return finalize_nodeclaim(claim, snapshot.now, cloud, pace) if claim is not None else Plan()
    if claim is None:
        return finalize_node_without_claim(node, state, snapshot, cloud, pace)
    if _is_instance_terminating(claim) or _is_instance_gone(state, cloud):
        return finalize_node_and_claim(claim, node, snapshot.now, cloud, pace)
    return _drain(claim, state, snapshot, cloud, pace)


def _with_instance(state: StateNode, cloud: CloudInstances) -> NodeClaim | None:
    """The claim with the instance that goes with it, whatever became of its status.

    That is its node's, or its own, or the one whose tags name it (also if no instance has its own id, which a
    user may have edited); and none if what it carries is another claim's.
    """
    if state.claim is None:
        return None
    instance = state.provider_id
    if state.node is None and cloud.find(instance) is None:
        instance = cloud.launched_for(state.claim) or instance
    status = msgspec.structs.replace(state.claim.status, provider_id="" if state.duplicate_of else instance)
    return msgspec.structs.replace(state.claim, status=status)


def _is_instance_terminating(claim: NodeClaim) -> bool:
    """Whether its instance was asked to end after a drain; a user may have set the condition alone."""
    volumes = condition_of(claim.status.conditions, VOLUMES_DETACHED)
    past_drain = is_true(claim.status.conditions, DRAINED) and volumes is not None and volumes.status != "Unknown"
    return past_drain and is_true(claim.status.conditions, INSTANCE_TERMINATING)


def _is_instance_gone(state: StateNode, cloud: CloudInstances) -> bool:
    """The instance is gone under a node that is not Ready: there is nothing to drain."""
    return not state.ready and state.provider_id in cloud.gone


def _drain(
    claim: NodeClaim, state: StateNode, snapshot: Snapshot, cloud: CloudInstances, pace: TerminationIntervals
) -> Plan:
    node, now = state.node, snapshot.now
    assert node is not None  # noqa: S101 - the caller's
    progress = prepare_termination(NodeClaimProgress.of(claim, now).with_found_node(node))
    end = termination_time(progress.claim)
    decided = decide_drain(state.pods, now, end)
    rested = is_true(claim.status.conditions, DRAINED) or now >= condition_since(claim, DRAINED, now) + pace.min_drain
    if rested and cloud.is_stopped(state):
        return finalize_node_and_claim(claim, node, now, cloud, pace)
    if decided.remaining or not rested:
        return _continue_drain(progress, node, decided, state, pace)
    if has_active_sibling(state, snapshot):  # they come back to it
        return Plan(chains=(progress.chain(*delete_counterparts(progress), why="drain"),))
    volumes = attached_volumes(state, snapshot)
    if volumes and (end is None or now <= end):
        return _await_volumes(progress, node, volumes, end, pace)
    return _terminate_drained(progress, node, volumes, pace)


def _continue_drain(
    progress: NodeClaimProgress, node: Node, decided: DrainDecision, state: StateNode, pace: TerminationIntervals
) -> Plan:
    now, claim, name = progress.now, progress.claim, state.name
    begins = condition_of(claim.status.conditions, DRAINED) is None
    if not is_true(claim.status.conditions, DRAINED):  # a pod that comes later than that changes nothing of it
        progress = progress.with_condition(DRAINED, "Unknown", "Draining", "Draining")
    closing = progress.chain(*delete_counterparts(progress), why="drain")
    pods = eviction_chains(decided, node, eviction_reason(claim), termination_time(claim))
    chains = (
        *drain_after_taint(closing, pods, node),
        chain_of(
            f"Node {name}",
            requeue_for_drain(decided, name, now, condition_since(claim, DRAINED, now), pace),
            *(requeue_provisioning(state.pods, name, now) if begins else ()),
        ),
    )
    note = f"draining node {name}: {len(decided.remaining)} pod(s) left, evicting {len(decided.evict)}, forcing {len(decided.force)}"
    return Plan(chains=chains, events=drain_events(decided, node, now), notes=(note,))


def _await_volumes(
    progress: NodeClaimProgress, node: Node, volumes: tuple[str, ...], end: datetime | None, pace: TerminationIntervals
) -> Plan:
    name, reason = node.metadata.name, "AwaitingVolumeDetachment"
    began = condition_since(progress.claim, VOLUMES_DETACHED, progress.now)
    progress = _with_drained(progress).with_condition(VOLUMES_DETACHED, "Unknown", reason, reason)
    look = requeue_for_volumes(name, progress.now, began, end, pace)
    chain = progress.chain(*delete_counterparts(progress), look, why="its volumes are being detached")
    note = f"node {name} is drained, waiting for {len(volumes)} volume(s) to be detached"
    return Plan(chains=(chain,), events=volume_events(volumes, node), notes=(note,))


def _terminate_drained(
    progress: NodeClaimProgress, node: Node, volumes: tuple[str, ...], pace: TerminationIntervals
) -> Plan:
    """Nothing is waited for any more: no pod, and no volume, or the node's end has come."""
    elapsed = "TerminationGracePeriodElapsed"
    progress = _with_drained(progress)
    progress = (
        progress.with_condition(VOLUMES_DETACHED, "False", elapsed, elapsed)
        if volumes
        else progress.with_condition(VOLUMES_DETACHED, "True")
    ).with_condition(INSTANCE_TERMINATING, "True")
    ended = terminate_instance(progress.original, node, progress.now, pace, "the node is drained")
    chain = progress.chain(*delete_counterparts(progress), *ended, why="the node is drained")
    return Plan(chains=(chain,), notes=(f"drained node {node.metadata.name}, terminating its instance",))


def _with_drained(progress: NodeClaimProgress) -> NodeClaimProgress:
    claim = progress.claim
    if is_true(claim.status.conditions, DRAINED):
        return progress
    counted = node_counter("karpenter_nodes_drained_total", claim)
    return progress.with_condition(DRAINED, "True").with_events(observations=(counted,))


AwareTime = Annotated[datetime, msgspec.Meta(tz=True)]


def needs_termination(node: StateNode) -> bool:
    """Whether the Node or the NodeClaim has a deletionTimestamp and our finalizer, so that it is drained and terminated."""
    return any(awaits_finalizer(half) for half in (node.claim, node.node) if half is not None)


def awaits_finalizer(item: NodeClaim | Node) -> bool:
    """Whether it has a deletionTimestamp and our finalizer."""
    return item.metadata.deletion_timestamp is not None and labels.TERMINATION_FINALIZER in item.metadata.finalizers


def with_disrupted_marks(node: Node) -> Node:
    """Closed to new pods and taken out of load balancers."""
    marks = {**node.metadata.labels, labels.EXCLUDE_BALANCERS: "karpenter"}
    return with_node(node, metadata={"labels": marks}, spec={"taints": with_disrupted_taint(node.spec.taints)})


def prepare_termination(progress: NodeClaimProgress) -> NodeClaimProgress:
    """The node marked, and the time by which it must be gone written down once: a time that others set stands.

    What is no time says nothing, and would leave the node without an end. A node that lost our finalizer gets it back
    before it is deleted: it would be gone at once, and its pods with it. Until the claim has a deletionTimestamp there is
    nothing to count from.
    """
    if progress.node is not None:
        progress = replace(progress, node=_with_termination_finalizer(with_disrupted_marks(progress.node)))
    claim = progress.claim
    period, deleted = _grace_period(claim), claim.metadata.deletion_timestamp
    if period is not None and deleted is not None and termination_time(claim) is None:
        noted = {**claim.metadata.annotations, labels.TERMINATION_TIMESTAMP: format_time(deleted + period)}
        progress = replace(progress, claim=with_metadata(claim, annotations=noted))
    return progress.with_events(*_grace_period_events(progress))


def _with_termination_finalizer(node: Node) -> Node:
    """With our finalizer, unless it is being deleted: the API server takes no further ones then."""
    finalizers = node.metadata.finalizers
    if node.metadata.deletion_timestamp is not None or labels.TERMINATION_FINALIZER in finalizers:
        return node
    return with_node(node, metadata={"finalizers": (*finalizers, labels.TERMINATION_FINALIZER)})


def termination_time(claim: NodeClaim) -> datetime | None:
    """When the claim's node must be gone; None if it may take as long as its pods need."""
    text = claim.metadata.annotations.get(labels.TERMINATION_TIMESTAMP, "")
    try:
        return msgspec.convert(text, AwareTime)
    except msgspec.ValidationError:
        return None


def delete_counterparts(progress: NodeClaimProgress) -> tuple[Action, ...]:
    """Deleting either half deletes the other."""
    halves: tuple[Action, ...] = ()
    if progress.original.metadata.deletion_timestamp is None:
        halves += (DeleteObject(ref=claim_ref(progress.original), why="its node is being deleted"),)
    node = progress.original_node
    if node is not None and node.metadata.deletion_timestamp is None:
        halves += (DeleteObject(ref=node_ref(node), why="its NodeClaim is being deleted"),)
    return halves


def without_termination_finalizer(finalizers: tuple[str, ...]) -> tuple[str, ...]:
    """The finalizers that others put on."""
    return tuple(f for f in finalizers if f != labels.TERMINATION_FINALIZER)


def _grace_period(claim: NodeClaim) -> timedelta | None:
    """The claim's terminationGracePeriod; one that does not parse counts as none, which loses no pod."""
    text = claim.spec.termination_grace_period
    try:
        return parse_duration(text) if text is not None else None
    except ConfigurationError:
        return None


def _grace_period_events(progress: NodeClaimProgress) -> Iterator[Event]:
    """On the claim once we wrote the end down, on the node as well or, if others wrote it, once the drain begins."""
    if termination_time(progress.claim) is None:
        return
    end = progress.claim.metadata.annotations[labels.TERMINATION_TIMESTAMP]
    written = progress.original.metadata.annotations.get(labels.TERMINATION_TIMESTAMP) != end
    begins = condition_of(progress.original.status.conditions, DRAINED) is None
    if written:
        yield _expiring_event(claim_ref(progress.original), end)
    if progress.original_node is not None and (written or begins):
        yield _expiring_event(node_ref(progress.original_node), end)


def _expiring_event(ref: ObjectRef, end: str) -> Event:
    text = f"All pods will be deleted by {end}"
    return Event(ref=ref, reason="TerminationGracePeriodExpiring", message=text, type="Warning")


def finalize_node_and_claim(
    claim: NodeClaim, node: Node, now: datetime, cloud: CloudInstances, pace: TerminationIntervals
) -> Plan:
    """The instance is on its way out: once it is gone, so are the node and its claim."""
    provider_id = claim.status.provider_id
    if provider_id and provider_id not in cloud.gone:
        return _await_instance_termination(claim, node, now, pace)
    if halves := delete_counterparts(NodeClaimProgress.of(claim, now).with_found_node(node)):
        wake = Requeue(step=Step.TERMINATE, at=now, reason=f"the instance of node {node.metadata.name} is gone")
        return Plan(chains=(chain_of(f"NodeClaim {claim.metadata.name}", *halves, wake),))
    chain = Chain(
        subject=f"NodeClaim {claim.metadata.name}",
        actions=(*remove_node_finalizer(node, "its instance is gone"), *_remove_claim_finalizer(claim, now)),
        events=(_finalized_event(node_ref(node)), _finalized_event(claim_ref(claim))),
        observations=(*node_termination_metrics(node, now), *claim_termination_metrics(claim, now)),
    )
    note = f"deleted node {node.metadata.name} and NodeClaim {claim.metadata.name}"
    return Plan(chains=(chain,), notes=(note,))


def finalize_nodeclaim(claim: NodeClaim, now: datetime, cloud: CloudInstances, pace: TerminationIntervals) -> Plan:
    """A claim without a node of its own: its instance goes without a drain."""
    provider_id = claim.status.provider_id
    if provider_id and provider_id not in cloud.gone:
        return _await_instance_termination(claim, None, now, pace)
    chain = Chain(
        subject=f"NodeClaim {claim.metadata.name}",
        actions=_remove_claim_finalizer(claim, now),
        events=(_finalized_event(claim_ref(claim)),),
        observations=claim_termination_metrics(claim, now),
    )
    return Plan(chains=(chain,), notes=(f"deleted NodeClaim {claim.metadata.name}",))


def terminate_instance(
    claim: NodeClaim, node: Node | None, now: datetime, pace: TerminationIntervals, why: str
) -> tuple[Action, ...]:
    """Terminate the instance, and check again; nothing if neither node, claim nor any instance says which one it is."""
    provider_id = claim.status.provider_id
    if not provider_id:
        return ()
    end = TerminateInstance(
        provider_id=provider_id,
        claim=claim.metadata.name,
        claim_uid=claim.metadata.uid,
        node=node_ref(node) if node is not None else None,
        why=why,
    )
    return (end, requeue_for_instance(provider_id, now, condition_since(claim, INSTANCE_TERMINATING, now), pace))


def remove_node_finalizer(node: Node, why: str) -> tuple[Action, ...]:
    """Take our finalizer off a node."""
    freed = with_node(node, metadata={"finalizers": without_termination_finalizer(node.metadata.finalizers)})
    return node_patches(node, freed, why)


def _await_instance_termination(claim: NodeClaim, node: Node | None, now: datetime, pace: TerminationIntervals) -> Plan:
    """The intent is the deletion itself: the instance ends even if what becomes of it cannot be written."""
    progress = prepare_termination(NodeClaimProgress.of(claim, now)).with_condition(INSTANCE_TERMINATING, "True")
    ended = terminate_instance(claim, node, now, pace, "the NodeClaim is being deleted")
    terminating = progress.chain(why="its instance is terminating")
    return Plan(chains=(terminating, chain_of(f"instance {claim.status.provider_id}", *ended)))


def _remove_claim_finalizer(claim: NodeClaim, now: datetime) -> tuple[Action, ...]:
    freed = with_metadata(claim, finalizers=without_termination_finalizer(claim.metadata.finalizers))
    return replace(NodeClaimProgress.of(claim, now), claim=freed).chain(why="its instance is gone").actions


def _finalized_event(ref: ObjectRef) -> Event:
    return Event(ref=ref, reason="Finalized", message="Finalized")


def finalize_node_without_claim(
    node: Node, state: StateNode, snapshot: Snapshot, cloud: CloudInstances, pace: TerminationIntervals
) -> Plan:
    """Move it one step on: its pods, its volumes, its instance, itself.

    Without a claim there is no terminationGracePeriod either: its pods have all the time they need. The drain does not
    wait for a machine that was stopped once its pods have been evicted.

    Args:
        node: The node, being deleted.
        state: The same with its pods.
        snapshot: The volumes attached to it, and all PersistentVolumeClaims.
        cloud: What is known of its instance.
        pace: How long to wait for what.
    """
    provider_id = node.spec.provider_id
    if provider_id in cloud.gone and not state.ready:
        return _remove_unclaimed_node(node, snapshot)
    decided = decide_drain(state.pods, snapshot.now, None)
    instance, stopped = cloud.find(provider_id), cloud.is_stopped(state) and has_disrupted_taint(node)
    if decided.remaining and not stopped:
        return _drain_without_claim(node, decided, state, snapshot, pace)
    if instance is not None and has_active_sibling(state, snapshot):
        return Plan()  # they come back to it
    if not stopped and (volumes := attached_volumes(state, snapshot)):
        began = node.metadata.deletion_timestamp or snapshot.now
        look = requeue_for_volumes(state.name, snapshot.now, began, None, pace)
        return Plan(chains=(chain_of(f"Node {state.name}", look),), events=volume_events(volumes, node))
    return (
        _terminate_unclaimed_instance(node, instance, snapshot, pace)
        if instance is not None
        else _remove_unclaimed_node(node, snapshot)
    )


def _drain_without_claim(
    node: Node, decided: DrainDecision, state: StateNode, snapshot: Snapshot, pace: TerminationIntervals
) -> Plan:
    now, closed = snapshot.now, with_disrupted_marks(node)
    patches = node_patches(node, closed, "drain")
    events = drain_events(decided, node, now)
    elsewhere: tuple[Requeue, ...] = ()
    if patches:  # it begins
        text = "The node and its instance have no NodeClaim: the node is drained, then both are deleted"
        events += (Event(ref=node_ref(node), reason="NodeClaimNotFound", message=text, type="Warning"),)
        elsewhere = requeue_provisioning(state.pods, state.name, now)
    look = requeue_for_drain(decided, state.name, now, node.metadata.deletion_timestamp or now, pace)
    closing = chain_of(f"Node {state.name}", *patches, look, *elsewhere)
    chains = drain_after_taint(closing, eviction_chains(decided, node, FORCEFUL, None), node)
    return Plan(chains=chains, events=events)


def _terminate_unclaimed_instance(
    node: Node, instance: RunningInstance, snapshot: Snapshot, pace: TerminationIntervals
) -> Plan:
    """Unless its claim is there after all: it was not when this was decided."""
    name, provider_id = node.metadata.name, instance.provider_id
    end = TerminateInstance(
        provider_id=provider_id,
        claim=instance.claim,
        claim_uid=instance.claim_uid,
        node=node_ref(node),
        why="its node is drained, and no NodeClaim owns it",
        unless_claimed=True,
    )
    began = node.metadata.deletion_timestamp or snapshot.now
    look = requeue_for_instance(provider_id, snapshot.now, began, pace)
    return Plan(
        chains=(chain_of(f"Node {name}", end, look),), notes=(f"drained node {name}, terminating its instance",)
    )


def _remove_unclaimed_node(node: Node, snapshot: Snapshot) -> Plan:
    name = node.metadata.name
    chain = chain_of(f"Node {name}", *remove_node_finalizer(node, "drained, and no NodeClaim owns it"))
    counted = replace(chain, observations=node_termination_metrics(node, snapshot.now))
    return Plan(chains=(counted,), notes=(f"deleted node {name}, which no NodeClaim owned",))


def external_deletion_events(state: StateNode, snapshot: Snapshot) -> tuple[Event, ...]:
    """Return Events for the claim and its node when their termination begins; none if a user deleted the claim itself.

    Args:
        state: A claim that leaves, or whose node does.
        snapshot: The NodePools, those that do not validate included.
    """
    if state.claim is None or _has_started(state.claim):
        return ()
    causes = tuple(_causes(state, snapshot))
    return tuple(Event(ref=ref, reason=reason, message=text) for ref in event_refs(state) for reason, text in causes)


def _has_started(claim: NodeClaim) -> bool:
    return any(condition_of(claim.status.conditions, type_) is not None for type_ in (DRAINED, INSTANCE_TERMINATING))


def _causes(state: StateNode, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    assert state.claim is not None  # noqa: S101 - the caller's
    name = state.claim.metadata.name
    if state.claim.metadata.deletion_timestamp is None:
        yield (
            "NodeDeleted",
            f"Node {state.name} was deleted: NodeClaim {name} is deleted too, and its instance once the node is drained",
        )
        return
    for owner in state.claim.metadata.owner_references:
        if owner.kind == NODEPOOL.kind and _is_nodepool_deleted(owner, snapshot):
            yield "NodePoolDeleted", f"NodePool {owner.name} was deleted: NodeClaim {name} is deleted too"


def _is_nodepool_deleted(owner: OwnerReference, snapshot: Snapshot) -> bool:
    """Whether the NodePool is gone, or another one has its name by now, or it is being deleted."""
    pool = snapshot.node_pools_by_name.get(owner.name)
    if pool is not None and pool.metadata.uid == owner.uid:
        return pool.metadata.deletion_timestamp is not None
    return not any(item.kind == NODEPOOL.kind and item.uid == owner.uid for item in snapshot.invalid_objects)
