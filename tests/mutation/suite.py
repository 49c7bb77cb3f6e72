"""A test suite that is collected once and run many times, each time in a forked process on one mutant.

A mutant's process replaces the code of the changed function in the modules that are already imported, so that neither
imports nor collection are paid for again. It runs only the tests that execute the changed line, the fastest first.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import itertools
import os
import pickle
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, NamedTuple

import pytest

from tests.mutation.operators import Mutant, mutated

_LRU_CACHE: Final = type(functools.cache(len))
FACTOR: Final = 4
"""A mutant's tests may take so many times the CPU seconds of the original's."""
GRACE: Final = 10
"""CPU seconds beside that."""


class Line(NamedTuple):
    """A line of a source file."""

    path: str
    number: int


class Survey(NamedTuple):
    """What the tests do without a mutant.

    Attributes:
        tests: By line, the positions in the collection of the tests that execute it, the fastest first.
        seconds: By position, the CPU seconds of a test.
        failed: The node ids of the tests that fail without a mutant.
    """

    tests: dict[Line, tuple[int, ...]]
    seconds: tuple[float, ...]
    failed: tuple[str, ...]

    def fastest_tests(self, line: Line, limit: float) -> tuple[int, ...]:
        """Return the tests that execute the line, the fastest first, as many as take `limit` CPU seconds together."""
        sums = itertools.accumulate(self.seconds[n] for n in self.tests.get(line, ()))
        return tuple(n for n, total in zip(self.tests.get(line, ()), sums, strict=True) if total <= limit)


def survey(items: Sequence[pytest.Item], paths: Sequence[Path]) -> Survey:
    """Run all tests once and record which lines of the files each executes; in a process of its own."""
    return _in_child(lambda: _survey(items, frozenset(map(str, paths))))


def is_killed(mutant: Mutant, items: Sequence[pytest.Item], tests: Sequence[int], seconds: float) -> bool:
    """Return whether one of the tests fails on the mutant, or takes far longer than `seconds`; in a process of its own."""

    def run() -> bool:
        limit = int(seconds * FACTOR) + GRACE
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        replace_code(mutant)
        for cache in caches(frozenset({str(mutant.path)})):
            cache.cache_clear()
        return any(True for _ in _failures([items[n] for n in tests]))

    try:
        return _in_child(run)
    except ChildProcessError:  # out of time, or the interpreter gave up
        return True


def replace_code(mutant: Mutant) -> None:
    """Give the imported function that holds the mutated line its changed code."""
    module = compile(mutated(mutant), str(mutant.path), "exec", dont_inherit=True)
    changed = {(code.co_firstlineno, code.co_name): code for code in _functions(module)}
    gc.unfreeze()  # what is frozen is not listed
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename == str(mutant.path):
            before = function.__code__
            after = changed.get((before.co_firstlineno, before.co_name))
            if after is not None and after.co_freevars == before.co_freevars:
                function.__code__ = after


def caches(paths: frozenset[str]) -> list[Any]:
    """Return the cached functions of these files, whose results of imports and earlier tests would hide a mutant."""
    gc.unfreeze()  # what is frozen is not listed
    found = [each for each in gc.get_objects() if isinstance(each, _LRU_CACHE)]
    codes = [getattr(inspect.unwrap(each), "__code__", None) for each in found]
    return [each for each, code in zip(found, codes, strict=True) if code is not None and code.co_filename in paths]


def _functions(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _functions(constant)


def _survey(items: Sequence[pytest.Item], paths: frozenset[str]) -> Survey:
    executed: set[Line] = set()

    def trace_line(frame: FrameType, event: str, _arg: object) -> Callable[..., Any]:
        if event == "line":
            executed.add(Line(frame.f_code.co_filename, frame.f_lineno))
        return trace_line

    def trace_call(frame: FrameType, _event: str, _arg: object) -> Callable[..., Any] | None:
        return trace_line if frame.f_code.co_filename in paths else None

    lines: list[set[Line]] = []
    seconds: list[float] = []
    failed: list[str] = []
    cached = caches(paths)
    for item in items:
        for cache in cached:
            cache.cache_clear()
        executed.clear()
        began = time.process_time()
        threading.settrace(trace_call)
        sys.settrace(trace_call)
        failed += _failures([item])
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        seconds.append(time.process_time() - began)
        lines.append(set(executed))
    by_line: dict[Line, list[int]] = {}
    for number in sorted(range(len(items)), key=lambda n: (seconds[n], n)):
        for line in lines[number]:
            by_line.setdefault(line, []).append(number)
    return Survey({line: tuple(tests) for line, tests in by_line.items()}, tuple(seconds), tuple(failed))


def _failures(items: Sequence[pytest.Item]) -> Iterator[str]:
    """Run tests and yield the node ids of those that fail."""
    reports = _FailureReports()
    manager = items[0].config.pluginmanager if items else None
    if manager is None:
        return
    manager.register(reports)
    try:
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            yield from reports.failed
            reports.failed.clear()
    finally:
        manager.unregister(reports)


class _FailureReports:
    """A pytest plugin that keeps the node ids of failures."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failed phase of a test."""
        if report.failed:
            self.failed.append(report.nodeid)


def _in_child(function: Callable[[], Any]) -> Any:
    """Return what the function returns in a forked process, whose output is dropped; ChildProcessError if that dies."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            os.close(read)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            result = pickle.dumps(function())
            with os.fdopen(write, "wb") as stream:
                stream.write(result)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        answer = stream.read()
    os.waitpid(child, 0)
    if not answer:
        raise ChildProcessError("the tests' process died")
    return pickle.loads(answer)  # the child is this very process
