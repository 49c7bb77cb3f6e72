"""Cut a protobuf response into parts of whole fields while its bytes arrive.

The envelope (`runtime.Unknown` of k8s.io/apimachinery) is four bytes of magic and a message, whose field 2 holds the requested
message. A message may be cut between any two of its fields: each part is a message of the same type, and merging the parsed parts
gives the same as parsing the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from journeyman.kube.protobuf import MAGIC

_RAW_FIELD: Final = 2
_VARINT: Final = 0
_LENGTH_DELIMITED: Final = 2
_FIXED: Final = {1: 8, 5: 4}
"""The length of a value in bytes, by the type in its tag."""
_MAX_FIELD_BYTES: Final = 16 << 20
"""The longest field, which is an object; etcd stores objects of 1.5 MiB."""
_LONGEST_VARINT: Final = 63  # the bit at which the last byte of a 64-bit number begins


def parts(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the message in an envelope in parts of whole fields, one for each piece that completes a field.

    Args:
        pieces: The response's body, cut anywhere.

    Raises:
        ValueError: The response is not in such an envelope, ends too early, or has too large a field.
    """
    data, remaining = b"", -1
    for piece in pieces:
        data += piece
        if remaining < 0:
            start, remaining = _open_envelope(data)
            data = data[start:]
        end = _end_of_fields(data, remaining)
        if end > 0:
            yield data[:end]
            data, remaining = data[end:], remaining - end
        if len(data) > _MAX_FIELD_BYTES:
            raise ValueError(f"a field of the response has over {_MAX_FIELD_BYTES} bytes")
    if remaining:
        raise ValueError("the response is not a message in an envelope, or ends too early")


def _open_envelope(data: bytes) -> tuple[int, int]:
    """Return the start of the message in an envelope, and its length; (0, -1) if more bytes are needed."""
    if not MAGIC.startswith(data[: len(MAGIC)]):
        raise ValueError("the response is not in an envelope")
    position = len(MAGIC)
    try:
        while True:
            number, content, end = _field(data, position)
            if number == _RAW_FIELD:
                return content, end - content
            position = end
    except IndexError:
        return 0, -1


def _end_of_fields(data: bytes, remaining: int) -> int:
    """Return the end of the last complete field within the first `remaining` bytes."""
    position, limit = 0, min(remaining, len(data))
    try:
        while position < limit:
            _, _, end = _field(data, position)
            if end > limit:
                break
            position = end
    except IndexError:
        pass
    return position


def _field(data: bytes, position: int) -> tuple[int, int, int]:
    """Return a field's number, and the start and end of its content, which may be missing. Raises IndexError for a cut tag."""
    tag, position = _varint(data, position)
    number, kind = tag >> 3, tag & 7
    if kind == _LENGTH_DELIMITED:
        size, position = _varint(data, position)
        return number, position, position + size
    if kind == _VARINT:
        return number, position, _varint(data, position)[1]
    if kind in _FIXED:
        return number, position, position + _FIXED[kind]
    raise ValueError(f"field {number} is of type {kind}, which Kubernetes messages do not use")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a number, and its end."""
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
        if shift > _LONGEST_VARINT:
            raise ValueError("a number in the response has too many bytes")
