"""The table of metrics: name, kind, labels and help of each one. Karpenter's metrics keep Karpenter's names and labels.

An `Observation` names a metric; what writes it (EMF, Prometheus text, dashboards) reads the rest here. One module,
because it is one table.

Karpenter's metrics about its own process and its libraries have no counterpart and are left out: batchers, leader
election, `controller_runtime_*`, `workqueue_*`, `rest_client_*`, `aws_sdk_go_*`, and `operator_*` without a kind, which
Karpenter has deprecated. `NOT_EMITTED` lists those that are declared and have no values, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal

from msgspec import Struct

from journeyman.core.api import labels

Kind = Literal["counter", "gauge", "histogram"]


class Metric(Struct, frozen=True):
    """One metric. Units are in the name: `_seconds`, `_total` for counters. Karpenter's summaries are histograms here."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


def label_name(key: str) -> str:
    """Return a node label's name as a metric label: the part after the slash, in snake case."""
    return key.rsplit("/", 1)[-1].lower().replace("-", "_")


def object_label(key: str) -> str:
    """Return a Kubernetes label as a label of an `operator_*` metric: the whole key, with underscores."""
    return key.replace("/", "_").replace(".", "_").replace("-", "_")


OBJECT_LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    "nodeclaim": (*labels.NODE_CLASSES, labels.NODEPOOL),
    "node": (*labels.NODE_CLASSES, labels.NODEPOOL, labels.INITIALIZED),
    "nodepool": (),
    "ec2nodeclass": (),
    "ecsnodeclass": (),
    "ccenodeclass": (),
    "nodeoverlay": (),
    "capacitybuffer": (),
}
"""Which Kubernetes labels of an object are labels of its `operator_*` metrics, by kind in lower case."""

OPTIONAL_LABELS: Final = frozenset(labels.NODE_CLASSES) - {labels.EC2NODECLASS}
"""Those that metrics of objects without the label do not have; of the others the value is then empty."""

NODE_LABELS: Final = ("node_name", "phase", "managed", *sorted({label_name(key) for key in labels.WELL_KNOWN}))
"""Labels of a metric about one node: the node itself, then every well-known label that it may have."""

_DISRUPTED: Final = ("reason", "nodepool", "capacity_type", "consolidation_policy", "termination_mode")
_DECISION: Final = ("decision", "reason", "consolidation_type")
_SCORED: Final = ("decision", "nodepool", "policy")
_CALL: Final = ("controller", "method", "provider")
_OFFERING: Final = ("instance_type", "capacity_type", "zone")
_NODE_RESOURCE: Final = (*NODE_LABELS, "resource_type")
_POD: Final = ("name", "namespace")
_POD_STATE: Final = (
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
)

# Restates: karpenter pkg/metrics/metrics.go, pkg/controllers/nodeclaim/lifecycle/metrics.go,
# pkg/controllers/node/{health,termination}/metrics.go, pkg/operator/operator.go.
LIFECYCLE: Final = (
    Metric(
        "karpenter_build_info",
        "gauge",
        "A constant 1, labeled by the version that runs.",
        ("version", "goversion", "goarch", "commit"),
    ),
    Metric(
        "karpenter_nodeclaims_created_total",
        "counter",
        "Number of NodeClaims created.",
        ("reason", "nodepool", "min_values_relaxed"),
    ),
    Metric("karpenter_nodeclaims_disrupted_total", "counter", "Number of NodeClaims disrupted.", _DISRUPTED),
    Metric(
        "karpenter_nodeclaims_terminated_total",
        "counter",
        "Number of NodeClaims terminated.",
        ("nodepool", "capacity_type", "zone"),
    ),
    Metric("karpenter_nodes_created_total", "counter", "Number of nodes registered.", ("nodepool", "zone")),
    Metric("karpenter_nodes_terminated_total", "counter", "Number of nodes terminated.", ("nodepool", "zone")),
    Metric("karpenter_nodes_drained_total", "counter", "Number of nodes drained.", ("nodepool",)),
    Metric(
        "karpenter_nodeclaims_unhealthy_disrupted_total",
        "counter",
        "Number of NodeClaims deleted by node repair, by the node condition that was unhealthy.",
        ("condition", "nodepool", "capacity_type", "image_id"),
    ),
    Metric(
        "karpenter_nodeclaims_termination_duration_seconds",
        "histogram",
        "Time from a NodeClaim's deletion until it is removed.",
        ("nodepool",),
    ),
    Metric(
        "karpenter_nodeclaims_instance_termination_duration_seconds",
        "histogram",
        "Time from the first request to terminate an instance until it is terminated.",
        ("nodepool",),
    ),
    Metric(
        "karpenter_nodes_termination_duration_seconds",
        "histogram",
        "Time from a node's deletion until its finalizer is removed.",
        ("nodepool",),
    ),
    Metric(
        "karpenter_nodes_lifetime_duration_seconds",
        "histogram",
        "Age of nodes when they are terminated.",
        ("nodepool",),
    ),
    Metric(
        "karpenter_pods_disruption_initiated_total",
        "counter",
        "Number of reschedulable pods on nodes whose disruption started.",
        _DISRUPTED,
    ),
    Metric(
        "karpenter_pods_drained_total",
        "counter",
        "Number of pods evicted or deleted during node termination, by reason.",
        ("reason",),
    ),
    Metric(
        "karpenter_pods_eviction_requests_total",
        "counter",
        "Number of eviction requests, by HTTP status code.",
        ("code",),
    ),
)

