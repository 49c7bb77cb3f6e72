"""Why nodes stay: for every node the reason and the smallest change that would free it, and the condition that says so.

::

    candidate filter ─► pause ─► policy ─► consolidateAfter ─► budget ─► back-off ─► what the simulation of its removal found
    (annotation, PDB …)                                                              (pod that fits nowhere, price, minValues)

The first of these that applies is the reason. It is written as the condition `Disruptable` (False, one word as reason) of the
NodeClaim, which Ready does not depend on and Karpenter ignores, so that `kubectl get nodeclaim -o yaml` and
`journeyman explain node` show it as long as it holds; Events say the same, but expire.

A condition costs a write, so it changes with the reason and the objects that the message names, not with amounts and times in
it; a reason that passes within minutes does not replace another one; and a run writes `WRITES_PER_RUN` at most, the others in
the next run.

Differs: Karpenter says it in Events only, without a change that would help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from math import inf
from typing import Final

import numpy as np
from msgspec import Struct

from journeyman.core.api.conditions import DISRUPTABLE, DRIFTED, format_time, set_condition, to_wire
from journeyman.core.api.objects import Condition, NodeClaim, condition_of, is_true
from journeyman.core.api.resources import Resources, pod_requests, subtract, total_requests
from journeyman.core.api.wording import counted, describe_amount, listed, verb_of
from journeyman.core.disruption.budgets import BudgetStatus
from journeyman.core.disruption.candidates import Blocked, Candidate, CandidateList, DisruptionReason, NodePoolName
from journeyman.core.disruption.circuit_breaker import CircuitBreaker
from journeyman.core.disruption.commands import Command, NoOpCause, SimulationResult, claims_in_commands
from journeyman.core.disruption.consolidatable import Consolidatability, consolidate_after
from journeyman.core.disruption.consolidation import worst_launch_price
from journeyman.core.disruption.fleet_examination import SMALLEST_PRICE, NodeExamination, Shortage
from journeyman.core.disruption.simulation import Simulation
from journeyman.core.disruption.single_node_consolidation import unconsolidatable_reason
from journeyman.core.disruption.static_drift import has_headroom, without_headroom
from journeyman.core.disruption.static_nodepool_state import static_nodepools
from journeyman.core.plan import PatchObject, Plan, Requeue, Step, chain_of, claim_ref, next_requeue
from journeyman.core.scheduling import requirements as algebra
from journeyman.core.scheduling.arrays import Floats
from journeyman.core.scheduling.node_removal import NODE_CONSTRAINTS
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.skipped_objects import plan_for_each

WRITES_PER_RUN: Final = 200
BRIEF: Final = timedelta(minutes=5)
"""A reason that passes by itself within this time does not replace another one."""
YOUNG: Final = timedelta(minutes=15)
"""A NodeClaim is not that old: what it waits for is in its other conditions."""
_NOT_WRITTEN: Final = frozenset({"Deleting", "Expiring"})


class NodeStays(Struct, frozen=True, kw_only=True):
    """Why the node of a NodeClaim stays."""

    nodeclaim: str
    blocked: Blocked

    @property
    def message(self) -> str:
        """The condition's message."""
        change = self.blocked.change
        return f"{self.blocked.why}. Smallest change: {change}" if change else self.blocked.why


