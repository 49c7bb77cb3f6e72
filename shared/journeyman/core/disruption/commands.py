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
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any, Final

from journeyman.core.api import labels
from journeyman.core.api.conditions import DISRUPTION_REASON, INITIALIZED, ConditionSet, format_time
from journeyman.core.api.node_disruption import (
    DisruptionCandidate,
    DisruptionReplacement,
    Method,
    NodeDisruption,
    NodeDisruptionSpec,
    price_text,
)
from journeyman.core.api.objects import NODE_DISRUPTION, NODECLAIM, NodeClaim, ObjectMeta, is_true
from journeyman.core.disruption import explain
from journeyman.core.disruption.types import Candidate, Command, Decision
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
    Step,
    Wake,
    one,
)
from journeyman.core.scheduling.claims import to_node_claim
from journeyman.core.scheduling.results import PlannedClaim
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.cordon import cordon, uncordon

PROPOSED: Final = "Proposed"
EXECUTING: Final = "Executing"

# karpenter pkg/controllers/disruption/queue.go: 80 ms for each candidate, within 10 min and 1 h
TIMEOUT_PER_CANDIDATE: Final = timedelta(milliseconds=80)
SHORTEST_TIMEOUT: Final = timedelta(minutes=10)
LONGEST_TIMEOUT: Final = timedelta(hours=1)

MAX_PODS_NAMED: Final = 1000  # of one candidate, as the CRD allows


def active(snapshot: Snapshot) -> tuple[NodeDisruption, ...]:
    """Commands that have not ended, by name."""
    return tuple(d for d in snapshot.node_disruptions if not d.finished)


def under_way(snapshot: Snapshot) -> frozenset[str]:
    """Claims that some active command names: they are no candidates of another."""
    return frozenset(name for d in active(snapshot) for name in d.claims)


def marked_for_deletion(snapshot: Snapshot) -> frozenset[str]:
    """Claims that are as good as deleted: taken by an Executing command whose replacements all exist.

    Not before: pods of marked nodes are planned for, and without the replacements they would get nodes twice.
    """
    ready = (d for d in active(snapshot) if d.status.phase == EXECUTING and not _missing(d, snapshot))
    return frozenset(n.claim.metadata.name for d in ready for n in taken(d, snapshot) if n.claim is not None)


def taken(disruption: NodeDisruption, snapshot: Snapshot) -> tuple[StateNode, ...]:
    """The candidates that the command has marked as its own and that still exist."""
    nodes = (snapshot.state_nodes_by_claim.get(c.node_claim) for c in disruption.spec.candidates)
    uids = {c.node_claim: c.node_claim_uid for c in disruption.spec.candidates}
    return tuple(
        n
        for n in nodes
        if n is not None
        and n.claim is not None
        and n.claim.metadata.uid == uids[n.claim.metadata.name]
        and is_true(n.conditions, DISRUPTION_REASON)
    )


def propose(command: Command, method: Method, now: datetime) -> NodeDisruption:
    """The NodeDisruption that states a command. Its name follows from the reason, the candidates and the time."""
    seed = " ".join((command.reason.value, *(c.nodeclaim_uid for c in command.candidates), now.isoformat()))
    digest = blake2b(seed.encode(), digest_size=5).hexdigest()
    name = f"{command.reason.value.lower()}-{digest}"
    spec = NodeDisruptionSpec(
        reason=command.reason.value,
        decision="replace" if command.decision is Decision.REPLACE else "delete",
        method=method,
        candidates=tuple(_stated(c) for c in command.candidates),
        replacements=tuple(
            DisruptionReplacement(
                name=replacement_name(name, claim.node_pool, index),
                instance_type=claim.offering[0],
                zone=claim.offering[1],
                capacity_type=claim.offering[2],
                price=price_text(claim.price),
            )
            for index, claim in enumerate(command.replacements)
        ),
        saving_per_hour=price_text(command.saving),
        created_at=now,
    )
    stated = NodeDisruption(metadata=ObjectMeta(name=name), spec=spec)
    explanation = explain.in_words(stated)
    return stated.model_copy(update={"spec": spec.model_copy(update={"explanation": explanation})})


def replacement_name(disruption: str, node_pool: str, index: int) -> str:
    """A replacement's NodeClaim name: its pool, and the digest in the disruption's name."""
    return f"{node_pool}-{disruption.rsplit('-', 1)[-1]}{index or ''}"


