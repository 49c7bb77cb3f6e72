"""CapacityBuffer status: whether a buffer is valid, how many pods it reserves, and whether they have capacity.

Restates: karpenter pkg/controllers/capacitybuffer/controller.go `resolveAndUpdateStatus`,
pkg/controllers/provisioning/buffers.go `computeProvisioningCondition`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from journeyman.core.api.capacity_buffer import PROVISIONING, READY_FOR_PROVISIONING
from journeyman.core.api.conditions import set_condition, to_wire
from journeyman.core.api.objects import CAPACITY_BUFFER, Condition, Pod
from journeyman.core.plan import ObjectRef, PatchObject, Plan, chain_of, merge_plans
from journeyman.core.scheduling.capacity_buffers import ResolvedBuffer, buffer_of, is_virtual_pod, resolve_buffers
from journeyman.core.scheduling.results import Results
from journeyman.core.state import Snapshot
from journeyman.core.state.condition_transitions import with_transitions

FITS: Final = "FitsExistingCapacity"
REQUIRES_NEW: Final = "RequiresNewCapacity"
NOT_READY: Final = "NotReadyForProvisioning"
EMPTY: Final = "BufferEmpty"


def reconcile_capacity_buffers(snapshot: Snapshot, results: Results) -> Plan:
    """Write every buffer's status where it changed, by what the pass made of its virtual pods."""
    standing = _count(snapshot.pods, (key for keys in results.existing.values() for key in keys))
    opened = _count(snapshot.pods, (key for claim in results.new_claims for key in claim.pods))
    failed = _count(snapshot.pods, results.pod_errors)
    plans = []
    for resolved in resolve_buffers(snapshot.capacity_buffers, snapshot.workloads):
        key = resolved.buffer.key
        verdict = _provisioning(resolved, standing[key], opened[key], failed[key])
        plans.append(_reconcile_buffer(resolved, verdict, snapshot.now))
    return merge_plans(plans)


def _count(pods: Iterable[Pod], keys: Iterable[str]) -> Mapping[str, int]:
    """How many of these are virtual pods, by buffer."""
    buffers = {pod.key: buffer_of(pod) for pod in pods if is_virtual_pod(pod)}
    return Counter(buffers[key] for key in keys if key in buffers)


class _Verdict(NamedTuple):
    """What a condition says."""

    holds: bool
    reason: str
    message: str


def _provisioning(resolved: ResolvedBuffer, standing: int, opened: int, failed: int) -> _Verdict | None:
    """What Provisioning says; None if this pass says nothing of the buffer."""
    if resolved.template is None:
        return _Verdict(False, NOT_READY, "Buffer is not ReadyForProvisioning")
    wanted = resolved.replicas
    if not wanted:
        return _Verdict(False, EMPTY, "Buffer has zero desired replicas")
    if opened or failed:
        return _Verdict(False, REQUIRES_NEW, f"{opened}/{wanted} virtual pods required new capacity, {failed} failed")
    return _Verdict(True, FITS, f"All {wanted} virtual pods fit on existing capacity") if standing == wanted else None


def _reconcile_buffer(resolved: ResolvedBuffer, provisioning: _Verdict | None, now: datetime) -> Plan:
    buffer = resolved.buffer
    meta, before = buffer.metadata, buffer.status
    verdicts = {
        READY_FOR_PROVISIONING: _Verdict(resolved.template is not None, resolved.reason, resolved.message),
        PROVISIONING: provisioning,
    }
    conditions = before.conditions
    for type_, verdict in verdicts.items():
        if verdict is not None:
            conditions = _set(conditions, type_, verdict, meta.generation, now)
    known = before.to_wire()
    changes: dict[str, Any] = {key: value for key, value in _status(resolved).items() if known.get(key) != value}
    if conditions != before.conditions:
        changes["conditions"] = to_wire(conditions)
    if not changes:
        return Plan()
    patch = PatchObject(
        ref=ObjectRef(resource=CAPACITY_BUFFER, name=meta.name, namespace=meta.namespace, uid=meta.uid),
        patch={"status": changes},
        why="how many pods it reserves, and whether they have capacity",
        resource_version=meta.resource_version,
        subresource="status",
    )
    chain = chain_of(f"CapacityBuffer {buffer.key}", patch)
    return Plan(chains=(with_transitions(chain, patch.ref, {}, before.conditions, conditions),))


def _set(
    conditions: tuple[Condition, ...], type_: str, verdict: _Verdict, generation: int, now: datetime
) -> tuple[Condition, ...]:
    return set_condition(
        conditions,
        type_,
        "True" if verdict.holds else "False",
        now=now,
        generation=generation,
        reason=verdict.reason,
        message=verdict.message,
    )


def _status(resolved: ResolvedBuffer) -> dict[str, Any]:
    """The fields besides conditions; None removes one. What cannot be resolved keeps its numbers."""
    status: dict[str, Any] = {"provisioningStrategy": resolved.buffer.spec.provisioning_strategy}
    if resolved.template is None:
        return status
    ref = resolved.buffer.spec.pod_template_ref
    status["replicas"] = resolved.replicas
    status["podTemplateRef"] = {"name": ref.name} if ref is not None else None
    status["podTemplateGeneration"] = resolved.generation
    return status
