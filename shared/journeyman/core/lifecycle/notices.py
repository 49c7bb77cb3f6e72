"""What the cloud says about instances that go away, in Karpenter's words, and what is done to the node behind one.

Restates: karpenter-provider-aws pkg/controllers/interruption/messages/types.go `Kind`, events/events.go, and
utils.go `handleNodeClaim`.
Differs: the node is cordoned at once, not by the drain.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import Final

from journeyman.core.api.objects import NodeClaim
from journeyman.core.lifecycle.explain import disrupted
from journeyman.core.lifecycle.progress import claim_ref, refs_of
from journeyman.core.plan import Action, Chain, DeleteObject, Event, Observation, Plan, Requeue, Step, chain_of
from journeyman.core.state import StateNode
from journeyman.core.state.cordon import cordon


class InterruptionKind(str, Enum):
    """What kind of notice it is; the value is Karpenter's metric reason."""

    SPOT_INTERRUPTED = "spot_interrupted"
    REBALANCE_RECOMMENDATION = "rebalance_recommendation"
    INSTANCE_STOPPED = "instance_stopped"
    INSTANCE_TERMINATED = "instance_terminated"
    SCHEDULED_CHANGE = "scheduled_change"
    CAPACITY_RESERVATION_INTERRUPTED = "capacity_reservation_interrupted"
    INSTANCE_STATUS = "instance_status"
    SYSTEM_STATUS = "system_status"
    EVENT_STATUS = "event_status"
    NO_OP = "no_op"


_UNHEALTHY: Final = ("InstanceUnhealthy", "An unhealthy warning was triggered for the instance")
NOTICES: Final[Mapping[InterruptionKind, tuple[str, str]]] = {
    InterruptionKind.SPOT_INTERRUPTED: ("SpotInterrupted", "Spot interruption warning was triggered"),
    InterruptionKind.REBALANCE_RECOMMENDATION: (
        "SpotRebalanceRecommendation",
        "Spot rebalance recommendation was triggered",
    ),
    InterruptionKind.INSTANCE_STOPPED: ("InstanceStopping", "Instance is stopping"),
    InterruptionKind.INSTANCE_TERMINATED: ("InstanceTerminating", "Instance is terminating"),
    InterruptionKind.SCHEDULED_CHANGE: _UNHEALTHY,
    InterruptionKind.CAPACITY_RESERVATION_INTERRUPTED: (
        "CapacityReservationInstanceInterrupted",
        "Capacity Reservation interruption warning was triggered",
    ),
    InterruptionKind.INSTANCE_STATUS: _UNHEALTHY,
    InterruptionKind.SYSTEM_STATUS: _UNHEALTHY,
    InterruptionKind.EVENT_STATUS: _UNHEALTHY,
}
"""Event reason and message by kind."""


def instance_id(provider_id: str) -> str:
    """The last part of `aws:///us-west-2a/i-0abc`, `cn-hangzhou.i-0abc` or a bare id."""
    return re.split(r"[/.]", provider_id)[-1]


def received(kind: str) -> tuple[Observation, ...]:
    """One message of that kind, whoever it is about."""
    return (Observation(name="karpenter_interruption_received_messages_total", labels={"message_type": kind}),)


def dealt_with(event_time: datetime, now: datetime) -> tuple[Observation, ...]:
    """One message that need not come again, and how long after its event that was."""
    latency = max((now - event_time).total_seconds(), 0.0)
    return (
        Observation(name="karpenter_interruption_message_queue_duration_seconds", value=latency, kind="histogram"),
        Observation(name="karpenter_interruption_deleted_messages_total"),
    )


def take_down(node: StateNode, claim: NodeClaim, kind: InterruptionKind, *first: Action) -> Plan:
    """Delete the claim, and cordon its node in a chain of its own, so that a conflict never holds up the deletion.

    Args:
        node: The node as far as there is one.
        claim: Its claim.
        kind: What was said about the instance.
        first: What must be written on the claim before it is deleted.
    """
    name = claim.metadata.name
    why = f"{NOTICES[kind][1]} for {name}"
    deletion = Chain(
        subject=f"nodeclaim {name}",
        actions=(*first, DeleteObject(ref=claim_ref(claim), why=why)),
        events=_terminating(node),
        observations=(disrupted(claim, kind.value),),
    )
    taint = cordon(node.node, why) if node.node is not None else None
    return Plan(
        chains=(deletion, *([chain_of(f"node {node.name}", taint)] if taint else [])),
        events=told(node, kind, type_="Warning"),
        notes=(f"initiating delete of nodeclaim {name} from interruption message: {kind.value}",),
    )


def wakes(kind: InterruptionKind, now: datetime, *steps: Step) -> Plan:
    """Requeue the steps that carry on."""
    return Plan(
        chains=(
            chain_of("wake-ups", *(Requeue(step=step, at=now, reason=f"interruption: {kind.value}") for step in steps)),
        )
    )


def told(node: StateNode, kind: InterruptionKind, *, type_: str) -> tuple[Event, ...]:
    """The Events on claim and node that say what was received."""
    reason, message = NOTICES[kind]
    return tuple(Event(ref=ref, reason=reason, message=message, type=type_) for ref in refs_of(node))


def _terminating(node: StateNode) -> tuple[Event, ...]:
    return tuple(
        Event(
            ref=ref,
            reason="TerminatingOnInterruption",
            message=f"Interruption triggered termination for the {ref.resource.kind}",
            type="Warning",
        )
        for ref in refs_of(node)
    )
