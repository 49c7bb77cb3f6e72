"""Nodes of ours whose NodeClaim is gone: drained and ended all the same, as nobody else will.

Somebody took the finalizer off a claim, and the API server's garbage collector deletes the node with its owner. The node
says which instance it is, the instance's tags that it is ours.

Differs: Karpenter lets such a node go once it is drained, and ends its instance meanwhile, as one that no claim stands for,
under its pods.
"""

from __future__ import annotations

from msgspec.structs import replace

from journeyman.core.api.objects import Node
from journeyman.core.lifecycle.drain import (
    FORCEFUL,
    Drain,
    another_place,
    drain,
    drain_behind,
    drain_chains,
    others_drain,
)
from journeyman.core.lifecycle.endings import node_ended
from journeyman.core.lifecycle.held_up import drain_events, volume_events
from journeyman.core.lifecycle.instance_end import free_node
from journeyman.core.lifecycle.instances import Cloud, RunningInstance
from journeyman.core.lifecycle.leaving import marked
from journeyman.core.lifecycle.pace import Termination, drain_look, instance_look, volume_look
from journeyman.core.lifecycle.progress import node_patches, node_ref
from journeyman.core.lifecycle.volumes import attached_volumes
from journeyman.core.plan import Event, Plan, Requeue, TerminateInstance, chain_of
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.cordon import is_cordoned


def finalize_bare(node: Node, state: StateNode, snapshot: Snapshot, cloud: Cloud, pace: Termination) -> Plan:
    """Move it one step on: its pods, its volumes, its instance, itself.

    Without a claim there is no terminationGracePeriod either: its pods have all the time they need. A machine that
    somebody stopped is not waited for once its pods have been asked to go.

    Args:
        node: The node, being deleted.
        state: The same with its pods.
        snapshot: The volumes attached to it, and all PersistentVolumeClaims.
        cloud: What is known of its instance.
        pace: How long to wait for what.
    """
    provider_id = node.spec.provider_id
    if provider_id in cloud.gone and not state.ready:
        return _let_go(node, snapshot)
    decided = drain(state.pods, snapshot.now, None)
    instance, stopped = cloud.find(provider_id), cloud.is_stopped(state) and is_cordoned(node)
    if decided.remaining and not stopped:
        return _draining(node, decided, state, snapshot, pace)
    if instance is not None and others_drain(state, snapshot):
        return Plan()  # they come back to it
    if not stopped and (volumes := attached_volumes(state, snapshot)):
        began = node.metadata.deletion_timestamp or snapshot.now
        look = volume_look(state.name, snapshot.now, began, None, pace)
        return Plan(chains=(chain_of(f"Node {state.name}", look),), events=volume_events(volumes, node))
    return _ending(node, instance, snapshot, pace) if instance is not None else _let_go(node, snapshot)


def _draining(node: Node, decided: Drain, state: StateNode, snapshot: Snapshot, pace: Termination) -> Plan:
    now, closed = snapshot.now, marked(node)
    patches = node_patches(node, closed, "drain")
    told = drain_events(decided, node, now)
    elsewhere: tuple[Requeue, ...] = ()
    if patches:  # it begins
        text = "No NodeClaim stands for this node and its instance: it is drained, then both go"
        told += (Event(ref=node_ref(node), reason="NodeClaimNotFound", message=text, type="Warning"),)
        elsewhere = another_place(state.pods, state.name, now)
    look = drain_look(decided, state.name, now, node.metadata.deletion_timestamp or now, pace)
    closing = chain_of(f"Node {state.name}", *patches, look, *elsewhere)
    chains = drain_behind(closing, drain_chains(decided, node, FORCEFUL, None), node)
    return Plan(chains=chains, events=told)


def _ending(node: Node, instance: RunningInstance, snapshot: Snapshot, pace: Termination) -> Plan:
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
    look = instance_look(provider_id, snapshot.now, began, pace)
    return Plan(
        chains=(chain_of(f"Node {name}", end, look),), notes=(f"drained node {name}, terminating its instance",)
    )


def _let_go(node: Node, snapshot: Snapshot) -> Plan:
    name = node.metadata.name
    chain = chain_of(f"Node {name}", *free_node(node, "drained, and no NodeClaim owns it"))
    counted = replace(chain, observations=node_ended(node, snapshot.now))
    return Plan(chains=(counted,), notes=(f"deleted node {name}, which no NodeClaim owned",))
