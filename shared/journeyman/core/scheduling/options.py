"""Settings of the scheduler: what it does with preferences and minValues, and how many instance types a NodeClaim lists."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class PreferencePolicy(str, Enum):
    """What the scheduler does with preferences (preferred affinity, ScheduleAnyway, PreferNoSchedule).

    RESPECT: treats them as required until it has to relax them (Karpenter's default). IGNORE: ignores them. WHEN_FREE:
    respects them where that costs nothing.
    """

    RESPECT = "Respect"
    IGNORE = "Ignore"
    WHEN_FREE = "WhenFree"


class MinValuesPolicy(str, Enum):
    """What the scheduler does with minValues that cannot be met: STRICT launches no node, BEST_EFFORT lowers them."""

    STRICT = "Strict"
    BEST_EFFORT = "BestEffort"


class Options(Struct, frozen=True, kw_only=True):
    """Settings of one pass.

    A NodeClaim lists every instance type up to `near_price` times the cheapest, at least `min_types` where there are as
    many (Karpenter's count for spot-to-spot consolidation), at most `max_types` (AWS truncates a launch to 60).
    `compare_up_to`: with at most so many pods the sequential scheduler runs as well, and the cheaper plan wins.
    `ignore_dra_requests`: pods with ResourceClaims are not scheduled (Karpenter's IGNORE_DRA_REQUESTS). `bound`: compute
    the lower bound of the price, for reports; it decides nothing, and takes a third of a small pass.
    """

    near_price: float = 1.25
    min_types: int = 15
    max_types: int = 60
    preferences: PreferencePolicy = PreferencePolicy.RESPECT
    min_values: MinValuesPolicy = MinValuesPolicy.STRICT
    compare_up_to: int = 600
    ignore_dra_requests: bool = True
    bound: bool = True
