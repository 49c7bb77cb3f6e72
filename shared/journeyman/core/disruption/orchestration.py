"""Orchestration: how a disruption command is executed over several runs, from its state in the cluster.

::

    propose          NodeDisruption is created            Proposed    (no node is touched; its budget is reserved)
       │ ≥ 15 s later, if validation succeeds                ├─ validation fails ─► Rejected
       │                                                     └─ no run for 10 min ─► Expired
    start_command    phase is written                     Validated
                     DisruptionReason on the candidates
                     replacements are created
                     phase is written                     Replacing
                     candidates are tainted                  └─ one is lost, or 10 min pass ─► RolledBack
                     replacements are launched                            (taint and condition are removed)
       │ all replacements initialized
    wait_or_terminate   phase is written                  Draining
                     the candidates' NodeClaims are deleted; the terminate step drains them
       │ all of them removed
                                                          Succeeded

The DisruptionReason condition says which candidates a command has started to disrupt, so that later runs know
which ones validation dropped. A run that crashes between two writes leaves a state that the next run finishes or rolls
back: a command that is Validated is validated again, unless all its replacements exist; one that is Replacing without
its replacements is rolled back; and a missing taint is added.

Restates: karpenter pkg/controllers/disruption/queue.go `StartCommand`, `waitOrTerminate`, `CompleteCommand`.
Differs: the queue is the NodeDisruption objects, so that it survives a restart. A delete command deletes at once. The
replacements are created before the taints, because the provisioner reschedules the pods of tainted nodes and would launch
nodes for them. All writes of a start are one chain; after a conflict the next run continues. A replacement whose launch
fails is deleted, which the next run sees. Karpenter's commands do not expire, and leave no history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from journeyman.core.api import labels
from journeyman.core.api.conditions import DISRUPTION_REASON, INITIALIZED, ConditionSet, format_time
from journeyman.core.api.duration import time_after
from journeyman.core.api.hashes import NODEPOOL_HASH_VERSION, node_pool_hash
from journeyman.core.api.node_disruption import LaunchedReplacement, NodeDisruption, UsedBudget, price_text
from journeyman.core.api.objects import NODE_DISRUPTION, NODECLAIM, NodeClaim, is_true
from journeyman.core.catalogue import Catalogue, price_of
from journeyman.core.disruption import disruption_events, disruption_metrics
from journeyman.core.disruption.budgets import BudgetStatus
from journeyman.core.disruption.candidates import NodePoolName
from journeyman.core.disruption.commands import (
    DRAINING,
    PROPOSED,
    REPLACING,
    VALIDATED,
    Command,
    Decision,
    disrupted_candidates,
    existing_candidates,
    missing_replacements,
    replacement_claims,
)
from journeyman.core.disruption.consolidation import LAUNCH_ORDER
from journeyman.core.plan import (
    Action,
    Chain,
    CreateObject,
    DeleteObject,
    Event,
    LaunchInstance,
    LogLine,
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
from journeyman.core.state.pod_predicates import is_reschedulable

# karpenter pkg/controllers/disruption/queue.go: 80 ms for each candidate, within 10 min and 1 h
TIMEOUT_PER_CANDIDATE: Final = timedelta(milliseconds=80)
MIN_TIMEOUT: Final = timedelta(minutes=10)
MAX_TIMEOUT: Final = timedelta(hours=1)

MAX_DRAIN_POLL: Final = timedelta(minutes=1)
MAX_TYPES_LOGGED: Final = 5

PROPOSAL_LIFETIME: Final = timedelta(minutes=10)
"""How long after it could have been validated a proposal reserves its budget. No run is that late unless something is broken."""


def start_command(
    disruption: NodeDisruption,
    command: Command,
    snapshot: Snapshot,
    poll: timedelta,
    budgets: Mapping[NodePoolName, BudgetStatus],
) -> Plan:
    """Start a command that was validated in this run.

    Args:
        disruption: The proposal.
        command: The command as validation computed it: candidates (maybe fewer than proposed) and replacements.
        snapshot: The cluster.
        poll: When to requeue.
        budgets: The NodePools' budgets without this command.

    Restates: karpenter pkg/controllers/disruption/queue.go `StartCommand`.
    """
    now = snapshot.now
    nodes = [snapshot.state_nodes_by_claim[c.nodeclaim] for c in command.candidates]
    names = [replacement.name for replacement in disruption.spec.replacements]
    validated, write_phase = _enter(
        disruption, VALIDATED, "validated", now, started_at=now, budgets=_used_budgets(command, budgets)
    )
    actions: list[Action] = [write_phase]
    actions += (action for node in nodes for action in _set_disruption_reason(node, disruption, now))
    for name, planned in zip(names, command.replacements, strict=True):
        body = _replacement(name, planned, disruption, snapshot)
        actions.append(CreateObject(resource=NODECLAIM, body=body, why=disruption.spec.explanation))
    launches = tuple(
        chain_of(f"NodeClaim {name}", LaunchInstance(claim=name, why=f"replacement for {disruption.metadata.name}"))
        for name in names
    )
    events: tuple[Event, ...] = tuple(disruption_events.launching(disruption, name) for name in names)
    dropped = len(disruption.spec.candidates) - len(command.candidates)
    observations = [
        *disruption_metrics.failed_validation(disruption, dropped),
        *disruption_metrics.command_started(disruption),
        *(disruption_metrics.replacement_created(c.node_pool, disruption) for c in command.replacements),
    ]
    if command.decision is Decision.DELETE:
        actions += _add_taints(nodes, disruption)
        drain = _drain_candidates(validated, nodes, (), snapshot)
        actions += drain.actions
        events += drain.events
        observations += drain.observations
    else:
        _, write_phase = _enter(validated, REPLACING, "the replacements are created", now)
        actions += (write_phase, *_add_taints(nodes, disruption))
        actions.append(Requeue(step=Step.PROVISION, at=now, reason=f"replacements of {disruption.metadata.name} start"))
    actions.append(_requeue(disruption, next_requeue(now, poll)))
    chain = Chain(subject=_subject(disruption), actions=tuple(actions), events=events, observations=tuple(observations))
    chain = _with_transitions(chain, nodes, disruption, now)
    return Plan(chains=(chain, *launches), logs=(_log_line(disruption, command),))


def _log_line(disruption: NodeDisruption, command: Command) -> LogLine:
    """Return the log line with the fields of Karpenter's; the ID is the name of the NodeDisruption.

    Restates: karpenter pkg/controllers/disruption/types.go `LogValues`.
    """
    nodes = ", ".join(c.node for c in command.candidates)
    count = len(command.replacements)
    disrupted = [
        {
            "Node": {"name": c.node},
            "NodeClaim": {"name": c.nodeclaim},
            "instance-type": c.instance_type,
            "capacity-type": c.capacity_type,
        }
        for c in command.candidates
    ]
    replacements: list[dict[str, str]] = [{"capacity-type": _capacity_type(r)} for r in command.replacements]
    if count == 1:
        types = command.replacements[0].instance_types
        more = f" and {len(types) - MAX_TYPES_LOGGED} other(s)" if len(types) > MAX_TYPES_LOGGED else ""
        replacements[0]["instance-types"] = ", ".join(types[:MAX_TYPES_LOGGED]) + more
    fields = {
        "command": f"{command.decision.value}: [{nodes}]{disruption_events.launched(count)}",
        "command-id": disruption.metadata.name,
        "reason": disruption.spec.reason,
        "decision": command.decision.value,
        "disrupted-node-count": len(disrupted),
        "replacement-node-count": count,
        "pod-count": sum(len(c.reschedulable_pods) for c in command.candidates),
        "disrupted-nodes": disrupted,
        "replacement-nodes": replacements,
    }
    message = "disrupting node(s)"
    return LogLine(level="info", message=message, fields=fields, note=f"{message}: {disruption.spec.explanation}")


def _capacity_type(planned: PlannedClaim) -> str:
    """Return the capacity type that the launch prefers among those that it may choose."""
    found = {value for r in planned.requirements if r.key == labels.CAPACITY_TYPE for value in r.values}
    return next((each for each in LAUNCH_ORDER if each in found), planned.offering.capacity_type)


def has_expired(disruption: NodeDisruption, due: datetime, now: datetime) -> bool:
    """Whether a proposal that could be validated at `due` has waited too long."""
    return disruption.status.phase == PROPOSED and now > time_after(due, PROPOSAL_LIFETIME)


def expire_command(disruption: NodeDisruption, snapshot: Snapshot) -> Plan:
    """End a proposal that no run validated in time, so that its nodes and its budget are free again."""
    why = f"no run validated it within {PROPOSAL_LIFETIME.total_seconds() / 60:.0f} minutes"
    return _finish(disruption, "Expired", why, disrupted_candidates(disruption, snapshot), snapshot.now)


def reject_command(disruption: NodeDisruption, why: str, snapshot: Snapshot) -> Plan:
    """End a command that failed validation: reject a proposal, or roll back a start that was cut off."""
    nodes = disrupted_candidates(disruption, snapshot)
    if disruption.status.phase != PROPOSED:
        return _roll_back(disruption, why, nodes, snapshot)
    events = tuple(
        event
        for name in disruption.claims
        if disruption_metrics.consolidation_type(disruption)
        if (node := snapshot.state_nodes_by_claim.get(name)) is not None
        for event in disruption_events.consolidation_rejected(node.name, node.object_refs, disruption, why)
    )
    ended = _finish(disruption, "Rejected", why, nodes, snapshot.now)
    failed = disruption_metrics.failed_validation(disruption, len(disruption.spec.candidates))
    return Plan(observations=failed, events=events) + ended


def wait_or_terminate(disruption: NodeDisruption, snapshot: Snapshot, catalogue: Catalogue, poll: timedelta) -> Plan:
    """Continue a started command: wait for its replacements, then delete its candidates, or roll it back.

    Args:
        disruption: The command; `commands.has_started` is true.
        snapshot: The cluster.
        catalogue: The prices of the replacements as they were launched.
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
    replacements = replacement_claims(disruption, snapshot)
    waiting = [c for c in replacements if not is_true(c.status.conditions, INITIALIZED)]
    if not waiting:
        launched = tuple(_launched_replacement(claim, catalogue) for claim in replacements)
        drain = _drain_candidates(disruption, remaining, launched, snapshot)
        again = chain_of(_subject(disruption), _requeue(disruption, next_requeue(snapshot.now, poll)))
        note = f"replacements are initialized, terminating: {disruption.spec.explanation}"
        return Plan(chains=(drain, again), notes=(note,))
    if snapshot.now >= deadline(disruption):
        return _roll_back(disruption, "the replacements were not initialized in time", remaining, snapshot)
    actions: list[Action] = []
    if disruption.status.phase == VALIDATED:
        actions.append(_enter(disruption, REPLACING, "the replacements are created", snapshot.now)[1])
    actions += (*_add_taints(remaining, disruption), _requeue(disruption, next_requeue(snapshot.now, poll)))
    events = tuple(disruption_events.waiting_on_readiness(c) for c in waiting)
    return Plan(chains=(chain_of(_subject(disruption), *actions),), events=events)


