"""Every metric we emit, declared once: name, kind, labels and help. Karpenter's keep Karpenter's names and labels.

Decisions name a metric in an `Observation`; whoever exposes it (EMF, Prometheus text, dashboards) reads the rest here.

Restates: karpenter pkg/metrics, pkg/controllers/*/metrics.go; karpenter-provider-aws pkg/controllers/interruption/metrics.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

Kind = Literal["counter", "gauge", "histogram"]


class Metric(Struct, frozen=True):
    """One metric. Units are in the name: `_seconds`, `_total` for counters."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


_DISRUPTED: Final = ("reason", "nodepool", "capacity_type", "consolidation_policy", "termination_mode")
_DECISION: Final = ("decision", "reason", "consolidation_type")
_CLOUD_CALL: Final = ("controller", "method", "provider")

_NODECLAIMS: Final = (
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
)

_PODS: Final = (
    Metric("karpenter_pods_disruption_initiated_total", "counter", "Pods on nodes whose end was decided.", _DISRUPTED),
    Metric("karpenter_pods_drained_total", "counter", "Pods evicted by a drain, by why.", ("reason",)),
    Metric("karpenter_pods_eviction_requests_total", "counter", "Requests to evict a pod, by HTTP status.", ("code",)),
)

_SCHEDULER: Final = (
    Metric(
        "karpenter_scheduler_scheduling_duration_seconds",
        "histogram",
        "How long one scheduling pass took.",
        ("controller",),
    ),
    Metric(
        "karpenter_scheduler_unschedulable_pods_count",
        "gauge",
        "Pods that the last pass could not place.",
        ("controller",),
    ),
)

_DISRUPTION: Final = (
    Metric(
        "karpenter_voluntary_disruption_decisions_total", "counter", "Disruption decisions that went ahead.", _DECISION
    ),
    Metric(
        "karpenter_voluntary_disruption_decisions_by_nodepool_total",
        "counter",
        "The same for each NodePool that loses nodes.",
        (*_DECISION, "nodepool"),
    ),
    Metric("karpenter_voluntary_disruption_eligible_nodes", "gauge", "Nodes that could be disrupted now.", ("reason",)),
    Metric(
        "karpenter_voluntary_disruption_failed_validations_total",
        "counter",
        "Decisions that no longer held when looked at again.",
        ("consolidation_type",),
    ),
    Metric("karpenter_voluntary_disruption_queue_failures_total", "counter", "Commands that were undone.", _DECISION),
    Metric(
        "karpenter_voluntary_disruption_consolidation_timeouts_total",
        "counter",
        "Consolidation passes that ran out of time.",
        ("consolidation_type",),
    ),
    Metric(
        "karpenter_nodepools_allowed_disruptions",
        "gauge",
        "How many nodes the budgets allow to be disrupted at once.",
        ("nodepool", "reason"),
    ),
    Metric(
        "karpenter_nodepools_nodes_consuming_budgets",
        "gauge",
        "How many nodes take a place in the budgets now.",
        ("nodepool", "reason"),
    ),
)

_CLOUD: Final = (
    Metric(
        "karpenter_cloudprovider_duration_seconds",
        "histogram",
        "How long calls of the cloud provider took.",
        _CLOUD_CALL,
    ),
    Metric(
        "karpenter_cloudprovider_errors_total",
        "counter",
        "Calls of the cloud provider that failed, by error.",
        (*_CLOUD_CALL, "error"),
    ),
    Metric(
        "karpenter_interruption_received_messages_total",
        "counter",
        "Interruption messages received, by kind.",
        ("message_type",),
    ),
    Metric(
        "karpenter_interruption_message_queue_duration_seconds",
        "histogram",
        "From an interruption event to the run that acted on it.",
    ),
)

_OWN: Final = (
    Metric("journeyman_plan_defects_total", "counter", "Plans that were not carried out because verify rejects them."),
    Metric(
        "journeyman_offerings_refused_total",
        "counter",
        "Offerings that the cloud could not give.",
        ("instance_type", "zone", "capacity_type"),
    ),
    Metric("journeyman_kube_requests_total", "counter", "Requests that a run sent to the API server.", ("controller",)),
    Metric("journeyman_kube_retries_total", "counter", "Those of them that repeated another.", ("controller",)),
    Metric("journeyman_kube_sent_bytes_total", "counter", "Bytes of the requests' bodies.", ("controller",)),
    Metric(
        "journeyman_kube_received_bytes_total",
        "counter",
        "Bytes of the answers' bodies, compressed as they came.",
        ("controller",),
    ),
)

METRICS: Final[Mapping[str, Metric]] = {
    metric.name: metric for metric in (*_NODECLAIMS, *_PODS, *_SCHEDULER, *_DISRUPTION, *_CLOUD, *_OWN)
}
"""Every metric by name."""