def why_nodes_stay(
    found: CandidateList,
    snapshot: Snapshot,
    *,
    circuit_breaker: CircuitBreaker,
    consolidatability: Consolidatability,
    budgets: Callable[[DisruptionReason], Mapping[NodePoolName, BudgetStatus]],
    why_backoff: Callable[[Candidate], str],
    examined: Mapping[str, Blocked],
) -> tuple[NodeStays, ...]:
    """Return why nodes stay, by NodeClaim; nothing about nodes that a command disrupts, and those about which nothing is known.

    Args:
        found: Candidates, paused ones included, and the nodes that are none.
        snapshot: The cluster.
        circuit_breaker: Which NodePools are paused.
        consolidatability: Which NodeClaims are consolidatable, and when the others will be.
        budgets: Returns the budgets of every NodePool for a reason.
        why_backoff: Returns why consolidation backs off from a candidate; empty if it does not.
        examined: What the methods have found about candidates in this run, by NodeClaim (`RemovalExplainer`).
    """
    by_reason = {reason: budgets(reason) for reason in (DisruptionReason.EMPTY, DisruptionReason.UNDERUTILIZED)}
    reasons: dict[str, Blocked | None] = {str(name): blocked for name, blocked in found.blocked.items()}
    for candidate in found.candidates:
        reasons[candidate.nodeclaim] = (
            _paused(candidate, circuit_breaker)
            or _excluded_by_policy(candidate, snapshot)
            or _within_consolidate_after(candidate, consolidatability, snapshot.now)
            or _over_budget(candidate, by_reason)
            or _in_backoff(candidate, why_backoff)
            or examined.get(candidate.nodeclaim)
        )
    return tuple(
        NodeStays(nodeclaim=name, blocked=blocked) for name, blocked in sorted(reasons.items()) if blocked is not None
    )


def _paused(candidate: Candidate, breaker: CircuitBreaker) -> Blocked | None:
    why = breaker.why_paused(candidate.nodepool)
    return Blocked(reason="Paused", why=why) if why else None


def _excluded_by_policy(candidate: Candidate, snapshot: Snapshot) -> Blocked | None:
    pool, disruption = candidate.nodepool, snapshot.node_pools_by_name[candidate.nodepool].spec.disruption
    if snapshot.node_pools_by_name[pool].spec.static:
        return _stays_in_static_pool(candidate, snapshot)
    why = unconsolidatable_reason(candidate, snapshot)
    if not why:
        return None
    if consolidate_after(snapshot.node_pools_by_name[pool]) is None:
        return Blocked(
            reason="ConsolidationDisabled", why=why, change=f"Set consolidateAfter of NodePool {pool} to a duration"
        )
    if disruption.consolidation_policy == "WhenEmpty" and not candidate.is_empty:
        change = f"Set consolidationPolicy of NodePool {pool} to WhenEmptyOrUnderutilized"
        return Blocked(reason="ConsolidationPolicy", why=why, change=change)
    return Blocked(reason="Unconsolidatable", why=why)


def _stays_in_static_pool(candidate: Candidate, snapshot: Snapshot) -> Blocked:
    """Return why a node of a static NodePool stays: it is needed; or it has drifted, and is replaced as soon as that is allowed."""
    name, claim = candidate.nodepool, snapshot.claims_by_name[candidate.nodeclaim]
    why = f"NodePool {name} is static and keeps its number of nodes"
    if not is_true(claim.status.conditions, DRIFTED):
        return Blocked(reason="StaticNodePool", why=why, change=f"Lower replicas of NodePool {name}")
    for pool in static_nodepools(snapshot.claims, (snapshot.node_pools_by_name[name],)):
        if not has_headroom(pool):
            return without_headroom(pool)
    why += "; it has drifted, and is replaced as the budgets for Drifted allow"
    return Blocked(reason="StaticNodePool", why=why)


def _within_consolidate_after(
    candidate: Candidate, consolidatability: Consolidatability, now: datetime
) -> Blocked | None:
    end = consolidatability.ends.get(candidate.nodeclaim)
    if candidate.consolidatable or end is None:
        return None
    return Blocked(
        reason="ConsolidateAfter",
        why=f"Its pods changed lately: consolidateAfter of NodePool {candidate.nodepool} ends at {format_time(end)}",
        is_brief=end - now <= BRIEF,
    )


def _over_budget(
    candidate: Candidate, budgets: Mapping[DisruptionReason, Mapping[NodePoolName, BudgetStatus]]
) -> Blocked | None:
    reason = DisruptionReason.EMPTY if candidate.is_empty else DisruptionReason.UNDERUTILIZED
    status = budgets[reason].get(candidate.nodepool)
    if status is None or status.remaining > 0:
        return None
    pool, used = candidate.nodepool, status.disrupting
    return Blocked(
        reason="Budget",
        why=f"The budgets of NodePool {pool} allow {counted(status.allowed, 'disrupted node')} for reason "
        f"{reason.value}, and {used} {verb_of(used, 'is', 'are')} disrupted or not ready",
        change=f"Let the budgets of NodePool {pool} allow {counted(used + 1, 'node')} now"
        + (f", or wait until {verb_of(used, 'this node is', 'these nodes are')} done" if used else ""),
        is_brief=status.allowed > 0,
    )