def deadline(disruption: NodeDisruption) -> datetime:
    """Return when a started command is rolled back if its replacements are not initialized."""
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


def _drain_candidates(
    disruption: NodeDisruption,
    nodes: Sequence[StateNode],
    launched: tuple[LaunchedReplacement, ...],
    snapshot: Snapshot,
) -> Chain:
    """Delete the candidates' NodeClaims at the version read, which fails if the command was rolled back meanwhile.

    What it did is written before: the pods to evict, and the prices before and after.
    """
    now, by_claim = snapshot.now, {c.node_claim: c for c in disruption.spec.candidates}
    actions: list[Action] = []
    if disruption.status.phase != DRAINING:
        _, write_phase = _enter(
            disruption,
            DRAINING,
            "deleting the candidates",
            now,
            draining_at=now,
            replacements=launched,
            price_before=price_text(sum(float(by_claim[_name(node)].price) for node in nodes)),
            price_after=price_text(sum(float(replacement.price) for replacement in launched)),
            evicted_pods=sum(is_reschedulable(pod) for node in nodes for pod in node.pods),
        )
        actions.append(write_phase)
    events: list[Event] = []
    observations: list[Observation] = []
    for node in nodes:
        assert node.claim is not None  # noqa: S101 - candidates have one
        explanation, version = disruption.spec.explanation, node.claim.metadata.resource_version
        actions.append(DeleteObject(ref=claim_ref(node.claim), why=explanation, resource_version=version))
        events += disruption_events.terminating(node.object_refs, disruption.spec.reason)
        pool = snapshot.node_pools_by_name.get(node.node_pool)
        pods = len(by_claim[_name(node)].pods)
        observations += disruption_metrics.nodeclaim_disrupted(disruption, node.claim, pool, pods)
    actions.append(Requeue(step=Step.TERMINATE, at=now, reason=disruption.metadata.name))
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
    actions.append(_enter(disruption, phase, why, now, finished_at=now)[1])
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
    if pool.spec.static:
        annotations |= _replica_index(disruption, snapshot)
    return {
        **body,
        "metadata": {**metadata, "annotations": annotations, "finalizers": [labels.TERMINATION_FINALIZER]},
    }


