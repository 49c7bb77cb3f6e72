"""Termination: finalizes Nodes and NodeClaims with a deletionTimestamp, one stage per run.

::

    NodeClaim or Node gets a deletionTimestamp
      └─ taint, exclude from load balancers, delete the counterpart
           └─ drain (at least 5 s)                 Drained
                └─ wait for volumes                VolumesDetached
                     └─ terminate the instance     InstanceTerminating
                          └─ remove the finalizers of Node and NodeClaim

Every run derives the stage from the objects, carries it out, and requeues. Nodes whose NodeClaim does not exist go through
the same stages: a user removed the NodeClaim's finalizer, and Kubernetes' garbage collector deleted the Node with its owner.
Events say when a user deleted a Node or a NodePool.

Restates: karpenter pkg/controllers/node/termination/controller.go `finalize`; pkg/controllers/nodeclaim/lifecycle/controller.go
`finalize`.
Differs: Node and NodeClaim are finalized in one run; the instance of a NodeClaim without a provider id is found by its tags;
InstanceTerminating counts only after a drain, as a user may have set it; termination does not wait for a stopped instance.
Karpenter removes the finalizer of a Node without a NodeClaim once it is drained, and terminates its instance as an orphan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import DRAINED, INSTANCE_TERMINATING, VOLUMES_DETACHED, format_time, parse_time
from journeyman.core.api.duration import parse_duration, time_after
from journeyman.core.api.objects import NODEPOOL, Node, NodeClaim, OwnerReference, condition_of, is_true
from journeyman.core.api.wording import counted
from journeyman.core.lifecycle.drain import (
    FORCEFUL,
    REQUEUE_MARGIN,
    UNDERUTILIZED,
    DrainDecision,
    TerminationIntervals,
    attached_volumes,
    condition_since,
    decide_drain,
    drain_after_taint,
    drain_events,
    eviction_chains,
    eviction_reason,
    forced_deletion_chains,
    has_active_sibling,
    largest_first,
    requeue_for_drain,
    requeue_for_instance,
    requeue_for_volumes,
    requeue_provisioning,
    volume_events,
)
from journeyman.core.lifecycle.progress import NodeClaimProgress, node_patches, with_metadata, with_node
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
    claim_ref,
    node_ref,
)
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.disrupted_taint import has_disrupted_taint, with_disrupted_taint
from journeyman.core.state.eviction_order import size_class
from journeyman.core.state.instances import TERMINATING_STATES, CloudInstances, RunningInstance, belong_to_another
from journeyman.core.state.nodeclaim_metrics import claim_termination_metrics, node_counter, node_termination_metrics
from journeyman.core.state.skipped_objects import plan_for_each
from journeyman.errors import ConfigurationError


def finalize_terminating(snapshot: Snapshot, cloud: CloudInstances, intervals: TerminationIntervals) -> Plan:
    """Carry out the next stage of every Node and NodeClaim with a deletionTimestamp and our finalizer.

    Args:
        snapshot: Nodes, NodeClaims, the pods of terminating nodes, and the VolumeAttachments of nodes that
            `is_awaiting_volumes`.
        cloud: Their instances; the snapshot's NodeClaims name their own (`CloudInstances.with_own_instances`).
        intervals: How long a drain takes at least, and when to check again.
    """
    terminating = nodes_being_finalized(snapshot, cloud)
    classes = _consolidated_classes(terminating, snapshot.now)
    deletions = plan_for_each(terminating, lambda n: Plan(events=external_deletion_events(n, snapshot)))
    return deletions + plan_for_each(terminating, lambda n: _finalize(n, snapshot, cloud, intervals, classes))


def _consolidated_classes(terminating: Iterable[StateNode], now: datetime) -> tuple[int, ...]:
    """Return the size classes of the pods that consolidation may evict now, the largest first."""
    nodes = (
        state for state in terminating if state.claim is not None and eviction_reason(state.claim) == UNDERUTILIZED
    )
    found = {size_class(pod) for state in nodes for pod in decide_drain(state.pods, now, None).evict}
    return tuple(sorted(found, reverse=True))


def is_awaiting_volumes(state: StateNode, snapshot: Snapshot, cloud: CloudInstances) -> bool:
    """Whether the node is drained and its instance not terminating yet, so that its VolumeAttachments decide the next stage."""
    if state.node is None or not is_being_finalized(state, snapshot, cloud):
        return False
    if decide_drain(state.pods, snapshot.now, None).remaining:
        return False
    return state.claim is None or not _is_instance_terminating(state.claim)


def _finalize(
    state: StateNode,
    snapshot: Snapshot,
    cloud: CloudInstances,
    intervals: TerminationIntervals,
    classes: Sequence[int],
) -> Plan:
    claim, node = _with_instance(state), state.node
    undrained = bool(decide_drain(state.pods, snapshot.now, None).remaining)
    if node is None or not (has_pending_finalizer(node) or state.registered or undrained):
        # a node that never registered is not drained; the cloud controller manager deletes it once its instance is gone
        if claim is None or (node is not None and has_active_sibling(state, snapshot)):
            return Plan()
        return _await_further(claim, snapshot, cloud) or finalize_nodeclaim(claim, snapshot.now, cloud, intervals)
    if claim is None and state.twin_of:
        return _finalize_twin(node, state, snapshot, intervals)
    if claim is None:
        return finalize_node_without_claim(node, state, snapshot, cloud, intervals)
    if is_instance_gone(state, cloud) or (
        _is_instance_terminating(claim) and not undrained and not has_active_sibling(state, snapshot)
    ):
        finalized = _await_further(claim, snapshot, cloud)
        return finalized or finalize_node_and_claim(claim, node, snapshot.now, cloud, intervals)
    return _drain(claim, state, snapshot, cloud, intervals, classes=classes)


def further_instances(claim: NodeClaim, snapshot: Snapshot, cloud: CloudInstances) -> tuple[RunningInstance, ...]:
    """Return the instances, by provider id, that run besides the NodeClaim's own, and that were launched for it, too.

    Where launches have no client token, a list that lags behind leads to a second one. Another NodeClaim's instance is none, though
    a user has copied the tags to it: its Node says whose it is.
    """
    joined = snapshot.nodes_by_provider_id
    return tuple(
        instance
        for instance in cloud.by_claim_uid.get(claim.metadata.uid, ())
        if instance.provider_id not in snapshot.claimed_provider_ids
        and instance.state not in TERMINATING_STATES
        and not belong_to_another(joined.get(instance.provider_id, ()), claim)
    )


def _await_further(claim: NodeClaim, snapshot: Snapshot, cloud: CloudInstances) -> Plan | None:
    """Return a requeue if the NodeClaim's own instance is gone, and a further one runs; else None.

    The NodeClaim is what says that the further one has to go, too. Without it the instance would look lost, and be adopted.
    """
    is_gone = not claim.status.provider_id or claim.status.provider_id in cloud.missing
    further = further_instances(claim, snapshot, cloud) if is_gone else ()
    if not further:
        return None
    reason = f"instance {further[0].provider_id} was launched for NodeClaim {claim.metadata.name}, too"
    requeue = Requeue(step=Step.TERMINATE, at=snapshot.now + REQUEUE_MARGIN, reason=reason)
    return Plan(chains=(chain_of(f"NodeClaim {claim.metadata.name}", requeue),))


def _with_instance(state: StateNode) -> NodeClaim | None:
    """Return the NodeClaim with the provider id of the instance to terminate; empty if another NodeClaim owns that.

    It is the provider id of the Node, else of the NodeClaim. Each Node with that provider id has joined the NodeClaim, or
    another one that owns the instance, so no instance is terminated before its Nodes are drained.
    """
    if state.claim is None:
        return None
    status = msgspec.structs.replace(state.claim.status, provider_id="" if state.duplicate_of else state.provider_id)
    return msgspec.structs.replace(state.claim, status=status)


def _is_instance_terminating(claim: NodeClaim) -> bool:
    """Whether InstanceTerminating was set after a drain, and not by a user."""
    volumes = condition_of(claim.status.conditions, VOLUMES_DETACHED)
    past_drain = is_true(claim.status.conditions, DRAINED) and volumes is not None and volumes.status != "Unknown"
    return past_drain and is_true(claim.status.conditions, INSTANCE_TERMINATING)


def is_instance_gone(state: StateNode, cloud: CloudInstances) -> bool:
    """Whether the instance does not exist and the node is not Ready, so that there is nothing to drain."""
    return not state.ready and state.provider_id in cloud.missing


def _drain(
    claim: NodeClaim,
    state: StateNode,
    snapshot: Snapshot,
    cloud: CloudInstances,
    intervals: TerminationIntervals,
    *,
    classes: Sequence[int],
) -> Plan:
    node, now = state.node, snapshot.now
    assert node is not None  # noqa: S101 - the caller's
    progress = prepare_termination(NodeClaimProgress.of(claim, now).with_found_node(node))
    end = termination_time(progress.claim)
    decided = decide_drain(state.pods, now, end)
    drained = is_true(claim.status.conditions, DRAINED)
    min_drain_over = drained or now >= time_after(condition_since(claim, DRAINED, now), intervals.min_drain)
    if min_drain_over and cloud.is_stopped(state):
        return finalize_node_and_claim(claim, node, now, cloud, intervals)
    if decided.remaining or not min_drain_over:
        if eviction_reason(claim) == UNDERUTILIZED:
            decided = largest_first(decided, classes, now - condition_since(claim, DRAINED, now))
        return _continue_drain(progress, node, decided, state, intervals)
    if has_active_sibling(state, snapshot):  # the last drained node of an instance terminates it
        return Plan(chains=(progress.chain(*delete_counterparts(progress), why="drain"),))
    volumes = attached_volumes(state, snapshot)
    if volumes and (end is None or now <= end):
        return _await_volumes(progress, node, volumes, end, intervals)
    return _terminate_drained(progress, node, volumes, cloud, intervals)


def _continue_drain(
    progress: NodeClaimProgress, node: Node, decided: DrainDecision, state: StateNode, intervals: TerminationIntervals
) -> Plan:
    """Restates: karpenter pkg/controllers/node/termination/controller.go `awaitDrain`."""
    now, claim, name = progress.now, progress.claim, state.name
    is_first = condition_of(claim.status.conditions, DRAINED) is None
    if not is_true(claim.status.conditions, DRAINED):  # once True it stays, even if another pod is bound
        progress = progress.with_condition(DRAINED, "Unknown", "Draining", "Draining")
    taint = progress.chain(*delete_counterparts(progress), why="drain")
    pods = (
        *forced_deletion_chains(decided, claim, termination_time(claim)),
        *eviction_chains(decided, node, eviction_reason(claim)),
    )
    chains = (
        *drain_after_taint(taint, pods, node),
        chain_of(
            f"Node {name}",
            requeue_for_drain(decided, name, now, condition_since(claim, DRAINED, now), intervals),
            *(requeue_provisioning(state.pods, name, now) if is_first else ()),
        ),
    )
    note = f"draining node {name}: {counted(len(decided.remaining), 'pod')} left, evicting {len(decided.evict)}, forcing {len(decided.force)}"
    return Plan(chains=chains, events=drain_events(decided, node, now), notes=(note,))


def _await_volumes(
    progress: NodeClaimProgress,
    node: Node,
    volumes: tuple[str, ...],
    end: datetime | None,
    intervals: TerminationIntervals,
) -> Plan:
    """Restates: karpenter pkg/controllers/node/termination/controller.go `awaitVolumeDetachment`."""
    name, reason = node.metadata.name, "AwaitingVolumeDetachment"
    began = condition_since(progress.claim, VOLUMES_DETACHED, progress.now)
    progress = _with_drained(progress).with_condition(VOLUMES_DETACHED, "Unknown", reason, reason)
    requeue = requeue_for_volumes(name, progress.now, began, end, intervals)
    chain = progress.chain(*delete_counterparts(progress), requeue, why="its volumes are being detached")
    note = f"node {name} is drained, waiting for {counted(len(volumes), 'volume')} to be detached"
    return Plan(chains=(chain,), events=volume_events(volumes, node), notes=(note,))


def _terminate_drained(
    progress: NodeClaimProgress,
    node: Node,
    volumes: tuple[str, ...],
    cloud: CloudInstances,
    intervals: TerminationIntervals,
) -> Plan:
    """Terminate the instance: the pods are gone, and the volumes as well, or the termination grace period has elapsed.

    Restates: karpenter pkg/controllers/node/termination/controller.go `awaitInstanceTermination`.
    """
    elapsed = "TerminationGracePeriodElapsed"
    progress = _with_drained(progress)
    if volumes:
        progress = progress.with_condition(VOLUMES_DETACHED, "False", elapsed, elapsed)
    else:
        progress = progress.with_condition(VOLUMES_DETACHED, "True")
    progress = progress.with_condition(INSTANCE_TERMINATING, "True")
    terminate = terminate_instance(progress.original, node, progress.now, cloud, intervals, why="the node is drained")
    chain = progress.chain(*delete_counterparts(progress), *terminate, why="the node is drained")
    return Plan(chains=(chain,), notes=(f"drained node {node.metadata.name}, terminating its instance",))


def _with_drained(progress: NodeClaimProgress) -> NodeClaimProgress:
    """Return the progress with Drained True, and the metric the first time."""
    claim = progress.claim
    if is_true(claim.status.conditions, DRAINED):
        return progress
    counted = node_counter("karpenter_nodes_drained_total", claim)
    return progress.with_condition(DRAINED, "True").with_events(observations=(counted,))


def nodes_being_finalized(snapshot: Snapshot, cloud: CloudInstances) -> tuple[StateNode, ...]:
    """Return the nodes to finalize, by name; each Node of a terminating NodeClaim's instance has that NodeClaim.

    Pods may run on any of them: the instance is terminated once all are drained.
    """
    nodes = (_with_terminating_claim(node, snapshot) for node in snapshot.state_nodes)
    return tuple(node for node in nodes if is_being_finalized(node, snapshot, cloud))


def _with_terminating_claim(node: StateNode, snapshot: Snapshot) -> StateNode:
    claim = snapshot.claims_by_name.get(node.twin_of)
    is_terminating = claim is not None and claim.metadata.deletion_timestamp is not None
    return replace(node, claim=claim) if is_terminating else node


def is_being_finalized(node: StateNode, snapshot: Snapshot, cloud: CloudInstances) -> bool:
    """Whether the Node or the NodeClaim is ours and has a deletionTimestamp and our finalizer.

    A node that is held (`StateNode.is_held`) is left alone, unless its instance is gone. Other autoscalers' nodes have the same finalizer. A Node without a NodeClaim that lost its label is still ours if the cloud
    lists its instance, which has our tags.
    """
    claim, own = node.claim, node.node
    is_claim_deleted = claim is not None and has_pending_finalizer(claim)
    is_node_deleted = own is not None and has_pending_finalizer(own) and not node.is_held
    if not (is_claim_deleted or is_node_deleted or (node.is_held and claim is None and is_instance_gone(node, cloud))):
        return False
    return snapshot.is_ours(node) or cloud.find(node.provider_id) is not None


def has_pending_finalizer(item: NodeClaim | Node) -> bool:
    """Whether the object has a deletionTimestamp and our finalizer, which delays its deletion."""
    return item.metadata.deletion_timestamp is not None and labels.TERMINATION_FINALIZER in item.metadata.finalizers


def with_node_class_label(node: Node, snapshot: Snapshot) -> Node:
    """Return the node with the label of our NodeClasses, without which it is no longer ours once its instance is gone."""
    if snapshot.node_class_label in node.metadata.labels:
        return node
    return with_node(node, metadata={"labels": {**node.metadata.labels, snapshot.node_class_label: ""}})


def with_disrupted_taint_and_label(node: Node) -> Node:
    """Return the node with the `disrupted` taint and the label that excludes it from load balancers.

    Restates: karpenter pkg/controllers/node/termination/terminator/terminator.go `Taint`.
    """
    node_labels = {**node.metadata.labels, labels.EXCLUDE_BALANCERS: "karpenter"}
    return with_node(node, metadata={"labels": node_labels}, spec={"taints": with_disrupted_taint(node.spec.taints)})


def prepare_termination(progress: NodeClaimProgress) -> NodeClaimProgress:
    """Taint the node, add our finalizer to it if it lost that, and set the NodeClaim's termination time.

    The annotation is set once the NodeClaim has a deletionTimestamp, and only if it has no valid time yet: the health
    controller or a user may have set one. Without our finalizer, the API server would delete the node before it is drained.

    Restates: karpenter pkg/controllers/nodeclaim/lifecycle/controller.go
    `ensureTerminationGracePeriodTerminationTimeAnnotation`.
    """
    if progress.node is not None:
        progress = replace(progress, node=_with_termination_finalizer(with_disrupted_taint_and_label(progress.node)))
    claim = progress.claim
    period, deleted = _grace_period(claim), claim.metadata.deletion_timestamp
    if period is not None and deleted is not None and termination_time(claim) is None:
        annotations = {
            **claim.metadata.annotations,
            labels.TERMINATION_TIMESTAMP: format_time(time_after(deleted, period)),
        }
        progress = replace(progress, claim=with_metadata(claim, annotations=annotations))
    return progress.with_events(*_grace_period_events(progress))


def _with_termination_finalizer(node: Node) -> Node:
    """Return the node with our finalizer; unchanged if it is being deleted, as the API server accepts no new ones then."""
    finalizers = node.metadata.finalizers
    if node.metadata.deletion_timestamp is not None or labels.TERMINATION_FINALIZER in finalizers:
        return node
    return with_node(node, metadata={"finalizers": (*finalizers, labels.TERMINATION_FINALIZER)})


def termination_time(claim: NodeClaim) -> datetime | None:
    """Return the time at which the NodeClaim's remaining pods are deleted; None if there is none, or it does not parse.

    Restates: karpenter pkg/controllers/node/termination/controller.go `nodeTerminationTime`.
    """
    return parse_time(claim.metadata.annotations.get(labels.TERMINATION_TIMESTAMP, ""))


def delete_counterparts(progress: NodeClaimProgress) -> tuple[Action, ...]:
    """Return the deletion of the NodeClaim if its Node is being deleted, and of the Node if its NodeClaim is."""
    deletions: tuple[Action, ...] = ()
    if progress.original.metadata.deletion_timestamp is None:
        deletions += (DeleteObject(ref=claim_ref(progress.original), why="its node is being deleted"),)
    node = progress.original_node
    if node is not None and node.metadata.deletion_timestamp is None:
        deletions += (DeleteObject(ref=node_ref(node), why="its NodeClaim is being deleted"),)
    return deletions


def without_termination_finalizer(finalizers: tuple[str, ...]) -> tuple[str, ...]:
    """Return the finalizers of others."""
    return tuple(f for f in finalizers if f != labels.TERMINATION_FINALIZER)


def _grace_period(claim: NodeClaim) -> timedelta | None:
    """Return the NodeClaim's terminationGracePeriod; None if it has none, or one that does not parse, as that deletes no pod."""
    text = claim.spec.termination_grace_period
    try:
        return parse_duration(text) if text is not None else None
    except ConfigurationError:
        return None


