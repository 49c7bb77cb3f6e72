"""Reads a cluster once and returns it as a Snapshot.

Nodes and NodeClaims are listed first, pods last. A pod that binds in between is then seen on a node that is known, and one
that was created in between waits for the next run. A store may send all lists in parallel, as `kube`'s list cache does; then
pods may be the older ones by some milliseconds: a pod that was bound meanwhile is still seen as pending, and its node as if
it had the capacity. NodeClaims that another step creates meanwhile replace nodes, so they add no capacity. So a race
under-provisions, it never launches twice; limits are checked once more before a launch (`lifecycle.nodepool_limits`).
One list per kind. An object that does not validate is left out, with its name and the reason; the others are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api.capacity_buffer import CapacityBuffer
from journeyman.core.api.dra import DEVICE_CLASS, RESOURCE_CLAIM, RESOURCE_SLICE
from journeyman.core.api.model import Model, parse
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.nodeoverlay import NodeOverlay
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import (
    CAPACITY_BUFFER,
    DAEMONSET,
    NAMESPACE,
    NODE,
    NODE_DISRUPTION,
    NODE_OVERLAY,
    NODECLAIM,
    NODEPOOL,
    OFFERING_STATE,
    PDB,
    POD,
    Condition,
    NodeClaim,
    Object,
    ObjectMeta,
    Pod,
    Resource,
    TopologySpreadConstraint,
    condition_of,
)
from journeyman.core.api.offering_state import OfferingState
from journeyman.core.api.storage import (
    CSI_NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    STORAGE_CLASS,
    VOLUME_ATTACHMENT,
)
from journeyman.core.api.workloads import (
    DEPLOYMENT,
    POD_TEMPLATE,
    REPLICA_SET,
    REPLICATION_CONTROLLER,
    SERVICE,
    STATEFUL_SET,
)
from journeyman.core.catalogue import Unavailable
from journeyman.core.scheduling.capacity_buffers import resolve_buffers, virtual_pods
from journeyman.core.scheduling.topology import with_default_spread
from journeyman.core.state import InvalidObject, NodeClassState, Snapshot, Workloads
from journeyman.errors import InvalidObjectError, NotFoundError
from journeyman.steps.context import RunContext

T = TypeVar("T")
O = TypeVar("O", bound=Object)  # noqa: E741 - any Kubernetes object
M = TypeVar("M", bound=Model)

_NAME: Final = attrgetter("metadata.namespace", "metadata.name")
"""Three times as fast as a function, for each of all pods."""


class Pods(str, Enum):
    """Which pods a step reads."""

    NONE = "none"
    UNASSIGNED = "unassigned"
    ALL = "all"


class Scope(Struct, frozen=True, kw_only=True):
    """What a step reads besides NodeClaims; the rest of its Snapshot stays empty."""

    nodes: bool = False
    pools: bool = False
    node_classes: bool = False
    scheduling: bool = False  # DaemonSets, PodDisruptionBudgets, Namespaces, storage, NodeOverlays
    disruptions: bool = False
    offerings: bool = False
    pods: Pods = Pods.NONE


EVERYTHING: Final = Scope(
    nodes=True, pools=True, node_classes=True, scheduling=True, disruptions=True, offerings=True, pods=Pods.ALL
)
FLEET: Final = Scope(nodes=True)
"""Claims and nodes: what interruption and the beginning of termination need."""
GLANCE: Final = Scope(pools=True, node_classes=True, pods=Pods.UNASSIGNED)
"""What the sweep may afford every minute."""


def load(run: RunContext, scope: Scope) -> Snapshot:
    """Read what `scope` asks for. Raises KubeAPIError if a list fails: a partial picture is no basis for a decision."""

    def listed(resource: Resource[O], *, cached: bool = False) -> tuple[O, ...]:
        return in_order(run, resource, cached=cached) if scope.scheduling else ()

    def devices(resource: Resource[O]) -> tuple[O, ...]:
        wanted = scope.scheduling and not run.settings.ignore_dra_requests
        return by_name(served(run, resource)) if wanted else ()

    now = run.clock.now()
    nodes = in_order(run, NODE) if scope.nodes else ()
    claims = tuple(c for c in in_order(run, NODECLAIM) if _is_ours(run, c))
    pools, bad_pools = parsed(run, NODEPOOL, NodePool) if scope.pools else ((), ())
    disruptions, bad_disruptions = parsed(run, NODE_DISRUPTION, NodeDisruption) if scope.disruptions else ((), ())
    states, bad_states = parsed(run, OFFERING_STATE, OfferingState) if scope.offerings else ((), ())
    overlaid = scope.scheduling and run.settings.feature_gates.node_overlay
    overlays, bad_overlays = parsed(run, NODE_OVERLAY, NodeOverlay, optional=True) if overlaid else ((), ())
    buffered = scope.pods is not Pods.NONE and run.settings.feature_gates.capacity_buffer
    buffers, bad_buffers = parsed(run, CAPACITY_BUFFER, CapacityBuffer, optional=True) if buffered else ((), ())
    spread = run.settings.default_spread if scope.scheduling else ()
    workloads = _workloads(run, buffers) if scope.scheduling else Workloads()
    invalid_objects = (*bad_pools, *bad_disruptions, *bad_states, *bad_overlays, *bad_buffers)
    for item in invalid_objects:
        run.telemetry.log("warning", item.why, **{item.kind: {"name": item.name}})
    return Snapshot(
        cluster=run.cluster,
        now=now,
        nodes=nodes,
        claims=claims,
        node_pools=tuple(p for p in pools if _pool_is_ours(run, p)),
        node_classes=_node_classes(run) if scope.node_classes else (),
        daemon_sets=listed(DAEMONSET, cached=True),
        pdbs=listed(PDB),
        namespaces=listed(NAMESPACE, cached=True),
        storage_classes=listed(STORAGE_CLASS, cached=True),
        csi_nodes=listed(CSI_NODE, cached=True),
        persistent_volumes=listed(PERSISTENT_VOLUME),
        persistent_volume_claims=listed(PERSISTENT_VOLUME_CLAIM),
        device_classes=devices(DEVICE_CLASS),
        resource_slices=devices(RESOURCE_SLICE),
        resource_claims=devices(RESOURCE_CLAIM),
        workloads=workloads,
        node_overlays=overlays,
        capacity_buffers=buffers,
        node_disruptions=disruptions,
        unavailable=tuple(_unavailable(states)),
        invalid_objects=invalid_objects,
        pods=_completed(_pods(run, scope.pods), now, workloads, buffers, spread),
    )


def _completed(
    pods: tuple[Pod, ...],
    now: datetime,
    workloads: Workloads,
    buffers: Iterable[CapacityBuffer],
    spread: tuple[TopologySpreadConstraint, ...],
) -> tuple[Pod, ...]:
    """The pods as scheduling is to see them: with those that buffers stand for, and with default constraints."""
    resolved = resolve_buffers(buffers, workloads)
    virtual = virtual_pods(resolved, now, (pod.key for pod in pods)) if resolved else ()
    return with_default_spread(by_name((*pods, *virtual)) if virtual else pods, workloads, spread)


def with_pods_of(run: RunContext, snapshot: Snapshot, nodes: Iterable[str]) -> Snapshot:
    """The snapshot with the pods bound to these nodes: a list each while they are few, all pods otherwise."""
    names = sorted(set(nodes))
    if len(names) > MANY_NODES:
        return replace(snapshot, pods=_pods(run, Pods.ALL))
    found = [pod for name in names for pod in items(run, POD, field_selector=f"spec.nodeName={name}")]
    return replace(snapshot, pods=by_name(found))


MANY_NODES: Final = 10


def with_volumes_of(run: RunContext, snapshot: Snapshot, nodes: Iterable[str]) -> Snapshot:
    """The snapshot with the volumes attached to these nodes and, if there are any, all PersistentVolumeClaims.

    Nothing is read if there are no nodes. No list of one node's attachments can be had.
    """
    names = frozenset(nodes)
    found = in_order(run, VOLUME_ATTACHMENT) if names else ()
    attached = tuple(attachment for attachment in found if attachment.spec.node_name in names)
    claims = in_order(run, PERSISTENT_VOLUME_CLAIM) if attached else ()
    return replace(snapshot, volume_attachments=attached, persistent_volume_claims=claims)


def node_class_state(raw: Mapping[str, Any], resource: Resource[dict[str, Any]]) -> NodeClassState:
    """What a decision may know of a NodeClass of the kind `resource`."""
    meta = msgspec.convert(raw.get("metadata") or {}, ObjectMeta)
    conditions = conditions_in(raw)
    ready = condition_of(conditions, "Ready")
    prefix = f"{resource.group}/{resource.kind.lower()}-hash"
    return NodeClassState(
        name=meta.name,
        uid=meta.uid,
        kind=resource.kind,
        group=resource.group,
        generation=meta.generation,
        ready=ready is not None and ready.status == "True" and ready.observed_generation == meta.generation,
        observed_generation=ready.observed_generation if ready is not None else 0,
        reason=ready.reason if ready is not None else "AwaitingReconciliation",
        message=_why_not_ready(conditions),
        deleting=meta.deletion_timestamp is not None,
        deletion_timestamp=meta.deletion_timestamp,
        finalizers=meta.finalizers,
        conditions=conditions,
        hash=meta.annotations.get(prefix, ""),
        hash_version=meta.annotations.get(f"{prefix}-version", ""),
        raw=raw,
    )


def _why_not_ready(conditions: tuple[Condition, ...]) -> str:
    """Return the messages of conditions that are False; Ready itself only lists them, without what to change."""
    messages = [f"{c.type}: {c.message}" for c in conditions if c.status == "False" and c.type != "Ready" and c.message]
    ready = condition_of(conditions, "Ready")
    return "; ".join(messages) or (ready.message if ready is not None else "")


def _node_classes(run: RunContext) -> tuple[NodeClassState, ...]:
    kind = run.cloud.node_class
    return tuple(sorted((node_class_state(raw, kind) for raw in items(run, kind)), key=lambda c: c.name))


def _workloads(run: RunContext, buffers: Iterable[CapacityBuffer]) -> Workloads:
    """What default constraints need, and what buffers refer to; nothing else is asked for."""
    spread = bool(run.settings.default_spread)
    named = {b.spec.scalable_ref.kind for b in buffers if b.active and b.spec.scalable_ref is not None}
    templates = any(b.active and b.spec.pod_template_ref is not None for b in buffers)
    return Workloads(
        services=in_order(run, SERVICE) if spread else (),
        replication_controllers=in_order(run, REPLICATION_CONTROLLER) if spread else (),
        replica_sets=in_order(run, REPLICA_SET) if spread or REPLICA_SET.kind in named else (),
        stateful_sets=in_order(run, STATEFUL_SET) if spread or STATEFUL_SET.kind in named else (),
        deployments=in_order(run, DEPLOYMENT) if DEPLOYMENT.kind in named else (),
        pod_templates=in_order(run, POD_TEMPLATE) if templates else (),
    )


def _pods(run: RunContext, which: Pods) -> tuple[Pod, ...]:
    if which is Pods.NONE:
        return ()
    return in_order(run, POD, field_selector="spec.nodeName=" if which is Pods.UNASSIGNED else "")


def _is_ours(run: RunContext, claim: NodeClaim) -> bool:
    """Whether its NodeClass is of the kind that this cloud understands; others are another autoscaler's."""
    ref, kind = claim.spec.node_class_ref, run.cloud.node_class
    return (ref.group, ref.kind) == (kind.group, kind.kind)


