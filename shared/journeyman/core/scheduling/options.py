"""How a pass may decide: settings of the scheduler, as values."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class PreferencePolicy(str, Enum):
    """What becomes of preferences (preferred affinity, ScheduleAnyway, PreferNoSchedule).

    RESPECT: rules until they stand in the way (Karpenter's default); IGNORE: as if they were not there; WHEN_FREE: kept
    where that costs nothing.
    """

    RESPECT = "Respect"
    IGNORE = "Ignore"
    WHEN_FREE = "WhenFree"


class MinValuesPolicy(str, Enum):
    """What becomes of a NodePool's minValues that cannot be met: STRICT opens no node, BEST_EFFORT lowers them."""

    STRICT = "Strict"
    BEST_EFFORT = "BestEffort"


class Options(Struct, frozen=True, kw_only=True):
    """How much choice a claim keeps, and the policies.

    A claim lists every instance type up to `near_price` times the cheapest, at least `min_types` where there are as
    many (Karpenter's count for spot-to-spot consolidation), at most `max_types` (AWS cuts a launch to 60, so more would
    be lost there). `compare_up_to`: with at most so many pods Karpenter's own way is tried as well, and the better plan
    kept. `ignore_dra_requests`: pods with ResourceClaims are set aside (Karpenter's IGNORE_DRA_REQUESTS). `bound`: say
    how far the price may be from the best one, for people; it decides nothing, and takes a third of a small pass.
    """

    near_price: float = 1.25
    min_types: int = 15
    max_types: int = 60
    preferences: PreferencePolicy = PreferencePolicy.RESPECT
    min_values: MinValuesPolicy = MinValuesPolicy.STRICT
    compare_up_to: int = 600
    ignore_dra_requests: bool = True
    bound: bool = True
