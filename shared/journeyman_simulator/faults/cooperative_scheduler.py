"""Two runs at once, the same way every time: each run in a thread of its own, one baton for all of them.

A run goes on until it ends or parks; whoever has handed it the baton waits meanwhile. So exactly one thread runs at any
time, and who runs next is decided by virtual time alone: whoever is due first, and of these whoever began first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime

from msgspec import Struct, field

from journeyman.ports import Clock


class _PausableRun(Struct, kw_only=True, eq=False):
    """One run that may park."""

    work: Callable[[], object]
    serial: int
    until: datetime | None = None  # None: it does not wait for a time
    go: threading.Lock = field(default_factory=threading.Lock)
    error: BaseException | None = None
    thread: threading.Thread | None = None


class CooperativeScheduler:
    """Starts runs, parks them, lets them go on. An `Actor` of a simulated `World`.

    Args:
        clock: Virtual time.
        threads: Without them runs may not park, and cost nothing more than a call.
    """

    def __init__(self, clock: Clock, *, threads: bool = True) -> None:
        self._clock = clock
        self._threads = threads
        self._back = threading.Lock()
        self._back.acquire()
        self._running: _PausableRun | None = None
        self._paused: list[_PausableRun] = []
        self._serial = 0

    @property
    def paused(self) -> int:
        """How many runs stand still."""
        return len(self._paused)

    def start(self, work: Callable[[], object]) -> None:
        """Run `work` until it ends or parks. Raises what it raises, also later, from whoever lets it go on."""
        if not self._threads:
            work()
            return
        self._serial += 1
        ticket = _PausableRun(work=work, serial=self._serial)
        ticket.go.acquire()
        ticket.thread = threading.Thread(target=self._run, args=(ticket,), name=f"run-{ticket.serial}", daemon=True)
        ticket.thread.start()
        self._hand_to(ticket)

    def pause(self, until: datetime) -> None:
        """Called by a run: stand still until then; others go on at once."""
        ticket = self._running
        if ticket is None:
            raise RuntimeError("only a run that was started with threads can park")
        ticket.until = until
        self._paused.append(ticket)
        self._back.release()
        ticket.go.acquire()

    def due(self) -> datetime | None:
        """When the first parked run goes on."""
        return min((t.until for t in self._paused if t.until), default=None)

    def act(self) -> bool:
        """Let whoever is due first go on; True if somebody was."""
        ready = [t for t in self._paused if t.until is not None and t.until <= self._clock.now()]
        if not ready:
            return False
        self._resume(min(ready, key=lambda t: (t.until, t.serial)))
        return True

    def release(self) -> None:
        """Let all parked runs go on now, one after the other, whatever their time; who parks anew is let go on, too."""
        while self._paused:
            self._resume(min(self._paused, key=lambda t: t.serial))

    def _resume(self, ticket: _PausableRun) -> None:
        self._paused.remove(ticket)
        ticket.until = None
        self._hand_to(ticket)

    def _hand_to(self, ticket: _PausableRun) -> None:
        self._running = ticket
        ticket.go.release()
        self._back.acquire()
        self._running = None
        if ticket not in self._paused and ticket.thread is not None:
            ticket.thread.join()
            if ticket.error is not None:
                raise ticket.error

    def _run(self, ticket: _PausableRun) -> None:
        ticket.go.acquire()
        try:
            ticket.work()
        except BaseException as error:  # noqa: BLE001 - it is raised where the run was started or let go on
            ticket.error = error
        self._back.release()
