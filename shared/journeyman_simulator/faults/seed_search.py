"""Hunts through seeds in several processes: which stories break a rule, and what went wrong where on the way."""

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

from journeyman_simulator.faults.call_sites import Coverage, from_json, to_json
from journeyman_simulator.faults.fault_scenario import Story
from journeyman_simulator.faults.history import Moment
from journeyman_simulator.faults.invariants import RULES
from journeyman_simulator.faults.invariants.checkers import Broken
from journeyman_simulator.faults.scenario_generator import story_of
from journeyman_simulator.faults.scenario_run import Told, tell
from journeyman_simulator.faults.shrinking import MOST_TRIES, shortened

CHUNK: Final = 20  # stories that a process tells before it reports
UNTOLD: Final = "the story could not be told"


class Found(Struct, frozen=True):
    """A seed whose story breaks rules."""

    seed: int
    broken: tuple[Broken, ...]


class Caught(Struct, kw_only=True):
    """What came of a hunt."""

    found: list[Found] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)
    runs: int = 0
    virtual_minutes: float = 0
    seconds: float = 0


class _Part(Struct, frozen=True, kw_only=True):
    """What one process found in its seeds."""

    found: tuple[Found, ...]
    coverage: bytes
    runs: int
    minutes: float


def judged(story: Story, on_moment: Callable[[Moment], None] | None = None) -> Told:
    """Tell a story before all rules; one that cannot be told is broken, too."""
    try:
        with _undisturbed():
            return tell(story, rules=RULES, on_moment=on_moment)
    except Exception:  # noqa: BLE001 - whatever it is, it is told with the story that led to it
        return _untold(story, traceback.format_exc())


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No garbage is collected while a story is told; at its end its world is, and only what came with it is looked at."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
            gc.collect(0)


def hunt(
    seeds: Sequence[int],
    *,
    processes: int = 1,
    on_found: Callable[[Found], None] | None = None,
    on_told: Callable[[int], None] | None = None,
) -> Caught:
    """Tell the stories of these seeds, in their order as far as reports go.

    Args:
        seeds: Whose stories.
        processes: So many at once; with one, or with few seeds, they are told here.
        on_found: Is told of each seed that breaks a rule, once its part of the seeds is done.
        on_told: Is told how many stories were told since it was told last.
    """
    caught, began = Caught(), time.monotonic()
    for part in _parts([seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)], processes):
        coverage = from_json(part.coverage)
        caught.coverage.add(coverage)
        caught.runs += part.runs
        caught.virtual_minutes += part.minutes
        for found in part.found:
            caught.found.append(found)
            if on_found is not None:
                on_found(found)
        if on_told is not None:
            on_told(coverage.stories)
    caught.seconds = time.monotonic() - began
    return caught


def shortest(story: Story, rule: str, most: int = MOST_TRIES) -> Story:
    """The shortest story found that breaks the same rule first."""
    return shortened(story, partial(_breaks, rule), most)


def _breaks(rule: str, story: Story) -> bool:
    return [broken.rule for broken in judged(story).broken[:1]] == [rule]


def _parts(chunks: Sequence[Sequence[int]], processes: int) -> Iterator[_Part]:
    if processes == 1 or len(chunks) == 1:
        yield from map(_hunted, chunks)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_hunted, chunks)


def _hunted(seeds: Sequence[int]) -> _Part:
    coverage, found, runs, minutes = Coverage(), [], 0, 0.0
    for seed in seeds:
        told = judged(story_of(seed))
        coverage.add(told.coverage)
        runs += told.runs
        minutes += told.minutes
        if told.broken:
            found.append(Found(seed, told.broken))
    return _Part(found=tuple(found), coverage=to_json(coverage), runs=runs, minutes=minutes)


def _untold(story: Story, why: str) -> Told:
    broken = Broken(rule=UNTOLD, what=why, at=datetime.fromtimestamp(0, timezone.utc))
    return Told(story=story, broken=(broken,), coverage=Coverage(stories=1), digest="", history=(), runs=0, minutes=0)
