"""The fleet plan: solves all movable pods once, and returns the ordered moves from today's nodes to that fleet.

::

    standing nodes   ──► which stay    a node stays where its price, less the evictions that it saves, is at most what its capacity
                                       is worth at the shadow prices of new nodes, as long as the pods need the capacity
         │ others
         ▼
    chunks           ──► moves         the scheduler places the pods of as many nodes as the budgets allow at once on nodes that
                                       stay, and on new nodes packed by price; what shares no new node is a move of its own

    move             {node-1, node-2, node-3} ──launch──► {c6a.4xlarge}       5 pods go there
                              └─────────────────────────► node-7 (stays)      1 pod goes into its free capacity

A pod moves at most once, from its old node to its final place, because pods go only to nodes that stay and to new nodes. The
capacity that a move uses is not offered to another one, so each move is valid alone and in any order. A move is cheaper than what
it replaces however its nodes are launched, and what it saves within the payback time exceeds the price of its evictions.

The choice of nodes that stay is a fractional knapsack: shadow prices come from a linear program that covers the pods by new
nodes, so a standing node is worth the shadow price of its capacity. The nodes with the lowest price per worth stay until they hold
all pods. Some neighbours of that choice are solved as well, and the cheapest counts. Everything is confirmed by the exact
scheduler: the linear program decides nothing else.

Differs: Karpenter has nothing like it. It replaces a prefix of a sorted list by one node, and then starts again, which moves a
pod 1.6 times until nothing more can be saved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.fleet_plan import MAX_NODES_PER_MOVE
from journeyman.core.api.objects import Pod
from journeyman.core.api.resources import pod_requests, subtract, total_requests
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.binding_orders import unbound_pod, unbound_pods
from journeyman.core.disruption.candidates import BASE_DISRUPTION_COST, Candidate, NodePoolName, by_savings
from journeyman.core.disruption.commands import Command, claims_in_commands
from journeyman.core.disruption.consolidation import first_error
from journeyman.core.disruption.fleet_moves import (
    TRIFLE,
    Move,
    MoveCost,
    MoveRules,
    Solved,
    by_saving_per_eviction,
    carried_out,
    moves_of,
    with_pods_on,
)
from journeyman.core.disruption.simulation import Simulation
from journeyman.core.scheduling.arrays import Floats, Ints
from journeyman.core.scheduling.nodeclaim_templates import FEWEST_NODES, NodeClaimTemplate, make_templates
from journeyman.core.scheduling.packing.linear_program import CoveringProgram, affordable
from journeyman.core.scheduling.results import PlannedClaim, Results
from journeyman.core.scheduling.scheduler import Scheduler
from journeyman.core.state import Snapshot, StateNode

LEAST_GAIN: Final = 0.03
"""Share of the price: less is not worth a plan, and a fleet that is so close to the lower bound is not solved."""
_SPARE_ATTEMPTS: Final = 6  # to find a move whose pods find capacity in any order, each with more spare capacity
_ATTEMPTS: Final = 3  # to solve without nodes whose pods fit nowhere, or that nodes of the same type would replace
_DECIMALS: Final = 9  # of a price


class StayingNode(Struct, frozen=True, kw_only=True):
    """A node that the plan keeps: its price, the shadow price of its pods and of its whole capacity, and why it stays."""

    nodeclaim: str
    price: float
    worth_of_pods: float
    worth: float
    why: str


class PlannedFleet(Struct, frozen=True, kw_only=True):
    """The moves from today's fleet to the planned one.

    Attributes:
        moves: In the order of `by_saving_per_eviction`. No two share a candidate, a replacement or capacity on a node.
        staying: The other nodes that were considered, by name.
        price_before: Price per hour of all nodes considered.
        lower_bound: A price per hour that no fleet for these pods is below, whatever it evicts; rules about other pods ignored.
        is_cheap: Whether today's price is so close to the lower bound that nothing was solved.
    """

    moves: tuple[Move, ...] = ()
    staying: tuple[StayingNode, ...] = ()
    price_before: float = 0.0
    lower_bound: float = 0.0
    is_cheap: bool = False

    @property
    def saving(self) -> float:
        """Price per hour that all moves save."""
        return sum(move.saving for move in self.moves)

    @property
    def price_after(self) -> float:
        """Price per hour of all nodes considered once all moves are done."""
        return self.price_before - self.saving

    @property
    def evictions(self) -> int:
        """How many pods all moves evict."""
        return sum(move.evictions for move in self.moves)


def plan_fleet(
    simulation: Simulation,
    candidates: Iterable[Candidate],
    allowed_disruptions: Mapping[NodePoolName, int],
    *,
    cost: MoveCost = MoveCost(),  # noqa: B008 - a frozen value
    spot_to_spot: bool = False,
    settled: Collection[str] = (),
    least_gain: float = LEAST_GAIN,
) -> PlannedFleet:
    """Return the cheapest fleet found for the pods of these candidates, as moves.

    Args:
        simulation: The cluster.
        candidates: Nodes that consolidation may delete or replace now (`eligible_candidates`), any order.
        allowed_disruptions: Nodes each NodePool may lose at once for ``Underutilized``; missing means 0. No move has more.
        cost: What evictions cost.
        spot_to_spot: Gate SpotToSpotConsolidation: without it, Spot nodes stay.
        settled: Names of NodeClaims that stay because pods moved there lately.
        least_gain: Share of the price that a plan must save.
    """
    considered = [c for c in candidates if allowed_disruptions.get(c.nodepool, 0) > 0]
    if not considered:
        return PlannedFleet()
    fleet = _Fleet(simulation, considered, cost, spot_to_spot=spot_to_spot, settled=frozenset(settled))
    is_cheap = bool(fleet.candidates) and fleet.price <= (1 + least_gain) * fleet.lower_bound
    leaving, solved = fleet.choose_leaving() if fleet.candidates and not is_cheap else ([], None)
    rules = MoveRules(simulation=simulation, cost=cost, allowed=allowed_disruptions, surcharges=fleet.surcharges)
    moves, kept = _moves(fleet, rules, leaving, solved)
    price = sum(c.price for c in considered)
    if sum(move.saving for move in moves) < least_gain * price:
        moves = []
    reasons: dict[str, str] = {**fleet.excluded, **kept}
    going = {c.nodeclaim for move in moves for c in move.candidates}
    staying = (fleet.staying(c, reasons.get(c.nodeclaim, "")) for c in considered if c.nodeclaim not in going)
    return PlannedFleet(
        moves=tuple(sorted(moves, key=lambda m: (bool(m.after), *by_saving_per_eviction(m)))),
        staying=tuple(sorted(staying, key=lambda node: node.nodeclaim)),
        price_before=price,
        lower_bound=fleet.lower_bound + sum(c.price for c in considered if c.nodeclaim in fleet.excluded),
        is_cheap=is_cheap,
    )


class NextMoves(Struct, frozen=True, kw_only=True):
    """The next moves of a plan, by the name of their first candidate.

    Attributes:
        moves: Those that start now.
        too_early: Those whose pods could lose their capacity to other pods, or that need another move to be done before.
        invalid: Why the others are no longer valid; the plan is then to be made again.
    """

    moves: tuple[Move, ...] = ()
    too_early: frozenset[str] = frozenset()
    invalid: Mapping[str, str] = field(default_factory=dict)

    @property
    def commands(self) -> tuple[Command, ...]:
        """The commands of the moves that start now."""
        return tuple(move.command for move in self.moves)


def next_moves(
    simulation: Simulation,
    waiting: Iterable[Sequence[Candidate]],
    remaining: Mapping[NodePoolName, int],
    *,
    leaving: Collection[str],
    cost: MoveCost = MoveCost(),  # noqa: B008 - a frozen value
    spot_to_spot: bool = False,
    most: int | None = None,
) -> NextMoves:
    """Return the moves of a plan that may start now, solved again in the cluster as it is.

    A move starts if it fits into what the earlier ones leave of the budgets. Each is solved in the cluster once the earlier
    ones that start are done, so they use no capacity twice; it is valid alone, too. Their pods find capacity in whatever order
    kube-scheduler binds them. The same cluster gives the same moves, and these alone give them again, so validation finds what was proposed.

    Args:
        simulation: The cluster.
        waiting: The candidates of the moves that did not start and whose `after` is done, in the plan's order.
        remaining: Nodes each NodePool may still lose now for ``Underutilized``; missing means 0.
        leaving: Names of the nodes that the plan deletes: they take no pods.
        cost: What evictions cost.
        spot_to_spot: Gate SpotToSpotConsolidation.
        most: The most moves to return; None for all.

    Returns:
        The moves that start, those that start later, and those that are no longer valid.
    """
    left: Counter[NodePoolName] = Counter(remaining)
    affordable_moves: list[Sequence[Candidate]] = []
    for candidates in waiting:
        needed = Counter(c.nodepool for c in candidates)
        if needed <= left and (most is None or len(affordable_moves) < most):
            left -= needed
            affordable_moves.append(candidates)
    everything = [c for candidates in affordable_moves for c in candidates]
    if not everything:
        return NextMoves()
    fleet = _Fleet(simulation, everything, cost, spot_to_spot=spot_to_spot, settled=frozenset())
    rules = MoveRules(simulation=simulation, cost=cost, allowed=remaining, surcharges=fleet.surcharges)
    too_early: set[str] = set()
    while True:
        moves, invalid = _solved_in_turn(fleet, rules, affordable_moves, frozenset(leaving))
        valid = [move for move in moves if _is_valid_alone(move, simulation)]
        starting = _bound_together(valid, fleet.snapshot, simulation.catalogue, leaving)
        dropped = {move.name for move in moves} - {move.name for move in starting}
        if not dropped:
            return NextMoves(moves=starting, too_early=frozenset(too_early), invalid=invalid)
        too_early |= dropped  # the others are solved without them, as validation will
        affordable_moves = [c for c in affordable_moves if c[0].nodeclaim not in dropped]


def _solved_in_turn(
    fleet: _Fleet, rules: MoveRules, waiting: Iterable[Sequence[Candidate]], leaving: frozenset[str]
) -> tuple[list[Move], dict[str, str]]:
    """Return the moves of these nodes, each solved in the cluster once the ones before are done, and why the others are invalid."""
    cluster = fleet.cluster
    moves: list[Move] = []
    invalid: dict[str, str] = {}
    for candidates in waiting:
        name = candidates[0].nodeclaim
        excluded = next((fleet.excluded[c.nodeclaim] for c in candidates if c.nodeclaim in fleet.excluded), "")
        move = excluded or _solved_again(fleet, rules, candidates, cluster, leaving)
        if isinstance(move, str):
            invalid[name] = move
            continue
        moves.append(move)
        names = [f"{name}-planned-{n}" for n in range(len(move.replacements))]
        cluster = carried_out(cluster, rules.simulation.catalogue, move, names)
    return moves, invalid


def _is_valid_alone(move: Move, simulation: Simulation) -> bool:
    """Whether the move needs no other one to be done before: it passes verification, and its pods find capacity in any order."""
    snapshot, catalogue = simulation.snapshot, simulation.catalogue
    return not simulation.verify(move.command) and not unbound_pod(move.command, snapshot, catalogue)


def _bound_together(
    moves: Sequence[Move], snapshot: Snapshot, catalogue: Catalogue, leaving: Collection[str]
) -> tuple[Move, ...]:
    """Return the moves whose pods find capacity in any order if all of them start now.

    Those with replacements evict their pods after those without.
    """
    left = tuple(moves)
    while len(left) > 1:
        together = Move(
            candidates=tuple(c for move in left for c in move.candidates),
            replacements=tuple(claim for move in left for claim in move.replacements),
            existing=_merged(move.existing for move in left),
            pods=tuple(pod for move in left for pod in move.pods),
        )
        later = {pod.key for move in left if move.replacements for pod in move.pods}
        unbound = set(unbound_pods(together.command, snapshot, catalogue, closed=leaving, later=later))
        if not unbound:
            break
        kept = tuple(move for move in left if unbound.isdisjoint(pod.key for pod in move.pods))
        left = kept or left[:-1]
    return left


def _merged(placements: Iterable[Mapping[str, tuple[str, ...]]]) -> Mapping[str, tuple[str, ...]]:
    """Return the keys of all pods by node."""
    merged: dict[str, tuple[str, ...]] = {}
    for placed in placements:
        for node, keys in placed.items():
            merged[node] = (*merged.get(node, ()), *keys)
    return merged


def _solved_again(
    fleet: _Fleet, rules: MoveRules, candidates: Sequence[Candidate], cluster: Snapshot, leaving: frozenset[str]
) -> Move | str:
    """Return the move of these nodes; it uses no node that another move of this run launches.

    If kube-scheduler may leave a pod without capacity because it binds the pods in another order, the move is solved again with
    spare capacity for such pods, a few times. The caller checks whether that sufficed.
    """
    planned = {n.metadata.name for n in cluster.nodes} - {n.metadata.name for n in fleet.snapshot.nodes}
    closed = (leaving | planned) - fleet.names_of(candidates)
    spare: list[str] = []
    attempts = 0
    while True:
        solved = fleet.solve(candidates, cluster, closed, spare)
        if solved.errors:
            return "not all pods would schedule, " + first_error(solved.errors)
        found = Move(
            candidates=tuple(candidates),
            replacements=solved.results.new_claims,
            existing=solved.results.existing,
            pods=solved.pods,
        )
        move = rules.priced(found)
        if isinstance(move, str):
            return move
        unbound = unbound_pods(move.command, fleet.snapshot, rules.simulation.catalogue, closed=leaving)
        attempts += 1
        if not unbound or attempts == _SPARE_ATTEMPTS:
            return move
        spare += unbound


# -- which nodes leave ------------------------------------------------------------------------------------------------


class _Economics(Struct, frozen=True, kw_only=True, eq=False):
    """Prices and amounts of the nodes of one NodePool, at the shadow prices of its new nodes.

    Attributes:
        prices: By node: its price per hour, the NodePool's surcharge included.
        evictions: By node: what evicting its pods costs, per hour.
        pods: By node: the worth of its movable pods.
        worth: By node: the worth of all capacity that movable pods could use, those that it runs included.
    """

    prices: Floats
    evictions: Floats
    pods: Floats
    worth: Floats


class _Fleet:
    """The standing nodes that may leave, what they cost and are worth, and the scheduler for their pods."""

    def __init__(
        self,
        simulation: Simulation,
        candidates: Sequence[Candidate],
        cost: MoveCost,
        *,
        spot_to_spot: bool,
        settled: frozenset[str],
    ) -> None:
        self.simulation = simulation
        self.snapshot = simulation.snapshot
        own = {c.nodeclaim for c in candidates}
        nodes_of = self.snapshot.state_nodes_by_claim
        in_commands = (nodes_of.get(name) for name in claims_in_commands(self.snapshot) - own)
        self._closed = simulation.nodes_without_capacity | {node.name for node in in_commands if node is not None}
        self.cost = cost
        self.spot_to_spot = spot_to_spot
        self._templates = {t.name: t for t in make_templates(self.snapshot, simulation.catalogue)[0]}
        self.excluded: dict[str, str] = {
            c.nodeclaim: why for c in candidates if (why := self._why_excluded(c, settled) or self._why_awaited(c))
        }
        self.candidates = sorted((c for c in candidates if c.nodeclaim not in self.excluded), key=by_savings)
        self._pods = {c.nodeclaim: simulation.movable_pods((c,)) for c in self.candidates}

    def _why_excluded(self, candidate: Candidate, settled: Collection[str]) -> str:
        """Return why the plan must not move this node; empty if it may."""
        template = self._templates.get(candidate.nodepool)
        if template is None:
            return f'NodePool "{candidate.nodepool}" launches no nodes'
        if template.node_pool.packing == FEWEST_NODES:
            return f'NodePool "{candidate.nodepool}" packs pods into the fewest nodes'
        if template.node_pool.spec.disruption.consolidation_policy == "Balanced":
            return f'NodePool "{candidate.nodepool}" has consolidationPolicy Balanced, which scores each command'
        if candidate.price <= 0:
            return "its price is unknown"
        if candidate.nodeclaim in settled:
            return "pods moved there lately"
        if candidate.capacity_type == labels.SPOT and not self.spot_to_spot:
            return "SpotToSpotConsolidation is disabled, can't replace a spot node with a spot node"
        if len(self.simulation.movable_pods((candidate,))) < len(candidate.reschedulable_pods):
            return "a pod of it cannot be evicted now"
        return ""

    def _why_awaited(self, candidate: Candidate) -> str:
        """Return which pod needs the node's free capacity; empty if none does."""
        awaited = self._awaited.get(candidate.node)
        return f"its free capacity is for pod {awaited[0]}" if awaited else ""

    def pods_of(self, candidates: Iterable[Candidate]) -> tuple[Pod, ...]:
        """Return the pods that must move if these nodes are deleted, by key."""
        return tuple(sorted((p for c in candidates for p in self._pods[c.nodeclaim]), key=lambda p: p.key))

    # -- economics

    @cached_property
    def _axes(self) -> tuple[str, ...]:
        """The resources that movable pods request."""
        return tuple(sorted({name for amounts in self._requests.values() for name, n in amounts.items() if n > 0}))

    @cached_property
    def _requests(self) -> Mapping[str, Mapping[str, int]]:
        """The requests of all movable pods, by key."""
        return {pod.key: pod_requests(pod) for pods in self._pods.values() for pod in pods}

    @cached_property
    def _moving(self) -> Floats:
        """The requests of the movable pods, by candidate and axis."""
        return np.array([self._total(p.key for p in self._pods[c.nodeclaim]) for c in self.candidates], dtype=float)

    @cached_property
    def _capacity(self) -> Floats:
        """The capacity for movable pods by candidate and axis: what is allocatable less the requests of its other pods."""
        nodes = (self.snapshot.state_nodes_by_claim[c.nodeclaim] for c in self.candidates)
        return np.array([self._capacity_of(node) for node in nodes], dtype=float)

    def _capacity_of(self, node: StateNode) -> Floats:
        allocatable = node.allocatable()
        others = [pod_requests(pod) for pod in node.pods if pod.key not in self._requests]
        return np.maximum(
            [allocatable.get(axis, 0) - sum(o.get(axis, 0) for o in others) for axis in self._axes], 0
        ).astype(float)

    def _total(self, keys: Iterable[str]) -> Floats:
        total = np.zeros(len(self._axes))
        for key in keys:
            amounts = self._requests[key]
            total += [amounts.get(axis, 0) for axis in self._axes]
        return total

    @cached_property
    def _shadow_prices(self) -> Mapping[str, Floats]:
        """The worth of a unit of each axis, by NodePool of the candidates."""
        return {name: self._shadow_prices_of((self._templates[name],), self._of_pool(name)) for name in self._pools}

    @cached_property
    def _pools(self) -> tuple[str, ...]:
        return tuple(sorted({c.nodepool for c in self.candidates}))

    def _of_pool(self, name: str) -> Ints:
        mine: Ints = np.flatnonzero([c.nodepool == name for c in self.candidates])
        return mine

    def _shadow_prices_of(self, templates: Iterable[NodeClaimTemplate], nodes: Ints) -> Floats:
        """Return the dual prices of covering the pods of these candidates by new nodes of these NodePools."""
        demand = self._moving[nodes].sum(axis=0)
        worth = np.zeros(len(self._axes))
        offers = [self._offers(template, nodes) for template in templates]
        prices = np.concatenate([p for p, _ in offers])
        sizes = np.concatenate([s for _, s in offers])
        used = np.flatnonzero((demand > 0) & sizes.any(axis=0))
        if not len(used):
            return worth
        program = CoveringProgram(demand[used])
        program.add(prices, sizes[:, used])
        worth[used] = program.solve()
        return affordable(worth, prices, sizes)

    def _offers(self, template: NodeClaimTemplate, nodes: Ints) -> tuple[Floats, Floats]:
        """Return the lowest price and the capacity by instance type that the NodePool can launch now.

        New nodes run the same daemons as the candidates, on average.
        """
        table = template.table
        rows = np.flatnonzero(template.rows)
        cheapest = np.full(len(table.types), np.inf)
        np.minimum.at(cheapest, table.row_type[rows], table.prices[rows])
        types = np.flatnonzero(np.isfinite(cheapest))
        sizes = np.array([table.amounts(axis, allocatable=True)[types] for axis in self._axes], dtype=float).T
        standing = [self.snapshot.state_nodes_by_claim[self.candidates[n].nodeclaim] for n in nodes.tolist()]
        daemons = np.mean(
            [[node.allocatable().get(axis, 0) for axis in self._axes] for node in standing] - self._capacity[nodes],
            axis=0,
        )
        return cheapest[types] + template.node_surcharge, np.maximum(sizes - daemons, 0.0)

    @cached_property
    def _economics(self) -> _Economics:
        worth = np.array([self._shadow_prices[c.nodepool] for c in self.candidates]).reshape(len(self.candidates), -1)
        return _Economics(
            prices=np.array([c.price + self.surcharges.get(c.nodepool, 0.0) for c in self.candidates]),
            evictions=np.array([self.cost.of(c) for c in self.candidates]),
            pods=(worth * self._moving).sum(axis=1),
            worth=(worth * self._capacity).sum(axis=1),
        )

    @cached_property
    def surcharges(self) -> Mapping[str, float]:
        """The surcharges per node and hour, by NodePool."""
        return {name: template.node_surcharge for name, template in self._templates.items()}

    @cached_property
    def lower_bound(self) -> float:
        """A lower bound of the price of the candidates' pods: any shadow prices that no offer is below give one.

        The pods pay at least their worth, less what standing nodes are cheaper than theirs.
        """
        if not self.candidates:
            return 0.0
        everything = np.arange(len(self.candidates))
        worth = self._shadow_prices_of((self._templates[n] for n in self._templates), everything)
        surplus = np.maximum(self._capacity @ worth - self._economics.prices, 0.0).sum()
        fees = sum(self.surcharges.get(c.nodepool, 0.0) for c in self.candidates)
        return max(float(self._moving.sum(axis=0) @ worth - surplus - fees), 0.0)

    @property
    def price(self) -> float:
        """Price per hour of the candidates, surcharges included."""
        return float(self._economics.prices.sum())

    def staying(self, candidate: Candidate, why: str) -> StayingNode:
        """Return the record of a node that stays."""
        place = next((n for n, c in enumerate(self.candidates) if c.nodeclaim == candidate.nodeclaim), None)
        pods = float(self._economics.pods[place]) if place is not None else 0.0
        worth = float(self._economics.worth[place]) if place is not None else 0.0
        default = f"its price of {candidate.price:.4f} is at most the worth of its capacity ({worth:.4f}) and of its evictions"
        return StayingNode(
            nodeclaim=candidate.nodeclaim, price=candidate.price, worth_of_pods=pods, worth=worth, why=why or default
        )

    # -- the choice

    def choose_leaving(self) -> tuple[list[Candidate], Solved | None]:
        """Return the nodes that leave, best saving per eviction first, and where their pods go if that was solved."""
        alternatives = list(self._alternatives())
        if len(alternatives) < 2:
            return (alternatives[0] if alternatives else []), None
        solved = [self.solve(leaving) for leaving in alternatives]
        best = min(solved, key=lambda s: round(self.objective(s), _DECIMALS))  # the first of equal ones
        return list(best.candidates), best

    def _alternatives(self) -> Iterator[list[Candidate]]:
        """Yield sets of leaving nodes: all but as many of the best nodes as hold all pods, and neighbours of that."""
        e = self._economics
        ratio = (e.prices - e.evictions) / np.maximum(e.worth, TRIFLE)
        order = sorted(range(len(ratio)), key=lambda n: (ratio[n], self.candidates[n].nodeclaim))
        worthy = [n for n in order if ratio[n] < 1]
        covered = np.cumsum(e.worth[worthy])
        demand = float(e.pods.sum())
        needed = int(np.searchsorted(covered, demand - self._worth_of_free_capacity)) + 1 if worthy else 0
        without_free_capacity = int(np.searchsorted(covered, demand)) + 1 if worthy else 0
        tried: set[int] = set()
        for kept in (without_free_capacity, needed, needed + 1, needed - 1, 0):
            count = min(max(kept, 0), len(worthy))
            if count not in tried:
                tried.add(count)
                leaving = self._by_saving_per_eviction(set(order) - set(worthy[:count]))
                if leaving:
                    yield leaving

    @property
    def _worth_of_free_capacity(self) -> float:
        """The worth of the free capacity on nodes that are no candidates, as far as their NodePool has shadow prices."""
        own = {c.nodeclaim for c in self.candidates}
        total = 0.0
        for node in self.snapshot.state_nodes:
            worth = self._shadow_prices.get(node.node_pool)
            if worth is None or node.claim is None or node.claim.metadata.name in own:
                continue
            if node.name not in self._closed and not node.is_being_disrupted:
                total += float(self._capacity_of(node) @ worth)
        return total

    def _by_saving_per_eviction(self, numbers: Iterable[int]) -> list[Candidate]:
        e = self._economics
        gain = (e.prices - e.pods) / (BASE_DISRUPTION_COST + e.evictions / max(self.cost.per_hour, TRIFLE))
        return [self.candidates[n] for n in sorted(numbers, key=lambda n: (-gain[n], self.candidates[n].nodeclaim))]

    def objective(self, solved: Solved) -> float:
        """Return what the fleet costs per hour with these nodes gone, less what it costs today; evictions included."""
        without_node = {key.partition(" ")[0] for key in solved.errors}
        gone = [c for c in solved.candidates if without_node.isdisjoint(c.reschedulable_pods)]
        new = sum(c.price + self.surcharges.get(c.node_pool, 0.0) for c in solved.results.new_claims)
        old = sum(c.price + self.surcharges.get(c.nodepool, 0.0) for c in gone)
        return new - old + sum(map(self.cost.of, gone))

    # -- the scheduler

    def solve(
        self,
        leaving: Sequence[Candidate],
        cluster: Snapshot | None = None,
        closed: Collection[str] = (),
        spare: Sequence[str] = (),
    ) -> Solved:
        """Schedule the pods of leaving nodes on the nodes that stay and on new nodes.

        Args:
            leaving: The nodes to delete.
            cluster: The cluster once earlier moves are done; None for the cluster as it is.
            closed: Names of nodes that take no pods, because other moves delete them.
            spare: Keys of pods for which there must be capacity once more, for each time that they are listed.
        """
        pods = self.pods_of(leaving)
        by_key = {pod.key: pod for pod in pods}
        spare_pods = [_spare_pod(by_key[key], number) for number, key in enumerate(spare)]
        forbidden = frozenset(closed) | self._closed
        scheduler = self._scheduler(cluster, forbidden)
        solved = scheduler.solve((*pods, *spare_pods), self.names_of(leaving), self.simulation.effort)
        results = self.simulation.explained(solved)
        results = _without(results, {pod.key: pod for pod in spare_pods}) if spare_pods else results
        errors = {key: error.message for key, error in results.pod_errors.items()}
        for name in sorted(forbidden & results.existing.keys()):  # pods that tolerate a cordon
            errors.update(
                dict.fromkeys(results.existing[name], f"would schedule against node {name}, which takes no pods")
            )
        return Solved(candidates=tuple(leaving), pods=pods, results=results, errors=errors)

    def _scheduler(self, cluster: Snapshot | None, closed: frozenset[str]) -> Scheduler:
        if cluster is None and closed == self._closed:
            return self._present_scheduler
        return self._scheduler_for(cluster if cluster is not None else self.cluster, closed)

    @cached_property
    def _present_scheduler(self) -> Scheduler:
        return self._scheduler_for(self.cluster, self._closed)

    def _scheduler_for(self, cluster: Snapshot, closed: frozenset[str]) -> Scheduler:
        options = replace(self.simulation.options, compare_up_to=0, bound=False)
        return Scheduler(_with_cordons(cluster, closed), self.simulation.catalogue, options)

    @cached_property
    def cluster(self) -> Snapshot:
        """The cluster, with pending pods and pods of deleting nodes on the standing nodes that they will run on."""
        return with_pods_on(self.snapshot, {key: name for name, keys in self._awaited.items() for key in keys})

    @cached_property
    def _awaited(self) -> Mapping[str, tuple[str, ...]]:
        """Keys of the pods that need a node whatever is disrupted, by the standing node that they will run on."""
        return self.simulation.without(()).results.existing if self.simulation.pods_to_schedule else {}

    def names_of(self, candidates: Iterable[Candidate]) -> frozenset[str]:
        """Return the names of these candidates' nodes."""
        return frozenset(self.snapshot.state_nodes_by_claim[c.nodeclaim].name for c in candidates)