def proposal_plan(disruption: NodeDisruption, command: Command, validate_at: datetime) -> Plan:
    """Write the intent down, and look at it again at `validate_at`."""
    body = disruption.to_wire()
    create = CreateObject(resource=NODE_DISRUPTION, body=body, why=disruption.spec.explanation)
    wake = Wake(step=Step.CONSOLIDATE, at=validate_at, reason=f"validate {disruption.metadata.name}")
    events = tuple(
        event
        for c in command.candidates
        for event in explain.about(c, "ConsolidationCandidate", f"Proposed: {disruption.spec.explanation}")
    )
    chain = Chain(subject=_subject(disruption), actions=(create, wake), events=events)
    return Plan(chains=(chain,), notes=(f"proposed: {disruption.spec.explanation}",))


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
    actions: list[Action] = [action for node in nodes for action in _mark(node, disruption, now)]
    actions.append(_phase(disruption, EXECUTING, "validated", now))
    for name, planned in zip(names, command.replacements, strict=True):
        body = _replacement(name, planned, disruption, snapshot)
        actions.append(CreateObject(resource=NODECLAIM, body=body, why=disruption.spec.explanation))
    actions += _cordons(nodes, disruption)
    actions += [LaunchInstance(claim=name, why=f"replacement for {disruption.metadata.name}") for name in names]
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
        actions.append(Wake(step=Step.PROVISION, at=now, reason=f"replacements of {disruption.metadata.name} start"))
    actions.append(_look_again(disruption, now + poll))
    chain = Chain(subject=_subject(disruption), actions=tuple(actions), events=events, observations=tuple(observations))
    return Plan(chains=(chain,), notes=(f"disrupting node(s): {disruption.spec.explanation}",))


