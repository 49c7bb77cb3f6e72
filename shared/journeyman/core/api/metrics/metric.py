"""What a metric is."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Kind = Literal["counter", "gauge", "histogram"]


class Metric(Struct, frozen=True):
    """One metric. Units are in the name: `_seconds`, `_total` for counters. Karpenter's summaries are histograms here."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
