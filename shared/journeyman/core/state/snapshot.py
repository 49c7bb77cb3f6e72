"""Snapshot: one cluster at one moment, immutable, indexed once.

`steps.load` reads it (nodes and claims first, then pods, so that a race under-provisions rather than doubles);
every decision is a function of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.dra import DeviceClass, ResourceClaim, ResourceSlice
from journeyman.core.api.objects import (
    Condition,
    DaemonSet,
    Node,
    NodeClaim,
    Object,
    Pod,
    PodDisruptionBudget,
    Taint,
    is_true,
)
from journeyman.core.api.storage import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass
from journeyman.core.api.workloads import PodTemplate, ReplicationController, Service, Workload
from journeyman.core.catalogue import Unavailable

if TYPE_CHECKING:  # the models build validators; nothing here needs them
    from journeyman.core.api.capacity_buffer import CapacityBuffer
    from journeyman.core.api.node_disruption import NodeDisruption
    from journeyman.core.api.nodeoverlay import NodeOverlay
    from journeyman.core.api.nodepool import NodePool


class NodeClassState(Struct, frozen=True, kw_only=True):
    """What a decision may know of a NodeClass, whatever its kind. `raw` is the whole object for the cloud adapter."""

    name: str
    uid: str
    kind: str
    group: str
    generation: int
    ready: bool  # Ready=True at the current generation
    reason: str = ""
    message: str = ""
    deleting: bool = False
    hash: str = ""
    hash_version: str = ""
    raw: Mapping[str, Any] = field(default_factory=dict)


class SetAside(Struct, frozen=True, kw_only=True):
    """An object that does not validate: named, with why, and otherwise ignored."""

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
    """What makes and selects pods; read only where settings or CapacityBuffers ask for it."""

    services: tuple[Service, ...] = ()
    replication_controllers: tuple[ReplicationController, ...] = ()
    replica_sets: tuple[Workload, ...] = ()
    stateful_sets: tuple[Workload, ...] = ()
    deployments: tuple[Workload, ...] = ()
    pod_templates: tuple[PodTemplate, ...] = ()


class StateNode(Struct, frozen=True, kw_only=True, dict=True):
    """A node and its claim as one thing, joined by provider id; at least one of the two exists.

    Restates: karpenter `pkg/controllers/state/statenode.go`.
    """

    node: Node | None
    claim: NodeClaim | None
    pods: tuple[Pod, ...] = ()  # bound to the node and not terminal, by key

    @property
    def name(self) -> str:
        """The node's name, before registration the claim's."""
        if self.node is not None:
            return self.node.metadata.name
        assert self.claim is not None  # noqa: S101 - construction guarantees one of the two
        return self.claim.metadata.name

    @property
    def provider_id(self) -> str:
        """The cloud's id; empty before launch."""
        if self.node is not None and self.node.spec.provider_id:
            return self.node.spec.provider_id
        return self.claim.status.provider_id if self.claim is not None else ""

    @property
    def managed(self) -> bool:
        """Whether a NodeClaim owns it."""
        return self.claim is not None

    @property
    def node_pool(self) -> str:
        """The owning NodePool's name, empty if none."""
        return self.labels.get(labels.NODEPOOL, "")

    @property
    def registered(self) -> bool:
        """Unmanaged nodes count as registered."""
        if self.claim is None:
            return True
        return self.node is not None and self.node.metadata.labels.get(labels.REGISTERED) == "true"

    @property
    def initialized(self) -> bool:
        """Unmanaged nodes count as initialized."""
        if self.claim is None:
            return True
        return self.node is not None and self.node.metadata.labels.get(labels.INITIALIZED) == "true"

    @property
    def deleting(self) -> bool:
        """Marked for deletion: node or claim has a deletionTimestamp, or the instance is being terminated."""
        node_going = self.node is not None and self.node.metadata.deletion_timestamp is not None
        claim_going = self.claim is not None and (
            self.claim.metadata.deletion_timestamp is not None
            or is_true(self.claim.status.conditions, "InstanceTerminating")
        )
        return node_going or claim_going

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """Labels pods are matched against: the claim's until the node is registered, then the node's."""
        if self.node is None or not self.registered:
            base = dict(self.claim.metadata.labels) if self.claim is not None else {}
            if self.claim is not None:
                for requirement in self.claim.spec.requirements:
                    if requirement.operator == "In" and len(requirement.values) == 1:
                        base.setdefault(requirement.key, requirement.values[0])
            if self.node is not None and labels.HOSTNAME in self.node.metadata.labels:
                base.setdefault(labels.HOSTNAME, self.node.metadata.labels[labels.HOSTNAME])
            return base
        return self.node.metadata.labels

    @cached_property
    def taints(self) -> tuple[Taint, ...]:
        """Taints a pod must tolerate to be planned here (karpenter `StateNode.Taints`)."""
        if self.node is None or not self.registered:
            taints: tuple[Taint, ...] = self.claim.spec.taints if self.claim is not None else ()
        else:
            taints = self.node.spec.taints
        if self.initialized:
            return taints
        startup = {(t.key, t.effect) for t in self.claim.spec.startup_taints} if self.claim is not None else set()
        return tuple(
            t for t in taints if not labels.is_ephemeral_taint(t.key, t.effect) and (t.key, t.effect) not in startup
        )

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The claim's conditions; none for unmanaged nodes."""
        return self.claim.status.conditions if self.claim is not None else ()

    @property
    def ready(self) -> bool:
        """Whether the kubelet says Ready=True."""
        return self.node is not None and is_true(self.node.status.conditions, "Ready")


