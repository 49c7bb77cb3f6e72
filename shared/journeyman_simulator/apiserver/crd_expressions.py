"""Evaluates the validation rules of CustomResourceDefinitions, in the subset of CEL that they use.

The parser turns a rule into a function of its variables (`self`, `oldSelf`, and those of enclosing macros):

    ==  !=  <  <=  >  >=  in  &&  ||  !  + - on numbers and texts  c ? a : b  literals, lists, x.y, x[y], has(x.y)
    all  exists  exists_one  filter  map  size  matches  find  startsWith  endsWith  contains  indexOf  split  duration  int

The parser rejects all other CEL. Restates: the CEL specification; k8s.io/apiserver pkg/cel/library/regex.go.
Differs: regular expressions are Python's, which equal RE2's for the patterns of the generated definitions; rules have no
cost limit. `core.api.device_selectors` has the subset of CEL for devices, with its own values and limits.
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
"""Returns the value of an expression, given its variables. Raises RuleEvaluationError."""

_TOKEN: Final = re.compile(
    r"""\s+|(?P<text>r?"(?:[^"\\\n]|\\.)*"|r?'(?:[^'\\\n]|\\.)*')|(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z_]\w*)
    |(?P<sign>&&|\|\||[=!<>]=|[-()\[\].,!<>?:+])""",
    re.ASCII | re.VERBOSE,
)


class UnreadableRuleError(Exception):
    """A rule is malformed, or uses CEL that the parser does not support."""


class RuleEvaluationError(Exception):
    """A rule has no value for an object: a field is missing, or types do not match."""


@lru_cache(maxsize=1024)
def parse_rule(text: str) -> Rule:
    """Parse a rule and return it as a function. Raises UnreadableRuleError."""
    return _RuleParser(text).parse()


class _RuleParser:
    """A recursive-descent parser, in order of increasing precedence of operators."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*self._split(), ("end", "")]
        self._next = 0

    def _split(self) -> list[tuple[str, str]]:
        tokens, position = [], 0
        while position < len(self._text):
            match = _TOKEN.match(self._text, position)
            if match is None:
                raise UnreadableRuleError(f"{self._text!r}: {self._text[position:][:20]!r} is not a token")
            if match.lastgroup is not None:
                tokens.append((match.lastgroup, match[0]))
            position = match.end()
        return tokens

    def _take(self, *wanted: str) -> str:
        """Consume the next token if it is one of these, and return its text; empty if it is another."""
        kind, text = self._tokens[self._next]
        if kind in {"text", "end"} or text not in wanted:
            return ""
        self._next += 1
        return text

    def _expect(self, wanted: str) -> None:
        if not self._take(wanted):
            raise UnreadableRuleError(f"{self._text!r}: {wanted!r} is missing before {self._tokens[self._next][1]!r}")

    def _name(self) -> str:
        kind, text = self._tokens[self._next]
        if kind != "name":
            raise UnreadableRuleError(f"{self._text!r}: {text!r} is not a name")
        self._next += 1
        return text

    def parse(self) -> Rule:
        """Parse the whole text as one expression."""
        found = self._conditional()
        if self._tokens[self._next][0] != "end":
            raise UnreadableRuleError(
                f"{self._text!r}: {self._tokens[self._next][1]!r} is not allowed after an expression"
            )
        return found

    def _conditional(self) -> Rule:
        found = self._or()
        if not self._take("?"):
            return found
        chosen = self._conditional()
        self._expect(":")
        other = self._conditional()
        return lambda scope: chosen(scope) if _as_boolean(found(scope)) else other(scope)

    def _or(self) -> Rule:
        parts = [self._and()]
        while self._take("||"):
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else lambda scope: _short_circuit(parts, scope, decisive=True)

    def _and(self) -> Rule:
        parts = [self._relation()]
        while self._take("&&"):
            parts.append(self._relation())
        return parts[0] if len(parts) == 1 else lambda scope: _short_circuit(parts, scope, decisive=False)

    def _relation(self) -> Rule:
        left = self._sum()
        sign = self._take(*_RELATIONS)
        if not sign:
            return left
        relation, right = _RELATIONS[sign], self._sum()
        return lambda scope: relation(left(scope), right(scope))

    def _sum(self) -> Rule:
        found = self._unary()
        while sign := self._take("+", "-"):
            found = _sum_of(found, self._unary(), negative=sign == "-")
        return found

    def _unary(self) -> Rule:
        if self._take("!"):
            inner = self._unary()
            return lambda scope: not _as_boolean(inner(scope))
        if self._take("-"):
            number = self._unary()
            return lambda scope: -number(scope)
        return self._member()[0]

    def _member(self) -> tuple[Rule, Rule]:
        """Parse a value with its selectors; return it, and a rule for whether its last field exists (for `has`)."""
        found = self._primary()
        present: Rule = _missing_field
        while sign := self._take(".", "["):
            if sign == "[":
                found, present = _element(found, self._conditional()), _missing_field
                self._expect("]")
                continue
            name = self._name()
            if self._take("("):
                found, present = self._method_call(found, name), _missing_field
            else:
                found, present = _field(found, name)
        return found, present

    def _method_call(self, subject: Rule, name: str) -> Rule:
        if name in _MACROS:
            variable = self._name()
            self._expect(",")
            body, macro = self._conditional(), _MACROS[name]
            self._expect(")")
            return lambda scope: macro(_items(subject(scope)), lambda item: body({**scope, variable: item}))
        if name not in _METHODS:
            raise UnreadableRuleError(f"{self._text!r}: {name}() is not a supported function")
        method, arguments = _METHODS[name], self._list(")")
        return lambda scope: _call(method, subject(scope), *(argument(scope) for argument in arguments))

    def _list(self, end: str) -> list[Rule]:
        found: list[Rule] = []
        while not self._take(end):
            if found:
                self._expect(",")
            found.append(self._conditional())
        return found

    def _primary(self) -> Rule:
        kind, text = self._tokens[self._next]
        if kind in {"text", "number"}:
            self._next += 1
            value = literal_eval(text)
            return lambda _: value
        if self._take("("):
            inner = self._conditional()
            self._expect(")")
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
            self._expect(")")
            return present
        if name in _FUNCTIONS:
            function, argument = _FUNCTIONS[name], self._conditional()
            self._expect(")")
            return lambda scope: _call(function, argument(scope))
        raise UnreadableRuleError(f"{self._text!r}: {name}() is not a supported function")


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


