"""Server-side apply: owners of fields, conflicts between managers, and the result of an applied configuration.

Restates: k8s.io/apimachinery `pkg/util/managedfields`, sigs.k8s.io/structured-merge-diff `merge/update.go`.
Differs: `metadata.managedFields` is not shown, and ownership is known only from an object's first apply on; everything written
before belongs to one manager, with the name that kube-apiserver gives to unknown writers.
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
_SERVERS_OWN: Final = frozenset({*object_metadata.SYSTEM_FIELDS, "resourceVersion", "managedFields", "generateName"})


class FieldOwner(Struct, frozen=True, kw_only=True, order=True):
    """A field manager. `api_version` is set for those that wrote without an apply."""

    manager: str
    subresource: str = ""
    api_version: str = ""

    def __str__(self) -> str:
        where = f' with subresource "{self.subresource}"' if self.subresource else ""
        return f'"{self.manager}"{where}' + (f" using {self.api_version}" if self.api_version else "")


class ServerSideApply:
    """Applies configurations, and keeps the owners of the fields of every applied object. Callers hold the lock."""

    def __init__(self, registry: ObjectRegistry) -> None:
        self._registry = registry
        self._owned: dict[str, dict[Path, frozenset[FieldOwner]]] = {}
        """By UID: every owned field, and its owners."""

    def apply(
        self, kind: ServedKind, key: Key, body: JSON, manager: str, *, force: bool = False, subresource: str = ""
    ) -> tuple[StoredObject, bool]:
        """Apply `body` to the object; return the result, and whether it is new.

        Raises:
            ConflictError: Another manager owns a different value, and `force` is not set; or a precondition does not hold.
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
        """Record a write that was not an apply: the writer owns what changed."""
        uid = after.object["metadata"]["uid"]
        owned = self._owned.get(uid)
        if owned is None:
            return
        old, new = _whole(before.object), _whole(after.object)
        now = set(field_paths(new, kind.shape()))
        kept = {path: owners for path, owners in owned.items() if path in now}
        changed = (path for path in now if value_at(old, path) != value_at(new, path))
        self._owned[uid] = kept | dict.fromkeys(changed, frozenset({owner}))

    def forget(self, uid: str) -> None:
        """Forget a removed object."""
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
            raise api_errors.other_name(meta["name"], key[1])
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
        mine = set(field_paths(wanted, kind.shape()))
        disputed = list(_disputed(stored.object, wanted, owned, mine, owner))
        if disputed and not force:
            disputes = [(str(other), path_text(path)) for path, other in disputed]
            raise api_errors.apply_conflicts(sorted(disputes, key=lambda found: found[1]))
        after = _reowned(owned, mine, owner, {path for path, _ in disputed})
        gone = [path for path in owned if path not in after]

        def change(old: JSON) -> JSON:
            return _preconditioned(_pruned(merge_fields(old, wanted, kind.shape()), gone, after), body)

        entry = self._registry.update(kind, key, change, owner.subresource)
        if entry is stored and after != owned:  # owners are part of the object
            entry = self._registry.storage.put(kind.id, key, stored.object)
        self._owned[uid] = after
        return entry

    def _before_first_apply(self, kind: ServedKind, obj: JSON) -> dict[Path, frozenset[FieldOwner]]:
        unknown = FieldOwner(manager="before-first-apply", api_version=kind.resource.api_version)
        return dict.fromkeys(field_paths(_whole(obj), kind.shape()), frozenset({unknown}))


def _whole(obj: JSON) -> JSON:
    """Return all fields that can have owners."""
    meta = {name: value for name, value in obj["metadata"].items() if name not in _SERVERS_OWN}
    return {**{name: value for name, value in obj.items() if name not in {"apiVersion", "kind"}}, "metadata": meta}


def _owned_part(kind: ServedKind, body: JSON, subresource: str) -> JSON:
    """Return what an apply concerns: without server-kept fields, and either the status or the rest."""
    if subresource:
        return {"status": body.get("status") or {}}
    part = {name: value for name, value in _whole({"metadata": {}, **body}).items() if value != {}}
    if kind.status_subresource:
        part.pop("status", None)
    return part


def _disputed(
    live: JSON, wanted: JSON, owned: Mapping[Path, frozenset[FieldOwner]], mine: Iterable[Path], owner: FieldOwner
) -> Iterator[tuple[Path, FieldOwner]]:
    """Return the fields that other managers own and that would change."""
    for path in mine:
        if isinstance(path[-1], Item) or value_at(live, path) == value_at(wanted, path):
            continue
        yield from ((path, other) for other in owned.get(path, ()) if other != owner)


def _reowned(
    owned: Mapping[Path, frozenset[FieldOwner]], mine: set[Path], owner: FieldOwner, taken: set[Path]
) -> dict[Path, frozenset[FieldOwner]]:
    """Return the owners after an apply: its fields belong to the manager, disputed ones to it alone; it gives up all others."""
    after = {path: owners - {owner} for path, owners in owned.items() if path not in mine}
    for path in mine:
        after[path] = frozenset({owner}) | (frozenset() if path in taken else owned.get(path, frozenset()))
    return {path: owners for path, owners in after.items() if owners}


def _pruned(obj: Any, gone: Iterable[Path], owned: Mapping[Path, Any]) -> Any:
    """Return the object without fields that lost their last owner, unless something inside them has one."""
    for path in sorted(gone, key=lambda path: (len(path), path_text(path))):  # items before their key fields
        if not any(other[: len(path)] == path for other in owned):
            obj = remove_field(obj, path)
    return obj


def _preconditioned(obj: JSON, body: JSON) -> JSON:
    """Return the object with the UID and version that the configuration demands."""
    meta = body.get("metadata") or {}
    demanded = {name: meta[name] for name in ("uid", "resourceVersion", "name", "namespace") if meta.get(name)}
    return {**obj, "metadata": {**obj["metadata"], **demanded}}
