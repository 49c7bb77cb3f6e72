"""What single actions do: `ObjectWriter` writes Kubernetes objects, functions change what is in the cloud.

Doing it twice has the effect of once. The module also interprets the response to an eviction:

=========  =============================================================================================================
200        evicted
404, 409   the pod is gone, or another pod has its name: nothing to do
429        its PodDisruptionBudget allows no disruption now: the drain tries again
500        more than one PodDisruptionBudget selects the pod, which the Eviction API always refuses: the drain tries again,
           until a user deletes a budget
=========  =============================================================================================================

Restates: karpenter pkg/controllers/node/termination/terminator/eviction.go `Reconcile`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from journeyman.core.api import labels
from journeyman.core.api.conditions import format_time
from journeyman.core.api.objects import NODECLAIM, NodeClaim, Resource
from journeyman.core.lifecycle.termination import termination_time
from journeyman.core.plan import (
    CreateObject,
    CreateScheduleEntry,
    DeleteObject,
    DeletePod,
    DeleteScheduleEntry,
    Event,
    EvictPod,
    MarkOfferingUnavailable,
    ObjectRef,
    Observation,
    PatchObject,
    RecordLaunchFault,
    TerminateInstance,
)
from journeyman.core.state import NodeClassState, Snapshot
from journeyman.errors import (
    AlreadyExistsError,
    ConflictError,
    InvariantError,
    JourneymanError,
    KubeAPIError,
    NodeClaimNotFoundError,
    NotFoundError,
    TooManyRequestsError,
)
from journeyman.ports import JSON, Patch
from journeyman.steps.context import RunContext

_Key = tuple[str, str, str, str]


class WrittenObjects(Struct):
    """The objects that one run has written, as stored now; `step.carry_forward` merges them into the next snapshot."""

    claims: dict[str, NodeClaim | None] = field(default_factory=dict)
    """NodeClaims by name; None once deleted."""
    node_classes: dict[str, NodeClassState] = field(default_factory=dict)
    """Resolved NodeClasses by name."""
    unavailable: list[MarkOfferingUnavailable] = field(default_factory=list)
    launch_faults: list[RecordLaunchFault] = field(default_factory=list)

    def copy(self) -> WrittenObjects:
        """Return a copy that later writes do not change."""
        return WrittenObjects(
            dict(self.claims), dict(self.node_classes), list(self.unavailable), list(self.launch_faults)
        )


class ObjectWriter:
    """Writes the Kubernetes objects of one run, and keeps them as they are stored after it.

    Each method raises KubeAPIError if the API server refuses; after a ConflictError the step must load and decide again.
    """

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._versions: dict[_Key, str] = {}
        self.written = WrittenObjects()

    def patch_in_parallel(self, actions: Sequence[PatchObject]) -> tuple[KubeAPIError | None, ...]:
        """Patch objects of one kind in parallel; return the error of each, None if it succeeded."""
        resource, subresource = actions[0].ref.resource, actions[0].subresource
        patches = [Patch(name=a.ref.name, namespace=a.ref.namespace, body=self._body(a)) for a in actions]
        results = self._run.store.patch_each(resource, patches, subresource=subresource)
        for action, result in zip(actions, results, strict=True):
            if not isinstance(result, KubeAPIError):
                self._record_patch(action, result)
        return tuple(result if isinstance(result, KubeAPIError) else None for result in results)

    def with_uid(self, ref: ObjectRef) -> ObjectRef:
        """Return the reference with the UID of a claim that this run created, which the plan could not contain."""
        claim = self.written.claims.get(ref.name) if ref.resource.kind == NODECLAIM.kind and not ref.uid else None
        return msgspec.structs.replace(ref, uid=claim.metadata.uid) if claim is not None else ref

    def claim(self, name: str, snapshot: Snapshot) -> NodeClaim | None:
        """Return the claim as this run wrote it, or else as the snapshot has it; None if it is deleted."""
        return self.written.claims[name] if name in self.written.claims else snapshot.claims_by_name.get(name)

    def create(self, action: CreateObject) -> None:
        """Create an object, unless an earlier run created it."""
        namespace = str(action.body["metadata"].get("namespace", ""))
        try:
            stored: Mapping[str, Any] = self._run.store.create(action.resource, action.body, namespace=namespace)
        except AlreadyExistsError:
            stored = self._get_created_earlier(action, namespace)
        self._record_stored(action.resource, stored)
        kind = action.resource.kind
        self._run.telemetry.log("info", f"created {kind.lower()}", **{kind: {"name": action.name}}, why=action.why)

    def _get_created_earlier(self, action: CreateObject, namespace: str) -> Mapping[str, Any]:
        """Return the existing object if it has the spec to create: an earlier run created it and ended before recording it.

        Raises:
            ConflictError: It is being deleted; or it is a NodeClaim that was not wiped, although it was not in the list.
            AlreadyExistsError: It has another spec.
        """
        raw: Resource[Any] = msgspec.structs.replace(action.resource, type=dict)
        stored: Mapping[str, Any] = self._run.store.get(raw, action.name, namespace=namespace)
        if stored["metadata"].get("deletionTimestamp"):
            raise ConflictError("an object with this name is being deleted", kind=raw.kind, name=action.name)
        adopted = (action.body["metadata"].get("annotations") or {}).get(labels.ADOPTED)
        if adopted and (stored["metadata"].get("annotations") or {}).get(labels.ADOPTED) != adopted:
            raise ConflictError("the instance has a NodeClaim after all", NodeClaim=action.name, provider_id=adopted)
        if not _covers(stored.get("spec"), action.body.get("spec")):
            raise AlreadyExistsError("another object has this name", kind=raw.kind, name=action.name)
        return stored

    def patch(self, action: PatchObject) -> None:
        """Patch an object."""
        ref = action.ref
        stored = self._run.store.patch(
            ref.resource, ref.name, self._body(action), namespace=ref.namespace, subresource=action.subresource
        )
        self._record_patch(action, stored)

    def _body(self, action: PatchObject) -> JSON:
        """Return the patch with its preconditions."""
        metadata = {**action.patch.get("metadata", {})}
        if action.resource_version:
            metadata["resourceVersion"] = self._current_version(action.ref, action.resource_version)
        if action.ref.uid:
            metadata["uid"] = action.ref.uid
        return {**action.patch, "metadata": metadata} if metadata else action.patch

    def _current_version(self, ref: ObjectRef, read_version: str) -> str:
        """Return the version that this run's last patch of the object returned, or else the one that was read."""
        return self._versions.get(_key(ref, read_version), read_version)

    def _record_patch(self, action: PatchObject, stored: Mapping[str, Any]) -> None:
        if action.resource_version:
            self._versions[_key(action.ref, action.resource_version)] = str(
                stored.get("metadata", {}).get("resourceVersion", "")
            )
        self._record_stored(action.ref.resource, stored)

    def delete(self, action: DeleteObject) -> None:
        """Delete an object, unless one exists that the action names."""
        if action.unless_exists is not None and self._exists(action.unless_exists):
            raise ConflictError(f"not deleting {action.ref}: {action.unless_exists} exists")
        version = self._current_version(action.ref, action.resource_version) if action.resource_version else ""
        self._delete(action.ref, version=version)

    def _exists(self, ref: ObjectRef) -> bool:
        try:
            found = self._run.store.get(ref.resource, ref.name, namespace=ref.namespace)
        except NotFoundError:
            return False
        return ref.uid in ("", found.metadata.uid)

    def _delete(self, ref: ObjectRef, *, version: str = "", grace_period_seconds: int | None = None) -> None:
        """Delete an object. NotFound is success, and so is a UID conflict: another object has the name now."""
        try:
            self._run.store.delete(
                ref.resource,
                ref.name,
                namespace=ref.namespace,
                uid=ref.uid,
                resource_version=version,
                grace_period_seconds=grace_period_seconds,
            )
        except NotFoundError:
            pass
        except ConflictError:
            if version:
                raise
        if ref.resource.kind == NODECLAIM.kind:
            self.written.claims[ref.name] = None

    def delete_by_force(self, action: DeletePod) -> None:
        """Delete a pod by force, if the NodeClaim still has the termination time that the deletion enforces."""
        try:
            claim = self._run.store.get(NODECLAIM, action.claim.name)
        except NotFoundError:
            claim = None
        end = termination_time(claim) if claim is not None and claim.metadata.uid == action.claim.uid else None
        if end is None or end > action.deadline:
            raise ConflictError(
                f"not deleting {action.ref} by force: {action.claim} does not terminate by {format_time(action.deadline)} any more"
            )
        self._delete(action.ref, grace_period_seconds=action.grace_period_seconds)

    def _record_stored(self, resource: Resource[Any], stored: Mapping[str, Any]) -> None:
        if resource.kind == NODECLAIM.kind and stored.get("metadata"):
            self.written.claims[str(stored["metadata"]["name"])] = msgspec.convert(stored, NodeClaim)


