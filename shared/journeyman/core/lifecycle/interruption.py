"""Interruption: the cloud says that an instance goes away, or might; its NodeClaim is deleted while it still runs.

Deleting the NodeClaim starts the ordinary, PodDisruptionBudget-honouring drain (the terminate step), and at the same
moment the provision step opens a replacement for the pods on it. No budget is asked: the instance goes anyway.

Restates: karpenter-provider-aws pkg/controllers/interruption/controller.go `handleMessage`, `handleNodeClaim`.
Differs: the node is cordoned at once, not by the drain; the avoided Spot offering is remembered from the event's own
time, so that late and repeated events change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeClaim
from journeyman.core.lifecycle.explain import disrupted
from journeyman.core.lifecycle.progress import claim_ref, node_ref
from journeyman.core.plan import (
    Chain,
    DeleteObject,
    Event,
    ObjectRef,
    Observation,
    Plan,
    RememberUnavailable,
    Step,
    Wake,
    one,
)
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.cordon import cordon


class InterruptionKind(str, Enum):
    """What kind of notice it is; the value is Karpenter's metric reason."""

    SPOT_INTERRUPTED = "spot_interrupted"
    REBALANCE_RECOMMENDATION = "rebalance_recommendation"
    INSTANCE_STOPPED = "instance_stopped"
    INSTANCE_TERMINATED = "instance_terminated"
    SCHEDULED_CHANGE = "scheduled_change"
    CAPACITY_RESERVATION_INTERRUPTED = "capacity_reservation_interrupted"
    NO_OP = "no_op"


# Event reason and message by kind (karpenter-provider-aws pkg/controllers/interruption/events).
NOTICES: Final[Mapping[InterruptionKind, tuple[str, str]]] = {
    InterruptionKind.SPOT_INTERRUPTED: ("SpotInterrupted", "Spot interruption warning was received"),
    InterruptionKind.REBALANCE_RECOMMENDATION: (
        "SpotRebalanceRecommendation",
        "Spot rebalance recommendation was received",
    ),
    InterruptionKind.INSTANCE_STOPPED: ("InstanceStopping", "Instance is stopping"),
    InterruptionKind.INSTANCE_TERMINATED: ("InstanceTerminating", "Instance is terminating"),
    InterruptionKind.SCHEDULED_CHANGE: ("InstanceUnhealthy", "An unhealthy warning was received for the instance"),
    InterruptionKind.CAPACITY_RESERVATION_INTERRUPTED: (
        "CapacityReservationInstanceInterrupted",
        "Capacity reservation interruption warning was received",
    ),
}


def interrupt_claims(
    snapshot: Snapshot,
    *,
    kind: InterruptionKind,
    instance_ids: Iterable[str],
    event_time: datetime,
    unavailable_for: timedelta,
) -> Plan:
    """What one notice asks for.

    Args:
        snapshot: The cluster; claims and nodes are enough.
        kind: What the notice says.
        instance_ids: The instances it names, any order; those that are not ours are only noted.
        event_time: When the cloud sent it.
        unavailable_for: How long after that a Spot offering that was taken back is avoided.

    Returns:
        Per claim hit: the offering to avoid, the deletion, the cordon, each in a chain of its own so that a conflict
        on the node never holds up the deletion; then wake-ups for provision and terminate. A claim that is already
        going, or gone, asks for nothing.
    """
    plan = Plan(observations=_received(kind, event_time, snapshot.now))
    if kind is InterruptionKind.NO_OP:
        return plan
    by_instance = {_instance_id(n.provider_id): n for n in snapshot.state_nodes if n.provider_id and not n.duplicate_of}
    for instance_id in sorted(set(instance_ids)):
        node = by_instance.get(instance_id)
        if node is None or node.claim is None:
            plan += Plan(notes=(f"instance {instance_id} is not ours: {kind.value} acknowledged",))
        elif node.claim.metadata.deletion_timestamp is not None:
            plan += Plan(notes=(f"nodeclaim {node.claim.metadata.name} is already being deleted",))
        elif kind is InterruptionKind.REBALANCE_RECOMMENDATION:
            plan += Plan(events=_notices(node, kind, type_="Normal"))
        else:
            avoided = _avoided(node.claim, kind, event_time, unavailable_for, snapshot.now)
            plan += _take_down(node, node.claim, kind, avoided)
    return plan + (_wakes(kind, snapshot.now) if plan.chains else Plan())


