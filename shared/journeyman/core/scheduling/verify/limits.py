"""Limits: whatever is launched, no NodePool may come to own more than it is allowed, and no reservation to give more.

Restates: karpenter pkg/controllers/provisioning/scheduling/scheduler.go `filterByRemainingResources`,
reservationmanager.go.
Differs: `nodes` is counted within a pass as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from journeyman.core.api import labels
from journeyman.core.api.resources import NODES, to_resources
from journeyman.core.scheduling.verify.defect import Defect
from journeyman.core.scheduling.verify.index import Index, Place, is_leaving
from journeyman.core.scheduling.verify.launches import Launches
from journeyman.core.state import StateNode
from journeyman.errors import InvalidQuantityError

if TYPE_CHECKING:  # the models build validators; nothing here needs them
    from journeyman.core.api.nodepool import NodePool


def check_limits(index: Index) -> Iterator[Defect]:
    """Usage plus the largest type of each planned claim must stay within the limits; `nodes` counts one each."""
    for pool in index.usable_pools.values():
        name = pool.metadata.name
        planned = [place for place in index.new_places if place.claim and place.claim.node_pool == name]
        if not planned or not pool.spec.limits:
            continue
        for resource, limit in sorted(pool.spec.limit_amounts.items()):
            total = _usage(index, pool, resource)
            total += sum(_largest(index.launches(pool), place, resource) for place in planned)
            if total > limit:
                first = next(iter(planned[0].planned), "")
                yield Defect(
                    f"NodePool {name}: {resource} could reach {total} with the NodeClaim for {first}, its limit is {limit}"
                )


def _largest(launches: Launches, place: Place, resource: str) -> int:
    return 1 if resource == NODES else launches.market.largest(resource, place.rows)


def _usage(index: Index, pool: NodePool, resource: str) -> int:
    own = [n for n in index.standing if n.node_pool == pool.metadata.name and not is_leaving(n)]
    if resource == NODES:
        return len(own)
    return sum(_size(node, index.launches(pool), resource) for node in own)


def _size(node: StateNode, launches: Launches, resource: str) -> int:
    """The node's capacity; before launch that of the largest type its claim may become."""
    try:
        reported = to_resources(node.node.status.capacity, round_up=False) if node.node else {}
        claimed = to_resources(node.claim.status.capacity, round_up=False) if node.claim else {}
    except InvalidQuantityError:
        return 0
    if reported or claimed or node.claim is None:
        return reported.get(resource) or claimed.get(resource, 0)
    types = launches.market.types
    listed = [n for r in node.claim.spec.requirements if r.key == labels.INSTANCE_TYPE for n in r.values]
    return max((types[name].capacity.get(resource, 0) for name in listed if name in types), default=0)


def check_reservations(index: Index) -> Iterator[Defect]:
    """Claims that hold a reservation, or that nothing else can serve, must not be more than it has room for."""
    bound: Counter[str] = Counter()
    room: dict[str, int] = {}
    for place in index.new_places:
        if place.claim is None:
            continue
        market = index.launches(index.usable_pools[place.claim.node_pool]).market
        only = {reservation for reservation, rows in market.reserved.items() if place.rows and not place.rows & ~rows}
        bound.update({*place.claim.reservations, *only})
        for reservation, left in market.reservation_room.items():
            room[reservation] = min(room.get(reservation, left), left)
    for reservation, number in sorted(bound.items()):
        left = room.get(reservation, 0)
        if number > left:
            yield Defect(f"reservation {reservation}: {number} NodeClaims count on it, it has room for {left}")