class Snapshot(Struct, frozen=True, kw_only=True, dict=True):
    """One cluster at one moment. Tuples are sorted by name (pods by namespace/name)."""

    cluster: str
    now: datetime
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
    resource_claims: tuple[ResourceClaim, ...] = ()
    resource_slices: tuple[ResourceSlice, ...] = ()
    device_classes: tuple[DeviceClass, ...] = ()
    workloads: Workloads = Workloads()
    node_overlays: tuple[NodeOverlay, ...] = ()
    capacity_buffers: tuple[CapacityBuffer, ...] = ()
    node_disruptions: tuple[NodeDisruption, ...] = ()
    unavailable: tuple[Unavailable, ...] = ()
    set_aside: tuple[SetAside, ...] = ()

    @cached_property
    def pods_by_node(self) -> Mapping[str, tuple[Pod, ...]]:
        """Pods bound to each node and not Succeeded or Failed, by node name."""
        bound: dict[str, list[Pod]] = {}
        for pod in self.pods:
            if pod.spec.node_name and pod.status.phase not in {"Succeeded", "Failed"}:
                bound.setdefault(pod.spec.node_name, []).append(pod)
        return {name: tuple(pods) for name, pods in bound.items()}

    @cached_property
    def state_nodes(self) -> tuple[StateNode, ...]:
        """Nodes joined with claims by provider id, by name. Claims without a node, and unmanaged nodes, are in it."""
        by_provider = {c.status.provider_id: c for c in self.claims if c.status.provider_id}
        joined: list[StateNode] = []
        taken: set[str] = set()
        for node in self.nodes:
            claim = by_provider.get(node.spec.provider_id) if node.spec.provider_id else None
            if claim is not None:
                taken.add(claim.metadata.name)
            joined.append(StateNode(node=node, claim=claim, pods=self.pods_by_node.get(node.metadata.name, ())))
        joined += [StateNode(node=None, claim=c) for c in self.claims if c.metadata.name not in taken]
        return tuple(sorted(joined, key=lambda n: n.name))

    @cached_property
    def claims_by_name(self) -> Mapping[str, NodeClaim]:
        """NodeClaims by name."""
        return {claim.metadata.name: claim for claim in self.claims}

    @cached_property
    def state_nodes_by_claim(self) -> Mapping[str, StateNode]:
        """State nodes by claim name."""
        return {n.claim.metadata.name: n for n in self.state_nodes if n.claim is not None}

    @cached_property
    def node_pools_by_name(self) -> Mapping[str, NodePool]:
        """NodePools by name."""
        return {pool.metadata.name: pool for pool in self.node_pools}

    def node_class_of(self, pool: NodePool) -> NodeClassState | None:
        """The NodeClass a pool refers to, None if it does not exist."""
        ref = pool.spec.template.spec.node_class_ref
        for candidate in self.node_classes:
            if (candidate.group, candidate.kind, candidate.name) == (ref.group, ref.kind, ref.name):
                return candidate
        return None

    def with_claims(self, claims: Iterable[NodeClaim]) -> Snapshot:
        """The same moment with other claims (those just created, say)."""
        return replace(self, claims=tuple(sorted(claims, key=lambda c: c.metadata.name)))
