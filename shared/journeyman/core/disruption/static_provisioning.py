"""Static capacity: provisions and deprovisions nodes until each static NodePool has its `replicas`.

Provisioning creates NodeClaims straight from the NodePool's template, without pods and without a choice of instance types:
the launch chooses the best that meet the requirements. Every replica has an index, which its NodeClaim carries, and the
NodeClaim's name is derived from the NodePool and the index. So overlapping runs, or a run that died and the next one,
create the same NodeClaims, not twice as many. As with a StatefulSet's pods, a name may be used again.

Deprovisioning deletes surplus nodes in this order: NodeClaims without an instance; nodes with DaemonSet pods only; nodes
without do-not-disrupt pods; all others; among those with pods by the cost of disrupting them, which is lower the less of
its lifetime a node has left. Budgets do not apply, because a user reduced `replicas`; the drain respects
PodDisruptionBudgets and `karpenter.sh/do-not-disrupt` as always.

Restates: karpenter pkg/controllers/static/provisioning/controller.go `Reconcile`,
pkg/controllers/provisioning/scheduling/nodeclaimtemplate.go `ToNodeClaim`,
pkg/controllers/static/deprovisioning/controller.go `getDeprovisioningCandidates`,
pkg/utils/disruption/disruption.go `LifetimeRemaining`.
Differs: names are derived, not random. While every compatible offering is out of stock, no NodeClaim is created: Karpenter
creates one, deletes it and starts again. The readiness of the NodePool is computed from its NodeClass, as for dynamic
NodePools; Karpenter reads the condition. Empty nodes are ordered by lifetime, too, and ties by name. Deletions are counted
under the reason "overprovisioned", which Karpenter declares and does not use.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import count, islice
from typing import Any, Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.duration import parse_nillable_duration
from journeyman.core.api.hashes import NODEPOOL_HASH_VERSION, node_pool_hash
from journeyman.core.api.objects import NODECLAIM, NODEPOOL, NodeClaim, OfferingKey
from journeyman.core.api.wording import counted
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.candidates import eviction_cost
from journeyman.core.disruption.disruption_metrics import overprovisioned
from journeyman.core.disruption.static_nodepool_state import StaticNodePool, static_nodepools
from journeyman.core.plan import (
    Chain,
    CreateObject,
    DeleteObject,
    Event,
    LaunchInstance,
    ObjectRef,
    Plan,
    Requeue,
    Step,
    chain_of,
    claim_ref,
    next_requeue,
)
from journeyman.core.scheduling.nodeclaim_templates import (
    NO_TYPES,
    NodeClaimTemplate,
    claim_name,
    make_template,
    to_node_claim,
)
from journeyman.core.scheduling.requirements import Requirements, with_values
from journeyman.core.scheduling.results import PlannedClaim
from journeyman.core.state import Snapshot
from journeyman.core.state.launch_backoff import keys_to_try, next_launch_at
from journeyman.core.state.nodeclaim_metrics import nodeclaim_created
from journeyman.core.state.pod_predicates import is_disruptable, is_owned_by_daemon_set
from journeyman.core.state.skipped_objects import plan_for_each
from journeyman.errors import ConfigurationError

_HOW_TO_ENABLE: Final = (
    "The feature gate StaticCapacity is off, so it gets no nodes: set FEATURE_GATES=StaticCapacity=true for the functions "
    "(template.yaml: FeatureGates), or remove spec.replicas"
)
NODE_LIMIT_POLL: Final = timedelta(seconds=30)  # controller.go: requeue once the node limit is reached

_SIMULATION_LABELS: Final = frozenset({labels.REGISTERED, labels.INITIALIZED})
"""Labels that a template has for the scheduler only; they are not requirements of the NodeClaim."""


# -- provisioning -----------------------------------------------------------------------------------------------------


def provision_static(snapshot: Snapshot, catalogue: Catalogue, *, max_claims: int, requeue_at: datetime) -> Plan:
    """Create the NodeClaims that static NodePools are missing, as far as limits and available offerings allow.

    Args:
        snapshot: NodePools, NodeClasses and all NodeClaims.
        catalogue: Instance types and offerings by NodePool.
        max_claims: How many NodeClaims one run may create; the step is requeued at once for the rest.
        requeue_at: When the first of them may have registered.
    """
    left = max_claims

    def decide(pool: StaticNodePool) -> Plan:
        nonlocal left
        plan = _provision(pool, snapshot, catalogue, left, requeue_at) if pool.missing else Plan()
        left -= len(plan.chains)
        return plan

    pools = static_nodepools(snapshot.claims, snapshot.node_pools, snapshot.state_nodes)
    return plan_for_each(pools, decide, about=lambda pool: pool.pool)


def report_disabled(snapshot: Snapshot) -> Plan:
    """Return an Event on each static NodePool: the feature gate StaticCapacity is off, so it gets no nodes."""
    return Plan(
        events=tuple(
            _warning(
                pool,
                "StaticCapacityDisabled",
                f"NodePool {pool.name} has spec.replicas: {pool.replicas}. {_HOW_TO_ENABLE}",
            )
            for pool in static_nodepools(snapshot.claims, snapshot.node_pools)
        )
    )


def _provision(
    pool: StaticNodePool, snapshot: Snapshot, catalogue: Catalogue, max_claims: int, requeue_at: datetime
) -> Plan:
    template = make_template(pool.pool, snapshot, catalogue)
    if isinstance(template, str):
        return _not_usable(pool, template, snapshot)
    if not template.rows.any():
        return _out_of_stock(pool, snapshot)
    number = min(pool.allowed, max_claims, 1 if keys_to_try(pool.pool, snapshot) else max_claims)
    limit_plan = _node_limit_reached(pool, snapshot.now) if pool.allowed < pool.missing else Plan()
    if not pool.allowed:
        return limit_plan
    chains = [_create(name, index, pool, template, requeue_at) for index, name in islice(_free_indexes(pool), number)]
    if number < pool.allowed:
        reason = f"{counted(pool.allowed - number, 'node')} of NodePool {pool.name} left for the next run"
        chains.append(chain_of(f"NodePool {pool.name}", Requeue(step=Step.PROVISION, at=snapshot.now, reason=reason)))
    note = (
        f"provisioning nodeclaims to satisfy replica count: NodePool {pool.name} has {len(pool.running)} "
        f"of {counted(pool.replicas, 'node')}, {number} more"
    )
    return Plan(chains=tuple(chains), notes=(note,)) + limit_plan


def _free_indexes(pool: StaticNodePool) -> Iterator[tuple[int, str]]:
    """Yield replica indexes without a NodeClaim, lowest first, each with the name of the NodeClaim to create."""
    existing = (*pool.running, *pool.replaced)
    taken = {claim.metadata.annotations.get(labels.REPLICA_INDEX) for claim in existing}
    names = frozenset(claim.metadata.name for claim in (*existing, *pool.deleting, *pool.expiring))
    for index in count():
        if str(index) not in taken:
            yield index, _free_name(pool, index, names)


def _free_name(pool: StaticNodePool, index: int, names: frozenset[str]) -> str:
    """Return the replica's first free name: a NodeClaim that is deleting keeps its name until it is removed."""
    uid = pool.pool.metadata.uid
    candidates = (claim_name(pool.name, uid, [f"{index}.{turn}"]) for turn in count())
    return next(name for name in candidates if name not in names)