def reject(disruption: NodeDisruption, why: str, snapshot: Snapshot) -> Plan:
    """End a proposal that no longer holds; marks that an interrupted start may have left are taken off."""
    events = tuple(
        Event(ref=ref, reason="ConsolidationRejected", message=f"{disruption.spec.explanation}: {why}")
        for name in disruption.claims
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
        return _ended(disruption, "Succeeded", "all candidates are gone", (), snapshot.now)
    if not staying:
        return Plan(chains=(one(_subject(disruption), _look_again(disruption, snapshot.now + poll)),))
    if lost := _missing(disruption, snapshot):
        return _roll_back(disruption, f"replacement {', '.join(lost)} is gone", staying, snapshot)
    waiting = [c for c in _replacements(disruption, snapshot) if not is_true(c.status.conditions, INITIALIZED)]
    if not waiting:
        chain = _deletion(disruption, staying, snapshot)
        again = one(_subject(disruption), _look_again(disruption, snapshot.now + poll))
        return Plan(
            chains=(chain, again), notes=(f"replacements are ready, terminating: {disruption.spec.explanation}",)
        )
    if snapshot.now >= deadline(disruption):
        return _roll_back(disruption, "the replacements were not ready in time", staying, snapshot)
    return _await(disruption, waiting, staying, snapshot.now + poll)


def deadline(disruption: NodeDisruption) -> datetime:
    """When an Executing command is given up if its replacements are not initialized."""
    started = disruption.status.started_at or disruption.since
    assert started is not None  # noqa: S101 - every NodeDisruption on the API server has a creation time
    timeout = TIMEOUT_PER_CANDIDATE * len(disruption.spec.candidates)
    return started + min(max(timeout, SHORTEST_TIMEOUT), LONGEST_TIMEOUT)


def unmark(node: StateNode, why: str, now: datetime) -> tuple[Action, ...]:
    """Take the DisruptionReason condition and the taint off again; nothing if neither is there."""
    actions: list[Action] = []
    if node.claim is not None and any(c.type == DISRUPTION_REASON for c in node.conditions):
        cleared = ConditionSet.of_claim(node.claim, now).clear(DISRUPTION_REASON)
        actions.append(_conditions(node.claim, cleared, why))
    if node.node is not None and (patch := uncordon(node.node, why)) is not None:
        actions.append(patch)
    return tuple(actions)


def _stated(candidate: Candidate) -> DisruptionCandidate:
    return DisruptionCandidate(
        node_claim=candidate.nodeclaim,
        node_claim_uid=candidate.nodeclaim_uid,
        node=candidate.node,
        node_pool=candidate.nodepool,
        instance_type=candidate.instance_type,
        zone=candidate.zone,
        capacity_type=candidate.capacity_type,
        price=price_text(candidate.price),
        pods=candidate.reschedulable_pods[:MAX_PODS_NAMED],
    )


def _mark(node: StateNode, disruption: NodeDisruption, now: datetime) -> Iterator[Action]:
    """The condition that makes the candidate this command's own."""
    assert node.claim is not None  # noqa: S101 - candidates have one
    reason = disruption.spec.reason
    after = ConditionSet.of_claim(node.claim, now).set_true(DISRUPTION_REASON, now, reason, reason)
    if after.changed_from(node.claim.status.conditions):
        yield _conditions(node.claim, after, disruption.spec.explanation)


def _cordons(nodes: Iterable[StateNode], disruption: NodeDisruption) -> Iterator[Action]:
    """The taint for every node that lacks it."""
    for node in nodes:
        if node.node is not None and (patch := cordon(node.node, disruption.spec.explanation)) is not None:
            yield patch


def _conditions(claim: NodeClaim, conditions: ConditionSet, why: str) -> PatchObject:
    return PatchObject(
        ref=ObjectRef(resource=NODECLAIM, name=claim.metadata.name, uid=claim.metadata.uid),
        patch={"status": {"conditions": conditions.to_wire()}},
        why=why,
        resource_version=claim.metadata.resource_version,
        subresource="status",
    )


def _deletion(disruption: NodeDisruption, nodes: Iterable[StateNode], snapshot: Snapshot) -> Chain:
    """Delete the candidates' claims and let the terminate step drain them."""
    actions: list[Action] = []
    events: list[Event] = []
    observations: list[Observation] = []
    for node in nodes:
        assert node.claim is not None  # noqa: S101 - candidates have one
        ref = ObjectRef(resource=NODECLAIM, name=node.claim.metadata.name, uid=node.claim.metadata.uid)
        actions.append(DeleteObject(ref=ref, why=disruption.spec.explanation))
        message = f"Disrupting node: {disruption.spec.reason}"
        events += [Event(ref=r, reason="DisruptionTerminating", message=message) for r in explain.refs(node)]
        pods = next(len(c.pods) for c in disruption.spec.candidates if c.node_claim == node.claim.metadata.name)
        pool = snapshot.node_pools_by_name.get(node.node_pool)
        observations += explain.disrupted(disruption, node.claim, pool, pods)
    actions.append(Wake(step=Step.TERMINATE, at=snapshot.now, reason=disruption.metadata.name))
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
    actions.append(_phase(disruption, phase, why, now))
    actions.append(Wake(step=Step.CONSOLIDATE, at=now, reason=f"{disruption.metadata.name}: {phase}"))
    note = f"{disruption.metadata.name} {phase}: {why}"
    return Plan(chains=(one(_subject(disruption), *actions),), notes=(note,))


def _phase(disruption: NodeDisruption, phase: str, message: str, now: datetime) -> PatchObject:
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


def _missing(disruption: NodeDisruption, snapshot: Snapshot) -> tuple[str, ...]:
    """Replacements that do not exist, or are on their way out."""
    claims = snapshot.claims_by_name
    names = (r.name for r in disruption.spec.replacements)
    return tuple(n for n in names if n not in claims or claims[n].metadata.deletion_timestamp is not None)


def _replacements(disruption: NodeDisruption, snapshot: Snapshot) -> tuple[NodeClaim, ...]:
    return tuple(snapshot.claims_by_name[r.name] for r in disruption.spec.replacements)


def _replacement(name: str, planned: PlannedClaim, disruption: NodeDisruption, snapshot: Snapshot) -> Mapping[str, Any]:
    """The NodeClaim to open: it has the finalizer before it has an instance, and names the command it belongs to."""
    pool = snapshot.node_pools_by_name[planned.node_pool]
    marks = pool.metadata.annotations
    body = to_node_claim(
        planned,
        pool,
        name=name,
        hash=marks.get(labels.NODEPOOL_HASH, ""),
        hash_version=marks.get(labels.NODEPOOL_HASH_VERSION, ""),
    )
    metadata = body["metadata"]
    annotations = {**metadata["annotations"], labels.DISRUPTION: disruption.metadata.name}
    return {
        **body,
        "metadata": {**metadata, "annotations": annotations, "finalizers": [labels.TERMINATION_FINALIZER]},
    }


def _launching(disruption: NodeDisruption, name: str) -> Event:
    ref = ObjectRef(resource=NODECLAIM, name=name)
    return Event(ref=ref, reason="DisruptionLaunching", message=f"Launching NodeClaim: {disruption.spec.reason}")


def _await(disruption: NodeDisruption, waiting: Iterable[NodeClaim], nodes: Iterable[StateNode], at: datetime) -> Plan:
    events = tuple(
        Event(
            ref=ObjectRef(resource=NODECLAIM, name=c.metadata.name, uid=c.metadata.uid),
            reason="DisruptionWaitingReadiness",
            message="Waiting on readiness to continue disruption",
        )
        for c in waiting
    )
    actions = (*_cordons(nodes, disruption), _look_again(disruption, at))
    return Plan(chains=(one(_subject(disruption), *actions),), events=events)


def _look_again(disruption: NodeDisruption, at: datetime) -> Wake:
    return Wake(step=Step.CONSOLIDATE, at=at, reason=f"{disruption.metadata.name} is under way")


def _subject(disruption: NodeDisruption) -> str:
    return f"NodeDisruption {disruption.metadata.name}"
