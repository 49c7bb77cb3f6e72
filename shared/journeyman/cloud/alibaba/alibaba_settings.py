"""Settings of the Alibaba Cloud provider for one cluster."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction
from typing import Final

from msgspec import Struct

DEFAULT_MEMORY_OVERHEAD: Final = Fraction(65, 1000)
"""The default of both published providers; it is smaller than Karpenter's on AWS."""


class AlibabaSettings(Struct, frozen=True, kw_only=True):
    """Settings for one ACK cluster."""

    cluster_id: str  # ACK's id, `c` and 32 digits; the cluster's tags have it
    region: str
    kubernetes_version: str = ""  # such as 1.34.1-aliyun.1, selects the images of aliases; empty: ACK is asked
    vm_memory_overhead_percent: Fraction = DEFAULT_MEMORY_OVERHEAD
    max_parallel_launches: int = 8
    parallel_reads: bool = True  # False sends requests one after another, so that a simulation is reproducible
    # as on AWS; None: never
    spot_refresh_period: timedelta | None = timedelta(hours=12)
    on_demand_refresh_period: timedelta | None = timedelta(hours=12)