def _grace_period_events(progress: NodeClaimProgress) -> Iterator[Event]:
    """Yield the Events about the termination time: when we set it, or on the node at the start of a drain if it was set before.

    Restates: karpenter pkg/controllers/node/termination/terminator/events/events.go `NodeTerminationGracePeriodExpiring`,
    `NodeClaimTerminationGracePeriodExpiring`.
    """
    if termination_time(progress.claim) is None:
        return
    end = progress.claim.metadata.annotations[labels.TERMINATION_TIMESTAMP]
    written = progress.original.metadata.annotations.get(labels.TERMINATION_TIMESTAMP) != end
    is_first = condition_of(progress.original.status.conditions, DRAINED) is None
    if written:
        yield _expiring_event(claim_ref(progress.original), end)
    if progress.original_node is not None and (written or is_first):
        yield _expiring_event(node_ref(progress.original_node), end)


def _expiring_event(ref: ObjectRef, end: str) -> Event:
    text = f"All pods will be deleted by {end}"
    return Event(ref=ref, reason="TerminationGracePeriodExpiring", message=text, type="Warning")


def finalize_node_and_claim(
    claim: NodeClaim, node: Node, now: datetime, cloud: CloudInstances, intervals: TerminationIntervals
) -> Plan:
    """Wait until the instance is gone, then remove the finalizers of Node and NodeClaim.

    Restates: karpenter pkg/controllers/node/termination/controller.go `removeFinalizer`.
    """
    provider_id = claim.status.provider_id
    if provider_id and provider_id not in cloud.missing:
        return _await_instance_termination(claim, node, now, cloud, intervals)
    if deletions := delete_counterparts(NodeClaimProgress.of(claim, now).with_found_node(node)):
        requeue = Requeue(step=Step.TERMINATE, at=now, reason=f"the instance of node {node.metadata.name} is gone")
        return Plan(chains=(chain_of(f"NodeClaim {claim.metadata.name}", *deletions, requeue),))
    chain = Chain(
        subject=f"NodeClaim {claim.metadata.name}",
        actions=(*remove_node_finalizer(node, "its instance is gone"), *_remove_claim_finalizer(claim, now)),
        events=(_finalized_event(node_ref(node)), _finalized_event(claim_ref(claim))),
        observations=(*node_termination_metrics(node, now), *claim_termination_metrics(claim, now)),
    )
    note = f"deleted node {node.metadata.name} and NodeClaim {claim.metadata.name}"
    return Plan(chains=(chain,), notes=(note,))


