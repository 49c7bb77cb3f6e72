"""Orchestration: how a disruption command is executed over several runs, from its state in the cluster.

::

    propose          NodeDisruption is created            Proposed    (no node is touched)
       │ ≥ 15 s later, if validation succeeds                └─ validation fails ─► Rejected
    start_command    DisruptionReason on the candidates
                     phase is written                     Executing
                     replacements are created,               └─ one is lost, or 10 min pass ─► RolledBack
                     candidates tainted,                                  (taint and condition are removed)
                     replacements launched
       │ all replacements initialized
    wait_or_terminate   the candidates' NodeClaims are deleted; the terminate step drains them
       │ all of them removed
                                                          Succeeded

The DisruptionReason condition says which candidates a command has started to disrupt, so that later runs know
which ones validation dropped. A run that crashes between two writes leaves a state that the next run finishes or rolls
back: a command that is still Proposed is validated again, an Executing one without its replacements is rolled back, and
a missing taint is added.

Restates: karpenter pkg/controllers/disruption/queue.go `StartCommand`, `waitOrTerminate`, `CompleteCommand`.
Differs: the queue is the NodeDisruption objects, so that it survives a restart. A delete command deletes at once. The
replacements are created before the taints, because the provisioner reschedules the pods of tainted nodes and would launch
nodes for them. All writes of a start are one chain; after a conflict the next run continues. A replacement whose launch
fails is deleted, which the next run sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from journeyman.core.api import labels
from journeyman.core.api.conditions import DISRUPTION_REASON, INITIALIZED, ConditionSet, format_time
from journeyman.core.api.hashes import NODEPOOL_HASH_VERSION, node_pool_hash
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.objects import NODE_DISRUPTION, NODECLAIM, NodeClaim, is_true
from journeyman.core.disruption import disruption_events, disruption_metrics
from journeyman.core.disruption.commands import (
    EXECUTING,
    Command,
    Decision,
    disrupted_candidates,
    existing_candidates,
    missing_replacements,
    replacement_claims,
)
from journeyman.core.plan import (
    Action,
    Chain,
    CreateObject,
    DeleteObject,
    Event,
    LaunchInstance,
    ObjectRef,
    Observation,
    PatchObject,
    Plan,
    Requeue,
    Step,
    chain_of,
    claim_ref,
    next_requeue,
)
from journeyman.core.scheduling.nodeclaim_templates import to_node_claim
from journeyman.core.scheduling.results import PlannedClaim
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.condition_transitions import with_transitions
from journeyman.core.state.disrupted_taint import add_disrupted_taint, remove_disrupted_taint

# karpenter pkg/controllers/disruption/queue.go: 80 ms for each candidate, within 10 min and 1 h
TIMEOUT_PER_CANDIDATE: Final = timedelta(milliseconds=80)
MIN_TIMEOUT: Final = timedelta(minutes=10)
MAX_TIMEOUT: Final = timedelta(hours=1)

MAX_DRAIN_POLL: Final = timedelta(minutes=1)


def start_command(disruption: NodeDisruption, command: Command, snapshot: Snapshot, poll: timedelta) -> Plan:
    """Start a command that was validated in this run.

    Args:
        disruption: The proposal.
        command: The command as validation computed it: candidates (maybe fewer than proposed) and replacements.
        snapshot: The cluster.
        poll: When to requeue.

    Restates: karpenter pkg/controllers/disruption/queue.go `StartCommand`.
    """
    now = snapshot.now
    nodes = [snapshot.state_nodes_by_claim[c.nodeclaim] for c in command.candidates]
    names = [replacement.name for replacement in disruption.spec.replacements]
    actions: list[Action] = [action for node in nodes for action in _set_disruption_reason(node, disruption, now)]
    actions.append(_set_phase(disruption, EXECUTING, "validated", now))
    for name, planned in zip(names, command.replacements, strict=True):
        body = _replacement(name, planned, disruption, snapshot)
        actions.append(CreateObject(resource=NODECLAIM, body=body, why=disruption.spec.explanation))
    actions += _add_taints(nodes, disruption)
    launches = tuple(
        chain_of(f"NodeClaim {name}", LaunchInstance(claim=name, why=f"replacement for {disruption.metadata.name}"))
        for name in names
    )
    events: tuple[Event, ...] = tuple(disruption_events.launching(disruption, name) for name in names)
    observations = [
        *disruption_metrics.command_started(disruption),
        *(disruption_metrics.replacement_created(c.node_pool, disruption) for c in command.replacements),
    ]
    if command.decision is Decision.DELETE:
        deletion = _delete_candidates(disruption, nodes, snapshot)
        actions += deletion.actions
        events += deletion.events
        observations += deletion.observations
    else:
        actions.append(Requeue(step=Step.PROVISION, at=now, reason=f"replacements of {disruption.metadata.name} start"))
    actions.append(_requeue(disruption, next_requeue(now, poll)))
    chain = Chain(subject=_subject(disruption), actions=tuple(actions), events=events, observations=tuple(observations))
    chain = _with_transitions(chain, nodes, disruption, now)
    return Plan(chains=(chain, *launches), notes=(f"disrupting node(s): {disruption.spec.explanation}",))


def reject_command(disruption: NodeDisruption, why: str, snapshot: Snapshot) -> Plan:
    """End a proposal that failed validation, and remove taints and conditions of a start that was cut off."""
    events = tuple(
        event
        for name in disruption.claims
        if disruption_metrics.consolidation_type(disruption)
        if (node := snapshot.state_nodes_by_claim.get(name)) is not None
        for event in disruption_events.consolidation_rejected(node.object_refs, disruption.spec.explanation, why)
    )
    ended = _finish(disruption, "Rejected", why, disrupted_candidates(disruption, snapshot), snapshot.now)
    return Plan(observations=(disruption_metrics.failed_validation(disruption),), events=events) + ended


def wait_or_terminate(disruption: NodeDisruption, snapshot: Snapshot, poll: timedelta) -> Plan:
    """Continue an executing command: wait for its replacements, then delete its candidates, or roll it back.

    Args:
        disruption: The command; `status.phase` is Executing.
        snapshot: The cluster.
        poll: How soon to requeue while it waits.

    Restates: karpenter pkg/controllers/disruption/queue.go `waitOrTerminate`.
    """
    nodes = disrupted_candidates(disruption, snapshot)
    remaining = [n for n in nodes if not n.is_terminating]
    if not nodes:
        return _without_candidates(disruption, snapshot)
    if not remaining:
        at = _drain_requeue_at(disruption, snapshot.now, poll)
        return Plan(chains=(chain_of(_subject(disruption), _requeue(disruption, at)),))
    if lost := missing_replacements(disruption, snapshot):
        return _roll_back(disruption, f"replacement {', '.join(lost)} no longer exists", remaining, snapshot)
    waiting = [c for c in replacement_claims(disruption, snapshot) if not is_true(c.status.conditions, INITIALIZED)]
    if not waiting:
        deletion = _delete_candidates(disruption, remaining, snapshot)
        again = chain_of(_subject(disruption), _requeue(disruption, next_requeue(snapshot.now, poll)))
        note = f"replacements are initialized, terminating: {disruption.spec.explanation}"
        return Plan(chains=(deletion, again), notes=(note,))
    if snapshot.now >= deadline(disruption):
        return _roll_back(disruption, "the replacements were not initialized in time", remaining, snapshot)
    actions = (*_add_taints(remaining, disruption), _requeue(disruption, next_requeue(snapshot.now, poll)))
    events = tuple(disruption_events.waiting_on_readiness(c) for c in waiting)
    return Plan(chains=(chain_of(_subject(disruption), *actions),), events=events)


def deadline(disruption: NodeDisruption) -> datetime:
    """Return when an executing command is rolled back if its replacements are not initialized."""
    timeout = TIMEOUT_PER_CANDIDATE * len(disruption.spec.candidates)
    return _started_at(disruption) + min(max(timeout, MIN_TIMEOUT), MAX_TIMEOUT)


def undo_disruption(node: StateNode, why: str, now: datetime) -> tuple[Action, ...]:
    """Return the actions that remove the DisruptionReason condition and the taint; none if the node has neither."""
    actions: list[Action] = []
    if node.claim is not None and any(c.type == DISRUPTION_REASON for c in node.conditions):
        cleared = ConditionSet.of_claim(node.claim, now).clear(DISRUPTION_REASON)
        actions.append(_conditions_patch(node.claim, cleared, why))
    if node.node is not None and (patch := remove_disrupted_taint(node.node, why)) is not None:
        actions.append(patch)
    return tuple(actions)


def _without_candidates(disruption: NodeDisruption, snapshot: Snapshot) -> Plan:
    """Finish a command of which no candidate has the condition: all are removed, or a run died during its rollback.

    A replace command starts with all of its candidates, so a candidate that exists without the condition was rolled back.
    """
    existing = existing_candidates(disruption, snapshot) if disruption.spec.replacements else ()
    if existing:
        return _roll_back(disruption, "its candidates are no longer marked as disrupted", existing, snapshot)
    return _finish(disruption, "Succeeded", "all candidates are deleted", (), snapshot.now)


def _delete_candidates(disruption: NodeDisruption, nodes: Iterable[StateNode], snapshot: Snapshot) -> Chain:
    """Delete the candidates' NodeClaims at the version read, which fails if the command was rolled back meanwhile."""
    actions: list[Action] = []
    events: list[Event] = []
    observations: list[Observation] = []
    for node in nodes:
        assert node.claim is not None  # noqa: S101 - candidates have one
        meta = node.claim.metadata
        explanation, version = disruption.spec.explanation, meta.resource_version
        actions.append(DeleteObject(ref=claim_ref(node.claim), why=explanation, resource_version=version))
        events += disruption_events.terminating(node.object_refs, disruption.spec.reason)
        pods = next(len(c.pods) for c in disruption.spec.candidates if c.node_claim == meta.name)
        pool = snapshot.node_pools_by_name.get(node.node_pool)
        observations += disruption_metrics.nodeclaim_disrupted(disruption, node.claim, pool, pods)
    actions.append(Requeue(step=Step.TERMINATE, at=snapshot.now, reason=disruption.metadata.name))
    return Chain(
        subject=_subject(disruption), actions=tuple(actions), events=tuple(events), observations=tuple(observations)
    )


