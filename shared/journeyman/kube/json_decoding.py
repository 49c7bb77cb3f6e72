"""Decode response bodies of an API server: objects of any type, and the lines of a watch."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any, Final

import msgspec

from journeyman.errors import InvalidObjectError, KubeAPIError
from journeyman.kube import error_translation

JSON: Final = "application/json"
_decoder_lock = threading.Lock()


class ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """`metadata` of a list; of an object, the fields that a list has as well."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Versioned(msgspec.Struct, frozen=True):
    """An object or a list, of which only the version is read."""

    metadata: ListMetadata


class WatchLine(msgspec.Struct, frozen=True):
    """One line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR, and the object as JSON."""

    type: str
    object: msgspec.Raw


def decode(body: Any, type_: Any, *, kind: str, name: str = "") -> Any:
    """Return the JSON body as `type_`.

    Args:
        body: Bytes, a bytearray, or `msgspec.Raw`.
        type_: Any type that msgspec decodes.
        kind: The object's kind, for the error.
        name: The object's name, for the error.

    Raises:
        InvalidObjectError: The JSON has another shape; the message has the field's path.
        KubeAPIError: The body is not JSON, so another program than an API server sent it.
    """
    try:
        return decoder(type_).decode(body)
    except msgspec.ValidationError as error:
        message = f"{kind} {name} cannot be read: {error}".replace("  ", " ")
        raise InvalidObjectError(message, kind=kind, name=name) from error
    except msgspec.DecodeError as error:
        message = f"the response is not JSON, so it is not an API server's: {error}"
        raise KubeAPIError(message, reason="NotKubernetes", kind=kind) from error


def decode_watch_line(line: bytes, request: str, *, kind: str, cluster: str = "") -> WatchLine:
    """Return a line of a watch.

    Raises:
        GoneError: The watch's resourceVersion is too old; list again.
        KubeAPIError: The line is another ERROR, or not a watch's. InvalidObjectError as `decode`.
    """
    found: WatchLine = decode(line, WatchLine, kind=kind)
    if found.type == "ERROR":
        status = decode(found.object, error_translation.Status, kind=kind)
        raise error_translation.from_status(status, request, cluster=cluster)
    return found


def decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder of a type.

    One thread at a time creates decoders: msgspec inspects a type at its first use, and may crash when two threads do so at once.
    """
    with _decoder_lock:
        return _cached_decoder(type_)


@lru_cache(maxsize=128)
def _cached_decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type_)
