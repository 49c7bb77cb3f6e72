"""Karpenter as an oracle: its own scheduler, built as a program, answering scenarios.

`tests/differential/oracle` is a Go module that imports Karpenter. It is built once per version of its sources, into a
cache outside the repository:

    python -m tests.differential.karpenter      builds if needed, prints where the program is

JOURNEYMAN_ORACLE names a program to use instead. Without either it, a cached build, or `go` to make one, nothing can
be compared, and `OracleMissingError` says so.
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
    """There is no oracle, and none can be built; the text says what to install."""


class Karpenter:
    """A running oracle. Usable as a context; one question at a time."""

    def __init__(self) -> None:
        self._program = str(program())
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this does
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._complaints}
        return subprocess.Popen([self._program], **streams)

    def __enter__(self) -> Karpenter:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its input, which ends it, and waits
        self._complaints.close()

    def ask(self, scenario: JSONDict) -> JSONDict:
        """The answer to a scenario; with an `error` in it if Karpenter could not read or solve it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(scenario).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:  # a panic in one of Karpenter's goroutines ends the process
            self._process.communicate()
            self._complaints.seek(0)
            why = self._complaints.read().decode()[:500]
            self._complaints.truncate(0)
            self._process = self._start()
            line = json.dumps({"name": scenario.get("name", ""), "error": f"Karpenter panicked: {why}"}).encode()
        found: JSONDict = json.loads(line)
        return found


def program() -> Path:
    """Where the oracle is, built if need be. Raises OracleMissingError."""
    named = os.environ.get("JOURNEYMAN_ORACLE")
    if named:
        return Path(named)
    try:
        return ORACLE.path()
    except GoProgramMissingError as missing:
        raise OracleMissingError(f"not compared with Karpenter: {missing}") from missing


if __name__ == "__main__":
    sys.exit(print_path(program))
