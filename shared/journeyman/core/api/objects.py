"""Kubernetes objects and NodeClaims as they are read in bulk: immutable, with the fields in use only.

msgspec Structs decode from the API server's bytes, an order of magnitude faster than the official client's classes
(`ports.KubeStore.list` returns them). Unknown fields are ignored. Quantities stay text; `core.api.quantity` and
`core.api.resources` convert them to exact integers. A missing map or list is empty, a missing string "", a missing time
None.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

T = TypeVar("T")
QuantityText = str | int | float  # the API server always sends text; hand-written YAML may hold numbers
ResourceTexts = dict[str, QuantityText]


class OfferingKey(NamedTuple):
    """Names an offering. The instance type "*" stands for every instance type.

    Each capacity reservation of a type and zone is an offering of its own; without `reservation_id` all of them are meant.
    """

    instance_type: str
    zone: str
    capacity_type: str
    reservation_id: str = ""

    def __str__(self) -> str:
        """Return the name as in messages."""
        return "/".join(filter(None, self))

    @property
    def meant_by(self) -> tuple[OfferingKey, ...]:
        """The keys that mean this offering: its own, that of all its type's reservations, and that of every instance type."""
        of_type = OfferingKey(self.instance_type, self.zone, self.capacity_type)
        return tuple(dict.fromkeys((self, of_type, of_type._replace(instance_type="*"))))


class LearnedSize(msgspec.Struct, frozen=True, kw_only=True):
    """The least that nodes of an instance type and image were seen to offer to pods.

    It holds for nodes that are launched with the settings of the NodeClass whose hash is `settings`: a reservation of the
    kubelet or the size of a disk changes what a node offers. `node` is the last node that offered less of a resource than
    those before it; `last_seen` is when a node offered no more than this.
    """

    node_class: str
    instance_type: str
    image: str
    settings: str
    allocatable: Mapping[str, int]
    node: str
    last_seen: datetime

    @property
    def key(self) -> tuple[str, str, str]:
        """The NodeClass, the instance type and the image."""
        return self.node_class, self.instance_type, self.image


class APIStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """Base of all Structs of API objects: immutable, camelCase in JSON, encoded without defaults.

    They have no reference cycles, so they are not tracked by the garbage collector: lists decode in half the time.
    """


class OwnerReference(APIStruct, frozen=True):
    """One `metadata.ownerReferences` entry."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(APIStruct, frozen=True):
    """`metadata`."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that is the object's controller; Kubernetes allows one (`metav1.GetControllerOf`)."""
        return next((owner for owner in self.owner_references if owner.controller), None)

    @property
    def version_number(self) -> int:
        """The resource version as a number, which orders the versions of one API server; 0 if it is not a number."""
        return int(self.resource_version) if self.resource_version.isdecimal() else 0


class Condition(APIStruct, frozen=True):
    """One status condition of any kind (node conditions included)."""

    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None
    observed_generation: int = 0


class Object(APIStruct, frozen=True):
    """Fields of every object."""

    metadata: ObjectMeta = ObjectMeta()


class LabelSelectorRequirement(APIStruct, frozen=True):
    """`matchExpressions` entry of a label selector."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(APIStruct, frozen=True):
    """A label selector; an empty one selects everything, a missing one (None) nothing."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class NodeSelectorRequirement(APIStruct, frozen=True):
    """One requirement on node labels; `min_values` only where Karpenter allows it."""

    key: str
    operator: str
    values: tuple[str, ...] = ()
    min_values: int | None = None