def _spare_pod(pod: Pod, number: int) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, name=f"{pod.metadata.name}-spare-{number}"))


def _without(results: Results, spare_pods: Mapping[str, Pod]) -> Results:
    """Return the results without these pods; the new nodes keep the capacity for them, as free capacity."""
    claims = (_claim_without(claim, spare_pods) for claim in results.new_claims)
    existing = {name: tuple(k for k in placed if k not in spare_pods) for name, placed in results.existing.items()}
    return replace(
        results,
        new_claims=tuple(claim for claim in claims if claim.pods),
        existing={name: placed for name, placed in existing.items() if placed},
        pod_errors={key: error for key, error in results.pod_errors.items() if key not in spare_pods},
    )


def _claim_without(claim: PlannedClaim, spare_pods: Mapping[str, Pod]) -> PlannedClaim:
    own = tuple(key for key in claim.pods if key not in spare_pods)
    spare = total_requests(spare_pods[key] for key in claim.pods if key in spare_pods)
    return replace(claim, pods=own, requests=subtract(claim.requests, spare)) if spare else claim


def _with_cordons(snapshot: Snapshot, names: frozenset[str]) -> Snapshot:
    """Return the snapshot with cordons on these nodes: they take no pods, but keep theirs."""
    if not names:
        return snapshot
    nodes = (
        replace(n, spec=replace(n.spec, unschedulable=True)) if n.metadata.name in names else n for n in snapshot.nodes
    )
    return replace(snapshot, nodes=tuple(nodes))