def _replica_index(disruption: NodeDisruption, snapshot: Snapshot) -> Mapping[str, str]:
    """Return the annotation with the replica that the command replaces, for a replacement in a static NodePool."""
    claims = (snapshot.claims_by_name.get(name) for name in disruption.claims)
    indexes = (c.metadata.annotations.get(labels.REPLICA_INDEX) for c in claims if c is not None)
    index = next((found for found in indexes if found is not None), None)
    return {} if index is None else {labels.REPLICA_INDEX: index}


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


def _enter(
    disruption: NodeDisruption, phase: str, why: str, now: datetime, **changes: Any
) -> tuple[NodeDisruption, PatchObject]:
    """Return the command in its next phase, and the patch that writes it with one more message and other changes of status."""
    message = f"{format_time(now)} {phase}: {why}"[:4096]
    messages = (*disruption.status.messages, message)[-100:]
    status = disruption.status.model_copy(update={"phase": phase, "messages": messages, **changes})
    before = disruption.status.to_wire()
    patch = PatchObject(
        ref=ObjectRef(resource=NODE_DISRUPTION, name=disruption.metadata.name, uid=disruption.metadata.uid),
        patch={"status": {key: value for key, value in status.to_wire().items() if before.get(key) != value}},
        why=why,
        resource_version=disruption.metadata.resource_version,
        subresource="status",
    )
    return disruption.model_copy(update={"status": status}), patch


