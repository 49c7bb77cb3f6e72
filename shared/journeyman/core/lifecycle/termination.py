"""Termination: from a deletionTimestamp to nothing left, one safe move per run.

::

    claim or node gets a deletionTimestamp
      └─ taint, take out of load balancers, delete the other half
           └─ drain (at least 5 s)                 Drained
                └─ volumes let go                  VolumesDetached
                     └─ terminate, until gone      InstanceTerminating
                          └─ node finalizer, then claim finalizer

Every run derives where it is from the objects, does the next moves, and says when to look again.

Restates: karpenter pkg/controllers/node/termination/controller.go `finalize`, pkg/controllers/nodeclaim/lifecycle/
controller.go `finalize`.
Differs: one decision for both halves, so that node and claim go in one run; VolumeAttachments are not read, so
VolumesDetached follows Drained at once (the cloud detaches what is left when the instance goes); a claim that was
deleted before its instance id was written finds the instance by its tag; the poll slows down as a drain drags on.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import format_time
from journeyman.core.api.duration import parse_duration
from journeyman.core.api.objects import Node, NodeClaim, condition_of, is_true
from journeyman.core.lifecycle.drain import Drain, drain, drain_chains
from journeyman.core.lifecycle.explain import node_event, terminated
from journeyman.core.lifecycle.progress import (
    Progress,
    claim_ref,
    node_patches,
    node_ref,
    poll_at,
    with_metadata,
    with_node,
)
from journeyman.core.plan import (
    Action,
    Chain,
    DeleteObject,
    Event,
    Plan,
    Step,
    TerminateInstance,
    Wake,
    merged,
    one,
)
from journeyman.core.scheduling.pods import is_reschedulable
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.cordon import DISRUPTED, is_cordoned
from journeyman.errors import ConfigurationError

FORCEFUL: Final = "Forceful Termination"
SLOWEST_POLL: Final = timedelta(seconds=30)
AwareTime = Annotated[datetime, msgspec.Meta(tz=True)]


class Cloud(Struct, frozen=True, kw_only=True):
    """What is known of instances.

    `gone` are provider ids that the cloud confirmed not to exist any more; `by_claim` are the ids of live instances by
    the claim that their tag names.
    """

    gone: frozenset[str] = frozenset()
    by_claim: Mapping[str, str] = field(default_factory=dict)


class Termination(Struct, frozen=True, kw_only=True):
    """The pace: the least a drain takes, and how often drain and instance are looked at."""

    min_drain: timedelta = timedelta(seconds=5)
    drain_poll: timedelta = timedelta(seconds=2)
    instance_poll: timedelta = timedelta(seconds=5)


def finalize(snapshot: Snapshot, cloud: Cloud, pace: Termination) -> Plan:
    """Move everything that is being deleted one step on.

    Args:
        snapshot: Nodes, claims, and the pods of nodes that are being deleted.
        cloud: What is known of their instances.
        pace: How long to wait for what.
    """
    return merged(_finalize(n, snapshot, cloud, pace) for n in snapshot.state_nodes if is_leaving(n))


def is_leaving(node: StateNode) -> bool:
    """Whether it is being deleted and waits for our finalizer."""
    return _claim_leaves(node.claim) or _node_leaves(node.node)


def _claim_leaves(claim: NodeClaim | None) -> bool:
    return claim is not None and _leaves(claim)


def _node_leaves(node: Node | None) -> bool:
    return node is not None and _leaves(node)


def _leaves(item: NodeClaim | Node) -> bool:
    return item.metadata.deletion_timestamp is not None and labels.TERMINATION_FINALIZER in item.metadata.finalizers


def _finalize(state: StateNode, snapshot: Snapshot, cloud: Cloud, pace: Termination) -> Plan:
    claim, node = _identified(state, cloud), state.node
    if node is None or not (_node_leaves(node) or state.registered):
        # a node that never registered is not ours to drain: the instance goes, the cloud's controller removes the node
        return _finish_claim(claim, snapshot, cloud, pace) if claim is not None else Plan()
    if claim is None:
        return _finalize_bare(node, state, snapshot, cloud, pace)
    if is_true(claim.status.conditions, "InstanceTerminating") or _instance_lost(state, cloud):
        return _finish(claim, node, snapshot, cloud, pace)
    return _drain(claim, node, state, snapshot, pace)


def _identified(state: StateNode, cloud: Cloud) -> NodeClaim | None:
    """The claim with the instance that goes with it, whatever became of its status.

    That is its node's, or its own, or the one whose tag names it; and none if what it carries is another claim's.
    """
    if state.claim is None:
        return None
    instance = state.provider_id or cloud.by_claim.get(state.claim.metadata.name, "")
    status = msgspec.structs.replace(state.claim.status, provider_id="" if state.duplicate_of else instance)
    return msgspec.structs.replace(state.claim, status=status)


def _drain(claim: NodeClaim, node: Node, state: StateNode, snapshot: Snapshot, pace: Termination) -> Plan:
    now = snapshot.now
    progress = _announced(Progress.of(claim, now).found(node))
    decided = drain(state.pods, now, terminates_at(progress.claim))
    since = condition_of(claim.status.conditions, "Drained")
    began = since.last_transition_time if since is not None and since.last_transition_time is not None else now
    if decided.remaining or now < began + pace.min_drain:
        return _draining(progress, decided, state, began, pace)
    return _drained(progress, pace)


def _draining(progress: Progress, decided: Drain, state: StateNode, began: datetime, pace: Termination) -> Plan:
    now, claim, node = progress.now, progress.claim, state.name
    first_time = condition_of(progress.original.status.conditions, "Drained") is None
    progress = progress.with_condition("Drained", "Unknown", "Draining", "Draining")
    reason = eviction_reason(claim)
    chains = (
        progress.chain(*_delete_halves(progress), why="drain"),
        *drain_chains(decided, node, reason, terminates_at(claim)),
        one(f"Node {node}", *_drain_wakes(decided, state, now, began, pace, first_time=first_time)),
    )
    events = _blocked_events(decided, state)
    note = f"draining node {node}: {len(decided.remaining)} pod(s) left, evicting {len(decided.evict)}, forcing {len(decided.force)}"
    return Plan(chains=chains, events=events, notes=(note,))


def _drain_wakes(
    decided: Drain, state: StateNode, now: datetime, began: datetime, pace: Termination, *, first_time: bool
) -> tuple[Wake, ...]:
    """Look again soon, no later than the next forced deletion; let the pods' next place be planned at the start."""
    look = poll_at(now, began, pace.drain_poll, SLOWEST_POLL)
    if not decided.remaining:
        look = max(began + pace.min_drain, now)
    if decided.next_force is not None:
        look = min(look, decided.next_force + timedelta(seconds=1))
    wakes: tuple[Wake, ...] = (Wake(step=Step.TERMINATE, at=look, reason=f"node {state.name} is draining"),)
    if first_time and any(is_reschedulable(pod) for pod in state.pods):
        wakes += (Wake(step=Step.PROVISION, at=now, reason=f"pods of node {state.name} need another place"),)
    return wakes


