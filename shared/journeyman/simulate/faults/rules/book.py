"""All rules, in the order in which they are told."""

from __future__ import annotations

from typing import Final

from journeyman.simulate.faults.rules import Rule
from journeyman.simulate.faults.rules.budgets import BudgetsHold
from journeyman.simulate.faults.rules.commands import PricesFall, ReplacementsFirst
from journeyman.simulate.faults.rules.errors import NothingUnexpected
from journeyman.simulate.faults.rules.evictions import InstancesEndEmpty, PodsGoAsAgreed
from journeyman.simulate.faults.rules.illness import TheIllAreReplaced
from journeyman.simulate.faults.rules.instances import NoInstanceWithoutAClaim, OneInstanceForAClaim
from journeyman.simulate.faults.rules.limits import LimitsHold
from journeyman.simulate.faults.rules.rest import AllThatFitsRuns, NothingIsLeftBehind, NothingWaitsForNobody
from journeyman.simulate.faults.rules.sizes import StaticPoolsKeepTheirSize

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
