"""Karpenter's scheduler as an oracle: a program that reads scenarios and answers with its results.

`tests/differential/oracle` is a Go module that imports Karpenter. `GoProgram` builds it once per version of its
sources, into a cache outside the repository:

    python -m tests.differential.karpenter      builds the program if needed, prints its path

JOURNEYMAN_ORACLE is the path of a program to use instead. Without it, a cached build and `go`, `program` raises
`OracleMissingError`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.helpers.go_programs import GoProgram, GoProgramMissingError, print_path

ORACLE = GoProgram(
    name="oracle",
    title="Karpenter's scheduler as an oracle",
    sources=Path(__file__).parent / "oracle",
    minutes="3",
)
JSONDict = dict[str, Any]


class OracleMissingError(GoProgramMissingError):
    """The oracle is missing and cannot be built; the message names what to install."""


class Karpenter:
    """A running oracle and context manager; it solves one scenario at a time."""

    def __init__(self) -> None:
        self._program = str(program())
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - `__exit__` closes it
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._stderr}
        return subprocess.Popen([self._program], **streams)

    def __enter__(self) -> Karpenter:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes stdin, which ends the process, and waits
        self._stderr.close()

    def solve(self, scenario: JSONDict) -> JSONDict:
        """Return Karpenter's answer to a scenario; it has an `error` if Karpenter cannot read or solve it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(scenario).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:  # a panic in one of Karpenter's goroutines ends the process
            self._process.communicate()
            self._stderr.seek(0)
            message = self._stderr.read().decode()[:500]
            self._stderr.truncate(0)
            self._process = self._start()
            line = json.dumps({"name": scenario.get("name", ""), "error": f"Karpenter panicked: {message}"}).encode()
        answer: JSONDict = json.loads(line)
        return answer


def program() -> Path:
    """Return the path of the oracle, and build it if needed. Raises OracleMissingError."""
    path = os.environ.get("JOURNEYMAN_ORACLE")
    if path:
        return Path(path)
    try:
        return ORACLE.path()
    except GoProgramMissingError as missing:
        raise OracleMissingError(f"not compared with Karpenter: {missing}") from missing


if __name__ == "__main__":
    sys.exit(print_path(program))