def _drained(progress: Progress, pace: Termination) -> Plan:
    claim = progress.claim
    for type_ in ("Drained", "VolumesDetached", "InstanceTerminating"):
        progress = progress.with_condition(type_, "True")
    progress = progress.told(observations=(node_event("karpenter_nodes_drained_total", claim),))
    halves = _delete_halves(progress)
    terminate = _terminate(claim, claim.status.provider_id, "the node is drained")
    chain = progress.chain(*halves, *terminate, *_look_again(claim, progress.now, pace), why="the node is drained")
    return Plan(chains=(chain,), notes=(f"drained node {claim.status.node_name}, terminating its instance",))


def _finish(claim: NodeClaim, node: Node, snapshot: Snapshot, cloud: Cloud, pace: Termination) -> Plan:
    """The instance is on its way out: once it is gone, so are the node and its claim."""
    provider_id = claim.status.provider_id
    if provider_id and provider_id not in cloud.gone:
        return _await_instance(claim, provider_id, snapshot.now, pace)
    if halves := _delete_halves(Progress.of(claim, snapshot.now).found(node)):
        wake = Wake(step=Step.TERMINATE, at=snapshot.now, reason=f"the instance of node {node.metadata.name} is gone")
        return Plan(chains=(one(f"NodeClaim {claim.metadata.name}", *halves, wake),))
    freed = with_node(node, metadata={"finalizers": _without_ours(node.metadata.finalizers)})
    actions = (*node_patches(node, freed, "its instance is gone"), *_free(claim, snapshot.now))
    observations = (node_event("karpenter_nodes_terminated_total", claim), terminated(claim))
    events = tuple(
        Event(ref=ref, reason="Finalized", message="Finalized") for ref in (node_ref(node), claim_ref(claim))
    )
    chain = Chain(subject=f"NodeClaim {claim.metadata.name}", actions=actions, events=events, observations=observations)
    note = f"deleted node {node.metadata.name} and NodeClaim {claim.metadata.name}"
    return Plan(chains=(chain,), notes=(note,))


