"""Consolidation: decides whether candidates can be deleted, or replaced by one cheaper node.

The simulation schedules the candidates' pods without the candidates. If existing nodes can run them all, the candidates
are deleted. If one new node is needed, even its worst launch price must be below the candidates' price. Consolidation
never raises the price, and never replaces a node by several.

Restates: karpenter pkg/controllers/disruption/consolidation.go `computeConsolidation`, `computeSpotToSpotConsolidation`.
Differs: if packing by price needs several new nodes, packing into the fewest nodes is tried too, as Karpenter packs; and the other
way round. A replacement may be larger than the simulation needs (core/disruption/binding_orders.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NodeSelectorRequirement, OfferingKey
from journeyman.core.catalogue import InstanceType, Offering
from journeyman.core.disruption.candidates import Candidate, DisruptionReason
from journeyman.core.disruption.commands import Command, NoOpCause, SimulationResult
from journeyman.core.disruption.simulation import Simulation
from journeyman.core.scheduling import requirements as algebra
from journeyman.core.scheduling.requirements import Requirements
from journeyman.core.scheduling.results import PlannedClaim

MIN_SPOT_TO_SPOT_TYPES: Final = 15  # consolidation.go `MinInstanceTypesForSpotToSpotConsolidation`

LARGER_TYPES: Final = 4
"""How often a replacement is made larger so that no pod may be left without capacity."""

LAUNCH_ORDER: Final = (labels.RESERVED, labels.SPOT, labels.ON_DEMAND)
"""The order in which a launch chooses among the capacity types that are allowed."""


def compute_consolidation(
    simulation: Simulation, candidates: Sequence[Candidate], *, spot_to_spot: bool = False, single_node: bool = True
) -> Command:
    """Return the command for these candidates together.

    Args:
        simulation: Simulations in the cluster.
        candidates: At least one, each consolidatable.
        spot_to_spot: Whether Spot nodes may be replaced by Spot nodes (gate SpotToSpotConsolidation).
        single_node: Whether it is single-node consolidation; spot-to-spot then needs many cheaper instance types, so
            that the replacement does not itself become the next candidate.

    Returns:
        A delete or a replace command, or a no-op whose `why_not` gives the reason.
    """
    result = simulation.without(candidates)
    if not result.errors and len(result.results.new_claims) > (0 if simulation.packs_into_fewest_nodes else 1):
        # the other packing may take one node where this takes several; by price, which tries more orders of the pods, even none
        other = simulation.without(candidates, other_packing=True)
        result = min(result, other, key=lambda found: (bool(found.errors), len(found.results.new_claims)))
    return replace(
        _decide(simulation, result, candidates, spot_to_spot=spot_to_spot, single_node=single_node),
        simulation_result=result,
    )


def _decide(
    simulation: Simulation,
    result: SimulationResult,
    candidates: Sequence[Candidate],
    *,
    spot_to_spot: bool,
    single_node: bool,
) -> Command:
    if result.errors:
        return _no_op("not all pods would schedule, " + first_error(result.errors))
    new = result.results.new_claims
    if not new:
        return Command(reason=DisruptionReason.UNDERUTILIZED, candidates=tuple(candidates))
    if len(new) > 1:
        return _no_op(f"Can't remove without creating {len(new)} candidates")
    types = simulation.catalogue.instance_types(new[0].node_pool)
    claim = _with_min_values(new[0], simulation.snapshot.node_pools_by_name[new[0].node_pool])
    if all(c.capacity_type == labels.SPOT for c in candidates) and labels.SPOT in _capacity_types(claim):
        if not spot_to_spot:
            why = "SpotToSpotConsolidation is disabled, can't replace a spot node with a spot node"
            return _no_op(why, NoOpCause.SPOT_TO_SPOT_DISABLED)
        return _replace_spot_by_spot(claim, types, candidates, single_node=single_node)
    return _replace_by_cheaper(claim, types, candidates)


def too_few_spot_types(command: Command) -> str:
    """Return why one Spot node may not be replaced by Spot nodes with so few types; empty if it may."""
    spot = [r for r in command.replacements if r.offering.capacity_type == labels.SPOT]
    if not spot or [c.capacity_type for c in command.candidates] != [labels.SPOT]:
        return ""
    fewest = min(len(r.instance_types) for r in spot)
    return _too_few(fewest) if fewest < MIN_SPOT_TO_SPOT_TYPES else ""


def narrowed_to(command: Command, names: Iterable[str], simulation: Simulation) -> Command:
    """Return a replace command whose launch may choose these instance types only.

    It is a no-op if none of them is cheaper now, or those that are do not meet minValues.
    """
    (claim,), wanted = command.replacements, frozenset(names)
    types = {t.name: t for t in simulation.catalogue.instance_types(claim.node_pool)}
    kept = [types[name] for name in claim.instance_types if name in wanted]
    if not kept:
        return _no_op("no proposed instance type is cheaper any more")
    return replace(_replace(claim, kept, command.candidates), simulation_result=command.simulation_result)


def with_larger_replacement(
    command: Command,
    simulation: Simulation,
    unbound: Callable[[Command], str],
    check: Callable[[Command], str] = lambda command: "",
) -> Command | None:
    """Return a replace command with only instance types that leave no pod without capacity, in whatever order pods are bound.

    Args:
        command: A command of which a pod may find no capacity.
        simulation: The cluster in which it was simulated.
        unbound: Returns the key of a pod that may find no capacity, empty if there is none.
        check: Returns why a command is refused, empty if it is not.

    Returns:
        None if the command has no replacement, or the types that are large enough cost too much or are refused.
    """
    if not command.replacements:
        return None
    types = {t.name: t for t in simulation.catalogue.instance_types(command.replacements[0].node_pool)}
    for _ in range(LARGER_TYPES):
        (claim,) = command.replacements
        small = types[claim.offering.instance_type]
        names = [name for name in claim.instance_types if not _is_within(types[name], small)]
        command = narrowed_to(command, names, simulation)
        if not command.candidates or check(command):
            return None
        if not unbound(command):
            return command
    return None


def _is_within(one: InstanceType, other: InstanceType) -> bool:
    """Return whether an instance type has no more of anything than another one."""
    return all(amount <= other.allocatable.get(axis, 0) for axis, amount in one.allocatable.items())


def without_same_type(command: Command, simulation: Simulation) -> Command:
    """Return a replace command of several nodes whose replacement is cheaper than any candidate of a type it may have.

    Replacing three nodes by one of the cheapest one's type would be to delete the other two, with more pods moved. It is a
    no-op if no type remains, or those that do not meet minValues.

    Restates: karpenter pkg/controllers/disruption/multinodeconsolidation.go `filterOutSameInstanceType`.
    """
    (claim,) = command.replacements
    same: dict[str, float] = {}
    for candidate in command.candidates:
        if candidate.instance_type in claim.instance_types:
            earlier = same.get(candidate.instance_type, 0.0)
            same[candidate.instance_type] = min(filter(None, (earlier, candidate.price)), default=0.0)
    if not same:
        return command
    kept = _cheaper_types(claim, simulation.catalogue.instance_types(claim.node_pool), min(same.values()))
    filtered = _replace(claim, kept, command.candidates) if kept else _no_op("Can't replace with a cheaper node")
    return replace(filtered, simulation_result=command.simulation_result)


def limited_to_price(
    claim: PlannedClaim, pool: NodePool, types: Iterable[InstanceType], most: float
) -> PlannedClaim | str:
    """Return the NodeClaim with only the types that cost at most `most` however they are launched; or why there is none.

    It is pinned to the capacity type of its cheapest offering, since only its price was compared.

    Args:
        claim: A planned NodeClaim.
        pool: Its NodePool; its minValues must be met.
        types: The NodePool's instance types.
        most: Price per hour.
    """
    pinned = _pinned(_with_min_values(claim, pool), claim.offering.capacity_type)
    kept = _cheaper_types(pinned, types, math.nextafter(most, math.inf))
    if not kept:
        return f"no {claim.offering.capacity_type} offering costs at most {most:.4f} per hour"
    if short := _short_of_min_values(pinned, kept):
        return f"minValues requirement is not met for label(s) {', '.join(short)}"
    return _narrowed(pinned, kept)


def worst_launch_price(instance_type: InstanceType, requirements: Requirements) -> float | None:
    """Return the highest price per hour at which this type may be launched; None if it cannot be launched now.

    It is the most expensive offering of the capacity type that the launch would choose.

    Restates: karpenter pkg/cloudprovider/types.go `Offerings.WorstLaunchPrice`.
    """
    offerings = compatible_offerings(instance_type, requirements)
    for capacity_type in LAUNCH_ORDER:
        prices = [o.price for o in offerings if o.capacity_type == capacity_type]
        if prices:
            return max(prices)
    return None


def compatible_offerings(instance_type: InstanceType, requirements: Requirements) -> tuple[Offering, ...]:
    """Return the type's available offerings that meet the requirements."""
    return tuple(
        o
        for o in instance_type.offerings
        if o.available and _is_compatible(requirements, o.zone, o.capacity_type, o.requirements)
    )


