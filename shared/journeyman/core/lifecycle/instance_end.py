"""The end of an instance: asked for again and again until the cloud says that it is gone; then finalizers go.

Restates: karpenter pkg/controllers/node/termination/controller.go `awaitInstanceTermination`, `removeFinalizer`;
pkg/controllers/nodeclaim/lifecycle/controller.go `finalize`.
Differs: a node and its claim are let go in one run.
"""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from journeyman.core.api.conditions import INSTANCE_TERMINATING
from journeyman.core.api.objects import Node, NodeClaim
from journeyman.core.lifecycle.endings import claim_ended, node_ended
from journeyman.core.lifecycle.instances import Cloud
from journeyman.core.lifecycle.leaving import announced, delete_halves, without_ours
from journeyman.core.lifecycle.pace import Termination, instance_look, since
from journeyman.core.lifecycle.progress import (
    Progress,
    claim_ref,
    node_patches,
    node_ref,
    with_metadata,
    with_node,
)
from journeyman.core.plan import Action, Chain, Event, ObjectRef, Plan, Requeue, Step, TerminateInstance, chain_of


def finish(claim: NodeClaim, node: Node, now: datetime, cloud: Cloud, pace: Termination) -> Plan:
    """The instance is on its way out: once it is gone, so are the node and its claim."""
    provider_id = claim.status.provider_id
    if provider_id and provider_id not in cloud.gone:
        return _await(claim, node, now, pace)
    if halves := delete_halves(Progress.of(claim, now).found(node)):
        wake = Requeue(step=Step.TERMINATE, at=now, reason=f"the instance of node {node.metadata.name} is gone")
        return Plan(chains=(chain_of(f"NodeClaim {claim.metadata.name}", *halves, wake),))
    chain = Chain(
        subject=f"NodeClaim {claim.metadata.name}",
        actions=(*free_node(node, "its instance is gone"), *_free(claim, now)),
        events=(_finalized(node_ref(node)), _finalized(claim_ref(claim))),
        observations=(*node_ended(node, now), *claim_ended(claim, now)),
    )
    note = f"deleted node {node.metadata.name} and NodeClaim {claim.metadata.name}"
    return Plan(chains=(chain,), notes=(note,))


def finish_claim(claim: NodeClaim, now: datetime, cloud: Cloud, pace: Termination) -> Plan:
    """A claim without a node of its own: its instance goes without a drain."""
    provider_id = claim.status.provider_id
    if provider_id and provider_id not in cloud.gone:
        return _await(claim, None, now, pace)
    chain = Chain(
        subject=f"NodeClaim {claim.metadata.name}",
        actions=_free(claim, now),
        events=(_finalized(claim_ref(claim)),),
        observations=claim_ended(claim, now),
    )
    return Plan(chains=(chain,), notes=(f"deleted NodeClaim {claim.metadata.name}",))


def end_instance(claim: NodeClaim, node: Node | None, now: datetime, pace: Termination, why: str) -> tuple[Action, ...]:
    """Ask for its end, and look again; nothing if neither node, claim nor any instance says which one it is."""
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
    return (end, instance_look(provider_id, now, since(claim, INSTANCE_TERMINATING, now), pace))


def free_node(node: Node, why: str) -> tuple[Action, ...]:
    """Take our finalizer off a node."""
    freed = with_node(node, metadata={"finalizers": without_ours(node.metadata.finalizers)})
    return node_patches(node, freed, why)


def _await(claim: NodeClaim, node: Node | None, now: datetime, pace: Termination) -> Plan:
    """The intent is the deletion itself: the instance ends even if what becomes of it cannot be written."""
    progress = announced(Progress.of(claim, now)).with_condition(INSTANCE_TERMINATING, "True")
    ended = end_instance(claim, node, now, pace, "the NodeClaim is being deleted")
    told = progress.chain(why="its instance is terminating")
    return Plan(chains=(told, chain_of(f"instance {claim.status.provider_id}", *ended)))


def _free(claim: NodeClaim, now: datetime) -> tuple[Action, ...]:
    freed = with_metadata(claim, finalizers=without_ours(claim.metadata.finalizers))
    return replace(Progress.of(claim, now), claim=freed).chain(why="its instance is gone").actions


def _finalized(ref: ObjectRef) -> Event:
    return Event(ref=ref, reason="Finalized", message="Finalized")