def _finish_claim(claim: NodeClaim, snapshot: Snapshot, cloud: Cloud, pace: Termination) -> Plan:
    """A claim without a node of its own: its instance goes without a drain."""
    provider_id = claim.status.provider_id
    if provider_id and provider_id not in cloud.gone:
        return _await_instance(claim, provider_id, snapshot.now, pace)
    event = Event(ref=claim_ref(claim), reason="Finalized", message="Finalized")
    chain = replace(
        one(f"NodeClaim {claim.metadata.name}", *_free(claim, snapshot.now)),
        events=(event,),
        observations=(terminated(claim),),
    )
    return Plan(chains=(chain,), notes=(f"deleted NodeClaim {claim.metadata.name}",))


def _finalize_bare(node: Node, state: StateNode, snapshot: Snapshot, cloud: Cloud, pace: Termination) -> Plan:
    """A managed node whose claim is gone: drain it, then let it go; its instance is an orphan and is collected."""
    marked = _marked(node)
    decided = drain(state.pods, snapshot.now, None)
    if not decided.remaining or node.spec.provider_id in cloud.gone:
        marked = with_node(marked, metadata={"finalizers": _without_ours(node.metadata.finalizers)})
        chain = one(f"Node {node.metadata.name}", *node_patches(node, marked, "drained, and no NodeClaim owns it"))
        return Plan(chains=(chain,), notes=(f"deleted node {node.metadata.name}, which no NodeClaim owned",))
    began = node.metadata.deletion_timestamp or snapshot.now
    wakes = _drain_wakes(decided, state, snapshot.now, began, pace, first_time=node.spec.taints != marked.spec.taints)
    chains = (
        one(f"Node {node.metadata.name}", *node_patches(node, marked, "drain"), *wakes),
        *drain_chains(decided, node.metadata.name, FORCEFUL, None),
    )
    return Plan(chains=chains, events=_blocked_events(decided, state))


def _await_instance(claim: NodeClaim, provider_id: str, now: datetime, pace: Termination) -> Plan:
    """The intent is the deletion itself: the instance ends even if what becomes of it cannot be written."""
    told = (
        Progress.of(claim, now).with_condition("InstanceTerminating", "True").chain(why="its instance is terminating")
    )
    ended = (*_terminate(claim, provider_id, "the NodeClaim is being deleted"), *_look_again(claim, now, pace))
    return Plan(chains=(told, one(f"instance {provider_id}", *ended)))


def _terminate(claim: NodeClaim, provider_id: str, why: str) -> tuple[Action, ...]:
    if not provider_id:  # neither node, claim nor any instance says which one it is: there is none
        return ()
    return (TerminateInstance(provider_id=provider_id, claim=claim.metadata.name, why=why),)