def _sum_of(left: Rule, right: Rule, *, negative: bool) -> Rule:
    def found(scope: Scope) -> Any:
        try:
            return left(scope) - right(scope) if negative else left(scope) + right(scope)
        except TypeError as error:
            raise RuleEvaluationError("no such overload") from error

    return found


def _as_boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise RuleEvaluationError("no such overload")
    return value


def _short_circuit(tests: Iterable[Callable[[Any], Any]], subject: Any, *, decisive: bool) -> bool:
    """Evaluate `||` (decided by True) or `&&` (decided by False). Raises an operand's error only if no operand decides."""
    failure: RuleEvaluationError | None = None
    for test in tests:
        try:
            if _as_boolean(test(subject)) is decisive:
                return decisive
        except RuleEvaluationError as error:  # noqa: PERF203 - each operand fails separately
            failure = error
    if failure is not None:
        raise failure
    return not decisive


def _items(value: Any) -> list[Any]:
    """Return the values over which a macro iterates: a list's items or a map's keys."""
    if not isinstance(value, (list, tuple, Mapping)):
        raise RuleEvaluationError("no such overload")
    return list(value)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except (TypeError, AttributeError) as error:
        raise RuleEvaluationError("no such overload") from error


def _duration(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ConfigurationError as error:
        raise RuleEvaluationError("type conversion error from 'string' to 'google.protobuf.Duration'") from error


def _int(text: str) -> int:
    """Return the integer of a text, as Go's `strconv.ParseInt` reads it."""
    if not re.fullmatch(r"[+-]?[0-9]{1,4000}", text, re.ASCII) or not -(2**63) <= (number := int(text)) < 2**63:
        raise RuleEvaluationError("type conversion error from 'string' to 'int'")
    return number


def _find(text: str, pattern: str) -> str:
    match = re.search(pattern, text)
    return match[0] if match else ""


def _equal(left: Any, right: Any) -> bool:
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


_CONSTANTS: Final[Mapping[str, Any]] = {"true": True, "false": False, "null": None}
_RELATIONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "==": _equal,
    "!=": lambda left, right: not _equal(left, right),
    "<": lambda left, right: _call(lambda: left < right),
    "<=": lambda left, right: _call(lambda: left <= right),
    ">": lambda left, right: _call(lambda: left > right),
    ">=": lambda left, right: _call(lambda: left >= right),
    "in": lambda item, container: _call(lambda: item in container),
}
_Test = Callable[[Any], Any]


def _with_item(item: Any) -> Callable[[_Test], Any]:
    return lambda test: test(item)


_MACROS: Final[Mapping[str, Callable[[list[Any], _Test], Any]]] = {
    "all": lambda items, test: _short_circuit(map(_with_item, items), test, decisive=False),
    "exists": lambda items, test: _short_circuit(map(_with_item, items), test, decisive=True),
    "exists_one": lambda items, test: sum(_as_boolean(test(item)) for item in items) == 1,
    "filter": lambda items, test: [item for item in items if _as_boolean(test(item))],
    "map": lambda items, test: [test(item) for item in items],
}
_METHODS: Final[Mapping[str, Callable[..., Any]]] = {
    "size": len,
    "matches": lambda text, pattern: re.search(pattern, text) is not None,
    "find": _find,
    "startsWith": lambda text, part: text.startswith(part),
    "endsWith": lambda text, part: text.endswith(part),
    "contains": lambda text, part: part in text,
    "indexOf": lambda text, part: text.find(part),
    "split": lambda text, separator: text.split(separator),
}
_FUNCTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {"size": len, "duration": _duration, "int": _int}
