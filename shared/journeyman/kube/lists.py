"""Bodies of answers, and above all of lists: in JSON or, where many of Kubernetes' own objects are asked for, in its encoding."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from journeyman.core.api.objects import Resource
from journeyman.errors import InvalidObjectError, KubeAPIError
from journeyman.kube import protobuf
from journeyman.kube.protobuf.numbers import LISTED
from journeyman.ports import Listing

if TYPE_CHECKING:
    from journeyman.kube.protobuf.reading import Reader

T = TypeVar("T")

JSON: Final = "application/json"
_HEAD_BYTES: Final = 4096
_making = threading.Lock()


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _ListBody(msgspec.Struct, Generic[T], frozen=True):
    metadata: _ListMeta
    items: tuple[T, ...] = ()


class Versioned(msgspec.Struct, frozen=True):
    """Anything that has a version."""

    metadata: _ListMeta


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A page of a list: what asks for the next one, if there is one; and the objects, which take longer to read.

    Of `items` may be raised InvalidObjectError, which names the object, and KubeAPIError.
    """

    continue_: str
    resource_version: str
    items: Callable[[], tuple[T, ...]]


class UnreadableError(Exception):
    """A list of messages cannot be read: its JSON will tell why, or can be."""


class Whole(Generic[T]):
    """Reads a whole list while it comes: one that is asked for in Kubernetes' own encoding.

    It is one answer, as the server has it in its cache; for the pages of a list it may have to ask etcd, and then needs five
    times as long.

    Args:
        resource: What is listed; `has_own_encoding` of it.
    """

    ACCEPT: Final = f"{protobuf.MEDIA_TYPE}, {JSON}"

    def __init__(self, resource: Resource[T]) -> None:
        self._resource = resource

    def prepare(self) -> None:
        """Load what reading takes, some dozens of milliseconds: meanwhile the server gets its answer ready."""
        self._reader()

    def read(self, pieces: Iterable[bytes]) -> Listing[T]:
        """The list, from the pieces of a body.

        Raises:
            UnreadableError: It cannot be read in this encoding, or it is not all of the list.
            InvalidObjectError, KubeAPIError: The server chose JSON; as `decode`.
        """
        head, rest = _begun(iter(pieces))
        if head == protobuf.MAGIC:
            return self._of_messages(rest)
        page = open_page(b"".join(rest), self._resource)
        if page.continue_:
            raise UnreadableError
        return Listing(items=page.items(), resource_version=page.resource_version)

    def _of_messages(self, pieces: Iterable[bytes]) -> Listing[T]:
        try:
            found = self._reader().read(pieces)
        except ValueError as error:
            raise UnreadableError from error
        if found.continue_:
            raise UnreadableError
        return Listing(items=tuple(found.items), resource_version=found.resource_version)

    def _reader(self) -> Reader[T]:
        from journeyman.kube.protobuf.reading import Reader  # noqa: PLC0415 - some dozens of milliseconds

        return Reader(self._resource.type)


def has_own_encoding(resource: Resource[Any]) -> bool:
    """Whether it is to be asked for in Kubernetes' own encoding. Custom resources are JSON, whatever is asked for."""
    return resource.type in LISTED


def open_page(body: bytes, resource: Resource[T]) -> Page[T]:
    """A page in JSON.

    Raises:
        KubeAPIError: It is none: something other than an API server answered.
    """
    metadata = _head(body, resource).metadata
    items = partial(_of_json, body, resource)
    return Page(continue_=metadata.continue_, resource_version=metadata.resource_version, items=items)


def decode(body: bytes, resource: Resource[Any], type_: Any, name: str) -> Any:
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


def _begun(pieces: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first bytes, as many as tell an encoding, and all of the pieces."""
    size, begin = len(protobuf.MAGIC), b""
    for piece in pieces:
        begin += piece
        if len(begin) >= size:
            break
    return begin[:size], chain((begin,), pieces)


def _head(body: bytes, resource: Resource[Any]) -> Versioned:
    """A list's metadata. API servers send it before the items; then these need not be looked through."""
    head, items, _ = body[:_HEAD_BYTES].partition(b'"items":')
    if items:
        with suppress(msgspec.DecodeError):  # somebody sends it after them
            early: Versioned = _decoder(Versioned).decode(head.rstrip().rstrip(b",") + b"}")
            return early
    found: Versioned = decode(body, resource, Versioned, "")
    return found


def _of_json(body: bytes, resource: Resource[T]) -> tuple[T, ...]:
    """A list's objects. Raises as `decode`; an object of another shape is named."""
    try:
        page: _ListBody[T] = decode(body, resource, _list_type(resource.type), "")
    except InvalidObjectError:
        whole: _ListBody[dict[str, Any]] = decode(body, resource, _list_type(dict), "")
        for raw in whole.items:
            decode(msgspec.json.encode(raw), resource, resource.type, _name_of(raw))
        raise  # none of the objects but what is around them
    return page.items


def _name_of(raw: Mapping[str, Any]) -> str:
    metadata = raw.get("metadata") or {}
    return "/".join(str(metadata[part]) for part in ("namespace", "name") if metadata.get(part))


def _decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    """Made by one thread at a time: msgspec looks into a type at its first use, and two that do so side by side may crash."""
    with _making:
        return _made(type_)


@lru_cache(maxsize=64)
def _made(type_: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type_)


@lru_cache(maxsize=64)
def _list_type(type_: Any) -> Any:
    return _ListBody[dict[str, Any]] if type_ is dict else _ListBody[type_]