def finalize_nodeclaim(claim: NodeClaim, now: datetime, cloud: CloudInstances, intervals: TerminationIntervals) -> Plan:
    """Terminate the instance of a NodeClaim without a registered node, then remove the NodeClaim's finalizer.

    Restates: karpenter pkg/controllers/nodeclaim/lifecycle/controller.go `finalize`.
    """
    provider_id = claim.status.provider_id
    if provider_id and provider_id not in cloud.missing:
        return _await_instance_termination(claim, None, now, cloud, intervals)
    chain = Chain(
        subject=f"NodeClaim {claim.metadata.name}",
        actions=_remove_claim_finalizer(claim, now),
        events=(_finalized_event(claim_ref(claim)),),
        observations=claim_termination_metrics(claim, now),
    )
    return Plan(chains=(chain,), notes=(f"deleted NodeClaim {claim.metadata.name}",))


def terminate_instance(
    claim: NodeClaim,
    node: Node | None,
    now: datetime,
    cloud: CloudInstances,
    intervals: TerminationIntervals,
    *,
    why: str,
) -> tuple[Action, ...]:
    """Return the termination of the NodeClaim's instance, unless it is ending, and a requeue; nothing without a provider id."""
    provider_id = claim.status.provider_id
    if not provider_id:
        return ()
    requeue = requeue_for_instance(provider_id, now, condition_since(claim, INSTANCE_TERMINATING, now), intervals)
    if _is_ending(claim, cloud):
        return (requeue,)
    terminate = TerminateInstance(
        provider_id=provider_id,
        claim=claim.metadata.name,
        claim_uid=claim.metadata.uid,
        node=node_ref(node) if node is not None else None,
        why=why,
    )
    return (terminate, requeue)