def _in_backoff(candidate: Candidate, why_backoff: Callable[[Candidate], str]) -> Blocked | None:
    why = "" if candidate.is_empty else why_backoff(candidate)
    return Blocked(reason="BackOff", why=why) if why else None


# -- what the examination of the fleet, or the simulation of a node's removal found ----------------------------------------------------------------------


def explain_examination(examination: NodeExamination) -> Blocked:
    """Return why a node stays of which the examination of the fleet found that no command can remove it."""
    change = _smallest_change(examination.shortage) if examination.shortage is not None else ""
    has_replacement = not examination.error and examination.shadow_value < inf
    return Blocked(reason="Price" if has_replacement else "PodsDoNotFit", why=examination.why_not, change=change)


_RELAXED: Final[Mapping[str, str]] = {
    "host rules": "the anti-affinity, spread, host ports or volumes",
    "preferences": "the preferences",
}
"""What would have to change of a pod, by `Shortage.resource`."""


def _smallest_change(short: Shortage) -> str:
    """Return what must be freed on the node that lacks least, or which rule of the pod must be relaxed."""
    more = (
        f", and make capacity for {counted(short.without_capacity - 1, 'more pod')}"
        if short.without_capacity > 1
        else ""
    )
    if short.amount:
        amount = describe_amount(short.resource, short.amount, round_up=True)
        return f"Free {amount} on Node {short.node} for Pod {short.pod}{more}"
    if short.resource == NODE_CONSTRAINTS:
        return f"Add a node that can run Pod {short.pod}, or relax its node selector, node affinity or tolerations"
    relaxed = _RELAXED.get(short.resource, f"the rules over {short.resource}")
    return f"Relax {relaxed} of Pod {short.pod}{more}"


