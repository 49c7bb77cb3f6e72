"""Flattens and checks the parameters of OpenAPI requests: names, types on the wire, ranges, and which ones are required.

RPC actions take flat text parameters: lists and objects are numbered and dotted (`Tag.1.Key`). A `Fields` value describes
an action's parameters; `Fields.parse` restores the nested form and returns typed values. ROA actions take JSON bodies,
which `Fields.check` reads.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

from journeyman_simulator.alibaba_account.openapi_errors import invalid_parameter, missing_parameter
from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError

_TREE: Final = dict  # a node of the nested form; its leaves are texts
_BOOLEANS: Final = {"True": True, "true": True, "False": False, "false": False}


def flatten(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return nested parameters in the flat form that the SDK sends: text by dotted name, without missing values.

    Restates: alibabacloud_tea_openapi 0.4.6, `Utils.query`, which writes booleans as `True` and `False`.
    """
    flat: dict[str, str] = {}
    for name, value in parameters.items():
        _flatten_value(name, value, flat)
    return flat


def _flatten_value(name: str, value: Any, flat: dict[str, str]) -> None:
    if isinstance(value, str):
        flat[name] = value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _flatten_value(f"{name}.{key}", inner, flat)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value, start=1):
            _flatten_value(f"{name}.{index}", inner, flat)
    elif isinstance(value, bytes):
        flat[name] = value.decode()
    elif value is not None:
        flat[name] = str(value)


class WireType(ABC):
    """The type of a parameter on the wire."""

    @abstractmethod
    def parse(self, name: str, given: Any) -> Any:
        """Return the value of a parameter in RPC style: text, or a tree of texts. Raises ServiceError."""

    def check(self, name: str, value: Any) -> Any:
        """Return the value of a JSON member in ROA style. Raises ServiceError if it has another type."""
        return self.parse(name, value)


class Text(WireType):
    """A text with a length, a set of values, or a pattern for the whole text."""

    def __init__(self, *choices: str, least: int = 0, most: int = 1_000_000, pattern: str = "") -> None:
        self._choices = choices
        self._least, self._most = least, most
        self._pattern = re.compile(pattern, re.DOTALL) if pattern else None

    def parse(self, name: str, given: Any) -> str:
        """See `WireType`."""
        if not isinstance(given, str):
            raise invalid_parameter(name, "must be a text")
        if self._choices and given not in self._choices:
            raise invalid_parameter(name, f"must be one of {', '.join(self._choices)}, not {given!r}")
        if not self._least <= len(given) <= self._most:
            raise invalid_parameter(name, f"must have {self._least} to {self._most} characters, not {len(given)}")
        if self._pattern and not self._pattern.fullmatch(given):
            raise invalid_parameter(name, f"is not valid: {given!r}")
        return given


class Integer(WireType):
    """A whole number, in decimal digits."""

    def __init__(self, low: int = 0, high: int = 2**31) -> None:
        self._low, self._high = low, high

    def parse(self, name: str, given: Any) -> int:
        """See `WireType`."""
        if not isinstance(given, str) or not re.fullmatch(r"-?\d+", given):
            raise invalid_parameter(name, f"must be an integer, not {given!r}")
        return self._in_range(name, int(given))

    def check(self, name: str, value: Any) -> int:
        """See `WireType`."""
        if not isinstance(value, int) or isinstance(value, bool):
            raise invalid_parameter(name, f"must be an integer, not {value!r}")
        return self._in_range(name, value)

    def _in_range(self, name: str, value: int) -> int:
        if not self._low <= value <= self._high:
            raise invalid_parameter(name, f"must be between {self._low} and {self._high}, not {value}")
        return value


class Decimal(WireType):
    """A number of at least 0 with at most `places` digits after the point."""

    def __init__(self, places: int = 6) -> None:
        self._pattern = re.compile(rf"\d+(\.\d{{1,{places}}})?")

    def parse(self, name: str, given: Any) -> float:
        """See `WireType`."""
        if not isinstance(given, str) or not self._pattern.fullmatch(given):
            raise invalid_parameter(name, f"is not a valid number: {given!r}")
        return float(given)


class Boolean(WireType):
    """`true` or `false`, also capitalized, as the Python SDK sends it."""

    def parse(self, name: str, given: Any) -> bool:
        """See `WireType`."""
        if not isinstance(given, str) or given not in _BOOLEANS:
            raise invalid_parameter(name, f"must be true or false, not {given!r}")
        return _BOOLEANS[given]

    def check(self, name: str, value: Any) -> bool:
        """See `WireType`."""
        if not isinstance(value, bool):
            raise invalid_parameter(name, f"must be a boolean, not {value!r}")
        return value


