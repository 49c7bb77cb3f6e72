"""Verifies what the scheduler returns; what is wrong is left out, everything else is carried out.

First the nodes go that verification names; others may have relied on them, so it verifies again, `_ROUNDS` times at most.
Where it names none (limits of a NodePool, say), or does not come to an end, as many of the new NodeClaims are kept as pass
together, in `2 ** _HALVINGS` groups at most, and nothing else: each verification takes time that the run needs.

The pods concerned get an error like unschedulable ones, and are scheduled again `RETRY_REFUSED_AFTER` later: what made the
scheduler err may be over by then. It is reported as a defect of ours, and does not fail the run: that would block its queue.
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
from journeyman.core.scheduling.results import PlannedClaim, PodError, Results
from journeyman.core.scheduling.verify import Defect, placements, verify, without_defective_nodes
from journeyman.core.state import Snapshot
from journeyman.errors import InvariantError

RETRY_REFUSED_AFTER: Final = timedelta(minutes=1)
_SHOWN: Final = 5
_ROUNDS: Final = 12
_HALVINGS: Final = 6


class VerifiedResults(Struct, frozen=True, kw_only=True):
    """What of the scheduler's results may be carried out, and what was wrong with the rest."""

    results: Results
    defects: tuple[Defect, ...]


class PlanVerifier(Struct, frozen=True, kw_only=True):
    """Verifies results for these pods on this snapshot, without the nodes in `gone`."""

    snapshot: Snapshot
    catalogue: Catalogue
    pods: tuple[Pod, ...]
    gone: frozenset[str]

    def of(self, results: Results) -> VerifiedResults:
        """Return everything, if it passes as a whole; otherwise what passes without the rest."""
        defects = verify(self.snapshot, self.catalogue, results, pods=self.pods, without_nodes=self.gone)
        return VerifiedResults(results=self._sound(results, defects) if defects else results, defects=defects)

    def _sound(self, results: Results, defects: Sequence[Defect]) -> Results:
        left = self._without_defective(results)
        kept = frozenset(key for _, keys in placements(left) for key in keys)
        refused = dict(sorted(_refused(results, defects)))
        errors = {key: error for key, error in {**refused, **results.pod_errors}.items() if key not in kept}
        return replace(left, pod_errors=errors, price=sum(claim.price for claim in left.new_claims))

    def _without_defective(self, results: Results) -> Results:
        """Return what passes; unschedulable pods are no reason to refuse the nodes of others."""
        left = results
        for _ in range(_ROUNDS):
            wrong = self._wrong_with(left)
            if not wrong:
                return left
            fewer = without_defective_nodes(left, wrong)
            if fewer == left:
                break
            left = fewer
        return replace(left, new_claims=self._halved(left.new_claims, _HALVINGS), existing={}, devices={})

    def _halved(self, claims: tuple[PlannedClaim, ...], times: int) -> tuple[PlannedClaim, ...]:
        """Return NodeClaims that pass together, found by halving so many times: few are wrong among many."""
        if not claims or not self._wrong_with(Results(new_claims=claims)):
            return claims
        if len(claims) == 1 or not times:
            return ()
        middle = len(claims) // 2
        first, second = self._halved(claims[:middle], times - 1), self._halved(claims[middle:], times - 1)
        return first if self._wrong_with(Results(new_claims=first + second)) else first + second

    def _wrong_with(self, results: Results) -> tuple[Defect, ...]:
        """Return the defects of a part; pods that it leaves out stay where they are."""
        part = replace(results, pod_errors={})
        return verify(self.snapshot, self.catalogue, part, without_nodes=self.gone)


def defects_plan(subject: str, message: str, defects: Sequence[Defect]) -> Plan:
    """Return the report that verification refuses a plan or a part of it: log, metric, outcome; the run goes on.

    Args:
        subject: What the plan concerns.
        message: What was refused, and what happens to it.
        defects: Why.
    """
    more = (f"and {len(defects) - _SHOWN} more",) if len(defects) > _SHOWN else ()
    error = InvariantError(message, defects="; ".join((*map(str, defects[:_SHOWN]), *more)))
    return Plan(
        observations=(Observation(name="journeyman_plan_defects_total"),),
        failures=(Failure(subject=subject, error=error),),
    )


def _refused(results: Results, defects: Sequence[Defect]) -> Iterator[tuple[str, PodError]]:
    """Yield the error of each scheduled pod, should its node be refused."""
    accused = {place: defect for defect in reversed(defects) for place in defect.nodes}
    rests = f"its place, or one that it rests on, did not pass the independent check: {defects[0]}"
    for place, keys in placements(results):
        own = accused.get(place)
        message = rests if own is None else f"its place did not pass the independent check: {own}"
        yield from ((key, PodError(kind="refused", message=message)) for key in keys)
