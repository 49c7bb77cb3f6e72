"""Server-side apply: who owns which field of an object, and what an applied configuration makes of it.

Restates: k8s.io/apimachinery `pkg/util/managedfields`, sigs.k8s.io/structured-merge-diff `merge/update.go`.
Differs: `metadata.managedFields` is not shown, and ownership is only known from an object's first apply on; whoever wrote
it before is one manager, whose name is the one that kube-apiserver gives to writers it knows nothing of.
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
    """A field manager. `api_version` is given for those that did not apply, but wrote in another way."""

    manager: str
    subresource: str = ""
    api_version: str = ""

    def __str__(self) -> str:
        where = f' with subresource "{self.subresource}"' if self.subresource else ""
        return f'"{self.manager}"{where}' + (f" using {self.api_version}" if self.api_version else "")


class ServerSideApply:
    """Carries out applies, and remembers who owns what of the objects that were ever applied. Callers hold the lock."""

    def __init__(self, registry: ObjectRegistry) -> None:
        self._registry = registry
        self._owned: dict[str, dict[Path, frozenset[FieldOwner]]] = {}
        """By UID: every field that has an owner, and its owners."""

    def apply(
        self, kind: ServedKind, key: Key, body: JSON, manager: str, *, force: bool = False, subresource: str = ""
    ) -> tuple[StoredObject, bool]:
        """Make the object say what `body` says; what it became, and whether it is new.

        Raises:
            ConflictError: Another manager says something else, and `force` is not set; or a precondition does not hold.
            InvalidError: It would not validate.
        """
        owner = FieldOwner(manager=manager, subresource=subresource)
        wanted = _owned_part(kind, clone(body), subresource)
        for path in undeclared_fields(wanted, kind.shape()) if kind.custom else ():
            raise api_errors.undeclared(kind.resource, key[1], path_text(path))
        if key not in self._registry.storage.table(kind.id).entries and not subresource:
            return self._create(kind, key, body, wanted, owner), True
        return self._update(kind, key, body, wanted, owner, force=force), False

    def written(self, kind: ServedKind, before: StoredObject, after: StoredObject, owner: FieldOwner) -> None:
        """Somebody wrote an object in another way: what they changed is theirs."""
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
        """The object has gone."""
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
            told = [(str(other), path_text(path)) for path, other in disputed]
            raise api_errors.apply_conflicts(sorted(told, key=lambda found: found[1]))
        after = _reowned(owned, mine, owner, {path for path, _ in disputed})
        gone = [path for path in owned if path not in after]

        def change(old: JSON) -> JSON:
            return _preconditioned(_pruned(merge_fields(old, wanted, kind.shape()), gone, after), body)

        entry = self._registry.update(kind, key, change, owner.subresource)
        if entry is stored and after != owned:  # who owns what is part of the object
            entry = self._registry.storage.put(kind.id, key, stored.object)
        self._owned[uid] = after
        return entry

    def _before_first_apply(self, kind: ServedKind, obj: JSON) -> dict[Path, frozenset[FieldOwner]]:
        unknown = FieldOwner(manager="before-first-apply", api_version=kind.resource.api_version)
        return dict.fromkeys(field_paths(_whole(obj), kind.shape()), frozenset({unknown}))


def _whole(obj: JSON) -> JSON:
    """All that somebody may own."""
    meta = {name: value for name, value in obj["metadata"].items() if name not in _SERVERS_OWN}
    return {**{name: value for name, value in obj.items() if name not in {"apiVersion", "kind"}}, "metadata": meta}


def _owned_part(kind: ServedKind, body: JSON, subresource: str) -> JSON:
    """What an apply is about: not the server's own fields, and status and the rest apart."""
    if subresource:
        return {"status": body.get("status") or {}}
    part = {name: value for name, value in _whole({"metadata": {}, **body}).items() if value != {}}
    if kind.status_subresource:
        part.pop("status", None)
    return part


def _disputed(
    live: JSON, wanted: JSON, owned: Mapping[Path, frozenset[FieldOwner]], mine: Iterable[Path], owner: FieldOwner
) -> Iterator[tuple[Path, FieldOwner]]:
    """The fields that others own and that would change."""
    for path in mine:
        if isinstance(path[-1], Item) or value_at(live, path) == value_at(wanted, path):
            continue
        yield from ((path, other) for other in owned.get(path, ()) if other != owner)


def _reowned(
    owned: Mapping[Path, frozenset[FieldOwner]], mine: set[Path], owner: FieldOwner, taken: set[Path]
) -> dict[Path, frozenset[FieldOwner]]:
    """Who owns what after an apply: its fields are the manager's, disputed ones only theirs; others it gives up."""
    after = {path: owners - {owner} for path, owners in owned.items() if path not in mine}
    for path in mine:
        after[path] = frozenset({owner}) | (frozenset() if path in taken else owned.get(path, frozenset()))
    return {path: owners for path, owners in after.items() if owners}


def _pruned(obj: Any, gone: Iterable[Path], owned: Mapping[Path, Any]) -> Any:
    """The object without the fields that lost their last owner, unless something in them has one."""
    for path in sorted(gone, key=lambda path: (len(path), path_text(path))):  # an item before what names it
        if not any(other[: len(path)] == path for other in owned):
            obj = remove_field(obj, path)
    return obj


def _preconditioned(obj: JSON, body: JSON) -> JSON:
    """With the UID and version that the configuration demands, if it does."""
    meta = body.get("metadata") or {}
    demanded = {name: meta[name] for name in ("uid", "resourceVersion", "name", "namespace") if meta.get(name)}
    return {**obj, "metadata": {**obj["metadata"], **demanded}}