class JsonTexts(WireType):
    """A text that holds a JSON array of texts."""

    def __init__(self, most: int = 100) -> None:
        self._most = most

    def parse(self, name: str, given: Any) -> list[str]:
        """See `WireType`."""
        try:
            values = json.loads(given)
        except (TypeError, ValueError):
            values = None
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise invalid_parameter(name, f"must be a JSON array of texts, not {given!r}")
        if len(values) > self._most:
            raise invalid_parameter(name, f"has {len(values)} values, more than {self._most}")
        return values


class JsonObject(WireType):
    """A text that holds a JSON object with these members."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields

    def parse(self, name: str, given: Any) -> dict[str, Any]:
        """See `WireType`."""
        try:
            value = json.loads(given)
        except (TypeError, ValueError):
            value = None
        if not isinstance(value, dict):
            raise invalid_parameter(name, f"must be a JSON object, not {given!r}")
        return self._fields.check(name, value)


class Many(WireType):
    """A list, numbered from 1 without gaps."""

    def __init__(self, item: WireType, most: int = 100) -> None:
        self._item, self._most = item, most

    def parse(self, name: str, given: Any) -> list[Any]:
        """See `WireType`."""
        if not isinstance(given, _TREE):
            raise invalid_parameter(name, f"is a list, so its values are named {name}.1, {name}.2")
        if len(given) > self._most:
            raise invalid_parameter(name, f"has {len(given)} values, more than {self._most}")
        parsed = []
        for index in range(1, len(given) + 1):
            item = given.get(str(index))
            if item is None:
                raise invalid_parameter(name, f"must be numbered from 1 without gaps, but has {', '.join(given)}")
            parsed.append(self._item.parse(f"{name}.{index}", item))
        return parsed

    def check(self, name: str, value: Any) -> list[Any]:
        """See `WireType`."""
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) > self._most:
            raise invalid_parameter(name, f"must be an array of at most {self._most} values")
        return [self._item.check(f"{name}[{index}]", item) for index, item in enumerate(value)]


class Fields(WireType):
    """An object, or all parameters of an action.

    Args:
        known: The types of the parameters by name.
        required: The names that must be present.
        not_simulated: Further names that the service knows and the simulation does not support.
    """

    def __init__(
        self, known: Mapping[str, WireType], *, required: Sequence[str] = (), not_simulated: Sequence[str] = ()
    ) -> None:
        self._known = known
        self._required = required
        self._not_simulated = frozenset(not_simulated)

    def parse_flat(self, flat: Mapping[str, str]) -> dict[str, Any]:
        """Return the nested and typed parameters of a request in RPC style.

        Raises:
            ServiceError: A parameter is unknown, missing, of another type or out of range.
            NotSimulatedError: The simulation does not support a parameter that the service knows.
        """
        tree: dict[str, Any] = {}
        for name, text in flat.items():
            if "." not in name:
                _insert(tree, name, name, text)
                continue
            *parents, last = name.split(".")
            node = tree
            for parent in parents:
                inner = node.setdefault(parent, {})
                if not isinstance(inner, _TREE):
                    raise invalid_parameter(name, f"and {parent} cannot both be given")
                node = inner
            _insert(node, last, name, text)
        return self.parse("", tree)

    def parse(self, name: str, given: Any) -> dict[str, Any]:
        """See `WireType`."""
        if not isinstance(given, _TREE):
            raise invalid_parameter(name, f"is an object, so its values are named {name}.X")
        prefix = f"{name}." if name else ""
        parsed = {key: self._type(prefix, key).parse(prefix + key, value) for key, value in given.items()}
        return self._complete(prefix, parsed)

    def check(self, name: str, value: Any) -> dict[str, Any]:
        """See `WireType`."""
        if not isinstance(value, Mapping):
            raise invalid_parameter(name or "body", "must be a JSON object")
        prefix = f"{name}." if name else ""
        checked = {
            key: self._type(prefix, key).check(prefix + key, inner) for key, inner in value.items() if inner is not None
        }
        return self._complete(prefix, checked)

    def _type(self, prefix: str, key: str) -> WireType:
        known = self._known.get(key)
        if known is None:
            if key in self._not_simulated:
                raise NotSimulatedError(f"the simulation does not support the parameter {prefix}{key}")
            raise invalid_parameter(prefix + key, "is not a parameter of this action")
        return known

    def _complete(self, prefix: str, values: dict[str, Any]) -> dict[str, Any]:
        for required in self._required:
            if required not in values or values[required] in ("", []):
                raise missing_parameter(prefix + required)
        return values


def _insert(node: dict[str, Any], key: str, name: str, text: str) -> None:
    if key in node:
        raise invalid_parameter(name, "is given twice")
    node[key] = text
