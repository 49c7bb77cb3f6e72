"""Scenario files: a catalogue and a cluster's objects in one JSON file, as comparisons with Karpenter use them.

::

    {name, now, instanceTypes[], objects[], options{}}
    instanceTypes[]  {name, requirements[], offerings[], capacity{}, overhead{}, resourceSlices[], imageID}
                     offerings[] are {requirements[], price, available, reservationCapacity}; resourceSlices[], as in the
                     spec of a ResourceSlice, are the devices that such a node brings
    objects[]        Kubernetes objects; what the nodes and the OfferingStates show of a NodeClass that has its hash replaces the
                     capacity of its instance types
    options{}        preferencePolicy (Respect, Ignore, WhenFree), minValuesPolicy (Strict, BestEffort), ignoreDRARequests
                     (true), disrupt (false): find the first disruption command, with everyMethod (false) what each disruption
                     method finds, spotToSpotConsolidation (false), consolidationPayback (1h)

A pod without a node and without conditions counts as unschedulable; NodePools and the NodeClasses they name count as
ready; an object without a UID or a creation time gets one. NodeOverlays and CapacityBuffers are used without feature gates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.capacity_buffer import CapacityBuffer
from journeyman.core.api.dra import DeviceClass, ResourceClaim, ResourceSlice, ResourceSliceSpec
from journeyman.core.api.hashes import node_class_keys
from journeyman.core.api.model import Model, parse
from journeyman.core.api.nodeoverlay import NodeOverlay
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import (
    Condition,
    DaemonSet,
    Node,
    NodeClaim,
    NodeSelectorRequirement,
    Object,
    Pod,
    PodDisruptionBudget,
    ResourceTexts,
)
from journeyman.core.api.offering_state import OfferingState
from journeyman.core.api.resources import to_resources
from journeyman.core.api.storage import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass
from journeyman.core.api.workloads import PodTemplate, ReplicationController, Service, Workload
from journeyman.core.catalogue import Catalogue, InstanceType, Offering, with_learned_sizes
from journeyman.core.lifecycle.learned_sizes import known_sizes
from journeyman.core.lifecycle.node_overlays import apply_overlays
from journeyman.core.state.capacity_buffers import resolve_buffers, virtual_pods
from journeyman.core.state.snapshot import InvalidObject, NodeClassState, Snapshot, Workloads
from journeyman.errors import ConfigurationError, InvalidObjectError
from journeyman.steps.offering_state_updates import learned_sizes

DEFAULT_NOW = datetime(2026, 1, 5, 12, 0, tzinfo=timezone.utc)

T = TypeVar("T", bound=Object)
M = TypeVar("M", bound=Model)


class _Offering(msgspec.Struct, frozen=True, rename="camel"):
    price: float
    requirements: tuple[NodeSelectorRequirement, ...] = ()
    available: bool | None = None
    reservation_capacity: int = 0


class _InstanceType(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    requirements: tuple[NodeSelectorRequirement, ...] = ()
    offerings: tuple[_Offering, ...] = ()
    capacity: ResourceTexts = {}
    overhead: ResourceTexts = {}
    resource_slices: tuple[ResourceSliceSpec, ...] = ()
    image_id: str = msgspec.field(default="", name="imageID")


class _File(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    now: datetime | None = None
    instance_types: tuple[_InstanceType, ...] = ()
    objects: tuple[dict[str, Any], ...] = ()
    options: dict[str, Any] = {}


class Scenario(Struct, frozen=True, kw_only=True):
    """A scheduling problem: the cluster, the instance types that can be launched, and the file's options."""

    name: str
    snapshot: Snapshot
    catalogue: Catalogue
    options: Mapping[str, Any]


def read_scenario(path: Path) -> Scenario:
    """Return the scenario in a file.

    Raises:
        ConfigurationError: The file cannot be read or is no scenario.
    """
    try:
        return parse_scenario(path.read_bytes(), name=str(path))
    except OSError as error:
        raise ConfigurationError(f"cannot read scenario {path}: {error.strerror}", path=str(path)) from error


