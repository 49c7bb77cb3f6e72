"""The fleet as it stands: gauges that follow from the API objects alone.

Off with DISABLE_CLUSTER_STATE_OBSERVABILITY.

Restates: karpenter pkg/controllers/metrics/{node,nodepool,pod}/controller.go, pkg/state/cost/cost.go.
"""

from __future__ import annotations

from typing import Final

from journeyman.core.api import labels
from journeyman.core.api.metrics.metric import Metric


def label_name(key: str) -> str:
    """A node's label as a metric's: what is after the slash, in snake case."""
    return key.rsplit("/", 1)[-1].lower().replace("-", "_")


NODE_LABELS: Final = ("node_name", "phase", "managed", *sorted({label_name(key) for key in labels.WELL_KNOWN}))
"""Labels of a metric about one node: the node itself, then every well-known label it may carry."""
_RESOURCE: Final = (*NODE_LABELS, "resource_type")
_POD: Final = ("name", "namespace")

NODES: Final = (
    Metric("karpenter_nodes_allocatable", "gauge", "What pods may use of a node, by resource.", _RESOURCE),
    Metric("karpenter_nodes_total_pod_requests", "gauge", "What a node's pods ask for, daemons included.", _RESOURCE),
    Metric(
        "karpenter_nodes_total_pod_limits", "gauge", "What a node's pods are limited to, daemons included.", _RESOURCE
    ),
    Metric("karpenter_nodes_total_daemon_requests", "gauge", "What a node's daemons ask for.", _RESOURCE),
    Metric("karpenter_nodes_total_daemon_limits", "gauge", "What a node's daemons are limited to.", _RESOURCE),
    Metric("karpenter_nodes_system_overhead", "gauge", "What the system keeps: capacity less allocatable.", _RESOURCE),
    Metric("karpenter_nodes_current_lifetime_seconds", "gauge", "How old a node is.", NODE_LABELS),
    Metric(
        "karpenter_cluster_utilization_percent",
        "gauge",
        "What pods ask for, of what all nodes have, by resource.",
        ("resource_type",),
    ),
)

NODEPOOLS: Final = (
    Metric("karpenter_nodepools_limit", "gauge", "A NodePool's limits.", ("resource_type", "nodepool")),
    Metric("karpenter_nodepools_usage", "gauge", "What a NodePool's nodes have.", ("resource_type", "nodepool")),
    Metric("karpenter_nodepools_cost_total", "gauge", "What a NodePool's nodes cost per hour.", ("nodepool",)),
    Metric(
        "karpenter_nodepools_cost_tracker_errors_total",
        "counter",
        "Nodes whose price is not known.",
        ("nodepool",),
    ),
)

PODS: Final = (
    Metric(
        "karpenter_pods_state",
        "gauge",
        "Always 1; its labels say where a pod is and how it fares.",
        (
            *_POD,
            "owner",
            "node",
            "scheduled",
            "nodepool",
            "zone",
            "arch",
            "capacity_type",
            "instance_type",
            "phase",
            "ready",
            "managed",
        ),
    ),
    Metric("karpenter_pods_startup_duration_seconds", "histogram", "From a pod's creation until it ran."),
    Metric("karpenter_pods_bound_duration_seconds", "histogram", "From a pod's creation until it had a node."),
    Metric(
        "karpenter_pods_provisioning_bound_duration_seconds",
        "histogram",
        "From when a pod was first thought to fit somewhere until it had a node.",
    ),
    Metric(
        "karpenter_pods_provisioning_startup_duration_seconds",
        "histogram",
        "From when a pod was first thought to fit somewhere until it ran.",
    ),
    Metric("karpenter_pods_unstarted_time_seconds", "gauge", "Since a pod was made that does not run yet.", _POD),
    Metric("karpenter_pods_unbound_time_seconds", "gauge", "Since a pod was made that has no node yet.", _POD),
    Metric(
        "karpenter_pods_provisioning_unbound_time_seconds",
        "gauge",
        "Since a pod that has no node yet was first thought to fit somewhere.",
        _POD,
    ),
    Metric(
        "karpenter_pods_provisioning_unstarted_time_seconds",
        "gauge",
        "Since a pod that does not run yet was first thought to fit somewhere.",
        _POD,
    ),
    Metric(
        "karpenter_pods_provisioning_scheduling_undecided_time_seconds",
        "gauge",
        "Since a pod was made for which nothing has been decided yet.",
        _POD,
    ),
)