# -- moves ------------------------------------------------------------------------------------------------------------


def _moves(
    fleet: _Fleet, rules: MoveRules, leaving: Sequence[Candidate], together: Solved | None
) -> tuple[list[Move], dict[str, str]]:
    """Return the moves of these nodes, and why the nodes without a move stay.

    As many nodes as the budgets allow at once are solved together. They get new nodes of their own, so that their moves do not
    wait for others; only the last ones, and all where the budgets make moves wait anyway, may use capacity on new nodes of others.
    """
    moves: list[Move] = []
    why: dict[str, str] = {}
    launched_by: dict[str, str] = {}
    cluster, going = fleet.cluster, fleet.names_of(leaving)
    chunk, waiting = rules.within_budgets(leaving)
    is_paced = len(chunk) < min(len(leaving), MAX_NODES_PER_MOVE)
    while chunk:
        others = going - fleet.names_of(chunk)
        closed = others if is_paced or not waiting else others | launched_by.keys()
        first = together if len(chunk) == len(leaving) and together is not None else fleet.solve(chunk, cluster, closed)
        solved, unplaced = _without_unplaced(fleet, first, cluster, closed)
        closed = closed | fleet.names_of(c for c in chunk if c.nodeclaim in unplaced)
        solved, alike = _without_alike(fleet, solved, cluster, closed)
        going -= fleet.names_of(alike)
        why.update(unplaced)
        why.update({c.nodeclaim: f"another {c.instance_type} would be launched in its place" for c in alike})
        for part in moves_of(solved, launched_by):
            move = rules.priced(part)
            if isinstance(move, str):
                why.update(dict.fromkeys((c.nodeclaim for c in part.candidates), move))
                continue
            moves.append(move)
            names = [f"{move.name}-planned-{n}" for n in range(len(move.replacements))]
            launched_by.update(dict.fromkeys(names, move.name))
            cluster = carried_out(cluster, rules.simulation.catalogue, move, names)
        chunk, waiting = rules.within_budgets(waiting)
    return moves, why


