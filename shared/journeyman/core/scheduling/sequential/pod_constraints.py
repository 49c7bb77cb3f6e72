"""Prepares what the pods of one row require of a node.

Restates: karpenter pkg/controllers/provisioning/scheduling/scheduler.go `PodData`; preferences.go
`removeRequiredNodeAffinityTerm` (the terms of a required node affinity are tried one after the other).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from journeyman.core.scheduling.arrays import Bools
from journeyman.core.scheduling.nodepool_options import NodeConstraints
from journeyman.core.scheduling.offering_masks import CONFLICT, OfferingMasks
from journeyman.core.scheduling.offerings import on_reservation
from journeyman.core.scheduling.placement.topology_rules import TopologyRules
from journeyman.core.scheduling.pod_classes import combined_terms
from journeyman.core.scheduling.problem import SchedulingProblem, amounts_of
from journeyman.core.scheduling.requirements import Requirements


class LaunchOption(Struct, frozen=True):
    """An option for a new node: the ID of its requirements, its offerings, and its reservation."""

    requirements_id: int
    offerings: int
    reservation: str = ""


class PodTerm:
    """What the pods of one row require of a node by one of their terms, whatever else is on it.

    `amounts` are a pod's requests, `alternatives` the IDs of the term combined with each alternative of the volumes and
    of the DaemonSets' pods that a new node will run, `admitted` says by existing node whether it meets the term.
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
