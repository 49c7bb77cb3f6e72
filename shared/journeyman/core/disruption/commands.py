"""Commands: how a decision to give nodes back is carried out, run after run, from what is written in the cluster.

::

    propose   NodeDisruption is created            Proposed    (nothing else is touched)
       │ ≥ 15 s later, if it still holds (validation)            └─ no longer holds ─► Rejected
    execute   DisruptionReason on the candidates
              phase is written                     Executing
              replacements are created,                          └─ one dies, or 10 min pass ─► RolledBack
              candidates tainted, replacements launched             (taint and condition taken off again)
       │ all replacements initialized
    advance   candidates' NodeClaims are deleted; the terminate step drains them
       │ all of them gone
                                                   Succeeded

Which candidates a command really took is said by the DisruptionReason condition on their claims, so that a command
that lost some of its candidates during validation knows it in every later run. A run that dies between any two writes
leaves a state that the next one finishes or undoes: a command still Proposed is validated again, an Executing one
without its replacements is rolled back, a taint that is missing is put on.

Restates: karpenter pkg/controllers/disruption/queue.go `StartCommand`, `waitOrTerminate`, `CompleteCommand`.
Differs: the queue is the NodeDisruption objects, so a restart forgets nothing. A delete command deletes at once. The
replacements exist before the taints, because a taint tells the provisioner that the pods on the node need another
place: without them it would launch one. All writes of a start are one chain; what a conflict stops, the next run does.
A launch that fails drops its claim, which the next run sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from journeyman.core.api import labels
from journeyman.core.api.conditions import INITIALIZED
from journeyman.core.api.hashes import NODEPOOL_HASH_VERSION, node_pool_hash
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.objects import NODECLAIM, NodeClaim, is_true
from journeyman.core.disruption import explain
from journeyman.core.disruption.in_flight import EXECUTING, missing, replacements, still_there, taken
from journeyman.core.disruption.marks import cordons, mark, set_phase, told_of_marks, unmark
from journeyman.core.disruption.types import Command, Decision
from journeyman.core.plan import (
    Action,
    Chain,
    CreateObject,
    DeleteObject,
    Event,
    LaunchInstance,
    ObjectRef,
    Observation,
    Plan,
    Requeue,
    Step,
    chain_of,
    next_requeue,
)
from journeyman.core.scheduling.claims import to_node_claim
from journeyman.core.scheduling.results import PlannedClaim
from journeyman.core.state import Snapshot, StateNode

# karpenter pkg/controllers/disruption/queue.go: 80 ms for each candidate, within 10 min and 1 h
TIMEOUT_PER_CANDIDATE: Final = timedelta(milliseconds=80)
SHORTEST_TIMEOUT: Final = timedelta(minutes=10)
LONGEST_TIMEOUT: Final = timedelta(hours=1)

SLOWEST_LOOK: Final = timedelta(minutes=1)


def execute(
    disruption: NodeDisruption,
    command: Command,
    snapshot: Snapshot,
    poll: timedelta,
) -> Plan:
    """Begin a command that was validated just now.

    Args:
        disruption: The proposal.
        command: The command as validation found it: the candidates to take (maybe fewer than were proposed) and the
            replacements to open.
        snapshot: The cluster.
        poll: When to look again.
    """
    now = snapshot.now
    nodes = [snapshot.state_nodes_by_claim[c.nodeclaim] for c in command.candidates]
    names = [stated.name for stated in disruption.spec.replacements]
    actions: list[Action] = [action for node in nodes for action in mark(node, disruption, now)]
    actions.append(set_phase(disruption, EXECUTING, "validated", now))
    for name, planned in zip(names, command.replacements, strict=True):
        body = _replacement(name, planned, disruption, snapshot)
        actions.append(CreateObject(resource=NODECLAIM, body=body, why=disruption.spec.explanation))
    actions += cordons(nodes, disruption)
    launches = tuple(
        chain_of(f"NodeClaim {name}", LaunchInstance(claim=name, why=f"replacement for {disruption.metadata.name}"))
        for name in names
    )
    events: tuple[Event, ...] = tuple(_launching(disruption, name) for name in names)
    observations = [
        *explain.decided(disruption),
        *(explain.created(c.node_pool, disruption) for c in command.replacements),
    ]
    if command.decision is Decision.DELETE:
        deletion = _deletion(disruption, nodes, snapshot)
        actions += deletion.actions
        events += deletion.events
        observations += deletion.observations
    else:
        actions.append(Requeue(step=Step.PROVISION, at=now, reason=f"replacements of {disruption.metadata.name} start"))
    actions.append(_look_again(disruption, next_requeue(now, poll)))
    chain = Chain(subject=_subject(disruption), actions=tuple(actions), events=events, observations=tuple(observations))
    chain = told_of_marks(chain, nodes, disruption, now)
    return Plan(chains=(chain, *launches), notes=(f"disrupting node(s): {disruption.spec.explanation}",))


def reject(disruption: NodeDisruption, why: str, snapshot: Snapshot) -> Plan:
    """End a proposal that no longer holds; marks that an interrupted start may have left are taken off."""
    told = f"Consolidation rejected: {disruption.spec.explanation}, reason: {why}"
    events = tuple(
        Event(ref=ref, reason="ConsolidationRejected", message=told, key=told)
        for name in disruption.claims
        if explain.consolidation_type(disruption)
        if (node := snapshot.state_nodes_by_claim.get(name)) is not None
        for ref in explain.refs(node)
    )
    ended = _ended(disruption, "Rejected", why, taken(disruption, snapshot), snapshot.now)
    plan = Plan(observations=(explain.failed_validation(disruption),), events=events)
    return plan + ended


def advance(disruption: NodeDisruption, snapshot: Snapshot, poll: timedelta) -> Plan:
    """Move an Executing command on as far as it gets now.

    Args:
        disruption: The command; `status.phase` is Executing.
        snapshot: The cluster.
        poll: How soon to look again while something is awaited.
    """
    nodes = taken(disruption, snapshot)
    staying = [n for n in nodes if not n.deleting]
    if not nodes:
        return _without_candidates(disruption, snapshot)
    if not staying:
        return Plan(
            chains=(
                chain_of(_subject(disruption), _look_again(disruption, _drain_look(disruption, snapshot.now, poll))),
            )
        )
    if lost := missing(disruption, snapshot):
        return _roll_back(disruption, f"replacement {', '.join(lost)} is gone", staying, snapshot)
    waiting = [c for c in replacements(disruption, snapshot) if not is_true(c.status.conditions, INITIALIZED)]
    if not waiting:
        chain = _deletion(disruption, staying, snapshot)
        again = chain_of(_subject(disruption), _look_again(disruption, next_requeue(snapshot.now, poll)))
        return Plan(
            chains=(chain, again), notes=(f"replacements are ready, terminating: {disruption.spec.explanation}",)
        )
    if snapshot.now >= deadline(disruption):
        return _roll_back(disruption, "the replacements were not ready in time", staying, snapshot)
    return _await(disruption, waiting, staying, next_requeue(snapshot.now, poll))


def _without_candidates(disruption: NodeDisruption, snapshot: Snapshot) -> Plan:
    """All are gone; or, since a replace command takes all of its candidates, a roll-back was cut off half-way."""
    standing = still_there(disruption, snapshot) if disruption.spec.replacements else ()
    if standing:
        return _roll_back(disruption, "its candidates are not marked any more", standing, snapshot)
    return _ended(disruption, "Succeeded", "all candidates are gone", (), snapshot.now)


def deadline(disruption: NodeDisruption) -> datetime:
    """When an Executing command is given up if its replacements are not initialized."""
    timeout = TIMEOUT_PER_CANDIDATE * len(disruption.spec.candidates)
    return _started(disruption) + min(max(timeout, SHORTEST_TIMEOUT), LONGEST_TIMEOUT)


def _replacement(name: str, planned: PlannedClaim, disruption: NodeDisruption, snapshot: Snapshot) -> Mapping[str, Any]:
    """The NodeClaim to open: it has the finalizer before it has an instance, and names the command it belongs to."""
    pool = snapshot.node_pools_by_name[planned.node_pool]
    body = to_node_claim(planned, pool, name=name, hash=node_pool_hash(pool), hash_version=NODEPOOL_HASH_VERSION)
    metadata = body["metadata"]
    annotations = {**metadata["annotations"], labels.DISRUPTION: disruption.metadata.name}
    return {
        **body,
        "metadata": {**metadata, "annotations": annotations, "finalizers": [labels.TERMINATION_FINALIZER]},
    }


def _launching(disruption: NodeDisruption, name: str) -> Event:
    ref = ObjectRef(resource=NODECLAIM, name=name)
    reason = disruption.spec.reason
    return Event(ref=ref, reason="DisruptionLaunching", message=f"Launching NodeClaim: {reason}", key=reason)


def _await(disruption: NodeDisruption, waiting: Iterable[NodeClaim], nodes: Iterable[StateNode], at: datetime) -> Plan:
    events = tuple(
        Event(
            ref=ObjectRef(resource=NODECLAIM, name=c.metadata.name, uid=c.metadata.uid),
            reason="DisruptionWaitingReadiness",
            message="Waiting on readiness to continue disruption",
        )
        for c in waiting
    )
    actions = (*cordons(nodes, disruption), _look_again(disruption, at))
    return Plan(chains=(chain_of(_subject(disruption), *actions),), events=events)


def _deletion(disruption: NodeDisruption, nodes: Iterable[StateNode], snapshot: Snapshot) -> Chain:
    """Delete the candidates' claims and let the terminate step drain them.

    As they are now, taken by this command: one that was let go meanwhile, or taken by another, has changed.
    """
    actions: list[Action] = []
    events: list[Event] = []
    observations: list[Observation] = []
    for node in nodes:
        assert node.claim is not None  # noqa: S101 - candidates have one
        ref = ObjectRef(resource=NODECLAIM, name=node.claim.metadata.name, uid=node.claim.metadata.uid)
        actions.append(
            DeleteObject(
                ref=ref, why=disruption.spec.explanation, resource_version=node.claim.metadata.resource_version
            )
        )
        events += explain.terminating(explain.refs(node), disruption.spec.reason)
        pods = next(len(c.pods) for c in disruption.spec.candidates if c.node_claim == node.claim.metadata.name)
        pool = snapshot.node_pools_by_name.get(node.node_pool)
        observations += explain.disrupted(disruption, node.claim, pool, pods)
    actions.append(Requeue(step=Step.TERMINATE, at=snapshot.now, reason=disruption.metadata.name))
    return Chain(
        subject=_subject(disruption), actions=tuple(actions), events=tuple(events), observations=tuple(observations)
    )


def _roll_back(disruption: NodeDisruption, why: str, nodes: Iterable[StateNode], snapshot: Snapshot) -> Plan:
    """Replacements that exist are left: empty, they are consolidated like any other node."""
    plan = Plan(observations=(explain.queue_failure(disruption),))
    return plan + _ended(disruption, "RolledBack", why, nodes, snapshot.now)


def _ended(disruption: NodeDisruption, phase: str, why: str, unmarked: Iterable[StateNode], now: datetime) -> Plan:
    """Marks come off before the phase is written, so that a run cut off between the two comes back for the rest."""
    actions = [action for node in unmarked if not node.deleting for action in unmark(node, why, now)]
    actions.append(set_phase(disruption, phase, why, now))
    actions.append(Requeue(step=Step.CONSOLIDATE, at=now, reason=f"{disruption.metadata.name}: {phase}"))
    note = f"{disruption.metadata.name} {phase}: {why}"
    return Plan(chains=(chain_of(_subject(disruption), *actions),), notes=(note,))


def _started(disruption: NodeDisruption) -> datetime:
    started = disruption.status.started_at or disruption.since
    assert started is not None  # noqa: S101 - every NodeDisruption on the API server has a creation time
    return started


def _drain_look(disruption: NodeDisruption, now: datetime, poll: timedelta) -> datetime:
    """When to look again at a drain, which belongs to the terminate step: ever more rarely, at least once a minute."""
    return next_requeue(now, min(max((now - _started(disruption)) / 10, poll), SLOWEST_LOOK))


def _look_again(disruption: NodeDisruption, at: datetime) -> Requeue:
    return Requeue(step=Step.CONSOLIDATE, at=at, reason=f"{disruption.metadata.name} is under way")


def _subject(disruption: NodeDisruption) -> str:
    return f"NodeDisruption {disruption.metadata.name}"
