"""Device selectors: the part of CEL (Common Expression Language) in which DeviceClasses and ResourceClaims are written.

An expression is read once into a function of a device. What is understood:

    device.driver, device.allowMultipleAllocations
    device.attributes["domain"].name, device.attributes["domain"]["name"]     string, integer, boolean, version
    device.capacity["domain"].name                                           quantity
    "name" in device.attributes["domain"], x in ["a", "b"], has(device.attributes["domain"].name)
    ==  !=  <  <=  >  >=  &&  ||  !  (…)  true  false  1  "…"  '…'  c ? a : b
    quantity("1Gi"), semver("1.2.3"), with compareTo, isGreaterThan, isLessThan; major, minor, patch of a version
    lowerAscii, upperAscii, startsWith, endsWith, contains, size, and matches with a pattern of characters, `.`,
    `.*`, `^` and `$`

Anything else is refused when it is read, with its place: whoever wrote it learns that, and nothing is guessed. An
attribute that a device lacks, and values that do not compare, are errors of evaluation: such a device is not selected.
`&&` and `||` absorb an error where the other side decides.

Restates: k8s.io/dynamic-resource-allocation cel/compile.go `DeviceMatches`; the CEL specification's logical operators.
Differs: macros over lists, `cel.bind`, arithmetic and regular expressions with repetitions or groups are refused (the
CEL libraries there are for Python bring native code or a command line, and know neither quantities nor versions).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct, field

from journeyman.core.api import quantity
from journeyman.core.api.cel_values import (
    MAKERS,
    METHODS,
    RELATIONS,
    Amount,
    EvaluationError,
    Value,
    boolean,
    text_of,
    understood_pattern,
    version,
)
from journeyman.core.api.dra import Device, DeviceAttribute
from journeyman.errors import ConfigurationError

MAX_LENGTH: Final = 10 * 1024  # k8s.io/api resource/v1 `CELSelectorExpressionMaxLength`
_MAX_DEPTH: Final = 32  # of what is nested, and of what follows one value (`.a.b.c`)
_SHOWN: Final = 200
_TOKEN: Final = re.compile(
    r"""\s+|(?P<number>0|[1-9][0-9]{0,17})(?![\w.])|(?P<name>[A-Za-z_]\w*)
    |(?P<text>"(?:[^"\\\n]|\\["'\\])*"|'(?:[^'\\\n]|\\["'\\])*')|(?P<sign>&&|\|\||[=!<>]=|[()\[\].,!<>?:-])""",
    re.ASCII | re.VERBOSE,
)
_ESCAPE: Final = re.compile(r"\\(.)")


class InvalidExpressionError(ConfigurationError):
    """An expression that cannot be read: malformed, or outside the part of CEL that is understood."""


class DeviceFacts(Struct, frozen=True, kw_only=True, eq=False):
    """What selectors see of a device: its attributes and capacity by domain and name."""

    driver: str
    attributes: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    capacity: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    allow_multiple_allocations: bool = False

    @classmethod
    def of(cls, driver: str, device: Device) -> DeviceFacts:
        """The facts of a published device; names without a domain are in the driver's. Raises InvalidQuantityError."""
        values = {name: _said(found) for name, found in device.attributes.items()}
        sizes = {name: Amount(quantity.parse(found.value).nano) for name, found in device.capacity.items()}
        return cls(
            driver=driver,
            attributes=_by_domain(driver, {name: value for name, value in values.items() if value is not None}),
            capacity=_by_domain(driver, sizes),
            allow_multiple_allocations=device.allow_multiple_allocations,
        )

    def attribute(self, name: str) -> Value | None:
        """The value of an attribute by its full name (`domain/name`), None if the device lacks it."""
        domain, _, last = name.rpartition("/")
        return self.attributes.get(domain or self.driver, {}).get(last)


def _said(found: DeviceAttribute) -> Value | None:
    """What an attribute says; None if it says nothing that can be read."""
    if found.version is None:
        return next((value for value in (found.string, found.int_, found.bool_) if value is not None), None)
    try:
        return version(found.version)
    except EvaluationError:
        return None


