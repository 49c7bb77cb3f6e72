"""Implements server-side apply: owners of fields, conflicts between managers, and merging of configurations.

Restates: k8s.io/apimachinery `pkg/util/managedfields`, sigs.k8s.io/structured-merge-diff `merge/update.go`.
Differs: objects have no `metadata.managedFields`, and ownership is recorded from an object's first apply on; fields written
before belong to one manager, `before-first-apply`, as in kube-apiserver for unknown writers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from journeyman_simulator.apiserver import api_errors, object_metadata
from journeyman_simulator.apiserver.field_sets import (
    Item,
    Path,
    field_paths,
    merge_fields,
    path_text,
    remove_field,
    undeclared_fields,
    value_at,
)
from journeyman_simulator.apiserver.object_metadata import clone
from journeyman_simulator.apiserver.object_registry import ObjectRegistry
from journeyman_simulator.apiserver.object_storage import Key, StoredObject
from journeyman_simulator.apiserver.served_kinds import ServedKind

JSON = Mapping[str, Any]
_SERVER_FIELDS: Final = frozenset({*object_metadata.SYSTEM_FIELDS, "resourceVersion", "managedFields", "generateName"})


class FieldOwner(Struct, frozen=True, kw_only=True, order=True):
    """A field manager. `api_version` is set if it wrote without an apply."""

    manager: str
    subresource: str = ""
    api_version: str = ""

    def __str__(self) -> str:
        where = f' with subresource "{self.subresource}"' if self.subresource else ""
        return f'"{self.manager}"{where}' + (f" using {self.api_version}" if self.api_version else "")


class ServerSideApply:
    """Applies configurations, and records the owners of fields of applied objects. Callers must hold the storage's lock."""

    def __init__(self, registry: ObjectRegistry) -> None:
        self._registry = registry
        self._owned: dict[str, dict[Path, frozenset[FieldOwner]]] = {}
        """The owners of each field, by UID of the object."""

    def apply(
        self, kind: ServedKind, key: Key, body: JSON, manager: str, *, force: bool = False, subresource: str = ""
    ) -> tuple[StoredObject, bool]:
        """Apply `body` to the object; return the result, and whether the apply created it.

        Raises:
            ConflictError: Another manager owns a field with a different value and `force` is False, or a precondition does not
                hold.
            InvalidError: The result is invalid.
        """
        owner = FieldOwner(manager=manager, subresource=subresource)
        wanted = _owned_part(kind, clone(body), subresource)
        for path in undeclared_fields(wanted, kind.shape()) if kind.custom else ():
            raise api_errors.undeclared(kind.resource, key[1], path_text(path))
        if key not in self._registry.storage.table(kind.id).entries and not subresource:
            return self._create(kind, key, body, wanted, owner), True
        return self._update(kind, key, body, wanted, owner, force=force), False

    def written(self, kind: ServedKind, before: StoredObject, after: StoredObject, owner: FieldOwner) -> None:
        """Record a write that is not an apply, after which the writer owns the changed fields."""
        uid = after.object["metadata"]["uid"]
        owned = self._owned.get(uid)
        if owned is None:
            return
        old, new = _ownable_part(before.object), _ownable_part(after.object)
        now = set(field_paths(new, kind.shape()))
        kept = {path: owners for path, owners in owned.items() if path in now}
        changed = (path for path in now if value_at(old, path) != value_at(new, path))
        self._owned[uid] = kept | dict.fromkeys(changed, frozenset({owner}))

    def forget(self, uid: str) -> None:
        """Drop the owners of a removed object."""
        self._owned.pop(uid, None)

    def _create(self, kind: ServedKind, key: Key, body: JSON, wanted: JSON, owner: FieldOwner) -> StoredObject:
        meta = body.get("metadata") or {}
        if meta.get("uid"):
            why = f"uid mismatch: the provided object specified uid {meta['uid']}, and no existing object was found"
            raise api_errors.conflict(kind.resource, key[1], why)
        if not meta.get("name"):
            why = f"the name of the object ({key[1]} based on URL) was undeterminable: name must be provided"
            raise api_errors.bad_request(why)
        if meta["name"] != key[1]:
            raise api_errors.name_mismatch(meta["name"], key[1])
        unversioned = {name: value for name, value in meta.items() if name != "resourceVersion"}
        entry = self._registry.create(kind, key[0], {**body, "metadata": unversioned})
        self._owned[entry.object["metadata"]["uid"]] = dict.fromkeys(
            field_paths(wanted, kind.shape()), frozenset({owner})
        )
        return entry

    def _update(
        self, kind: ServedKind, key: Key, body: JSON, wanted: JSON, owner: FieldOwner, *, force: bool
    ) -> StoredObject:
        stored = self._registry.get(kind, key)
        uid = stored.object["metadata"]["uid"]
        owned = self._owned.get(uid) or self._before_first_apply(kind, stored.object)
        applied_paths = set(field_paths(wanted, kind.shape()))
        conflicting = list(_conflicting_fields(stored.object, wanted, owned, applied_paths, owner))
        if conflicting and not force:
            conflicts = [(str(other), path_text(path)) for path, other in conflicting]
            raise api_errors.apply_conflicts(sorted(conflicts, key=lambda found: found[1]))
        after = _owners_after(owned, applied_paths, owner, {path for path, _ in conflicting})
        disowned = [path for path in owned if path not in after]

        def change(old: JSON) -> JSON:
            return _with_preconditions(
                _without_disowned(merge_fields(old, wanted, kind.shape()), disowned, after), body
            )

        entry = self._registry.update(kind, key, change, owner.subresource)
        if entry is stored and after != owned:  # a change of owners is a change of the object
            entry = self._registry.storage.put(kind.id, key, stored.object)
        self._owned[uid] = after
        return entry

    def _before_first_apply(self, kind: ServedKind, obj: JSON) -> dict[Path, frozenset[FieldOwner]]:
        unknown = FieldOwner(manager="before-first-apply", api_version=kind.resource.api_version)
        return dict.fromkeys(field_paths(_ownable_part(obj), kind.shape()), frozenset({unknown}))


