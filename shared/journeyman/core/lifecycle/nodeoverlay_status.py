"""NodeOverlay status: sets ValidationSucceeded on every overlay, False if it is invalid or conflicts with another.

Restates: karpenter pkg/controllers/nodeoverlay/controller.go `updateOverlayStatuses`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from journeyman.core.api.conditions import NODE_OVERLAY_DEPENDENTS, VALIDATION_SUCCEEDED, ConditionSet
from journeyman.core.api.nodeoverlay import NodeOverlay
from journeyman.core.api.objects import NODE_OVERLAY
from journeyman.core.plan import ObjectRef, PatchObject, Plan, chain_of
from journeyman.core.state import InvalidObject, Snapshot
from journeyman.core.state.condition_transitions import with_transitions
from journeyman.core.state.skipped_objects import plan_for_each

CONFLICT: Final = "Conflict"
RUNTIME_VALIDATION: Final = "RuntimeValidation"


def reconcile_nodeoverlays(snapshot: Snapshot, conflicts: Mapping[str, str]) -> Plan:
    """Write the conditions of every overlay where they changed.

    Args:
        snapshot: The overlays, invalid ones included.
        conflicts: By the name of an overlay that is not applied, the overlay it conflicts with.
    """
    now = snapshot.now
    invalid = (item for item in snapshot.invalid_objects if item.kind == NODE_OVERLAY.kind)
    return plan_for_each(
        snapshot.node_overlays,
        lambda overlay: _reconcile_overlay(overlay, conflicts.get(overlay.metadata.name, ""), now),
    ) + plan_for_each(invalid, lambda item: _reconcile_invalid(item, now))


def _reconcile_overlay(overlay: NodeOverlay, conflicts_with: str, now: datetime) -> Plan:
    meta = overlay.metadata
    before = ConditionSet(
        conditions=overlay.status.conditions,
        dependents=NODE_OVERLAY_DEPENDENTS,
        generation=meta.generation,
        created=meta.creation_timestamp,
        deleting=meta.deletion_timestamp is not None,
    )
    after = before.initialised(now).set_true(VALIDATION_SUCCEEDED, now)
    if conflicts_with:
        why = f"conflict with another overlay of the same weight: {conflicts_with}"
        after = before.initialised(now).set_false(VALIDATION_SUCCEEDED, now, CONFLICT, why)
    ref = ObjectRef(resource=NODE_OVERLAY, name=meta.name, uid=meta.uid)
    return _write(ref, before, after, meta.resource_version)


def _reconcile_invalid(item: InvalidObject, now: datetime) -> Plan:
    """Set ValidationSucceeded False on an overlay that does not validate."""
    before = ConditionSet(
        conditions=item.conditions,
        dependents=NODE_OVERLAY_DEPENDENTS,
        generation=item.generation,
        created=item.created,
    )
    after = before.initialised(now).set_false(VALIDATION_SUCCEEDED, now, RUNTIME_VALIDATION, item.why)
    ref = ObjectRef(resource=NODE_OVERLAY, name=item.name, uid=item.uid)
    return _write(ref, before, after, item.resource_version)


def _write(ref: ObjectRef, before: ConditionSet, after: ConditionSet, resource_version: str) -> Plan:
    if not after.changed_from(before.conditions):
        return Plan()
    patch = PatchObject(
        ref=ref,
        patch={"status": {"conditions": after.to_wire()}},
        why="NodeOverlay status",
        resource_version=resource_version,
        subresource="status",
    )
    chain = chain_of(f"NodeOverlay {ref.name}", patch)
    return Plan(chains=(with_transitions(chain, ref, {}, before.conditions, after.conditions),))
