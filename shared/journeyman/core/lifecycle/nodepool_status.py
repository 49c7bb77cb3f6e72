"""NodePool status: validation, NodeClass readiness, resource counts, registration health, and the hash of the template.

NodeRegistrationHealthy is informational. The annotation `registration-history` has whether the NodePool's last four NodeClaims
registered, oldest first: "<NodeClass generation>/<NodePool generation>:SSFS". A new generation starts a new history.

Restates: karpenter pkg/controllers/nodepool/validation/controller.go `Reconcile`,
pkg/controllers/nodepool/hash/controller.go `Reconcile`.
Differs: the history is stored in the NodePool, Karpenter's in memory; an outcome is lost if the run crashes between the writes
of NodeClaim and NodePool. An instance that ends before its node registers counts as a failure at once; Karpenter waits for the
timeout.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.conditions import (
    INITIALIZED,
    LAUNCHED,
    NODE_CLASS_READY,
    NODE_REGISTRATION_HEALTHY,
    NODEPOOL_DEPENDENTS,
    REGISTERED,
    VALIDATION_SUCCEEDED,
    ConditionSet,
)
from journeyman.core.api.hashes import node_pool_hash_annotations
from journeyman.core.api.launch_faults import LaunchFault
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NODEPOOL, NodeClaim, condition_of, is_true
from journeyman.core.api.resources import (
    CPU,
    EPHEMERAL_STORAGE,
    MEMORY,
    NODES,
    PODS,
    Resources,
    add,
    format_resources,
)
from journeyman.core.lifecycle.liveness import (
    LivenessTimeouts,
    ends_early,
    is_initialization_overdue,
    timeout_reason,
)
from journeyman.core.plan import Chain, ObjectRef, PatchObject, Plan, RecordLaunchFault, chain_of, merge_plans
from journeyman.core.state import InvalidObject, NodeClassState, Snapshot
from journeyman.core.state.condition_transitions import with_transitions
from journeyman.core.state.skipped_objects import SkippedObject, evaluate, plan_for_each, report_skipped
from journeyman.core.state.state_node import StateNode, one_per_instance

UNDECIDED: Final = frozenset({"", "AwaitingReconciliation", "ReconcilingDependents"})
"""Reasons of a NodeClass's Ready while it is Unknown."""

ALWAYS_COUNTED: Final = (CPU, MEMORY, PODS, EPHEMERAL_STORAGE, NODES)  # nodepool/counter/controller.go `BaseResources`


class NodePoolUsage(Struct, frozen=True, kw_only=True):
    """The capacity of a NodePool's nodes that are not leaving, and under `nodes` their number."""

    resources: Resources

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return self.resources.get(NODES, 0)

    def exceeded(self, limits: Resources) -> tuple[str, ...]:
        """Return the names of resources above their limit, sorted."""
        return tuple(sorted(name for name, limit in limits.items() if self.resources.get(name, 0) > limit))


NO_USAGE: Final = NodePoolUsage(resources={})


def reconcile_nodepools(
    snapshot: Snapshot, outcomes: Mapping[str, tuple[RegistrationOutcome, ...]] | None = None
) -> Plan:
    """Write the conditions, counts and hash of every NodePool where they changed.

    Args:
        snapshot: NodePools (invalid ones included), NodeClasses, NodeClaims and nodes.
        outcomes: By NodePool, the NodeClaims that registered or failed to in this run, oldest first.
    """
    usages, by_pool = usage_by_pool(snapshot), outcomes or {}

    def decide(pool: NodePool) -> Plan:
        name = pool.metadata.name
        return _reconcile(pool, snapshot, usages.get(name, NO_USAGE), by_pool.get(name, ()))

    invalid = (item for item in snapshot.invalid_objects if item.kind == NODEPOOL.kind)
    return merge_plans(
        (
            report_skipped(s for s in map(_counted_capacity, _counted_nodes(snapshot)) if isinstance(s, SkippedObject)),
            plan_for_each(snapshot.node_pools, decide),
            plan_for_each(invalid, lambda item: _reconcile_invalid(item, snapshot.now)),
        )
    )


