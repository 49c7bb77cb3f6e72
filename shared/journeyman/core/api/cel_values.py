"""What expressions of `cel` compute with: values, how they compare, and the functions they have.

Restates: the CEL specification; k8s.io/apiserver pkg/cel/library/quantity.go, semverlib.go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from journeyman.core.api import quantity
from journeyman.errors import InvalidQuantityError

_MAX_VERSION: Final = 64
_SEMVER: Final = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)


class EvaluationError(Exception):
    """The expression has no value for this device: it lacks an attribute, or its values do not compare."""


class Amount(Struct, frozen=True, order=True):
    """A quantity, in nano units."""

    nano: int


class Version(Struct, frozen=True, order=True):
    """A semantic version: its numbers, whether it is a release, and what comes before one. Build metadata says nothing."""

    numbers: tuple[int, ...]
    release: bool
    before: tuple[tuple[bool, int, str], ...]


Value = Any
"""str, int, bool, Amount, Version, or a Mapping or tuple of such."""

_SCALARS: Final = (str, int, bool, Amount, Version)


def amount(text: str) -> Amount:
    """The quantity in a text. Raises EvaluationError."""
    try:
        return Amount(quantity.parse(text).nano)
    except InvalidQuantityError as error:
        raise EvaluationError(error.message) from error


def version(text: str) -> Version:
    """The semantic version in a text. Raises EvaluationError."""
    match = _SEMVER.fullmatch(text) if len(text) <= _MAX_VERSION else None
    if match is None:
        raise EvaluationError(f"{text!r} is not a semantic version")
    before = tuple(
        (False, int(part), "") if part.isdigit() else (True, 0, part)
        for part in (match[4].split(".") if match[4] else ())
    )
    return Version(tuple(int(match[n]) for n in (1, 2, 3)), not before, before)


MAKERS: Final[Mapping[str, Callable[[str], Value]]] = {"quantity": amount, "semver": version}


def boolean(value: Value) -> bool:
    """The value if it is true or false. Raises EvaluationError."""
    if not isinstance(value, bool):
        raise EvaluationError("neither true nor false")
    return value


def text_of(value: Value) -> str:
    """The value if it is a text. Raises EvaluationError."""
    if not isinstance(value, str):
        raise EvaluationError("not a text")
    return value


def same(left: Value, right: Value) -> bool:
    """Whether two values are equal; those of different kinds are not."""
    return type(left) is type(right) and bool(left == right)


def _order(left: Value, right: Value) -> int:
    """-1, 0 or 1. Raises EvaluationError if they do not compare."""
    if type(left) is not type(right) or not isinstance(left, _SCALARS):
        raise EvaluationError("values of different kinds do not compare")
    return bool(left > right) - bool(left < right)


def _contains(item: Value, container: Value) -> bool:
    if isinstance(container, Mapping):
        return isinstance(item, str) and item in container
    if isinstance(container, tuple):
        return any(same(item, other) for other in container)
    raise EvaluationError("`in` needs a list or a map")


RELATIONS: Final[Mapping[str, Callable[[Value, Value], bool]]] = {
    "==": same,
    "!=": lambda left, right: not same(left, right),
    "<": lambda left, right: _order(left, right) < 0,
    "<=": lambda left, right: _order(left, right) <= 0,
    ">": lambda left, right: _order(left, right) > 0,
    ">=": lambda left, right: _order(left, right) >= 0,
    "in": _contains,
}


def _measure(value: Value) -> Value:
    if not isinstance(value, (Amount, Version)):
        raise EvaluationError("neither a quantity nor a version")
    return value


def _number(index: int) -> Callable[[Value], int]:
    def found(value: Value) -> int:
        if not isinstance(value, Version):
            raise EvaluationError("not a version")
        return value.numbers[index]

    return found


def _size(value: Value) -> int:
    if not isinstance(value, (str, tuple, Mapping)):
        raise EvaluationError("has no size")
    return len(value)


_LOWER: Final = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_UPPER: Final = {lower: upper for upper, lower in _LOWER.items()}


def _lower(value: Value) -> str:
    return text_of(value).translate(_LOWER)


def _upper(value: Value) -> str:
    return text_of(value).translate(_UPPER)


_PATTERN: Final = re.compile(r"\^?(?:[\w \-/:,=]|\\[.\-/$^]|\.\*?)*\$?", re.ASCII)


def understood_pattern(pattern: str) -> bool:
    """Whether `matches` knows what to do with a pattern: one of characters, `.`, `.*`, `^` and `$`."""
    return _PATTERN.fullmatch(pattern) is not None


def matches(text: str, pattern: str) -> bool:
    """Whether a simple pattern is found in a text. Raises EvaluationError.

    Between its `.*` each piece is looked for at its first place after the one before, so that no pattern, however it is
    made, takes longer than the text is long.
    """
    if not understood_pattern(pattern):
        raise EvaluationError(f"pattern {pattern!r} is not understood")
    starts, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    pieces = pattern[starts : len(pattern) - ends].split(".*")
    pieces = ["" for _ in range(not starts)] + pieces + ["" for _ in range(not ends)]
    place = 0
    for index, piece in enumerate(pieces):
        after = _after(text, piece, place, first=index == 0, last=index == len(pieces) - 1 and ends)
        if after is None:
            return False
        place = after
    return True


def _after(text: str, piece: str, place: int, *, first: bool, last: bool) -> int | None:
    """Where a piece ends that is found from `place` on: at once if it is the first, at the very end if it is the last."""
    wanted = re.compile(piece)
    if last and not first:
        length = len(piece) - piece.count("\\")
        place = max(place, len(text) - length)
    match = wanted.fullmatch(text, place) if last else wanted.match(text) if first else wanted.search(text, place)
    return match.end() if match is not None else None


METHODS: Final[Mapping[tuple[str, int], Callable[..., Value]]] = {
    ("compareTo", 1): lambda a, b: _order(_measure(a), b),
    ("isGreaterThan", 1): lambda a, b: _order(_measure(a), b) > 0,
    ("isLessThan", 1): lambda a, b: _order(_measure(a), b) < 0,
    ("major", 0): _number(0),
    ("minor", 0): _number(1),
    ("patch", 0): _number(2),
    ("size", 0): _size,
    ("lowerAscii", 0): _lower,
    ("upperAscii", 0): _upper,
    ("startsWith", 1): lambda text, part: text_of(text).startswith(text_of(part)),
    ("endsWith", 1): lambda text, part: text_of(text).endswith(text_of(part)),
    ("contains", 1): lambda text, part: text_of(part) in text_of(text),
    ("matches", 1): lambda text, pattern: matches(text_of(text), text_of(pattern)),
}
"""Functions by name and number of arguments; what they are called on comes first."""
