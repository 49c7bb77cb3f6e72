"""Names of labels, annotations, taints and finalizers.

Source: karpenter `pkg/apis/v1/labels.go`, karpenter-provider-aws `pkg/apis/v1/labels.go`, cloudpilot-ai's and
AliyunContainerService's karpenter-provider-alibabacloud `pkg/apis/v1alpha1/labels.go`, HuaweiCloudDeveloper's
karpenter-provider-huawei `pkg/apis/v1alpha1/labels.go`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

GROUP: Final = "karpenter.sh"
AWS_GROUP: Final = "karpenter.k8s.aws"
ALIBABA_GROUP: Final = "karpenter.k8s.alibabacloud"  # its ECSNodeClass is the one of most manifests and tutorials
ACS_GROUP: Final = "karpenter.alibabacloud.com"  # its ECSNodeClass is that of the vendor's own provider
HUAWEI_GROUP: Final = "karpenter.k8s.huawei"
INSTANCE_TYPE_GROUPS: Final = (AWS_GROUP, ALIBABA_GROUP, HUAWEI_GROUP)
"""The groups of the labels that describe instance types; both ECSNodeClasses have the same."""
OWN_GROUP: Final = "journeyman.dev"

# Kubernetes
HOSTNAME: Final = "kubernetes.io/hostname"
ARCH: Final = "kubernetes.io/arch"
OS: Final = "kubernetes.io/os"
ZONE: Final = "topology.kubernetes.io/zone"
REGION: Final = "topology.kubernetes.io/region"
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
WINDOWS_BUILD: Final = "node.kubernetes.io/windows-build"
ALIBABA_ZONE_ID: Final = "topology.k8s.alibabacloud/zone-id"
EXCLUDE_BALANCERS: Final = "node.kubernetes.io/exclude-from-external-load-balancers"

# Karpenter labels
NODEPOOL: Final = f"{GROUP}/nodepool"
CAPACITY_TYPE: Final = f"{GROUP}/capacity-type"
RESERVATION_ID: Final = f"{AWS_GROUP}/capacity-reservation-id"
REGISTERED: Final = f"{GROUP}/registered"
INITIALIZED: Final = f"{GROUP}/initialized"
TAGGED: Final = "karpenter.k8s.aws/tagged"  # NodeClaim: "true" once its instance has the node's name
DO_NOT_SYNC_TAINTS: Final = f"{GROUP}/do-not-sync-taints"
NODECLAIM_TAG: Final = f"{GROUP}/nodeclaim"  # on an instance: the NodeClaim it was launched for
EXAMINED_UNTIL: Final = (
    f"{OWN_GROUP}/examined-until"  # on a Lease: the last object that a run examined before its time was up
)
NEXT_RUN: Final = f"{OWN_GROUP}/next-run"  # on a Lease: when a message that a run sent starts the step again
NODECLAIM_UID_TAG: Final = f"{OWN_GROUP}/nodeclaim-uid"  # on an instance that we launched: that NodeClaim's UID
CLUSTER_UID_TAG: Final = (
    f"{OWN_GROUP}/cluster-uid"  # on an instance that we launched: the UID of the namespace kube-system
)

# Karpenter annotations
DO_NOT_DISRUPT: Final = f"{GROUP}/do-not-disrupt"
NODEPOOL_HASH: Final = f"{GROUP}/nodepool-hash"
NODEPOOL_HASH_VERSION: Final = f"{GROUP}/nodepool-hash-version"
TERMINATION_TIMESTAMP: Final = f"{GROUP}/nodeclaim-termination-timestamp"
MIN_VALUES_RELAXED: Final = f"{GROUP}/nodeclaim-min-values-relaxed"
DRA_DRIVERS: Final = f"{GROUP}/requested-dra-drivers"
PRICE_OVERLAY_APPLIED: Final = f"{GROUP}/price-overlay-applied"
CAPACITY_OVERLAY_APPLIED: Final = f"{GROUP}/capacity-overlay-applied"
BUFFER_POD: Final = f"{GROUP}/capacity-buffer-fake-pod"  # "true" on a virtual pod
BUFFER_NAME: Final = f"{GROUP}/capacity-buffer-name"
BUFFER_NAMESPACE: Final = f"{GROUP}/capacity-buffer-namespace"

DISRUPTION_COST: Final = f"{GROUP}/disruption-cost"  # pod: what evicting it costs, for consolidation
POD_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
OWN_POD_DELETION_COST: Final = f"{OWN_GROUP}/pod-deletion-cost"  # the value of POD_DELETION_COST if Journeyman wrote it
BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
MAX_EVICTIONS_PER_DAY: Final = (
    f"{OWN_GROUP}/max-evictions-per-day"  # pod: of its workload; NodePool: of all pods on its nodes
)
_POD_ANNOTATIONS: Final = frozenset(
    {
        *(DO_NOT_DISRUPT, BUFFER_POD, BUFFER_NAME, BUFFER_NAMESPACE, MAX_EVICTIONS_PER_DAY),
        *(DISRUPTION_COST, POD_DELETION_COST, OWN_POD_DELETION_COST),
    }
)
_UNANNOTATED: Final = (
    *("DaemonSet", "PodDisruptionBudget", "Service", "Workload", "PodTemplate", "ReplicationController", "Object"),
    *(
        "PersistentVolume",
        "StorageClass",
        "CSINode",
        "VolumeAttachment",
        "DeviceClass",
        "ResourceSlice",
        "ResourceClaim",
    ),
)
READ_ANNOTATIONS: Final[Mapping[str, frozenset[str]]] = {
    "Pod": _POD_ANNOTATIONS,
    "PersistentVolumeClaim": frozenset({BIND_COMPLETED}),
    **dict.fromkeys(_UNANNOTATED, frozenset[str]()),
}
"""The annotations that are read, by the name of the Struct (`Object` is a Namespace's).

The others, up to 256 KiB for each object, are not kept. All annotations of Nodes and NodeClaims are kept, because those of a NodeClaim
are copied to its Node, and of custom resources, which are few.
"""

# Journeyman's annotations on NodePools, set by users
PACKING: Final = f"{OWN_GROUP}/packing"  # "price" (the default) or "fewest-nodes", as Karpenter packs
NODE_SURCHARGE: Final = f"{OWN_GROUP}/node-surcharge"  # price per hour of a node beyond its instance
POD_NOMINATION: Final = f"{OWN_GROUP}/pod-nomination"  # "disabled": kube-scheduler alone chooses the node of a pod
REBALANCE: Final = f"{OWN_GROUP}/rebalance"  # "replace": rebalance recommendations replace the node
REBALANCE_REPLACE: Final = "replace"
PAUSE_DISRUPTION: Final = (
    f"{OWN_GROUP}/pause-disruption"  # "true", or an RFC 3339 time until which disruption is paused
)
PAUSE_ON_ALARMS: Final = f"{OWN_GROUP}/pause-on-alarms"  # names of the alarms that pause it, with commas; absent: all
HIBERNATE: Final = f"{OWN_GROUP}/hibernate"  # windows in which the NodePool has no nodes (`core.api.windows`)
TIME_ZONE: Final = (
    f"{OWN_GROUP}/time-zone"  # NodePool, CapacityBuffer: of their schedules, an IANA name; UTC by default
)
ACTIVE: Final = f"{OWN_GROUP}/active"  # CapacityBuffer: windows in which it reserves capacity; always by default

# Journeyman's annotations, written and read by Journeyman alone
PLANNED_PODS: Final = (
    f"{OWN_GROUP}/planned-pods"  # NodeClaim: the pods it was created for (`core.scheduling.nodeclaim_templates`)
)
NOMINATED_AT: Final = f"{OWN_GROUP}/nominated-at"  # NodeClaim: when pods were nominated to its node
OLDEST_POD_VERSION: Final = (
    f"{OWN_GROUP}/oldest-pod-version"  # NodeClaim: the lowest resourceVersion of its pods before they were nominated
)
REPLICA_INDEX: Final = f"{OWN_GROUP}/replica-index"  # NodeClaim of a static NodePool: which replica it is, from 0
DISRUPTION: Final = f"{OWN_GROUP}/node-disruption"  # NodeClaim: the NodeDisruption whose replacement it is
PODS_HASH: Final = f"{OWN_GROUP}/pods-hash"  # NodeClaim: the node's pods when lastPodEventTime was last computed
LAUNCH_RETRY: Final = f"{OWN_GROUP}/launch-retry"  # NodeClaim: "<failures> <RFC 3339 next attempt> <answered failures>"
REBALANCE_RECOMMENDED_AT: Final = f"{OWN_GROUP}/rebalance-recommended-at"  # NodeClaim: when the cloud recommended it
ADOPTED: Final = f"{OWN_GROUP}/adopted"  # NodeClaim: the provider id of the instance for which it was created again
NODE_MISSING_SINCE: Final = f"{OWN_GROUP}/node-missing-since"  # registered NodeClaim: since when its Node is missing
RESOLVED_AT: Final = f"{OWN_GROUP}/resolved-at"  # NodeClass: when its status was last compared with the cloud
CLEANED_UP_AT: Final = (
    f"{OWN_GROUP}/cleaned-up-at"  # NodeClass: when unused cloud resources of the cluster were deleted
)
ALARMS: Final = (
    f"{OWN_GROUP}/alarms"  # NodePool: JSON, the state and time of each alarm (`core.disruption.circuit_breaker`)
)
REGISTRATION_HISTORY: Final = f"{OWN_GROUP}/registration-history"  # NodePool: outcomes of its last four NodeClaims

# Finalizers and taints
TERMINATION_FINALIZER: Final = f"{GROUP}/termination"
DISRUPTED_TAINT: Final = f"{GROUP}/disrupted"  # effect NoSchedule
LEAVING_TAINT: Final = f"{OWN_GROUP}/leaving"  # effect PreferNoSchedule: the node will soon be deleted
UNREGISTERED_TAINT: Final = f"{GROUP}/unregistered"  # effect NoExecute

# Capacity types
ON_DEMAND: Final = "on-demand"
SPOT: Final = "spot"
RESERVED: Final = "reserved"

# Aliases that old manifests carry, normalised on input (karpenter `NormalizedLabels`)
ALIASES: Final[dict[str, str]] = {
    "failure-domain.beta.kubernetes.io/zone": ZONE,
    "failure-domain.beta.kubernetes.io/region": REGION,
    "beta.kubernetes.io/arch": ARCH,
    "beta.kubernetes.io/os": OS,
    "beta.kubernetes.io/instance-type": INSTANCE_TYPE,
    "topology.ebs.csi.aws.com/zone": ZONE,
    "topology.diskplugin.csi.alibabacloud.com/zone": ZONE,
}

# Labels that a pod may require although no template defines them ("Lenient" compatibility)
WELL_KNOWN: Final[frozenset[str]] = frozenset(
    {
        NODEPOOL,
        ZONE,
        REGION,
        INSTANCE_TYPE,
        ARCH,
        OS,
        CAPACITY_TYPE,
        WINDOWS_BUILD,
        "topology.k8s.aws/zone-id",
        ALIBABA_ZONE_ID,
    }
    | {
        f"{AWS_GROUP}/{name}"
        for name in (
            "instance-category",
            "instance-family",
            "instance-generation",
            "instance-size",
            "instance-cpu",
            "instance-cpu-manufacturer",
            "instance-cpu-sustained-clock-speed-mhz",
            "instance-memory",
            "instance-ebs-bandwidth",
            "instance-network-bandwidth",
            "instance-local-nvme",
            "instance-hypervisor",
            "instance-encryption-in-transit-supported",
            "instance-capability-flex",
            "instance-tenancy",
            "instance-gpu-name",
            "instance-gpu-manufacturer",
            "instance-gpu-count",
            "instance-gpu-memory",
            "instance-accelerator-name",
            "instance-accelerator-manufacturer",
            "instance-accelerator-count",
            "nitro-sandbox",
            "capacity-reservation-id",
            "capacity-reservation-type",
            "capacity-reservation-interruptible",
            "placement-group-id",
            "placement-group-partition",
        )
    }
    | {
        f"{ALIBABA_GROUP}/{name}"
        for name in (
            "instance-category",
            "instance-family",
            "instance-generation",
            "instance-size",
            "instance-cpu",
            "instance-cpu-model",
            "instance-memory",
            "instance-gpu-name",
            "instance-gpu-manufacturer",
            "instance-gpu-count",
            "instance-gpu-memory",
        )
    }
    | {
        f"{HUAWEI_GROUP}/{name}"
        for name in (
            "instance-category",  # this and the next two are additions to the published provider's
            "instance-family",
            "instance-generation",
            "instance-size",
            "instance-cpu",
            "instance-memory",
            "instance-network-bandwidth",
            "instance-gpu-name",
            "instance-gpu-manufacturer",
            "instance-gpu-count",
            "instance-gpu-memory",
        )
    }
)

# Label domains that users may not set (sub-domains included), unless the label is well known
RESTRICTED_DOMAINS: Final[tuple[str, ...]] = (GROUP, AWS_GROUP, ALIBABA_GROUP, ACS_GROUP, HUAWEI_GROUP)


def is_restricted(key: str) -> bool:
    """Whether requirements may not use this label: restricted domains unless well known, and the host name."""
    if key == HOSTNAME:
        return True
    if key in WELL_KNOWN:
        return False
    domain = key.split("/", 1)[0] if "/" in key else ""
    return any(domain == d or domain.endswith(f".{d}") for d in RESTRICTED_DOMAINS)


def node_class_label(group: str, kind: str) -> str:
    """Return the label with the name of the NodeClass, on NodeClaims and Nodes (karpenter `NodeClassLabelKey`)."""
    return f"{group}/{kind.lower()}"


EC2NODECLASS: Final = node_class_label(AWS_GROUP, "EC2NodeClass")
ECSNODECLASS: Final = node_class_label(ALIBABA_GROUP, "ECSNodeClass")
ACS_ECSNODECLASS: Final = node_class_label(ACS_GROUP, "ECSNodeClass")
CCENODECLASS: Final = node_class_label(HUAWEI_GROUP, "CCENodeClass")
NODE_CLASSES: Final = (EC2NODECLASS, ECSNODECLASS, ACS_ECSNODECLASS, CCENODECLASS)
"""The labels with the name of the NodeClass."""


# Taints that a starting node has for a while (karpenter `KnownEphemeralTaints`, to which karpenter-provider-huawei adds
# `network-unavailable`); key -> effects, empty means any
EPHEMERAL_TAINTS: Final[dict[str, tuple[str, ...]]] = {
    "node.kubernetes.io/not-ready": ("NoSchedule", "NoExecute"),
    "node.kubernetes.io/unreachable": ("NoSchedule",),
    "node.cloudprovider.kubernetes.io/uninitialized": ("NoSchedule",),
    "node.kubernetes.io/network-unavailable": ("NoSchedule",),
    UNREGISTERED_TAINT: ("NoExecute",),
}
EPHEMERAL_TAINT_PREFIX: Final = "readiness.k8s.io/"


def is_ephemeral_taint(key: str, effect: str) -> bool:
    """Whether the taint is removed by itself while a node starts."""
    return key.startswith(EPHEMERAL_TAINT_PREFIX) or effect in EPHEMERAL_TAINTS.get(key, ())