def _pool_is_ours(run: RunContext, pool: NodePool) -> bool:
    ref, kind = pool.spec.template.spec.node_class_ref, run.cloud.node_class
    return (ref.group, ref.kind) == (kind.group, kind.kind)


def _unavailable(states: Iterable[OfferingState]) -> Iterable[Unavailable]:
    for state in states:
        for offering in state.status.unavailable:
            yield Unavailable(
                instance_type=offering.instance_type,
                zone=offering.zone,
                capacity_type=offering.capacity_type,
                until=offering.until,
                reason=offering.reason,
            )


# -- lists ------------------------------------------------------------------------------------------------------------


def items(run: RunContext, resource: Resource[T], *, field_selector: str = "", cached: bool = False) -> tuple[T, ...]:
    """Objects of a kind. `cached` is for those that change rarely: a moment's delay is as if the change had come later."""
    return run.store.list(resource, field_selector=field_selector, cached=cached).items


def in_order(
    run: RunContext, resource: Resource[O], *, field_selector: str = "", cached: bool = False
) -> tuple[O, ...]:
    """The same by namespace and name; a store that has them so says it, as sorting all pods takes its time."""
    found = run.store.list(resource, field_selector=field_selector, cached=cached)
    return found.items if found.in_order else by_name(found.items)


