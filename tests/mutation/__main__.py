"""Mutate a seeded sample of a package's operators and report which mutants no test kills.

    python -m tests.mutation scheduling --sample 300 --seed 1 [--jobs 2] [--at-least 0.9]
    python -m tests.mutation scheduling --only limits.py:40 packing/ --tests tests/unit/core/scheduling

The package's tests are collected and run once without a mutant; each mutant then runs those that execute the changed
line, as far as they fit into `SECONDS`. The first failure kills the mutant, and so does a test that runs far longer than it
should. With `--only`, all mutants of the given places are run, sampled or not.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mutation.operators import Mutant, mutants
from tests.mutation.suite import Line, is_killed, survey

ROOT = Path(__file__).parents[2]
SHARED = ROOT / "shared"
PRODUCT = SHARED / "journeyman"
CORE = PRODUCT / "core"
SUITES = {
    "scheduling": (
        *("tests/unit/core/scheduling", "tests/unit/cli", "tests/property", "tests/unit/steps"),
        "tests/differential",
    ),
    "lifecycle": ("tests/unit/core/lifecycle", "tests/unit/steps", "tests/unit/observe", "tests/property"),
    "disruption": ("tests/unit/core/disruption", "tests/unit/steps", "tests/unit/observe", "tests/property"),
    "cloud": (
        "tests/unit/cloud",
        "tests/contract/clouds",
        "tests/contract/test_aws_cloud.py",
        *(
            f"tests/contract/test_{name}.py"
            for name in ("smq_queue", "sqs_queue", "function_queue", "window_schedules")
        ),
        "-k",
        "not moto and not HTTP",
    ),  # servers do not survive a fork
    "steps": ("tests/unit/steps",),
    "kube": ("tests/unit/kube",),
    "runtime": ("tests/unit/runtime", "tests/handlers"),
}
SECONDS = 12
"""CPU seconds, with coverage, of the tests that a mutant runs at most: nearly all that die do so in the first two."""
TOO_LONG = "tests/unit/steps/test_simulated_days.py"
"""It takes minutes while its lines are recorded, and no mutant has time for it."""
OPTIONS = ("-q", "--capture=no", "--assert=plain", "-p", "no:cacheprovider", "--timeout", "120", "--ignore", TOO_LONG)


def folder_of(package: str) -> Path:
    """Return the folder of a package of the core, or of the product."""
    return CORE / package if (CORE / package).is_dir() else PRODUCT / package


def every_mutant(package: str) -> list[Mutant]:
    """Return all mutants of a package, by file and place."""
    return [mutant for path in sorted(folder_of(package).rglob("*.py")) for mutant in mutants(path)]


def sample(package: str, size: int, seed: int) -> list[Mutant]:
    """Return a seeded sample of a package's mutants, by file and place; edits of a function change only its own mutants."""
    folder = folder_of(package).parent
    return sorted(sorted(every_mutant(package), key=lambda mutant: _lot(mutant, folder, seed))[:size])


def _lot(mutant: Mutant, folder: Path, seed: int) -> bytes:
    text = f"{seed} {mutant.path.relative_to(folder)} {mutant.name}"
    return hashlib.blake2s(text.encode()).digest()


def is_at(mutant: Mutant, place: str) -> bool:
    """Return whether the mutant is at a place: part of a path, or the end of a path and a line."""
    path, _, line = place.partition(":")
    return str(mutant.path).endswith(path) and mutant.line == int(line) if line else path in str(mutant.path)


def module_of(path: Path) -> str:
    """Return the name of the module at a path."""
    return ".".join(path.relative_to(SHARED).with_suffix("").parts).removesuffix(".__init__")


class MutantHunt:
    """A pytest plugin that runs the collected tests once per mutant instead of once."""

    def __init__(self, chosen: Sequence[Mutant], jobs: int) -> None:
        self.chosen = chosen
        self.jobs = jobs
        self.survivors: list[Mutant] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Survey the tests, then share the mutants among several processes."""
        for mutant in self.chosen:  # some are imported only when needed
            importlib.import_module(module_of(mutant.path))
        found = survey(session.items, sorted({mutant.path for mutant in self.chosen}))
        if found.failed:
            raise SystemExit(f"these tests fail without a mutant; mend them first: {', '.join(found.failed)}")
        print(f"{len(session.items)} tests, {sum(found.seconds):.0f} s of CPU with coverage", flush=True)
        pipes = []
        for job in range(self.jobs):
            read, write = os.pipe()
            if not os.fork():
                for number in range(job, len(self.chosen), self.jobs):
                    mutant = self.chosen[number]
                    began = time.monotonic()
                    tests = found.fastest_tests(Line(str(mutant.path), mutant.line), SECONDS)
                    killed = is_killed(mutant, session.items, tests, sum(found.seconds[n] for n in tests))
                    print(
                        f"{'killed  ' if killed else 'SURVIVED'} {time.monotonic() - began:5.0f} s {len(tests):5} tests  "
                        f"{mutant.path.relative_to(PRODUCT)}:{mutant.line} {mutant.change}",
                        flush=True,
                    )
                    os.write(write, f"{number} {int(killed)}\n".encode())
                os._exit(0)
            os.close(write)
            pipes.append(read)
        results = [line.split() for pipe in pipes for line in os.fdopen(pipe).read().splitlines()]
        if len(results) != len(self.chosen):
            raise SystemExit(f"{len(self.chosen) - len(results)} mutants were not run")
        self.survivors = [self.chosen[int(number)] for number, killed in results if killed == "0"]
        return True


def main() -> int:
    """Return 1 if fewer mutants are killed than asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.partition("\n")[0])
    parser.add_argument("package", choices=sorted(SUITES))
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--at-least", type=float, default=0.9)
    parser.add_argument("--only", nargs="+", help="run all mutants of these files, or of lines of them (limits.py:40)")
    parser.add_argument("--tests", nargs="+", help="run these tests instead of the package's")
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ.setdefault("JOURNEYMAN_CASES", "25")
    os.environ.setdefault("HYPOTHESIS_PROFILE", "mutation")
    chosen = (
        [mutant for mutant in every_mutant(options.package) if any(is_at(mutant, place) for place in options.only)]
        if options.only
        else sample(options.package, options.sample, options.seed)
    )
    hunt = MutantHunt(chosen, options.jobs)
    if code := pytest.main([*OPTIONS, "-m", "not slow", *(options.tests or SUITES[options.package])], plugins=[hunt]):
        return int(code)
    for mutant in hunt.survivors:
        print(f"survived: {mutant.path.relative_to(ROOT)}:{mutant.line}: {mutant.change}")
    share = 1 - len(hunt.survivors) / len(hunt.chosen)
    print(
        f"{options.package}: {len(hunt.chosen) - len(hunt.survivors)} of {len(hunt.chosen)} mutants killed ({share:.0%})"
    )
    return int(share < options.at_least)


if __name__ == "__main__":
    sys.exit(main())
