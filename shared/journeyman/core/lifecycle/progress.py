"""NodeClaimProgress: one NodeClaim and its Node as a run changes them, with Events, metrics and log lines.

Each reconciler (registration, initialization, consistency…) takes a `NodeClaimProgress` and returns the next one. Nothing is
written in between: `NodeClaimProgress.chain` compares the result with the original, so a run writes the metadata and the
status of an object at most once each, and only if they changed.

Restates: karpenter pkg/controllers/nodeclaim/lifecycle/controller.go `Reconcile`, which compares `stored` with the result
of its sub-reconcilers, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api.conditions import ConditionSet, Status, format_time, to_wire
from journeyman.core.api.objects import Node, NodeClaim, ObjectMeta
from journeyman.core.plan import (
    Action,
    Chain,
    DeleteObject,
    Event,
    Observation,
    PatchObject,
    claim_ref,
    next_requeue,
    node_ref,
)
from journeyman.core.state.condition_transitions import with_transitions


class NodeClaimProgress(Struct, frozen=True, kw_only=True):
    """A NodeClaim and, once it is found, its Node: as they were read, and as they should become."""

    original: NodeClaim
    claim: NodeClaim
    now: datetime
    original_node: Node | None = None
    node: Node | None = None
    events: tuple[Event, ...] = ()
    observations: tuple[Observation, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, claim: NodeClaim, now: datetime) -> NodeClaimProgress:
        """Return the progress of a NodeClaim that nothing has changed yet."""
        return cls(original=claim, claim=claim, now=now)

    def with_found_node(self, node: Node) -> NodeClaimProgress:
        """Return the progress with the NodeClaim's Node."""
        return replace(self, original_node=node, node=node)

    def with_condition(self, type_: str, status: Status, reason: str = "", message: str = "") -> NodeClaimProgress:
        """Return the progress with this condition, and Ready derived from all; the reason defaults to the type."""
        updated = ConditionSet.of_claim(self.claim, self.now).set(type_, status, self.now, reason or type_, message)
        status_after = msgspec.structs.replace(self.claim.status, conditions=updated.conditions)
        return replace(self, claim=msgspec.structs.replace(self.claim, status=status_after))

    def with_events(
        self,
        *events: Event,
        observations: tuple[Observation, ...] = (),
        notes: tuple[str, ...] = (),
    ) -> NodeClaimProgress:
        """Return the progress with more Events, observations and notes."""
        return replace(
            self,
            events=self.events + events,
            observations=self.observations + observations,
            notes=self.notes + notes,
        )

    def chain(self, *after: Action, why: str) -> Chain:
        """Return the patches of the Node, those of the NodeClaim, and then the actions `after`, as one chain."""
        writes: tuple[Action, ...] = ()
        if self.original_node is not None and self.node is not None:
            writes += node_patches(self.original_node, self.node, why)
        writes += claim_patches(self.original, self.claim, why)
        chain = Chain(
            subject=f"NodeClaim {self.claim.metadata.name}",
            actions=writes + after,
            events=self.events,
            observations=self.observations,
        )
        before, now = self.original.status.conditions, self.claim.status.conditions
        return with_transitions(chain, claim_ref(self.claim), self.claim.metadata.labels, before, now)


def with_metadata(claim: NodeClaim, **changes: Any) -> NodeClaim:
    """Return the NodeClaim with other metadata fields."""
    return msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, **changes))


def with_node(node: Node, *, metadata: Mapping[str, Any] = {}, spec: Mapping[str, Any] = {}) -> Node:
    """Return the Node with other metadata and spec fields."""
    return msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(node.metadata, **metadata),
        spec=msgspec.structs.replace(node.spec, **spec),
    )


def delete_nodeclaim(claim: NodeClaim, why: str) -> DeleteObject:
    """Return the deletion of the NodeClaim at the version that was read; if it has changed since, the next run decides again."""
    return DeleteObject(ref=claim_ref(claim), why=why, resource_version=claim.metadata.resource_version)


def claim_patches(before: NodeClaim, after: NodeClaim, why: str) -> tuple[PatchObject, ...]:
    """Return the patches from `before` to `after`: of the metadata first, as it has the finalizer, then of the status."""
    patches = []
    ref, version = claim_ref(before), before.metadata.resource_version
    if metadata := metadata_patch(before.metadata, after.metadata):
        patches.append(PatchObject(ref=ref, patch={"metadata": metadata}, why=why, resource_version=version))
    if status := _changed(before.status, after.status):
        patches.append(
            PatchObject(ref=ref, patch={"status": status}, why=why, resource_version=version, subresource="status")
        )
    return tuple(patches)


def node_patches(before: Node, after: Node, why: str) -> tuple[PatchObject, ...]:
    """Return the patch of metadata and spec from `before` to `after`; none if they are equal."""
    patch: dict[str, Any] = {}
    if metadata := metadata_patch(before.metadata, after.metadata):
        patch["metadata"] = metadata
    if spec := _changed(before.spec, after.spec):
        patch["spec"] = spec
    if not patch:
        return ()
    version = before.metadata.resource_version
    return (PatchObject(ref=node_ref(before), patch=patch, why=why, resource_version=version),)


def metadata_patch(before: ObjectMeta, after: ObjectMeta) -> dict[str, Any]:
    """Return the merge patch of labels, annotations, finalizers and owner references; a removed key becomes null."""
    patch: dict[str, Any] = {}
    for name, old, new in (
        ("labels", before.labels, after.labels),
        ("annotations", before.annotations, after.annotations),
    ):
        changes: dict[str, str | None] = {key: value for key, value in new.items() if old.get(key) != value}
        changes.update({key: None for key in old if key not in new})
        if changes:
            patch[name] = changes
    if before.finalizers != after.finalizers:
        patch["finalizers"] = list(after.finalizers)
    if before.owner_references != after.owner_references:
        patch["ownerReferences"] = _wire(after.owner_references)
    return patch


def poll_time(now: datetime, since: datetime, shortest: timedelta, longest: timedelta) -> datetime:
    """Return when to check again what started at `since`: soon at first, then at ever longer intervals."""
    return next_requeue(now, min(max((now - since) / 20, shortest), longest))


def _changed(before: msgspec.Struct, after: msgspec.Struct) -> dict[str, Any]:
    """Return the fields that differ, by their JSON names; a removed value becomes null."""
    changes: dict[str, Any] = {}
    # not by `structs.fields`, which resolves the annotations anew each time: 1 ms, of a run's 10
    for name, json_name in zip(before.__struct_fields__, before.__struct_encode_fields__, strict=True):
        old, new = getattr(before, name), getattr(after, name)
        if old == new:
            continue
        changes[json_name] = to_wire(new) if name == "conditions" else _wire(new)
    return changes


def _wire(value: Any) -> Any:
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, tuple):
        return [msgspec.to_builtins(item) for item in value]
    return None if value in ("", None) else msgspec.to_builtins(value)
