"""Implements `ports.KubeStore` with an in-memory API server, and the rest of the API that a simulated cluster needs.

The server has one lock and one version counter, and uses virtual time. Its calls do not wait, so a watch returns the
changes so far and ends. (`http_server` serves the same store over HTTP, where watches wait.)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from journeyman.core.api.objects import NAMESPACE, PDB, POD, Resource
from journeyman.errors import KubeAPIError
from journeyman.ports import JSON, Clock, KubeStore, Listing, Patch, WatchEvent
from journeyman_simulator.apiserver import (
    api_errors,
    loading,
    object_metadata,
    object_registry,
    object_selectors,
    pod_eviction,
    served_kinds,
)
from journeyman_simulator.apiserver.list_and_watch import ListPage, WatchStream, list_page
from journeyman_simulator.apiserver.object_metadata import clone, merge_patch
from journeyman_simulator.apiserver.object_registry import ObjectRegistry
from journeyman_simulator.apiserver.object_storage import Backup, Key, ObjectStorage, StoredObject
from journeyman_simulator.apiserver.object_validation import RESIZE
from journeyman_simulator.apiserver.served_kinds import ServedKind
from journeyman_simulator.apiserver.server_side_apply import FieldOwner, ServerSideApply

T = TypeVar("T")

NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
"""The namespaces of a new cluster."""


VERSION = (1, 36)


class Write(Struct, frozen=True, kw_only=True):
    """A write that the server accepted.

    `verb` is create, update, patch, apply, delete, evict or bind. `body` is the request's body or, for delete and evict, the
    preconditions and grace period. `result` is the object after the write or, for a removal, its last state. `version` is
    the store's version after the write, and `user` the client (`ApiServer.acting_as`).
    """

    verb: str
    resource: Resource[Any]
    namespace: str
    name: str
    subresource: str
    body: JSON
    result: JSON
    version: int
    user: str


class ApiServer:
    """The API server of one cluster. It calls observers for every write."""

    def __init__(self, clock: Clock, *, history: int = 10_000) -> None:
        """Create an empty cluster.

        Args:
            clock: The clock of creation and deletion timestamps.
            history: The minimum number of changes of each kind to keep, from which watches and pages can continue.
        """
        self.registry = ObjectRegistry(ObjectStorage(history), clock, served_kinds.built_in())
        self._storage = self.registry.storage
        self._applier = ServerSideApply(self.registry)
        self._clock = clock
        self._observers: list[Callable[[Write], None]] = []
        self._user = ""
        for name in NAMESPACES:
            self.create(NAMESPACE, {"metadata": {"name": name}})

    # -- users and observers ------------------------------------------------------------------------------------------------

    def acting_as(self, user: str) -> ApiServer:
        """Return a view of the server whose writes have this user's name."""
        view = copy.copy(self)
        view._user = user  # noqa: SLF001 - a copy of this object
        return view

    def on_write(self, observer: Callable[[Write], None]) -> None:
        """Call `observer` with every write from now on, in order."""
        self._observers.append(observer)

    # -- KubeStore ----------------------------------------------------------------------------------------------

    def version(self) -> tuple[int, int]:
        """Return the version of Kubernetes whose behaviour this server restates: (major, minor)."""
        return VERSION

    def list(
        self,
        resource: Resource[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        cached: bool = False,
    ) -> Listing[T]:
        """Return the selected objects, sorted by namespace and name. `cached` has no effect: the result is current."""
        if not (namespace or label_selector or field_selector):
            with self._storage.lock:
                everything = self._storage.table(self.registry.kind(resource).id).decoded(resource.type)
                return Listing(items=everything, resource_version=str(self._storage.version), in_order=True)
        page = self.page(resource, namespace, label_selector, field_selector)
        items = tuple(entry.decoded(resource.type) for entry in page.entries)
        return Listing(items=items, resource_version=str(page.version), in_order=True)

    def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        """Return one object. Raises NotFoundError if it does not exist."""
        decoded: T = self.entry(resource, namespace, name).decoded(resource.type)
        return decoded

    def create(self, resource: Resource[Any], body: JSON, *, namespace: str = "") -> dict[str, Any]:
        """Create an object in `namespace`, by default the body's, and return it."""
        with self._storage.lock:
            kind = self.registry.kind(resource)
            return self._report_write("create", resource, self.registry.create(kind, namespace, body), body)

    def create_each(self, resource: Resource[Any], bodies: Sequence[JSON]) -> tuple[dict[str, Any] | KubeAPIError, ...]:
        """Create the objects one after another, so that histories are reproducible."""
        return create_sequentially(self, resource, bodies)

    def patch(
        self, resource: Resource[Any], name: str, patch: JSON, *, namespace: str = "", subresource: str = ""
    ) -> dict[str, Any]:
        """Apply a JSON merge patch to the object, or to its subresource, and return the object."""

        def merged(old: JSON) -> Any:
            return merge_patch(old, clone(patch))

        return self._update("patch", resource, name, merged, namespace=namespace, subresource=subresource, body=patch)

    def patch_each(
        self, resource: Resource[Any], patches: Sequence[Patch], *, subresource: str = ""
    ) -> tuple[dict[str, Any] | KubeAPIError, ...]:
        """Patch the objects one after another, so that histories are reproducible."""
        return patch_sequentially(self, resource, patches, subresource)

    def applied(
        self,
        resource: Resource[Any],
        name: str,
        body: JSON,
        *,
        manager: str,
        force: bool = False,
        namespace: str = "",
        subresource: str = "",
    ) -> tuple[dict[str, Any], bool]:
        """Apply server-side; return the object, and whether the apply created it."""
        with self._storage.lock:
            kind = self.registry.kind(resource)
            _check_subresource(kind, subresource)
            key = self.registry.key(kind, namespace, name)
            before = self._storage.version
            entry, new = self._applier.apply(kind, key, body, manager, force=force, subresource=subresource)
            if self._storage.version == before:
                return entry.decoded(dict), False
            return self._report_write("apply", resource, entry, body, subresource), new

    def update(
        self, resource: Resource[Any], name: str, body: JSON, *, namespace: str = "", subresource: str = ""
    ) -> dict[str, Any]:
        """Replace the object, or its subresource (HTTP PUT), and return the object."""
        return self._update(
            "update", resource, name, lambda _: clone(body), namespace=namespace, subresource=subresource, body=body
        )

    def apply(
        self,
        resource: Resource[Any],
        name: str,
        body: JSON,
        *,
        manager: str,
        force: bool = False,
        namespace: str = "",
        subresource: str = "",
    ) -> dict[str, Any]:
        """Create the object or apply `body` to it, and return it."""
        named = {**body, "metadata": {"name": name, **body.get("metadata", {})}}
        return self.applied(
            resource, name, named, manager=manager, force=force, namespace=namespace, subresource=subresource
        )[0]

    def delete(
        self,
        resource: Resource[Any],
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
        grace_period_seconds: int | None = None,
    ) -> None:
        """Remove the object, or mark it for deletion if finalizers or a grace period delay the removal."""
        with self._storage.lock:
            kind = self.registry.kind(resource)
            entry = self.registry.delete(
                kind,
                self.registry.key(kind, namespace, name),
                uid=uid,
                resource_version=resource_version,
                grace_period_seconds=grace_period_seconds,
            )
            options = {"uid": uid, "resourceVersion": resource_version, "gracePeriodSeconds": grace_period_seconds}
            self._report_write(
                "delete", resource, entry, {key: value for key, value in options.items() if value not in {"", None}}
            )

    def evict(self, namespace: str, name: str, *, uid: str = "") -> None:
        """Evict a pod if every PodDisruptionBudget allows it."""
        with self._storage.lock:
            entry = pod_eviction.evict(self.registry, namespace, name, uid)
            self._report_write("evict", POD, entry, {"uid": uid} if uid else {}, "eviction")

    def watch(
        self,
        resource: Resource[T],
        *,
        resource_version: str,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: float = 30,
    ) -> Iterator[WatchEvent[T]]:
        """Yield the changes since a version, including those made during the iteration, and a bookmark at the end.

        The timeout never elapses, since virtual time does not advance during a call.
        """
        watch = self.open_watch(resource, resource_version, namespace, label_selector, field_selector)
        while events := watch.take():
            for type_, entry in events:
                decoded = entry.decoded(resource.type)
                yield WatchEvent(type=type_, object=decoded, resource_version=str(entry.version))
        yield WatchEvent(type="BOOKMARK", object=None, resource_version=str(watch.version))

    # -- the rest of a cluster's API ----------------------------------------------------------------------------

    def list_at(
        self,
        resource: Resource[T],
        version: int,
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> Listing[T]:
        """Return the result of `list` at a version. Raises GoneError if the history starts later."""
        with self._storage.lock:
            kind = self.registry.kind(resource)
            selected = _predicate(kind, namespace, label_selector, field_selector)
            entries = self._storage.table(kind.id).at(version)
        items = tuple(entries[key].decoded(resource.type) for key in sorted(entries) if selected(entries[key].object))
        return Listing(items=items, resource_version=str(version), in_order=True)

    @property
    def resource_version(self) -> str:
        """Return the store's current version, which every write changes."""
        return str(self._storage.version)

    def stored(self, resource: Resource[Any]) -> tuple[JSON, ...]:
        """Return the stored objects, sorted by namespace and name; callers must not change them."""
        return tuple(entry.object for entry in self.page(resource).entries)

    def version_of(self, *resources: Resource[Any]) -> int:
        """Return the store's version at the last write to these kinds; 0 if there was none."""
        return max(self._storage.table(self.registry.kind(resource).id).version for resource in resources)

    def register(self, kind: ServedKind) -> None:
        """Add a served kind."""
        self.registry.register(kind)

    def bind(self, namespace: str, name: str, node: str, *, uid: str = "") -> None:
        """Assign a pod to a node (`pods/binding`), as a scheduler does.

        Raises:
            ConflictError: The pod is assigned or terminating, or has another UID.
        """
        with self._storage.lock:
            entry = pod_eviction.bind(
                self.registry, namespace, name, node, uid=uid, now=object_metadata.text(self._clock.now())
            )
            self._report_write("bind", POD, entry, {"target": {"kind": "Node", "name": node}}, "binding")

    def collect_garbage(self) -> int:
        """Delete objects without owners or namespace; return the number of deletions."""
        collector = self.acting_as("garbage-collector")

        def delete(kind: ServedKind, key: Key) -> None:
            collector.delete(kind.resource, key[1], namespace=key[0])

        with self._storage.lock:
            if self._storage.collected_writes == self._storage.garbage_writes:
                return 0
            deleted = object_registry.collect_garbage(self.registry, delete)
            for name in object_registry.empty_namespaces(self.registry):
                collector._report_write("update", NAMESPACE, self.registry.finalize(name), {}, "finalize")  # noqa: SLF001 - the same class
                deleted += 1
            if not deleted:
                self._storage.collected_writes = self._storage.garbage_writes
            return deleted

    def sync_disruption_budgets(self) -> int:
        """Update the status of every PodDisruptionBudget; return the number of changes."""
        controller = self.acting_as("disruption-controller")
        changed = 0
        with self._storage.lock:
            for namespace, name in sorted(self._storage.table(self.registry.kind(PDB).id).entries):
                status = pod_eviction.budget_status(self.registry, (namespace, name))
                if status is not None:
                    controller.patch(PDB, name, {"status": status}, namespace=namespace, subresource="status")
                    changed += 1
        return changed

    def load(self, objects: Iterable[Mapping[str, Any]]) -> int:
        """Store objects in the form that `kubectl get -o yaml` prints, with status and UID; return their number."""
        with self._storage.lock:
            return loading.load(self.registry, self._clock, objects)

    def backup(self) -> Backup:
        """Return all objects as they are now, for `restore`."""
        return self._storage.backup()

    def restore(self, backup: Backup) -> None:
        """Return to the objects of a backup: what was written since is lost, also deletions, and no finalizer keeps anything."""
        self._storage.restore(backup)

    def wipe(self, resource: Resource[Any]) -> None:
        """Remove all objects of a kind from the store, whatever their finalizers."""
        self._storage.wipe(self.registry.kind(resource).id)

    def compact_history(self) -> None:
        """Drop the history, as a compaction does: clients that continue from an older version get a 410 Gone."""
        self._storage.compact()

    # -- for the HTTP server ------------------------------------------------------------------------------------------------

    def entry(self, resource: Resource[Any], namespace: str, name: str) -> StoredObject:
        """Return one stored object. Raises NotFoundError if it does not exist."""
        with self._storage.lock:
            kind = self.registry.kind(resource)
            return self.registry.get(kind, self.registry.key(kind, namespace, name))

    def page(
        self,
        resource: Resource[Any],
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        *,
        limit: int = 0,
        token: str = "",
    ) -> ListPage:
        """Return the selected stored objects, in pages if `limit` is not 0."""
        with self._storage.lock:
            kind = self.registry.kind(resource)
            selected = _predicate(kind, namespace, label_selector, field_selector)
            selective = bool(label_selector or field_selector)
            return list_page(self._storage, kind.id, selected, limit=limit, token=token, selective=selective)

    def open_watch(
        self,
        resource: Resource[Any],
        resource_version: str,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> WatchStream:
        """Return a watch, of which the caller takes the events. Raises KubeAPIError if the version or a selector is invalid."""
        kind = self.registry.kind(resource)
        selected = _predicate(kind, namespace, label_selector, field_selector)
        if resource_version and not resource_version.isdecimal():
            why = f'resourceVersion: Invalid value: "{resource_version}"'
            raise api_errors.internal_error(f'{why}: strconv.ParseUint: parsing "{resource_version}": invalid syntax')
        return WatchStream(self._storage, kind.id, selected, resource_version)

    # -- writes -------------------------------------------------------------------------------------------------------------

    def _update(
        self,
        verb: str,
        resource: Resource[Any],
        name: str,
        change: Callable[[JSON], Any],
        *,
        namespace: str,
        subresource: str,
        body: JSON,
    ) -> dict[str, Any]:
        with self._storage.lock:
            kind = self.registry.kind(resource)
            _check_subresource(kind, subresource)
            entry = self.registry.update(kind, self.registry.key(kind, namespace, name), change, subresource)
            return self._report_write(verb, resource, entry, body, subresource)

    def _report_write(
        self, verb: str, resource: Resource[Any], entry: StoredObject, body: JSON, subresource: str = ""
    ) -> dict[str, Any]:
        meta = entry.object["metadata"]
        if verb != "apply":
            self._record_ownership(resource, entry, subresource)
        write = Write(
            verb=verb,
            resource=resource,
            namespace=meta.get("namespace", ""),
            name=meta["name"],
            subresource=subresource,
            body=clone(body) if self._observers else body,
            result=entry.object,
            version=self._storage.version,
            user=self._user,
        )
        for observer in self._observers:
            observer(write)
        result: dict[str, Any] = entry.decoded(dict)
        return result

    def _record_ownership(self, resource: Resource[Any], entry: StoredObject, subresource: str) -> None:
        """Pass a write that is not an apply to `ServerSideApply`, which records the new owner of the changed fields."""
        kind = self.registry.kind(resource)
        changes = self._storage.table(kind.id).changes
        if not changes or changes[-1].last is not entry:
            return  # the request changed nothing
        change = changes[-1]
        if change.after is None:
            self._applier.forget(entry.object["metadata"]["uid"])
        elif change.before is not None:
            owner = FieldOwner(manager=self._user, subresource=subresource, api_version=resource.api_version)
            self._applier.written(kind, change.before, entry, owner)


def _check_subresource(kind: ServedKind, subresource: str) -> None:
    is_known = {"": True, "status": kind.status_subresource, RESIZE: kind.id == POD.plural}.get(subresource, False)
    if not is_known:
        raise api_errors.unknown_resource()


def _predicate(
    kind: ServedKind, namespace: str, label_selector: str, field_selector: str
) -> object_selectors.Predicate:
    """Return one predicate for all selectors that are present."""
    parts: list[object_selectors.Predicate] = []
    if namespace and kind.resource.namespaced:
        parts.append(lambda obj: bool(obj["metadata"].get("namespace") == namespace))
    if label_selector:
        parts.append(object_selectors.label_predicate(label_selector))
    if field_selector:
        parts.append(object_selectors.field_predicate(field_selector, kind.fields))
    if not parts:
        return object_selectors.everything
    return parts[0] if len(parts) == 1 else lambda obj: all(part(obj) for part in parts)


def create_sequentially(
    store: KubeStore, resource: Resource[Any], bodies: Sequence[JSON]
) -> tuple[dict[str, Any] | KubeAPIError, ...]:
    """Create the objects one after another, and return the results in that order."""

    def one(body: JSON) -> dict[str, Any] | KubeAPIError:
        try:
            return store.create(resource, body)
        except KubeAPIError as error:
            return error

    return tuple(one(body) for body in bodies)


def patch_sequentially(
    store: KubeStore, resource: Resource[Any], patches: Sequence[Patch], subresource: str = ""
) -> tuple[dict[str, Any] | KubeAPIError, ...]:
    """Patch the objects one after another, and return the results in that order."""

    def one(patch: Patch) -> dict[str, Any] | KubeAPIError:
        try:
            return store.patch(resource, patch.name, patch.body, namespace=patch.namespace, subresource=subresource)
        except KubeAPIError as error:
            return error

    return tuple(one(patch) for patch in patches)
