"""Interruption: deletes the NodeClaim of an instance when the cloud announces that it will terminate the instance.

The terminate step drains the node while the instance still runs, and the provision step launches a replacement for its pods
at the same time. Disruption budgets do not apply. If a NodePool opts in by annotation, a rebalance recommendation is recorded
on the NodeClaim, and the consolidate step replaces the node within the budgets.

Restates: karpenter-provider-aws pkg/controllers/interruption/utils.go `handleMessage`, `handleNodeClaim`,
pkg/controllers/interruption/messages/types.go `Kind`, pkg/controllers/interruption/events/events.go.
Differs: the Spot offering is unavailable from the time of the event on, so that late and repeated messages change nothing; the
instance of a NodeClaim without a provider id is found by its tags; rebalance recommendations can replace nodes; the node is
tainted at once, not by the drain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from functools import cached_property
from typing import Final, Protocol

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.conditions import format_time
from journeyman.core.api.objects import NODE, NodeClaim, OfferingKey
from journeyman.core.plan import (
    Action,
    Chain,
    DeleteObject,
    Event,
    MarkOfferingUnavailable,
    ObjectRef,
    Observation,
    PatchObject,
    Plan,
    Requeue,
    Step,
    chain_of,
    claim_ref,
)
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.disrupted_taint import add_disrupted_taint
from journeyman.core.state.nodeclaim_metrics import nodeclaim_disrupted
from journeyman.core.state.skipped_objects import plan_for_each


class UnrecordedInstance(Protocol):
    """An instance (`ports.Instance`) whose provider id its NodeClaim may not have yet."""

    @property
    def provider_id(self) -> str:
        """The instance's provider id."""

    @property
    def instance_type(self) -> str:
        """The name of its instance type."""

    @property
    def zone(self) -> str:
        """The name of its zone."""

    @property
    def reservation_id(self) -> str:
        """The id of the capacity reservation that it uses, or empty."""

    @property
    def capacity_type(self) -> str:
        """`spot`, `on-demand` or `reserved`."""

    @property
    def claim_uid(self) -> str:
        """The UID of the NodeClaim that the instance was launched for, from its tags; empty if it has none."""


def handle_interruption(
    snapshot: Snapshot,
    *,
    kind: InterruptionKind,
    instance_ids: Iterable[str],
    event_time: datetime,
    unavailable_for: timedelta,
    launched: Iterable[UnrecordedInstance] = (),
) -> Plan:
    """Handle one interruption message.

    Args:
        snapshot: NodeClaims and nodes, and for rebalance recommendations the NodePools.
        kind: The kind of the message.
        instance_ids: The instances that it names, in any order; unknown ones are only logged.
        event_time: When the cloud sent the message.
        unavailable_for: How long after `event_time` the offering of an interrupted Spot instance is skipped.
        launched: Instances launched for NodeClaims that have no provider id yet.

    Returns:
        For each NodeClaim: the unavailable offering, the deletion, and the taint of its node, each in a chain of its own, so
        that a conflict on the node delays no deletion; then requeues. Nothing for a NodeClaim that is already terminating.

    Restates: karpenter-provider-aws pkg/controllers/interruption/utils.go `handleMessage`.
    """
    message = _InterruptionMessage(
        snapshot=snapshot, kind=kind, at=event_time, unavailable_for=unavailable_for, launched=tuple(launched)
    )
    plan = plan_for_each(sorted(set(instance_ids)), message.handle_instance, about=message.object_of)
    return plan + requeue_steps(kind, snapshot.now, *message.next_steps) if plan.chains else plan


def may_concern_unrecorded_instance(snapshot: Snapshot, instance_ids: Iterable[str]) -> bool:
    """Whether an unknown instance may belong to a NodeClaim that has no provider id yet."""
    nodes = _by_instance(snapshot)
    return any(id_ not in nodes for id_ in instance_ids) and any(_has_no_instance_yet(c) for c in snapshot.claims)


def _by_instance(snapshot: Snapshot) -> Mapping[str, StateNode]:
    return {
        instance_id(n.provider_id): n
        for n in snapshot.state_nodes
        if n.provider_id and not (n.duplicate_of or n.twin_of)
    }


def _has_no_instance_yet(claim: NodeClaim) -> bool:
    return not claim.status.provider_id and claim.metadata.deletion_timestamp is None


