"""Reduces a scenario that has a finding: removes parts of it as long as the finding remains.

It handles scenarios as plain JSON. It removes objects and instance types first, in halves, quarters and one by one;
then fields and offerings. A scenario that a removal makes invalid lacks the finding, so the removal is undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

JSONDict = dict[str, Any]
Path = tuple[str | int, ...]
KEPT_FIELDS = {"apiVersion", "kind", "metadata", "name", "namespace", "containers", "nodeClassRef", "template"}
KEPT_FIELDS |= {"spec", "key", "operator", "topologyKey", "maxSkew", "whenUnsatisfiable", "status", "providerID"}


def reduce(scenario: JSONDict, has_finding: Callable[[JSONDict], bool], tries: int = 400) -> JSONDict:
    """Return a smaller scenario that also satisfies `has_finding`, after at most `tries` calls of it."""

    def accepts(candidate: JSONDict) -> bool:
        nonlocal tries
        tries -= 1
        return tries >= 0 and has_finding(candidate)

    before = None
    while before != scenario and tries > 0:
        before = scenario
        scenario = _remove_items(scenario, "objects", accepts)
        scenario = _remove_items(scenario, "instanceTypes", accepts)
        scenario = _remove_fields(scenario, accepts)
    return scenario


def _remove_items(scenario: JSONDict, key: str, accepts: Callable[[JSONDict], bool]) -> JSONDict:
    return {**scenario, key: _remove_runs(scenario[key], lambda items: accepts({**scenario, key: items}))}


def _remove_runs(items: list[Any], accepts: Callable[[list[Any]], bool]) -> list[Any]:
    """Return the items without each run of them that the finding does not need."""
    size = max(1, len(items) // 2)
    while True:
        start = 0
        while start < len(items):
            rest = items[:start] + items[start + size :]
            if accepts(rest):
                items = rest
            else:
                start += size
        if size == 1:
            return items
        size = max(1, size // 2)


def _remove_fields(scenario: JSONDict, accepts: Callable[[JSONDict], bool]) -> JSONDict:
    """Return the scenario without the fields and elements that the finding does not need, outermost first."""
    tried: set[Path] = set()
    while True:
        path = next((p for p in _removable_paths(scenario) if p not in tried), None)
        if path is None:
            return scenario
        candidate = _remove(scenario, path)
        if not accepts(candidate):
            tried.add(path)
        else:
            scenario = candidate  # in a list the next element now has this path, and is tried next


def _removable_paths(scenario: JSONDict) -> Iterator[Path]:
    """Yield removable paths in objects and options, outermost first; then those of offerings."""
    for top in ("objects", "options"):
        yield from sorted(_paths_below(scenario.get(top, []), (top,)), key=len)
    for index, instance_type in enumerate(scenario["instanceTypes"]):
        yield from (("instanceTypes", index, "offerings", offer) for offer in range(len(instance_type["offerings"])))


def _paths_below(value: Any, path: Path) -> Iterator[Path]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        child_path = (*path, key)
        if len(child_path) > 2 and key not in KEPT_FIELDS:
            yield child_path
        yield from _paths_below(child, child_path)


def _remove(value: Any, path: Path) -> Any:
    """Return a copy without the value at the path."""
    head, rest = path[0], path[1:]
    if isinstance(value, dict):
        if not rest:
            return {k: v for k, v in value.items() if k != head}
        return {**value, head: _remove(value[head], rest)}
    assert isinstance(head, int)
    if not rest:
        return [v for i, v in enumerate(value) if i != head]
    return [_remove(v, rest) if i == head else v for i, v in enumerate(value)]