def _look_again(claim: NodeClaim, now: datetime, pace: Termination) -> tuple[Action, ...]:
    began = condition_of(claim.status.conditions, "InstanceTerminating")
    since = began.last_transition_time if began is not None and began.last_transition_time is not None else now
    at = poll_at(now, since, pace.instance_poll, SLOWEST_POLL)
    return (Wake(step=Step.TERMINATE, at=at, reason=f"instance of NodeClaim {claim.metadata.name} is terminating"),)


def _instance_lost(state: StateNode, cloud: Cloud) -> bool:
    """The instance is gone under a node that is not Ready: there is nothing to drain."""
    return not state.ready and state.provider_id in cloud.gone


def _announced(progress: Progress) -> Progress:
    """The node marked, and the time by which it must be gone written down once (a time set by others stands)."""
    claim, node = progress.claim, progress.node
    if node is not None:
        progress = replace(progress, node=_marked(node))
    period = _grace_period(claim)
    if period is None or labels.TERMINATION_TIMESTAMP in claim.metadata.annotations:
        return progress
    end = (claim.metadata.deletion_timestamp or progress.now) + period
    noted = {**claim.metadata.annotations, labels.TERMINATION_TIMESTAMP: format_time(end)}
    text = f"All pods will be deleted by {format_time(end)}"
    event = Event(ref=claim_ref(claim), reason="TerminationGracePeriodExpiring", message=text, type="Warning")
    return replace(progress, claim=with_metadata(claim, annotations=noted)).told(event)


def _marked(node: Node) -> Node:
    """Closed to new pods and taken out of load balancers."""
    taints = node.spec.taints if is_cordoned(node) else (*node.spec.taints, DISRUPTED)
    marks = {**node.metadata.labels, labels.EXCLUDE_BALANCERS: "karpenter"}
    return with_node(node, metadata={"labels": marks}, spec={"taints": taints})


def _delete_halves(progress: Progress) -> tuple[Action, ...]:
    """Deleting either half deletes the other."""
    halves: tuple[Action, ...] = ()
    if progress.original.metadata.deletion_timestamp is None:
        halves += (DeleteObject(ref=claim_ref(progress.original), why="its node is being deleted"),)
    node = progress.original_node
    if node is not None and node.metadata.deletion_timestamp is None:
        halves += (DeleteObject(ref=node_ref(node), why="its NodeClaim is being deleted"),)
    return halves


def _free(claim: NodeClaim, now: datetime) -> tuple[Action, ...]:
    freed = with_metadata(claim, finalizers=_without_ours(claim.metadata.finalizers))
    return replace(Progress.of(claim, now), claim=freed).chain(why="its instance is gone").actions


def _without_ours(finalizers: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f for f in finalizers if f != labels.TERMINATION_FINALIZER)


def _grace_period(claim: NodeClaim) -> timedelta | None:
    """The claim's terminationGracePeriod; one that does not parse counts as none, which loses no pod."""
    text = claim.spec.termination_grace_period
    try:
        return parse_duration(text) if text is not None else None
    except ConfigurationError:
        return None


def terminates_at(claim: NodeClaim) -> datetime | None:
    """When the claim's node must be gone; None if it may take as long as its pods need."""
    text = claim.metadata.annotations.get(labels.TERMINATION_TIMESTAMP, "")
    try:
        return msgspec.convert(text, AwareTime)
    except msgspec.ValidationError:
        return None


def eviction_reason(claim: NodeClaim) -> str:
    """Why its pods are evicted, for them to read: the disruption's reason if there is one."""
    reason = condition_of(claim.status.conditions, "DisruptionReason")
    return reason.reason if reason is not None and reason.status == "True" else FORCEFUL


def _blocked_events(decided: Drain, state: StateNode) -> tuple[Event, ...]:
    if state.node is None or not decided.protected:
        return ()
    keys = ", ".join(pod.key for pod in decided.protected[:5])
    text = f"Failed to drain node, {len(decided.remaining)} pods are waiting to be evicted; not evictable now: {keys}"
    return (Event(ref=node_ref(state.node), reason="FailedDraining", message=text, type="Warning"),)
