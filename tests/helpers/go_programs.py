"""Programs in Go that tests talk to: built once per version of their sources, kept outside the repository.

A program is a folder with a Go module in it. Its build lands in `$XDG_CACHE_HOME/journeyman` under the hash of the
sources, so that a change of sources builds anew and everything else starts at once. While Go works, a line every few
seconds says how far it is, since a cold build takes minutes.
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

EVERY_SECONDS = 5.0  # between lines of progress


class GoProgramMissingError(Exception):
    """A program is not there and cannot be built; the text says what to install or where to look."""


def say_where(path: Callable[[], Path]) -> int:
    """Have a program built if need be and print where it is; the exit status, 0 also without Go: its tests skip then."""
    try:
        sys.stdout.write(f"{path()}\n")
    except GoProgramMissingError as missing:
        sys.stderr.write(f"{missing}\n")
        return 1 if shutil.which("go") else 0
    return 0


class GoProgram(Struct, frozen=True, kw_only=True):
    """A program, and how it is built.

    Attributes:
        name: Of the program's file, and of its folder in the cache.
        title: What it is, as the subject of a sentence.
        sources: The folder of its Go module; only files directly in it belong to the program.
        flags: For `go build`, beyond `-trimpath`.
        minutes: What a cold build on two cores takes, to set expectations.
        package: What to build; by default the module itself, or else a program of one that its go.mod pins.
    """

    name: str
    title: str
    sources: Path
    minutes: str
    flags: tuple[str, ...] = ()
    package: str = "."

    def path(self) -> Path:
        """Where the program is, built if need be.

        Raises:
            GoProgramMissingError: There is no Go, or the build failed.
        """
        path = self.cached()
        if not path.exists():
            self._build(path)
        return path

    def cached(self) -> Path:
        """Where the build of exactly this package of these sources, with these flags, belongs."""
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
        with _alone(path.parent):
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
    """How many packages a program is made of; downloads its modules on the way."""
    with tempfile.TemporaryFile() as listed:
        _follow([go, "list", "-deps", package], sources, "modules downloaded", listed)
        listed.seek(0)
        return len(listed.readlines())


class _Listener(threading.Thread):
    """Reads what Go says: names of packages and modules are counted, everything else is a complaint and kept."""

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
    """Run a Go command, saying every few seconds how far it is, and at the end what it complained about."""
    started = time.monotonic()
    with subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        listener = _Listener(process.stderr)
        listener.start()
        while _runs(process):
            minutes, seconds = divmod(int(time.monotonic() - started), 60)
            _say(f"  {minutes}:{seconds:02}  {listener.count:,} {what}  {listener.latest}")
        listener.join()
    if process.returncode:
        _say("".join(listener.complaints))
    return process.returncode == 0


def _runs(process: subprocess.Popen[str]) -> bool:
    try:
        process.wait(EVERY_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
