"""One planned NodeClaim: is every way it may turn out good for every one of its pods?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import Pod
from journeyman.core.api.resources import pod_requests
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import PlannedClaim
from journeyman.core.scheduling.verify.matching import accepts_labels, holds, untolerated
from journeyman.core.scheduling.verify.outcomes import daemon_overhead, possible_outcomes
from journeyman.core.state import Snapshot

_PRICE_TOLERANCE = 1e-9


def check_claim(snapshot: Snapshot, catalogue: Catalogue, claim: PlannedClaim, pods: Sequence[Pod]) -> Iterator[str]:
    """What is wrong with this claim, one sentence each."""
    name = f"the NodeClaim of NodePool {claim.node_pool} for {', '.join(claim.pods[:3])}{'…' if len(claim.pods) > 3 else ''}"
    pool = snapshot.node_pools_by_name.get(claim.node_pool)
    if pool is None or pool.metadata.deletion_timestamp is not None:
        yield f"{name}: the NodePool does not exist or is going"
        return
    yield from _check_taints(name, pool, pods)
    yield from _check_outcomes(name, snapshot, catalogue, pool, claim=claim, pods=pods)


def _check_taints(name: str, pool: NodePool, pods: Sequence[Pod]) -> Iterator[str]:
    for pod in pods:
        taint = untolerated(pod, pool.spec.template.spec.taints)
        if taint is not None:
            yield f"{name}: pod {pod.key} does not tolerate taint {taint.key}={taint.value}:{taint.effect}"


def _check_outcomes(
    name: str, snapshot: Snapshot, catalogue: Catalogue, pool: NodePool, *, claim: PlannedClaim, pods: Sequence[Pod]
) -> Iterator[str]:
    """Every type can be launched and holds all pods; the price is that of the cheapest way."""
    wanted = _sum_requests(pods)
    particular = _one_of_each_rule(pods)
    launchable: set[str] = set()
    offered: set[tuple[str, str, str]] = set()
    cheapest = float("inf")
    for instance_type, offering, outcome in possible_outcomes(pool, catalogue, claim):
        launchable.add(instance_type.name)
        offered.add((instance_type.name, offering.zone, offering.capacity_type))
        cheapest = min(cheapest, offering.price)
        where = f"{name} as {instance_type.name} in {offering.zone}"
        for requirement in pool.spec.template.spec.requirements:
            if requirement.key in outcome and not holds(requirement, outcome):
                yield f"{where}: breaks the NodePool's requirement {requirement.key} {requirement.operator}"
        overhead = daemon_overhead(snapshot.daemon_sets, pool, outcome)
        for resource, amount in sorted(wanted.items()):
            room = instance_type.allocatable.get(resource, 0) - overhead.get(resource, 0)
            if amount > room:
                yield f"{where}: {resource} {amount} wanted, {room} there"
        for pod in particular:
            if not accepts_labels(pod, outcome):
                yield f"{where}: pod {pod.key} does not accept its labels"
    for missing in sorted(set(claim.instance_types) - launchable):
        yield f"{name}: {missing} cannot be launched under its requirements"
    for more in sorted(launchable - set(claim.instance_types)):
        yield f"{name}: {more} could be launched under its requirements, but is not planned for"
    if claim.offering not in offered:
        yield f"{name}: it can never be {' '.join(claim.offering)}, by which it is priced"
    if abs(cheapest - claim.price) > _PRICE_TOLERANCE:
        yield f"{name}: says {claim.price} per hour, its cheapest offering costs {cheapest}"


def _sum_requests(pods: Sequence[Pod]) -> dict[str, int]:
    total: dict[str, int] = {}
    for pod in pods:
        for resource, amount in pod_requests(pod).items():
            total[resource] = total.get(resource, 0) + amount
    return total


def _one_of_each_rule(pods: Sequence[Pod]) -> tuple[Pod, ...]:
    """One pod for each distinct node selector and affinity: replicas need not be asked one by one."""
    found: dict[tuple[object, ...], Pod] = {}
    for pod in pods:
        if pod.spec.node_selector or pod.spec.affinity:
            found.setdefault((tuple(sorted(pod.spec.node_selector.items())), repr(pod.spec.affinity)), pod)
    return tuple(found.values())
