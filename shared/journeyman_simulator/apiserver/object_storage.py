"""Stores objects with one version counter, and a bounded history for watches.

Objects are JSON dicts, immutable by convention: a write stores a new dict, so readers can share a `StoredObject`, which
caches its decoded and encoded forms.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from journeyman.core.api.objects import NAMESPACE
from journeyman.errors import InvalidObjectError
from journeyman_simulator.apiserver import api_errors

Key = tuple[str, str]
"""(namespace, name); the namespace is empty for cluster-scoped kinds."""


class StoredObject:
    """An object at one version."""

    __slots__ = ("_decoded", "_encoded", "object", "version")

    def __init__(self, obj: dict[str, Any], version: int) -> None:
        self.object = obj
        self.version = version
        self._decoded: Any = None
        self._encoded: msgspec.Raw | None = None

    def decoded(self, type_: Any) -> Any:
        """Return the object as `type_` (a Struct, decoded once), or a copy of the JSON if `type_` is dict."""
        if type_ is dict:
            return msgspec.to_builtins(self.object)
        if type(self._decoded) is not type_:
            self._decoded = self._decode(type_)
        return self._decoded

    def encoded(self) -> msgspec.Raw:
        """Return the object as JSON bytes, encoded once."""
        if self._encoded is None:
            self._encoded = msgspec.Raw(msgspec.json.encode(self.object))
        return self._encoded

    def _decode(self, type_: Any) -> Any:
        try:
            return msgspec.convert(self.object, type_)
        except msgspec.ValidationError as error:
            kind, name = self.object.get("kind", type_.__name__), self.object["metadata"]["name"]
            raise InvalidObjectError(f"{kind} {name} cannot be read: {error}", kind=kind, name=name) from error


class StoredChange(Struct, frozen=True):
    """A committed write. `before` is None for a creation, `after` is None for a removal.

    `last` is the object after the write or, for a removal, its last state with the version of the removal.
    """

    version: int
    key: Key
    before: StoredObject | None
    after: StoredObject | None
    last: StoredObject


class KindTable(Struct):
    """The objects of one kind, and its recent changes, oldest first."""

    entries: dict[Key, StoredObject] = field(default_factory=dict)
    changes: list[StoredChange] = field(default_factory=list)
    floor: int = 0  # changes up to this version may be missing
    version: int = 0  # of the last change
    _ordered: tuple[StoredObject, ...] | None = None
    _decoded: dict[Any, tuple[Any, ...]] = field(default_factory=dict)

    def in_order(self) -> tuple[StoredObject, ...]:
        """Return all objects, sorted by namespace and name; cached until the next change."""
        if self._ordered is None:
            self._ordered = tuple(self.entries[key] for key in sorted(self.entries))
        return self._ordered

    def decoded(self, type_: Any) -> tuple[Any, ...]:
        """Return the objects as `type_`. Callers share Structs and get copies of JSON."""
        if type_ is dict:
            return tuple(entry.decoded(dict) for entry in self.in_order())
        if type_ not in self._decoded:
            self._decoded[type_] = tuple(entry.decoded(type_) for entry in self.in_order())
        return self._decoded[type_]

    def commit(self, change: StoredChange) -> None:
        """Apply a change."""
        self.changes.append(change)
        self.version = change.version
        self._ordered = None
        self._decoded.clear()
        if change.after is None:
            del self.entries[change.key]
        else:
            self.entries[change.key] = change.after

    def since(self, version: int) -> list[StoredChange]:
        """Return the changes after `version`. Raises GoneError if the history lacks some."""
        if version < self.floor:
            raise api_errors.too_old(version, self.floor)
        return self.changes[bisect_right(self.changes, version, key=lambda change: change.version) :]

    def at(self, version: int) -> dict[Key, StoredObject]:
        """Return the objects at `version`. Raises GoneError if the history starts later."""
        entries = dict(self.entries)
        for change in reversed(self.since(version)):
            if change.before is None:
                del entries[change.key]
            else:
                entries[change.key] = change.before
        return entries

    def forget(self, keep: int) -> None:
        """Drop all but the newest `keep` changes."""
        surplus = len(self.changes) - keep
        if surplus > 0:
            self.floor = self.changes[surplus - 1].version
            del self.changes[:surplus]


Backup = Mapping[str, Mapping[Key, Mapping[str, Any]]]
"""The objects of each kind, by key."""


class ObjectStorage:
    """The tables of all kinds, with one lock and one version counter. The condition `changed` notifies waiting watches."""

    def __init__(self, history: int) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.version = 1
        self._history = history
        self._tables: dict[str, KindTable] = {}
        self.uids: set[str] = set()
        """The UIDs of all objects."""
        self.garbage_writes = 0
        """The number of writes that may leave garbage."""
        self.collected_writes = -1
        """The value of `garbage_writes` at the last garbage collection."""
        self._serial = 0

    def table(self, kind: str) -> KindTable:
        """Return the table of a kind, given by its group resource, after creating it if it does not exist."""
        table = self._tables.get(kind)
        if table is None:
            table = self._tables[kind] = KindTable()
        return table

    def kinds(self) -> Iterator[str]:
        """Return the kinds that have a table, sorted."""
        return iter(sorted(self._tables))

    def next_serial(self) -> int:
        """Return the next serial number, for reproducible UIDs and generated names."""
        self._serial += 1
        return self._serial

    def put(self, kind: str, key: Key, obj: Mapping[str, Any]) -> StoredObject:
        """Store an object with the next version in its metadata."""
        table, entry = self.table(kind), self._stamp(obj)
        self._commit(kind, table, StoredChange(entry.version, key, table.entries.get(key), entry, entry))
        return entry

    def remove(self, kind: str, key: Key, obj: Mapping[str, Any]) -> StoredObject:
        """Remove an object; watches report its last state `obj` with the version of the removal."""
        table, entry = self.table(kind), self._stamp(obj)
        self._commit(kind, table, StoredChange(entry.version, key, table.entries[key], None, entry))
        return entry

    def backup(self) -> Backup:
        """Return all objects as they are now."""
        with self.lock:
            return {kind: {key: entry.object for key, entry in t.entries.items()} for kind, t in self._tables.items()}

    def restore(self, backup: Backup) -> None:
        """Store the objects of a backup and remove all others, as if etcd were restored from it; the history is dropped.

        Versions go on from the present one, as with `etcdutl snapshot restore --bump-revision`.
        """
        with self.lock:
            for kind in self.kinds():
                wanted, entries = backup.get(kind, {}), dict(self.table(kind).entries)
                for key in sorted(entries.keys() - wanted.keys()):
                    self.remove(kind, key, entries[key].object)
                for key in sorted(k for k, obj in wanted.items() if k not in entries or entries[k].object != obj):
                    self.put(kind, key, wanted[key])
            self.compact()

    def wipe(self, kind: str) -> None:
        """Remove all objects of a kind, whatever their finalizers, as if they had been deleted from etcd."""
        with self.lock:
            for key, entry in sorted(self.table(kind).entries.items()):
                self.remove(kind, key, entry.object)

    def compact(self) -> None:
        """Drop the history, so that a watch or page from an older version gets a 410 Gone."""
        with self.lock:
            for table in self._tables.values():
                table.changes.clear()
                table.floor = self.version

    def _stamp(self, obj: Mapping[str, Any]) -> StoredObject:
        self.version += 1
        return StoredObject(
            {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}, self.version
        )

    def _commit(self, kind: str, table: KindTable, change: StoredChange) -> None:
        table.commit(change)
        if change.before is not None:
            self.uids.discard(change.before.object["metadata"]["uid"])
        if change.after is not None:
            self.uids.add(change.after.object["metadata"]["uid"])
        self.garbage_writes += _may_leave_garbage(kind, change)
        if len(table.changes) > 2 * self._history:  # drops half at a time, for a constant cost per write
            table.forget(self._history)
        self.changed.notify_all()


def _may_leave_garbage(kind: str, change: StoredChange) -> bool:
    """Whether a change may leave garbage: a removal, or a change of owner references."""
    if change.after is None or kind == NAMESPACE.plural:
        return True
    owners = change.after.object["metadata"].get("ownerReferences")
    return bool(owners) and (change.before is None or change.before.object["metadata"].get("ownerReferences") != owners)