# Restates: karpenter pkg/controllers/provisioning/scheduling/metrics.go, pkg/controllers/state/metrics.go.
SCHEDULING: Final = (
    Metric(
        "karpenter_scheduler_scheduling_duration_seconds",
        "histogram",
        "Duration of a scheduling simulation, for provisioning or disruption.",
        ("controller",),
    ),
    Metric(
        "karpenter_scheduler_unschedulable_pods_count",
        "gauge",
        "Number of unschedulable pods in the last scheduling simulation.",
        ("controller",),
    ),
    Metric(
        "journeyman_scheduler_unreached_pods",
        "gauge",
        "Number of pods that the last scheduling simulation did not reach in its time; they are scheduled again.",
    ),
    Metric(
        "karpenter_scheduler_queue_depth",
        "gauge",
        "Number of pods that a scheduling simulation has not decided yet.",
        ("controller", "scheduling_id"),
    ),
    Metric(
        "karpenter_scheduler_unfinished_work_seconds",
        "gauge",
        "Time that a scheduling simulation in progress has taken so far.",
        ("controller", "scheduling_id"),
    ),
    Metric(
        "karpenter_scheduler_ignored_pods_count",
        "gauge",
        "Number of pending pods ignored during scheduling, because no node of a NodePool can run them.",
    ),
    Metric(
        "karpenter_scheduler_pending_pods_by_effective_zone_count",
        "gauge",
        "Number of pending pods by the zone that their selectors and volumes allow: its name, flexible (several), or none.",
        ("controller", "zone"),
    ),
    Metric(
        "karpenter_cluster_state_node_count",
        "gauge",
        "Number of nodes, NodeClaims whose node has not registered included.",
    ),
    Metric(
        "karpenter_cluster_state_synced",
        "gauge",
        "1 if every NodeClaim is launched, so that decisions see the whole cluster; 0 otherwise.",
    ),
    Metric("karpenter_cluster_state_unsynced_time_seconds", "gauge", "Time for which the cluster state is not synced."),
    Metric(
        "karpenter_pods_scheduling_decision_duration_seconds",
        "histogram",
        "Time from when a pod was first seen until its first scheduling decision.",
    ),
)

