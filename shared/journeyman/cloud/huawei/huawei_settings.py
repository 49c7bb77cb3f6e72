"""Settings of the Huawei Cloud provider for one cluster."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction
from typing import Final

from msgspec import Struct

DEFAULT_CURRENCY: Final = "CNY"  # the international site has USD
DEFAULT_SPOT_PRICE_PERCENT: Final = Fraction(40, 100)
"""No API has Spot prices, so this share of the on-demand price stands in for them."""
DEFAULT_MEMORY_OVERHEAD: Final = Fraction(5, 100)
"""Memory that firmware and kernel hide; the published provider has 0."""


class HuaweiSettings(Struct, frozen=True, kw_only=True):
    """Settings for one CCE cluster."""

    cluster_id: str  # CCE's id, a UUID
    project_id: str
    region: str
    domain_id: str = ""  # of the account; empty: prices cannot be read
    currency: str = DEFAULT_CURRENCY  # of prices
    spot_price_percent: Fraction = DEFAULT_SPOT_PRICE_PERCENT
    vm_memory_overhead_percent: Fraction = DEFAULT_MEMORY_OVERHEAD
    max_parallel_launches: int = 8
    parallel_reads: bool = True  # False sends requests one after another, so that a simulation is reproducible
    on_demand_refresh_period: timedelta | None = timedelta(hours=12)  # as on AWS; None: never
