"""Performs single actions against the API server and the cloud, and keeps what was written.

Each may be performed twice with the effect of once. What refused evictions and terminations mean is here, too:

=========  =============================================================================================================
200        evicted
404, 409   the pod is gone, or another one has its name: done, and nothing to report
429        its PodDisruptionBudget does not allow it now: the drain tries again at its own pace
500        more than one PodDisruptionBudget covers it, which the Eviction API always refuses: the same, until a person
           deletes one
=========  =============================================================================================================

Restates: karpenter pkg/controllers/node/termination/terminator/eviction.go `Reconcile`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import Struct, field
from typing_extensions import assert_never

from journeyman.core.api.objects import NODECLAIM, NodeClaim, Resource
from journeyman.core.plan import (
    Action,
    ClearOfferingFailures,
    CreateObject,
    DeleteObject,
    DeletePod,
    Event,
    EvictPod,
    LaunchInstance,
    MarkOfferingUnavailable,
    NominatePods,
    ObjectRef,
    Observation,
    PatchObject,
    RecordPriceAge,
    ReleaseNodeClass,
    RenominatePods,
    Requeue,
    ResolveNodeClass,
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
from journeyman.steps.offering_state_updates import (
    clear_offering_failures,
    mark_offering_unavailable,
    record_price_age,
)

_Key = tuple[str, str, str, str]


class WrittenObjects(Struct):
    """What one run has written, as it is stored now: what the next reconciler's snapshot is made from."""

    claims: dict[str, NodeClaim | None] = field(default_factory=dict)
    """NodeClaims by name; None once deleted."""
    node_classes: dict[str, NodeClassState] = field(default_factory=dict)
    """NodeClasses that were resolved, by name."""
    unavailable: list[MarkOfferingUnavailable] = field(default_factory=list)

    def copy(self) -> WrittenObjects:
        """Return what has been written until now."""
        return WrittenObjects(dict(self.claims), dict(self.node_classes), list(self.unavailable))