def _without_unplaced(
    fleet: _Fleet, solved: Solved, cluster: Snapshot, closed: Collection[str]
) -> tuple[Solved, dict[str, str]]:
    """Return the solution without the nodes that have a pod that fits nowhere, and why these stay."""
    why: dict[str, str] = {}
    for _ in range(_ATTEMPTS):
        if not solved.errors:
            return solved, why
        for candidate in solved.candidates:
            own = {key: solved.errors[key] for key in candidate.reschedulable_pods if key in solved.errors}
            if own:
                why[candidate.nodeclaim] = "not all pods would schedule, " + first_error(own)
        staying = [c for c in solved.candidates if c.nodeclaim in why]
        left = [c for c in solved.candidates if c.nodeclaim not in why]
        closed = frozenset(closed) | fleet.names_of(staying)
        solved = fleet.solve(left, cluster, closed)
    if solved.errors:  # rules between pods: whatever is left out, others fit nowhere
        why.update({c.nodeclaim: "not all pods would schedule" for c in solved.candidates})
        solved = Solved(candidates=(), pods=(), results=Results())
    return solved, why


def _without_alike(
    fleet: _Fleet, solved: Solved, cluster: Snapshot, closed: Collection[str]
) -> tuple[Solved, list[Candidate]]:
    """Return the solution in which nodes stay that nodes of the same type would replace, and these nodes.

    The pods of the others go there, without a launch and with fewer evictions. It counts unless it costs more: packed anew, the pods of
    such a node may leave more capacity for others. Karpenter's rule for a single new node is `filterOutSameInstanceType`.
    """
    alike: list[Candidate] = []
    for _ in range(_ATTEMPTS):
        found = list(_replaced_by_alike(fleet, solved))
        if not found:
            break
        left = [c for c in solved.candidates if c not in found]
        fewer = fleet.solve(left, cluster, closed)
        if fewer.errors or round(fleet.objective(fewer) - fleet.objective(solved), _DECIMALS) > 0:
            break
        solved, alike = fewer, [*alike, *found]
    return solved, alike


def _replaced_by_alike(fleet: _Fleet, solved: Solved) -> Iterator[Candidate]:
    """Yield for each new node a node of the same type that it replaces, the one whose evictions cost most."""
    left = sorted(solved.candidates, key=lambda c: (-fleet.cost.of(c), c.nodeclaim))
    for claim in solved.results.new_claims:
        kind = (claim.node_pool, claim.offering.instance_type, claim.offering.capacity_type)
        found = next((c for c in left if (c.nodepool, c.instance_type, c.capacity_type) == kind), None)
        if found is not None:
            left.remove(found)
            yield found