def update_nodepool_counts(
    snapshot: Snapshot, outcomes: Mapping[str, tuple[RegistrationOutcome, ...]] | None = None
) -> Plan:
    """Write the counts and NodeRegistrationHealthy of every NodePool where they changed; needs no NodeClasses.

    Args:
        snapshot: NodePools, NodeClaims and nodes.
        outcomes: By NodePool, the NodeClaims that registered or failed to in this run, oldest first.

    Restates: karpenter pkg/controllers/nodepool/counter/controller.go `Reconcile`.
    """
    usages, by_pool = usage_by_pool(snapshot), outcomes or {}

    def decide(pool: NodePool) -> Plan:
        name = pool.metadata.name
        chain = _count_chain(pool, usages.get(name, NO_USAGE), by_pool.get(name, ()), snapshot.now)
        return Plan(chains=(chain,) if chain.actions else ())

    return plan_for_each(snapshot.node_pools, decide)


def usage_by_pool(snapshot: Snapshot) -> Mapping[str, NodePoolUsage]:
    """Return the usage of each NodePool: of its nodes, and of its launched NodeClaims whose node has not joined.

    Of a node with an invalid capacity only the number counts.

    Restates: karpenter pkg/controllers/state/cluster.go `NodePoolResourcesFor`, `updateNodePoolResources`.
    """
    sums: dict[str, dict[str, int]] = {}
    for node in _counted_nodes(snapshot):
        capacity = _counted_capacity(node)
        known = {} if isinstance(capacity, SkippedObject) else capacity
        sums[node.node_pool] = add(sums.get(node.node_pool, {}), known, {NODES: 1})
    return {name: NodePoolUsage(resources=total) for name, total in sums.items()}


def _counted_nodes(snapshot: Snapshot) -> tuple[StateNode, ...]:
    own = (n for n in snapshot.state_nodes if n.node_pool and n.provider_id and not n.duplicate_of)
    return one_per_instance(n for n in own if not n.is_leaving)


def _counted_capacity(node: StateNode) -> Resources | SkippedObject:
    return evaluate(node, node.capacity)


def _count_chain(
    pool: NodePool, usage: NodePoolUsage, outcomes: tuple[RegistrationOutcome, ...], now: datetime
) -> Chain:
    counts = _counts(pool, usage)
    if not outcomes:
        return _chain(pool, counts, {})
    health = update_registration_health(
        pool, _stored_conditions(pool), pool.status.node_class_observed_generation, outcomes, now
    )
    return _with_conditions(pool, counts, health.conditions, {labels.REGISTRATION_HISTORY: health.annotation})


def _reconcile(
    pool: NodePool, snapshot: Snapshot, usage: NodePoolUsage, outcomes: tuple[RegistrationOutcome, ...]
) -> Plan:
    node_class = snapshot.node_class_of(pool)
    conditions = _pool_conditions(pool, node_class, snapshot.now)
    status, annotations = _counts(pool, usage), node_pool_hash_annotations(pool)
    if node_class is not None:
        health = update_registration_health(pool, conditions, node_class.generation, outcomes, snapshot.now)
        conditions = health.conditions
        if health.annotation:
            annotations |= {labels.REGISTRATION_HISTORY: health.annotation}
        if node_class.generation != pool.status.node_class_observed_generation:
            status["nodeClassObservedGeneration"] = node_class.generation
    chain = _with_conditions(pool, status, conditions, annotations)
    return Plan(chains=(chain,) if chain.actions else ())


def _with_conditions(
    pool: NodePool, status: Mapping[str, Any], conditions: ConditionSet, annotations: Mapping[str, str]
) -> Chain:
    """Return the chain that writes these status fields, and conditions and annotations where they changed."""
    changed = {"conditions": conditions.to_wire()} if conditions.changed_from(pool.status.conditions) else {}
    stored = pool.metadata.annotations
    chain = _chain(pool, {**status, **changed}, {k: v for k, v in annotations.items() if stored.get(k) != v})
    ref = ObjectRef(resource=NODEPOOL, name=pool.metadata.name, uid=pool.metadata.uid)
    return with_transitions(chain, ref, {}, pool.status.conditions, conditions.conditions) if changed else chain