@lru_cache(maxsize=4096)
def _is_compatible(
    requirements: Requirements, zone: str, capacity_type: str, more: tuple[NodeSelectorRequirement, ...]
) -> bool:
    """Whether an offering meets requirements. All instance types in a zone have the same answer, so it is cached."""
    own = (
        NodeSelectorRequirement(key=labels.ZONE, operator="In", values=(zone,)),
        NodeSelectorRequirement(key=labels.CAPACITY_TYPE, operator="In", values=(capacity_type,)),
    )
    return requirements.conflict(algebra.from_selectors((*own, *more))) is None


def _replace_by_cheaper(claim: PlannedClaim, types: Sequence[InstanceType], candidates: Sequence[Candidate]) -> Command:
    """Replace by a cheaper node, pinned to the capacity type whose price was compared.

    Differs: Karpenter pins to Spot whenever Spot and on-demand are both allowed, even if no Spot offering is available;
    here the first capacity type (reserved, Spot, on-demand) with a cheaper offering is chosen. In both, the launch fails
    if that capacity type is out of stock, rather than paying more.
    """
    allowed = _capacity_types(claim)
    for capacity_type in (c for c in LAUNCH_ORDER if c in allowed):
        pinned = _pinned(claim, capacity_type)
        if kept := _cheaper_types(pinned, types, _price(candidates)):
            return _replace(pinned, kept, candidates)
    return _no_op("Can't replace with a cheaper node")


