"""Evaluates expressions of Terraform's language, as far as infra/huawei uses it; anything else is an error that quotes it.

Restates: Terraform language documentation, "Expressions", "Function calls".
"""

from __future__ import annotations

import base64
import hashlib
import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from lark import Token, Tree

from journeyman.errors import ConfigurationError

Scope = Mapping[str, Any]
"""The values of names, such as `var` and `local`."""
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "+": operator.add,
    "-": operator.sub,
    "&&": lambda left, right: left and right,
    "||": lambda left, right: left or right,
}
_LITERALS: Final = {"true": True, "false": False, "null": None}
_HTML: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
_FAILURES: Final = (KeyError, IndexError, TypeError, AttributeError, ValueError)


def json_text(value: Any) -> str:
    """Return the JSON that Terraform's `jsonencode` makes: with sorted keys and without spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).translate(_HTML)


def parts_of(tree: Any) -> list[Any]:
    """Return the children of a node of the syntax tree without comments and line ends."""
    return [part for part in tree.children if not (isinstance(part, Tree) and part.data == "new_line_or_comment")]


def trees_of(tree: Any) -> list[Any]:
    """Return the children of a node of the syntax tree without comments, line ends and signs."""
    return [part for part in parts_of(tree) if isinstance(part, Tree)]


def name_of(identifier: Any) -> str:
    """Return the name that an identifier is."""
    return str(identifier.children[0])


def source_of(tree: Any) -> str:
    """Return the text of an expression, without its spaces and comments."""
    tokens: Iterator[Token] = tree.scan_values(lambda _: True)
    return "".join(text for token in tokens if (text := str(token).strip()) and not text.startswith("#"))


class ExpressionEvaluator:
    """Evaluates expressions.

    Args:
        read_file: Returns the content of a file that an expression reads.
    """

    def __init__(self, read_file: Callable[[str], bytes]) -> None:
        self._functions: Mapping[str, Callable[..., Any]] = {
            **_FUNCTIONS,
            "filebase64": lambda path: base64.b64encode(read_file(path)).decode(),
            "filesha256": lambda path: hashlib.sha256(read_file(path)).hexdigest(),
        }

    def value(self, expression: Any, scope: Scope, file: str) -> Any:
        """Return the value of an expression. Raises ConfigurationError if it is not understood, or fails."""
        try:
            return self._value(expression, scope)
        except _FAILURES as error:
            raise ConfigurationError(
                f"{file}: {source_of(expression)} cannot be evaluated: {error!r}",
                to_do="correct it, or add what it uses to ExpressionEvaluator",
            ) from error

    def _value(self, tree: Any, scope: Scope) -> Any:
        evaluate: Callable[[Any, Scope], Any] = getattr(self, f"_{tree.data}")
        return evaluate(tree, scope)

    def _expr_term(self, tree: Any, scope: Scope) -> Any:
        return self._value(trees_of(tree)[0], scope)

    def _identifier(self, tree: Any, scope: Scope) -> Any:
        return scope[name_of(tree)]

    def _literal_value(self, tree: Any, _scope: Scope) -> Any:
        return _LITERALS[name_of(tree)]

    def _int_lit(self, tree: Any, _scope: Scope) -> int:
        return int(name_of(tree))

    def _string(self, tree: Any, scope: Scope) -> Any:
        pieces = [part.children[0] for part in trees_of(tree)]
        values = [self._piece(piece, scope) for piece in pieces]
        is_expression = len(pieces) == 1 and isinstance(pieces[0], Tree)
        return values[0] if is_expression else "".join(map(_text, values))

    def _piece(self, piece: Any, scope: Scope) -> Any:
        if isinstance(piece, Tree):
            return self._value(trees_of(piece)[0], scope)
        return json.loads(f'"{piece}"').replace("$${", "${")

    def _tuple(self, tree: Any, scope: Scope) -> list[Any]:
        return [self._value(part, scope) for part in trees_of(tree)]

    def _object(self, tree: Any, scope: Scope) -> dict[str, Any]:
        found = {}
        for element in trees_of(tree):
            key = parts_of(element)[0].children[0].children[0]  # an identifier stands for its own name
            name = name_of(key) if key.data == "identifier" else self._value(key, scope)
            found[name] = self._value(parts_of(element)[-1], scope)
        return found

    def _get_attr_expr_term(self, tree: Any, scope: Scope) -> Any:
        of, attribute = trees_of(tree)
        return self._value(of, scope)[name_of(trees_of(attribute)[0])]

    def _index_expr_term(self, tree: Any, scope: Scope) -> Any:
        of, index = trees_of(tree)
        return self._value(of, scope)[self._value(trees_of(index)[0], scope)]

    def _full_splat_expr_term(self, tree: Any, scope: Scope) -> list[Any]:
        of, splat = trees_of(tree)
        values = self._value(of, scope)
        for attribute in trees_of(splat):
            values = [value[name_of(trees_of(attribute)[0])] for value in values]
        return list(values)

    def _conditional(self, tree: Any, scope: Scope) -> Any:
        condition, yes, no = trees_of(tree)
        return self._value(yes if self._value(condition, scope) else no, scope)

    def _binary_op(self, tree: Any, scope: Scope) -> Any:
        left, term = trees_of(tree)
        sign, right = trees_of(term)
        return _OPERATORS[name_of(sign)](self._value(left, scope), self._value(right, scope))

    def _for_object_expr(self, tree: Any, scope: Scope) -> dict[str, Any]:
        intro, key, value, *condition = trees_of(tree)
        return {self._value(key, inner): self._value(value, inner) for inner in self._loop(intro, condition, scope)}

    def _for_tuple_expr(self, tree: Any, scope: Scope) -> list[Any]:
        intro, value, *condition = trees_of(tree)
        return [self._value(value, inner) for inner in self._loop(intro, condition, scope)]

    def _loop(self, intro: Any, condition: list[Any], scope: Scope) -> Iterator[Scope]:
        *names, source = trees_of(intro)
        values = self._value(source, scope)
        for key, value in values.items() if isinstance(values, Mapping) else enumerate(values):
            own = (value,) if len(names) == 1 else (key, value)
            inner = {**scope, **dict(zip(map(name_of, names), own, strict=True))}
            if all(self._value(trees_of(each)[0], inner) for each in condition):
                yield inner

    def _function_call(self, tree: Any, scope: Scope) -> Any:
        name, *arguments = trees_of(tree)
        expressions = [part for each in arguments for part in trees_of(each)]
        if name_of(name) == "can":
            return self._can(expressions[0], scope)
        return self._functions[name_of(name)](*(self._value(expression, scope) for expression in expressions))

    def _can(self, expression: Any, scope: Scope) -> bool:
        try:
            self._value(expression, scope)
        except ValueError:
            return False
        return True


def _text(value: Any) -> str:
    if value is None:
        raise ValueError("a text has a part that is null")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _matched(pattern: str, text: str) -> str:
    if (found := re.search(pattern, text)) is None:
        raise ValueError(f"{text!r} does not match {pattern}")
    return found[0]


_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "concat": lambda *lists: [value for each in lists for value in each],
    "contains": lambda values, value: value in values,
    "jsonencode": json_text,
    "length": len,
    "merge": lambda *maps: {name: value for each in maps for name, value in each.items()},
    "one": lambda values: values[0] if values else None,
    "regex": _matched,
    "replace": lambda text, old, new: text.replace(old, new),
    "substr": lambda text, start, length: text[start : start + length],
    "toset": lambda values: {value: value for value in values},  # each.key and each.value are the same
}
