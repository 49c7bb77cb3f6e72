"""Planned NodeClaims: is every way that one may turn out good for every one of its pods?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from journeyman.core.scheduling.results import PlannedClaim
from journeyman.core.scheduling.verify.defect import Defect
from journeyman.core.scheduling.verify.index import Index, Place, name_of_claim
from journeyman.core.scheduling.verify.kinds import Kind
from journeyman.core.scheduling.verify.launches import Launches
from journeyman.core.scheduling.verify.matching import is_met, normalized, untolerated
from journeyman.core.scheduling.verify.ports import clash
from journeyman.core.scheduling.verify.possible import Rows
from journeyman.core.scheduling.verify.volumes import Storage

_PRICE_TOLERANCE = 1e-9


def check_claims(index: Index, storage: Storage) -> Iterator[Defect]:
    """What is wrong with each planned claim by itself, one sentence each."""
    for claim in index.results.new_claims:
        pool = index.snapshot.node_pools_by_name.get(claim.node_pool)
        why = "does not exist" if pool is None else index.why_unusable(pool)
        if why:
            yield Defect(
                f"the NodeClaim for {', '.join(claim.pods[:3])}: NodePool {claim.node_pool} {why}",
                (name_of_claim(claim),),
            )
    for place in index.new_places:
        if place.claim is not None:
            launches = index.launches(index.usable_pools[place.claim.node_pool])
            kinds = {kind: key for key, kind in sorted(place.planned.items(), reverse=True)}
            yield from _check_choice(launches, place, place.claim)
            yield from _check_min_values(launches, place, place.claim)
            yield from _check_labels(launches, place, kinds, storage)
            yield from _check_taints(place, kinds)
            yield from _check_room(launches, place, place.claim)


def _check_choice(launches: Launches, place: Place, claim: PlannedClaim) -> Iterator[Defect]:
    """The types listed are those that can be launched; the price is that of the cheapest way."""
    market = launches.market
    for name in claim.instance_types:
        if not market.by_type.get(name, 0) & place.rows:
            yield place.defect(f"{name} cannot be launched under its requirements")
    more = place.rows & ~launches.rows_of(claim.instance_types)
    if more:
        yield place.defect(f"{_first(launches, more)} could be launched under its requirements, but is not planned for")
    if not market.by_offering.get(claim.offering, 0) & place.rows:
        yield place.defect(f"it can never be {' '.join(claim.offering)}, by which it is priced")
    if not place.rows:
        yield place.defect("nothing can be launched under its requirements")
        return
    cheapest = market.rows[_lowest(place.rows)][1].price
    if not abs(cheapest - claim.price) <= _PRICE_TOLERANCE:
        yield place.defect(f"says {claim.price} per hour, its cheapest offering costs {cheapest}")


def _check_min_values(launches: Launches, place: Place, claim: PlannedClaim) -> Iterator[Defect]:
    """Where the NodePool wants a choice of N values of a label, the types listed must give it."""
    if claim.min_values_relaxed:
        return
    for requirement in launches.pool.spec.template.spec.requirements:
        if requirement.min_values is not None:
            offered = _declared(launches, claim.instance_types, normalized(requirement.key))
            number = sum(1 for value in offered if is_met(requirement, value))
            if number < requirement.min_values:
                yield place.defect(
                    f"its types offer {number} value(s) of {requirement.key}, NodePool {claim.node_pool} wants "
                    f"{requirement.min_values}"
                )


def _declared(launches: Launches, types: Iterable[str], key: str) -> set[str]:
    """The values of a label among these instance types, whatever their offerings."""
    return {
        value
        for name in types
        if name in launches.market.types
        for requirement in launches.market.types[name].requirements
        if normalized(requirement.key) == key and requirement.operator == "In"
        for value in requirement.values
    }


def _check_labels(launches: Launches, place: Place, kinds: dict[Kind, str], storage: Storage) -> Iterator[Defect]:
    """Whatever comes of it keeps the NodePool's requirements, and suits every pod and its volumes."""
    broken = launches.rules if place.rows & ~launches.in_order(place.possible) else ()
    for rule in broken:
        unmet = place.rows & ~place.possible.suiting((((rule,),),))
        if unmet:
            where = _first(launches, unmet)
            yield place.defect(f"as {where} it breaks the NodePool's requirement {rule.key} {rule.operator}")
    for kind, pod in kinds.items():
        unsuitable = place.rows & ~place.possible.suiting(kind.wishes)
        if unsuitable:
            yield place.defect(f"pod {pod} does not accept its labels as {_first(launches, unsuitable)}")
        out_of_reach = place.rows & ~place.possible.suiting(storage.wishes(kind))
        if out_of_reach:
            yield place.defect(f"the volumes of pod {pod} cannot be reached from {_first(launches, out_of_reach)}")


def _check_taints(place: Place, kinds: dict[Kind, str]) -> Iterator[Defect]:
    for kind, pod in kinds.items():
        taint = untolerated(kind.pod, place.taints)
        if taint is not None:
            yield place.defect(f"pod {pod} does not tolerate taint {taint.key}={taint.value}:{taint.effect}")


def _check_room(launches: Launches, place: Place, claim: PlannedClaim) -> Iterator[Defect]:
    """Every way it may turn out holds all pods and its daemons, host ports included; and it asks for enough."""
    wanted = total_requests(place.planned.values())
    for resource, amount in sorted(wanted.items()):
        if amount > claim.requests.get(resource, 0):
            yield place.defect(f"asks for {resource} {claim.requests.get(resource, 0)}, its pods want {amount}")
    for part in launches.overheads(place.possible):
        rows = part.rows & place.rows
        if not rows:
            continue
        for resource in sorted({*wanted, *part.requests}):
            amount, taken = wanted.get(resource, 0), part.requests.get(resource, 0)
            short = rows & launches.market.smaller_than(resource, amount + taken)
            if short:
                yield place.defect(
                    f"{resource} {amount} wanted beside {taken} of daemons, {_first(launches, short)} has less"
                )
        yield from check_ports(place, part.ports, "its daemons")


def check_ports(place: Place, taken: Iterable[tuple[int, str, str]], by: str) -> Iterator[Defect]:
    """The planned pods take no host port twice, and none of these."""
    before = list(taken)
    for pod, kind in sorted(place.planned.items()):
        port = clash(kind.ports, before) if kind.ports else None
        if port is not None:
            yield place.defect(f"host port {port[0]}/{port[1]} of pod {pod} is taken by {by} or another pod")
        before += kind.ports


def total_requests(kinds: Iterable[Kind]) -> dict[str, int]:
    """What they take together."""
    total: dict[str, int] = {}
    for kind in kinds:
        for resource, amount in kind.requests.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def _first(launches: Launches, rows: Rows) -> str:
    instance_type, offering = launches.market.rows[_lowest(rows)]
    return f"{instance_type.name} in {offering.zone}"


def _lowest(rows: Rows) -> int:
    return (rows & -rows).bit_length() - 1
