"""Searches seeds, in several processes, for scenarios that violate an invariant, and counts the injected faults."""

from __future__ import annotations

import gc
import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from typing import Final

from msgspec import Struct, field

from journeyman_simulator.faults.call_sites import FaultCoverage, from_json, to_json
from journeyman_simulator.faults.fault_scenario import CloudName, FaultScenario
from journeyman_simulator.faults.history import HistoryEntry
from journeyman_simulator.faults.invariants import ALL_CHECKERS
from journeyman_simulator.faults.invariants.checkers import Violation
from journeyman_simulator.faults.sandboxes import ORIGINALS, Collaborators
from journeyman_simulator.faults.scenario_generator import generate_scenario
from journeyman_simulator.faults.scenario_run import ScenarioResult, run_scenario
from journeyman_simulator.faults.shrinking import MAX_ATTEMPTS, shrink_scenario

CHUNK: Final = 20  # scenarios per message between processes
NOT_RUN: Final = "the scenario can be run"


class ViolatingSeed(Struct, frozen=True):
    """A seed whose scenario violates invariants."""

    seed: int
    violations: tuple[Violation, ...]


class SeedSearchResult(Struct, kw_only=True):
    """The result of a search."""

    found: list[ViolatingSeed] = field(default_factory=list)
    coverage: FaultCoverage = field(default_factory=FaultCoverage)
    runs: int = 0
    virtual_minutes: float = 0
    seconds: float = 0


class _ChunkResult(Struct, frozen=True, kw_only=True):
    """The result of one chunk of seeds."""

    found: tuple[ViolatingSeed, ...]
    coverage: bytes
    runs: int
    minutes: float


def run_checked(
    scenario: FaultScenario,
    on_entry: Callable[[HistoryEntry], None] | None = None,
    collaborators: Collaborators = ORIGINALS,
) -> ScenarioResult:
    """Run a scenario with all invariant checkers. An exception counts as a violation."""
    try:
        with _without_garbage_collection():
            return run_scenario(scenario, checkers=ALL_CHECKERS, on_entry=on_entry, collaborators=collaborators)
    except Exception:  # noqa: BLE001 - reported as a violation, with the scenario
        return _not_run(scenario, traceback.format_exc())


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Suspend garbage collection while a scenario runs; collect the youngest generation after it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
            gc.collect(0)


def search_seeds(
    seeds: Sequence[int],
    *,
    cloud: CloudName = "aws",
    processes: int = 1,
    on_found: Callable[[ViolatingSeed], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> SeedSearchResult:
    """Run the scenarios of these seeds, and report their results in order.

    Args:
        seeds: The seeds.
        cloud: The cloud of the scenarios.
        processes: The number of processes. With one, or with few seeds, the scenarios run in this process.
        on_found: Called with each violating seed, once its chunk is done.
        on_progress: Called with the number of scenarios run since the last call.
    """
    search, started = SeedSearchResult(), time.monotonic()
    for chunk_result in _chunk_results(
        [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)], cloud, processes
    ):
        coverage = from_json(chunk_result.coverage)
        search.coverage.add(coverage)
        search.runs += chunk_result.runs
        search.virtual_minutes += chunk_result.minutes
        for found in chunk_result.found:
            search.found.append(found)
            if on_found is not None:
                on_found(found)
        if on_progress is not None:
            on_progress(coverage.scenarios)
    search.seconds = time.monotonic() - started
    return search


def shrink(scenario: FaultScenario, invariant: str, max_attempts: int = MAX_ATTEMPTS) -> FaultScenario:
    """Return the smallest scenario found that violates the same invariant first."""
    return shrink_scenario(scenario, partial(_violates, invariant), max_attempts)


def _violates(invariant: str, scenario: FaultScenario) -> bool:
    return [violation.invariant for violation in run_checked(scenario).violations[:1]] == [invariant]


def _chunk_results(chunks: Sequence[Sequence[int]], cloud: CloudName, processes: int) -> Iterator[_ChunkResult]:
    run_chunk = partial(_run_chunk, cloud)
    if processes == 1 or len(chunks) == 1:
        yield from map(run_chunk, chunks)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(run_chunk, chunks)


def _run_chunk(cloud: CloudName, seeds: Sequence[int]) -> _ChunkResult:
    coverage, found, runs, minutes = FaultCoverage(), [], 0, 0.0
    for seed in seeds:
        result = run_checked(generate_scenario(seed, cloud))
        coverage.add(result.coverage)
        runs += result.runs
        minutes += result.minutes
        if result.violations:
            found.append(ViolatingSeed(seed, result.violations))
    return _ChunkResult(found=tuple(found), coverage=to_json(coverage), runs=runs, minutes=minutes)


def _not_run(scenario: FaultScenario, why: str) -> ScenarioResult:
    violation = Violation(invariant=NOT_RUN, what=why, at=datetime.fromtimestamp(0, timezone.utc))
    return ScenarioResult(
        scenario=scenario,
        violations=(violation,),
        coverage=FaultCoverage(scenarios=1),
        digest="",
        history=(),
        runs=0,
        minutes=0,
    )
