"""Drain: which pods of a node are evicted now, in what order, and which are deleted at the node's termination time.

::

    group 1  pods                      ─┐
    group 2  pods of DaemonSets         │ one group at a time, through the Eviction API;
    group 3  critical pods              │ a terminating pod still counts as part of its group
    group 4  critical DaemonSet pods   ─┘
    at T - the pod's own grace period: deleted, whatever group, PodDisruptionBudget or annotation (T: termination time)

Consolidation evicts the pods of a group by size class, the largest first (`largest_first`).

The module also has the Events that say what blocks a drain, the VolumeAttachments to wait for after it, and when to check
again. A volume of a terminated instance can be attached elsewhere only after minutes, so termination waits for its detachment.

Restates: karpenter pkg/controllers/node/termination/terminator/terminator.go `Drain`,
pkg/controllers/node/termination/terminator/eviction.go `evict`, `forceDelete`, pkg/controllers/node/termination/terminator/events/events.go.
Differs: FailedDraining names the pods that block the drain. Karpenter evicts all pods of a group at once, and polls drains and volumes every second and instances
every five; here the interval grows with the time it takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import DISRUPTION_REASON, format_time
from journeyman.core.api.duration import parse_go_duration, seconds, time_after
from journeyman.core.api.objects import Node, NodeClaim, Pod, condition_of
from journeyman.core.lifecycle.progress import poll_time
from journeyman.core.plan import (
    Chain,
    DeletePod,
    Event,
    EvictPod,
    ObjectRef,
    Observation,
    Requeue,
    Step,
    chain_of,
    claim_ref,
    node_ref,
    pod_ref,
)
from journeyman.core.scheduling.volumes import claim_keys
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.disrupted_taint import has_disrupted_taint
from journeyman.core.state.eviction_order import drain_group, size_class
from journeyman.core.state.pod_predicates import (
    is_disruptable,
    is_owned_by_node,
    is_reschedulable,
    is_terminal,
    is_terminating,
    tolerates_disrupted_taint,
)

STUCK_AFTER: Final = timedelta(minutes=1)  # pkg/utils/pod/scheduling.go `IsStuckTerminating`
DEFAULT_GRACE: Final = timedelta(seconds=30)  # the API server's default
CLASS_PATIENCE: Final = timedelta(seconds=10)
FORCEFUL: Final = "Forceful Termination"
UNDERUTILIZED: Final = "Underutilized"  # the disruption reason of consolidation


class DrainDecision(Struct, frozen=True, kw_only=True):
    """Which pods of a node are evicted or deleted now, and which the drain waits for.

    `current_group`: of the pods that are not deleted by force, the first group, without terminating ones. `evict`: those of them without
    do-not-disrupt. `smaller`: those of them that wait until larger ones are evicted. `force`: pods to delete, with their grace period in seconds. `remaining`: all pods that must be gone before
    the instance is terminated. `next_force`: when the next of them is deleted by force; None without a termination time.
    """

    current_group: tuple[Pod, ...] = ()
    evict: tuple[Pod, ...] = ()
    smaller: tuple[Pod, ...] = ()
    force: tuple[tuple[Pod, int], ...] = ()
    remaining: tuple[Pod, ...] = ()
    next_force: datetime | None = None

    @property
    def protected(self) -> tuple[Pod, ...]:
        """Pods that the drain waits for and that it neither evicts nor deletes now."""
        removed = {pod.key for pod in (*self.evict, *self.smaller)} | {pod.key for pod, _ in self.force}
        return tuple(p for p in self.remaining if p.key not in removed and not is_terminating(p))


def decide_drain(pods: Iterable[Pod], now: datetime, end: datetime | None) -> DrainDecision:
    """Decide which pods are evicted or deleted now.

    Args:
        pods: All pods bound to the node.
        now: The time.
        end: The node's termination time; None if no pod is deleted by force.

    Restates: karpenter pkg/controllers/node/termination/terminator/terminator.go `Drain`, `groupPodsByPriority`.
    """
    remaining = tuple(sorted((p for p in pods if is_drainable(p, now)), key=lambda p: p.key))
    force = tuple(_pods_to_force(remaining, now, end))
    forced = {pod.key for pod, _ in force}
    first_group = _first_group(p for p in remaining if p.key not in forced)
    current_group = tuple(p for p in first_group if not is_terminating(p))
    return DrainDecision(
        current_group=current_group,
        evict=tuple(p for p in current_group if is_disruptable(p, now)),
        force=force,
        remaining=remaining,
        next_force=min((at for p in remaining if (at := _force_at(p, end)) is not None and at >= now), default=None),
    )


def largest_first(decided: DrainDecision, classes: Sequence[int], drained_for: timedelta) -> DrainDecision:
    """Return the decision in which smaller pods wait for the next run, as in the drains of consolidation.

    Args:
        decided: The decision for a node.
        classes: The size classes of all pods that consolidation may evict now from any node, the largest first.
        drained_for: How long the node has been drained. Smaller pods wait for larger ones that cannot be evicted
            `CLASS_PATIENCE` for each class between.
    """
    due = classes[: 1 + drained_for // CLASS_PATIENCE]
    evict = sorted((p for p in decided.evict if size_class(p) in due), key=lambda p: (-size_class(p), p.key))
    smaller = tuple(p for p in decided.evict if size_class(p) not in due)
    return replace(decided, evict=tuple(evict), smaller=smaller)


def is_drainable(pod: Pod, now: datetime) -> bool:
    """Whether the drain waits for this pod.

    It does not wait for pods that have ended, for mirror pods, for pods that tolerate the disrupted taint (DaemonSet pods that
    tolerate everything run until the instance terminates), and for pods that should have terminated over a minute ago.

    Restates: karpenter pkg/utils/pod/scheduling.go `IsDrainable`, `IsStuckTerminating`.
    """
    if is_terminal(pod) or is_owned_by_node(pod) or tolerates_disrupted_taint(pod):
        return False
    deletion = pod.metadata.deletion_timestamp
    return deletion is None or now <= time_after(deletion, STUCK_AFTER)


def has_active_sibling(state: StateNode, snapshot: Snapshot) -> bool:
    """Whether the instance has another Node with pods on it: its kubelet got another name, and registered a second Node.

    A Ready Node that is not terminating counts, since the snapshot has pods of terminating Nodes only.
    """
    return any(
        (other.ready and not other.is_terminating) or decide_drain(other.pods, snapshot.now, None).remaining
        for other in snapshot.state_nodes
        if other.node is not None and other.node is not state.node and other.provider_id == state.provider_id
    )


def eviction_chains(decided: DrainDecision, node: Node, reason: str) -> tuple[Chain, ...]:
    """Return a chain for each pod to evict, so that the refusal of one eviction delays no other."""
    return tuple(_evict_chain(pod, node_ref(node), reason) for pod in decided.evict)


def forced_deletion_chains(decided: DrainDecision, claim: NodeClaim, end: datetime | None) -> tuple[Chain, ...]:
    """Return a chain for each pod to delete because of the NodeClaim's termination time `end`; none without one."""
    if end is None:
        return ()
    return tuple(_force_chain(pod, seconds, claim, end) for pod, seconds in decided.force)