def parse_scenario(raw: bytes, *, name: str = "") -> Scenario:
    """Return the scenario in JSON text, with `name` if the text has none. Raises ConfigurationError."""
    try:
        file = msgspec.json.decode(raw, type=_File)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ConfigurationError(f"{name or 'this'} is not a scenario: {error}", path=name) from error
    types = tuple(sorted((_instance_type(t) for t in file.instance_types), key=lambda t: t.name))
    snapshot = _snapshot(file)
    without_overlays = Catalogue({p.metadata.name: _types_of(p, types, snapshot) for p in snapshot.node_pools})
    catalogue = apply_overlays(snapshot.node_pools, without_overlays, snapshot.node_overlays).catalogue
    return Scenario(name=file.name or name, snapshot=snapshot, catalogue=catalogue, options=file.options)


def _types_of(pool: NodePool, types: tuple[InstanceType, ...], snapshot: Snapshot) -> tuple[InstanceType, ...]:
    node_class = pool.spec.template.spec.node_class_ref.name
    return with_learned_sizes(types, (size for size in known_sizes(snapshot) if size.node_class == node_class))


def _instance_type(entry: _InstanceType) -> InstanceType:
    return InstanceType(
        name=entry.name,
        requirements=entry.requirements,
        offerings=tuple(_offering(o) for o in entry.offerings),
        capacity=to_resources(entry.capacity, round_up=False),
        overhead=to_resources(entry.overhead, round_up=True),
        device_slices=entry.resource_slices,
        image=entry.image_id,
    )


def _offering(entry: _Offering) -> Offering:
    single = {r.key: r.values[0] for r in entry.requirements if r.operator == "In" and len(r.values) == 1}
    return Offering(
        zone=single.get(labels.ZONE, ""),
        capacity_type=single.get(labels.CAPACITY_TYPE, ""),
        price=entry.price,
        available=entry.available is not False,
        requirements=entry.requirements,
        reservation_id=single.get(labels.RESERVATION_ID, ""),
        reservation_capacity=entry.reservation_capacity,
    )


def _snapshot(file: _File) -> Snapshot:
    now = file.now or DEFAULT_NOW
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for raw in file.objects:
        by_kind.setdefault(str(raw.get("kind", "")), []).append(_completed(raw, now))
    pools, invalid_pools = _parsed(by_kind.get("NodePool", ()), NodePool)
    overlays, invalid_overlays = _parsed(by_kind.get("NodeOverlay", ()), NodeOverlay)
    buffers, invalid_buffers = _parsed(by_kind.get("CapacityBuffer", ()), CapacityBuffer)
    workloads = _workloads(by_kind)
    states, invalid_states = _parsed(by_kind.get("OfferingState", ()), OfferingState)
    pods = tuple(_unschedulable(pod) for pod in _decoded(by_kind.get("Pod", ()), Pod))
    virtual = virtual_pods(resolve_buffers(buffers, workloads, now), now, (pod.key for pod in pods))
    return Snapshot(
        cluster=file.name,
        now=now,
        node_pools=pools,
        node_classes=_node_classes(pools, file.objects),
        claims=_decoded(by_kind.get("NodeClaim", ()), NodeClaim),
        nodes=_decoded(by_kind.get("Node", ()), Node),
        pods=_in_order((*pods, *virtual)),
        daemon_sets=_decoded(by_kind.get("DaemonSet", ()), DaemonSet),
        pdbs=_decoded(by_kind.get("PodDisruptionBudget", ()), PodDisruptionBudget),
        namespaces=_decoded(by_kind.get("Namespace", ()), Object),
        persistent_volume_claims=_decoded(by_kind.get("PersistentVolumeClaim", ()), PersistentVolumeClaim),
        persistent_volumes=_decoded(by_kind.get("PersistentVolume", ()), PersistentVolume),
        storage_classes=_decoded(by_kind.get("StorageClass", ()), StorageClass),
        csi_nodes=_decoded(by_kind.get("CSINode", ()), CSINode),
        resource_claims=_decoded(by_kind.get("ResourceClaim", ()), ResourceClaim),
        resource_slices=_decoded(by_kind.get("ResourceSlice", ()), ResourceSlice),
        device_classes=_decoded(by_kind.get("DeviceClass", ()), DeviceClass),
        workloads=workloads,
        capacity_buffers=buffers,
        node_overlays=overlays,
        learned_sizes=tuple(size for state in states for size in learned_sizes(state, state.metadata.name)),
        invalid_objects=(*invalid_pools, *invalid_overlays, *invalid_buffers, *invalid_states),
    )


