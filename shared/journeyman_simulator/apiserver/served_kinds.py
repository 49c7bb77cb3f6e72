"""Lists the kinds that the API server serves: subresources, generation, selectable fields, defaults and validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr

from journeyman.core.api import crds, objects, storage
from journeyman.core.api.objects import Resource
from journeyman_simulator.apiserver import api_errors, custom_resources, object_validation
from journeyman_simulator.apiserver.api_errors import ErrorCause
from journeyman_simulator.apiserver.field_sets import BUILT_IN_SHAPE

JSON = Mapping[str, Any]
Default = Callable[[JSON], JSON]
"""Returns the object with defaults; called for every write of the main resource."""
Validate = Callable[[JSON, "JSON | None"], Iterable[ErrorCause]]
"""Returns the errors of an object, given the stored one (None for a creation)."""

_METADATA_FIELDS = frozenset({"metadata.name", "metadata.namespace"})
_INVOLVED = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")


class ServedKind(Struct, frozen=True, kw_only=True):
    """A served kind.

    `status_on_create` is whether a creation stores the status, which kubelets use to register nodes; otherwise a kind with
    a status subresource drops it. `generation` is whether the server counts changes outside metadata and status. `custom`
    is whether a CustomResourceDefinition defines the kind. `shape` returns the schema that defines which lists an apply
    merges.
    """

    resource: Resource[Any]
    status_subresource: bool = True
    status_on_create: bool = False
    generation: bool = True
    custom: bool = False
    fields: frozenset[str] = _METADATA_FIELDS
    shape: Callable[[], JSON] = lambda: BUILT_IN_SHAPE
    default: Default = lambda obj: obj
    validate: Validate = lambda _new, _old: ()
    id: str = ""  # the group resource, by which objects are stored: `pods`, `nodeclaims.karpenter.sh`

    def __post_init__(self) -> None:
        force_setattr(self, "id", api_errors.group_resource(self.resource))


def _raw(api_version: str, kind: str, plural: str, *, namespaced: bool = True) -> Resource[dict[str, Any]]:
    group, _, version = api_version.rpartition("/")
    return Resource(group=group, version=version, kind=kind, plural=plural, namespaced=namespaced, type=dict)


def _selectable(*fields: str) -> frozenset[str]:
    return _METADATA_FIELDS | set(fields)


_EVENT_FIELDS = _selectable(
    "reason", "type", "source", "reportingComponent", *(f"involvedObject.{f}" for f in _INVOLVED)
)
_CLASS_REF_FIELDS = _selectable(*(f"spec.nodeClassRef.{field}" for field in ("group", "kind", "name")))


def _default_storage_class(obj: JSON) -> JSON:
    """Return a StorageClass with defaults. Restates: kubernetes `pkg/apis/storage/v1/defaults.go` `SetDefaults_StorageClass`."""
    return {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate", **obj}


def _workload_kinds() -> Iterable[ServedKind]:
    for kind, plural in (("Deployment", "deployments"), ("ReplicaSet", "replicasets"), ("StatefulSet", "statefulsets")):
        yield ServedKind(resource=_raw("apps/v1", kind, plural), default=object_validation.default_replicas)
    yield ServedKind(resource=objects.DAEMONSET)
    yield ServedKind(resource=_raw("batch/v1", "Job", "jobs"))


def _kinds_without_validation() -> Iterable[ServedKind]:
    """Yield the kinds without defaults or validation."""
    for api_version, kind, plural, namespaced in (
        ("v1", "ConfigMap", "configmaps", True),
        ("v1", "Secret", "secrets", True),
        ("v1", "ServiceAccount", "serviceaccounts", True),
        ("storage.k8s.io/v1", "CSINode", "csinodes", False),
        ("resource.k8s.io/v1", "DeviceClass", "deviceclasses", False),
        ("resource.k8s.io/v1", "ResourceSlice", "resourceslices", False),
        ("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", False),
    ):
        resource = _raw(api_version, kind, plural, namespaced=namespaced)
        yield ServedKind(resource=resource, status_subresource=False, generation=False)
    yield ServedKind(
        resource=storage.STORAGE_CLASS, status_subresource=False, generation=False, default=_default_storage_class
    )
    for api_version, kind, plural, namespaced in (
        ("v1", "Service", "services", True),
        ("v1", "ReplicationController", "replicationcontrollers", True),
        ("v1", "PodTemplate", "podtemplates", True),
        ("resource.k8s.io/v1", "ResourceClaim", "resourceclaims", True),
        ("v1", "PersistentVolumeClaim", "persistentvolumeclaims", True),
        ("v1", "PersistentVolume", "persistentvolumes", False),
        ("storage.k8s.io/v1", "VolumeAttachment", "volumeattachments", False),
    ):
        yield ServedKind(resource=_raw(api_version, kind, plural, namespaced=namespaced), generation=False)


def _default_namespace(obj: JSON) -> JSON:
    """Return a Namespace with defaults.

    Restates: kubernetes `pkg/registry/core/namespace/strategy.go` `PrepareForCreate`, `Canonicalize`.
    """
    meta = obj["metadata"]
    labels = {**(meta.get("labels") or {}), "kubernetes.io/metadata.name": meta["name"]}
    spec = {"finalizers": ["kubernetes"], **(obj.get("spec") or {})}
    status = {"phase": "Active", **(obj.get("status") or {})}
    return {**obj, "metadata": {**meta, "labels": labels}, "spec": spec, "status": status}


def _custom_kinds() -> Iterable[ServedKind]:
    for definition in crds.DEFINITIONS:
        custom = custom_resources.CustomResource(definition)
        fields = _CLASS_REF_FIELDS if custom.resource is objects.NODECLAIM else _METADATA_FIELDS
        yield ServedKind(
            resource=custom.resource,
            custom=True,
            shape=custom.shape,
            default=custom.default,
            validate=custom.validate,
            fields=fields,
        )


def _capacity_buffer_kinds() -> Iterable[ServedKind]:
    """Yield the kinds of other autoscalers that Journeyman reads, without validation."""
    yield ServedKind(resource=objects.CAPACITY_BUFFER, custom=True)


def built_in() -> tuple[ServedKind, ...]:
    """Return the kinds of a new `ApiServer`."""
    return (
        ServedKind(
            resource=objects.POD,
            fields=_selectable(*object_validation.POD_FIELDS),
            default=object_validation.default_pod,
            validate=object_validation.validate_pod,
        ),
        ServedKind(
            resource=objects.NODE,
            generation=False,
            status_on_create=True,
            fields=_selectable("spec.unschedulable"),
            validate=object_validation.validate_node,
        ),
        ServedKind(
            resource=objects.NAMESPACE,
            generation=False,
            fields=_selectable("status.phase"),
            default=_default_namespace,
        ),
        ServedKind(
            resource=objects.EVENT,
            status_subresource=False,
            generation=False,
            fields=_EVENT_FIELDS,
            validate=object_validation.validate_event,
        ),
        ServedKind(
            resource=objects.LEASE,
            status_subresource=False,
            generation=False,
            validate=object_validation.validate_lease,
        ),
        ServedKind(resource=objects.PDB, validate=object_validation.validate_disruption_budget),
        *_workload_kinds(),
        *_kinds_without_validation(),
        *_custom_kinds(),
        *_capacity_buffer_kinds(),
    )
