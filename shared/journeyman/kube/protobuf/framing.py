"""Cut a protobuf response into parts of whole fields while its bytes arrive.

The envelope (`runtime.Unknown` of k8s.io/apimachinery) is four bytes of magic and a message, whose field 2 holds the requested
message. A message may be cut between any two of its fields: each part is a message of the same type, and merging the parsed parts
gives the same as parsing the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from journeyman.kube.protobuf import MAGIC

_RAW: Final = 2
_VARINT: Final = 0
_COUNTED: Final = 2
_FIXED: Final = {1: 8, 5: 4}
"""The length of a value in bytes, by the type in its tag."""
_LONGEST_VARINT: Final = 63  # the bit at which the last byte of a 64-bit number begins


def parts(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the message in an envelope in parts of whole fields, one for each piece that completes a field.

    Args:
        pieces: The response's body, cut anywhere.

    Raises:
        ValueError: The response is not in such an envelope, or ends too early.
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
        raise ValueError("the response is not a message in an envelope, or ends too early")


def _opened(data: bytes) -> tuple[int, int]:
    """Return where the message in an envelope begins, and its length; (0, -1) if more bytes are needed."""
    if not MAGIC.startswith(data[: len(MAGIC)]):
        raise ValueError("the response is not in an envelope")
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
    """Return where the last complete field within the first `left` bytes ends."""
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
    """Return a field's number, and where its content begins and ends, even if that is missing. Raises IndexError for a cut tag."""
    tag, at = _varint(data, at)
    number, kind = tag >> 3, tag & 7
    if kind == _COUNTED:
        size, at = _varint(data, at)
        return number, at, at + size
    if kind == _VARINT:
        return number, at, _varint(data, at)[1]
    if kind in _FIXED:
        return number, at, at + _FIXED[kind]
    raise ValueError(f"field {number} is of type {kind}, which Kubernetes messages do not use")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number, and where it ends."""
    found = shift = 0
    while True:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, at
        shift += 7
        if shift > _LONGEST_VARINT:
            raise ValueError("a number in the response has too many bytes")
