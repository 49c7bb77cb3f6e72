"""Moves: commands that are valid alone, from the placements of the pods of leaving nodes.

::

    solved together   node-1 ─┬─► A (new)            moves   1  {node-1, node-2} ──launch──► A
                      node-2 ─┘                              2  {node-3}: its pods go to free capacity of node-7
                      node-3 ───► node-7 (stays)             3  {node-4} ──launch──► B, once 1 is done, because some of its
                      node-4 ─┬─► A                             pods go to A
                              └─► B (new)

Nodes that share a new node are one move. What a move saves within the payback time exceeds the price of its evictions, and it
costs less than what it deletes with whatever instance types its nodes are launched. Moves share neither nodes nor capacity on a
node, so they are independent but for `after`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.fleet_plan import MAX_NODES_PER_MOVE
from journeyman.core.api.objects import Node, NodeClaim, Pod
from journeyman.core.api.resources import format_resources
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.candidates import BASE_DISRUPTION_COST, Candidate, DisruptionReason, NodePoolName
from journeyman.core.disruption.commands import Command, SimulationResult
from journeyman.core.disruption.consolidation import limited_to_price, too_few_spot_types
from journeyman.core.disruption.simulation import Simulation
from journeyman.core.scheduling.nodeclaim_templates import to_node_claim
from journeyman.core.scheduling.results import PlannedClaim, Results
from journeyman.core.state import Snapshot

TRIFLE: Final = 1e-9
"""Of a price per hour: smaller differences are rounding errors."""


class MoveCost(Struct, frozen=True, kw_only=True):
    """What an eviction costs (in the provider's currency), and within which time a move must save that.

    `moved` is what moving the pods of a node costs beyond that, per hour and by NodeClaim (`ChurnLimits.moved_cost`).
    """

    eviction: float = 0.005
    payback: timedelta = timedelta(hours=4)
    moved: Mapping[str, float] = field(default_factory=dict)

    @property
    def per_hour(self) -> float:
        """The price of an eviction per hour of the payback time."""
        return self.eviction / max(self.payback / timedelta(hours=1), TRIFLE)

    def of(self, candidate: Candidate) -> float:
        """Return what moving the pods of this node costs, per hour of the payback time."""
        return self.per_hour * eviction_weight(candidate) + self.moved.get(candidate.nodeclaim, 0.0)


class Move(Struct, frozen=True, kw_only=True):
    """Launch `replacements`, then delete `candidates`; their pods go to the replacements and to existing nodes.

    Attributes:
        candidates: Nodes to delete, by name.
        replacements: Nodes to launch, with the keys of their pods.
        existing: Keys of pods by the name of the node that stays and takes them.
        after: Names of the moves that must be done before it, because the rest of its pods go to their replacements.
        pods: All pods of the candidates.
    """

    candidates: tuple[Candidate, ...]
    replacements: tuple[PlannedClaim, ...] = ()
    existing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    pods: tuple[Pod, ...] = ()

    @property
    def name(self) -> str:
        """The NodeClaim name of its first candidate; no two moves of a plan share a candidate."""
        return self.candidates[0].nodeclaim

    @property
    def saving(self) -> float:
        """Price per hour that it saves; a replacement counts at its cheapest offering."""
        return sum(c.price for c in self.candidates) - sum(r.price for r in self.replacements)

    @property
    def evictions(self) -> int:
        """How many pods it evicts."""
        return sum(len(c.reschedulable_pods) for c in self.candidates)

    @property
    def command(self) -> Command:
        """The command that executes it, with the placements for verification. Only without `after` are all of them known."""
        results = Results(new_claims=self.replacements, existing=self.existing)
        excluded = frozenset(c.node for c in self.candidates)
        simulated = SimulationResult(pods=self.pods, excluded_nodes=excluded, results=results, errors={})
        return Command(
            reason=DisruptionReason.UNDERUTILIZED,
            candidates=self.candidates,
            replacements=self.replacements,
            simulation_result=simulated,
        )


class Solved(Struct, frozen=True, kw_only=True):
    """Where the pods of these nodes go. `errors` are by pod key; such pods fit nowhere."""

    candidates: tuple[Candidate, ...]
    pods: tuple[Pod, ...]
    results: Results
    errors: Mapping[str, str] = field(default_factory=dict)


class MoveRules(Struct, frozen=True, kw_only=True):
    """What every move must meet.

    Attributes:
        simulation: The cluster.
        cost: What evictions cost.
        allowed: Nodes each NodePool may lose at once.
        surcharges: By NodePool, its price per node and hour beyond the instance's.
    """

    simulation: Simulation
    cost: MoveCost
    allowed: Mapping[NodePoolName, int]
    surcharges: Mapping[str, float]

    def eviction_cost(self, candidates: Iterable[Candidate]) -> float:
        """Return what evicting their pods costs, per hour of the payback time."""
        return sum(map(self.cost.of, candidates))

    def price(self, candidates: Iterable[Candidate]) -> float:
        """Return the price per hour of nodes, surcharges included."""
        return sum(c.price + self.surcharges.get(c.nodepool, 0.0) for c in candidates)

    def price_of_new(self, claims: Iterable[PlannedClaim]) -> float:
        """Return the price per hour of new nodes at their cheapest offering, surcharges included."""
        return sum(c.price + self.surcharges.get(c.node_pool, 0.0) for c in claims)

    def why_not_worthwhile(self, candidates: Sequence[Candidate], claims: Sequence[PlannedClaim]) -> str:
        """Return why deleting the candidates and launching the claims does not pay; empty if it does."""
        saving = min(
            self.price(candidates) - self.price_of_new(claims),
            sum(c.price for c in candidates) - sum(c.price for c in claims),
        )
        evictions = self.eviction_cost(candidates)
        if saving > max(evictions, TRIFLE):
            return ""
        return f"moving its pods saves {saving:.4f} per hour, and their evictions cost {evictions:.4f} per hour"

    def within_budgets(self, candidates: Iterable[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
        """Return the first candidates, as many as one move may have, and the others."""
        taken: list[Candidate] = []
        rest: list[Candidate] = []
        counts: Counter[NodePoolName] = Counter()
        for candidate in candidates:
            fits = counts[candidate.nodepool] < self.allowed.get(candidate.nodepool, 0)
            (taken if fits and len(taken) < MAX_NODES_PER_MOVE else rest).append(candidate)
            counts[candidate.nodepool] += fits
        return taken, rest

    def priced(self, move: Move) -> Move | str:
        """Return the move with only instance types that keep it cheaper than its candidates; or why it must not happen."""
        if why := self.why_not_worthwhile(move.candidates, move.replacements):
            return why
        snapshot, catalogue = self.simulation.snapshot, self.simulation.catalogue
        old, new = sum(c.price for c in move.candidates), sum(c.price for c in move.replacements)
        share = min(self.simulation.options.near_price, (old - TRIFLE) / max(new, TRIFLE))
        replacements: list[PlannedClaim] = []
        for claim in move.replacements:
            pool, types = snapshot.node_pools_by_name[claim.node_pool], catalogue.instance_types(claim.node_pool)
            limited = limited_to_price(claim, pool, types, claim.price * share)
            if isinstance(limited, str):
                return limited
            replacements.append(limited)
        limited_move = replace(move, replacements=tuple(replacements))
        return too_few_spot_types(limited_move.command) or limited_move


def eviction_weight(candidate: Candidate) -> float:
    """Return the sum of Karpenter's eviction costs of a node's pods, usually 1.0 each."""
    return candidate.disruption_cost - BASE_DISRUPTION_COST


def by_saving_per_eviction(move: Move) -> tuple[float, str]:
    """Return the sort key of moves: highest saving per eviction first, ties by name."""
    weight = BASE_DISRUPTION_COST + sum(map(eviction_weight, move.candidates))
    return (-move.saving / weight, move.name)


def moves_of(solved: Solved, launched_by: Mapping[str, str]) -> Iterator[Move]:
    """Yield a move for the nodes that share new nodes, and for each node whose pods all go to existing nodes.

    Args:
        solved: The placements; the pods of all candidates have one.
        launched_by: By name of a node that does not exist yet, the name of the move that launches it.
    """
    owner = {key: n for n, c in enumerate(solved.candidates) for key in c.reschedulable_pods}
    groups = _Groups(len(solved.candidates))
    for claim in solved.results.new_claims:
        groups.join(owner[key] for key in claim.pods)
    for numbers in groups.members():
        candidates = tuple(sorted((solved.candidates[n] for n in numbers), key=lambda c: c.nodeclaim))
        keys = {key for c in candidates for key in c.reschedulable_pods}
        existing = {name: tuple(k for k in placed if k in keys) for name, placed in solved.results.existing.items()}
        used = {name: placed for name, placed in sorted(existing.items()) if placed}
        yield Move(
            candidates=candidates,
            replacements=tuple(claim for claim in solved.results.new_claims if claim.pods[0] in keys),
            existing=used,
            after=tuple(sorted({launched_by[name] for name in used if name in launched_by})),
            pods=tuple(p for p in solved.pods if p.key in keys),
        )


def carried_out(snapshot: Snapshot, catalogue: Catalogue, move: Move, names: Sequence[str]) -> Snapshot:
    """Return the cluster once the move is done.

    Args:
        snapshot: The cluster before.
        catalogue: Instance types by NodePool.
        move: The move; it is launched with its cheapest offerings.
        names: Names for the nodes and NodeClaims of its replacements.
    """
    gone = {c.node for c in move.candidates}
    claims_gone = {c.nodeclaim for c in move.candidates}
    launched = [_joined(n, claim, snapshot, catalogue) for n, claim in zip(names, move.replacements, strict=True)]
    places = {key: n for n, claim in zip(names, move.replacements, strict=True) for key in claim.pods}
    places.update({key: name for name, keys in move.existing.items() for key in keys})
    claims = [*(c for c in snapshot.claims if c.metadata.name not in claims_gone), *(claim for claim, _ in launched)]
    nodes = [*(n for n in snapshot.nodes if n.metadata.name not in gone), *(node for _, node in launched)]
    remaining = (p for p in with_pods_on(snapshot, places).pods if p.spec.node_name not in gone)
    return replace(
        snapshot,
        claims=tuple(sorted(claims, key=lambda c: c.metadata.name)),
        nodes=tuple(sorted(nodes, key=lambda n: n.metadata.name)),
        pods=tuple(remaining),
    )


def with_pods_on(snapshot: Snapshot, places: Mapping[str, str]) -> Snapshot:
    """Return the snapshot with pods, by key, on these nodes."""
    if not places:
        return snapshot
    moved = (replace(p, spec=replace(p.spec, node_name=places[p.key])) if p.key in places else p for p in snapshot.pods)
    return replace(snapshot, pods=tuple(moved))


def _joined(name: str, claim: PlannedClaim, snapshot: Snapshot, catalogue: Catalogue) -> tuple[NodeClaim, Node]:
    """Return a planned node as it will be when it is initialized."""
    pool, offering = snapshot.node_pools_by_name[claim.node_pool], claim.offering
    instance_type = next(t for t in catalogue.instance_types(claim.node_pool) if t.name == offering.instance_type)
    body = to_node_claim(claim, pool, name=name, hash="", hash_version="")
    single = {
        term.key: term.values[0]
        for term in (*claim.requirements, *instance_type.requirements)
        if term.operator == "In" and len(term.values) == 1
    }
    own = {
        **single,
        **body["metadata"]["labels"],
        labels.INSTANCE_TYPE: offering.instance_type,
        labels.ZONE: offering.zone,
        labels.CAPACITY_TYPE: offering.capacity_type,
        labels.HOSTNAME: name,
        labels.REGISTERED: "true",
        labels.INITIALIZED: "true",
    }
    amounts = {
        "capacity": format_resources(instance_type.capacity),
        "allocatable": format_resources(instance_type.allocatable),
    }
    conditions = [{"type": t, "status": "True"} for t in ("Launched", "Registered", "Initialized", "Ready")]
    provider_id = f"planned:///{name}"
    metadata = {**body["metadata"], "uid": name, "labels": own}
    status = {**amounts, "providerID": provider_id, "nodeName": name, "conditions": conditions}
    made = msgspec.convert({**body, "metadata": metadata, "status": status}, NodeClaim)
    spec = {"providerID": provider_id, "taints": body["spec"].get("taints", [])}
    node = {"metadata": {"name": name, "uid": name, "labels": own}, "spec": spec}
    return made, msgspec.convert({**node, "status": {**amounts, "conditions": conditions[-1:]}}, Node)


class _Groups:
    """Numbers in groups that can be joined."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def root(self, n: int) -> int:
        while self._parent[n] != n:
            self._parent[n] = self._parent[self._parent[n]]
            n = self._parent[n]
        return n

    def join(self, numbers: Iterable[int]) -> None:
        """Join the groups of these numbers; the smallest number names the group."""
        roots = sorted({self.root(n) for n in numbers})
        for other in roots[1:]:
            self._parent[other] = roots[0]

    def members(self) -> list[list[int]]:
        found: dict[int, list[int]] = {}
        for n in range(len(self._parent)):
            found.setdefault(self.root(n), []).append(n)
        return list(found.values())
