"""Device selectors: the part of CEL (Common Expression Language) that DeviceClasses and ResourceClaims use to select devices.

A selector is parsed once into a function of a device. Supported are:

    device.driver, device.allowMultipleAllocations
    device.attributes["domain"].name, device.attributes["domain"]["name"]     string, integer, boolean, version
    device.capacity["domain"].name                                           quantity
    "name" in device.attributes["domain"], x in ["a", "b"], has(device.attributes["domain"].name)
    ==  !=  <  <=  >  >=  &&  ||  !  (…)  true  false  1  "…"  '…'  c ? a : b
    quantity("1Gi"), semver("1.2.3"), with compareTo, isGreaterThan, isLessThan; major, minor, patch of a version
    lowerAscii, upperAscii, startsWith, endsWith, contains, size, and matches with a pattern of characters, `.`,
    `.*`, `^` and `$`

Parsing rejects anything else, with its position. An attribute that a device lacks, and a comparison of values of different
types, are errors of evaluation: the device is not selected.
`&&` and `||` ignore an error on one side if the other side decides.

This parser exists because no library for Python has Kubernetes' `quantity` and `semver`, which most published selectors use, and
because of what the libraries cost a Lambda function (one selector with three comparisons, Python 3.11, a busy machine):

==================================  ==========  =======  ==========
library                             import      size     evaluation
==================================  ==========  =======  ==========
this module                         3 ms        30 kB    0.03 ms
common-expression-language 0.10.0   2,500 ms    11 MB    0.13 ms
cel-python 0.5.0                    1,300 ms    7 MB     3.2 ms
cel-expr-python 0.1.3 (C++)         8 ms        50 MB    no `quantity`, `semver`, `lowerAscii`
==================================  ==========  =======  ==========

Restates: k8s.io/dynamic-resource-allocation cel/compile.go `DeviceMatches`; k8s.io/apiserver pkg/cel/library/quantity.go,
semverlib.go; the CEL specification's logical operators.
Differs: macros over lists, `cel.bind`, arithmetic, and regular expressions with repetitions or groups are rejected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct, field

from journeyman.core.api import quantity
from journeyman.core.api.dra import Device, DeviceAttribute
from journeyman.errors import ConfigurationError, InvalidQuantityError

MAX_LENGTH: Final = 10 * 1024  # k8s.io/api resource/v1 `CELSelectorExpressionMaxLength`
_MAX_DEPTH: Final = 32  # of nested expressions, and of members of one value (`.a.b.c`)
_SHOWN: Final = 200
_TOKEN: Final = re.compile(
    r"""\s+|(?P<number>0|[1-9][0-9]{0,17})(?![\w.])|(?P<name>[A-Za-z_]\w*)
    |(?P<text>"(?:[^"\\\n]|\\["'\\])*"|'(?:[^'\\\n]|\\["'\\])*')|(?P<sign>&&|\|\||[=!<>]=|[()\[\].,!<>?:-])""",
    re.ASCII | re.VERBOSE,
)
_ESCAPE: Final = re.compile(r"\\(.)")
_MAX_VERSION: Final = 64
_SEMVER: Final = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)


class InvalidSelectorError(ConfigurationError):
    """The selector is malformed, or uses a part of CEL that is not supported."""


class SelectorEvaluationError(Exception):
    """The selector has no value for this device: it lacks an attribute, or its values cannot be compared."""


class QuantityValue(Struct, frozen=True, order=True):
    """A quantity, in nano units."""

    nano: int


class SemanticVersion(Struct, frozen=True, order=True):
    """A semantic version: its numbers, whether it is a release, and its pre-release parts. Build metadata is ignored."""

    numbers: tuple[int, ...]
    release: bool
    before: tuple[tuple[bool, int, str], ...]


Value = Any
"""str, int, bool, QuantityValue, SemanticVersion, or a Mapping or tuple of such."""

_SCALARS: Final = (str, int, bool, QuantityValue, SemanticVersion)


def amount(text: str) -> QuantityValue:
    """Return the quantity in a text. Raises SelectorEvaluationError."""
    try:
        return QuantityValue(quantity.parse(text).nano)
    except InvalidQuantityError as error:
        raise SelectorEvaluationError(error.message) from error


