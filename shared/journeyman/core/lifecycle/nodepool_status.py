"""NodePool status: validation, NodeClass readiness, resource counts, registration health, and the hash of the template.

NodeRegistrationHealthy is informational. The outcomes of a NodePool's last four NodeClaims, oldest first, are kept in its
annotation `registration-history`: "<NodeClass generation>/<NodePool generation>:SSFS". A new generation starts a new row.

Restates: karpenter pkg/controllers/nodepool/{validation,readiness,counter,hash}/controller.go,
pkg/state/nodepoolhealth/tracker.go, pkg/controllers/nodepool/registrationhealth/controller.go,
pkg/controllers/nodeclaim/lifecycle/{registration,liveness}.go `updateNodePoolRegistrationHealth`.
Differs: the outcomes outlive the process; one is lost if the run dies between the writes of NodeClaim and NodePool. An
instance that ends before its node registers counts as a failure at once; Karpenter waits for the timeout.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.conditions import (
    LAUNCHED,
    NODE_CLASS_READY,
    NODE_REGISTRATION_HEALTHY,
    NODEPOOL_DEPENDENTS,
    REGISTERED,
    VALIDATION_SUCCEEDED,
    ConditionSet,
)
from journeyman.core.api.hashes import node_pool_hash_annotations
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
    to_resources,
)
from journeyman.core.lifecycle.liveness import LivenessTimeouts, awaits_node, timeout_reason
from journeyman.core.plan import Chain, ObjectRef, PatchObject, Plan, chain_of, merge_plans
from journeyman.core.state import InvalidObject, NodeClassState, Snapshot, StateNode
from journeyman.core.state.condition_transitions import with_transitions

UNDECIDED: Final = frozenset({"", "AwaitingReconciliation", "ReconcilingDependents"})
"""Reasons of a NodeClass's Ready that is neither True nor False yet."""

ALWAYS_COUNTED: Final = (CPU, MEMORY, PODS, EPHEMERAL_STORAGE, NODES)


class NodePoolUsage(Struct, frozen=True, kw_only=True):
    """What the nodes of a pool have together: exact amounts, `nodes` among them."""

    resources: Resources

    @property
    def nodes(self) -> int:
        """How many nodes."""
        return self.resources.get(NODES, 0)

    def exceeded(self, limits: Resources) -> tuple[str, ...]:
        """Names of limited resources of which there is strictly more than the limit, sorted."""
        return tuple(sorted(name for name, limit in limits.items() if self.resources.get(name, 0) > limit))


NO_USAGE: Final = NodePoolUsage(resources={})


def reconcile_nodepools(
    snapshot: Snapshot, outcomes: Mapping[str, tuple[RegistrationOutcome, ...]] | None = None
) -> Plan:
    """Write every pool's conditions, counts and hash, where they changed; say of invalid pools that they are.

    Args:
        snapshot: Pools, NodeClasses, claims and nodes.
        outcomes: What came of claims since the last time, by NodePool; none if missing.
    """
    usages, news = usage_by_pool(snapshot), outcomes or {}
    plans = [
        _reconcile(pool, snapshot, usages.get(pool.metadata.name, NO_USAGE), news.get(pool.metadata.name, ()))
        for pool in snapshot.node_pools
    ]
    plans += [_reconcile_invalid(item, snapshot.now) for item in snapshot.invalid_objects if item.kind == NODEPOOL.kind]
    return merge_plans(plans)


def update_nodepool_counts(
    snapshot: Snapshot, outcomes: Mapping[str, tuple[RegistrationOutcome, ...]] | None = None
) -> Plan:
    """Write every pool's counts and registration health alone, where they changed; asks for no NodeClasses.

    Args:
        snapshot: Pools, claims and nodes.
        outcomes: What came of claims since the last time, by NodePool; none if missing.
    """
    usages, news = usage_by_pool(snapshot), outcomes or {}
    chains = (
        _count_chain(pool, usages.get(pool.metadata.name, NO_USAGE), news.get(pool.metadata.name, ()), snapshot.now)
        for pool in snapshot.node_pools
    )
    return Plan(chains=tuple(chain for chain in chains if chain.actions))


def usage_by_pool(snapshot: Snapshot) -> Mapping[str, NodePoolUsage]:
    """What each pool's nodes have together, claims that are still on their way included."""
    sums: dict[str, dict[str, int]] = {}
    for node in snapshot.state_nodes:
        if node.managed and node.node_pool:
            sums[node.node_pool] = add(sums.get(node.node_pool, {}), _capacity(node), {NODES: 1})
    return {name: NodePoolUsage(resources=total) for name, total in sums.items()}


