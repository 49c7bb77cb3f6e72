"""The protobuf field numbers of our Structs' fields in Kubernetes' messages.

Source: `generated.proto` beside the Go types of k8s.io/api v0.36 (core/v1, apps/v1, policy/v1, coordination/v1, storage/v1)
and k8s.io/apimachinery v0.36 (meta/v1). Kubernetes never reuses a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from msgspec import UNSET, Struct, UnsetType, field

from journeyman.core.api import objects, storage, workloads
from journeyman.core.api.objects import APIStruct, LabelSelector, ResourceTexts
from journeyman.kube import error_translation

Numbers: TypeAlias = Mapping[str, "int | tuple[int, int] | None"]
"""The numbers of a Struct's fields by name. Two numbers lead through an intermediate message that JSON inlines; None is a
field that only custom resources have."""


class Named(APIStruct, frozen=True):
    """An object with a name: a scheduling gate."""

    name: str


class ContainerResourceClaim(APIStruct, frozen=True):
    """`claims` entry of a container's resources."""

    name: str
    request: str = ""


class ClaimMeta(APIStruct, frozen=True):
    """`metadata` of a claim's template, as far as it may be set."""

    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)


class ClaimResources(APIStruct, frozen=True):
    """`resources` of a claim."""

    limits: ResourceTexts = field(default_factory=dict)
    requests: ResourceTexts = field(default_factory=dict)


class DataSource(APIStruct, frozen=True, omit_defaults=False):
    """`dataSource` or `dataSourceRef` of a claim; the core group is `null`."""

    api_group: str | None = None
    kind: str = ""
    name: str = ""
    namespace: str | UnsetType = UNSET


class ClaimSpec(APIStruct, frozen=True, kw_only=True):
    """`spec` of a claim's template."""

    access_modes: tuple[str, ...] = ()
    selector: LabelSelector | None = None
    resources: ClaimResources
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str | None = None
    data_source: DataSource | None = None
    data_source_ref: DataSource | None = None
    volume_attributes_class_name: str | None = None


class ClaimTemplate(APIStruct, frozen=True):
    """The template for the claim of an ephemeral volume."""

    metadata: ClaimMeta
    spec: ClaimSpec


class EphemeralVolume(APIStruct, frozen=True):
    """`ephemeral` of a volume."""

    volume_claim_template: ClaimTemplate | None = None


class ElasticBlockStore(
    APIStruct, frozen=True, rename={"volume_id": "volumeID", "fs_type": "fsType", "read_only": "readOnly"}
):
    """`awsElasticBlockStore` of a volume."""

    volume_id: str
    fs_type: str = ""
    partition: int = 0
    read_only: bool = False


class LocalVolume(APIStruct, frozen=True):
    """`local` of a volume."""

    path: str
    fs_type: str | None = None


class HostPath(APIStruct, frozen=True):
    """`hostPath` of a volume."""

    path: str
    type: str | None = None


AS_JSON: Final[Mapping[tuple[type[Struct], str], type[Struct]]] = {
    (objects.PodSpec, "scheduling_gates"): Named,
    (objects.ResourceRequirements, "claims"): ContainerResourceClaim,
    (objects.Volume, "ephemeral"): EphemeralVolume,
    (storage.PersistentVolumeSpec, "aws_elastic_block_store"): ElasticBlockStore,
    (storage.PersistentVolumeSpec, "local"): LocalVolume,
    (storage.PersistentVolumeSpec, "host_path"): HostPath,
}
"""Fields that our Structs keep as raw JSON, and the Structs to encode it from."""

EMPTY_IS_MISSING: Final = frozenset(
    {(objects.Toleration, "operator"), (objects.ContainerPort, "protocol"), (objects.PodSpec, "scheduler_name")}
)
"""Texts that JSON leaves out when they are empty, and whose default in our Structs is another text."""

_OBJECT: Final[Numbers] = {"metadata": 1, "spec": 2, "status": 3}
_SPECIFIED: Final[Numbers] = {"metadata": 1, "spec": 2}
_EXPRESSION: Final[Numbers] = {"key": 1, "operator": 2, "values": 3}
_AFFINITY: Final[Numbers] = {"required": 1, "preferred": 2}
_QUANTITIES: Final[Numbers] = {"limits": 1, "requests": 2}

