"""What becomes of an answer that its own check refuses: what is wrong is left out, everything else is carried out.

First the nodes go that the check names; with them others may lose what they counted on, so it is asked again, `_ROUNDS`
times at most. Where it names none (limits of a NodePool, say), or never comes to an end, as many of the new claims are
kept as verify together, in `2 ** _HALVINGS` groups at most, and nothing else: each look costs, and the run has other work.

The pods concerned have an error like any that found no place, and are looked at again `AGAIN` later: whatever made the
scheduler err may be over by then. It is told as a defect of ours, and no failure of the run: that would hold up its queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api.objects import Pod
from journeyman.core.catalogue import Catalogue
from journeyman.core.plan import Observation
from journeyman.core.scheduling.results import PlannedClaim, PodError, Results
from journeyman.core.scheduling.verify import Defect, placements, verify, without_defective_nodes
from journeyman.core.state import Snapshot
from journeyman.errors import InvariantError
from journeyman.steps.recorder import Report

AGAIN: Final = timedelta(minutes=1)
_SHOWN: Final = 5
_ROUNDS: Final = 12
_HALVINGS: Final = 6


class VerifiedResults(Struct, frozen=True, kw_only=True):
    """What of an answer may be carried out, and what was wrong with the rest."""

    results: Results
    defects: tuple[Defect, ...]


class PlanVerifier(Struct, frozen=True, kw_only=True):
    """The second opinion about answers to one question: the pods to place, and the nodes that were thought away."""

    snapshot: Snapshot
    catalogue: Catalogue
    pods: tuple[Pod, ...]
    gone: frozenset[str]

    def of(self, results: Results) -> VerifiedResults:
        """Everything, if it verifies as a whole; if not, what is left without whatever is wrong."""
        defects = verify(self.snapshot, self.catalogue, results, pods=self.pods, without_nodes=self.gone)
        return VerifiedResults(results=self._sound(results, defects) if defects else results, defects=defects)

    def _sound(self, results: Results, defects: Sequence[Defect]) -> Results:
        left = self._without_accused(results)
        kept = frozenset(key for _, keys in placements(left) for key in keys)
        refused = dict(sorted(_refused(results, defects)))
        errors = {key: error for key, error in {**refused, **results.pod_errors}.items() if key not in kept}
        return replace(left, pod_errors=errors, price=sum(claim.price for claim in left.new_claims))

    def _without_accused(self, results: Results) -> Results:
        """What verifies; pods that have no place at all are no reason to take one from others."""
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
        """Claims that verify together, found by halving so many times: few are wrong among many."""
        if not claims or not self._wrong_with(Results(new_claims=claims)):
            return claims
        if len(claims) == 1 or not times:
            return ()
        middle = len(claims) // 2
        first, second = self._halved(claims[:middle], times - 1), self._halved(claims[middle:], times - 1)
        return first if self._wrong_with(Results(new_claims=first + second)) else first + second

    def _wrong_with(self, results: Results) -> tuple[Defect, ...]:
        """The defects of a part; pods that it leaves out stay where they are."""
        part = replace(results, pod_errors={})
        return verify(self.snapshot, self.catalogue, part, without_nodes=self.gone)


def tell_defects(hand: Report, subject: str, message: str, defects: Sequence[Defect]) -> None:
    """Report that the check refuses a plan or a part of it: log, metrics, outcome; the run goes on.

    Args:
        hand: The run.
        subject: What the plan is about.
        message: What was refused, and what becomes of it.
        defects: Why.
    """
    hand.observe((Observation(name="journeyman_plan_defects_total"),))
    more = (f"and {len(defects) - _SHOWN} more",) if len(defects) > _SHOWN else ()
    hand.failed(subject, InvariantError(message, defects="; ".join((*map(str, defects[:_SHOWN]), *more))))


def _refused(results: Results, defects: Sequence[Defect]) -> Iterator[tuple[str, PodError]]:
    """For each pod that has a place, what to tell it if it loses that."""
    accused = {place: defect for defect in reversed(defects) for place in defect.nodes}
    rests = f"its place, or one that it rests on, did not pass the independent check: {defects[0]}"
    for place, keys in placements(results):
        own = accused.get(place)
        told = rests if own is None else f"its place did not pass the independent check: {own}"
        yield from ((key, PodError(kind="refused", message=told)) for key in keys)