class RemovalExplainer:
    """Explains no-ops of single-node consolidation; reads the free amounts of nodes once."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._snapshot = simulation.snapshot

    def explain(self, candidate: Candidate, command: Command) -> Blocked | None:
        """Return why the candidate's removal is not worth it or not possible; None if the command is no no-op."""
        if command.candidates or not command.why_not:
            return None
        result = command.simulation_result
        if result is None:
            return Blocked(reason="Unconsolidatable", why=command.why_not)
        if result.errors:
            pod = min(result.errors)
            error = result.results.pod_errors.get(pod)
            change = error.smallest_change if error is not None else ""
            return Blocked(
                reason="PodsDoNotFit",
                why=command.why_not,
                change=change or self._capacity_change(candidate, [pod], result),
            )
        new = result.results.new_claims
        on_new_nodes = sorted({pod for claim in new for pod in claim.pods} & set(candidate.reschedulable_pods))
        change = self._capacity_change(candidate, on_new_nodes, result)
        if len(new) != 1:
            return Blocked(reason="SeveralReplacements", why=command.why_not, change=change)
        pool = new[0].node_pool
        if command.cause is NoOpCause.SPOT_TO_SPOT_DISABLED:
            change = "Enable the feature gate SpotToSpotConsolidation"
            return Blocked(reason="SpotToSpot", why=command.why_not, change=change)
        if command.cause is NoOpCause.TOO_FEW_SPOT_TYPES:
            change = f"Allow more instance types in NodePool {pool}"
            return Blocked(reason="SpotToSpot", why=command.why_not, change=change)
        if command.cause is NoOpCause.MIN_VALUES:
            change = f"Lower minValues of NodePool {pool}"
            return Blocked(reason="MinValues", why=command.why_not, change=change)
        return Blocked(reason="Price", why=f"{command.why_not}{self._prices(candidate, result)}", change=change)

    def _prices(self, candidate: Candidate, result: SimulationResult) -> str:
        """Return the prices of the cheapest replacement and of the node, and how much the replacement lacks, as text."""
        claim = result.results.new_claims[0]
        requirements, options = algebra.from_selectors(claim.requirements), set(claim.instance_types)
        types = self._simulation.catalogue.instance_types(claim.node_pool)
        priced = ((worst_launch_price(t, requirements), t.name) for t in types if t.name in options)
        cheapest = min(((price, name) for price, name in priced if price is not None), default=None)
        if cheapest is None:
            return ""
        price, name = cheapest
        excess = f", {price - candidate.price:.4f} more" if price - candidate.price >= SMALLEST_PRICE else ""
        return f": the cheapest one, {name}, costs {price:.4f} per hour{excess}, and must cost less than the node, {candidate.price:.4f}"

    def _capacity_change(self, candidate: Candidate, pods: Sequence[str], result: SimulationResult) -> str:
        """Return what must be freed on other nodes for these pods; empty without pods."""
        by_key = {pod.key: pod for pod in result.pods}
        known = [by_key[key] for key in pods if key in by_key]
        if not known:
            return ""
        planned = {
            node: total_requests(by_key[key] for key in keys if key in by_key)
            for node, keys in result.results.existing.items()
        }
        nearest = self._free_capacity.nearest(pod_requests(known[0]), result.excluded_nodes | {candidate.node}, planned)
        pod, others = f"Pod {known[0].key}", f" and {counted(len(known) - 1, 'more pod')}" if len(known) > 1 else ""
        if nearest is None:
            return f"Add a node that can run {pod}{others}"
        node, missing = nearest
        if not missing:
            return f"Relax the constraints of {pod}{others}, or the taints of Node {node}, which has the resources"
        amounts = listed((describe_amount(name, value, round_up=True) for name, value in missing.items()), "and")
        more = f", and make capacity for {counted(len(known) - 1, 'more pod')}" if others else ""
        return f"Free {amounts} on Node {node} for {pod}{more}"

    @cached_property
    def _free_capacity(self) -> _FreeCapacity:
        return _FreeCapacity.of(self._snapshot)


class _FreeCapacity(Struct, frozen=True, kw_only=True, eq=False):
    """The free amounts of usable nodes.

    Attributes:
        rows: The row of each node, by its name; in order of the names.
        columns: The column of each resource, by its name.
        free: What is free on each node.
        total: What pods may use of each node if it is empty.
    """

    rows: Mapping[str, int]
    columns: Mapping[str, int]
    free: Floats
    total: Floats

    @classmethod
    def of(cls, snapshot: Snapshot) -> _FreeCapacity:
        nodes = [node for node in snapshot.state_nodes if _is_usable(node)]
        allocatable = [node.allocatable() for node in nodes]
        resources = sorted({name for amounts in allocatable for name in amounts})
        free = [subtract(amounts, total_requests(node.pods)) for node, amounts in zip(nodes, allocatable, strict=True)]

        def table(rows: Iterable[Resources]) -> Floats:
            values = [[float(row.get(name, 0)) for name in resources] for row in rows]
            return np.array(values, dtype=np.float64).reshape(len(nodes), len(resources))

        return cls(
            rows={node.name: row for row, node in enumerate(nodes)},
            columns={name: column for column, name in enumerate(resources)},
            free=table(free),
            total=table(allocatable),
        )

    def nearest(
        self, requests: Resources, without: Iterable[str], planned: Mapping[str, Resources]
    ) -> tuple[str, dict[str, int]] | None:
        """Return the node that lacks least of a pod's requests, in proportion to its size, and what it lacks.

        None if no node is large enough.

        Args:
            requests: What the pod requests.
            without: Names of nodes that do not count.
            planned: What other pods will take on each node.
        """
        wanted = np.array([float(requests.get(name, 0)) for name in self.columns])
        is_left_out = np.zeros(len(self.rows), dtype=np.bool_)
        is_left_out[[self.rows[name] for name in without if name in self.rows]] = True
        is_possible = (wanted <= self.total).all(axis=1) & ~is_left_out
        if not is_possible.any() or any(amount and name not in self.columns for name, amount in requests.items()):
            return None
        free = self.free.copy()
        for node, amounts in planned.items():
            for name, amount in amounts.items():
                if node in self.rows and name in self.columns:
                    free[self.rows[node], self.columns[name]] -= amount
        missing = np.where(wanted > 0, np.maximum(wanted - free, 0.0), 0.0)
        share = (missing / np.maximum(self.total, 1.0)).sum(axis=1)
        row = int(np.argmin(np.where(is_possible, share, np.inf)))
        node = next(name for name, place in self.rows.items() if place == row)
        return node, {name: int(missing[row, c]) for name, c in self.columns.items() if missing[row, c]}


