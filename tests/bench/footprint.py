"""Measures the scheduler's memory and import time in a new process, and how its time grows with the number of pods."""

from __future__ import annotations

import compileall
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import journeyman

PACKAGE = "journeyman.core.scheduling.scheduler"
INTERPRETERS = 5
SOLVE = """
import pathlib, re, resource, sys
from journeyman.cli.solve import solve
solve([pathlib.Path(sys.argv[1])])
status = pathlib.Path("/proc/self/status")  # what rusage says of a child on Linux includes its parent's memory
peak = int(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]) * 1024 if status.exists() else None
sys.stderr.write(str(peak or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
"""
IMPORT = f"import time; t = time.perf_counter(); import {PACKAGE}; print(time.perf_counter() - t)"


def growth(seconds: Mapping[str, float]) -> str:
    """Return the ratio of the times for 20,000 and 10,000 pods as text; 2 is linear."""
    factor = seconds["diverse-20000"] / seconds["diverse-10000"]
    return f"diverse-20000 takes {factor:.2f} times as long as diverse-10000 (linear: 2)"


def memory(scenario: dict[str, Any]) -> str:
    """Return the peak memory of a new process that reads and solves the scenario, as text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.json"
        path.write_text(json.dumps(scenario))
        peak = int(_python("-c", SOLVE, str(path)).stderr)
    return f"{scenario['name']} in a fresh process: at most {peak / 1e6:.0f} MB"


def imports() -> str:
    """Return the best import time of some new interpreters and its largest parts as text; bytecode is compiled before."""
    compileall.compile_dir(Path(journeyman.__file__).parent, quiet=1)
    best = min(float(_python("-c", IMPORT).stdout) for _ in range(INTERPRETERS))
    heaviest = ", ".join(f"{name} {ms:.0f} ms" for name, ms in _heaviest(8))
    return f"import {PACKAGE}: {best * 1000:.0f} ms; with everything it imports, heaviest: {heaviest}"


def _heaviest(count: int) -> list[tuple[str, float]]:
    """Return the top-level packages with the longest own import times, in ms (measuring adds about half)."""
    spent: dict[str, float] = {}
    for own, name in re.findall(
        r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", _python("-X", "importtime", "-c", IMPORT).stderr
    ):
        package = name if name.startswith("journeyman") else name.split(".")[0]
        spent[package] = spent.get(package, 0) + int(own) / 1000
    return sorted(spent.items(), key=lambda item: (-item[1], item[0]))[:count]


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