def _is_ending(claim: NodeClaim, cloud: CloudInstances) -> bool:
    """Whether the instance is shutting down, or stopping after we asked the cloud to delete it, as some clouds name that.

    An instance that a user stops is deleted once it is stopped.
    """
    instance = cloud.find(claim.status.provider_id)
    state = instance.state if instance is not None else ""
    if claim.status.provider_id in cloud.missing:  # or it is another cluster's
        return True
    return state in TERMINATING_STATES or (
        state == "stopping" and is_true(claim.status.conditions, INSTANCE_TERMINATING)
    )


def remove_node_finalizer(node: Node, why: str) -> tuple[Action, ...]:
    """Return the patch that removes our finalizer from the node."""
    updated = with_node(node, metadata={"finalizers": without_termination_finalizer(node.metadata.finalizers)})
    return node_patches(node, updated, why)


def _await_instance_termination(
    claim: NodeClaim, node: Node | None, now: datetime, cloud: CloudInstances, intervals: TerminationIntervals
) -> Plan:
    """Terminate the instance and set InstanceTerminating, in chains of their own: a conflict on the status delays no termination."""
    progress = prepare_termination(NodeClaimProgress.of(claim, now)).with_condition(INSTANCE_TERMINATING, "True")
    terminate = terminate_instance(claim, node, now, cloud, intervals, why="the NodeClaim is being deleted")
    status = progress.chain(why="its instance is terminating")
    return Plan(chains=(status, chain_of(f"instance {claim.status.provider_id}", *terminate)))


