"""From a command to the NodeDisruption that states it: intent, written down before anything is touched."""

from __future__ import annotations

from datetime import datetime
from hashlib import blake2b
from typing import Final

from journeyman.core.api.node_disruption import (
    DisruptionCandidate,
    DisruptionReplacement,
    Method,
    NodeDisruption,
    NodeDisruptionSpec,
    price_text,
)
from journeyman.core.api.objects import NODE_DISRUPTION, ObjectMeta
from journeyman.core.disruption import explain
from journeyman.core.disruption.types import Candidate, Command, Decision
from journeyman.core.plan import Chain, CreateObject, Plan, Requeue, Step
from journeyman.core.scheduling.claims import claim_name

MAX_PODS_NAMED: Final = 1000  # of one candidate, as the CRD allows


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
    """A replacement's NodeClaim name, which follows from the disruption it belongs to."""
    return claim_name(node_pool, disruption, [str(index)])


def proposal_plan(disruption: NodeDisruption, command: Command, validate_at: datetime) -> Plan:
    """Write the intent down, and look at it again at `validate_at`."""
    body, said = disruption.to_wire(), disruption.spec.explanation
    create = CreateObject(resource=NODE_DISRUPTION, body=body, why=disruption.spec.explanation)
    wake = Requeue(step=Step.CONSOLIDATE, at=validate_at, reason=f"validate {disruption.metadata.name}")
    events = tuple(
        event
        for c in command.candidates
        if explain.consolidation_type(disruption)
        for event in explain.about(c, "ConsolidationCandidate", f"Consolidation candidate: {said}", key=said)
    )
    chain = Chain(subject=f"NodeDisruption {disruption.metadata.name}", actions=(create, wake), events=events)
    return Plan(chains=(chain,), notes=(f"proposed: {disruption.spec.explanation}",))


def changed(disruption: NodeDisruption, command: Command) -> str:
    """What is different about a command found later; empty if it is the proposal's."""
    if not command.candidates:
        return command.why_not
    if command.decision.value != disruption.spec.decision:
        return f"it would now {command.decision.value}, not {disruption.spec.decision}"
    if len(command.replacements) != len(disruption.spec.replacements):
        return f"it would now take {len(command.replacements)} replacements"
    for index, (stated, found) in enumerate(zip(disruption.spec.replacements, command.replacements, strict=True)):
        if stated.name != replacement_name(disruption.metadata.name, found.node_pool, index):
            return f"the replacement would now be of NodePool {found.node_pool}"
        if stated.instance_type not in found.instance_types:
            return f"{stated.instance_type} is no option any more"
    return ""


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
