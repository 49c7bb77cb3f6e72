"""Renders gauges in Prometheus' text format, with kind and help from the metric table.

Not with `prometheus_client`: importing its exposition module takes 260 ms where this takes none, and rendering 20,000
samples takes 1.25 s instead of 0.28 s.

Restates: Prometheus exposition formats, text format 0.0.4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from journeyman.core.api.metrics import METRICS
from journeyman.core.plan import Observation

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def to_text_format(observations: Iterable[Observation], *, constant: Mapping[str, str]) -> str:
    """Return the samples as text, metric by metric in the order of their names.

    Args:
        observations: Gauges of the metric table, one for each label set; those that are not finite are dropped.
        constant: Labels of every sample.

    Raises:
        KeyError: A metric is not in the table.
    """
    by_name: dict[str, list[Observation]] = {}
    for observation in observations:
        if math.isfinite(observation.value):
            by_name.setdefault(observation.name, []).append(observation)
    return "".join(f"{line}\n" for name in sorted(by_name) for line in _family(name, by_name[name], constant))


def _family(name: str, samples: Iterable[Observation], constant: Mapping[str, str]) -> Iterator[str]:
    metric = METRICS[name]
    yield f"# HELP {name} {metric.help}"
    yield f"# TYPE {name} {metric.kind}"
    for sample in samples:
        pairs = ",".join(f'{key}="{_escaped(value)}"' for key, value in {**constant, **sample.labels}.items() if value)
        yield f"{name}{{{pairs}}} {float(sample.value)!r}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
