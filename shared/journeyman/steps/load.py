"""Reads a cluster once and returns it as a Snapshot, with one list call for each kind.

`load` lists nodes and NodeClaims first, pods last, so that a pod that is bound in between is on a node of the snapshot. A
store may send all lists in parallel, as `kube`'s list cache does; pods may then be some milliseconds older than nodes, and a
pod that was bound in between is still pending in the snapshot. NodeClaims that another step creates in between replace
nodes and add no capacity. A race can therefore delay a launch, but never launch twice; limits are checked again before a
launch (`lifecycle.nodepool_limits`). An object that does not validate is skipped and reported; the others are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import Enum
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.capacity_buffer import CapacityBuffer
from journeyman.core.api.churn_ledger import LEDGER_NAME, ChurnLedger
from journeyman.core.api.dra import DEVICE_CLASS, RESOURCE_CLAIM, RESOURCE_SLICE
from journeyman.core.api.fleet_guard import GUARD_NAME, FleetGuard
from journeyman.core.api.fleet_plan import FleetPlan
from journeyman.core.api.hashes import node_class_keys
from journeyman.core.api.launch_faults import LaunchBackoff
from journeyman.core.api.model import Model, parse
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.nodeoverlay import NodeOverlay
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import (
    CAPACITY_BUFFER,
    CHURN_LEDGER,
    DAEMONSET,
    FLEET_GUARD,
    FLEET_PLAN,
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
    times_in_range,
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
from journeyman.core.state import InvalidObject, NodeClassState, Snapshot, Workloads
from journeyman.core.state.capacity_buffers import resolve_buffers, virtual_pods
from journeyman.core.state.default_spread import with_default_spread
from journeyman.core.state.skipped_objects import SkippedObject, evaluate, ref_of, refs_of, report_skipped
from journeyman.errors import ForbiddenError, KubeAPIError, NotFoundError
from journeyman.steps.context import RunContext
from journeyman.steps.offering_state_updates import learned_sizes, recorded_prices
from journeyman.steps.recorder import emit_reports

T = TypeVar("T")
O = TypeVar("O", bound=Object)  # noqa: E741 - any Kubernetes object
M = TypeVar("M", bound=Model)

_NAME: Final = attrgetter("metadata.namespace", "metadata.name")
"""Called for every pod; `attrgetter` is three times as fast as a function."""


class Pods(str, Enum):
    """Which pods a step reads."""

    NONE = "none"
    UNASSIGNED = "unassigned"
    ALL = "all"


class Scope(Struct, frozen=True, kw_only=True):
    """The kinds that a step reads besides NodeClaims; the other fields of its Snapshot stay empty."""

    nodes: bool = False
    pools: bool = False
    node_classes: bool = False
    scheduling: bool = False  # DaemonSets, PodDisruptionBudgets, Namespaces, storage, NodeOverlays
    disruptions: bool = False
    offerings: bool = False
    churn: bool = False
    guard: bool = False
    pods: Pods = Pods.NONE


EVERYTHING: Final = Scope(
    nodes=True,
    pools=True,
    node_classes=True,
    scheduling=True,
    disruptions=True,
    offerings=True,
    churn=True,
    pods=Pods.ALL,
)
NODES_AND_CLAIMS: Final = Scope(nodes=True)
"""For interruptions and the first part of termination."""
SWEEP_SCOPE: Final = Scope(pools=True, node_classes=True, pods=Pods.UNASSIGNED)
"""For the sweep: small enough to read every minute."""


def load(run: RunContext, scope: Scope) -> Snapshot:
    """Read the kinds in `scope`; give the cloud provider the prices that other processes recorded.

    Raises:
        KubeAPIError: A list failed; no decision may rest on a part of the cluster.
    """

    def list_for_scheduling(resource: Resource[O], *, cached: bool = False) -> tuple[O, ...]:
        return list_sorted(run, resource, cached=cached) if scope.scheduling else ()

    def list_for_dra(resource: Resource[O]) -> tuple[O, ...]:
        uses_dra = scope.scheduling and not run.settings.ignore_dra_requests
        return sorted_by_name(list_if_served(run, resource)) if uses_dra else ()

    now = run.clock.now()
    nodes = list_sorted(run, NODE) if scope.nodes else ()
    claims = tuple(c for c in list_sorted(run, NODECLAIM) if _is_ours(run, c))
    pools, invalid_pools = list_parsed(run, NODEPOOL, NodePool, keep=_is_our_pool(run)) if scope.pools else ((), ())
    disruptions, invalid_disruptions = (
        list_parsed(run, NODE_DISRUPTION, NodeDisruption) if scope.disruptions else ((), ())
    )
    unread: dict[str, KubeAPIError] = {}
    ledgers, invalid_ledgers = _list_if_readable(run, CHURN_LEDGER, ChurnLedger, unread) if scope.churn else ((), ())
    guards, invalid_guards = _list_if_readable(run, FLEET_GUARD, FleetGuard, unread) if scope.guard else ((), ())
    uses_plans = scope.disruptions and run.settings.fleet_plans
    plans, invalid_plans = _list_if_readable(run, FLEET_PLAN, FleetPlan, unread) if uses_plans else ((), ())
    states, invalid_states = list_parsed(run, OFFERING_STATE, OfferingState) if scope.offerings else ((), ())
    for state in states:
        run.cloud.adopt_prices(recorded_prices(state))
    uses_overlays = scope.scheduling and run.settings.feature_gates.node_overlay
    overlays, invalid_overlays = (
        list_parsed(run, NODE_OVERLAY, NodeOverlay, optional=True) if uses_overlays else ((), ())
    )
    uses_buffers = scope.pods is not Pods.NONE and run.settings.feature_gates.capacity_buffer
    buffers, invalid_buffers = (
        list_parsed(run, CAPACITY_BUFFER, CapacityBuffer, optional=True) if uses_buffers else ((), ())
    )
    node_classes, invalid_classes = _node_classes(run) if scope.node_classes else ((), ())
    spread = run.settings.default_spread if scope.scheduling else ()
    workloads = _workloads(run, buffers) if scope.scheduling else Workloads()
    invalid_objects = (
        *invalid_pools,
        *invalid_classes,
        *invalid_disruptions,
        *invalid_ledgers,
        *invalid_guards,
        *invalid_plans,
        *invalid_states,
        *invalid_overlays,
        *invalid_buffers,
    )
    emit_reports(run, report_skipped(SkippedObject(refs=refs_of(item), why=item.why) for item in invalid_objects))
    return Snapshot(
        cluster=run.cluster,
        now=now,
        node_class_label=labels.node_class_label(run.cloud.node_class.group, run.cloud.node_class.kind),
        nodes=nodes,
        claims=claims,
        node_pools=pools,
        node_classes=node_classes,
        daemon_sets=list_for_scheduling(DAEMONSET, cached=True),
        pdbs=list_for_scheduling(PDB),
        namespaces=list_for_scheduling(NAMESPACE, cached=True),
        storage_classes=list_for_scheduling(STORAGE_CLASS, cached=True),
        csi_nodes=list_for_scheduling(CSI_NODE, cached=True),
        persistent_volumes=list_for_scheduling(PERSISTENT_VOLUME),
        persistent_volume_claims=list_for_scheduling(PERSISTENT_VOLUME_CLAIM),
        device_classes=list_for_dra(DEVICE_CLASS),
        resource_slices=list_for_dra(RESOURCE_SLICE),
        resource_claims=list_for_dra(RESOURCE_CLAIM),
        workloads=workloads,
        node_overlays=overlays,
        capacity_buffers=buffers,
        node_disruptions=disruptions,
        churn_ledger=next((ledger for ledger in ledgers if ledger.metadata.name == LEDGER_NAME), None),
        fleet_plans=plans,
        fleet_guard=next((guard for guard in guards if guard.metadata.name == GUARD_NAME), None),
        unread=unread,
        unavailable=tuple(_unavailable(states)),
        launch_backoffs=tuple(_launch_backoffs(states, now)),
        learned_sizes=tuple(size for state in states for size in learned_sizes(state, state.metadata.name)),
        invalid_objects=invalid_objects,
        pods=_with_virtual_pods_and_spread(_pods(run, scope.pods), now, workloads, buffers, spread),
    )


def _with_virtual_pods_and_spread(
    pods: tuple[Pod, ...],
    now: datetime,
    workloads: Workloads,
    buffers: Iterable[CapacityBuffer],
    spread: tuple[TopologySpreadConstraint, ...],
) -> tuple[Pod, ...]:
    """Return the pods together with the virtual pods of CapacityBuffers, each with the default spread constraints."""
    resolved = resolve_buffers(buffers, workloads, now)
    virtual = virtual_pods(resolved, now, (pod.key for pod in pods)) if resolved else ()
    return with_default_spread(sorted_by_name((*pods, *virtual)) if virtual else pods, workloads, spread)


def with_pods_of(run: RunContext, snapshot: Snapshot, nodes: Iterable[str]) -> Snapshot:
    """Return the snapshot with the pods bound to these nodes, listed for each node; with all pods if there are many nodes."""
    names = sorted(set(nodes))
    if len(names) > MAX_POD_LISTS:
        return replace(snapshot, pods=_pods(run, Pods.ALL))
    found = [pod for name in names for pod in list_items(run, POD, field_selector=f"spec.nodeName={name}")]
    return replace(snapshot, pods=sorted_by_name(found))


MAX_POD_LISTS: Final = 10


def with_volumes_of(run: RunContext, snapshot: Snapshot, nodes: Iterable[str]) -> Snapshot:
    """Return the snapshot with the VolumeAttachments of these nodes and, if there are any, all PersistentVolumeClaims.

    The API server cannot list VolumeAttachments by node, so all of them are read, unless there are no nodes.
    """
    names = frozenset(nodes)
    found = list_sorted(run, VOLUME_ATTACHMENT) if names else ()
    attached = tuple(attachment for attachment in found if attachment.spec.node_name in names)
    claims = list_sorted(run, PERSISTENT_VOLUME_CLAIM) if attached else ()
    return replace(snapshot, volume_attachments=attached, persistent_volume_claims=claims)


def node_class_state(raw: Mapping[str, Any], resource: Resource[dict[str, Any]]) -> NodeClassState:
    """Return the state of a NodeClass of the kind `resource`, which every cloud's NodeClass has."""
    meta = msgspec.convert(_without_nulls(raw.get("metadata") or {}), ObjectMeta)
    conditions = conditions_in(raw)
    ready = condition_of(conditions, "Ready")
    keys = node_class_keys(resource.group, resource.kind)
    return NodeClassState(
        name=meta.name,
        uid=meta.uid,
        kind=resource.kind,
        group=resource.group,
        generation=meta.generation,
        ready=ready is not None and ready.status == "True" and ready.observed_generation == meta.generation,
        observed_generation=ready.observed_generation if ready is not None else 0,
        reason=ready.reason if ready is not None and not _is_outdated(ready, meta.generation) else _AWAITING,
        message=_why_not_ready(conditions, meta.generation),
        deleting=meta.deletion_timestamp is not None,
        deletion_timestamp=meta.deletion_timestamp,
        finalizers=meta.finalizers,
        conditions=conditions,
        hash=meta.annotations.get(keys.hash, ""),
        hash_version=meta.annotations.get(keys.version, ""),
        block_ends=_block_ends(raw),
        raw=raw,
    )


