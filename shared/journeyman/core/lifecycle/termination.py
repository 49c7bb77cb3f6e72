"""Termination: from a deletionTimestamp to nothing left, one safe move per run.

::

    claim or node gets a deletionTimestamp
      └─ taint, take out of load balancers, delete the other half     leaving
           └─ drain (at least 5 s)                 Drained            drain
                └─ volumes let go                  VolumesDetached    volumes
                     └─ terminate, until gone      InstanceTerminating ─┐ instance_end
                          └─ node finalizer, then claim finalizer      ─┘

Every run derives where it is from the objects, does the next moves, and says when to look again (pace). Nodes whose claim
is gone go the same way by themselves (bare_nodes).

Restates: karpenter pkg/controllers/node/termination/controller.go `finalize`, pkg/controllers/nodeclaim/lifecycle/
controller.go `finalize`.
Differs: one decision for both halves, so that node and claim go in one run; a claim that was deleted before its instance id
was written finds the instance by its tag; that an instance is terminating counts only after a drain, whoever wrote it; a
machine that somebody stopped is not waited for, whatever protects the pods that no longer run on it.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from journeyman.core.api.conditions import DRAINED, INSTANCE_TERMINATING, VOLUMES_DETACHED
from journeyman.core.api.objects import Node, NodeClaim, condition_of, is_true
from journeyman.core.lifecycle.bare_nodes import finalize_bare
from journeyman.core.lifecycle.behind_our_back import told_why
from journeyman.core.lifecycle.drain import (
    Drain,
    another_place,
    drain,
    drain_behind,
    drain_chains,
    eviction_reason,
    others_drain,
)
from journeyman.core.lifecycle.explain import node_event
from journeyman.core.lifecycle.held_up import drain_events, volume_events
from journeyman.core.lifecycle.instance_end import end_instance, finish, finish_claim
from journeyman.core.lifecycle.instances import Cloud
from journeyman.core.lifecycle.leaving import (
    announced,
    awaits_finalizer,
    delete_halves,
    needs_termination,
    terminates_at,
)
from journeyman.core.lifecycle.pace import Termination, drain_look, since, volume_look
from journeyman.core.lifecycle.progress import Progress
from journeyman.core.lifecycle.volumes import attached_volumes
from journeyman.core.plan import Plan, chain_of, merge_plans
from journeyman.core.state import Snapshot, StateNode


def finalize(snapshot: Snapshot, cloud: Cloud, pace: Termination) -> Plan:
    """Move everything that is being deleted one step on.

    Args:
        snapshot: Nodes, claims, the pods of nodes that are being deleted, and the volumes attached to those of them whose
            volumes matter now (`awaits_volumes`).
        cloud: What is known of their instances.
        pace: How long to wait for what.
    """
    leaving = [n for n in snapshot.state_nodes if needs_termination(n)]
    told = Plan(events=tuple(event for n in leaving for event in told_why(n, snapshot)))
    return merge_plans([told, *(_finalize(n, snapshot, cloud, pace) for n in leaving)])


def awaits_volumes(state: StateNode, now: datetime) -> bool:
    """Whether volumes are what comes next: no pod of the node is waited for, and its instance is not ending yet."""
    if state.node is None or not needs_termination(state) or drain(state.pods, now, None).remaining:
        return False
    return state.claim is None or not _is_ending(state.claim)


def _finalize(state: StateNode, snapshot: Snapshot, cloud: Cloud, pace: Termination) -> Plan:
    claim, node = _identified(state, cloud), state.node
    if node is None or not (awaits_finalizer(node) or state.registered):
        # a node that never registered is not ours to drain: the instance goes, the cloud's controller removes the node
        return finish_claim(claim, snapshot.now, cloud, pace) if claim is not None else Plan()
    if claim is None:
        return finalize_bare(node, state, snapshot, cloud, pace)
    if _is_ending(claim) or _instance_lost(state, cloud):
        return finish(claim, node, snapshot.now, cloud, pace)
    return _drain(claim, state, snapshot, cloud, pace)


def _identified(state: StateNode, cloud: Cloud) -> NodeClaim | None:
    """The claim with the instance that goes with it, whatever became of its status.

    That is its node's, or its own, or the one whose tags name it (also if its own is not there, which may be somebody's
    invention); and none if what it carries is another claim's.
    """
    if state.claim is None:
        return None
    instance = state.provider_id
    if state.node is None and cloud.find(instance) is None:
        instance = cloud.launched_for(state.claim) or instance
    status = msgspec.structs.replace(state.claim.status, provider_id="" if state.duplicate_of else instance)
    return msgspec.structs.replace(state.claim, status=status)


def _is_ending(claim: NodeClaim) -> bool:
    """Whether its instance was asked to end after a drain; the condition alone may be anybody's."""
    volumes = condition_of(claim.status.conditions, VOLUMES_DETACHED)
    past_drain = is_true(claim.status.conditions, DRAINED) and volumes is not None and volumes.status != "Unknown"
    return past_drain and is_true(claim.status.conditions, INSTANCE_TERMINATING)


