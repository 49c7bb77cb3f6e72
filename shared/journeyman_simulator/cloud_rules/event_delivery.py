"""What a target gets of an EventBridge event: the event, a part of it, or a text made from it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

_PLACEHOLDER = re.compile(r'\\.|"|<([\w.\-]+)>')


def shaped(target: Mapping[str, Any], event: Mapping[str, Any]) -> str:
    """The text a target gets: its constant, a part of the event, a filled-in template, or the event itself."""
    if "Input" in target:
        return str(target["Input"])
    if "InputPath" in target:
        return json.dumps(_at_path(event, target["InputPath"]))
    if "InputTransformer" in target:
        transformer = target["InputTransformer"]
        values = {name: _at_path(event, path) for name, path in transformer.get("InputPathsMap", {}).items()}
        return _filled_in(transformer["InputTemplate"], values | {"aws.events.event.json": event})
    return json.dumps(event)


def _filled_in(template: str, values: Mapping[str, Any]) -> str:
    """Replace each `<name>`: inside quotes by bare text, outside by JSON; unknown names vanish as AWS has it."""
    quoted = False

    def fill(match: re.Match[str]) -> str:
        nonlocal quoted
        name = match.group(1)
        if name is None:
            quoted ^= match.group() == '"'
            return match.group()
        value = values.get(name)
        if value is None:
            return ""
        text = json.dumps(value)
        return text[1:-1] if quoted and isinstance(value, str) else text.replace('"', '\\"') if quoted else text

    return _PLACEHOLDER.sub(fill, template)


def _at_path(event: Mapping[str, Any], path: str) -> Any:
    """The value at a path like `$.detail.instance-id`; None if there is none."""
    value: Any = event
    for key in path.split(".")[1:]:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def iso(moment: datetime) -> str:
    """A time as events carry it, to the second."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
