"""`ports.KubeStore` over HTTP: a real API server's objects as the Structs of `core.api.objects`.

msgspec decodes bodies directly into these Structs, ten times faster than the official client's model classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import msgspec

from journeyman.core.api.objects import POD, Resource
from journeyman.errors import NOT_SERVED, GoneError, KubeAPIError, NotFoundError, ResponseTooLargeError
from journeyman.kube import error_translation
from journeyman.kube.json_decoding import Versioned, decode, decode_watch_line
from journeyman.kube.lists import (
    UnreadableListError,
    WholeList,
    decode_object,
    drop_unread_annotations,
    open_page,
    supports_protobuf,
)
from journeyman.kube.request_budget import EVICTIONS, NO_RETRIES, RequestBudget
from journeyman.kube.transport import Transport, check_count
from journeyman.ports import JSON, Listing, Patch, WatchEvent

T = TypeVar("T")

MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
_PARALLEL_WRITES: Final = 16  # at most; an executor starts a thread only for a write that would wait otherwise
_FEWER_OBJECTS: Final = 8  # the factor between a page that is too large and its next attempt
_SILENCE_SECONDS: Final = 10.0  # after the timeout of a watch; a connection that is silent for longer is dead


class _ServerVersion(msgspec.Struct, frozen=True):
    major: str = ""
    minor: str = ""


class _GroupVersion(msgspec.Struct, frozen=True):
    version: str = ""


class _Group(msgspec.Struct, frozen=True):
    versions: tuple[_GroupVersion, ...] = ()


class HttpKubeStore:
    """One cluster over HTTP. Safe to use from several threads."""

    def __init__(self, transport: Transport, *, page_size: int = 500) -> None:
        """Read and write through `transport`.

        Args:
            transport: Sends the requests.
            page_size: Objects per page of a JSON list; larger pages take fewer round trips and more of the server's memory.
        """
        self.transport = transport
        self.page_size = page_size

    def version(self) -> tuple[int, int]:
        """Return the API server's version; clouds append a plus to its minor part ("33+").

        Raises:
            KubeAPIError: The response is not a version, so another program than an API server sent it.
        """
        body = self.transport.request("GET", "/version")
        try:
            found = msgspec.json.decode(body, type=_ServerVersion)
            return int(found.major.rstrip("+")), int(found.minor.rstrip("+"))
        except (msgspec.DecodeError, ValueError) as error:
            message = f"the response to /version is not a version, so it is not an API server's: {error}"
            raise KubeAPIError(message, reason="NotKubernetes") from error

    def for_run(self, budget: RequestBudget, purpose: str = "") -> HttpKubeStore:
        """Return this store for one run, within its budget; `purpose` is not used here."""
        return HttpKubeStore(self.transport.for_run(budget), page_size=self.page_size)

    def list(
        self,
        resource: Resource[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        cached: bool = False,
    ) -> Listing[T]:
        """Return all selected objects at one version, page by page; without pages if that version expires meanwhile."""
        query = {"labelSelector": label_selector, "fieldSelector": field_selector}
        if cached:
            query["resourceVersion"] = "0"
        path, query = resource.path(namespace), {key: value for key, value in query.items() if value}
        if supports_protobuf(resource):
            with suppress(UnreadableListError):
                return self._whole(resource, path, query)
        try:
            return self._in_pages(resource, path, {**query, "limit": str(self.page_size)})
        except GoneError:
            return self._in_pages(resource, path, query)

    def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        """Return one object."""
        body = self._read(resource, resource.path(namespace, name))
        return decode_object(body, resource, name=name)

    def create(self, resource: Resource[Any], body: JSON, *, namespace: str = "") -> dict[str, Any]:
        """Create an object in `namespace`, by default the body's, and return it."""
        namespace = namespace or str((body.get("metadata") or {}).get("namespace", ""))
        manifest = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        return self._write("POST", resource, resource.path(namespace), manifest)

    def create_each(self, resource: Resource[Any], bodies: Sequence[JSON]) -> tuple[dict[str, Any] | KubeAPIError, ...]:
        """Create the objects, several in parallel; return the object or the error for each, in order."""

        def one(body: JSON) -> dict[str, Any] | KubeAPIError:
            try:
                return self.create(resource, body)
            except KubeAPIError as error:
                return error

        with ThreadPoolExecutor(_PARALLEL_WRITES) as threads:
            return tuple(threads.map(one, bodies))

    def patch(
        self, resource: Resource[Any], name: str, patch: JSON, *, namespace: str = "", subresource: str = ""
    ) -> dict[str, Any]:
        """Apply a JSON merge patch to the object, or to a subresource, and return the object."""
        path = resource.path(namespace, name, subresource)
        return self._write("PATCH", resource, path, patch, MERGE_PATCH)

    def patch_each(
        self, resource: Resource[Any], patches: Sequence[Patch], *, subresource: str = ""
    ) -> tuple[dict[str, Any] | KubeAPIError, ...]:
        """Apply the patches, several in parallel; return the object or the error for each, in order."""
        with ThreadPoolExecutor(_PARALLEL_WRITES) as threads:
            return tuple(threads.map(lambda patch: self._patched(resource, patch, subresource), patches))

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
        """Apply a configuration on the server, and return the object. The server expects YAML, of which JSON is a subset."""
        metadata = {"name": name, **body.get("metadata", {})}
        manifest = {"apiVersion": resource.api_version, "kind": resource.kind, **body, "metadata": metadata}
        query = {"fieldManager": manager} | ({"force": "true"} if force else {})
        path = resource.path(namespace, name, subresource)
        return self._write("PATCH", resource, path, manifest, APPLY_PATCH, query=query)

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
        """Delete an object; Kubernetes collects its dependents in the background.

        A deletion with a grace period bypasses a pod's protection. It is sent once: whether its reason still stands when a
        retry would arrive, only the caller can find out.
        """
        preconditions = {name: value for name, value in (("uid", uid), ("resourceVersion", resource_version)) if value}
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if preconditions:
            options["preconditions"] = preconditions
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        retries = NO_RETRIES if grace_period_seconds is not None else None
        body = msgspec.json.encode(options)
        self.transport.request("DELETE", resource.path(namespace, name), body=body, retries=retries)

    def evict(self, namespace: str, name: str, *, uid: str = "") -> None:
        """Evict a pod. Raises TooManyRequestsError, without retries, if a PodDisruptionBudget forbids it."""
        eviction: dict[str, Any] = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        }
        if uid:
            eviction["deleteOptions"] = {"preconditions": {"uid": uid}}
        path = POD.path(namespace, name, "eviction")
        self.transport.request("POST", path, body=msgspec.json.encode(eviction), retries=EVICTIONS)

    def watch(
        self,
        resource: Resource[T],
        *,
        resource_version: str,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: float = 30,
        quiet_seconds: float | None = None,
    ) -> Iterator[WatchEvent[T]]:
        """Yield changes as they arrive; the server ends the watch after the timeout, rounded up to whole seconds.

        With `quiet_seconds` the watch also ends after that much silence.
        """
        seconds = max(math.ceil(timeout_seconds), 1)
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(seconds),
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
        }
        path = resource.path(namespace)
        query = {key: value for key, value in query.items() if value}
        for line in self.transport.stream(path, query, seconds + _SILENCE_SECONDS, quiet_seconds=quiet_seconds):
            yield self._event(line, resource, f"GET {path}")

    def _whole(self, resource: Resource[T], path: str, query: Mapping[str, str]) -> Listing[T]:
        """Return the whole list from one response, which is read while it arrives."""
        with ThreadPoolExecutor(max_workers=1) as background, self._explain_unserved_kinds(resource):
            whole = WholeList(resource, background)
            return self.transport.read(
                path, whole.read, query=query, accept=whole.ACCEPT, decode_status=whole.decode_status
            )

    def _in_pages(self, resource: Resource[T], path: str, query: Mapping[str, str]) -> Listing[T]:
        """Return all pages; the next page is requested while one is decoded, because the server needs longer for it.

        A page that is too large is requested again with fewer objects, and so are the pages after it.
        """
        items: list[T] = []
        with ThreadPoolExecutor(max_workers=1) as background:
            next_page = background.submit(self._read, resource, path, query)
            while True:
                try:
                    page = open_page(next_page.result(), resource)
                except ResponseTooLargeError:
                    if int(query.get("limit", 1)) == 1:
                        raise
                    query = {**query, "limit": str(max(int(query["limit"]) // _FEWER_OBJECTS, 1))}
                    next_page = background.submit(self._read, resource, path, query)
                    continue
                if page.continue_:
                    query = {key: value for key, value in query.items() if key != "resourceVersion"}
                    query["continue"] = page.continue_
                    next_page = background.submit(self._read, resource, path, query)
                items += page.items()
                check_count(len(items), resource.kind)
                if not page.continue_:
                    return Listing(items=tuple(items), resource_version=page.resource_version)

    def _read(self, resource: Resource[Any], path: str, query: Mapping[str, str] | None = None) -> bytes:
        with self._explain_unserved_kinds(resource):
            return self.transport.request("GET", path, query=query)

    @contextmanager
    def _explain_unserved_kinds(self, resource: Resource[Any]) -> Iterator[None]:
        """Add the served versions to the error for a kind that the API server does not serve in our version."""
        try:
            yield
        except NotFoundError as error:
            if error.reason != NOT_SERVED:
                raise
            raise error_translation.with_served_versions(
                error, resource.version, self._served_versions(resource.group)
            ) from error

    def _served_versions(self, group: str) -> tuple[str, ...]:
        """Return the versions of a group that the API server serves; none if it does not answer."""
        try:
            found: _Group = msgspec.json.decode(self.transport.request("GET", f"/apis/{group}"), type=_Group)
        except (KubeAPIError, msgspec.DecodeError):
            return ()
        return tuple(served.version for served in found.versions)

    def _event(self, line: bytes, resource: Resource[T], request: str) -> WatchEvent[T]:
        change = decode_watch_line(line, request, kind=resource.kind, cluster=self.transport.cluster)
        version = decode(change.object, Versioned, kind=resource.kind).metadata.resource_version
        if change.type == "BOOKMARK":
            return WatchEvent(type="BOOKMARK", object=None, resource_version=version)
        decoded = decode_object(change.object, resource)
        drop_unread_annotations([decoded])
        return WatchEvent(type=change.type, object=decoded, resource_version=version)

    def _patched(
        self,
        resource: Resource[Any],
        patch: Patch,
        subresource: str,
    ) -> dict[str, Any] | KubeAPIError:
        path = resource.path(patch.namespace, patch.name, subresource)
        try:
            return self._write("PATCH", resource, path, patch.body, MERGE_PATCH)
        except KubeAPIError as error:
            return error

    def _write(
        self,
        method: str,
        resource: Resource[Any],
        path: str,
        body: JSON,
        content_type: str = "application/json",
        *,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        content = msgspec.json.encode(body)
        response = self.transport.request(method, path, query=query, body=content, content_type=content_type)
        written: dict[str, Any] = decode(response, dict, kind=resource.kind, name=path)
        return written