def _instance_lost(state: StateNode, cloud: Cloud) -> bool:
    """The instance is gone under a node that is not Ready: there is nothing to drain."""
    return not state.ready and state.provider_id in cloud.gone


def _drain(claim: NodeClaim, state: StateNode, snapshot: Snapshot, cloud: Cloud, pace: Termination) -> Plan:
    node, now = state.node, snapshot.now
    assert node is not None  # noqa: S101 - the caller's
    progress = announced(Progress.of(claim, now).found(node))
    end = terminates_at(progress.claim)
    decided = drain(state.pods, now, end)
    rested = is_true(claim.status.conditions, DRAINED) or now >= since(claim, DRAINED, now) + pace.min_drain
    if rested and cloud.is_stopped(state):
        return finish(claim, node, now, cloud, pace)
    if decided.remaining or not rested:
        return _draining(progress, node, decided, state, pace)
    if others_drain(state, snapshot):  # they come back to it
        return Plan(chains=(progress.chain(*delete_halves(progress), why="drain"),))
    volumes = attached_volumes(state, snapshot)
    if volumes and (end is None or now <= end):
        return _detaching(progress, node, volumes, end, pace)
    return _drained(progress, node, volumes, pace)


def _draining(progress: Progress, node: Node, decided: Drain, state: StateNode, pace: Termination) -> Plan:
    now, claim, name = progress.now, progress.claim, state.name
    begins = condition_of(claim.status.conditions, DRAINED) is None
    if not is_true(claim.status.conditions, DRAINED):  # a pod that comes later than that changes nothing of it
        progress = progress.with_condition(DRAINED, "Unknown", "Draining", "Draining")
    closing = progress.chain(*delete_halves(progress), why="drain")
    pods = drain_chains(decided, node, eviction_reason(claim), terminates_at(claim))
    chains = (
        *drain_behind(closing, pods, node),
        chain_of(
            f"Node {name}",
            drain_look(decided, name, now, since(claim, DRAINED, now), pace),
            *(another_place(state.pods, name, now) if begins else ()),
        ),
    )
    note = f"draining node {name}: {len(decided.remaining)} pod(s) left, evicting {len(decided.evict)}, forcing {len(decided.force)}"
    return Plan(chains=chains, events=drain_events(decided, node, now), notes=(note,))


def _detaching(
    progress: Progress, node: Node, volumes: tuple[str, ...], end: datetime | None, pace: Termination
) -> Plan:
    name, reason = node.metadata.name, "AwaitingVolumeDetachment"
    began = since(progress.claim, VOLUMES_DETACHED, progress.now)
    progress = _counted_as_drained(progress).with_condition(VOLUMES_DETACHED, "Unknown", reason, reason)
    look = volume_look(name, progress.now, began, end, pace)
    chain = progress.chain(*delete_halves(progress), look, why="its volumes are being detached")
    note = f"node {name} is drained, waiting for {len(volumes)} volume(s) to be detached"
    return Plan(chains=(chain,), events=volume_events(volumes, node), notes=(note,))


def _drained(progress: Progress, node: Node, volumes: tuple[str, ...], pace: Termination) -> Plan:
    """Nothing is waited for any more: no pod, and no volume, or the node's end has come."""
    elapsed = "TerminationGracePeriodElapsed"
    progress = _counted_as_drained(progress)
    progress = (
        progress.with_condition(VOLUMES_DETACHED, "False", elapsed, elapsed)
        if volumes
        else progress.with_condition(VOLUMES_DETACHED, "True")
    ).with_condition(INSTANCE_TERMINATING, "True")
    ended = end_instance(progress.original, node, progress.now, pace, "the node is drained")
    chain = progress.chain(*delete_halves(progress), *ended, why="the node is drained")
    return Plan(chains=(chain,), notes=(f"drained node {node.metadata.name}, terminating its instance",))


def _counted_as_drained(progress: Progress) -> Progress:
    claim = progress.claim
    if is_true(claim.status.conditions, DRAINED):
        return progress
    counted = node_event("karpenter_nodes_drained_total", claim)
    return progress.with_condition(DRAINED, "True").told(observations=(counted,))
