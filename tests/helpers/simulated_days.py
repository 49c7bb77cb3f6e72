"""Days of changing workloads on the simulated cluster: what consolidation evicts, and what the fleet costs meanwhile.

Each scenario changes the replicas or the templates of Deployments at fixed times, with noise from a fixed seed. The same
changes run under Karpenter's own rules (fewest nodes, no churn ledger, no fleet plan) and under the product's defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from random import Random
from typing import Any

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.plan import Step
from journeyman_simulator.workload_controllers import DEPLOYMENT
from tests.helpers import builders
from tests.helpers.builders import pool_body
from tests.helpers.simulated_cluster import SimulatedCluster

TYPES = tuple(
    builders.an_instance_type(f"{family}.{size}", cpu=cpu, memory_gib=cpu * gib, price=round(cpu * price, 4))
    for family, gib, price in (("c", 2, 0.0425), ("m", 4, 0.048), ("r", 8, 0.063))
    for size, cpu in (("large", 2), ("xlarge", 4), ("2xlarge", 8), ("4xlarge", 16))
)
"""Twelve instance types with the proportions of EC2's c5, m5 and r5."""

REQUESTS = (("250m", "512Mi"), ("500m", "1Gi"), ("500m", "3Gi"), ("1", "1Gi"), ("1", "6Gi"), ("2", "4Gi"))
"""CPU and memory of the Deployments' pods, in turn."""

INTERVAL = timedelta(minutes=10)
"""How often a scenario changes workloads."""


class Change(Struct, frozen=True, kw_only=True):
    """The replicas of a Deployment from a time on, and the revision of its template: a new one replaces its pods."""

    deployment: str
    replicas: int
    revision: int = 0


class DayResult(Struct, frozen=True, kw_only=True):
    """What one scenario cost: dollars (price integrated over time), voluntary evictions, and the time of pods without a node."""

    dollars: float
    evictions: int
    pending_pod_minutes: float
    launches: int
    commands: int


Scenario = Callable[[Random, int], Iterator[Change]]
"""The changes of one interval, from the seeded generator and the interval's number."""


def diurnal_day(rng: Random, interval: int) -> Iterator[Change]:
    """Twelve Deployments that follow the sun, each with its own peak hour, and noise as of an HPA."""
    hour = interval / 6
    for number in range(12):
        wave = 1 + 0.6 * math.sin((hour - 8 - number / 4) / 24 * 2 * math.pi)
        yield Change(deployment=f"web-{number:02}", replicas=max(1, round(8 * wave + rng.gauss(0, 0.7))))


def rolling_week(rng: Random, interval: int) -> Iterator[Change]:
    """Twelve Deployments of steady size on weekdays, half of it at the weekend; two of them roll out each weekday."""
    day, rest = divmod(interval, 144)
    is_weekend = day % 7 >= 5
    for number in range(12):
        revision = sum(1 for d in range(day + 1) if d % 7 < 5 and d % 6 == number % 6 and (d < day or rest >= 60))
        replicas = 6 if is_weekend else 10
        yield Change(deployment=f"api-{number:02}", replicas=replicas + (rng.random() < 0.05), revision=revision)


def batch_night(rng: Random, interval: int) -> Iterator[Change]:
    """Four steady Deployments, and from 22:00 to 06:00 bursts of twenty short batch workloads."""
    for number in range(4):
        yield Change(deployment=f"web-{number:02}", replicas=6)
    hour = interval / 6 % 24
    is_night = hour >= 22 or hour < 6
    for number in range(20):
        runs = is_night and rng.random() < 0.35
        yield Change(deployment=f"batch-{number:02}", replicas=rng.randint(2, 8) if runs else 0)


def run_days(
    scenario: Scenario, *, days: float, karpenter: bool, seed: int = 1, progress: Callable[[str], None] = lambda _: None
) -> DayResult:
    """Run a scenario and return what it cost.

    Args:
        scenario: What changes in each interval.
        days: How long it runs.
        karpenter: Whether under Karpenter's own rules.
        seed: Of the noise.
        progress: Called once for each virtual hour with a line to show.
    """
    pool = pool_body(
        metadata={"annotations": {labels.PACKING: "fewest-nodes"} if karpenter else {}},
        spec={"disruption": {"consolidateAfter": "30s", "budgets": [{"nodes": "20%"}]}},
    )
    simulation = SimulatedCluster(TYPES, pool)
    rng, state = Random(seed), dict[str, Change]()
    dollars = pending = 0.0
    evicted: list[str] = []
    simulation.server.on_write(lambda write: evicted.append(write.name) if write.verb == "evict" else None)
    for interval in range(round(days * 144)):
        for change in scenario(rng, interval):
            _apply(simulation, change, state)
        for _ in range(int(INTERVAL / timedelta(minutes=1))):
            simulation.run_for(minutes=1)
            dollars += simulation.cloud.price / 60
            pending += simulation.pending()
        if interval % 6 == 5:
            progress(
                f"hour {interval // 6 + 1}: {dollars:.2f} $, {len(evicted)} evictions, {len(simulation.claims())} nodes"
            )
    return DayResult(
        dollars=dollars,
        evictions=len(evicted),
        pending_pod_minutes=pending,
        launches=len(simulation.cloud.launches),
        commands=int(simulation.record.count_of("karpenter_voluntary_disruption_decisions_total")),
    )


def _apply(simulation: SimulatedCluster, change: Change, state: dict[str, Change]) -> None:
    """Create or patch the Deployment if the change is one."""
    before = state.get(change.deployment)
    if before == change:
        return
    state[change.deployment] = change
    if before is None:
        cpu, memory = REQUESTS[sum(map(ord, change.deployment)) % len(REQUESTS)]
        simulation.deploy(change.deployment, change.replicas, cpu=cpu, memory=memory)
        return
    spec: dict[str, Any] = {"replicas": change.replicas}
    if before.revision != change.revision:
        spec["template"] = {"metadata": {"annotations": {"revision": str(change.revision)}}}
    simulation.server.patch(DEPLOYMENT, change.deployment, {"spec": spec}, namespace="default")
    simulation.requeue(Step.PROVISION)
