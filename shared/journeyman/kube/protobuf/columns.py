"""Values made a column at a time: what many messages hold in one field, then what their Structs do.

So Python's own functions, which are C, go from object to object, and ours only from field to field. A maker (`MakeEach`) gets
a column with something in it, and gives one of the same length, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

Make = Callable[[Any], Any]
Column = Sequence[Any]
MakeEach = Callable[[Column], Column]

_MOST: Final = 4096  # values remembered by one maker, beyond those of the last column
_LONGEST: Final = 4096  # bytes, or entries, of what one is made of


class Remembered:
    """A maker that makes of equal things the same value, which is made when the first of them is seen.

    What it sees for the first time in a column is made together: as a column.

    Args:
        make: Makes them. Equal things make equal ones, and nobody changes them.
        given: What never has to be made.
    """

    def __init__(self, make: MakeEach, given: Mapping[Any, Any] | None = None) -> None:
        self._make = make
        self._given = given or {}
        self._known = {**self._given}

    def __call__(self, keys: Sequence[Hashable]) -> Column:
        """The values of bytes or tuples."""
        known = self._known
        try:
            return [*map(known.__getitem__, keys)]
        except KeyError:  # hardly ever, as a rule: to ask first would take as long again
            new = [*set(keys).difference(known)] if len(keys) > 1 else keys
        known.update(zip(new, self._make(new), strict=True))
        values = [*map(known.__getitem__, keys)]
        self._forget(new)
        return values

    def _forget(self, new: Column) -> None:
        """What would be too long to keep, or too much."""
        for key in new:
            if len(key) > _LONGEST:
                del self._known[key]
        if len(self._known) > _MOST:
            self._known = {**self._given}


def each(make: Make) -> MakeEach:
    """A maker that makes one after the other."""
    return lambda column: [*map(make, column)]


def within(make: MakeEach) -> MakeEach:
    """A maker of tuples from tuples: `make` gets what is in all of them at once."""

    def made(column: Column) -> Column:
        together = [*chain.from_iterable(column)]
        if not together:
            return column
        values = make(together)
        if len(column) == 1:
            return [tuple(values)]
        following = iter(values)
        return [tuple(islice(following, len(one))) for one in column]

    return made


def listed(make: MakeEach) -> MakeEach:
    """A maker from lists in messages, of which `make` gets tuples. A slice takes them: their iterators look each item up."""
    return lambda column: make([tuple(found[:]) if found else () for found in column])


def replaced(old: Any, new: Any) -> MakeEach:
    """A maker that leaves everything as it is, but for one value."""
    return lambda column: [new if value == old else value for value in column]


def unless(missing: Any, default: Any, make: MakeEach) -> MakeEach:
    """The same maker, except for what stands for nothing."""
    return lambda column: [
        default if value == missing else made for value, made in zip(column, make(column), strict=True)
    ]
