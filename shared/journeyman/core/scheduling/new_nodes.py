"""Plans new nodes: packs batches of pods onto offerings by price, NodePools of greater weight first.

NodePools of equal weight compete; pods that do not fit there go to the next weight. Batches that packing cannot
distinguish become one item with a count. When limits or reservations run out, the remaining pods are packed again onto
the offerings that are still allowed. Packing by price may waste a limited resource. If pods remain, plans whose prices
charge for the limited resource are computed too, and the plan that places most pods wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import groupby
from typing import Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.scheduling.arrays import Bools, Floats, Ints, distinct, numbered
from journeyman.core.scheduling.host_constraints import HostConstraints
from journeyman.core.scheduling.instance_type_choice import CandidateTypes, node_requirements_of
from journeyman.core.scheduling.limits import Headroom, type_costs
from journeyman.core.scheduling.nodeclaim_templates import distinct_enough, needed_for_variety
from journeyman.core.scheduling.nodepool_options import (
    CompatibleOfferings,
    NodeDemand,
    compatible_offerings,
    worth_considering,
)
from journeyman.core.scheduling.offerings import Reservations
from journeyman.core.scheduling.packing import Content, Packing, PackingProblem, pack
from journeyman.core.scheduling.pod_classes import RowPods
from journeyman.core.scheduling.problem import PlannedNode, PodBatch, SchedulingProblem
from journeyman.core.scheduling.requirements import Requirements
from journeyman.core.scheduling.results import EffortSpentError, MinValuesPolicy
from journeyman.core.scheduling.topology import DecidedLabels

LIMIT_WEIGHTS: Final = (1.0, 1e6)  # times the highest price: the charge for using all that is left of a limit


class _BatchQueue:
    """A FIFO queue of the pods of one item, in batches."""

    def __init__(self, batches: Sequence[PodBatch]) -> None:
        self._batches = batches
        self.rows = [batch.row for batch in batches for _ in range(batch.count)]  # one entry per pod
        self._drawn = 0

    def draw(self, count: int) -> Sequence[int]:
        """Remove the next `count` pods; return the row of each."""
        start = self._drawn
        self._drawn += count
        return self.rows[start : self._drawn]

    def rest(self) -> Mapping[PodBatch, PodBatch]:
        """Return what remains of each batch, for the batches with pods that were not drawn."""
        if self._drawn == len(self.rows):
            return {}
        remaining: dict[PodBatch, PodBatch] = {}
        drawn = self._drawn
        for batch in self._batches:
            count = batch.count - min(drawn, batch.count)
            drawn -= batch.count - count
            if count:
                remaining[batch] = replace(batch, count=count)
        return remaining


class PackingItems(Struct, frozen=True, kw_only=True, eq=False):
    """What the items of a packing problem stand for: batches that packing cannot distinguish.

    Attributes:
        demands: The distinct demands on nodes.
        demand_of: The index in `demands`, by item.
        rows: The first row of each item; the item's other rows have the same requests and host constraints.
        queues: The pods, by item.
    """

    demands: tuple[NodeDemand, ...]
    demand_of: Ints
    rows: Ints
    queues: tuple[_BatchQueue, ...]

    @classmethod
    def of(cls, problem: SchedulingProblem, rules: HostConstraints, batches: Sequence[PodBatch]) -> PackingItems:
        """Return the items of these batches, in order of first appearance."""
        amounts = np.concatenate((problem.requests, rules.uses), axis=1)
        kinds: dict[int, bytes] = {}  # by row; packing cannot distinguish rows of one kind
        demands: dict[tuple[int, DecidedLabels], int] = {}
        items: dict[tuple[int, bytes], list[PodBatch]] = {}
        for batch in batches:
            row = batch.row
            if row not in kinds:
                kinds[row] = b"".join(part[row].tobytes() for part in (amounts, rules.counted, rules.owning))
            demand = demands.setdefault((problem.node_constraints_of_row[row], batch.decided), len(demands))
            items.setdefault((demand, kinds[row]), []).append(batch)
        return cls(
            demands=tuple(NodeDemand(problem.node_constraints[number], decided=decided) for number, decided in demands),
            demand_of=np.array([demand for demand, _ in items], dtype=np.int64),
            rows=np.array([alike[0].row for alike in items.values()], dtype=np.int64),
            queues=tuple(map(_BatchQueue, items.values())),
        )

    def packing_problem(
        self, problem: SchedulingProblem, rules: HostConstraints, offerings: CompatibleOfferings, capacities: Ints
    ) -> PackingProblem:
        """Return the problem of packing the items onto these offers.

        Args:
            problem: The scheduling problem of the batches.
            rules: Its rules about one node.
            offerings: The offers.
            capacities: What a node of each offer has on the axes of host constraints.
        """
        return PackingProblem(
            counts=np.array([len(queue.rows) for queue in self.queues], dtype=np.int64),
            requests=np.concatenate((problem.requests[self.rows], rules.uses[self.rows]), axis=1),
            allowed=offerings.allowed[:, self.demand_of],
            sizes=np.concatenate((offerings.sizes, capacities), axis=1),
            prices=offerings.prices,
            constraints=offerings.constraints,
            selected=rules.counted[self.rows],
            owning=rules.owning[self.rows],
            reservation=offerings.reservation,
        )

    def draw(self, content: Content) -> tuple[RowPods, ...]:
        """Remove the next pods of these items; return them with one entry per row, sorted by row."""
        pods_by_row: dict[int, int] = {}
        for item, count in content.pairs():
            for row in self.queues[item].draw(count):
                pods_by_row[row] = pods_by_row.get(row, 0) + 1
        return tuple(map(RowPods._make, sorted(pods_by_row.items())))

    def rest(self) -> Mapping[PodBatch, PodBatch]:
        """Return what remains of each batch, for the batches with pods that were not drawn."""
        return {batch: remaining for queue in self.queues for batch, remaining in queue.rest().items()}


class NewNodes(Struct, frozen=True, kw_only=True):
    """New nodes, and the batches with the pods for which no node could be planned."""

    nodes: tuple[PlannedNode, ...]
    left: tuple[PodBatch, ...]
    headroom: tuple[Headroom, ...]
    reservations: Reservations


def plan_new_nodes(
    batches: Sequence[PodBatch], problem: SchedulingProblem, headroom: Sequence[Headroom], reservations: Reservations
) -> NewNodes:
    """Plan new nodes for the batches, NodePools of greater weight first.

    Args:
        batches: Pods whose only remaining topology rules are their decided labels and the rules about a single node.
        problem: The scheduling problem.
        headroom: The amounts left of each NodePool's limits.
        reservations: The reserved capacity that is left.
    """
    nodes: list[PlannedNode] = []
    remaining = list(headroom)
    left = tuple(batch for batch in batches if batch.count)
    counts = np.zeros(len(problem.rows), dtype=np.int64)
    for batch in left:
        counts[batch.row] += batch.count
    rules = problem.host_constraints.for_new_nodes(counts)
    for members, varied in _by_weight(problem):
        servable = tuple(
            batch
            for batch in left
            if not problem.serving_pools[problem.node_constraints_of_row[batch.row]].isdisjoint(members)
        )
        if not servable:
            continue
        of_weight = PoolsOfWeight(problem, members, rules, servable, varied=varied)
        outcome = of_weight.open([remaining[s] for s in of_weight.members], reservations)
        for s, pool_headroom in zip(of_weight.members, outcome.headroom, strict=True):
            remaining[s] = pool_headroom
        reservations = outcome.reservations
        nodes += of_weight.nodes(outcome)
        rest, tried = of_weight.items.rest(), frozenset(servable)
        remaining_batches = (rest.get(batch) if batch in tried else batch for batch in left)
        left = tuple(batch for batch in remaining_batches if batch is not None)
    return NewNodes(nodes=tuple(nodes), left=left, headroom=tuple(remaining), reservations=reservations)


def _smallest(counts: Ints, each: Ints, capacity: int) -> Ints:
    """Return the counts, reduced to a total within `capacity`; items with the smallest requests come first."""
    if counts @ each <= capacity:
        return counts
    order = np.argsort(each, kind="stable")
    taken = counts[order] * each[order]
    before = np.cumsum(taken) - taken
    fitting = np.maximum(capacity - before, 0) // np.maximum(each[order], 1)
    reduced: Ints = counts.copy()
    reduced[order] = np.where(each[order] > 0, np.minimum(counts[order], fitting), counts[order])
    return reduced


def _by_weight(problem: SchedulingProblem) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Yield NodePools of equal weight, in order, and whether minValues apply.

    With the BestEffort policy, NodePools with minValues are yielded again without them.
    """
    lenient = problem.options.min_values is MinValuesPolicy.BEST_EFFORT
    for _, group in groupby(range(len(problem.pools)), key=lambda s: problem.pools[s].template.order):
        members = tuple(group)
        yield members, True
        with_min_values = tuple(s for s in members if problem.pools[s].template.min_values)
        if with_min_values and lenient:
            yield with_min_values, False