def version(text: str) -> SemanticVersion:
    """Return the semantic version in a text. Raises SelectorEvaluationError."""
    match = _SEMVER.fullmatch(text) if len(text) <= _MAX_VERSION else None
    if match is None:
        raise SelectorEvaluationError(f"{text!r} is not a semantic version")
    before = tuple(
        (False, int(part), "") if part.isdigit() else (True, 0, part)
        for part in (match[4].split(".") if match[4] else ())
    )
    return SemanticVersion(tuple(int(match[n]) for n in (1, 2, 3)), not before, before)


CONVERSIONS: Final[Mapping[str, Callable[[str], Value]]] = {"quantity": amount, "semver": version}


def boolean(value: Value) -> bool:
    """Return the value if it is a boolean. Raises SelectorEvaluationError."""
    if not isinstance(value, bool):
        raise SelectorEvaluationError("not a boolean")
    return value


def text_of(value: Value) -> str:
    """Return the value if it is a text. Raises SelectorEvaluationError."""
    if not isinstance(value, str):
        raise SelectorEvaluationError("not a text")
    return value


def are_equal(left: Value, right: Value) -> bool:
    """Return whether two values are equal; values of different types are not."""
    return type(left) is type(right) and bool(left == right)


def _order(left: Value, right: Value) -> int:
    """Return -1, 0 or 1. Raises SelectorEvaluationError if the values cannot be compared."""
    if type(left) is not type(right) or not isinstance(left, _SCALARS):
        raise SelectorEvaluationError("values of different types cannot be compared")
    return bool(left > right) - bool(left < right)


def _contains(item: Value, container: Value) -> bool:
    if isinstance(container, Mapping):
        return isinstance(item, str) and item in container
    if isinstance(container, tuple):
        return any(are_equal(item, other) for other in container)
    raise SelectorEvaluationError("`in` needs a list or a map")


RELATIONS: Final[Mapping[str, Callable[[Value, Value], bool]]] = {
    "==": are_equal,
    "!=": lambda left, right: not are_equal(left, right),
    "<": lambda left, right: _order(left, right) < 0,
    "<=": lambda left, right: _order(left, right) <= 0,
    ">": lambda left, right: _order(left, right) > 0,
    ">=": lambda left, right: _order(left, right) >= 0,
    "in": _contains,
}


def _measure(value: Value) -> Value:
    if not isinstance(value, (QuantityValue, SemanticVersion)):
        raise SelectorEvaluationError("neither a quantity nor a version")
    return value


def _version_part(index: int) -> Callable[[Value], int]:
    def part(value: Value) -> int:
        if not isinstance(value, SemanticVersion):
            raise SelectorEvaluationError("not a version")
        return value.numbers[index]

    return part


def _size(value: Value) -> int:
    if not isinstance(value, (str, tuple, Mapping)):
        raise SelectorEvaluationError("has no size")
    return len(value)


_LOWER: Final = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_UPPER: Final = {lower: upper for upper, lower in _LOWER.items()}


def _lower(value: Value) -> str:
    return text_of(value).translate(_LOWER)


def _upper(value: Value) -> str:
    return text_of(value).translate(_UPPER)


_PATTERN: Final = re.compile(r"\^?(?:[\w \-/:,=]|\\[.\-/$^]|\.\*?)*\$?", re.ASCII)


def is_supported_pattern(pattern: str) -> bool:
    """Return whether `matches` supports a pattern: one of characters, `.`, `.*`, `^` and `$`."""
    return _PATTERN.fullmatch(pattern) is not None


def matches(text: str, pattern: str) -> bool:
    """Return whether a text contains a simple pattern. Raises SelectorEvaluationError.

    The pieces between `.*` are searched one after the other, each at its first position after the one before, so that the time
    is linear in the text's length for every pattern.
    """
    if not is_supported_pattern(pattern):
        raise SelectorEvaluationError(f"pattern {pattern!r} is not supported")
    starts, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    pieces = pattern[starts : len(pattern) - ends].split(".*")
    pieces = ["" for _ in range(not starts)] + pieces + ["" for _ in range(not ends)]
    position = 0
    for index, piece in enumerate(pieces):
        after = _after(text, piece, position, first=index == 0, last=index == len(pieces) - 1 and ends)
        if after is None:
            return False
        position = after
    return True


