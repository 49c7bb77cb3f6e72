"""Shrinks a scenario that violates an invariant until nothing can be left out.

Any part of a scenario is a scenario. First operations and faults are removed, the larger parts first (Zeller's delta debugging),
then numbers are reduced, then the setup is simplified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields, replace

from journeyman_simulator.faults.fault_scenario import AnyOperation, Fault, FaultScenario, Operation

MOST_TRIES: Final = 400
_KEPT: Final = frozenset({"name", "app", "site", "queue", "kind", "seed", "condition", "status", "change"})
"""Fields that identify something; the others are amounts."""

T = TypeVar("T", bound=Struct)


def shrink_scenario(
    scenario: FaultScenario, breaks: Callable[[FaultScenario], bool], most: int = MOST_TRIES
) -> FaultScenario:
    """Return the smallest scenario found that violates the same invariant.

    Args:
        scenario: Violates it.
        breaks: Runs a scenario and returns whether it still does.
        most: The largest number of scenarios to run.
    """
    shrinking = _ShrinkAttempts(breaks, most)
    before = None
    while scenario != before:
        before = scenario
        for pass_ in (_with_fewer_parts, _with_smaller_numbers, _with_simpler_setup):
            scenario = pass_(scenario, shrinking)
    return scenario


class _ShrinkAttempts:
    """Tries candidates, up to a number of runs."""

    def __init__(self, breaks: Callable[[FaultScenario], bool], most: int) -> None:
        self._breaks = breaks
        self._left = most

    def first(self, candidates: Iterable[FaultScenario]) -> FaultScenario | None:
        """Return the first candidate that violates the invariant."""
        for candidate in candidates:
            if self._left <= 0:
                return None
            self._left -= 1
            if self._breaks(candidate):
                return candidate
        return None


def _with_fewer_parts(scenario: FaultScenario, shrinking: _ShrinkAttempts) -> FaultScenario:
    size = max(1, (len(scenario.operations) + len(scenario.faults)) // 2)
    while size:
        shorter = shrinking.first(_without_some(scenario, size))
        if shorter is None:
            size //= 2
        else:
            scenario = shorter
    return scenario


def _without_some(scenario: FaultScenario, size: int) -> Iterator[FaultScenario]:
    """Yield the scenario without `size` neighbouring operations or faults, from the end: the last ones matter least often."""
    parts: list[AnyOperation | Fault] = [*scenario.operations, *scenario.faults]
    for end in range(len(parts), 0, -size):
        yield _of(scenario, parts[: max(0, end - size)] + parts[end:])


def _of(scenario: FaultScenario, parts: Sequence[AnyOperation | Fault]) -> FaultScenario:
    operations = tuple(part for part in parts if isinstance(part, Operation))
    faults = tuple(part for part in parts if not isinstance(part, Operation))
    return replace(scenario, operations=operations, faults=faults)


def _with_smaller_numbers(scenario: FaultScenario, shrinking: _ShrinkAttempts) -> FaultScenario:
    while (smaller := shrinking.first(_smaller(scenario))) is not None:
        scenario = smaller
    return scenario


def _smaller(scenario: FaultScenario) -> Iterator[FaultScenario]:
    parts: list[Any] = [*scenario.operations, *scenario.faults]
    for index, part in enumerate(parts):
        for simpler in _simpler(part):
            yield _of(scenario, [*parts[:index], simpler, *parts[index + 1 :]])


def _with_simpler_setup(scenario: FaultScenario, shrinking: _ShrinkAttempts) -> FaultScenario:
    while (simpler := shrinking.first(_simpler_setups(scenario))) is not None:
        scenario = simpler
    return scenario


def _simpler_setups(scenario: FaultScenario) -> Iterator[FaultScenario]:
    setup = scenario.setup
    for index, pool in enumerate(setup.pools):
        others = (setup.pools[:index], setup.pools[index + 1 :])
        if any(others):
            yield replace(scenario, setup=replace(setup, pools=others[0] + others[1]))
        for simpler in _simpler(pool):
            yield replace(scenario, setup=replace(setup, pools=(*others[0], simpler, *others[1])))
    for simpler_setup in _simpler(setup):
        yield replace(scenario, setup=simpler_setup)


def _simpler(thing: T) -> Iterator[T]:
    """Yield the struct with one field at its default, or a number nearer to it; identifying fields stay."""
    for known in fields(thing):
        value = getattr(thing, known.name)
        if known.name in _KEPT or known.name == "pools":
            continue
        for smaller in _simpler_values(value, known.default):
            yield replace(thing, **{known.name: smaller})


def _simpler_values(value: Any, default: Any) -> Iterator[Any]:
    """Yield simpler values, the simplest first: the default, numbers nearer to it or to 1, shorter tuples."""
    if default is not NODEFAULT and value != default:
        yield default
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from _nearer(value, min(1, value) if default is NODEFAULT else default)
    elif isinstance(value, tuple) and value != default and len(value) > 1:
        yield from (value[:index] + value[index + 1 :] for index in range(len(value)))


def _nearer(value: float, goal: float) -> Iterator[float]:
    """Yield the goal, and half-way to it, in the value's own type; nothing if the value is as near already."""
    half = type(value)(goal + (value - goal) // 2)
    yield from (near for near in dict.fromkeys((type(value)(goal), half)) if abs(near - goal) < abs(value - goal))
