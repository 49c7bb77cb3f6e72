"""CapacityBuffers as virtual pods, which keep spare capacity by being scheduled like pending pods.

A buffer names a pod template (a PodTemplate, or a workload's) and a number of pods. Each pass schedules that many
virtual pods beside the pending ones: nodes are launched for them, and consolidation keeps the nodes that hold them.
Virtual pods are never bound or nominated, and get no Events.

Restates: karpenter pkg/controllers/capacitybuffer/{controller,helpers}.go, pkg/state/virtualpods/virtualpods.go.
Differs: a buffer is resolved in the pass that plans for it, so no pass waits for its status; `limits.pods` counts; one
buffer gets at most `MAX_PODS_PER_BUFFER` pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import Condition, Object, ObjectMeta, Pod, PodSpec, PodStatus, PodTemplateSpec
from journeyman.core.api.resources import pod_requests
from journeyman.core.state.skipped_objects import SkippedObject, evaluate
from journeyman.core.state.snapshot import Workloads
from journeyman.errors import InvalidQuantityError

if TYPE_CHECKING:  # the models build validators; nothing here needs them
    from journeyman.core.api.capacity_buffer import CapacityBuffer

O = TypeVar("O", bound=Object)  # noqa: E741 - any Kubernetes object

MAX_PODS_PER_BUFFER: Final = 5000
"""Limits the nodes, and the scheduler's memory, that a mistyped `replicas` can use."""

RESOLVED: Final = "Resolved"
SCALABLE_REF_NOT_FOUND: Final = "ScalableRefNotFound"
POD_TEMPLATE_NOT_FOUND: Final = "PodTemplateNotFound"
RESOLUTION_FAILED: Final = "ResolutionFailed"

MAX_PODS: Final = 20_000
"""Of all buffers together, in the order of their names."""

_PRIORITY: Final = -(2**31)  # autoscaling/v1beta1/constants.go `VirtualPodPriority`
_UNSCHEDULABLE: Final = PodStatus(
    phase="Pending", conditions=(Condition(type="PodScheduled", status="False", reason="Unschedulable"),)
)


class ResolvedBuffer(Struct, frozen=True, kw_only=True):
    """A buffer with its pod template and number of pods; without a template, `reason` and `message` say why.

    `generation` is that of the PodTemplate, None if the template belongs to a workload.
    """

    buffer: CapacityBuffer
    reason: str
    message: str
    template: PodTemplateSpec | None = None
    replicas: int = 0
    generation: int | None = None


def resolve_buffers(
    buffers: Iterable[CapacityBuffer], workloads: Workloads, now: datetime
) -> tuple[ResolvedBuffer, ...]:
    """Return each active buffer, in order, with its template and number of pods: none outside of its windows."""
    index = _TemplateIndex(workloads)
    left = MAX_PODS
    resolved: list[ResolvedBuffer] = []
    for buffer in buffers:
        if not buffer.active:
            continue
        found = evaluate(buffer, _resolve, buffer, index)
        if isinstance(found, SkippedObject):
            found = _failed(buffer, RESOLUTION_FAILED, found.why)
        if found.replicas and not buffer.reserves_capacity(now):
            message = f"{found.message}; no pods are planned for outside of its windows ({labels.ACTIVE})"
            found = replace(found, replicas=0, message=message)
        if found.replicas > left:
            message = f"{found.message}; only {left} pods are planned for, because all buffers together get {MAX_PODS}"
            found = replace(found, replicas=left, message=message)
        left -= found.replicas
        resolved.append(found)
    return tuple(resolved)


class _TemplateIndex:
    """PodTemplates by key, and workloads by kind and key; a key is `namespace/name`."""

    def __init__(self, workloads: Workloads) -> None:
        by_kind = {
            "Deployment": workloads.deployments,
            "ReplicaSet": workloads.replica_sets,
            "StatefulSet": workloads.stateful_sets,
        }
        self.templates = _by_key(workloads.pod_templates)
        self.workloads = {kind: _by_key(objects) for kind, objects in by_kind.items()}


def _by_key(objects: Iterable[O]) -> Mapping[str, O]:
    return {f"{o.metadata.namespace}/{o.metadata.name}": o for o in objects}


