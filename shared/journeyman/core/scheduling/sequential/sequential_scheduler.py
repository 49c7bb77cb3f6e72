"""Schedules one pod at a time onto the first candidate node that takes it, tried in Karpenter's order.

Restates: karpenter pkg/controllers/provisioning/scheduling/scheduler.go `add`, `addToExistingNode`,
`addToInflightNode`, `addToNewNodeClaim`; existingnode.go and nodeclaim.go `CanAdd`, `Add`.
Differs: a label that a NodePool does not define cannot be required, even if another pod of the node excluded some of
its values, which Karpenter takes for a definition; NodePools of equal weight compete on price; of domains that are
equally good, the one that is cheapest for most types is chosen; a node on reserved capacity is bound to one
reservation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.scheduling.instance_type_choice import reservation_of
from journeyman.core.scheduling.pod_classes import HostPort, host_ports
from journeyman.core.scheduling.problem import PartialSolution, PlannedNode, SchedulingProblem
from journeyman.core.scheduling.results import MinValuesPolicy
from journeyman.core.scheduling.sequential.candidate_nodes import CandidateNodes, NewNode, VolumeAttachments
from journeyman.core.scheduling.sequential.offering_masks import (
    NONE,
    OfferingMasks,
    RequirementsInterner,
    ResourceShares,
    lowest,
)
from journeyman.core.scheduling.sequential.pod_constraints import DeviceFit, LaunchOption, NodeDevices, PodConstraints
from journeyman.core.scheduling.sequential.topology_rules import DomainChoice, JoinRule, TopologyRuleSet

_BoundNode = tuple[int, int, "DeviceFit | None"]
"""What a node is once a pod is on it: its requirements (a number), its offerings, and the devices it gets for the pod."""


class TieBreakPolicy(Struct, frozen=True):
    """What is chosen where Karpenter leaves a choice to chance, or to the next pass.

    Attributes:
        bind_anti_affinity_domains: Pods that required anti-affinity concerns are bound to one domain each, else to none.
        prefer_largest_reservation: Of reserved capacity take the largest type, else the smallest that holds the pod.
        prefer_cheapest_domain: Of equally good domains take the one with the cheapest offering, else the one that is
            cheapest for most types.
        prefer_second_domain: Of equally good domains take the second best, and the best one last.
        ignore_type_variety: Where minValues are a best effort, a node keeps no more types than its pods leave it.
        prefer_last_pool_name: Of NodePools of equal weight the one with the last name launches nodes, at whatever price.
    """

    bind_anti_affinity_domains: bool = False
    prefer_largest_reservation: bool = False
    prefer_cheapest_domain: bool = False
    prefer_second_domain: bool = False
    ignore_type_variety: bool = False
    prefer_last_pool_name: bool = False


class SequentialScheduler:
    """All places as they stand, and who is on them."""

    def __init__(
        self, problem: SchedulingProblem, solution: PartialSolution, active: Sequence[int], policy: TieBreakPolicy
    ) -> None:
        """Begin with what a solution has decided already; it is not changed.

        Args:
            problem: What the pass is about.
            solution: The plan so far.
            active: The rows that pods may be placed by.
            policy: How to decide what Karpenter leaves to chance, or to the next pass.
        """
        self._problem = problem
        self._interner = RequirementsInterner()
        self._pool_masks = [OfferingMasks(index, pool, self._interner) for index, pool in enumerate(problem.pools)]
        self._tiers = [list(tier) for _, tier in groupby(self._pool_masks, key=lambda s: s.pool.template.order[0])]
        self._candidates = CandidateNodes(problem.existing, len(problem.axes))
        self._policy = policy
        self.reserved = 0  # nodes planned on reserved capacity
        self._rules = TopologyRuleSet(
            problem,
            self._pool_masks,
            self._interner,
            self._candidates,
            active,
            binding=policy.bind_anti_affinity_domains,
        )
        self._reservations = solution.reservations.copy()
        self._headroom = [headroom.copy() for headroom in solution.headroom]
        self._resource_shares = ResourceShares(
            self._headroom,
            ignore_type_variety=policy.ignore_type_variety,
        )
        self._constraints: dict[int, tuple[PodConstraints, ...]] = {}
        self._added: dict[int, dict[int, int]] = {}
        self._attachments = VolumeAttachments(problem.existing.volume_usages)
        self._node_devices: NodeDevices | None = None  # where no pod has ResourceClaims
        if problem.devices is not None and solution.devices is not None:
            self._node_devices = NodeDevices(problem.devices, solution.devices.copy(), self._interner)
        self._existing_ports = [
            tuple(port for pod in node.pods if pod.key not in problem.leaving for port in host_ports(pod))
            for node in problem.existing.nodes
        ]
        for candidate, pods in solution.on_existing.items():
            for row, count in pods:
                self._add_to_existing(candidate, row, count)
        for node in solution.new_nodes:
            self._resume(node)

    def _constraints_of(self, row: int) -> tuple[PodConstraints, ...]:
        """What pods of a row ask for, term by term."""
        found = self._constraints.get(row)
        if found is None:
            rules = self._rules.of(row)
            terms = self._problem.rows[row].terms
            found = self._constraints[row] = tuple(
                PodConstraints(self._problem, row, term, rules, self._interner) for term in terms
            )
        return found

    def _resume(self, node: PlannedNode) -> None:
        """Take over a node that was opened before."""
        masks = self._pool_masks[node.pool]
        wanted = self._interner.number(node.requirements)
        offerings = masks.suiting(wanted) & (-1 if reservation_of(node.requirements) else masks.ordinary)
        for axis, amount in enumerate(node.total.tolist()):
            offerings &= masks.holding(axis, amount)
        made = NewNode(masks=masks, wanted=wanted, offerings=offerings, total=node.total.tolist(), share=node.share)
        made.variety = self._resource_shares.variety(masks, made.offerings)
        candidate = self._candidates.open(made)
        for row, count in node.pods:
            ports = self._problem.rows[row].ports
            made.ports += ports
            made.offerings &= masks.free_of(ports)
            made.pods[row] = made.pods.get(row, 0) + count
            self._rules.topology.record_new(candidate, row, count)
        self._changed(candidate)

    # -- trying -------------------------------------------------------------------------------------------------------

    def schedule(self, row: int) -> bool:
        """Put one pod of a row on the first place that takes it."""
        choices: list[DomainChoice] = []
        for rules in self._rules.of(row).keys:
            choice = rules.now()
            if choice is None and (awaiting := rules.awaiting) is not None and self._bind(awaiting):
                choice = rules.now()
            if choice is None:
                return False
            choices.append(choice)
        return any(self._schedule_by(constraints, choices) for constraints in self._constraints_of(row))

    def _bind(self, rule: JoinRule) -> bool:
        """Bind a node that has pods to join, but may yet be in several domains, to one that the joiner can be in."""
        key, within = rule.counter.key, rule.within()
        for candidate in sorted(rule.counter.undecided):
            node = self._candidates.node(candidate)
            domains = node.masks.domains(key, node.offerings, node.wanted)
            for domain in sorted(within & domains.keys(), key=lambda d: (lowest(domains[d]), d)):
                wanted = self._interner.narrowed(node.wanted, self._interner.pin(key, (domain,)))
                left = node.offerings & node.masks.suiting(wanted) if wanted != NONE else 0
                if left and self._resource_shares.usable(node.masks, left, node.share, node.variety):
                    self._narrow(candidate, node, wanted, left)
                    return True
        return False

    def _narrow(self, candidate: int, node: NewNode, wanted: int, offerings: int) -> None:
        node.wanted, node.offerings = wanted, offerings
        if self._node_devices is not None:
            self._node_devices.commit_offerings(candidate, node.masks, offerings, None)
        node.share = self._resource_shares.take(node.masks, offerings, node.share)
        self._measure(candidate)

    def _schedule_by(self, constraints: PodConstraints, choices: Sequence[DomainChoice]) -> bool:
        candidates = self._candidates
        fitting = (
            constraints.may_go(candidates.size)
            & candidates.with_room(constraints.amounts)
            & constraints.rules.hosts.admit(candidates.size)
        )
        for choice in choices:
            key = choice.rules.key
            admitted = [choice.admits(domain) for domain in candidates.known_domains(key)]
            fitting &= candidates.in_domains(key, admitted, lacking=not choice.rules.needs_label)
        for candidate in candidates.in_order(fitting):
            if self._take(candidate, constraints, choices):
                return True
        return constraints.rules.hosts.admit_new and self._open(constraints, choices)

    def _take(self, candidate: int, constraints: PodConstraints, choices: Sequence[DomainChoice]) -> bool:
        if candidate >= self._candidates.first_new:
            return self._add_to_new(candidate, constraints, choices)
        if _conflict(constraints.ports, self._existing_ports[candidate]) or not self._attachments.admit(
            candidate, constraints.cls
        ):
            constraints.rule_out(candidate)
            return False
        if constraints.cls.claims and self._node_devices is not None:
            there = self._added.get(candidate, {}).get(constraints.row, 0)
            if not self._node_devices.fit_existing(candidate, constraints, there):
                return False
        self._add_to_existing(candidate, constraints.row, 1)
        return True

    def _add_to_existing(self, candidate: int, row: int, count: int) -> None:
        cls = self._problem.rows[row]
        self._candidates.take(candidate, self._problem.requests[row] * count)
        self._existing_ports[candidate] += cls.ports
        self._attachments.attach(candidate, cls, count)
        self._rules.topology.record_existing(candidate, row, count)
        added = self._added.setdefault(candidate, {})
        added[row] = added.get(row, 0) + count

    def _add_to_new(self, candidate: int, constraints: PodConstraints, choices: Sequence[DomainChoice]) -> bool:
        """Put a pod on a new node, if some offering then still does; rule the place out if it never will."""
        node = self._candidates.node(candidate)
        masks = node.masks
        offerings = (
            0 if not constraints.tolerates(masks) or _conflict(constraints.ports, node.ports) else node.offerings
        )
        offerings &= masks.free_of(constraints.ports)
        for axis, amount in constraints.amounts:
            offerings &= masks.holding(axis, node.total[axis] + amount)
        hopeless = True
        for alternative in constraints.alternatives if offerings else ():
            if self._interner.narrowed(masks.offer, alternative) == NONE:
                continue  # it asks for a label that only another pod's requirement brought up
            wanted = self._interner.narrowed(node.wanted, alternative)
            if wanted == NONE or not (left := offerings & masks.suiting(wanted)):
                continue
            hopeless = False
            node_requirements_of = self._with_devices(
                candidate, masks, LaunchOption(wanted, left), constraints, choices
            )
            if node_requirements_of is not None and self._resource_shares.usable(
                masks, node_requirements_of[1], node.share, node.variety
            ):
                self._put(candidate, node, constraints, node_requirements_of)
                return True
        if hopeless:
            constraints.rule_out(candidate)
        return False

    def _open(self, constraints: PodConstraints, choices: Sequence[DomainChoice]) -> bool:
        """Plan a node for a pod: of the first pools by weight that can, the cheapest."""
        for tier in self._tiers:
            ways = [
                (
                    self._rate(masks, node_requirements_of[1], opening),
                    masks.index,
                    node_requirements_of,
                    opening.reservation,
                )
                for masks in tier
                for opening in constraints.on_new(masks)
                if (not opening.reservation or self._reservations.left.get(opening.reservation, 0) > 0)
                and (
                    node_requirements_of := self._with_devices(
                        self._candidates.size, masks, opening, constraints, choices
                    )
                )
                is not None
                and self._resource_shares.usable(masks, node_requirements_of[1], None, self._least_variety(masks))
            ]
            if ways:
                _, index, node_requirements_of, reservation = min(
                    ways, key=lambda policy: (*policy[:2], policy[2][:2], policy[3])
                )
                if reservation:
                    self._reservations.take(reservation, 1)
                    self.reserved += 1
                masks = self._pool_masks[index]
                node = NewNode(masks=masks, wanted=masks.offer, offerings=0, total=[0] * len(self._problem.axes))
                node.variety = self._resource_shares.variety(masks, node_requirements_of[1])
                self._put(self._candidates.open(node), node, constraints, node_requirements_of)
                return True
        return False

    def _rate(self, masks: OfferingMasks, offerings: int, opening: LaunchOption) -> float:
        """The less the better; a reservation is already paid for, and its price only ranks its size."""
        if self._policy.prefer_last_pool_name:
            return 0.0  # they are in that order
        price = masks.price(offerings)
        return -price if opening.reservation and self._policy.prefer_largest_reservation else price

    def _least_variety(self, masks: OfferingMasks) -> tuple[int, ...]:
        """What a new node must offer for minValues: all of it, or with BestEffort whatever there is."""
        asked = tuple(masks.pool.template.min_values.values())
        return asked if self._problem.options.min_values is MinValuesPolicy.STRICT else (0,) * len(asked)

    def _with_devices(
        self,
        candidate: int,
        masks: OfferingMasks,
        opening: LaunchOption,
        constraints: PodConstraints,
        choices: Sequence[DomainChoice],
    ) -> _BoundNode | None:
        """The same as `_bind_domains`, once the devices are found that the pod's claims ask for."""
        wanted, offerings, device_fit = opening.wanted, opening.offerings, None
        if constraints.cls.claims and self._node_devices is not None:
            there = (
                self._candidates.node(candidate).pods.get(constraints.row, 0)
                if candidate < self._candidates.size
                else 0
            )
            device_fit = self._node_devices.fit_new(candidate, masks, opening, constraints, there)
            if device_fit is None:
                return None
            wanted, offerings = device_fit.wanted, device_fit.offerings
        node_requirements_of = self._bind_domains(masks, wanted, offerings, choices)
        return None if node_requirements_of is None else (*node_requirements_of, device_fit)

    def _bind_domains(
        self, masks: OfferingMasks, wanted: int, offerings: int, choices: Sequence[DomainChoice]
    ) -> tuple[int, int] | None:
        """Requirements and offerings once a domain is settled for every rule; None if that cannot be."""
        if not choices:
            return wanted, offerings
        choice, key = choices[0], choices[0].rules.key
        domains = masks.domains(key, offerings, wanted)
        if not domains:
            return None if choice.rules.needs_label else self._bind_domains(masks, wanted, offerings, choices[1:])
        admitted = [domain for domain in domains if choice.admits(domain)]
        if choice.rules.merely_wishes and len(admitted) == len(domains):
            return self._bind_domains(masks, wanted, offerings, choices[1:])
        if choice.binding:
            admitted = self._by_preference(masks, choice, {domain: domains[domain] for domain in admitted})
        for pinned in [(domain,) for domain in admitted] if choice.binding else [admitted] if admitted else []:
            narrowed = self._interner.narrowed(wanted, self._interner.pin(key, pinned))
            left = offerings & masks.suiting(narrowed) if narrowed != NONE else 0
            node_requirements_of = self._bind_domains(masks, narrowed, left, choices[1:]) if left else None
            if node_requirements_of is not None:
                return node_requirements_of
        return None

    def _by_preference(self, masks: OfferingMasks, choice: DomainChoice, domains: Mapping[str, int]) -> list[str]:
        """Return the domains, given with their offerings, best first."""
        cheap = masks.cheapest_for(domains)
        breadth = {domain: 0 if self._policy.prefer_cheapest_domain else -types for domain, types in cheap.items()}
        found = sorted(domains, key=lambda d: (choice.rank(d), breadth[d], lowest(domains[d]), d))
        if not self._policy.prefer_second_domain or not found:
            return found
        equal = sum(choice.rank(domain) == choice.rank(found[0]) for domain in found)
        first = 1 % equal
        return [*found[first:equal], *found[:first], *found[equal:]]

    def _put(
        self, candidate: int, node: NewNode, constraints: PodConstraints, node_requirements_of: _BoundNode
    ) -> None:
        node.wanted, node.offerings, device_fit = node_requirements_of
        if self._node_devices is not None:
            self._node_devices.commit_offerings(candidate, node.masks, node.offerings, device_fit)
        for axis, amount in constraints.amounts:
            node.total[axis] += amount
        node.ports += constraints.ports
        node.pods[constraints.row] = node.pods.get(constraints.row, 0) + 1
        node.share = self._resource_shares.take(node.masks, node.offerings, node.share)
        self._rules.topology.record_new(candidate, constraints.row)
        self._changed(candidate)

    def _changed(self, candidate: int) -> None:
        """An open node has one pod more: sort it in again, and bring the columns up to date."""
        self._candidates.moved(candidate, sum(self._candidates.node(candidate).pods.values()))
        self._measure(candidate)

    def _measure(self, candidate: int) -> None:
        """Bring the columns up to date with an open node."""
        node, candidates = self._candidates.node(candidate), self._candidates
        if node.offerings:
            candidates.resize(
                candidate, [node.masks.largest(axis, node.offerings) - used for axis, used in enumerate(node.total)]
            )
        else:
            candidates.resize(candidate, [-1] * len(node.total))
        wanted = self._interner[node.wanted]
        for key in candidates.watched:
            rule = wanted.get(key)
            if rule is not None and rule.single is not None:
                candidates.bind_domain(candidate, key, rule.single)
                self._rules.topology.domain_decided(candidate, key, rule.single)

    def involves_keeping_apart(self, row: int) -> bool:
        """Whether required anti-affinity over a label other than the host name has a say about the row."""
        rules = self._rules.of(row)
        return any(key.apart for key in rules.keys)

    # -- the result ---------------------------------------------------------------------------------------------------

    def added_to(self, solution: PartialSolution) -> PartialSolution:
        """Return the solution with everything decided; new nodes are in the order in which they were planned."""
        return replace(
            solution,
            reservations=self._reservations,
            headroom=self._headroom,
            devices=self._node_devices.allocations if self._node_devices is not None else solution.devices,
            on_existing={candidate: list(pods.items()) for candidate, pods in sorted(self._added.items())},
            new_nodes=[
                PlannedNode(
                    pool=node.masks.index,
                    requirements=self._interner[node.wanted],
                    pods=tuple(node.pods.items()),
                    total=np.array(node.total, dtype=np.int64),
                    share=node.share,
                )
                for node in self._candidates.nodes
            ],
        )


def _conflict(ports: Sequence[HostPort], others: Sequence[HostPort]) -> bool:
    return any(port.conflicts(other) for port in ports for other in others)
