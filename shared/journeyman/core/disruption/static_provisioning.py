"""Static provisioning: nodes that a NodePool asks for by number are opened straight from its template.

No pods are asked and no instance types chosen: the claim has the template's requirements, and the launch takes the best
that meets them. Every replica has a slot, a number that its claim carries, and a claim's name follows from pool and slot
(`_name`). So runs that overlap, or one that was cut off and its successor, open the same claims and not twice as many. As
with a StatefulSet's pods, the next claim of a slot may bear the name of one that is gone.

Restates: karpenter pkg/controllers/static/provisioning/controller.go `Reconcile`,
pkg/controllers/provisioning/scheduling/nodeclaimtemplate.go `ToNodeClaim`.
Differs: names are derived, not random. While all that would do is out of stock nothing is opened: Karpenter opens a
claim, gives it up and begins again. Whether the pool is ready is judged by its NodeClass as it is now, as for dynamic
pools; Karpenter reads the condition that says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import count, islice
from typing import Any, Final

from journeyman.core.api import labels
from journeyman.core.api.hashes import NODEPOOL_HASH_VERSION, node_pool_hash
from journeyman.core.api.objects import NODECLAIM, NODEPOOL
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.static_pools import StaticPool, static_pools
from journeyman.core.plan import (
    Chain,
    CreateObject,
    Event,
    LaunchInstance,
    ObjectRef,
    Observation,
    Plan,
    Requeue,
    Step,
    chain_of,
    merge_plans,
    next_requeue,
)
from journeyman.core.scheduling.claims import claim_name, to_node_claim
from journeyman.core.scheduling.offering.templates import NO_TYPES, Template, make_template
from journeyman.core.scheduling.requirements import Requirements
from journeyman.core.scheduling.results import PlannedClaim
from journeyman.core.state import Snapshot

NODE_LIMIT_POLL: Final = timedelta(seconds=30)  # controller.go: requeue once the node limit is reached

_ONLY_SIMULATED: Final = frozenset({labels.REGISTERED, labels.INITIALIZED})
"""Labels that a template has for the scheduler's sake; no claim asks the cloud for them."""


def open_static(snapshot: Snapshot, catalogue: Catalogue, *, most: int, look_again: datetime) -> Plan:
    """Open the nodes that static NodePools lack, as far as their limits and the stock allow.

    Args:
        snapshot: NodePools, NodeClasses and all NodeClaims.
        catalogue: What could be launched, by NodePool.
        most: How many claims one run may open; the step comes back at once for the rest.
        look_again: When the first of them may have joined.
    """
    plans: list[Plan] = []
    for pool in static_pools(snapshot.claims, snapshot.node_pools):
        plan = _open_pool(pool, snapshot, catalogue, most, look_again) if pool.lacking else Plan()
        most -= len(plan.chains)
        plans.append(plan)
    return merge_plans(plans)


def _open_pool(pool: StaticPool, snapshot: Snapshot, catalogue: Catalogue, most: int, look_again: datetime) -> Plan:
    template = make_template(pool.pool, snapshot, catalogue)
    if isinstance(template, str):
        return _unusable(pool, template)
    if not template.rows.any():
        return _out_of_stock(pool, snapshot)
    number = min(pool.allowed, most)
    blocked = _blocked(pool, snapshot.now) if pool.allowed < pool.lacking else Plan()
    if not pool.allowed:
        return blocked
    chains = [_open(name, slot, pool, template, look_again) for slot, name in islice(_vacancies(pool), number)]
    if number < pool.allowed:
        reason = f"{pool.allowed - number} node(s) of NodePool {pool.name} are left for the next run"
        chains.append(chain_of(f"NodePool {pool.name}", Requeue(step=Step.PROVISION, at=snapshot.now, reason=reason)))
    note = (
        f"provisioning nodeclaims to satisfy replica count: NodePool {pool.name} has {len(pool.running)} "
        f"of {pool.replicas} node(s), {number} more"
    )
    return Plan(chains=tuple(chains), notes=(note,)) + blocked


def _vacancies(pool: StaticPool) -> Iterator[tuple[int, str]]:
    """Slots without a living claim, lowest first, each with the name of the claim to open there."""
    living = (*pool.running, *pool.replaced)
    taken = {claim.metadata.annotations.get(labels.REPLICA_INDEX) for claim in living}
    names = frozenset(claim.metadata.name for claim in (*living, *pool.leaving))
    for slot in count():
        if str(slot) not in taken:
            yield slot, _name(pool, slot, names)


