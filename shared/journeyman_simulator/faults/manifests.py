"""What a story's setting and workloads are as Kubernetes objects."""

from __future__ import annotations

from typing import Any, Final

from journeyman.core.api import labels
from journeyman_simulator.faults.fault_scenario import Deploy, Pool, Setting

CLUSTER: Final = "demo"
NAMESPACE: Final = "default"
DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
NODE_CLASS: Final = "default"
_DISCOVERY: Final = "karpenter.sh/discovery"

Manifest = dict[str, Any]


def furniture(setting: Setting) -> list[Manifest]:
    """Everything that stands at the beginning, the NodeClass first."""
    daemons = [daemon_set()] if setting.daemons else []
    return [node_class(), *(node_pool(pool) for pool in setting.pools), *daemons]


def node_class(discovery: str = CLUSTER) -> Manifest:
    """The one NodeClass; it selects subnets by this value of their discovery tag."""
    spec = {
        "role": f"KarpenterNodeRole-{CLUSTER}",
        "amiSelectorTerms": [{"alias": "al2023@latest"}],
        "subnetSelectorTerms": subnet_selector(discovery),
        "securityGroupSelectorTerms": [{"tags": {_DISCOVERY: CLUSTER}}],
    }
    return _object("karpenter.k8s.aws/v1", "EC2NodeClass", NODE_CLASS, spec)


def subnet_selector(discovery: str) -> list[Manifest]:
    """Of a NodeClass."""
    return [{"tags": {_DISCOVERY: discovery}}]


def node_pool(pool: Pool) -> Manifest:
    """A NodePool as the story describes it."""
    requirements = [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": list(pool.capacity_types)}]
    if pool.types:
        requirements.append(
            {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": list(pool.types)},
        )
    template: Manifest = {
        "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": NODE_CLASS},
        "requirements": requirements,
        "expireAfter": expire_after(pool.expire_after_seconds),
    }
    if pool.termination_grace_seconds:
        template["terminationGracePeriod"] = f"{pool.termination_grace_seconds}s"
    disruption = {
        "consolidationPolicy": pool.policy,
        "consolidateAfter": "Never" if pool.consolidate_after_seconds < 0 else f"{pool.consolidate_after_seconds}s",
        "budgets": [{"nodes": b.nodes, **({"reasons": list(b.reasons)} if b.reasons else {})} for b in pool.budgets],
    }
    spec: Manifest = {"template": {"spec": template}, "disruption": disruption}
    if pool.replicas:
        spec["replicas"] = pool.replicas
    if pool.limit_cpus:
        spec["limits"] = {"cpu": str(pool.limit_cpus)}
    if pool.weight:
        spec["weight"] = pool.weight
    manifest = _object("karpenter.sh/v1", "NodePool", pool.name, spec)
    if pool.rebalance:
        manifest["metadata"]["annotations"] = {labels.REBALANCE: labels.REBALANCE_REPLACE}
    return manifest


def expire_after(seconds: int) -> str:
    """As NodePools say it."""
    return f"{seconds}s" if seconds else "Never"


def daemon_set() -> Manifest:
    """A small pod on every node."""
    container = {"name": "agent", "image": "agent", "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}}}
    pods = {
        "metadata": {"labels": {"app": "agent"}},
        "spec": {"tolerations": [{"operator": "Exists"}], "containers": [container]},
    }
    spec = {"selector": {"matchLabels": {"app": "agent"}}, "template": pods}
    return _object("apps/v1", "DaemonSet", "agent", spec, NAMESPACE)


def deployment(act: Deploy) -> Manifest:
    """The Deployment that an act asks for."""
    requests = {"cpu": f"{act.cpu_millicores}m", "memory": f"{act.memory_mib}Mi"}
    pod: Manifest = {
        "terminationGracePeriodSeconds": act.grace_seconds,
        "containers": [{"name": "c", "image": "pause", "resources": {"requests": requests}}],
    }
    if act.pool:
        pod["nodeSelector"] = {"karpenter.sh/nodepool": act.pool}
    if act.spread_zones:
        pod["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": act.app}},
            }
        ]
    if act.one_per_node:
        alone = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": act.app}}}
        pod["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [alone]}}
    protection = "true" if act.do_not_disrupt else f"{act.protected_seconds}s" if act.protected_seconds else ""
    annotations = {DO_NOT_DISRUPT: protection} if protection else {}
    spec = {
        "replicas": act.replicas,
        "selector": {"matchLabels": {"app": act.app}},
        "template": {"metadata": {"labels": {"app": act.app}, "annotations": annotations}, "spec": pod},
    }
    return _object("apps/v1", "Deployment", act.app, spec, NAMESPACE)


def disruption_budget(act: Deploy) -> Manifest:
    """Its PodDisruptionBudget."""
    spec = {"minAvailable": act.min_available, "selector": {"matchLabels": {"app": act.app}}}
    return _object("policy/v1", "PodDisruptionBudget", act.app, spec, NAMESPACE)


def _object(api_version: str, kind: str, name: str, spec: Manifest, namespace: str = "") -> Manifest:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}