class _Reservation(msgspec.Struct, frozen=True, rename="camel"):
    """An entry of a NodeClass' `status.capacityReservations`."""

    id: str = ""
    reservation_type: str = ""
    end_time: datetime | None = None


def _block_ends(raw: Mapping[str, Any]) -> Mapping[str, datetime]:
    """Return when the capacity blocks in a NodeClass' status end, by id; none if they do not decode."""
    try:
        listed = (raw.get("status") or {}).get("capacityReservations") or ()
        found = msgspec.convert([_without_nulls(each) for each in listed], tuple[_Reservation, ...])
    except (msgspec.ValidationError, AttributeError, TypeError):
        return {}
    return {r.id: r.end_time for r in found if r.reservation_type == "capacity-block" and r.end_time is not None}


_AWAITING: Final = "AwaitingReconciliation"


def _is_outdated(ready: Condition, generation: int) -> bool:
    """Whether Ready is True of an earlier generation, so that it says nothing about the present spec."""
    return ready.status == "True" and ready.observed_generation != generation


def _why_not_ready(conditions: tuple[Condition, ...], generation: int) -> str:
    """Return the messages of conditions that are False, or else Unknown; Ready's own only lists those conditions' types."""
    parts = [c for c in conditions if c.type != "Ready" and c.message]
    for status in ("False", "Unknown"):
        if messages := [f"{c.type}: {c.message}" for c in parts if c.status == status and c.reason != _AWAITING]:
            return "; ".join(messages)
    ready = condition_of(conditions, "Ready")
    if ready is not None and _is_outdated(ready, generation):
        return f"generation {generation} of its spec is not examined yet, the last one was {ready.observed_generation}"
    return ready.message if ready is not None else ""