def _after(text: str, piece: str, position: int, *, first: bool, last: bool) -> int | None:
    """Return where a piece ends: the first piece must begin the text, the last one must end it; None without a match."""
    expected = re.compile(piece)
    if last and not first:
        length = len(piece) - piece.count("\\")
        position = max(position, len(text) - length)
    if last:
        match = expected.fullmatch(text, position)
    else:
        match = expected.match(text) if first else expected.search(text, position)
    return match.end() if match is not None else None


METHODS: Final[Mapping[tuple[str, int], Callable[..., Value]]] = {
    ("compareTo", 1): lambda a, b: _order(_measure(a), b),
    ("isGreaterThan", 1): lambda a, b: _order(_measure(a), b) > 0,
    ("isLessThan", 1): lambda a, b: _order(_measure(a), b) < 0,
    ("major", 0): _version_part(0),
    ("minor", 0): _version_part(1),
    ("patch", 0): _version_part(2),
    ("size", 0): _size,
    ("lowerAscii", 0): _lower,
    ("upperAscii", 0): _upper,
    ("startsWith", 1): lambda text, part: text_of(text).startswith(text_of(part)),
    ("endsWith", 1): lambda text, part: text_of(text).endswith(text_of(part)),
    ("contains", 1): lambda text, part: text_of(part) in text_of(text),
    ("matches", 1): lambda text, pattern: matches(text_of(text), text_of(pattern)),
}
"""Functions by name and number of arguments; the receiver is the first argument."""


class DeviceFacts(Struct, frozen=True, kw_only=True, eq=False):
    """A device as selectors see it: its attributes and capacity by domain and name; and its attributes as published."""

    driver: str
    attributes: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    capacity: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    allow_multiple_allocations: bool = False
    published: Mapping[str, DeviceAttribute] = field(default_factory=dict)

    @classmethod
    def of(cls, driver: str, device: Device) -> DeviceFacts:
        """Return the facts of a published device; names without a domain are in the driver's. Raises InvalidQuantityError."""
        values = {name: _attribute_value(found) for name, found in device.attributes.items()}
        sizes = {name: QuantityValue(quantity.parse(found.value).nano) for name, found in device.capacity.items()}
        return cls(
            driver=driver,
            attributes=_by_domain(driver, {name: value for name, value in values.items() if value is not None}),
            capacity=_by_domain(driver, sizes),
            allow_multiple_allocations=device.allow_multiple_allocations,
            published=device.attributes,
        )

    def attribute(self, name: str) -> DeviceAttribute | None:
        """Return an attribute as it is published, by its full name (`domain/name`); None if the device lacks it.

        Constraints between devices compare these: to them, versions are texts.
        """
        domain, _, last = name.rpartition("/")
        found = self.published.get(name)
        if found is None and domain == self.driver:
            found = self.published.get(last)
        return found if found != _NO_VALUE else None


_NO_VALUE: Final = DeviceAttribute()


def _attribute_value(found: DeviceAttribute) -> Value | None:
    """Return an attribute's value; None if it has none, or an invalid version."""
    if found.version is None:
        return next((value for value in (found.string, found.int_, found.bool_) if value is not None), None)
    try:
        return version(found.version)
    except SelectorEvaluationError:
        return None


def _by_domain(driver: str, values: Mapping[str, Value]) -> dict[str, dict[str, Value]]:
    found: dict[str, dict[str, Value]] = {}
    for full, value in values.items():
        domain, _, name = full.rpartition("/")
        found.setdefault(domain or driver, {})[name] = value
    return found


_Function = Callable[[DeviceFacts], Value]


class ParsedSelector(Struct, frozen=True, eq=False):
    """A parsed selector."""

    text: str
    _value: _Function

    def selects(self, device: DeviceFacts) -> bool:
        """Return whether it selects the device. Raises SelectorEvaluationError."""
        return boolean(self._value(device))


