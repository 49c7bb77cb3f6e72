"""Prepares what the pods of one row require of a node, and allocates their devices.

Restates: karpenter pkg/controllers/provisioning/scheduling/scheduler.go `PodData`; preferences.go
`removeRequiredNodeAffinityTerm` (the terms of a required node affinity are tried one after the other); nodeclaim.go
`tryVolumeAlternative`, existingnode.go `CanAdd`, as far as they allocate dynamic resources.
Differs: the device search considers the pod's own node requirements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.scheduling.arrays import Bools
from journeyman.core.scheduling.instance_type_choice import on_reservation
from journeyman.core.scheduling.nodepool_options import NodeConstraints
from journeyman.core.scheduling.offering_masks import CONFLICT, OfferingMasks, RequirementsInterner
from journeyman.core.scheduling.placement.topology_rules import TopologyRules
from journeyman.core.scheduling.pod_classes import combined_terms
from journeyman.core.scheduling.problem import SchedulingProblem, amounts_of
from journeyman.core.scheduling.requirements import Requirements

if TYPE_CHECKING:  # imported at run time only where pods have ResourceClaims
    from journeyman.core.scheduling.dra import AllocationProposal, AllocationTracker, DeviceInventory


class LaunchOption(Struct, frozen=True):
    """An option for a new node: the ID of its requirements, its offerings, and its reservation."""

    requirements_id: int
    offerings: int
    reservation: str = ""


class PodTerm:
    """What the pods of one row require of a node by one of their terms, whatever else is on it.

    `amounts` are a pod's requests, `alternatives` the IDs of the term combined with each alternative of the volumes and of
    the DaemonSets' pods that a new node will run, `admitted` says by existing node whether it meets the term.
    """

    def __init__(self, problem: SchedulingProblem, row: int, term: Requirements) -> None:
        """Prepare a term of a row."""
        cls = problem.rows[row]
        self.row = row
        self.cls = cls
        self.amounts = amounts_of(problem.requests[row].tolist())
        existing = () if cls.launch_only else combined_terms((term,), cls.volume_terms)
        alternatives = combined_terms(combined_terms((term,), cls.volume_terms), cls.launch_terms)
        self.alternatives = tuple(problem.interner.id_of(requirements) for requirements in alternatives)
        self._interner = problem.interner
        self._node_constraints = NodeConstraints.of(cls)
        columns = problem.existing.columns
        self.admitted: Bools = columns.meeting(existing) & columns.accepted(
            cls.tolerations, avoids_prefer_no_schedule=cls.avoids_prefer_no_schedule
        )
        self._options: dict[int, tuple[LaunchOption, ...]] = {}

    def launch_options(self, masks: OfferingMasks) -> Sequence[LaunchOption]:
        """Return the options for a new node for one of these pods."""
        found = self._options.get(masks.index)
        if found is None:
            found = self._options[masks.index] = tuple(self._launch_options(masks)) if self.tolerates(masks) else ()
        return found

    def _launch_options(self, masks: OfferingMasks) -> Iterator[LaunchOption]:
        holding = masks.with_free_ports(self.cls.ports)
        for axis, amount in self.amounts:
            holding &= masks.holding(axis, amount)
        for alternative in self.alternatives:
            requirements_id = self._interner.narrowed(masks.offer, alternative)
            if requirements_id == CONFLICT:
                continue
            if left := masks.meeting(requirements_id) & masks.ordinary & holding:
                yield LaunchOption(requirements_id, left)
            for name, offerings in masks.reserved:
                reserved = self._interner.id_of(on_reservation(self._interner[requirements_id], name))
                if left := masks.meeting(reserved) & offerings & holding:
                    yield LaunchOption(reserved, left, name)

    def tolerates(self, masks: OfferingMasks) -> bool:
        """Whether these pods tolerate the NodePool's taints."""
        return self._node_constraints.accepts(masks.pool.template.node_pool.spec.template.spec.taints)


class PodTerms:
    """The terms of each row of a problem, computed once; all attempts to schedule the pods of a problem share them."""

    def __init__(self, problem: SchedulingProblem) -> None:
        self.problem = problem
        self._terms: dict[int, tuple[PodTerm, ...]] = {}

    def of(self, row: int) -> tuple[PodTerm, ...]:
        """Return the terms of a row in the order of its pods' node affinity."""
        if row not in self._terms:
            self._terms[row] = tuple(PodTerm(self.problem, row, term) for term in self.problem.rows[row].terms)
        return self._terms[row]


