"""Parses the label and field selectors of a request.

Restates: k8s.io/apimachinery `pkg/labels/selector.go` `Parse` and `pkg/fields/selector.go` `ParseSelector`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from journeyman.core.api.objects import LabelSelector, LabelSelectorRequirement
from journeyman_simulator.apiserver import api_errors
from journeyman_simulator.apiserver.object_metadata import label_value_problem

Predicate = Callable[[Mapping[str, Any]], bool]
"""Returns whether a selector selects an object, given as JSON."""

_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_SET = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^()]*)\)")
_EQUALITY = re.compile(rf"({_KEY})\s*(==|=|!=|>|<)\s*([^\s,()!=<>]*)")
_EXISTENCE = re.compile(rf"(!?)\s*({_KEY})")


def everything(_: Mapping[str, Any]) -> bool:
    """Select every object, as the empty selector does."""
    return True


def label_predicate(text: str) -> Predicate:
    """Return the predicate of a label selector such as `app=web,tier in (a, b),!legacy`. Raises a 400 if it is invalid."""
    if not text.strip():
        return everything
    requirements = [_requirement(part) for part in _split_outside_parentheses(text)]
    return lambda obj: all(holds(labels_of(obj)) for holds in requirements)


def labels_of(obj: Mapping[str, Any]) -> Mapping[str, str]:
    """Return `metadata.labels`; empty if it is missing."""
    return obj["metadata"].get("labels") or {}


def matches(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether a `LabelSelector` selects these labels. None selects nothing; an empty selector selects all."""
    if selector is None:
        return False
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        _expression_holds(expression, labels) for expression in selector.match_expressions
    )


def field_predicate(text: str, supported: frozenset[str]) -> Predicate:
    """Return the predicate of a field selector such as `spec.nodeName=,status.phase!=Failed`.

    A missing field has an empty value; booleans have the values `true` and `false`.
    Raises a 400 if the selector is invalid or has a field outside `supported`.
    """
    if not text.strip():
        return everything
    terms = [_field_term(part, supported) for part in re.split(r"(?<!\\),", text) if part]

    def selected(obj: Mapping[str, Any]) -> bool:
        return all((field_value(obj, path) == value) is wanted for path, value, wanted in terms)

    return selected


def field_value(obj: Mapping[str, Any], path: tuple[str, ...]) -> str:
    """Return the value of a field as text, which a field selector compares."""
    value: Any = obj
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _field_term(text: str, supported: frozenset[str]) -> tuple[tuple[str, ...], str, bool]:
    match = re.fullmatch(r"(.*?)(!=|==|=)(.*)", text, re.DOTALL)
    if match is None:
        raise api_errors.bad_request(f"invalid selector: '{text}'; can't understand '{text}'")
    field, operator, value = match.groups()
    if field not in supported:
        raise api_errors.bad_request(f"field label not supported: {field}")
    return tuple(field.split(".")), re.sub(r"\\([\\,=])", r"\1", value), operator != "!="


def _split_outside_parentheses(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    return [*parts, text[start:].strip()]


def _requirement(text: str) -> Callable[[Mapping[str, str]], bool]:
    if match := _SET.fullmatch(text):
        key, operator, listed = match.groups()
        values = tuple(value.strip() for value in listed.split(","))
        expression = LabelSelectorRequirement(key=key, operator="In" if operator == "in" else "NotIn", values=values)
    elif match := _EQUALITY.fullmatch(text):
        expression = _equality(text, *match.groups())
    elif match := _EXISTENCE.fullmatch(text):
        negated, key = match.groups()
        expression = LabelSelectorRequirement(key=key, operator="DoesNotExist" if negated else "Exists")
    else:
        raise api_errors.bad_request(_parse_error(text))
    return lambda labels: _expression_holds(expression, labels)


def _parse_error(text: str) -> str:
    """Return the server's message about the first unexpected word."""
    if match := re.match(rf"{_KEY}\s+(?:in|notin)\s+(\S+)", text):
        return f"unable to parse requirement: found '{match[1]}' expected: '('"
    if match := re.match(rf"{_KEY}\s*(?:==|=|!=|>|<)\s*\S+\s+(\S+)", text):
        return f"found '{match[1]}', expected: ',' or 'end of string'"
    return f"unable to parse requirement: {text!r}"


def _equality(text: str, key: str, operator: str, value: str) -> LabelSelectorRequirement:
    names = {"=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt"}
    if operator in {"<", ">"} and not value.isdecimal():
        why = "for 'Gt', 'Lt' operators, the value must be an integer"
        raise api_errors.bad_request(f'unable to parse requirement: values[0]: Invalid value: "{value}": {why}')
    if problem := label_value_problem(value):
        raise api_errors.bad_request(f"unable to parse requirement: values[0][{key}]: {problem}")
    return LabelSelectorRequirement(key=key, operator=names[operator], values=(value,))


def _expression_holds(expression: LabelSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(expression.key)
    if expression.operator == "In":
        return value in expression.values
    if expression.operator == "NotIn":
        return value not in expression.values
    if expression.operator == "Exists":
        return value is not None
    if expression.operator == "DoesNotExist":
        return value is None
    if value is None or not re.fullmatch(r"-?\d+", value):
        return False
    bound = int(expression.values[0])
    return int(value) > bound if expression.operator == "Gt" else int(value) < bound
