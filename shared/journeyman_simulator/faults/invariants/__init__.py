"""All rules, in the order in which they are told."""

from __future__ import annotations

from typing import Final

from journeyman_simulator.faults.invariants.checkers import Rule
from journeyman_simulator.faults.invariants.disruption_invariants import (
    PricesFall,
    ReplacementsFirst,
    TheIllAreReplaced,
)
from journeyman_simulator.faults.invariants.instance_invariants import (
    InstancesEndEmpty,
    NoInstanceWithoutAClaim,
    OneInstanceForAClaim,
)
from journeyman_simulator.faults.invariants.nodepool_invariants import BudgetsHold, LimitsHold, StaticPoolsKeepTheirSize
from journeyman_simulator.faults.invariants.pod_invariants import AllThatFitsRuns, PodsGoAsAgreed
from journeyman_simulator.faults.invariants.progress_invariants import (
    NothingIsLeftBehind,
    NothingUnexpected,
    NothingWaitsForNobody,
)

RULES: Final[tuple[type[Rule], ...]] = (
    OneInstanceForAClaim,
    NoInstanceWithoutAClaim,
    PodsGoAsAgreed,
    InstancesEndEmpty,
    BudgetsHold,
    LimitsHold,
    StaticPoolsKeepTheirSize,
    ReplacementsFirst,
    PricesFall,
    AllThatFitsRuns,
    TheIllAreReplaced,
    NothingWaitsForNobody,
    NothingIsLeftBehind,
    NothingUnexpected,
)
