"""CapacityBuffer status: whether a buffer is valid, how many pods it reserves, and whether they have capacity.

Restates: karpenter pkg/controllers/capacitybuffer/controller.go `resolveAndUpdateStatus`,
pkg/controllers/provisioning/buffers.go `updateBufferProvisioningStatus`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from journeyman.core.api.capacity_buffer import PROVISIONING, READY_FOR_PROVISIONING
from journeyman.core.api.conditions import set_condition, to_wire
from journeyman.core.api.objects import CAPACITY_BUFFER, Condition, Pod
from journeyman.core.plan import ObjectRef, PatchObject, Plan, chain_of
from journeyman.core.scheduling.results import Results
from journeyman.core.state import InvalidObject, Snapshot
from journeyman.core.state.capacity_buffers import ResolvedBuffer, buffer_of, resolve_buffers
from journeyman.core.state.condition_transitions import with_transitions
from journeyman.core.state.pod_predicates import is_virtual_pod
from journeyman.core.state.skipped_objects import plan_for_each

FITS: Final = "FitsExistingCapacity"
REQUIRES_NEW: Final = "RequiresNewCapacity"
NOT_READY: Final = "NotReadyForProvisioning"
EMPTY: Final = "BufferEmpty"
INVALID: Final = "InvalidSpec"


def reconcile_capacity_buffers(snapshot: Snapshot, results: Results) -> Plan:
    """Write the status of every CapacityBuffer where it changed.

    Args:
        snapshot: Buffers (invalid ones included), workloads, and pods with the buffers' virtual pods.
        results: The scheduler's placements of the virtual pods.
    """
    on_existing = _count(snapshot.pods, (key for keys in results.existing.values() for key in keys))
    on_new = _count(snapshot.pods, (key for claim in results.new_claims for key in claim.pods))
    failed = _count(snapshot.pods, results.pod_errors)

    def decide(resolved: ResolvedBuffer) -> Plan:
        key = resolved.buffer.key
        provisioning = _provisioning(resolved, on_existing[key], on_new[key], failed[key])
        return _reconcile_buffer(resolved, provisioning, snapshot.now)

    resolved_buffers = resolve_buffers(snapshot.capacity_buffers, snapshot.workloads, snapshot.now)
    invalid = (item for item in snapshot.invalid_objects if item.kind == CAPACITY_BUFFER.kind)
    return plan_for_each(resolved_buffers, decide, about=lambda resolved: resolved.buffer) + plan_for_each(
        invalid, lambda item: _reconcile_invalid(item, snapshot.now)
    )


def without_virtual_pods(results: Results, pods: Iterable[Pod]) -> Results:
    """Return the results without virtual pods; a NodeClaim planned only for a buffer stays, with no pods."""
    virtual = {pod.key for pod in pods if is_virtual_pod(pod)}
    if not virtual:
        return results

    def real(keys: Iterable[str]) -> tuple[str, ...]:
        return tuple(key for key in keys if key not in virtual)

    return replace(
        results,
        new_claims=tuple(replace(claim, pods=real(claim.pods)) for claim in results.new_claims),
        existing={name: left for name, keys in results.existing.items() if (left := real(keys))},
        pod_errors={key: error for key, error in results.pod_errors.items() if key not in virtual},
    )


def _reconcile_invalid(item: InvalidObject, now: datetime) -> Plan:
    """Set ReadyForProvisioning and Provisioning False on a buffer that does not validate."""
    conditions = _set(
        item.conditions, READY_FOR_PROVISIONING, _ConditionValue(False, INVALID, item.why), item.generation, now
    )
    not_ready = _ConditionValue(False, NOT_READY, "Buffer is not ReadyForProvisioning")
    conditions = _set(conditions, PROVISIONING, not_ready, item.generation, now)
    if conditions == item.conditions:
        return Plan()
    patch = PatchObject(
        ref=ObjectRef(resource=CAPACITY_BUFFER, name=item.name, namespace=item.namespace, uid=item.uid),
        patch={"status": {"conditions": to_wire(conditions)}},
        why="CapacityBuffer status",
        resource_version=item.resource_version,
        subresource="status",
    )
    chain = chain_of(f"CapacityBuffer {item.namespace}/{item.name}", patch)
    return Plan(chains=(with_transitions(chain, patch.ref, {}, item.conditions, conditions),))


def _count(pods: Iterable[Pod], keys: Iterable[str]) -> Mapping[str, int]:
    """Return the number of virtual pods among these keys, by buffer.

    Restates: karpenter pkg/controllers/provisioning/buffers.go `countVirtualPods`.
    """
    buffers = {pod.key: buffer_of(pod) for pod in pods if is_virtual_pod(pod)}
    return Counter(buffers[key] for key in keys if key in buffers)


class _ConditionValue(NamedTuple):
    """Status, reason and message of a condition."""

    is_true: bool
    reason: str
    message: str


def _provisioning(resolved: ResolvedBuffer, on_existing: int, on_new: int, failed: int) -> _ConditionValue | None:
    """Return the condition Provisioning; None to leave it, since the scheduler did not place all virtual pods.

    Restates: karpenter pkg/controllers/provisioning/buffers.go `computeProvisioningCondition`.
    """
    if resolved.template is None:
        return _ConditionValue(False, NOT_READY, "Buffer is not ReadyForProvisioning")
    replicas = resolved.replicas
    if not replicas:
        return _ConditionValue(False, EMPTY, "Buffer has zero desired replicas")
    if on_new or failed:
        return _ConditionValue(
            False, REQUIRES_NEW, f"{on_new}/{replicas} virtual pods required new capacity, {failed} failed"
        )
    if on_existing != replicas:
        return None
    return _ConditionValue(True, FITS, f"All {replicas} virtual pods fit on existing capacity")


def _reconcile_buffer(resolved: ResolvedBuffer, provisioning: _ConditionValue | None, now: datetime) -> Plan:
    buffer = resolved.buffer
    meta, before = buffer.metadata, buffer.status
    values = {
        READY_FOR_PROVISIONING: _ConditionValue(resolved.template is not None, resolved.reason, resolved.message),
        PROVISIONING: provisioning,
    }
    conditions = before.conditions
    for type_, value in values.items():
        if value is not None:
            conditions = _set(conditions, type_, value, meta.generation, now)
    stored = before.to_wire()
    changes: dict[str, Any] = {key: value for key, value in _status(resolved).items() if stored.get(key) != value}
    if conditions != before.conditions:
        changes["conditions"] = to_wire(conditions)
    if not changes:
        return Plan()
    patch = PatchObject(
        ref=ObjectRef(resource=CAPACITY_BUFFER, name=meta.name, namespace=meta.namespace, uid=meta.uid),
        patch={"status": changes},
        why="CapacityBuffer status",
        resource_version=meta.resource_version,
        subresource="status",
    )
    chain = chain_of(f"CapacityBuffer {buffer.key}", patch)
    return Plan(chains=(with_transitions(chain, patch.ref, {}, before.conditions, conditions),))


def _set(
    conditions: tuple[Condition, ...], type_: str, value: _ConditionValue, generation: int, now: datetime
) -> tuple[Condition, ...]:
    return set_condition(
        conditions,
        type_,
        "True" if value.is_true else "False",
        now=now,
        generation=generation,
        reason=value.reason,
        message=value.message,
    )


def _status(resolved: ResolvedBuffer) -> dict[str, Any]:
    """Return the status fields besides conditions; None removes one. An unresolved buffer keeps its replicas."""
    status: dict[str, Any] = {"provisioningStrategy": resolved.buffer.spec.provisioning_strategy}
    if resolved.template is None:
        return status
    ref = resolved.buffer.spec.pod_template_ref
    status["replicas"] = resolved.replicas
    status["podTemplateRef"] = {"name": ref.name} if ref is not None else None
    status["podTemplateGeneration"] = resolved.generation
    return status
