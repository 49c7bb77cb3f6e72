"""Days of changing workloads on the simulated cluster: what consolidation evicts, and what the fleet costs meanwhile.

Each scenario changes the replicas or the templates of Deployments at fixed times, with noise from a fixed seed. The same
changes run under Karpenter's plain rules and under the product's: the same steps, cloud, kube-scheduler and kubelets.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from random import Random
from typing import Any, Final
from unittest import mock

import msgspec
from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.objects import NODE_DISRUPTION
from journeyman.core.plan import Step
from journeyman.steps.context import FeatureGates, Settings
from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.workload_controllers import DEPLOYMENT
from tests.helpers import builders
from tests.helpers.builders import CLUSTER, pool_body
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

PRODUCT: Final = Settings(cluster_name=CLUSTER)
"""The product's defaults."""

KARPENTER: Final = msgspec.structs.replace(
    PRODUCT,
    consolidation_payback=timedelta(0),
    eviction_cost=0.0,
    reversal_window=timedelta(0),
    fleet_plans=False,
    feature_gates=FeatureGates(pod_deletion_cost_management=False),
)
"""Karpenter's defaults: no limits on churn, no fleet plan, no deletion costs; `run_days` adds its packing into the fewest nodes."""


class Change(Struct, frozen=True, kw_only=True):
    """The replicas of a Deployment from a time on, and the revision of its template: a new one replaces its pods."""

    deployment: str
    replicas: int
    revision: int = 0


class DayResult(Struct, frozen=True, kw_only=True):
    """What one scenario cost.

    Attributes:
        dollars: The price of the running instances, integrated over time.
        evictions: Evictions through the Eviction API. Pods that a scale-down or a new template deletes are not among them.
        pending_pod_minutes: The time of pods without a node.
        launches: Nodes launched.
        commands: NodeDisruptions created, by method.
    """

    dollars: float
    evictions: int
    pending_pod_minutes: float
    launches: int
    commands: dict[str, int]


Scenario = Callable[[Random, int], Iterator[Change]]
"""The changes of one interval, from the seeded generator and the interval's number."""


def diurnal_day(rng: Random, interval: int) -> Iterator[Change]:
    """Twelve Deployments that follow the sun, each with its own peak hour, and noise as of an HPA."""
    hour = interval / 6
    for number in range(12):
        wave = 1 + 0.6 * math.sin((hour - 8 - number / 4) / 24 * 2 * math.pi)
        yield Change(deployment=f"web-{number:02}", replicas=max(1, round(8 * wave + rng.gauss(0, 0.7))))


def rolling_week(rng: Random, interval: int) -> Iterator[Change]:
    """Six Deployments of steady size on weekdays, about half of it at the weekend; two of them roll out each weekday at ten."""
    day, rest = divmod(interval, 144)
    is_weekend = day % 7 >= 5
    for number in range(6):
        revision = sum(1 for d in range(day + 1) if d % 7 < 5 and d % 3 == number % 3 and (d < day or rest >= 60))
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


SCENARIOS: Final[dict[str, Scenario]] = {
    "diurnal-day": diurnal_day,
    "rolling-week": rolling_week,
    "batch-night": batch_night,
}


def run_days(
    scenario: Scenario,
    *,
    days: float,
    karpenter: bool,
    settings: Settings | None = None,
    seed: int = 1,
    progress: Callable[[str], None] = lambda _: None,
) -> DayResult:
    """Run a scenario and return what it cost.

    Args:
        scenario: What changes in each interval.
        days: How long it runs.
        karpenter: Whether under Karpenter's plain rules: packing into the fewest nodes, no limits on churn, no fleet plan,
            no check of binding orders, all pods of a node evicted at once, and nodes launched for them if they then do not fit.
        settings: The product's settings instead of its defaults; not with Karpenter's rules.
        seed: Of the noise.
        progress: Called once for each virtual hour with a line to show.
    """
    pool = pool_body(
        metadata={"annotations": {labels.PACKING: "fewest-nodes"} if karpenter else {}},
        spec={"disruption": {"consolidateAfter": "30s", "budgets": [{"nodes": "20%"}]}},
    )
    simulation = SimulatedCluster(TYPES, pool)
    simulation.cluster.settings = settings or (KARPENTER if karpenter else PRODUCT)
    rng, state = Random(seed), dict[str, Change]()
    dollars = pending = 0.0
    evicted, commands = set[str](), Counter[str]()

    def count(write: Write) -> None:
        if write.verb == "evict":
            evicted.add(write.name)
        elif write.resource is NODE_DISRUPTION and write.verb in ("create", "apply"):
            commands[write.result["spec"]["method"]] += 1

    simulation.server.on_write(count)
    with ExitStack() as stack:
        if karpenter:
            for user in ("core.disruption.controller", "steps.consolidate"):
                stack.enter_context(mock.patch(f"journeyman.{user}.unbound_pod", return_value=""))
            provisioned = mock.patch("journeyman.steps.provision.pods_with_capacity", return_value=frozenset())
            stack.enter_context(provisioned)
            at_once = mock.patch("journeyman.core.lifecycle.termination.largest_first", lambda decided, *_: decided)
            stack.enter_context(at_once)
        for interval in range(round(days * 144)):
            for change in scenario(rng, interval):
                _apply(simulation, change, state)
            for _ in range(int(INTERVAL / timedelta(minutes=1))):
                simulation.run_for(minutes=1)
                dollars += simulation.cloud.price / 60
                pending += simulation.pending()
            if interval % 6 == 5:
                progress(
                    f"hour {interval // 6 + 1}: {dollars:.2f} $, {len(evicted)} evictions, "
                    f"{len(simulation.claims())} nodes"
                )
    return DayResult(
        dollars=dollars,
        evictions=len(evicted),
        pending_pod_minutes=pending,
        launches=len(simulation.cloud.launches),
        commands=dict(commands),
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
        strategy = {"rollingUpdate": {"maxSurge": 25, "maxUnavailable": 25}}
        simulation.server.patch(DEPLOYMENT, change.deployment, {"spec": {"strategy": strategy}}, namespace="default")
        return
    spec: dict[str, Any] = {"replicas": change.replicas}
    if before.revision != change.revision:
        spec["template"] = {"metadata": {"annotations": {"revision": str(change.revision)}}}
    simulation.server.patch(DEPLOYMENT, change.deployment, {"spec": spec}, namespace="default")
    simulation.requeue(Step.PROVISION)