def _remove_claim_finalizer(claim: NodeClaim, now: datetime) -> tuple[Action, ...]:
    updated = with_metadata(claim, finalizers=without_termination_finalizer(claim.metadata.finalizers))
    return replace(NodeClaimProgress.of(claim, now), claim=updated).chain(why="its instance is gone").actions


def _finalized_event(ref: ObjectRef) -> Event:
    return Event(ref=ref, reason="Finalized", message="Finalized")


def finalize_node_without_claim(
    node: Node, state: StateNode, snapshot: Snapshot, cloud: CloudInstances, intervals: TerminationIntervals
) -> Plan:
    """Carry out the next stage of a node without a NodeClaim: drain, volumes, instance, finalizer.

    Without a NodeClaim there is no terminationGracePeriod: no pod is deleted by force. The drain of a stopped instance is over
    once its pods have been evicted.

    Args:
        node: The node, with a deletionTimestamp.
        state: The same with its pods.
        snapshot: Its VolumeAttachments, and all PersistentVolumeClaims.
        cloud: Its instance.
        intervals: When to check again.

    Restates: karpenter pkg/controllers/node/termination/controller.go `finalize`.
    """
    provider_id = node.spec.provider_id
    if provider_id in cloud.missing and not state.ready:
        return _remove_unclaimed_node(node, snapshot)
    decided = decide_drain(state.pods, snapshot.now, None)
    instance, stopped = cloud.find(provider_id), cloud.is_stopped(state) and has_disrupted_taint(node)
    if decided.remaining and not stopped:
        return _drain_without_claim(node, decided, state, snapshot, intervals)
    if instance is not None and has_active_sibling(state, snapshot):
        return Plan()  # the last drained node of an instance terminates it
    if not stopped and (volumes := attached_volumes(state, snapshot)):
        began = node.metadata.deletion_timestamp or snapshot.now
        requeue = requeue_for_volumes(state.name, snapshot.now, began, None, intervals)
        return Plan(chains=(chain_of(f"Node {state.name}", requeue),), events=volume_events(volumes, node))
    if instance is not None:
        return _terminate_unclaimed_instance(node, instance, snapshot, intervals)
    return _remove_unclaimed_node(node, snapshot)


