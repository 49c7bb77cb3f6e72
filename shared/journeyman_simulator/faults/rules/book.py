"""All rules, in the order in which they are told."""

from __future__ import annotations

from typing import Final

from journeyman_simulator.faults.rules import Rule
from journeyman_simulator.faults.rules.budgets import BudgetsHold
from journeyman_simulator.faults.rules.commands import PricesFall, ReplacementsFirst
from journeyman_simulator.faults.rules.errors import NothingUnexpected
from journeyman_simulator.faults.rules.evictions import InstancesEndEmpty, PodsGoAsAgreed
from journeyman_simulator.faults.rules.illness import TheIllAreReplaced
from journeyman_simulator.faults.rules.instances import NoInstanceWithoutAClaim, OneInstanceForAClaim
from journeyman_simulator.faults.rules.limits import LimitsHold
from journeyman_simulator.faults.rules.rest import AllThatFitsRuns, NothingIsLeftBehind, NothingWaitsForNobody
from journeyman_simulator.faults.rules.sizes import StaticPoolsKeepTheirSize

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
