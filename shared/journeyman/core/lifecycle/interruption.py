"""Interruption: the cloud announces that an instance will be terminated; its NodeClaim is deleted while it still runs.

Deleting the NodeClaim starts the ordinary drain (the terminate step), and at the same time the provision step creates a
replacement for the pods on it. Disruption budgets do not apply. A rebalance recommendation is recorded on the NodeClaim if
its NodePool asks for that, and the consolidate step replaces the node within the budgets.

Restates: karpenter-provider-aws pkg/controllers/interruption/utils.go `handleMessage`, `handleNodeClaim`,
pkg/controllers/interruption/messages/types.go `Kind`, pkg/controllers/interruption/events/events.go.
Differs: the Spot offering is unavailable from the event's own time, so that late and repeated events change nothing; an
instance is found although its NodeClaim does not name it yet; recommendations can be acted upon; the node is tainted at
once, not by the drain.
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
from journeyman.core.api.objects import NodeClaim
from journeyman.core.lifecycle.progress import claim_ref, event_refs
from journeyman.core.plan import (
    Action,
    Chain,
    DeleteObject,
    Event,
    MarkOfferingUnavailable,
    Observation,
    PatchObject,
    Plan,
    Requeue,
    Step,
    chain_of,
    merge_plans,
)
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.disrupted_taint import add_disrupted_taint
from journeyman.core.state.nodeclaim_metrics import nodeclaim_disrupted

Offering = tuple[str, str, str]


class UnrecordedInstance(Protocol):
    """What the cloud says of an instance whose claim may not know it yet (`ports.Instance`)."""

    @property
    def provider_id(self) -> str:
        """The cloud's id."""

    @property
    def instance_type(self) -> str:
        """Its type."""

    @property
    def zone(self) -> str:
        """Where it runs."""

    @property
    def capacity_type(self) -> str:
        """How it is paid for."""

    @property
    def claim_uid(self) -> str:
        """The UID of the NodeClaim it was launched for, from its tag; empty if unknown."""


def handle_interruption(
    snapshot: Snapshot,
    *,
    kind: InterruptionKind,
    instance_ids: Iterable[str],
    event_time: datetime,
    unavailable_for: timedelta,
    fresh: Iterable[UnrecordedInstance] = (),
) -> Plan:
    """What one notice asks for.

    Args:
        snapshot: The cluster; claims and nodes are enough, for recommendations NodePools as well.
        kind: What the notice says.
        instance_ids: The instances it names, any order; those that are not ours are only noted.
        event_time: When the cloud sent it.
        unavailable_for: How long after that a Spot offering that was taken back is avoided.
        fresh: Instances that were launched for claims that name none yet.

    Returns:
        Per claim hit: the offering to avoid, the deletion, the cordon, each in a chain of its own so that a conflict
        on the node never delays the deletion; then requeues for provision and terminate. A claim that is already
        going, or gone, asks for nothing.
    """
    notice = _InterruptionMessage(
        snapshot=snapshot, kind=kind, at=event_time, unavailable_for=unavailable_for, fresh=tuple(fresh)
    )
    plan = merge_plans(notice.about(id_) for id_ in sorted(set(instance_ids)))
    return plan + requeue_steps(kind, snapshot.now, *notice.goes_on) if plan.chains else plan


def may_concern_unrecorded_instance(snapshot: Snapshot, instance_ids: Iterable[str]) -> bool:
    """Whether the notice may be about an instance that a launch under way has just made: it names one we do not know."""
    known = _by_instance(snapshot)
    return any(id_ not in known for id_ in instance_ids) and any(_has_no_instance_yet(c) for c in snapshot.claims)


def _by_instance(snapshot: Snapshot) -> Mapping[str, StateNode]:
    return {instance_id(n.provider_id): n for n in snapshot.state_nodes if n.provider_id and not n.duplicate_of}


def _has_no_instance_yet(claim: NodeClaim) -> bool:
    return not claim.status.provider_id and claim.metadata.deletion_timestamp is None