def drain_after_taint(taint: Chain, pods: tuple[Chain, ...], node: Node) -> tuple[Chain, ...]:
    """Return the chains; without the disrupted taint, pods are evicted only once `taint` has succeeded, or they would return.

    Restates: karpenter pkg/controllers/node/termination/controller.go `finalize`, which drains nothing if tainting fails.
    """
    return (taint, *pods) if has_disrupted_taint(node) else (replace(taint, then=pods),)


def requeue_provisioning(pods: Iterable[Pod], node: str, now: datetime) -> tuple[Requeue, ...]:
    """Return a requeue of provisioning, which schedules the node's pods while they are evicted; nothing if it has none."""
    if not any(is_reschedulable(pod) for pod in pods):
        return ()
    return (Requeue(step=Step.PROVISION, at=now, reason=f"pods of node {node} need another node"),)


def eviction_reason(claim: NodeClaim) -> str:
    """Return why the NodeClaim's pods are evicted: its disruption reason, or `FORCEFUL`."""
    reason = condition_of(claim.status.conditions, DISRUPTION_REASON)
    return reason.reason if reason is not None and reason.status == "True" else FORCEFUL


def _first_group(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """Restates: karpenter pkg/controllers/node/termination/terminator/terminator.go `groupPodsByPriority`."""
    groups: dict[tuple[bool, bool], list[Pod]] = {}
    for pod in pods:
        groups.setdefault(drain_group(pod), []).append(pod)
    return tuple(groups[min(groups)]) if groups else ()


def _grace(pod: Pod) -> timedelta:
    grace = pod.spec.termination_grace_period_seconds
    return DEFAULT_GRACE if grace is None else seconds(grace)


def _force_at(pod: Pod, end: datetime | None) -> datetime | None:
    return None if end is None else time_after(end, -_grace(pod))


def _pods_to_force(pods: Iterable[Pod], now: datetime, end: datetime | None) -> Iterator[tuple[Pod, int]]:
    """Yield pods that would outlive the termination time, with the seconds left until then, at least one.

    Restates: karpenter pkg/controllers/node/termination/terminator/eviction.go `needsForceDelete`.
    """
    if end is None:
        return
    for pod in pods:
        deletion = pod.metadata.deletion_timestamp
        outlives = deletion > end if deletion is not None else now > time_after(end, -_grace(pod))
        if outlives:
            yield pod, max(int((end - now).total_seconds()), 1)


def _drained_metrics(reason: str) -> tuple[Observation, ...]:
    return (Observation(name="karpenter_pods_drained_total", labels={"reason": reason}),)


def _evict_chain(pod: Pod, node: ObjectRef, reason: str) -> Chain:
    chain = chain_of(f"Pod {pod.key}", EvictPod(ref=pod_ref(pod), node=node, why=reason))
    event = Event(ref=pod_ref(pod), reason="Evicted", message=f"Evicted pod: {reason}")
    return replace(chain, events=(event,), observations=_drained_metrics(reason))


def _force_chain(pod: Pod, seconds: int, claim: NodeClaim, end: datetime) -> Chain:
    granted = f"The pod was granted {seconds} seconds of grace-period of its {int(_grace(pod).total_seconds())} terminationGracePeriodSeconds."
    text = f"Deleting the pod to accommodate the terminationTime {end} of the node. {granted} This bypasses the PDB of the pod and the do-not-disrupt annotation."
    action = DeletePod(
        ref=pod_ref(pod),
        claim=claim_ref(claim),
        deadline=end,
        grace_period_seconds=seconds,
        why="it would outlive the node's termination time",
    )
    event = Event(ref=pod_ref(pod), reason="Disrupted", message=text)
    return replace(
        chain_of(f"Pod {pod.key}", action), events=(event,), observations=_drained_metrics(eviction_reason(claim))
    )


MAX_POLL_INTERVAL: Final = timedelta(seconds=30)
REQUEUE_MARGIN: Final = timedelta(seconds=1)


class TerminationIntervals(Struct, frozen=True, kw_only=True):
    """How long a drain takes at least, and how often drain, volumes and instance are checked.

    Restates: karpenter pkg/controllers/node/termination/controller.go `MinDrainTime`.
    """

    min_drain: timedelta = timedelta(seconds=5)
    drain_poll: timedelta = timedelta(seconds=2)
    instance_poll: timedelta = timedelta(seconds=5)


def condition_since(claim: NodeClaim, condition: str, now: datetime) -> datetime:
    """Return when the condition took its status; now if the NodeClaim does not have it."""
    found = condition_of(claim.status.conditions, condition)
    return found.last_transition_time if found is not None and found.last_transition_time is not None else now


def requeue_for_drain(
    decided: DrainDecision, node: str, now: datetime, began: datetime, intervals: TerminationIntervals
) -> Requeue:
    """Requeue for a drain: at the next forced deletion at the latest, or at the end of `min_drain` if no pod remains."""
    at = poll_time(now, began, intervals.drain_poll, MAX_POLL_INTERVAL)
    if not decided.remaining:
        at = max(time_after(began, intervals.min_drain), now)
    if decided.next_force is not None:
        at = min(at, time_after(decided.next_force, REQUEUE_MARGIN))
    return Requeue(step=Step.TERMINATE, at=at, reason=f"node {node} is draining")


def requeue_for_volumes(
    node: str, now: datetime, began: datetime, end: datetime | None, intervals: TerminationIntervals
) -> Requeue:
    """Requeue for volumes: at the termination time `end` at the latest, from which on no volume is waited for."""
    at = poll_time(now, began, intervals.drain_poll, MAX_POLL_INTERVAL)
    if end is not None:
        at = min(at, time_after(end, REQUEUE_MARGIN))
    return Requeue(step=Step.TERMINATE, at=at, reason=f"volumes of node {node} are being detached")


def requeue_for_instance(provider_id: str, now: datetime, began: datetime, intervals: TerminationIntervals) -> Requeue:
    """Requeue for an instance that is terminating."""
    at = poll_time(now, began, intervals.instance_poll, MAX_POLL_INTERVAL)
    return Requeue(step=Step.TERMINATE, at=at, reason=f"instance {provider_id} is terminating")


_MAX_NAMES: Final = 5


def drain_events(decided: DrainDecision, node: Node, now: datetime) -> tuple[Event, ...]:
    """Return the Events about pods that block the drain, and about do-not-disrupt annotations of pods in the current group."""
    return (*_blocked_drain_events(decided, node), *do_not_disrupt_events(decided.current_group, now))


def volume_events(volumes: Sequence[str], node: Node) -> tuple[Event, ...]:
    """Return the Event that names the VolumeAttachments that termination waits for.

    Restates: karpenter pkg/controllers/node/termination/terminator/events/events.go `NodeAwaitingVolumeDetachmentEvent`.
    """
    text = f"Awaiting deletion of bound volumeattachments ({_first_names(volumes)})"
    return (Event(ref=node_ref(node), reason="AwaitingVolumeDetachment", message=text),)


def do_not_disrupt_events(pods: Iterable[Pod], now: datetime) -> tuple[Event, ...]:
    """Return Events about do-not-disrupt annotations that are a duration, or invalid.

    Restates: karpenter pkg/utils/pod/scheduling.go `IsDoNotDisruptActive`, pkg/utils/pod/events.go.
    """
    return tuple(event for pod in pods for event in _do_not_disrupt_events(pod, now))


def _blocked_drain_events(decided: DrainDecision, node: Node) -> Iterator[Event]:
    if decided.protected:
        named = _first_names([pod.key for pod in decided.protected])
        text = (
            f"Failed to drain node, {len(decided.remaining)} pods are waiting to be evicted; not evictable now: {named}"
        )
        yield Event(ref=node_ref(node), reason="FailedDraining", message=text, type="Warning")


def _do_not_disrupt_events(pod: Pod, now: datetime) -> Iterator[Event]:
    value = pod.metadata.annotations.get(labels.DO_NOT_DISRUPT)
    if value is None or value == "true":
        return
    ref, duration = pod_ref(pod), parse_go_duration(value)
    if duration is None or duration <= timedelta(0):
        text = f'Invalid {labels.DO_NOT_DISRUPT} annotation: "{value}" is neither "true" nor a positive duration such as 1h30m, ignoring annotation'
        yield Event(ref=ref, reason="InvalidDoNotDisruptAnnotation", message=text, type="Warning", key=value)
    elif pod.status.start_time is None:
        return
    elif now < (end := time_after(pod.status.start_time, duration)):
        text = f"The {labels.DO_NOT_DISRUPT} grace period will elapse at {format_time(end)}"
        yield Event(ref=ref, reason="DoNotDisruptUntil", message=text, key=format_time(end))
    else:
        text = f"The {labels.DO_NOT_DISRUPT} grace period has elapsed, pod is now disruptable"
        yield Event(ref=ref, reason="DoNotDisruptGracePeriodElapsed", message=text)


def _first_names(names: Sequence[str]) -> str:
    rest = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {rest} other(s)" if rest > 0 else "")


def attached_volumes(state: StateNode, snapshot: Snapshot) -> tuple[str, ...]:
    """Return the names of the VolumeAttachments to wait for, sorted.

    Volumes of pods that are not drained (`is_drainable`) stay attached until the instance terminates, so they do not count. Nor
    do inline volumes, which have no PersistentVolume.

    Args:
        state: The node, with its pods.
        snapshot: Its VolumeAttachments, and all PersistentVolumeClaims if it has any.

    Restates: karpenter pkg/controllers/node/termination/controller.go `pendingVolumeAttachments`, `filterVolumeAttachments`.
    """
    if state.node is None:
        return ()
    node, undrainable = state.node.metadata.name, _volumes_of_undrainable_pods(state, snapshot)
    return tuple(
        sorted(
            attachment.metadata.name
            for attachment in snapshot.volume_attachments
            if attachment.spec.node_name == node
            and (volume := attachment.spec.source.persistent_volume_name)
            and volume not in undrainable
        )
    )


def _volumes_of_undrainable_pods(state: StateNode, snapshot: Snapshot) -> frozenset[str]:
    """Return the names of PersistentVolumes that pods which are not drained use through bound PersistentVolumeClaims."""
    used = {key for pod in state.pods if not is_drainable(pod, snapshot.now) for key in claim_keys(pod)}
    if not used:
        return frozenset()
    return frozenset(
        claim.spec.volume_name
        for claim in snapshot.persistent_volume_claims
        if f"{claim.metadata.namespace}/{claim.metadata.name}" in used and claim.spec.volume_name
    )
