"""Read objects, and lists of them: pages in JSON, or the whole list in protobuf where clusters have many objects of a kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from journeyman.core.api.labels import READ_ANNOTATIONS
from journeyman.core.api.objects import Resource, times_in_range
from journeyman.errors import InvalidObjectError
from journeyman.kube import error_translation, protobuf
from journeyman.kube.json_decoding import JSON, ListMetadata, Versioned, decode, decoder
from journeyman.kube.protobuf.field_numbers import LISTED
from journeyman.kube.transport import MAX_BODY_BYTES
from journeyman.ports import Listing

if TYPE_CHECKING:
    from journeyman.kube.protobuf.reader import Reader

T = TypeVar("T")

_HEAD_BYTES: Final = 4096


class _ListBody(msgspec.Struct, Generic[T], frozen=True):
    metadata: ListMetadata
    items: tuple[T, ...] = ()


class JsonPage(msgspec.Struct, Generic[T], frozen=True):
    """A page of a list in JSON.

    Attributes:
        continue_: The token for the next page; empty if this is the last one.
        resource_version: The version of the list.
        items: Decodes the objects. Raises InvalidObjectError, which names the object, and KubeAPIError.
    """

    continue_: str
    resource_version: str
    items: Callable[[], tuple[T, ...]]


class UnreadableListError(Exception):
    """A protobuf list cannot be read, or is incomplete; list the objects in JSON instead."""


class WholeList(Generic[T]):
    """Reads a whole list in protobuf while its bytes arrive.

    The API server answers a list without pages from its watch cache. It may read later pages from etcd, which takes five times
    as long.

    Args:
        resource: What is listed; `supports_protobuf(resource)` is True.
        background: Imports protobuf and creates the message classes (some dozens of milliseconds in a new process), while the
            server prepares its response.
    """

    ACCEPT: Final = f"{protobuf.MEDIA_TYPE}, {JSON}"

    def __init__(self, resource: Resource[T], background: Executor) -> None:
        self._resource = resource
        self._reader = background.submit(_reader, resource.type)

    def read(self, pieces: Iterable[bytes]) -> Listing[T]:
        """Return the list from the pieces of a body.

        Raises:
            UnreadableListError: The list cannot be read in this encoding, or is incomplete.
            InvalidObjectError, KubeAPIError: As `decode`, where the server sent JSON.
        """
        head, pieces = _peek(iter(pieces), len(protobuf.MAGIC))
        if head == protobuf.MAGIC:
            return self._read_protobuf(pieces)
        page = open_page(_joined(pieces), self._resource)
        if page.continue_:
            raise UnreadableListError
        return Listing(items=page.items(), resource_version=page.resource_version)

    @staticmethod
    def decode_status(body: bytes) -> error_translation.Status:
        """Return the Status in a failure response, of either encoding. Raises ValueError if there is none."""
        if not body.startswith(protobuf.MAGIC):
            return error_translation.decode_status(body)
        return _reader(error_translation.Status).read_one(body)

    def _read_protobuf(self, pieces: Iterable[bytes]) -> Listing[T]:
        try:
            found = self._reader.result().read(pieces)
        except ValueError as error:
            raise UnreadableListError from error
        if found.continue_:
            raise UnreadableListError
        return Listing(items=tuple(found.items), resource_version=found.resource_version)


def _reader(type_: type[T]) -> Reader[T]:
    from journeyman.kube.protobuf.reader import Reader  # noqa: PLC0415 - some dozens of milliseconds

    return Reader(type_)


def supports_protobuf(resource: Resource[Any]) -> bool:
    """Return whether lists of this resource are requested in protobuf. API servers send custom resources as JSON only."""
    return resource.type in LISTED


def open_page(body: bytes, resource: Resource[T]) -> JsonPage[T]:
    """Return a page in JSON, whose objects are not decoded yet.

    Raises:
        KubeAPIError: The body is not a list, so another program than an API server sent it.
    """
    metadata = _list_metadata(body, resource)
    items = partial(_decode_items, body, resource)
    return JsonPage(continue_=metadata.continue_, resource_version=metadata.resource_version, items=items)


def drop_unread_annotations(found: Iterable[Any]) -> None:
    """Remove the annotations that no step reads (`labels.READ_ANNOTATIONS`), so that they are not kept with the objects."""
    for item in found:
        read = READ_ANNOTATIONS.get(type(item).__name__)
        if read is None:
            return  # all are of one kind
        template = getattr(getattr(item, "spec", None), "template", None)
        for meta in (item.metadata, template.metadata) if template is not None else (item.metadata,):
            for key in meta.annotations.keys() - read:
                del meta.annotations[key]


def _peek(pieces: Iterator[bytes], size: int) -> tuple[bytes, Iterator[bytes]]:
    """Return the first `size` bytes, and all pieces."""
    first = b""
    for piece in pieces:
        first += piece
        if len(first) >= size:
            break
    return first[:size], chain((first,), pieces)


def _joined(pieces: Iterable[bytes]) -> bytes:
    """Return the whole body. Raises UnreadableListError if it is too large; pages are smaller."""
    body = bytearray()
    for piece in pieces:
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise UnreadableListError
    return bytes(body)


def _list_metadata(body: bytes, resource: Resource[Any]) -> ListMetadata:
    """Return a list's metadata, which API servers send before the items of most kinds, so that the items need not be scanned."""
    head, items, _ = body[:_HEAD_BYTES].partition(b'"items":')
    if items:
        with suppress(msgspec.DecodeError):  # lists of custom resources have it after the items
            early: Versioned = decoder(Versioned).decode(head.rstrip().rstrip(b",") + b"}")
            return early.metadata
    found: Versioned = decode(body, Versioned, kind=resource.kind)
    return found.metadata


def _decode_items(body: bytes, resource: Resource[T]) -> tuple[T, ...]:
    """Return a list's objects. Raises as `decode`; the error names the object."""
    try:
        page: _ListBody[T] = decode(body, _list_type(resource.type), kind=resource.kind)
        items = tuple(page.items)
    except InvalidObjectError:
        raw_page: _ListBody[dict[str, Any]] = decode(body, _list_type(dict), kind=resource.kind)
        items = tuple(decode_raw_object(raw, resource) for raw in raw_page.items)
    drop_unread_annotations(items)
    return items


def decode_object(body: Any, resource: Resource[T], *, name: str = "") -> T:
    """Return one object, with times that are out of range as the earliest or the latest one. Raises as `decode`."""
    try:
        found: T = decode(body, resource.type, kind=resource.kind, name=name)
    except InvalidObjectError:
        return decode_raw_object(decode(body, dict, kind=resource.kind, name=name), resource)
    return found


def decode_raw_object(raw: Mapping[str, Any], resource: Resource[T]) -> T:
    """Return an object from its JSON values, with times in range. Raises as `decode`; the error names the object."""
    metadata = raw.get("metadata") or {}
    name = "/".join(str(metadata[part]) for part in ("namespace", "name") if metadata.get(part))
    found: T = decode(msgspec.json.encode(times_in_range(raw)), resource.type, kind=resource.kind, name=name)
    return found


@lru_cache(maxsize=64)
def _list_type(type_: Any) -> Any:
    return _ListBody[dict[str, Any]] if type_ is dict else _ListBody[type_]