def _node_classes(run: RunContext) -> tuple[tuple[NodeClassState, ...], tuple[InvalidObject, ...]]:
    """Return the NodeClasses that can be read, and the others, both by name."""
    kind = run.cloud.node_class
    states: list[NodeClassState] = []
    invalid: list[InvalidObject] = []
    for raw in sorted(list_items(run, kind), key=lambda raw: str(raw["metadata"]["name"])):
        name, uid = str(raw["metadata"]["name"]), str(raw["metadata"].get("uid", ""))
        ref = ref_of(kind.kind, name, uid=uid, group=kind.group)
        found = evaluate(ref, node_class_state, raw, kind)
        if isinstance(found, SkippedObject):
            invalid.append(_invalid_object(kind.kind, raw, found.why))
        else:
            states.append(found)
    return tuple(states), tuple(invalid)


def _workloads(run: RunContext, buffers: Iterable[CapacityBuffer]) -> Workloads:
    """Return the workloads that default spread constraints or CapacityBuffers refer to; read no other kinds."""
    uses_spread = bool(run.settings.default_spread)
    scalable_kinds = {b.spec.scalable_ref.kind for b in buffers if b.active and b.spec.scalable_ref is not None}
    uses_templates = any(b.active and b.spec.pod_template_ref is not None for b in buffers)
    return Workloads(
        services=list_sorted(run, SERVICE) if uses_spread else (),
        replication_controllers=list_sorted(run, REPLICATION_CONTROLLER) if uses_spread else (),
        replica_sets=list_sorted(run, REPLICA_SET) if uses_spread or REPLICA_SET.kind in scalable_kinds else (),
        stateful_sets=list_sorted(run, STATEFUL_SET) if uses_spread or STATEFUL_SET.kind in scalable_kinds else (),
        deployments=list_sorted(run, DEPLOYMENT) if DEPLOYMENT.kind in scalable_kinds else (),
        pod_templates=list_sorted(run, POD_TEMPLATE) if uses_templates else (),
    )