def _is_usable(node: StateNode) -> bool:
    if node.node is None or not node.initialized or node.is_being_disrupted:
        return False
    return not node.node.spec.unschedulable


# -- the condition ------------------------------------------------------------------------------------------------------


def disruptable_conditions(snapshot: Snapshot, stays: Iterable[NodeStays], poll: timedelta) -> Plan:
    """Return the plan that writes the condition Disruptable where its reason changed, and removes it from nodes of commands.

    Args:
        snapshot: The cluster as stored now, with what this run has written: a patch replaces all conditions.
        stays: Why nodes stay; the condition of others is left as it is.
        poll: When to requeue, if more than `WRITES_PER_RUN` are due.
    """
    reasons = {one.nodeclaim: one for one in stays}
    leaving = claims_in_commands(snapshot)
    due: list[tuple[bool, str, NodeClaim, NodeStays | None]] = []
    for claim in snapshot.claims:
        stored, name = condition_of(claim.status.conditions, DISRUPTABLE), claim.metadata.name
        if claim.metadata.deletion_timestamp is not None:
            continue
        if name in leaving:
            if stored is not None:
                due.append((False, name, claim, None))
        elif (one := reasons.get(name)) is not None and _is_due(claim, stored, one, snapshot.now):
            due.append((stored is not None, name, claim, one))
    due.sort(key=lambda entry: entry[:2])
    plan = plan_for_each(
        due[:WRITES_PER_RUN], lambda entry: _write(entry[2], entry[3], snapshot.now), about=lambda e: e[2]
    )
    if len(due) <= WRITES_PER_RUN:
        return plan
    reason = f"the condition {DISRUPTABLE} of {len(due) - WRITES_PER_RUN} more NodeClaims"
    requeue = Requeue(step=Step.CONSOLIDATE, at=next_requeue(snapshot.now, poll), reason=reason)
    return plan + Plan(chains=(chain_of("requeues", requeue),))


def _is_due(claim: NodeClaim, stored: Condition | None, stays: NodeStays, now: datetime) -> bool:
    if stays.blocked.reason in _NOT_WRITTEN:
        return False
    if stays.blocked.is_brief:
        created = claim.metadata.creation_timestamp
        return stored is None and created is not None and now - created > YOUNG
    if stored is None:
        return True
    return stored.reason != stays.blocked.reason or _words(stored.message) != _words(stays.message)


def _words(message: str) -> list[str]:
    """Return the words of a message, with one word for all amounts, prices and times, which change all the time."""
    return ["#" if word[:1].isdigit() else word for word in message.split()]


def _write(claim: NodeClaim, stays: NodeStays | None, now: datetime) -> Plan:
    conditions = claim.status.conditions
    if stays is None:
        conditions, why = tuple(c for c in conditions if c.type != DISRUPTABLE), "a command disrupts the node"
    else:
        reason, why = stays.blocked.reason, f"the node stays: {stays.blocked.reason}"
        generation, message = claim.metadata.generation, stays.message
        conditions = set_condition(
            conditions, DISRUPTABLE, "False", now=now, generation=generation, reason=reason, message=message
        )
    patch = PatchObject(
        ref=claim_ref(claim),
        patch={"status": {"conditions": to_wire(conditions)}},
        why=why,
        resource_version=claim.metadata.resource_version,
        subresource="status",
    )
    return Plan(chains=(chain_of(f"NodeClaim {claim.metadata.name}", patch),))