def _instance_id(provider_id: str) -> str:
    """The last part of `aws:///us-west-2a/i-0abc`, `cn-hangzhou.i-0abc` or a bare id."""
    return re.split(r"[/.]", provider_id)[-1]


def _take_down(node: StateNode, claim: NodeClaim, kind: InterruptionKind, avoided: tuple[Chain, ...]) -> Plan:
    name = claim.metadata.name
    why = f"{NOTICES[kind][1]} for {name}"
    chains: list[Chain] = [*avoided]
    chains.append(
        Chain(
            subject=f"nodeclaim {name}",
            actions=(DeleteObject(ref=claim_ref(claim), why=why),),
            events=_terminating(node),
            observations=(disrupted(claim, kind.value),),
        )
    )
    if node.node is not None and (taint := cordon(node.node, why)):
        chains.append(one(f"node {node.name}", taint))
    return Plan(
        chains=tuple(chains),
        events=_notices(node, kind, type_="Warning"),
        notes=(f"initiating delete of nodeclaim {name} from interruption message: {kind.value}",),
    )


def _avoided(
    claim: NodeClaim, kind: InterruptionKind, event_time: datetime, wait: timedelta, now: datetime
) -> tuple[Chain, ...]:
    """The Spot offering that was taken back is avoided for this long, which does not grow: it was to be had before."""
    offering = _offering(claim)
    if kind is not InterruptionKind.SPOT_INTERRUPTED or event_time + wait <= now or offering is None:
        return ()
    remember = RememberUnavailable(
        node_class=claim.spec.node_class_ref.name,
        offerings=(offering,),
        at=event_time,
        first=wait,
        longest=wait,
        reason="SpotInterruption",
    )
    return (one(f"offering {'/'.join(offering)}", remember),)


def _offering(claim: NodeClaim) -> tuple[str, str, str] | None:
    """The Spot offering the claim runs on; None if its labels do not say, or it is not Spot."""
    wanted = (labels.INSTANCE_TYPE, labels.ZONE, labels.CAPACITY_TYPE)
    instance_type, zone, capacity_type = (claim.metadata.labels.get(key, "") for key in wanted)
    if capacity_type != labels.SPOT or not (instance_type and zone):
        return None
    return instance_type, zone, capacity_type


def _wakes(kind: InterruptionKind, now: datetime) -> Plan:
    wakes = (Wake(step=step, at=now, reason=f"interruption: {kind.value}") for step in (Step.PROVISION, Step.TERMINATE))
    return Plan(chains=(one("wake-ups", *wakes),))


def _refs(node: StateNode) -> tuple[ObjectRef, ...]:
    claims = (claim_ref(node.claim),) if node.claim is not None else ()
    return (*claims, node_ref(node.node)) if node.node is not None else claims


def _notices(node: StateNode, kind: InterruptionKind, *, type_: str) -> tuple[Event, ...]:
    reason, message = NOTICES[kind]
    return tuple(Event(ref=ref, reason=reason, message=message, type=type_) for ref in _refs(node))


def _terminating(node: StateNode) -> tuple[Event, ...]:
    return tuple(
        Event(
            ref=ref,
            reason="TerminatingOnInterruption",
            message=f"Interruption triggered termination for the {ref.resource.kind}",
            type="Warning",
        )
        for ref in _refs(node)
    )


def _received(kind: InterruptionKind, event_time: datetime, now: datetime) -> tuple[Observation, ...]:
    return (
        Observation(name="karpenter_interruption_received_messages_total", labels={"message_type": kind.value}),
        Observation(
            name="karpenter_interruption_message_queue_duration_seconds",
            value=max((now - event_time).total_seconds(), 0.0),
            kind="histogram",
        ),
    )
