"""Several writes that are to take effect in the same moment: each is sent but for its last byte, then all last bytes are.

An API server does nothing before it has a body whole. Requests sent one by one take effect as the server comes to them,
and what it does on account of the first keeps it busy meanwhile: nodes that were to open together opened over a second.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

PATIENCE_SECONDS: Final = 5.0
"""How long a request waits for the others: a connection of its own may have to be made, and a busy server takes its time."""


class StartLine:
    """Where requests wait for each other.

    Args:
        runners: How many there are.
        patience_seconds: Whoever has waited for the others that long goes, and so does everybody else then.
    """

    def __init__(self, runners: int, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._barrier = threading.Barrier(runners)
        self._patience_seconds = patience_seconds

    def body(self, content: bytes) -> HeldBody:
        """A request's body that waits here; `content` is not empty."""
        return HeldBody(content, self)

    def wait(self) -> None:
        """Come back once everybody is here, or somebody will not come."""
        with suppress(threading.BrokenBarrierError):
            self._barrier.wait(self._patience_seconds)

    def leave(self) -> None:
        """Nobody needs to wait for me: my request has ended, or never began. Harmless once all are gone."""
        self._barrier.abort()


class HeldBody:
    """A body whose last byte waits, the first time that it is sent; the next try does not."""

    def __init__(self, content: bytes, line: StartLine) -> None:
        self._content = content
        self._line: StartLine | None = line

    def __len__(self) -> int:
        return len(self._content)

    def __iter__(self) -> Iterator[bytes]:
        yield self._content[:-1]
        line, self._line = self._line, None
        if line is not None:
            line.wait()
        yield self._content[-1:]
