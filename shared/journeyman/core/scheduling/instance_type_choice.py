"""Chooses the instance types and requirements of each new node's NodeClaim, and so its price.

A NodeClaim lists every instance type that holds its pods at a price near the lowest, so that the cloud provider has a
choice: all types up to `near_price` times the cheapest, at least `min_types` if so many fit, at most `max_types`, and
enough different ones for the NodePool's minValues.

Thousands of nodes share a few sets of requirements. The types of each set are sorted by price once and compared with
all its nodes at once. Nodes with equal lists share everything except their pods.

Restates: karpenter pkg/cloudprovider/types.go `OrderByPrice`, `Truncate`;
pkg/controllers/provisioning/scheduling/nodeclaim.go `FinalizeScheduling`,
`RemoveInstanceTypeOptionsByPriceAndMinValues`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement, OfferingKey
from journeyman.core.catalogue import InstanceType
from journeyman.core.scheduling.arrays import Bools, Ints, distinct
from journeyman.core.scheduling.limits import type_costs
from journeyman.core.scheduling.nodeclaim_templates import achievable, distinct_enough, needed_for_variety
from journeyman.core.scheduling.nodepool_options import NodeDemand, NodePoolOptions, TemplateVariant
from journeyman.core.scheduling.offerings import OfferingTable, on_reservation, reservation_of
from journeyman.core.scheduling.problem import PlannedNode, SchedulingProblem
from journeyman.core.scheduling.requirements import Requirement, Requirements, requirement, with_values
from journeyman.core.scheduling.results import MinValuesPolicy, PlannedClaim
from journeyman.errors import InvariantError


def node_requirements_of(
    pool: NodePoolOptions,
    type_index: int,
    variant: TemplateVariant,
    demands: Sequence[NodeDemand],
    reservation: str = "",
) -> Requirements:
    """Return the requirements of a node: those of NodePool, variant, reservation and all demands combined.

    Of a demand's alternative terms the first compatible one is used. An alternative must leave an offering of the
    instance type that meets all demands, so that no choice excludes a later demand. Reserved capacity counts only for a
    node that uses a reservation.
    """
    together = pool.template.requirements & variant.narrowed
    if reservation:
        together = on_reservation(together, reservation)
    if all(len(demand.terms) == 1 for demand in demands):
        for demand in demands:
            together &= demand.terms[0]
        return together
    table = pool.template.table
    possible: Bools = (table.row_type == type_index) & ((table.row_reservation < 0) | bool(reservation))
    for demand in demands:
        possible &= pool.rows(demand, variant)
    for demand in demands:
        for term in demand.terms:
            candidate = together & term
            if together.is_compatible(term, allow_undefined=labels.WELL_KNOWN) and (
                (table.rows_meeting(candidate) & possible).any()
            ):
                together = candidate
                break
    return together


_AT_ONCE: Final = 1 << 20  # nodes times types in one array, to bound memory
_SIMULATED: Final = frozenset({labels.REGISTERED, labels.INITIALIZED, labels.HOSTNAME, labels.INSTANCE_TYPE})


def planned_nodeclaims(
    nodes: Sequence[PlannedNode], problem: SchedulingProblem, draw: Callable[[int, int], Sequence[str]]
) -> list[PlannedClaim]:
    """Return a NodeClaim for each node, in the same order.

    Args:
        nodes: New nodes; their NodePools have an instance type that holds their pods.
        problem: The problem for which the nodes were planned.
        draw: Called with a row and a number; returns the keys of that many pods of the row, each pod only once.

    Raises:
        InvariantError: No type that a node's requirements allow holds its pods, or too few do for minValues.
    """
    choices: list[InstanceTypeChoice | None] = [None] * len(nodes)
    members_by_case: dict[tuple[int, Requirements], list[int]] = {}
    for index, node in enumerate(nodes):
        members_by_case.setdefault((node.pool, node.requirements), []).append(index)
    known: dict[tuple[int, Requirements], CandidateTypes] = {}
    for (index, wanted), members in members_by_case.items():
        pool = problem.pools[index]
        # requirements on labels that no offering defines do not affect the candidate types
        defined = {*pool.template.table.labels, labels.RESERVATION_ID}
        key = index, Requirements({label: r for label, r in wanted.items() if label in defined})
        if key in known:
            candidates = replace(known[key], wanted=wanted)
        else:
            candidates = known[key] = CandidateTypes.of(problem, pool, wanted)
        for member, choice in zip(members, candidates.choices([nodes[m] for m in members]), strict=True):
            choices[member] = choice
    return [_claim(node, choice, problem, draw) for node, choice in zip(nodes, choices, strict=True)]


def _claim(
    node: PlannedNode,
    choice: InstanceTypeChoice | None,
    problem: SchedulingProblem,
    draw: Callable[[int, int], Sequence[str]],
) -> PlannedClaim:
    name = problem.pools[node.pool].template.name
    if choice is None:
        raise InvariantError(f"no instance type of NodePool {name} holds what was planned for one node")
    requests = zip(problem.axes, (node.total + choice.least_overhead).tolist(), strict=True)
    return PlannedClaim(
        node_pool=name,
        pods=tuple(sorted(key for row, count in node.pods for key in draw(row, count))),
        instance_types=choice.instance_types,
        requirements=choice.requirements,
        requests={axis: amount for axis, amount in requests if amount},
        offering=choice.offering,
        price=choice.price,
        min_values_relaxed=choice.relaxed,
        reservations=choice.reservations,
        overlays=choice.overlays,
    )


class InstanceTypeChoice(Struct, frozen=True, kw_only=True, eq=False):
    """The fields that NodeClaims of one NodePool with the same instance types share."""

    instance_types: tuple[str, ...]
    requirements: tuple[NodeSelectorRequirement, ...]
    least_overhead: Ints
    offering: OfferingKey
    price: float
    relaxed: bool
    reservations: tuple[str, ...]
    overlays: tuple[str, ...]


class CandidateTypes(Struct, frozen=True, kw_only=True, eq=False):
    """The instance types of one NodePool that meet the requirements `wanted`, by price, then name.

    Attributes:
        problem: The problem for which nodes were planned.
        pool: The NodePool.
        wanted: The requirements.
        rows: All offerings that meet the requirements, by price.
        types: The types of these offerings, by the price of their cheapest offering.
        firsts: The cheapest offering of each type.
        reservation: The reservation that the requirements name; empty if none.
    """

    problem: SchedulingProblem
    pool: NodePoolOptions
    wanted: Requirements
    rows: Ints
    types: Ints
    firsts: Ints
    reservation: str

    @classmethod
    def of(cls, problem: SchedulingProblem, pool: NodePoolOptions, wanted: Requirements) -> CandidateTypes:
        """Return the types that meet the requirements; reserved capacity counts only if they name a reservation."""
        table, reservation = pool.template.table, reservation_of(wanted)
        meets = pool.template.rows & table.rows_meeting(wanted) & pool.usable[table.row_type]
        meets &= table.row_reservation >= 0 if reservation else table.row_reservation < 0
        rows = table.by_price[meets[table.by_price]]
        first = dict(zip(table.row_type[rows][::-1].tolist(), rows[::-1].tolist(), strict=True))
        types = list(dict.fromkeys(table.row_type[rows].tolist()))
        return cls(
            problem=problem,
            pool=pool,
            wanted=wanted,
            rows=rows,
            types=np.array(types, dtype=np.int64),
            firsts=np.array([first[t] for t in types], dtype=np.int64),
            reservation=reservation,
        )

    def choices(self, nodes: Sequence[PlannedNode]) -> Iterator[InstanceTypeChoice | None]:
        """Yield the choice for each node; None if no type holds its pods, or too few do for minValues."""
        known: dict[bytes, InstanceTypeChoice | None] = {}
        step = max(_AT_ONCE // max(len(self.types), 1), 1)
        for start in range(0, len(nodes), step):
            holding = self.holding(nodes[start : start + step])
            listed = holding if self.pool.template.min_values else self._listed(holding)
            for row, packed in zip(listed, np.packbits(listed, axis=1), strict=True):
                key = packed.tobytes()
                if key not in known:
                    known[key] = self._choice(row)
                yield known[key]

    def holding(self, nodes: Sequence[PlannedNode]) -> Bools:
        """Return by node and type whether the type holds the node's pods and stays within the node's share of limits.

        A type whose daemons use a host port of the pods does not hold them.
        """
        totals = np.array([node.total for node in nodes], dtype=np.int64)
        sizes = self.pool.sizes[self.types]
        holds: Bools = np.ones((len(nodes), len(self.types)), dtype=bool)
        for axis in np.flatnonzero(totals.any(axis=0)):
            holds &= sizes[:, axis] >= totals[:, axis, None]
        if nodes[0].share is not None:  # a pool has limits or it has none
            shares = np.array([node.share for node in nodes], dtype=np.int64)
            costs = type_costs(self.pool.template)[self.types]
            for resource in range(shares.shape[1]):
                holds &= costs[:, resource] <= shares[:, resource, None]
        if any(self.pool.daemon_ports):
            for number, node in enumerate(nodes):
                if ports := {port for row, _ in node.pods for port in self.problem.rows[row].ports}:
                    holds[number] &= self.pool.types_with_free_ports(ports)[self.types]
        return holds

    def _listed(self, holds: Bools) -> Bools:
        """Return the types that a NodeClaim lists, of those that hold its pods; a row per node."""
        if not holds.any():
            return holds
        prices = self.pool.template.table.prices[self.firsts]
        ceiling = prices[np.argmax(holds, axis=1)] * self.problem.options.near_price
        near = np.searchsorted(prices, ceiling, side="right")  # the number of types that cost no more
        rank = np.cumsum(holds, axis=1, dtype=np.int32)
        within = rank[np.arange(len(holds)), near - 1]
        count = np.minimum(np.maximum(within, self.problem.options.min_types), self.problem.options.max_types)
        listed: Bools = holds & (rank <= count[:, None])
        return listed

    def _choice(self, types: Bools) -> InstanceTypeChoice | None:
        """Return the choice that lists these types, with minValues some of them: the final check of minValues."""
        wanted, listed = with_values(self.wanted, self.pool.template.table.labels), np.flatnonzero(types)
        relaxed = False
        if self.pool.template.min_values and len(listed):
            if not distinct_enough(self.pool, self.types[listed]):
                if self.problem.options.min_values is MinValuesPolicy.STRICT:
                    return None
                lowered = achievable(self.pool, self.types[listed])
                relaxed = True
                wanted = Requirements({**wanted, **{k: replace(wanted[k], min_values=n) for k, n in lowered.items()}})
            listed = self._with_variety(types)
        return self._listing(listed, wanted, relaxed=relaxed) if len(listed) else None

    def _with_variety(self, types: Bools) -> Ints:
        """Return the types needed to meet minValues, and the cheapest of the others, at most `max_types` together."""
        usual = np.flatnonzero(self._listed(types[None, :])[0])
        holding = np.flatnonzero(types)
        index_of = {int(t): int(index) for t, index in zip(self.types[holding], holding, strict=True)}
        needed = {index_of[t] for t in needed_for_variety(self.pool, self.types[holding])}
        others = [int(index) for index in usual if int(index) not in needed]
        cheapest = others[: max(self.problem.options.max_types - len(needed), 0)]
        return np.array(sorted((*needed, *cheapest)), dtype=np.int64)

    def _listing(self, listed: Ints, wanted: Requirements, *, relaxed: bool) -> InstanceTypeChoice:
        table = self.pool.template.table
        types = self.types[listed]
        chosen: Bools = np.zeros(len(table.types), dtype=bool)
        chosen[types] = True
        codes, values = table.row_values(labels.CAPACITY_TYPE)
        capacity_types = distinct(codes[self.rows[chosen[table.row_type[self.rows]]]])
        names = [table.types[t].name for t in types]
        best = int(self.firsts[listed[0]])
        zone_codes, zones = table.row_values(labels.ZONE)
        return InstanceTypeChoice(
            instance_types=tuple(names),
            requirements=_as_selectors(
                wanted, names, sorted(v for c in capacity_types if (v := values[c]) is not None)
            ),
            least_overhead=self.pool.overhead[types].min(axis=0),
            offering=OfferingKey(names[0], zones[zone_codes[best]] or "", values[codes[best]] or ""),
            price=float(table.prices[best]),
            relaxed=relaxed,
            reservations=(self.reservation,) if self.reservation else (),
            overlays=tuple(sorted({key for t in types.tolist() for key in _overlays(table)[t]})),
        )


@lru_cache(maxsize=16)
def _overlays(table: OfferingTable) -> tuple[tuple[str, ...], ...]:
    """Return for each type the NodeOverlay annotations of a NodeClaim that lists it."""
    return tuple(overlay_annotations(t) for t in table.types)


def overlay_annotations(instance_type: InstanceType) -> tuple[str, ...]:
    """Return the annotations, each "true", of a NodeClaim that may become this type, sorted.

    Restates: karpenter pkg/controllers/provisioning/scheduling/nodeclaimtemplate.go `ToNodeClaim`.
    """
    annotations = {
        labels.PRICE_OVERLAY_APPLIED: any(o.price_overlaid for o in instance_type.offerings),
        labels.CAPACITY_OVERLAY_APPLIED: instance_type.capacity_overlaid,
    }
    return tuple(sorted(key for key, applied in annotations.items() if applied))


def _as_selectors(
    wanted: Requirements, instance_types: Sequence[str], capacity_types: Sequence[str]
) -> tuple[NodeSelectorRequirement, ...]:
    """Return the NodeClaim's requirements, sorted by key; instance types stay in price order."""
    selected: dict[str, Requirement] = {key: r for key, r in wanted.items() if key not in _SIMULATED}
    if capacity_types:
        least = wanted[labels.CAPACITY_TYPE].min_values if labels.CAPACITY_TYPE in wanted else None
        selected[labels.CAPACITY_TYPE] = requirement(labels.CAPACITY_TYPE, "In", capacity_types, least)
    least = wanted[labels.INSTANCE_TYPE].min_values if labels.INSTANCE_TYPE in wanted else None
    entries = [
        NodeSelectorRequirement(key=labels.INSTANCE_TYPE, operator="In", values=tuple(instance_types), min_values=least)
    ]
    for chosen in selected.values():
        entries += chosen.to_selectors()
    return tuple(sorted(entries, key=lambda r: (r.key, r.operator)))
