"""Scheduling and voluntary disruption: what was decided, how long it took, what stood in the way.

Restates: karpenter pkg/controllers/provisioning/scheduling/metrics.go, pkg/controllers/state/metrics.go,
pkg/controllers/disruption/metrics.go.
"""

from __future__ import annotations

from typing import Final

from journeyman.core.api.metrics.metric import Metric

_DECISION: Final = ("decision", "reason", "consolidation_type")
_SCORED: Final = ("decision", "nodepool", "policy")

SCHEDULING: Final = (
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
    Metric(
        "karpenter_scheduler_queue_depth",
        "gauge",
        "Pods that a pass has still to place.",
        ("controller", "scheduling_id"),
    ),
    Metric(
        "karpenter_scheduler_unfinished_work_seconds",
        "gauge",
        "How long a pass has been at it.",
        ("controller", "scheduling_id"),
    ),
    Metric(
        "karpenter_scheduler_ignored_pods_count",
        "gauge",
        "Pods that are left out: they ask for none of our nodes, or for something that cannot be.",
    ),
    Metric(
        "karpenter_scheduler_pending_pods_by_effective_zone_count",
        "gauge",
        "Pods without a node by the zone that their selectors and volumes leave: its name, flexible, or none.",
        ("controller", "zone"),
    ),
    Metric("karpenter_cluster_state_node_count", "gauge", "Nodes, and NodeClaims whose node is still to come."),
    Metric("karpenter_cluster_state_synced", "gauge", "1 if decisions see the whole cluster, 0 if not."),
    Metric("karpenter_cluster_state_unsynced_time_seconds", "gauge", "For how long they have not."),
    Metric(
        "karpenter_pods_scheduling_decision_duration_seconds",
        "histogram",
        "From when a pod was first seen until it was decided where it goes.",
    ),
)

DISRUPTION: Final = (
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
    Metric(
        "karpenter_voluntary_disruption_decision_evaluation_duration_seconds",
        "histogram",
        "How long it took to look for something to disrupt.",
        ("reason", "consolidation_type"),
    ),
    Metric(
        "karpenter_consolidation_score",
        "histogram",
        "How far a move's savings outweigh its disruption, where the policy is Balanced.",
        _SCORED,
    ),
    Metric(
        "karpenter_consolidation_moves_total",
        "counter",
        "Moves that were scored, where the policy is Balanced.",
        _SCORED,
    ),
)
