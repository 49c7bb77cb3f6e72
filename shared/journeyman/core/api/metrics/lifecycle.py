"""Nodes and their pods, from birth to end.

Restates: karpenter pkg/metrics/metrics.go, pkg/controllers/nodeclaim/lifecycle/metrics.go,
pkg/controllers/node/{health,termination}/metrics.go, pkg/operator/operator.go.
"""

from __future__ import annotations

from typing import Final

from journeyman.core.api.metrics.metric import Metric

_DISRUPTED: Final = ("reason", "nodepool", "capacity_type", "consolidation_policy", "termination_mode")

LIFECYCLE: Final = (
    Metric(
        "karpenter_build_info",
        "gauge",
        "Always 1; its labels say what runs.",
        ("version", "goversion", "goarch", "commit"),
    ),
    Metric(
        "karpenter_nodeclaims_created_total",
        "counter",
        "NodeClaims created, by why and for which NodePool.",
        ("reason", "nodepool", "min_values_relaxed"),
    ),
    Metric(
        "karpenter_nodeclaims_disrupted_total",
        "counter",
        "NodeClaims whose end was decided, by why.",
        _DISRUPTED,
    ),
    Metric(
        "karpenter_nodeclaims_terminated_total",
        "counter",
        "NodeClaims gone, their instances with them.",
        ("nodepool", "capacity_type", "zone"),
    ),
    Metric("karpenter_nodes_created_total", "counter", "Nodes that registered.", ("nodepool", "zone")),
    Metric("karpenter_nodes_terminated_total", "counter", "Nodes that are gone.", ("nodepool", "zone")),
    Metric("karpenter_nodes_drained_total", "counter", "Nodes drained of their pods.", ("nodepool",)),
    Metric(
        "karpenter_nodeclaims_unhealthy_disrupted_total",
        "counter",
        "NodeClaims replaced because their node was sick, by the condition that said so.",
        ("condition", "nodepool", "capacity_type", "image_id"),
    ),
    Metric(
        "karpenter_nodeclaims_termination_duration_seconds",
        "histogram",
        "From a NodeClaim's deletion until it was gone.",
        ("nodepool",),
    ),
    Metric(
        "karpenter_nodeclaims_instance_termination_duration_seconds",
        "histogram",
        "From the first request to terminate an instance until it was gone.",
        ("nodepool",),
    ),
    Metric(
        "karpenter_nodes_termination_duration_seconds",
        "histogram",
        "From a node's deletion until it was gone.",
        ("nodepool",),
    ),
    Metric(
        "karpenter_nodes_lifetime_duration_seconds",
        "histogram",
        "How old nodes became.",
        ("nodepool",),
    ),
    Metric("karpenter_pods_disruption_initiated_total", "counter", "Pods on nodes whose end was decided.", _DISRUPTED),
    Metric("karpenter_pods_drained_total", "counter", "Pods evicted by a drain, by why.", ("reason",)),
    Metric("karpenter_pods_eviction_requests_total", "counter", "Requests to evict a pod, by HTTP status.", ("code",)),
)