class _InterruptionMessage(Struct, frozen=True, kw_only=True, dict=True):
    """One interruption message, and the cluster it concerns."""

    snapshot: Snapshot
    kind: InterruptionKind
    at: datetime
    unavailable_for: timedelta
    launched: tuple[UnrecordedInstance, ...]

    @property
    def next_steps(self) -> tuple[Step, ...]:
        """The steps to run next."""
        if self.kind is InterruptionKind.REBALANCE_RECOMMENDATION:
            return (Step.CONSOLIDATE,)
        return (Step.PROVISION, Step.TERMINATE)

    def node_of(self, id_: str) -> StateNode | None:
        """Return the node of an instance; None if the instance is not ours."""
        return self._nodes_by_instance.get(id_) or self._launched_nodes.get(id_)

    def object_of(self, id_: str) -> StateNode | ObjectRef:
        """Return the node of an instance, else a reference to the Node that it may be."""
        return self.node_of(id_) or ObjectRef(resource=NODE, name=id_)

    def handle_instance(self, id_: str) -> Plan:
        """Return what to do for one instance.

        Restates: karpenter-provider-aws pkg/controllers/interruption/utils.go `handleNodeClaim`.
        """
        node = self.node_of(id_)
        if node is None or node.claim is None:
            return Plan(notes=(f"instance {id_} is not ours: {self.kind.value} acknowledged",))
        if node.claim.metadata.deletion_timestamp is not None:
            return Plan(notes=(f"nodeclaim {node.claim.metadata.name} is already being deleted",))
        if self.kind is InterruptionKind.REBALANCE_RECOMMENDATION:
            return Plan(events=interruption_events(node, self.kind, type_="Normal")) + self._record_recommendation(
                node.claim
            )
        return Plan(chains=self._mark_offering_unavailable(node.claim, id_)) + terminate_on_interruption(
            node, node.claim, self.kind
        )

    def _record_recommendation(self, claim: NodeClaim) -> Plan:
        """Annotate the NodeClaim with the time of its first recommendation, if its NodePool opts in."""
        pool = self.snapshot.node_pools_by_name.get(claim.metadata.labels.get(labels.NODEPOOL, ""))
        enabled = pool is not None and pool.metadata.annotations.get(labels.REBALANCE) == labels.REBALANCE_REPLACE
        if not enabled or labels.REBALANCE_RECOMMENDED_AT in claim.metadata.annotations:
            return Plan()
        annotations = {labels.REBALANCE_RECOMMENDED_AT: format_time(self.at)}
        patch = PatchObject(
            ref=claim_ref(claim), patch={"metadata": {"annotations": annotations}}, why="rebalance recommendation"
        )
        return Plan(chains=(chain_of(f"nodeclaim {claim.metadata.name}", patch),))

    def _mark_offering_unavailable(self, claim: NodeClaim, id_: str) -> tuple[Chain, ...]:
        """Skip the offering of an interrupted instance, for the same time after each interruption.

        Restates: karpenter-provider-aws pkg/controllers/interruption/utils.go `markUnavailableOfferings`.
        """
        offering = self._launched_offerings.get(id_) or offering_of(claim)
        over = self.at + self.unavailable_for <= self.snapshot.now
        capacity_type, reason = _INTERRUPTED_CAPACITY.get(self.kind, ("", ""))
        if over or not all(offering[:3]) or offering.capacity_type != capacity_type:
            return ()
        mark = MarkOfferingUnavailable(
            node_class=claim.spec.node_class_ref.name,
            offerings=(offering,),
            at=self.at,
            first=self.unavailable_for,
            longest=self.unavailable_for,
            reason=reason,
        )
        return (chain_of(f"offering {offering}", mark),)

    @cached_property
    def _nodes_by_instance(self) -> Mapping[str, StateNode]:
        return _by_instance(self.snapshot)

    @cached_property
    def _launched_nodes(self) -> Mapping[str, StateNode]:
        """NodeClaims without a provider id, by the instance that was launched for them."""
        names = {c.metadata.uid: c.metadata.name for c in self.snapshot.claims if _has_no_instance_yet(c)}
        nodes = self.snapshot.state_nodes_by_claim
        return {instance_id(i.provider_id): nodes[names[i.claim_uid]] for i in self.launched if i.claim_uid in names}

    @cached_property
    def _launched_offerings(self) -> Mapping[str, OfferingKey]:
        return {
            instance_id(i.provider_id): OfferingKey(i.instance_type, i.zone, i.capacity_type, i.reservation_id)
            for i in self.launched
        }