def _key(ref: ObjectRef, version: str) -> _Key:
    return (ref.resource.plural, ref.namespace, ref.name, version)


def _covers(stored: Any, expected: Any) -> bool:
    """Whether `stored` has every field of `expected` with the same value; it may have defaulted fields as well."""
    if isinstance(expected, Mapping):
        return isinstance(stored, Mapping) and all(_covers(stored.get(key), value) for key, value in expected.items())
    return bool(stored == expected)


def terminate_instances(run: RunContext, actions: Sequence[TerminateInstance]) -> tuple[JourneymanError | None, ...]:
    """Terminate instances together; return the error of each action, None if it succeeded or the instance is gone."""
    kept = [_reason_to_keep(run, action) for action in actions]
    due = [action.provider_id for action, reason in zip(actions, kept, strict=True) if reason is None]
    refused = run.cloud.delete_each(due) if due else {}
    errors = {id_: e for id_, e in refused.items() if not isinstance(e, NodeClaimNotFoundError)}
    return tuple(reason or errors.get(action.provider_id) for action, reason in zip(actions, kept, strict=True))


def _reason_to_keep(run: RunContext, action: TerminateInstance) -> JourneymanError | None:
    """Return a conflict if the instance has a NodeClaim after all, or the error with which that could not be read."""
    try:
        if not (action.unless_claimed and _is_claimed(run, action)):
            return None
    except KubeAPIError as error:
        return error
    text = "not terminating the instance: it has a NodeClaim"
    return ConflictError(text, NodeClaim=action.claim, provider_id=action.provider_id)


