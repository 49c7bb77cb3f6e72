"""An answer's message out of the pieces in which its bytes come, before all of them are there.

The envelope (`runtime.Unknown` of k8s.io/apimachinery) is four bytes of magic and a message, whose field 2 holds the message
that was asked for. A message may be cut between any two of its fields: each part is one of the same type, and parsing the
parts in turn gives what parsing the whole does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from journeyman.kube.protobuf import MAGIC

_RAW: Final = 2
_VARINT: Final = 0
_COUNTED: Final = 2
_FIXED: Final = {1: 8, 5: 4}
"""Bytes of a value, by the type in its tag."""
_LONGEST_VARINT: Final = 63  # bits, of 64, that the last byte's begin after


def parts(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The message in an envelope, in parts of whole fields: one for each piece that ends another field.

    Args:
        pieces: The answer's body, cut anywhere.

    Raises:
        ValueError: It is no such answer, or it breaks off: the message is shorter than the envelope says.
    """
    data, left = b"", -1
    for piece in pieces:
        data += piece
        if left < 0:
            begin, left = _opened(data)
            data = data[begin:]
        end = _end_of_fields(data, left)
        if end > 0:
            yield data[:end]
            data, left = data[end:], left - end
    if left:
        raise ValueError("the answer is no message in an envelope, or breaks off")


def _opened(data: bytes) -> tuple[int, int]:
    """Where the message in an envelope begins, and its length; (0, -1) while too little of it is there."""
    if not MAGIC.startswith(data[: len(MAGIC)]):
        raise ValueError("the answer is in no envelope")
    at = len(MAGIC)
    try:
        while True:
            number, content, end = _field(data, at)
            if number == _RAW:
                return content, end - content
            at = end
    except IndexError:
        return 0, -1


def _end_of_fields(data: bytes, left: int) -> int:
    """Where the last field ends of those that are there whole, and within the first `left` bytes."""
    at, limit = 0, min(left, len(data))
    try:
        while at < limit:
            _, _, end = _field(data, at)
            if end > limit:
                break
            at = end
    except IndexError:
        pass
    return at


def _field(data: bytes, at: int) -> tuple[int, int, int]:
    """Number, begin and end of a field's content, which need not be there yet. Raises IndexError: nor is what tells them."""
    tag, at = _varint(data, at)
    number, kind = tag >> 3, tag & 7
    if kind == _COUNTED:
        size, at = _varint(data, at)
        return number, at, at + size
    if kind == _VARINT:
        return number, at, _varint(data, at)[1]
    if kind in _FIXED:
        return number, at, at + _FIXED[kind]
    raise ValueError(f"field {number} is of type {kind}, which no Kubernetes message has")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    found = shift = 0
    while True:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, at
        shift += 7
        if shift > _LONGEST_VARINT:
            raise ValueError("a number in the answer has too many bytes")
