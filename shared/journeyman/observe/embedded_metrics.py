"""Writes metric samples in CloudWatch's embedded metric format: one JSON line for each label set.

A function has no endpoint to scrape and no memory to count in, so CloudWatch sums the samples up. Names and labels are
Karpenter's, plus `cluster`. CloudWatch bills label sets, so samples with the same labels share a line, and empty labels,
which CloudWatch rejects, are omitted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import IO, Final

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from journeyman.core.plan import Observation

NAMESPACE: Final = "Journeyman"

_UNITS: Final[Mapping[str, MetricUnit]] = {"_seconds": MetricUnit.Seconds, "_bytes": MetricUnit.Bytes}
_VALUES_PER_LINE: Final = 99  # at 100 Powertools prints the line itself, not to `stream`


def write(observations: Iterable[Observation], *, constant: Mapping[str, str], stream: IO[str]) -> None:
    """Write the samples, grouped by label set in the order of their first sample.

    Args:
        observations: Samples; those that are not finite are dropped.
        constant: Labels of every sample.
        stream: Where lines are written.
    """
    groups: dict[tuple[tuple[str, str], ...], list[Observation]] = {}
    for observation in observations:
        if math.isfinite(observation.value):
            merged = {**constant, **observation.labels}
            groups.setdefault(tuple(sorted((k, v) for k, v in merged.items() if v)), []).append(observation)
    for labels, samples in groups.items():
        for start in range(0, len(samples), _VALUES_PER_LINE):
            stream.write(_line(dict(labels), samples[start : start + _VALUES_PER_LINE]) + "\n")


def _line(labels: Mapping[str, str], samples: Iterable[Observation]) -> str:
    metrics = EphemeralMetrics(namespace=NAMESPACE)
    for name, value in labels.items():
        metrics.add_dimension(name=name, value=value)
    for sample in samples:
        metrics.add_metric(name=sample.name, unit=_unit(sample), value=sample.value)
    return json.dumps(metrics.serialize_metric_set(), separators=(",", ":"))


def _unit(sample: Observation) -> MetricUnit:
    if sample.kind == "counter":
        return MetricUnit.Count
    return next((unit for suffix, unit in _UNITS.items() if sample.name.endswith(suffix)), MetricUnit.NoUnit)
