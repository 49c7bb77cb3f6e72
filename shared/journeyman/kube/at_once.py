"""Several writes that are to take effect in the same moment: each is sent but for its last byte, then all last bytes are.

An API server does nothing before it has a body whole. Requests sent one by one take effect as the server comes to them,
and what it does on account of the first keeps it busy meanwhile: nodes that were to open together opened over a second.
One thread sends the last bytes, one after the other; threads that are woken for it take the longer the busier the machine
is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

PATIENCE_SECONDS: Final = 5.0
"""How long a request waits for the others: a connection of its own may have to be made, and a busy server takes its time."""
GAP_SECONDS: Final = 0.0005
"""Between two last bytes: what an API server gets in one go it does in any order, the last one first as a rule."""


class StartLine:
    """Where requests wait for each other.

    Args:
        runners: How many there are.
        patience_seconds: Whoever has waited for the others that long goes alone, and so does everybody else then.
    """

    def __init__(self, runners: int, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._barrier = threading.Barrier(runners, action=self._start)
        self._patience_seconds = patience_seconds
        self._waiting: list[_Send] = []
        self._is_empty = False

    def body(self, content: bytes, place: int) -> HeldBody:
        """A request's body that waits here; `content` is not empty. The lowest place sets out first."""
        return HeldBody(content, self, place)

    def send(self, send: Callable[[], None], place: int) -> None:
        """Have it sent together with the others', alone if somebody will not come. Raises what `send` raises."""
        mine = _Send(send, place)
        self._waiting.append(mine)
        with suppress(threading.BrokenBarrierError):
            self._barrier.wait(self._patience_seconds)
        mine.go()
        if mine.error is not None:
            raise mine.error

    @property
    def is_empty(self) -> bool:
        """Whether they are gone, together or not."""
        return self._is_empty

    def leave(self) -> None:
        """Nobody needs to wait for me: my request has ended, or never began. Harmless once all are gone."""
        self._is_empty = True
        self._barrier.abort()

    def _start(self) -> None:
        began = time.perf_counter()
        for number, waiting in enumerate(sorted(self._waiting, key=lambda each: each.place)):
            time.sleep(max(0.0, began + number * GAP_SECONDS - time.perf_counter()))
            waiting.go()
        self._is_empty = True


class _Send:
    """Something to send, once; by its own thread or by the one that came last."""

    def __init__(self, send: Callable[[], None], place: int) -> None:
        self.place = place
        self.error: OSError | None = None
        self._send: Callable[[], None] | None = send

    def go(self) -> None:
        send, self._send = self._send, None
        if send is None:
            return
        try:
            send()
        except OSError as error:  # of this connection alone
            self.error = error


class HeldBody:
    """A body whose last byte waits, the first time that it is sent; the next try does not."""

    def __init__(self, content: bytes, line: StartLine, place: int) -> None:
        self._content = content
        self._last: bytes | None = _LastByte(content[-1:], line, place)

    def __len__(self) -> int:
        return len(self._content)

    def __iter__(self) -> Iterator[bytes]:
        yield self._content[:-1]
        last, self._last = self._last, None
        yield last or self._content[-1:]


class _LastByte(bytes):
    """Knows where it is to wait."""

    line: StartLine
    place: int

    def __new__(cls, content: bytes, line: StartLine, place: int) -> _LastByte:
        made = super().__new__(cls, content)
        made.line, made.place = line, place
        return made


class Holding:
    """A connection that has last bytes sent together."""

    def send(self, data: Any) -> None:
        """Send it, or have it sent."""
        plain: Callable[[Any], None] = super().send  # type: ignore[misc]
        if isinstance(data, _LastByte):
            data.line.send(lambda: plain(bytes(data)), data.place)
        else:
            plain(data)


class _HoldingHttp(Holding, HTTPConnection):
    pass


class _HoldingHttps(Holding, HTTPSConnection):
    pass


class HttpPool(HTTPConnectionPool):
    """Connections over which held bodies go."""

    ConnectionCls = _HoldingHttp


class HttpsPool(HTTPSConnectionPool):
    """The same under TLS."""

    ConnectionCls = _HoldingHttps