def offering_of(claim: NodeClaim) -> OfferingKey:
    """Return the offering in the NodeClaim's labels, empty where a label is missing."""
    values = claim.metadata.labels
    keys = (labels.INSTANCE_TYPE, labels.ZONE, labels.CAPACITY_TYPE, labels.RESERVATION_ID)
    return OfferingKey(*(values.get(key, "") for key in keys))


class InterruptionKind(str, Enum):
    """The kind of an interruption message. Its value is the reason in Karpenter's metric."""

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


_INTERRUPTED_CAPACITY: Final = {
    InterruptionKind.SPOT_INTERRUPTED: (labels.SPOT, "SpotInterruption"),
    InterruptionKind.CAPACITY_RESERVATION_INTERRUPTED: (labels.RESERVED, "CapacityReservationInterruption"),
}
"""The capacity type that the cloud reclaims, and why it is unavailable then, by the kind of interruption."""

_UNHEALTHY: Final = ("InstanceUnhealthy", "An unhealthy warning was triggered for the instance")
EVENTS_BY_KIND: Final[Mapping[InterruptionKind, tuple[str, str]]] = {
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
    """Return the instance id in `aws:///us-west-2a/i-0abc`, `cn-hangzhou.i-0abc` or a bare id."""
    return re.split(r"[/.]", provider_id)[-1]


def received_message_metrics(kind: str) -> tuple[Observation, ...]:
    """Return the count of one received message."""
    return (Observation(name="karpenter_interruption_received_messages_total", labels={"message_type": kind}),)


def deleted_message_metrics(event_time: datetime, now: datetime) -> tuple[Observation, ...]:
    """Return the count of one message that was deleted from the queue, and how long after its event."""
    latency = max((now - event_time).total_seconds(), 0.0)
    return (
        Observation(name="karpenter_interruption_message_queue_duration_seconds", value=latency, kind="histogram"),
        Observation(name="karpenter_interruption_deleted_messages_total"),
    )


def terminate_on_interruption(node: StateNode, claim: NodeClaim, kind: InterruptionKind, *first: Action) -> Plan:
    """Delete the NodeClaim, and taint its node in a chain of its own, so that a conflict on the node delays no deletion.

    Args:
        node: The node; its Node may be missing.
        claim: Its NodeClaim.
        kind: The kind of interruption.
        first: Actions before the deletion, in the same chain.

    Restates: karpenter-provider-aws pkg/controllers/interruption/utils.go `deleteNodeClaim`, `notifyForMessage`.
    """
    name = claim.metadata.name
    why = f"{EVENTS_BY_KIND[kind][1]} for {name}"
    deletion = Chain(
        subject=f"nodeclaim {name}",
        actions=(*first, DeleteObject(ref=claim_ref(claim), why=why)),
        events=_termination_events(node),
        observations=(nodeclaim_disrupted(claim, kind.value),),
    )
    taint = add_disrupted_taint(node.node, why) if node.node is not None else None
    return Plan(
        chains=(deletion, *([chain_of(f"node {node.name}", taint)] if taint else [])),
        events=interruption_events(node, kind, type_="Warning"),
        notes=(f"initiating delete of nodeclaim {name} from interruption message: {kind.value}",),
    )


def requeue_steps(kind: InterruptionKind, now: datetime, *steps: Step) -> Plan:
    """Requeue these steps, in this order."""
    return Plan(
        chains=(
            chain_of("requeues", *(Requeue(step=step, at=now, reason=f"interruption: {kind.value}") for step in steps)),
        )
    )


def interruption_events(node: StateNode, kind: InterruptionKind, *, type_: str) -> tuple[Event, ...]:
    """Return the Events on NodeClaim and Node that say which message was received."""
    reason, message = EVENTS_BY_KIND[kind]
    return tuple(Event(ref=ref, reason=reason, message=message, type=type_) for ref in node.object_refs)


def _termination_events(node: StateNode) -> tuple[Event, ...]:
    return tuple(
        Event(
            ref=ref,
            reason="TerminatingOnInterruption",
            message=f"Interruption triggered termination for the {ref.resource.kind}",
            type="Warning",
        )
        for ref in node.object_refs
    )
