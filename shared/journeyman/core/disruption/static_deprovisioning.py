"""Static deprovisioning: of a NodePool that has more nodes than it asks for, those go whose end costs least.

In this order: claims that have no instance yet; nodes that nothing but DaemonSets' pods run on; nodes without pods that
ask not to be disrupted; and among the last, those whose pods are moved most cheaply, the sooner the less of its
lifetime a node has left. Budgets do not matter, since somebody asked for fewer nodes; the drain that follows heeds
PodDisruptionBudgets and `karpenter.sh/do-not-disrupt` as any other.

Restates: karpenter pkg/controllers/static/deprovisioning/controller.go `getDeprovisioningCandidates`,
pkg/utils/disruption/disruption.go `LifetimeRemaining`.
Differs: empty nodes go by lifetime, too, and ties by name. Deletions are counted under Karpenter's own reason
"overprovisioned", which it declares and never uses.
"""

from __future__ import annotations

from datetime import datetime

from journeyman.core.api.duration import parse_nillable_duration
from journeyman.core.api.objects import NODECLAIM, NodeClaim
from journeyman.core.disruption import explain
from journeyman.core.disruption.candidates import eviction_cost
from journeyman.core.disruption.static_pools import StaticPool, static_pools
from journeyman.core.plan import Chain, DeleteObject, ObjectRef, Plan, Requeue, Step, merge_plans
from journeyman.core.scheduling.pods import is_disruptable, is_owned_by_daemon_set
from journeyman.core.state import Snapshot
from journeyman.errors import ConfigurationError

Cost = tuple[int, bool, float, str]
"""By what nodes go, least first: no instance, empty, or with pods; any that ask to stay; cost by lifetime; name."""


def close_static(snapshot: Snapshot) -> Plan:
    """Delete what static NodePools have too many of; drain and termination follow from the deletion.

    Args:
        snapshot: NodePools, all NodeClaims with their nodes, and all pods.
    """
    return merge_plans(
        _close_pool(p, snapshot) for p in static_pools(snapshot.claims, snapshot.node_pools) if p.surplus
    )


def lifetime_left(claim: NodeClaim, now: datetime) -> float:
    """Which share of its lifetime a node has left, from 1 to 0; 1 for those that never expire."""
    try:
        lifetime = parse_nillable_duration(claim.spec.expire_after)
    except ConfigurationError:
        lifetime = None  # expiration leaves such a claim alone
    if not lifetime or claim.metadata.creation_timestamp is None:
        return 1.0
    return min(max(1 - (now - claim.metadata.creation_timestamp) / lifetime, 0.0), 1.0)


def _close_pool(pool: StaticPool, snapshot: Snapshot) -> Plan:
    standing = [c for c in pool.running if not snapshot.state_nodes_by_claim[c.metadata.name].deleting]
    ranked = sorted(standing, key=lambda claim: _cost(claim, snapshot))
    going = ranked[: pool.surplus - (len(pool.running) - len(standing))]
    note = (
        f"deprovisioning nodeclaims to satisfy replica count: NodePool {pool.name} has {len(pool.running)} "
        f"node(s) and asks for {pool.replicas}"
    )
    return Plan(chains=tuple(_delete(claim, pool, snapshot) for claim in going), notes=(note,))


def _cost(claim: NodeClaim, snapshot: Snapshot) -> Cost:
    name = claim.metadata.name
    if not claim.status.provider_id:
        return 0, False, 0.0, name
    pods = snapshot.state_nodes_by_claim[name].pods
    left = lifetime_left(claim, snapshot.now)
    protected = any(not is_disruptable(pod, snapshot.now) for pod in pods)
    if not protected and all(is_owned_by_daemon_set(pod) for pod in pods):
        return 1, False, left, name
    return 2, protected, sum(eviction_cost(pod) for pod in pods) * left, name


def _delete(claim: NodeClaim, pool: StaticPool, snapshot: Snapshot) -> Chain:
    name = claim.metadata.name
    why = f"NodePool {pool.name} asks for {pool.replicas} node(s)"
    ref = ObjectRef(resource=NODECLAIM, name=name, uid=claim.metadata.uid)
    return Chain(
        subject=f"NodeClaim {name}",
        actions=(
            DeleteObject(ref=ref, why=why, resource_version=claim.metadata.resource_version),
            Requeue(step=Step.TERMINATE, at=snapshot.now, reason=f"NodeClaim {name}: {why}"),
        ),
        observations=(explain.overprovisioned(claim, pool.pool),),
    )