def _replace_spot_by_spot(
    claim: PlannedClaim, types: Iterable[InstanceType], candidates: Sequence[Candidate], *, single_node: bool
) -> Command:
    claim = _pinned(claim, labels.SPOT)
    kept = _cheaper_types(claim, types, _price(candidates))
    if not kept:
        return _no_op("Can't replace with a cheaper node")
    if not single_node:
        return _replace(claim, kept, candidates)
    if len(kept) < MIN_SPOT_TO_SPOT_TYPES:
        return _no_op(_too_few(len(kept)), NoOpCause.TOO_FEW_SPOT_TYPES)
    return _replace(claim, kept[: max(MIN_SPOT_TO_SPOT_TYPES, _needed_for_min_values(claim, kept))], candidates)


def _too_few(types: int) -> str:
    return (
        f"SpotToSpotConsolidation requires {MIN_SPOT_TO_SPOT_TYPES} cheaper instance type options than the current "
        f"candidate to consolidate, got {types}"
    )


def _cheaper_types(claim: PlannedClaim, types: Iterable[InstanceType], price: float) -> tuple[InstanceType, ...]:
    """Return the NodeClaim's types whose worst launch price is below `price`, cheapest first, ties by name."""
    requirements = algebra.from_selectors(claim.requirements)
    options = set(claim.instance_types)
    priced = ((worst_launch_price(t, requirements), t) for t in types if t.name in options)
    kept = sorted(((p, t.name, t) for p, t in priced if p is not None and p < price), key=lambda entry: entry[:2])
    return tuple(t for _, _, t in kept)


def _replace(claim: PlannedClaim, types: Sequence[InstanceType], candidates: Sequence[Candidate]) -> Command:
    if short := _short_of_min_values(claim, types):
        return _no_op(
            f"Filtering by price: minValues requirement is not met for label(s) (label(s)=[{', '.join(short)}])",
            NoOpCause.MIN_VALUES,
        )
    return Command(
        reason=DisruptionReason.UNDERUTILIZED,
        candidates=tuple(candidates),
        replacements=(_narrowed(claim, types),),
    )


