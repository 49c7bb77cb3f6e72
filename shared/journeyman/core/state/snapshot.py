"""Snapshot: one cluster at one moment, immutable, indexed once.

`steps.load` reads it (nodes and claims first, then pods, so that a race launches too few nodes rather than too many);
every decision is a function of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api.dra import DeviceClass, ResourceClaim, ResourceSlice
from journeyman.core.api.launch_faults import LaunchBackoff
from journeyman.core.api.objects import (
    Condition,
    DaemonSet,
    LearnedSize,
    Node,
    NodeClaim,
    Object,
    Pod,
    PodDisruptionBudget,
)
from journeyman.core.api.storage import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass, VolumeAttachment
from journeyman.core.api.workloads import PodTemplate, ReplicationController, Service, Workload
from journeyman.core.catalogue import Unavailable
from journeyman.core.state.nodes_with_claims import join
from journeyman.core.state.pod_workload import WorkloadKey, workload_of
from journeyman.core.state.state_node import StateNode
from journeyman.errors import KubeAPIError

if TYPE_CHECKING:  # the models build validators; nothing here needs them
    from journeyman.core.api.capacity_buffer import CapacityBuffer
    from journeyman.core.api.churn_ledger import ChurnLedger
    from journeyman.core.api.fleet_guard import FleetGuard
    from journeyman.core.api.fleet_plan import FleetPlan
    from journeyman.core.api.node_disruption import NodeDisruption
    from journeyman.core.api.nodeoverlay import NodeOverlay
    from journeyman.core.api.nodepool import NodePool


class NodeClassState(Struct, frozen=True, kw_only=True):
    """The fields of a NodeClass that decisions read, whatever its kind. `raw` is the whole object, for the cloud adapter."""

    name: str
    uid: str
    kind: str
    group: str
    generation: int
    ready: bool  # Ready=True at the current generation
    observed_generation: int = 0  # of its condition Ready
    reason: str = ""
    message: str = ""
    deleting: bool = False
    deletion_timestamp: datetime | None = None
    finalizers: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    hash: str = ""
    hash_version: str = ""
    block_ends: Mapping[str, datetime] = field(default_factory=dict)  # of its capacity blocks, by reservation id
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def finalizer(self) -> str:
        """The finalizer that keeps it while NodeClaims reference it; on an EC2NodeClass Karpenter's own."""
        return f"{self.group}/termination"


class InvalidObject(Struct, frozen=True, kw_only=True):
    """An object that does not validate, with the reason; decisions ignore it."""

    kind: str
    name: str
    uid: str
    why: str
    resource_version: str = ""
    generation: int = 0
    namespace: str = ""
    created: datetime | None = None
    conditions: tuple[Condition, ...] = ()


class Workloads(Struct, frozen=True, kw_only=True):
    """Objects that create or select pods; read only if a setting or a CapacityBuffer needs them."""

    services: tuple[Service, ...] = ()
    replication_controllers: tuple[ReplicationController, ...] = ()
    replica_sets: tuple[Workload, ...] = ()
    stateful_sets: tuple[Workload, ...] = ()
    deployments: tuple[Workload, ...] = ()
    pod_templates: tuple[PodTemplate, ...] = ()