@lru_cache(maxsize=1024)
def parse_selector(text: str) -> ParsedSelector:
    """Return the parsed selector. Raises InvalidSelectorError."""
    if len(text) > MAX_LENGTH:
        raise InvalidSelectorError(f"a selector of {len(text)} characters is too long, {MAX_LENGTH} are allowed")
    return ParsedSelector(text, _SelectorParser(text).parse())


class _Constant(Struct, frozen=True, eq=False):
    """A function that has the same value for every device."""

    value: Value

    def __call__(self, device: DeviceFacts) -> Value:
        return self.value


class _SelectorParser:
    """A recursive-descent parser, from the loosest operators to the tightest."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*self._split(), ("end", "", len(text))]
        self._next = 0
        self._depth = 0

    def _split(self) -> list[tuple[str, str, int]]:
        tokens, position = [], 0
        while position < len(self._text):
            match = _TOKEN.match(self._text, position)
            if match is None:
                raise self._error_at(position)
            if match.lastgroup is not None:
                tokens.append((match.lastgroup, match[0], position))
            position = match.end()
        return tokens

    def _error_at(self, position: int, why: str = "") -> InvalidSelectorError:
        rest = self._text[position : position + 20]
        reason = why or (f"{rest!r} is not supported there" if rest else "it is incomplete")
        shown = self._text if len(self._text) <= _SHOWN else f"{self._text[:_SHOWN]}…"
        return InvalidSelectorError(f"selector {shown!r} is invalid at character {position + 1}: {reason}")

    def _error(self, why: str = "", *, back: int = 0) -> InvalidSelectorError:
        return self._error_at(self._tokens[self._next - back][2], why)

    def _accept(self, *texts: str) -> str:
        """Take the next token and return its text if it is one of these; return an empty text otherwise."""
        kind, text, _ = self._tokens[self._next]
        if kind in {"text", "number", "end"} or text not in texts:
            return ""
        self._next += 1
        return text

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise self._error()

    def _expect_kind(self, kind: str) -> str:
        """Take the next token, which must be of this kind, and return its text."""
        found, text, _ = self._tokens[self._next]
        if found != kind:
            raise self._error()
        self._next += 1
        return text

    def parse(self) -> _Function:
        """Return the text as one expression."""
        found = self._expression()
        self._expect_kind("end")
        return found

    def _expression(self) -> _Function:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error("it is nested too deeply")
        found = self._disjunction()
        if self._accept("?"):
            chosen = self._expression()
            self._expect(":")
            found = _conditional(found, chosen, self._expression())
        self._depth -= 1
        return found

    def _disjunction(self) -> _Function:
        parts = [self._conjunction()]
        while self._accept("||"):
            parts.append(self._conjunction())
        return _junction(parts, decisive=True) if len(parts) > 1 else parts[0]

    def _conjunction(self) -> _Function:
        parts = [self._relation()]
        while self._accept("&&"):
            parts.append(self._relation())
        return _junction(parts, decisive=False) if len(parts) > 1 else parts[0]

    def _relation(self) -> _Function:
        left = self._unary()
        sign = self._accept(*RELATIONS)
        if not sign:
            return left
        relation, right = RELATIONS[sign], self._unary()
        return lambda device: relation(left(device), right(device))

    def _unary(self) -> _Function:
        negations = 0
        while self._accept("!"):
            negations += 1
        if negations:
            inner, odd = self._member(), negations % 2 == 1
            return lambda device: boolean(inner(device)) is not odd
        if self._accept("-"):
            return _Constant(-int(self._expect_kind("number")))
        return self._member()

    def _member(self) -> _Function:
        found = self._primary()
        for _ in range(_MAX_DEPTH):
            sign = self._accept(".", "[")
            if not sign:
                return found
            if sign == "[":
                found = _element(found, self._expression())
                self._expect("]")
                continue
            name = self._expect_kind("name")
            found = self._method(found, name) if self._accept("(") else _element(found, _Constant(name))
        raise self._error("too much follows one value")

    def _method(self, subject: _Function, name: str) -> _Function:
        arguments = self._list(")")
        method = METHODS.get((name, len(arguments)))
        if method is None:
            raise self._error(f"{name}() with {len(arguments)} arguments is not a supported function", back=1)
        pattern = arguments[0] if name == "matches" else None
        if isinstance(pattern, _Constant) and not is_supported_pattern(str(pattern.value)):
            raise self._error(f"pattern {pattern.value!r} is not supported", back=1)
        return lambda device: method(subject(device), *(argument(device) for argument in arguments))

    def _list(self, end: str) -> list[_Function]:
        found: list[_Function] = []
        while not self._accept(end):
            if found:
                self._expect(",")
            found.append(self._expression())
        return found

    def _primary(self) -> _Function:
        kind, text, _ = self._tokens[self._next]
        self._next += kind != "end"
        if kind == "text":
            return _Constant(_ESCAPE.sub(r"\1", text[1:-1]))
        if kind == "number":
            return _Constant(int(text))
        if kind == "name":
            return self._identifier(text)
        if text == "(":
            inner = self._expression()
            self._expect(")")
            return inner
        if text == "[":
            items = self._list("]")
            return lambda device: tuple(item(device) for item in items)
        raise self._error(back=int(kind != "end"))

    def _identifier(self, name: str) -> _Function:
        if name in {"true", "false"}:
            return _Constant(name == "true")
        if name == "device":
            self._expect(".")
            return self._field(self._expect_kind("name"))
        if name == "has" and self._accept("("):
            inner = self._member()
            self._expect(")")
            return _presence(inner)
        if name in CONVERSIONS and self._accept("("):
            return self._conversion(name)
        raise self._error(f"{name} is not a supported name", back=1)

    def _conversion(self, name: str) -> _Function:
        conversion, argument = CONVERSIONS[name], self._expression()
        self._expect(")")
        if not isinstance(argument, _Constant):
            return lambda device: conversion(text_of(argument(device)))
        try:
            return _Constant(conversion(text_of(argument.value)))
        except SelectorEvaluationError as error:
            raise self._error(str(error), back=1) from error

    def _field(self, name: str) -> _Function:
        if name not in _FIELDS:
            raise self._error(f"device.{name} does not exist", back=1)
        return _FIELDS[name]


class _Domains(dict[str, Value]):
    """Domains; one that the device lacks is empty."""

    def __missing__(self, key: str) -> Value:
        return {}


_FIELDS: Final[Mapping[str, _Function]] = {
    "driver": lambda device: device.driver,
    "attributes": lambda device: _Domains(device.attributes),
    "capacity": lambda device: _Domains(device.capacity),
    "allowMultipleAllocations": lambda device: device.allow_multiple_allocations,
}


def _element(subject: _Function, key: _Function) -> _Function:
    def found(device: DeviceFacts) -> Value:
        container, name = subject(device), text_of(key(device))
        if not isinstance(container, Mapping):
            raise SelectorEvaluationError(f"there is no {name} in it")
        try:
            return container[name]
        except KeyError:
            raise SelectorEvaluationError(f"no such key: {name}") from None

    return found


def _presence(inner: _Function) -> _Function:
    def found(device: DeviceFacts) -> bool:
        try:
            inner(device)
        except SelectorEvaluationError:
            return False
        return True

    return found


def _conditional(condition: _Function, chosen: _Function, other: _Function) -> _Function:
    return lambda device: chosen(device) if boolean(condition(device)) else other(device)


def _junction(parts: Sequence[_Function], *, decisive: bool) -> _Function:
    """Return `||` (True decides) or `&&` (False decides); an error counts only if no part decides."""

    def found(device: DeviceFacts) -> bool:
        verdicts = [_verdict(part, device) for part in parts]
        if decisive in verdicts:
            return decisive
        if None in verdicts:
            raise SelectorEvaluationError("a part of it has no value")
        return not decisive

    return found


def _verdict(part: _Function, device: DeviceFacts) -> bool | None:
    try:
        return boolean(part(device))
    except SelectorEvaluationError:
        return None