def _by_domain(driver: str, values: Mapping[str, Value]) -> dict[str, dict[str, Value]]:
    found: dict[str, dict[str, Value]] = {}
    for full, value in values.items():
        domain, _, name = full.rpartition("/")
        found.setdefault(domain or driver, {})[name] = value
    return found


_Function = Callable[[DeviceFacts], Value]


class Expression(Struct, frozen=True, eq=False):
    """A selector that has been read."""

    text: str
    _value: _Function

    def selects(self, device: DeviceFacts) -> bool:
        """Whether it selects the device. Raises EvaluationError."""
        return boolean(self._value(device))


@lru_cache(maxsize=1024)
def read(text: str) -> Expression:
    """An expression. Raises InvalidExpressionError."""
    if len(text) > MAX_LENGTH:
        raise InvalidExpressionError(f"a selector of {len(text)} characters is too long, {MAX_LENGTH} are allowed")
    return Expression(text, _Reader(text).whole())


class _Constant(Struct, frozen=True, eq=False):
    """A function that has the same value for every device."""

    value: Value

    def __call__(self, device: DeviceFacts) -> Value:
        return self.value


class _Reader:
    """Recursive descent over the tokens, loosest operators first."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*self._split(), ("end", "", len(text))]
        self._next = 0
        self._depth = 0

    def _split(self) -> list[tuple[str, str, int]]:
        tokens, place = [], 0
        while place < len(self._text):
            match = _TOKEN.match(self._text, place)
            if match is None:
                raise self._refused(place)
            if match.lastgroup is not None:
                tokens.append((match.lastgroup, match[0], place))
            place = match.end()
        return tokens

    def _refused(self, place: int, why: str = "") -> InvalidExpressionError:
        rest = self._text[place : place + 20]
        reason = why or (f"{rest!r} is not understood there" if rest else "it ends too soon")
        shown = self._text if len(self._text) <= _SHOWN else f"{self._text[:_SHOWN]}…"
        return InvalidExpressionError(f"selector {shown!r} cannot be read at character {place + 1}: {reason}")

    def _here(self, why: str = "", *, back: int = 0) -> InvalidExpressionError:
        return self._refused(self._tokens[self._next - back][2], why)

    def _take(self, *wanted: str) -> str:
        """The next token's text if it is one of these, else nothing is taken."""
        kind, text, _ = self._tokens[self._next]
        if kind in {"text", "number", "end"} or text not in wanted:
            return ""
        self._next += 1
        return text

    def _demand(self, wanted: str) -> None:
        if not self._take(wanted):
            raise self._here()

    def _any(self, kind: str) -> str:
        """The next token, which must be of this kind."""
        found, text, _ = self._tokens[self._next]
        if found != kind:
            raise self._here()
        self._next += 1
        return text

    def whole(self) -> _Function:
        """The whole text as one expression."""
        found = self._choice()
        self._any("end")
        return found

    def _choice(self) -> _Function:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._here("it is nested too deeply")
        found = self._either()
        if self._take("?"):
            chosen = self._choice()
            self._demand(":")
            found = _conditional(found, chosen, self._choice())
        self._depth -= 1
        return found

    def _either(self) -> _Function:
        parts = [self._both()]
        while self._take("||"):
            parts.append(self._both())
        return _junction(parts, decisive=True) if len(parts) > 1 else parts[0]

    def _both(self) -> _Function:
        parts = [self._relation()]
        while self._take("&&"):
            parts.append(self._relation())
        return _junction(parts, decisive=False) if len(parts) > 1 else parts[0]

    def _relation(self) -> _Function:
        left = self._signed()
        sign = self._take(*RELATIONS)
        if not sign:
            return left
        relation, right = RELATIONS[sign], self._signed()
        return lambda device: relation(left(device), right(device))

    def _signed(self) -> _Function:
        negations = 0
        while self._take("!"):
            negations += 1
        if negations:
            inner, odd = self._member(), negations % 2 == 1
            return lambda device: boolean(inner(device)) is not odd
        if self._take("-"):
            return _Constant(-int(self._any("number")))
        return self._member()

    def _member(self) -> _Function:
        found = self._primary()
        for _ in range(_MAX_DEPTH):
            sign = self._take(".", "[")
            if not sign:
                return found
            if sign == "[":
                found = _element(found, self._choice())
                self._demand("]")
                continue
            name = self._any("name")
            found = self._method(found, name) if self._take("(") else _element(found, _Constant(name))
        raise self._here("too much follows one value")

    def _method(self, subject: _Function, name: str) -> _Function:
        arguments = self._list(")")
        method = METHODS.get((name, len(arguments)))
        if method is None:
            raise self._here(f"{name}() with {len(arguments)} arguments is not among the functions understood", back=1)
        pattern = arguments[0] if name == "matches" else None
        if isinstance(pattern, _Constant) and not understood_pattern(str(pattern.value)):
            raise self._here(f"pattern {pattern.value!r} is not understood", back=1)
        return lambda device: method(subject(device), *(argument(device) for argument in arguments))

    def _list(self, end: str) -> list[_Function]:
        found: list[_Function] = []
        while not self._take(end):
            if found:
                self._demand(",")
            found.append(self._choice())
        return found

    def _primary(self) -> _Function:
        kind, text, _ = self._tokens[self._next]
        self._next += kind != "end"
        if kind == "text":
            return _Constant(_ESCAPE.sub(r"\1", text[1:-1]))
        if kind == "number":
            return _Constant(int(text))
        if kind == "name":
            return self._named(text)
        if text == "(":
            inner = self._choice()
            self._demand(")")
            return inner
        if text == "[":
            items = self._list("]")
            return lambda device: tuple(item(device) for item in items)
        raise self._here(back=int(kind != "end"))

    def _named(self, name: str) -> _Function:
        if name in {"true", "false"}:
            return _Constant(name == "true")
        if name == "device":
            self._demand(".")
            return self._field(self._any("name"))
        if name == "has" and self._take("("):
            inner = self._member()
            self._demand(")")
            return _presence(inner)
        if name in MAKERS and self._take("("):
            return self._made(name)
        raise self._here(f"{name} is not among the names understood", back=1)

    def _made(self, name: str) -> _Function:
        maker, argument = MAKERS[name], self._choice()
        self._demand(")")
        if not isinstance(argument, _Constant):
            return lambda device: maker(text_of(argument(device)))
        try:
            return _Constant(maker(text_of(argument.value)))
        except EvaluationError as error:
            raise self._here(str(error), back=1) from error

    def _field(self, name: str) -> _Function:
        if name not in _FIELDS:
            raise self._here(f"device.{name} does not exist", back=1)
        return _FIELDS[name]