# Restates: karpenter pkg/controllers/disruption/metrics.go.
DISRUPTION: Final = (
    Metric(
        "karpenter_voluntary_disruption_decisions_total", "counter", "Number of disruption commands started.", _DECISION
    ),
    Metric(
        "karpenter_voluntary_disruption_decisions_by_nodepool_total",
        "counter",
        "Number of disruption commands started, by NodePool of the candidates.",
        (*_DECISION, "nodepool"),
    ),
    Metric(
        "karpenter_voluntary_disruption_eligible_nodes",
        "gauge",
        "Number of nodes eligible for disruption, by reason.",
        ("reason",),
    ),
    Metric(
        "karpenter_voluntary_disruption_failed_validations_total",
        "counter",
        "Number of candidates of proposed disruption commands that failed validation.",
        ("consolidation_type",),
    ),
    Metric(
        "karpenter_voluntary_disruption_queue_failures_total",
        "counter",
        "Number of disruption commands rolled back.",
        _DECISION,
    ),
    Metric(
        "karpenter_voluntary_disruption_consolidation_timeouts_total",
        "counter",
        "Number of consolidation passes that reached their timeout.",
        ("consolidation_type",),
    ),
    Metric(
        "karpenter_nodepools_allowed_disruptions",
        "gauge",
        "Number of nodes of a NodePool that its budgets allow to be disrupted at once, by reason, used or not.",
        ("nodepool", "reason"),
    ),
    Metric(
        "karpenter_nodepools_nodes_consuming_budgets",
        "gauge",
        "Number of nodes of a NodePool that are disrupting or not ready, and count against its budgets.",
        ("nodepool", "reason"),
    ),
    Metric(
        "karpenter_voluntary_disruption_decision_evaluation_duration_seconds",
        "histogram",
        "Duration of the search for a disruption command, by reason and consolidation type.",
        ("reason", "consolidation_type"),
    ),
    Metric(
        "karpenter_consolidation_score",
        "histogram",
        "Score of consolidation moves under the Balanced policy: savings relative to disruption.",
        _SCORED,
    ),
    Metric(
        "karpenter_consolidation_moves_total",
        "counter",
        "Number of consolidations found, by NodePool, policy and decision; only the Balanced policy refuses any.",
        _SCORED,
    ),
)

# Restates: karpenter pkg/cloudprovider/metrics/cloudprovider.go; karpenter-provider-aws
# pkg/controllers/{metrics,interruption}/metrics.go, pkg/providers/{instance,instancetype,launchtemplate}/metrics.go.
CLOUD: Final = (
    Metric(
        "karpenter_cloudprovider_duration_seconds",
        "histogram",
        "Duration of cloud provider method calls.",
        _CALL,
    ),
    Metric(
        "karpenter_cloudprovider_errors_total",
        "counter",
        "Number of errors returned from cloud provider calls.",
        (*_CALL, "error"),
    ),
    Metric(
        "karpenter_interruption_received_messages_total",
        "counter",
        "Number of interruption messages received, by message type.",
        ("message_type",),
    ),
    Metric(
        "karpenter_interruption_message_queue_duration_seconds",
        "histogram",
        "Time from an interruption event until it is processed.",
    ),
    Metric("karpenter_interruption_deleted_messages_total", "counter", "Number of interruption messages processed."),
    Metric(
        "karpenter_interruption_instance_status_unhealthy_total",
        "counter",
        "Number of instances with a failed EC2 status check, by category of the check.",
        ("category",),
    ),
    Metric(
        "karpenter_cloudprovider_instance_launch_failures_total",
        "counter",
        "Number of instance launch failures, by zone, capacity type and error code.",
        ("zone", "zone_id", "capacity_type", "reason"),
    ),
    Metric(
        "karpenter_cloudprovider_instance_termination_failures_total",
        "counter",
        "Number of failed requests to terminate an instance.",
        ("zone", "zone_id"),
    ),
    Metric(
        "karpenter_cloudprovider_instance_type_cpu_cores", "gauge", "vCPUs of an instance type.", ("instance_type",)
    ),
    Metric(
        "karpenter_cloudprovider_instance_type_memory_bytes",
        "gauge",
        "Memory of an instance type, in bytes.",
        ("instance_type",),
    ),
    Metric(
        "karpenter_cloudprovider_instance_type_offering_available",
        "gauge",
        "1 if the offering is available, 0 if a recent launch found it unavailable.",
        _OFFERING,
    ),
    Metric(
        "karpenter_cloudprovider_instance_type_offering_price_estimate",
        "gauge",
        "Estimated price of an offering per hour.",
        _OFFERING,
    ),
    Metric(
        "karpenter_ec2nodeclasses_userdata_bytes",
        "gauge",
        "Size of the user data of an EC2NodeClass's instances.",
        ("nodeclass",),
    ),
)