def _chain(pool: NodePool, status: Mapping[str, Any], annotations: Mapping[str, str]) -> Chain:
    """Return the patches of the status, at the version that was read, and of the annotations, which merge with any version."""
    meta = pool.metadata
    ref = ObjectRef(resource=NODEPOOL, name=meta.name, uid=meta.uid)
    actions: list[PatchObject] = []
    if status:
        version = meta.resource_version
        actions.append(
            PatchObject(
                ref=ref, patch={"status": status}, why="NodePool status", resource_version=version, subresource="status"
            )
        )
    if annotations:
        patch = {"metadata": {"annotations": dict(annotations)}}
        actions.append(PatchObject(ref=ref, patch=patch, why="NodePool hash and registration history"))
    return chain_of(f"NodePool {meta.name}", *actions)


def _counts(pool: NodePool, usage: NodePoolUsage) -> dict[str, Any]:
    """Return the changes of `status.resources` and `status.nodes`; None removes a resource."""
    resources = format_resources(add(dict.fromkeys(ALWAYS_COUNTED, 0), usage.resources))
    status: dict[str, Any] = {}
    if resources != pool.status.resources:
        removed = dict.fromkeys(pool.status.resources.keys() - resources.keys())
        status["resources"] = {**resources, **removed}
    if usage.nodes != pool.status.nodes:
        status["nodes"] = usage.nodes
    return status


def _pool_conditions(pool: NodePool, node_class: NodeClassState | None, now: datetime) -> ConditionSet:
    """Restates: karpenter pkg/controllers/nodepool/readiness/controller.go `Reconcile`, `setReadyCondition`."""
    conditions = _stored_conditions(pool).initialised(now).set_true(VALIDATION_SUCCEEDED, now)
    if node_class is None:
        return conditions.set_false(NODE_CLASS_READY, now, "NodeClassNotFound", "NodeClass not found on cluster")
    if node_class.deleting:
        return conditions.set_false(NODE_CLASS_READY, now, "NodeClassTerminating", "NodeClass is Terminating")
    if node_class.ready:
        return conditions.set_true(NODE_CLASS_READY, now)
    if node_class.reason in UNDECIDED:
        return conditions.set_unknown(
            NODE_CLASS_READY, now, "NodeClassReadinessUnknown", "NodeClass readiness is not known yet"
        )
    return conditions.set_false(NODE_CLASS_READY, now, node_class.reason, node_class.message)


def _stored_conditions(pool: NodePool) -> ConditionSet:
    return ConditionSet(
        conditions=pool.status.conditions,
        dependents=NODEPOOL_DEPENDENTS,
        generation=pool.metadata.generation,
        created=pool.metadata.creation_timestamp,
        deleting=pool.metadata.deletion_timestamp is not None,
    )


def _reconcile_invalid(item: InvalidObject, now: datetime) -> Plan:
    """Set ValidationSucceeded False on a NodePool that does not validate."""
    before = ConditionSet(
        conditions=item.conditions,
        dependents=NODEPOOL_DEPENDENTS,
        generation=item.generation,
        created=item.created,
    )
    after = before.initialised(now).set_false(VALIDATION_SUCCEEDED, now, "NodePoolValidationFailed", item.why)
    if not after.changed_from(item.conditions):
        return Plan()
    ref = ObjectRef(resource=NODEPOOL, name=item.name, uid=item.uid)
    patch = PatchObject(
        ref=ref,
        patch={"status": {"conditions": after.to_wire()}},
        why="NodePool status",
        resource_version=item.resource_version,
        subresource="status",
    )
    chain = with_transitions(chain_of(f"NodePool {item.name}", patch), ref, {}, item.conditions, after.conditions)
    return Plan(chains=(chain,), notes=(item.why,))