def _is_claimed(run: RunContext, action: TerminateInstance) -> bool:
    """Whether the claim that the instance was launched for exists now, with this instance or none yet."""
    if not action.claim:  # some clouds know only the UID while they build an instance
        claims = run.store.list(NODECLAIM).items if action.claim_uid else ()
        return any(
            c.metadata.uid == action.claim_uid and c.status.provider_id in ("", action.provider_id) for c in claims
        )
    try:
        claim = run.store.get(NODECLAIM, action.claim)
    except NotFoundError:
        return False
    if claim.status.provider_id == action.provider_id:  # also of a NodeClaim that was created again
        return True
    return action.claim_uid in ("", claim.metadata.uid) and not claim.status.provider_id


def delete_unused_resources(run: RunContext) -> None:
    """Delete unused cloud resources, as the NodeClasses and NodeClaims are stored now."""
    kind = run.cloud.node_class
    node_classes = run.store.list(kind).items
    claims = [
        claim
        for claim in run.store.list(NODECLAIM).items
        if (claim.spec.node_class_ref.group, claim.spec.node_class_ref.kind) == (kind.group, kind.kind)
    ]
    for what, names in run.cloud.delete_unused(node_classes, claims).items():
        if names:
            run.telemetry.log("info", f"deleted {len(names)} {what}(s) that nothing uses", names=list(names))
            labels = {"kind": what.replace(" ", "_")}
            name = "journeyman_cloud_resources_deleted_total"
            run.telemetry.observe(Observation(name=name, value=float(len(names)), labels=labels))


def change_schedule(run: RunContext, action: CreateScheduleEntry | DeleteScheduleEntry) -> None:
    """Create or delete an entry of the cloud's scheduler, and remember that it exists, or not; nothing after an error."""
    schedules, memory = run.window_schedules, run.memory
    if schedules is None:
        raise InvariantError("a plan has schedule entries for a cloud without a scheduler", action=action)
    known, memory.schedule_entries = memory.schedule_entries, None
    if isinstance(action, CreateScheduleEntry):
        schedules.create(action.entry)
        changed = frozenset({action.entry.name})
        memory.schedule_entries = None if known is None else known | changed
    else:
        schedules.delete(action.name)
        memory.schedule_entries = None if known is None else known - {action.name}


# kubernetes pkg/registry/core/pod/storage/eviction.go
_SEVERAL_BUDGETS: Final = (
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
)


def eviction_sample(error: JourneymanError | None) -> tuple[Observation, ...]:
    """Return the metric sample of one eviction request; none if the API server did not respond."""
    code = 200 if error is None else error.status if isinstance(error, KubeAPIError) else 0
    name, labels = "karpenter_pods_eviction_requests_total", {"code": str(code)}
    return (Observation(name=name, labels=labels),) if code else ()


def is_blocked_by_budget(error: JourneymanError) -> bool:
    """Whether an eviction failed because of PodDisruptionBudgets, which counts as a refusal, not as an error."""
    has_several_budgets = isinstance(error, KubeAPIError) and error.status == 500 and error.message == _SEVERAL_BUDGETS
    return has_several_budgets or isinstance(error, TooManyRequestsError)


def eviction_blocked(action: EvictPod, error: JourneymanError) -> Event:
    """Return the Event on the node that names the pod and the rule that refuses its eviction."""
    pod = f"{action.ref.namespace}/{action.ref.name}"
    has_several_budgets = error.message == _SEVERAL_BUDGETS
    cause = (
        f"eviction does not support multiple PDBs, as pod {pod} has"
        if has_several_budgets
        else f"evicting pod {pod} violates a PDB"
    )
    text = f"Failed to drain node, {cause}: {error.message}"
    return Event(ref=action.node, reason="FailedDraining", message=text, type="Warning")


def termination_failed(action: TerminateInstance, error: JourneymanError) -> Event:
    """Return the Event with the cloud's error, on the node or, if the instance has none, on its claim."""
    claim = ObjectRef(resource=NODECLAIM, name=action.claim, uid=action.claim_uid)
    text = f"Failed to terminate instance {action.provider_id}: {error.message}"
    return Event(ref=action.node or claim, reason="FailedTermination", message=text, type="Warning")