def _narrowed(claim: PlannedClaim, types: Sequence[InstanceType]) -> PlannedClaim:
    """Return the NodeClaim with these types only, and the cheapest offering among them."""
    requirements = algebra.from_selectors(claim.requirements)
    offerings = [
        (o.price, t.name, o.zone, o.capacity_type) for t in types for o in compatible_offerings(t, requirements)
    ]
    price, name, zone, capacity_type = min(offerings)
    names = tuple(t.name for t in types)
    return replace(
        claim,
        instance_types=names,
        requirements=_with_values(claim.requirements, labels.INSTANCE_TYPE, names),
        offering=OfferingKey(name, zone, capacity_type),
        price=price,
    )


def _pinned(claim: PlannedClaim, capacity_type: str) -> PlannedClaim:
    return replace(claim, requirements=_with_values(claim.requirements, labels.CAPACITY_TYPE, (capacity_type,)))


def _with_values(
    requirements: Iterable[NodeSelectorRequirement], key: str, values: tuple[str, ...]
) -> tuple[NodeSelectorRequirement, ...]:
    """Return the requirements with `key` In these values; its minValues stay."""
    old = [r for r in requirements if r.key == key]
    least = max((r.min_values for r in old if r.min_values is not None), default=None)
    new = NodeSelectorRequirement(key=key, operator="In", values=values, min_values=least)
    return tuple(sorted((*(r for r in requirements if r.key != key), new), key=lambda r: (r.key, r.operator, r.values)))


def _capacity_types(claim: PlannedClaim) -> frozenset[str]:
    """Return the capacity types that the NodeClaim allows."""
    allowed = algebra.from_selectors(claim.requirements).get(labels.CAPACITY_TYPE)
    return frozenset(LAUNCH_ORDER if allowed is None else (c for c in LAUNCH_ORDER if allowed.has(c)))


def _with_min_values(claim: PlannedClaim, pool: NodePool) -> PlannedClaim:
    """Return the NodeClaim with the NodePool's minValues in its requirements."""
    least = {r.key: r.min_values for r in pool.spec.template.spec.requirements if r.min_values is not None}
    if not least:
        return claim
    kept = [msgspec.structs.replace(r, min_values=least.get(r.key, r.min_values)) for r in claim.requirements]
    return replace(claim, requirements=tuple(kept))


def _short_of_min_values(claim: PlannedClaim, types: Iterable[InstanceType]) -> tuple[str, ...]:
    """Return the keys for which these types have fewer distinct values than minValues requires."""
    min_values = {r.key: r.min_values for r in claim.requirements if r.min_values is not None}
    values = _distinct_values(types, min_values)
    return tuple(key for key, least in sorted(min_values.items()) if len(values[key]) < least)


def _needed_for_min_values(claim: PlannedClaim, types: Sequence[InstanceType]) -> int:
    """Return how many of the first types are needed to meet minValues; all of them if even those do not."""
    return next((n for n in range(1, len(types)) if not _short_of_min_values(claim, types[:n])), len(types))


def _distinct_values(types: Iterable[InstanceType], keys: Iterable[str]) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = {key: set() for key in keys}
    for instance_type in types:
        for term in instance_type.requirements:
            if term.key in found and term.operator == "In":
                found[term.key].update(term.values)
        if labels.INSTANCE_TYPE in found:
            found[labels.INSTANCE_TYPE].add(instance_type.name)
    return found


def _price(candidates: Iterable[Candidate]) -> float:
    return sum(c.price for c in candidates)


def first_error(errors: Mapping[str, str]) -> str:
    """Return the error of the first pod by name, and how many more there are."""
    pod = min(errors)
    more = f" and {len(errors) - 1} more" if len(errors) > 1 else ""
    return f"pod {pod}: {errors[pod]}{more}"


def _no_op(why: str, cause: NoOpCause | None = None) -> Command:
    return Command(reason=DisruptionReason.UNDERUTILIZED, why_not=why, cause=cause)