def _roll_back(disruption: NodeDisruption, why: str, nodes: Iterable[StateNode], snapshot: Snapshot) -> Plan:
    """Roll back; existing replacements stay, and are consolidated like any other empty node."""
    plan = Plan(observations=(disruption_metrics.queue_failure(disruption),))
    return plan + _finish(disruption, "RolledBack", why, nodes, snapshot.now)


def _finish(disruption: NodeDisruption, phase: str, why: str, nodes: Iterable[StateNode], now: datetime) -> Plan:
    """Remove taints and conditions of `nodes` before the phase is written, so that a run that is cut off is repeated."""
    actions = [action for node in nodes if not node.is_terminating for action in undo_disruption(node, why, now)]
    actions.append(_set_phase(disruption, phase, why, now))
    actions.append(Requeue(step=Step.CONSOLIDATE, at=now, reason=f"{disruption.metadata.name}: {phase}"))
    note = f"{disruption.metadata.name} {phase}: {why}"
    return Plan(chains=(chain_of(_subject(disruption), *actions),), notes=(note,))


# -- objects and patches ----------------------------------------------------------------------------------------------


def _replacement(name: str, planned: PlannedClaim, disruption: NodeDisruption, snapshot: Snapshot) -> Mapping[str, Any]:
    """Return the replacement NodeClaim with our finalizer, as it has no instance yet, and the name of its NodeDisruption."""
    pool = snapshot.node_pools_by_name[planned.node_pool]
    body = to_node_claim(planned, pool, name=name, hash=node_pool_hash(pool), hash_version=NODEPOOL_HASH_VERSION)
    metadata = body["metadata"]
    annotations = {**metadata["annotations"], labels.DISRUPTION: disruption.metadata.name}
    return {
        **body,
        "metadata": {**metadata, "annotations": annotations, "finalizers": [labels.TERMINATION_FINALIZER]},
    }


