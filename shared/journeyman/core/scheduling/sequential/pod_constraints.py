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
from journeyman.core.scheduling.problem import SchedulingProblem, amounts_of
from journeyman.core.scheduling.requirements import Requirements
from journeyman.core.scheduling.sequential.offering_masks import NONE, OfferingMasks, RequirementsInterner
from journeyman.core.scheduling.sequential.topology_rules import TopologyRules

if TYPE_CHECKING:  # imported at run time only where pods have ResourceClaims
    from journeyman.core.scheduling.dra import AllocationProposal, AllocationTracker, DeviceInventory


class LaunchOption(Struct, frozen=True):
    """An option for a new node: the number of its requirements, its offerings, and its reservation."""

    wanted: int
    offerings: int
    reservation: str = ""


class PodConstraints:
    """One row with one of its terms: the requests of a pod (`amounts`), and the topology `rules`.

    `alternatives` are the numbers of the term combined with each alternative of the volumes.
    """

    def __init__(
        self,
        problem: SchedulingProblem,
        row: int,
        term: Requirements,
        rules: TopologyRules,
        interner: RequirementsInterner,
    ) -> None:
        """Prepare a row."""
        cls = problem.rows[row]
        self.row = row
        self.rules = rules
        self.ports = cls.ports
        self.cls = cls
        self.amounts = amounts_of(problem.requests[row].tolist())
        both = [term & volumes for volumes in cls.volume_terms]
        alternatives = [wanted for wanted in both if not any(r.impossible for r in wanted.values())]
        self.alternatives = tuple(interner.number(wanted) for wanted in alternatives)
        self._interner = interner
        self._shape = NodeConstraints.of(cls)
        columns = problem.existing.columns
        self._open: Bools = columns.meeting(alternatives) & columns.accepted(
            cls.tolerations, avoids_prefer_no_schedule=cls.avoids_prefer_no_schedule
        )  # by place; grows with the places
        self._openings: dict[int, tuple[LaunchOption, ...]] = {}

    def not_ruled_out(self, candidates: int) -> Bools:
        """Return by candidate whether it may take one of these pods; candidates ruled out before are False."""
        if candidates > len(self._open):
            more = np.ones(max(2 * candidates, 64), dtype=bool)
            more[: len(self._open)] = self._open
            self._open = more
        return self._open[:candidates]

    def rule_out(self, candidate: int) -> None:
        """Record that the candidate can never take one of these pods."""
        self._open[candidate] = False

    def on_new(self, masks: OfferingMasks) -> Sequence[LaunchOption]:
        """Return the options for a new node for one of these pods."""
        found = self._openings.get(masks.index)
        if found is None:
            found = self._openings[masks.index] = tuple(self._found(masks)) if self.tolerates(masks) else ()
        return found

    def _found(self, masks: OfferingMasks) -> Iterator[LaunchOption]:
        holding = masks.free_of(self.ports)
        for axis, amount in self.amounts:
            holding &= masks.holding(axis, amount)
        for alternative in self.alternatives:
            wanted = self._interner.narrowed(masks.offer, alternative)
            if wanted == NONE:
                continue
            if left := masks.suiting(wanted) & masks.ordinary & holding:
                yield LaunchOption(wanted, left)
            for name, offerings in masks.reserved:
                reserved = self._interner.number(on_reservation(self._interner[wanted], name))
                if left := masks.suiting(reserved) & offerings & holding:
                    yield LaunchOption(reserved, left, name)

    def tolerates(self, masks: OfferingMasks) -> bool:
        """Whether these pods tolerate the NodePool's taints."""
        return self._shape.accepts(masks.pool.template.node_pool.spec.template.spec.taints)


class DeviceFit(Struct, frozen=True):
    """A new node with the devices that a pod needs: its requirements (a number) and offerings once it has them."""

    wanted: int
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
        case, now = (candidate, constraints.row), self._now(constraints)
        if self._failed.get(case) == now:
            return False
        proposal = self.allocations.propose(
            candidate, self._devices.target(candidate), constraints.cls.claims, constraints.row, pods
        )
        if proposal is None:
            self._failed[case] = now
            return False
        self.allocations.commit(candidate, proposal)
        self._changes += 1
        return True

    def fit_new(
        self, candidate: int, masks: OfferingMasks, opening: LaunchOption, constraints: PodConstraints, pods: int
    ) -> DeviceFit | None:
        """Return how a new node can provide the devices for the next pod of a row; None if it cannot."""
        wanted, offerings = opening.wanted, opening.offerings
        case = (candidate, constraints.row, masks.index, wanted, offerings)
        now = self._now(constraints)
        if self._failed.get(case) == now:
            return None
        names = masks.type_names(offerings)
        target = self._devices.new_target(masks.instance_types(offerings), self._interner[wanted])
        proposal = self.allocations.propose(candidate, target, constraints.cls.claims, constraints.row, pods)
        left = 0
        if proposal is not None:
            number = self._interner.number(proposal.offer)
            if len(proposal.types) < len(names):
                kept = [name for name in names if name in proposal.types]
                number = self._interner.narrowed(number, self._interner.pin(labels.INSTANCE_TYPE, kept))
            left = offerings & masks.suiting(number)
            if left and proposal.types.issuperset(masks.type_names(left)):  # types that do not name themselves do not
                return DeviceFit(number, left, proposal)
        self._failed[case] = now
        return None

    def _now(self, constraints: PodConstraints) -> int:
        """Return a version that changes when a failed search for such pods may succeed."""
        alone = all(not claim.key for claim in constraints.cls.claims)
        return self.allocations.releases if alone else self.allocations.releases + self._changes

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