def _create(name: str, index: int, pool: StaticNodePool, template: NodeClaimTemplate, requeue_at: datetime) -> Chain:
    why = f"NodePool {pool.name} has {counted(pool.replicas, 'replica')}"
    return Chain(
        subject=f"NodeClaim {name}",
        actions=(
            CreateObject(resource=NODECLAIM, body=_claim_body(name, index, pool, template), why=why),
            LaunchInstance(claim=name, why=why),
            Requeue(step=Step.PROVISION, at=requeue_at, reason=f"NodeClaim {name} starts"),
        ),
        observations=(nodeclaim_created(pool.name, "provisioned"),),
    )


def _claim_body(name: str, index: int, pool: StaticNodePool, template: NodeClaimTemplate) -> dict[str, Any]:
    """Return the NodeClaim: the template, the replica index, and our finalizer, as it has no instance yet."""
    planned = planned_replica(pool, template)
    body = to_node_claim(
        planned, pool.pool, name=name, hash=node_pool_hash(pool.pool), hash_version=NODEPOOL_HASH_VERSION
    )
    metadata = body["metadata"]
    annotations = {**metadata["annotations"], labels.REPLICA_INDEX: str(index)}
    return {
        **body,
        "metadata": {**metadata, "annotations": annotations, "finalizers": [labels.TERMINATION_FINALIZER]},
    }


