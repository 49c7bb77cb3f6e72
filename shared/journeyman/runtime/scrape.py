"""A cluster's gauges for Prometheus: read now, kept nowhere.

Counters and histograms are not among them: a function has no memory to count in, so those are CloudWatch's
(`observe.embedded_metrics`). An answer of a function may have six megabytes; a scrape of a large cluster asks for groups one by one.
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
    "cluster": lambda world: chain(_build(), cluster_gauges(world.snapshot)),
    "offerings": lambda world: offering_gauges(t for types in world.by_node_class.values() for t in types),
    "nodes": lambda world: node_gauges(world.snapshot),
    "nodepools": lambda world: pool_gauges(world.snapshot, world.catalogue),
    "pods": lambda world: pod_gauges(world.snapshot),
    "conditions": lambda world: condition_gauges(world.snapshot),
}
"""What may be asked for."""

OF_CLUSTER_STATE: Final = frozenset({"nodes", "nodepools", "pods", "conditions"})
"""Left out with DISABLE_CLUSTER_STATE_OBSERVABILITY."""

LARGEST: Final = 5_500_000  # bytes; AWS Lambda quotas: 6 MB for an answer, which is quoted once more on the way


def scrape(run: RunContext, chosen: tuple[str, ...]) -> str:
    """The cluster's gauges as Prometheus' text.

    Args:
        run: Connections; nothing is written.
        chosen: Names of `GROUPS`.

    Raises:
        JourneymanError: The cluster or the cloud cannot be read.
    """
    if not run.settings.cluster_state_observability:
        chosen = tuple(name for name in chosen if name not in OF_CLUSTER_STATE)
    world = scheduling_inputs_of(run, load(run, EVERYTHING))
    samples = chain.from_iterable(GROUPS[name](world) for name in chosen)
    return to_text_format(samples, constant={"cluster": run.cluster})


def no_larger_than_may_be(text: str) -> str:
    """The text. Raises ConfigurationError if a function may not answer that much."""
    if len(text) > LARGEST:
        raise ConfigurationError(
            f"these gauges are {len(text)} bytes, and a function may answer {LARGEST}",
            to_do=f"scrape them one by one, with ?of= and one of {', '.join(GROUPS)}",
        )
    return text


def groups(asked: str) -> tuple[str, ...]:
    """Names of `GROUPS` with commas between them; all there are if empty. Raises ConfigurationError for others."""
    names = tuple(name.strip() for name in asked.split(",") if name.strip()) or tuple(GROUPS)
    for name in names:
        if name not in GROUPS:
            raise ConfigurationError(
                f"there are no gauges of {name!r}", to_do=f"ask with ?of= for some of {', '.join(GROUPS)}"
            )
    return tuple(dict.fromkeys(names))


def _build() -> Iterable[Observation]:
    """`goversion` says which Python runs it: the label's name is Karpenter's."""
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    commit = os.environ.get("JOURNEYMAN_COMMIT", "")
    yield gauge("karpenter_build_info", 1, {"version": __version__, "goversion": python, "commit": commit})
