"""Health: nodes with an unhealthy condition, and impaired instances, are terminated by force.

Node repair::

    a condition of a repair policy ─► toleration over ─► how many nodes of the NodePool are unhealthy?
                                                          ├ up to 20 %, rounded up ─► NodeClaim deleted by force
                                                          └ more ─► Event NodeRepairBlocked

If many nodes are unhealthy at once, new nodes probably share the cause: an image, a network, an agent.

The cloud's status checks:

======================  ============================================================================================
instance, system check  failed for two minutes: the instance does not work, so termination is forced
scheduled event         retirement, maintenance or reboot: the node is drained now
======================  ============================================================================================

Forced termination sets the termination time to now: the drain then deletes pods without the Eviction API.

Restates: karpenter pkg/controllers/node/health/controller.go `Reconcile`, `annotateTerminationGracePeriod`;
karpenter-provider-aws pkg/controllers/interruption/instancestatus_controller.go `Reconcile`,
pkg/providers/instancestatus/instancestatus.go `List`.
Differs: a blocked repair is checked again every two minutes (Karpenter: five); a condition without a transition time is never
due; Events on NodeClaim and Node say why the node is disrupted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from math import inf
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import format_time, parse_time
from journeyman.core.api.duration import time_after
from journeyman.core.api.objects import Condition, Node, NodeClaim, Pod, condition_of
from journeyman.core.lifecycle.interruption import (
    EVENTS_BY_KIND,
    InterruptionKind,
    requeue_steps,
    terminate_on_interruption,
)
from journeyman.core.plan import (
    Chain,
    DeleteObject,
    Event,
    Observation,
    PatchObject,
    Plan,
    Requeue,
    Step,
    chain_of,
    claim_ref,
    node_ref,
)
from journeyman.core.state import InstanceStatus, RepairPolicy, Snapshot, StateNode
from journeyman.core.state.nodeclaim_metrics import disruption_started
from journeyman.core.state.skipped_objects import SkippedObject, evaluate, plan_for_each, report_skipped


def force_termination(claim: NodeClaim, now: datetime, why: str) -> tuple[PatchObject, ...]:
    """Return the patch that sets the NodeClaim's termination time to now; nothing if it has passed already.

    Restates: karpenter pkg/controllers/node/health/controller.go `annotateTerminationGracePeriod`.
    """
    end = parse_time(claim.metadata.annotations.get(labels.TERMINATION_TIMESTAMP, ""))
    if end is not None and end <= now:
        return ()
    annotations = {labels.TERMINATION_TIMESTAMP: format_time(now)}
    return (PatchObject(ref=claim_ref(claim), patch={"metadata": {"annotations": annotations}}, why=why),)


ALLOWED_UNHEALTHY_PERCENT: Final = 20  # karpenter pkg/controllers/node/health/controller.go `allowedUnhealthyPercent`


class UnhealthyNodeCondition(Struct, frozen=True, kw_only=True):
    """A condition that makes a node unhealthy, and when its toleration is over: None if it has no transition time."""

    condition: Condition
    due: datetime | None

    def __str__(self) -> str:
        return f"{self.condition.type}={self.condition.status}"


def repair_nodes(snapshot: Snapshot, policies: Sequence[RepairPolicy]) -> Plan:
    """Repair unhealthy nodes whose conditions have lasted longer than the policies tolerate.

    Args:
        snapshot: NodeClaims and nodes.
        policies: The cloud provider's repair policies.

    Returns:
        For each node whose toleration is over: termination time now and the deletion of its NodeClaim, or the Event
        NodeRepairBlocked. For each other unhealthy node: a requeue for the end of the toleration. A NodeClaim that is already
        terminating only gets the termination time.

    Restates: karpenter pkg/controllers/node/health/controller.go `Reconcile`.
    """
    return _NodeRepair(snapshot=snapshot, policies=tuple(policies)).plan()


def find_unhealthy_condition(node: Node, policies: Iterable[RepairPolicy]) -> UnhealthyNodeCondition | None:
    """Return the unhealthy condition whose toleration ends first; None if the node is healthy.

    Restates: karpenter pkg/controllers/node/health/controller.go `findUnhealthyConditions`.
    """
    found = [
        UnhealthyNodeCondition(condition=condition, due=_due(condition, policy))
        for policy in policies
        if (condition := condition_of(node.status.conditions, policy.condition)) and condition.status == policy.status
    ]
    return min(found, key=_repair_order, default=None)


def is_repair_due(node: Node, policies: Iterable[RepairPolicy], now: datetime) -> bool:
    """Whether a condition of the node has been unhealthy for longer than tolerated."""
    unhealthy = find_unhealthy_condition(node, policies)
    return unhealthy is not None and unhealthy.due is not None and now >= unhealthy.due


def _repair_order(unhealthy: UnhealthyNodeCondition) -> tuple[float, str]:
    return (inf if unhealthy.due is None else unhealthy.due.timestamp(), unhealthy.condition.type)


def _due(condition: Condition, policy: RepairPolicy) -> datetime | None:
    return condition.last_transition_time and time_after(condition.last_transition_time, policy.tolerated_for)


class _NodeRepair(Struct, frozen=True, kw_only=True, dict=True):
    """The nodes of a snapshot, with the conditions that make them unhealthy."""

    snapshot: Snapshot
    policies: tuple[RepairPolicy, ...]

    def plan(self) -> Plan:
        """Return what to do for all unhealthy nodes with a NodeClaim."""
        return plan_for_each(self.snapshot.state_nodes, self._decide)

    def _decide(self, state: StateNode) -> Plan:
        if state.claim is None or state.node is None:
            return Plan()
        unhealthy = self._unhealthy.get(state.node.metadata.name)
        if isinstance(unhealthy, SkippedObject):
            return report_skipped((unhealthy,))
        return self._repair_node(state.claim, state.node, unhealthy) if unhealthy is not None else Plan()

    def _repair_node(self, claim: NodeClaim, node: Node, unhealthy: UnhealthyNodeCondition) -> Plan:
        now = self.snapshot.now
        if unhealthy.due is None:
            return Plan(
                notes=(
                    f"node {node.metadata.name} is unhealthy ({unhealthy}), but its condition has no transition time",
                )
            )
        if now < unhealthy.due:
            reason = f"node {node.metadata.name} will have been {unhealthy} for longer than tolerated"
            return Plan(chains=(chain_of("requeues", Requeue(step=Step.TERMINATE, at=unhealthy.due, reason=reason)),))
        if blocked := self._blocked_reason(claim):
            event = Event(ref=node_ref(node), reason="NodeRepairBlocked", message=blocked, type="Warning")
            return Plan(events=(event,), notes=(f"node {node.metadata.name} is not repaired: {blocked}",))
        pods = self.snapshot.pods_by_node.get(node.metadata.name, ())
        return _delete_unhealthy(claim, node, unhealthy, pods, now)

    def _blocked_reason(self, claim: NodeClaim) -> str:
        """Return a message if too many nodes of the NodePool are unhealthy (of the cluster, without a NodePool); empty if not.

        Restates: karpenter pkg/controllers/node/health/controller.go `isNodePoolHealthy`, `isClusterHealthy`.
        """
        pool = claim.metadata.labels.get(labels.NODEPOOL)
        peers = self.snapshot.nodes if pool is None else self._by_pool.get(pool, [])
        unhealthy = sum(1 for node in peers if node.metadata.name in self._unhealthy)
        allowed = -(-len(peers) * ALLOWED_UNHEALTHY_PERCENT // 100)
        if unhealthy <= allowed:
            return ""
        scope = "cluster" if pool is None else "nodepool"
        return f"more than {ALLOWED_UNHEALTHY_PERCENT}% nodes are unhealthy in the {scope}"

    @cached_property
    def _unhealthy(self) -> Mapping[str, UnhealthyNodeCondition | SkippedObject]:
        """Unhealthy conditions by node name, of terminating nodes as well; nodes that cannot be evaluated count as unhealthy."""
        found = (
            (node.metadata.name, evaluate(node, find_unhealthy_condition, node, self.policies))
            for node in self.snapshot.nodes
        )
        return {name: unhealthy for name, unhealthy in found if unhealthy is not None}

    @cached_property
    def _by_pool(self) -> Mapping[str, list[Node]]:
        pools: dict[str, list[Node]] = {}
        for node in self.snapshot.nodes:
            pools.setdefault(node.metadata.labels.get(labels.NODEPOOL, ""), []).append(node)
        return pools


def _delete_unhealthy(
    claim: NodeClaim, node: Node, unhealthy: UnhealthyNodeCondition, pods: Iterable[Pod], now: datetime
) -> Plan:
    name = claim.metadata.name
    why = f"node {node.metadata.name} is unhealthy: {unhealthy}"
    force = force_termination(claim, now, why)
    if claim.metadata.deletion_timestamp is not None:
        return Plan(chains=(chain_of(f"NodeClaim {name}", *force, *_requeues(why, now)),)) if force else Plan()
    chain = Chain(
        subject=f"NodeClaim {name}",
        actions=(*force, DeleteObject(ref=claim_ref(claim), why=why), *_requeues(why, now)),
        events=_disruption_events(claim, node, unhealthy),
        observations=(*disruption_started(claim, "unhealthy", pods), _unhealthy_metric(claim, unhealthy)),
    )
    return Plan(chains=(chain,), notes=(f"repairing NodeClaim {name}: {why}",))


def _requeues(why: str, now: datetime) -> tuple[Requeue, ...]:
    return tuple(Requeue(step=step, at=now, reason=why) for step in (Step.PROVISION, Step.TERMINATE))


def _disruption_events(claim: NodeClaim, node: Node, unhealthy: UnhealthyNodeCondition) -> tuple[Event, ...]:
    return tuple(
        Event(
            ref=ref,
            reason="DisruptionTerminating",
            message=f"Disrupting {ref.resource.kind}: Unhealthy ({unhealthy})",
            key="Unhealthy",
        )
        for ref in (claim_ref(claim), node_ref(node))
    )


def _unhealthy_metric(claim: NodeClaim, unhealthy: UnhealthyNodeCondition) -> Observation:
    return Observation(
        name="karpenter_nodeclaims_unhealthy_disrupted_total",
        labels={
            "condition": re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", unhealthy.condition.type).lower(),
            "nodepool": claim.metadata.labels.get(labels.NODEPOOL, ""),
            "capacity_type": claim.metadata.labels.get(labels.CAPACITY_TYPE, ""),
            "image_id": claim.status.image_id,
        },
    )


INTERRUPTION_KINDS: Final[Mapping[str, InterruptionKind]] = {
    "InstanceStatus": InterruptionKind.INSTANCE_STATUS,
    "SystemStatus": InterruptionKind.SYSTEM_STATUS,
    "EventStatus": InterruptionKind.EVENT_STATUS,
}
"""The kind of interruption for each category of a status check."""


def terminate_impaired_instances(
    snapshot: Snapshot, statuses: Iterable[InstanceStatus], impaired_for: timedelta
) -> Plan:
    """Delete the NodeClaims of instances with failed status checks or scheduled events.

    Args:
        snapshot: NodeClaims and nodes.
        statuses: Failed checks and events that the cloud reports; instances of others may be among them.
        impaired_for: How long a check must have failed.

    Returns:
        The deletion of each affected NodeClaim, and requeues. Nothing for a NodeClaim that is already terminating.

    Restates: karpenter-provider-aws pkg/controllers/interruption/instancestatus_controller.go `Reconcile`.
    """
    due = [s for s in statuses if s.category in INTERRUPTION_KINDS and _is_due(s, snapshot.now, impaired_for)]
    by_instance: dict[str, list[InstanceStatus]] = {}
    for status in due:
        by_instance.setdefault(status.provider_id, []).append(status)
    running = (n for n in snapshot.state_nodes if n.claim is not None and not n.is_terminating and not n.duplicate_of)
    impaired = (n for n in running if n.provider_id in by_instance)
    return plan_for_each(impaired, lambda n: _terminate_impaired(n, by_instance[n.provider_id], snapshot.now))


def next_status_check(statuses: Iterable[InstanceStatus], now: datetime, impaired_for: timedelta) -> datetime | None:
    """Return when the next failing check will have failed for `impaired_for`; None if there is none."""
    ends = (s.since + impaired_for for s in statuses if s.since is not None)
    return min((end for end in ends if end > now), default=None)


def _is_due(status: InstanceStatus, now: datetime, impaired_for: timedelta) -> bool:
    """Whether the NodeClaim is deleted now: for a scheduled event at once, for a check once it has failed for this long."""
    if INTERRUPTION_KINDS[status.category] is InterruptionKind.EVENT_STATUS:
        return True
    return status.since is not None and now - status.since >= impaired_for


def _terminate_impaired(node: StateNode, statuses: Sequence[InstanceStatus], now: datetime) -> Plan:
    """Delete the NodeClaim, by force if an instance check or a system check failed."""
    assert node.claim is not None  # noqa: S101 - the caller's
    kinds = sorted({INTERRUPTION_KINDS[s.category] for s in statuses}, key=list(InterruptionKind).index)
    kind = kinds[0]
    forced = (
        () if kind is InterruptionKind.EVENT_STATUS else force_termination(node.claim, now, EVENTS_BY_KIND[kind][1])
    )
    plan = terminate_on_interruption(node, node.claim, kind, *forced)
    first, *rest = plan.chains
    deletion = replace(first, observations=(*first.observations, *_impairment_metrics(statuses)))
    return replace(plan, chains=(deletion, *rest)) + requeue_steps(kind, now, Step.PROVISION, Step.TERMINATE)


def _impairment_metrics(statuses: Iterable[InstanceStatus]) -> tuple[Observation, ...]:
    """Return one count for each category."""
    return tuple(
        Observation(name="karpenter_interruption_instance_status_unhealthy_total", labels={"category": category})
        for category in sorted({s.category for s in statuses})
    )