# Restates: karpenter pkg/controllers/metrics/node/controller.go.
# These and those of NodePools, pods and conditions follow from the API objects alone, and are off with
# DISABLE_CLUSTER_STATE_OBSERVABILITY.
NODES: Final = (
    Metric("karpenter_nodes_allocatable", "gauge", "Resources that a node can allocate to pods.", _NODE_RESOURCE),
    Metric(
        "karpenter_nodes_total_pod_requests",
        "gauge",
        "Resources requested by the pods bound to a node, DaemonSet pods included.",
        _NODE_RESOURCE,
    ),
    Metric(
        "karpenter_nodes_total_pod_limits",
        "gauge",
        "Resource limits of the pods bound to a node, DaemonSet pods included.",
        _NODE_RESOURCE,
    ),
    Metric(
        "karpenter_nodes_total_daemon_requests",
        "gauge",
        "Resources requested by the DaemonSet pods bound to a node.",
        _NODE_RESOURCE,
    ),
    Metric(
        "karpenter_nodes_total_daemon_limits",
        "gauge",
        "Resource limits of the DaemonSet pods bound to a node.",
        _NODE_RESOURCE,
    ),
    Metric(
        "karpenter_nodes_system_overhead",
        "gauge",
        "Resources reserved for the system: a node's capacity minus its allocatable.",
        _NODE_RESOURCE,
    ),
    Metric("karpenter_nodes_current_lifetime_seconds", "gauge", "Age of a node in seconds.", NODE_LABELS),
    Metric(
        "karpenter_cluster_utilization_percent",
        "gauge",
        "Share of all nodes' allocatable resources that pods request.",
        ("resource_type",),
    ),
)

# Restates: karpenter pkg/controllers/metrics/nodepool/controller.go, pkg/state/cost/cost.go.
NODEPOOLS: Final = (
    Metric("karpenter_nodepools_limit", "gauge", "Limits of a NodePool.", ("resource_type", "nodepool")),
    Metric(
        "karpenter_nodepools_usage",
        "gauge",
        "Resources provisioned for a NodePool.",
        ("resource_type", "nodepool"),
    ),
    Metric("karpenter_nodepools_cost_total", "gauge", "Price of a NodePool's nodes per hour.", ("nodepool",)),
    Metric(
        "karpenter_nodepools_cost_tracker_errors_total",
        "counter",
        "Number of nodes whose price is unknown.",
        ("nodepool",),
    ),
)

# Restates: karpenter pkg/controllers/metrics/pod/controller.go.
PODS: Final = (
    Metric("karpenter_pods_state", "gauge", "A constant 1, labeled by the current state of a pod.", _POD_STATE),
    Metric("karpenter_pods_startup_duration_seconds", "histogram", "Time from pod creation until the pod is running."),
    Metric("karpenter_pods_bound_duration_seconds", "histogram", "Time from pod creation until the pod is bound."),
    Metric(
        "karpenter_pods_provisioning_bound_duration_seconds",
        "histogram",
        "Time from the first decision that a pod is schedulable until the pod is bound.",
    ),
    Metric(
        "karpenter_pods_provisioning_startup_duration_seconds",
        "histogram",
        "Time from the first decision that a pod is schedulable until the pod is running.",
    ),
    Metric("karpenter_pods_unstarted_time_seconds", "gauge", "Time since creation of a pod that is not running.", _POD),
    Metric("karpenter_pods_unbound_time_seconds", "gauge", "Time since creation of a pod that is not bound.", _POD),
    Metric(
        "karpenter_pods_provisioning_unbound_time_seconds",
        "gauge",
        "Time since the first decision that a pod is schedulable, while it is not bound.",
        _POD,
    ),
    Metric(
        "karpenter_pods_provisioning_unstarted_time_seconds",
        "gauge",
        "Time since the first decision that a pod is schedulable, while it is not running.",
        _POD,
    ),
    Metric(
        "karpenter_pods_provisioning_scheduling_undecided_time_seconds",
        "gauge",
        "Time since creation of a pod without a scheduling decision.",
        _POD,
    ),
)