def _finalize_twin(node: Node, state: StateNode, snapshot: Snapshot, intervals: TerminationIntervals) -> Plan:
    """Drain a deleted Node, then remove its finalizer: the instance with its provider id belongs to a NodeClaim with another Node."""
    decided = decide_drain(state.pods, snapshot.now, None)
    if decided.remaining:
        return _drain_without_claim(node, decided, state, snapshot, intervals)
    return _remove_unclaimed_node(node, snapshot)


def _drain_without_claim(
    node: Node, decided: DrainDecision, state: StateNode, snapshot: Snapshot, intervals: TerminationIntervals
) -> Plan:
    now = snapshot.now
    patches = node_patches(node, with_disrupted_taint_and_label(with_node_class_label(node, snapshot)), "drain")
    events = drain_events(decided, node, now)
    requeues: tuple[Requeue, ...] = ()
    if patches:  # the first run of this drain
        text = "The node and its instance have no NodeClaim: the node is drained, then both are deleted"
        if state.twin_of:
            text = f"The node is drained, then it is deleted; its instance stays, as NodeClaim {state.twin_of} has another Node"
        events += (Event(ref=node_ref(node), reason="NodeClaimNotFound", message=text, type="Warning"),)
        requeues = requeue_provisioning(state.pods, state.name, now)
    next_check = requeue_for_drain(decided, state.name, now, node.metadata.deletion_timestamp or now, intervals)
    taint = chain_of(f"Node {state.name}", *patches, next_check, *requeues)
    chains = drain_after_taint(taint, eviction_chains(decided, node, FORCEFUL), node)
    return Plan(chains=chains, events=events)