def planned_replica(pool: StaticNodePool, template: NodeClaimTemplate, *, price: float = 0.0) -> PlannedClaim:
    """Return a node of the NodePool as its template asks for it: the launch chooses among all types that meet the requirements.

    Args:
        pool: The NodePool.
        template: Its template.
        price: The expected price per hour; 0 if it does not matter.
    """
    requirements = {key: r for key, r in template.requirements.items() if key not in _SIMULATION_LABELS}
    wanted = with_values(Requirements(requirements), template.table.labels)
    return PlannedClaim(
        node_pool=pool.name,
        pods=(),
        instance_types=(),
        requirements=wanted.to_selectors(),
        requests={},
        offering=OfferingKey("", "", ""),
        price=price,
    )


def _not_usable(pool: StaticNodePool, why: str, snapshot: Snapshot) -> Plan:
    """Return an Event if no instance type meets the requirements; other reasons are conditions or Events of the NodePool.

    After a failed launch it requeues for the end of the back-off.
    """
    note = f"NodePool {pool.name} has {len(pool.running)} of {counted(pool.replicas, 'node')} and cannot launch more: {why}"
    events = (_warning(pool, "NoCompatibleInstanceTypes", note),) if why.startswith(NO_TYPES) else ()
    at = next_launch_at(pool.pool, snapshot)
    requeue = () if at is None else (Requeue(step=Step.PROVISION, at=at, reason=note),)
    return Plan(chains=(chain_of(f"NodePool {pool.name}", *requeue),) if requeue else (), events=events, notes=(note,))


def _out_of_stock(pool: StaticNodePool, snapshot: Snapshot) -> Plan:
    """Requeue for the time when the first offering is available again; the sweep would start many runs before it."""
    note = (
        f"NodePool {pool.name} is missing {counted(pool.missing, 'node')}: every compatible offering is unavailable now"
    )
    until = min((u.until for u in snapshot.unavailable if u.until > snapshot.now), default=None)
    requeue = () if until is None else (Requeue(step=Step.PROVISION, at=until, reason=note),)
    return Plan(
        chains=(chain_of(f"NodePool {pool.name}", *requeue),) if requeue else (),
        events=(_warning(pool, "InsufficientCapacityError", note),),
        notes=(note,),
    )


def _node_limit_reached(pool: StaticNodePool, now: datetime) -> Plan:
    """Return a warning Event, or a requeue if nodes are deleting, since their removal frees a part of the limit."""
    missing = pool.missing - pool.allowed
    note = f"nodepool node limit reached: limits.nodes of NodePool {pool.name} does not allow {counted(missing, 'missing node')}"
    if not (pool.deleting or pool.expiring):
        return Plan(events=(_warning(pool, "NodeLimitReached", note),), notes=(note,))
    requeue = Requeue(step=Step.PROVISION, at=next_requeue(now, NODE_LIMIT_POLL), reason=note)
    return Plan(chains=(chain_of(f"NodePool {pool.name}", requeue),), notes=(note,))


