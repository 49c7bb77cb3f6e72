"""The words of disruption: Candidate, Command, DisruptionReason, Decision.

Restates: karpenter pkg/controllers/disruption/types.go `Candidate`, `Command`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NewType

from msgspec import Struct

from journeyman.core.api.objects import Pod
from journeyman.core.scheduling.results import PlannedClaim, Results

NodePoolName = NewType("NodePoolName", str)
NodeClaimName = NewType("NodeClaimName", str)

BASE_DISRUPTION_COST: Final = 1.0
"""What moving a node costs before any pod on it counts (karpenter pkg/utils/disruption `ReschedulingCost`)."""


class DisruptionReason(str, Enum):
    """Why a node is given back; the value is what conditions, budgets and users' manifests say."""

    EMPTY = "Empty"
    UNDERUTILIZED = "Underutilized"
    DRIFTED = "Drifted"
    INTERRUPTED = "Interrupted"  # not a reason that budgets can name


class Decision(str, Enum):
    """What a command does."""

    NO_OP = "no-op"
    DELETE = "delete"
    REPLACE = "replace"


class Candidate(Struct, frozen=True, kw_only=True):
    """One node that may be given back now.

    `price` is the hourly price of its offering, 0.0 if unknown. `reschedulable_pods` are keys (`namespace/name`),
    sorted: the pods that must find another place. `disruption_cost` is 1.0 plus what moving those pods costs (never
    below 1.0). `consolidatable` says that its consolidateAfter has passed, `keeps_room` that CapacityBuffers are kept here.
    """

    nodeclaim: NodeClaimName
    nodeclaim_uid: str
    node: str
    node_uid: str
    nodepool: NodePoolName
    instance_type: str
    zone: str
    capacity_type: str
    price: float
    reschedulable_pods: tuple[str, ...] = ()
    disruption_cost: float = BASE_DISRUPTION_COST
    consolidatable: bool = True
    keeps_room: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing of worth runs or is kept here; pods of non-positive eviction cost do not count."""
        return self.disruption_cost <= BASE_DISRUPTION_COST and not self.keeps_room

    @property
    def savings_ratio(self) -> float:
        """Hourly price saved per unit of disruption: the order in which nodes are given back, highest first."""
        return self.price / self.disruption_cost


class Simulated(Struct, frozen=True, kw_only=True):
    """One simulation: `pods` were to be placed without the nodes `gone`; `errors` (by pod key) forbid the disruption.

    A pod that was pending before anyway has no say.
    """

    pods: tuple[Pod, ...]
    gone: frozenset[str]
    results: Results
    errors: Mapping[str, str]


class Command(Struct, frozen=True, kw_only=True):
    """Give these nodes back, opening the replacements first. No candidates means: nothing to do.

    `simulated` is what it rests on, None where nothing has to move. `why_not` explains a command without candidates,
    for the event on the node that was considered.
    """

    reason: DisruptionReason
    candidates: tuple[Candidate, ...] = ()
    replacements: tuple[PlannedClaim, ...] = ()
    simulated: Simulated | None = None
    why_not: str = ""

    @property
    def decision(self) -> Decision:
        """Delete without replacements, replace with them."""
        if not self.candidates:
            return Decision.NO_OP
        return Decision.REPLACE if self.replacements else Decision.DELETE

    @property
    def saving(self) -> float:
        """Currency per hour saved once it is done; the replacement counted at the cheapest offering it may get."""
        return sum(c.price for c in self.candidates) - sum(r.price for r in self.replacements)


def by_savings(candidate: Candidate) -> tuple[float, str]:
    """Sort key: most saved per disruption first, ties by name.

    Restates: karpenter pkg/controllers/disruption/consolidation.go `sortCandidates`.
    Differs: ties fall back to the name, so that runs replay.
    """
    return (-candidate.savings_ratio, candidate.nodeclaim)