class _InterruptionMessage(Struct, frozen=True, kw_only=True, dict=True):
    """One notice, and the cluster it has come to."""

    snapshot: Snapshot
    kind: InterruptionKind
    at: datetime
    unavailable_for: timedelta
    fresh: tuple[UnrecordedInstance, ...]

    @property
    def goes_on(self) -> tuple[Step, ...]:
        """Who goes on with it."""
        if self.kind is InterruptionKind.REBALANCE_RECOMMENDATION:
            return (Step.CONSOLIDATE,)
        return (Step.PROVISION, Step.TERMINATE)

    def about(self, id_: str) -> Plan:
        """What is to be done about one instance."""
        node = self._known.get(id_) or self._just_launched.get(id_)
        if node is None or node.claim is None:
            return Plan(notes=(f"instance {id_} is not ours: {self.kind.value} acknowledged",))
        if node.claim.metadata.deletion_timestamp is not None:
            return Plan(notes=(f"nodeclaim {node.claim.metadata.name} is already being deleted",))
        if self.kind is InterruptionKind.REBALANCE_RECOMMENDATION:
            return Plan(events=interruption_events(node, self.kind, type_="Normal")) + self._recommended(node.claim)
        return Plan(chains=self._avoided(node.claim, id_)) + terminate_on_interruption(node, node.claim, self.kind)

    def _recommended(self, claim: NodeClaim) -> Plan:
        """Note on the claim that it should be replaced, if its NodePool asks for that; the first time stays."""
        pool = self.snapshot.node_pools_by_name.get(claim.metadata.labels.get(labels.NODEPOOL, ""))
        asked = pool is not None and pool.metadata.annotations.get(labels.REBALANCE) == labels.REBALANCE_REPLACE
        if not asked or labels.REBALANCE_RECOMMENDED_AT in claim.metadata.annotations:
            return Plan()
        annotations = {labels.REBALANCE_RECOMMENDED_AT: format_time(self.at)}
        note = PatchObject(
            ref=claim_ref(claim), patch={"metadata": {"annotations": annotations}}, why="rebalance recommendation"
        )
        return Plan(chains=(chain_of(f"nodeclaim {claim.metadata.name}", note),))

    def _avoided(self, claim: NodeClaim, id_: str) -> tuple[Chain, ...]:
        """The Spot offering that was taken back is avoided for this long, which does not grow: it was to be had before."""
        offering = self._fresh_offerings.get(id_) or _labelled_offering(claim)
        over = self.at + self.unavailable_for <= self.snapshot.now
        if self.kind is not InterruptionKind.SPOT_INTERRUPTED or over or not _is_spot(offering):
            return ()
        remember = MarkOfferingUnavailable(
            node_class=claim.spec.node_class_ref.name,
            offerings=(offering,),
            at=self.at,
            first=self.unavailable_for,
            longest=self.unavailable_for,
            reason="SpotInterruption",
        )
        return (chain_of(f"offering {'/'.join(offering)}", remember),)

    @cached_property
    def _known(self) -> Mapping[str, StateNode]:
        return _by_instance(self.snapshot)

    @cached_property
    def _just_launched(self) -> Mapping[str, StateNode]:
        """By instance: the claims without an instance that theirs was launched for."""
        waiting = {c.metadata.uid: c.metadata.name for c in self.snapshot.claims if _has_no_instance_yet(c)}
        nodes = self.snapshot.state_nodes_by_claim
        return {instance_id(i.provider_id): nodes[waiting[i.claim_uid]] for i in self.fresh if i.claim_uid in waiting}

    @cached_property
    def _fresh_offerings(self) -> Mapping[str, Offering]:
        return {instance_id(i.provider_id): (i.instance_type, i.zone, i.capacity_type) for i in self.fresh}


def _labelled_offering(claim: NodeClaim) -> Offering:
    """What the claim runs on, as far as its labels say."""
    own = claim.metadata.labels
    return own.get(labels.INSTANCE_TYPE, ""), own.get(labels.ZONE, ""), own.get(labels.CAPACITY_TYPE, "")


def _is_spot(offering: Offering) -> bool:
    return all(offering) and offering[2] == labels.SPOT


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
    """The last part of `aws:///us-west-2a/i-0abc`, `cn-hangzhou.i-0abc` or a bare id."""
    return re.split(r"[/.]", provider_id)[-1]


def received_message_metrics(kind: str) -> tuple[Observation, ...]:
    """Count one message of that kind, whichever instance it names."""
    return (Observation(name="karpenter_interruption_received_messages_total", labels={"message_type": kind}),)


def deleted_message_metrics(event_time: datetime, now: datetime) -> tuple[Observation, ...]:
    """One message that need not come again, and how long after its event that was."""
    latency = max((now - event_time).total_seconds(), 0.0)
    return (
        Observation(name="karpenter_interruption_message_queue_duration_seconds", value=latency, kind="histogram"),
        Observation(name="karpenter_interruption_deleted_messages_total"),
    )


def terminate_on_interruption(node: StateNode, claim: NodeClaim, kind: InterruptionKind, *first: Action) -> Plan:
    """Delete the claim, and cordon its node in a chain of its own, so that a conflict never holds up the deletion.

    Args:
        node: The node as far as there is one.
        claim: Its claim.
        kind: What was said about the instance.
        first: What must be written on the claim before it is deleted.
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
    """Requeue the steps that carry on."""
    return Plan(
        chains=(
            chain_of("requeues", *(Requeue(step=step, at=now, reason=f"interruption: {kind.value}") for step in steps)),
        )
    )


def interruption_events(node: StateNode, kind: InterruptionKind, *, type_: str) -> tuple[Event, ...]:
    """The Events on claim and node that say what was received."""
    reason, message = EVENTS_BY_KIND[kind]
    return tuple(Event(ref=ref, reason=reason, message=message, type=type_) for ref in event_refs(node))


def _termination_events(node: StateNode) -> tuple[Event, ...]:
    return tuple(
        Event(
            ref=ref,
            reason="TerminatingOnInterruption",
            message=f"Interruption triggered termination for the {ref.resource.kind}",
            type="Warning",
        )
        for ref in event_refs(node)
    )
