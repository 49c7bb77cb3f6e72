"""Verifies the scheduler's results; rejected placements are left out, all others are executed.

First the nodes that the defects name are left out. Other placements may depend on these nodes, so the rest is verified
again, up to `_ROUNDS` times. If the defects name no node (a NodePool's limits are exceeded, say), or after the last round,
only new NodeClaims that pass verification together are kept. They are found by bisecting up to `_BISECTIONS` times, which
bounds the time that verification takes.

The pods of rejected placements get an error like unschedulable pods, and are scheduled again after `RETRY_REJECTED_AFTER`.
A rejection is reported as a defect, but does not fail the run: that would block the step's queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api.objects import Pod
from journeyman.core.catalogue import Catalogue
from journeyman.core.plan import Failure, Observation, Plan
from journeyman.core.scheduling.results import (
    Defect,
    Options,
    PlannedClaim,
    PodError,
    Results,
    Verifier,
    name_of_claim,
    name_of_node,
    placements,
)
from journeyman.core.scheduling.verify import verify
from journeyman.core.state import Snapshot
from journeyman.errors import InvariantError

RETRY_REJECTED_AFTER: Final = timedelta(minutes=1)
_SHOWN: Final = 5
_ROUNDS: Final = 12
_BISECTIONS: Final = 6


class VerifiedResults(Struct, frozen=True, kw_only=True):
    """The scheduler's results without rejected placements, and the defects for which they were rejected."""

    results: Results
    defects: tuple[Defect, ...]


class PlanVerifier(Struct, frozen=True, kw_only=True):
    """Verifies results for these pods on this snapshot, without the nodes in `removed_nodes`; `options` are the solver's."""

    snapshot: Snapshot
    catalogue: Catalogue
    pods: tuple[Pod, ...]
    removed_nodes: frozenset[str]
    options: Options
    verify: Verifier = verify

    def verify_results(self, results: Results) -> VerifiedResults:
        """Return the results if they pass verification, or else the placements that pass without the others."""
        defects = self._defects_of(results, self.pods)
        return VerifiedResults(
            results=self._without_rejected(results, defects) if defects else results, defects=defects
        )

    def _without_rejected(self, results: Results, defects: Sequence[Defect]) -> Results:
        passing = self._passing(results)
        placed = frozenset(key for _, keys in placements(passing) for key in keys)
        rejected = dict(sorted(_rejection_errors(results, defects)))
        errors = {key: error for key, error in {**rejected, **results.pod_errors}.items() if key not in placed}
        return replace(passing, pod_errors=errors, price=sum(claim.price for claim in passing.new_claims))

    def _passing(self, results: Results) -> Results:
        """Return the placements that pass verification together."""
        remaining = results
        for _ in range(_ROUNDS):
            defects = self._defects_of_part(remaining)
            if not defects:
                return remaining
            reduced = _without_defective_nodes(remaining, defects)
            if reduced == remaining:
                break
            remaining = reduced
        claims = self._bisect(remaining.new_claims, _BISECTIONS)
        return replace(remaining, new_claims=claims, existing={}, devices={})

    def _bisect(self, claims: tuple[PlannedClaim, ...], times: int) -> tuple[PlannedClaim, ...]:
        """Return NodeClaims that pass verification together, found by bisecting at most `times` times."""
        if not claims or not self._defects_of_part(Results(new_claims=claims)):
            return claims
        if len(claims) == 1 or not times:
            return ()
        middle = len(claims) // 2
        first, second = self._bisect(claims[:middle], times - 1), self._bisect(claims[middle:], times - 1)
        return first if self._defects_of_part(Results(new_claims=first + second)) else first + second

    def _defects_of_part(self, results: Results) -> tuple[Defect, ...]:
        """Return the defects of a part of the results; pods that are not in it stay where they are."""
        return self._defects_of(replace(results, pod_errors={}), None)

    def _defects_of(self, results: Results, pods: tuple[Pod, ...] | None) -> tuple[Defect, ...]:
        return self.verify(
            self.snapshot,
            self.catalogue,
            results,
            pods=pods,
            without_nodes=self.removed_nodes,
            ignore_dra_requests=self.options.ignore_dra_requests,
        )


def _without_defective_nodes(results: Results, defects: Sequence[Defect]) -> Results:
    """Return the plan without the nodes that have defects, and without their pods."""
    defective = {node for defect in defects for node in defect.nodes}
    return replace(
        results,
        new_claims=tuple(claim for claim in results.new_claims if name_of_claim(claim) not in defective),
        existing={name: keys for name, keys in results.existing.items() if name_of_node(name) not in defective},
        devices={name: found for name, found in results.devices.items() if name_of_node(name) not in defective},
    )


def defects_plan(subject: str, message: str, defects: Sequence[Defect]) -> Plan:
    """Return a plan that reports defects in the log, a metric and the outcome; the run continues.

    Args:
        subject: The objects concerned.
        message: What verification rejected, and what happens to it.
        defects: The defects; the log shows the first ones.
    """
    more = (f"and {len(defects) - _SHOWN} more",) if len(defects) > _SHOWN else ()
    error = InvariantError(message, defects="; ".join((*map(str, defects[:_SHOWN]), *more)))
    return Plan(
        observations=(Observation(name="journeyman_plan_defects_total"),),
        failures=(Failure(subject=subject, error=error),),
    )


def _rejection_errors(results: Results, defects: Sequence[Defect]) -> Iterator[tuple[str, PodError]]:
    """Yield for each placed pod the error that it gets if its placement is rejected."""
    defect_by_node = {node: defect for defect in reversed(defects) for node in defect.nodes}
    for node, keys in placements(results):
        defect = defect_by_node.get(node)
        if defect is None:
            message = f"verification rejected the placement, or one that it depends on: {defects[0]}"
        else:
            message = f"verification rejected the placement: {defect}"
        yield from ((key, PodError(kind="refused", message=message)) for key in keys)