def _conditions_of(kind: str) -> Iterator[Metric]:
    own = tuple(object_label(key) for key in OBJECT_LABELS[kind])
    one, condition = ("namespace", "name", *own), ("type", "status")
    prefix = f"operator_{kind}_status_condition"
    yield Metric(
        f"{prefix}_transition_seconds",
        "histogram",
        "Time for which a status condition had a status before it changed.",
        (*condition, *own),
    )
    yield Metric(
        f"{prefix}_transitions_total",
        "counter",
        "Number of changes of a status condition's status.",
        (*condition, "reason", *own),
    )
    yield Metric(
        f"{prefix}_count", "gauge", "A constant 1 for each status condition of an object.", (*one, *condition, "reason")
    )
    yield Metric(
        f"{prefix}_current_status_seconds",
        "gauge",
        "Time for which a status condition has had its status.",
        (*one, *condition, "reason"),
    )
    yield Metric(
        f"operator_{kind}_termination_current_time_seconds",
        "gauge",
        "Time since the deletion of an object that is terminating.",
        one,
    )
    yield Metric(
        f"operator_{kind}_termination_duration_seconds",
        "histogram",
        "Time from an object's deletion until it is removed.",
        own,
    )


# Restates: awslabs/operatorpkg status/metrics.go; karpenter pkg/controllers/controllers.go `NewControllers`.
CONDITIONS: Final = tuple(metric for kind in OBJECT_LABELS for metric in _conditions_of(kind))

# Metrics that Karpenter does not have.
OWN: Final = (
    Metric(
        "journeyman_plan_defects_total",
        "counter",
        "Number of plans in which verification found a defect; the defective part is not executed.",
    ),
    Metric(
        "journeyman_errors_total",
        "counter",
        "Number of errors that stopped a run or a part of it, by error class.",
        ("controller", "error"),
    ),
    Metric(
        "journeyman_sweeps_total",
        "counter",
        "Number of sweeps that swept at least one cluster; without one a minute, lost work is not found.",
    ),
    Metric(
        "journeyman_cluster_register_errors_total",
        "counter",
        "Number of parameters of the register of clusters that were skipped, and of failed reads of the register.",
    ),
    Metric(
        "journeyman_requeue_chains_ended_total",
        "counter",
        "Number of chains of requeues that reached their limit; the next sweep continued their work.",
        ("controller",),
    ),
    Metric(
        "journeyman_lease_problems_total",
        "counter",
        "Number of runs that found the Lease of their step held longer than any run lasts (`held`), or acquired one that was "
        "dated ahead (`disbelieved`).",
        ("controller", "problem"),
    ),
    Metric(
        "journeyman_lost_objects_held",
        "gauge",
        "Instances, Nodes and NodeClaims that look lost and are not removed, because more of the fleet would go than may within an hour.",
    ),
    Metric(
        "journeyman_foreign_instances",
        "gauge",
        "Instances with this cluster's name in their tags and the UID of another cluster; they are left alone.",
    ),
    Metric(
        "journeyman_nodeclaims_adopted_total",
        "counter",
        "Number of NodeClaims that were created again for instances that had lost them.",
        ("nodepool",),
    ),
    Metric(
        "journeyman_nodepools_disruption_paused",
        "gauge",
        "Whether the circuit breaker pauses all disruption of the NodePool, or the launch of replacements in it.",
        ("nodepool", "scope"),
    ),
    Metric(
        "journeyman_events_omitted_total",
        "counter",
        "Number of Kubernetes Events that a run did not write, because of a limit or its end; the next run writes what still holds.",
        ("reason",),
    ),
    Metric(
        "journeyman_objects_skipped_total",
        "counter",
        "Number of times that an object was skipped because it does not validate or cannot be evaluated, by kind.",
        ("kind",),
    ),
    Metric(
        "journeyman_scrape_object_skipped",
        "gauge",
        "1 for each object that a scrape has no gauges of, because it cannot be evaluated.",
        ("kind", "namespace", "name", "error", "place"),
    ),
    Metric(
        "journeyman_offerings_refused_total",
        "counter",
        "Number of launches for which an offering was unavailable.",
        ("instance_type", "zone", "capacity_type"),
    ),
    Metric(
        "journeyman_launch_failures_total",
        "counter",
        "Number of launches that failed through the fault of an object: a NodeClass, a NodePool, a subnet or the account.",
        ("scope", "reason"),
    ),
    Metric(
        "journeyman_disruption_evictions_total",
        "counter",
        "Number of pods that finished disruption commands have moved.",
        ("nodepool", "reason"),
    ),
    Metric(
        "journeyman_consolidations_reversed_total",
        "counter",
        "Number of consolidations after which a node was launched again for a workload that had moved: its pods were placed "
        "otherwise than planned (placement), or it grew (growth).",
        ("nodepool", "cause"),
    ),
    Metric(
        "journeyman_launches_unused_total",
        "counter",
        "Number of nodes that were launched for pods and joined, and that these pods do not use: they are too small (size), or "
        "kube-scheduler does not bind the pods (unbound).",
        ("nodepool", "cause"),
    ),
    Metric(
        "journeyman_pods_launch_delayed",
        "gauge",
        "Number of pending pods for which the next launch waits, because nodes launched before were not used.",
    ),
    Metric(
        "journeyman_nodes_not_believed",
        "gauge",
        "Number of nodes that report more CPU, memory or pods than their instance type has.",
    ),
    Metric(
        "journeyman_on_demand_prices_estimated",
        "gauge",
        "1 while on-demand prices are those of another region, because the pricing API has not answered yet; else 0.",
    ),
    Metric(
        "journeyman_cloud_resources_deleted_total",
        "counter",
        "Number of launch templates and instance profiles that were deleted because nothing uses them.",
        ("kind",),
    ),
    Metric("journeyman_kube_requests_total", "counter", "Number of requests to the API server.", ("controller",)),
    Metric(
        "journeyman_kube_retries_total", "counter", "Number of retried requests to the API server.", ("controller",)
    ),
    Metric(
        "journeyman_kube_sent_bytes_total", "counter", "Bytes of request bodies to the API server.", ("controller",)
    ),
    Metric(
        "journeyman_kube_received_bytes_total",
        "counter",
        "Bytes of response bodies from the API server, compressed.",
        ("controller",),
    ),
)