NUMBERS: Final[Mapping[type[Struct], Numbers]] = {
    objects.OwnerReference: {
        "kind": 1,
        "name": 3,
        "uid": 4,
        "api_version": 5,
        "controller": 6,
        "block_owner_deletion": 7,
    },
    objects.ObjectMeta: {
        "name": 1,
        "namespace": 3,
        "uid": 5,
        "resource_version": 6,
        "generation": 7,
        "creation_timestamp": 8,
        "deletion_timestamp": 9,
        "labels": 11,
        "annotations": 12,
        "owner_references": 13,
        "finalizers": 14,
    },
    # of PodCondition and NodeCondition, not of meta/v1
    objects.Condition: {
        "type": 1,
        "status": 2,
        "last_transition_time": 4,
        "reason": 5,
        "message": 6,
        "observed_generation": 7,
    },
    objects.Object: {"metadata": 1},
    objects.LabelSelectorRequirement: _EXPRESSION,
    objects.LabelSelector: {"match_labels": 1, "match_expressions": 2},
    objects.NodeSelectorRequirement: {**_EXPRESSION, "min_values": None},
    objects.NodeSelectorTerm: {"match_expressions": 1, "match_fields": 2},
    objects.NodeSelector: {"node_selector_terms": 1},
    objects.PreferredSchedulingTerm: {"weight": 1, "preference": 2},
    objects.NodeAffinity: _AFFINITY,
    objects.PodAffinityTerm: {
        "label_selector": 1,
        "namespaces": 2,
        "topology_key": 3,
        "namespace_selector": 4,
        "match_label_keys": 5,
        "mismatch_label_keys": 6,
    },
    objects.WeightedPodAffinityTerm: {"weight": 1, "pod_affinity_term": 2},
    objects.PodAffinity: _AFFINITY,
    objects.Affinity: {"node_affinity": 1, "pod_affinity": 2, "pod_anti_affinity": 3},
    objects.Toleration: {"key": 1, "operator": 2, "value": 3, "effect": 4, "toleration_seconds": 5},
    objects.Taint: {"key": 1, "value": 2, "effect": 3},
    objects.TopologySpreadConstraint: {
        "max_skew": 1,
        "topology_key": 2,
        "when_unsatisfiable": 3,
        "label_selector": 4,
        "min_domains": 5,
        "node_affinity_policy": 6,
        "node_taints_policy": 7,
        "match_label_keys": 8,
    },
    objects.ResourceRequirements: {**_QUANTITIES, "claims": 3},
    objects.ContainerPort: {"host_port": 2, "container_port": 3, "protocol": 4, "host_ip": 5},
    objects.Container: {"name": 1, "ports": 6, "resources": 8, "restart_policy": 24},
    objects.PersistentVolumeClaimSource: {"claim_name": 1},
    objects.Volume: {"name": 1, "persistent_volume_claim": (2, 10), "ephemeral": (2, 29)},
    objects.PodResourceClaim: {"name": 1, "resource_claim_name": 3, "resource_claim_template_name": 4},
    objects.PodSpec: {
        "volumes": 1,
        "containers": 2,
        "termination_grace_period_seconds": 4,
        "node_selector": 7,
        "node_name": 10,
        "host_network": 11,
        "affinity": 18,
        "scheduler_name": 19,
        "init_containers": 20,
        "tolerations": 22,
        "priority_class_name": 24,
        "priority": 25,
        "overhead": 32,
        "topology_spread_constraints": 33,
        "scheduling_gates": 38,
        "resource_claims": 39,
        "resources": 40,
    },
    objects.PodResourceClaimStatus: {"name": 1, "resource_claim_name": 2},
    objects.ContainerStatus: {"name": 1, "allocated_resources": 10, "resources": 11},
    objects.PodStatus: {
        "phase": 1,
        "conditions": 2,
        "start_time": 7,
        "container_statuses": 8,
        "init_container_statuses": 10,
        "nominated_node_name": 11,
        "resource_claim_statuses": 15,
        "allocated_resources": 19,
        "resources": 20,
    },
    objects.Pod: _OBJECT,
    objects.NodeSpec: {"provider_id": 3, "unschedulable": 4, "taints": 5},
    objects.NodeStatus: {"capacity": 1, "allocatable": 2, "conditions": 4},
    objects.Node: _OBJECT,
    objects.PodTemplateSpec: _SPECIFIED,
    objects.DaemonSetSpec: {"template": 2},
    objects.DaemonSet: _SPECIFIED,
    objects.PodDisruptionBudgetSpec: {
        "min_available": 1,
        "selector": 2,
        "max_unavailable": 3,
        "unhealthy_pod_eviction_policy": 4,
    },
    objects.PodDisruptionBudgetStatus: {
        "disruptions_allowed": 3,
        "current_healthy": 4,
        "desired_healthy": 5,
        "expected_pods": 6,
    },
    objects.PodDisruptionBudget: _OBJECT,
    storage.PersistentVolumeClaimSpec: {"volume_name": 3, "storage_class_name": 5},
    storage.PersistentVolumeClaimStatus: {"phase": 1},
    storage.PersistentVolumeClaim: _OBJECT,
    storage.VolumeNodeAffinity: {"required": 1},
    storage.CSIVolumeSource: {"driver": 1},
    storage.PersistentVolumeSpec: {
        "node_affinity": 9,
        "csi": (2, 22),
        "aws_elastic_block_store": (2, 2),
        "local": (2, 20),
        "host_path": (2, 3),
    },
    storage.PersistentVolume: _SPECIFIED,
    storage.VolumeNodeResources: {"count": 1},
    storage.CSINodeDriver: {"name": 1, "allocatable": 4},
    storage.CSINodeSpec: {"drivers": 1},
    storage.CSINode: _SPECIFIED,
    workloads.ServiceSpec: {"selector": 2},
    workloads.Service: _SPECIFIED,
    workloads.WorkloadSpec: {"replicas": 1, "selector": 2, "template": 3},
    workloads.Workload: _SPECIFIED,
    error_translation.StatusCause: {"message": 2, "field": 3},
    error_translation.StatusDetails: {"causes": 4, "retry_after_seconds": 5},
    error_translation.Status: {"message": 3, "reason": 4, "details": 5, "code": 6},
    Named: {"name": 1},
    ContainerResourceClaim: {"name": 1, "request": 2},
    ClaimMeta: {"labels": 11, "annotations": 12},
    ClaimResources: _QUANTITIES,
    DataSource: {"api_group": 1, "kind": 2, "name": 3, "namespace": 4},
    ClaimSpec: {
        "access_modes": 1,
        "resources": 2,
        "volume_name": 3,
        "selector": 4,
        "storage_class_name": 5,
        "volume_mode": 6,
        "data_source": 7,
        "data_source_ref": 8,
        "volume_attributes_class_name": 9,
    },
    ClaimTemplate: _SPECIFIED,
    EphemeralVolume: {"volume_claim_template": 1},
    ElasticBlockStore: {"volume_id": 1, "fs_type": 2, "partition": 3, "read_only": 4},
    LocalVolume: {"path": 1, "fs_type": 2},
    HostPath: {"path": 1, "type": 2},
}

