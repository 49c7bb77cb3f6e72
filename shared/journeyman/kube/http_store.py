"""The real API server as a `ports.KubeStore`: raw bytes in, the few fields we read out.

Bodies are decoded by msgspec straight into the Structs of `core.api.objects`, an order of magnitude faster than the
official client's model classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

import msgspec

from journeyman.core.api.objects import POD, Resource
from journeyman.errors import GoneError, InvalidObjectError, KubeAPIError
from journeyman.kube import errors
from journeyman.kube.transport import EVICTIONS, Transport
from journeyman.ports import JSON, Listing, WatchEvent

T = TypeVar("T")

MERGE_PATCH: Final = "application/merge-patch+json"
_SILENCE_SECONDS: Final = 10.0  # beyond a watch's own timeout: then the connection is dead


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _ListBody(msgspec.Struct, Generic[T], frozen=True):
    metadata: _ListMeta
    items: tuple[T, ...] = ()


class _Versioned(msgspec.Struct, frozen=True):
    metadata: _ListMeta


class _WatchLine(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class HttpKubeStore:
    """One cluster over HTTP. Safe to use from several threads."""

    def __init__(self, transport: Transport, *, page_size: int = 1000) -> None:
        """Read and write through `transport`.

        Args:
            transport: Sends the requests.
            page_size: Objects asked for at a time; larger pages cost fewer round trips and more of the server's memory.
        """
        self._transport = transport
        self._page_size = page_size

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
            return self._pages(resource, path, {**asked, "limit": str(self._page_size)})
        except GoneError:
            return self._pages(resource, path, asked)

    def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        """One object."""
        body = self._transport.request("GET", resource.path(namespace, name))
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
        self._transport.request("DELETE", resource.path(namespace, name), body=msgspec.json.encode(options))

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
        self._transport.request("POST", path, body=msgspec.json.encode(eviction), retries=EVICTIONS)

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
        """Changes as they come; the server ends it after the timeout, rounded up to whole seconds."""
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
        for line in self._transport.stream(path, asked, seconds + _SILENCE_SECONDS):
            yield _event(line, resource, f"GET {path}")

    def _pages(self, resource: Resource[T], path: str, query: dict[str, str]) -> Listing[T]:
        items: list[T] = []
        while True:
            body = self._transport.request("GET", path, query=query)
            page: _ListBody[T] = _decode(body, resource, _list_type(resource.type), "")
            items += page.items
            if not page.metadata.continue_:
                return Listing(items=tuple(items), resource_version=page.metadata.resource_version)
            query = {key: value for key, value in query.items() if key != "resourceVersion"}
            query["continue"] = page.metadata.continue_

    def _write(
        self, method: str, resource: Resource[Any], path: str, body: JSON, content_type: str = "application/json"
    ) -> dict[str, Any]:
        answer = self._transport.request(method, path, body=msgspec.json.encode(body), content_type=content_type)
        written: dict[str, Any] = _decode(answer, resource, dict, path)
        return written


def _event(line: bytes, resource: Resource[T], request: str) -> WatchEvent[T]:
    change: _WatchLine = _decode(line, resource, _WatchLine, "")
    if change.type == "ERROR":
        raise errors.from_status(_decode(bytes(change.object), resource, errors.Status, ""), request)
    version = _decode(bytes(change.object), resource, _Versioned, "").metadata.resource_version
    if change.type == "BOOKMARK":
        return WatchEvent(type="BOOKMARK", object=None, resource_version=version)
    decoded: T = _decode(bytes(change.object), resource, resource.type, "")
    return WatchEvent(type=change.type, object=decoded, resource_version=version)


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
