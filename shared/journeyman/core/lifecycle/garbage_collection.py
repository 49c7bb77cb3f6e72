"""Garbage collection: instances without a NodeClaim, NodeClaims without an instance, and inconsistent NodeClaims.

Inconsistent NodeClaims would keep an instance that never runs a pod:

==============================================  =======================================================================
registered, its Node missing, instance running  deleted after `inconsistent_after`, until when the kubelet may register again
InstanceTerminating without deletionTimestamp   deleted
==============================================  =======================================================================

Restates: karpenter pkg/controllers/nodeclaim/garbagecollection/controller.go `Reconcile`; karpenter-provider-aws
pkg/controllers/nodeclaim/garbagecollection/controller.go `Reconcile`, `garbageCollect`.
Differs: an orphan's age counts from when it was first seen without its NodeClaim, a brake limits what is removed within an hour
(`removal_brake`), and where its NodePool exists its NodeClaim is created again instead (`adoption`). Before an instance is
terminated, the NodeClaim in its tags is looked up by name; its nodes are drained first; a stopped instance counts as gone. Karpenter
removes all of them, and keeps inconsistent NodeClaims.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import INSTANCE_TERMINATING, LAUNCHED, REGISTERED, format_time, parse_time
from journeyman.core.api.duration import time_after
from journeyman.core.api.objects import NODECLAIM, Node, NodeClaim, is_true
from journeyman.core.lifecycle.adoption import adoptable
from journeyman.core.lifecycle.drain import REQUEUE_MARGIN
from journeyman.core.lifecycle.progress import (
    NodeClaimProgress,
    delete_nodeclaim,
    node_patches,
    with_metadata,
    with_node,
)
from journeyman.core.lifecycle.removal_brake import Lost
from journeyman.core.lifecycle.termination import (
    further_instances,
    has_pending_finalizer,
    is_instance_gone,
    with_disrupted_taint_and_label,
    with_node_class_label,
)
from journeyman.core.plan import (
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
    merge_plans,
    node_ref,
)
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.disrupted_taint import has_disrupted_taint
from journeyman.core.state.instances import TERMINATING_STATES, CloudInstances, RunningInstance
from journeyman.core.state.nodeclaim_metrics import disruption_started, nodeclaim_disrupted
from journeyman.core.state.skipped_objects import evaluate, plan_for_each

ESTABLISHED: Final = timedelta(minutes=15)
"""The age from which an instance has had a Node; a kubelet may register it again."""


class OrphanWaits(Struct, frozen=True, kw_only=True):
    """How long an instance must have looked lost: `young` if it was launched within `ESTABLISHED`, else `established`."""

    young: timedelta = timedelta(seconds=30)
    established: timedelta = timedelta(minutes=5)


def lost_objects(snapshot: Snapshot, cloud: CloudInstances, waits: OrphanWaits) -> tuple[Lost, ...]:
    """Return what looks lost, each with its removal: instances and deleted nodes without a NodeClaim, NodeClaims without an instance.

    Args:
        snapshot: NodeClaims and nodes, read after the instances: a NodeClaim is created before its instance.
        cloud: All instances of the cluster.
        waits: How long an instance without a NodeClaim is kept.
    """
    orphans = lost_instances(snapshot, cloud, waits)
    return (*orphans, *lost_nodes(snapshot, cloud, orphans), *lost_claims(snapshot, cloud))


def fleet_size(snapshot: Snapshot, cloud: CloudInstances) -> int:
    """Return the number of nodes of which a part may be removed: of NodeClaims, or of instances if that is more."""
    claims = sum(1 for claim in snapshot.claims if claim.metadata.deletion_timestamp is None)
    return max(claims, sum(1 for instance in cloud.listed if instance.state not in TERMINATING_STATES))


def orphaned_instances(snapshot: Snapshot, cloud: CloudInstances) -> tuple[RunningInstance, ...]:
    """Return the instances without a NodeClaim, by provider id.

    An instance is no orphan if its tags name a NodeClaim without a provider id: the run crashed before it wrote the status,
    and the next launch returns this instance.

    Restates: karpenter-provider-aws pkg/controllers/nodeclaim/garbagecollection/controller.go `garbageCollect`.
    """
    claimed = snapshot.claimed_provider_ids
    return tuple(
        instance
        for instance in sorted(cloud.listed, key=lambda i: i.provider_id)
        if instance.provider_id not in claimed
        and instance.state not in TERMINATING_STATES
        and not _has_pending_claim(instance, snapshot)
    )


def end_useless_instances(snapshot: Snapshot, cloud: CloudInstances) -> Plan:
    """Terminate at once, nodes drained first, what no brake has to hold.

    These are the further instances of NodeClaims that are being deleted, and instances without a NodeClaim that the cloud could not build.
    """
    return merge_plans(_terminate_orphan(instance, snapshot) for instance in _useless(snapshot, cloud))


def _useless(snapshot: Snapshot, cloud: CloudInstances) -> tuple[RunningInstance, ...]:
    deleted = (claim for claim in snapshot.claims if claim.metadata.deletion_timestamp is not None)
    further = {i.provider_id for claim in deleted for i in further_instances(claim, snapshot, cloud)}
    orphans = orphaned_instances(snapshot, cloud)
    return tuple(i for i in orphans if i.provider_id in further or i.failure is not None)


def lost_instances(snapshot: Snapshot, cloud: CloudInstances, waits: OrphanWaits) -> tuple[Lost, ...]:
    """Return the instances without a NodeClaim that cannot be adopted; they are terminated, those with nodes once these are drained."""
    adopted = {instance.provider_id for instance, *_ in adoptable(snapshot, orphaned_instances(snapshot, cloud))}
    adopted |= {instance.provider_id for instance in _useless(snapshot, cloud)}
    found = []
    for instance in orphaned_instances(snapshot, cloud):
        removal = _terminate_orphan(instance, snapshot)
        if instance.provider_id in adopted or not removal.chains:
            continue
        is_young = snapshot.now - instance.launched_at < ESTABLISHED
        wait = waits.young if is_young else waits.established
        found.append(Lost(kind="Instance", name=instance.provider_id, wait=wait, removal=removal))
    return tuple(found)


def lost_nodes(snapshot: Snapshot, cloud: CloudInstances, orphans: Iterable[Lost]) -> Iterator[Lost]:
    """Yield deleted nodes without a NodeClaim: Kubernetes deletes the Nodes of NodeClaims that were wiped. Their removal is their drain."""
    instances = {one.name for one in orphans} | {instance.provider_id for instance in _useless(snapshot, cloud)}
    adopted = {instance.provider_id for instance, *_ in adoptable(snapshot, orphaned_instances(snapshot, cloud))}
    for state in snapshot.state_nodes:
        node = state.node
        if (
            node is None
            or state.claim is not None
            or not state.is_held
            or not (snapshot.is_ours(state) or cloud.find(state.provider_id))
        ):
            continue
        if state.provider_id in instances | adopted or is_instance_gone(state, cloud):
            continue
        removal = _begin_drain(node, snapshot)
        yield Lost(kind="Node", name=state.name, uid=node.metadata.uid, wait=timedelta(0), removal=removal)


def _begin_drain(node: Node, snapshot: Snapshot) -> Plan:
    """Taint a deleted node that has no NodeClaim; the next run drains it, and then terminates its instance."""
    name, why = node.metadata.name, "the node has no NodeClaim"
    tainted = with_disrupted_taint_and_label(with_node_class_label(node, snapshot))
    text = "The node and its instance have no NodeClaim: the node is drained, then both are deleted"
    chain = chain_of(
        f"Node {name}",
        *node_patches(node, tainted, why),
        Requeue(step=Step.TERMINATE, at=snapshot.now + REQUEUE_MARGIN, reason=f"node {name} is to be drained"),
        Requeue(step=Step.PROVISION, at=snapshot.now, reason=f"node {name} is drained"),
    )
    event = Event(ref=node_ref(node), reason="NodeClaimNotFound", message=text, type="Warning")
    return Plan(chains=(replace(chain, events=(event,)),), notes=(f"draining node {name}: {why}",))


def lost_claims(snapshot: Snapshot, cloud: CloudInstances) -> Iterator[Lost]:
    """Yield the registered NodeClaims whose instance may be gone: no instance of the whole fleet was found, or the NodeClaim names none."""
    for claim in snapshot.claims:
        lost = evaluate(claim, has_lost_instance, claim, snapshot, cloud) is True
        if lost and not is_surely_lost(snapshot.state_nodes_by_claim[claim.metadata.name], snapshot, cloud):
            removal = _delete_claim_without_instance(claim, snapshot, cloud)
            name, uid = claim.metadata.name, claim.metadata.uid
            yield Lost(kind="NodeClaim", name=name, uid=uid, wait=timedelta(0), removal=removal)


def is_surely_lost(state: StateNode, snapshot: Snapshot, cloud: CloudInstances) -> bool:
    """Whether the cloud says that the instance has ended: it lists it so, or finds it by its id no more while it lists others of the fleet.

    If it finds none, the credentials may be those of another account or region.
    """
    if cloud.find(state.provider_id) is not None:
        return state.provider_id in cloud.ended
    return state.provider_id in cloud.missing and bool(cloud.own(snapshot))


def delete_claims_without_instance(snapshot: Snapshot, cloud: CloudInstances) -> Plan:
    """Delete registered NodeClaims whose instance the cloud says is gone or stopped, and whose node is missing or not Ready.

    Restates: karpenter pkg/controllers/nodeclaim/garbagecollection/controller.go `Reconcile`.
    """

    def decide(claim: NodeClaim) -> Plan:
        state = snapshot.state_nodes_by_claim[claim.metadata.name]
        if not has_lost_instance(claim, snapshot, cloud) or not is_surely_lost(state, snapshot, cloud):
            return Plan()
        return _delete_claim_without_instance(claim, snapshot, cloud)

    return plan_for_each(snapshot.claims, decide)


def has_lost_instance(claim: NodeClaim, snapshot: Snapshot, cloud: CloudInstances) -> bool:
    """Whether the NodeClaim's instance is gone or stopped: looked up by its id, as a list of instances may lag behind.

    Without a provider id there is no instance if no tags name the NodeClaim (`with_own_instances`) and it has no Node.
    """
    state = snapshot.state_nodes_by_claim[claim.metadata.name]
    if claim.metadata.deletion_timestamp is not None or state.ready:
        return False
    if not is_true(claim.status.conditions, REGISTERED):
        return False
    if not state.provider_id:
        return state.node is None and is_true(claim.status.conditions, LAUNCHED)
    return state.provider_id in cloud.ended


def _has_pending_claim(instance: RunningInstance, snapshot: Snapshot) -> bool:
    """Whether the NodeClaim that the instance was launched for exists, has no provider id yet, and is not being deleted."""
    named = snapshot.claims_by_name.get(instance.claim)
    claim = named if instance.claim else _claim_with_uid(instance.claim_uid, snapshot)
    if claim is None or claim.status.provider_id or claim.metadata.deletion_timestamp is not None:
        return False
    return instance.claim_uid in ("", claim.metadata.uid)


def _claim_with_uid(uid: str, snapshot: Snapshot) -> NodeClaim | None:
    return next((claim for claim in snapshot.claims if uid and claim.metadata.uid == uid), None)


def _terminate_orphan(instance: RunningInstance, snapshot: Snapshot) -> Plan:
    """Terminate the instance; if it has nodes, only delete these: they are drained first, and the last one terminates the instance.

    That includes a node that never registered: its kubelet may have registered it again while its pods ran on.
    """
    nodes = [n.node for n in snapshot.state_nodes if n.node is not None and n.provider_id == instance.provider_id]
    if nodes:
        undrained = (n for n in nodes if not (has_pending_finalizer(n) and has_disrupted_taint(n)))
        return merge_plans(
            _begin_drain(n, snapshot) if has_pending_finalizer(n) else _delete_node(n, instance, snapshot)
            for n in undrained
        )
    why = "the instance has no NodeClaim"
    terminate = TerminateInstance(
        provider_id=instance.provider_id,
        claim=instance.claim,
        claim_uid=instance.claim_uid,
        why=why,
        unless_claimed=True,
    )
    chain = chain_of(f"instance {instance.provider_id}", terminate)
    return Plan(chains=(chain,), notes=(f"terminated instance {instance.provider_id}: {why}",))


def _delete_node(node: Node, instance: RunningInstance, snapshot: Snapshot) -> Plan:
    """Delete the node, with our finalizer so that it is drained first, unless its NodeClaim exists by then."""
    why = "the node has no NodeClaim"
    finalizers = node.metadata.finalizers
    if labels.TERMINATION_FINALIZER not in finalizers:
        finalizers += (labels.TERMINATION_FINALIZER,)
    protected = with_node(with_node_class_label(node, snapshot), metadata={"finalizers": finalizers})
    name = node.metadata.name
    # A NodeClaim that the instance's tags name and that exists already has another instance: a user edited the tags.
    is_unknown = bool(instance.claim) and instance.claim not in snapshot.claims_by_name
    claim = ObjectRef(resource=NODECLAIM, name=instance.claim, uid=instance.claim_uid) if is_unknown else None
    chain = chain_of(
        f"Node {name}",
        *node_patches(node, protected, why),
        DeleteObject(ref=node_ref(node), why=why, unless_exists=claim),
        Requeue(step=Step.TERMINATE, at=snapshot.now + REQUEUE_MARGIN, reason=f"node {name} is to be drained"),
    )
    return Plan(chains=(chain,), notes=(f"deleted node {name}: {why}",))


def _delete_claim_without_instance(claim: NodeClaim, snapshot: Snapshot, cloud: CloudInstances) -> Plan:
    name, state = claim.metadata.name, snapshot.state_nodes_by_claim[claim.metadata.name]
    if state.provider_id:
        instance = cloud.find(state.provider_id)
        why = f"instance {state.provider_id} is {'gone' if instance is None else instance.state}"
    else:
        why = f"NodeClaim {name} has no instance"
    chain = chain_of(
        f"NodeClaim {name}",
        DeleteObject(ref=claim_ref(claim), why=why),
        Requeue(step=Step.PROVISION, at=snapshot.now, reason=f"NodeClaim {name}: {why}"),
    )
    text = f"{why[0].upper()}{why[1:]}, and no pod runs on it any more; NodeClaim {name} is deleted, its pods are scheduled again"
    events = tuple(Event(ref=ref, reason="InstanceNotFound", message=text, type="Warning") for ref in state.object_refs)
    recorded = replace(chain, events=events, observations=disruption_started(claim, "garbage_collected", state.pods))
    return Plan(chains=(recorded,), notes=(f"deleted NodeClaim {name}: {why}",))


def inconsistent_claims(
    snapshot: Snapshot, cloud: CloudInstances, inconsistent_after: timedelta
) -> tuple[Plan, tuple[Lost, ...]]:
    """Return inconsistent NodeClaims, to be deleted, and the plan that records in an annotation since when a Node is missing.

    Args:
        snapshot: All nodes and NodeClaims.
        cloud: Their instances; NodeClaims without one are left to `delete_claims_without_instance`.
        inconsistent_after: How long a kubelet has to register its deleted Node again.
    """
    lost: list[Lost] = []

    def decide(state: StateNode) -> Plan:
        chains = tuple(_check_consistency(state, snapshot, cloud, inconsistent_after))
        deletions = tuple(chain for chain in chains if chain.events)
        for chain in deletions:
            assert state.claim is not None  # noqa: S101 - it is checked
            meta = state.claim.metadata
            removal = Plan(chains=(chain,), notes=tuple(event.message for event in chain.events))
            lost.append(Lost(kind="NodeClaim", name=meta.name, uid=meta.uid, wait=timedelta(0), removal=removal))
        return Plan(chains=tuple(chain for chain in chains if chain not in deletions))

    plan = plan_for_each((snapshot.state_nodes_by_claim[claim.metadata.name] for claim in snapshot.claims), decide)
    return plan, tuple(lost)


def _check_consistency(
    state: StateNode, snapshot: Snapshot, cloud: CloudInstances, inconsistent_after: timedelta
) -> Iterator[Chain]:
    claim, now = state.claim, snapshot.now
    if claim is None or claim.metadata.deletion_timestamp is not None or has_lost_instance(claim, snapshot, cloud):
        return
    if is_true(claim.status.conditions, INSTANCE_TERMINATING):
        text = f"NodeClaim {claim.metadata.name} has the condition InstanceTerminating, but no deletionTimestamp: it is deleted, and its node drained first"
        yield _delete_inconsistent(claim, "InconsistentStatus", text, now)
    elif not state.is_node_missing:
        if labels.NODE_MISSING_SINCE in claim.metadata.annotations:
            yield _record_missing_since(claim, None, now)
    elif (since := _missing_since(claim)) is None:
        yield _record_missing_since(claim, now, now)
        yield chain_of(f"NodeClaim {claim.metadata.name}", _requeue_missing_node(claim, now + inconsistent_after))
    elif now < (due := time_after(since, inconsistent_after)):
        yield chain_of(f"NodeClaim {claim.metadata.name}", _requeue_missing_node(claim, due))
    else:
        text = f"Node {claim.status.node_name} of NodeClaim {claim.metadata.name} has not existed since {format_time(since)}, and its kubelet did not register it again: NodeClaim and instance are deleted"
        yield _delete_inconsistent(claim, "NodeNotFound", text, now)


def _requeue_missing_node(claim: NodeClaim, at: datetime) -> Requeue:
    return Requeue(step=Step.TERMINATE, at=at, reason=f"the node of NodeClaim {claim.metadata.name} is missing")


def _missing_since(claim: NodeClaim) -> datetime | None:
    return parse_time(claim.metadata.annotations.get(labels.NODE_MISSING_SINCE, ""))


def _record_missing_since(claim: NodeClaim, since: datetime | None, now: datetime) -> Chain:
    """Write this time to the NodeClaim's annotation `node-missing-since`; None removes it."""
    others = {k: v for k, v in claim.metadata.annotations.items() if k != labels.NODE_MISSING_SINCE}
    recorded = {labels.NODE_MISSING_SINCE: format_time(since)} if since is not None else {}
    progress = replace(NodeClaimProgress.of(claim, now), claim=with_metadata(claim, annotations={**others, **recorded}))
    return progress.chain(why="its node is missing" if recorded else "its node registered again")


def _delete_inconsistent(claim: NodeClaim, reason: str, text: str, now: datetime) -> Chain:
    name = claim.metadata.name
    return Chain(
        subject=f"NodeClaim {name}",
        actions=(
            delete_nodeclaim(claim, text),
            Requeue(step=Step.PROVISION, at=now, reason=f"NodeClaim {name} is deleted: {reason}"),
        ),
        events=(Event(ref=claim_ref(claim), reason=reason, message=text, type="Warning"),),
        observations=(nodeclaim_disrupted(claim, "garbage_collected"),),
    )