LISTED: Final[frozenset[type[Any]]] = frozenset(
    {
        objects.Pod,
        objects.Node,
        objects.DaemonSet,
        objects.PodDisruptionBudget,
        storage.PersistentVolumeClaim,
        storage.PersistentVolume,
        storage.CSINode,
        workloads.Service,
        workloads.Workload,
    }
)
"""The kinds that are requested in this encoding: clusters may have many objects of them."""

UNSHARED_TYPES: Final[frozenset[type[Struct]]] = LISTED | {
    objects.ObjectMeta,
    objects.PodSpec,
    objects.PodStatus,
    objects.Container,
    objects.ContainerStatus,
    objects.NodeSpec,
    objects.NodeStatus,
    storage.PersistentVolumeClaimSpec,
    storage.PersistentVolumeSpec,
}
"""Messages that are hardly ever equal, so that they are not cached as a whole."""

UNSHARED_FIELDS: Final[Mapping[type[Struct], frozenset[str]]] = {
    objects.ObjectMeta: frozenset({"name", "uid", "resource_version", "creation_timestamp", "annotations"}),
    objects.PodSpec: frozenset({"node_name", "volumes", "containers", "init_containers"}),
    objects.Container: frozenset(),
    objects.ContainerStatus: frozenset(),
    objects.Condition: frozenset({"last_transition_time"}),
}
"""The fields in which messages differ as a rule; the other fields are cached together."""

UNREAD: Final[Mapping[type[Struct], tuple[int, ...]]] = {
    objects.ObjectMeta: (17,),  # managedFields
    objects.Container: (9,),  # volumeMounts: each pod's token volume has a name of its own
    # states, images, IDs, volumeMounts and whatever else differs between containers of one size
    objects.ContainerStatus: (2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15),
}
"""Fields that our Structs do not have, and in which the bytes of the shared fields would differ."""