def _resolve(buffer: CapacityBuffer, templates_index: _TemplateIndex) -> ResolvedBuffer:
    spec, namespace = buffer.spec, buffer.metadata.namespace
    if spec.pod_template_ref is not None:
        key = f"{namespace}/{spec.pod_template_ref.name}"
        template = templates_index.templates.get(key)
        if template is None:
            return _failed(buffer, POD_TEMPLATE_NOT_FOUND, f"PodTemplate {key} does not exist")
        return _sized(buffer, template.template, 0, template.metadata.generation)
    ref = spec.scalable_ref
    if ref is None:
        return _failed(buffer, RESOLUTION_FAILED, "neither podTemplateRef nor scalableRef is set")
    if ref.api_group not in {"", "apps"} or ref.kind not in templates_index.workloads:
        kind = f"{ref.api_group}/{ref.kind}" if ref.api_group else ref.kind
        return _failed(
            buffer, RESOLUTION_FAILED, f"scalableRef to a {kind}: it may name a Deployment, ReplicaSet or StatefulSet"
        )
    workload = templates_index.workloads[ref.kind].get(f"{namespace}/{ref.name}")
    if workload is None:
        return _failed(buffer, SCALABLE_REF_NOT_FOUND, f"{ref.kind} {namespace}/{ref.name} does not exist")
    return _sized(buffer, workload.spec.template, workload.spec.replicas, None)


def _failed(buffer: CapacityBuffer, reason: str, message: str) -> ResolvedBuffer:
    return ResolvedBuffer(buffer=buffer, reason=reason, message=message)


def _sized(buffer: CapacityBuffer, template: PodTemplateSpec, scaled_to: int, generation: int | None) -> ResolvedBuffer:
    """Return the resolved buffer; it has the larger of `replicas` and `percentage` as pods, at most as `limits` allow.

    If neither is set, `limits` alone determine the number of pods.

    Args:
        buffer: The buffer.
        template: The template of its pods.
        scaled_to: Replicas of the workload it refers to, 0 if it refers to none.
        generation: The generation of the PodTemplate, None for a workload.
    """
    spec = buffer.spec
    sizes = [spec.replicas] if spec.replicas is not None else []
    if spec.percentage is not None and scaled_to > 0:
        sizes.append(-(-scaled_to * spec.percentage // 100))  # rounded up
    try:
        fitting = _fitting(spec.limit_amounts, template)
    except InvalidQuantityError as error:
        return _failed(buffer, RESOLUTION_FAILED, error.message)
    if fitting is not None:
        sizes = [min(max(sizes), fitting)] if sizes else [fitting]
    requested = max(sizes, default=0)
    replicas = min(requested, MAX_PODS_PER_BUFFER)
    message = "Pod template resolved successfully"
    if replicas < requested:
        message += f"; of the {requested} pods asked for, only the first {MAX_PODS_PER_BUFFER} are planned for"
    return ResolvedBuffer(
        buffer=buffer, reason=RESOLVED, message=message, template=template, replicas=replicas, generation=generation
    )


def _fitting(limits: Mapping[str, int], template: PodTemplateSpec) -> int | None:
    """Return how many pods fit into the limits; None if the limits name no resource that the pods request."""
    requests = pod_requests(Pod(spec=template.spec))
    counts = [limits[name] // amount for name, amount in requests.items() if amount and name in limits]
    return min(counts, default=None)


def virtual_pods(resolved: Iterable[ResolvedBuffer], now: datetime, taken: Iterable[str] = ()) -> tuple[Pod, ...]:
    """Return the virtual pods of these buffers, pending since `now`.

    Args:
        resolved: The result of `resolve_buffers`.
        now: The time of the snapshot, which makes all real pods older.
        taken: Keys of existing pods; virtual pods with one of these keys are omitted.
    """
    names = frozenset(taken)
    pods = (pod for each in resolved for pod in _pods(each, now))
    return tuple(pod for pod in pods if pod.key not in names)


def _pods(resolved: ResolvedBuffer, now: datetime) -> Iterable[Pod]:
    if resolved.template is None:
        return
    meta, spec = resolved.buffer.metadata, _stripped(resolved.template.spec)
    annotations = {labels.BUFFER_POD: "true", labels.BUFFER_NAME: meta.name, labels.BUFFER_NAMESPACE: meta.namespace}
    for number in range(1, resolved.replicas + 1):
        metadata = ObjectMeta(
            name=f"capacity-buffer-{meta.name}-{number}",
            namespace=meta.namespace,
            uid=f"{meta.uid}-{number}",
            labels=resolved.template.metadata.labels,
            annotations=annotations,
            creation_timestamp=now,
        )
        yield Pod(metadata=metadata, spec=spec, status=_UNSCHEDULABLE)


def _stripped(spec: PodSpec) -> PodSpec:
    """Return the spec without its node name and without volumes whose PersistentVolumeClaims will never exist."""
    volumes = tuple(v for v in spec.volumes if v.persistent_volume_claim is None and v.ephemeral is None)
    return msgspec.structs.replace(spec, node_name="", volumes=volumes, priority=_PRIORITY)


def buffer_of(pod: Pod) -> str:
    """Return the key of the buffer that a virtual pod belongs to."""
    annotations = pod.metadata.annotations
    return f"{annotations.get(labels.BUFFER_NAMESPACE, '')}/{annotations.get(labels.BUFFER_NAME, '')}"
