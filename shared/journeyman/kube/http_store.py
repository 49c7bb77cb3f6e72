"""The real API server as a `ports.KubeStore`: raw bytes in, the few fields we read out.

Bodies are decoded by msgspec straight into the Structs of `core.api.objects`, an order of magnitude faster than the
official client's model classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

import msgspec

from journeyman.core.api.objects import POD, Resource
from journeyman.errors import GoneError, InvalidObjectError, KubeAPIError, NotFoundError
from journeyman.kube import errors
from journeyman.kube.allowance import Allowance
from journeyman.kube.retries import EVICTIONS
from journeyman.kube.transport import Transport
from journeyman.ports import JSON, Listing, Patch, WatchEvent

T = TypeVar("T")

MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
_HEAD_BYTES: Final = 4096
_AT_A_TIME: Final = 8  # writes side by side: half of the connections kept, and no flood for the server
_SILENCE_SECONDS: Final = 10.0  # beyond a watch's own timeout: then the connection is dead


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _ServerVersion(msgspec.Struct, frozen=True):
    major: str = ""
    minor: str = ""


class _ListBody(msgspec.Struct, Generic[T], frozen=True):
    metadata: _ListMeta
    items: tuple[T, ...] = ()


class _Versioned(msgspec.Struct, frozen=True):
    metadata: _ListMeta


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
        try:
            return self._pages(resource, path, {**asked, "limit": str(self.page_size)})
        except GoneError:
            return self._pages(resource, path, asked)

    def latest(
        self, resource: Resource[Any], *, namespace: str = "", label_selector: str = "", field_selector: str = ""
    ) -> str:
        """The version that the store is at now; a watch asked for next, on the same connection, knows all before it.

        A consistent list of one object: kube-apiserver asks etcd for its version, and answers once its own cache is there.
        """
        query = {"limit": "1", "labelSelector": label_selector, "fieldSelector": field_selector}
        asked = {key: value for key, value in query.items() if value}
        found: _Versioned = _decode(self._read(resource, resource.path(namespace), asked), resource, _Versioned, "")
        return found.metadata.resource_version

    def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        """One object."""
        body = self._read(resource, resource.path(namespace, name))
        decoded: T = _decode(body, resource, resource.type, name)
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

        def one(patch: Patch) -> dict[str, Any] | KubeAPIError:
            try:
                return self.patch(resource, patch.name, patch.body, namespace=patch.namespace, subresource=subresource)
            except KubeAPIError as error:
                return error

        with ThreadPoolExecutor(min(_AT_A_TIME, max(len(patches), 1))) as threads:
            return tuple(threads.map(one, patches))

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

    def _pages(self, resource: Resource[T], path: str, query: dict[str, str]) -> Listing[T]:
        """All pages. The next one is on its way while one is decoded: the server needs longer for it than we do."""
        items: list[T] = []
        with ThreadPoolExecutor(max_workers=1) as ahead:
            body = self._read(resource, path, query)
            while True:
                token = _head(body, resource).metadata.continue_
                following: Future[bytes] | None = None
                if token:
                    query = {key: value for key, value in query.items() if key != "resourceVersion"}
                    query["continue"] = token
                    following = ahead.submit(self._read, resource, path, query)
                page: _ListBody[T] = _decode_list(body, resource)
                items += page.items
                if following is None:
                    return Listing(items=tuple(items), resource_version=page.metadata.resource_version)
                body = following.result()

    def _read(self, resource: Resource[Any], path: str, query: Mapping[str, str] | None = None) -> bytes:
        try:
            return self.transport.request("GET", path, query=query)
        except NotFoundError as error:
            if error.reason != errors.NOT_SERVED:
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
        change: _WatchLine = _decode(line, resource, _WatchLine, "")
        if change.type == "ERROR":
            status = _decode(bytes(change.object), resource, errors.Status, "")
            raise errors.from_status(status, request, cluster=self.transport.cluster)
        version = _decode(bytes(change.object), resource, _Versioned, "").metadata.resource_version
        if change.type == "BOOKMARK":
            return WatchEvent(type="BOOKMARK", object=None, resource_version=version)
        decoded: T = _decode(bytes(change.object), resource, resource.type, "")
        return WatchEvent(type=change.type, object=decoded, resource_version=version)

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
        written: dict[str, Any] = _decode(answer, resource, dict, path)
        return written


def _head(body: bytes, resource: Resource[Any]) -> _Versioned:
    """A list's metadata. API servers send it before the items; then these need not be looked through."""
    head, items, _ = body[:_HEAD_BYTES].partition(b'"items":')
    if items:
        with suppress(msgspec.DecodeError):  # somebody sends it after them
            return msgspec.json.decode(head.rstrip().rstrip(b",") + b"}", type=_Versioned)
    found: _Versioned = _decode(body, resource, _Versioned, "")
    return found


def _decode_list(body: bytes, resource: Resource[T]) -> _ListBody[T]:
    """A list's body. Raises as `_decode`; an object of another shape is named."""
    try:
        page: _ListBody[T] = _decode(body, resource, _list_type(resource.type), "")
    except InvalidObjectError:
        whole: _ListBody[dict[str, Any]] = _decode(body, resource, _list_type(dict), "")
        for raw in whole.items:
            _decode(msgspec.json.encode(raw), resource, resource.type, _name_of(raw))
        raise  # none of the objects but what is around them
    return page


def _name_of(raw: Mapping[str, Any]) -> str:
    metadata = raw.get("metadata") or {}
    return "/".join(str(metadata[part]) for part in ("namespace", "name") if metadata.get(part))


def _decode(body: bytes, resource: Resource[Any], type_: Any, name: str) -> Any:
    """The body as `type_`.

    Raises:
        InvalidObjectError: It is JSON of another shape; the message has the field's path.
        KubeAPIError: It is no JSON: something other than an API server answered.
    """
    try:
        return _decoder(type_).decode(body)
    except msgspec.ValidationError as error:
        message = f"{resource.kind} {name} cannot be read: {error}".replace("  ", " ")
        raise InvalidObjectError(message, kind=resource.kind, name=name) from error
    except msgspec.DecodeError as error:
        message = f"the answer is no JSON, so it is not an API server's: {error}"
        raise KubeAPIError(message, reason="NotKubernetes", kind=resource.kind) from error


@lru_cache(maxsize=64)
def _decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type_)


@lru_cache(maxsize=64)
def _list_type(type_: Any) -> Any:
    return _ListBody[dict[str, Any]] if type_ is dict else _ListBody[type_]