def _set_disruption_reason(node: StateNode, disruption: NodeDisruption, now: datetime) -> Iterator[Action]:
    assert node.claim is not None  # noqa: S101 - candidates have one
    after = _with_disruption_reason(node.claim, disruption, now)
    if after.changed_from(node.claim.status.conditions):
        yield _conditions_patch(node.claim, after, disruption.spec.explanation)


def _with_disruption_reason(claim: NodeClaim, disruption: NodeDisruption, now: datetime) -> ConditionSet:
    reason = disruption.spec.reason
    return ConditionSet.of_claim(claim, now).set_true(DISRUPTION_REASON, now, reason, reason)


def _with_transitions(chain: Chain, nodes: Iterable[StateNode], disruption: NodeDisruption, now: datetime) -> Chain:
    """Return the chain with the Events and metrics of the conditions that it changes."""
    for claim in (node.claim for node in nodes if node.claim is not None):
        after = _with_disruption_reason(claim, disruption, now)
        chain = with_transitions(
            chain, claim_ref(claim), claim.metadata.labels, claim.status.conditions, after.conditions
        )
    return chain


def _add_taints(nodes: Iterable[StateNode], disruption: NodeDisruption) -> Iterator[Action]:
    for node in nodes:
        if node.node is not None and (patch := add_disrupted_taint(node.node, disruption.spec.explanation)) is not None:
            yield patch