def _capacity(node: StateNode) -> Resources:
    """The node's own word once it is registered, the claim's before that."""
    texts: Mapping[str, Any] = node.claim.status.capacity if node.claim is not None else {}
    if node.node is not None and node.registered and node.node.status.capacity:
        texts = node.node.status.capacity
    return to_resources(texts, round_up=False)


def _count_chain(pool: NodePool, usage: NodePoolUsage, news: tuple[RegistrationOutcome, ...], now: datetime) -> Chain:
    counts = _counts(pool, usage)
    if not news:
        return _chain(pool, counts, {})
    health = update_registration_health(
        pool, _stored_conditions(pool), pool.status.node_class_observed_generation, news, now
    )
    return _with_conditions(pool, counts, health.conditions, {labels.REGISTRATION_HISTORY: health.annotation})


def _reconcile(pool: NodePool, snapshot: Snapshot, usage: NodePoolUsage, news: tuple[RegistrationOutcome, ...]) -> Plan:
    node_class = snapshot.node_class_of(pool)
    conditions = _pool_conditions(pool, node_class, snapshot.now)
    status, wanted = _counts(pool, usage), node_pool_hash_annotations(pool)
    if node_class is not None:
        health = update_registration_health(pool, conditions, node_class.generation, news, snapshot.now)
        conditions = health.conditions
        wanted |= {labels.REGISTRATION_HISTORY: health.annotation} if health.annotation else {}
        if node_class.generation != pool.status.node_class_observed_generation:
            status["nodeClassObservedGeneration"] = node_class.generation
    chain = _with_conditions(pool, status, conditions, wanted)
    return Plan(chains=(chain,) if chain.actions else ())


def _with_conditions(
    pool: NodePool, status: Mapping[str, Any], conditions: ConditionSet, wanted: Mapping[str, str]
) -> Chain:
    """These fields of its status, with its conditions and annotations where they changed."""
    changed = {"conditions": conditions.to_wire()} if conditions.changed_from(pool.status.conditions) else {}
    annotations = {k: v for k, v in wanted.items() if pool.metadata.annotations.get(k) != v}
    chain = _chain(pool, {**status, **changed}, annotations)
    ref = ObjectRef(resource=NODEPOOL, name=pool.metadata.name, uid=pool.metadata.uid)
    return with_transitions(chain, ref, {}, pool.status.conditions, conditions.conditions) if changed else chain


def _chain(pool: NodePool, status: Mapping[str, Any], annotations: Mapping[str, str]) -> Chain:
    """Status on the version that was read, then annotations (a map, merged whatever else changed)."""
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
        actions.append(PatchObject(ref=ref, patch=patch, why="the template's hash, and how its nodes join"))
    return chain_of(f"NodePool {meta.name}", *actions)


def _counts(pool: NodePool, usage: NodePoolUsage) -> dict[str, Any]:
    counted = format_resources(add(dict.fromkeys(ALWAYS_COUNTED, 0), usage.resources))
    status: dict[str, Any] = {}
    if counted != pool.status.resources:
        gone = dict.fromkeys(pool.status.resources.keys() - counted.keys())
        status["resources"] = {**counted, **gone}
    if usage.nodes != pool.status.nodes:
        status["nodes"] = usage.nodes
    return status


def _pool_conditions(pool: NodePool, node_class: NodeClassState | None, now: datetime) -> ConditionSet:
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
    """ValidationSucceeded False on a pool that does not validate; nothing else is known of it."""
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
        why="it does not validate",
        resource_version=item.resource_version,
        subresource="status",
    )
    chain = with_transitions(chain_of(f"NodePool {item.name}", patch), ref, {}, item.conditions, after.conditions)
    return Plan(chains=(chain,), notes=(item.why,))


BUFFER_SIZE: Final = 4  # tracker.go `BufferSize`
FAILURE_THRESHOLD: Final = 2  # tracker.go `ThresholdFalse`: half of the buffer, however few outcomes are in it

_SUCCESS, _FAILURE = "S", "F"


class RegistrationOutcome(Struct, frozen=True, kw_only=True):
    """One claim has become a node, or was given up before, for this reason."""

    registered: bool
    reason: str = ""
    message: str = ""


class RegistrationHealth(Struct, frozen=True, kw_only=True):
    """A pool's conditions with its registration health judged, and the annotation to go with them (empty: none)."""

    conditions: ConditionSet
    annotation: str


