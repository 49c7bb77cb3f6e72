"""Hashes of Go values as the Go package hashstructure computes them, for NodeClasses whose hash is another provider's.

A value's hash is composed of the hashes of its parts, so each function takes and returns 64-bit integers. A field without a value
(None) does not count, as with `IgnoreZeroValue`; a pointer has the hash of what it points to.

Restates: mitchellh/hashstructure v2.0.2 `Hash` with FormatV2, SlicesAsSets, IgnoreZeroValue and ZeroNil.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

_OFFSET: Final = 0xCBF29CE484222325
_PRIME: Final = 0x100000001B3
_MASK: Final = 2**64 - 1


def text_hash(value: str) -> int:
    """Return the hash of a string."""
    return _fnv(value.encode())


def int32_hash(value: int) -> int:
    """Return the hash of an int32."""
    return _fnv(value.to_bytes(4, "little", signed=True))


def map_hash(values: Mapping[str, str]) -> int:
    """Return the hash of a map of strings."""
    mixed = 0
    for key, value in values.items():
        mixed ^= _ordered(text_hash(key), text_hash(value))
    return _finished(mixed)


def slice_hash(items: Iterable[int]) -> int:
    """Return the hash of a slice with these hashes, in any order.

    Two equal items cancel each other out, as in the Go package.
    """
    mixed = 0
    for item in items:
        mixed ^= item
    return mixed


def struct_hash(name: str, fields: Mapping[str, int | None]) -> int:
    """Return the hash of a struct.

    Args:
        name: The name of its Go type; empty for an anonymous struct.
        fields: The hashes of its fields by their Go names, in the order of their declaration; None for a zero value.
    """
    mixed = text_hash(name)
    for field, value in fields.items():
        if value is not None:
            mixed = _finished(mixed ^ _ordered(text_hash(field), value))
    return mixed


def _fnv(data: bytes) -> int:
    """Return the 64-bit FNV-1 hash."""
    found = _OFFSET
    for byte in data:
        found = (found * _PRIME & _MASK) ^ byte
    return found


def _ordered(first: int, second: int) -> int:
    return _fnv(first.to_bytes(8, "little") + second.to_bytes(8, "little"))


def _finished(mixed: int) -> int:
    return _fnv(mixed.to_bytes(8, "little"))
