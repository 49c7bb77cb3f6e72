"""Servers as child processes, each with a log file, that end when this process ends.

A server ends when its standard input is closed, and only this process holds the other end of the pipe. So a server ends
when this process closes the pipe or ends in any way, but not when one of its threads ends.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_POLL_SECONDS = 0.02
_SHOWN_LINES = 30  # of the log in an error message


class ServerFailedError(Exception):
    """A server ended or was not ready in time; the message ends with the last lines of its log."""


class Server:
    """One running server.

    Args:
        name: The server's name in error messages; its log is `<name>.log`.
        command: The program and its flags.
        logs: The folder of its log; a restarted server appends to the same file.
    """

    def __init__(self, name: str, command: Sequence[str], logs: Path) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        with self.log.open("ab") as log:
            # in its own session, Ctrl-C reaches only the test runner, which then stops its servers in order
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    def is_running(self) -> bool:
        """Return whether the process has not ended."""
        return self._process.poll() is None

    def wait_until(self, is_ready: Callable[[], bool], seconds: float) -> None:
        """Return as soon as the server is ready.

        Raises:
            ServerFailedError: The server ended, or was not ready within the time.
        """
        deadline = time.monotonic() + seconds
        while not is_ready():
            if not self.is_running():
                raise ServerFailedError(f"{self.name} ended with status {self._process.returncode}; {self._tail()}")
            if time.monotonic() > deadline:
                raise ServerFailedError(f"{self.name} was not ready within {seconds:g} s; {self._tail()}")
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """End the server and wait until the process has ended; safe to repeat."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:  # too busy to notice the end of its input
            self._process.kill()
            self._process.wait()

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return f"the end of {self.log}:\n" + "\n".join(lines[-_SHOWN_LINES:])


def free_port() -> int:
    """Return a TCP port of the loopback interface without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