def _pods(run: RunContext, which: Pods) -> tuple[Pod, ...]:
    if which is Pods.NONE:
        return ()
    return list_sorted(run, POD, field_selector="spec.nodeName=" if which is Pods.UNASSIGNED else "")


def _is_ours(run: RunContext, claim: NodeClaim) -> bool:
    """Whether its NodeClass is of this cloud's kind; claims with other kinds belong to another autoscaler."""
    ref, kind = claim.spec.node_class_ref, run.cloud.node_class
    return (ref.group, ref.kind) == (kind.group, kind.kind)


def _is_our_pool(run: RunContext) -> Callable[[Mapping[str, Any]], bool]:
    """Return whether a NodePool, valid or not, has a NodeClass of this cloud's kind, or one that cannot be read."""
    kind = run.cloud.node_class

    def is_ours(raw: Mapping[str, Any]) -> bool:
        try:
            ref = raw["spec"]["template"]["spec"]["nodeClassRef"]
            return bool((ref["group"], ref["kind"]) == (kind.group, kind.kind))
        except (KeyError, TypeError):
            return True

    return is_ours


def _unavailable(states: Iterable[OfferingState]) -> Iterable[Unavailable]:
    for state in states:
        for offering in state.status.unavailable:
            yield Unavailable(
                instance_type=offering.instance_type,
                zone=offering.zone,
                capacity_type=offering.capacity_type,
                reservation_id=offering.reservation_id,
                until=offering.until,
                reason=offering.reason,
                node_class=state.metadata.name if offering.node_class_only else "",
            )


def _launch_backoffs(states: Iterable[OfferingState], now: datetime) -> Iterable[LaunchBackoff]:
    """Yield the faults that launches had; of those that several NodeClasses' OfferingStates have, each."""
    for state in states:
        for failure in state.status.launch_failures:
            yield LaunchBackoff(
                fault=failure.fault,
                failures=failure.failures,
                until=failure.until,
                generations=failure.generations,
                is_over=failure.until <= now,
                node_class=state.metadata.name,
            )


# -- lists ------------------------------------------------------------------------------------------------------------


def list_items(
    run: RunContext, resource: Resource[T], *, field_selector: str = "", cached: bool = False
) -> tuple[T, ...]:
    """Return the objects of a kind; `cached` ones, which change rarely, may be some seconds old."""
    return run.store.list(resource, field_selector=field_selector, cached=cached).items