def _conditions_patch(claim: NodeClaim, conditions: ConditionSet, why: str) -> PatchObject:
    return PatchObject(
        ref=claim_ref(claim),
        patch={"status": {"conditions": conditions.to_wire()}},
        why=why,
        resource_version=claim.metadata.resource_version,
        subresource="status",
    )


def _set_phase(disruption: NodeDisruption, phase: str, message: str, now: datetime) -> PatchObject:
    """Return the patch that writes the phase, its time, and one more message."""
    stamp = format_time(now)
    status: dict[str, Any] = {
        "phase": phase,
        "messages": [*disruption.status.messages, f"{stamp} {phase}: {message}"[:4096]][-100:],
        "startedAt" if phase == EXECUTING else "finishedAt": stamp,
    }
    return PatchObject(
        ref=ObjectRef(resource=NODE_DISRUPTION, name=disruption.metadata.name, uid=disruption.metadata.uid),
        patch={"status": status},
        why=message,
        resource_version=disruption.metadata.resource_version,
        subresource="status",
    )


def _started_at(disruption: NodeDisruption) -> datetime:
    started = disruption.status.started_at or disruption.since
    assert started is not None  # noqa: S101 - every NodeDisruption on the API server has a creation time
    return started


def _drain_requeue_at(disruption: NodeDisruption, now: datetime, poll: timedelta) -> datetime:
    """Return when to check a drain again, which the terminate step does: ever more rarely, at least once a minute."""
    return next_requeue(now, min(max((now - _started_at(disruption)) / 10, poll), MAX_DRAIN_POLL))


def _requeue(disruption: NodeDisruption, at: datetime) -> Requeue:
    return Requeue(step=Step.CONSOLIDATE, at=at, reason=f"{disruption.metadata.name} is in progress")


def _subject(disruption: NodeDisruption) -> str:
    return f"NodeDisruption {disruption.metadata.name}"
