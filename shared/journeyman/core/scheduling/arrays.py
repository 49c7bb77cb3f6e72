"""Array types, and the few operations on arrays that several modules need."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def every(table: Bools) -> Bools:
    """By row, whether all of it is true (so is an empty row)."""
    found: Bools = np.logical_and.reduce(table, axis=1)
    return found


def distinct(codes: Ints) -> Ints:
    """The different numbers among these, ascending; none of them is negative.

    For small numbers; numpy's own `unique` first loads its masked arrays, which takes longer than many a plan.
    """
    return np.flatnonzero(np.bincount(codes)) if len(codes) else codes


def numbered(bits: Bools) -> tuple[Ints, Bools]:
    """Columns of equal bits numbered: the number by column, and the bits by number."""
    packed = np.ascontiguousarray(np.packbits(bits, axis=0).T)
    raw, width = packed.tobytes(), packed.shape[1]
    first: dict[bytes, int] = {}
    numbers = [first.setdefault(raw[at : at + width], len(first)) for at in range(0, len(raw), width)]
    known = np.frombuffer(b"".join(first), dtype=np.uint8).reshape(len(first), width)
    patterns: Bools = np.unpackbits(known, axis=1, count=len(bits)).astype(bool)
    return np.array(numbers, dtype=np.int64), patterns


def undominated(sizes: Ints) -> Ints:
    """The rows that no earlier row is at least as large as on every axis, ascending."""
    kept: list[int] = []
    left, columns = np.arange(len(sizes)), np.ascontiguousarray(sizes.T)
    while len(left):
        kept.append(int(left[0]))
        beyond = np.logical_or.reduce(columns > columns[:, :1], axis=0)
        left, columns = left[beyond], columns[:, beyond]
    return np.array(kept, dtype=np.int64)