class ActionPerformer:
    """Performs the actions of one run."""

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._versions: dict[_Key, str] = {}
        self.written = WrittenObjects()

    def perform(self, action: Action) -> None:
        """Perform one action.

        Raises:
            KubeAPIError: The API server refused; ConflictError means reload and decide again.
            CloudProviderError: The cloud refused.
            InvariantError: The action is not one that is performed alone.
        """
        match action:
            case CreateObject():
                self._create(action)
            case PatchObject():
                self._patch(action)
            case DeleteObject():
                self._delete_unless(action)
            case DeletePod():
                self._delete(action.ref, grace_period_seconds=action.grace_period_seconds)
            case EvictPod():
                self._run.store.evict(action.ref.namespace, action.ref.name, uid=action.ref.uid)
            case TerminateInstance():
                self._terminate(action)
            case ReleaseNodeClass():
                self._run.cloud.release(action.raw)
            case MarkOfferingUnavailable():
                mark_offering_unavailable(self._run, action)
                self.written.unavailable.append(action)
            case ClearOfferingFailures():
                clear_offering_failures(self._run, action)
            case RecordPriceAge():
                self._record_price_age(action)
            case LaunchInstance() | NominatePods() | RenominatePods() | ResolveNodeClass() | Requeue():
                raise InvariantError(f"{type(action).__name__} is not performed alone", action=action)
            case _:
                assert_never(action)

    def patch_together(self, actions: Sequence[PatchObject]) -> tuple[KubeAPIError | None, ...]:
        """Patch objects of one kind in parallel; return for each the API server's refusal, None if it was done."""
        resource, subresource = actions[0].ref.resource, actions[0].subresource
        return self._told(
            actions, self._run.store.patch_each(resource, self._patches(actions), subresource=subresource)
        )

    def _patches(self, actions: Sequence[PatchObject]) -> list[Patch]:
        return [Patch(name=a.ref.name, namespace=a.ref.namespace, body=self._body(a)) for a in actions]

    def _told(
        self, actions: Sequence[PatchObject], answers: Sequence[dict[str, Any] | KubeAPIError]
    ) -> tuple[KubeAPIError | None, ...]:
        for action, answer in zip(actions, answers, strict=True):
            if not isinstance(answer, KubeAPIError):
                self._patched(action, answer)
        return tuple(answer if isinstance(answer, KubeAPIError) else None for answer in answers)

    def identified(self, ref: ObjectRef) -> ObjectRef:
        """Return the same with the UID of a claim that this run created: the decision could not know it."""
        claim = self.written.claims.get(ref.name) if ref.resource.kind == NODECLAIM.kind and not ref.uid else None
        return msgspec.structs.replace(ref, uid=claim.metadata.uid) if claim is not None else ref

    def claim(self, name: str, snapshot: Snapshot) -> NodeClaim | None:
        """Return the claim as it is stored now, as far as this run knows; None if it is gone."""
        return self.written.claims[name] if name in self.written.claims else snapshot.claims_by_name.get(name)

    def _create(self, action: CreateObject) -> None:
        namespace = str(action.body["metadata"].get("namespace", ""))
        try:
            stored: Mapping[str, Any] = self._run.store.create(action.resource, action.body, namespace=namespace)
        except AlreadyExistsError:
            stored = self._existing(action, namespace)
        self._keep(action.resource, stored)
        kind = action.resource.kind
        self._run.telemetry.log("info", f"created {kind.lower()}", **{kind: {"name": action.name}}, why=action.why)

    def _existing(self, action: CreateObject, namespace: str) -> Mapping[str, Any]:
        """The object of that name, if it is the one we would have created: an earlier run was cut off after it."""
        raw: Resource[Any] = msgspec.structs.replace(action.resource, type=dict)
        stored: Mapping[str, Any] = self._run.store.get(raw, action.name, namespace=namespace)
        if stored["metadata"].get("deletionTimestamp"):
            raise ConflictError("an object of that name is being deleted", kind=raw.kind, name=action.name)
        if not _covers(stored.get("spec"), action.body.get("spec")):
            raise AlreadyExistsError("another object has that name", kind=raw.kind, name=action.name)
        return stored

    def _patch(self, action: PatchObject) -> None:
        ref = action.ref
        stored = self._run.store.patch(
            ref.resource, ref.name, self._body(action), namespace=ref.namespace, subresource=action.subresource
        )
        self._patched(action, stored)

    def _body(self, action: PatchObject) -> JSON:
        """The patch with its preconditions."""
        metadata = {**action.patch.get("metadata", {})}
        if action.resource_version:
            metadata["resourceVersion"] = self._version(action.ref, action.resource_version)
        if action.ref.uid:
            metadata["uid"] = action.ref.uid
        return {**action.patch, "metadata": metadata} if metadata else action.patch

    def _version(self, ref: ObjectRef, read: str) -> str:
        """The version that was read, or the one that this run itself made of it."""
        return self._versions.get(_key(ref, read), read)

    def _patched(self, action: PatchObject, stored: Mapping[str, Any]) -> None:
        if action.resource_version:
            self._versions[_key(action.ref, action.resource_version)] = str(
                stored.get("metadata", {}).get("resourceVersion", "")
            )
        self._keep(action.ref.resource, stored)

    def _delete_unless(self, action: DeleteObject) -> None:
        if action.unless_there is not None and self._is_there(action.unless_there):
            raise ConflictError(f"{action.unless_there} is there after all, so {action.ref} is not deleted")
        version = self._version(action.ref, action.resource_version) if action.resource_version else ""
        self._delete(action.ref, version=version)

    def _is_there(self, ref: ObjectRef) -> bool:
        try:
            found = self._run.store.get(ref.resource, ref.name, namespace=ref.namespace)
        except NotFoundError:
            return False
        return ref.uid in ("", found.metadata.uid)

    def _delete(self, ref: ObjectRef, *, version: str = "", grace_period_seconds: int | None = None) -> None:
        """Gone counts as done, and so does another incarnation: the one that was meant is gone."""
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

    def _terminate(self, action: TerminateInstance) -> None:
        if action.unless_claimed and self._is_claimed(action):
            raise ConflictError(
                "the instance has a NodeClaim after all", NodeClaim=action.claim, provider_id=action.provider_id
            )
        with suppress(NodeClaimNotFoundError):
            self._run.cloud.delete(action.provider_id)

    def _is_claimed(self, action: TerminateInstance) -> bool:
        """Whether the claim that the instance was launched for is there now, with this instance or none yet."""
        if not action.claim:
            return False
        try:
            claim = self._run.store.get(NODECLAIM, action.claim)
        except NotFoundError:
            return False
        same = action.claim_uid in ("", claim.metadata.uid)
        return same and claim.status.provider_id in ("", action.provider_id)

    def _record_price_age(self, action: RecordPriceAge) -> None:
        """Write it; no decision reads it, so a failure is only logged."""
        try:
            record_price_age(self._run, action)
        except KubeAPIError as error:
            text = f"the age of prices is not written to OfferingState {action.node_class}: {error.message}"
            self._run.telemetry.log("debug" if isinstance(error, ConflictError) else "warning", text)

    def _keep(self, resource: Resource[Any], stored: Mapping[str, Any]) -> None:
        if resource.kind == NODECLAIM.kind and stored.get("metadata"):
            self.written.claims[str(stored["metadata"]["name"])] = msgspec.convert(stored, NodeClaim)


