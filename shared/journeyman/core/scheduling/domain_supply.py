"""Finds the combinations of domains that the pods of a row can use, on existing and new nodes, and their prices.

Rows with equal node requirements share one list of offerings; only the fit and the least price of one pod are computed
per row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from operator import le, mul
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.scheduling.arrays import Bools, Floats, Ints, distinct, every
from journeyman.core.scheduling.domain_distribution import UNLIMITED, DomainCombination
from journeyman.core.scheduling.node_filling import NodeFilling, NodePods
from journeyman.core.scheduling.nodeclaim_templates import PoolOrder
from journeyman.core.scheduling.nodepool_options import NodeConstraints, NodeDemand, NodePoolOptions
from journeyman.core.scheduling.problem import PartialSolution, SchedulingProblem
from journeyman.core.scheduling.requirements import Requirement, Requirements, requirement
from journeyman.core.scheduling.topology import ABSENT, DecidedLabel, DecidedLabels, present

_Requests = Sequence[int]
"""The requests of one pod, by axis."""


class DomainKeys(NamedTuple):
    """The labels of the rules over domains that concern a row.

    Attributes:
        all: All of them, sorted.
        needed: Those that a node must have.
        excluding: Those over which anti-affinity, their own or that of other pods, excludes domains; a node without the
            label is in none.
        only_inverse: Those over which only the anti-affinity of other pods concerns them.
    """

    all: tuple[str, ...]
    needed: frozenset[str]
    excluding: frozenset[str]
    only_inverse: frozenset[str]


_NO_KEYS: Final = DomainKeys((), frozenset(), frozenset(), frozenset())
_PER_COMBINATION: Final = 120  # effort of finding the offerings in one combination of domains
_DECIMALS: Final = 12  # of a price; smaller differences are rounding errors


class _DomainOffer(Struct, frozen=True, eq=False):
    """The instance types of one NodePool in one combination of domains.

    Attributes:
        decided: The combination of domains.
        values: The same, by label.
        order: The order of the NodePool by weight.
        sizes: Allocatable amounts, a row per type and a column per axis.
        prices: The cheapest price of each type.
        largest: For each axis, the size of the type that has most of it; duplicates removed.
        rates: For each axis, the lowest price of one unit.
    """

    decided: DecidedLabels
    values: dict[str, str]
    order: PoolOrder
    sizes: Ints
    prices: Floats
    largest: tuple[tuple[int, ...], ...]
    rates: tuple[float, ...]

    def holds(self, requests: _Requests, amounts: Ints) -> bool:
        """Return whether a pod with these requests fits on one of the types."""
        if any(_covers(size, requests) for size in self.largest):
            return True
        return len(self.largest) > 1 and bool(every(self.sizes >= amounts).any())

    def price(self, requests: _Requests) -> float:
        """Return a lower bound on the price of one pod: its dominant share of the cheapest offering."""
        dominant: float = max(map(mul, requests, self.rates))
        return round(dominant, _DECIMALS)


class _DomainOffers(Struct, frozen=True, eq=False):
    """The offers for equal node constraints, sorted by decided labels.

    Attributes:
        all: The offers.
        guaranteed: A pod with these requests or less fits into every offer.
        distinct: No two offers have equal decided.
    """

    all: tuple[_DomainOffer, ...]
    guaranteed: tuple[int, ...]
    distinct: bool = True

    @classmethod
    def of(cls, offers: Iterable[_DomainOffer]) -> _DomainOffers:
        """Return the offers, sorted by decided labels."""
        ordered = tuple(sorted(offers, key=lambda offer: offer.decided))
        guaranteed = tuple(min(sizes) for sizes in zip(*(offer.largest[0] for offer in ordered), strict=True))
        return cls(ordered, guaranteed, len({offer.decided for offer in ordered}) == len(ordered))

    def holding(self, requests: _Requests, amounts: Ints) -> Sequence[_DomainOffer]:
        """Return the offers into which a pod with these requests fits."""
        if not self.all or _covers(self.guaranteed, requests):
            return self.all
        return [offer for offer in self.all if offer.holds(requests, amounts)]


_NO_OFFERS: Final = _DomainOffers((), ())


def _covers(size: Sequence[int], requests: _Requests) -> bool:
    return all(map(le, requests, size))


class DomainSupply:
    """Finds the combinations that pods can use, given a partial solution."""

    def __init__(self, problem: SchedulingProblem, solution: PartialSolution, filling: NodeFilling) -> None:
        """Use instance types within NodePool limits, and existing nodes with the capacity left in `filling`."""
        self._problem = problem
        self._filling = filling
        self._allowed = [headroom.allows() for headroom in solution.headroom]
        self._offers: dict[object, _DomainOffers] = {}
        self._offers_of_row: dict[tuple[int, tuple[str, ...]], _DomainOffers] = {}
        self._requests: list[_Requests] = problem.requests.tolist()
        self._must_join_pods = frozenset(np.flatnonzero(problem.host_constraints.follows.any(axis=1)).tolist())

    def takes(self, row: int) -> bool:
        """Return whether a pod of the row fits on any existing or new node, in any domain."""
        if self._offers_for(row, _NO_KEYS).holding(self._requests[row], self._problem.requests[row]):
            return True
        return bool(self._filling.existing.nodes) and bool(self._filling.open_to(row).any())

    def reach(self, row: int, keys: DomainKeys) -> int:
        """Return how many combinations meet the constraints of a row, ignoring their capacity."""
        reachable = {offer.decided for offer in self._offers_for(row, keys).all}
        if self._filling.existing.nodes:
            suits = self._filling.suits(row)
            combinations = self._filling.existing.columns.combinations(keys.all)
            reachable.update(_with_absent(c.decided, keys) for c in combinations if (suits & c.nodes).any())
        return len(reachable)

    def combinations(self, row: int, keys: DomainKeys, pods: int) -> list[DomainCombination]:
        """Return the combinations into which a pod of the row fits now, sorted by decided labels.

        Args:
            row: The row of the pods.
            keys: The labels of the rules over domains that concern the row.
            pods: The number of pods; capacity for more is not computed.
        """
        requests = self._requests[row]
        offers = self._offers_for(row, keys)
        on_new_nodes = [
            DomainCombination(offer.decided, offer.values, 0, UNLIMITED, offer.order, offer.price(requests))
            for offer in offers.holding(requests, self._problem.requests[row])
        ]
        if offers.distinct and not self._filling.existing.nodes:
            return on_new_nodes
        combinations: dict[DecidedLabels, DomainCombination] = {}
        for combination in on_new_nodes:
            best = combinations.get(combination.decided)
            if best is None or (combination.order, combination.price) < (best.order, best.price):
                combinations[combination.decided] = combination
        for on_nodes in self._cells_on_nodes(row, keys, pods) if self._filling.existing.nodes else ():
            with_new_nodes = combinations.get(on_nodes.decided)
            combinations[on_nodes.decided] = (
                replace(with_new_nodes, free_pods=on_nodes.free_pods, nodes=on_nodes.nodes)
                if with_new_nodes
                else on_nodes
            )
        return [combinations[decided] for decided in sorted(combinations)]

    def _cells_on_nodes(self, row: int, keys: DomainKeys, pods: int) -> Iterator[DomainCombination]:
        """Yield the combinations of existing nodes on which pods of the row fit."""
        is_open = self._filling.open_to(row)
        if not is_open.any():
            return
        for decided, members in self._filling.existing.columns.combinations(keys.all):
            nodes = np.flatnonzero(is_open & members)[:pods].tolist()  # at least one pod fits on each
            values = dict(decided)
            if nodes and all(key in values for key in keys.needed):
                free_pods = self._filling.free_pods(row, nodes)
                by_node = list(map(NodePods, nodes, free_pods))
                yield DomainCombination(_with_absent(decided, keys), values, free_pods=sum(free_pods), nodes=by_node)

    # --- offerings

    def _offers_for(self, row: int, keys: DomainKeys) -> _DomainOffers:
        offers = self._offers_of_row.get((row, keys.all))
        if offers is None:
            offers = self._offers_of_row[row, keys.all] = self._find_offers(row, keys)
        return offers

    def _find_offers(self, row: int, keys: DomainKeys) -> _DomainOffers:
        """Return the offers for the row, cached by its constraints; none if its pods must join others on their node."""
        if row in self._must_join_pods:
            return _NO_OFFERS
        number, ports = self._problem.node_constraints_of_row[row], self._problem.rows[row].ports
        constraints = self._problem.node_constraints[number]
        case = (number, keys, ports)
        if case not in self._offers:
            self._offers[case] = _DomainOffers.of(
                offer
                for pool, allowed in zip(self._problem.pools, self._allowed, strict=True)
                if pool.serves(NodeDemand(constraints))
                for offer in self._offers_in(pool, allowed & pool.types_with_free_ports(ports), constraints, keys)
            )
        return self._offers[case]

    def _offers_in(
        self, pool: NodePoolOptions, allowed: Bools, constraints: NodeConstraints, keys: DomainKeys
    ) -> Iterator[_DomainOffer]:
        """Yield the offers of a NodePool, for each combination of these labels' values that it and its offerings allow.

        A label for which neither lists values is omitted from the combination, unless it is needed.
        """
        table = pool.template.table
        rows = pool.rows(NodeDemand(constraints)) & allowed[table.row_type]
        if not rows.any():
            return
        for requirements, matching in table.by_labels(keys.all, np.flatnonzero(rows)):
            offered = zip(keys.all, requirements, strict=True)
            listed = {key: self._values(pool, key, r, keys, constraints.terms) for key, r in offered}
            values_by_key = {key: values for key, values in listed.items() if values or key in keys.needed}
            has_choice = any(len(values) > 1 or key in keys.excluding for key, values in values_by_key.items())
            for chosen in product(*values_by_key.values()):
                decided = tuple(map(DecidedLabel, values_by_key, chosen))
                suitable = (
                    matching[pool.rows(NodeDemand(constraints, decided=decided))[matching]] if has_choice else matching
                )
                if len(suitable):
                    yield _offer(pool, decided, suitable)
                self._problem.effort.spend(_PER_COMBINATION * (len(constraints.terms) if has_choice else 1))

    def _values(
        self,
        pool: NodePoolOptions,
        key: str,
        offered: Requirement | None,
        keys: DomainKeys,
        terms: Sequence[Requirements],
    ) -> Sequence[str]:
        """Return the values that the NodePool and an offering allow for a label, sorted; empty if neither lists values.

        If anti-affinity excludes values of the label, `ABSENT` is listed for nodes that do not have it. For nodes that
        may have any value, the values that the pods' terms list are returned, and an unused one if a term lists none.
        """
        pool_requirement = pool.template.requirements.get(key)
        merged = (
            offered.intersection(pool_requirement)
            if offered is not None and pool_requirement is not None
            else offered or pool_requirement
        )
        if merged is not None and not merged.complement and (merged.values or merged.present):
            return sorted(merged.values)
        if merged is None or not merged.present:
            return (ABSENT,) if key in keys.excluding else ()
        if key not in keys.excluding or key in labels.WELL_KNOWN or labels.is_restricted(key):
            return ()
        possible = [merged.intersection(term[key]) if key in term else merged for term in terms]
        unused = (r.intersection(requirement(key, "NotIn", self._used_values(key))) for r in possible if r.complement)
        found = {value for r in possible if not r.complement for value in r.values}
        return sorted(found.union(r.any_value() for r in unused if r.complement))

    def _used_values(self, key: str) -> frozenset[str]:
        """Return the values of a label that existing nodes have, or that NodePools list."""
        existing = (node.labels.get(key) for node in self._problem.existing.all_nodes)
        listed = (pool.template.requirements.get(key) for pool in self._problem.pools)
        used = {value for r in listed if r is not None and not r.complement for value in r.values}
        return frozenset(used.union(value for value in existing if value is not None))


def _with_absent(decided: DecidedLabels, keys: DomainKeys) -> DecidedLabels:
    """Return the decided labels of existing nodes; those over which domains are excluded may be absent."""
    if len(decided) == len(keys.all):
        return decided
    values = dict(decided)
    return tuple(
        DecidedLabel(key, values.get(key, ABSENT)) for key in keys.all if key in values or key in keys.excluding
    )


def _offer(pool: NodePoolOptions, decided: DecidedLabels, rows: Ints) -> _DomainOffer:
    table = pool.template.table
    of_row = table.row_type[rows]
    types = distinct(of_row)
    sizes = pool.sizes[types]
    prices = table.prices[rows] + pool.template.node_surcharge
    cheapest: Floats = np.full(len(table.types), np.inf)
    np.minimum.at(cheapest, of_row, prices)
    per_unit = prices[:, None] / np.maximum(pool.sizes[of_row], 1)
    largest = list(dict.fromkeys(np.argmax(sizes, axis=0).tolist()))  # pods may request thousands of resources
    return _DomainOffer(
        decided=decided,
        values=dict(present(decided)),
        order=pool.template.order,
        sizes=sizes,
        prices=cheapest[types],
        largest=tuple(dict.fromkeys(map(tuple, sizes[largest].tolist()))),
        rates=tuple(per_unit.min(axis=0).tolist()),
    )
