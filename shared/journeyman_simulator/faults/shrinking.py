"""Reduces a scenario that violates an invariant to a minimal one.

Any part of a scenario is a scenario. The passes remove operations and faults, larger parts first (Zeller's delta
debugging), then reduce numbers, then simplify the setup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields, replace

from journeyman_simulator.faults.fault_scenario import AnyOperation, Fault, FaultScenario, Operation

MAX_ATTEMPTS: Final = 400
_IDENTIFYING_FIELDS: Final = frozenset(
    {"cloud", "name", "app", "site", "queue", "kind", "seed", "condition", "status", "change"}
)
"""Fields that identify an object; the others are amounts."""

T = TypeVar("T", bound=Struct)


def shrink_scenario(
    scenario: FaultScenario, violates: Callable[[FaultScenario], bool], max_attempts: int = MAX_ATTEMPTS
) -> FaultScenario:
    """Return the smallest scenario found that violates the same invariant.

    Args:
        scenario: A scenario that violates the invariant.
        violates: Runs a scenario and returns whether it violates the invariant.
        max_attempts: The maximum number of scenarios to run.
    """
    attempts = _ShrinkAttempts(violates, max_attempts)
    before = None
    while scenario != before:
        before = scenario
        for pass_ in (_with_fewer_parts, _with_smaller_numbers, _with_simpler_setup):
            scenario = pass_(scenario, attempts)
    return scenario


class _ShrinkAttempts:
    """Runs candidates, up to a maximum number."""

    def __init__(self, violates: Callable[[FaultScenario], bool], max_attempts: int) -> None:
        self._violates = violates
        self._remaining = max_attempts

    def first(self, candidates: Iterable[FaultScenario]) -> FaultScenario | None:
        """Return the first candidate that violates the invariant."""
        for candidate in candidates:
            if self._remaining <= 0:
                return None
            self._remaining -= 1
            if self._violates(candidate):
                return candidate
        return None


def _with_fewer_parts(scenario: FaultScenario, attempts: _ShrinkAttempts) -> FaultScenario:
    size = max(1, (len(scenario.operations) + len(scenario.faults)) // 2)
    while size:
        shorter = attempts.first(_without_some(scenario, size))
        if shorter is None:
            size //= 2
        else:
            scenario = shorter
    return scenario


def _without_some(scenario: FaultScenario, size: int) -> Iterator[FaultScenario]:
    """Yield the scenario without `size` consecutive operations or faults, from the end, where they rarely matter."""
    parts: list[AnyOperation | Fault] = [*scenario.operations, *scenario.faults]
    for end in range(len(parts), 0, -size):
        yield _with_parts(scenario, parts[: max(0, end - size)] + parts[end:])


def _with_parts(scenario: FaultScenario, parts: Sequence[AnyOperation | Fault]) -> FaultScenario:
    operations = tuple(part for part in parts if isinstance(part, Operation))
    faults = tuple(part for part in parts if not isinstance(part, Operation))
    return replace(scenario, operations=operations, faults=faults)


def _with_smaller_numbers(scenario: FaultScenario, attempts: _ShrinkAttempts) -> FaultScenario:
    while (smaller := attempts.first(_smaller(scenario))) is not None:
        scenario = smaller
    return scenario


def _smaller(scenario: FaultScenario) -> Iterator[FaultScenario]:
    parts: list[Any] = [*scenario.operations, *scenario.faults]
    for index, part in enumerate(parts):
        for simpler in _simpler(part):
            yield _with_parts(scenario, [*parts[:index], simpler, *parts[index + 1 :]])


def _with_simpler_setup(scenario: FaultScenario, attempts: _ShrinkAttempts) -> FaultScenario:
    while (simpler := attempts.first(_simpler_setups(scenario))) is not None:
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


def _simpler(struct: T) -> Iterator[T]:
    """Yield the struct with one field at its default or nearer to it; identifying fields stay."""
    for known in fields(struct):
        value = getattr(struct, known.name)
        if known.name in _IDENTIFYING_FIELDS or known.name == "pools":
            continue
        for smaller in _simpler_values(value, known.default):
            yield replace(struct, **{known.name: smaller})


def _simpler_values(value: Any, default: Any) -> Iterator[Any]:
    """Yield simpler values, the simplest first: the default, numbers nearer to it or to 1, shorter tuples."""
    if default is not NODEFAULT and value != default:
        yield default
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from _nearer(value, min(1, value) if default is NODEFAULT else default)
    elif isinstance(value, tuple) and value != default and len(value) > 1:
        yield from (value[:index] + value[index + 1 :] for index in range(len(value)))


def _nearer(value: float, goal: float) -> Iterator[float]:
    """Yield the goal and the middle between value and goal, in the value's type, if they are nearer than the value."""
    half = type(value)(goal + (value - goal) // 2)
    yield from (near for near in dict.fromkeys((type(value)(goal), half)) if abs(near - goal) < abs(value - goal))
