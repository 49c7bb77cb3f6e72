"""Servers as child processes: started with a log file, waited for, and gone when this process is.

A server ends when its standard input does, and only we hold the other end. So it ends when we close that end, when
this process ends in whatever way, and never because some thread of ours did.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_POLL_SECONDS = 0.02
_SHOWN_LINES = 30  # of the log, when something is wrong


class ServerFailedError(Exception):
    """A server ended, or was not ready in time; the text ends with the end of its log."""


class Server:
    """One running server.

    Args:
        name: What to call it in errors; its log is `<name>.log`.
        command: The program and its flags.
        logs: The folder for its log; a server that is started again goes on in the same file.
    """

    def __init__(self, name: str, command: Sequence[str], logs: Path) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        with self.log.open("ab") as log:
            # a session of its own: Ctrl-C is for the test runner, which then stops its servers in its own order
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Return as soon as it is ready.

        Raises:
            ServerFailedError: It ended, or was not ready within the time.
        """
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.is_running():
                raise ServerFailedError(f"{self.name} ended with status {self._process.returncode}; {self._tail()}")
            if time.monotonic() > deadline:
                raise ServerFailedError(f"{self.name} was not ready within {seconds:g} s; {self._tail()}")
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """End it at once, and wait until the process is gone; safe to repeat."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:  # too busy even to read its input
            self._process.kill()
            self._process.wait()

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return f"the end of {self.log}:\n" + "\n".join(lines[-_SHOWN_LINES:])


def free_port() -> int:
    """A TCP port of the loopback interface without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
