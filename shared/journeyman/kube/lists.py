"""Bodies of answers, and above all of lists: in JSON or, where many of Kubernetes' own objects are asked for, in its encoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from journeyman.core.api.objects import Resource
from journeyman.errors import InvalidObjectError, KubeAPIError
from journeyman.kube import protobuf
from journeyman.kube.protobuf.numbers import LISTED

if TYPE_CHECKING:
    from journeyman.kube.protobuf.reading import Reader

T = TypeVar("T")

_JSON: Final = "application/json"
_HEAD_BYTES: Final = 4096


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
    """A page of messages cannot be read: its JSON will tell why, or can be."""


class Pages(Generic[T]):
    """Reads the pages of one list.

    Args:
        resource: What is listed.
        as_json: Whatever it is.
    """

    def __init__(self, resource: Resource[T], *, as_json: bool = False) -> None:
        self.resource = resource
        self._as_messages = resource.type in LISTED and not as_json
        self._reader: Reader[T] | None = None

    @property
    def accept(self) -> str:
        """The encodings to ask for. Custom resources are JSON, whatever is asked for."""
        return f"{protobuf.MEDIA_TYPE}, {_JSON}" if self._as_messages else _JSON

    @property
    def at_once(self) -> bool:
        """Whether all of it is one page.

        The server has it in its cache; for later pages it may have to ask etcd, and then needs five times as long.
        """
        return self._as_messages

    def prepare(self) -> None:
        """Load what is needed to read them: the first answer is on its way meanwhile."""
        if self._as_messages:
            from journeyman.kube.protobuf.reading import Reader  # noqa: PLC0415 - some dozens of milliseconds

            self._reader = Reader(self.resource.type)

    def open(self, body: bytes) -> Page[T]:
        """A page, in whichever encoding the server chose.

        Raises:
            KubeAPIError: It is none: something other than an API server answered.
            UnreadableError: It cannot be read in this encoding; the page's `items` may raise that, too.
        """
        if self._reader is not None and body.startswith(protobuf.MAGIC):
            return _of_messages(body, self._reader)
        metadata = _head(body, self.resource).metadata
        items = partial(_of_json, body, self.resource)
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


def _of_messages(body: bytes, reader: Reader[T]) -> Page[T]:
    def items() -> tuple[T, ...]:
        try:
            return tuple(map(reader.read, page.items))
        except ValueError as error:
            raise UnreadableError from error

    try:
        page = reader.open(body)
    except ValueError as error:
        raise UnreadableError from error
    metadata = page.metadata
    return Page(continue_=metadata.continue_, resource_version=metadata.resource_version, items=items)


def _head(body: bytes, resource: Resource[Any]) -> Versioned:
    """A list's metadata. API servers send it before the items; then these need not be looked through."""
    head, items, _ = body[:_HEAD_BYTES].partition(b'"items":')
    if items:
        with suppress(msgspec.DecodeError):  # somebody sends it after them
            return msgspec.json.decode(head.rstrip().rstrip(b",") + b"}", type=Versioned)
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


@lru_cache(maxsize=64)
def _decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type_)


@lru_cache(maxsize=64)
def _list_type(type_: Any) -> Any:
    return _ListBody[dict[str, Any]] if type_ is dict else _ListBody[type_]
