"""JSON merge patch (RFC 7386) on plain JSON values, without changing its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final


def merge_patch(target: Any, patch: Any) -> Any:
    """The value `target` becomes under `patch`: maps merge, null removes, everything else (lists too) replaces.

    The result may share unchanged parts with both inputs; neither is modified.
    """
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


_LEAVES: Final = frozenset({str, int, float, bool, type(None)})
"""Asked for by their exact type first: whether something is a Mapping is a slow question, and most values are leaves."""


def clone(value: Any) -> Any:
    """A deep copy of a JSON value; any Mapping becomes a dict, any list or tuple a list."""
    kind = type(value)
    if kind is dict:
        return {key: item if type(item) in _LEAVES else clone(item) for key, item in value.items()}
    if kind in _LEAVES:
        return value
    if isinstance(value, (list, tuple)):
        return [clone(item) for item in value]
    return {key: clone(item) for key, item in value.items()} if isinstance(value, Mapping) else value