METRICS: Final[Mapping[str, Metric]] = {
    metric.name: metric
    for metric in (
        *LIFECYCLE,
        *SCHEDULING,
        *DISRUPTION,
        *CLOUD,
        *NODES,
        *NODEPOOLS,
        *PODS,
        *CONDITIONS,
        *OWN,
    )
}
"""Every metric by name."""

_NEEDS_WATCH: Final = (
    "Needs a process that watches every pod; the gauges of waiting pods show the time while it passes."
)
_FIRST_SEEN: Final = (
    "Needs the time of a pod's first scheduling decision, which is not stored; see the gauges since creation."
)
_SINGLE_RUN: Final = "A scheduling simulation starts and ends within one invocation; nothing can be read in between."
_KUBELET: Final = "The kubelet writes a Node's conditions; no run sees each change. The gauges show the current status."
_NO_FINALIZER: Final = "Journeyman has no finalizer on such objects, and does not see when they are removed."

NOT_EMITTED: Final[Mapping[str, str]] = {
    "karpenter_scheduler_queue_depth": _SINGLE_RUN,
    "karpenter_scheduler_unfinished_work_seconds": _SINGLE_RUN,
    "karpenter_pods_scheduling_decision_duration_seconds": _FIRST_SEEN,
    "karpenter_nodepools_cost_tracker_errors_total": "A node whose price is unknown counts as 0 and is not an error.",
    "karpenter_pods_startup_duration_seconds": _NEEDS_WATCH,
    "karpenter_pods_bound_duration_seconds": _NEEDS_WATCH,
    "karpenter_pods_provisioning_bound_duration_seconds": _FIRST_SEEN,
    "karpenter_pods_provisioning_startup_duration_seconds": _FIRST_SEEN,
    "karpenter_pods_provisioning_unbound_time_seconds": _FIRST_SEEN,
    "karpenter_pods_provisioning_unstarted_time_seconds": _FIRST_SEEN,
    "karpenter_pods_provisioning_scheduling_undecided_time_seconds": _FIRST_SEEN,
    "operator_node_status_condition_transition_seconds": _KUBELET,
    "operator_node_status_condition_transitions_total": _KUBELET,
    **{
        f"operator_{kind}_termination_duration_seconds": _NO_FINALIZER
        for kind in ("nodepool", "nodeoverlay", "capacitybuffer")
    },
}
"""Metrics of Karpenter's that are declared and have no values, each with the reason."""
