"""Convert values a column at a time: one field of many messages, then one field of their Structs.

So Python's built-in functions, which are C, iterate over objects, and our own only over fields. A converter (`ConvertColumn`) takes
a column that is not empty, and returns one of the same length in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

Convert = Callable[[Any], Any]
Column = Sequence[Any]
ConvertColumn = Callable[[Column], Column]

_MAX_VALUES: Final = 4096  # cached by one converter, beyond those of the last column
_MAX_KEY_LENGTH: Final = 4096  # bytes, or entries


class CachedConverter:
    """A converter that returns the same value for equal keys.

    All keys of a column that are not cached are converted together, as one column.

    Args:
        convert: Converts keys to immutable values.
        known: Values that are never converted.
    """

    def __init__(self, convert: ConvertColumn, known: Mapping[Any, Any] | None = None) -> None:
        self._convert = convert
        self._known = known or {}
        self._cache = {**self._known}

    def __call__(self, keys: Sequence[Hashable]) -> Column:
        """Return the values of bytes or tuples."""
        cache = self._cache
        try:
            return [*map(cache.__getitem__, keys)]
        except KeyError:  # rare; checking first would double the time
            new = [*set(keys).difference(cache)] if len(keys) > 1 else keys
        cache.update(zip(new, self._convert(new), strict=True))
        values = [*map(cache.__getitem__, keys)]
        self._evict(new)
        return values

    def _evict(self, new: Column) -> None:
        """Drop long keys, and everything once there are too many."""
        for key in new:
            if len(key) > _MAX_KEY_LENGTH:
                del self._cache[key]
        if len(self._cache) > _MAX_VALUES:
            self._cache = {**self._known}


def each(convert: Convert) -> ConvertColumn:
    """Return a converter that converts one value after the other."""
    return lambda column: [*map(convert, column)]


def within(convert: ConvertColumn) -> ConvertColumn:
    """Return a converter of tuples; `convert` gets the items of all tuples as one column."""

    def converted(column: Column) -> Column:
        together = [*chain.from_iterable(column)]
        if not together:
            return column
        values = convert(together)
        if len(column) == 1:
            return [tuple(values)]
        following = iter(values)
        return [tuple(islice(following, len(one))) for one in column]

    return converted


def listed(convert: ConvertColumn) -> ConvertColumn:
    """Return a converter of lists in messages, which `convert` gets as tuples. A slice is faster than the lists' iterators."""
    return lambda column: convert([tuple(found[:]) if found else () for found in column])


def replaced(old: Any, new: Any) -> ConvertColumn:
    """Return a converter that replaces one value and keeps all others."""
    return lambda column: [new if value == old else value for value in column]


def unless(missing: Any, default: Any, convert: ConvertColumn) -> ConvertColumn:
    """Return a converter that returns `default` for `missing`, and what `convert` returns for all other values."""
    return lambda column: [
        default if value == missing else converted for value, converted in zip(column, convert(column), strict=True)
    ]