def registration_outcomes(
    before: Snapshot,
    written: Mapping[str, NodeClaim | None],
    timeouts: LivenessTimeouts,
    ended: Collection[str] = frozenset(),
) -> Mapping[str, tuple[RegistrationOutcome, ...]]:
    """What came of claims in this run, by NodePool, in the order of their names.

    Args:
        before: Claims as the run found them, and the pools: only what a pool still owns, by its UID, says something of it.
        written: Claims that the run wrote, as they are stored now; None once deleted.
        timeouts: How long claims may take.
        ended: Provider ids of instances that have ended: a claim that awaited the node of one would not have had it in
            time.
    """
    found: dict[str, list[RegistrationOutcome]] = {}
    for claim in before.claims:
        name = claim.metadata.name
        pool = before.node_pools_by_name.get(claim.metadata.labels.get(labels.NODEPOOL, ""))
        if pool is None or name not in written or not _owns(pool, claim):
            continue
        late = bool(timeout_reason(claim, timeouts, before.now))
        failed = late or (awaits_node(claim) and claim.status.provider_id in ended)
        for outcome in _outcome(claim, written[name], failed=failed):
            found.setdefault(pool.metadata.name, []).append(outcome)
    return {name: tuple(of_pool) for name, of_pool in found.items()}


def update_registration_health(
    pool: NodePool, conditions: ConditionSet, generation: int, news: Iterable[RegistrationOutcome], now: datetime
) -> RegistrationHealth:
    """The pool's NodeRegistrationHealthy, given what came of its claims.

    Args:
        pool: The pool as it is stored.
        conditions: Its conditions so far.
        generation: Its NodeClass's.
        news: Outcomes of this run, oldest first.
        now: The time.

    Returns:
        Unknown at first and after each change of pool or NodeClass; True once an outcome is a node and at most one of
        the last four is none; False once two of them are none.
    """
    known = conditions.get(NODE_REGISTRATION_HEALTHY)
    observed = known is not None and known.observed_generation == pool.metadata.generation
    if observed and pool.status.node_class_observed_generation == generation:
        row = _recorded_outcomes(pool, generation, conditions)
    else:
        row = ""
        conditions = conditions.set_unknown(
            NODE_REGISTRATION_HEALTHY, now, "AwaitingReconciliation", "object is awaiting reconciliation"
        )
    for outcome in news:
        row = (row + (_SUCCESS if outcome.registered else _FAILURE))[-BUFFER_SIZE:]
        conditions = _with_outcome(outcome, row, conditions, now)
    return RegistrationHealth(
        conditions=conditions, annotation=f"{_generations(pool, generation)}:{row}" if row else ""
    )


def _with_outcome(outcome: RegistrationOutcome, row: str, conditions: ConditionSet, now: datetime) -> ConditionSet:
    healthy = row.count(_FAILURE) < FAILURE_THRESHOLD
    if outcome.registered and healthy:
        return conditions.set_true(NODE_REGISTRATION_HEALTHY, now)
    known = conditions.get(NODE_REGISTRATION_HEALTHY)
    if not outcome.registered and not healthy and (known is None or known.status != "False"):
        return conditions.set_false(NODE_REGISTRATION_HEALTHY, now, outcome.reason, outcome.message)
    return conditions


def _recorded_outcomes(pool: NodePool, generation: int, conditions: ConditionSet) -> str:
    """What is known of the last outcomes; where that is lost, what Karpenter takes up of the condition at a restart."""
    about, _, row = pool.metadata.annotations.get(labels.REGISTRATION_HISTORY, "").partition(":")
    if about == _generations(pool, generation) and row and set(row) <= {_SUCCESS, _FAILURE}:
        return row[-BUFFER_SIZE:]
    known = conditions.get(NODE_REGISTRATION_HEALTHY)
    taken_up = {"True": _SUCCESS, "False": _FAILURE * FAILURE_THRESHOLD}
    return taken_up.get(known.status, "") if known is not None else ""


def _generations(pool: NodePool, generation: int) -> str:
    return f"{generation}/{pool.metadata.generation}"


def _owns(pool: NodePool, claim: NodeClaim) -> bool:
    return any(o.kind == NODEPOOL.kind and o.uid == pool.metadata.uid for o in claim.metadata.owner_references)


def _outcome(before: NodeClaim, after: NodeClaim | None, *, failed: bool) -> Iterator[RegistrationOutcome]:
    if after is not None:
        if is_true(after.status.conditions, REGISTERED) and not is_true(before.status.conditions, REGISTERED):
            yield RegistrationOutcome(registered=True)
    elif before.metadata.deletion_timestamp is None and failed:
        launched = condition_of(before.status.conditions, LAUNCHED)
        if launched is None or launched.status == "True":
            yield RegistrationOutcome(registered=False, reason="RegistrationFailed", message="Failed to register node")
        else:
            yield RegistrationOutcome(registered=False, reason=launched.reason, message=launched.message)