class _Domains(dict[str, Value]):
    """Domains, of which one that the device lacks has nothing in it."""

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
        container, wanted = subject(device), text_of(key(device))
        if not isinstance(container, Mapping):
            raise EvaluationError(f"there is no {wanted} in it")
        try:
            return container[wanted]
        except KeyError:
            raise EvaluationError(f"no such key: {wanted}") from None

    return found


def _presence(inner: _Function) -> _Function:
    def found(device: DeviceFacts) -> bool:
        try:
            inner(device)
        except EvaluationError:
            return False
        return True

    return found


def _conditional(condition: _Function, chosen: _Function, other: _Function) -> _Function:
    return lambda device: chosen(device) if boolean(condition(device)) else other(device)


def _junction(parts: Sequence[_Function], *, decisive: bool) -> _Function:
    """`||` (True decides) or `&&` (False does): an error counts only if nobody decides."""

    def found(device: DeviceFacts) -> bool:
        verdicts = [_verdict(part, device) for part in parts]
        if decisive in verdicts:
            return decisive
        if None in verdicts:
            raise EvaluationError("a part of it has no value")
        return not decisive

    return found


def _verdict(part: _Function, device: DeviceFacts) -> bool | None:
    try:
        return boolean(part(device))
    except EvaluationError:
        return None