def _name(pool: StaticPool, slot: int, names: frozenset[str]) -> str:
    """The slot's first name that no claim bears, for one that is leaving keeps its own until it is gone."""
    uid = pool.pool.metadata.uid
    candidates = (claim_name(pool.name, uid, [f"{slot}.{turn}"]) for turn in count())
    return next(name for name in candidates if name not in names)


def _open(name: str, slot: int, pool: StaticPool, template: Template, look_again: datetime) -> Chain:
    why = f"NodePool {pool.name} asks for {pool.replicas} node(s)"
    created = Observation(
        name="karpenter_nodeclaims_created_total",
        labels={"reason": "provisioned", "nodepool": pool.name, "min_values_relaxed": "false"},
    )
    return Chain(
        subject=f"NodeClaim {name}",
        actions=(
            CreateObject(resource=NODECLAIM, body=_body(name, slot, pool, template), why=why),
            LaunchInstance(claim=name, why=why),
            Requeue(step=Step.PROVISION, at=look_again, reason=f"NodeClaim {name} starts"),
        ),
        observations=(created,),
    )


def _body(name: str, slot: int, pool: StaticPool, template: Template) -> dict[str, Any]:
    """The NodeClaim manifest: the template, the slot, and our finalizer before there is an instance."""
    wanted = {key: r for key, r in template.requirements.items() if key not in _ONLY_SIMULATED}
    planned = PlannedClaim(
        node_pool=pool.name,
        pods=(),
        instance_types=(),
        requirements=Requirements(wanted).to_selectors(),
        requests={},
        offering=("", "", ""),
        price=0.0,
    )
    body = to_node_claim(
        planned, pool.pool, name=name, hash=node_pool_hash(pool.pool), hash_version=NODEPOOL_HASH_VERSION
    )
    metadata = body["metadata"]
    annotations = {**metadata["annotations"], labels.REPLICA_INDEX: str(slot)}
    return {
        **body,
        "metadata": {**metadata, "annotations": annotations, "finalizers": [labels.TERMINATION_FINALIZER]},
    }


# -- what stands in the way ---------------------------------------------------------------------------------------


def _unusable(pool: StaticPool, why: str) -> Plan:
    """Its conditions say the rest; that no instance type suits is seen nowhere else."""
    note = f"NodePool {pool.name} has {len(pool.running)} of {pool.replicas} node(s) and can open none: {why}"
    events = (_warning(pool, "NoCompatibleInstanceTypes", note),) if why.startswith(NO_TYPES) else ()
    return Plan(events=events, notes=(note,))


def _out_of_stock(pool: StaticPool, snapshot: Snapshot) -> Plan:
    """Come back when the first offering is tried again; the sweep would, too, but for many runs that find nothing."""
    note = f"NodePool {pool.name} lacks {pool.lacking} node(s): all that would do is out of stock now"
    until = min((u.until for u in snapshot.unavailable if u.until > snapshot.now), default=None)
    wake = () if until is None else (Requeue(step=Step.PROVISION, at=until, reason=note),)
    return Plan(
        chains=(chain_of(f"NodePool {pool.name}", *wake),) if wake else (),
        events=(_warning(pool, "InsufficientCapacityError", note),),
        notes=(note,),
    )


def _blocked(pool: StaticPool, now: datetime) -> Plan:
    """Told; and looked at again if there are nodes whose end will make room."""
    lacking = pool.lacking - pool.allowed
    note = f"nodepool node limit reached: NodePool {pool.name} asks for {lacking} node(s) more than limits.nodes allows"
    if not pool.leaving:
        return Plan(events=(_warning(pool, "NodeLimitReached", note),), notes=(note,))
    wake = Requeue(step=Step.PROVISION, at=next_requeue(now, NODE_LIMIT_POLL), reason=note)
    return Plan(chains=(chain_of(f"NodePool {pool.name}", wake),), notes=(note,))


def _warning(pool: StaticPool, reason: str, message: str) -> Event:
    ref = ObjectRef(resource=NODEPOOL, name=pool.name, uid=pool.pool.metadata.uid)
    return Event(ref=ref, reason=reason, message=message, type="Warning")