def _workloads(by_kind: Mapping[str, list[dict[str, Any]]]) -> Workloads:
    return Workloads(
        services=_decoded(by_kind.get("Service", ()), Service),
        replication_controllers=_decoded(by_kind.get("ReplicationController", ()), ReplicationController),
        replica_sets=_decoded(by_kind.get("ReplicaSet", ()), Workload),
        stateful_sets=_decoded(by_kind.get("StatefulSet", ()), Workload),
        deployments=_decoded(by_kind.get("Deployment", ()), Workload),
        pod_templates=_decoded(by_kind.get("PodTemplate", ()), PodTemplate),
    )


def _completed(raw: dict[str, Any], now: datetime) -> dict[str, Any]:
    """Return the object with a UID and a creation time, as an API server sets them."""
    metadata = raw.get("metadata") or {}
    uid = f"{raw.get('kind', '')}-{metadata.get('namespace', '')}-{metadata.get('name', '')}"
    created = (now - timedelta(hours=1)).isoformat()
    return {**raw, "metadata": {"uid": uid, "creationTimestamp": created, **metadata}}


def _decoded(raws: Iterable[dict[str, Any]], kind: type[T]) -> tuple[T, ...]:
    try:
        found = msgspec.convert(list(raws), type=list[kind])  # type: ignore[valid-type] # a type in a variable
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"a {kind.__name__} of the scenario does not read: {error}") from error
    return _in_order(found)


def _in_order(found: Iterable[T]) -> tuple[T, ...]:
    return tuple(sorted(found, key=lambda o: (o.metadata.namespace, o.metadata.name)))


def _parsed(raws: Iterable[dict[str, Any]], model: type[M]) -> tuple[tuple[M, ...], tuple[InvalidObject, ...]]:
    """Return the valid and the invalid objects, both by name."""
    by_name = sorted(raws, key=lambda raw: str(raw["metadata"].get("name", "")))
    parsed = [_parse(raw, model) for raw in by_name]
    valid = tuple(item for item in parsed if not isinstance(item, InvalidObject))
    return valid, tuple(item for item in parsed if isinstance(item, InvalidObject))


def _parse(raw: dict[str, Any], model: type[M]) -> M | InvalidObject:
    try:
        return parse(model, raw)
    except InvalidObjectError as error:
        metadata = raw["metadata"]
        return InvalidObject(kind=model.__name__, name=metadata.get("name", ""), uid=metadata["uid"], why=str(error))


def _node_classes(pools: Iterable[NodePool], objects: Iterable[dict[str, Any]]) -> tuple[NodeClassState, ...]:
    """Return a ready NodeClass for each reference of a NodePool, with its hash if the file has the NodeClass."""
    annotations = {
        (str(raw.get("kind", "")), str(meta.get("name", ""))): meta.get("annotations") or {}
        for raw in objects
        if (meta := raw.get("metadata") or {})
    }
    refs = {(r.group, r.kind, r.name) for r in (p.spec.template.spec.node_class_ref for p in pools)}
    return tuple(
        NodeClassState(
            name=name,
            uid=f"{kind}-{name}",
            kind=kind,
            group=group,
            generation=1,
            ready=True,
            hash=str(annotations.get((kind, name), {}).get(node_class_keys(group, kind).hash, "")),
        )
        for group, kind, name in sorted(refs)
    )


def _unschedulable(pod: Pod) -> Pod:
    if pod.spec.node_name or pod.status.conditions:
        return pod
    condition = Condition(type="PodScheduled", status="False", reason="Unschedulable")
    status = msgspec.structs.replace(pod.status, phase="Pending", conditions=(condition,))
    return msgspec.structs.replace(pod, status=status)