BUFFER_SIZE: Final = 4  # tracker.go `BufferSize`
FAILURE_THRESHOLD: Final = 2  # tracker.go `ThresholdFalse`

_SUCCESS, _FAILURE = "S", "F"


class RegistrationOutcome(Struct, frozen=True, kw_only=True):
    """Whether a NodeClaim registered; if it or its initialization failed, the reason and message for NodeRegistrationHealthy."""

    registered: bool
    reason: str = ""
    message: str = ""


class RegistrationHealth(Struct, frozen=True, kw_only=True):
    """A NodePool's conditions with NodeRegistrationHealthy, and the annotation with the history; empty if there is none."""

    conditions: ConditionSet
    annotation: str


def registration_outcomes(
    before: Snapshot,
    written: Mapping[str, NodeClaim | None],
    timeouts: LivenessTimeouts,
    ended: Collection[str] = frozenset(),
    refused: Iterable[RecordLaunchFault] = (),
) -> Mapping[str, tuple[RegistrationOutcome, ...]]:
    """Return the outcomes of NodeClaims that registered or failed to in this run, by NodePool, in the order of their names.

    Args:
        before: NodeClaims and NodePools as the run read them. Only NodeClaims with an owner reference to the NodePool count.
        written: NodeClaims that the run wrote, as they are stored now; None once deleted.
        timeouts: How long NodeClaims may take to launch and register.
        ended: Provider ids of instances that have ended; their NodeClaims that are unregistered, or registered minutes ago, have
            failed.
        refused: Faults of launches that this run recorded: of NodeClaims that were never seen, which count, and of those that
            failed to register, which say why.

    Restates: karpenter pkg/controllers/nodeclaim/lifecycle/{registration,liveness}.go `updateNodePoolRegistrationHealth`.
    """
    records = tuple(refused)
    causes = {record.node_pool: record.fault for record in records if not record.counts}
    found: dict[str, list[RegistrationOutcome]] = {}
    for claim in before.claims:
        name = claim.metadata.name
        pool = before.node_pools_by_name.get(claim.metadata.labels.get(labels.NODEPOOL, ""))
        if pool is None or name not in written or not is_owner(pool, claim):
            continue
        timed_out = bool(timeout_reason(claim, timeouts, before.now))
        failed = timed_out or (claim.status.provider_id in ended and ends_early(claim, before.now))
        overdue = is_initialization_overdue(before.state_nodes_by_claim[name], timeouts, before.now)
        cause = causes.get(pool.metadata.name)
        for outcome in _outcome(claim, written[name], cause, failed=failed, overdue=overdue):
            found.setdefault(pool.metadata.name, []).append(outcome)
    for record in records:
        if record.counts and record.node_pool in before.node_pools_by_name:
            refusal = RegistrationOutcome(registered=False, reason=record.fault.reason, message=record.fault.text)
            found.setdefault(record.node_pool, []).append(refusal)
    return {name: tuple(outcomes) for name, outcomes in found.items()}


def last_registrations(pool: NodePool, snapshot: Snapshot) -> tuple[bool, ...]:
    """Return whether the NodePool's last four NodeClaims registered, oldest first, as its annotation and condition say."""
    node_class = snapshot.node_class_of(pool)
    observed = pool.status.node_class_observed_generation
    generation = node_class.generation if node_class is not None else observed
    if generation != observed:
        return ()
    history = _recorded_history(pool, generation, _stored_conditions(pool))
    return tuple(each == _SUCCESS for each in history)