class _PlannedBin(Struct, frozen=True, eq=False):
    """`copies` nodes of one offer with the same content; `share` is what each uses of its NodePool's limits."""

    offer: int
    content: Content
    copies: int
    share: Ints | None = None


class _PackedPools(Struct, kw_only=True, eq=False):
    """The planned bins, and what is left of items, limits and reservations; `unplaceable` pods fit no offer."""

    left: Ints
    headroom: list[Headroom]
    reservations: Reservations
    unplaceable: int
    bins: list[_PlannedBin] = field(default_factory=list)
    price: float = 0.0

    @property
    def rank(self) -> tuple[int, float]:
        """Return the sort key of outcomes, best first: fewest pods left, then the lowest price."""
        return int(self.left.sum()), self.price


class PoolsOfWeight:
    """Packs batches onto the NodePools of one weight.

    Batches with equal requirements, requests and host constraints are one item.
    """

    def __init__(
        self,
        problem: SchedulingProblem,
        members: tuple[int, ...],
        rules: HostConstraints,
        batches: Sequence[PodBatch],
        *,
        varied: bool,
    ) -> None:
        self.members = members
        self._problem = problem
        self._pools = [problem.pools[s] for s in members]
        self._varied = varied
        self.items = PackingItems.of(problem, rules, batches)
        self._requested_axes = np.flatnonzero(problem.requests[self.items.rows].any(axis=0))
        self._offerings = compatible_offerings(
            self._pools, self.items.demands, self._requested_axes if varied else None
        )
        self._packing_problem = self.items.packing_problem(
            problem, rules, self._offerings, self._capacities_by_offer(rules)
        )
        self._costs = [type_costs(pool.template) for pool in self._pools]
        self._requirements_cache: dict[tuple[int, int, int, int, bytes], Requirements] = {}

    def _capacities_by_offer(self, rules: HostConstraints) -> Ints:
        """Return each offer's capacity on the axes of host constraints, less the host ports of its daemons."""
        offerings = self._offerings
        capacity = np.tile(rules.capacities, (len(offerings.prices), 1))
        for s, pool in enumerate(self._pools):
            for group, ports in enumerate(pool.daemon_ports):
                if ports:
                    capacity[(offerings.pools == s) & (pool.daemon_group[offerings.types] == group)] = (
                        rules.capacities_with_used_ports(ports)
                    )
        return capacity

    def open(self, headroom: Sequence[Headroom], reservations: Reservations) -> _PackedPools:
        """Return the best plan within limits and reservations. Raises EffortSpentError if there is none."""
        best = self._attempt(self._offerings.prices, headroom, reservations)
        if best.left.sum() > best.unplaceable and any(pool_headroom.resources for pool_headroom in headroom):
            shares = self._shares_of_limits(headroom)
            scale = float(self._offerings.prices.max(initial=0.0))
            with suppress(EffortSpentError):
                for weight in LIMIT_WEIGHTS:
                    rival = self._attempt(self._offerings.prices + weight * scale * shares, headroom, reservations)
                    best = min(best, rival, key=lambda outcome: outcome.rank)
        return best

    def _shares_of_limits(self, headroom: Sequence[Headroom]) -> Floats:
        """Return for each offer the largest share that one node uses of what its NodePool's limits leave."""
        shares = np.zeros(len(self._offerings.prices))
        for s, pool_headroom in enumerate(headroom):
            offers = np.flatnonzero(self._offerings.pools == s)
            costs = pool_headroom.costs[self._offerings.types[offers]] / np.maximum(pool_headroom.left, 1)
            shares[offers] = costs.max(axis=1, initial=0.0)
        return shares

    def _attempt(self, prices: Floats, headroom: Sequence[Headroom], reservations: Reservations) -> _PackedPools:
        """Pack at these prices, keep what limits and reservations allow, and repeat for the remaining pods."""
        outcome = _PackedPools(
            left=self._packing_problem.counts.copy(),
            headroom=[pool_headroom.copy() for pool_headroom in headroom],
            reservations=reservations.copy(),
            unplaceable=0,
        )
        exhaustible = any(pool_headroom.resources for pool_headroom in headroom) or bool(self._offerings.reservations)
        outcome.unplaceable = self._unplaceable(outcome) if exhaustible else 0
        while outcome.left.any():
            offers = np.flatnonzero(self._allowed_offers(outcome)) if exhaustible else np.arange(len(prices))
            offers = offers[np.argsort(prices[offers], kind="stable")]
            offers = offers[
                worth_considering(replace(self._offerings, prices=prices).only(offers), self._requested_axes)
            ]
            counts = self.within_limits(outcome) if exhaustible else outcome.left.copy()
            subproblem = self._subproblem(offers, prices, counts, outcome.reservations)
            fewest_nodes = self._pools[0].template.order.fewest_nodes
            packing = pack(subproblem, fewest_nodes=fewest_nodes, spend=self._problem.effort.spend)
            new_nodes = self._add_bins(outcome, offers, packing)
            if not new_nodes or not exhaustible:
                break
        return outcome

    def _allowed_offers(self, outcome: _PackedPools) -> Bools:
        """Return for each offer whether limits and reservations allow one more node."""
        offerings = self._offerings
        allowed: Bools = np.ones(len(offerings.prices), dtype=bool)
        for s, pool_headroom in enumerate(outcome.headroom):
            if pool_headroom.resources:
                offers = np.flatnonzero(offerings.pools == s)
                allowed[offers] = pool_headroom.allows()[offerings.types[offers]]
        for index, name in enumerate(offerings.reservations):
            if outcome.reservations.left.get(name, 0) <= 0:
                allowed &= offerings.reservation != index
        return allowed

    def _unplaceable(self, outcome: _PackedPools) -> int:
        """Return how many pods fit no offer that limits and reservations still allow."""
        fits = self._packing_problem.only(np.flatnonzero(self._allowed_offers(outcome))).fits()
        return int(outcome.left[~np.logical_or.reduce(fits, axis=1)].sum())

    def within_limits(self, outcome: _PackedPools) -> Ints:
        """Return the remaining count of each item, without pods for which limits leave no capacity on any offer.

        The smallest pods stay, because most of them can be placed.
        """
        counts: Ints = outcome.left.copy()
        for pools, items in self._items_by_pools:
            for axis, name in enumerate(self._problem.axes):
                limits_left = [outcome.headroom[s].left_of(name) for s in pools]
                if None not in limits_left:
                    capacity = sum(filter(None, limits_left))
                    counts[items] = _smallest(counts[items], self._packing_problem.requests[items, axis], capacity)
        return counts

    @cached_property
    def _items_by_pools(self) -> list[tuple[list[int], Ints]]:
        """Return (NodePools, items) for each group of items that the same NodePools can take."""
        offerings, demand_of = self._offerings, self.items.demand_of
        offered = [distinct(offerings.constraints[offerings.pools == s]) for s in range(len(self._pools))]
        admitted = np.array([np.logical_or.reduce(offerings.allowed[constraints], axis=0) for constraints in offered])
        numbers, patterns = numbered(admitted[:, demand_of])
        return [(np.flatnonzero(pattern).tolist(), np.flatnonzero(numbers == n)) for n, pattern in enumerate(patterns)]

    def _subproblem(self, offers: Ints, prices: Floats, counts: Ints, reservations: Reservations) -> PackingProblem:
        """Return the problem of packing these counts onto these offers."""
        stocks = [reservations.left.get(name, 0) for name in self._offerings.reservations]
        whole = replace(self._packing_problem, prices=prices, counts=counts, reserved=np.array(stocks, dtype=np.int64))
        return whole.only(offers)

    def _add_bins(self, outcome: _PackedPools, offers: Ints, packing: Packing) -> int:
        """Add the copies of each bin that limits, reservations and minValues allow; return the number of nodes."""
        new_nodes = 0
        for packed in packing.bins:
            b = self._with_share(_PlannedBin(int(offers[packed.offer]), packed.content, packed.copies))
            new_nodes += self._add_bin(outcome, b) if b is not None else 0
        return new_nodes

    def _add_bin(self, outcome: _PackedPools, b: _PlannedBin) -> int:
        """Add as many copies of the bin as limits and reservations allow; return their number."""
        offerings = self._offerings
        pool_headroom, number = outcome.headroom[int(offerings.pools[b.offer])], int(offerings.reservation[b.offer])
        copies = pool_headroom.allowing(b.share, b.copies) if b.share is not None else b.copies
        copies = outcome.reservations.take(offerings.reservations[number], copies) if number >= 0 else copies
        if copies:
            if b.share is not None:
                pool_headroom.spend(b.share, copies)
            outcome.bins.append(replace(b, copies=copies))
            outcome.left[list(b.content.items)] -= np.multiply(b.content.copies, copies)
            outcome.price += float(offerings.prices[b.offer]) * copies
        return copies

    def _with_share(self, b: _PlannedBin) -> _PlannedBin | None:
        """Return the bin with its share of limits; None if too few types hold its pods for the NodePool's minValues."""
        s, chosen_type = int(self._offerings.pools[b.offer]), int(self._offerings.types[b.offer])
        pool, types = self._pools[s], [chosen_type]
        if pool.template.min_values:
            candidates = CandidateTypes.of(self._problem, pool, self._requirements(b))
            pods = tuple(RowPods(int(self.items.rows[item]), count) for item, count in b.content.pairs())
            holding = candidates.types[candidates.holding([replace(self._node(b), pods=pods)])[0]]
            if self._varied and not distinct_enough(pool, holding):
                return None
            types += needed_for_variety(pool, holding)
        limited = bool(pool.template.node_pool.spec.limits)
        return replace(b, share=self._costs[s][types].max(axis=0)) if limited else b

    # --- planned nodes

    def nodes(self, outcome: _PackedPools) -> Iterator[PlannedNode]:
        """Yield a node for each copy of each bin, with pods drawn from the batches in order."""
        for b in outcome.bins:
            node = self._node(b)
            for _ in range(b.copies):
                yield PlannedNode(
                    pool=node.pool,
                    requirements=node.requirements,
                    pods=self.items.draw(b.content),
                    total=node.total,
                    share=node.share,
                )

    def _node(self, b: _PlannedBin) -> PlannedNode:
        """Return the node without its pods."""
        s, width = int(self._offerings.pools[b.offer]), len(self._problem.axes)
        return PlannedNode(
            pool=self.members[s],
            requirements=self._requirements(b),
            pods=(),
            total=np.array(b.content.copies) @ self._packing_problem.requests[list(b.content.items), :width],
            share=b.share,
        )

    def _requirements(self, b: _PlannedBin) -> Requirements:
        """Return the bin's node requirements, cached by NodePool and variant unless pods have alternatives."""
        offerings, offer = self._offerings, b.offer
        demands = distinct(self.items.demand_of[list(b.content.items)])
        chosen = [self.items.demands[d] for d in demands]
        s, v, t, number = (
            int(column[offer])
            for column in (offerings.pools, offerings.variants, offerings.types, offerings.reservation)
        )
        plain = all(len(demand.terms) <= 1 for demand in chosen)
        key = (s, v, number, -1 if plain else t, demands.tobytes())
        if key not in self._requirements_cache:
            reservation = offerings.reservations[number] if number >= 0 else ""
            self._requirements_cache[key] = node_requirements_of(
                self._pools[s], t, offerings.variants_by_pool[s][v], chosen, reservation
            )
        return self._requirements_cache[key]