def _terminate_unclaimed_instance(
    node: Node, instance: RunningInstance, snapshot: Snapshot, intervals: TerminationIntervals
) -> Plan:
    """Terminate the instance, unless its NodeClaim exists by the time the executor looks it up."""
    name, provider_id = node.metadata.name, instance.provider_id
    terminate = TerminateInstance(
        provider_id=provider_id,
        claim=instance.claim,
        claim_uid=instance.claim_uid,
        node=node_ref(node),
        why="its node is drained, and no NodeClaim owns it",
        unless_claimed=True,
    )
    began = node.metadata.deletion_timestamp or snapshot.now
    requeue = requeue_for_instance(provider_id, snapshot.now, began, intervals)
    labelled = node_patches(node, with_node_class_label(node, snapshot), "restore the label")
    end = () if instance.state in TERMINATING_STATES else (terminate,)
    return Plan(
        chains=(chain_of(f"Node {name}", *labelled, *end, requeue),),
        notes=(f"drained node {name}, terminating its instance",),
    )


def _remove_unclaimed_node(node: Node, snapshot: Snapshot) -> Plan:
    name = node.metadata.name
    chain = chain_of(f"Node {name}", *remove_node_finalizer(node, "drained, and no NodeClaim owns it"))
    chain = replace(chain, observations=node_termination_metrics(node, snapshot.now))
    return Plan(chains=(chain,), notes=(f"deleted node {name}, which no NodeClaim owned",))


def external_deletion_events(state: StateNode, snapshot: Snapshot) -> tuple[Event, ...]:
    """Return Events on NodeClaim and Node if the deletion of the Node or of the NodePool starts their termination.

    Args:
        state: A NodeClaim, where it or its Node has a deletionTimestamp.
        snapshot: The NodePools, invalid ones included.
    """
    if state.claim is None or _has_started(state.claim):
        return ()
    causes = tuple(_causes(state, snapshot))
    return tuple(Event(ref=ref, reason=reason, message=text) for ref in state.object_refs for reason, text in causes)


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
    """Whether the owner does not exist (a NodePool of the same name may), or has a deletionTimestamp."""
    pool = snapshot.node_pools_by_name.get(owner.name)
    if pool is not None and pool.metadata.uid == owner.uid:
        return pool.metadata.deletion_timestamp is not None
    return not any(item.kind == NODEPOOL.kind and item.uid == owner.uid for item in snapshot.invalid_objects)