class PodConstraints:
    """One row by one of its terms, with the topology `rules` and the candidates that this attempt ruled out."""

    def __init__(self, term: PodTerm, rules: TopologyRules) -> None:
        self.term = term
        self.row = term.row
        self.cls = term.cls
        self.rules = rules
        self._not_ruled_out: Bools = term.admitted.copy()  # by candidate; grows with the candidates

    def not_ruled_out(self, candidates: int) -> Bools:
        """Return by candidate whether it may take one of these pods; candidates ruled out before are False."""
        if candidates > len(self._not_ruled_out):
            more = np.ones(max(2 * candidates, 64), dtype=bool)
            more[: len(self._not_ruled_out)] = self._not_ruled_out
            self._not_ruled_out = more
        return self._not_ruled_out[:candidates]

    def rule_out(self, candidate: int) -> None:
        """Record that the candidate can never take one of these pods."""
        self._not_ruled_out[candidate] = False


class DeviceFit(Struct, frozen=True):
    """A new node with the devices that a pod needs: the ID of its requirements and its offerings once it has them."""

    requirements_id: int
    offerings: int
    proposal: AllocationProposal


class NodeDevices:
    """Allocates devices on candidates.

    After a search fails for a row on a candidate, it is repeated only after something relevant has changed: a device
    became free or, for shared claims, any allocation was made.
    """

    def __init__(
        self, devices: DeviceInventory, allocations: AllocationTracker, interner: RequirementsInterner
    ) -> None:
        """Continue with `allocations`, which is modified."""
        self._devices = devices
        self.allocations = allocations
        self._interner = interner
        self._changes = 0
        self._failed: dict[tuple[int, ...], int] = {}

    def fit_existing(self, candidate: int, constraints: PodConstraints, pods: int) -> bool:
        """Allocate devices on an existing node for a row's next pod, after `pods` others; return whether that succeeded."""
        case, version = (candidate, constraints.row), self._version(constraints)
        if self._failed.get(case) == version:
            return False
        proposal = self.allocations.propose(
            candidate, self._devices.target(candidate), constraints.cls.claims, constraints.row, pods
        )
        if proposal is None:
            self._failed[case] = version
            return False
        self.allocations.commit(candidate, proposal)
        self._changes += 1
        return True

    def fit_new(
        self, candidate: int, masks: OfferingMasks, option: LaunchOption, constraints: PodConstraints, pods: int
    ) -> DeviceFit | None:
        """Return how a new node can provide the devices for the next pod of a row; None if it cannot."""
        requirements_id, offerings = option.requirements_id, option.offerings
        case = (candidate, constraints.row, masks.index, requirements_id, offerings)
        version = self._version(constraints)
        if self._failed.get(case) == version:
            return None
        names = masks.type_names(offerings)
        target = self._devices.new_target(masks.instance_types(offerings), self._interner[requirements_id])
        proposal = self.allocations.propose(candidate, target, constraints.cls.claims, constraints.row, pods)
        left = 0
        if proposal is not None:
            narrowed = self._interner.id_of(proposal.offer)
            if len(proposal.types) < len(names):
                kept = [name for name in names if name in proposal.types]
                narrowed = self._interner.narrowed(narrowed, self._interner.pin(labels.INSTANCE_TYPE, kept))
            left = offerings & masks.meeting(narrowed)
            if left and proposal.types.issuperset(masks.type_names(left)):  # a type may lack the instance type label
                return DeviceFit(narrowed, left, proposal)
        self._failed[case] = version
        return None

    def _version(self, constraints: PodConstraints) -> int:
        """Return a version that changes when a failed search for such pods may succeed."""
        unshared = all(not claim.key for claim in constraints.cls.claims)
        return self.allocations.releases if unshared else self.allocations.releases + self._changes

    def commit_offerings(
        self, candidate: int, masks: OfferingMasks, offerings: int, device_fit: DeviceFit | None
    ) -> None:
        """Set the remaining offerings of a new node, and commit the devices of its new pod if it needs any."""
        if device_fit is not None:
            self.allocations.commit(candidate, device_fit.proposal, masks.type_names(offerings))
        elif self.allocations.options_of(candidate):
            self.allocations.keep(candidate, masks.type_names(offerings))
        else:
            return
        self._changes += 1
