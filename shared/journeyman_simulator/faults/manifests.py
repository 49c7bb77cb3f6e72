"""Builds the Kubernetes manifests of a scenario's setup and Deployments."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any, Final
from zoneinfo import ZoneInfo

from journeyman.core.api import labels
from journeyman_simulator.faults.fault_scenario import BROKEN, Deploy, ScenarioBudget, ScenarioPool, ScenarioSetup
from journeyman_simulator.faults.scenario_clouds import CLOUDS, CLUSTER, ScenarioCloud

NAMESPACE: Final = "default"
DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
NODE_CLASS: Final = "default"
START_HOUR: Final = 12
"""The hour of the day at which scenarios start, in UTC."""
START: Final = datetime(2026, 1, 5, START_HOUR, tzinfo=timezone.utc)

Manifest = dict[str, Any]


def initial_manifests(setup: ScenarioSetup) -> list[Manifest]:
    """Return all initial objects, the NodeClass first."""
    cloud = CLOUDS[setup.cloud]
    daemons = [daemon_set()] if setup.daemons else []
    broken = [node_class(cloud, BROKEN)] if any(pool.broken for pool in setup.pools) else []
    return [node_class(cloud), *broken, *(node_pool(pool, cloud) for pool in setup.pools), *daemons]


def node_class(cloud: ScenarioCloud, name: str = NODE_CLASS) -> Manifest:
    """Return a NodeClass, which selects networks by their discovery tag."""
    kind = cloud.node_class
    spec = {**cloud.node_class_spec, **cloud.network_selector(CLUSTER)}
    return _object(f"{kind.group}/{kind.version}", kind.kind, name, spec)


def node_pool(pool: ScenarioPool, cloud: ScenarioCloud) -> Manifest:
    """Return a NodePool."""
    requirements = [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": list(pool.capacity_types)}]
    if pool.types:
        requirements.append(
            {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": list(pool.types)},
        )
    template: Manifest = {
        "nodeClassRef": {
            "group": cloud.node_class.group,
            "kind": cloud.node_class.kind,
            "name": BROKEN if pool.broken else NODE_CLASS,
        },
        "requirements": requirements,
        "expireAfter": expire_after(pool.expire_after_seconds),
    }
    if pool.termination_grace_seconds:
        template["terminationGracePeriod"] = f"{pool.termination_grace_seconds}s"
    disruption = {
        "consolidationPolicy": pool.policy,
        "consolidateAfter": "Never" if pool.consolidate_after_seconds < 0 else f"{pool.consolidate_after_seconds}s",
        "budgets": [_budget(budget, pool.time_zone) for budget in pool.budgets],
    }
    spec: Manifest = {"template": {"spec": template}, "disruption": disruption}
    if pool.replicas:
        spec["replicas"] = pool.replicas
    if pool.limit_cpus:
        spec["limits"] = {"cpu": str(pool.limit_cpus)}
    if pool.weight:
        spec["weight"] = pool.weight
    manifest = _object("karpenter.sh/v1", "NodePool", pool.name, spec)
    annotations = {labels.REBALANCE: labels.REBALANCE_REPLACE} if pool.rebalance else {}
    if pool.hibernates_at_minute:
        schedule = daily_schedule(pool.hibernates_at_minute, pool.time_zone)
        annotations[labels.HIBERNATE] = f"{schedule} / {pool.hibernates_seconds}s"
    if pool.time_zone:
        annotations[labels.TIME_ZONE] = pool.time_zone
    if pool.max_evictions_per_day:
        annotations[labels.MAX_EVICTIONS_PER_DAY] = str(pool.max_evictions_per_day)
    if annotations:
        manifest["metadata"]["annotations"] = annotations
    return manifest


def _budget(budget: ScenarioBudget, time_zone: str) -> Manifest:
    manifest: Manifest = {"nodes": budget.nodes}
    if budget.reasons:
        manifest["reasons"] = list(budget.reasons)
    if budget.seconds:
        minutes = f"{budget.seconds // 60}m"  # the API server accepts no seconds
        manifest |= {"schedule": daily_schedule(budget.opens_at_minute, time_zone), "duration": minutes}
    return manifest


def daily_schedule(minute: int, time_zone: str) -> str:
    """Return the cron schedule that fires every day at so many minutes after the start of scenarios, in a time zone or UTC."""
    local = (START + timedelta(minutes=minute)).astimezone(ZoneInfo(time_zone or "UTC"))
    return f"{local.minute} {local.hour} * * *"


def expire_after(seconds: int) -> str:
    """Return the value of `expireAfter` for a number of seconds."""
    return f"{seconds}s" if seconds else "Never"


def daemon_set() -> Manifest:
    """Return a DaemonSet with a small pod."""
    container = {"name": "agent", "image": "agent", "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}}}
    pods = {
        "metadata": {"labels": {"app": "agent"}},
        "spec": {"tolerations": [{"operator": "Exists"}], "containers": [container]},
    }
    spec = {"selector": {"matchLabels": {"app": "agent"}}, "template": pods}
    return _object("apps/v1", "DaemonSet", "agent", spec, NAMESPACE)


def deployment(operation: Deploy) -> Manifest:
    """Return the Deployment of an operation."""
    requests = {"cpu": f"{operation.cpu_millicores}m", "memory": f"{operation.memory_mib}Mi"}
    pod: Manifest = {
        "terminationGracePeriodSeconds": operation.grace_seconds,
        "containers": [{"name": "c", "image": "pause", "resources": {"requests": requests}}],
    }
    if operation.pool:
        pod["nodeSelector"] = {"karpenter.sh/nodepool": operation.pool}
    if operation.spread_zones:
        pod["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": operation.app}},
            }
        ]
    if operation.one_per_node:
        term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": operation.app}}}
        pod["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    protection = (
        "true" if operation.do_not_disrupt else f"{operation.protected_seconds}s" if operation.protected_seconds else ""
    )
    annotations = {DO_NOT_DISRUPT: protection} if protection else {}
    if operation.max_evictions_per_day:
        annotations[labels.MAX_EVICTIONS_PER_DAY] = str(operation.max_evictions_per_day)
    spec = {
        "replicas": operation.replicas,
        "selector": {"matchLabels": {"app": operation.app}},
        "template": {"metadata": {"labels": {"app": operation.app}, "annotations": annotations}, "spec": pod},
    }
    return _object("apps/v1", "Deployment", operation.app, spec, NAMESPACE)


def disruption_budget(operation: Deploy) -> Manifest:
    """Return the PodDisruptionBudget of an operation."""
    spec = {"minAvailable": operation.min_available, "selector": {"matchLabels": {"app": operation.app}}}
    return _object("policy/v1", "PodDisruptionBudget", operation.app, spec, NAMESPACE)


def _object(api_version: str, kind: str, name: str, spec: Manifest, namespace: str = "") -> Manifest:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}
