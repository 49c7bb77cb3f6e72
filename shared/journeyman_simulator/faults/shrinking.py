"""Shortens a story that breaks a rule until nothing can be left out: what remains is what it takes.

Any part of a story is a story, so parts are left out while the rule still breaks: first acts and faults, the larger parts
first (Zeller's delta debugging), then numbers become small, then the setting becomes plain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields, replace

from journeyman_simulator.faults.fault_scenario import Act, AnyAct, Fault, Story

MOST_TRIES: Final = 400
_KEPT: Final = frozenset({"name", "app", "site", "queue", "kind", "seed", "condition", "status", "change"})
"""Fields that say what something is; the others say how much."""

T = TypeVar("T", bound=Struct)


def shortened(story: Story, breaks: Callable[[Story], bool], most: int = MOST_TRIES) -> Story:
    """The shortest story found on the way down, which breaks the same rule.

    Args:
        story: Breaks it.
        breaks: Tells the story and says whether it still does.
        most: So many stories are told at most.
    """
    shrinking = _Shrinking(breaks, most)
    before = None
    while story != before:
        before = story
        for pass_ in (_with_fewer_parts, _with_smaller_numbers, _with_plainer_settings):
            story = pass_(story, shrinking)
    return story


class _Shrinking:
    """Tries candidates, as many as may be."""

    def __init__(self, breaks: Callable[[Story], bool], most: int) -> None:
        self._breaks = breaks
        self._left = most

    def first(self, candidates: Iterable[Story]) -> Story | None:
        """The first that breaks the rule."""
        for candidate in candidates:
            if self._left <= 0:
                return None
            self._left -= 1
            if self._breaks(candidate):
                return candidate
        return None


def _with_fewer_parts(story: Story, shrinking: _Shrinking) -> Story:
    size = max(1, (len(story.acts) + len(story.faults)) // 2)
    while size:
        shorter = shrinking.first(_without_some(story, size))
        if shorter is None:
            size //= 2
        else:
            story = shorter
    return story


def _without_some(story: Story, size: int) -> Iterator[Story]:
    """Without `size` neighbours among acts and faults, from the end: what came last mattered least often."""
    parts: list[AnyAct | Fault] = [*story.acts, *story.faults]
    for end in range(len(parts), 0, -size):
        yield _of(story, parts[: max(0, end - size)] + parts[end:])


def _of(story: Story, parts: Sequence[AnyAct | Fault]) -> Story:
    acts = tuple(part for part in parts if isinstance(part, Act))
    faults = tuple(part for part in parts if not isinstance(part, Act))
    return replace(story, acts=acts, faults=faults)


def _with_smaller_numbers(story: Story, shrinking: _Shrinking) -> Story:
    while (smaller := shrinking.first(_smaller(story))) is not None:
        story = smaller
    return story


def _smaller(story: Story) -> Iterator[Story]:
    parts: list[Any] = [*story.acts, *story.faults]
    for index, part in enumerate(parts):
        for plainer in _plainer(part):
            yield _of(story, [*parts[:index], plainer, *parts[index + 1 :]])


def _with_plainer_settings(story: Story, shrinking: _Shrinking) -> Story:
    while (plainer := shrinking.first(_plain_settings(story))) is not None:
        story = plainer
    return story


def _plain_settings(story: Story) -> Iterator[Story]:
    setting = story.setting
    for index, pool in enumerate(setting.pools):
        others = (setting.pools[:index], setting.pools[index + 1 :])
        if any(others):
            yield replace(story, setting=replace(setting, pools=others[0] + others[1]))
        for plainer in _plainer(pool):
            yield replace(story, setting=replace(setting, pools=(*others[0], plainer, *others[1])))
    for simpler in _plainer(setting):
        yield replace(story, setting=simpler)


def _plainer(thing: T) -> Iterator[T]:
    """The thing with one field as it is by default, or a number nearer to it; what it is stays."""
    for known in fields(thing):
        value = getattr(thing, known.name)
        if known.name in _KEPT or known.name == "pools":
            continue
        for smaller in _below(value, known.default):
            yield replace(thing, **{known.name: smaller})


def _below(value: Any, default: Any) -> Iterator[Any]:
    """Plainer values, the plainest first: the default; numbers nearer to it, or to 1; shorter lists."""
    if default is not NODEFAULT and value != default:
        yield default
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from _nearer(value, min(1, value) if default is NODEFAULT else default)
    elif isinstance(value, tuple) and value != default and len(value) > 1:
        yield from (value[:index] + value[index + 1 :] for index in range(len(value)))


def _nearer(value: float, goal: float) -> Iterator[float]:
    """The goal, and half-way to it, of the value's own type. Nothing for what is as near already."""
    half = type(value)(goal + (value - goal) // 2)
    yield from (near for near in dict.fromkeys((type(value)(goal), half)) if abs(near - goal) < abs(value - goal))
