"""Computes a cluster's gauges for Prometheus from the cluster as it is now.

Counters and histograms are in CloudWatch (`observe.embedded_metrics`), since a function has no memory in which to count. The
response of a function has at most six megabytes, so Prometheus scrapes the groups of a large cluster one by one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Final

from journeyman import __version__
from journeyman.core.observability.amounts import gauge
from journeyman.core.observability.condition_metrics import condition_gauges
from journeyman.core.observability.node_metrics import cluster_gauges, node_gauges
from journeyman.core.observability.nodepool_metrics import pool_gauges
from journeyman.core.observability.offering_metrics import offering_gauges
from journeyman.core.observability.pod_metrics import pod_gauges
from journeyman.core.plan import Observation
from journeyman.errors import ConfigurationError
from journeyman.observe.prometheus import to_text_format
from journeyman.steps.context import RunContext
from journeyman.steps.load import EVERYTHING, load
from journeyman.steps.scheduling_inputs import SchedulingInputs, scheduling_inputs_of

Group = Callable[[SchedulingInputs], Iterable[Observation]]

GROUPS: Final[Mapping[str, Group]] = {
    "cluster": lambda inputs: chain(_build_info(), cluster_gauges(inputs.snapshot)),
    "offerings": lambda inputs: offering_gauges(t for types in inputs.by_node_class.values() for t in types),
    "nodes": lambda inputs: node_gauges(inputs.snapshot),
    "nodepools": lambda inputs: pool_gauges(inputs.snapshot, inputs.catalogue),
    "pods": lambda inputs: pod_gauges(inputs.snapshot),
    "conditions": lambda inputs: condition_gauges(inputs.snapshot),
}
"""The groups of gauges that can be scraped separately."""

CLUSTER_STATE_GROUPS: Final = frozenset({"nodes", "nodepools", "pods", "conditions"})
"""Left out with DISABLE_CLUSTER_STATE_OBSERVABILITY."""

MAX_BYTES: Final = 5_500_000  # AWS Lambda quotas: 6 MB for a response, including the JSON quoting around this text


def scrape(run: RunContext, chosen: tuple[str, ...]) -> str:
    """Return the cluster's gauges in Prometheus' text format.

    Args:
        run: The run; nothing is written.
        chosen: Names of `GROUPS`.

    Raises:
        JourneymanError: The cluster or the cloud cannot be read.
    """
    if not run.settings.cluster_state_observability:
        chosen = tuple(name for name in chosen if name not in CLUSTER_STATE_GROUPS)
    inputs = scheduling_inputs_of(run, load(run, EVERYTHING))
    samples = chain.from_iterable(GROUPS[name](inputs) for name in chosen)
    return to_text_format(samples, constant={"cluster": run.cluster})


def check_size(text: str) -> str:
    """Return the text. Raises ConfigurationError if it is too large for a function's response."""
    if len(text) > MAX_BYTES:
        raise ConfigurationError(
            f"the gauges have {len(text)} bytes, and a function's response at most {MAX_BYTES}",
            to_do=f"scrape them one by one, with ?of= and one of {', '.join(GROUPS)}",
        )
    return text


def parse_groups(text: str) -> tuple[str, ...]:
    """Return the names of `GROUPS` in a comma-separated list; all of them if it is empty.

    Raises:
        ConfigurationError: A name is not in `GROUPS`.
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip()) or tuple(GROUPS)
    for name in names:
        if name not in GROUPS:
            raise ConfigurationError(f"unknown group of gauges {name!r}", to_do=f"use ?of= with {', '.join(GROUPS)}")
    return tuple(dict.fromkeys(names))


def _build_info() -> Iterable[Observation]:
    """Yield Karpenter's build info; its label `goversion` has the version of Python."""
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    commit = os.environ.get("JOURNEYMAN_COMMIT", "")
    yield gauge("karpenter_build_info", 1, {"version": __version__, "goversion": python, "commit": commit})
