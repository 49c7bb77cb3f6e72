"""Schedules one pod at a time onto the first candidate node that takes it, tried in Karpenter's order.

Restates: karpenter pkg/controllers/provisioning/scheduling/scheduler.go `add`, `addToExistingNode`,
`addToInflightNode`, `addToNewNodeClaim`; existingnode.go and nodeclaim.go `CanAdd`, `Add`.
Differs: a label that a NodePool does not define cannot be required, even if another pod of the node excluded some of
its values, which Karpenter takes for a definition; NodePools of equal weight compete on price; of domains that are
equally good, the one with the cheapest offering of most instance types is chosen; a node on reserved capacity is bound
to one reservation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.catalogue import InstanceType
from journeyman.core.scheduling.arrays import Bools
from journeyman.core.scheduling.offering_masks import CONFLICT, OfferingMasks, lowest
from journeyman.core.scheduling.placement.affinity import AffinityRule
from journeyman.core.scheduling.placement.counters import offerings_of
from journeyman.core.scheduling.placement.topology_rules import DomainChoice, Topology
from journeyman.core.scheduling.pod_classes import RowPods
from journeyman.core.scheduling.problem import PartialSolution, PlannedNode, amounts_of
from journeyman.core.scheduling.requirements import Requirements, requirement
from journeyman.core.scheduling.results import MinValuesPolicy
from journeyman.core.scheduling.sequential.candidate_nodes import CandidateNodes, NewNode
from journeyman.core.scheduling.sequential.pod_constraints import (
    LaunchOption,
    PodConstraints,
    PodTerms,
)
from journeyman.core.scheduling.sequential.resource_shares import ResourceShares

if TYPE_CHECKING:  # imported at run time only where pods have ResourceClaims
    from journeyman.core.scheduling.dra import AllocationProposal

_PER_CLAIM: Final = 500  # effort of allocating for one ResourceClaim on one candidate
_PER_FOLLOWER: Final = (
    15  # effort of finding the existing nodes that take pods of a row beside a pod that they must join
)
_NODES_PER_UNIT: Final = 200


class _BoundNode(NamedTuple):
    """A new node with a pod more: the ID of its requirements, its offerings, and what ResourceClaims get."""

    requirements_id: int
    offerings: int
    allocation: AllocationProposal | None = None


class _RatedNode(NamedTuple):
    """A possible new node. The lowest `rate` is best, then the NodePool's position, then the pod's alternatives."""

    rate: float
    pool: int
    bound: _BoundNode
    reservation: str

    @property
    def rank(self) -> tuple[float, int]:
        """Sort key, best node first."""
        return self.rate, self.pool


class TieBreakPolicy(Struct, frozen=True):
    """The choices where Karpenter decides at random or in the next pass.

    Attributes:
        bind_anti_affinity_domains: Bind each pod affected by required anti-affinity to one domain, else to none.
        prefer_largest_reservation: Choose the largest type of reserved capacity, else the smallest that fits the pod.
        avoid_reservations: Use reserved capacity last instead of first, because pods that must be in the same domain
            may not fit on it.
        ignore_type_variety: With best-effort minValues, do not preserve the variety of a node's instance types.
        prefer_last_alternative: Of the terms of a pod's required node affinity, try the last first, else in their
            order.
        prefer_last_pool_name: Of NodePools with equal weight, choose the one with the last name, regardless of price.
        prefer_nodes_for_followers: Try existing nodes first that can take a pod of most of the classes which must share
            the pod's node, and those that can take none of them last, after a new node.
        reserve_largest_type: Reserve the limits that the largest type of a node uses until all pods are placed, else
            the cheapest: few large nodes may hold more pods within a limit than many small ones.
    """

    bind_anti_affinity_domains: bool = False
    prefer_largest_reservation: bool = False
    avoid_reservations: bool = False
    ignore_type_variety: bool = False
    prefer_last_alternative: bool = False
    prefer_last_pool_name: bool = False
    prefer_nodes_for_followers: bool = False
    reserve_largest_type: bool = False


class SequentialScheduler:
    """Schedules pods one at a time; tracks all candidates and their pods."""

    def __init__(
        self, terms: PodTerms, solution: PartialSolution, active: Sequence[int], policy: TieBreakPolicy
    ) -> None:
        """Start from a solution, which is not modified.

        Args:
            terms: The scheduling problem, with the terms of its rows.
            solution: The plan so far.
            active: The rows whose pods may be scheduled.
            policy: The tie-break policy.
        """
        problem = terms.problem
        self._problem = problem
        self._terms = terms
        self._interner = problem.interner
        self._pool_masks = problem.pool_masks
        self._pools_by_weight = [
            list(of_weight) for _, of_weight in groupby(self._pool_masks, key=lambda s: s.pool.template.order.rank)
        ]
        self._candidates = CandidateNodes(problem)
        self._policy = policy
        self.reserved = 0  # nodes planned on reserved capacity
        self._topology = Topology(problem, active, binding=policy.bind_anti_affinity_domains)
        for key in sorted(self._topology.keys):
            self._candidates.watch(key)
        self._reservations = solution.reservations.copy()
        self._headroom = [headroom.copy() for headroom in solution.headroom]
        self._resource_shares = ResourceShares(
            self._headroom,
            ignore_type_variety=policy.ignore_type_variety,
            reserve_largest_type=policy.reserve_largest_type,
        )
        self._constraints: dict[int, tuple[PodConstraints, ...]] = {}
        self._added: dict[int, dict[int, int]] = {}
        self._allocator = solution.allocator.copy() if solution.allocator is not None else None
        for candidate, pods in solution.on_existing.items():
            for row, count in pods:
                self._add_to_existing(candidate, row, count)
        for node in solution.new_nodes:
            self._resume(node)

    @property
    def size(self) -> int:
        """The number of candidate nodes, existing and planned."""
        return self._candidates.size

    def rules(self, row: int) -> int:
        """Return how many rules about one node concern a row."""
        return self._candidates.rules(row)

    def _constraints_of(self, row: int) -> tuple[PodConstraints, ...]:
        """Return the constraints of a row's pods, one entry per term, in the order in which they are tried."""
        found = self._constraints.get(row)
        if found is None:
            terms = self._terms.of(row)
            if self._policy.prefer_last_alternative:
                terms = terms[::-1]
            rules = self._topology.of(row)
            found = self._constraints[row] = tuple(PodConstraints(term, rules) for term in terms)
        return found

    def _resume(self, node: PlannedNode) -> None:
        """Add a new node of the initial solution."""
        masks, requirements_id, offerings = offerings_of(self._problem, node)
        new_node = NewNode(
            masks=masks,
            requirements_id=requirements_id,
            offerings=offerings,
            total=node.total.tolist(),
            share=node.share,
        )
        new_node.variety = self._resource_shares.variety(masks, new_node.offerings)
        candidate = self._candidates.open(new_node)
        for row, count in node.pods:
            new_node.offerings &= masks.with_free_ports(self._problem.rows[row].ports)
            self._candidates.add(row, candidate, count)
            new_node.pods[row] = new_node.pods.get(row, 0) + count
            self._topology.counts.record_new(candidate, new_node, row, count)
        self._update_candidate(candidate)

    # -- trying -------------------------------------------------------------------------------------------------------

    def schedule(self, row: int) -> bool:
        """Schedule one pod of a row on the first candidate that fits it; return whether one does."""
        choices: list[DomainChoice] = []
        for rules in self._topology.of(row).labels:
            choice = rules.now()
            undecided = rules.undecided_affinity if choice is None else None
            if undecided is not None and self._bind(undecided):
                choice = rules.now()
            if choice is None:
                return False
            choices.append(choice)
        by_term = self._constraints_of(row)
        if not by_term:
            return False
        fitting = self._fitting(by_term[0], choices)
        return any(self._schedule_with(constraints, choices, fitting) for constraints in by_term)

    def _bind(self, rule: AffinityRule) -> bool:
        """Bind a node with pods to join, whose domain is undecided, to a domain that the joining pod allows."""
        key, within = rule.counter.key, rule.within()
        for candidate in sorted(rule.counter.undecided):
            node = self._candidates.node(candidate)
            domains = node.masks.domains(key, node.offerings, node.requirements_id)
            for domain in sorted(within & domains.keys(), key=lambda d: (lowest(domains[d]), d)):
                requirements_id = self._interner.narrowed(node.requirements_id, self._interner.one_of(key, (domain,)))
                left = node.offerings & node.masks.meeting(requirements_id) if requirements_id != CONFLICT else 0
                if left and self._resource_shares.usable(node.masks, left, node.share, node.variety):
                    self._narrow(candidate, node, requirements_id, left)
                    return True
        return False

    def _narrow(self, candidate: int, node: NewNode, requirements_id: int, offerings: int) -> None:
        node.requirements_id, node.offerings = requirements_id, offerings
        self._allocate(candidate, node)
        node.share = self._resource_shares.take(node.masks, offerings, node.share)
        self._update_columns(candidate)

    def _fitting(self, constraints: PodConstraints, choices: Sequence[DomainChoice]) -> Bools:
        """Return the candidates with the capacity and the topology for a pod, whichever of its terms they meet."""
        candidates = self._candidates
        fitting = candidates.has_capacity(constraints.row)
        for choice in choices:
            key = choice.rules.key
            admitted = [choice.admits(domain) for domain in candidates.known_domains(key)]
            fitting &= candidates.in_domains(key, admitted, without_label=not choice.rules.needs_label)
        return fitting

    def _schedule_with(self, constraints: PodConstraints, choices: Sequence[DomainChoice], fitting: Bools) -> bool:
        """Schedule a pod by one of its terms on one of the fitting candidates, or on a new node."""
        first: Sequence[int] = self._candidates.in_order(fitting & constraints.not_ruled_out(self._candidates.size))
        last: Sequence[int] = ()
        if self._policy.prefer_nodes_for_followers and (followers := self._followers.get(constraints.row)):
            first, last = self._by_followers(first, constraints.row, followers)
        return (
            any(self._try_candidate(candidate, constraints, choices) for candidate in first)
            or (self._candidates.admits_new(constraints.row) and self._open(constraints, choices))
            or any(self._try_candidate(candidate, constraints, choices) for candidate in last)
        )

    @cached_property
    def _followers(self) -> Mapping[int, Sequence[int]]:
        """By row, the other rows that require one of its pods on their node, and those that require one of theirs."""
        direct: dict[int, set[int]] = {}
        for follower, cls in enumerate(self._problem.rows):
            for group in cls.affinities:
                if group.key == labels.HOSTNAME and group.id not in cls.preferred_groups:
                    for row in self._problem.row_index.counted_by(group):
                        direct.setdefault(row, set()).add(follower)
        own = {row: set(self._problem.levels[self._problem.class_of_row[row]]) for row in direct}
        return {row: sorted(_reachable(direct, row) - own[row]) for row in direct}

    def _by_followers(
        self, candidates: Sequence[int], row: int, followers: Sequence[int]
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Return the candidates, existing nodes that take most of these rows first; apart those that take none."""
        requests, first_new = self._problem.requests, self._candidates.first_new
        self._problem.effort.spend(len(followers) * (_PER_FOLLOWER + first_new // _NODES_PER_UNIT))
        taking = np.zeros(first_new, dtype=np.int64)
        for follower in followers:
            together = amounts_of((requests[row] + requests[follower]).tolist())
            accepted = np.zeros(first_new, dtype=bool)
            for term in self._terms.of(follower):
                accepted |= term.admitted
            taking += accepted & self._candidates.with_capacity_for(together)[:first_new]
        existing = [c for c in candidates if c < first_new]
        first = sorted((c for c in existing if taking[c]), key=lambda c: -taking[c])
        return [*first, *(c for c in candidates if c >= first_new)], [c for c in existing if not taking[c]]

    def _try_candidate(self, candidate: int, constraints: PodConstraints, choices: Sequence[DomainChoice]) -> bool:
        if candidate >= self._candidates.first_new:
            return self._add_to_new(candidate, constraints, choices)
        if constraints.cls.claims and self._allocator is not None:
            self._problem.effort.spend(_PER_CLAIM * len(constraints.cls.claims))
            scheduled = self._added.get(candidate, {}).get(constraints.row, 0)
            if not self._allocator.fits_existing(candidate, constraints.row, scheduled, constraints.cls.claims):
                return False
        self._add_to_existing(candidate, constraints.row, 1)
        return True

    def _add_to_existing(self, candidate: int, row: int, count: int) -> None:
        self._candidates.add(row, candidate, count)
        self._topology.counts.record_existing(candidate, row, count)
        added = self._added.setdefault(candidate, {})
        added[row] = added.get(row, 0) + count

    def _add_to_new(self, candidate: int, constraints: PodConstraints, choices: Sequence[DomainChoice]) -> bool:
        """Add a pod to a new node if an offering still fits; rule the candidate out if none ever will."""
        node = self._candidates.node(candidate)
        masks = node.masks
        offerings = node.offerings if constraints.term.tolerates(masks) else 0
        offerings &= masks.with_free_ports(constraints.cls.ports)
        for axis, amount in constraints.term.amounts:
            offerings &= masks.holding(axis, node.total[axis] + amount)
        impossible = True
        for alternative in constraints.term.alternatives if offerings else ():
            if self._interner.narrowed(masks.offer, alternative) == CONFLICT:
                continue  # it requires a label that only another pod of the node mentions
            requirements_id = self._interner.narrowed(node.requirements_id, alternative)
            if requirements_id == CONFLICT or not (left := offerings & masks.meeting(requirements_id)):
                continue
            impossible = False
            bound = self._usable(candidate, masks, LaunchOption(requirements_id, left), constraints, choices)
            if bound is not None:
                self._add_pod(candidate, node, constraints, bound)
                return True
        if impossible:
            constraints.rule_out(candidate)
        return False

    def _open(self, constraints: PodConstraints, choices: Sequence[DomainChoice]) -> bool:
        """Plan a new node for a pod: the cheapest among the NodePools of the highest suitable weight."""
        for of_weight in self._pools_by_weight:
            rated = [
                _RatedNode(self._rating(masks, bound.offerings, option), masks.index, bound, option.reservation)
                for masks in of_weight
                for option in constraints.term.launch_options(masks)
                if (not option.reservation or self._reservations.left.get(option.reservation, 0) > 0)
                and (bound := self._usable(self._candidates.size, masks, option, constraints, choices)) is not None
            ]
            if rated:
                best = min(rated, key=lambda node: node.rank)  # of equal ones, that of the first alternative
                if best.reservation:
                    self._reservations.take(best.reservation, 1)
                    self.reserved += 1
                masks = self._pool_masks[best.pool]
                node = NewNode(
                    masks=masks, requirements_id=masks.offer, offerings=0, total=[0] * len(self._problem.axes)
                )
                node.variety = self._resource_shares.variety(masks, best.bound.offerings)
                self._add_pod(self._candidates.open(node), node, constraints, best.bound)
                return True
        return False

    def _usable(
        self,
        candidate: int,
        masks: OfferingMasks,
        option: LaunchOption,
        constraints: PodConstraints,
        choices: Sequence[DomainChoice],
    ) -> _BoundNode | None:
        """Return the node with its domains chosen, within limits and with enough variety; None if that is impossible.

        If the domains chosen from all offerings exceed the limits, they are chosen from the offerings within the
        limits.
        """
        shares, share, least = self._resource_shares, None, self._least_variety(masks)
        if candidate < self._candidates.size:
            node = self._candidates.node(candidate)
            share, least = node.share, node.variety
        bound = self._with_claims(candidate, masks, option, constraints, choices)
        if bound is None or shares.usable(masks, bound.offerings, share, least):
            return bound
        within = shares.within(masks, option.offerings, share)
        if not choices or not within:
            return None
        bound = self._with_claims(candidate, masks, replace(option, offerings=within), constraints, choices)
        return bound if bound is not None and shares.usable(masks, bound.offerings, share, least) else None

    def _rating(self, masks: OfferingMasks, offerings: int, option: LaunchOption) -> float:
        """Return the rate of a new node, lowest is best; the price of a reservation only ranks it by size."""
        if self._policy.prefer_last_pool_name:
            return 0.0  # NodePools are already sorted by name
        price = masks.price(offerings)
        if option.reservation and self._policy.avoid_reservations:
            return float("inf")
        return -price if option.reservation and self._policy.prefer_largest_reservation else price

    def _least_variety(self, masks: OfferingMasks) -> tuple[int, ...]:
        """Return the number of values that a new node must keep for minValues; with BestEffort 0."""
        minimums = tuple(masks.pool.template.min_values.values())
        return minimums if self._problem.options.min_values is MinValuesPolicy.STRICT else (0,) * len(minimums)

    def _with_claims(
        self,
        candidate: int,
        masks: OfferingMasks,
        option: LaunchOption,
        constraints: PodConstraints,
        choices: Sequence[DomainChoice],
    ) -> _BoundNode | None:
        """Allocate for the pod's ResourceClaims, then return the same as `_bind_domains`."""
        requirements_id, offerings, claims = option.requirements_id, option.offerings, constraints.cls.claims
        if not claims or self._allocator is None:
            return self._bind_domains(masks, requirements_id, offerings, choices)

        def types_meeting(requirements: Requirements) -> list[InstanceType]:
            return masks.instance_types(offerings & masks.meeting(self._interner.id_of(requirements)))

        self._problem.effort.spend(_PER_CLAIM * len(claims))
        is_open = candidate < self._candidates.size
        scheduled = self._candidates.node(candidate).pods.get(constraints.row, 0) if is_open else 0
        found = self._allocator.propose(
            candidate,
            constraints.row,
            scheduled,
            claims,
            requirements=self._interner[requirements_id],
            types_meeting=types_meeting,
            case=(masks.index, requirements_id, offerings),
        )
        if found is None:
            return None
        requirements_id = self._interner.id_of(found.requirements)
        bound = self._bind_domains(masks, requirements_id, offerings & masks.meeting(requirements_id), choices)
        return bound._replace(allocation=found) if bound is not None else None

    def _bind_domains(
        self, masks: OfferingMasks, requirements_id: int, offerings: int, choices: Sequence[DomainChoice]
    ) -> _BoundNode | None:
        """Return the node with one domain chosen for every rule; None if that is impossible."""
        if not choices:
            return _BoundNode(requirements_id, offerings)
        choice, key = choices[0], choices[0].rules.key
        domains = masks.domains(key, offerings, requirements_id)
        if not domains:
            if choice.rules.needs_label or (
                choice.rules.has_own_anti_affinity and self._gets_any_value(requirements_id, key)
            ):
                return None
            apart = self._without_excluded(requirements_id, choice)
            return self._bind_domains(masks, apart, offerings, choices[1:]) if apart != CONFLICT else None
        admitted = [domain for domain in domains if choice.admits(domain)]
        if choice.rules.is_only_preferred and len(admitted) == len(domains):
            return self._bind_domains(masks, requirements_id, offerings, choices[1:])
        if choice.binding:
            admitted = self._by_preference(masks, choice, {domain: domains[domain] for domain in admitted})
        for allowed in [(domain,) for domain in admitted] if choice.binding else [admitted] if admitted else []:
            narrowed = self._interner.narrowed(requirements_id, self._interner.one_of(key, allowed))
            left = offerings & masks.meeting(narrowed) if narrowed != CONFLICT else 0
            bound = self._bind_domains(masks, narrowed, left, choices[1:]) if left else None
            if bound is not None:
                return bound
        return (
            None if choice.rules.needs_label else self._bind_without_label(masks, requirements_id, offerings, choices)
        )

    def _bind_without_label(
        self, masks: OfferingMasks, requirements_id: int, offerings: int, choices: Sequence[DomainChoice]
    ) -> _BoundNode | None:
        """Return the node without the first choice's label, which no anti-affinity excludes; None if all have it."""
        key = choices[0].rules.key
        absent = self._interner.id_of(Requirements({key: requirement(key, "DoesNotExist")}))
        narrowed = self._interner.narrowed(requirements_id, absent)
        left = offerings & masks.by_value(key)[1] if narrowed != CONFLICT else 0
        return self._bind_domains(masks, narrowed, left, choices[1:]) if left else None

    def _gets_any_value(self, requirements_id: int, key: str) -> bool:
        """Whether the node gets a value of the label that is listed nowhere."""
        rule = self._interner[requirements_id].get(key)
        return rule is not None and rule.present

    def _without_excluded(self, requirements_id: int, choice: DomainChoice) -> int:
        """Return the requirements of a node that may have any value of a label, without the excluded values."""
        key, excluded = choice.rules.key, choice.rules.excluded
        rule = self._interner[requirements_id].get(key)
        if not excluded or rule is None or not rule.complement or not rule.present:
            return requirements_id
        apart = Requirements({key: requirement(key, "NotIn", excluded)})
        return self._interner.narrowed(requirements_id, self._interner.id_of(apart))

    def _by_preference(self, masks: OfferingMasks, choice: DomainChoice, domains: Mapping[str, int]) -> list[str]:
        """Return the domains, best first."""
        cheap = masks.cheapest_for(domains)
        return sorted(domains, key=lambda d: (choice.rank(d), -cheap[d], lowest(domains[d]), d))

    def _add_pod(self, candidate: int, node: NewNode, constraints: PodConstraints, bound: _BoundNode) -> None:
        node.requirements_id, node.offerings, allocation = bound
        self._allocate(candidate, node, allocation)
        for axis, amount in constraints.term.amounts:
            node.total[axis] += amount
        self._candidates.add(constraints.row, candidate, 1)
        node.pods[constraints.row] = node.pods.get(constraints.row, 0) + 1
        node.share = self._resource_shares.take(node.masks, node.offerings, node.share)
        self._topology.counts.record_new(candidate, node, constraints.row)
        self._update_candidate(candidate)

    def _allocate(self, candidate: int, node: NewNode, allocation: AllocationProposal | None = None) -> None:
        """Keep what ResourceClaims get on a new node for its remaining instance types, with what a new pod's get."""
        if self._allocator is not None and (allocation is not None or self._allocator.holds(candidate)):
            self._allocator.commit(candidate, node.masks.type_names(node.offerings), allocation)

    def _update_candidate(self, candidate: int) -> None:
        """Update the position and the columns of a new node after adding a pod."""
        self._candidates.moved(candidate, sum(self._candidates.node(candidate).pods.values()))
        self._update_columns(candidate)

    def _update_columns(self, candidate: int) -> None:
        """Update the columns of a new node."""
        node, candidates = self._candidates.node(candidate), self._candidates
        if node.offerings:
            candidates.resize(
                candidate, [node.masks.largest(axis, node.offerings) - used for axis, used in enumerate(node.total)]
            )
        else:
            candidates.resize(candidate, [-1] * len(node.total))
        requirements = self._interner[node.requirements_id]
        for key in candidates.watched:
            rule = requirements.get(key)
            if rule is not None and rule.single is not None:
                candidates.bind_domain(candidate, key, rule.single)
                self._topology.counts.domain_decided(candidate, key, rule.single)

    def reserve_cheapest_types(self) -> None:
        """Reserve no more of the limits than the cheapest type of each new node uses, from now on."""
        self._resource_shares.reserve_largest_type = False
        for node in self._candidates.nodes:
            if node.offerings:
                node.share = self._resource_shares.take(node.masks, node.offerings, node.share)

    @property
    def is_limited(self) -> bool:
        """Whether a NodePool's limits leave too little for a node of one of its types."""
        return any(not headroom.allows().all() for headroom in self._headroom)

    def has_domain_anti_affinity(self, row: int) -> bool:
        """Whether required anti-affinity over a label other than the hostname affects the row."""
        return any(rules.anti_affinities for rules in self._topology.of(row).labels)

    # -- the result ---------------------------------------------------------------------------------------------------

    def added_to(self, solution: PartialSolution) -> PartialSolution:
        """Return the solution with all decisions added; new nodes are in the order in which they were planned."""
        return replace(
            solution,
            reservations=self._reservations,
            headroom=self._headroom,
            allocator=self._allocator,
            on_existing={candidate: _by_row(pods) for candidate, pods in sorted(self._added.items())},
            new_nodes=[
                PlannedNode(
                    pool=node.masks.index,
                    requirements=self._interner[node.requirements_id],
                    pods=_by_row(node.pods),
                    total=np.array(node.total, dtype=np.int64),
                    share=node.share,
                )
                for node in self._candidates.nodes
            ],
        )


def _reachable(edges: Mapping[int, Collection[int]], start: int) -> set[int]:
    """Return what can be reached from a start along these edges."""
    found: set[int] = set()
    waiting = [start]
    while waiting:
        new = set(edges.get(waiting.pop(), ())) - found
        found |= new
        waiting += new
    return found


def _by_row(pods: Mapping[int, int]) -> tuple[RowPods, ...]:
    return tuple(map(RowPods, pods.keys(), pods.values()))
