"""Balanced: the consolidation policy that weighs what a move saves against the pods it disrupts.

::

    score = (savings / price of the NodePool's nodes) / (disruption cost / that of the NodePool's nodes)

A score of 1.0 saves as large a share of the NodePool's price as it disrupts of its pods. A move is made if every Balanced
NodePool of its candidates scores at least 0.5. It is a filter inside multi-node and single-node consolidation, not a method.

Restates: karpenter pkg/controllers/disruption/balanced.go, types.go `ScoreResult`.
Differs: all nodes of a NodePool are priced from the snapshot, so that no running total can go wrong. The disruption cost of
nodes that are not candidates counts the same pods as that of candidates; Karpenter counts mirror pods on the former too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue, price_of
from journeyman.core.disruption.candidates import Candidate, NodePoolName, rescheduling_cost
from journeyman.core.disruption.commands import Command
from journeyman.core.disruption.disruption_events import consolidation_approved, consolidation_approved_in_nodepool
from journeyman.core.disruption.disruption_metrics import consolidation_move
from journeyman.core.plan import Event, Observation, Plan
from journeyman.core.state import Snapshot
from journeyman.core.state.pod_predicates import is_reschedulable

BALANCED: Final = "Balanced"
BALANCED_K: Final = 2
"""A move may disrupt at most so many times the share of pods that it saves of the price (pkg/apis/v1 `BalancedK`)."""


class NodePoolTotals(Struct, frozen=True, kw_only=True):
    """Price per hour and disruption cost of all nodes of a NodePool."""

    price: float
    disruption_cost: float


class Score(Struct, frozen=True, kw_only=True):
    """What a move saves of a NodePool's price, and what it disrupts of its pods, both as fractions."""

    savings_fraction: float = 0.0
    disruption_fraction: float = 0.0
    k: int = BALANCED_K

    @property
    def value(self) -> float:
        """Savings relative to disruption: 0.0 if nothing is saved, infinite if nothing is disrupted."""
        if self.savings_fraction <= 0:
            return 0.0
        if self.disruption_fraction == 0:
            return math.inf
        return self.savings_fraction / self.disruption_fraction

    @property
    def threshold(self) -> float:
        """The least score of an approved move."""
        return 1 / self.k

    @property
    def is_approved(self) -> bool:
        """Whether the move is worth its disruption."""
        return self.value >= self.threshold

    def __str__(self) -> str:
        relation = ">=" if self.is_approved else "<"
        return (
            f"score {self.value:.2f} {relation} threshold {self.threshold:.2f} (k: {self.k}, "
            f"savings {100 * self.savings_fraction:.1f}%, disruption {100 * self.disruption_fraction:.1f}%)"
        )


def score_move(savings: float, disruption_cost: float, totals: NodePoolTotals, k: int = BALANCED_K) -> Score:
    """Return the score of a move in a NodePool; 0.0 if the NodePool's price or disruption cost is 0.

    Restates: karpenter pkg/controllers/disruption/balanced.go `ScoreMove`.
    """
    if totals.price <= 0 or totals.disruption_cost <= 0:
        return Score(k=k)
    return Score(
        savings_fraction=savings / totals.price, disruption_fraction=disruption_cost / totals.disruption_cost, k=k
    )


