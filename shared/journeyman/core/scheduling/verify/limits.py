"""NodePool limits: whatever is launched, no pool may come to own more than it is allowed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from journeyman.core.api.resources import to_resources
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import PlannedClaim
from journeyman.core.state import Snapshot


def check_limits(snapshot: Snapshot, catalogue: Catalogue, claims: Sequence[PlannedClaim]) -> Iterator[str]:
    """Usage plus the largest type of each planned claim must stay within the limits; `nodes` counts one each."""
    for pool in snapshot.node_pools:
        planned = [claim for claim in claims if claim.node_pool == pool.metadata.name]
        if not planned or not pool.spec.limits:
            continue
        by_name = {t.name: t for t in catalogue.instance_types(pool.metadata.name)}
        for resource, limit in sorted(pool.spec.limit_amounts.items()):
            total = _usage(snapshot, pool.metadata.name, resource)
            for claim in planned:
                sizes = [by_name[name].capacity.get(resource, 0) for name in claim.instance_types if name in by_name]
                total += 1 if resource == "nodes" else max(sizes, default=0)
            if total > limit:
                yield f"NodePool {pool.metadata.name}: {resource} could reach {total}, its limit is {limit}"


def _usage(snapshot: Snapshot, pool: str, resource: str) -> int:
    total = 0
    for node in snapshot.state_nodes:
        if node.node_pool != pool or node.deleting:
            continue
        if resource == "nodes":
            total += 1
            continue
        reported = to_resources(node.node.status.capacity, round_up=True) if node.node else {}
        claimed = to_resources(node.claim.status.capacity, round_up=True) if node.claim else {}
        total += reported.get(resource) or claimed.get(resource, 0)
    return total
