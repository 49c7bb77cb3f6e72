"""The real API server as a `ports.KubeStore`: raw bytes in, the few fields we read out.

Bodies are decoded by msgspec straight into the Structs of `core.api.objects`, an order of magnitude faster than the
official client's model classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import msgspec

from journeyman.core.api.objects import POD, Resource
from journeyman.errors import NOT_SERVED, GoneError, KubeAPIError, NotFoundError
from journeyman.kube import errors
from journeyman.kube.allowance import Allowance
from journeyman.kube.lists import UnreadableError, Versioned, Whole, decode, has_own_encoding, open_page
from journeyman.kube.retries import EVICTIONS
from journeyman.kube.transport import Transport
from journeyman.ports import JSON, Listing, Patch, WatchEvent

T = TypeVar("T")

MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
_AT_A_TIME: Final = 8  # writes side by side: no flood for the server
_SILENCE_SECONDS: Final = 10.0  # beyond a watch's own timeout: then the connection is dead


class _ServerVersion(msgspec.Struct, frozen=True):
    major: str = ""
    minor: str = ""


class _GroupVersion(msgspec.Struct, frozen=True):
    version: str = ""


class _Group(msgspec.Struct, frozen=True):
    versions: tuple[_GroupVersion, ...] = ()


class _WatchLine(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class HttpKubeStore:
    """One cluster over HTTP. Safe to use from several threads."""

    def __init__(self, transport: Transport, *, page_size: int = 500) -> None:
        """Read and write through `transport`.

        Args:
            transport: Sends the requests.
            page_size: Objects asked for at a time; larger pages cost fewer round trips and more of the server's memory.
        """
        self.transport = transport
        self.page_size = page_size

    def version(self) -> tuple[int, int]:
        """What `/version` says; clouds add a sign to the minor one ("33+").

        Raises:
            KubeAPIError: The answer is no version: something other than an API server answered.
        """
        body = self.transport.request("GET", "/version")
        try:
            found = msgspec.json.decode(body, type=_ServerVersion)
            return int(found.major.rstrip("+")), int(found.minor.rstrip("+"))
        except (msgspec.DecodeError, ValueError) as error:
            message = f"the answer to /version is no version, so it is not an API server's: {error}"
            raise KubeAPIError(message, reason="NotKubernetes") from error

    def for_run(self, allowance: Allowance, purpose: str = "") -> HttpKubeStore:
        """The same store for one run, within its allowance; what the run is for makes no difference here."""
        return HttpKubeStore(self.transport.for_run(allowance), page_size=self.page_size)

    def list(
        self,
        resource: Resource[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        cached: bool = False,
    ) -> Listing[T]:
        """All selected objects, page by page at one version; whole if that version expires meanwhile."""
        query = {"labelSelector": label_selector, "fieldSelector": field_selector}
        if cached:
            query["resourceVersion"] = "0"
        path, asked = resource.path(namespace), {key: value for key, value in query.items() if value}
        if has_own_encoding(resource):
            with suppress(UnreadableError):
                return self._whole(resource, path, asked)
        try:
            return self._in_pages(resource, path, {**asked, "limit": str(self.page_size)})
        except GoneError:
            return self._in_pages(resource, path, asked)

    def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        """One object."""
        body = self._read(resource, resource.path(namespace, name))
        decoded: T = decode(body, resource, resource.type, name)
        return decoded

    def create(self, resource: Resource[Any], body: JSON, *, namespace: str = "") -> dict[str, Any]:
        """Create an object in `namespace`, by default the body's."""
        where = namespace or str((body.get("metadata") or {}).get("namespace", ""))
        whole = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        return self._write("POST", resource, resource.path(where), whole)

    def patch(
        self, resource: Resource[Any], name: str, patch: JSON, *, namespace: str = "", subresource: str = ""
    ) -> dict[str, Any]:
        """JSON merge patch of the object, or of a subresource."""
        path = resource.path(namespace, name, subresource)
        return self._write("PATCH", resource, path, patch, MERGE_PATCH)

    def patch_each(
        self, resource: Resource[Any], patches: Sequence[Patch], *, subresource: str = ""
    ) -> tuple[dict[str, Any] | KubeAPIError, ...]:
        """Several at a time, on as many connections."""
        with ThreadPoolExecutor(min(_AT_A_TIME, max(len(patches), 1))) as threads:
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
        """Server-side apply; JSON is YAML, which is what the server takes."""
        metadata = {"name": name, **body.get("metadata", {})}
        whole = {"apiVersion": resource.api_version, "kind": resource.kind, **body, "metadata": metadata}
        query = {"fieldManager": manager} | ({"force": "true"} if force else {})
        path = resource.path(namespace, name, subresource)
        return self._write("PATCH", resource, path, whole, APPLY_PATCH, query=query)

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
        """Delete; what the object owns is collected in the background."""
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if given := {key: value for key, value in preconditions.items() if value}:
            options["preconditions"] = given
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        self.transport.request("DELETE", resource.path(namespace, name), body=msgspec.json.encode(options))

    def evict(self, namespace: str, name: str, *, uid: str = "") -> None:
        """Evict a pod; a budget that forbids it is a TooManyRequestsError at once."""
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
        """Changes as they come; the server ends it after the timeout, rounded up to whole seconds.

        With `quiet_seconds` it also ends when nothing has come for that long.
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
        asked = {key: value for key, value in query.items() if value}
        for line in self.transport.stream(path, asked, seconds + _SILENCE_SECONDS, quiet_seconds=quiet_seconds):
            yield self._event(line, resource, f"GET {path}")

    def _whole(self, resource: Resource[T], path: str, query: Mapping[str, str]) -> Listing[T]:
        """All of it in one answer, read while it comes."""
        whole = Whole(resource)
        with ThreadPoolExecutor(max_workers=1) as aside, self._known(resource):
            aside.submit(whole.prepare)
            return self.transport.read(path, whole.read, query=query, accept=whole.ACCEPT)

    def _in_pages(self, resource: Resource[T], path: str, query: Mapping[str, str]) -> Listing[T]:
        """All pages. The next one is on its way while one is decoded: the server needs longer for it than we do."""
        items: list[T] = []
        with ThreadPoolExecutor(max_workers=1) as ahead:
            coming = ahead.submit(self._read, resource, path, query)
            while True:
                page = open_page(coming.result(), resource)
                if page.continue_:
                    query = {key: value for key, value in query.items() if key != "resourceVersion"}
                    query["continue"] = page.continue_
                    coming = ahead.submit(self._read, resource, path, query)
                items += page.items()
                if not page.continue_:
                    return Listing(items=tuple(items), resource_version=page.resource_version)

    def _read(self, resource: Resource[Any], path: str, query: Mapping[str, str] | None = None) -> bytes:
        with self._known(resource):
            return self.transport.request("GET", path, query=query)

    @contextmanager
    def _known(self, resource: Resource[Any]) -> Iterator[None]:
        """Says of a kind that is not served in which versions it is."""
        try:
            yield
        except NotFoundError as error:
            if error.reason != NOT_SERVED:
                raise
            raise errors.served_otherwise(error, resource.version, self._served_versions(resource.group)) from error

    def _served_versions(self, group: str) -> tuple[str, ...]:
        """The versions in which the API server serves a group; none if it does not, or does not say."""
        try:
            found: _Group = msgspec.json.decode(self.transport.request("GET", f"/apis/{group}"), type=_Group)
        except (KubeAPIError, msgspec.DecodeError):
            return ()
        return tuple(one.version for one in found.versions)

    def _event(self, line: bytes, resource: Resource[T], request: str) -> WatchEvent[T]:
        change: _WatchLine = decode(line, resource, _WatchLine, "")
        if change.type == "ERROR":
            status = decode(bytes(change.object), resource, errors.Status, "")
            raise errors.from_status(status, request, cluster=self.transport.cluster)
        version = decode(bytes(change.object), resource, Versioned, "").metadata.resource_version
        if change.type == "BOOKMARK":
            return WatchEvent(type="BOOKMARK", object=None, resource_version=version)
        decoded: T = decode(bytes(change.object), resource, resource.type, "")
        return WatchEvent(type=change.type, object=decoded, resource_version=version)

    def _patched(self, resource: Resource[Any], patch: Patch, subresource: str) -> dict[str, Any] | KubeAPIError:
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
        answer = self.transport.request(method, path, query=query, body=content, content_type=content_type)
        written: dict[str, Any] = decode(answer, resource, dict, path)
        return written