def _warning(pool: StaticNodePool, reason: str, message: str) -> Event:
    ref = ObjectRef(resource=NODEPOOL, name=pool.name, uid=pool.pool.metadata.uid)
    return Event(ref=ref, reason=reason, message=message, type="Warning")


# -- deprovisioning ---------------------------------------------------------------------------------------------------


class _DeprovisioningOrder(Struct, frozen=True, order=True):
    """Sort key: which node is deleted first."""

    kind: int  # 0 without an instance, 1 with DaemonSet pods only, 2 with other pods
    has_do_not_disrupt_pods: bool
    cost: float  # of the pods' eviction, scaled by the lifetime that remains
    name: str


def deprovision_static(snapshot: Snapshot) -> Plan:
    """Delete the surplus NodeClaims of static NodePools; drain and termination follow from the deletion.

    Args:
        snapshot: NodePools, all NodeClaims with their nodes, and all pods.
    """
    pools = static_nodepools(snapshot.claims, snapshot.node_pools)
    surplus = (pool for pool in pools if pool.surplus)
    return plan_for_each(surplus, lambda pool: _deprovision(pool, snapshot), about=lambda pool: pool.pool)


def lifetime_remaining(claim: NodeClaim, now: datetime) -> float:
    """Return the share of its lifetime that a node has left, from 1 to 0; 1 if it never expires."""
    try:
        lifetime = parse_nillable_duration(claim.spec.expire_after)
    except ConfigurationError:
        lifetime = None  # expiration ignores such a NodeClaim
    if not lifetime or claim.metadata.creation_timestamp is None:
        return 1.0
    return min(max(1 - (now - claim.metadata.creation_timestamp) / lifetime, 0.0), 1.0)


def _deprovision(pool: StaticNodePool, snapshot: Snapshot) -> Plan:
    remaining = [c for c in pool.running if not snapshot.state_nodes_by_claim[c.metadata.name].is_terminating]
    ordered = sorted(remaining, key=lambda claim: _order(claim, snapshot))
    chosen = ordered[: pool.surplus - (len(pool.running) - len(remaining))]
    note = (
        f"deprovisioning nodeclaims to satisfy replica count: NodePool {pool.name} has {len(pool.running)} "
        f"of {counted(pool.replicas, 'node')}"
    )
    return Plan(chains=tuple(_delete(claim, pool, snapshot) for claim in chosen), notes=(note,))


def _order(claim: NodeClaim, snapshot: Snapshot) -> _DeprovisioningOrder:
    name = claim.metadata.name
    if not claim.status.provider_id:
        return _DeprovisioningOrder(0, False, 0.0, name)
    state = snapshot.state_nodes_by_claim[name]
    pods = (*state.pods, *(pod for _, others in snapshot.pods_of_twins(state) for pod in others))
    remaining = lifetime_remaining(claim, snapshot.now)
    protected = any(not is_disruptable(pod, snapshot.now) for pod in pods)
    if not protected and all(is_owned_by_daemon_set(pod) for pod in pods):
        return _DeprovisioningOrder(1, False, remaining, name)
    return _DeprovisioningOrder(2, protected, sum(eviction_cost(pod) for pod in pods) * remaining, name)


def _delete(claim: NodeClaim, pool: StaticNodePool, snapshot: Snapshot) -> Chain:
    name = claim.metadata.name
    why = f"NodePool {pool.name} has {counted(pool.replicas, 'replica')}"
    return Chain(
        subject=f"NodeClaim {name}",
        actions=(
            DeleteObject(ref=claim_ref(claim), why=why, resource_version=claim.metadata.resource_version),
            Requeue(step=Step.TERMINATE, at=snapshot.now, reason=f"NodeClaim {name}: {why}"),
        ),
        observations=(overprovisioned(claim),),
    )
