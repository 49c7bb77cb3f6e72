"""Creates, updates and deletes objects of every kind, with preconditions, finalizers and garbage collection.

Restates: k8s.io/apiserver `pkg/registry/generic/registry/store.go`, `pkg/registry/rest/{create,update,delete}.go`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, Final

from journeyman.core.api.objects import NAMESPACE, POD, Resource
from journeyman.ports import Clock
from journeyman_simulator.apiserver import api_errors, object_metadata, object_validation, schema_validation
from journeyman_simulator.apiserver.object_metadata import clone, is_deleting
from journeyman_simulator.apiserver.object_storage import Key, ObjectStorage, StoredObject
from journeyman_simulator.apiserver.served_kinds import ServedKind

JSON = Mapping[str, Any]


class ObjectRegistry:
    """The served kinds and their objects in one storage. Callers must hold the storage's lock."""

    def __init__(self, storage: ObjectStorage, clock: Clock, kinds: Iterable[ServedKind]) -> None:
        self.storage = storage
        self._clock = clock
        self._kinds: dict[tuple[str, str], ServedKind] = {}
        self.kinds: tuple[ServedKind, ...] = ()
        """Every served kind, by group and plural."""
        for kind in kinds:
            self.register(kind)

    def register(self, kind: ServedKind) -> None:
        """Add a kind, or replace one."""
        self._kinds[kind.resource.group, kind.resource.plural] = kind
        self.kinds = tuple(kind for _, kind in sorted(self._kinds.items(), key=itemgetter(0)))

    def kind(self, resource: Resource[Any]) -> ServedKind:
        """Return the kind of a resource. Raises NotFoundError if it is not served."""
        kind = self._kinds.get((resource.group, resource.plural))
        if kind is None:
            raise api_errors.unknown_resource()
        return kind

    def kind_named(self, group: str, name: str) -> ServedKind | None:
        """Return the kind with that group and name (`apps`, `ReplicaSet`); None if it is not served."""
        return next((kind for kind in self.kinds if (kind.resource.group, kind.resource.kind) == (group, name)), None)

    def key(self, kind: ServedKind, namespace: str, name: str) -> Key:
        """Return the storage key of an object, which has no namespace for cluster-scoped kinds."""
        return (namespace if kind.resource.namespaced else "", name)

    def get(self, kind: ServedKind, key: Key) -> StoredObject:
        """Return the stored object. Raises NotFoundError if it does not exist."""
        entry = self.storage.table(kind.id).entries.get(key)
        if entry is None:
            raise api_errors.not_found(kind.resource, key[1])
        return entry

    def create(self, kind: ServedKind, namespace: str, body: JSON) -> StoredObject:
        """Store a new object with a UID, generation 1 and defaults; an empty `namespace` means the body's.

        Raises:
            AlreadyExistsError: An object with the name exists.
            NotFoundError, ForbiddenError: The namespace does not exist, or is terminating.
            InvalidError: The object is invalid.
        """
        obj = self._with_identity(kind, namespace, body)
        if kind.status_subresource and not kind.status_on_create:
            obj.pop("status", None)
        self._check(kind, obj, None)  # checks the types before other code reads the object
        obj = dict(kind.default(obj))
        self._validate(kind, obj, None)
        key = self.key(kind, namespace or obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        if key in self.storage.table(kind.id).entries:
            raise api_errors.already_exists(kind.resource, key[1])
        return self.storage.put(kind.id, key, obj)

    def update(self, kind: ServedKind, key: Key, change: Callable[[JSON], JSON], subresource: str = "") -> StoredObject:
        """Replace the fields of an object that belong to the (sub)resource by those of the result of `change`.

        `metadata.resourceVersion` and `metadata.uid` of the result are preconditions, except the UID for a custom resource's
        status. An unchanged object is not written. An object that is marked for deletion is removed with its last finalizer.

        Raises:
            NotFoundError: The object does not exist.
            ConflictError: A precondition does not hold.
            InvalidError: The result is invalid.
        """
        entry = self.get(kind, key)
        old, requested = entry.object, change(entry.object)
        _check_is_map(requested.get("metadata", {}))
        self._check_preconditions(
            kind, old, requested.get("metadata") or {}, checks_uid=not (subresource and kind.custom)
        )
        change_of = {"status": self._with_status, object_validation.RESIZE: self._with_resources}
        new = change_of.get(subresource, self._with_spec)(kind, old, requested)
        if new == old:
            return entry
        if self._can_be_removed(kind, new):
            return self.storage.remove(kind.id, key, new)
        return self.storage.put(kind.id, key, new)

    def delete(
        self,
        kind: ServedKind,
        key: Key,
        *,
        uid: str = "",
        resource_version: str = "",
        grace_period_seconds: int | None = None,
    ) -> StoredObject:
        """Mark an object for deletion, or remove it if nothing delays the deletion; return its last state.

        Raises:
            NotFoundError: The object does not exist.
            ConflictError: It has another UID or resourceVersion than expected.
        """
        entry = self.get(kind, key)
        self._check_identity(kind, entry.object, uid, resource_version)
        is_pod = kind.id == POD.plural
        grace = object_validation.grace_period(entry.object, grace_period_seconds) if is_pod else 0
        marked = object_metadata.marked_for_deletion(entry.object, self._clock.now(), grace)
        if kind.id == NAMESPACE.plural:
            marked["status"] = {**(marked.get("status") or {}), "phase": "Terminating"}
        if not self._can_be_removed(kind, marked):
            return entry if marked == entry.object else self.storage.put(kind.id, key, marked)
        if is_pod and marked != entry.object:  # also for a deletion without a grace period
            marked = self.storage.put(kind.id, key, marked).object
        return self.storage.remove(kind.id, key, marked)

    def finalize(self, name: str) -> StoredObject:
        """Remove an empty namespace and return its last state."""
        kind, key = self.kind(NAMESPACE), ("", name)
        return self.storage.remove(kind.id, key, {**self.get(kind, key).object, "spec": {}})

    def _can_be_removed(self, kind: ServedKind, obj: JSON) -> bool:
        """Whether nothing delays the removal of the object; finalizers delay that of a namespace."""
        held = kind.id == NAMESPACE.plural and bool((obj.get("spec") or {}).get("finalizers"))
        return object_metadata.deletion_is_complete(obj) and not held

    def _with_identity(self, kind: ServedKind, namespace: str, body: JSON) -> dict[str, Any]:
        """Return a copy of the body with the server's metadata."""
        obj: dict[str, Any] = clone(body)
        meta = obj.setdefault("metadata", {})
        _check_is_map(meta)
        if meta.get("resourceVersion"):
            raise api_errors.internal_error("resourceVersion should not be set on objects to be created")
        serial = self.storage.next_serial()
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = object_metadata.generated_name(meta["generateName"], serial)
        if kind.resource.namespaced:
            namespace = namespace or str(meta.get("namespace", ""))
            self._check_namespace(kind, namespace, meta)
        for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion", "generation"):
            meta.pop(field, None)
        meta |= {"uid": object_metadata.uid(serial), "creationTimestamp": object_metadata.text(self._clock.now())}
        if kind.resource.namespaced:
            meta["namespace"] = namespace
        if kind.generation:
            meta["generation"] = 1
        return {"apiVersion": kind.resource.api_version, "kind": kind.resource.kind, **obj}

    def _check_namespace(self, kind: ServedKind, namespace: str, meta: JSON) -> None:
        if not namespace:
            raise api_errors.bad_request("an empty namespace may not be set during creation")
        if meta.get("namespace") and meta["namespace"] != namespace:
            raise api_errors.bad_request(_OTHER_NAMESPACE)
        namespace_entry = self.storage.table(NAMESPACE.plural).entries.get(("", namespace))
        if namespace_entry is None:
            raise api_errors.not_found(NAMESPACE, namespace)
        if object_metadata.is_deleting(namespace_entry.object):
            raise api_errors.namespace_is_terminating(kind.resource, str(meta.get("name", "")), namespace)

    def _with_status(self, kind: ServedKind, old: JSON, requested: JSON) -> dict[str, Any]:
        """Return the object with the new status; for a built-in kind, a status write can also change metadata."""
        new: dict[str, Any] = {**old, "status": requested.get("status") or {}}
        if not kind.custom:
            new["metadata"] = self._metadata(kind, old, requested)
            if kind.id == POD.plural:  # kubernetes `pkg/registry/core/pod/strategy.go` podStatusStrategy
                new = object_metadata.with_metadata(new, ownerReferences=old["metadata"].get("ownerReferences"))
        self._check(kind, new, old)
        if kind.custom:
            new = _with_defaults(kind, new, old)
        self._validate(kind, new, old)
        return new

    def _with_spec(self, kind: ServedKind, old: JSON, requested: JSON) -> dict[str, Any]:
        new = {**requested, "metadata": self._metadata(kind, old, requested)}
        new |= {field: old[field] for field in ("apiVersion", "kind") if field in old}
        if kind.status_subresource:
            new.pop("status", None)
            if "status" in old:
                new["status"] = old["status"]
        self._check(kind, new, old)
        new = _with_defaults(kind, new, old)
        self._validate(kind, new, old)
        if kind.generation and _generation_fields(new) != _generation_fields(old):
            new = object_metadata.with_metadata(new, generation=old["metadata"].get("generation", 0) + 1)
        return new

    def _with_resources(self, kind: ServedKind, old: JSON, requested: JSON) -> dict[str, Any]:
        """Return the pod with the resources of the requested one. Restates: kubernetes `pkg/registry/core/pod/strategy.go`."""
        resized = object_validation.resized_pod(old, requested)
        new = _with_defaults(kind, resized, old)
        self._validate(kind, new, resized)
        if new["spec"] != old["spec"]:
            new = object_metadata.with_metadata(new, generation=old["metadata"].get("generation", 0) + 1)
        return new

    def _metadata(self, kind: ServedKind, old: JSON, requested: JSON) -> dict[str, Any]:
        """Return the new metadata with the server's fields unchanged."""
        wanted = requested.get("metadata") or {}
        name, namespace = old["metadata"]["name"], old["metadata"].get("namespace")
        if wanted.get("name", name) != name:
            raise api_errors.name_mismatch(wanted["name"], name)
        if namespace and wanted.get("namespace", namespace) != namespace:
            raise api_errors.bad_request(_OTHER_NAMESPACE)
        if errors := list(object_metadata.immutable_field_errors(wanted, old)):
            raise api_errors.invalid(kind.resource, name, errors)
        kept = {field: old["metadata"].get(field) for field in (*object_metadata.SYSTEM_FIELDS, "resourceVersion")}
        merged = {**wanted, **kept}
        return {key: value for key, value in merged.items() if value is not None}

    def _check(self, kind: ServedKind, new: JSON, old: JSON | None) -> None:
        causes = list(object_metadata.metadata_errors(new, old, custom=kind.custom))
        if kind.custom and any(cause.blocks for cause in causes):
            causes.append(schema_validation.UNCHECKED)
        causes += [] if kind.custom else _type_errors(new)
        if causes:
            raise api_errors.invalid(kind.resource, new["metadata"].get("name", ""), causes)

    def _validate(self, kind: ServedKind, new: JSON, old: JSON | None) -> None:
        if causes := list(kind.validate(new, old)):
            raise api_errors.invalid(kind.resource, new["metadata"]["name"], causes)

    def _check_preconditions(self, kind: ServedKind, old: JSON, requested: JSON, *, checks_uid: bool) -> None:
        uid, version = requested.get("uid", ""), requested.get("resourceVersion", "")
        stored = old["metadata"]
        if version and version != stored["resourceVersion"]:
            raise api_errors.modified(kind.resource, stored["name"])
        if checks_uid and uid and uid != stored["uid"]:
            raise api_errors.immutable_uid(kind.resource, stored["name"], uid)

    def _check_identity(self, kind: ServedKind, obj: JSON, uid: str, resource_version: str) -> None:
        stored = obj["metadata"]
        if uid and uid != stored["uid"]:
            raise api_errors.uid_mismatch(kind.resource, stored["name"], uid, stored["uid"])
        if resource_version and resource_version != stored["resourceVersion"]:
            version = stored["resourceVersion"]
            raise api_errors.version_mismatch(kind.resource, stored["name"], resource_version, version)


_OTHER_NAMESPACE: Final = "the namespace of the provided object does not match the namespace sent on the request"


def _with_defaults(kind: ServedKind, new: JSON, old: JSON) -> dict[str, Any]:
    """Return the object with defaults, which unchanged parts of a custom resource already have."""
    kept = {field: part for field, part in new.items() if kind.custom and part is old.get(field)}
    completed = kind.default({field: part for field, part in new.items() if field not in kept})
    return {**{field: part for field, part in completed.items() if field not in kept}, **kept}


def _type_errors(obj: JSON) -> Iterator[api_errors.ErrorCause]:
    """Yield an error for a spec or status that is not an object."""
    for field in ("spec", "status"):
        if not isinstance(obj.get(field, {}), Mapping):
            yield api_errors.ErrorCause(field, f"Invalid value: {obj[field]!r}: must be an object")


def _check_is_map(meta: Any) -> None:
    if not isinstance(meta, Mapping):
        raise api_errors.bad_request(f"metadata must be an object, not {meta!r}")


def _generation_fields(obj: JSON) -> dict[str, Any]:
    """Return the part of an object whose changes increase the generation."""
    return {key: value for key, value in obj.items() if key not in {"metadata", "status"}}


Delete = Callable[[ServedKind, Key], None]
"""Deletes one object by a request to the server."""


def collect_garbage(registry: ObjectRegistry, delete: Delete) -> int:
    """Delete objects without owners or namespace until none is left; return the number of deletions.

    An object is without owners if it has owner references and no stored object has one of their UIDs.
    """
    deleted = 0
    while due := tuple(_due(registry)):
        for kind, key in due:
            delete(kind, key)
        deleted += len(due)
    return deleted


def empty_namespaces(registry: ObjectRegistry) -> tuple[str, ...]:
    """Return the names of the terminating namespaces without objects, sorted."""
    storage = registry.storage
    spaces = storage.table(NAMESPACE.plural).entries.items()
    terminating = sorted(name for (_, name), entry in spaces if is_deleting(entry.object))
    if not terminating:
        return ()
    non_empty = {key[0] for kind in registry.kinds for key in storage.table(kind.id).entries}
    return tuple(name for name in terminating if name not in non_empty)


def _due(registry: ObjectRegistry) -> Iterator[tuple[ServedKind, Key]]:
    storage = registry.storage
    namespaces = {
        "",
        *(key[1] for key, e in storage.table(NAMESPACE.plural).entries.items() if not is_deleting(e.object)),
    }
    for kind in registry.kinds:
        found = (
            key
            for key, entry in storage.table(kind.id).entries.items()
            if (key[0] not in namespaces or _is_orphaned(entry.object, storage.uids)) and not is_deleting(entry.object)
        )
        yield from ((kind, key) for key in sorted(found))


def _is_orphaned(obj: JSON, uids_in_use: Container[str]) -> bool:
    owners = obj["metadata"].get("ownerReferences")
    if not owners:
        return False
    uids = [owner["uid"] for owner in owners if owner.get("uid")]
    return bool(uids) and not any(uid in uids_in_use for uid in uids)