def update_registration_health(
    pool: NodePool, conditions: ConditionSet, generation: int, outcomes: Iterable[RegistrationOutcome], now: datetime
) -> RegistrationHealth:
    """Set NodeRegistrationHealthy from the outcomes of NodeClaims.

    Args:
        pool: The NodePool as it is stored.
        conditions: Its conditions so far.
        generation: The generation of its NodeClass.
        outcomes: Outcomes of this run, oldest first.
        now: The time.

    Returns:
        Unknown at first and after each change of NodePool or NodeClass; True once a NodeClaim registers and at most one of the
        last four failed to; False once two of the last four failed to.

    Restates: karpenter pkg/controllers/nodepool/registrationhealth/controller.go `Reconcile`;
    pkg/state/nodepoolhealth/tracker.go `Update`, `Status`.
    """
    condition = conditions.get(NODE_REGISTRATION_HEALTHY)
    observed = condition is not None and condition.observed_generation == pool.metadata.generation
    if observed and pool.status.node_class_observed_generation == generation:
        history = _recorded_history(pool, generation, conditions)
    else:
        history = ""
        conditions = conditions.set_unknown(
            NODE_REGISTRATION_HEALTHY, now, "AwaitingReconciliation", "object is awaiting reconciliation"
        )
    for outcome in outcomes:
        history = (history + (_SUCCESS if outcome.registered else _FAILURE))[-BUFFER_SIZE:]
        conditions = _with_outcome(outcome, history, conditions, now)
    annotation = f"{_generations(pool, generation)}:{history}" if history else ""
    return RegistrationHealth(conditions=conditions, annotation=annotation)


def _with_outcome(outcome: RegistrationOutcome, history: str, conditions: ConditionSet, now: datetime) -> ConditionSet:
    healthy = history.count(_FAILURE) < FAILURE_THRESHOLD
    if outcome.registered and healthy:
        return conditions.set_true(NODE_REGISTRATION_HEALTHY, now)
    condition = conditions.get(NODE_REGISTRATION_HEALTHY)
    if not outcome.registered and not healthy and (condition is None or condition.status != "False"):
        return conditions.set_false(NODE_REGISTRATION_HEALTHY, now, outcome.reason, outcome.message)
    return conditions


def _recorded_history(pool: NodePool, generation: int, conditions: ConditionSet) -> str:
    """Return the history in the annotation; if that is missing or invalid, what Karpenter derives from the condition at a restart.

    Restates: karpenter pkg/state/nodepoolhealth/tracker.go `SetStatus`.
    """
    generations, _, history = pool.metadata.annotations.get(labels.REGISTRATION_HISTORY, "").partition(":")
    if generations == _generations(pool, generation) and history and set(history) <= {_SUCCESS, _FAILURE}:
        return history[-BUFFER_SIZE:]
    condition = conditions.get(NODE_REGISTRATION_HEALTHY)
    by_status = {"True": _SUCCESS, "False": _FAILURE * FAILURE_THRESHOLD}
    return by_status.get(condition.status, "") if condition is not None else ""


def _generations(pool: NodePool, generation: int) -> str:
    return f"{generation}/{pool.metadata.generation}"


def is_owner(pool: NodePool, claim: NodeClaim) -> bool:
    """Whether the NodeClaim names the NodePool as its owner, as all that are created for it do."""
    return any(o.kind == NODEPOOL.kind and o.uid == pool.metadata.uid for o in claim.metadata.owner_references)


def _outcome(
    before: NodeClaim, after: NodeClaim | None, cause: LaunchFault | None, *, failed: bool, overdue: bool
) -> Iterator[RegistrationOutcome]:
    if after is not None:
        if is_true(after.status.conditions, REGISTERED) and not is_true(before.status.conditions, REGISTERED):
            yield RegistrationOutcome(registered=True)
    elif overdue:
        missing = condition_of(before.status.conditions, INITIALIZED)
        text = f"Failed to initialize node: {missing.message}" if missing is not None else "Failed to initialize node"
        yield RegistrationOutcome(registered=False, reason="InitializationTimedOut", message=text)
    elif before.metadata.deletion_timestamp is None and failed:
        launched = condition_of(before.status.conditions, LAUNCHED)
        if cause is not None:
            yield RegistrationOutcome(registered=False, reason=cause.reason, message=cause.text)
        elif launched is None or launched.status == "True":
            yield RegistrationOutcome(registered=False, reason="RegistrationFailed", message="Failed to register node")
        else:
            yield RegistrationOutcome(registered=False, reason=launched.reason, message=launched.message)