def _ownable_part(obj: JSON) -> JSON:
    """Return the object without fields that cannot have owners."""
    meta = {name: value for name, value in obj["metadata"].items() if name not in _SERVER_FIELDS}
    return {**{name: value for name, value in obj.items() if name not in {"apiVersion", "kind"}}, "metadata": meta}


def _owned_part(kind: ServedKind, body: JSON, subresource: str) -> JSON:
    """Return the fields that an apply can own: without server-set fields, and either the status or the rest."""
    if subresource:
        return {"status": body.get("status") or {}}
    part = {name: value for name, value in _ownable_part({"metadata": {}, **body}).items() if value != {}}
    if kind.status_subresource:
        part.pop("status", None)
    return part


def _conflicting_fields(
    live: JSON,
    wanted: JSON,
    owned: Mapping[Path, frozenset[FieldOwner]],
    applied_paths: Iterable[Path],
    owner: FieldOwner,
) -> Iterator[tuple[Path, FieldOwner]]:
    """Yield the fields that would change and that other managers own, as (path, owner)."""
    for path in applied_paths:
        if isinstance(path[-1], Item) or value_at(live, path) == value_at(wanted, path):
            continue
        yield from ((path, other) for other in owned.get(path, ()) if other != owner)


def _owners_after(
    owned: Mapping[Path, frozenset[FieldOwner]], applied_paths: set[Path], owner: FieldOwner, taken: set[Path]
) -> dict[Path, frozenset[FieldOwner]]:
    """Return the owners after an apply: `owner` owns its fields, those in `taken` alone, and no other field."""
    after = {path: owners - {owner} for path, owners in owned.items() if path not in applied_paths}
    for path in applied_paths:
        after[path] = frozenset({owner}) | (frozenset() if path in taken else owned.get(path, frozenset()))
    return {path: owners for path, owners in after.items() if owners}


def _without_disowned(obj: Any, disowned: Iterable[Path], owned: Mapping[Path, Any]) -> Any:
    """Return the object without the fields that have no owner any more and contain no owned field."""
    for path in sorted(disowned, key=lambda path: (len(path), path_text(path))):  # items before their key fields
        if not any(other[: len(path)] == path for other in owned):
            obj = remove_field(obj, path)
    return obj


def _with_preconditions(obj: JSON, body: JSON) -> JSON:
    """Return the object with the UID, version and name that the configuration requires, as preconditions."""
    meta = body.get("metadata") or {}
    required = {name: meta[name] for name in ("uid", "resourceVersion", "name", "namespace") if meta.get(name)}
    return {**obj, "metadata": {**obj["metadata"], **required}}
