"""Runs that pause and resume deterministically: each in a thread of its own, exactly one of them running at any time.

A run continues until it ends or pauses; the thread that started or resumed it waits meanwhile. Virtual time alone decides
which run is next: the one that is due first, and of these the one that started first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime

from msgspec import Struct, field

from journeyman.ports import Clock


class _PausableRun(Struct, kw_only=True, eq=False):
    """A run that may pause."""

    work: Callable[[], object]
    serial: int
    until: datetime | None = None  # None: not paused until a time
    go: threading.Lock = field(default_factory=threading.Lock)
    error: BaseException | None = None
    thread: threading.Thread | None = None


class CooperativeScheduler:
    """Starts, pauses and resumes runs. An `Actor` of a simulated `World`.

    Args:
        clock: Virtual time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._back = threading.Lock()
        self._back.acquire()
        self._running: _PausableRun | None = None
        self._paused: list[_PausableRun] = []
        self._serial = 0

    @property
    def paused(self) -> int:
        """Number of paused runs."""
        return len(self._paused)

    def start(self, work: Callable[[], object], *, can_pause: bool = True) -> None:
        """Run `work` until it ends or pauses. Its exceptions are raised here, or where it is resumed.

        Args:
            work: The run.
            can_pause: Whether the run may pause. One that may not needs no thread, and costs no more than a call.
        """
        if not can_pause:
            work()
            return
        self._serial += 1
        ticket = _PausableRun(work=work, serial=self._serial)
        ticket.go.acquire()
        ticket.thread = threading.Thread(target=self._run, args=(ticket,), name=f"run-{ticket.serial}", daemon=True)
        ticket.thread.start()
        self._switch_to(ticket)

    def pause(self, until: datetime) -> None:
        """Pause the calling run until then; others run meanwhile."""
        ticket = self._running
        if ticket is None:
            raise RuntimeError("only a run that was started with `can_pause` can pause")
        ticket.until = until
        self._paused.append(ticket)
        self._back.release()
        ticket.go.acquire()

    def due(self) -> datetime | None:
        """Return when the first paused run is due."""
        return min((t.until for t in self._paused if t.until), default=None)

    def act(self) -> bool:
        """Resume the run that is due first; return whether there was one."""
        ready = [t for t in self._paused if t.until is not None and t.until <= self._clock.now()]
        if not ready:
            return False
        self._resume(min(ready, key=lambda t: (t.until, t.serial)))
        return True

    def release(self) -> None:
        """Resume all paused runs now, one after the other, until none pauses any more."""
        while self._paused:
            self._resume(min(self._paused, key=lambda t: t.serial))

    def _resume(self, ticket: _PausableRun) -> None:
        self._paused.remove(ticket)
        ticket.until = None
        self._switch_to(ticket)

    def _switch_to(self, ticket: _PausableRun) -> None:
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
