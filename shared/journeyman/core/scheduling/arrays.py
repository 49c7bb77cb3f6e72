"""Array types and the array operations that several modules share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def read_only(array: Bools) -> Bools:
    """Make the array read-only and return it."""
    array.flags.writeable = False
    return array


def every(table: Bools) -> Bools:
    """Return for each row whether all of its values are true; an empty row counts as true."""
    all_true: Bools = np.logical_and.reduce(table, axis=1)
    return all_true


def distinct(codes: Ints) -> Ints:
    """Return the distinct values of `codes`, ascending; the values must be small and not negative.

    `numpy.unique` would first import numpy's masked arrays, which takes longer than a small plan.
    """
    return np.flatnonzero(np.bincount(codes)) if len(codes) else codes


def numbered(bits: Bools) -> tuple[Ints, Bools]:
    """Give equal columns of `bits` one number; return the number of each column and the column of each number."""
    packed = np.ascontiguousarray(np.packbits(bits, axis=0).T)
    raw, width = packed.tobytes(), packed.shape[1]
    first: dict[bytes, int] = {}
    numbers = [first.setdefault(raw[at : at + width], len(first)) for at in range(0, len(raw), width)]
    known = np.frombuffer(b"".join(first), dtype=np.uint8).reshape(len(first), width)
    patterns: Bools = np.unpackbits(known, axis=1, count=len(bits)).astype(bool)
    return np.array(numbers, dtype=np.int64), patterns


def undominated(sizes: Ints) -> Ints:
    """Return the indices, ascending, of the rows that no earlier row equals or exceeds on every axis."""
    rows: list[int] = []
    left, columns = np.arange(len(sizes)), np.ascontiguousarray(sizes.T)
    while len(left):
        rows.append(int(left[0]))
        beyond = np.logical_or.reduce(columns > columns[:, :1], axis=0)
        left, columns = left[beyond], columns[:, beyond]
    return np.array(rows, dtype=np.int64)