class BalancedScores(Struct, frozen=True, kw_only=True):
    """Scores moves of nodes whose NodePools have the policy Balanced; `totals` has those NodePools only."""

    totals: Mapping[NodePoolName, NodePoolTotals]

    @classmethod
    def of(cls, snapshot: Snapshot, catalogue: Catalogue) -> BalancedScores:
        """Return the scores for a cluster, with the totals of all nodes of its Balanced NodePools.

        Restates: karpenter pkg/controllers/disruption/balanced.go `computeNodePoolTotals`, pkg/state/cost/cost.go
        `ClusterCost`.
        """
        balanced = {p.metadata.name for p in snapshot.node_pools if p.spec.disruption.consolidation_policy == BALANCED}
        prices, disruption_costs = dict.fromkeys(balanced, 0.0), dict.fromkeys(balanced, 0.0)
        known: dict[tuple[str, ...], float] = {}
        for node in snapshot.state_nodes if balanced else ():
            pool = node.node_pool
            if pool not in balanced:
                continue
            place = [node.labels.get(key, "") for key in (labels.INSTANCE_TYPE, labels.ZONE, labels.CAPACITY_TYPE)]
            offering = (pool, *place)
            if offering not in known:
                known[offering] = price_of(catalogue.instance_types(pool), *place)
            prices[pool] += known[offering]
            disruption_costs[pool] += rescheduling_cost(pod for pod in node.pods if is_reschedulable(pod))
        return cls(
            totals={
                NodePoolName(name): NodePoolTotals(price=prices[name], disruption_cost=disruption_costs[name])
                for name in sorted(balanced)
            }
        )

    def of_command(self, command: Command) -> Mapping[NodePoolName, Score]:
        """Return the command's score in each Balanced NodePool of its candidates, by name.

        A command for several NodePools attributes its savings to them by their candidates' prices.

        Restates: karpenter pkg/controllers/disruption/balanced.go `EvaluateBalancedMove`.
        """
        by_pool: dict[NodePoolName, list[Candidate]] = {}
        for candidate in command.candidates:
            by_pool.setdefault(candidate.nodepool, []).append(candidate)
        price = _price(command.candidates)
        scores = {}
        for pool, candidates in sorted(by_pool.items()):
            if pool not in self.totals:
                continue
            share = _price(candidates) / price if price > 0 and len(by_pool) > 1 else 1.0
            disruption_cost = sum(c.disruption_cost for c in candidates)
            scores[pool] = score_move(command.saving * share, disruption_cost, self.totals[pool])
        return scores

    def why_not(self, command: Command) -> str:
        """Return which Balanced NodePool refuses the command; empty if all approve it, or none is Balanced."""
        refused = ((pool, score) for pool, score in self.of_command(command).items() if not score.is_approved)
        return next((_refusal(pool, score) for pool, score in refused), "")

    def why_never(self, candidate: Candidate) -> str:
        """Return why no consolidation of this node alone can be approved; empty if one may be.

        Deleting it without a replacement has the best score. A NodePool whose price is unknown is not judged before.

        Restates: karpenter pkg/controllers/disruption/balanced.go `CanPassThreshold`.
        """
        totals = self.totals.get(candidate.nodepool)
        if totals is None or totals.price <= 0:
            return ""
        best = score_move(candidate.price, candidate.disruption_cost, totals)
        return "" if best.is_approved else _refusal(candidate.nodepool, best)


def moves_plan(command: Command, scores: Mapping[NodePoolName, Score], snapshot: Snapshot) -> Plan:
    """Return the metrics of a consolidation that was approved or refused, and the Events of its approval.

    The Events are on the node and its NodeClaim, or of several nodes on their NodePools. A refusal has none, because there
    are so many that the approvals would not be seen.

    Args:
        command: The consolidation, also if it is refused.
        scores: Its scores by NodePool, those with the policy Balanced only.
        snapshot: The cluster.

    Restates: karpenter pkg/controllers/disruption/balanced.go `ApproveCommand`, `EmitMultiNodeEvents`.
    """
    approved = all(score.is_approved for score in scores.values())
    events: list[Event] = []
    observations: list[Observation] = []
    for name in sorted({candidate.nodepool for candidate in command.candidates}):
        pool, score = snapshot.node_pools_by_name[name], scores.get(name)
        observations += consolidation_move(
            pool,
            approved=approved,
            score=score.value if score is not None else None,
            score_approved=score is not None and score.is_approved,
        )
        if score is not None and score.is_approved and approved:
            events += (
                consolidation_approved(command.candidates[0], str(score))
                if len(command.candidates) == 1
                else (consolidation_approved_in_nodepool(pool, str(score)),)
            )
    return Plan(events=tuple(events), observations=tuple(observations))


def _price(candidates: Sequence[Candidate]) -> float:
    return sum(c.price for c in candidates)


def _refusal(pool: NodePoolName, score: Score) -> str:
    return f'NodePool "{pool}" has consolidation policy Balanced: {score}'
