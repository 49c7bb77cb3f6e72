"""Pauses and resumes runs deterministically: each has its own thread, of which exactly one runs at any time.

A run continues until it ends or pauses, while the thread that started or resumed it waits. Virtual time decides which run
is next: the run that is due first, and of several the one that started first.
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
    until: datetime | None = None  # None if it is not paused
    go: threading.Lock = field(default_factory=threading.Lock)
    error: BaseException | None = None
    thread: threading.Thread | None = None


class CooperativeScheduler:
    """Starts, pauses and resumes runs. An `Actor` of a simulated `World`.

    Args:
        clock: The virtual clock.
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
        """Return the number of paused runs."""
        return len(self._paused)

    def start(self, work: Callable[[], object], *, can_pause: bool = True) -> None:
        """Run `work` until it ends or pauses. Raises its exceptions, unless it is resumed: then `act` or `release` does.

        Args:
            work: The run.
            can_pause: Whether the run may pause. A run that may not needs no thread.
        """
        if not can_pause:
            work()
            return
        self._serial += 1
        run = _PausableRun(work=work, serial=self._serial)
        run.go.acquire()
        run.thread = threading.Thread(target=self._run, args=(run,), name=f"run-{run.serial}", daemon=True)
        run.thread.start()
        self._switch_to(run)

    def pause(self, until: datetime) -> None:
        """Pause the calling run until `until`, while other runs continue."""
        run = self._running
        if run is None:
            raise RuntimeError("only a run that was started with `can_pause` can pause")
        run.until = until
        self._paused.append(run)
        self._back.release()
        run.go.acquire()

    def due(self) -> datetime | None:
        """Return when the first paused run is due."""
        return min((t.until for t in self._paused if t.until), default=None)

    def act(self) -> bool:
        """Resume the run that is due first; return whether one was due."""
        ready = [t for t in self._paused if t.until is not None and t.until <= self._clock.now()]
        if not ready:
            return False
        self._resume(min(ready, key=lambda t: (t.until, t.serial)))
        return True

    def release(self) -> None:
        """Resume all paused runs now, one after another, until none is paused."""
        while self._paused:
            self._resume(min(self._paused, key=lambda t: t.serial))

    def _resume(self, run: _PausableRun) -> None:
        self._paused.remove(run)
        run.until = None
        self._switch_to(run)

    def _switch_to(self, run: _PausableRun) -> None:
        self._running = run
        run.go.release()
        self._back.acquire()
        self._running = None
        if run not in self._paused and run.thread is not None:
            run.thread.join()
            if run.error is not None:
                raise run.error

    def _run(self, run: _PausableRun) -> None:
        run.go.acquire()
        try:
            run.work()
        except BaseException as error:  # noqa: BLE001 - `_switch_to` raises it in the thread that started or resumed the run
            run.error = error
        self._back.release()