def served(run: RunContext, resource: Resource[T]) -> tuple[T, ...]:
    """Objects of a kind; none if the API server does not know the kind, for its CustomResourceDefinition may not be there."""
    try:
        return items(run, resource)
    except NotFoundError:
        return ()


def by_name(objects: Iterable[O]) -> tuple[O, ...]:
    """The same by namespace and name."""
    return tuple(sorted(objects, key=_NAME))


def parsed(
    run: RunContext, resource: Resource[dict[str, Any]], model: type[M], *, optional: bool = False
) -> tuple[tuple[M, ...], tuple[InvalidObject, ...]]:
    """Objects of a kind that validate, and those that do not, both by name; an `optional` kind need not be served.

    Validating one takes half a millisecond: a warm sandbox looks at each version once.
    """
    found = served(run, resource) if optional else items(run, resource)
    raws = sorted(found, key=lambda raw: (str(raw["metadata"].get("namespace", "")), str(raw["metadata"]["name"])))
    known = run.memory.parsed.get(resource.kind, {})
    read = [known.get(_version(raw)) or _parse(resource.kind, model, raw) for raw in raws]
    run.memory.parsed[resource.kind] = dict(zip(map(_version, raws), read, strict=True))
    good = tuple(item for item in read if not isinstance(item, InvalidObject))
    return good, tuple(item for item in read if isinstance(item, InvalidObject))