class NodeSelectorTerm(APIStruct, frozen=True):
    """Requirements that must all match."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(APIStruct, frozen=True):
    """Terms of which one must match."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredSchedulingTerm(APIStruct, frozen=True):
    """A preferred node affinity term."""

    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(APIStruct, frozen=True):
    """`affinity.nodeAffinity`."""

    required: NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: tuple[PreferredSchedulingTerm, ...] = msgspec.field(
        default=(), name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class PodAffinityTerm(APIStruct, frozen=True):
    """A pod (anti-)affinity term."""

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(APIStruct, frozen=True):
    """A preferred pod (anti-)affinity term."""

    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(APIStruct, frozen=True):
    """`affinity.podAffinity` or `affinity.podAntiAffinity`."""

    required: tuple[PodAffinityTerm, ...] = msgspec.field(
        default=(), name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: tuple[WeightedPodAffinityTerm, ...] = msgspec.field(
        default=(), name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(APIStruct, frozen=True):
    """`spec.affinity`."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(APIStruct, frozen=True):
    """`spec.tolerations` entry."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class Taint(APIStruct, frozen=True):
    """A node taint."""

    key: str
    effect: str
    value: str = ""


class TopologySpreadConstraint(APIStruct, frozen=True):
    """`spec.topologySpreadConstraints` entry."""

    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: tuple[str, ...] = ()


class ResourceRequirements(APIStruct, frozen=True):
    """`resources` of a container or pod."""

    requests: ResourceTexts = {}
    limits: ResourceTexts = {}
    claims: tuple[dict[str, str], ...] = ()


class ContainerPort(APIStruct, frozen=True):
    """`ports` entry of a container."""

    container_port: int = 0
    host_port: int = 0
    protocol: str = "TCP"
    host_ip: str = msgspec.field(default="", name="hostIP")


class Container(APIStruct, frozen=True):
    """A container or init container (`restart_policy` "Always" makes a sidecar of the latter)."""

    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str = ""


class PersistentVolumeClaimSource(APIStruct, frozen=True):
    """`persistentVolumeClaim` of a volume."""

    claim_name: str = ""


class Volume(APIStruct, frozen=True):
    """A pod volume; only kinds that constrain scheduling are read."""

    name: str = ""
    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    ephemeral: dict[str, Any] | None = None


class PodResourceClaim(APIStruct, frozen=True):
    """`resourceClaims` entry of a pod: the name of a ResourceClaim or of a template."""

    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class PodSpec(APIStruct, frozen=True):
    """`spec` of a pod."""

    node_name: str = ""
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: ResourceTexts = {}
    resources: ResourceRequirements | None = None
    volumes: tuple[Volume, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    scheduling_gates: tuple[dict[str, str], ...] = ()
    priority: int | None = None
    priority_class_name: str = ""
    scheduler_name: str = "default-scheduler"
    termination_grace_period_seconds: int | None = None
    host_network: bool = False


class PodResourceClaimStatus(APIStruct, frozen=True):
    """The ResourceClaim created for such an entry; no name if none is needed."""

    name: str = ""
    resource_claim_name: str = ""


class ContainerStatus(APIStruct, frozen=True):
    """What the kubelet has allocated to a container (`allocated_resources`), and what the running one has (`resources`)."""

    name: str = ""
    allocated_resources: ResourceTexts = {}
    resources: ResourceRequirements | None = None


class PodStatus(APIStruct, frozen=True):
    """`status` of a pod; its own `allocated_resources` and `resources` are those of the pod level."""

    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    nominated_node_name: str = ""
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()
    start_time: datetime | None = None
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    allocated_resources: ResourceTexts = {}
    resources: ResourceRequirements | None = None


class Pod(Object, frozen=True):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> str:
        """`namespace/name`; the UID distinguishes objects that had the same name."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class NodeSpec(APIStruct, frozen=True):
    """`spec` of a node."""

    provider_id: str = msgspec.field(default="", name="providerID")
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class NodeStatus(APIStruct, frozen=True):
    """`status` of a node."""

    capacity: ResourceTexts = {}
    allocatable: ResourceTexts = {}
    conditions: tuple[Condition, ...] = ()


class Node(Object, frozen=True):
    """A node."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class NodeClassReference(APIStruct, frozen=True):
    """`nodeClassRef`."""

    group: str = ""
    kind: str = ""
    name: str = ""


class NodeClaimSpec(APIStruct, frozen=True):
    """`spec` of a NodeClaim (immutable once created)."""

    requirements: tuple[NodeSelectorRequirement, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    taints: tuple[Taint, ...] = ()
    startup_taints: tuple[Taint, ...] = ()
    node_class_ref: NodeClassReference = NodeClassReference()
    expire_after: str = "720h"
    termination_grace_period: str | None = None


class NodeClaimStatus(APIStruct, frozen=True):
    """`status` of a NodeClaim."""

    provider_id: str = msgspec.field(default="", name="providerID")
    node_name: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    capacity: ResourceTexts = {}
    allocatable: ResourceTexts = {}
    conditions: tuple[Condition, ...] = ()
    last_pod_event_time: datetime | None = None


class NodeClaim(Object, frozen=True):
    """A NodeClaim as read in bulk; `core.api.nodeclaim_schema` is the model that validates and makes the CRD."""

    spec: NodeClaimSpec = NodeClaimSpec()
    status: NodeClaimStatus = NodeClaimStatus()


class PodTemplateSpec(APIStruct, frozen=True):
    """`spec.template` of a workload."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class DaemonSetSpec(APIStruct, frozen=True):
    """`spec` of a DaemonSet."""

    template: PodTemplateSpec = PodTemplateSpec()


class DaemonSet(Object, frozen=True):
    """A DaemonSet."""

    spec: DaemonSetSpec = DaemonSetSpec()


class PodDisruptionBudgetSpec(APIStruct, frozen=True):
    """`spec` of a PodDisruptionBudget."""

    selector: LabelSelector | None = None
    min_available: str | int | None = None
    max_unavailable: str | int | None = None
    unhealthy_pod_eviction_policy: str = ""


class PodDisruptionBudgetStatus(APIStruct, frozen=True):
    """`status` of a PodDisruptionBudget."""

    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0


class PodDisruptionBudget(Object, frozen=True):
    """A PodDisruptionBudget."""

    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class LeaseSpec(APIStruct, frozen=True):
    """`spec` of a Lease. The times are as anyone wrote them: `kube.lease` reads them with care."""

    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: str = ""
    renew_time: str = ""
    lease_transitions: int = 0


class LeaseObject(Object, frozen=True):
    """A coordination.k8s.io Lease."""

    spec: LeaseSpec = LeaseSpec()


class Resource(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A kind: its path on the API server, and the type that its objects decode to (`dict` for raw JSON)."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool
    type: Any  # the Struct class, or dict

    @property
    def api_version(self) -> str:
        """`v1` or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path on the API server; without a namespace, of all namespaces."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root]
        if self.namespaced and namespace:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


def resource(group: str, version: str, kind: str, plural: str, type_: type[T], *, namespaced: bool) -> Resource[T]:
    """Return a kind from its parts."""
    return Resource(group=group, version=version, kind=kind, plural=plural, namespaced=namespaced, type=type_)


POD = resource("", "v1", "Pod", "pods", Pod, namespaced=True)
NODE = resource("", "v1", "Node", "nodes", Node, namespaced=False)
NAMESPACE = resource("", "v1", "Namespace", "namespaces", Object, namespaced=False)
EVENT = resource("", "v1", "Event", "events", Object, namespaced=True)
DAEMONSET = resource("apps", "v1", "DaemonSet", "daemonsets", DaemonSet, namespaced=True)
PDB = resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", PodDisruptionBudget, namespaced=True)
LEASE = resource("coordination.k8s.io", "v1", "Lease", "leases", LeaseObject, namespaced=True)
NODECLAIM = resource("karpenter.sh", "v1", "NodeClaim", "nodeclaims", NodeClaim, namespaced=False)
# Read as raw JSON: pydantic validates each object, so that an invalid one does not hide the others.
NODEPOOL: Resource[dict[str, Any]] = resource("karpenter.sh", "v1", "NodePool", "nodepools", dict, namespaced=False)
EC2NODECLASS: Resource[dict[str, Any]] = resource(
    "karpenter.k8s.aws", "v1", "EC2NodeClass", "ec2nodeclasses", dict, namespaced=False
)
ECSNODECLASS: Resource[dict[str, Any]] = resource(
    "karpenter.k8s.alibabacloud", "v1alpha1", "ECSNodeClass", "ecsnodeclasses", dict, namespaced=False
)
ACS_ECSNODECLASS: Resource[dict[str, Any]] = resource(
    "karpenter.alibabacloud.com", "v1alpha1", "ECSNodeClass", "ecsnodeclasses", dict, namespaced=False
)
CCENODECLASS: Resource[dict[str, Any]] = resource(
    "karpenter.k8s.huawei", "v1alpha1", "CCENodeClass", "ccenodeclasses", dict, namespaced=False
)
NODE_CLASSES = (EC2NODECLASS, ECSNODECLASS, ACS_ECSNODECLASS, CCENODECLASS)
NODE_OVERLAY: Resource[dict[str, Any]] = resource(
    "karpenter.sh", "v1alpha1", "NodeOverlay", "nodeoverlays", dict, namespaced=False
)
CAPACITY_BUFFER: Resource[dict[str, Any]] = resource(
    "autoscaling.x-k8s.io", "v1beta1", "CapacityBuffer", "capacitybuffers", dict, namespaced=True
)
NODE_DISRUPTION: Resource[dict[str, Any]] = resource(
    "journeyman.dev", "v1alpha1", "NodeDisruption", "nodedisruptions", dict, namespaced=False
)
CHURN_LEDGER: Resource[dict[str, Any]] = resource(
    "journeyman.dev", "v1alpha1", "ChurnLedger", "churnledgers", dict, namespaced=False
)
FLEET_PLAN: Resource[dict[str, Any]] = resource(
    "journeyman.dev", "v1alpha1", "FleetPlan", "fleetplans", dict, namespaced=False
)
FLEET_GUARD: Resource[dict[str, Any]] = resource(
    "journeyman.dev", "v1alpha1", "FleetGuard", "fleetguards", dict, namespaced=False
)
OFFERING_STATE: Resource[dict[str, Any]] = resource(
    "journeyman.dev", "v1alpha1", "OfferingState", "offeringstates", dict, namespaced=False
)


def condition_of(conditions: tuple[Condition, ...], type_: str) -> Condition | None:
    """Return the condition of this type, or None."""
    return next((c for c in conditions if c.type == type_), None)


def is_true(conditions: tuple[Condition, ...], type_: str) -> bool:
    """Whether the condition of this type exists and is True."""
    found = condition_of(conditions, type_)
    return found is not None and found.status == "True"


_YEAR: Final = re.compile(r"(\d{4,9})-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)", re.ASCII)


def times_in_range(value: Any) -> Any:
    """Return JSON values with times before year 1 and after 9999, which API servers admit, as the earliest and latest one."""
    if isinstance(value, dict):
        return {key: times_in_range(item) for key, item in value.items()}
    if isinstance(value, list):
        return [times_in_range(item) for item in value]
    if isinstance(value, str) and (found := _YEAR.fullmatch(value)):
        year = found[1]
        return "0001-01-01T00:00:00Z" if year == "0000" else "9999-12-31T23:59:59Z" if len(year) > 4 else value
    return value
