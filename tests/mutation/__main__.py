"""Mutate a seeded sample of a core package's operators and report which mutants no test kills.

    python -m tests.mutation scheduling --sample 300 --seed 1 [--jobs 2] [--at-least 0.9]

Each mutant runs in a process forked from one that has imported everything outside the product: the mutated module is
compiled from its changed syntax tree when a test first imports it. The package's unit tests run first, then the
step and property tests; the first failure kills the mutant, and so does a test that runs far longer than it should.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.abc
import importlib.util
import io
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import CodeType

from tests.mutation.operators import Mutant, mutants, mutated

ROOT = Path(__file__).parents[2]
CORE = ROOT / "shared" / "journeyman" / "core"
SUITES = {
    "scheduling": ("tests/unit/core/scheduling", "tests/unit/cli", "tests/property", "tests/unit/steps"),
    "lifecycle": ("tests/unit/core/lifecycle", "tests/unit/steps", "tests/unit/observe", "tests/property"),
    "disruption": ("tests/unit/core/disruption", "tests/unit/steps", "tests/unit/observe", "tests/property"),
}
SECONDS = 300
"""For one mutant; a suite needs less."""


class MutatingLoader(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports one module of the product from a changed syntax tree."""

    def __init__(self, mutant: Mutant) -> None:
        parts = mutant.path.relative_to(ROOT / "shared").with_suffix("").parts
        self.is_a_package = parts[-1] == "__init__"
        self.name = ".".join(parts[:-1] if self.is_a_package else parts)
        self.tree = mutated(mutant)
        self.path = mutant.path

    def find_spec(self, fullname, path, target=None):
        """Answer for the mutated module alone."""
        if fullname != self.name:
            return None
        locations = [str(self.path.parent)] if self.is_a_package else None
        return importlib.util.spec_from_file_location(
            fullname, self.path, loader=self, submodule_search_locations=locations
        )

    def get_source(self, fullname: str) -> str:
        """Return the original's text, for tracebacks."""
        return self.path.read_text(encoding="utf-8")

    def get_code(self, fullname: str) -> CodeType:
        """Return the changed module's code."""
        return compile(self.tree, str(self.path), "exec", dont_inherit=True)

    def exec_module(self, module) -> None:
        """Run it."""
        exec(self.get_code(module.__name__), module.__dict__)

    def create_module(self, spec):
        """Let Python make the module."""
        return


def survives(mutant: Mutant | None, suite: Sequence[str], *, shown: bool = False) -> bool:
    """Return whether every test of the suite passes on the mutant, or without one; runs in a process of its own."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status) == 0
    signal.alarm(SECONDS)
    code = 1
    try:
        if mutant is not None:
            sys.meta_path.insert(0, MutatingLoader(mutant))
        import pytest

        options = ["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "-m", "not slow", "--timeout", "60"]
        with contextlib.nullcontext() if shown else contextlib.redirect_stdout(io.StringIO()):
            code = int(pytest.main([*options, *suite]))
    finally:
        sys.stdout.flush()
        os._exit(code)


def sample(package: str, size: int, seed: int) -> list[Mutant]:
    """Return a seeded sample of a package's mutants, by file and place."""
    every = [mutant for path in sorted((CORE / package).rglob("*.py")) for mutant in mutants(path)]
    return sorted(random.Random(seed).sample(every, min(size, len(every))))


def hunt(chosen: Sequence[Mutant], suite: Sequence[str], jobs: int) -> list[Mutant]:
    """Return the mutants that survive, with a progress line per mutant; several processes share the work."""
    pipes = []
    for job in range(jobs):
        read, write = os.pipe()
        if not os.fork():
            for mutant in chosen[job::jobs]:
                began = time.monotonic()
                alive = survives(mutant, suite)
                where = f"{mutant.path.relative_to(CORE)}:{mutant.line} {mutant.change}"
                print(f"{'SURVIVED' if alive else 'killed  '} {time.monotonic() - began:5.0f} s  {where}", flush=True)
                os.write(write, f"{chosen.index(mutant)} {int(alive)}\n".encode())
            os._exit(0)
        os.close(write)
        pipes.append(read)
    results = [line.split() for pipe in pipes for line in os.fdopen(pipe).read().splitlines()]
    if len(results) != len(chosen):
        raise SystemExit(f"{len(chosen) - len(results)} mutants were not run")
    return [chosen[int(index)] for index, alive in results if alive == "1"]


def main() -> int:
    """Return 1 if fewer mutants are killed than asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.partition("\n")[0])
    parser.add_argument("package", choices=sorted(SUITES))
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--at-least", type=float, default=0.9)
    parser.add_argument("--only", help="mutate only files whose path contains this")
    asked = parser.parse_args()
    for name in ("boto3", "hypothesis", "kubernetes", "msgspec", "numpy", "pydantic", "pytest", "scipy.optimize"):
        importlib.import_module(name)
    sys.dont_write_bytecode = True
    os.chdir(ROOT)
    chosen = [m for m in sample(asked.package, asked.sample, asked.seed) if not asked.only or asked.only in str(m.path)]
    if not survives(None, SUITES[asked.package], shown=True):
        raise SystemExit("the tests fail without a mutant; mend them first")
    survivors = hunt(chosen, SUITES[asked.package], asked.jobs)
    share = 1 - len(survivors) / len(chosen)
    for mutant in survivors:
        print(f"survived: {mutant.path.relative_to(ROOT)}:{mutant.line}: {mutant.change}")
    print(f"{asked.package}: {len(chosen) - len(survivors)} of {len(chosen)} mutants killed ({share:.0%})")
    return int(share < asked.at_least)


if __name__ == "__main__":
    sys.exit(main())