class Snapshot(Struct, frozen=True, kw_only=True, dict=True):
    """One cluster at one moment. Tuples are sorted by name (pods by namespace/name).

    `node_class_label` is the label that names the NodeClass of a NodeClaim or Node. NodeClaims and NodePools of other kinds of
    NodeClasses belong to other autoscalers and are left out. `unread` are kinds that the step can do without and could not read.
    """

    cluster: str
    now: datetime
    node_class_label: str = ""
    node_pools: tuple[NodePool, ...] = ()
    node_classes: tuple[NodeClassState, ...] = ()
    claims: tuple[NodeClaim, ...] = ()
    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    daemon_sets: tuple[DaemonSet, ...] = ()
    pdbs: tuple[PodDisruptionBudget, ...] = ()
    namespaces: tuple[Object, ...] = ()
    persistent_volume_claims: tuple[PersistentVolumeClaim, ...] = ()
    persistent_volumes: tuple[PersistentVolume, ...] = ()
    storage_classes: tuple[StorageClass, ...] = ()
    csi_nodes: tuple[CSINode, ...] = ()
    volume_attachments: tuple[VolumeAttachment, ...] = ()
    resource_claims: tuple[ResourceClaim, ...] = ()
    resource_slices: tuple[ResourceSlice, ...] = ()
    device_classes: tuple[DeviceClass, ...] = ()
    workloads: Workloads = Workloads()
    node_overlays: tuple[NodeOverlay, ...] = ()
    capacity_buffers: tuple[CapacityBuffer, ...] = ()
    node_disruptions: tuple[NodeDisruption, ...] = ()
    churn_ledger: ChurnLedger | None = None
    fleet_plans: tuple[FleetPlan, ...] = ()
    fleet_guard: FleetGuard | None = None
    unread: Mapping[str, KubeAPIError] = field(default_factory=dict)
    unavailable: tuple[Unavailable, ...] = ()
    launch_backoffs: tuple[LaunchBackoff, ...] = ()
    learned_sizes: tuple[LearnedSize, ...] = ()  # as stored; `known_sizes` adds what the nodes show
    invalid_objects: tuple[InvalidObject, ...] = ()

    @cached_property
    def pods_by_node(self) -> Mapping[str, tuple[Pod, ...]]:
        """Pods bound to each node and not Succeeded or Failed, by node name."""
        bound: dict[str, list[Pod]] = {}
        for pod in self.pods:
            if pod.spec.node_name and pod.status.phase not in {"Succeeded", "Failed"}:
                bound.setdefault(pod.spec.node_name, []).append(pod)
        return {name: tuple(pods) for name, pods in bound.items()}

    @cached_property
    def pods_by_workload(self) -> Mapping[WorkloadKey, tuple[Pod, ...]]:
        """Bound pods of each workload that are not Succeeded or Failed."""
        found: dict[WorkloadKey, list[Pod]] = {}
        for pods in self.pods_by_node.values():
            for pod in pods:
                found.setdefault(workload_of(pod), []).append(pod)
        return {key: tuple(pods) for key, pods in found.items()}

    @cached_property
    def pods_by_key(self) -> Mapping[str, Pod]:
        """Pods by `namespace/name`."""
        return {pod.key: pod for pod in self.pods}

    @cached_property
    def state_nodes(self) -> tuple[StateNode, ...]:
        """Nodes joined with NodeClaims (`nodes_with_claims`), by name; with NodeClaims without a node, and unmanaged nodes."""
        return join(self.nodes, self.claims, self.pods_by_node)

    @cached_property
    def nodes_by_provider_id(self) -> Mapping[str, tuple[Node, ...]]:
        """Nodes by provider id. An id has two when a kubelet changed its node's name."""
        found: dict[str, tuple[Node, ...]] = {}
        for node in self.nodes:
            if node.spec.provider_id:
                found[node.spec.provider_id] = (*found.get(node.spec.provider_id, ()), node)
        return found

    @cached_property
    def claimed_provider_ids(self) -> frozenset[str]:
        """The provider ids that NodeClaims name, and those of their Nodes: a user may have edited the NodeClaim's."""
        named = {claim.status.provider_id for claim in self.claims if claim.status.provider_id}
        return frozenset(named | {node.provider_id for node in self.state_nodes if node.managed})

    @cached_property
    def cluster_uid(self) -> str:
        """The UID of the namespace kube-system, which identifies the cluster; empty if no namespaces were read."""
        return next((item.metadata.uid for item in self.namespaces if item.metadata.name == "kube-system"), "")

    @cached_property
    def claims_by_name(self) -> Mapping[str, NodeClaim]:
        """NodeClaims by name."""
        return {claim.metadata.name: claim for claim in self.claims}

    @cached_property
    def state_nodes_by_claim(self) -> Mapping[str, StateNode]:
        """State nodes by NodeClaim name; if a NodeClaim has several, the one with its provider id."""
        found: dict[str, StateNode] = {}
        for node in self.state_nodes:
            if node.claim is None:
                continue
            name = node.claim.metadata.name
            if name not in found or node.provider_id == node.claim.status.provider_id:
                found[name] = node
        return found

    @cached_property
    def twins_by_claim(self) -> Mapping[str, tuple[StateNode, ...]]:
        """Other Nodes with the provider id of a NodeClaim's instance (`StateNode.twin_of`), by the NodeClaim's name."""
        found: dict[str, tuple[StateNode, ...]] = {}
        for node in self.state_nodes:
            if node.twin_of:
                found[node.twin_of] = (*found.get(node.twin_of, ()), node)
        return found

    @cached_property
    def node_pools_by_name(self) -> Mapping[str, NodePool]:
        """NodePools by name."""
        return {pool.metadata.name: pool for pool in self.node_pools}

    def pods_of_twins(self, state: StateNode) -> Iterator[tuple[str, tuple[Pod, ...]]]:
        """Yield the other names under which pods may run on the node's instance, each with the pods that are bound to it.

        These are the Nodes with the same provider id, and the Node in the NodeClaim's status if it does not exist.
        """
        if state.claim is None:
            return
        for twin in self.twins_by_claim.get(state.claim.metadata.name, ()):
            yield twin.name, twin.pods
        registered = state.claim.status.node_name
        if registered not in ("", state.name) and not any(n.metadata.name == registered for n in self.nodes):
            yield registered, self.pods_by_node.get(registered, ())

    def is_ours(self, node: StateNode) -> bool:
        """Whether a NodeClaim owns the node, or it has the label of our NodeClasses; other autoscalers' nodes have neither.

        Restates: karpenter pkg/utils/node/node.go `IsManaged`.
        """
        return node.claim is not None or (node.node is not None and self.node_class_label in node.node.metadata.labels)

    def node_class_of(self, pool: NodePool) -> NodeClassState | None:
        """Return the NodeClass that the NodePool references; None if it does not exist."""
        ref = pool.spec.template.spec.node_class_ref
        for candidate in self.node_classes:
            if (candidate.group, candidate.kind, candidate.name) == (ref.group, ref.kind, ref.name):
                return candidate
        return None

    def with_claims(self, claims: Iterable[NodeClaim]) -> Snapshot:
        """Return the snapshot with other NodeClaims, such as those that this run created."""
        return replace(self, claims=tuple(sorted(claims, key=lambda c: c.metadata.name)))