def list_sorted(
    run: RunContext, resource: Resource[O], *, field_selector: str = "", cached: bool = False
) -> tuple[O, ...]:
    """Return the objects of a kind by namespace and name; sort them only if the store has not, since pods are many."""
    found = run.store.list(resource, field_selector=field_selector, cached=cached)
    return found.items if found.in_order else sorted_by_name(found.items)


def list_if_served(run: RunContext, resource: Resource[T]) -> tuple[T, ...]:
    """Return the objects of a kind; none if the API server does not serve the kind, whose CRD is optional."""
    try:
        return list_items(run, resource)
    except NotFoundError:
        return ()


def _list_if_readable(
    run: RunContext, resource: Resource[dict[str, Any]], model: type[M], unread: dict[str, KubeAPIError]
) -> tuple[tuple[M, ...], tuple[InvalidObject, ...]]:
    """Return the objects as `list_parsed`; none, and the error in `unread`, if the CRD or the permission is missing.

    For kinds that a new version adds: until its chart is installed, steps do without them.
    """
    try:
        return list_parsed(run, resource, model)
    except (NotFoundError, ForbiddenError) as error:
        unread[resource.kind] = error
        return (), ()


def sorted_by_name(objects: Iterable[O]) -> tuple[O, ...]:
    """Return the objects by namespace and name."""
    return tuple(sorted(objects, key=_NAME))


def list_parsed(
    run: RunContext,
    resource: Resource[dict[str, Any]],
    model: type[M],
    *,
    optional: bool = False,
    keep: Callable[[Mapping[str, Any]], bool] = lambda raw: True,
) -> tuple[tuple[M, ...], tuple[InvalidObject, ...]]:
    """Return the valid and the invalid objects of a kind, both by name; both empty if an `optional` kind is not served.

    Objects for which `keep` returns False belong to others: they are not validated.

    Validating an object takes half a millisecond, so a warm process validates each version only once.
    """
    found = list_if_served(run, resource) if optional else list_items(run, resource)
    raws = sorted(
        filter(keep, found), key=lambda raw: (str(raw["metadata"].get("namespace", "")), str(raw["metadata"]["name"]))
    )
    cached = run.memory.parsed.get(resource.kind, {})
    parsed = [cached.get(_version(raw)) or _parse(resource.kind, model, raw) for raw in raws]
    run.memory.parsed[resource.kind] = dict(zip(map(_version, raws), parsed, strict=True))
    valid = tuple(item for item in parsed if not isinstance(item, InvalidObject))
    return valid, tuple(item for item in parsed if isinstance(item, InvalidObject))


def _version(raw: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return name, UID and resourceVersion, which identify the content of an object."""
    meta = raw["metadata"]
    return str(meta["name"]), str(meta.get("uid", "")), str(meta.get("resourceVersion", ""))


def _parse(kind: str, model: type[M], raw: Mapping[str, Any]) -> M | InvalidObject:
    meta = raw["metadata"]
    ref = ref_of(kind, str(meta["name"]), str(meta.get("namespace", "")), str(meta.get("uid", "")))
    found = evaluate(ref, parse, model, raw)
    return _invalid_object(kind, raw, found.why) if isinstance(found, SkippedObject) else found


def _invalid_object(kind: str, raw: Mapping[str, Any], why: str) -> InvalidObject:
    meta = _metadata(raw)
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


def _metadata(raw: Mapping[str, Any]) -> ObjectMeta:
    """Return the metadata of an invalid object; only what identifies it if the rest does not decode."""
    meta = _without_nulls(raw["metadata"])
    try:
        return msgspec.convert(meta, ObjectMeta)
    except msgspec.ValidationError:
        return ObjectMeta(
            name=str(meta["name"]),
            namespace=str(meta.get("namespace", "")),
            uid=str(meta.get("uid", "")),
            resource_version=str(meta.get("resourceVersion", "")),
        )


def _without_nulls(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata as a server completes it: fields that are null are missing, and times are in range."""
    return {key: times_in_range(value) for key, value in meta.items() if value is not None}


def conditions_in(raw: Mapping[str, Any]) -> tuple[Condition, ...]:
    """Return `status.conditions` of a raw object; none if they do not decode."""
    try:
        conditions = (raw.get("status") or {}).get("conditions") or ()
        return msgspec.convert(times_in_range(conditions), tuple[Condition, ...])
    except msgspec.ValidationError:
        return ()