def _used_budgets(command: Command, budgets: Mapping[NodePoolName, BudgetStatus]) -> tuple[UsedBudget, ...]:
    used = Counter(candidate.nodepool for candidate in command.candidates)
    statuses = ((pool, nodes, budgets[pool]) for pool, nodes in sorted(used.items()))
    return tuple(
        UsedBudget(node_pool=pool, nodes=nodes, disrupting=b.disrupting, allowed=min(b.allowed, b.total))
        for pool, nodes, b in statuses
    )


def _launched_replacement(claim: NodeClaim, catalogue: Catalogue) -> LaunchedReplacement:
    pool, instance_type, zone, capacity_type = (
        claim.metadata.labels.get(key, "")
        for key in (labels.NODEPOOL, labels.INSTANCE_TYPE, labels.ZONE, labels.CAPACITY_TYPE)
    )
    price = price_of(catalogue.instance_types(pool), instance_type, zone, capacity_type)
    return LaunchedReplacement(
        name=claim.metadata.name,
        instance_type=instance_type,
        zone=zone,
        capacity_type=capacity_type,
        price=price_text(price),
    )


def _name(node: StateNode) -> str:
    return node.claim.metadata.name if node.claim is not None else ""


def _started_at(disruption: NodeDisruption) -> datetime:
    started = disruption.status.started_at or disruption.since
    assert started is not None  # noqa: S101 - every NodeDisruption on the API server has a creation time
    return started


def _drain_requeue_at(disruption: NodeDisruption, now: datetime, poll: timedelta) -> datetime:
    """Return when to check a drain again, which the terminate step does: ever more rarely, at least once a minute."""
    since = disruption.status.draining_at or _started_at(disruption)
    return next_requeue(now, min(max((now - since) / 10, poll), MAX_DRAIN_POLL))


def _requeue(disruption: NodeDisruption, at: datetime) -> Requeue:
    return Requeue(step=Step.CONSOLIDATE, at=at, reason=f"{disruption.metadata.name} is in progress")


def _subject(disruption: NodeDisruption) -> str:
    return f"NodeDisruption {disruption.metadata.name}"