def _version(raw: Mapping[str, Any]) -> tuple[str, str, str]:
    """Name, UID and version: an object of which all are the same is the same to the last byte."""
    meta = raw["metadata"]
    return str(meta["name"]), str(meta["uid"]), str(meta["resourceVersion"])


def _parse(kind: str, model: type[M], raw: Mapping[str, Any]) -> M | InvalidObject:
    try:
        return parse(model, raw)
    except InvalidObjectError as error:
        return _set_aside(kind, raw, error.message)


def _set_aside(kind: str, raw: Mapping[str, Any], why: str) -> InvalidObject:
    meta = msgspec.convert(raw["metadata"], ObjectMeta)
    return InvalidObject(
        kind=kind,
        name=meta.name,
        uid=meta.uid,
        why=why,
        resource_version=meta.resource_version,
        generation=meta.generation,
        namespace=meta.namespace,
        created=meta.creation_timestamp,
        conditions=conditions_in(raw),
    )


def conditions_in(raw: Mapping[str, Any]) -> tuple[Condition, ...]:
    """`status.conditions` of a raw object; none if they do not read as conditions."""
    try:
        return msgspec.convert((raw.get("status") or {}).get("conditions") or (), tuple[Condition, ...])
    except msgspec.ValidationError:
        return ()
