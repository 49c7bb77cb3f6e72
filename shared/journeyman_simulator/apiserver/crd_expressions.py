"""The validation rules of CustomResourceDefinitions: the subset of CEL (Common Expression Language) that they use.

A rule is parsed once into a function of its variables (`self`, `oldSelf`, and those of enclosing macros):

    ==  !=  <  <=  >  >=  in  &&  ||  !  + - on numbers and texts  c ? a : b  literals, lists, x.y, x[y], has(x.y)
    all  exists  exists_one  filter  map  size  matches  find  startsWith  endsWith  contains  indexOf  split  duration

The parser refuses everything else. Restates: the CEL specification; k8s.io/apiserver pkg/cel/library/regex.go.
Differs: regular expressions are Python's, which agree with RE2 on all that the generated definitions use; there is no cost
limit. `core.api.device_selectors` has the subset of CEL for devices, with its own values and limits.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final

from journeyman.core.api.duration import parse_duration
from journeyman.errors import ConfigurationError

Scope = Mapping[str, Any]
Rule = Callable[[Scope], Any]
"""The value of an expression, given its variables. Raises EvaluationError."""

_TOKEN: Final = re.compile(
    r"""\s+|(?P<text>r?"(?:[^"\\\n]|\\.)*"|r?'(?:[^'\\\n]|\\.)*')|(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z_]\w*)
    |(?P<sign>&&|\|\||[=!<>]=|[-()\[\].,!<>?:+])""",
    re.ASCII | re.VERBOSE,
)


class UnreadableRuleError(Exception):
    """A rule that is malformed, or uses CEL that this parser does not support."""


class RuleEvaluationError(Exception):
    """A rule without a value for this object: a field is missing, or types do not match."""


@lru_cache(maxsize=1024)
def parse_rule(text: str) -> Rule:
    """Parse a rule into a function. Raises UnreadableRuleError."""
    return _RuleParser(text).whole()


class _RuleParser:
    """A recursive-descent parser over the tokens, loosest operators first."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*self._split(), ("end", "")]
        self._next = 0

    def _split(self) -> list[tuple[str, str]]:
        tokens, place = [], 0
        while place < len(self._text):
            match = _TOKEN.match(self._text, place)
            if match is None:
                raise UnreadableRuleError(f"{self._text!r}: {self._text[place:][:20]!r} is not understood")
            if match.lastgroup is not None:
                tokens.append((match.lastgroup, match[0]))
            place = match.end()
        return tokens

    def _take(self, *wanted: str) -> str:
        """Take the next token if it is one of these, and return its text."""
        kind, text = self._tokens[self._next]
        if kind in {"text", "end"} or text not in wanted:
            return ""
        self._next += 1
        return text

    def _demand(self, wanted: str) -> None:
        if not self._take(wanted):
            raise UnreadableRuleError(f"{self._text!r}: {wanted!r} is missing before {self._tokens[self._next][1]!r}")

    def _name(self) -> str:
        kind, text = self._tokens[self._next]
        if kind != "name":
            raise UnreadableRuleError(f"{self._text!r}: {text!r} is no name")
        self._next += 1
        return text

    def whole(self) -> Rule:
        """Parse the whole text as one expression."""
        found = self._choice()
        if self._tokens[self._next][0] != "end":
            raise UnreadableRuleError(f"{self._text!r}: {self._tokens[self._next][1]!r} is not understood there")
        return found

    def _choice(self) -> Rule:
        found = self._either()
        if not self._take("?"):
            return found
        chosen = self._choice()
        self._demand(":")
        other = self._choice()
        return lambda scope: chosen(scope) if _truth(found(scope)) else other(scope)

    def _either(self) -> Rule:
        parts = [self._both()]
        while self._take("||"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else lambda scope: _decided(parts, scope, decisive=True)

    def _both(self) -> Rule:
        parts = [self._relation()]
        while self._take("&&"):
            parts.append(self._relation())
        return parts[0] if len(parts) == 1 else lambda scope: _decided(parts, scope, decisive=False)

    def _relation(self) -> Rule:
        left = self._sum()
        sign = self._take(*_RELATIONS)
        if not sign:
            return left
        relation, right = _RELATIONS[sign], self._sum()
        return lambda scope: relation(left(scope), right(scope))

    def _sum(self) -> Rule:
        found = self._signed()
        while sign := self._take("+", "-"):
            found = _added(found, self._signed(), negative=sign == "-")
        return found

    def _signed(self) -> Rule:
        if self._take("!"):
            inner = self._signed()
            return lambda scope: not _truth(inner(scope))
        if self._take("-"):
            number = self._signed()
            return lambda scope: -number(scope)
        return self._member()[0]

    def _member(self) -> tuple[Rule, Rule]:
        """Parse a value and its selectors; also return whether its last field exists, for `has`."""
        found = self._primary()
        present: Rule = _missing_field
        while sign := self._take(".", "["):
            if sign == "[":
                found, present = _element(found, self._choice()), _missing_field
                self._demand("]")
                continue
            name = self._name()
            if self._take("("):
                found, present = self._called(found, name), _missing_field
            else:
                found, present = _field(found, name)
        return found, present

    def _called(self, subject: Rule, name: str) -> Rule:
        if name in _MACROS:
            variable = self._name()
            self._demand(",")
            body, macro = self._choice(), _MACROS[name]
            self._demand(")")
            return lambda scope: macro(_items(subject(scope)), lambda item: body({**scope, variable: item}))
        if name not in _METHODS:
            raise UnreadableRuleError(f"{self._text!r}: {name}() is not among the functions understood")
        method, arguments = _METHODS[name], self._list(")")
        return lambda scope: _applied(method, subject(scope), *(argument(scope) for argument in arguments))

    def _list(self, end: str) -> list[Rule]:
        found: list[Rule] = []
        while not self._take(end):
            if found:
                self._demand(",")
            found.append(self._choice())
        return found

    def _primary(self) -> Rule:
        kind, text = self._tokens[self._next]
        if kind in {"text", "number"}:
            self._next += 1
            value = literal_eval(text)
            return lambda _: value
        if self._take("("):
            inner = self._choice()
            self._demand(")")
            return inner
        if self._take("["):
            items = self._list("]")
            return lambda scope: [item(scope) for item in items]
        return self._named(self._name())

    def _named(self, name: str) -> Rule:
        if name in _CONSTANTS:
            return lambda _: _CONSTANTS[name]
        if not self._take("("):
            return lambda scope: _variable(scope, name)
        if name == "has":
            present = self._member()[1]
            self._demand(")")
            return present
        if name in _FUNCTIONS:
            function, argument = _FUNCTIONS[name], self._choice()
            self._demand(")")
            return lambda scope: _applied(function, argument(scope))
        raise UnreadableRuleError(f"{self._text!r}: {name}() is not among the functions understood")


def _missing_field(_: Scope) -> bool:
    raise RuleEvaluationError("has() needs a field")


def _variable(scope: Scope, name: str) -> Any:
    if name not in scope:
        raise RuleEvaluationError(f"undeclared reference to '{name}'")
    return scope[name]


def _field(subject: Rule, name: str) -> tuple[Rule, Rule]:
    def found(scope: Scope) -> Any:
        value = subject(scope)
        if not isinstance(value, Mapping) or name not in value:
            raise RuleEvaluationError(f"no such key: {name}")
        return value[name]

    def present(scope: Scope) -> bool:
        value = subject(scope)
        return isinstance(value, Mapping) and name in value

    return found, present


def _element(subject: Rule, key: Rule) -> Rule:
    def found(scope: Scope) -> Any:
        try:
            return subject(scope)[key(scope)]
        except (KeyError, IndexError, TypeError) as error:
            raise RuleEvaluationError(f"no such key: {error}") from error

    return found


def _added(left: Rule, right: Rule, *, negative: bool) -> Rule:
    def found(scope: Scope) -> Any:
        try:
            return left(scope) - right(scope) if negative else left(scope) + right(scope)
        except TypeError as error:
            raise RuleEvaluationError("no such overload") from error

    return found


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise RuleEvaluationError("no such overload")
    return value


def _decided(tests: Iterable[Callable[[Any], Any]], subject: Any, *, decisive: bool) -> bool:
    """Evaluate `||` (True decides) or `&&` (False decides); an error counts only if no operand decides."""
    failure: RuleEvaluationError | None = None
    for test in tests:
        try:
            if _truth(test(subject)) is decisive:
                return decisive
        except RuleEvaluationError as error:  # noqa: PERF203 - each part may fail by itself
            failure = error
    if failure is not None:
        raise failure
    return not decisive


def _items(value: Any) -> list[Any]:
    """Return what a macro iterates over: a list's items, a map's keys."""
    if not isinstance(value, (list, tuple, Mapping)):
        raise RuleEvaluationError("no such overload")
    return list(value)


def _applied(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except (TypeError, AttributeError) as error:
        raise RuleEvaluationError("no such overload") from error


def _duration(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ConfigurationError as error:
        raise RuleEvaluationError("type conversion error from 'string' to 'google.protobuf.Duration'") from error


def _found(text: str, pattern: str) -> str:
    match = re.search(pattern, text)
    return match[0] if match else ""


def _same(left: Any, right: Any) -> bool:
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


_CONSTANTS: Final[Mapping[str, Any]] = {"true": True, "false": False, "null": None}
_RELATIONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "==": _same,
    "!=": lambda left, right: not _same(left, right),
    "<": lambda left, right: _applied(lambda: left < right),
    "<=": lambda left, right: _applied(lambda: left <= right),
    ">": lambda left, right: _applied(lambda: left > right),
    ">=": lambda left, right: _applied(lambda: left >= right),
    "in": lambda item, container: _applied(lambda: item in container),
}
_Test = Callable[[Any], Any]


def _about(item: Any) -> Callable[[_Test], Any]:
    return lambda test: test(item)


_MACROS: Final[Mapping[str, Callable[[list[Any], _Test], Any]]] = {
    "all": lambda items, test: _decided(map(_about, items), test, decisive=False),
    "exists": lambda items, test: _decided(map(_about, items), test, decisive=True),
    "exists_one": lambda items, test: sum(_truth(test(item)) for item in items) == 1,
    "filter": lambda items, test: [item for item in items if _truth(test(item))],
    "map": lambda items, test: [test(item) for item in items],
}
_METHODS: Final[Mapping[str, Callable[..., Any]]] = {
    "size": len,
    "matches": lambda text, pattern: re.search(pattern, text) is not None,
    "find": _found,
    "startsWith": lambda text, part: text.startswith(part),
    "endsWith": lambda text, part: text.endswith(part),
    "contains": lambda text, part: part in text,
    "indexOf": lambda text, part: text.find(part),
    "split": lambda text, separator: text.split(separator),
}
_FUNCTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {"size": len, "duration": _duration}
