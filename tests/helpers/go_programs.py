"""Builds Go programs that tests run, once per version of their sources, outside the repository.

A program is a folder with a Go module. The build is stored in `$XDG_CACHE_HOME/journeyman` under the hash of the sources, so
that only a change of the sources builds it again. A cold build takes minutes, so a line on standard error every few seconds
reports the progress.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from msgspec import Struct

EVERY_SECONDS = 5.0  # between progress lines


class GoProgramMissingError(Exception):
    """A program is missing and cannot be built; the message says what to install or where to look."""


def print_path(path: Callable[[], Path]) -> int:
    """Build a program if needed and print its path; return the exit status, 0 if there is no Go (its tests are skipped)."""
    try:
        sys.stdout.write(f"{path()}\n")
    except GoProgramMissingError as missing:
        sys.stderr.write(f"{missing}\n")
        return 1 if shutil.which("go") else 0
    return 0


class GoProgram(Struct, frozen=True, kw_only=True):
    """A Go program and how to build it.

    Attributes:
        name: The name of the program's file, and the prefix of its folder in the cache.
        title: A description of the program, as the subject of a sentence.
        sources: The folder of its Go module; only files directly in it belong to the program.
        flags: Flags for `go build`, in addition to `-trimpath`.
        minutes: How long a cold build on two cores takes, for the progress message.
        package: The package to build: by default the module itself, or a package of a module that its go.mod requires.
    """

    name: str
    title: str
    sources: Path
    minutes: str
    flags: tuple[str, ...] = ()
    package: str = "."

    def path(self) -> Path:
        """Build the program if needed and return its path.

        Raises:
            GoProgramMissingError: Go is missing, or the build failed.
        """
        path = self.cached()
        if not path.exists():
            self._build(path)
        return path

    def cached(self) -> Path:
        """Return the cache path for this package, these sources and these flags."""
        digest = hashlib.sha256()
        for source in sorted([*self.sources.glob("*.go"), self.sources / "go.mod", self.sources / "go.sum"]):
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
        digest.update(b"".join(word.encode() + b"\0" for word in (*self.flags, self.package)))
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return root / "journeyman" / f"{self.name}-{digest.hexdigest()[:16]}" / self.name

    def _build(self, path: Path) -> None:
        go = shutil.which("go")
        if go is None:
            raise GoProgramMissingError(f"{self.title} cannot be built without Go 1.21 or newer on the PATH")
        with _build_lock(path.parent):
            if path.exists():  # another process has built it meanwhile
                return
            _say(f"Building {self.title}, about {self.minutes} minutes the first time …")
            unfinished = path.with_suffix(".new")
            packages = _count(go, self.sources, self.package)
            command = [go, "build", "-v", "-trimpath", *self.flags, "-o", str(unfinished), self.package]
            if not _follow(command, self.sources, f"of {packages:,} packages compiled"):
                raise GoProgramMissingError(f"{self.title} did not build; Go's own messages are above")
            unfinished.rename(path)


def _count(go: str, sources: Path, package: str) -> int:
    """Download a program's modules and return how many packages it has."""
    with tempfile.TemporaryFile() as listed:
        _follow([go, "list", "-deps", package], sources, "modules downloaded", listed)
        listed.seek(0)
        return len(listed.readlines())


class _Listener(threading.Thread):
    """Reads Go's output: counts the lines that name a package or a module, and keeps all others as error messages."""

    def __init__(self, lines: IO[str]) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self.latest = ""
        self.complaints: list[str] = []
        self._lines = lines

    def run(self) -> None:
        for line in self._lines:
            name = line.strip().removeprefix("go: downloading ")
            if line.startswith("go: downloading ") or " " not in name:
                self.count += 1
                self.latest = name
            else:
                self.complaints.append(line)


def _follow(command: list[str], folder: Path, what: str, output: IO[bytes] | None = None) -> bool:
    """Run a Go command with a progress line every few seconds, and print its error messages if it fails."""
    started = time.monotonic()
    with subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        listener = _Listener(process.stderr)
        listener.start()
        while _is_running_after_wait(process):
            minutes, seconds = divmod(int(time.monotonic() - started), 60)
            _say(f"  {minutes}:{seconds:02}  {listener.count:,} {what}  {listener.latest}")
        listener.join()
    if process.returncode:
        _say("".join(listener.complaints))
    return process.returncode == 0


def _is_running_after_wait(process: subprocess.Popen[str]) -> bool:
    try:
        process.wait(EVERY_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@contextmanager
def _build_lock(folder: Path) -> Iterator[None]:
    """Let only one process build in this folder at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
