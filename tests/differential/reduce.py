"""The smallest scenario that still shows a finding: parts are left out as long as it does.

Knows scenarios only as JSON: objects, instance types and offerings go first, in halves, quarters and one by one; then
the fields of what remains. What makes no sense any more does not show the finding, and so is put back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

JSONDict = dict[str, Any]
Path = tuple[str | int, ...]
KEPT = {"apiVersion", "kind", "metadata", "name", "namespace", "containers", "nodeClassRef", "template"}
KEPT |= {"spec", "key", "operator", "topologyKey", "maxSkew", "whenUnsatisfiable", "status", "providerID"}


def reduce(scenario: JSONDict, still_shows: Callable[[JSONDict], bool], tries: int = 400) -> JSONDict:
    """A smaller scenario for which `still_shows` holds as it does for this one, found in at most so many tries."""
    left = [tries]

    def shows(candidate: JSONDict) -> bool:
        left[0] -= 1
        return left[0] >= 0 and still_shows(candidate)

    before = None
    while before != scenario and left[0] > 0:
        before = scenario
        scenario = _with_fewer(scenario, "objects", shows)
        scenario = _with_fewer(scenario, "instanceTypes", shows)
        scenario = _barer(scenario, shows)
    return scenario


def _with_fewer(scenario: JSONDict, key: str, shows: Callable[[JSONDict], bool]) -> JSONDict:
    return {**scenario, key: _fewer(scenario[key], lambda some: shows({**scenario, key: some}))}


def _fewer(items: list[Any], shows: Callable[[list[Any]], bool]) -> list[Any]:
    """Without any run of items that the finding does not need."""
    size = max(1, len(items) // 2)
    while True:
        start = 0
        while start < len(items):
            rest = items[:start] + items[start + size :]
            if shows(rest):
                items = rest
            else:
                start += size
        if size == 1:
            return items
        size = max(1, size // 2)


def _barer(scenario: JSONDict, shows: Callable[[JSONDict], bool]) -> JSONDict:
    """Without any field or list element that the finding does not need, outermost first."""
    tried: set[Path] = set()
    while True:
        path = next((p for p in _paths(scenario) if p not in tried), None)
        if path is None:
            return scenario
        candidate = _without(scenario, path)
        if not shows(candidate):
            tried.add(path)
        else:
            scenario = candidate  # what followed in a list has moved up to this very path, and is tried next


def _paths(scenario: JSONDict) -> Iterator[Path]:
    """Places in the objects and options that may go, outermost first; of instance types only whole offerings may."""
    for top in ("objects", "options"):
        yield from sorted(_below(scenario.get(top, []), (top,)), key=len)
    for index, instance_type in enumerate(scenario["instanceTypes"]):
        yield from (("instanceTypes", index, "offerings", offer) for offer in range(len(instance_type["offerings"])))


def _below(value: Any, path: Path) -> Iterator[Path]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        here = (*path, key)
        if len(here) > 2 and key not in KEPT:
            yield here
        yield from _below(child, here)


def _without(value: Any, path: Path) -> Any:
    """A copy without what is at the path."""
    head, rest = path[0], path[1:]
    if isinstance(value, dict):
        if not rest:
            return {k: v for k, v in value.items() if k != head}
        return {**value, head: _without(value[head], rest)}
    assert isinstance(head, int)
    if not rest:
        return [v for i, v in enumerate(value) if i != head]
    return [_without(v, rest) if i == head else v for i, v in enumerate(value)]
