"""Checks the shape of a JSON body: known fields of the right types, and the required ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from journeyman_simulator.huawei_account.rest_errors import invalid_node

_NAMES = {str: "text", int: "whole number", bool: "true or false", dict: "object", list: "list"}


class Required(Struct, frozen=True):
    """A field that the body must have."""

    shape: Any


class ListOf(Struct, frozen=True):
    """A list, each item of which has a shape."""

    shape: Any
    most: int = 1000


class TextMap(Struct, frozen=True):
    """An object whose values are texts."""


Shape = Any
"""A type (str, int, bool), a TextMap, a ListOf, or a mapping of fields to shapes, of which some are Required."""


def check_shape(value: Any, shape: Shape, where: str) -> None:
    """Raise ServiceError if a value does not have a shape; `where` names the value."""
    if isinstance(shape, type):
        if not isinstance(value, shape) or (shape is int and isinstance(value, bool)):
            raise invalid_node(f"{where} must be a {_NAMES[shape]}, not {value!r}")
    elif isinstance(shape, ListOf):
        _check_list(value, shape, where)
    elif isinstance(shape, TextMap):
        check_shape(value, dict, where)
        for key, text in value.items():
            check_shape(text, str, f"{where}[{key}]")
    else:
        _check_object(value, shape, where)


def _check_list(value: Any, shape: ListOf, where: str) -> None:
    check_shape(value, list, where)
    if len(value) > shape.most:
        raise invalid_node(f"{where} has {len(value)} items; at most {shape.most} are allowed")
    for number, item in enumerate(value):
        check_shape(item, shape.shape, f"{where}[{number}]")


def _check_object(value: Any, shape: Mapping[str, Any], where: str) -> None:
    check_shape(value, dict, where)
    for name, field in shape.items():
        required, inner = (True, field.shape) if isinstance(field, Required) else (False, field)
        path = f"{where}.{name}" if where else name
        if name in value:
            check_shape(value[name], inner, path)
        elif required:
            raise invalid_node(f"{path} is required")
    if unknown := sorted(set(value) - set(shape)):
        raise invalid_node(f"unknown field {where}.{unknown[0]}".replace(" .", " "))