def _key(ref: ObjectRef, version: str) -> _Key:
    return (ref.resource.plural, ref.namespace, ref.name, version)


def _covers(stored: Any, wanted: Any) -> bool:
    """Whether everything wanted is in what is stored, which may have defaults on top."""
    if isinstance(wanted, Mapping):
        return isinstance(stored, Mapping) and all(_covers(stored.get(key), value) for key, value in wanted.items())
    return bool(stored == wanted)


# kubernetes pkg/registry/core/pod/storage/eviction.go
_SEVERAL_BUDGETS: Final = (
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
)


def eviction_sample(error: JourneymanError | None) -> tuple[Observation, ...]:
    """Return the sample of one eviction request; none if the API server did not answer."""
    code = 200 if error is None else error.status if isinstance(error, KubeAPIError) else 0
    name, labels = "karpenter_pods_eviction_requests_total", {"code": str(code)}
    return (Observation(name=name, labels=labels),) if code else ()


def is_evicted_already(error: JourneymanError) -> bool:
    """Whether the pod is gone already."""
    return isinstance(error, NotFoundError | ConflictError)


def is_blocked_by_budget(error: JourneymanError) -> bool:
    """Whether PodDisruptionBudgets forbid the eviction, which is no failure."""
    several = isinstance(error, KubeAPIError) and error.status == 500 and error.message == _SEVERAL_BUDGETS
    return several or isinstance(error, TooManyRequestsError)


def eviction_blocked(action: EvictPod, error: JourneymanError) -> Event:
    """Return the Event on the node: which pod, and which rule."""
    pod = f"{action.ref.namespace}/{action.ref.name}"
    several = error.message == _SEVERAL_BUDGETS
    what = (
        f"eviction does not support multiple PDBs, as pod {pod} has"
        if several
        else f"evicting pod {pod} violates a PDB"
    )
    text = f"Failed to drain node, {what}: {error.message}"
    return Event(ref=action.node, reason="FailedDraining", message=text, type="Warning")


def termination_failed(action: TerminateInstance, error: JourneymanError) -> Event:
    """Return the Event with the cloud's answer, on the node or, if the instance has none, on its claim."""
    claim = ObjectRef(resource=NODECLAIM, name=action.claim, uid=action.claim_uid)
    text = f"Failed to terminate instance {action.provider_id}: {error.message}"
    return Event(ref=action.node or claim, reason="FailedTermination", message=text, type="Warning")
