"""What a command writes on the nodes it takes, and on its own NodeDisruption; and how the marks come off again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from journeyman.core.api.conditions import DISRUPTION_REASON, ConditionSet, format_time
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.objects import NODE_DISRUPTION, NODECLAIM, NodeClaim
from journeyman.core.disruption.in_flight import EXECUTING
from journeyman.core.plan import Action, Chain, ObjectRef, PatchObject
from journeyman.core.state import StateNode
from journeyman.core.state.cordon import cordon, uncordon
from journeyman.core.state.transition_samples import told_with


def unmark(node: StateNode, why: str, now: datetime) -> tuple[Action, ...]:
    """Take the DisruptionReason condition and the taint off again; nothing if neither is there."""
    actions: list[Action] = []
    if node.claim is not None and any(c.type == DISRUPTION_REASON for c in node.conditions):
        cleared = ConditionSet.of_claim(node.claim, now).clear(DISRUPTION_REASON)
        actions.append(_conditions(node.claim, cleared, why))
    if node.node is not None and (patch := uncordon(node.node, why)) is not None:
        actions.append(patch)
    return tuple(actions)


def mark(node: StateNode, disruption: NodeDisruption, now: datetime) -> Iterator[Action]:
    """The condition that makes the candidate this command's own."""
    assert node.claim is not None  # noqa: S101 - candidates have one
    after = _marked(node.claim, disruption, now)
    if after.changed_from(node.claim.status.conditions):
        yield _conditions(node.claim, after, disruption.spec.explanation)


def told_of_marks(chain: Chain, nodes: Iterable[StateNode], disruption: NodeDisruption, now: datetime) -> Chain:
    """The chain that marks these candidates, with what is told of each mark."""
    for claim in (node.claim for node in nodes if node.claim is not None):
        ref, after = _ref(claim), _marked(claim, disruption, now)
        chain = told_with(chain, ref, claim.metadata.labels, claim.status.conditions, after.conditions)
    return chain


def cordons(nodes: Iterable[StateNode], disruption: NodeDisruption) -> Iterator[Action]:
    """The taint for every node that lacks it."""
    for node in nodes:
        if node.node is not None and (patch := cordon(node.node, disruption.spec.explanation)) is not None:
            yield patch


def _marked(claim: NodeClaim, disruption: NodeDisruption, now: datetime) -> ConditionSet:
    reason = disruption.spec.reason
    return ConditionSet.of_claim(claim, now).set_true(DISRUPTION_REASON, now, reason, reason)


def _ref(claim: NodeClaim) -> ObjectRef:
    return ObjectRef(resource=NODECLAIM, name=claim.metadata.name, uid=claim.metadata.uid)


def _conditions(claim: NodeClaim, conditions: ConditionSet, why: str) -> PatchObject:
    return PatchObject(
        ref=_ref(claim),
        patch={"status": {"conditions": conditions.to_wire()}},
        why=why,
        resource_version=claim.metadata.resource_version,
        subresource="status",
    )


def set_phase(disruption: NodeDisruption, phase: str, message: str, now: datetime) -> PatchObject:
    """Write how far the command has come, with one more line of its story."""
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
