"""A simulated world: actors that react to a cluster, on one virtual clock.

An actor simulates a controller, a kubelet or a cloud: it reads the API server (or its own cloud), does what is due now, and
returns when it is due next. The world lets all actors act until nothing changes, then advances the clock to the earliest due
time. There are no threads, no sleeps and no randomness: the same start leads to the same history, so that a scenario can be
repeated and a failing seed replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from journeyman.errors import JourneymanError
from journeyman_simulator.clock import VirtualClock

_ROUNDS_BEFORE_GIVING_UP = 2_000


class WorldStuckError(JourneymanError):
    """The simulated world cannot go on: it never settles, or a scenario waits for something that cannot happen."""


class Actor(Protocol):
    """One thing that reacts and keeps time."""

    def act(self) -> bool:
        """Do everything due now; True if anything changed."""
        ...

    def due(self) -> datetime | None:
        """The next moment there is something to do even if nothing else changes; None if it only reacts."""
        ...


class World:
    """Runs actors in a fixed order on a virtual clock."""

    def __init__(self, clock: VirtualClock, actors: Sequence[Actor]) -> None:
        self._clock = clock
        self._actors = tuple(actors)

    def settle(self) -> None:
        """Let all actors act until none has work that is due now.

        Raises:
            WorldStuckError: Actors undo each other's work without end.
        """
        busy: list[Actor] = []
        for _ in range(_ROUNDS_BEFORE_GIVING_UP):
            busy = [actor for actor in self._actors if actor.act()]
            if not busy:
                return
        names = ", ".join(type(actor).__name__ for actor in busy)
        raise WorldStuckError(f"the world does not settle; still busy: {names}", time=self._clock.now().isoformat())

    def run_until(self, done: Callable[[], bool], *, within: timedelta, waiting_for: str) -> None:
        """Run until `done()`.

        Args:
            done: Called after each moment that passed.
            within: Virtual time it may take.
            waiting_for: What the scenario waits for, for the error message.

        Raises:
            WorldStuckError: It did not come true in time.
        """
        end = self._clock.now() + within
        self.settle()
        while not done():
            if not self._step(end):
                raise WorldStuckError(
                    f"still waiting for {waiting_for} after {within}", time=self._clock.now().isoformat()
                )

    def run_for(self, span: timedelta, *, unless: Callable[[], bool] = lambda: False) -> None:
        """Run for that much virtual time, or until `unless()` is true, which is checked after each moment."""
        end = self._clock.now() + span
        self.settle()
        while not unless() and self._step(end):
            pass
        if not unless():
            self._clock.advance_to(end)
            self.settle()

    def _step(self, end: datetime) -> bool:
        """Jump to the next moment at which an actor is due, at most `end`; False if there is none."""
        moments = [moment for actor in self._actors if (moment := actor.due()) is not None]
        upcoming = [moment for moment in moments if moment > self._clock.now()]
        if not upcoming or min(upcoming) > end:
            return False
        self._clock.advance_to(min(upcoming))
        self.settle()
        return True
